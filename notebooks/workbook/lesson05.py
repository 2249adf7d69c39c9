"""Lesson 05: where a barrier belongs and what it is made of, an honest time, and late told from slow."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING
from unittest.mock import Mock, patch

import numpy as np

from labkit.grading.exercise import Budget, Least, exercise
from labkit.grading.inputs import Case, counting, draws
from labkit.grading.promises import Calls
from workbook.harnesses import calls, in_a_folder

if TYPE_CHECKING:
    from labkit.rank.cell_names import device, dist, everyones, rank, torch, world_size


def _tensors(n: int) -> list[Case]:
    return [Case(counting(n, 3)), Case(draws(n, 5), "negative numbers"), Case(draws(n, 5, "float64"), "float64")]


def _is_model(file):
    return os.path.basename(str(getattr(file, "name", file))) == "model.pt"  # and not what pickles a message


def _had_model(function):
    return any(_is_model(given) for call in function.mock_calls for given in (*call.args, *call.kwargs.values()))


@in_a_folder
def run_save_then_load(save_then_load, x, folder):
    """Make rank 0's save slow and the last rank's load, and collect what was loaded.

    A load that comes too early is seen, and a file that is removed too early. So is x that is sent without a file,
    and a sleep, or a look for the file, in place of a message. Where a load finds no file, the folder "saved" tells
    whether there was one, until rank 0 is through and all is gone.
    """
    saved = os.path.join(folder, "saved")
    save, load, loads, removal = torch.save, torch.load, [], Mock(wraps=os.remove)

    def slow_save(obj, file, *args, **kwargs):
        time.sleep(0.3)
        save(obj, file, *args, **kwargs)
        if _is_model(file):
            os.makedirs(saved, exist_ok=True)

    def slow_load(file, *args, **kwargs):
        loads.extend([calls()] * _is_model(file))
        time.sleep(0.15 * (rank == world_size - 1))
        try:
            return load(file, *args, **kwargs)
        except FileNotFoundError as error:
            if not _is_model(file):
                raise
            was = os.path.exists(saved) or not os.path.exists(folder)
            when = "any more: rank 0 removes it before this rank has read it" if was else "yet: rank 0 has not saved it"
            raise FileNotFoundError(f"model.pt is not there {when}") from error

    with patch.multiple(torch, save=slow_save, load=slow_load), patch.multiple(os, remove=removal, unlink=removal):
        result = save_then_load(x, os.path.join(folder, "model.pt"))
    assert loads, "it never calls torch.load"
    assert rank == 0 or loads[0] > 0, (
        "it loads, and has not heard from rank 0: a sleep may be too short, and a file is there before it is whole"
    )
    assert rank == 0 or calls() > loads[-1], (
        "it does not communicate after its load: so rank 0 may remove the file while a slower rank reads it"
    )
    assert rank != 0 or _had_model(removal), "it does not remove the file, and rank 0 should"
    return result


def broken_save_then_load(x, path):
    if rank == 0:
        torch.save(x, path)
    loaded = torch.load(path)
    if rank == 0:
        os.remove(path)
    return loaded


@exercise(
    "Repair the checkpoint",
    lambda xs: [xs[0] for _ in xs],
    minutes=6,
    inputs=_tensors,
    needs_messages=False,
    least=Least(rounds=lambda n: 2),  # the readers wait for the writer, then the writer for the readers
    given="import os",
    harness=run_save_then_load,
)
def save_then_load(x, path):
    """Return rank 0's x on every rank, by way of a file that is gone afterwards.

    Rank 0 saves its `x` under `path`, **every** rank loads it and returns what it loaded, and in the end rank 0 removes
    the file. All ranks see the same folder. Saving takes rank 0 a while, and the last rank is slow to load. The
    function as it stands is a race: repair it. Keep its save, its load and its remove.
    Hint: Two things may happen too early here: a load, and the remove. Who has to wait for whom, each time?
    Hint: The readers wait for the writer; then the writer waits for the readers. A barrier does either.
    Hint: Put one `dist.barrier()` after the save and one before the remove, both outside the `if`.
    Afterwards: The first barrier keeps the readers behind the writer, the second keeps the writer behind the readers.
    In a job of your own, also write to another name and `os.replace` it: then a crash in the middle of a save leaves
    the old file whole.
    """
    if rank == 0:
        torch.save(x, path)
    dist.barrier()  # it is written
    loaded = torch.load(path)
    dist.barrier()  # everyone has read it
    if rank == 0:
        os.remove(path)
    return loaded


def _stop_watches(n: int) -> list[Case]:
    """Make the seconds that each call of the work takes on each rank: three slow ones, then repeats with outliers."""

    def times(repeat: int, seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng([seed, n])
        found = [rng.integers(8, 33, size=3 + repeat) / 4 for _ in range(n)]  # sums of these are exact
        for mine in found:
            mine[:3] += 100
        found[0][-1] += 50
        return found

    in_turn = [np.array([1.0] * 3 + [0.5 + 0.25 * (r == i % n) for i in range(7)]) for r in range(n)]
    return [
        Case(times(5, 1), "five repeats"),
        Case(times(1, 3), "one repeat"),
        Case(times(6, 2), "six repeats: the median lies between two"),
        Case(in_turn, "a different rank is late each time"),
    ]


def run_bench_by_hand(bench_by_hand, seconds):
    """Give a clock that only the work and the barriers move on, and collect the time.

    It moves by 2 to 8 s in each call of the work, by much more while the rank warms up, and by the wait for the
    late ranks where no barrier was called before.
    """
    seconds, now, calls, together, apart = seconds.tolist(), [0.0], [], [False], []
    real = dist.barrier

    def work():
        assert len(calls) < len(seconds), f"it calls work() more than {len(seconds)} times"
        if not together[0] and len(calls) >= 3:
            apart.append(len(calls) - 2)
        now[0] += seconds[len(calls)] + (0.0 if together[0] else 20.0 + rank)
        calls.append(None)
        together[0] = False

    def barrier(*args, **kwargs):
        together[0] = True
        now[0] += 16.0
        return real(*args, **kwargs)

    with patch.object(dist, "barrier", barrier):
        found = float(bench_by_hand(work, lambda: now[0], len(seconds) - 3))
    assert not apart, f"repeat {apart[0]} begins without a barrier, so the ranks do not start together"
    return found


@exercise(
    "An honest time",
    lambda xs: [float(np.median(np.max(xs, axis=0)[3:]))] * len(xs),
    minutes=10,
    difficulty=2,
    inputs=_stop_watches,
    tolerance=1e-9,
    least=Least(rounds=lambda n: 8),  # seven repeats after a barrier each, and one call to compare
    harness=run_bench_by_hand,
)
def bench_by_hand(work, clock, repeat):
    """Return the median over the repeats of the slowest rank's seconds.

    `work()` is a collective, and `clock()` reads a rank's own clock in seconds, as `time.perf_counter()` does. Call the
    work **three times** to warm up, then `repeat` times, each time after a `dist.barrier()`, so that all ranks start
    together, and with the clock read right before and right after it. A repeat took as long as its **slowest rank**;
    the honest time is the **median** of the repeats, with an even number of them the mean of the two in the middle.
    Return it in seconds, as a Python float, the same on every rank. The picture shows what each
    call of `work()` takes on each rank's clock, the three to warm up first. A barrier takes 16 s on this clock.
    Hint: Which comes first: the slowest rank of each repeat, or the median of the repeats?
    Hint: An all-reduce of `slowest` with `ReduceOp.MAX` finds the slowest rank of each repeat.
    Afterwards: `timed` does this for you: it warms up, lets all start together, and takes the slowest rank of each
    repeat.
    """
    for _ in range(3):
        work()
    seconds = []
    for _ in range(repeat):
        # yours
        dist.barrier()
        began = clock()
        work()
        seconds.append(clock() - began)
        # end
    slowest = torch.tensor(seconds, dtype=torch.float64, device=device)
    # yours
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    # end
    return slowest.quantile(0.5).item()


@in_a_folder
def run_tell_when_saved(tell_when_saved, x, folder):
    """Tell rank 0 alone where to write, make its save slow, and collect what was loaded.

    A function that sends x instead of the path never loads. One that sends the path before the file is written is
    told, unless the others may be waiting for a second call, which is one too many.
    """
    save, load, early = torch.save, Mock(wraps=torch.load), []

    def slow_save(obj, file, *args, **kwargs):
        if _is_model(file):
            early.append(calls())
            time.sleep(0.2)
        return save(obj, file, *args, **kwargs)

    try:
        with patch.multiple(torch, save=slow_save, load=load):
            result = tell_when_saved(x, os.path.join(folder, "model.pt") if rank == 0 else None)
        assert _had_model(load), "it never calls torch.load"
        assert rank != 0 or not any(early) or calls() > 1, (
            "it tells the path before it has saved: a rank that sleeps or looks for the file may still read half of it"
        )
        return result
    finally:
        everyones(None)


@exercise(
    "A barrier that you do not need",
    lambda xs: [xs[0] for _ in xs],
    minutes=8,
    difficulty=2,
    inputs=_tensors,
    promises=(Calls(1),),
    least=Least(rounds=lambda n: 1),
    harness=run_tell_when_saved,
)
def tell_when_saved(x, path):
    """Return rank 0's x on every rank, by way of a file whose path rank 0 alone knows.

    Rank 0 alone knows `path`; on the others it is `None`. Rank 0 saves `x` there, and every rank returns what it loads
    from there. Communicate **once**: one call of `dist` or `comms` on each rank. Saving takes rank 0 a while. No rank
    removes the file.
    Hint: No rank can load before it knows the path. Who tells it, and when?
    Hint: A receiver of a broadcast cannot go on before the root has sent. What must the root have done by then?
    Hint: Rank 0 saves first; then `dist.broadcast_object_list([path], src=0)` brings the path.
    Afterwards: The readers need the broadcast's data, so they wait for the root, and the root sends after it has saved.
    The root itself does not wait for the readers: before it may remove the file, you would need a barrier.
    """
    if rank == 0:
        torch.save(x, path)
    box = [path]
    dist.broadcast_object_list(box, src=0)
    return torch.load(box[0])


def run_work_meanwhile(work_meanwhile, late, busy):
    """Come late, or have a lot of work, and collect the work's result.

    The work has to begin before the others have come; no rank may leave before all have, or wait for another's
    work.
    """
    began = []

    def work():
        began.append(time.perf_counter())
        time.sleep(busy)
        return rank * 10

    time.sleep(late)
    came = time.perf_counter()
    result = work_meanwhile(work)
    left = time.perf_counter()
    times = everyones((came, began[0] if began else float("nan"), busy))
    last, all_came = max(enumerate(there for there, *_ in times), key=lambda pair: pair[1])
    assert len(began) == 1, f"it called work() {len(began)} times"
    assert left >= all_came, f"it left before rank {last} had come"
    if late == 0 and all_came - came > 0.2:
        assert began[0] < all_came, f"it began its work only after rank {last} had come"
    for other, (_, began_there, busy_there) in enumerate(times):
        if busy_there > 0 and other != rank:
            assert left < began_there + busy_there, f"all had come, and it still waited for the work of rank {other}"
    return result


@exercise(
    "Work while you wait",
    lambda xs: [10 * r for r in range(len(xs))],
    minutes=8,
    difficulty=2,
    inputs=lambda n: [  # seconds late and seconds of work
        *(Case([(0.4 * (r == late), 0.0) for r in range(n)], f"rank {late} comes late") for late in (n - 1, 0, 1)),
        Case([(0.0, 0.8 * (r == n - 1)) for r in range(n)], f"rank {n - 1} has a lot of work"),
    ],
    promises=(Calls(1),),
    picture=lambda: ["early", "early", "late"],
    least=Least(rounds=lambda n: 1),
    harness=run_work_meanwhile,
)
def work_meanwhile(work):
    """Return work(), once every rank has come; do the work while waiting.

    `work()` needs no other rank and returns a number (in the picture ten times the rank). Call it **once** and return
    its result, but not before **every** rank has called your function. A rank that comes early must not stand idle: it
    begins its work at once, whether the others have come or not. And no rank waits for another rank's work, only until
    all ranks have come. One barrier.
    Hint: A barrier has two halves: you say that you have come, and you wait until all have. What can happen between?
    Hint: `dist.barrier(async_op=True)` says that you have come and returns a handle at once.
    Hint: Start the barrier, work, then `wait()` on the handle.
    Afterwards: MPI calls this a non-blocking barrier. Training uses the same idea for the gradients: start the
    all-reduce, go on with the backward pass, wait at the end.
    """
    coming = dist.barrier(async_op=True)
    result = work()
    coming.wait()
    return result


def run_barrier_by_hand(barrier_by_hand, late):
    """Come late, and see that no rank leaves before all have come."""
    time.sleep(late)
    came = time.perf_counter()
    barrier_by_hand()
    left = time.perf_counter()
    times = everyones(came)
    assert left >= max(times), f"it left before rank {times.index(max(times))} had come"
    return "all came"


@exercise(
    "A barrier from messages",
    lambda xs: ["all came" for _ in xs],
    minutes=15,
    difficulty=3,
    inputs=lambda n: [  # seconds late
        *(Case([(0.05 * (r == late),) for r in range(n)], f"rank {late} comes late") for late in reversed(range(n))),
        Case([(0.0,)] * n, "all come at once"),
    ],
    forbids=("collectives",),
    budget=Budget(steps=lambda n: (n - 1).bit_length()),
    picture=lambda: ["early", "early", "late"],
    least=Least(rounds=lambda n: (n - 1).bit_length()),
    harness=run_barrier_by_hand,
)
def barrier_by_hand():
    """Return when every rank has come.

    Write a barrier by send and receive only: no rank returns before **every** rank has called the function. It takes
    nothing and returns nothing. Do it in ⌈log2 N⌉ steps, in each of which a rank sends one message at most and receives
    one at most; the steps of a rank follow one another.
    Hint: To leave, a rank must have heard from every rank, directly or through others. What does a message prove?
    Hint: Step 1: tell your right-hand neighbour. Whom do you tell in step 2, so that it learns of four ranks?
    Hint: In step k send to `(rank + 2**k) % world_size` and receive from `(rank - 2**k) % world_size`, both in one
    `batch_isend_irecv`. Wait for both.
    Afterwards: The messages need no content: what counts is who has heard from whom. This is called a dissemination
    barrier.
    """
    sent, heard = torch.zeros(1, device=device), torch.zeros(1, device=device)
    distance = 1
    while distance < world_size:
        exchange = [
            dist.P2POp(dist.isend, sent, (rank + distance) % world_size),
            dist.P2POp(dist.irecv, heard, (rank - distance) % world_size),
        ]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
        distance *= 2


def _log(n: int, repeat: int, usual: int, seed: int) -> Case:
    """Make the times at which each rank began and ended: rank `usual` comes last in most of the repetitions."""
    rng = np.random.default_rng([seed, n])
    began = rng.integers(0, 8, (n, repeat)) / 8 + 100.0 * np.arange(repeat)
    for i in range(repeat):
        began[usual if i != 1 else (usual + 1) % n, i] += 20 + i  # once it is somebody else
    ended = began.max(0) + rng.integers(8, 40, (n, repeat)) / 8
    about = f"rank {usual} is late" + (f" in {repeat - 1} of {repeat}" if repeat > 1 else ", one repetition")
    return Case([(began[r], ended[r]) for r in range(n)], about)


def _late_or_slow(xs: list[tuple[np.ndarray, np.ndarray]]) -> list[list[float]]:
    began, ended = (np.array(rows) for rows in zip(*xs, strict=True))
    last = np.bincount(began.argmax(0), minlength=len(xs))
    return [[int(last.argmax()), float(np.median(ended.max(0) - began.max(0)))] for _ in xs]


@exercise(
    "Late, or slow?",
    _late_or_slow,
    minutes=15,
    difficulty=3,
    inputs=lambda n: [_log(n, 5, n - 1, 1), _log(n, 4, 0, 2), _log(n, 1, n - 1, 3)],
    picture=lambda: _log(3, 3, 2, 1).xs,
    tolerance=1e-9,
    least=Least(rounds=lambda n: 1),  # both readings in one tensor
)
def late_or_slow(began, ended):
    """Return [the rank that is late most often, the median transfer].

    The same collective ran several times. `began` and `ended` are this rank's clock readings, one number per
    repetition, in float64; all ranks read one common clock. Return a list of two, the same on every rank: the **rank
    that began last most often** (an integer; the lowest one of those that tie), and the **transfer**: the median over
    the repetitions of the time from the last rank's beginning to the last rank's end (a float; with an even number of
    repetitions the mean of the two in the middle). The picture shows three repetitions: first `began`, then `ended`.
    Hint: To say who came last, you need every rank's beginnings. Between which two moments of a repetition is the
    transfer?
    Hint: All-gather `began` and stack it: one row per rank, one column per repetition. `argmax(0)` says who came last
    in each.
    Hint: The transfer of a repetition is the largest `ended` minus the largest `began`. Then take the median.
    Afterwards: This separates the two causes of a slow collective. If the transfer is short, a faster network will not
    help: look at the rank that comes late.
    """
    everyone = [torch.empty_like(began) for _ in range(world_size)]
    dist.all_gather(everyone, began)
    begins = torch.stack(everyone)
    end = ended.clone()
    dist.all_reduce(end, op=dist.ReduceOp.MAX)
    last = begins.argmax(0).bincount(minlength=world_size).argmax()
    return [last.item(), (end - begins.amax(0)).quantile(0.5).item()]
