"""Lesson 09b on live ranks: its checks take other right ways, and what its text says of buckets and epochs."""

from __future__ import annotations

from functools import partial

import pytest

import labkit
from labkit.floor.errors import CellError
from tests.live.lesson_cells import beginning

cells = partial(beginning, "09b")

OTHER_WAYS = {
    "average_by_rows": [
        """
def average_by_rows(model, rows):
    none = [torch.zeros_like(p) for p in model.parameters()]
    mine = [p.grad if rows else zero for p, zero in zip(model.parameters(), none)]
    everyone = comms.all_gather((rows, mine))
    total = sum(count for count, _ in everyone)
    for i, p in enumerate(model.parameters()):
        p.grad = sum(count * grads[i] for count, grads in everyone) / total
""",
    ],
    "contrast": [
        """
def contrast(a, b):
    logits = a @ torch.cat(comms.all_gather(b)).T
    target = torch.arange(len(a)) + rank * len(a)
    return (logits.logsumexp(1) - logits.gather(1, target[:, None])[:, 0]).mean()
""",
    ],
    "compressed_average": [
        """
def compressed_average(grad, error):
    error += grad
    sent = error.bfloat16()
    error -= sent.float()
    parts = [part.contiguous() for part in sent.tensor_split(world_size)]
    got = comms.all_to_all(parts)
    mean = (torch.stack([part.float() for part in got]).sum(0) / world_size).bfloat16()
    return torch.cat(comms.all_gather(mean)).float()
""",
    ],
}


@pytest.mark.parametrize(("name", "source"), [(n, s) for n, sources in OTHER_WAYS.items() for s in sources])
def test_another_right_way_is_right(lab, name, source):
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)


@pytest.fixture(scope="module")
def ranks(training):
    """A lab of three ranks with the lesson's first functions."""
    with labkit.start(3) as lab:
        lab.use("average_in_buckets")
        for cell in cells("import warnings\n"):
            lab.run(cell)
        yield lab


def test_ddp_that_looks_for_unused_parameters_never_fills_its_buckets_anew(ranks):
    (buckets,) = cells("from torch.distributed.algorithms")
    once, remedy = ranks.run(buckets)[0].split("find_unused_parameters=True, step 0\n")
    sizes = [[line.split(" MiB")[0] for line in part.splitlines() if "MiB" in line] for part in (once, remedy)]
    assert len(sizes[0]) == 3, "one bucket, then two"
    assert len(sizes[1]) == 4
    assert sizes[1][:2] == sizes[1][2:]
    assert float(sizes[0][1]) < float(sizes[0][2]), "the small one leaves first"
    assert float(sizes[1][0]) > float(sizes[1][1]), "the small one leaves last"


def test_a_sampler_that_is_not_told_the_epoch_deals_out_the_same_rows(ranks):
    (epochs,) = cells("sampler = ")
    for told in ranks.run(epochs):
        rows = [line.split("rows ")[1] for line in told.splitlines()]
        assert rows[0] == rows[1] == rows[2] != rows[3]


def test_four_times_the_batch_needs_four_times_the_learning_rate_and_sixteen_times_is_too_much(ranks):
    for cell in cells("def train(size", "rows_60"):
        ranks.run(cell)
    small, same, scaled = (ranks.pull(name)[0][-1] for name in ("small", "same", "scaled"))
    assert abs(scaled - small) < abs(same - small) / 2
    assert ranks.pull("losses")[0][-1] > 10 * small


SENT_AND_LEFT_OUT = """
def mean(x):
    dist.all_reduce(x := x.clone(), op=dist.ReduceOp.AVG)
    return x


def noting(memory, bucket):
    for w, grad in zip(bucket.parameters(), bucket.gradients()):
        brought[w] = mean(grad + memory["error"].get(w, 0))
    return power_sgd(memory, bucket)


memory, brought, off, rank_of, errors = dict(feedback=True, q={}, error={}), {}, [], [], []
ddp = DistributedDataParallel(begin(0))
ddp.register_comm_hook(memory, noting)
for step in range(3):
    backward(ddp, tiny.batch(step, rank, world_size))
    for w, wanted in brought.items():
        matrix = wanted.dim() == 2
        left = mean(memory["error"][w]) if matrix else torch.zeros_like(wanted)
        off.append((w.grad + left - wanted).abs().max().item())
        if matrix:
            rank_of.append(torch.linalg.matrix_rank(w.grad, rtol=1e-9).item())
            errors.append((left.norm() / wanted.norm()).item())
sent = torch.cat([p.grad.flatten() for p in ddp.parameters()]).tolist()
"""


def test_power_sgd_sends_matrices_of_rank_one_and_keeps_all_that_it_leaves_out(ranks):
    for cell in cells("def done(", "def power_sgd("):
        ranks.run(cell)
    ranks.run(SENT_AND_LEFT_OUT)
    assert all(max(off) < 1e-12 for off in ranks.pull("off"))
    assert all(set(found) == {1} for found in ranks.pull("rank_of"))
    assert all(min(errors) > 0.01 for errors in ranks.pull("errors"))
    first, *others = ranks.pull("sent")
    assert all(other == first for other in others)


def test_a_layer_that_only_one_rank_uses_leaves_that_rank_alone_in_its_backward_pass(ranks):
    (unused,) = cells("for users, unused in")
    with pytest.raises(CellError, match="rank 0 waits in backward"):
        ranks.run(unused)


def test_looking_for_unused_parameters_helps_also_where_only_one_rank_uses_a_layer(ranks):
    (unused,) = cells("for users, unused in")
    for told in ranks.run(unused.replace("([0], False)", "([0], True)")):
        assert "used by ranks [0], find_unused_parameters=True: step 1 done" in told
