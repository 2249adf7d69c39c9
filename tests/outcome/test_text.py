"""What the ranks wrote, merged, shortened and told apart."""

import pytest

from labkit.outcome.outcome import Outcome, RankOutcome
from labkit.outcome.text import merge, ranks, root_cause, shorten, trim

GLOO = "/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"
PEER = (
    f"[{GLOO}/pair.cc:537] Read error [127.0.0.1]:20877: Connection reset by peer. "
    "This is typically caused by a remote worker hanging or bugs in the application."
)

# As IPython 9 renders it on an engine, colours included where they matter.
TRACEBACK = """\
\x1b[31m---------------------------------------------------------------------------\x1b[39m
\x1b[31mRuntimeError\x1b[39m                              Traceback (most recent call last)
\x1b[36mCell\x1b[39m\x1b[36m \x1b[39m\x1b[32mIn[7]\x1b[39m\x1b[32m, line 3\x1b[39m
      2 x = torch.ones(2)
----> 3 step(x)

Cell In[4], line 2, in step(x)
      1 def step(x):
----> 2     return dist.all_reduce(x, op=7)

File /tmp/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py:83, in wrapper(*args, **kwargs)
     81 @functools.wraps(func)
---> 83     return func(*args, **kwargs)

File ~/.pyenv/versions/3.11.7/lib/python3.11/json/decoder.py:353, in raw_decode(self, s, idx)
--> 353     obj, end = self.scan_once(s, idx)

File /home/me/labkit/rank/comms.py:33, in all_reduce(x)
---> 33     raise Runtimeraised("no")

RuntimeError: no

and a second paragraph
"""


def ended(*errors, **fate):
    """What became of a cell in which some ranks raised: (rank, type, message, by whom, when)."""
    ranks = [RankOutcome(r, ename=ename, evalue=evalue, raised=by, at=at) for r, ename, evalue, by, at in errors]
    return Outcome(ranks, **fate)


def test_ranks_are_named_as_one_says_them():
    assert ranks([2]) == "rank 2"
    assert ranks([0, 1]) == "ranks 0, 1"
    assert ranks([3, 0, 2, 1]) == "ranks 0–3"
    assert ranks([0, 1, 2, 5]) == "ranks 0–2, 5"
    assert ranks([]) == "no rank"


def test_equal_outputs_are_told_once():
    assert merge(dict.fromkeys(range(4), "hello\n")) == "ranks 0–3 │ hello\n"


def test_groups_stand_in_the_order_of_their_first_rank_with_their_bars_aligned():
    assert merge({3: "b\n", 1: "b\n", 0: "a\n", 2: "c"}) == "rank 0     │ a\nranks 1, 3 │ b\nrank 2     │ c\n"


def test_every_line_of_a_rank_carries_its_name():
    assert merge({1: "a\n\nb\n"}) == "rank 1 │ a\nrank 1 │\nrank 1 │ b\n"


def test_a_missing_newline_at_the_end_is_no_difference():
    assert merge({0: "x", 1: "x\n"}) == "ranks 0, 1 │ x\n"


def test_silent_ranks_are_not_mentioned():
    assert merge({0: "", 1: "x"}) == "rank 1 │ x\n"
    assert merge({0: "", 1: ""}) == ""


def test_printing_an_empty_line_is_something_said():
    assert merge({0: "\n"}) == "rank 0 │\n"


def test_a_progress_bar_is_shown_in_its_last_state():
    assert merge({0: "\r 0%\r 50%\r100%\ndone\n"}) == "rank 0 │ 100%\nrank 0 │ done\n"
    assert merge({0: "dos line\r\n"}) == "rank 0 │ dos line\n"


def test_colours_are_dropped():
    assert merge({0: "\x1b[1;31mred\x1b[0m\x1b[K\n", 1: "red\n"}) == "ranks 0, 1 │ red\n"


def told(outcome):
    causes, consequences = root_cause(outcome)
    return [str(c) for c in causes], consequences


def test_what_nccl_says_of_a_failure_is_told_without_its_sources_and_an_empty_last_error():
    failed = "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:94, internal error, NCCL version 2.28.9\n"
    check = "ncclInternalError: Internal check failed."
    assert shorten(f"{failed}{check}\nLast error:\n") == f"NCCL error: internal error, NCCL version 2.28.9\n{check}"
    assert shorten(f"{failed}{check}\nLast error:\nout of memory\n").endswith("\nLast error:\nout of memory")


def test_the_rank_that_failed_is_the_cause_and_those_that_waited_for_it_are_not():
    outcome = ended(
        (0, "RuntimeError", PEER, "operation", 8),
        (1, "DistBackendError", "NCCL communicator was aborted on rank 1.", "lab", 9),
        (2, "ZeroDivisionError", "division by zero", "learner", 7),
        (3, "KeyboardInterrupt", "", "lab", 9),
    )
    suffered = {0: "Connection reset by peer", 1: "NCCL communicator was aborted on rank 1", 3: "interrupted"}
    assert told(outcome) == (["rank 2: ZeroDivisionError: division by zero"], suffered)


def test_an_operation_that_failed_before_anybody_raised_is_a_cause():
    first = (0, "RuntimeError", "Detected mismatch", "operation", 7)
    assert told(ended(first, (1, "RuntimeError", "closed", "operation", 8))) == (
        ["rank 0: RuntimeError: Detected mismatch"],
        {1: "closed"},
    )
    later = (1, "ValueError", "no", "learner", 8)
    assert told(ended(first, later))[0] == ["rank 0: RuntimeError: Detected mismatch", "rank 1: ValueError: no"]


def test_an_operation_that_failed_where_a_rank_died_is_a_consequence():
    outcome = ended((0, "RuntimeError", PEER, "operation", 7), dead={1: "SIGKILL"})
    assert told(outcome) == ([], {0: "Connection reset by peer"})


def test_what_labkit_says_is_the_cause_though_another_rank_has_felt_it_before():
    felt = (0, "RuntimeError", PEER, "operation", 7)
    assert told(ended(felt, (1, "LabError", "A stranger came.", "operation", 8))) == (
        ["rank 1: LabError: A stranger came."],
        {0: "Connection reset by peer"},
    )


def test_ranks_that_came_to_a_monitored_barrier_have_only_felt_what_rank_0_names():
    came = "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."
    names = "[Rank 0]: Ranks 3 failed to pass monitoredBarrier in 1000 ms"
    errors = (1, "RuntimeError", came, "operation", 7), (0, "RuntimeError", names, "operation", 8)
    assert told(ended(*errors)) == ([f"rank 0: RuntimeError: {names}"], {1: came.rstrip(".")})


def test_a_rank_that_could_not_connect_to_one_that_has_raised_has_only_felt_it_whoever_told_first():
    refused = "Gloo connectFullMesh failed with timed out connecting: SO_ERROR: Connection refused"
    mine, felt = (1, "RuntimeError", "not ready", "operation", 8), (0, "RuntimeError", refused, "operation", 7)
    assert told(ended(felt, mine)) == (["rank 1: RuntimeError: not ready"], {0: refused})
    assert told(ended(felt)) == ([f"rank 0: RuntimeError: {refused}"], {})


def test_one_mistake_made_by_all_ranks_is_one_cause():
    name = "name 'y' is not defined"
    assert told(ended(*((r, "NameError", name, "learner", r) for r in range(4)))) == (
        [f"ranks 0–3: NameError: {name}"],
        {},
    )


def test_one_failure_of_an_operation_on_all_ranks_is_one_cause():
    errors = [(r, "RuntimeError", "Detected mismatch", "operation", 9 - r) for r in range(3)]
    assert told(ended(*errors)) == (["ranks 0–2: RuntimeError: Detected mismatch"], {})


def test_different_mistakes_stand_in_the_order_of_their_first_rank():
    wrong = (2, "KeyError", "'b'", "learner", 1), (0, "AssertionError", "", "learner", 2)
    causes, _ = told(ended(*wrong, (3, "AssertionError", "", "learner", 3)))
    assert causes == ["ranks 0, 3: AssertionError", "rank 2: KeyError: 'b'"]


def test_a_learners_own_words_about_connections_stay_a_cause():
    assert told(ended((0, "RuntimeError", "Connection closed by peer", "learner", 1)))[0]


def test_objects_that_differ_only_in_their_address_make_one_cause():
    errors = [(r, "TypeError", f"<Net at 0x7f00{r}abcde> is not a tensor", "learner", r) for r in range(2)]
    assert told(ended(*errors))[0] == ["ranks 0, 1: TypeError: <Net at 0x…> is not a tensor"]


@pytest.mark.parametrize(
    ("raw", "short"),
    [
        (PEER, "Connection reset by peer"),
        (f"[{GLOO}/pair.cc:547] Connection closed by peer [127.0.0.1]:12345", "Connection closed by peer"),
        (f"[{GLOO}/unbound_buffer.cc:78] Timed out waiting 2000ms", "Timed out waiting 2000ms"),
        ("[../gloo/tcp/pair.cc:5] writev [::1]:4242: Broken pipe", "Broken pipe"),
        ("invalid syntax (2060576046.py, line 1)", "invalid syntax (line 1)"),
        ("[rank1]:[F1129 15:03:48.57 ProcessGroupGloo.cpp:1536] Check failed: a == b", "Check failed: a == b"),
        ("division by zero", "division by zero"),
        ("rank 2 holds [3] and 0xff.", "rank 2 holds [3] and 0xff."),
    ],
)
def test_messages_lose_ports_addresses_and_sources(raw, short):
    assert shorten(raw) == short


def test_a_traceback_keeps_the_learners_frames_only():
    assert trim(TRACEBACK) == (
        "This cell, line 3\n      2 x = torch.ones(2)\n----> 3 step(x)\n\n"
        "An earlier cell, line 2, in step(x)\n      1 def step(x):\n"
        "----> 2     return dist.all_reduce(x, op=7)"
    )


def test_a_learners_own_file_stays_in_the_traceback():
    frame = "Cell In[1], line 1\n----> 1 mine.f()\n\nFile ~/course/mine.py:2, in f()\n----> 2     1/0"
    assert trim(f"{frame}\n\nZeroDivisionError: division by zero") == frame.replace("Cell In[1]", "This cell")


def test_a_syntax_error_keeps_its_arrow_and_not_its_message():
    raw = "  Cell In[3], line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n"
    assert trim(raw) == "This cell, line 1\n    def f(:\n          ^"


def test_endless_recursion_is_told_once():
    frame = "Cell In[2], line 2, in g(n)\n----> 2     return g(n+1)"
    raw = "\n\n".join(["Cell In[2], line 3\n----> 3 g(0)"] + [frame] * 900 + ["RecursionError: too deep"])
    assert trim(raw).count("\n") < 10
    assert trim(raw).endswith("… the same frame 899 more times")


def test_an_error_raised_while_handling_another_shows_both():
    bridge = "During handling of the above exception, another exception occurred:"
    head = "KeyError                     Traceback (most recent call last)\nCell In[5], line 2\n----> 2 d[0]"
    raw = f"{head}\n\nKeyError: 0\n\n{bridge}\n\n{head.replace('line 2', 'line 4')}\n\nValueError: no"
    assert trim(raw).split("\n\n")[1:3] == ["KeyError: 0", bridge]
    assert trim(raw).endswith("This cell, line 4\n----> 2 d[0]")


def test_a_traceback_without_a_frame_of_the_learner_is_empty():
    assert trim("") == ""
    assert trim("An exception has occurred, use %tb to see the full traceback.\n\nSystemExit: 3\n") == ""
