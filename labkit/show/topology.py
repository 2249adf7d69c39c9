"""A server that shows itself, with a path between two of its devices. No torch, no cluster."""

from __future__ import annotations

from functools import cached_property

from labkit.plot import svg
from labkit.plot import topology as plot
from labkit.theory.topology import MEANS, Topology


class Server:
    """A `labkit.theory.topology.Topology` as a picture; its text is the topology's own, and the path that it shows.

    `between` names two devices whose path is drawn bold.
    """

    def __init__(self, topology: Topology, between: tuple[str, str] | None = None) -> None:
        self.topology = topology
        self.between = between
        self.path = topology.path(*between) if between else ""

    def __repr__(self) -> str:
        return "\n".join([repr(self.topology), *self._said])

    def _repr_html_(self) -> str:
        return svg.img(self.svg, repr(self))

    @cached_property
    def svg(self) -> bytes:
        """The picture."""
        picture = self._picture()
        return svg.svg(plot.draw(plot.axes(picture), picture))

    @property
    def _said(self) -> list[str]:
        if not self.between:
            return []
        means = MEANS.get(self.path, "") or (f"{self.path[2:]} NVLinks" if self.path.startswith("NV") else "")
        return [f"{self.between[0]} to {self.between[1]}: {self.path}, {means}."]

    def _picture(self) -> plot.Picture:
        t = self.topology
        ends = set(self.between or ())
        nvlink = self.path.startswith("NV")
        pcie = bool(ends) and not nvlink
        homes = {t.ways[d][-1] for d in ends if t.ways.get(d)}
        cpus = []
        for cpu in (*t.cpus, ""):
            switches = [self._switch(name, devices, pcie) for name, devices in t.below(cpu).items()]
            if switches:
                through = pcie and cpu in homes and self.path not in ("PIX", "PXB", "X")
                cpus.append(plot.Cpu(cpu, switches, through))
        kinds = sorted({t.path(a, b) for a in t.gpus for b in t.gpus if a != b and t.path(a, b).startswith("NV")})
        everyone = all(t.path(a, b).startswith("NV") for a in t.gpus for b in t.gpus if a != b)
        which = f"{' or '.join(kinds)}, between {'all' if everyone else 'some'} pairs"
        links = (f"NVSwitch, {kinds[0]}" if t.switched else f"NVLink: {which}") if kinds else ""
        notes = [f"Circles are GPUs. {f'Read from: {t.source}.' * bool(t.source)}".rstrip()]
        if not kinds:
            notes.append("NVLink is not in this file.")
        return plot.Picture(t.name, cpus, links, nvlink, len(homes) > 1 and pcie, [*self._said, *notes])

    def _switch(self, name: str, devices: list[str], pcie: bool) -> plot.Switch:
        drawn = []
        for device in devices:
            gpu = int(device[3:]) if device.startswith("GPU") else None
            called = device.replace("mlx5_", "mlx ")
            drawn.append(plot.Device(called, gpu, device in (self.between or ())))
        return plot.Switch("PCIe" if name else "", drawn, pcie and any(d.marked for d in drawn) and bool(name))
