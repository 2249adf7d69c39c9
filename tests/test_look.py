"""`lab.look`: one row per rank, and what differs stands out."""

from html.parser import HTMLParser

import pytest

from labkit.show.compare import number
from labkit.show.look import Look


def tensor(values, dtype="float32", device="cpu", digest=None, **more):
    shape, inner = [], values
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    found = {"kind": "tensor", "dtype": dtype, "shape": shape, "device": device, "values": values}
    return {**found, "requires_grad": False, "digest": digest or repr((dtype, values)), **more}


def a_number(value):
    return {"kind": "number", "dtype": type(value).__name__, "values": value, "digest": repr(value)}


def a_list(*entries, kind="list", name=None):
    held = [{"key": None, **e} for e in entries]
    return {"kind": kind, "type": name or kind, "length": len(held), "entries": held, "digest": repr(held)}


class Html(HTMLParser):
    """Text, bold parts with their titles, and every start tag."""

    def __init__(self, html):
        super().__init__()
        self.bold, self.tags, self.text = {}, [], ""
        self._title = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "b":
            self._title = dict(attrs)["title"]

    def handle_endtag(self, tag):
        if tag == "b":
            self._title = None

    def handle_data(self, data):
        self.text += data
        if self._title is not None:
            self.bold[data] = self._title


EQUAL = Look("x", [tensor([6.0, 6.0])] * 4)
ONE_ODD = Look("x", [tensor([1.0, 2.0, 3.0])] * 3 + [tensor([1.0, 9.5, 3.0])])


def test_what_all_ranks_share_is_said_once():
    assert repr(EQUAL).split("\n") == [
        "x · shape (2,) · float32 · cpu · same on all ranks",
        *[f"rank {r} │ [6.0, 6.0]" for r in range(4)],
    ]


def test_the_one_element_that_differs_carries_a_sign():
    assert ONE_ODD.note == "rank 3 differs"
    assert repr(ONE_ODD).split("\n")[1:] == [
        *[f"rank {r} │ [1.0,  2.0, 3.0]" for r in range(3)],
        "rank 3 │ [1.0, ≠9.5, 3.0]",
    ]


def test_in_html_it_is_bold_and_says_what_the_others_hold():
    html = Html(ONE_ODD._repr_html_())
    assert html.bold == {"≠9.5": "ranks 0–2: 2.0"}
    assert "≠ marks what differs" in html.text


def test_where_everything_differs_no_element_is_marked():
    look = Look("x", [tensor([10.0 * r, 10.0 * r + 1]) for r in range(4)])
    assert look.note == "different on every rank"
    assert "≠" not in repr(look) + look._repr_html_()


def test_columns_are_aligned_over_the_ranks():
    look = Look("x", [tensor([0.0, 1.0]), tensor([10.0, 11.0])])
    assert repr(look).split("\n")[1:] == ["rank 0 │ [ 0.0,  1.0]", "rank 1 │ [10.0, 11.0]"]


def test_camps_of_equal_size_are_named():
    look = Look("x", [a_number(v) for v in (1, 1, 2, 2, 3)])
    assert look.note == "ranks 0, 1 agree; ranks 2, 3 agree; rank 4 alone"


def test_a_rank_without_the_name_says_so():
    look = Look("x", [tensor([1.0]), {"missing": True, "name": "x"}, tensor([1.0])])
    assert "rank 1 │ rank 1 has no x" in repr(look)
    assert "rank 1 has no x" in Html(look._repr_html_()).text
    assert look.note == "same on ranks 0, 2"


def test_a_name_that_no_rank_has_can_be_made():
    look = Look("x.grad", [{"missing": True, "name": "x"}] * 2)
    assert look.note == "no rank has x; a %%px cell can make it"


def test_dead_ranks_and_errors_are_rows_too():
    text = repr(Look("x[9]", [{"dead": True}, {"error": "IndexError: out of range"}, {"silent": True}]))
    assert text.split("\n")[1:] == [
        "rank 0 │ rank 0 is dead",
        "rank 1 │ IndexError: out of range",
        "rank 2 │ rank 2 does not answer",
    ]


def test_another_type_or_shape_is_marked_and_another_gpu_is_not():
    look = Look("x", [tensor([1.0], "float64"), tensor([1.0]), tensor([1.0])])
    assert "rank 0 │ [1.0]  (≠float64)" in repr(look)
    assert "≠float64" in Html(look._repr_html_()).bold
    look = Look("x", [tensor([1.0], device=f"cuda:{r}", digest="same") for r in range(2)])
    assert "≠" not in repr(look) + look._repr_html_()


def test_a_difference_beyond_the_shown_part_is_told():
    look = Look("x", [tensor([0.0] * 8, digest=d) for d in "aab"])
    assert look.note == "rank 2 differs beyond the part shown"


def test_digits_grow_until_a_difference_shows():
    look = Look("x", [tensor([0.5, v]) for v in (0.1234561, 0.1234561, 0.1234568)])
    assert "[0.5, ≠0.123457]" in repr(look)
    assert "0.1235" in repr(Look("x", [tensor([0.1234561])] * 2))


def test_a_nan_stands_out():
    look = Look("loss", [a_number(0.5), a_number(0.5), {**a_number("nan"), "dtype": "float"}])
    assert "≠nan" in repr(look)


def test_a_cut_tensor_shows_dots_and_its_range():
    cut = tensor([0.0] * 8, min=0.0, max=5.0, mean=0.25) | {"shape": [100]}
    assert repr(Look("x", [cut])).endswith(", 0.0, …]\nrank 0 │ min 0.0  max 5.0  mean 0.25")


def test_a_matrix_has_a_line_for_each_row():
    look = Look("w", [tensor([[1.0, -2.5], [10.0, 0.0]])])
    assert repr(look).split("\n")[1:] == ["rank 0 │ [[ 1.0, -2.5],", "rank 0 │  [10.0,  0.0]]"]


def test_nested_values_read_like_python():
    look = Look("xs", [a_list(tensor([1.0]), a_list(a_number(2), kind="tuple"))])
    assert "│ [tensor([1.0]), (2,)]" in repr(look)


def test_long_nested_values_take_a_line_for_each_entry():
    look = Look("xs", [a_list(*[tensor([float(i)] * 4) for i in range(4)])])
    assert repr(look).split("\n")[1].endswith("[tensor([0.0, 0.0, 0.0, 0.0]),")
    assert repr(look).count("\n") == 4


def test_dicts_and_modules_name_their_entries():
    entries = [{"key": "lr", **a_number(0.1)}]
    config = {"kind": "object", "type": "Config", "length": 1, "entries": entries, "digest": "c"}
    assert "Config(lr=0.1)" in repr(Look("c", [config]))
    model = {**config, "type": "Linear", "parameters": 8}
    assert "Linear, 8 parameters" in repr(Look("m", [model]))


def test_one_rank_alone_is_not_compared():
    assert Look("x", [a_number(1)]).note == ""


def test_text_from_a_rank_cannot_write_html():
    evil = {"kind": "string", "dtype": "str", "length": 8, "values": "<script>", "digest": "e"}
    looks = [
        Look("<script>", [evil]),
        Look("x", [{"error": "<script>"}]),
        Look("<script>", [{"missing": True}]),
    ]
    assert not any("<script" in look._repr_html_() for look in looks)


@pytest.mark.parametrize("look", [EQUAL, ONE_ODD, Look("x", [{"dead": True}, a_number(1)])])
def test_the_table_can_be_read_aloud_and_survives_an_untrusted_notebook(look):
    tags = Html(look._repr_html_()).tags
    names = [tag for tag, _ in tags]
    assert names.count("caption") == 1
    assert {attrs["scope"] for tag, attrs in tags if tag == "th"} == {"col", "row"}
    assert not {"style", "script"} & set(names)
    assert {key for _, attrs in tags for key in attrs} <= {"class", "style", "scope", "title", "colspan"}
    assert not any("var(" in attrs.get("style", "") for _, attrs in tags)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "True"),
        (-0.0, "-0.0"),
        (16777216.0, "16777216.0"),
        (1e30, "1e+30"),
        (123456.789, "123456.8"),
        (0.00012346, "0.0001235"),
        (0.99999, "1.0"),
        ("inf", "inf"),
    ],
)
def test_numbers_are_short_and_the_same_everywhere(value, text):
    assert number(value) == text
