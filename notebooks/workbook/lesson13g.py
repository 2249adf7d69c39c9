"""Exercises of lesson 13g: a part of a file, and a checkpoint for a different number of ranks."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from labkit.grading.exercise import Case
from labkit.grading.prediction import ask
from workbook.lesson13f import by_reading, filled, part_of

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, name_it, rank, torch


Box = tuple[list[int], list[int]]  # where a part of a tensor begins, and how large it is, in each dimension


def _in_a_file(n: int) -> list[Case]:
    def case(about: str, seed: int, shape: tuple[int, ...], dim: int, dtype: str = "float32", parts: int = n) -> Case:
        whole = filled(shape, np.random.default_rng([13, seed, n]) if seed else None, dtype)
        return Case([(whole,)] * n, about, {"dim": dim, "parts": parts})

    return [
        case("rows", 0, (n, 3), 0),
        case("columns", 0, (3, n), 1),
        case("a vector", 1, (2 * n + 1,), 0),
        case(f"{2 * n + 1} columns", 2, (5, 2 * n + 1), 1),
        case("rows in float64", 3, (3 * n, 5), 0, "float64"),
        case("columns in float16", 4, (4, 3 * n), 1, "float16"),
        case("rows for more ranks than there are rows", 5, (n, 4), 0, parts=n + 2),
        case("three dimensions", 6, (2 * n, 3, 2), 0),
    ]


def run_read_part(read_part, whole, dim, parts):
    """Give a file of which every byte that is read is counted, and name what a wrong part comes from."""

    class Counting(io.BytesIO):
        got = 0

        def read(self, size=-1):
            data = super().read(size)
            self.got += len(data)
            return data

        def readinto(self, room):
            got = super().readinto(room)
            self.got += got
            return got

        def fileno(self):
            raise io.UnsupportedOperation(
                "the check's file lies in memory and has no number: use `file.seek` with `file.readinto` or `file.read`"
            )

    before, after = bytes(range(7, 95)), bytes(range(100, 140))
    file = Counting(before + whole.contiguous().cpu().numpy().tobytes() + after)
    start, end = part_of(whole.shape[dim], parts, rank)
    part = read_part(file, whole.dtype, list(whole.shape), len(before), dim, start, end)
    mine = (end - start) * (whole.numel() // whole.shape[dim]) * whole.dtype.itemsize
    assert file.got <= mine, f"rank {rank} reads {file.got} bytes of the file, and its part has {mine}"

    def read_from(offset, size=whole.dtype.itemsize):
        begins, cut = [offset + start * (whole.numel() // whole.shape[0]) * size], list(whole.shape)
        cut[dim] = end - start
        if dim:
            begins = [offset + (i * whole.shape[1] + start) * size for i in range(len(whole))]
        runs = b"".join(file.getvalue()[a : a + mine // len(begins)] for a in begins).ljust(mine, bytes(1))
        return torch.frombuffer(bytearray(runs), dtype=torch.uint8).view(whole.dtype).view(cut)

    if mine:
        slips = {
            "reads from the beginning of the file, and not from `offset` on": read_from(0),
            "takes every number to be four bytes long": read_from(len(before), 4),
        }
        name_it(part, whole.narrow(dim, start, end - start), slips)
    return part


@by_reading(
    "Read your part of a file, and nothing else",
    lambda xs, dim, parts: [
        whole.take(range(*part_of(whole.shape[dim], parts, r)), dim) for r, (whole,) in enumerate(xs)
    ],
    difficulty=2,
    inputs=_in_a_file,
    harness=run_read_part,
)
def read_part(file, dtype, shape, offset, dim, start, end):
    """Return the part from start to end along dim of a tensor in a file, reading nothing else.

    A tensor of this `dtype` and `shape` lies in an open binary `file`, from byte `offset` on, row after row. Return the
    part from `start` to `end` (not included) along `dim`: rows for `dim` 0, and columns of a matrix for `dim` 1. Read
    **no byte that is not in this part**. `dtype.itemsize` is the number of bytes of one number.

    `file.seek(place)` goes to a byte. `file.readinto(part.view(torch.uint8).numpy())` fills the contiguous tensor
    `part`, of whatever dtype, with the bytes that follow.
    Hint: Rows follow one another in the file, so the rows of a part are one run of bytes. Where does it begin?
    Hint: A row has `torch.Size(shape[1:]).numel()` numbers (1 for a vector), each of `dtype.itemsize` bytes. `part` is
    there, empty: fill it.
    Hint: For columns, each row of the part is a run of its own: it begins at number `i * shape[1] + start`.
    Afterwards: Rows are one read, columns one read for each row. Many small reads are slow on network storage; there it
    is better to read a run of whole rows and cut, or to save the file in the shards that will be loaded. The package
    `safetensors` reads files of this layout, and its `get_slice` gives you a part.
    """
    size = list(shape)
    size[dim] = end - start
    part = torch.empty(size, dtype=dtype)
    # yours
    if dim == 0:
        file.seek(offset + start * torch.Size(shape[1:]).numel() * dtype.itemsize)
        file.readinto(part.view(torch.uint8).numpy())
    else:
        for i, row in enumerate(part):
            file.seek(offset + (i * shape[1] + start) * dtype.itemsize)
            file.readinto(row.view(torch.uint8).numpy())
    # end
    return part.to(device)


def grid(shape: Sequence[int], rows: int, columns: int = 1) -> list[Box]:
    """Cut a tensor into rows x columns parts, as boxes; those without a number are left out.

    >>> grid((3, 4), 2)
    [([0, 0], [2, 4]), ([2, 0], [1, 4])]
    """
    boxes: list[Box] = []
    for i in range(rows):
        for j in range(columns):
            cuts = [part_of(size, *part) for size, part in zip(shape, ((rows, i), (columns, j)), strict=False)]
            boxes.append(([a for a, _ in cuts], [b - a for a, b in cuts]))
    return [box for box in boxes if math.prod(box[1])]


def within(first: Sequence[int], size: Sequence[int]) -> tuple[slice, ...]:
    """Return what takes a box out of a tensor."""
    return tuple(slice(a, a + s) for a, s in zip(first, size, strict=False))


def _reshardings(n: int) -> list[Case]:
    old = 3 if n == 4 else 4

    def case(about: str, shape: tuple[int, ...], boxes: Sequence[Box], chunks: Sequence[Box]) -> Case:
        boxes = [*boxes, *[([0] * len(shape), [0] * len(shape))] * (n - len(boxes))]
        return Case([(filled(shape),)] * n, about, {"boxes": boxes, "chunks": list(chunks)})

    wide, tall = (4, 2 * n), (2 * n + 1, 3)
    return [
        case(f"from {old} ranks to {n}", (12,), grid((12,), n), grid((12,), old)),
        case("rows that do not divide", tall, grid(tall, n), grid(tall, old)),
        case("rows become columns", wide, grid(wide, 1, n), grid(wide, 4)),
        case("from a grid of 2 x 2", wide, grid(wide, n), grid(wide, 2, 2)),
        case("one whole tensor", tall, grid(tall, n), grid(tall, 1)),
        case("the last rank needs nothing", (n - 1, 2), grid((n - 1, 2), n), grid((n - 1, 2), n - 1)),
        case("chunks in a different order", (12,), grid((12,), n), grid((12,), 6)[::-1]),
    ]


def _from_three_to_two() -> Case:
    return Case([(filled((6,)),)] * 2, options={"boxes": grid((6,), 2), "chunks": grid((6,), 3)})


def run_pieces_for_me(pieces_for_me, whole, boxes, chunks):
    """Put the pieces together, each of which has to fit and to be there once, and collect the whole."""
    pieces = list(pieces_for_me(boxes[rank], chunks))
    room = torch.full(boxes[rank][1], float("nan"), device=device)
    for chunk, there, here, size in pieces:
        said = f"rank {rank}'s piece {(chunk, list(there), list(here), list(size))}"
        assert all(s > 0 for s in size), f"{said} is empty: no rank has to open that file for it"
        fits = all(0 <= a and a + s <= wide for a, s, wide in zip(there, size, chunks[chunk][1]))
        assert fits, f"{said} reaches beyond chunk {chunk}, whose size is {list(chunks[chunk][1])}"
        fits = all(0 <= a and a + s <= wide for a, s, wide in zip(here, size, room.shape))
        assert fits, f"{said} reaches beyond what the rank needs, whose size is {list(room.shape)}"
        assert room[within(here, size)].isnan().all(), f"{said} brings numbers that another piece has brought already"
        room[within(here, size)] = whole[within([a + b for a, b in zip(chunks[chunk][0], there)], size)]
    return room


@by_reading(
    "Which pieces of old shards make up a new one?",
    lambda xs, boxes, chunks: [whole[within(*box)] for (whole,), box in zip(xs, boxes, strict=True)],
    minutes=12,
    difficulty=3,
    inputs=_reshardings,
    picture=_from_three_to_two,
    harness=run_pieces_for_me,
)
def pieces_for_me(mine, chunks):
    """Return what to read: (chunk, where in the chunk, where in my box, sizes) for every chunk that I need.

    A tensor was saved in parts by one number of ranks and is loaded by a different one. A part is a box, `(offsets,
    sizes)`: where it begins in the whole tensor and how large it is, in each dimension. `mine` is the box that this
    rank needs, and `chunks` are the boxes that lie in files, in any order; they do not overlap. There may be one
    dimension or more.

    Return a list with a piece `(i, there, here, sizes)` for every chunk i that has something for you: where the piece
    begins **within the chunk**, where it begins **within your box**, and its sizes. Leave out chunks that have nothing
    for you. Communicate nothing; the check puts the pieces together. In the picture, the whole tensor is on the left.
    Hint: In one dimension: where does the overlap of two intervals begin and end? At the larger of the two beginnings,
    and at the smaller of the two ends.
    Hint: Do that in each dimension, in the numbers of the whole tensor. Two boxes overlap if **every** dimension has a
    beginning before its end.
    Hint: Then subtract: `there` counts from the chunk's offsets, `here` from those of your own box.
    Afterwards: Nothing more is needed to load with a different number of ranks, along a different dimension or on a
    different mesh: `torch.distributed.checkpoint` keeps the list of boxes in its file `.metadata`, and each rank makes
    such a list of pieces for every tensor.
    """
    pieces = []
    for i, (offsets, sizes) in enumerate(chunks):
        # yours
        first = [max(a, b) for a, b in zip(mine[0], offsets)]
        after = [min(a + s, b + t) for a, s, b, t in zip(*mine, offsets, sizes)]
        if all(a < b for a, b in zip(first, after)):
            there = [a - b for a, b in zip(first, offsets)]
            here = [a - b for a, b in zip(first, mine[0])]
            pieces.append((i, there, here, [b - a for a, b in zip(first, after)]))
        # end
    return pieces


a_file_with_an_object = ask("""
Somebody gives you a file with a tensor and a small object. You call `found = torch.load(path, weights_only=False)` and
never touch the object. When does code run that the **file** has chosen?
( ) never: a file holds data
    > That would be true of a file of numbers. A pickle is a program that builds objects.
( ) when I look at `found["note"]`
    > That would be true if objects were built when they are first used. `torch.load` builds all of them.
( ) never, unless I have imported the object's class
    > That would be true if the class were needed. The file names a function, and the loader imports it.
(x) while `torch.load` runs
Why: While it loads. A pickle says how to make each object again: *import this function, call it with these arguments*.
Here the call made an empty file; it could have been any other. With `weights_only=True`, which is the default since
torch 2.6, the loader makes tensors and plain containers only, and refuses the rest.
""")

columns_from_storage = ask("""
A matrix lies in a file, row after row. A row takes 3,840 bytes. The file is mapped into memory: what is touched is
read, in pages of 4,096 bytes. A rank copies a quarter of the **columns**, 240 of 960. How many per cent of the matrix
must the storage deliver?
= 100.0 % +- 5 %
( ) 25
    > That is what is copied, and what a quarter of the rows would need. Storage delivers whole pages.
( ) 50
    > A page is longer than a row: it always holds some bytes of these columns.
Why: 100 %. A quarter of each row is 960 bytes, and then 2,880 bytes follow that this rank does not need. That is less
than a page, so every page holds some byte that it does need. A quarter of the **rows** is one run of bytes, and there
25 % are enough.
""")

file_of_a_view = ask("""
`whole` has 240 rows of 960 numbers in float32, which is 900 KiB. A rank cuts its part, `mine = whole[:60]`, and saves
it: `torch.save(mine, path)`. About how many KiB does the file have?
= 900.0 KiB +- 10 %
( ) 225
    > That would be true of a copy: `whole[:60].clone()`. A view has no memory of its own.
( ) 450
    > Nothing is saved in 16 bits: float32 it was, and float32 it stays.
Why: About 900. `mine` is a view: it looks into the memory of all of `whole`, and `torch.save` keeps that memory, so
that views which share it still share it after loading. `mine.clone()` has memory of its own, 225 KiB. In the rank's
memory it is the same: as long as the view lives, all of `whole` does.
""")

what_to_empty_leaves = ask("""
A module makes a mask of 0 and 1 in its `__init__` and registers it as a buffer with `persistent=False`, so that no file
has to hold it. It is built on `meta`, `to_empty` gives it memory, and `load_state_dict` fills in everything that the
file has. What does the mask hold now?
( ) 0 and 1, as `__init__` made them
    > That would be true on a device with memory. On `meta`, `__init__` computed shapes and no numbers.
( ) zeros, because `to_empty` begins with zeros
    > That would be true if it wrote anything. It allocates, like `torch.empty`; fresh memory often happens to be
    zero, and used memory is not.
(x) whatever was in that memory before
( ) nothing: `load_state_dict` raises an error, because a buffer is missing
    > That would be true of a persistent buffer. `load_state_dict` does not look for the others.
Why: Whatever was there. The numbers of `__init__` were never computed, the file does not have them, and no error says
so. In many models, rotary embeddings and causal masks are such buffers. If you build on `meta`, compute them again
after `to_empty`, like everything else that is in no file.
""")

old_shards_of_a_new_rank = ask("""
A matrix of 12 rows was saved by four ranks, three rows in each file. Three ranks load it, four rows each. Which of the
files 0, 1, 2, 3 does **rank 1** have to open?
( ) file 1
    > That would be true if it needed rows 3, 4 and 5, the old rank 1's.
( ) files 0, 1 and 2
    > File 0 has rows 0 to 2. All of them belong to the new rank 0.
(x) files 1 and 2
( ) all four, and then it cuts
    > That is right and costly: it reads 12 rows for the sake of 4.
Why: Files 1 and 2. It needs rows 4 to 7; file 1 has rows 3 to 5, and file 2 has rows 6 to 8.
""")

what_dcp_reads = ask("""
A matrix of 12 long rows was saved by four ranks with DCP, three rows each. Three ranks load it, four rows each. DCP
reads from a file what was written there as one piece, and then cuts. How many per cent of what **it needs** does a rank
read?
= 150.0 % +- 5 %
( ) 100
    > That would be true if it read rows out of a piece. It reads whole pieces.
( ) 300
    > That is everything: 12 rows for the sake of 4. DCP leaves out pieces of which the rank needs nothing.
( ) 75
    > A rank needs four rows. One old piece has only three of them.
( ) 200
    > Each new rank needs two old pieces, of three rows each, and four rows are what it keeps.
Why: 150 %. Each new rank needs four rows, which lie in two old pieces of three rows. It reads both pieces whole, six
rows, and throws two away. Your `read_part` would read four.
""")

weights_of_an_async_save = ask("""
`saving = dcp.async_save(state, …)` returns while a thread still writes. At once the program adds 1 to every weight, as
the next training step might, and then it waits: `saving.result()`. What does the file hold?
(x) the old weights
( ) the new weights
    > That would be true if the thread read the weights when it writes them.
( ) a mixture: some tensors are old, others new
    > That would be true if the thread read the weights while they change. This is what has to be prevented.
( ) an error: the state has changed while it was saved
    > Nothing checks for changes, and nothing has to.
Why: The old weights. Before it returns, `async_save` copies everything that it will write. So the price of going on at
once is the memory of a second copy (of this rank's part), and the time to make it.
""")
