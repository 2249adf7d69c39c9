"""A server that shows itself, with a path between two of its devices. No torch, no cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from labkit.floor.words import count
from labkit.show.picture import Picture
from workbook.tools.topology import MEANS, Topology, plot
from workbook.tools.topology.machine import LINKS

LINK = re.compile(r"(NV|XGMI)(\d+)")


class Server(Picture):
    """A `workbook.tools.topology.Topology` as a picture; its text is the topology's own, and the path that it shows.

    `between` names two devices whose path is drawn bold.
    """

    def __init__(self, topology: Topology, between: tuple[str, str] | None = None) -> None:
        self.topology = topology
        self.between = between
        self.path = topology.path(*between) if between else ""

    def __repr__(self) -> str:
        return "\n".join([repr(self.topology), *self._said])

    def _drawn(self) -> Any:
        return plot.draw(self._picture())

    @property
    def _said(self) -> list[str]:
        if not self.between:
            return []
        links = LINK.fullmatch(self.path)
        means = count(int(links[2]), LINKS[links[1]]) if links else MEANS[self.path]
        return [f"{self.between[0]} to {self.between[1]}: {self.path}, {means}."]

    def _picture(self) -> plot.Picture:
        t = self.topology
        nvlink = bool(LINK.fullmatch(self.path))
        pcie = bool(self.path) and not nvlink and self.path not in ("X", "NET")
        over = pcie and self.path not in ("PIX", "PXB")  # up to the CPU
        homes = {t.ways[d][-1] for d in self.between or ()} - {""}
        cpus = []
        for cpu in (*t.cpus, ""):
            trees = [self._tree(top, by_switch, pcie, over) for top, by_switch in t.below(cpu).items()]
            if trees:
                cpus.append(plot.Cpu(cpu, trees, over and cpu in homes))
        pairs = [t.path(a, b) for a, b in permutations(t.gpus, 2)]
        kinds = sorted({path for path in pairs if LINK.fullmatch(path)}, key=lambda path: (len(path), path))
        which = f"{' or '.join(kinds)}, between {'all' if all(map(LINK.fullmatch, pairs)) else 'some'} pairs"
        called = LINKS[t.link].removesuffix(" link")
        links = (f"NVSwitch, {' or '.join(kinds)}" if t.switched else f"{called}: {which}") if kinds else ""
        notes = [f"Circles are GPUs. {f'Read from: {t.source}.' * bool(t.source)}".rstrip()]
        if not kinds:
            notes.append(f"{called} is not in this file.")
        notes += t.notes
        return plot.Picture(t.name, cpus, links, nvlink, pcie, [*self._said, *notes])

    def _tree(self, top: str, by_switch: Mapping[str, Sequence[str]], pcie: bool, over: bool) -> plot.Tree:
        """Return the devices below one upper switch; a switch that has no other beside it is drawn alone."""
        several = bool(top) and (len(by_switch) > 1 or "" in by_switch)
        switches = []
        for near, devices in by_switch.items():
            drawn = [self._device(device) for device in devices]
            asked = pcie and any(d.marked for d in drawn)
            alone = near and not (several and near == top)
            up = asked and (over or (several and self.path == "PXB"))
            switches.append(plot.Switch("PCIe" if alone else "", drawn, asked and bool(alone), up))
        up = any(s.up for s in switches)
        return plot.Tree(("PCIe switches" if "" in by_switch else "PCIe") if several else "", switches, up, up and over)

    def _device(self, device: str) -> plot.Device:
        name = device.partition("@")[0]
        gpu = int(name[3:]) if device in self.topology.gpus else None
        return plot.Device(name.replace("mlx5_", "mlx "), gpu, device in (self.between or ()))
