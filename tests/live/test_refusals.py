"""What labkit.rank.comms cannot do is one and the same error on every rank, and no rank waits or dies."""

from __future__ import annotations

import re

import pytest


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "comms.all_reduce(torch.ones(3 if rank == 2 else 4))",
            r"rank 2 brings \(3,\), ranks 0, 1 bring \(4,\)",
        ),
        (
            "comms.all_reduce(torch.ones(4, dtype=torch.int32 if rank == 1 else torch.float32))",
            "rank 1 brings int32",
        ),
        ("comms.all_reduce(torch.ones(4), 'max' if rank else 'sum')", "rank 0 calls all_reduce"),
        (
            "comms.all_reduce(torch.ones(4)) if rank else comms.all_gather(torch.ones(4))",
            "rank 0 calls all_gather",
        ),
        (
            "comms.all_reduce(torch.ones(1) if rank else 1.0)",
            "rank 0 brings float, ranks 1, 2 bring tensor",
        ),
        ("comms.all_reduce(torch.ones(4, dtype=torch.int64), 'mean')", "int64 cannot hold a mean"),
        ("comms.all_reduce(torch.ones(4, dtype=torch.bool))", "sum of bools"),
        ("comms.all_reduce(torch.ones(4, dtype=torch.int16))", "no sum of int16"),
        ("comms.all_reduce(torch.ones(4), 'band')", "bits of whole numbers"),
        ("comms.all_reduce(torch.ones(4), dist.ReduceOp.PREMUL_SUM)", "Multiply x by the factor first"),
        ("comms.all_reduce(torch.ones(4), 'median')", "op='median' is not a reduction"),
        ("comms.all_reduce(1, 'median')", "op='median' is not a reduction"),
        ("comms.all_reduce([1] * (rank + 1))", "disagree on shape"),
        ("comms.all_reduce(torch.ones(1, requires_grad=True), 'max')", "carries no gradient"),
        ("comms.all_reduce(torch.ones(1, device='meta'))", "is on meta"),
        ("comms.all_reduce(torch.ones(1).to_sparse())", "sparse"),
        ("comms.broadcast(torch.ones(2, dtype=torch.complex64).conj())", r"x\.resolve_conj\(\)"),
        (
            "import warnings\nwith warnings.catch_warnings(action='ignore'):\n"
            "    x = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)\ncomms.broadcast(x)",
            r"x\.dequantize\(\)",
        ),
        ("comms.reduce(torch.ones(4), dst=3)", "dst=3 is not a rank"),
        ("comms.reduce(torch.ones(4), dst=torch.ones(2))", "is not a rank"),
        ("comms.reduce(torch.ones(4), dst=rank)", "disagree on the call"),
        ("comms.broadcast(torch.ones(4), src='0')", "src='0' is not a rank"),
        ("comms.broadcast(torch.ones(4 - rank))", "disagree on the shape"),
        ("comms.broadcast(torch.ones(1) if rank else None)", "rank 0 brings NoneType"),
        (
            "comms.gather(torch.ones(1, dtype=torch.int64 if rank else torch.float32))",
            "disagree on the dtype",
        ),
        ("comms.all_gather(lambda: rank)", "cannot be pickled"),
        ("comms.scatter([1, 2] if rank == 0 else None)", "scatter on rank 0: 2 chunks for 3 ranks"),
        ("comms.scatter(torch.ones(3) if rank == 0 else None)", "a Tensor is not a list of chunks"),
        ("comms.reduce_scatter([torch.ones(1)] * (3 if rank else 2))", "reduce_scatter on rank 0: 2 chunks"),
        ("comms.reduce_scatter([torch.ones(1 + rank)] * 3)", "disagree on the shape"),
        ("comms.all_to_all([torch.ones(1), 2, 3] if rank else [torch.ones(1)] * 3)", "disagree on the kind"),
        ("comms.barrier() if rank else comms.all_gather(1)", r"ranks 1, 2 call barrier\(\)"),
    ],
)
def test_what_cannot_be_is_one_error_on_every_rank(three, code, says):
    told = three.refused(code)
    assert re.search(says, told), told
    assert told.endswith(".")
    assert three("comms.all_reduce(1)") == [3, 3, 3], "the ranks are out of step"


def test_a_sender_and_a_receiver_must_differ_and_both_hear_of_what_cannot_be_sent(three):
    assert three.outcomes("comms.recv(rank)")[1] == "src=1 is this rank itself. Choose one of [0, 2]."
    assert three.outcomes("comms.send(1, 3)")[0] == "dst=3 is not a rank of this group. Choose one of [1, 2]."
    heard = three.outcomes("comms.send(lambda: 1, 1) if rank == 0 else comms.recv(0) if rank == 1 else None")
    assert heard[0] == heard[1]
    assert "cannot be pickled" in heard[0]
