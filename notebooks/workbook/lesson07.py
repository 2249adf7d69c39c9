"""Lesson 07: prices on these ranks and on paper, what benchmarks print, buckets, and a slow server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.grading.exercise import Least, exercise
from labkit.grading.inputs import Case
from labkit.grading.prediction import ask
from workbook.tools.sweep.fit import fit
from workbook.tools.timing import busbw, size

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, torch, world_size


def _sweeps(n: int) -> list[Case]:
    """Make sizes and times of a sweep: on the line, and a few per cent off it, whatever the size."""
    sizes = np.array([2.0**k for k in range(10, 25, 2)])
    noise = np.random.default_rng(7).uniform(-0.1, 0.1, size=len(sizes))

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


def _one_beside_alpha(out, sizes, seconds):
    # Whatever stands beside β, α = 1 and β = 0 then meet every equation.
    slip = isinstance(out, torch.Tensor) and out.numel() == 2 and abs(float(out.flatten()[0]) - 1) < 1e-6
    assert not slip, (
        "α is 1, since 1 stands beside it. Divide t = α + β · size by something that makes the left side 1: "
        "u and v are then what stands beside α and beside β"
    )
    return out


@exercise(
    "Fit so that every size counts",
    lambda xs: [np.array([found.alpha, found.beta]) for found in (fit(*x) for x in xs)],
    minutes=8,
    difficulty=2,
    inputs=_sweeps,
    tolerance=1e-6,
    collect=_one_beside_alpha,
)
def fit_alpha_beta(sizes, seconds):
    """Return α and β of the line with the least relative error.

    `sizes` (bytes) and `seconds` are tensors of float64 from a sweep, the same on every rank: four of each in the
    picture. Fit the line t = α + β · size so that the sum of the squared **relative** errors is least: an error of 10 %
    counts the same at 8 bytes as at a gigabyte. `solve(u, v)` solves any least-squares problem of the form α · u + β ·
    v = 1 (one equation for each size, u and v tensors with one number for each size). Decide what u and v have to be.
    Return a tensor of float64 with two elements, α in seconds and β in seconds per byte.
    Hint: Write the relative error of one size down: (α + β · size - t) / t. When is it zero?
    Hint: (α + β · size) / t should be 1. What stands beside α, and what beside β?
    Afterwards: By absolute error the largest message alone would decide, and α would come out at random, sometimes
    below zero.
    """

    def solve(u, v):  # the α and β with the least sum of squares of α u + β v - 1
        uu, uv, vv, su, sv = u @ u, u @ v, v @ v, u.sum(), v.sum()
        return torch.stack([su * vv - sv * uv, sv * uu - su * uv]) / (uu * vv - uv * uv)

    # yours
    return solve(1 / seconds, sizes / seconds)
    # end


def _dealt(*jobs: tuple[float, ...]) -> Callable[[int], list[Case]]:
    """Deal jobs out, a different one to each rank, four times."""
    return lambda n: [Case([jobs[(i + r) % len(jobs)] for r in range(n)], f"from job {i + 1} on") for i in range(4)]


@exercise(
    "What the ring will take",
    lambda xs: [2 * (n - 1) * (alpha + beta * nbytes / n) for nbytes, n, alpha, beta in xs],
    minutes=5,
    inputs=_dealt(
        (1e6, 4, 1e-5, 1e-9),
        (8.0, 1024, 1e-5, 1e-10),
        (1e9, 8, 5e-6, 4e-11),
        (1e6, 2, 2e-5, 1e-9),
        (3e7, 1000, 1e-5, 1e-10),
        (1e9, 100_000, 2e-6, 2e-11),
    ),
    tolerance=1e-9,
)
def ring_time(nbytes, n, alpha, beta):
    """Return the seconds of a ring all-reduce of nbytes bytes per rank on n ranks.

    A message of m bytes takes alpha + beta · m seconds. A rank can send one and receive one at the same time. `n` ranks
    all-reduce `nbytes` bytes per rank by the ring that you built in lesson 06, in chunks; adding up costs nothing.
    Return the seconds that it takes, a Python float. Every rank is asked about a different job, and `n` is that job's,
    not your lab's. The tiles in the picture are the four arguments, in their order.
    Hint: How many steps does the ring have, and how many bytes does a rank send in one of them?
    Hint: Two laps of n - 1 steps. In each step a rank sends one chunk, an n-th of the buffer.
    Afterwards: The bytes hardly depend on n, and the latency grows with it: 2 (n - 1) α + 2 (n - 1)/n · S β.
    """
    return 2 * (n - 1) * (alpha + beta * nbytes / n)


@exercise(
    "How many buckets?",
    lambda xs: [best_buckets(*x) for x in xs],
    minutes=12,
    difficulty=2,
    inputs=_dealt(
        (100e6, 0.1, 0.001, 1e-10),
        (100e6, 0.1, 0.001, 2e-9),
        (14e9, 0.57, 0.0001, 4.92e-12),
        (14e9, 0.05, 0.0001, 4.92e-12),
        (1e6, 0.01, 0.01, 1e-10),
        (50e6, 0.2, 0.0005, 1.5e-9),
    ),
)
def best_buckets(nbytes, backward, price, per_byte):
    """Return the number of buckets, 1 to 64, with which the last all-reduce ends first.

    A gradient of `nbytes` bytes becomes ready bit by bit, evenly over a backward pass of `backward` seconds. It is cut
    into k equal buckets, so bucket i of k is ready at the time backward · i / k. A bucket's all-reduce takes `price`
    seconds and `per_byte` seconds per byte. It starts as soon as the bucket is ready and the all-reduce of the bucket
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
    """Make the tensor that each rank brings, and its seconds."""
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
    tolerance=1e-6,  # the slowest time may travel in float32
    least=Least(rounds=lambda n: 1),
    picture=lambda: [(np.zeros(4, "float32"), 1e-9 * (r + 1)) for r in range(3)],
)
def busbw_of_all_gather(part, seconds):
    """Return the bus bandwidth of an all-gather in GB/s.

    Every rank brought a tensor like `part` to an all-gather. By **this** rank's clock it took `seconds`. Return the
    busbw that nccl-tests defines for it, in GB/s: a Python float, the same on every rank. As in lesson 05, the slowest
    rank's time counts.
    Hint: Decide four things: whose time counts, how many bytes S has, the factor, and what a GB is.
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


CHAIN = ("a,b 190.1", "b,c 95.2", "c,d 94.8", "d,e 95.5", "f,g 188.0")
LOGS = {
    "a published log": (  # nccl-tests issue 106; the names as they stand there
        "se02gn644,se02gn699 49.36",
        "se02gn632,se02gn641 88.36",
        "se02gn284,se02gn678 49.28",
        "se02gn641,se02gn644 49.30",
        "se02gn404,se02gn699 86.81",
    ),
    "all are sound": ("a1,a2 390.2", "a3,a4 371.5", "a1,a4 388.0", "a2,a3 365.1"),
    "a slow run says nothing of a partner of a slow server": CHAIN,
    "one run, one rank has its line": ("n1,n2 48.9",),
}


def _slow(xs: Sequence[tuple[list[str]]]) -> list[list[list[str]]]:
    runs = [line.replace(",", " ").split() for (lines,) in xs for line in lines]
    limit = 0.75 * max(float(busbw) for *_, busbw in runs)
    sound = {server for a, b, busbw in runs if float(busbw) >= limit for server in (a, b)}
    bad = [{a, b} for a, b, busbw in runs if float(busbw) < limit]
    must = {server for pair in bad if pair & sound for server in pair - sound}
    may = {server for pair in bad for server in pair} - sound - must
    return [[sorted(must), sorted(may)]] * len(xs)


@exercise(
    "Which server is slow?",
    _slow,
    minutes=12,
    difficulty=2,
    inputs=lambda n: [Case([(list(lines[r::n]),) for r in range(n)], about) for about, lines in LOGS.items()],
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
    Hint: Every rank needs all lines: gather them as objects. Which servers are surely sound?
    Hint: Both servers of a fast run are sound. If one server of a slow run is sound, what about the other?
    Hint: If neither server of a slow run is known to be sound, you cannot tell: both may be slow, unless another run
    says more.
    Afterwards: In the published case an engineer of NVIDIA came to the same conclusion from the same five lines:
    server 644. Whether 284 or 678 is slow stays open until each has been tested with a sound one (nccl-tests issue
    106).
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


tiny_on_many_gpus = ask("""
The tiny model's gradients are 5 tensors, 49 KiB in all. Now 16 to 64 GPUs in several servers all-reduce them, one
tensor after the other. Each GPU can send up to 50 GB/s to another server. The five calls together take about …
( ) 1 µs
    > This would be true if only bytes cost time: 49 KiB at 50 GB/s take 1 µs. But each of the five calls
    first has to get a message from GPU to GPU, whatever its size.
( ) 20 µs
    > This would be true if a message between two servers were all that is needed. The sum has to pass through GPU
    after GPU and through several servers, and then it has to come back.
(x) some tenths of a millisecond
( ) 50 ms
    > This would be true of 64 ranks on two cores. GPUs and their network start a call much faster than Gloo over
    sockets does.
Why: **Some tenths of a millisecond.** In the four tables above, an all-reduce of 8 KiB takes 32 to 169 µs on 16 to 64
GPUs in several servers, and five of them take five times as long.

The bytes alone would need about 2 µs. For the large model it is the other way round: its bytes need tens of
milliseconds, beside which the price of a call is negligible. This lesson is about what lies between the two.
""")

thousand_times_the_bytes = ask("""
A message grows from 64 bytes to 64 KiB, a thousand times. Its time on these ranks grows …
( ) about a thousand times
    > This would be true if each byte had its price and the message itself cost nothing.
( ) ten to a hundred times
    > This would be true if getting under way cost as much as a few thousand bytes. It costs more than that.
(x) less than ten times
Why: **Less than ten times.** In the left picture the dots are nearly level on the left: there a message costs what it
takes to get under way, whatever it carries. Further to the right its time rises with the bytes. (On a busy machine the
dots jump about.)
""")

algbw_of_a_ring = ask("""
A perfect ring of 1,024 ranks: every link carries 25 GB/s in each direction, and latency is zero. It all-reduces S = 1
GB per rank. What is S divided by the time?
= 12.5 GB/s
( ) 25
    > 25 GB/s is what each link carries. But a rank has to send nearly 2 S, not S: once round the ring to add up, and
    once more to hand out the sums.
( ) 50
    > 50 GB/s adds up both directions of a link. A rank sends in one direction and receives the same amount from the
    other neighbour, so only 25 GB/s of it is sending.
( ) 0.0244140625
    > This would be true if all ranks shared one link. Each has a link of its own, and all links work at the same
    time.
Why: **12.5 GB/s**, half of what the links do. Each rank sends 2 S (N - 1) / N = 1.998 GB: nearly S to add everything
up, and nearly S to hand the sums out. At 25 GB/s that takes 79.9 ms, and 1 GB / 79.9 ms = 12.51 GB/s. While a rank
sends, it also receives as much: the other direction of its links is busy, too.
""")

busbw_of_gloos_reduce_scatter = ask("""
In lesson 04 you saw that Gloo's reduce-scatter sends as many bytes as its all-reduce. `lab.sweep` times both for the
same S, 8 MiB, with the backend of this lab. The busbw of the reduce-scatter is …
(x) about half of the all-reduce's, or less
( ) about the same
    > This would be true if busbw were measured on the links. It is calculated from S and the time, with the bytes
    that a *good* reduce-scatter needs.
( ) about twice the all-reduce's: it moves half of the bytes
    > This would be true if it moved them in a quarter of the time. By the definition half of the bytes count, and the
    time is at least the same.
Why: **About half**, or even less. (On a busy machine one measurement can say anything: repeat it.) Gloo runs an
all-reduce under its reduce-scatter, and then throws a part of the result away. So the reduce-scatter is not faster. But
its factor is half of an all-reduce's, and so is its busbw: busbw measures what was *needed*, not what was *sent*.
Elsewhere: **With NCCL** the two should be about the same: it has a true reduce-scatter, which sends half of an
all-reduce's bytes in half of its steps. (From its source, not run.)
On NCCL: about the same
( ) about half of the all-reduce's, or less
    > This is true of Gloo, which sends twice what a reduce-scatter needs. NCCL sends what it needs.
( ) about twice the all-reduce's: it moves half of the bytes
    > This would be true if it moved them in a quarter of the time. By the definition half of the bytes count, and it
    takes half of the time.
Why: **About the same**, as far as the source tells: NCCL has a true reduce-scatter, with half of an all-reduce's bytes
and half of its steps, so half of the time, and the factor of a reduce-scatter is half, too. What your ranks did is
printed above; one measurement can be far off, above all on ranks that share a GPU. Like this, busbw lets you compare
*different* operations: it is the speed of the links while they carry nothing superfluous.
Elsewhere: **With Gloo**, on CPUs, it is about half or less. Gloo runs an all-reduce under its reduce-scatter, so it
takes as long, and only half of what it sends was needed. busbw counts what was *needed*, not what was *sent*.
""")

faster_than_the_link = ask("""
Eight H200s all-reduce 16 GiB at a busbw of 482 GB/s (published). A GPU's links carry 450 GB/s in each direction. How
can that be?
( ) busbw adds up both directions
    > This would be true if the factor 2 (N - 1) / N counted sending and receiving. It counts what a rank *sends*, in
    two laps round the ring.
( ) the clock stops too early: a GPU call returns before it is done
    > This would be a mistake of the benchmark, and nccl-tests does not make it: it waits for the GPU.
(x) fewer bytes cross a link than busbw counts
( ) GB and GiB: 450 GiB/s are 483 GB/s
    > A tempting coincidence! Data sheets count in 10⁹ bytes, and so does nccl-tests.
Why: **Fewer bytes cross the link.** The switch between these GPUs can add up by itself (NCCL calls it NVLS). GPUs no
longer hand sums on from neighbour to neighbour. Each GPU sends its S to the switch. It gets the sum of one N-th back,
and sends this N-th to the switch once more, which copies it to all GPUs. So a GPU sends S (1 + 1/N) and not 2 S (N - 1)
/ N (nccl issue 2140 counts the same way). With N = 8 and an algbw of 275.6 GB/s, 310 GB/s leave a GPU. The 450 are not
exceeded. They are not even reached.
""")

ring_on_nvlink = ask("""
The data sheet of the H100 says: NVLink, 900 GB/s. Eight of them all-reduce by a ring, in one direction round, and the
switch adds nothing up. Which busbw can they not exceed?
= 450 GB/s
( ) 900
    > 900 GB/s are both directions added up, as data sheets of NVLink do. A rank that sends 450 GB/s and receives 450
    GB/s keeps all 900 busy, and busbw counts what it sends.
( ) 50
    > 50 GB/s is one link of NVLink 4, both directions. An H100 has 18 of them, and a ring can use all.
( ) 25
    > 25 GB/s is one link of NVLink 4 in one direction. An H100 has 18 of them, and all go to the switch: a ring can
    use them all.
( ) 225
    > This halves the data sheet's figure twice. One halving is right: 900 counts both directions. But a ring needs
    only one direction for sending, and has all 450 GB/s of it.
Why: **450 GB/s.** The 900 are both directions together: 18 links of 25 GB/s each way. A ring uses both, sending to one
neighbour and receiving from the other. But busbw counts what a rank *sends*.

What a program reaches is less. A GPU's cores send packets of 128 bytes, and each packet has a header: NCCL counts on
20.6 of the 25 GB/s of a link (its source, `graph/topo.h`; one of its authors explains the header in nccl-tests issue
149). 18 × 20.6 = **370.8 GB/s**, the figure in this lesson's tables. Published for eight H100s without help from the
switch: 370 (nccl issue 2140).
""")

how_far_off = ask("""
NCCL chooses by the times that its own model expects. How far are these times from those that others measured, on 2 to
2,160 GPUs?
( ) by less than 20 %: NCCL relies on them
    > NCCL relies on their *order* only. If every algorithm is expected to take half of its real time, the choice is
    still right.
( ) too fast as often as too slow
    > This would be true if the errors were noise. But the model leaves out what costs time, and hardly anything that
    saves it.
(x) mostly too fast, often by a factor of 2
( ) mostly too slow: a library promises little
    > It makes no promises: it assumes links at full speed, pipelines that are full from the beginning, and a network
    without other traffic.
Why: **Mostly too fast.** 1.0 would be right, and 0.5 means that the model promises half of the real time. Between 1 and
64 MiB, the median promise is little more than half of the real time. The model is best for large messages. It is too
slow mostly at small sizes on one cloud's network, whose plugin tells NCCL of more latency than there is. The model was
made to **compare** algorithms, not to tell the time.
""")

ring_of_100000 = ask("""
8 bytes, a ring of 100,000 GPUs. A step takes 2.1 µs (the mean of NCCL's own figures for its fastest protocol, within a
server and between servers). After how many seconds do all GPUs have the sum?
= 0.42 s
( ) 0.21
    > This is one lap: afterwards one GPU has the sum of everything. The second lap hands it out.
( ) 7.1e-05
    > This is a tree's time, 2 log2 N steps. In a ring, the sum visits one GPU after the other.
( ) 420
    > A thousand too many: 1 s is a million µs.
Why: **0.42 s**: 2 (N - 1) = 199,998 steps of 2.1 µs. The sum passes through all GPUs one after the other, and then the
result passes through all of them again. No link is ever busy. At this size a ring waits for nothing but latency.
""")
