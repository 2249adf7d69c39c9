"""Reads NCCL's XML of a machine: what NCCL_TOPO_DUMP_FILE writes, and what NCCL_TOPO_FILE is given.

<system> has <cpu>s; these have <pci>s, one in another; a <pci> is a switch, or has a <gpu> with its <nvlink>s or a
<nic> with its <net>s. Format: NCCL 2.28, src/graph/xml.cc; RCCL's GPUs have <xgmi>s. A file for NCCL_TOPO_FILE may
name only buses and classes. One of a multi-node NVLink domain has the <cpu>s of several hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree import ElementTree

from labkit.floor.errors import LabError
from workbook.tools.topology.machine import Topology

GPU, NIC, NVSWITCH = ("0x03", "0x1200"), ("0x02",), "0x068000"  # how PCI classes begin (topo.cc); others are switches
WHOLE = re.compile(r"<system\b(?:[^>]*/>|.*?</system\s*>)", re.DOTALL)


@dataclass
class _Found:
    bus: str
    way: tuple[str, ...]
    host: str
    number: int | None = None  # NCCL's dev
    card: str = ""
    links: dict[str, int] = field(default_factory=dict)  # by bus
    gdr: bool = True
    c2c: bool = False


def read(text: str, name: str = "this machine", source: str = "NCCL_TOPO_DUMP_FILE") -> Topology:
    """Read a machine from its XML. Devices have NCCL's numbers where the file has them, else those of their bus ids.

    Raises `LabError` where the text is no such XML, or names no GPU.
    """
    text = re.sub(r"(?m)^(?:> ?)+(?=\s*<)", "", text)
    systems = WHOLE.findall(text)
    try:
        root = ElementTree.fromstring(systems[0] if systems else text[max(text.find("<"), 0) :])
    except (ElementTree.ParseError, ValueError) as error:
        raise LabError(f"This is not XML ({error}). Give the whole file that NCCL_TOPO_DUMP_FILE names.") from None
    if root.tag != "system":
        raise LabError(f"NCCL's topology begins with <system>, and this with <{root.tag}>. Give the topology's file.")
    cpus = list(root.iter("cpu"))
    hashes = list(dict.fromkeys(cpu.get("host_hash", "") for cpu in cpus))
    found: dict[str, list[_Found]] = {"GPU": [], "NIC": []}
    for cpu in cpus:
        number = cpu.get("numaid")
        if number is None:
            raise LabError("A <cpu> of this file has no numaid, and NCCL refuses that. Give the file as NCCL wrote it.")
        at = f"@host{hashes.index(cpu.get('host_hash', ''))}" if len(hashes) > 1 else ""
        number = number if number.isdecimal() else "?"  # a virtual machine that hides it says -1
        for kind, one in _below(cpu, (f"CPU{number}{at}",), at):
            found[kind].append(one)
    if not found["GPU"]:
        raise LabError("This file names no GPU: it has neither <gpu> nor a PCI class. NCCL would ask the machine.")
    named = {f"{kind}{i}{f.host}": f for kind in found for i, f in _numbered(found[kind])}
    buses = {(f.host, f.bus): device for device, f in named.items()}
    links: dict[str, dict[str, int]] = {d: {} for d in named}
    for device, f in named.items():
        for bus, many in f.links.items():
            to = bus if bus == "NVSwitch" else buses.get((f.host, bus), device)
            if to != device:  # else its own, or one that is not in the file
                links[device][to] = links[device].get(to, 0) + many
    notes = []
    if len(systems) > 1:
        notes.append(f"There are {len(systems)} <system>s in this text. Only the first was read.")
    if root.find(".//pcilink") is not None:
        notes.append("Some PCIe switches are joined directly (<pcilink>). The paths here do not use these links.")
    return Topology(
        name,
        tuple(d for d in named if d.startswith("GPU")),
        tuple(d for d in named if d.startswith("NIC")),
        {d: f.way for d, f in named.items()},
        {},
        {d: to for d, to in links.items() if to},
        {d: f.card for d, f in named.items() if f.card},
        source,
        "NV" if root.find(".//xgmi") is None else "XGMI",
        frozenset(d for d, f in named.items() if f.c2c),
        frozenset(d for d, f in named.items() if not f.gdr),
        tuple(notes),
    )


def _below(node: ElementTree.Element, way: tuple[str, ...], host: str) -> Iterator[tuple[str, _Found]]:
    """Yield the GPUs and NICs below a CPU or a PCIe switch, with what is above them."""
    for child in node:
        if child.tag == "nic" and node.tag == "cpu":
            yield from (("NIC", _net(net, way, host)) for net in child.iter("net"))
        if child.tag != "pci":
            continue
        bus, kind = child.get("busid", "?").lower(), child.get("class", "")
        gpu, nets = child.find("gpu"), child.findall("nic/net")
        if gpu is not None or kind.startswith(GPU):
            told = ElementTree.Element("gpu") if gpu is None else gpu
            able, c2c = told.get("gdr") != "0", told.find("c2c") is not None
            yield "GPU", _Found(bus, way, host, _int(told, "dev"), "", _links(told), able, c2c)
        elif nets:
            yield from (("NIC", _net(net, way, host, bus)) for net in nets)
        elif kind.startswith(NIC) and child.find("pci") is None:
            yield "NIC", _Found(bus, way, host)
        yield from _below(child, (f"PCI {bus}{host}", *way), host)


def _net(net: ElementTree.Element, way: tuple[str, ...], host: str, bus: str = "") -> _Found:
    able = net.get("gdr") != "0"
    return _Found(bus or f"net {net.get('dev', '')}", way, host, _int(net, "dev"), net.get("name", ""), gdr=able)


def _links(gpu: ElementTree.Element) -> dict[str, int]:
    links: dict[str, int] = {}
    for link in (*gpu.iter("nvlink"), *gpu.iter("xgmi")):
        to = "NVSwitch" if link.get("tclass", "") == NVSWITCH else link.get("target", "?").lower()
        links[to] = links.get(to, 0) + (_int(link, "count") or 1)
    return links


def _int(node: ElementTree.Element, key: str) -> int | None:
    told = node.get(key, "")
    return int(told) if re.fullmatch(r"[0-9]{1,9}", told) else None


def _numbered(found: list[_Found]) -> Iterator[tuple[int, _Found]]:
    """Number the devices of each host: by their dev if all there have their own, else in the order of the bus ids."""
    for host in dict.fromkeys(f.host for f in found):
        here = [f for f in found if f.host == host]
        if len({f.number for f in here if f.number is not None}) == len(here):
            yield from sorted(((f.number or 0, f) for f in here), key=lambda pair: pair[0])
        else:
            yield from enumerate(sorted(here, key=lambda f: f.bus))
