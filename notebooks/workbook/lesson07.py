"""Exercises for lesson 07: prices fitted and added up, buckets, a busbw from clocks, and a slow server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Least, exercise
from labkit.grading.inputs import Case
from labkit.theory.fit import fit
from labkit.theory.timing import busbw, size

if TYPE_CHECKING:
    from labkit.rank.seen import device, dist, torch, world_size


def _sweeps(n: int) -> list[Case]:
    """Sizes and times of a sweep: on the line, and a few per cent off it, whatever the size."""
    sizes = np.array([2.0**k for k in range(10, 25, 2)])
    rng = np.random.default_rng(7)
    noise = rng.uniform(-0.1, 0.1, size=len(sizes))

    def sweep(alpha: float, beta: float, off: Any, take: slice = slice(None)) -> Case:
        seconds = (alpha + beta * sizes) * (1 + off)
        about = f"{len(sizes[take])} sizes, α about {alpha * 1e6:g} µs and β about {beta * 1e9:g} ns/byte"
        return Case([(sizes[take], seconds[take])] * n, about)

    return [
        sweep(100e-6, 1e-9, 0, slice(0, 4)),
        sweep(100e-6, 1e-9, 0),
        sweep(50e-6, 0.5e-9, noise),
        sweep(20e-6, 2e-9, -noise),
        sweep(5e-6, 1e-10, 0, slice(0, 2)),
    ]


def _fitted(xs: Sequence[tuple[Any, Any]]) -> list[np.ndarray]:
    fits = [fit(sizes, seconds) for sizes, seconds in xs]
    return [np.array([f.alpha, f.beta]) for f in fits]


@exercise("Fit so that every size counts", _fitted, minutes=8, difficulty=2, inputs=_sweeps, tolerance=1e-6)
def fit_alpha_beta(sizes, seconds):
    """Return α and β of the line with the least relative error.

    `sizes` (bytes) and `seconds` are tensors of float64 from a sweep, the same on every rank. Fit the line t = α + β ·
    size so that the sum of the squared **relative** errors is least: 10 % off counts alike at 8 bytes and at a
    gigabyte. `solve(u, v)` solves any least-squares problem of the form α · u + β · v = 1 (one equation for each size,
    u and v tensors with one number for each size). Say what u and v have to be. Return a tensor of float64 with two
    elements, α in seconds and β in seconds a byte.
    Hint: Write the relative error of one size down: (α + β · size - t) / t. When is it zero?
    Hint: (α + β · size) / t should be 1. What stands beside α, and what beside β?
    Afterwards: By absolute error the largest message would decide alone, and α would come out at random, sometimes
    below zero.
    """

    def solve(u, v):  # the α and β with the least sum of squares of α u + β v - 1
        uu, uv, vv, su, sv = u @ u, u @ v, v @ v, u.sum(), v.sum()
        return torch.stack([su * vv - sv * uv, sv * uu - su * uv]) / (uu * vv - uv * uv)

    # yours
    return solve(1 / seconds, sizes / seconds)
    # end


def _jobs(n: int) -> list[Case]:
    """Bytes, ranks, α and β of a job: a different one for each rank."""
    asked = [
        (1e6, 4, 1e-5, 1e-9),
        (8.0, 1024, 1e-5, 1e-10),
        (1e9, 8, 5e-6, 4e-11),
        (1e6, 2, 2e-5, 1e-9),
        (3e7, 1000, 1e-5, 1e-10),
        (1e9, 100_000, 2e-6, 2e-11),
    ]
    return [Case([asked[(i + r) % len(asked)] for r in range(n)], f"from job {i + 1} on") for i in (0, 1, 2, 3)]


@exercise(
    "What the ring will take",
    lambda xs: [2 * (n - 1) * (alpha + beta * nbytes / n) for nbytes, n, alpha, beta in xs],
    minutes=5,
    inputs=_jobs,
    tolerance=1e-9,
)
def ring_time(nbytes, n, alpha, beta):
    """Return the seconds of a ring all-reduce of nbytes bytes a rank on n ranks.

    A message of m bytes takes alpha + beta · m seconds. A rank can send one and receive one at the same time. `n` ranks
    all-reduce `nbytes` bytes a rank by the ring that you built in lesson 06, in chunks; adding up costs nothing. Return
    the seconds that it takes, a Python float. Every rank is asked about a different job, and `n` is that job's, not
    yours.
    Hint: How many steps does the ring have, and how many bytes does a rank send in one of them?
    Hint: Two laps of n - 1 steps. In each step a rank sends one chunk, an n-th of the buffer.
    Afterwards: The bytes hardly depend on n, and the latency grows with it: 2 (n - 1) α + 2 (n - 1)/n · S β.
    """
    return 2 * (n - 1) * (alpha + beta * nbytes / n)


def _passes(n: int) -> list[Case]:
    """Bytes, seconds of the backward pass, price of a call and seconds a byte: a different job for each rank."""
    asked = [
        (100e6, 0.1, 0.001, 1e-10),
        (100e6, 0.1, 0.001, 2e-9),
        (14e9, 0.57, 0.0001, 4.92e-12),
        (14e9, 0.05, 0.0001, 4.92e-12),
        (1e6, 0.01, 0.01, 1e-10),
        (50e6, 0.2, 0.0005, 1.5e-9),
    ]
    return [Case([asked[(i + r) % len(asked)] for r in range(n)], f"from job {i + 1} on") for i in (0, 1, 2, 3)]


def _best(nbytes: float, backward: float, price: float, per_byte: float) -> int:
    def end(k: int) -> float:
        done = 0.0
        for i in range(1, k + 1):
            done = max(done, backward * i / k) + price + nbytes / k * per_byte
        return done

    return min(range(1, 65), key=end)


@exercise("How many buckets?", lambda xs: [_best(*x) for x in xs], minutes=12, difficulty=2, inputs=_passes)
def best_buckets(nbytes, backward, price, per_byte):
    """Return the number of buckets, 1 to 64, with which the last all-reduce ends first.

    A gradient of `nbytes` bytes becomes ready bit by bit, evenly over a backward pass of `backward` seconds. It is cut
    into k equal buckets, so bucket i of k is ready at the time backward · i / k. A bucket's all-reduce takes `price`
    seconds and `per_byte` seconds a byte. It starts as soon as the bucket is ready and the all-reduce of the bucket
    before it has ended. Return the k from 1 to 64 with which the **last** all-reduce ends first, an integer. Every rank
    is asked about a different job.
    Hint: Follow one k by hand: when is bucket 1 ready, and when has its all-reduce ended? And bucket 2?
    Hint: An all-reduce starts at the later one of two times: its bucket is ready, and the one before has ended.
    Hint: Keep `end`, the end of the last all-reduce so far, and go through the buckets. Then try every k.
    Afterwards: Few buckets hide little, and many pay the price of a call too often. If the network is slower than the
    backward pass, it never rests, and only the start of the first bucket and the price of the calls are left to save.
    DDP's bucket_cap_mb is this k.
    """
    ends = {}
    for k in range(1, 65):
        end = 0.0
        for i in range(1, k + 1):
            end = max(end, backward * i / k) + price + nbytes / k * per_byte
        ends[k] = end
    return min(ends, key=ends.get)


def _parts(n: int) -> list[Case]:
    """The tensor that this rank brings and this rank's seconds."""
    return [
        Case([(np.zeros(250, "float32"), 1e-6 * (r + 1)) for r in range(n)], "1,000 bytes; the last rank is slowest"),
        Case([(np.zeros(2**17), 0.02 / (r + 1)) for r in range(n)], "float64, 1 MiB; rank 0 is slowest"),
        Case([(np.zeros((30, 40), "int8"), 30e-6 + (r == 1) * 5e-6) for r in range(n)], "int8; rank 1 is slowest"),
    ]


@exercise(
    "What nccl-tests would print",
    lambda xs: [
        busbw("all_gather", len(xs), size("all_gather", len(xs), part.nbytes), max(t for _, t in xs)) for part, _ in xs
    ],
    minutes=8,
    difficulty=2,
    inputs=_parts,
    tolerance=1e-6,
    least=Least(rounds=lambda n: 1),
    picture=lambda: [(np.zeros(4, "float32"), 1e-9 * (r + 1)) for r in range(3)],
)
def busbw_of_all_gather(part, seconds):
    """Return the bus bandwidth of an all-gather in GB/s.

    Every rank brought a tensor like `part` to an all-gather. By **this** rank's clock it took `seconds`. Return the
    busbw that nccl-tests defines for it, in GB/s: a Python float, the same on every rank. As in lesson 05, the slowest
    rank's time counts.
    Hint: Four things to settle: whose time counts, how many bytes S has, the factor, and what a GB is.
    Hint: S of an all-gather is what every rank holds in the end, all parts. A part has `part.numel() *
    part.element_size()` bytes.
    Hint: `dist.all_reduce(t, op=dist.ReduceOp.MAX)` on a tensor of float64 finds the slowest rank's time.
    Afterwards: N cancels out: busbw is (N - 1) times the bytes of a part, divided by the time. That is what each rank
    has to receive.
    """
    slowest = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    size = part.numel() * part.element_size() * world_size
    return size / slowest.item() * (world_size - 1) / world_size / 1e9


RUNS = (  # nccl-tests issue 106; the names as they stand there
    "se02gn644,se02gn699 49.36",
    "se02gn632,se02gn641 88.36",
    "se02gn284,se02gn678 49.28",
    "se02gn641,se02gn644 49.30",
    "se02gn404,se02gn699 86.81",
)


def _logs(n: int) -> list[Case]:
    """The lines of each rank's runs, dealt out like cards."""
    chain = ("a,b 190.1", "b,c 95.2", "c,d 94.8", "d,e 95.5", "f,g 188.0")
    logs = [
        (RUNS, "a published log"),
        (("a1,a2 390.2", "a3,a4 371.5", "a1,a4 388.0", "a2,a3 365.1"), "all are sound"),
        (chain, "a slow run says nothing of a partner of a slow server"),
        (("n1,n2 48.9",), "one run, one rank has its line"),
    ]
    return [Case([(list(lines[r::n]),) for r in range(n)], about) for lines, about in logs]


def _slow(xs: Sequence[tuple[list[str]]]) -> list[list[list[str]]]:
    runs = [line.replace(",", " ").split() for (lines,) in xs for line in lines]
    best = max(float(busbw) for *_, busbw in runs)
    sound = {server for a, b, busbw in runs if float(busbw) >= 0.75 * best for server in (a, b)}
    bad = [{a, b} for a, b, busbw in runs if float(busbw) < 0.75 * best]
    must = {server for pair in bad if pair & sound for server in pair - sound}
    may = {server for pair in bad for server in pair} - sound - must
    return [[sorted(must), sorted(may)]] * len(xs)


@exercise(
    "Which server is slow?",
    _slow,
    minutes=12,
    difficulty=2,
    inputs=_logs,
    least=Least(rounds=lambda n: 1),
    picture=lambda: [(["A,B 90", "D,E 45"],), (["B,C 46"],), (["F,G 88"],)],
)
def slow_servers(lines):
    """Return the servers that must be slow, and those that may be.

    Servers were tested in pairs with `all_reduce_perf`. Each rank holds the `lines` of some of the runs: two names and
    the busbw that the two reached together, such as `se02gn641,se02gn644 49.30`. A run is slow if its busbw is below
    0.75 of the best one of **all** runs. One slow server makes every run slow that it takes part in, and nothing else
    does. Return a list of two sorted lists of names, the same on every rank: the servers that **must** be slow, and
    those that **may** be slow or sound. (The first case is a published log.)
    Hint: Everybody needs all lines: gather them as objects. Which servers are surely sound?
    Hint: Both servers of a fast run are sound. If one server of a slow run is sound, what about the other?
    Hint: If neither server of a slow run is known to be sound, you cannot tell: both may be slow, unless another run
    says more.
    Afterwards: In the published case an engineer of NVIDIA came to the same conclusion from the same five lines:
    server 644. Of 284 and 678 nobody can tell before each has been tested with a sound one (nccl-tests issue 106).
    """
    everyone = [None] * world_size
    dist.all_gather_object(everyone, lines)
    runs = [line.replace(",", " ").split() for lines in everyone for line in lines]
    limit = 0.75 * max(float(busbw) for *_, busbw in runs)
    sound = {server for a, b, busbw in runs if float(busbw) >= limit for server in (a, b)}
    bad = [{a, b} for a, b, busbw in runs if float(busbw) < limit]
    must = {server for pair in bad if pair & sound for server in pair - sound}
    may = {server for pair in bad for server in pair} - sound - must
    return [sorted(must), sorted(may)]
