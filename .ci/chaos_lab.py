"""A learner at a notebook: cells that must end as said, the Stop button, signals to the lab's processes, right answers.

Everything runs in a real kernel with a real lab; what is not as it must be is an AssertionError.
"""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import chaos_census
from chaos_rounds import draw_round

from labkit.cluster.reaper import ended
from tests.live.notebook import Cell, Notebook
from tests.live.processes import SOON, Trace, carrying, eventually

N = 3
# What a process starts late and keeps is there before anything is counted: torch starts threads with its first
# sub-group and asynchronous call, pyzmq with its first long message. No variable holds a group, or a handle of one; nor
# does a mesh, of which torch's DTensor keeps the first of equal ones for good, with the groups of its time.
KEPT = """
group = dist.new_group(list(range(world_size)))
dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
dist.destroy_process_group(group)
g = old = ops = work = sent = group = long = net = None
import gc; _ = gc.collect()
for mesh in gc.get_objects():
    if type(mesh).__name__ == "DeviceMesh": mesh._pg_registry.clear()
mesh = None
"""
COUNTED = f"""
lab.push(long=[0] * 10**5)
_ = lab.pull("long")
import gc; _ = gc.collect()
lab.run({KEPT!r})
None"""
FACTS = "(lab._engines.processes.cluster.controller.pids[0], [m.pid for m in lab._engines.members])"


class Learner:
    """One learner, one notebook, one lab of `n` ranks.

    `detail` says more about the fault that is on; while the ranks are `anew`, none has variables that it must keep.
    """

    n = N
    STARTS = f"from labkit import start\nlab = start({N}, timeout=2)"

    def __init__(self, place: Path, **environment: str) -> None:
        self.place = place
        self.draw = Random(0)
        self.detail = ""
        self.said = ""
        self._may_die: set[int] = set()
        self.anew = True
        self._pids: list[int] = []
        self._token = 0
        self._marks = 0
        self.notebook = Notebook(**environment)
        try:
            self.start()
        except BaseException:
            self.notebook.close()
            raise

    def start(self) -> None:
        """Start a lab, or get back the one that is running."""
        self.cell(self.STARTS, "")
        address = ast.literal_eval(self.notebook.value("str(lab._address)"))
        self.trace = Trace.of(address)
        self.anew = True

    def stop(self) -> None:
        """End the lab; nothing of it may be left."""
        self.cell("lab.stop()", "")
        assert eventually(self.trace.gone), f"left after lab.stop(): {self.trace.left()}"

    def restart(self) -> None:
        """Jupyter's Restart: the lab ends with the kernel, and the new kernel starts another one."""
        self.notebook.restart()
        assert eventually(self.trace.gone), f"left after a restart: {self.trace.left()}"
        self.start()

    # -- cells ------------------------------------------------------------------------------------------------------

    def px(self, code: str, *ends: str) -> Cell:
        """Run a cell on all ranks."""
        return self.cell(f"%%px\n{code}", *ends)

    def cell(self, code: str, *ends: str) -> Cell:
        """Run a cell, which must end as an error that begins with one of `ends`, or well where one of them is ""."""
        return self._as_said(self.notebook.run(code), ends)

    def during(self, code: str, act: Callable[[], object], *ends: str) -> Cell:
        """Do something once all ranks are in a cell."""
        self._marks += 1
        folder = self.place / f"marks-{self._marks}"
        folder.mkdir()
        sent = self.notebook.send(f"%%px\nopen(f'{folder}/{{rank}}', 'w').close()\n{code}")
        assert eventually(lambda: len(list(folder.iterdir())) == self.n), "not every rank has begun with the cell"
        act()
        cell = self._as_said(self.notebook.wait(sent), ends)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        return cell

    def at(self, seconds: float, code: str, act: Callable[[], object], *ends: str) -> Cell:
        """Do something so many seconds after a cell has begun."""
        sent = self.notebook.send(code)
        self.notebook.until_begun(sent)
        time.sleep(seconds)
        act()
        return self._as_said(self.notebook.wait(sent), ends)

    def _as_said(self, cell: Cell, ends: tuple[str, ...]) -> Cell:
        self.said += f"{cell.stdout}\n{cell.stderr}\n{cell.traceback}\n"
        well = any(cell.error.startswith(end) if end else not cell.error for end in ends)
        assert well, (
            f"a cell ended as {cell.error or 'well'!r} instead of {ends}\n{cell.traceback}\n{cell.stdout[-2000:]}"
        )
        return cell

    # -- faults from outside ----------------------------------------------------------------------------------------

    def may_die(self, *ranks: int) -> None:
        """These ranks may lose their variables, if the learner is told so."""
        self._may_die |= set(ranks)

    def kill(self, who: int | str) -> None:
        """Kill a rank, or the lab's "controller", "forkserver" or "reaper": it has ended when this returns."""
        if isinstance(who, int):
            self.may_die(who)
        self.send(who, signal.SIGKILL)

    def send(self, who: int | str, *signals: signal.Signals, between: float = 0.0) -> None:
        """Send signals to one of these, so many seconds apart."""
        for fd in self._held(who):
            for sig in signals:
                signal.pidfd_send_signal(fd, sig)
                time.sleep(between)
            assert signals[-1] != signal.SIGKILL or ended(fd, SOON)
            os.close(fd)

    def _held(self, who: int | str) -> list[int]:
        """A pidfd of its process, which is surely the lab's; none where a rank has ended by now."""
        ours = {p.pid: p for p in self.trace.processes()}
        known = dict(enumerate(self._pids)) | {"controller": self.who.controller}
        if who in known:
            return [os.pidfd_open(known[who])] if known[who] in ours else []
        # The server's name is also that of what it has forked.
        found = [pid for pid in ours.keys() - known.values() if any(str(who) in word for word in ours[pid].cmdline())]
        assert found, f"there is no {who}"
        return [os.pidfd_open(pid) for pid in found]

    def stop_button(self) -> None:
        """Press Stop."""
        self.notebook.interrupt()

    # -- what must be true whatever has happened --------------------------------------------------------------------

    def right(self) -> None:
        """A random correct program gives the right results; variables are kept, and each death was told."""
        asked = draw_round(self.draw, self.n)
        pull = "lab.pull(\"[got, token.tolist() if 'token' in globals() else None, __import__('os').getpid()]\")"
        cell = self.cell(f"lab.run({asked.code!r})\n{pull}", "")
        answers = ast.literal_eval(cell.result)
        for r, (got, token, pid) in enumerate(answers):
            assert got == asked.want[r], f"WRONG on rank {r}: {got} instead of {asked.want[r]} after\n{asked.code}"
            if self.anew:
                continue
            if pid == self._pids[r]:
                assert token == self._token + r, f"rank {r} lost its variables: {token}"
            else:
                assert r in self._may_die, f"rank {r} died for no reason:\n{self.said}"
                assert "anew" in self.said, f"nobody told that rank {r} died:\n{self.said}"
        self._token = 1000 * self.draw.randrange(1, 1000)
        facts = self.cell(f"lab.run('token = torch.tensor({self._token} + rank, device=device)')\n{FACTS}", "").result
        controller, self._pids = ast.literal_eval(facts)
        self.who = chaos_census.Who(self.notebook.pid, controller, self._pids)
        self.anew, self._may_die, self.said = False, set(), ""

    def census(self) -> chaos_census.Census:
        """Count what the lab has, once what starts late is there, and what nobody holds is collected."""
        self.cell(COUNTED, "")
        return chaos_census.take(self.who, self.trace, self.place)


@contextlib.contextmanager
def nothing_left(mark: str, **environment: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """A place, and the environment of a kernel in it; afterwards no process or file of the kernel's may be left."""
    with tempfile.TemporaryDirectory(prefix="chaos-", dir="/tmp") as name:
        own = f"{name}/ipython"
        yield (
            Path(name),
            {mark: name, "TMPDIR": name, "IPYTHONDIR": own, "LABKIT_PROGRESS": f"{own}/work", **environment},
        )
        gone = eventually(lambda: not carrying(f"{mark}={name}"))
        left = [" ".join(p.cmdline()) for p in carrying(f"{mark}={name}")] if not gone else []
        assert not left, f"left at the end: {left}"
        files = eventually(lambda: not list(Path(name).glob("labkit-*")))
        assert files, f"left at the end: {list(Path(name).glob('labkit-*'))}"


@contextlib.contextmanager
def learner(mark: str, kind: type[Learner] = Learner, **environment: str) -> Iterator[Learner]:
    """A learner of this kind in a place of its own, of whom nothing may be left."""
    with nothing_left(mark, **environment) as (place, theirs):
        who = kind(place, **theirs)
        try:
            yield who
        finally:
            who.notebook.close()
