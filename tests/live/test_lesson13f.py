"""Lessons 13f and 13g: cells and script load the same model in every way, and the checks take other right ways."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest

import labkit
from labkit import CellError
from tests.live.lesson_cells import code, run_cells
from tests.scripts import printed

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT = 150  # seconds: the script trains, loads in five ways and imports DTensor, on busy cores
FILE = 16.0  # MiB that the lesson's model takes

OTHER_WAYS = {
    "load_for_all": [
        """
def load_for_all(model, path):
    state = torch.load(path, map_location=device) if rank == 0 else {}
    for name, tensor in model.state_dict().items():
        there = state.pop(name) if rank == 0 else torch.empty_like(tensor)
        dist.broadcast(there, src=0)
        tensor.copy_(there)
""",
        """
def load_for_all(model, path):
    box = [torch.load(path, map_location="cpu") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    model.load_state_dict(box[0])
""",
    ],
    "part_of": [
        """
def part_of(count, n, place):
    ends = [sum(len(range(p, count, n)) for p in range(last)) for last in (place, place + 1)]
    return tuple(ends)
""",
        """
def part_of(count, n, place):
    mine = torch.arange(count).tensor_split(n)
    before = sum(len(part) for part in mine[:place])
    return [before, before + len(mine[place])]
""",
    ],
    "load_slices": [
        """
def load_slices(read, shapes, plan, part_of, group):
    def mine(name):
        if name not in plan:
            return read(name)
        dim, stacked = plan[name]
        size = shapes[name][dim] // stacked
        start, end = part_of(size, group.size(), group.rank())
        shape = list(shapes[name])
        shape[dim] = stacked * (end - start)
        room = torch.empty(shape, device=device)
        for i, part in enumerate(room.split(end - start, dim) if end > start else ()):
            part.copy_(read(name, dim, i * size + start, i * size + end))
        return room

    return {name: mine(name) for name in shapes}
""",
    ],
    "load_stage": [
        """
def load_stage(stage, whole, layers, part_of):
    start, end = part_of(layers, world_size, rank)
    state = stage.state_dict()
    for name in whole:
        parts = name.split(".")
        if parts[0] == "blocks":
            if not start <= int(parts[1]) < end:
                continue
            parts[1] = str(int(parts[1]) - start)
        here = ".".join(parts)
        if here in state:
            state[here].copy_(whole[name])
""",
        """
def load_stage(stage, whole, layers, part_of):
    start, _ = part_of(layers, world_size, rank)
    for i, block in enumerate(stage.blocks):
        block.load_state_dict({name: whole[f"blocks.{start + i}.{name}"] for name in block.state_dict()})
    for name, module in stage.named_children():
        if name != "blocks":
            module.load_state_dict({what: whole[f"{name}.{what}"] for what in module.state_dict()})
""",
    ],
    "hand_out": [
        """
def hand_out(pieces, shapes, part_of):
    mine = {}
    for name, shape in shapes.items():
        longest = part_of(shape[0], world_size, 0)[1]
        start, end = part_of(shape[0], world_size, rank)
        room, parts = torch.empty(longest, *shape[1:], device=device), None
        if rank == 0:
            whole = next(pieces)[1]
            parts = [whole[slice(*part_of(shape[0], world_size, r))] for r in range(world_size)]
            missing = [longest - len(part) for part in parts]
            parts = [torch.cat([part, part.new_zeros(m, *shape[1:])]) for part, m in zip(parts, missing)]
            del whole
        dist.scatter(room, parts, src=0)
        mine[name] = room[: end - start].clone()
    return mine
""",
    ],
    "read_part": [
        """
def read_part(file, dtype, shape, offset, dim, start, end):
    def run(first, numbers):
        file.seek(offset + first * dtype.itemsize)
        data = bytearray(file.read(numbers * dtype.itemsize))
        return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)

    width = 1
    for size in shape[1:]:
        width *= size
    if dim == 0:
        part = run(start * width, (end - start) * width).reshape(end - start, *shape[1:])
    else:
        part = torch.stack([run(i * width + start, end - start) for i in range(shape[0])])
    return part.to(device)
""",
    ],
    "pieces_for_me": [
        """
def pieces_for_me(mine, chunks):
    def common(a, size, b, other):
        inside = [i for i in range(a, a + size) if b <= i < b + other]
        return (inside[0], len(inside)) if inside else (0, 0)

    found = []
    for i, chunk in enumerate(chunks):
        both = [common(*four) for four in zip(*mine, *chunk)]
        if all(length for _, length in both):
            there = tuple(a - b for (a, _), b in zip(both, chunk[0]))
            here = tuple(a - b for (a, _), b in zip(both, mine[0]))
            found.insert(0, (i, there, here, tuple(length for _, length in both)))
    return found
""",
    ],
    "save_whole": [
        """
def save_whole(state, path):
    import os
    from pathlib import Path

    if rank == 0:
        with open(f"{path}.tmp", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file)
        Path(f"{path}.tmp").replace(path)
    comms.barrier()
""",
    ],
    "mine_to_write": [
        """
def mine_to_write(held):
    plan = {r: [] for r in range(len(held))}
    for piece in sorted(set().union(*[map(tuple, pieces) for pieces in held])):
        holders = [r for r in plan if list(piece) in [list(p) for p in held[r]]]
        loads = [(sum(p[2] for p in plan[r]), r) for r in holders]
        plan[min(loads)[1]].append(piece)
    return plan[rank]
""",
    ],
    "what_is_missing": [
        """
def what_is_missing(rows, found):
    there = {name: torch.zeros(count, dtype=torch.int32, device=device) for name, count in rows.items()}
    for name, start, end in found:
        there[name][start:end] = 1
    missing = []
    for name, mine in there.items():
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        for row in (mine == 0).nonzero().flatten().tolist():
            if missing and missing[-1][0] == name and missing[-1][2] == row:
                missing[-1] = (name, missing[-1][1], row + 1)
            else:
                missing.append((name, row, row + 1))
    return missing
""",
    ],
    "restack": [
        """
def restack(read, rows, stacked, old, new, place, part_of):
    size, owner = rows // stacked, {}
    for r in range(old):
        first, after = part_of(size, old, r)
        for i in range(stacked):
            for row in range(first, after):
                owner[i * size + row] = r, i * (after - first) + row - first
    wanted = [i * size + row for i in range(stacked) for row in range(*part_of(size, new, place))]
    return torch.cat([read(0, 0, 0), *(read(r, at, at + 1) for r, at in map(owner.get, wanted))])
""",
    ],
}


@pytest.mark.parametrize(("name", "source"), [(name, s) for name, sources in OTHER_WAYS.items() for s in sources])
def test_another_right_way_is_right(lab, name, source):
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """What the script says on three ranks, by which six layers divide, and 36 rows, and 8 do not."""
    folder = tmp_path_factory.mktemp("script")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        lines = printed("load_sharded.py", 3, folder, LIMIT)
    assert list(folder.glob("load_sharded_*")) == [], "its files are removed"
    said = {}
    for line in lines:
        way, loss, sizes = re.fullmatch(r"(.+): ([\d.]+) · ([\d, ]+)", line).groups()
        said[way] = float(loss), [int(size.replace(",", "")) for size in sizes.split()]
    return said


@pytest.mark.slow
def test_every_way_of_the_script_has_the_loss_of_who_saved(script):
    assert list(script) == ["saved", "broadcast", "slices", "stages", "saved by 3, loaded by 2"]
    right, _ = script["saved"]
    assert right < 3.2, "it has learnt something"
    assert [loss for loss, _ in script.values()] == pytest.approx([right] * 5, abs=1e-4)


@pytest.mark.slow
def test_what_the_scripts_ranks_hold_is_the_whole_or_covers_it(script):
    _, (whole,) = script["saved"]
    _, copies = script["broadcast"]
    _, slices = script["slices"]
    _, stages = script["stages"]
    _, fewer = script["saved by 3, loaded by 2"]
    assert copies == [whole] * 3
    assert max(slices) < 0.4 * whole, "a third, and what is not cut"
    assert sum(slices) > whole
    assert sum(stages) == sum(fewer) == whole, "each number lies on one rank"
    assert fewer[2] == 0


def lines(lab, lesson: str, folder: Path) -> list[list[str]]:
    """What each rank prints in all cells together, with its files in this folder."""
    lab.push(folder=str(folder))
    cells = [out for _, out in run_cells(lab, lesson)]
    return [[line for out in cells for line in out[rank].splitlines()] for rank in range(lab.n)]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the lesson's meter reads /proc")
def test_the_cells_of_13f_print_the_scripts_loss_in_every_way_and_the_peaks_that_they_tell_of(lab, script, tmp_path):
    said = lines(lab, "13f", tmp_path)
    right = round(script["saved"][0], 4)
    text = "\n".join(said[0])
    losses = [float(x) for x in re.findall(r"(?:^loss|from slices:) ([\d.]+)", text, re.MULTILINE)]
    assert losses == pytest.approx([right] * 5, abs=2e-4), "saved, parameters alone, for all, on meta, from slices"
    last = "\n".join(said[-1])
    found = {way: float(x) for way, x in re.findall(r"^(from stages|.* forgotten|loaded again): ([\d.]+)", last, re.M)}
    assert found["from stages"] == found["loaded again"] == pytest.approx(right, abs=2e-4)
    assert found["one matrix of each layer forgotten"] > right + 2e-3  # how far depends on Python's texts
    parameters_alone = float(re.findall(r"^loss ([\d.]+)", last, re.MULTILINE)[0])
    assert parameters_alone > right + 0.05, "the buffer is missing"

    number = r"(-?[\d.]+) MiB"
    meter = re.compile(rf"^(.+?): {number} more at the peak, {number} of its own afterwards; {number} read")
    measured = [{m[1]: tuple(map(float, m.groups()[1:])) for m in map(meter.match, lines) if m} for lines in said]
    for rank, ways in enumerate(measured):
        peak, own, read = ways["rank 0 reads, all receive"]
        assert peak == pytest.approx(FILE * (2 if rank == 0 else 1), rel=0.25)
        assert own == pytest.approx(FILE, rel=0.25)
        assert read == pytest.approx(0 if rank else FILE, abs=1)
        assert ways["everyone reads"][0] == pytest.approx(2 * FILE, rel=0.25)
        assert ways["on meta, then assigned"][0] == pytest.approx(FILE, rel=0.25)
        assert ways["the file mapped, then cut"][1] < FILE / 2
        assert ways["a file of my own"][0] < FILE / 2


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the lesson reads /proc and advises the kernel")
def test_the_cells_of_13g_find_every_number_again_bit_by_bit(lab, tmp_path):
    said = lines(lab, "13g", tmp_path)
    text = "\n".join(said[0])
    assert "weights_only=True: UnpicklingError · a new file: False" in text
    assert "weights_only=False: loaded · a new file: True" in text
    kept = re.findall(r"^(.+?) *: +(\d+) KiB kept, +(\d+) from the storage, +(\d+) returned by", text, re.MULTILINE)
    assert [int(k) for _, k, _, _ in kept] == [225] * 4
    returned = {way: int(r) for way, _, _, r in kept}
    assert returned["mapped, rows"] + returned["mapped, columns"] < 10, "no mapping goes through read()"
    assert [returned[way] == pytest.approx(225, abs=5) for way in ("read, rows", "read, columns")] == [True] * 2
    stored = {way: int(s) for way, _, s, _ in kept}
    if stored["mapped, rows"]:  # the folder lies on a storage, and not in memory
        assert stored["mapped, columns"] > 3 * stored["mapped, rows"]
    files = dict(re.findall(r"(\w+)\.pt (\d+) KiB", text))
    assert int(files["view"]) > 890
    assert int(files["copy"]) < 240
    for rank in range(2):
        assert f"rank {rank} of 2 reads from files {[rank, rank + 1]}: 79 of 79 tensors bit by bit" in said[rank]
        assert "42 of 42 weights and 42 moments bit by bit, from step 1" in said[rank]
        (needed,) = re.findall(r"it reads (\d+)% of what it needs$", "\n".join(said[rank]), re.MULTILINE)
        assert 133 <= int(needed) < 150, "two old thirds for one new half, and the headers"
    assert "the old weights: True" in said[0]
    for mine, pieces in zip(said, (79, 0, 79), strict=True):  # rank 1 has lost a third of every tensor
        assert f"I have found {pieces} pieces; no rank has 79 runs of rows, such as ('prior', 12, 24)" in mine
    for mine, what in itertools.product(said[:2], ("weights", "first moments")):
        assert f"{what}, restacked: 72 of 72 rows are right" in mine
        (right,) = re.findall(rf"^{what}, put together and cut: (\d+) of 72", "\n".join(mine), re.MULTILINE)
        assert int(right) < 36


def test_a_run_that_is_killed_in_the_middle_of_a_checkpoint_ends_as_the_undisturbed_one(lab, tmp_path):
    (source,) = [cell.source for cell in code("13g") if "def save_plainly(" in cell.source]
    lab.run(source.removeprefix("%%px\n"))
    lab.use("save_whole")
    lab.push(folder=str(tmp_path))
    lab.run('undisturbed = train(f"{folder}/undisturbed.pt", save_plainly)')
    for name, save in (("plain", "save_plainly"), ("whole", "save_whole")):
        lab.run("torch.save = resuming.crash", ranks=0)
        with pytest.raises(CellError, match="rank 0 died"):
            lab.run(f'train(f"{{folder}}/{name}.pt", {save})')
        lab.push(folder=str(tmp_path))
    with pytest.raises(CellError):
        lab.run('torch.load(f"{folder}/plain.pt", weights_only=True)')
    lab.run('resumed = train(f"{folder}/whole.pt", save_whole)')
    whole = lab.pull("undisturbed if rank else resumed")[1]
    for resumed in lab.pull("resumed"):
        assert resumed == pytest.approx(whole[10:], abs=1e-6)


@pytest.fixture(scope="module")
def lab(training):
    """Three ranks, with time to import what they load with."""
    with labkit.start(3, timeout=20) as lab:
        yield lab
