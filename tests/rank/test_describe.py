"""What a rank says about a value that it holds."""

import collections
import dataclasses
import json

import numpy as np
import pytest
import torch

from labkit.rank.describe import describe, find
from labkit.rank.digest import digest

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Config:
    lr: float
    w: torch.Tensor


class Grumpy:
    def __repr__(self):
        raise RuntimeError("no")


CYCLE: list = [1]
CYCLE.append(CYCLE)

EVERYTHING = {
    "scalars": [True, 3, 0.5, 1 + 2j, float("nan"), None, 1 << 20000, np.float32(0.1), np.bool_(1)],
    "strings": ["a\nb", "x" * 5000, b"\xff" * 5000, "\ud800"],
    "float tensor": torch.randn(1000),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "float8": torch.ones(40).to(torch.float8_e4m3fn),
    "int8": torch.arange(50, dtype=torch.int8),
    "uint16": torch.arange(50).to(torch.uint16),
    "bool": torch.rand(50) > 0.5,
    "complex": torch.ones(50, dtype=torch.cfloat).conj(),
    "zero-dimensional": torch.tensor(3),
    "empty": torch.empty(0, 3),
    "four axes": torch.ones(3, 3, 3, 3),
    "expanded": torch.ones(1, 4).expand(3, 4),
    "meta": torch.empty(3, device="meta"),
    "sparse": torch.eye(3).to_sparse(),
    "huge sparse": torch.sparse_coo_tensor([[0], [0]], [1.0], (10**6, 10**6), check_invariants=True),
    "graph": torch.ones(2, requires_grad=True) * 2,
    "arrays": [np.arange(3), np.ones(99, dtype=np.float16), np.array(["a"]), np.array([None])],
    "containers": {"a": (1, [2, {3}]), 4: Point(1, 2), "c": Config(0.1, torch.ones(1)), "e": []},
    "cycle": CYCLE,
    "module": torch.nn.BatchNorm1d(4),
    "objects": [object(), Grumpy(), lambda: 0, torch.float32, torch.device("cpu"), Config],
}


def test_whatever_a_rank_holds_can_be_sent_as_json_and_twice_is_the_same(subtests):
    for name, value in EVERYTHING.items():
        with subtests.test(name):
            description = describe(value)
            told = json.dumps(description, allow_nan=False)
            assert json.loads(told) == description
            assert len(told) < 20_000
            assert "0x7" not in told
            assert "unreadable" not in told
            assert describe(value) == description, "describing changes nothing"


def test_a_tensor_tells_its_values_type_shape_and_place():
    assert {**describe(torch.tensor([0.1, float("nan"), float("-inf")])), "digest": ""} == {
        "kind": "tensor",
        "dtype": "float32",
        "shape": [3],
        "device": "cpu",
        "requires_grad": False,
        "values": [0.1, "nan", "-inf"],
        "digest": "",
    }


def test_half_precision_is_shown_as_what_it_holds():
    assert describe(torch.tensor([0.1], dtype=torch.bfloat16))["values"] == [0.100097656]
    assert describe(torch.tensor([0.1], dtype=torch.float16))["values"] == [0.099975586]


def test_a_long_tensor_shows_its_head_and_its_range():
    d = describe(torch.arange(100.0))
    assert d["values"] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert (d["min"], d["max"], d["mean"]) == (0.0, 99.0, 49.5)
    assert "min" not in describe(torch.arange(16.0))


def test_a_matrix_shows_its_first_rows():
    assert describe(torch.arange(12).reshape(6, 2))["values"] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_nan_anywhere_shows_in_the_range():
    x = torch.zeros(100)
    x[99] = float("nan")
    assert describe(x)["max"] == "nan"


def test_containers_describe_what_they_hold():
    d = describe({"w": torch.ones(1), "xs": [1, "two"]})
    assert [e["key"] for e in d["entries"]] == ["'w'", "'xs'"]
    assert [e["values"] for e in d["entries"][1]["entries"]] == [1, "two"]
    assert describe(list(range(1000)))["length"] == 1000


def test_names_of_fields_are_kept():
    assert [e["key"] for e in describe(Point(1, 2))["entries"]] == ["x", "y"]
    assert [e["key"] for e in describe(Config(0.1, torch.ones(1)))["entries"]] == ["lr", "w"]


def test_a_module_counts_its_parameters_and_shows_them_and_its_buffers():
    d = describe(torch.nn.BatchNorm1d(4))
    assert d["parameters"] == 8
    assert [e["key"] for e in d["entries"]][:3] == ["weight", "bias", "running_mean"]


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:-1],
        lambda x: x.double(),
        lambda x: x.reshape(2, -1),
        lambda x: torch.cat([x[:-1], x[-1:] + 1]),
    ],
)
def test_digests_differ_where_the_shown_part_does_not(change):
    x = torch.zeros(1000)
    assert digest(x) != digest(change(x))


def test_equal_content_has_one_digest_however_it_is_stored():
    x = torch.arange(6.0).reshape(2, 3)
    assert digest(x) == digest(x.t().contiguous().t()) == digest(torch.nn.Parameter(x))
    assert digest({"a": 1, "b": x}) == digest({"b": x.clone(), "a": 1})
    assert digest({3, 1, 2}) == digest({2, 3, 1})


def test_nesting_is_part_of_the_digest():
    assert digest([[1], 2]) != digest([[1, 2]])
    assert digest(["a", "b"]) != digest(["ab"])
    assert digest(1) != digest(1.0)


def test_two_copies_of_a_model_agree_until_one_of_them_is_trained():
    torch.manual_seed(0)
    a = torch.nn.Linear(3, 4)
    b = torch.nn.Linear(3, 4)
    b.load_state_dict(a.state_dict())
    assert digest(a) == digest(b)
    with torch.no_grad():
        b.bias[3] += 1e-6
    assert digest(a) != digest(b)


def test_a_name_a_part_of_it_and_an_expression_can_be_looked_at():
    space = {"model": torch.nn.Linear(1, 1), "xs": [1, 2]}
    assert find("xs[1]", space)["values"] == 2
    assert find("model.weight", space)["shape"] == [1, 1]
    assert find(" len(xs) + 1 ", space)["values"] == 3


def test_a_name_that_a_rank_does_not_have_is_missing():
    assert find("y", {}) == {"missing": True, "name": "y"}
    assert find("y.grad[0]", {})["missing"]


def test_other_failures_are_told_in_one_line():
    assert find("d['w']", {"d": {}}) == {"error": "KeyError: 'w'"}
    assert find("x = 1", {})["error"].startswith("SyntaxError: invalid syntax")
    assert find("f()", {"f": EVERYTHING["objects"][1].__repr__}) == {"error": "RuntimeError: no"}


def test_looking_leaves_no_name_behind():
    space = {"__builtins__": {}, "x": 1}
    find("x", space)
    assert list(space) == ["__builtins__", "x"]
