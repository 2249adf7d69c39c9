"""A backward pass on a thread of autograd's own, as on a GPU: all that is told of it is what a plain run tells."""

from __future__ import annotations

from pathlib import Path

import pytest

import labkit
from labkit import CellError, StuckError

MODEL = (
    "torch.manual_seed(0)\nmodel = tiny.Transformer(2, 32)\nbatch = tiny.batch(0, rank, world_size, 32)\n"
    "from torch.nn.parallel import DistributedDataParallel\n"
    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
)
STEP = """\
def train():
    loss.backward()
with peak() as most, span.layers(model), span("step"):
    loss = tiny.loss(model, batch)
    with span("backward"):
        train()
"""
FRAMES = pytest.mark.parametrize("frames", [0, 1], ids=["no frame below", "one frame below"])


@pytest.fixture(scope="module")
def lab():
    with labkit.start(2, timeout=3) as lab:
        lab.run(f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport autograd_thread")
        yield lab


def moved(lab, frames):
    lab.run(f"autograd_thread.move({frames})")


def told(lab, before, cell=STEP):
    """What is known of a cell's calls and spans on each rank, but for times, and what it held at most."""
    lab.run(before)
    lab.run(cell)
    record = lab.last.timeline().record
    calls = [
        [(op.op, op.kind, op.line, op.function, op.nth, op.bytes, op.shape, op.asynchronous, op.witnessed, op.error,
          op.waited and op.waited[2], bool(op.waited or op.left)) for op in mine]
        for mine in record.ops
    ]  # fmt: skip
    spans = [[(span.name, span.of, span.left is not None) for span in mine] for mine in record.spans]
    stood = [len(log.stood) for log in record.logs]
    mine = "[getattr(p.grad, '_local_tensor', p.grad).tolist() for p in model.parameters() if p.grad is not None]"
    return calls, spans, stood, record.notes, lab.pull("most.bytes"), lab.pull(mine)


HOOKED = {
    "hooks of a learner's": MODEL + (
        "def averaged(gradient):\n    dist.all_reduce(gradient)\n    return gradient / world_size\n"
        "for p in model.parameters(): p.register_hook(averaged)\n"
    ),
    "torch's function as a hook": MODEL + (
        "for p in model.parameters(): p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))\n"
        "next(model.parameters()).register_hook(dist.all_reduce)\n"
    ),
    "comms within a hook": MODEL + "for p in model.parameters(): p.register_hook(comms.all_reduce)\n",
    "objects within a hook": MODEL + (
        "for p in [*model.parameters()][:2]: p.register_hook(lambda g: dist.broadcast_object_list([len(g)], src=0))\n"
    ),
    "DDP's comm hook": MODEL + (
        "model = DistributedDataParallel(model, bucket_cap_mb=0.02)\n"
        "model.register_comm_hook(None, default_hooks.allreduce_hook)\n"
        "for _ in range(2): tiny.loss(model, batch).backward()\nmodel.zero_grad()\n"
    ),
    "DDP's own buckets": MODEL + (
        "model = DistributedDataParallel(model, bucket_cap_mb=0.02)\n"
        "for _ in range(2): tiny.loss(model, batch).backward()\nmodel.zero_grad()\n"
    ),
    "FSDP": MODEL + (
        "from torch.distributed.fsdp import fully_shard\n"
        "for block in model.blocks: fully_shard(block)\nfully_shard(model)\n"
        "tiny.loss(model, batch).backward()\nmodel.zero_grad()\n"
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=HOOKED)
def plainly(request, lab):
    """What a cell is told to do that autograd works for on the main thread, and what comes before it."""
    moved(lab, None)
    return HOOKED[request.param], told(lab, HOOKED[request.param])


@FRAMES
def test_a_cell_is_told_the_same_wherever_autograd_runs_its_hooks(lab, plainly, frames):
    before, plain = plainly
    moved(lab, frames)
    assert told(lab, before) == plain
    calls, spans, stood, _, most, _ = plain
    assert all({line for _, _, line, *_ in mine} in ({6}, {4, 6}) for mine in calls), (
        "FSDP calls in the forward pass, too"
    )
    assert all({"forward", "backward", ""} == {of for _, of, _ in mine} for mine in spans)
    assert stood == [1, 1]
    assert min(most) > 0


MISMATCH = """\
w = torch.ones(3, requires_grad=True)
def averaged(g):
    dist.all_reduce(g, dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)
w.register_hook(averaged)
(2 * w).sum().backward()
"""


def said(lab, code, error):
    with pytest.raises(error) as caught:
        lab.run(code)
    return str(caught.value)


@FRAMES
def test_a_mismatch_in_a_hook_is_refused_with_its_line(lab, frames):
    moved(lab, frames)
    assert said(lab, MISMATCH, CellError) == (
        "Ranks disagree on the reduction: rank 0 calls all_reduce(SUM, float32[3]) (line 3 of averaged, called in "
        "line 5); rank 1 calls all_reduce(MAX, float32[3]) (line 3 of averaged, called in line 5). "
        "Make the same call with the same arguments on every rank."
    )


@FRAMES
def test_groups_that_differ_in_a_hook_are_refused_with_their_line(lab, frames):
    moved(lab, frames)
    code = "w = torch.ones(3, requires_grad=True)\nw.register_hook(lambda g: dist.new_group([rank]) and None)\n"
    assert "(line 3)" in said(lab, code + "(2 * w).sum().backward()", CellError)


@FRAMES
def test_a_rank_that_waits_in_a_hook_is_told_with_the_call_and_its_line(lab, frames):
    moved(lab, frames)
    code = MISMATCH.replace("dist.all_reduce", "if rank: dist.all_reduce")
    moved(lab, None)
    plain = said(lab, code, StuckError)
    moved(lab, frames)
    assert said(lab, code, StuckError) == plain
    assert "rank 1 waits in all_reduce (line 3 of averaged, called in line 5)" in plain


def test_what_timed_measures_is_not_recorded_whoever_calls_it(lab):
    moved(lab, 0)
    lab.run(
        "from torch.distributed import all_reduce\nw = torch.ones(3, requires_grad=True)\n"
        "def averaged(g):\n    all_reduce(g)\nhandle = w.register_hook(averaged)"
    )
    lab.run("timed(lambda: (2 * w).sum().backward(), repeat=2)\ndist.barrier()")
    assert [[op.op for op in mine] for mine in lab.last.timeline().record.ops] == [["barrier"]] * 2


def test_a_hook_that_writes_a_file_is_not_called_again_for_a_picture(lab, tmp_path):
    lab.run(f"x, folder = torch.arange(2.) + rank, {str(tmp_path)!r}")
    code = (
        "def noted(g):\n    open(f'{folder}/{rank}', 'a').write('once ')\n"
        "w = torch.ones(2, requires_grad=True)\nw.register_hook(noted)\n(2 * w).sum().backward()\ndist.all_reduce(x)"
    )
    moved(lab, 0)
    flow = lab.flow(code, "x")
    assert [(tmp_path / str(r)).read_text() for r in range(2)] == ["once "] * 2
    assert "the cell changes files or reaches other programs, and that is not done again" in flow.why


def test_a_hook_without_end_is_broken_off_and_the_rank_keeps_its_variables(lab):
    code = MISMATCH.replace("    dist.all_reduce", "    while not rank: pass\n    dist.all_reduce")
    for frames in (None, 0):
        moved(lab, frames)
        lab.run("keep = 100 + rank")
        assert said(lab, code, StuckError) == (
            "rank 0 went on computing (line 6, in averaged, its line 3), while rank 1 waits in all_reduce (line 4 of "
            "averaged, called in line 6)"
        )
        assert lab.pull("keep") == [100, 101]
    lab.run("w = torch.ones(3, requires_grad=True)\nhandle = w.register_hook(lambda g: dist.all_reduce(g))\n"
            "(2 * w).sum().backward()")  # fmt: skip
    assert lab.pull("w.grad.tolist()") == [[4.0] * 3] * 2
