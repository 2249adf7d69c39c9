"""A server: its CPUs, the PCIe switches below them, GPUs and network cards below those, NVLink at the bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path

from labkit.plot.sheet import color, extent, on, sheet, write
from labkit.plot.svg import EDGE, FAINT, INK, PAGE, PLAIN

STRIDE, GAP, APART = 0.92, 0.25, 0.5  # from device to device, between switches, between CPUs
LEFT, TOP, CPU, SWITCH, DEVICE, LINKS = 0.4, 0.8, 0.62, 0.55, 0.75, 0.5
LINE = 0.42
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
    """Devices below one PCIe switch; without a name they hang on the CPU itself."""

    name: str
    devices: Sequence[Device]
    marked: bool = False


@dataclass(frozen=True)
class Cpu:
    """A CPU with what is below it; without a name, devices of which nobody knows where they are."""

    name: str
    switches: Sequence[Switch]
    marked: bool = False


@dataclass(frozen=True)
class Picture:
    """A server: `links` is what its GPUs have for NVLink ("NVSwitch, NV18"), "" where the file does not say."""

    title: str
    cpus: Sequence[Cpu]
    links: str = ""
    nvlink: bool = False  # the path that is asked about goes over NVLink
    between: bool = False  # or over the link between the CPUs
    notes: Sequence[str] = ()


def axes(picture: Picture) -> Axes:
    """Axes that are large enough."""
    wide = 2 * LEFT + sum(map(_cpu_wide, picture.cpus)) + APART * (len(picture.cpus) - 1)
    words = [extent(picture.title, 9.5, bold=True), *(extent(note, 7.5) for note in picture.notes)]
    return sheet(max(wide, 2 * LEFT + max(words)), _bottom(picture) + LINE * len(picture.notes) + 0.2)


def draw(ax: Axes, picture: Picture) -> Axes:
    """Draw on axes as `axes` makes them, y downwards."""
    write(ax, LEFT, 0.4, picture.title, 9.5, INK, "left", bold=True)
    x, middles = LEFT, []
    for cpu in picture.cpus:
        middles.append(_cpu(ax, cpu, x, picture))
        x += _cpu_wide(cpu) + APART
    y = TOP + CPU / 2
    named = [place for cpu, place in zip(picture.cpus, middles, strict=True) if cpu.name]
    for (_, end), (start, _) in pairwise(named):
        _line(ax, [(end, y), (start, y)], picture.between, 2.0)
    if picture.links:
        top = _devices(picture) + DEVICE / 2 + LINKS
        wide = x - APART - LEFT
        ax.add_artist(
            Rectangle((LEFT, top), wide, 0.5, facecolor=PLAIN, edgecolor=INK, linewidth=BOLD if picture.nvlink else 0.8)
        )
        write(ax, LEFT + wide / 2, top + 0.25, picture.links, 8, INK)
    y = _bottom(picture)
    for note in picture.notes:
        write(ax, LEFT, y, note, 7.5, FAINT, "left")
        y += LINE
    return ax


def _cpu(ax: Axes, cpu: Cpu, x: float, picture: Picture) -> tuple[float, float]:
    """Draw a CPU and what is below it; where its box begins and ends."""
    wide = _cpu_wide(cpu)
    if not cpu.name:  # nobody knows where these are
        for i, device in enumerate(d for switch in cpu.switches for d in switch.devices):
            _device(ax, device, x + (i + 0.5) * STRIDE, _devices(picture))
        write(ax, x + wide / 2, TOP + CPU / 2, ELSEWHERE, 8, FAINT)
        return x, x + wide
    box = FancyBboxPatch((x, TOP), wide, CPU, boxstyle="round,pad=0,rounding_size=0.12")
    box.set(facecolor=PAGE, edgecolor=INK, linewidth=BOLD if cpu.marked else 1.0, zorder=3)
    ax.add_artist(box)
    write(ax, x + wide / 2, TOP + CPU / 2, cpu.name, 8.5, INK, bold=cpu.marked)
    under = x
    for switch in cpu.switches:
        _switch(ax, switch, under, cpu.marked, picture)
        under += _switch_wide(switch) + GAP
    return x, x + wide


def _switch(ax: Axes, switch: Switch, x: float, cpu: bool, picture: Picture) -> None:
    wide = _switch_wide(switch)
    top = TOP + CPU + 0.4
    devices = _devices(picture)
    any_marked = any(d.marked for d in switch.devices)
    for i, device in enumerate(switch.devices):
        at = x + (i + 0.5) * STRIDE
        over_pcie = device.marked and not picture.nvlink
        if switch.name:
            _line(ax, [(at, devices), (at, top + SWITCH)], over_pcie)
        else:
            _line(ax, [(at, devices), (at, TOP + CPU)], over_pcie)
        if picture.links and device.gpu is not None:
            _line(ax, [(at, devices), (at, devices + DEVICE / 2 + LINKS)], device.marked and picture.nvlink)
        _device(ax, device, at, devices)
    if switch.name:
        middle = x + wide / 2
        _line(ax, [(middle, top), (middle, TOP + CPU)], any_marked and cpu and not picture.nvlink)
        box = Rectangle((x + 0.06, top), wide - 0.12, SWITCH, facecolor=PLAIN, edgecolor=INK)
        box.set(linewidth=BOLD if switch.marked else 0.8, zorder=3)
        ax.add_artist(box)
        write(ax, middle, top + SWITCH / 2, switch.name, 7.5, INK)


def _device(ax: Axes, device: Device, x: float, y: float) -> None:
    thick = BOLD if device.marked else 0.8
    if device.gpu is not None:
        ax.add_artist(Circle((x, y), 0.36, facecolor=color(device.gpu), edgecolor=INK, linewidth=thick, zorder=4))
        write(ax, x, y, str(device.gpu), 9, on(device.gpu), bold=True)
        return
    box = Rectangle((x - 0.4, y - 0.27), 0.8, 0.54, facecolor=PAGE, edgecolor=INK, linewidth=thick, zorder=4)
    ax.add_artist(box)
    write(ax, x, y, device.name, 7, INK, bold=device.marked)


def _line(ax: Axes, points: Sequence[tuple[float, float]], marked: bool, thin: float = 1.0) -> None:
    ink, width = (INK, BOLD + 0.6) if marked else (EDGE, thin)
    ax.add_artist(PathPatch(Path(list(points)), edgecolor=ink, facecolor="none", linewidth=width, zorder=2))


def _switch_wide(switch: Switch) -> float:
    return max(len(switch.devices) * STRIDE, extent(switch.name, 7.5) + 0.3 if switch.name else 0)


def _cpu_wide(cpu: Cpu) -> float:
    below = sum(map(_switch_wide, cpu.switches)) + GAP * max(0, len(cpu.switches) - 1)
    return max(below, extent(cpu.name or ELSEWHERE, 8.5, bold=True) + 0.5)


def _devices(picture: Picture) -> float:
    """The height of the devices' middles."""
    return TOP + CPU + 0.4 + SWITCH + 0.35 + DEVICE / 2


def _bottom(picture: Picture) -> float:
    return _devices(picture) + DEVICE / 2 + (LINKS + 0.5 if picture.links else 0) + 0.4
