"""Reads what `nvidia-smi topo -m` prints: the matrix of paths, the CPUs beside it, and the names of the NICs below."""

from __future__ import annotations

import re

from labkit.errors import LabError
from labkit.theory.topology.machine import Topology, level

ANSI = re.compile(r"\x1b\[[0-9;]*m")
PATH = re.compile(r"X|NV\d+|C2C|PIX|PXB|PHB|NODE|SYS")
DEVICE = re.compile(r"(?:GPU|NIC)\d+|\w+_\d+\w*")
LEGEND = re.compile(r"\s*(NIC\d+):\s+(\S+)\s*")


def read(text: str, name: str = "this machine", source: str = "nvidia-smi topo -m") -> Topology:
    """A machine from its matrix. Rows of NICs may be missing: the matrix is symmetric.

    PCIe switches are not in the matrix: devices joined by PIX are taken to share one. Raises `LabError` where there is
    no matrix.
    """
    lines = ANSI.sub("", text).splitlines()
    head = next((i for i, line in enumerate(lines) if line.split()[:1] == ["GPU0"] and "X" not in line.split()), None)
    if head is None:
        raise LabError("There is no matrix in this text. Paste all that `nvidia-smi topo -m` prints, from its GPU0 on.")
    columns = []
    for word in lines[head].split():
        if not DEVICE.fullmatch(word):
            break
        columns.append(word)
    told: dict[tuple[str, str], str] = {}
    beside: dict[str, str] = {}
    for line in lines[head + 1 :]:
        device, *cells = line.split() or [""]
        if device not in columns:
            if device and told:
                break
            continue
        paths = [c for c in cells[: len(columns)] if PATH.fullmatch(c)]
        if len(paths) != len(columns):
            raise LabError(f"The row of {device} has {len(paths)} paths for {len(columns)} devices. Paste it whole.")
        for other, path in zip(columns, paths, strict=True):
            told[device, other] = told[other, device] = path
        beside[device] = " ".join(cells[len(columns) :][:1])
    gpus = tuple(c for c in columns if c.startswith("GPU") and c in beside)
    nics = tuple(c for c in columns if not c.startswith("GPU"))
    cards = {m[1]: m[2] for line in lines if (m := LEGEND.fullmatch(line))}
    known = {pair: path for pair, path in told.items() if pair[0] != pair[1] and {*pair} <= {*gpus, *nics}}
    return Topology(name, gpus, nics, _ways(gpus, nics, known, beside), known, {}, cards, source)


def _ways(
    gpus: tuple[str, ...], nics: tuple[str, ...], told: dict[tuple[str, str], str], beside: dict[str, str]
) -> dict[str, tuple[str, ...]]:
    """What is above each device, as far as the matrix says: GPUs with equal CPU affinity share a CPU, PIX a switch."""
    affinities = list(dict.fromkeys(beside[g] for g in gpus))
    home = {g: f"CPU{affinities.index(beside[g])}" for g in gpus}
    for nic in nics:
        near = [g for g in gpus if level(told.get((g, nic), "SYS")) < level("SYS")]
        if near:
            home[nic] = home[near[0]]
    switch = {d: d for d in (*gpus, *nics)}  # every device's switch, by one of its devices
    for (a, b), path in told.items():
        if path == "PIX":
            mine, theirs = switch[a], switch[b]
            switch = {d: mine if s == theirs else s for d, s in switch.items()}
    shared = {s for s in switch.values() if list(switch.values()).count(s) > 1}
    return {
        d: ((f"switch of {switch[d]}",) if switch[d] in shared else ()) + ((home[d],) if d in home else ())
        for d in (*gpus, *nics)
    }
