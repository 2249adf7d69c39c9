"""What a rank sends of what a cell prints, on streams that only write down what they are given."""

from __future__ import annotations

import multiprocessing
import re
import threading

import pytest

from labkit.rank import output
from labkit.rank.output import LAST, SHOWN, Output


class Stream:
    """As ipykernel's, it refuses what is not text."""

    name = "stdout"

    def __init__(self):
        self.sent = []

    def write(self, text):
        self.sent.append(text + "")
        return len(text)


@pytest.fixture
def out(tmp_path):
    out = Output(Stream(), tmp_path / "stdout-0.txt")
    out.sent = lambda: "".join(out._stream.sent)
    return out


def test_what_fits_leaves_the_rank_as_it_comes_and_no_file_is_written(out):
    for text in ("a\n", "b" * (SHOWN - 2)):
        out.write(text)
    assert out.sent() == "a\n" + "b" * (SHOWN - 2)
    out.end()
    assert not out.path.exists()


def test_a_little_too_much_is_shown_whole(out):
    text = "".join(f"{i}\n" for i in range(SHOWN))[: SHOWN + LAST // 2]
    for line in text.splitlines(keepends=True):
        out.write(line)
    out.end()
    assert out.sent() == text


def test_a_line_without_end_is_cut_and_measured(out):
    out.write("x" * (3 * SHOWN))
    out.end()
    assert re.match(r"\n… 766 KiB left out here; all of it is in \S+/stdout-\{rank\}.txt\nx{2000}$", out.sent())
    assert out.path.read_text() == "x" * (3 * SHOWN)


def test_a_long_progress_bar_is_shown_in_its_last_state_and_nothing_is_said(out):
    for i in range(SHOWN):
        out.write(f"\r{i}")
    out.end()
    assert out.sent().endswith(f"\r{SHOWN - 1}")
    assert "left out" not in out.sent()


def test_a_file_has_an_end_and_it_is_said(out, monkeypatch):
    monkeypatch.setattr(output, "KEPT", 2 * SHOWN)
    for _ in range(3 * SHOWN // 64):
        out.write("x" * 63 + "\n")
    out.end()
    assert "the first 512 KiB are in " in out.sent()
    assert out.path.stat().st_size == 2 * SHOWN


def test_where_no_file_can_be_the_rest_is_cut_all_the_same_and_it_is_said_why(out):
    out.path = out.path.parent / "missing" / "stdout-0.txt"
    out.write("x\n" * SHOWN)
    out.end()
    assert "left out here; none of it is kept (No such file or directory)\n" in out.sent()


def test_a_cell_after_a_flood_begins_anew(out):
    out.write("x\n" * SHOWN)
    out.end()
    out.begin()
    before = len(out.sent())
    out.write("y" * SHOWN)
    assert out.sent()[before:] == "y" * SHOWN


def test_what_is_no_text_is_refused_as_before(out):
    with pytest.raises(TypeError):
        out.write(3)


def test_a_process_that_a_cell_forks_is_cut_as_well(out, tmp_path):
    def child():
        for _ in range(3):
            out.write("x\n" * (SHOWN // 2))
        (tmp_path / "sent").write_text(out.sent())

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    said = (tmp_path / "sent").read_text()
    assert said == "x\n" * (SHOWN // 2) + "\n… what this process of the rank prints from here on is left out\n"


CONNECTED = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
HEAD = "[rank0]:[W928 21:09:42.729597486 ProcessGroupNCCL.cpp:1538] Warning: "
ENDED = (
    "WARNING: destroy_process_group() was not called before program exit, which can leak resources. For more info, "
    "please see https://pytorch.org/docs/stable/distributed.html#shutdown (function operator())\n"
)
EAGER = (
    "An unbatched P2P op (send/recv) was called on this ProcessGroup with size 4.  In eager initialization mode, "
    "unbatched P2P ops are treated as independent collective ops, and are thus serialized with all other ops on this "
    "ProcessGroup, including other P2P ops. To avoid serialization, either create additional independent "
    "ProcessGroups for the P2P ops or use batched P2P ops. You can squash this warning by setting the environment "
    "variable TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING to false. (function operator())\n"
)
STRIDED = (
    "Detected non-contiguous tensor in P2P operations. It is user responsibility to guarantee that source and "
    "destination tensors have the same contiguity format. (function operator())\n"
)
GUESSED = (
    "Guessing device ID based on global rank. This can cause a hang if rank to GPU mapping is heterogeneous. You can "
    "specify device_id in init_process_group() (function operator())\n"
)
OTHER = "something that nobody here knows (function operator())\n"


@pytest.mark.parametrize("size", [1, 7, 1000, 10**6], ids="{} at a time".format)
def test_of_what_torchs_cpp_writes_a_learner_is_told_what_to_do_and_no_more(out, size):
    out._stream.watch_fd_thread = threading.current_thread()
    logged = "".join(HEAD + said for said in (ENDED, EAGER, STRIDED, GUESSED, OTHER))
    written = f"before\n{CONNECTED}{logged}[3/4] after"
    for start in range(0, len(written), size):
        out.write(written[start : start + size])
    assert out.sent() == (
        "before\n"
        "A tensor that is sent or received is not contiguous, and NCCL moves its memory as it lies. "
        "Send x.contiguous(), and receive into a tensor that is contiguous.\n"
        "This group does not know its GPU, and torch takes the one that has the rank's number. "
        "Pass device_id=device to dist.init_process_group.\n"
        f"{HEAD}{OTHER}[3/4] after"
    )


def test_a_line_that_torchs_cpp_has_not_ended_is_told_when_the_cell_ends(out):
    out._stream.watch_fd_thread = threading.current_thread()
    out.write("[rank0]:[W928 21:09:42.729597486 x.cpp:1] Warning: half a")
    assert out.sent() == ""
    out.end()
    assert out.sent() == "[rank0]:[W928 21:09:42.729597486 x.cpp:1] Warning: half a"


def test_what_python_prints_is_nobodys_log(out):
    out._stream.watch_fd_thread = None
    out.write(HEAD + ENDED + "[rank")
    assert out.sent() == HEAD + ENDED + "[rank"
