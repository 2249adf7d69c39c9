"""Reads NCCL's XML of a machine: what NCCL_TOPO_DUMP_FILE writes, and what NCCL_TOPO_FILE is given.

<system> has <cpu>s; these have <pci>s, one in another; a <pci> is a switch, or has a <gpu> with its <nvlink>s or a
<nic> with its <net>s. Format: NCCL 2.28, src/graph/xml.cc. A file for NCCL_TOPO_FILE may name only buses and classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree import ElementTree

from labkit.errors import LabError
from labkit.theory.topology.machine import Topology

GPU, NIC, SWITCH = ("0x0300", "0x0302"), ("0x02",), ("0x0604",)  # beginnings of PCI classes; bridges are switches


@dataclass
class _Found:
    bus: str
    way: tuple[str, ...]
    number: int | None = None  # NCCL's dev
    card: str = ""
    links: dict[str, int] = field(default_factory=dict)  # by bus


def read(text: str, name: str = "this machine", source: str = "NCCL_TOPO_DUMP_FILE") -> Topology:
    """A machine from its XML. Devices have NCCL's numbers where the file has them, else those of their bus ids.

    Raises `LabError` where the text is no such XML, or names no GPU.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise LabError(f"This is no XML ({error}). Give the whole file that NCCL_TOPO_DUMP_FILE names.") from None
    if root.tag != "system":
        raise LabError(f"NCCL's topology begins with <system>, and this with <{root.tag}>. A graph is another file.")
    gpus: list[_Found] = []
    nics: list[_Found] = []
    for cpu in root.iter("cpu"):
        number = cpu.get("numaid", "").replace("-1", "")  # which a virtual machine says that hides it
        for kind, found in _below(cpu, (f"CPU{number or '?'}",)):
            (gpus if kind == "GPU" else nics).append(found)
    if not gpus:
        raise LabError("This file names no GPU: it has neither <gpu> nor a PCI class. NCCL would ask the machine.")
    named = {f"GPU{i}": f for i, f in _numbered(gpus)} | {f"NIC{i}": f for i, f in _numbered(nics)}
    buses = {f.bus: device for device, f in named.items()}
    links = {
        d: {buses.get(bus, f"NVSwitch {bus}"): k for bus, k in f.links.items() if bus != f.bus}
        for d, f in named.items()
        if f.links
    }
    return Topology(
        name,
        tuple(d for d in named if d.startswith("GPU")),
        tuple(d for d in named if d.startswith("NIC")),
        {d: f.way for d, f in named.items()},
        {},
        {d: to for d, to in links.items() if to},
        {d: f.card for d, f in named.items() if f.card},
        source,
    )


def _below(node: ElementTree.Element, way: tuple[str, ...]) -> Iterator[tuple[str, _Found]]:
    """GPUs and NICs below a CPU or a PCIe switch, with what is above them."""
    for child in node:
        if child.tag == "nic":
            yield from (("NIC", _net(net, way)) for net in child.iter("net"))
        if child.tag != "pci":
            continue
        bus, kind = child.get("busid", "?"), child.get("class", "")
        gpu, nets = child.find("gpu"), child.findall("nic/net")
        if gpu is not None or kind.startswith(GPU):
            links = {} if gpu is None else _links(gpu)
            yield "GPU", _Found(bus, way, _int(gpu, "dev"), links=links)
        elif nets:
            yield from (("NIC", _net(net, way, bus)) for net in nets)
        elif kind.startswith(NIC):
            yield "NIC", _Found(bus, way)
        else:
            yield from _below(child, (f"PCI {bus}", *way))


def _net(net: ElementTree.Element, way: tuple[str, ...], bus: str = "") -> _Found:
    return _Found(bus or f"net {net.get('dev', '')}", way, _int(net, "dev"), net.get("name", ""))


def _links(gpu: ElementTree.Element) -> dict[str, int]:
    return {link.get("target", "?"): int(link.get("count", "1")) for link in gpu.iter("nvlink")}


def _int(node: ElementTree.Element | None, key: str) -> int | None:
    told = "" if node is None else node.get(key, "")
    return int(told) if re.fullmatch(r"\d+", told) else None


def _numbered(found: list[_Found]) -> list[tuple[int, _Found]]:
    """Each with its number: its dev if all have one of their own, else its place among the bus ids."""
    numbers = [f.number for f in found if f.number is not None]
    if len(set(numbers)) == len(found):
        return sorted(((f.number or 0, f) for f in found), key=lambda pair: pair[0])
    return list(enumerate(sorted(found, key=lambda f: f.bus)))
