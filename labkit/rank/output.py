"""Cut a flood that a cell prints before it leaves the rank; a file in the run's directory has all of it.

All that leaves the rank stands in the notebook's kernel, in the browser and in the notebook's file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import shutil
import sys
import threading
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from labkit.floor import kernel_internals, time_limits
from labkit.floor.words import count, nbytes

SHOWN = 1 << 18  # characters of a cell that leave the rank as they come, of each stream
MARK = "\0"  # goes through a stream's pipe when a cell ends: all that was written before has come when it comes
LAST = 2000  # characters of the rest that follow when the cell ends
KEPT = 64 << 20  # characters that a file holds at most
# A line that torch's C++ writes by itself: "[rank0]:[W1127 11:54:12.123456789 ProcessGroupNCCL.cpp:1538] Warning: …".
LOGGED = re.compile(r"(\[rank\d+\]:)?\[[WE]\d{3,4} \d\d:\d\d:\d\d\.\d+ [\w.]+:\d+\] ")
# What Gloo writes of every group that it makes, up to torch 2.10.
CONNECTED = re.compile(r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\. ")
# What may become one of these: it has been cut off before its time.
BEGUN = re.compile(r"\[(ra?n?k?\d*\]?:?\[?)?[WE]?\d{0,4}( [\d:.]*( [\w.:]*\]?)?)?|\[Gl?o?o?\]?( [\w.: ]*)?")
# What is told in the place of a line that contains this; nothing where a learner can do nothing about it.
PLAIN = {
    "destroy_process_group() was not called before program exit": "",  # the lab has ended the group, or the rank
    "NCCL communicator hasn't been destroyed": "",
    "was not finalized before destruction": "",
    "An unbatched P2P op (send/recv) was called on this ProcessGroup": "",
    'Failed to check the "should dump" flag on TCPStore': "",
    "Gloo connectFullMesh failed": "",  # the error that the call raises says so, too
    "Guessing device ID based on global rank": (
        "This group does not know its GPU, and torch takes the one that has the rank's number. "
        "Pass device_id=device to dist.init_process_group.\n"
    ),
    "Detected non-contiguous tensor in P2P operations": (
        "A tensor that is sent or received is not contiguous, and NCCL moves its memory as it lies. "
        "Send x.contiguous(), and receive into a tensor that is contiguous.\n"
    ),
    "find_unused_parameters=True was specified in DDP constructor": (
        "find_unused_parameters=True makes DDP search the graph in every step, and this step used all parameters. "
        "Leave it out, unless other steps use only a part of the model.\n"
    ),
}
SPARED = 4  # a file takes at most this part of what the disk has left: other ranks need some as well


class Kept:
    """A file with all that a cell has printed, or with the first `size` characters of it where it ends early."""

    def __init__(self, path: Path) -> None:
        self.whole, self.size, self.why = True, 0, ""
        self._room = 0
        try:
            self._file = path.open("w", encoding="utf-8", errors="replace")
            free = shutil.disk_usage(path).free // SPARED
            self._room, self.why = (KEPT, "") if free > KEPT else (free, " (the disk has no room for more)")
        except OSError as error:
            self._ends(error)

    def add(self, text: str) -> None:
        if not self.whole:
            return
        try:
            self.size += self._file.write(text[: self._room - self.size])
        except OSError as error:
            self._ends(error)
        self.whole = self.whole and self.size < self._room

    def close(self) -> None:
        if self.size:
            try:
                self._file.close()
            except OSError as error:
                self._ends(error)

    def _ends(self, error: OSError) -> None:
        self.whole, self.why = False, f" ({error.strerror})"


class Output:
    """One stream, sys.stdout or sys.stderr, from cell to cell."""

    def __init__(self, stream: Any, path: Path) -> None:
        self.path = path
        self._stream = stream
        self._send = functools.partial(type(stream).write, stream)
        self._lock = threading.RLock()  # the learner's threads print as well
        self._pid = os.getpid()
        self._kept: Kept | None = None  # of a cell that prints too much
        self._unfinished = ""  # line of torch's C++
        self._sent = 0  # marks that have not come through the pipe
        self._come = threading.Event()  # the last one has
        self.begin()

    def begin(self, _: Any = None) -> None:
        """Begin a new cell."""
        with self._lock:
            self._first: list[str] = []  # what has left the rank
            self._room = SHOWN
            self._left = self._lines = 0  # characters and lines that have not
            self._last = ""  # the end of those

    def write(self, text: str) -> int | None:
        """Send what a cell prints, as the stream itself does; of what is too much keep count, and the end."""
        with self._lock:
            piped = threading.current_thread() is getattr(self._stream, "watch_fd_thread", None)
            self._write(self._plain(self._unmarked(text)) if piped else text)
            return len(text)

    def _unmarked(self, text: str) -> str:
        """Take out of what has come through the pipe the marks that were sent."""
        come = min(text.count(MARK), self._sent)
        self._sent -= come
        if come and not self._sent:
            self._come.set()
        return text.replace(MARK, "", come)

    def _write(self, text: str) -> None:
        if self._kept is not None:
            self._leave_out(text)
        elif not isinstance(text, str) or len(text) <= self._room:
            self._send(text)  # raises what it raises
            self._first.append(text)
            self._room -= len(text)
        elif os.getpid() == self._pid:
            self._cut(text)
        elif self._room >= 0:  # a process that the cell has forked, whose end is not told
            self._room = -1
            self._send("\n… what this process of the rank prints from here on is left out\n")

    def _plain(self, text: str) -> str:
        """Read what comes through the pipe, from C++ or from programs; of torch's C++ pass on what `PLAIN` tells."""
        *lines, last = (self._unfinished + text).splitlines(keepends=True) or [""]
        if not last.endswith("\n") and (LOGGED.match(last) or BEGUN.fullmatch(last)):
            self._unfinished = last
        else:
            self._unfinished = ""
            lines.append(last)
        return "".join(map(plain, lines))

    def _cut(self, text: str) -> None:
        """Send no more of this cell; what was sent ends with a line where that can be."""
        whole = text.rfind("\n", 0, self._room) + 1
        self._send(text[:whole])
        first = "".join(self._first) + text[:whole]
        self._first = [first[-1:]]
        kept = Kept(self.path)
        kept.add(first)
        self._kept = kept
        self._leave_out(text[whole:])

    def _leave_out(self, text: str) -> None:
        assert self._kept is not None
        self._kept.add(text)
        self._left += len(text)
        self._lines += text.count("\n")
        self._last = (self._last + text[-LAST:])[-LAST:]

    def end(self, _: Any = None) -> None:
        """End the cell: say how much was left out, and which file has it, and send the end of it."""
        self._drain()
        with self._lock:
            rest, self._unfinished = self._unfinished, ""
            if rest:
                self._write(plain(rest))
            if self._kept is None:
                return
            kept, self._kept = self._kept, None
            kept.close()
            self._send(self._end(kept))
            self.begin()

    def _drain(self) -> None:
        """Wait until what the cell's programs wrote has come through its pipe."""
        pipe = kernel_internals.pipe(self._stream)
        deadline = monotonic() + time_limits.OUTPUT_DRAINS
        while pipe is not None and select.select([pipe], [], [], 0)[0] and monotonic() < deadline:
            sleep(0.001)
        # The thread that reads the pipe may have taken the last of it, and not have passed it on yet.
        if (way_in := kernel_internals.way_in(self._stream)) is not None and monotonic() < deadline:
            with self._lock:
                self._sent += 1
                self._come.clear()
            os.write(way_in, MARK.encode())
            self._come.wait(max(0.0, deadline - monotonic()))

    def _end(self, kept: Kept) -> str:
        last = self._last
        if self._left == len(last):
            return last
        if not self._lines and "\r" in last:
            return last[last.rfind("\r", 0, -1) :]  # a progress bar's last state
        last = last[last.find("\n", 0, -1) + 1 :]
        left, lines = self._left - len(last), self._lines - last.count("\n")
        what = f"{count(lines, 'line')} ({nbytes(left)})" if lines else nbytes(left)
        path = self.path.with_name(f"{self._stream.name}-{{rank}}.txt")  # the same words on every rank are shown once
        part = (
            f"the first {nbytes(kept.size)}{kept.why} are in {path}" if kept.size else f"none of it is kept{kept.why}"
        )
        where = f"all of it is in {path}" if kept.whole else part
        new = "" if self._first == ["\n"] else "\n"
        return f"{new}… {what} left out here; {where}\n{last}"


def plain(line: str) -> str:
    """Return a line; where torch's C++ wrote it, what `PLAIN` tells in its place, and nothing for `CONNECTED`."""
    if not LOGGED.match(line):
        return "" if CONNECTED.match(line) else line
    return next((told for said, told in PLAIN.items() if said in line), line)


_outputs: dict[str, Output] = {}
_senders: dict[Any, Any] = {}  # what ipykernel's streams send through


def put_back(_: Any = None) -> None:
    """Mend sys.stdout and sys.stderr, if a cell has closed them or set them to what cannot be flushed, such as None."""
    # The engine flushes both before it shows an error, and before it replies: the reply would never leave.
    for stream, sender in _senders.items():
        stream.pub_thread = sender  # None where the stream was closed
        with contextlib.suppress(Exception):
            now = getattr(sys, stream.name)
            now.flush()
            if not getattr(now, "closed", False):
                continue
        setattr(sys, stream.name, stream)


def install(shell: Any, rank: int) -> None:
    """Cut what cells print from now on; the files are named after the stream and the rank."""
    folder = Path(shell.kernel.parent.profile_dir.location)  # the run's, where the engine's log is as well
    if put_back not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", put_back)
    stream: Any
    for stream in (sys.stdout, sys.stderr):
        if not kernel_internals.is_outstream(stream):
            continue  # it is none of ipykernel's
        path = folder / f"{stream.name}-{rank}.txt"
        if stream.name in _outputs:
            _outputs[stream.name].path = path
            continue
        _outputs[stream.name] = output = Output(stream, path)
        stream.write = output.write
        _senders[stream] = stream.pub_thread
        _sockets(stream.pub_thread)
        _log_nothing(stream)
        shell.events.register("pre_run_cell", output.begin)
        shell.events.register("post_run_cell", output.end)


def _sockets(sender: Any) -> None:
    """Let this thread, and the one that sends what is printed, have the sockets through which they wake the latter."""
    # ipykernel makes them when a thread first prints. Where no file can be opened by then, the text is lost, or the
    # thread that sends ends, and with it all that the rank prints from then on.
    sender.schedule(lambda: sender.schedule(int))


def _log_nothing(stream: Any) -> None:
    """Let what programs of a cell write go to the notebook alone."""
    # ipykernel copies it to the engine's log as well, which knows no end; on a full disk it fails at that, takes
    # nothing out of the pipe any more, and what writes to the pipe waits for ever.
    with contextlib.suppress(AttributeError, OSError), open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), kernel_internals.log_descriptor(stream))
