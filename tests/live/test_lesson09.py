"""Lesson 09 on live ranks: its checks take other right ways, and what its text says of DDP, of drift and of overlap."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

import labkit
from tests.live.lesson_cells import beginning
from tests.scripts import printed

ROOT = Path(__file__).resolve().parent.parent.parent

cells = partial(beginning, "09")

OTHER_WAYS = {
    "data_parallel": [
        """
def data_parallel(model):
    for tensor in list(model.parameters()) + list(model.buffers()):
        tensor.data.copy_(comms.broadcast(tensor.detach(), src=0))
    for p in filter(lambda p: p.requires_grad, model.parameters()):
        p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad, op=dist.ReduceOp.AVG))
""",
        """
def data_parallel(model):
    def averaged(grad):
        return comms.all_reduce(grad, "mean")

    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    for p in model.parameters():
        if p.requires_grad:
            p.register_hook(averaged)
""",
    ],
    "average_in_buckets": [
        """
def average_in_buckets(grads, cap):
    sizes, bucket = [], []
    for i, grad in enumerate(grads):
        bucket.append(grad)
        held = sum(g.nbytes for g in bucket)
        if held >= cap or i == len(grads) - 1:
            dist.all_reduce_coalesced(bucket)
            for g in bucket:
                g /= world_size
            sizes.append(held)
            bucket = []
    return sizes
""",
    ],
    "overlapped": [
        """
def overlapped(buckets):
    number = {p: k for k, bucket in enumerate(buckets) for p in bucket}
    missing, left = [len(bucket) for bucket in buckets], []

    def ready(p):
        missing[number[p]] -= 1
        while len(left) < len(buckets) and not missing[len(left)]:
            left.append([dist.all_reduce(q.grad, async_op=True) for q in buckets[len(left)]])

    def finish():
        for k, (bucket, works) in enumerate(zip(buckets, left)):
            missing[k] = len(bucket)
            for p, work in zip(bucket, works):
                work.wait()
                p.grad /= world_size
        left.clear()

    for p in number:
        p.register_post_accumulate_grad_hook(ready)
    return finish
""",
    ],
    "accumulate": [
        """
def accumulate(ddp, batches, loss_of):
    import contextlib

    for i, batch in enumerate(batches):
        with contextlib.nullcontext() if i == len(batches) - 1 else ddp.no_sync():
            loss_of(ddp, batch).backward()
    for p in ddp.parameters():
        p.grad /= len(batches)
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
    """A lab of three ranks, among which a batch does not divide, with the workbook's functions."""
    with labkit.start(3) as lab:
        lab.use("data_parallel", "average_in_buckets", "overlapped")
        for cell in cells("from torch.nn.parallel import"):
            lab.run(cell)
        yield lab


def test_averaged_gradients_keep_different_copies_exactly_as_far_apart(ranks):
    ranks.use("average_gradients", "broadcast_model")
    (drift,) = cells("torch.manual_seed(0)\nmodel, one_weight")
    ranks.run(drift)
    first, *others = ranks.pull("one_weight")
    for other in others:
        apart = [a - b for a, b in zip(first, other, strict=True)]
        assert apart[19] != 0
        assert apart[20:40] == pytest.approx([apart[19]] * 20, abs=1e-6)
        assert apart[40:] == [0] * 20


BOTH_WAYS = """
torch.manual_seed(0)
alone = tiny.Transformer().double()
torch.manual_seed(rank)
hooked = tiny.Transformer().double()
data_parallel(hooked)
torch.manual_seed(0)
copy, packed = tiny.Transformer().double(), tiny.Transformer().double()
packed.load_state_dict(copy.state_dict())
layers = [copy.output, copy.norm, *reversed(copy.blocks), copy.position, copy.embedding]
finish = overlapped([list(layer.parameters()) for layer in layers])
ddp = DistributedDataParallel(tiny.Transformer().double())
ddp.module.load_state_dict(alone.state_dict())
off = []
for step in range(6):
    _, wanted = backward(alone, tiny.batch(step))
    share = tiny.batch(step, rank, world_size)
    _, a = backward(hooked, share)
    backward(copy, share)
    finish()
    b = torch.cat([p.grad.flatten() for p in copy.parameters()])
    backward(packed, share)
    average_in_buckets([p.grad for p in packed.parameters()], 2**14)
    c = torch.cat([p.grad.flatten() for p in packed.parameters()])
    _, d = backward(ddp, share)
    off += [((got - wanted).norm() / wanted.norm()).item() for got in (a, b, c, d)]
    for model in (alone, hooked, copy, packed, ddp):
        for p in model.parameters():
            p.data -= 0.5 * p.grad
"""


def test_by_hand_in_buckets_overlapped_and_by_ddp_the_gradients_are_those_of_one_process(ranks):
    ranks.run(BOTH_WAYS)
    assert all(max(off) < 1e-10 for off in ranks.pull("off"))


def test_ddp_has_one_bucket_first_and_from_the_second_step_on_a_small_one_in_front(ranks):
    ranks.run(
        "sizes = []\n"
        "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook\n"
        "def noting(sizes, bucket):\n"
        "    sizes.append(bucket.buffer().nbytes)\n"
        "    return allreduce_hook(None, bucket)\n"
        "ddp = DistributedDataParallel(tiny.Transformer(4, 256))\n"
        "ddp.register_comm_hook(sizes, noting)\n"
        "for step in range(2):\n"
        "    tiny.loss(ddp, tiny.batch(0, rank, world_size, size=4)).backward()"
    )
    total, first, rest = ranks.pull("sizes")[0]
    assert first + rest == total
    assert 2**20 <= first < 2 * 2**20 < rest


def test_a_finish_that_autograd_calls_when_the_pass_is_over_leaves_the_gradients_of_ddp(ranks):
    for cell in cells("def transformer(", "engine = "):
        ranks.run(cell)
    (ends,) = cells("ours, theirs = transformer()")
    for told in ranks.run(ends):
        assert told.count("less than 1e-6: True") == 2


def test_the_operators_that_torch_counts_are_six_times_parameters_times_tokens(ranks):
    ranks.run(
        "from torch.utils.flop_counter import FlopCounterMode\n"
        "model, rows = tiny.Transformer(4, 256).to(device), tiny.batch(0, size=8)\n"
        "with FlopCounterMode(display=False) as counted:\n"
        "    tiny.loss(model, rows).backward()\n"
        "share = counted.get_total_flops() / (6 * sum(p.numel() for p in model.parameters()) * rows[0].numel())"
    )
    assert ranks.pull("share")[0] == pytest.approx(1, abs=0.02)


def test_one_exchange_for_four_micro_batches_is_a_quarter_of_the_collectives_and_of_the_bytes(ranks, capsys):
    ranks.run("from torch.nn.parallel import DistributedDataParallel")
    ranks.use("accumulate")
    (source,) = cells('lab.run("""\nimport pickle')
    exec(source, {"lab": ranks})
    one, each = re.findall(r"collectives: (\d+), from the busiest rank: (\d+) kB", capsys.readouterr().out)
    assert (one[0], each[0]) == ("1", "4")
    assert int(each[1]) == pytest.approx(4 * int(one[1]), rel=0.05)


def test_the_script_prints_the_losses_of_the_lessons_cells(ranks, tmp_path):
    (compare,) = cells("for dtype, tolerance in")
    lines = ranks.run(compare)[0].splitlines()
    losses = [re.search(r"\d\.\d{6}", line)[0] for line in lines]
    assert len(losses) == 6, "one process, hooks and DDP, in two dtypes"
    assert sum(line.endswith("True") for line in lines) == 4
    by_script = printed("ddp_by_hand.py", ranks.n, tmp_path)
    ways = [line.split("  ")[0] for line in by_script]
    assert ways[:4] == ["one process", "hooks", "buckets, overlapped", "DDP"]
    each = [re.findall(r"\d\.\d{6}", line) for line in by_script[:4]]
    assert all(len(line) == 4 for line in each)
    assert [float(line[-1]) for line in each] == pytest.approx([float(losses[3])] * 4, abs=2e-6)
    assert [float(loss) for loss in losses] == pytest.approx([float(losses[0])] * 6, abs=2e-6)
