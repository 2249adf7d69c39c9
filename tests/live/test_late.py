"""`lab.late` and `%%late`: who waits for a rank that comes late, seen on real ranks."""

from __future__ import annotations

import pytest

from labkit.floor.errors import CellError, LabError
from workbook.tools.late.face import statements
from workbook.tools.late.show import Late, Lateness

EVERYONE = ["dist.barrier()", "dist.all_reduce(x)", "dist.all_gather(parts, part)", "dist.all_to_all_single(y, x)"]


@pytest.fixture(scope="module")
def _numbers(lab):
    lab.run("x = torch.ones(3); y = torch.ones(3); part = torch.ones(1); parts = list(torch.ones(3, 1))")


@pytest.mark.usefixtures("_numbers")
class TestOnRanks:
    def test_everyone_waits_where_everyones_data_is_needed(self, lab):
        late = lab.late("\n".join(EVERYONE), 1)
        assert [row.call for row in late.rows] == EVERYONE
        assert [row.states for row in late.rows] == [("waits", "late", "waits")] * 4

    def test_those_who_need_nothing_of_the_late_rank_go_on(self, lab):
        late = lab.late(
            "dist.gather(part, parts if rank == 0 else None, dst=0)\n"
            "dist.scatter(part, parts if rank == 0 else None, src=0)",
            1,
        )
        assert [row.states for row in late.rows] == [("waits", "late", "goes on")] * 2
        assert late.waiting("scatter") == [0]

    def test_a_rank_without_a_part_in_it_is_left_out(self, lab):
        late = lab.late(
            "if rank == 0:\n    dist.send(x, dst=1)\nelif rank == 1:\n    dist.recv(x, src=0)\ny = x + 1", 1
        )
        assert [row.states for row in late.rows] == [("waits", "late", "")]  # and y = x + 1 communicates nothing
        assert lab.pull("y.tolist()") is not None

    def test_each_statement_runs_once_on_the_learners_variables(self, lab):
        lab.run("n = torch.ones(1)")
        lab.late("n += 1\ndist.all_reduce(n)", 0)
        assert lab.pull("n.item()") == [6.0] * 3

    @pytest.mark.parametrize(("code", "line"), [("# %%late 1\ndist.barrier()\n1 / 0", 3), ("1 / 0", 1)])
    def test_an_error_names_the_line_and_the_ranks_are_well_afterwards(self, lab, code, line):
        with pytest.raises(CellError, match="ZeroDivisionError") as raised:
            lab.late(code, 1)
        assert f"line {line}" in raised.value.traceback
        assert lab.late("dist.barrier()", 1).waiting("barrier") == [0, 2]

    def test_a_rank_or_a_time_that_cannot_be_is_refused(self, lab):
        with pytest.raises(LabError, match="ranks 0 to 2"):
            lab.late("dist.barrier()", 3)
        with pytest.raises(LabError, match="half the time-out"):
            lab.late("dist.barrier()", 1, seconds=5)


def test_the_magic_draws_the_same_picture_in_every_run(notebook):
    notebook.value("%px x = torch.ones(1)")
    cells = [notebook.run("%%late 2\ndist.all_reduce(x)") for _ in range(2)]
    assert [c.error for c in cells] == ["", ""]
    assert cells[0].result == cells[1].result
    assert "waits    waits    late" in cells[0].result
    assert "UsageError" in notebook.run("%%late\ndist.barrier()").stderr + notebook.run("%%late\nx").error


def test_a_late_value_shows_itself_in_text_words_and_a_picture():
    rows = [
        Lateness("dist.broadcast(x, 0)", ("goes on", "late", "waits")),
        Lateness("dist.send(x, 1)", ("", "late", "")),
    ]
    late = Late(1, 3, rows)
    assert repr(late).splitlines() == [
        "rank 1 comes late     rank 0   rank 1   rank 2",
        "dist.broadcast(x, 0)  goes on  late     waits",
        "dist.send(x, 1)       –        late     –",
    ]
    assert "dist.broadcast(x, 0): rank 2 waits, rank 0 goes on. dist.send(x, 1): no other rank takes part" in late.alt
    assert late._repr_html_() == Late(1, 3, rows)._repr_html_()
    with pytest.raises(LookupError):
        late.waiting("gather")


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("a = 1; b = 2\n\nc = 3", [(1, "a = 1; b = 2"), (3, "c = 3")]),
        ("@d\ndef f():\n    pass", [(1, "@d\ndef f():\n    pass")]),
        ("a = (", [(1, "a = (")]),
        ("", []),
    ],
)
def test_code_is_cut_into_statements_with_their_lines(code, found):
    assert statements(code) == found
