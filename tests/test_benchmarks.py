"""The benchmarks' arguments, tables and processes; no test measures a time."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
RESULTS = (FOLDER / "RESULTS.md").read_text()
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")


@pytest.fixture
def load(monkeypatch):
    """Import a benchmark's module as `python benchmarks/start.py` does."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def import_(name: str) -> ModuleType:
        return importlib.import_module(name)

    return import_


def outcomes(start: ModuleType, **failed: str) -> dict:
    samples = {
        "labkit": {"first": [2.0], "memory": [400.0], "%%px": [10.0, 12.0], "stop": [0.2]},
        "torchrun": {"first": [4.0]},
        "ipyparallel": {"first": [10.0], "memory": [900.0], "%%px": [10.0], "%%px --no-stream": [20.0], "stop": [2.0]},
    }
    return {
        name: start.Outcome({} if name in failed else values, failed.get(name, "")) for name, values in samples.items()
    }


def test_every_target_that_the_workbook_promises_has_a_row(load):
    start = load("start")
    rows = start.rows([outcomes(start)])
    targets = {(row.other.split(",")[0], row.ratio, row.limit) for row in rows if row.met() is not None}
    assert {("torchrun", 0.6, None), ("plain ipyparallel", 0.35, None), ("plain ipyparallel", 1.2, None)} <= targets
    assert {limit for *_, limit in targets} == {None, 600, 1}
    assert all(row.met() for row in rows if row.met() is not None)


def test_what_was_not_asked_for_is_no_failure(load):
    start = load("start")
    idle = start.rows([outcomes(start)])[-1]
    assert idle.met() is None
    assert "failed" not in " ".join(idle.cells())


def test_a_ratio_is_the_median_over_rounds_of_their_own_ratios(load):
    table = load("measure.table")
    row = table.Row("x", "s", [[1.0], [20.0], [3.0]], "other", [[2.0], [20.0], [2.0]], ratio=1)
    assert row.measured_ratio() == 1.0
    assert row.cells()[4:] == ("1.00", "ratio ≤ 1", "yes")


def test_a_limit_holds_for_the_worst_sample(load):
    table = load("measure.table")
    assert table.Row("x", "s", [[0.1], [0.9]], limit=1).met()
    assert not table.Row("x", "s", [[0.1], [1.1]], limit=1).met()


def test_a_figure_that_should_equal_another_may_be_off_either_way_by_so_much(load):
    row = load("measure.table").Row
    assert row("x", "s", [[1.04]], "other", [[1.0]], within=0.05).met()
    assert row("x", "s", [[0.96]], "other", [[1.0]], within=0.05).met()
    assert not row("x", "s", [[0.94]], "other", [[1.0]], within=0.05).met()
    assert row("x", "s", [[0.94]], "other", [[1.0]], within=0.05).cells()[5] == "ratio 0.95 to 1.05"


def test_a_program_that_failed_is_named_and_its_targets_are_not_met(load):
    start, table = load("start"), load("measure.table")
    rounds = [outcomes(start), outcomes(start, torchrun="ended with exit code 1: no port")]
    rows = start.rows(rounds)
    assert rows[0].met() is False
    assert rows[1].met() is True
    section = table.render("Title", {}, rows)
    assert "- failed: round 2, torchrun: ended with exit code 1: no port" in section
    assert "failed 1 of 2" in section
    assert "| failed |" in table.render("Title", {}, start.rows([outcomes(start, labkit="took too long")]))


def test_a_table_is_markdown_with_one_line_a_row(load):
    table = load("measure.table")
    lines = table.render("Title", {"cores": "2"}, [table.Row("a | b", "s", [[1.0]])]).splitlines()
    assert lines[:3] == ["## Title", "", "- cores: 2"]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines[4:]] == [len(table.COLUMNS) + 1] * 3


def test_writing_replaces_a_benchmarks_own_section_and_no_other(load, tmp_path):
    table = load("measure.table")
    file = tmp_path / "RESULTS.md"
    file.write_text("# Results\n\n<!-- a: begin -->\nold\n<!-- a: end -->\n\nkept\n")
    table.write("a", "new \\1\n", file)
    table.write("b", "second\n", file)
    table.write("b", "third\n", file)
    assert file.read_text() == (
        "# Results\n\n<!-- a: begin -->\nnew \\1\n<!-- a: end -->\n\nkept\n\n"
        "<!-- b: begin -->\nthird\n<!-- b: end -->\n"
    )


def test_the_committed_results_have_the_columns_the_machine_and_every_row(load):
    start, table = load("start"), load("measure.table")
    section = RESULTS.split("<!-- start: begin -->")[1].split("<!-- start: end -->")[0]
    assert "| " + " | ".join(table.COLUMNS) + " |" in section
    for row in start.rows([]):
        assert f"| {row.what} |" in section
    for fact in ("cores", "memory", "kernel", "python", "torch", "ipyparallel", "load before", "load after", "commit"):
        assert f"- {fact}: " in section


def test_the_clocks_results_compare_each_size_with_the_bare_loop_within_five_per_cent(load):
    clock = load("clock")
    told = {clock.key(n, op, size, who): [[1.0], [1.0]] for n, op, size, who in clock.wanted()}
    rows = clock.rows(told, [])
    assert {way: within for way, (_, within) in clock.WAYS.items()} == {"timed": 0.05, "sweep": 0.05, "again": None}
    assert [row.met() for row in rows] == [True, True, None] * len(clock.RANKS) * len(clock.CASES)
    failed = clock.rows({}, ["2 ranks: took too long"])
    assert not any(row.met() for row in failed)
    section = RESULTS.split("<!-- clock: begin -->")[1].split("<!-- clock: end -->")[0]
    for row in rows:
        assert f"| {row.what} |" in section


@linux
def test_the_machine_is_described_without_importing_what_is_measured(load):
    facts = load("measure.machine").describe(["torch"])
    assert all(facts.values())
    assert re.match(r"\d+ × ", facts["cores"])


@linux
def test_leaving_a_program_ends_what_it_started(load, tmp_path):
    processes = load("measure.processes")
    command = ["sh", "-c", "sleep 600 & echo noise; echo '@ {\"first\": 1}'; read command; sleep 600"]
    with processes.Program(command, tmp_path, limit=60) as program:
        assert program.hear() == {"first": 1}
        (child,) = program.started()
        assert program.memory() > 0
        program.tell("go on")
    assert program.popen.returncode is not None
    assert processes.tagged(program.mark) == []
    assert child not in processes.tagged(program.mark)


@linux
def test_what_becomes_another_program_all_the_time_is_counted_and_weighed(load, tmp_path):
    processes = load("measure.processes")
    again = 'exec sh -c "$1" x "$1"'
    command = ["sh", "-c", f"""sh -c '{again}' x '{again}' & echo '@ 1'; read command"""]
    with processes.Program(command, tmp_path, limit=60) as program:
        assert program.hear() == 1
        (child,) = program.started()
        assert [program.started() for _ in range(300)] == [[child]] * 300
        assert all(processes.proportional(child) > 0 for _ in range(3000))


@linux
def test_a_program_that_ends_early_or_stays_silent_says_so(load, tmp_path):
    processes = load("measure.processes")
    cause = "ValueError: no such rank"
    command = ["sh", "-c", f"echo '{cause}' >&2; echo 'cleaning up' >&2; exit 3"]
    with processes.Program(command, tmp_path, limit=60) as program, pytest.raises(processes.Failed, match=cause):
        program.hear()
    with (
        processes.Program(["sleep", "600"], tmp_path, limit=0.1) as program,
        pytest.raises(processes.Failed, match="took too long"),
    ):
        program.hear()


@linux
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    bench = subprocess.Popen(
        [sys.executable, str(FOLDER / "start.py"), "--rounds=1"],
        env=environment,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which a shell's `make test &` ignores
    )
    scratch: list[Path] = []
    while not scratch and bench.poll() is None:
        scratch = list(tmp_path.glob("bench-*/stderr"))
        time.sleep(0.01)
    bench.send_signal(signal.SIGINT)
    assert bench.wait(30) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("argument", ["--rounds=0", "--cells=0", "--idle=-1"])
def test_arguments_that_measure_nothing_are_refused(load, argument, capsys):
    with pytest.raises(SystemExit):
        load("start").arguments([argument])
    assert argument.split("=")[0] in capsys.readouterr().err.split("error:")[1]


def test_by_default_there_are_five_rounds_and_nothing_is_written(load):
    args = load("start").arguments([])
    assert (args.rounds, args.write) == (5, False)
    assert args.rounds * args.cells >= 50
