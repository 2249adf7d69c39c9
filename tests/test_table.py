"""The lab's own table: who is where."""

from html.parser import HTMLParser

from labkit.show.table import LabTable

ROWS = [
    {
        "rank": r,
        "engine": 4 + r,
        "pid": 100 + r,
        "host": "foo",
        "device": "cpu",
        "backend": "gloo",
        "memory": 61 << 20,
        "state": "alive",
    }
    for r in range(2)
]


class Cells(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.found = {}
        self.scopes = []
        self._kind = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self._kind = attrs.get("class") if tag == "td" else tag
        self.scopes += [attrs["scope"]] if "scope" in attrs else []

    def handle_data(self, data):
        self.found.setdefault(self._kind, []).append(data)


def test_the_text_names_every_fact_and_says_why():
    assert repr(LabTable(ROWS, "2 CPU ranks with Gloo: no GPU here.")).split("\n") == [
        "2 CPU ranks with Gloo: no GPU here.",
        "rank 0  engine=4 pid=100 host=foo device=cpu backend=gloo memory=61 MiB",
        "rank 1  engine=5 pid=101 host=foo device=cpu backend=gloo memory=61 MiB",
    ]


def test_what_changes_from_run_to_run_has_a_class_by_which_it_can_be_masked():
    cells = Cells(LabTable(ROWS)._repr_html_()).found
    assert cells["pid"] == ["100", "101"]
    assert cells["memory"] == ["61 MiB", "61 MiB"]
    assert cells["engine"] == ["4", "5"]
    assert cells["host"] == ["foo", "foo"]


def test_the_table_has_a_caption_and_headers_for_columns_and_rows():
    cells = Cells(LabTable(ROWS, "because")._repr_html_())
    assert cells.found["caption"] == ["because"]
    assert cells.scopes == ["col"] * 7 + ["row"] * 2


def test_rows_stand_in_rank_order():
    assert repr(LabTable(ROWS[::-1])).startswith("rank 0")


def test_a_dead_rank_is_told_and_what_nobody_knows_is_a_dash():
    text = repr(LabTable([ROWS[0], {**ROWS[1], "memory": None, "state": "dead"}]))
    assert "memory=61 MiB state=alive" in text
    assert "memory=– state=dead" in text


def test_a_column_that_nobody_can_fill_is_left_out():
    assert repr(LabTable([{"rank": 0, "pid": 1}])) == "rank 0  pid=1"


def test_a_host_cannot_write_html():
    assert "<script" not in LabTable([{"rank": 0, "host": "<script>"}], "<script>")._repr_html_()
