"""The entries of the cheat sheet: each primitive's call, bytes, steps, and the one mistake to avoid. Plain data.

S is the bytes of one rank's input buffer (of a scatter: the root's), N the number of ranks. `sent` and `steps` are
those of the algorithm that is named, of the busiest rank; tests/tools/test_cheats.py holds them against
`workbook.tools.formulas`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cheat:
    """An entry of the sheet.

    Args:
        name: what it is called: "all_reduce".
        does: what it does, in a few words.
        code: its shortest form; it reads `x` and leaves `shows`.
        x: what a rank brings, an expression.
        y: what the call needs room in, an expression, or "" where it works in place.
        shows: "x" or "y": what is drawn after it.
        moves: whose bytes these are: "the busiest rank sends", "the root receives".
        sent: how many, in Python's words, of S and N; "" where the bytes cannot be known.
        steps: how many steps follow one another, likewise.
        by: the primitive and the algorithm, as `workbook.tools.formulas` calls them.
        instead: what to say instead of bytes and steps.
        also: other names and forms.
        mistake: the one to avoid, in Markdown's `code`.
    """

    name: str
    does: str
    code: str
    x: str
    mistake: str
    y: str = ""
    shows: str = "y"
    moves: str = "the busiest rank sends"
    sent: str = ""
    steps: str = ""
    by: tuple[str, str] = ("", "")
    instead: str = ""
    also: str = ""

    @property
    def costs(self) -> str:
        """A sentence with the bytes and the steps."""
        if self.instead:
            return self.instead
        steps = "1 step" if self.steps == "1" else f"{pretty(self.steps)} steps"
        return f"{self.moves[0].upper()}{self.moves[1:]} {pretty(self.sent)}, in {steps} ({self.by[1]})."


def pretty(formula: str) -> str:
    r"""Return a formula as it is printed.

    >>> pretty("2 * S * (N - 1) / N"), pretty("log2(N)")
    ('2\xa0S\xa0(N\xa0−\xa01)\xa0/\xa0N', '⌈log₂\xa0N⌉')
    """
    return (
        formula.replace("log2(N)", "⌈log₂ N⌉").replace(" * ", " ").replace("-", "−").replace(" ", "\N{NO-BREAK SPACE}")
    )


NUMBER = "torch.tensor([10.0 * rank], device=device)"
CHUNKS = "list((torch.arange(float(world_size), device=device) + 10 * rank).chunk(world_size))"
FLAT = "torch.arange(float(world_size), device=device) + 10 * rank"
ROOM = "torch.empty(1, device=device)"
LIST = "[torch.empty(1, device=device) for _ in range(world_size)]"
ON_ROOT = " if rank == 0 else None"

CHEATS = (
    Cheat(
        name="send, recv",
        does="One rank's tensor to one other rank. Both calls block (on NCCL, the GPU's queue does).",
        code="if rank == 0:\n    dist.send(x, dst=1)\nif rank == 1:\n    dist.recv(x, src=0)",
        x=NUMBER,
        shows="x",
        moves="the sender sends",
        sent="S",
        steps="1",
        by=("send_recv", "one message"),
        also="Without `src`, `recv` takes from anyone and returns who it was (not on NCCL).",
        mistake="Two ranks that both send first wait for each other. Let one of them receive first.",
    ),
    Cheat(
        name="isend, irecv",
        does="The same, started at once. `wait()` ends them. Here a ring shift.",
        code="ops = [dist.P2POp(dist.isend, x, right),\n       dist.P2POp(dist.irecv, y, left)]\n"
        "for work in dist.batch_isend_irecv(ops):\n    work.wait()",
        x=NUMBER,
        y=ROOM,
        moves="each rank sends",
        sent="S",
        steps="1",
        by=("send_recv", "one message"),
        also="`dist.isend(x, dst)` and `dist.irecv(y, src)` alone return a handle each.",
        mistake="Until `wait()`, do not write to the tensor that is sent, nor read the one that is received.",
    ),
    Cheat(
        name="broadcast",
        does="The root's tensor on every rank, in place.",
        code="dist.broadcast(x, src=0)",
        x=NUMBER,
        shows="x",
        moves="the root sends",
        sent="S * log2(N)",
        steps="log2(N)",
        by=("broadcast", "tree"),
        mistake="It takes one tensor. For a model, broadcast each parameter **and each buffer**.",
    ),
    Cheat(
        name="scatter",
        does="Part r of the root's list on rank r.",
        code="dist.scatter(y, x, src=0)",
        x=CHUNKS + ON_ROOT,
        y=ROOM,
        moves="the root sends",
        sent="S * (N - 1) / N",
        steps="N - 1",
        by=("scatter", "linear"),
        mistake="Only the root brings a list; the others pass `None`. All parts have the same shape.",
    ),
    Cheat(
        name="gather",
        does="Everyone's tensor in a list on the root.",
        code="dist.gather(x, y, dst=0)",
        x=NUMBER,
        y=LIST + ON_ROOT,
        moves="the root receives",
        sent="S * (N - 1)",
        steps="N - 1",
        by=("gather", "linear"),
        also="`gather_single` takes one flat tensor (torch 2.15).",
        mistake="The result is in the list that you pass as `y`. The call itself returns nothing.",
    ),
    Cheat(
        name="reduce",
        does="The total on the root, in place.",
        code="dist.reduce(x, dst=0)",
        x=NUMBER,
        shows="x",
        moves="each rank but the root sends",
        sent="S",
        steps="log2(N)",
        by=("reduce", "tree"),
        mistake="Off the root, `x` is undefined afterwards. Reduce a clone if you still need it.",
    ),
    Cheat(
        name="all_reduce",
        does="The total on every rank, in place.",
        code="dist.all_reduce(x)",
        x=NUMBER,
        shows="x",
        moves="each rank sends",
        sent="2 * S * (N - 1) / N",
        steps="2 * (N - 1)",
        by=("all_reduce", "ring"),
        also="`op=`: SUM, AVG, PRODUCT, MIN, MAX, and BAND, BOR, BXOR for integers (not on NCCL).",
        mistake="It adds. For an average, divide by `world_size` afterwards (floats only) or pass `ReduceOp.AVG`.",
    ),
    Cheat(
        name="all_gather",
        does="Everyone's tensor in a list on every rank.",
        code="dist.all_gather(y, x)",
        x=NUMBER,
        y=LIST,
        moves="each rank sends",
        sent="S * (N - 1)",
        steps="N - 1",
        by=("all_gather", "ring"),
        also="`all_gather_single(y, x)` fills one flat tensor (once `all_gather_into_tensor`).",
        mistake="On Gloo, all tensors need the same shape. For uneven ones, gather the lengths and pad.",
    ),
    Cheat(
        name="reduce_scatter",
        does="Rank r keeps the total of everyone's chunk r.",
        code="dist.reduce_scatter(y, x)",
        x=CHUNKS,
        y=ROOM,
        moves="each rank sends",
        sent="S * (N - 1) / N",
        steps="N - 1",
        by=("reduce_scatter", "ring"),
        also="`reduce_scatter_single(y, x)` cuts one flat tensor (once `reduce_scatter_tensor`). Gloo sends twice "
        "these bytes: it runs an all-reduce.",
        mistake="Every rank brings N chunks, one for each rank, and not only its own.",
    ),
    Cheat(
        name="all_to_all",
        does="Chunk s of rank r goes to rank s, as chunk r.",
        code="dist.all_to_all_single(y, x)",
        x=FLAT,
        y="torch.empty(world_size, device=device)",
        moves="each rank sends",
        sent="S * (N - 1) / N",
        steps="N - 1",
        by=("all_to_all", "pairwise"),
        also="`all_to_all` takes lists (on Gloo since torch 2.12).",
        mistake="Uneven parts need the sizes of what you send and of what you get. Exchange the sizes first.",
    ),
    Cheat(
        name="barrier",
        does="No rank goes on until all have come. Here rank 1 is late.",
        code="dist.barrier()",
        x="",
        instead="No data: a few messages, in ⌈log₂ N⌉ steps at least.",
        also="`monitored_barrier` (Gloo) names the ranks that did not come.",
        mistake="A barrier that only some ranks reach hangs: keep it out of `if rank == 0` branches.",
    ),
    Cheat(
        name="all_gather_object",
        does="Any Python objects, pickled. Here each rank brings a word.",
        code="dist.all_gather_object(y, x)",
        x="['ant', 'bee', 'cat', 'dog'][rank]",
        y="[None] * world_size",
        instead="Pickled bytes, and a call for their lengths first: slow, and fine for settings and metrics.",
        also="`broadcast_object_list`, `scatter_object_list`, `gather_object`, `send_object_list`, `recv_object_list`.",
        mistake="Objects are unpickled, which can run code: accept them from ranks that you trust, never for tensors.",
    ),
)
