"""Logs of nccl-tests, as several versions print them and people paste them, and texts that are none."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from labkit.floor.errors import LabError
from tests.nccl_log import printed, rows
from workbook.tools.atlas.likeness import verdict
from workbook.tools.atlas.nccl_tests import Unsaid, read
from workbook.tools.costs import H100, calibrate, estimate
from workbook.tools.published import TABLES, find

# Two ranks on one GPU over sockets, nccl-tests 2.18.0 behind mpirun --tag-output (published by a GitHub user, 2026-03).
TAGGED = """Authorization required, but no authorization protocol specified
[1,0]<stderr>:
[1,0]<stdout>:# nccl-tests version 2.18.0 nccl-headers=22907 nccl-library=22907
[1,0]<stdout>:# Collective test starting: all_reduce_perf_mpi
[1,0]<stdout>:# nThread 1 nGpus 1 minBytes 1048576 maxBytes 134217728 step: 2(factor) warmup iters: 10 iters: 50
[1,0]<stdout>:#  Rank  0 Group  0 Pid 2994447 on        lab device  0 [0000:02:00] NVIDIA GeForce RTX 5090
[1,0]<stdout>:#  Rank  1 Group  0 Pid 2994448 on        lab device  0 [0000:02:00] NVIDIA GeForce RTX 5090
[1,0]<stdout>:#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
[1,0]<stdout>:     1048576        262144     float     sum      -1  4366.46    0.24    0.24       0  4365.21    0.24    0.24       0
[1,0]<stdout>:     8388608       2097152     float     sum      -1  4390.92    1.91    1.91       0  4394.16    1.91    1.91       0
[1,0]<stdout>:   134217728      33554432     float     sum      -1  58479.5    2.30    2.30       0  58055.4    2.31    2.31       0
[1,0]<stdout>:# Out of bounds values : 0 OK
"""  # noqa: E501
# Of 2020, with NCCL 2.6.4: neither redop nor root, errors as 0e+00 (NVIDIA/nccl issue #340, two GPUs).
OLD = """./all_gather_perf -b 8 -e 128M -f 2 -g 2
# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
   33554432       4194304   float    817.8   41.03   20.51  0e+00    785.1   42.74   21.37  0e+00
   67108864       8388608   float   1568.3   42.79   21.40  0e+00   1560.9   42.99   21.50  0e+00
# Out of bounds values : 0 OK
"""
# A redop and no root, "error" for "#wrong", two programs side by side (NVIDIA/nccl-tests issue #107, 2022).
ALONE = """#   Rank  0 Pid   1320 on ip-172-31-20-228 device  0 [0x00] Tesla V100-SXM2-16GB
#   Rank  0 Pid   2066 on ip-172-31-22-230 device  0 [0x00] Tesla V100-SXM2-16GB
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
  1310720000     327680000     float     sum   3273.1  400.45    0.00  0e+00     0.40  3276800.0    0.00  0e+00
"""


def test_every_published_table_is_read_back_from_what_would_have_been_printed(subtests):
    for table in TABLES:
        with subtests.test(table.name):
            log = read(printed(table))
            assert (log.op, log.n) == (table.op, table.n)
            assert [size for size, _ in log.rows] == [size for size, _ in table.rows]
            assert [us for _, us in log.rows] == pytest.approx([us for _, us in table.rows], rel=0.06)
            assert log.checked
            assert not log.wrong
            assert (log.generation, log.nccl, log.per_process) == (table.generation, "2.28.9", 1)


def test_a_prefix_on_each_line_is_looked_through():
    log = read(TAGGED)
    assert (log.op, log.n, log.hosts, log.nccl) == ("all_reduce", 2, 1, "2.29.7")
    assert log.rows == ((1048576, 4366.46), (8388608, 4390.92), (134217728, 58479.5))
    assert log.gpu == "GeForce RTX 5090"
    assert not log.generation


@pytest.mark.parametrize("prefix", ["0: ", "[host-1] ", "2025-03-01 10:00:00 ", "\x1b[32m", "worker-0 | "])
def test_so_are_other_prefixes_and_colours(prefix):
    table = find("16 × H100, 2 × Dell")
    log = read("".join(prefix + line + "\x1b[0m\r\n" for line in printed(table).splitlines()))
    assert (log.n, len(log.rows), log.hosts) == (16, len(table.rows), 2)


def test_old_versions_have_fewer_columns():
    log = read(OLD)
    assert (log.op, log.n, log.hosts) == ("all_gather", 2, 1)
    assert log.rows == ((33554432, 817.8), (67108864, 1568.3))


def test_root_zero_is_no_time():
    table = find("8 × A100, broadcast")
    assert read(printed(table)).rows[0] == table.rows[0]


def test_wrong_results_are_counted_and_unchecked_ones_told_apart():
    pairs = [(2**20, 101.9), (2**21, 120.0)]
    assert read(rows("all_reduce", 8, pairs, "12")).wrong == ((2**20, 12), (2**21, 12))
    unchecked = read(rows("all_reduce", 8, pairs, "N/A"))
    assert not unchecked.checked
    assert not unchecked.wrong


def test_an_error_beyond_rounding_is_a_finding_without_a_number_of_elements():
    wrong = rows("all_reduce", 8, [(2**20, 101.9), (2**21, 120.0)], "3e+00") + "\n# Out of bounds values : 4 FAILED"
    log = read(wrong.replace("3e+00", "1e-07", 2))
    assert log.wrong == ((2**21, 0),)
    assert verdict(log).findings[0].startswith("NCCL delivered wrong numbers at 2 MiB. ")


def test_cycles_of_one_size_are_read_as_their_median():
    cycles = [(2**20, 100.0), (2**20, 300.0), (2**20, 110.0)]
    assert read(rows("all_reduce", 8, cycles)).rows == ((2**20, 110.0),)


@pytest.mark.parametrize(
    ("command", "n", "hosts"),
    [
        ("mpirun -np 16 -N 8 broadcast_perf -g 1", 16, 2),
        ("srun -N 2 --ntasks-per-node 4 --mpi=pmix ./broadcast_perf --ngpus 2", 16, 2),
        ("mpiexec.hydra -n16 -ppn 8 broadcast_perf -n 20 -N 3", 16, 2),
        ("torchrun --nnodes=2 --nproc_per_node=8 wrapper.py broadcast_perf", 16, 2),
        ("$ ./build/broadcast_perf -b 8 -t 2 -g 4", 8, 1),
        ("mpirun --map-by ppr:4:node \\\n  -np 8 broadcast_perf -b 8", 8, 2),
    ],
)
def test_the_command_line_says_how_many_gpus_where_nothing_else_does(command, n, hosts):
    log = read(f"{command}\n{rows('broadcast', 8, [(2**20, 101.9), (2**21, 120.0)])}")
    assert (log.n, log.hosts, log.notes) == (n, hosts, ())


def test_a_number_that_the_text_contradicts_is_told():
    text = printed(find("8 × A100, broadcast"))
    assert read(text, n=8).notes == ()
    assert "you say 64" in read(text, n=64).notes[0]
    with_figures = read(rows("all_reduce", 8, [(2**28, 2000.0)]), n=64)
    assert (with_figures.n, "though you say 64" in with_figures.notes[0]) == (8, True)


def test_a_cut_off_paste_is_read_as_far_as_it_goes():
    text = printed(find("8 × H100, p5"))
    cut = text[: text.index("\n# Out") - 20]
    log = read(cut)
    assert len(log.rows) == len(find("8 × H100, p5").rows)
    half = read(cut[: cut.rindex("float") + 20])
    assert len(half.rows) == len(log.rows) - 1
    assert "1 row cut off" in half.notes[-1]


@pytest.mark.parametrize("n", [2, 4, 8, 16, 64, 128])
def test_without_rank_lines_the_number_of_gpus_comes_from_the_bandwidths(n):
    log = read("all_reduce_perf\n" + rows("all_reduce", n, [(2**k, 2**k / 2e5 + 20) for k in range(20, 34)]))
    assert log.n == n
    assert "busbw / algbw" in log.notes[0]


def test_too_few_rank_lines_are_noticed():
    text = printed(find("16 × H100, 2 × Dell"))
    some = "\n".join(line for line in text.splitlines() if not line.startswith(("#  Rank 1", "#  Rank  7")))
    log = read(some)
    assert log.n == 16
    assert "the lines '# Rank' say 10" in log.notes[0]


def test_the_operation_is_known_by_its_columns_or_asked_for():
    pairs = [(2**k, 2**k / 1e5 + 20) for k in range(20, 30)]
    assert read(rows("all_reduce", 8, pairs)).op == "all_reduce"
    assert read(rows("reduce_scatter", 8, pairs)).op == "reduce_scatter"
    assert read(rows("all_gather", 8, pairs)).op == "all_gather"
    with pytest.raises(Unsaid, match="it can be all_gather or all_to_all") as asked:
        read(rows("all_gather", 8, pairs, "N/A"))
    assert asked.value.what == "op"
    assert read(rows("all_gather", 8, pairs, "N/A"), op="all_to_all").op == "all_to_all"
    with pytest.raises(Unsaid, match="how many GPUs") as asked:
        read(rows("broadcast", 8, pairs))
    assert asked.value.what == "n"
    assert read(rows("broadcast", 8, pairs), n=8).n == 8


def test_json_is_read_as_the_table_is():
    table = find("8 × H200")
    half = [{"time": us, "alg_bw": s / us / 1e3, "bus_bw": 1.75 * s / us / 1e3, "nwrong": None} for s, us in table.rows]
    told = {
        "version": 2, "args": ["./build/all_reduce_perf", "-J", "x"], "nccl_version": 22707,
        "config": {"nthreads": 1, "ngpus": 8, "devices": [
            {"rank": r, "group": 0, "pid": 1, "hostname": "h", "device": r, "device_info": "NVIDIA H200"}
            for r in range(8)
        ]},
        "results": [
            {"size": s, "count": s // 4, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": h,
             "in_place": h}
            for (s, _), h in zip(table.rows, half, strict=True)
        ],
    }  # fmt: skip
    log = read(json.dumps(told))
    assert (log.op, log.n, log.rows, log.nccl) == ("all_reduce", 8, table.rows, "2.27.7")
    assert not log.checked
    with pytest.raises(LabError, match="Paste the whole file"):
        read(json.dumps(told)[:-20])


def test_commas_and_bars_between_cells_do_not_matter():
    text = rows("all_reduce", 8, find("8 × H200").rows)
    for between in (",", " | "):
        assert len(read("\n".join(between.join(line.split()) for line in text.splitlines())).rows) == 20


def test_several_runs_in_one_text():
    text = printed(find("8 × A100, -g 8")) + "\n$ " + printed(find("8 × A100, broadcast"))
    assert read(text).op == "all_reduce"
    assert "2 runs" in read(text).notes[0]


def test_the_network_and_the_librarys_version_are_found_in_its_debug_lines():
    debug = "h:1:1 [0] NCCL INFO NET/Socket : Using [0]ens5:172.31.0.112<0>\nh:1:1 [0] NCCL INFO Using network Socket\n"
    log = read(
        debug + "NCCL version 2.19.3+cuda12.3\n" + rows("all_reduce", 16, [(2**k, 2.0**k / 1e5) for k in range(20, 28)])
    )
    assert (log.network, log.nccl) == ("Socket", "2.19.3")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Nothing was pasted"),
        ("hello\nworld", "None of these 2 lines is a row"),
        ("# nThread 1 nGpus 8 minBytes 8 maxBytes 128", "no row below it"),
        ("# nThread 1 nGpus 8\nh: Test NCCL failure common.cu:958 'unhandled'", "Test NCCL failure common.cu:958"),
        (ALONE, "MPI=1"),
        ("{\"results\": 3}", "Paste the whole file"),
        ("hypercube_perf\n" + rows("all_reduce", 8, [(2**20, 100.0)]), "hypercube_perf"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_log_is_refused_with_what_to_paste(text, said):
    with pytest.raises(LabError, match=said):
        read(text)


def test_a_log_calibrates_the_estimate():
    log = read(printed(find("16 × H100, 2 × p5")))
    mine = calibrate(log.op, log.n, H100, log.rows)
    sizes, us = map(np.array, zip(*log.rows, strict=True))

    def off(told: Any) -> float:
        return float(np.median(np.abs(np.log(told * 1e6 / us))))

    assert off(mine.seconds(sizes)) < off(estimate(log.op, sizes, log.n, H100)) / 2, "these have EFA, not InfiniBand"


def test_it_says_in_short_what_it_holds():
    said = repr(read(TAGGED))
    assert "all_reduce on 2 × GeForce RTX 5090 on 1 host, 1 GPU per process, NCCL 2.29.7" in said
