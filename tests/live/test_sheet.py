"""The cheat sheet, run on real ranks: what its pictures show, and what it leaves alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit import Lab, LabError, start
from workbook.tools.sheet.cheats import CHEATS
from workbook.tools.sheet.face import CheatSheet

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start(3, backend="gloo") as lab:
        yield lab


@pytest.fixture(scope="module")
def sheet(lab: Lab) -> CheatSheet:
    lab.run("x = 'mine'\nops = 5\ny = [rank]")
    return lab.sheet()


def test_every_entry_has_the_picture_of_what_the_ranks_did(sheet: CheatSheet) -> None:
    def after(name: str) -> list[list[str]]:
        drawing = next(drawing for cheat, drawing, _ in sheet.entries if cheat.name == name)
        return [[tile.text for group in row for tile in group] for row in drawing.columns[1]]

    assert [cheat for cheat, *_ in sheet.entries] == list(CHEATS)
    assert after("all_reduce") == [["30"]] * 3
    assert after("send, recv") == [["0"], ["0"], ["20"]]
    assert after("isend, irecv") == [["20"], ["0"], ["10"]]
    assert after("reduce_scatter") == [["30"], ["33"], ["36"]]
    assert after("all_to_all") == [["0", "10", "20"], ["1", "11", "21"], ["2", "12", "22"]]
    assert after("all_gather_object") == [["ant", "bee", "cat"]] * 3
    assert after("barrier") == [["waits"], ["goes"], ["waits"]]
    assert after("gather")[0] == ["0", "10", "20"]


def test_a_learners_variables_stay(lab: Lab, sheet: CheatSheet) -> None:
    assert lab.pull("[x, ops, y, 'left' in globals(), '_kept' in globals()]") == [
        ["mine", 5, [r], False, False] for r in range(3)
    ]


def test_a_file_of_ones_own_is_not_written_over(sheet: CheatSheet, tmp_path: Path) -> None:
    path = tmp_path / "sheet.html"
    assert sheet.save(str(path)) == path
    sheet.save(str(path))  # its own, once more
    path.write_text("mine")
    with pytest.raises(LabError, match="overwrite=True"):
        sheet.save(str(path))
    assert path.read_text() == "mine"
    sheet.save(str(path), overwrite=True)
    assert "all_reduce" in path.read_text()
    with pytest.raises(LabError, match=r"cheat-sheet\.html"):
        sheet.save("sheet.pdf")
    with pytest.raises(LabError, match="another place"):
        sheet.save("/proc/sheet.html")


def test_one_rank_is_too_few(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> None:
    monkeypatch.setattr(Lab, "n", property(lambda self: 1))
    with pytest.raises(LabError, match=r"start\(4\)"):
        lab.sheet()
