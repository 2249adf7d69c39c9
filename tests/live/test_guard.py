"""Ranks that disagree on a collective all get one error that names them; no rank dies, and no value is lost."""

from __future__ import annotations

from inspect import signature

import pytest
import torch.distributed as dist

from tests.live.refusals import ALIVE, refusal


@pytest.fixture(autouse=True)
def _variables(lab):
    lab.run("keep = 100 + rank")


def refused(lab, code):
    """What a cell that no rank may run says; the next one finds the same processes and variables."""
    error = refusal(lab, code)
    assert any("all variables are kept" in note for note in error.notes)
    return str(error)


@pytest.mark.smoke
def test_sum_on_some_ranks_and_max_on_others(lab):
    said = refused(
        lab, "x = torch.ones(4)\n\ndist.all_reduce(x, dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)"
    )
    assert said == (
        "Ranks disagree on the reduction: rank 1 calls all_reduce(MAX, float32[4]) (line 3); ranks 0, 2 call "
        "all_reduce(SUM, float32[4]) (line 3). Make the same call with the same arguments on every rank."
    )


def test_two_calls_that_look_alike_swapped_on_a_rank_never_run(lab):
    lab.run("a, b = torch.ones(3), torch.ones(3) * 10")
    swapped = (
        "if rank == 1:\n    dist.all_reduce(b)\n    dist.all_reduce(a)\n"
        "else:\n    dist.all_reduce(a)\n    dist.all_reduce(b)"
    )
    assert refused(lab, swapped) == (
        "Ranks disagree on the order of their calls: rank 1 calls dist.all_reduce(b) first (line 2); ranks 0, 2 call "
        "dist.all_reduce(a) first (line 5). Make the calls in the same order on every rank."
    )
    assert lab.run("print(b.tolist())") == ["[10.0, 10.0, 10.0]\n"] * lab.n


def test_two_functions_swapped_on_a_rank_are_named_as_swapped(lab):
    code = (
        "def mean(t):\n    dist.all_reduce(t)\ndef share(t):\n    dist.broadcast(t, src=0)\nx = torch.ones(3)\n"
        "if rank:\n    mean(x)\n    share(x)\nelse:\n    share(x)\n    mean(x)"
    )
    assert "order of their calls: rank 0 calls dist.broadcast(t, src=0) first (line 4 of share, called in line 10)" in (
        refused(lab, code)
    )


MISMATCHES = {
    "lengths": ("dist.all_reduce(torch.ones(4 + rank))", "number of elements"),
    "dtypes": ("dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank == 1 else torch.float32))", "dtype"),
    "gathered lengths": (
        "x = torch.ones(4 + rank)\ndist.all_gather([torch.zeros_like(x) for _ in range(world_size)], x)",
        "number of elements",
    ),
    "gathered dtypes": (
        "x = torch.ones(4, dtype=torch.int64 if rank else torch.float32)\n"
        "dist.all_gather([torch.zeros_like(x) for _ in range(world_size)], x)",
        "dtype",
    ),
    "roots": ("dist.broadcast(torch.ones(4), src=rank % 2)", "root"),
    "roots of a reduce": ("dist.reduce(torch.ones(4), dst=rank % 2)", "root"),
    "broadcast lengths": ("dist.broadcast(torch.ones(4 + rank), src=0)", "number of elements"),
    "operations": ("dist.barrier() if rank == 1 else dist.all_reduce(torch.ones(4))", "operation"),
    "splits": (
        "dist.all_to_all_single(torch.zeros(3), torch.ones(3), None, [0, 2, 1] if rank == 0 else None)",
        "number of elements",
    ),
    "chunks": (
        "k = 2 + (rank == 1)\ndist.reduce_scatter(torch.zeros(k), [torch.ones(k)] * world_size)",
        "number of elements",
    ),
    "scattered dtypes": (
        "dist.scatter(torch.zeros(2, dtype=torch.float64 if rank == 1 else torch.float32), "
        "[torch.ones(2)] * 3 if rank == 0 else None, src=0)",
        "dtype",
    ),
    "the list and the tensor form": (
        "x = torch.ones(3)\n"
        "dist.reduce_scatter(x[:1], list(x.split(1))) if rank else dist.reduce_scatter_tensor(x[:1], x)",
        "operation",
    ),
    "gathered lists": (
        "xs = [torch.ones(2), torch.ones(3 + (rank == 1))]\n"
        "dist.all_gather_coalesced([[torch.zeros_like(x) for x in xs] for _ in range(world_size)], xs)",
        "number of elements",
    ),
    "functional": (
        "import torch.distributed._functional_collectives as fc\n"
        "fc.all_reduce(torch.ones(2 + rank), 'sum', dist.group.WORLD)",
        "number of elements",
    ),
    "comms and torch": ("comms.all_reduce(keep) if rank else dist.broadcast(torch.ones(2), 0)", "operation"),
    "asynchronous": (
        "work = dist.all_reduce(torch.ones(2 + rank), async_op=True)\nwork.wait()",
        "number of elements",
    ),
}


@pytest.mark.parametrize(("code", "what"), MISMATCHES.values(), ids=MISMATCHES)
def test_a_mismatch_is_everyones_error(lab, code, what):
    said = refused(lab, code)
    assert said.startswith(f"Ranks disagree on the {what}: ")
    assert all(f"{r}" in said for r in range(lab.n))


def test_an_output_that_does_not_fit_its_input_is_no_disagreement_of_ranks(lab):
    said = refused(lab, "dist.all_to_all_single(torch.empty(3), torch.ones(6))")
    assert said.startswith("The number of elements does not fit: rank")
    assert "all_to_all(float32[6]) with 6 elements of input and 3 of output (line 1)" in said
    assert said.endswith("The output has to be as long as the input.")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("all_gather_into_tensor(torch.zeros(7), torch.ones(2))", "2 elements of input and 7 of output (line 1). "),
        ("all_gather_into_tensor(torch.zeros(7 if rank else 6), torch.ones(2))", "rank 0 calls all_gather(float32[2]"),
        ("reduce_scatter_tensor(torch.zeros(2), torch.ones(7))", "7 elements of input and 2 of output (line 1). "),
        ("all_to_all_single(torch.empty(7), torch.ones(7))", "(line 1). Their length has to be a multiple of 3."),
        ("all_gather([torch.zeros(2 + (rank == 1))] * 3, torch.ones(2))", "Rank 0 gives 2 elements to rank 1, and "),
    ],
)  # fmt: skip
def test_an_output_of_a_wrong_length_is_named_whoever_comes_first(lab, code, says):
    code = f"import warnings\nwarnings.simplefilter('ignore')\ndist.{code}"
    assert says.replace("line 1", "line 3") in refused(lab, code)


def test_a_bucket_of_ddp_does_not_meet_another_call(lab):
    lab.run(
        "from torch.nn.parallel import DistributedDataParallel\nmodel = DistributedDataParallel(torch.nn.Linear(3, 3))"
    )
    code = "loss = model(torch.ones(2, 3)).sum()\nif rank == 2:\n    dist.all_reduce(torch.ones(5))\nloss.backward()"
    assert refused(lab, code).startswith(
        "Ranks disagree on the number of elements: rank 2 calls all_reduce(SUM, float32[5]) (line 3); ranks 0, 1 call "
        "all_reduce(SUM, float32[12]) (line 4)."
    )


MODELS = """
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

class Heads(nn.Module):
    def __init__(self, *names):
        super().__init__()
        for name in names: setattr(self, name, nn.Linear(2, 2))
"""
# What a rank gives DDP, and in what its model is found to differ.
UNLIKE = {
    "nn.Linear(4, 2 if rank else 3)": "parameter weight is float32[3, 4] on rank 0 and float32[2, 4] on ranks 1, 2",
    "nn.Sequential(*(nn.Linear(2, 2) for _ in range(1 + (rank == 1))))": (
        "parameter 1.weight is missing on ranks 0, 2 and float32[2, 2] on rank 1"
    ),
    "nn.Linear(2, 2, bias=rank != 2)": "parameter bias is float32[2] on ranks 0, 1 and missing on rank 2",
    "nn.Linear(2, 2, dtype=torch.double if rank == 2 else None)": (
        "parameter weight is float32[2, 2] on ranks 0, 1 and float64[2, 2] on rank 2"
    ),
    "nn.BatchNorm1d(2, track_running_stats=rank > 0)": (
        "buffer running_mean is missing on rank 0 and float32[2] on ranks 1, 2"
    ),
    "nn.Linear(2, 2).requires_grad_() if rank else nn.Sequential(nn.Linear(2, 2))": (
        "parameter 0.weight is float32[2, 2] on rank 0 and missing on ranks 1, 2"
    ),
    "Heads(*('ab' if rank else 'ba'))": "first comes parameter b.weight on rank 0 and parameter a.weight on ranks 1, 2",
    "nn.Linear(2 + rank, 2)": (
        "parameter weight is float32[2, 2] on rank 0, float32[2, 3] on rank 1 and float32[2, 4] on rank 2"
    ),
}


@pytest.mark.parametrize("model", UNLIKE)
def test_unlike_models_of_ddp_are_refused_on_every_rank_by_the_parameter_s_name(lab, model):
    lab.run(MODELS)
    assert refused(lab, f"net = DDP({model})") == (
        f"Ranks make different models: {UNLIKE[model]}. Give DistributedDataParallel the same model on every rank."
    )


def test_a_frozen_parameter_on_some_ranks_is_another_model(lab):
    lab.run(MODELS + "model = nn.Linear(2, 2)\nmodel.bias.requires_grad = rank != 1")
    assert "bias is float32[2] on ranks 0, 2 and float32[2], frozen on rank 1." in refused(lab, "DDP(model)")


def test_models_that_ddp_may_have_are_not_compared_in_what_it_keeps_apart(lab):
    """Buffers that are not broadcast, and what a model tells DDP to ignore; a copy on one rank is none of theirs."""
    lab.run(MODELS + "import copy\nmodel = nn.BatchNorm1d(2, track_running_stats=rank > 0)")
    lab.run("net = DDP(model, broadcast_buffers=False)\nif rank == 1: copy.deepcopy(net)")
    lab.run("model = nn.Sequential(nn.Linear(2, 2))\nmodel[0].own = nn.Parameter(torch.ones(1 + rank))")
    lab.run("model._ddp_params_and_buffers_to_ignore = ['0.own']\nnet = DDP(model)")
    lab.run(
        "try:\n    if rank: DDP(None)\n    else: DDP(nn.Identity())\nexcept Exception: pass\nnet = DDP(nn.Linear(2, 2))"
    )


def test_groups_made_in_different_orders_are_refused_where_torch_would_mix_their_ranks(lab):
    code = (
        "x = torch.full([1], float(rank))\n"
        "if rank == 1:\n    a, b = dist.new_group([0, 1]), dist.new_group([1, 2])\n"
        "else:\n    b, a = dist.new_group([1, 2]), dist.new_group([0, 1])\n"
        "if rank < 2: dist.all_reduce(x, group=a)\nprint(int(x))"
    )
    assert refused(lab, code) == (
        "Ranks make different groups: ranks 0, 2 make one of ranks 1, 2 (line 5); rank 1 makes one of ranks 0, 1 "
        "(line 3). Call dist.new_group with the same ranks and in the same order on every rank, even if the rank is "
        "not in the group."
    )


def test_a_group_of_others_is_refused_before_anybody_does_anything_in_it(lab, capsys):
    said = refused(
        lab,
        "g = dist.new_group([0, 1] if rank < 2 else [1, 2])\nx = torch.ones(1)\n"
        "if rank == 2: dist.all_reduce(x, group=g)\nprint('done')",
    )
    assert "ranks 0, 1 make one of ranks 0, 1 (line 1); rank 2 makes one of ranks 1, 2 (line 1)." in said
    assert "done" not in capsys.readouterr().out


def test_other_ranks_for_one_group_are_refused(lab):
    said = refused(lab, "g = dist.new_group([0, 1, 2] if rank == 2 else [0, 1])")
    assert "ranks 0, 1 make one of ranks 0, 1 (line 1); rank 2 makes one of ranks 0–2 (line 1)." in said


@pytest.mark.skipif("sort_ranks" not in signature(dist.new_group).parameters, reason="this torch sorts all ranks")
def test_a_group_whose_ranks_are_numbered_otherwise_is_another_one(lab):
    said = refused(lab, "g = dist.new_group([2, 0, 1] if rank == 1 else [0, 1, 2], sort_ranks=False)")
    assert (
        "ranks 0, 2 make one of ranks 0–2 (line 1); rank 1 makes one of ranks 2, 0, 1 in this order (line 1)." in said
    )


def test_a_group_that_some_have_made_in_another_cell_is_refused_in_the_next_one(lab):
    lab.run("pair = [0, 2]\nif rank in pair:\n    g = dist.new_group(pair)")
    said = refused(lab, "everyone = dist.new_group()")
    assert "ranks 0, 2 make one of ranks 0, 2 (line 3 of another cell); rank 1 makes one of ranks 0–2 (line 1)." in said


def test_a_group_of_one_is_a_group_too(lab):
    said = refused(lab, "if rank == 0: alone = dist.new_group([0])\ndist.barrier()\neveryone = dist.new_group()")
    assert "rank 0 makes one of rank 0 (line 1); ranks 1, 2 make one of ranks 0–2 (line 3)." in said


def test_groups_of_which_only_the_members_know_are_made_and_may_be_made_anew(lab):
    lab.run(
        "from torch.distributed.device_mesh import init_device_mesh\nmesh = init_device_mesh('cpu', (world_size, 1))"
    )
    code = (
        "x = torch.ones(1)\nif rank < 2:\n    g = dist.new_group([0, 1], use_local_synchronization=True)\n"
        "    dist.all_reduce(x, group=g)\nelse:\n    dist.new_group([2], use_local_synchronization=True)\nprint(int(x))"
    )
    assert lab.run(code) == ["2\n", "2\n", "1\n"]
    lab.run("for _ in range(3):\n    g = dist.new_group([0, 2])\n    if rank != 1: dist.destroy_process_group(g)")


def test_a_mismatch_in_a_sub_group_names_its_ranks(lab):
    lab.run("pair = dist.new_group([0, 2])")
    assert "rank 0 calls all_reduce(SUM, float32[2]) (line 2); rank 2 calls all_reduce(SUM, float32[4]) (line 2)" in (
        refused(lab, "if rank != 1:\n    dist.all_reduce(torch.ones(2 + rank), group=pair)")
    )


STORE = "store = dist.distributed_c10d._get_default_store()\n"


def test_a_rank_that_has_gone_on_is_fetched_back(lab):
    code = (
        f"{STORE}if rank:\n    store.wait(['root goes on'])\n"
        "work = dist.broadcast(torch.ones(4 if rank == 0 else 5), src=0, async_op=True)\n"
        "store.set('root goes on', '1')\nwhile True:\n    pass"
    )
    assert refused(lab, code).startswith("Ranks disagree on the number of elements: rank 0 calls broadcast(src=0, ")


def test_a_broadcast_stays_no_barrier(lab):
    code = (
        f"{STORE}if rank == 2:\n    store.wait(['rank 1 has left'])\n"
        "dist.broadcast(torch.ones(4), src=0)\n"
        "if rank == 1:\n    store.set('rank 1 has left', '1')\nprint('through')"
    )
    assert lab.run(code) == ["through\n"] * lab.n


def test_a_call_that_torch_itself_refuses_has_not_been_made(lab):
    """A rank that catches the error makes its call again; the others may come at any time."""
    code = (
        "import time\nx, ok = torch.zeros(1), 0\nfor i in range(20):\n    if rank == 0:\n"
        "        try:\n            dist.scatter(x, [torch.ones(1)] * (world_size + 1), src=0)\n"
        "        except (RuntimeError, ValueError):\n            ok += 1\n"
        "        time.sleep(0.005 * (i % 3))\n"
        "        dist.scatter(x, [torch.ones(1)] * world_size, src=0)\n    else:\n"
        "        dist.scatter(x, src=0)\nprint(ok, int(x))"
    )
    assert lab.run(code) == ["20 1\n", *["0 1\n"] * (lab.n - 1)]


def test_what_torch_has_refused_is_not_compared_with_what_the_others_call_later(lab, tmp_path):
    code = (
        f"import pathlib, time\nrefused = pathlib.Path({str(tmp_path / 'refused')!r})\n"
        "x = torch.ones(1)\nif rank == 0:\n    try:\n"
        "        dist.scatter(x, [torch.ones(1)] * (world_size + 1), src=0)\n"
        "    except (RuntimeError, ValueError):\n        refused.touch()\n"
        "while not refused.exists():\n    time.sleep(0.01)\ndist.all_reduce(x)\nprint(int(x))"
    )
    assert lab.run(code) == [f"{lab.n}\n"] * lab.n


def test_without_the_guard_torch_does_what_it_does(lab):
    code = "x = torch.ones(1) + rank\ndist.all_reduce(x, dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)"
    lab.guard = False
    try:
        assert not lab.guard
        lab.run(code)  # no rank complains
        lab._engines.rejoin()
        lab.run(code)  # nor after the ranks have been joined anew
    finally:
        lab.guard = True
    assert "disagree on the reduction" in refused(lab, code)


def test_what_is_timed_runs_without_the_guard(lab):
    lab.run("from labkit.rank import guard\nseen = []\nmine = timed(lambda: seen.append(guard._library), repeat=2)")
    assert lab.run("print(set(seen), guard._library is None)") == ["{None} False\n"] * lab.n


def test_a_group_that_a_learner_has_made_without_the_lab_is_left_alone(lab):
    code = (
        "import tempfile\nfrom labkit.rank import guard\nstore = dist.distributed_c10d._get_default_store()\n"
        "if rank == 0:\n    store.set('place', tempfile.mktemp())\nplace = store.get('place').decode()\n"
        "dist.destroy_process_group()\n"
        "dist.init_process_group('gloo', init_method=f'file://{place}', rank=rank, world_size=world_size)\n"
        "x = torch.ones(1)\ndist.all_reduce(x)\nprint(int(x))"
    )
    assert lab.run(code) == ["3\n"] * lab.n
    assert lab.run("dist.all_reduce(x)\nprint(int(x))") == ["9\n"] * lab.n


AT = {
    "before it begins": ("labkit.rank.guard", "_up", "dist.all_reduce(x)"),
    "once it has begun": ("torch._ops.OpOverload", "redispatch", "pass"),
}


@pytest.mark.parametrize("when", AT)
def test_a_call_that_is_interrupted_counts_where_it_has_begun(lab, when):
    """The ranks stay in step, and none hears that the next calls do not fit."""
    place, name, again = AT[when]
    code = f"""
from pydoc import locate
at, name = locate({place!r}), {name!r}
real = getattr(at, name)
def interrupted(*args):
    setattr(at, name, real)
    real(*args)
    raise KeyboardInterrupt
x = torch.ones(4)
if rank == 1: setattr(at, name, interrupted)
try:
    dist.all_reduce(x)
except KeyboardInterrupt:
    {again}
dist.barrier()
y = torch.ones(5)
dist.all_reduce(y)
if rank != 1: assert x[0] == 3  # there nobody waits for it
print(int(y[0]))
"""
    assert lab.run(code) == ["3\n"] * lab.n


def test_a_board_that_is_gone_hinders_nobody(lab):
    lab.run("from labkit.rank import guard\nfor guarded in guard._groups.values():\n    guarded.board.close()")
    assert lab.run(ALIVE) == [f"{r} {lab.n} {100 + r}\n" for r in range(lab.n)]
    lab._engines.rejoin()


def test_a_group_that_its_first_rank_lets_go_at_once_is_made_on_every_rank(lab):
    lab.run(
        "import os\nfrom labkit.rank import guard\nopen_board = guard._open_board\n"
        "def late(place, *args):\n"
        "    while os.path.exists(place): pass\n"
        "    return open_board(place, *args)\n"
        "guard._open_board = late"
    )
    lab.run("g = dist.new_group()\ndist.destroy_process_group(g)\ndel g\nguard._open_board = open_board")
    refused(lab, "dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)")


def test_boards_go_with_their_groups(lab):
    folder = lab._engines.processes.run.path

    def boards():
        lab.run("import os\nopen_ = os.listdir('/proc/self/fd')")
        lab.run("names = [os.path.realpath(f'/proc/self/fd/{fd}') for fd in open_]")
        opened = [int(said) for said in lab.run("print(sum('-board-' in name for name in names))")]
        return len(list(folder.glob("*-board-*"))), opened

    lab.run("pair = dist.new_group([0, 1])\ndist.all_reduce(torch.ones(1))")
    assert boards() == (2, [2, 2, 1])
    lab.run("if rank < 2:\n    dist.destroy_process_group(pair)\ndel pair")
    assert boards() == (1, [1, 1, 1])
    lab.run("pair = dist.new_group([0, 1])")
    lab._engines.rejoin()
    assert boards() == (1, [1, 1, 1])
    lab._engines.kill(0)
    lab._engines.rejoin()
    assert boards() == (1, [1, 1, 1])
