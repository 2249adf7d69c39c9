"""Lesson 13e: every way to attend has the gradient of one process, and its checks take other right ways."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

import labkit
from tests.live.lesson_cells import run_cells
from tests.scripts import printed

OTHER_WAYS = {
    "attend_gathered": [
        """
def attend_gathered(q, k, v):
    k, v = torch.cat(comms.all_gather(torch.stack([k, v])), dim=2)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    ones = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
    return scores.masked_fill(ones.triu(rank * q.shape[1] + 1), -torch.inf).softmax(-1) @ v
""",
        """
def attend_gathered(q, k, v):
    end = (rank + 1) * q.shape[1]
    k, v = (torch.cat(comms.all_gather(t), dim=1)[:, :end] for t in (k, v))
    mask = torch.ones(q.shape[1], end, dtype=torch.bool).tril(end - q.shape[1])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
""",
    ],
    "merge_pieces": [
        """
def merge_pieces(out, top, total, scores, v):
    new = torch.maximum(top, scores.max(dim=-1).values)
    none = new == -torch.inf
    old = torch.where(none, 0.0, (top - new).exp())
    powers = torch.where(none[..., None], 0.0, (scores - new[..., None]).exp())
    return out * old[..., None] + torch.einsum("hqk,hkd->hqd", powers, v), new, total * old + powers.sum(-1)
"""
    ],
    "ring_attention": [
        """
def ring_attention(q, kv, fold):
    state, blocks = None, [kv]
    for step in range(1, world_size):
        blocks.append(torch.empty_like(kv))
        sending = dist.P2POp(dist.isend, blocks[-2], (rank + 1) % world_size)
        coming = dist.P2POp(dist.irecv, blocks[-1], (rank - 1) % world_size)
        works = dist.batch_isend_irecv([sending, coming])
        state = fold(state, q, blocks.pop(0), (rank - step + 1) % world_size)
        for work in works:
            work.wait()
    return fold(state, q, blocks[-1], (rank + 1) % world_size)
"""
    ],
    "zigzag_positions": [
        """
def zigzag_positions(length):
    each = length // (2 * world_size)
    first = torch.arange(rank * each, (rank + 1) * each)
    return torch.cat([first, (length - 1 - first).flip(0)])
"""
    ],
    "swap_heads": [
        """
def swap_heads(q, k, v, attend):
    heads, length, size = q.shape
    give = torch.cat([torch.stack(parts) for parts in zip(*(t.chunk(world_size) for t in (q, k, v)))])
    got = torch.empty_like(give)
    dist.all_to_all_single(got, give.contiguous())
    q, k, v = (torch.cat(list(got[i::3]), dim=1) for i in range(3))
    back = torch.cat(attend(q, k, v).chunk(world_size, dim=1))
    out = torch.empty_like(back)
    dist.all_to_all_single(out, back.contiguous())
    return out
"""
    ],
    "ring_backward": [
        """
def ring_backward(q, kv, fold_back):
    after, before, sent = (rank + 1) % world_size, (rank - 1) % world_size, None
    dq, carried = fold_back(q, kv, rank)
    for step in range(1, world_size):
        room, grad = torch.empty_like(kv), torch.empty_like(kv)
        works = [dist.isend(kv, dst=after, tag=0), dist.irecv(room, src=before, tag=0)]
        works += [dist.isend(carried, dst=after, tag=1), dist.irecv(grad, src=before, tag=1)]
        for work in works:
            work.wait()
        kv = room
        mine, more = fold_back(q, kv, (rank - step) % world_size)
        dq, carried = dq + mine, grad + more
    home = torch.empty_like(kv)
    for work in [dist.isend(carried, dst=after), dist.irecv(home, src=before)]:
        work.wait()
    return dq, home
"""
    ],
}


@pytest.mark.parametrize(("name", "source"), [(name, source) for name, ways in OTHER_WAYS.items() for source in ways])
def test_another_right_way_is_right(lab, name, source):
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> dict[str, tuple[float, float]]:
    """Each way of the script: its loss, and how far off its gradient is (of one process, how large)."""
    lines = printed("ring_attention.py", 3, tmp_path_factory.mktemp("script"))
    said = [re.fullmatch(r"(.+): loss ([\d.]+), gradient (?:off by|up to) (.+)", line).groups() for line in lines]
    return {name: (float(loss), float(number)) for name, loss, number in said}


@pytest.mark.slow
def test_every_way_of_the_script_has_loss_and_gradient_of_one_process(script):
    (loss, largest), *_ = script.values()
    assert largest > 1e-3
    assert list(script) == ["one process", "gathered", "ring", "ring, zigzag", "heads for positions"]
    for way, (found, off) in list(script.items())[1:]:
        assert found == pytest.approx(loss, abs=2e-5), way
        assert off < 1e-13, way


@pytest.mark.slow
def test_the_cells_attend_as_one_process_does_and_show_what_the_text_says(lab, script):
    printed_here = io.StringIO()
    with contextlib.redirect_stdout(printed_here):
        list(run_cells(lab, "13e", notebook=True))
    said = printed_here.getvalue()
    apart = re.search(r"with nothing sent; .* off by ([\d.e+-]+)", said)
    assert float(apart[1]) > 1e-4, "attention needs the others"
    off = [float(x) for x in re.findall(r"off by ([\d.e+-]+)", said.replace(apart[0], ""))]
    assert len(off) >= 6
    assert max(off) < 1e-12
    (loss,) = set(re.findall(r"loss ([\d.]+) (?:in one process|attend_gathered|round_the_ring)", said))
    assert float(loss) == pytest.approx(script["one process"][0], abs=1e-4)

    shared = [[int(x) for x in re.findall(r"added up: (\d+) · evenly shared: (\d+)", said)[i]] for i in (0, 1)]
    assert shared[0][0] > 1.5 * shared[0][1], "in order, the ranks wait for the one with the most to do"
    assert shared[1][0] == pytest.approx(shared[1][1], rel=0.02), "zigzag shares it out"
    pieces = re.findall(r"^rank (\d) │ queries of piece (\d): (.*)$", said, re.MULTILINE)
    for order, rows in (("0 1 2 3 4 5", pieces[:6]), ("0 5 1 4 2 3", pieces[6:])):
        assert " ".join(piece for _, piece, _ in rows) == order
        for _, piece, steps in rows:
            assert [step == "·" for step in steps.split()] == [keys > int(piece) for keys in range(6)]
    for rank in "012":
        steps = " ".join(steps for r, _, steps in pieces[6:] if r == rank).split()
        assert (steps.count("0"), steps.count("1"), steps.count("2")) == (3, 2, 2), "the same work for all in each step"
    gathered, ring = (lab.pull(name)[0]["most at once"] for name in ("gathered", "in_a_ring"))
    assert gathered > 2.5 * ring, "three blocks at a time, or one"
    sent = {way: float(kib.replace(",", "")) for way, kib in re.findall(r"^(\w+) +([\d,]+) KiB", said, re.MULTILINE)}
    assert sent["ring"] == pytest.approx(sent["at_once"], rel=0.1)
    assert sent["ring"] == pytest.approx(3 / 2 * sent["ulysses"], rel=0.1), "N / 2 times as much"


@pytest.fixture(scope="module")
def lab(training):
    """Three ranks, with time to import what they train with."""
    with labkit.start(3, timeout=10) as lab:
        yield lab
