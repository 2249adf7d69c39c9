"""A cell that prints without end: the notebook shows where it begins and ends, says which file has all, and goes on."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from labkit.rank.output import LAST, SHOWN
from tests.live.notebook import Notebook
from tests.live.processes import eventually

ALIVE = "y = torch.ones(1)\ndist.all_reduce(y)\nprint(int(y), keep)"
NOTE = re.compile(r"… ([\d,]+) lines \(.*\) left out here; (all of it is|the first 64 MiB are) in (/\S+\{rank\}\.txt)")


@pytest.fixture(autouse=True)
def _variables(lab, capsys):
    lab.run("keep = 100 + rank\nimport os, sys")
    yield
    assert lab.run(ALIVE) == [f"{lab.n} {100 + r}\n" for r in range(lab.n)]
    capsys.readouterr()


@pytest.fixture(scope="module")
def real():
    """A notebook as Jupyter starts it: beside pytest, ipykernel does not catch what programs of a cell write."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_CURRENT_TEST")
        with Notebook() as notebook:
            notebook.value("from labkit import start\nlab = start(3, timeout=20)")
            yield notebook


def resident(lab):
    """The memory of the controller, which passes every line on."""
    (pid,) = lab._engines.processes.cluster.controller.pids
    return psutil.Process(pid).memory_info().rss


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_many_lines_on_every_rank_are_shown_cut_and_a_file_of_each_has_all(lab, capsys, stream):
    many = 200_000
    before = resident(lab)
    tens = "print(*range(i, i + 10), sep='\\n', file=sys.{stream})"
    lab.run(f"for i in range(0, {many}, 10): {tens.format(stream=stream)}")
    shown = getattr(capsys.readouterr(), "out" if stream == "stdout" else "err")
    lines = [line.removeprefix("ranks 0–2 │ ") for line in shown.splitlines()]
    note = NOTE.fullmatch(lines[(at := next(i for i, line in enumerate(lines) if line.startswith("…")))])
    left = int(note[1].replace(",", ""))
    assert lines[:at] == [str(i) for i in range(at)]
    assert lines[at + 1 :] == [str(i) for i in range(at + left, many)]
    assert 10 < len(lines) - at - 1 < LAST
    assert note[2] == "all of it is"
    for rank in range(lab.n):
        kept = Path(note[3].replace("{rank}", str(rank))).read_text()
        assert kept == "".join(f"{i}\n" for i in range(many))
    assert resident(lab) - before < max(lab.n * len(kept) / 2, 4 * lab.n * SHOWN)


def test_two_hundred_megabytes_on_one_rank_are_shown_cut_and_the_file_has_an_end(lab, capsys):
    before = resident(lab)
    code = "if rank == 2:\n    for i in range(2000): print(('x' * 99_999 + '\\n'), end='')"
    assert len(lab.run(code)[2]) <= SHOWN + LAST + 200
    shown = capsys.readouterr().out
    note = next(filter(None, map(NOTE.search, shown.splitlines())))
    assert note[2] == "the first 64 MiB are"
    assert Path(note[3].replace("{rank}", "2")).stat().st_size == 64 << 20
    assert resident(lab) - before < 100 << 20


def test_what_a_program_of_a_cell_writes_is_cut_as_well_and_fills_no_log(real):
    shown = real.run(
        "%%px\nimport subprocess\nif rank == 0: done = subprocess.run(['seq', '2000000'])"
    ).stdout.splitlines()
    assert shown[0] == "rank 0 │ 1"
    assert shown[-1] == "rank 0 │ 2000000"
    assert any(map(NOTE.search, shown))
    logs = Path(eval(real.value("lab._address"))).parent.glob("log/*engine*.log")
    assert sum(log.stat().st_size for log in logs) < 8 << 20  # seq wrote twice as much


def test_the_next_cell_is_shown_whole_again(lab, capsys):
    lab.run("for i in range(100_000): print(i)")
    capsys.readouterr()
    lab.run("for i in range(20_000): print(i)")
    assert "left out" not in capsys.readouterr().out


def test_a_cell_that_raises_after_a_flood_shows_both(lab, capsys):
    with pytest.raises(Exception, match="ranks 0–2: ValueError: no"):
        lab.run("for i in range(100_000): print(i)\nraise ValueError('no')")
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "ranks 0–2 │ 99999"
    assert any(map(NOTE.search, shown))


@pytest.mark.parametrize("where", ["True", "rank == 1"])
def test_stop_ends_a_flood_without_end_and_the_next_cell_works(real, where):
    real.value("lab.run('keep = 7')")
    file = Path(eval(real.value("lab._address"))).parent / "stdout-1.txt"
    file.unlink(missing_ok=True)
    real.run("lab.why()")  # Stop shows a picture: what draws it is in memory by now
    before = psutil.Process(real.pid).memory_info().rss
    cell = real.send(f"%%px\nwhile {where}: print('x' * 1000)\ndist.barrier()")
    assert eventually(lambda: file.exists() and file.stat().st_size > 8 << 20)
    real.interrupt()
    ended = real.wait(cell)
    assert ended.error.startswith("StoppedError: You stopped the cell"), ended.error
    assert NOTE.search(ended.stdout)
    assert psutil.Process(real.pid).memory_info().rss - before < file.stat().st_size
    assert real.run("%%px\nprint(keep)").stdout == "ranks 0–2 │ 7\n"


def test_what_torchs_cpp_says_in_a_cell_is_one_plain_sentence(real):
    cell = real.run(
        "%%px\nfrom torch.nn.parallel import DistributedDataParallel\n"
        "model = DistributedDataParallel(torch.nn.Linear(3, 3), find_unused_parameters=True)\n"
        "for _ in range(2): model(torch.ones(2, 3)).sum().backward()"
    )
    assert cell.status == "ok"
    assert cell.stderr == (
        "ranks 0–2 │ find_unused_parameters=True makes DDP search the graph in every step, and this step used all "
        "parameters. Leave it out, unless other steps use only a part of the model.\n"
    )
