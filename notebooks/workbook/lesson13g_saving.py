"""Exercises of lesson 13g on saving: a checkpoint that survives a crash during a save, and who writes what."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from unittest.mock import patch

from labkit.grading.exercise import Case, Least, exercise
from labkit.grading.inputs import counting, draws
from labkit.grading.prediction import ask
from workbook.harnesses import in_a_folder

if TYPE_CHECKING:
    from labkit.rank.cell_names import dist, name_it, rank, recorder, torch, world_size


@in_a_folder
def run_save_whole(fn, x, folder):
    """Look at what a crash would leave behind, which is what lies in the folder at that moment.

    The old checkpoint is there under a second name, so that writing over its bytes is seen; and rank 0 is slow, so that
    not waiting for it is seen.
    """
    around, folder = folder, os.path.join(folder, "checkpoints")
    path, twin = os.path.join(folder, "model.pt"), os.path.join(around, "twin.pt")
    if rank == 0:
        os.mkdir(folder)
        torch.save({"step": 1, "weights": -torch.ones(3)}, path)
        os.link(path, twin)
    with recorder.paused():
        dist.barrier()
    save, faults, synced = torch.save, [], []
    names = ("replace", "rename", "fsync", "fdatasync", "sync")
    real = {name: getattr(os, name) for name in names if hasattr(os, name)}  # not every system has all of them

    def is_old(file):
        with contextlib.suppress(Exception):
            return torch.load(file)["step"] == 1
        return False

    def slow_save(obj, file, *args, **kwargs):
        time.sleep(0.15)
        if rank != 0:
            faults.append(f"rank {rank} saves, and rank 0 alone should")
        save(obj, file, *args, **kwargs)
        if not is_old(path):
            faults.append("while it saves, the old checkpoint is not whole: a crash would leave none")

    def seen(file):  # which file it is, and how many of its bytes the operating system has
        stat = os.stat(file.fileno() if hasattr(file, "fileno") else file)
        return stat.st_ino, stat.st_size

    def of_a_sync(sync):
        def watched(*file):  # none: all files
            synced.extend(map(seen, file or os.scandir(folder)))
            return sync(*file)

        return watched

    def of_a_move(move):
        def moved(source, target, *args, **kwargs):
            if os.path.realpath(source) != os.path.join(os.path.realpath(folder), os.path.basename(source)):
                faults.append(
                    "it writes the new checkpoint in another folder: from another disk, os.replace refuses it, and "
                    "shutil.move copies it byte by byte over the old one. Write it beside the old one"
                )
            if not is_old(path):
                faults.append("the old checkpoint is gone before the new one has its name: a crash would leave none")
            if not synced:
                faults.append("the file gets its name before its bytes are on the disk: call os.fsync first")
            elif seen(source) not in synced:
                faults.append("os.fsync came before all bytes of the file: write, call file.flush(), then os.fsync")
            return move(source, target, *args, **kwargs)

        return moved

    seeing = {name: of_a_sync(call) if "sync" in name else of_a_move(call) for name, call in real.items()}
    with patch.object(torch, "save", slow_save), patch.multiple(os, **seeing):
        fn({"step": 2, "weights": x}, path)
    got = torch.load(path)
    said = "".join(faults[:1])
    os.symlink(said or "loaded", os.path.join(around, str(rank)))  # a note for rank 0, made in one stroke
    if rank == 0:
        until = time.monotonic() + 2
        while len(os.listdir(around)) < world_size + 2 and time.monotonic() < until:
            time.sleep(0.01)
        left, whole = sorted(set(os.listdir(folder)) - {"model.pt"}), is_old(twin)
        for r in range(1, world_size):  # who should not save at all is told first
            with contextlib.suppress(OSError):
                note = os.readlink(os.path.join(around, str(r)))
                said = said if note == "loaded" else note
        assert whole, "it writes over the bytes of the old checkpoint: a crash in the middle would leave none"
        assert not left, f"it leaves {', '.join(left)} beside the checkpoint"
    assert not said, said
    assert got["step"] == 2, "it goes on before the new checkpoint is there, and loads the old one"
    return got["weights"]


def broken_save_whole(state, path):
    if rank == 0:
        torch.save(state, path)
    dist.barrier()


@exercise(
    "A checkpoint that survives a crash during a save",
    lambda xs: [xs[0] for _ in xs],
    inputs=lambda n: [
        Case(counting(n, 3)),
        Case(draws(n, 1000, seed=1), "1,000 weights"),
        Case(draws(n, 5, "float64", 2), "float64"),
    ],
    minutes=8,
    difficulty=2,
    needs_messages=False,
    least=Least(rounds=lambda n: 1),
    given="import os",
    harness=run_save_whole,
)
def save_whole(state, path):
    """Let rank 0 save the state under path, and all ranks wait until it is there.

    Rank 0 saves `state` under `path`, where an older checkpoint lies. At **every** moment a whole checkpoint has to lie
    there, the old one or the new one: any process may be killed at any line, and the power may fail. When the function
    returns on a rank, the new one is there. Leave no other file in the folder, and let no rank but rank 0 save. Return
    nothing.

    The specimen has the barrier that it needs. But `torch.save(state, path)` first empties the old file, then it
    writes. `os.replace(a, b)` gives file `a` the name `b` in one stroke, as long as both are in one folder;
    `os.fsync(file.fileno())` returns when the bytes of an open file are on the disk.
    Hint: While the new checkpoint is written, it must not be called `path` yet. What is it called in the meantime?
    Hint: Open `path + ".new"`, save into the open file, `file.flush()`, `os.fsync(file.fileno())`, and close it.
    Hint: Then `os.replace(path + ".new", path)` on rank 0, and the barrier for all.
    Afterwards: Now a crash costs the steps since the last checkpoint, and never the checkpoint itself. `os.fsync` is
    for the crash of the whole machine: a killed process alone loses nothing that it has handed to the operating system.
    """
    if rank == 0:
        with open(path + ".new", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".new", path)
    dist.barrier()


Piece = tuple[str, int, int]  # the tensor's name, the row where the piece begins, its bytes


def dealt(
    held: Sequence[Sequence[Piece]],
    load: Callable[[Piece], int] = lambda piece: piece[2],
    tied: int = 1,
    order: Callable[[Iterable[Piece]], Iterable[Piece]] = sorted,
) -> list[list[Piece]]:
    """Return what each rank writes: each piece goes to the one of its holders that has the least load so far."""
    todo, mine = [0] * len(held), [[] for _ in held]
    for piece in order(dict.fromkeys(tuple(piece) for pieces in held for piece in pieces)):
        holders = [r for r, pieces in enumerate(held) if piece in map(tuple, pieces)]
        writer = min(holders, key=lambda r: (todo[r], tied * r))
        todo[writer] += load(piece)
        mine[writer].append(piece)
    return mine


def _meshes(n: int) -> list[Case]:
    def case(about: str, held: Sequence[Sequence[Piece]]) -> Case:
        return Case([([[*pieces] for pieces in held],) for _ in range(n)], about)

    copies = [[("down", 0, 400), ("norm", 0, 40), ("up", 0, 500)] for _ in range(n)]
    grid = [[("bias", 0, 8), ("norm", 0, 4), ("up", 16 * (r % 2), 64)] for r in range(2 * n)]
    uneven = [[("a", 0, 10), ("b", 0, 1), ("c", 0, 1), ("d", 0, 9), ("e", 0, 3), ("own", r, 5 * r)] for r in range(n)]
    return [
        case("three tensors, copied on all ranks", copies),
        case(f"{n} copies in two parts each, on {2 * n} ranks; you see the first {n}", grid),
        case("small and large ones, and one of each rank's own", uneven),
        case("the lists are in no order", [pieces[r:] + pieces[:r] for r, pieces in enumerate(uneven, 2)]),
        case("nothing is copied", [[("rows", 4 * r, 16), ("tail", r, 4)] for r in range(n)]),
    ]


def as_dealt(mine, held):
    """Return the pieces, unless they are dealt out in a wrong way that is known."""
    slips = {
        "gives every piece to its first holder": dealt(held, lambda piece: 0)[rank],
        "counts the pieces that a rank has to write, and not their bytes": dealt(held, lambda piece: 1)[rank],
        "does not go through the pieces in sorted order": dealt(held, order=list)[rank],
        "gives a piece to the last one of those that have equally few": dealt(held, tied=-1)[rank],
        "goes through the largest pieces first": dealt(held, order=lambda all: sorted(all, key=lambda p: -p[2]))[rank],
        "plans for the `world_size` ranks of the check, and not for `len(held)`": dealt(held[:world_size])[rank],
        "returns all that this rank holds": sorted(map(tuple, held[rank])),
    }
    name_it(mine, dealt(held)[rank], slips)
    return mine


@exercise(
    "Save every piece once",
    lambda xs: [[[*piece] for piece in mine] for mine in dealt(xs[0][0])[: len(xs)]],
    minutes=8,
    difficulty=2,
    inputs=_meshes,
    forbids=("collectives",),
    collect=as_dealt,
)
def mine_to_write(held):
    """Return the pieces (name, row, bytes) that this rank writes, so that each is written once.

    On a mesh with copies, several ranks hold the same piece, and one of them should write it. `held[r]` is the list of
    the pieces that rank r holds, each a tuple `(name, row, bytes)`: the tensor, the row where the piece begins, and its
    size. Equal tuples are the same piece. Every rank has the lists of all ranks, so all can work out the same plan
    without a message. The plan is for `len(held)` ranks, which may be more than the check runs.

    Go through the different pieces in sorted order. Give each one to the holder that has the fewest **bytes** to write
    so far, and to the lowest rank if several have equally few. Return the list of the pieces that this `rank` writes,
    in that order. Communicate nothing.
    Hint: Make the set of all different pieces, sort it, and keep one total for each rank.
    Hint: The holders of a piece are the ranks in whose list it is. `min(holders, key=...)` returns the first of the
    smallest.
    Hint: Add the bytes to the writer's total for **every** piece, and put the piece into your own list only if the
    writer is you.
    Afterwards: All ranks come to the same plan because they go through the same pieces in the same order. DCP makes its
    plan on one rank instead: the ranks send what they hold, and get back what to write.
    """
    todo = [0] * len(held)
    mine = []
    for piece in sorted({tuple(piece) for pieces in held for piece in pieces}):
        holders = [r for r, pieces in enumerate(held) if piece in [tuple(p) for p in pieces]]
        writer = min(holders, key=lambda r: todo[r])
        todo[writer] += piece[2]
        if writer == rank:
            mine.append(piece)
    return mine


crash_in_a_save = ask("""
Rank 0 calls `torch.save(state, path)` after every ten training steps, always with the same path. It is killed in the
middle of the second save: half of the bytes are written. From which training step does the run go on?
( ) step 10
    > That would be true if the new file had a name of its own until it is whole. `torch.save` opens the file under
    `path` for writing, and that empties it.
( ) step 20, because all ranks wait in a barrier after the save
    > A barrier keeps the ranks together. It cannot finish a file.
( ) step 20, without the tensors that are missing
    > `torch.load` takes a whole file or raises an error. The archive's table of contents stands at its end, which is
    missing.
(x) step 0
Why: Step 0. The checkpoint of step 10 was gone as soon as the file was opened for the next one, and that of step 20 was
never complete. So a run that saves in this way can lose everything, the more easily the longer a save takes.
""")
