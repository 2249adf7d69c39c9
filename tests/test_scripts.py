"""notebooks/scripts run as processes that meet in a file, and print what theory says."""

from __future__ import annotations

import ast
import importlib.util
import math
import re
import sys
from pathlib import Path

import pytest

from tests.scripts import LIMIT, SCRIPTS, printed
from workbook.tools.elsewhere.ten_lines import SYSTEMS

pytestmark = [pytest.mark.live, pytest.mark.slow]


def literals(text: str) -> list:
    """The numbers and lists of numbers in a line, in order."""
    return [ast.literal_eval(found) for found in re.findall(r"\[[^]]*\]|-?\d+(?:\.\d+)?", text)]


@pytest.mark.parametrize("world_size", [1, 3])
def test_the_mean_counts_every_number_once(tmp_path: Path, world_size: int):
    rank, shards, mean, mean_of_means = zip(
        *map(literals, printed("distributed_mean.py", world_size, tmp_path)), strict=True
    )
    assert list(rank) == list(range(world_size))
    assert [len(shard) for shard in shards] == [r + 1 for r in range(world_size)], "uneven"
    numbers = [number for shard in shards for number in shard]
    assert mean == pytest.approx((sum(numbers) / len(numbers),) * world_size)
    wrong = sum(sum(shard) / len(shard) for shard in shards) / world_size
    assert mean_of_means == pytest.approx((wrong,) * world_size)
    assert (mean == mean_of_means) == (world_size == 1), "the wrong one shows"


@pytest.mark.parametrize("world_size", [1, 3])
def test_the_softmax_stands_large_numbers_and_an_empty_shard(tmp_path: Path, world_size: int):
    rank, shards, parts, total = zip(
        *map(literals, printed("distributed_softmax.py", world_size, tmp_path)), strict=True
    )
    assert list(rank) == list(range(world_size))
    assert ([] in shards) == (world_size > 1)
    numbers = [number for shard in shards for number in shard]
    with pytest.raises(OverflowError):
        math.exp(max(numbers))
    powers = [math.exp(number - max(numbers)) for number in numbers]
    assert [p for part in parts for p in part] == pytest.approx([power / sum(powers) for power in powers], rel=1e-5)
    assert [len(part) for part in parts] == [len(shard) for shard in shards]
    assert total == pytest.approx((1,) * world_size)


@pytest.mark.parametrize("n", [1, 3])
def test_the_cheat_sheet_shows_every_primitive_in_rank_order(tmp_path: Path, n: int):
    lines = "\n".join(printed("collective_cheatsheet.py", n, tmp_path))
    rows = re.findall(r"^(.+?) +rank (\d+): (.+) → (.+)$", lines, re.MULTILINE)
    assert len(rows) == lines.count("\n") + 1
    calls = [call for call, *_ in rows[::n]]
    assert [(call, int(rank)) for call, rank, *_ in rows] == [(call, rank) for call in calls for rank in range(n)]
    got = {call: [(before, after) for its, _, before, after in rows if its == call] for call in calls}
    came, left = ([literals(time) for time in times] for times in zip(*got.pop("barrier"), strict=True))
    assert min(left) >= max(came), "nobody leaves before the last has come"

    nothing = ["–"] * (n - 1)
    own = [f"[{r + 1}]" for r in range(n)]
    parts = [[10 * (r + 1) + i for i in range(n)] for r in range(n)]
    everybodys, total = str([r + 1 for r in range(n)]), f"[{n * (n + 1) // 2}]"
    wanted = {
        "broadcast": (own, ["[1]"] * n),
        "scatter": ([str(parts[0]), *nothing], [f"[{part}]" for part in parts[0]]),
        "gather": (own, [everybodys, *nothing]),
        "reduce": (own, [total, *nothing]),
        "all_reduce": (own, [total] * n),
        "all_gather": (own, [everybodys] * n),
        "reduce_scatter": ([str(p) for p in parts], [f"[{sum(p[r] for p in parts)}]" for r in range(n)]),
        "all_to_all": ([str(p) for p in parts], [str([p[r] for p in parts]) for r in range(n)]),
    }
    if n > 1:
        wanted["send, recv"] = (["[1]", *nothing], ["[1]", "[1]", *nothing[1:]])
    assert got == {call: list(zip(*pair, strict=True)) for call, pair in wanted.items()}


def test_every_script_is_run_by_a_test_which_sees_where_it_listens():
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    never_installed = {system.program for system in SYSTEMS.values() if system.folder}
    scripts = {path.name for path in SCRIPTS.glob("*.py")} - never_installed
    assert scripts
    assert [script for script in sorted(scripts) if f'printed("{script}", ' not in tests] == []


@pytest.mark.parametrize(("world_size", "hosts"), [(4, 2), (3, 3)])
def test_all_reduces_on_hosts_give_equal_sums_and_send_what_theory_says_across(tmp_path, world_size: int, hosts: int):
    lines = printed("hierarchical.py", world_size, tmp_path, LIMIT, "--hosts", str(hosts))
    ways = {line[:16].strip(): line[16:] for line in lines}
    assert list(ways) == ["dist.all_reduce", "ring by hosts", "ring in turn", "leaders", "rails"]
    ring, least = 2 * (world_size - 1) / world_size, 2 * (hosts - 1) / hosts
    beside = world_size // hosts  # a ring in turn has nobody beside it
    known = [ring, ring, ring * beside, least, least] if hosts > 1 else [0.0] * 5
    for (way, said), share in zip(ways.items(), known, strict=True):
        off = float(re.search(r"off by (\S+),", said)[1])
        assert off < 1e-5, way
        if sys.platform == "linux":
            assert literals(said.partition(",")[2])[0] == pytest.approx(share, abs=0.02), way


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("world_size", [1, 3])
def test_kernels_meet_and_add_up_as_all_reduce_does(tmp_path: Path, world_size: int):
    _, barrier, *sums = printed("write_the_kernel.py", world_size, tmp_path)
    assert barrier == f"barrier: 0 of {world_size} ranks left early in 5 rounds"
    assert [line.partition(":")[0] for line in sums] == [
        f"{kernel}, torch.{dtype}" for kernel in ("one_shot", "two_shot") for dtype in ("float32", "int64")
    ]
    for line in sums:
        right, asked = literals(line.partition(":")[2])
        assert right == asked == [1, 3, 130, 4097], line
