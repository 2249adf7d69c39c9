"""Reads what `nvidia-smi topo -m` prints: the matrix of paths, the CPUs beside it, and the names of the NICs below."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, takewhile

from labkit.floor.errors import LabError
from labkit.floor.words import ANSI, count, listed
from workbook.tools.topology.machine import Topology

BEFORE = re.compile(r"^(?:[>|\s]|\d{4}-\d\d-\d\d[T ]\S+)+")  # quote marks, a table's bars, a log's time
GPU = re.compile(r"GPU\d+")
DEVICE = re.compile(r"(?=\D*\d)[\w.:-]+")
PATH = re.compile(r"X|NV\d+|C2C|PIX|PSB|PXB|PHB|NODE|SYS|SOC")
SAME = {"SOC": "SYS", "PSB": "PIX"}  # older legends: a "socket-level link", an "on-board PCIe switch"
AFFINITY = re.compile(r"\d[\d,-]*")
LEGEND = re.compile(r"\b(NIC\d+):\s+(\S+)\s*$")
PASTE = "Paste all that `nvidia-smi topo -m` prints, from its first GPU on."


def read(text: str, name: str = "this machine", source: str = "nvidia-smi topo -m") -> Topology:
    """Read a machine from its matrix. Rows of NICs may be missing: the matrix is symmetric.

    PCIe switches are not in the matrix: devices joined by PIX are taken to share one, those joined by PXB a tree of
    several. Raises `LabError` where there is no matrix, or none that is whole.
    """
    lines = [BEFORE.sub("", line).replace("|", " ") for line in ANSI.sub("", text).splitlines()]
    matrices = [found for found in _matrices(lines) if found[1]]
    matrices = [m for m in matrices if any(len(_first(cells)) == len(m[0]) for _, cells in m[1])] or matrices
    notes = []
    if not matrices and (rows := [row for line in lines if (row := _row(line.split(), ()))]):
        if {len(_first(cells)) for _, cells in rows} != {len(rows)}:
            raise LabError(f"The line that names the columns, above the row of {rows[0][0]}, is missing. {PASTE}")
        matrices = [([device for device, _ in rows], rows)]
        notes.append("The line that names the columns is missing: they are taken to be the rows, in their order.")
    if not matrices:
        raise LabError(f"There is no matrix in this text. {PASTE}")
    if len(matrices) > 1:
        notes.append(f"There are {len(matrices)} matrices in this text. Only the first was read.")
    columns, rows = matrices[0]
    told: dict[tuple[str, str], str] = {}
    for device, cells in rows:
        for other, path in zip(columns, _paths(device, cells, columns), strict=True):
            if told.setdefault((device, other), path) != path or told.setdefault((other, device), path) != path:
                both = f"{path} in one row and {told[other, device]} in another"
                raise LabError(f"The path between {device} and {other} is {both}. Paste one matrix, as it was printed.")
    rows_of = dict(rows)
    gpus = tuple(c for c in columns if GPU.fullmatch(c) and c in rows_of)
    nics = tuple(c for c in columns if not GPU.fullmatch(c))
    if not gpus:
        raise LabError(f"There is no row of a GPU in this text. {PASTE}")
    if lost := [c for c in columns if GPU.fullmatch(c) and c not in rows_of]:
        notes.append(f"Left out, as there is no row of {'it' if len(lost) == 1 else 'them'}: {listed(lost)}.")
    cards = {m[1]: m[2] for line in lines if (m := LEGEND.search(line)) and m[1] in nics}
    known = {pair: path for pair, path in told.items() if pair[0] != pair[1] and {*pair} <= {*gpus, *nics}}
    beside = {g: rows_of[g][len(columns) :] for g in gpus}
    ways, doubts = _ways(gpus, nics, known, beside)
    return Topology(name, gpus, nics, ways, known, {}, cards, source, notes=(*notes, *doubts))


def _matrices(lines: list[str]) -> Iterator[tuple[list[str], list[tuple[str, list[str]]]]]:
    """Find the columns and rows of each matrix. Where lines have prefixes, such as a host's, rows have their head's."""
    heads = []
    for i, line in enumerate(lines):
        words = line.split()
        start = next((k for k, word in enumerate(words) if GPU.fullmatch(word)), None)
        columns = [] if start is None else [*takewhile(lambda w: not w.startswith(("CPU", "NUMA")), words[start:])]
        if columns and all(DEVICE.fullmatch(w) and not PATH.fullmatch(w) for w in columns):
            heads.append((i, words[:start], columns))
    for i, before, columns in heads:
        end = next((k for k, prefix, _ in heads if k > i and prefix == before), len(lines))
        found = [(line.split(), row) for line in lines[i + 1 : end] if (row := _row(line.split(), columns))]
        prefixes = [words[: words.index(row[0])] for words, row in found]
        own = before if before in prefixes or not prefixes else prefixes[0]
        yield columns, [row for prefix, (_, row) in zip(prefixes, found, strict=True) if prefix == own]


def _row(words: list[str], columns: Sequence[str]) -> tuple[str, list[str]] | None:
    """Find a row's device and what follows it; without columns, any device counts."""
    for k, word in enumerate(words[:-1]):
        cells = words[k + 1 :]
        if columns and word in columns and (PATH.fullmatch(cells[0]) or "X" in cells):
            return word, cells
        if not columns and PATH.fullmatch(cells[0]) and not PATH.fullmatch(word):
            return (word, cells) if "X" in cells else None
    return None


def _first(cells: list[str]) -> list[str]:
    """Return the paths that a row begins with, older words replaced."""
    return [SAME.get(path, path) for path in takewhile(PATH.fullmatch, cells)]


def _paths(device: str, cells: list[str], columns: list[str]) -> list[str]:
    """Return the paths of a row. Raises `LabError` where it does not fit its columns."""
    paths = _first(cells)
    rest = cells[len(paths) :]
    if len(paths) < len(columns) and rest and not AFFINITY.fullmatch(rest[0]) and rest[0] != "N/A":
        raise LabError(f"{rest[0]!r}, in the row of {device}, is not a path that is known here. {PASTE}")
    if len(paths) != len(columns):
        raise LabError(f"The row of {device} has {len(paths)} paths for {len(columns)} devices. Paste it whole.")
    if [other for other, path in zip(columns, paths, strict=True) if path == "X"] != [device]:
        raise LabError(f"The row of {device} has its X in a different column from {device}. Paste one matrix, whole.")
    return paths


def _groups(devices: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return each device's group, by the first of its members: a pair is in one group."""
    group = {d: d for d in devices}
    for a, b in pairs:
        mine, theirs = group[a], group[b]
        group = {d: mine if g == theirs else g for d, g in group.items()}
    return group


def _ways(
    gpus: tuple[str, ...], nics: tuple[str, ...], told: dict[tuple[str, str], str], beside: dict[str, list[str]]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return what is above each device, as far as the matrix says, and what about it is uncertain."""
    devices = (*gpus, *nics)
    joined = {kinds: [pair for pair, path in told.items() if path in kinds.split()] for kinds in ("PIX", "PIX PXB")}
    switch, tree = _groups(devices, joined["PIX"]), _groups(devices, joined["PIX PXB"])
    affinity = {g: cells[0] if cells and AFFINITY.fullmatch(cells[0]) else "" for g, cells in beside.items()}
    near = [pair for pair, path in told.items() if path in ("PIX", "PXB", "PHB", "NODE")]
    cpu, doubts = _groups(devices, near), []
    for a, b in combinations(gpus, 2):
        together = cpu[a] == cpu[b]
        if not (affinity[a] and affinity[b]) or together == (affinity[a] == affinity[b]):
            continue
        if together:
            doubts.append(f"{a} and {b} have different CPU affinities, but no SYS on the way between them")
        elif any(path == "SYS" and {cpu[d], cpu[e]} == {cpu[a], cpu[b]} for (d, e), path in told.items()):
            doubts.append(f"{a} and {b} have the same CPU affinity, {affinity[a]}, but SYS on the way between them")
        else:
            near.append((a, b))
            cpu = _groups(devices, near)
    crossing = {d for pair, path in told.items() if path in ("PHB", "NODE", "SYS") for d in pair}
    known = {cpu[g] for g in gpus if affinity[g] or g in crossing}
    numa = {cpu[g]: beside[g][1] for g in gpus if beside[g][1:] and beside[g][1].isdecimal()}
    homes = [c for c in dict.fromkeys(cpu[g] for g in gpus) if c in known]
    numbers = [numa.get(c, "") for c in homes]
    if len(set(numbers)) < len(homes) or "" in numbers:
        numbers = [str(i) for i in range(len(homes))]
    named = {c: f"CPU{number}" for c, number in zip(homes, numbers, strict=True)}
    ways = {}
    for d in devices:
        lower = f"switch of {switch[d]}" if [*switch.values()].count(switch[d]) > 1 else ""
        upper = f"switches of {tree[d]}" if any(tree[e] == tree[d] and switch[e] != switch[d] for e in devices) else ""
        ways[d] = ((lower, upper) if upper else (lower,) if lower else ()) + (named.get(cpu[d], ""),)
    more = f", and so for {count(len(doubts) - 1, 'more pair')}" if len(doubts) > 1 else ""
    return ways, [f"{doubts[0]}{more}. The CPUs here follow the paths."] if doubts else []
