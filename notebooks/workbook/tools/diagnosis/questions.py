"""The diagnosis tree of lessons 14 to 14c: from what a broken program does to its likely cause. Plain data.

A branch for each symptom. In a branch, the questions are asked from top to bottom; the first yes names the cause.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """A question to answer with yes or no, and what a yes means.

    Args:
        ask: the question, in Markdown's `code`.
        tool: how to answer it, with what every PyTorch has.
        cause: what is likely wrong, if the answer is yes.
        remedy: what to do about it.
        case: which case of the clinic it is, such as "1, 2"; "" where it has none.
    """

    ask: str
    tool: str
    cause: str
    remedy: str
    case: str = ""


@dataclass(frozen=True)
class Branch:
    """A symptom, how one knows it, its questions in their order, and what is left if all answers are no."""

    symptom: str
    sign: str
    questions: tuple[Question, ...]
    otherwise: str


TREE = (
    Branch(
        "It hangs",
        "Nothing is printed, or a time-out ends the job. On NCCL, it stops where it needs a number.",
        (
            Question(
                "Has one rank raised, or died?",
                "sort the logs by time; torchrun's *first observed failure*",
                "an exception on one rank, for which the others wait",
                "repair the first error; all-reduce a flag where ranks may fail",
                "7",
            ),
            Question(
                "Is it the same call, with different lengths?",
                "`TORCH_DISTRIBUTED_DEBUG=DETAIL`; a rank may have left the call already",
                "uneven shards, a last batch",
                "send sizes first, or sums",
                "3",
            ),
            Question(
                "Are they in different groups?",
                "stacks; the flight recorder's `process_group`",
                "two groups used in different orders, or `new_group` called by some ranks only",
                "the same order on all ranks; every rank calls `new_group`",
                "12",
            ),
            Question(
                "Are the ranks in different calls or lines?",
                "stacks; `torchfrtrace` on the flight recorder; `DETAIL`",
                "a call inside `if rank == 0:`, in a logger, in `__del__`, in `except`",
                "take the call out of the branch",
                "1",
            ),
            Question(
                "Is a rank in no collective at all?",
                "`faulthandler.dump_traceback_later`, `py-spy dump`; `monitored_barrier` and `ncclras` name it",
                "it left the loop, or it is slow: data, a disk, a checkpoint",
                "decide on a number that all ranks share; agree on the number of steps",
                "2",
            ),
            Question(
                "Is it the same call, with different roots?",
                "print `src` or `dst`",
                "a root that each rank computed for itself",
                "compute the root from shared numbers",
            ),
            Question(
                "Do they wait in `send`, `recv` or `wait`?",
                "write down each message: from, to, tag, length",
                "a message that no rank sends, or a cycle of ranks that wait for each other",
                "the same peer and tag on both sides; receive while you send: `batch_isend_irecv`",
            ),
        ),
        "All in the same call: the network or a GPU. On NCCL: `NCCL_DEBUG=INFO`, `ncclras`, a different interface; a "
        "first call that only sets up connections may take seconds.",
    ),
    Branch(
        "It raises, or a process dies",
        "A traceback, a signal, an exit code below 0.",
        (
            Question(
                "Is it a time-out, or *connection closed by peer*?",
                "the logs of the other ranks, earlier",
                "a consequence, not the cause",
                "look for the first error, else go to *It hangs*",
                "7",
            ),
            Question(
                "Exit code −6 (SIGABRT)?",
                "`DETAIL` names both dtypes and both shapes",
                "a message longer than the room for it; on NCCL also the watchdog",
                "the same dtype and length on all ranks; after a time-out go to *It hangs*",
                "4",
            ),
            Question(
                "Exit code −9 (SIGKILL)?",
                "`dmesg`, the cgroup's `memory.events`",
                "out of memory, or a scheduler's limit",
                "keep less on each rank",
            ),
            Question(
                "*not part of group*?",
                "read which rank raises it and which number it names",
                "a place in the group, where a rank of the job is needed",
                "`group_src=`, `group_dst=`",
            ),
            Question(
                "DDP: *expected to have finished reduction*?",
                "`TORCH_DISTRIBUTED_DEBUG=INFO` names the parameters",
                "parameters without a gradient",
                "`find_unused_parameters=True`, or use them on all ranks",
            ),
        ),
        "On one rank only: ask what is different there: its data, its files, its device (`cuda:{LOCAL_RANK}`, not "
        "the rank).",
    ),
    Branch(
        "It lies",
        "It ends well, and the numbers are wrong.",
        (
            Question(
                "Do the recorded lines, sizes or dtypes differ?",
                "the flight recorder: `_dump_fr_trace`, on NCCL `_dump_nccl_trace`; or `DETAIL`, which shows no lines",
                "calls that match by accident",
                "one line for all ranks; one dtype",
                "5, 9",
            ),
            Question(
                "Does it change if you sleep after the call?",
                "`time.sleep(1)` between the call and the tensor's next use",
                "a tensor read or written before `wait()`",
                "`wait()` first",
                "11",
            ),
            Question(
                "Do the ranks hold different weights?",
                "`all_gather` a sum of the weights, every 100 steps",
                "copies that began differently, or drifted apart",
                "broadcast at the start; the same seeds; decide on shared numbers",
            ),
            Question(
                "Are the right numbers in the wrong places?",
                "print `x.stride()` beside `x.shape`; count from 0 in `x`",
                "a transposed or sliced tensor, sent as it lies in memory; parts put together in a different order",
                "`x.contiguous()` before the call; order the parts by rank",
            ),
            Question(
                "Is the result right, and the gradient not?",
                "the same batch in one process, compared parameter by parameter",
                "a collective without a backward pass, a missing division",
                "differentiable collectives; put `x` itself back in its place",
                "10",
            ),
            Question(
                "Bring powers of ten: is a digit missing, or there twice?",
                "1, 10, 100, … in place of the data",
                "a different operation or root on a rank, `src` taken for a place in its group, a rank left out, "
                "groups made in different orders",
                "read settings on one rank and broadcast them; `group_src=`; all ranks make all groups in one order",
                "6, 8",
            ),
        ),
        "Only a metric is off: count the rows that go into it. Means of means, a result read on a rank that is not "
        "the root.",
    ),
)
