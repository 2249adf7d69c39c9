"""Lesson 09 on live ranks: its checks take other right ways, and what its text says of DDP, of drift and of a crash."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import labkit
from labkit.floor.errors import CellError
from tests.notebooks import NOTEBOOKS, sources
from tests.scripts import printed

ROOT = Path(__file__).resolve().parent.parent.parent

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


def cells(*beginnings: str) -> list[str]:
    """The lesson's cells on ranks that begin so, in the lesson's order."""
    found = [source.removeprefix("%%px\n") for source in sources(NOTEBOOKS["09"])]
    chosen = [source for source in found if source.startswith(beginnings)]
    assert len(chosen) == len(beginnings)
    return chosen


@pytest.fixture(scope="module")
def ranks(training):
    """A lab of three ranks, among which a batch does not divide, with the workbook's functions."""
    with labkit.start(3) as lab:
        lab.use("data_parallel", "average_in_buckets", "overlapped", "distributed_mean")
        for cell in cells("import warnings\n", "class Noisy", "import io\n", "def train(path", "def save_plainly"):
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
