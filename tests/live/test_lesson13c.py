"""Lesson 13c: its cells and its script train alike, and its checks take other right ways."""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path

import pytest

import labkit
from labkit.content import exercises
from tests.live.lesson_cells import run_cells
from tests.scripts import printed

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT = 150  # seconds: the script trains in five ways, on busy cores

OTHER_WAYS = {
    "vocab_embedding": [
        """
def vocab_embedding(part, ids):
    first = rank * len(part)
    hit = torch.nn.functional.one_hot(ids, world_size * len(part))[..., first : first + len(part)]

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            total = rows.clone()
            dist.all_reduce(total, op=dist.ReduceOp.SUM)
            return total

        @staticmethod
        def backward(ctx, d_rows):
            return d_rows

    return Sum.apply(hit.to(part.dtype) @ part)
""",
        """
def vocab_embedding(part, ids):
    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part):
            local = ids - rank * len(part)
            ctx.away = (local < 0) | (local >= len(part))
            ctx.local, ctx.shape = local.masked_fill(ctx.away, 0), part.shape
            rows = part[ctx.local].masked_fill(ctx.away[..., None], 0.0)
            dist.all_reduce(rows)
            return rows

        @staticmethod
        def backward(ctx, d_rows):
            d_part = d_rows.new_zeros(ctx.shape)
            kept = d_rows.masked_fill(ctx.away[..., None], 0.0).reshape(-1, ctx.shape[1])
            return d_part.index_add_(0, ctx.local.reshape(-1), kept)

    return Look.apply(part)
""",
    ],
    "vocab_head": [
        """
def vocab_head(x, part, target, words):
    class CopyIn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, d_x):
            d_x = d_x.clone()
            dist.all_reduce(d_x)
            return d_x

    class AddUp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x = x.clone()
            dist.all_reduce(x)
            return x

        @staticmethod
        def backward(ctx, d_x):
            return d_x

    mine = torch.arange(len(part)) + rank * len(part)
    scores = (CopyIn.apply(x) @ part.T).masked_fill(mine >= words, -1e30)
    top = scores.detach().max(1).values
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    hit = torch.where(target[:, None] == mine, scores, 0).sum(1)
    sums = AddUp.apply(torch.stack([(scores - top[:, None]).exp().sum(1), hit]))
    return (sums[0].log() + top - sums[1]).mean()
"""
    ],
    "rows_to_columns": [
        """
def rows_to_columns(x, rows):
    high, wide = -(-rows // world_size), -(-x.shape[1] // world_size)
    tall = [max(0, min(rows, (r + 1) * high) - r * high) for r in range(world_size)]
    broad = [max(0, min(x.shape[1], (r + 1) * wide) - r * wide) for r in range(world_size)]
    columns = x.T.contiguous().view(-1)  # in this order every block of columns is one piece
    got = x.new_empty(rows * broad[rank])
    dist.all_to_all_single(got, columns, [t * broad[rank] for t in tall], [len(x) * b for b in broad])
    pieces = got.split([t * broad[rank] for t in tall])
    return torch.cat([piece.view(broad[rank], t).T for piece, t in zip(pieces, tall)])
"""
    ],
    "product_on_k": [
        """
def product_on_k(x, w, bias):
    parts = list((x @ w + (rank == 0) * bias).chunk(world_size))
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, [part.contiguous() for part in parts])
    return mine.clamp(min=0)
"""
    ],
    "summa": [
        """
def summa(x, w, row, column, panels):
    y = 0
    for p in range(panels):
        at, piece = divmod(p, panels // dist.get_world_size(row))
        k = x.shape[1] * dist.get_world_size(row) // panels
        left = x[:, piece * k : (piece + 1) * k].contiguous().clone()
        dist.broadcast(left, src=dist.get_global_rank(row, at), group=row)
        at, piece = divmod(p, panels // dist.get_world_size(column))
        right = w[piece * k : (piece + 1) * k].clone()
        dist.broadcast(right, src=dist.get_global_rank(column, at), group=column)
        y = y + left @ right
    return y
"""
    ],
    "cheapest_chain": [
        """
def cheapest_chain(widths, tokens, ranks):
    import itertools

    best = float("inf")
    for cuts in itertools.product((True, False), repeat=len(widths) - 1):
        sent, whole = 0, True
        for i, by_columns in enumerate(cuts):
            if by_columns:
                sent += 0 if whole else widths[i]
            else:
                sent += 2 * widths[i + 1]
            whole = not by_columns
        best = min(best, sent + (0 if whole else widths[-1]))
    return best * tokens * (1 - 1 / ranks)
"""
    ],
}
TORCH = metadata.version("torch")
OLD = TORCH.startswith("2.11.")  # its DTensor cannot run the annotated transformer
EACH = [(name, source) for name, sources in OTHER_WAYS.items() for source in sources]


@pytest.fixture(scope="module")
def lab(training):
    """Three ranks, with time to import what they train with."""
    with labkit.start(3, timeout=20) as lab:
        yield lab


@pytest.mark.parametrize(("name", "source"), EACH)
def test_another_right_way_is_right(lab, name, source):
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)


def losses(lines: list[str]) -> dict[str, list[float]]:
    """The losses of each way that the script prints."""
    found = [re.fullmatch(r"(.+): ((?:[\d.]+ ?)+)", line) for line in lines]
    return {match[1]: [float(loss) for loss in match[2].split()] for match in found if match}


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """What the script prints on three ranks, among which eight positions do not divide."""
    return printed("vocabulary_parallel.py", 3, tmp_path_factory.mktemp("script"), LIMIT)


@pytest.mark.slow
def test_every_way_of_the_script_has_the_losses_of_one_process(script):
    said = losses(script)
    annotated = [] if OLD else ["columns, then rows", "every matrix cut"]
    assert list(said) == ["tied, one process", "tied, both ends cut", "one process", *annotated]
    assert said["tied, both ends cut"] == pytest.approx(said["tied, one process"], abs=2e-6)
    assert ("as DTensors: not with torch 2.11" in "\n".join(script)) == OLD
    for way in annotated:
        assert said[way] == pytest.approx(said["one process"], abs=2e-6)
    assert said["one process"][-1] < said["one process"][0] - 0.1, "it learns"
    off = [float(x) for x in re.findall(r"off by ([\d.e+-]+)", script[0])]
    assert len(off) == 2
    assert max(off) < 1e-12


@pytest.mark.slow
def test_the_cells_print_the_losses_that_the_script_prints_and_the_collectives_that_the_text_counts(lab, script):
    right = losses(script)
    said = "\n".join(out[-1] for _, out in run_cells(lab, "13c"))
    tied = dict(re.findall(r"^(one process|cut|padding counts): +\[(.*?)\] *$", said, re.MULTILINE))
    for way in ("one process", "cut"):
        assert numbers(tied[way]) == pytest.approx(right["tied, one process"], abs=2e-6)
    assert numbers(tied["padding counts"]) == numbers(tied["cut"]), "on three ranks 36 words need no padding"
    pattern = (
        r"^(\w[\w ]*?) ([\d. ]+) gradients off by (\S+)\n"
        r"  forward  (\{.*\}) *\n  backward (\{.*\})\n  gradients laid out .*: (\d+) "
    )
    trained = re.findall(pattern, said, re.MULTILINE)
    annotated = [] if OLD else ["columns_then_rows", "every_matrix", "thoughtless"]
    assert [name for name, *_ in trained] == ["one process", *annotated]
    for _, found, error, *_ in trained:
        assert numbers(found) == pytest.approx(right["one process"][:2], abs=2e-6)
        assert float(error) < 1e-12
    forward = {name: ast.literal_eval(counts) for name, _, _, counts, *_ in trained}
    assert forward["one process"] == {}
    if TORCH.startswith("2.13."):
        assert forward["columns_then_rows"]["all_reduce"] == 5
        assert "all_reduce" not in forward["every_matrix"]
        assert forward["every_matrix"]["reduce_scatter_tensor"] == 5
    if TORCH.startswith("2.15."):  # as the text says
        assert forward["columns_then_rows"] == {"all_reduce": 1, "all_gather_into_tensor": 12}
        assert "all_reduce" not in ast.literal_eval(trained[1][-2])
    if not OLD:
        assert sum(forward["thoughtless"].values()) > 2 * sum(forward["columns_then_rows"].values())
        assert int(trained[1][-1]) > 0, "gradients laid out differently from their weights"
    (off,) = re.findall(r"last gradient: .* off by ([\d.e+-]+)", said)
    assert float(off) < 1e-12
    gathered, kept = re.findall(r"^(?:gathered|loss_parallel): +([\d.]+) (\{.*\})$", said, re.MULTILINE)
    assert gathered[0] == kept[0]
    assert ast.literal_eval(gathered[1]) == {"all_gather_into_tensor": 1}
    assert ast.literal_eval(kept[1]) == {"all_reduce": 3}
    assert "looked up: MaskP" in said or "_MaskPartial" in said


def test_both_ends_make_three_all_reduces_forward_and_one_backward(lab):
    for name in ("vocab_embedding", "vocab_head"):
        lab.run(exercises.find(name).answer.removeprefix("%%px\n"))
    lab.run("part = torch.ones(2, 3, dtype=torch.float64).requires_grad_(); ids = torch.tensor([0, 3, 5])")
    for call, times in ("loss = vocab_head(vocab_embedding(part, ids), part, ids, 6)", 3), ("loss.backward()", 1):
        lab.run(call)
        assert [op.op.removeprefix("comms.") for op in lab.last.timeline().record.ops[0]] == ["all_reduce"] * times


@pytest.mark.slow
def test_padding_that_counts_as_words_makes_the_loss_larger_and_has_gradients(lab):
    """On two ranks 36 words need no padding either: here each rank has a row too many."""
    lab.run(exercises.find("vocab_head").answer.removeprefix("%%px\n"))
    lab.run("""
x = torch.ones(5, 3, dtype=torch.float64)
table = torch.nn.functional.pad(0.1 * torch.ones(7, 3, dtype=torch.float64), (0, 0, 0, 2))
part, target = table.chunk(world_size)[rank].clone().requires_grad_(), torch.tensor([0, 6, 3, 3, 5])
found = []
for words in (7, 9):
    part.grad = None
    loss = vocab_head(x, part, target, words)
    loss.backward()
    found.append([loss.item(), part.grad[1:].abs().max().item()])
""")
    (right, _), (wrong, _) = lab.pull("found")[0]
    assert wrong > right + 0.1
    (_, none), (_, some) = lab.pull("found")[2]
    assert none == 0, "of the last rank, all but the first row is padding"
    assert some > 0


def numbers(said: str) -> list[float]:
    return [float(number) for number in re.findall(r"[\d.]+", said)]
