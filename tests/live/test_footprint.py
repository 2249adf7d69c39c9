"""`footprint` and `peak` on live ranks: what DDP, ZeRO and FSDP hold, against the formula and torch's own profiler."""

from __future__ import annotations

import pytest

from labkit import LabError

N = 3  # ranks of `lab`
SIZE, TENSORS = 28_068, 30  # the parameters of tiny.Transformer()
PSI = 4 * SIZE
SETUP = """
from torch.nn.parallel import DistributedDataParallel
from time import sleep
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from labkit.rank import frames, gloo

class Patient(TorchDispatchMode):
    "Lets others let go of tensors before this thread, which alone is profiled: Gloo's, and who looks at its frames."
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        frames.looking.release()
        sleep(0.0005)
        while gloo.at_work():
            sleep(0.0005)
        frames.looking.acquire()
        return out

def train(model, optimizer, step):
    loss = tiny.loss(model, tiny.batch(step, rank, world_size, size=24))
    loss.backward()
    optimizer.step()

def counted(model, optimizer, steps=2):
    "What is held before training and after a step with its gradients, and the peak of each step."
    held, peaks = [footprint(model, optimizer)], []
    for step in range(steps):
        with peak() as p:
            train(model, optimizer, step)
        held.append(footprint(model, optimizer))
        optimizer.zero_grad()
        peaks.append(p.bytes)
    return held, peaks

def profiled(model, optimizer):
    "The most bytes that torch's allocator had given away at once in a step, as its profiler has it, outside of calls."
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run, frames.looking, Patient():
        train(model, optimizer, 7)
    optimizer.zero_grad()
    events = run.profiler.kineto_results.events()
    calls = [(e.start_ns(), e.end_ns()) for e in events if e.name().startswith(("c10d::", "gloo:"))]
    now = most = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        if not any(start <= event.start_ns() <= end for start, end in calls):
            now += event.nbytes()
        most = max(most, now)
    return most

torch.manual_seed(0)
model = tiny.Transformer()
"""
DDP = "whole = DistributedDataParallel(model)\nadam = torch.optim.Adam(whole.parameters())\n"
SHARDED = """
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (world_size,))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
whole = fully_shard(model, mesh=mesh)
adam = torch.optim.Adam(whole.parameters())
"""


def ceil(shape: tuple[int, ...]) -> int:
    """The numbers that each rank holds of a tensor that fully_shard has split by its rows, padding with them."""
    rows, *rest = shape
    size = -(-rows // N)
    for length in rest:
        size *= length
    return size


def test_ddp_holds_sixteen_bytes_a_parameter_on_every_rank(lab):
    lab.run(f"{SETUP}{DDP}held, peaks = counted(whole, adam)")
    for before, *after in lab.pull("held"):
        assert before == {"weights": PSI, "gradients": 0, "optimizer": 0}
        assert after == [{"weights": PSI, "gradients": PSI, "optimizer": 2 * PSI + 4 * TENSORS}] * 2


def test_zero_redundancy_optimizer_holds_its_own_part_of_the_state(lab):
    lab.run(
        f"{SETUP}{DDP}"
        "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
        "zero = ZeroRedundancyOptimizer(whole.parameters(), torch.optim.Adam)\n"
        "held, peaks = counted(whole, zero)\n"
        "mine = sum(p.numel() for group in zero.optim.param_groups for p in group['params'])\n"
        "tensors = sum(len(group['params']) for group in zero.optim.param_groups)"
    )
    held, mine, tensors = (lab.pull(name) for name in ("held", "mine", "tensors"))
    assert (sum(mine), sum(tensors)) == (SIZE, TENSORS)
    for (_, *after), numbers, counters in zip(held, mine, tensors, strict=True):
        assert after == [{"weights": PSI, "gradients": PSI, "optimizer": 8 * numbers + 4 * counters}] * 2
        assert numbers == pytest.approx(SIZE / N, rel=0.1)


def test_fully_shard_holds_its_own_part_of_everything(lab):
    lab.run(
        f"{SETUP}shapes = [tuple(p.shape) for p in model.parameters()]\n{SHARDED}held, peaks = counted(whole, adam)"
    )
    shard = 4 * sum(map(ceil, lab.pull("[list(s) for s in shapes]")[0]))
    held = lab.pull("held")
    assert PSI / N <= shard <= 1.1 * PSI / N
    for before, *after in held:
        assert before == {"weights": shard, "gradients": 0, "optimizer": 0}
        for mine in after:
            assert mine["weights"] == shard
            assert PSI / N * 0.9 <= mine["gradients"] <= shard
            assert mine["optimizer"] <= 2 * shard + 4 * TENSORS
    for step in (1, 2):
        assert sum(mine[step]["optimizer"] for mine in held) == 2 * PSI + 4 * TENSORS * N


def test_the_whole_weights_count_while_fully_shard_has_them(lab):
    lab.run(
        f"{SETUP}{SHARDED}"
        "sharded = footprint(whole)\n"
        "whole.unshard()\n"
        "for block in model.blocks: block.unshard()\n"
        "gathered, known = footprint(whole), footprint(whole, adam)\n"
        "whole.reshard()\n"
        "for block in model.blocks: block.reshard()\n"
        "again = footprint(whole)"
    )
    for name in ("gathered", "known"):
        for before, after in zip(lab.pull("sharded"), lab.pull(name), strict=True):
            padding = after["weights"] - before["weights"] - PSI
            assert 0 <= padding <= 0.1 * PSI
    assert lab.pull("again") == lab.pull("sharded")


def test_the_peak_of_a_step_with_ddp_is_the_one_that_torchs_own_profiler_finds(lab):
    lab.run(f"{SETUP}{DDP}held, peaks = counted(whole, adam, steps=3)\nfound = profiled(whole, adam)")
    assert [peaks[-1] for peaks in lab.pull("peaks")] == lab.pull("found")


def test_the_peak_of_a_step_with_fully_shard_is_the_profilers_once_gloo_has_let_go(lab):
    """Gloo's threads keep a layer's gathered weights a little longer than torch needs them; `peak` waits for that."""
    lab.run(f"{SETUP}{SHARDED}held, peaks = counted(whole, adam, steps=3)\nfound = profiled(whole, adam)")
    for peaks, found in zip(lab.pull("peaks"), lab.pull("found"), strict=True):
        assert peaks[1] == peaks[2], "the first step makes the optimizer's state as well"
        assert peaks[2] == found
    assert len({peaks[2] for peaks in lab.pull("peaks")}) == 1


def test_ddps_buckets_count_where_they_are_made(lab):
    lab.run(f"{SETUP}with peak() as p:\n    whole = DistributedDataParallel(model)\nmade = p.bytes")
    assert lab.pull("made") == [PSI] * N
    lab.run("adam = torch.optim.Adam(whole.parameters())\nheld, peaks = counted(whole, adam, steps=3)")
    for peaks in lab.pull("peaks"):
        assert peaks[1] - peaks[2] == PSI, "they are made anew before the second step, and none is in the third"


def test_both_are_on_every_rank_and_come_back(lab):
    lab.run("footprint = peak = None")
    lab.run("with peak() as p:\n    y = torch.ones(100)\nheld = footprint([y])")
    assert lab.pull("[p.bytes, held['weights']]") == [[400, 400]] * N


def test_bars_are_drawn_of_what_the_ranks_hold(lab):
    lab.run("held = {'weights': 4096 * (rank + 1), 'gradients': 0}")
    bars = lab.bars("held", formula={"held": [4096, 8192, 12288]})
    assert bars.totals == {"held": [4096, 8192, 12288]}
    assert "rank 2 │ 12 KiB: weights 12 KiB" in repr(bars)
    lab.run("if rank == 1: del held")
    with pytest.raises(LabError, match=r"rank 1: NameError.*Make 'held' on every rank in a %%px cell first"):
        lab.bars("held")
    lab.run("held = [1, 2]")
    with pytest.raises(LabError, match="'held' on rank 0 is a list, not a dict"):
        lab.bars("held")
    with pytest.raises(LabError, match="Say in quotes what to draw"):
        lab.bars({"weights": 1})


def test_a_histogram_is_drawn_of_the_ranks_that_have_the_list(lab):
    lab.run("if rank: staleness = [0, rank, rank]")
    counted = lab.histogram("staleness")
    assert counted.counts == {"staleness": {1: {0: 1, 1: 2}, 2: {0: 1, 2: 2}}}
    assert lab.histogram("torch.tensor([3, 3])").largest == {"torch.tensor([3, 3])": dict.fromkeys(range(N), 3)}
    with pytest.raises(LabError, match="ranks 0–2: NameError"):
        lab.histogram("nowhere")
    with pytest.raises(LabError, match="Say in quotes which numbers to count"):
        lab.histogram()
