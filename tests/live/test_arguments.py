"""Arguments that cannot be right are refused in words of torch or of the lab, and no rank dies of them."""

from __future__ import annotations

import ast
import inspect
import itertools
import re

import pytest
import torch.distributed as dist

from labkit import CellError
from labkit.faces.drawing import Drawing
from labkit.lab import Lab
from labkit.theory.primitives import PRIMITIVES
from tests.live.refusals import ALIVE, refusal


@pytest.fixture(autouse=True)
def _variables(lab):
    lab.run("keep = 100 + rank")


def refused(lab, code):
    """What a cell says that ranks are refused, and its error; the next one finds the same processes and variables."""
    error = refusal(lab, code)
    assert "labkit" not in error.traceback
    return str(error), error


NOBODY = {
    "recv": "recv(x, src=3)",
    "send": "send(x, dst=5)",
    "isend": "isend(x, -1)",
    "irecv, a number of numpy's": "irecv(x, __import__('numpy').int64(3))",
    "its number in the group": "recv(x, group_src=3)",
    "a batch": "batch_isend_irecv([dist.P2POp(dist.irecv, x, 3)])",
    "broadcast": "broadcast(x, src=3)",
    "broadcast, its number in the group": "broadcast(x, group_src=7)",
    "reduce": "reduce(x, dst=-2)",
    "gather": "gather(x, [x] * 3 if rank == 0 else None, dst=3)",
    "scatter": "scatter(x, [x] * 3 if rank == 0 else None, src=3)",
    "broadcast_object_list": "broadcast_object_list([1], src=4)",
    "gather_object": "gather_object(1, [0] * 3 if rank == 0 else None, dst=4)",
    "scatter_object_list": "scatter_object_list([0], [1, 2, 3], src=4)",
    "send_object_list": "send_object_list([1], dst=4)",
    "recv_object_list": "recv_object_list([1], src=4)",
    "of the group itself": "group.WORLD.send([x], 4, 0)",
    "the root, of the group itself": "group.WORLD.broadcast(x, 5)",
}


@pytest.mark.parametrize("code", NOBODY.values(), ids=NOBODY)
def test_a_rank_that_does_not_exist_is_named_and_nobody_dies(lab, code):
    said, error = refused(lab, f"x = torch.ones(1)\ndist.{code}")
    assert re.fullmatch(r"ranks 0–2: ValueError: there is no rank -?\d among 3 ranks: choose one of 0 to 2", said)
    assert "----> 2 dist." in error.traceback


def test_a_ring_that_does_not_close_is_refused_where_it_ends_and_the_others_are_freed(lab):
    ring = "x, y = torch.ones(1), torch.zeros(1)\nwork = dist.isend(x, rank + 1)\ndist.recv(y, (rank - 1) % 3)"
    said, error = refused(lab, ring)
    assert said == "rank 2: ValueError: there is no rank 3 among 3 ranks: choose one of 0 to 2"
    assert any(note.startswith("rank 0 waited in recv (line 3)") for note in error.notes)
    closed = ring.replace("rank + 1", "(rank + 1) % 3").replace("ones(1)", "full([1], 7.0 + rank)")
    assert lab.run(f"{closed}\nok = work.wait()\nprint(y.tolist())") == ["[9.0]\n", "[7.0]\n", "[8.0]\n"]


def test_what_was_sent_before_a_refusal_reaches_no_later_cell(lab):
    ring = (
        "x, y = torch.full([1], {}), torch.zeros(1)\nwork = dist.isend(x, (rank + 1) % 3)\n"
        "dist.recv(y, (rank - 1) % 3{})"
    )
    assert "there is no rank 4 among 3 ranks" in str(refused(lab, ring.format("99.0", " + 3"))[1].notes)
    assert lab.run(f"{ring.format('float(rank)', '')}\nok = work.wait()\nprint(int(y))") == ["2\n", "0\n", "1\n"]
    lab.run("try:\n    dist.broadcast(x, 7)\nexcept ValueError: pass")
    assert lab.run("print(rank)") == ["0\n", "1\n", "2\n"]


def test_of_a_batch_that_cannot_be_whole_nothing_is_begun(lab):
    code = (
        "x = torch.ones(1)\nops = [dist.P2POp(dist.isend, x, (rank + 1) % 3), dist.P2POp(dist.irecv, x, rank - 1)]\n"
        "before = dist.group.WORLD._get_sequence_number_for_group()\n"
        "try:\n    works = dist.batch_isend_irecv(ops) if rank == 0 else []\n"
        "finally:\n    assert dist.group.WORLD._get_sequence_number_for_group() == before"
    )
    assert refused(lab, code)[0].startswith("rank 0: ValueError: there is no rank -1 among 3 ranks")
    assert "leave the call out" in refused(lab, "dist.batch_isend_irecv([])")[0]


def test_a_rank_beyond_a_smaller_group_is_named_by_its_number_there(lab):
    lab.run("pair = dist.new_group([0, 2])")
    said, _ = refused(lab, "if rank != 1:\n    dist.broadcast(torch.ones(1), group=pair, group_src=2)")
    assert said == "ranks 0, 2: ValueError: there is no rank 2 among 2 ranks of this group: choose one of 0 to 1"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("dist.all_reduce(torch.ones(4 if rank == 1 else 5))", "Ranks disagree on the number of elements"),
        ("dist.broadcast(torch.ones(4), src=3)", "ranks 0–2: ValueError: there is no rank 3"),
        ("dist.new_group([0, 1] if rank else [0, 2])", "Ranks make different groups"),
    ],
)
def test_a_refusal_lasts_until_the_cell_ends(lab, call, says):
    code = f"y = torch.ones(1)\ntry:\n    {call}\nexcept Exception:\n    pass\ndist.all_reduce(y)\nprint(y)"
    assert refused(lab, code)[0].startswith(says)


COLUMN, STEPS, ONE = "torch.ones(3, 2)[:, 1]", "torch.ones(6)[::2]", "torch.ones(1).expand(3)"
TURNED, ROWS = "torch.ones(2, 3).t()", "[torch.ones(3, 2)] * 3"
SPOILED = [
    *(call.format(x) for x in (COLUMN, STEPS, ONE) for call in ("all_reduce({})", "broadcast({}, 0)", "reduce({}, 0)")),
    *(f"scatter({x}, [torch.ones(3)] * 3 if rank == 0 else None)" for x in (COLUMN, ONE)),
    f"scatter(torch.zeros(3, 2), [{TURNED}] * 3 if rank == 0 else None)",
    f"scatter({TURNED}, {ROWS} if rank == 0 else None)",
    f"reduce_scatter(torch.zeros(3, 2), [{TURNED}] * 3)",
    f"reduce_scatter({TURNED}, {ROWS})",
    f"reduce_scatter({COLUMN}, [torch.ones(3)] * 3)",
    f"all_to_all_single({TURNED}, torch.ones(3, 2))",
    f"all_to_all_single({COLUMN}, torch.ones(3), [1, 1, 1], [1, 1, 1])",
]  # fmt: skip


@pytest.mark.parametrize("code", SPOILED)
def test_a_tensor_that_gloo_would_spoil_is_refused(lab, code):
    said, _ = refused(lab, f"dist.{code}")
    assert "Gloo would spoil a tensor of shape [3" in said
    assert "x.contiguous()" in said


RIGHT = {  # tensors that do not lie in order, in calls that take them as they are, and what x holds afterwards
    "x = base.t(); dist.all_reduce(x)": "3 * base.t()",
    "x = base.t(); dist.broadcast(x, 1)": "base.t()",
    "x = base.t(); dist.reduce(x, 0); x = want if rank else x": "3 * base.t()",
    "x = base.t()[None] if rank else base.t()[:, None]; dist.all_reduce(x); x = x.view(3, 2)": "3 * base.t()",
    "x = base[1:]; dist.all_reduce(x)": "torch.tensor([[9.0, 12.0, 15.0]])",
    "x = base[:, :1]; dist.all_reduce_coalesced([x])": "torch.tensor([[0.0], [9.0]])",
    "x = torch.ones(1, 1).expand(1, 1); dist.all_reduce(x)": "torch.tensor([[3.0]])",
    "x = torch.zeros(9, 2); dist.all_gather(list(x.view(3, 3, 2)), base.t())": "base.t().repeat(3, 1)",
    "x = torch.zeros(2, 3)[:, 0]; dist.all_gather([x, torch.zeros(2), torch.zeros(2)], base[0, ::2])": "base[0, ::2]",
    "x = torch.zeros(6, 3)[:, 0]; dist.all_gather_single(x, base[:, 1])": "base[:, 1].repeat(3)",
    "x = torch.zeros(2); dist.reduce_scatter(x, [base[:, 0]] * 3)": "torch.tensor([0.0, 9.0])",
    "x = torch.zeros(3)[::3]; dist.reduce_scatter_single(x, base[1]); x = x - 9 - 3 * rank": "torch.zeros(1)",
    "x = torch.zeros(3, 2)[:, 0]; dist.all_to_all(list(x.split(1)), list(base[1].split(1)))": "base[1, [rank] * 3]",
}  # fmt: skip


@pytest.mark.parametrize(("code", "means"), RIGHT.items())
def test_a_tensor_that_comes_out_right_is_not_refused(lab, code, means):
    code = (
        "import warnings\nwarnings.simplefilter('ignore')\nbase = torch.arange(6.0).reshape(2, 3)\n"
        f"want = ({means}).clone()\n{code}\nprint(torch.equal(x, want) or (x, want))"
    )
    assert lab.run(code) == ["True\n"] * lab.n


def test_a_matrix_that_is_transposed_on_some_ranks_only_is_refused(lab):
    said, _ = refused(lab, "x = torch.ones(2, 3)\ndist.all_reduce(x if rank else torch.ones(3, 2).t())")
    assert said.startswith(
        "Ranks disagree on the order of the elements in memory: rank 0 calls all_reduce(SUM, float32[2"
    )
    assert "with strides (1, 2) (line 2); ranks 1, 2 call" in said


# -- a hundred wrong arguments ------------------------------------------------------------------------------------

PROGRAM = '''
import datetime, inspect, linecache, os, time, warnings
import numpy
import labkit
from labkit.floor.errors import LabError
from labkit.rank import guard

n, members = world_size, list(range(world_size))
store = dist.distributed_c10d._get_default_store()
gone, apart = dist.new_group(members), dist.new_group([0])
dist.destroy_process_group(gone)
PAIRS = {"send": "recv", "isend": "irecv", "send_object_list": "recv_object_list"}

def right(name):
    """Arguments that are right, of every name."""
    def zeros(k): return [torch.zeros(2) for _ in range(k)]
    whole = name in ("all_to_all_single", "all_gather_single", "gather_single")
    return {
        "tensor": torch.ones(2), "tensors": zeros(1), "input": torch.ones(2 * n), "input_tensor": torch.ones(2),
        "output": torch.zeros(2 * n if whole else 2), "output_tensor": torch.zeros(2 * n),
        "tensor_list": zeros(n), "input_list": zeros(n), "input_tensor_list": zeros(n), "output_tensor_list": zeros(n),
        "output_tensor_lists": [zeros(n)] * n, "gather_list": zeros(n) if rank == 0 else None,
        "scatter_list": zeros(n) if rank == 0 else None, "obj": 1, "object_list": [1] * n,
        "object_gather_list": [0] * n if rank == 0 else None, "scatter_object_output_list": [0],
        "scatter_object_input_list": [1] * n, "src": 0, "dst": 0, "p2p_op_list": [], "x": torch.ones(2), "xs": zeros(n),
    }

def wrong():
    """What hardly any argument should be, made anew, each with a name to tell it by."""
    x = torch.ones(2)
    return {
        "nothing": None, "text": "x", "-1": -1, "a huge number": 10**20, "as many as ranks": n, "a fraction": 2.5,
        "an object": object(), "an empty list": [], "a dict": {}, "a generator": (i for i in members), "a class": dict,
        "an array": numpy.ones(2), "a number of numpy's": numpy.int64(n), "a date": datetime.timedelta(seconds=-1),
        "an empty tensor": torch.ones(0), "0-dim": torch.tensor(1.0), "a whole number": torch.tensor(n),
        "meta": torch.ones(2, device="meta"), "sparse": x.to_sparse(), "csr": torch.ones(2, 2).to_sparse_csr(),
        "leaf": torch.ones(2, requires_grad=True), "no leaf": torch.ones(2, requires_grad=True) * 2,
        "double": x.double(), "complex": x.to(torch.complex64), "conjugated": x.to(torch.complex64).conj(),
        "bool": x.bool(), "int16": x.short(), "float8": x.to(torch.float8_e4m3fn), "longer": torch.ones(7),
        "quantized": torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "a column": torch.ones(2, 2)[:, 0],
        "expanded": torch.ones(1).expand(2), "a tuple": (x, x), "a list of one": [x], "a list of nothing": [None] * n,
        "lists in a list": [[x]], "mixed": [x, 1], "too many": [x + i for i in range(7)], "text in a list": ["a"] * n,
        "numbers": members, "negative numbers": [-1] * n, "lengths": [torch.ones(i) for i in members],
        "dtypes": [torch.ones(2), torch.ones(2).long(), torch.ones(2)], "a gone group": gone, "another group": apart,
        "MAX": dist.ReduceOp.MAX, "AVG": dist.ReduceOp.AVG, "BAND": dist.ReduceOp.BAND,
    }

def shown(error):
    """Whether a learner may see this error: torch's own, or a sentence of the lab's."""
    entry = error.__traceback__
    while entry.tb_next is not None:
        entry = entry.tb_next
    code = entry.tb_frame.f_code
    passed_on = "function(" in linecache.getline(code.co_filename, entry.tb_lineno)
    ours = code.co_filename.startswith(os.path.dirname(labkit.__file__))
    said = isinstance(error, LabError) or code.co_name == "refuse" or str(error) == "Invalid process group specified"
    return not ours or passed_on or said

def attempt(name, parameter, what):
    """Make a call with one wrong argument; ranks 0 and 1 are a pair. What must not be, in words."""
    if name in PAIRS:
        if rank > 1: return ""
        name = PAIRS[name] if rank else name
        parameter = parameter.replace("dst", "src" if rank else "dst")
        every = {**right(name), "src": 1 - rank, "dst": 1 - rank}
    else:
        every = right(name)
    call = getattr(dist, name)
    its = [p for p in inspect.signature(call).parameters if p in every]
    given = {p: every[p] for p in its} | {parameter: wrong()[what]}
    try:
        with warnings.catch_warnings(action="ignore"):
            done = call(**given)
            for work in done if isinstance(done, list) else [done]:
                if isinstance(work, dist.Work): work.wait()
    except Exception as error:
        return "" if shown(error) else f"{type(error).__name__}: {error}"
    return ""

def attempts(name, parameter, whats, run):
    """One after the other, on all ranks at the same time; a refusal is not to hinder the next."""
    global begun
    for begun, what in enumerate(whats):
        if said := attempt(name, parameter, what):
            print(f"{name}({parameter}={what}): {said}")
        guard.clear_refusal()
        store.set(f"{run}/{begun}/{rank}", "1")
        while not store.check([f"{run}/{begun}/{r}" for r in members]):  # as `wait` does, where no interrupt reaches it
            time.sleep(0.002)
'''
TABLE = [(p, next(filter(dist.__dict__.get, f.names), "")) for p in PRIMITIVES.values() for f in p.functions]
FUNCTIONS = {name: p for p, name in TABLE if name and (p.kind == "collective" or p.other == "dst")}
_runs = itertools.count()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FUNCTIONS, "batch_isend_irecv"])
def test_wrong_arguments_kill_no_rank_and_show_nothing_of_labkits_own(lab, name, recwarn):
    lab.run(PROGRAM)
    pids = [row["pid"] for row in lab._engines.table()]
    whats, said = ast.literal_eval(lab.run("print(list(wrong()))")[0]), []
    alone = name in FUNCTIONS and bool(FUNCTIONS[name].other)  # ranks are refused while others wait to be freed
    for i, parameter in enumerate(inspect.signature(getattr(dist, name)).parameters):
        todo = [what for what in whats if ("group" in what) <= (parameter == "group")][i % 5 :: 5 if alone else 1]
        while todo:
            try:
                said += lab.run(f"attempts({name!r}, {parameter!r}, {todo!r}, {next(_runs)})")
                todo = []
            except CellError as error:
                said += re.findall("labkit|KeyError|IndexError|AttributeError", f"{error}\n{error.traceback}")
                assert [row["pid"] for row in lab._engines.table()] == pids, f"a rank died: {todo}"
                said += [] if lab.why().svg else ["no picture"]
                todo = todo[max(lab.pull("begun")) + 1 :]
                lab.run(PROGRAM)
    assert "".join(said) == ""
    assert lab.run(ALIVE) == [f"{r} {lab.n} {100 + r}\n" for r in range(lab.n)]
    assert not [w for w in recwarn if "labkit's own mistake" in str(w.message)]


def test_a_lesson_s_tool_is_a_method_of_the_lab_and_a_mistyped_name_is_none(lab):
    assert {"late", "moves", "race", "sheet", "sweep", "histogram"} <= set(dir(lab))
    assert lab.race.__doc__.startswith("Let all-reduces race")
    with pytest.raises(AttributeError, match="'Lab' object has no attribute 'rase'") as raised:
        lab.rase  # noqa: B018
    assert raised.value.obj is lab


def test_the_face_of_a_lab_is_small():
    assert len([name for name in vars(Lab) | vars(Drawing) if not name.startswith("_")]) <= 23
