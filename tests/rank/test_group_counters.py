"""What torch's flight recorders noted is read rightly: of NCCL's calls, as a rank on an H200 had them."""

from __future__ import annotations

import json
import math
import pickle

from torch._C import _distributed_c10d

from labkit.rank import group_counters
from labkit.theory.primitives import find
from workbook.tools import nccl_log


def test_nccls_calls_are_found_in_its_own_flight_recorder(monkeypatch):
    """A torch with CUDA has two: `_dump_fr_trace` has Gloo's calls, and `_dump_nccl_trace` has NCCL's."""
    record = json.loads(nccl_log.text("h200-shared.json"))
    monkeypatch.setattr(_distributed_c10d, "_dump_fr_trace", lambda *_: pickle.dumps({"entries": []}))
    monkeypatch.setattr(_distributed_c10d, "_dump_nccl_trace", lambda *_: pickle.dumps(record), raising=False)
    calls = list(group_counters.noted(-math.inf, math.inf, mixed={"0"}))
    assert [find(call.op).name for call in calls] == [
        *["all_reduce"] * 3, "broadcast", "all_gather", "reduce_scatter", "barrier"
    ]  # fmt: skip
    assert [(call.group, call.backend, call.number) for call in calls] == [("0", 1, k) for k in range(1, 8)]
    assert [call.bytes for call in calls] == [2**20] * 6 + [4]
    assert {call.dtype for call in calls} == {"float32"}
    assert [call.frames[-1]["line"] for call in calls] == [5, 5, 5, 6, 6, 6, 7]
