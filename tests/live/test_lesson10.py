"""What lesson 10 says of its ways of training: beside one process, beside its program, beside PyTorch's own."""

from __future__ import annotations

import re

import pytest

import labkit
from labkit.content import exercises
from tests.notebooks import NOTEBOOKS, sources
from tests.scripts import printed

NEEDED = ("asynchronous_sgd", "replay_arrivals", "bounded_sgd", "local_sgd", "diloco_round", "balanced_gradient")

OTHER_WAYS = {
    "expected_slowest": [
        """
def expected_slowest(seconds, ranks):
    times = [time for mine in comms.all_gather(seconds.tolist()) for time in mine]
    longer = lambda t: sum(time > t for time in times) / len(times)
    steps = sorted({0.0, *times})
    return sum((b - a) * (1 - (1 - longer(a)) ** ranks) for a, b in zip(steps, steps[1:]))
"""
    ],
    "name_the_cause": [
        """
def name_the_cause(rows, compute, send, rest):
    everyone = comms.all_gather([x.sum().item() for x in (rows, compute, send, rest)])
    usual = [sorted(column)[(world_size - 1) // 2] for column in zip(*everyone)]
    lost, culprit, what = max((x[i] - usual[i], r, i) for r, x in enumerate(everyone) for i in (1, 2, 3))
    if what == 1:
        what = 0 if everyone[culprit][0] > 1.5 * usual[0] else 1
    return culprit, ["shards", "throttling", "cable", "logging"][what]
"""
    ],
    "asynchronous_sgd": [
        """
def asynchronous_sgd(weights, gradient, updates, lr, note):
    if rank == 0:
        push, left = torch.empty_like(weights), updates
        while left > 1 - world_size:
            worker = dist.irecv(push)
            worker.wait()
            worker = worker._source_rank()
            if left > 0:
                weights.sub_(push, alpha=lr)
                note(worker)
            dist.send(weights if left > 0 else torch.full_like(weights, float("nan")), worker)
            left -= 1
    else:
        pulled = weights.clone()
        while not torch.isnan(pulled).any():
            dist.isend(gradient(pulled), 0).wait()
            dist.irecv(pulled, 0).wait()
"""
    ],
    "replay_arrivals": [
        """
def replay_arrivals(order, weights, gradient, lr):
    history, staleness = [weights], []
    for update, worker in enumerate(order):
        before = [u for u in range(update) if order[u] == worker]
        version = before[-1] + 1 if before else 0
        history.append(history[-1] - lr * gradient(history[version], worker, len(before)))
        staleness.append(update - version)
    return history[-1], staleness
"""
    ],
    "local_sgd": [
        """
def local_sgd(weights, gradient, steps, every, lr):
    for first in range(0, steps, every):
        for step in range(first, min(first + every, steps)):
            weights -= lr * gradient(weights, step)
        weights.copy_(comms.all_reduce(weights) / world_size)
    return weights
"""
    ],
    "diloco_round": [
        """
def diloco_round(model, inner, losses, anchor, velocity, lr=0.7, momentum=0.9):
    for loss in losses:
        inner.zero_grad()
        loss(model).backward()
        inner.step()
    parameters = list(model.parameters())
    flat = torch.cat([(a - p.detach()).flatten() for p, a in zip(parameters, anchor)])
    dist.all_reduce(flat)
    parts = (flat / world_size).split([p.numel() for p in parameters])
    with torch.no_grad():
        for p, a, v, part in zip(parameters, anchor, velocity, parts):
            v *= momentum
            v += part.view_as(p)
            a.sub_(part.view_as(p) + momentum * v, alpha=lr)
            p.copy_(a)
"""
    ],
    "balanced_gradient": [
        """
def balanced_gradient(gradient, rows, seconds):
    speeds = [1 / s for s in comms.all_gather(seconds)]
    shares = [int(rows * speed / sum(speeds)) for speed in speeds]
    for r in range(rows - sum(shares)):
        shares[r] += 1
    first = sum(shares[:rank])
    return comms.all_reduce(gradient(first, first + shares[rank]) * shares[rank]) / rows
"""
    ],
    "bounded_sgd": [
        """
def bounded_sgd(weights, gradient, updates, lr, bound, note):
    if rank > 0:
        pulled = weights.clone()
        while not pulled.isnan().any():
            dist.send(gradient(pulled), dst=0)
            dist.recv(pulled, src=0)
        return
    push, steps, waits = torch.empty_like(weights), [0] * world_size, [False] * world_size
    for _ in range(updates):
        worker = dist.recv(push)
        weights -= lr * push
        note(worker)
        steps[worker], waits[worker] = steps[worker] + 1, True
        for other in range(world_size - 1, 0, -1):
            if waits[other] and all(steps[other] <= s + bound for s in steps[1:]):
                waits[other] = False
                dist.send(weights, dst=other)
    stop = torch.full_like(weights, torch.nan)
    for other in range(1, world_size):
        if waits[other]:
            dist.send(stop, dst=other)
    for _ in range(world_size - 1 - sum(waits)):
        dist.send(stop, dst=dist.recv(push))
"""
    ],
    "backup_sgd": [
        """
def backup_sgd(weights, gradient, steps, need, lr, note):
    told = torch.cat([torch.zeros_like(weights[:1]), weights])
    if rank > 0:
        while told[0] < steps:
            dist.send(torch.cat([told[:1], gradient(told[1:])]), dst=0)
            dist.recv(told, src=0)
        return
    push, counted, left = torch.empty_like(told), {}, world_size - 1
    while left:
        worker = dist.recv(push)
        if push[0] == told[0] < steps:
            note(worker)
            counted[worker] = push[1:].clone()
            if len(counted) < need:
                continue
            weights -= lr * torch.stack(list(counted.values())).mean(0)
            told[0] += 1
            told[1:] = weights
        else:
            counted[worker] = None
        answered = counted if all(g is not None for g in counted.values()) else [worker]
        for other in list(answered):
            dist.send(told, dst=other)
            left -= int(told[0] == steps)
            del counted[other]
"""
    ],
}


@pytest.mark.parametrize(("name", "source"), [(n, s) for n, sources in OTHER_WAYS.items() for s in sources])
def test_another_right_way_is_right(lab, name, source):
    lab.run(source)
    verdict = lab.check(name)
    assert verdict.state == "right", repr(verdict)


def test_the_checks_adamw_is_torchs(lab):
    """The check of diloco_round has one of its own, which imports nothing."""
    module = exercises.find("diloco_round").module
    lab.run(f"from labkit.rank import lessons; lessons.find({module!r}, 'diloco_round', globals())")
    lab.run("""
from workbook.on_ranks import AdamW
torch.manual_seed(0)
ours = [torch.nn.Parameter(torch.randn(3, 2, dtype=torch.float64)), torch.nn.Parameter(torch.randn(4).double())]
theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
pair = (AdamW(ours, lr=0.1), ours), (torch.optim.AdamW(theirs, lr=0.1), theirs)
for step in range(5):
    for optimizer, parameters in pair:
        optimizer.zero_grad()
        sum(((p - step) ** 2).sum() for p in parameters).backward()
        optimizer.step()
off = max((p - q).abs().max().item() for p, q in zip(ours, theirs))
""")
    assert max(lab.pull("off")) < 1e-12


def test_the_runs_sum_their_gradients(lab):
    lab.run("""
from workbook.tools.rank import stragglers

torch.manual_seed(rank)
x = torch.randn(10, dtype=torch.float64)
total = comms.all_reduce(x)
stragglers._ring(x, 0.0)
off = (x - total).abs().max().item()
""")
    assert max(lab.pull("off")) < 1e-12


# -- the lesson's cells ------------------------------------------------------------------------------------------------


def cells() -> list[str]:
    """What the lesson runs on the ranks for its six ways of training, without the exercises."""
    found = [s.removeprefix("%%px\n") for s in sources(NOTEBOOKS["10"]) if s.startswith("%%px\n")]
    (first,) = (i for i, source in enumerate(found) if source.startswith("import itertools"))
    (last,) = (i for i, source in enumerate(found) if source.startswith("SGD, AdamW"))
    own = [exercises.find(name).stub.removeprefix("%%px\n") for name in exercises.every()]
    return [source for source in found[first : last + 1] if source not in own]


@pytest.fixture(scope="module")
def trained(training):
    """Ranks that have run the lesson's cells; nobody waits, so that chance alone decides who comes first."""
    with labkit.start(4) as lab:
        lab.use(*NEEDED)
        for source in cells():
            lab.run(source)
            if "import alone, busy" in source:
                lab.run("def busy(rows, slow):\n    pass")
        yield lab


WAYS = ("sync", "balanced", "local", "diloco")


def test_what_does_not_depend_on_chance_has_one_processes_losses_and_gradients(trained):
    alone = {"sync": "ones[2]", "balanced": "ones[2]", "local": "ones[0]", "diloco": "ones[1]"}
    for way in WAYS:
        for off in trained.pull(f"({way}.weights - {alone[way]}).abs().max().item()"):
            assert off < 1e-5, way
    trained.run("""
mean = comms.all_reduce(gradient(fresh(), tiny.batch(0, rank, world_size))) / world_size
gap = (mean - gradient(fresh(), tiny.batch(0))).abs().max().item()
""")
    assert max(trained.pull("gap")) < 1e-6


@pytest.mark.slow
def test_the_program_prints_the_lessons_losses_and_its_replays_have_the_servers_bits(trained, tmp_path):
    lines = printed("sync_and_async.py", 4, tmp_path)
    said = {line.partition(":")[0]: line for line in lines}
    for name, way in (("synchronous", "sync"), ("local SGD", "local"), ("DiLoCo", "diloco")):
        assert f"loss {trained.pull(f'loss_of({way}.weights)')[0]:.4f}, one process" in said[name]
    for line in lines:
        ours, alone = re.findall(r"(?:loss|process) (\d\.\d{4})", line)
        off = float(re.findall(r"weights (\S+) off", line)[0])
        assert ours == alone
        assert off < 1e-5
        if "updates old" in line:
            assert off == 0


@pytest.mark.slow
def test_a_program_on_one_rank_has_no_server(tmp_path):
    lines = printed("sync_and_async.py", 1, tmp_path)
    assert [line.partition(":")[0] for line in lines] == ["synchronous", "local SGD", "DiLoCo"]


def test_an_asynchronous_run_is_its_replay_to_the_bit_and_as_stale_as_there_are_other_workers(trained):
    assert trained.pull("torch.equal(again, comms.broadcast(asynchronous.weights))") == [True] * 4
    counted = [late for mine in trained.pull("staleness") for late in mine]
    assert len(counted) == 120
    came = trained.pull("asynchronous.came")[0]
    assert sorted(set(came)) == [1, 2, 3]
    missed = sum(120 - 1 - max(i for i, w in enumerate(came) if w == worker) for worker in (1, 2, 3))
    assert sum(counted) == 3 * 120 - 120 - missed, "every update is missed by each other worker that still comes back"


def test_a_bound_is_kept(trained):
    came, steps = trained.pull("bounded.came")[0], [0, 0, 0, 0]
    for worker in came:
        steps[worker] += 1
        assert steps[worker] - min(steps[1:]) <= 3, "a step that was begun two ahead is finished three ahead"
    assert len(came) == 120


def test_pytorchs_averager_leaves_the_weights_of_local_sgd_with_as_many_collectives(trained):
    trained.run("""
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

unflat(fresh(), model.parameters())
averager = PeriodicModelAverager(period=10, warmup_steps=9)
for step in range(40):
    model.zero_grad()
    tiny.loss(model, tiny.batch(step, rank, world_size)).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
    averager.average_parameters(model.parameters())
theirs = flat(model.parameters()).detach()
""")
    theirs = sum(op.name == "all_reduce" for op in trained.last.timeline().record.ops[0])
    assert max(trained.pull("(theirs - local.weights).abs().max().item()")) < 1e-5
    trained.run("again = run(train_locally)")
    ours = sum(op.name == "all_reduce" for op in trained.last.timeline().record.ops[0])
    assert ours == theirs == 4


# -- four runs ---------------------------------------------------------------------------------------------------------

# A clock that only sleeping moves: what the runs wait for on purpose is all that takes time.
FAKED = """
from workbook.tools.rank import stragglers


class Clock:
    now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += max(0.0, seconds)


real, stragglers.time = stragglers.time, Clock()
try:
    runs = {name: stragglers.run(name) for name in stragglers.NAMES}
finally:
    stragglers.time = real
columns = ("rows", "compute", "send", "rest")
found = {n: name_the_cause(*(torch.tensor(r[c], dtype=torch.float64) for c in columns)) for n, r in runs.items()}
"""


@pytest.mark.parametrize("n", [2, 4])
def test_each_run_has_one_thing_wrong_on_one_rank_which_the_exercise_finds(n):
    with labkit.start(n) as lab:
        lab.use("name_the_cause")
        lab.run(FAKED)
        wanted = {"A": [1, "shards"], "B": [n - 1, "cable"], "C": [0, "logging"], "D": [n - 2, "throttling"]}
        assert lab.pull("found") == [wanted] * n
        assert [sum(rows) for rows in zip(*(run["A"]["rows"] for run in lab.pull("runs")), strict=True)] == [240] * 12
