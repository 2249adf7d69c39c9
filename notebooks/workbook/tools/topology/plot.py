"""A server: its CPUs, the PCIe switches below them, GPUs and network cards below those, NVLink at the bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path

from labkit.plot.sheet import TITLE, color, extent, headline, on, sheet, wrapped, write
from labkit.plot.svg import EDGE, FAINT, INK, PAGE, PLAIN

STRIDE, GAP, APART = 0.92, 0.25, 0.5  # from device to device, between switches, between CPUs
LEFT, TOP, CPU, SWITCH, DEVICE, LINKS = 0.4, 0.8, 0.62, 0.55, 0.75, 0.5
LINE = 0.42
NOTES = 12.0  # longer notes are wrapped, unless the picture is wider
BOLD = 2.6
ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Device:
    """A GPU by its number, or a card: what stands in it, and whether it is on the path that is asked about."""

    name: str
    gpu: int | None
    marked: bool = False


@dataclass(frozen=True)
class Switch:
    """Devices below one PCIe switch; without a name they hang on what is above it. `up`: the path goes there."""

    name: str
    devices: Sequence[Device]
    marked: bool = False
    up: bool = False


@dataclass(frozen=True)
class Tree:
    """Switches below an upper one; without a name they hang on the CPU itself."""

    name: str
    switches: Sequence[Switch]
    marked: bool = False
    up: bool = False


@dataclass(frozen=True)
class Cpu:
    """A CPU with what is below it; without a name, devices whose CPU is unknown."""

    name: str
    trees: Sequence[Tree]
    marked: bool = False


@dataclass(frozen=True)
class Picture:
    """A server: `links` is what its GPUs have for NVLink ("NVSwitch, NV18"), "" where the file does not say."""

    title: str
    cpus: Sequence[Cpu]
    links: str = ""
    nvlink: bool = False  # the path that is asked about goes over NVLink
    pcie: bool = False  # or over PCIe
    notes: Sequence[str] = ()


def draw(picture: Picture) -> Axes:
    """Draw the server and the notes below it."""
    ax = sheet(2 * LEFT + _wide(picture), _bottom(picture) + LINE * len(_notes(picture)) + 0.2)
    headline(ax, LEFT, 0.4, picture.title)
    x, middles = LEFT, []
    for cpu in picture.cpus:
        middles.append(_cpu(ax, cpu, x, picture))
        x += _cpu_wide(cpu) + APART
    y = TOP + CPU / 2
    named = [(cpu, *place) for cpu, place in zip(picture.cpus, middles, strict=True) if cpu.name]
    asked = [i for i, (cpu, *_) in enumerate(named) if cpu.marked]
    for i, ((cpu, _, end), (other, start, _)) in enumerate(pairwise(named)):
        if cpu.name.partition("@")[2] == other.name.partition("@")[2]:  # of one host
            _line(ax, [(end, y), (start, y)], bool(asked) and asked[0] <= i < asked[-1], 2.0)
    if picture.links:
        top = _devices(picture) + DEVICE / 2 + LINKS
        wide = max(x - APART - LEFT, _links_wide(picture))
        ax.add_artist(
            Rectangle((LEFT, top), wide, 0.5, facecolor=PLAIN, edgecolor=INK, linewidth=BOLD if picture.nvlink else 0.8)
        )
        write(ax, LEFT + wide / 2, top + 0.25, picture.links, 8, INK)
    y = _bottom(picture)
    for note in _notes(picture):
        write(ax, LEFT, y, note, 7.5, FAINT, "left")
        y += LINE
    return ax


def _cpu(ax: Axes, cpu: Cpu, x: float, picture: Picture) -> tuple[float, float]:
    """Draw a CPU and what is below it; return where its box begins and ends."""
    wide = _cpu_wide(cpu)
    if cpu.name:
        box = FancyBboxPatch((x, TOP), wide, CPU, boxstyle="round,pad=0,rounding_size=0.12")
        box.set(facecolor=PAGE, edgecolor=INK, linewidth=BOLD if cpu.marked else 1.0, zorder=3)
        ax.add_artist(box)
    ink = INK if cpu.name else FAINT
    write(ax, x + wide / 2, TOP + CPU / 2, cpu.name or ELSEWHERE, 8.5, ink, bold=cpu.marked)
    under = x
    for tree in cpu.trees:
        _tree(ax, tree, under, bool(cpu.name), picture)
        under += _tree_wide(tree) + GAP
    return x, x + wide


def _tree(ax: Axes, tree: Tree, x: float, known: bool, picture: Picture) -> None:
    """Draw an upper switch, where there is one, and what is below it, up to the CPU where it is `known`."""
    roof = TOP + CPU if known else None
    if tree.name:
        _box(ax, tree.name, x, TOP + CPU + 0.4, _tree_wide(tree), tree.marked)
        if roof:
            middle = x + _tree_wide(tree) / 2
            _line(ax, [(middle, roof + 0.4), (middle, roof)], tree.up)
        roof = TOP + CPU + 0.4 + SWITCH
    for switch in tree.switches:
        _switch(ax, switch, x, roof, picture)
        x += _switch_wide(switch) + GAP


def _box(ax: Axes, name: str, x: float, top: float, wide: float, marked: bool) -> None:
    box = Rectangle((x + 0.06, top), wide - 0.12, SWITCH, facecolor=PLAIN, edgecolor=INK)
    box.set(linewidth=BOLD if marked else 0.8, zorder=3)
    ax.add_artist(box)
    write(ax, x + wide / 2, top + SWITCH / 2, name, 7.5, INK)


def _switch(ax: Axes, switch: Switch, x: float, roof: float | None, picture: Picture) -> None:
    wide = _switch_wide(switch)
    devices = _devices(picture)
    top = devices - DEVICE / 2 - 0.35 - SWITCH
    end = top + SWITCH if switch.name else roof
    under = x
    for device in switch.devices:
        at = under + _device_wide(device) / 2
        under += _device_wide(device)
        if end:
            _line(ax, [(at, devices), (at, end)], device.marked and picture.pcie)
        if picture.links and device.gpu is not None:
            _line(ax, [(at, devices), (at, devices + DEVICE / 2 + LINKS)], device.marked and picture.nvlink)
        _device(ax, device, at, devices)
    if switch.name:
        if roof:
            _line(ax, [(x + wide / 2, top), (x + wide / 2, roof)], switch.up)
        _box(ax, switch.name, x, top, wide, switch.marked)


def _device(ax: Axes, device: Device, x: float, y: float) -> None:
    thick = BOLD if device.marked else 0.8
    if device.gpu is not None:
        ax.add_artist(Circle((x, y), 0.36, facecolor=color(device.gpu), edgecolor=INK, linewidth=thick, zorder=4))
        write(ax, x, y, str(device.gpu), 9, on(device.gpu), bold=True)
        return
    wide = _device_wide(device) - STRIDE + 0.8
    box = Rectangle((x - wide / 2, y - 0.27), wide, 0.54, facecolor=PAGE, edgecolor=INK, linewidth=thick, zorder=4)
    ax.add_artist(box)
    write(ax, x, y, device.name, 7, INK, bold=device.marked)


def _line(ax: Axes, points: Sequence[tuple[float, float]], marked: bool, thin: float = 1.0) -> None:
    ink, width = (INK, BOLD + 0.6) if marked else (EDGE, thin)
    ax.add_artist(PathPatch(Path(list(points)), edgecolor=ink, facecolor="none", linewidth=width, zorder=2))


def _device_wide(device: Device) -> float:
    return max(STRIDE, extent(device.name, 7, bold=True) + 0.36 if device.gpu is None else 0)


def _switch_wide(switch: Switch) -> float:
    return max(sum(map(_device_wide, switch.devices)), extent(switch.name, 7.5) + 0.3 if switch.name else 0)


def _tree_wide(tree: Tree) -> float:
    below = sum(map(_switch_wide, tree.switches)) + GAP * (len(tree.switches) - 1)
    return max(below, extent(tree.name, 7.5) + 0.3 if tree.name else 0)


def _cpu_wide(cpu: Cpu) -> float:
    below = sum(map(_tree_wide, cpu.trees)) + GAP * (len(cpu.trees) - 1)
    return max(below, extent(cpu.name or ELSEWHERE, 8.5, bold=True) + 0.5)


def _devices(picture: Picture) -> float:
    """Return the height of the devices' middles."""
    upper = SWITCH + 0.3 if any(tree.name for cpu in picture.cpus for tree in cpu.trees) else 0
    return TOP + CPU + 0.4 + upper + SWITCH + 0.35 + DEVICE / 2


def _wide(picture: Picture) -> float:
    devices = sum(map(_cpu_wide, picture.cpus)) + APART * (len(picture.cpus) - 1)
    notes = min(NOTES, max(extent(note, 7.5) for note in picture.notes))
    return max(devices, _links_wide(picture), extent(picture.title, TITLE, bold=True), notes)


def _links_wide(picture: Picture) -> float:
    return extent(picture.links, 8) + 0.3


def _notes(picture: Picture) -> list[str]:
    return [line for note in picture.notes for line in wrapped(note, _wide(picture), 7.5)]


def _bottom(picture: Picture) -> float:
    return _devices(picture) + DEVICE / 2 + (LINKS + 0.5 if picture.links else 0) + 0.4
