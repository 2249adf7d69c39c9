"""What ranks compute beside what they communicate: spans, layers, and when data was there, on live ranks."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest

import labkit
from labkit import CellError, StuckError
from labkit.theory.overlap import computing, overlaps, under_way

LAYERS = ["embedding", "blocks.0", "blocks.1", "blocks.2", "norm", "output"]
MODEL = "torch.manual_seed(0)\nmodel = tiny.Transformer(3, 32)\nbatch = tiny.batch(0, rank, world_size, 32)\n"
DDP = (
    "from torch.nn.parallel import DistributedDataParallel\n"
    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n" + MODEL
)
TRAIN = "tiny.loss(model, batch).backward()\n"
WATCHED = "with span.layers(model):\n    with span('forward'):\n        loss = tiny.loss(model, batch)\n"
WATCHED += "    with span('backward'):\n        loss.backward()\n"


@pytest.fixture(scope="module")
def lab():
    with labkit.start(2, timeout=20) as lab:
        yield lab


def recorded(lab, code, ranks=None):
    lab.run(code, ranks)
    return lab.last.timeline().record


def named(record, of, rank=0):
    return [span.name for span in record.spans[rank] if span.of == of]


# -- spans ----------------------------------------------------------------------------------------------------------


def test_spans_are_kept_with_their_names_in_their_order_one_in_another(lab):
    record = recorded(lab, "with span('step'):\n    with span('forward'): pass\n    with span('backward'): pass\n")
    for mine in record.spans:
        step, forward, backward = mine
        assert [(s.name, s.of) for s in mine] == [("step", ""), ("forward", "forward"), ("backward", "backward")]
        assert step.entered <= forward.entered <= forward.left <= backward.entered <= backward.left <= step.left
    assert [mine[0].rank for mine in record.spans] == [0, 1]


def test_a_span_that_an_exception_leaves_is_kept_and_the_exception_is_the_same(lab):
    with pytest.raises(CellError, match="ZeroDivisionError"):
        lab.run("with span('outer'):\n    with span('backward'):\n        1 / 0")
    for mine in lab.last.timeline().record.spans:
        assert [(s.name, s.error) for s in mine] == [("outer", "ZeroDivisionError"), ("backward", "ZeroDivisionError")]
        assert all(s.left is not None for s in mine)


def test_only_the_last_cell_is_remembered_and_nothing_between_cells(lab):
    lab.run("with span('first'): pass")
    assert recorded(lab, "x = 1").spans == ((), ())
    lab.run("def loss_of(model):\n    with span('looked at'): return 1")
    lab.look("loss_of(0)")
    assert lab.last.timeline().record.spans == ((), ())


def test_what_timed_measures_leaves_no_spans(lab):
    record = recorded(
        lab, "def f():\n    with span('inside'): dist.barrier()\ntimed(f, repeat=1)\nwith span('after'): 1"
    )
    assert [[s.name for s in mine] for mine in record.spans] == [["after"]] * 2


def test_a_name_is_needed_and_a_model(lab):
    with pytest.raises(CellError, match=r'LabError: A span needs a name.*span\("backward"\)'):
        lab.run("with span(3): pass")
    with pytest.raises(CellError, match=r"LabError: span.layers watches a model, and this is a list"):
        lab.run("with span.layers([1]): pass")


def test_many_spans_are_kept_up_to_the_last_ones(lab):
    record = recorded(lab, "for k in range(2100):\n    with span(f's{k}'): pass")
    assert [len(mine) for mine in record.spans] == [2000, 2000]
    assert record.spans[0][0].name == "s100"
    assert "up to 100 earlier ones" in record.notes[0]


# -- layers ---------------------------------------------------------------------------------------------------------


def test_every_layer_has_one_span_forward_and_one_backward_in_the_right_order(lab):
    record = recorded(lab, MODEL + WATCHED)
    for r in (0, 1):
        assert named(record, "forward", r) == ["forward", *LAYERS]
        assert named(record, "backward", r) == ["backward", *LAYERS[::-1]]
        mine = record.spans[r]
        (whole,) = [s for s in mine if s.name == "backward"]
        back = [s for s in mine if s.of == "backward" and s is not whole]
        assert all(whole.entered <= s.entered <= s.left <= whole.left for s in back)
        assert all(a.left <= b.entered for a, b in pairwise(back)), "one after the other"
        ahead = [s for s in mine if s.of == "forward" and s.name in LAYERS]
        assert all(a.left <= b.entered for a, b in pairwise(ahead))


def test_a_layers_backward_span_ends_when_its_parameters_have_their_gradients(lab):
    code = MODEL + (
        "import time\nmoments = {}\n"
        "for name, p in model.named_parameters():\n"
        "    p.register_post_accumulate_grad_hook(lambda p, n=name: moments.update({n: time.perf_counter()}))\n"
        "from labkit.rank import cell_record\n"
    )
    lab.run(
        code + WATCHED + "ends = {s.name: (s.entered, s.left) for s in cell_record.current.spans if s.of == 'backward'}"
    )
    for moments, ends in zip(lab.pull("moments"), lab.pull("ends"), strict=True):
        assert len(moments) == 42
        for name, moment in moments.items():
            layer = max((key for key in ends if name.startswith(key + ".")), key=len, default=None)
            if layer is not None:  # the positions are no layer that is called
                assert ends[layer][0] <= moment <= ends[layer][1], name


def test_watching_changes_no_number_and_leaves_no_hook(lab):
    plain = TRAIN + "plain = [p.grad.clone() for p in model.parameters()]\nmodel.zero_grad()\n"
    watched = WATCHED + "watched = [p.grad.clone() for p in model.parameters()]\nmodel.zero_grad()\n"
    record = recorded(lab, MODEL + plain + watched + TRAIN)
    assert named(record, "backward") == ["backward", *LAYERS[::-1]], "the pass after it has no spans"
    lab.run("same = [torch.equal(a, b) for a, b in zip(plain, watched)]")
    lab.run("same += [torch.equal(a, p.grad) for a, p in zip(plain, model.parameters())]")
    assert lab.pull("same") == [[True] * 84] * 2
    hooks = "(m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)"
    assert lab.pull(f"sum(len(hooks) for m in model.modules() for hooks in {hooks})") == [0, 0]


def test_a_second_pass_through_the_same_graph_has_spans_of_its_own(lab):
    code = "with span.layers(model):\n    loss = tiny.loss(model, batch)\n    loss.backward(retain_graph=True)\n"
    record = recorded(lab, MODEL + code + "    loss.backward()")
    assert named(record, "backward") == LAYERS[::-1] * 2


def test_layers_without_gradients_have_forward_spans_alone(lab):
    record = recorded(lab, MODEL + "with span.layers(model), torch.no_grad():\n    model(batch[0])")
    assert named(record, "forward") == LAYERS
    assert named(record, "backward") == []


def test_weights_that_two_layers_share_do_not_stretch_the_first(lab):
    code = MODEL + "model.output.weight = model.embedding.weight\n" + WATCHED
    record = recorded(lab, code)
    assert named(record, "backward") == ["backward", *LAYERS[::-1]]
    spans = {s.name: s for s in record.spans[0] if s.of == "backward"}
    assert spans["output"].left <= spans["norm"].entered


def test_works_in_place_behind_a_layer_and_a_layer_called_twice(lab):
    record = recorded(
        lab,
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)\n"
        "    def forward(self, x):\n        return self.second(self.first(self.first(x).relu_()).add_(1)).relu_()\n"
        "net = Net()\nwith span.layers(net):\n    net(torch.ones(2, 4)).sum().backward()",
    )
    assert named(record, "forward") == ["first", "first", "second"]
    assert named(record, "backward") == ["second", "first", "first"]


def test_a_learners_own_autograd_function_and_a_collective_within_a_layer_are_watched(lab):
    record = recorded(
        lab,
        "def added(x):\n    y = x.clone()\n    dist.all_reduce(y)\n    return y\n"
        "class Sum(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x): return added(x)\n"
        "    @staticmethod\n    def backward(ctx, g): return added(g)\n"
        "class Row(torch.nn.Linear):\n    def forward(self, x):\n        return Sum.apply(super().forward(x))\n"
        "net = torch.nn.Sequential(torch.nn.Linear(4, 4), Row(4, 4))\n"
        "with span.layers(net):\n    net(torch.ones(2, 4)).sum().backward()",
    )
    for r in (0, 1):
        assert named(record, "forward", r) == ["0", "1"]
        assert named(record, "backward", r) == ["1", "0"]
        one = [s for s in record.spans[r] if s.name == "1"]
        inside = [s.entered <= op.entered <= op.left <= s.left for s, op in zip(one, record.ops[r], strict=True)]
        assert inside == [True, True]
        assert overlaps(record)[r].hidden == 0


def test_an_error_in_a_layer_ends_its_span(lab):
    with pytest.raises(CellError, match="RuntimeError"):
        lab.run(MODEL + "with span.layers(model): model.blocks[1](torch.ones(3, 8, 5))")
    assert [(s.name, s.left is not None) for s in lab.last.timeline().record.spans[0]] == [("blocks.1", True)]
    assert named(recorded(lab, WATCHED), "backward") == ["backward", *LAYERS[::-1]], "it works as before"


def test_activation_checkpointing_computes_a_layer_again_in_the_backward_pass(lab):
    code = (
        "from torch.utils.checkpoint import checkpoint\nlayer = torch.nn.Sequential(torch.nn.Linear(4, 4))\n"
        "with span.layers(layer):\n    checkpoint(layer, torch.ones(2, 4), use_reentrant=False).sum().backward()"
    )
    record = recorded(lab, code)
    assert named(record, "forward", 1) == ["Linear", "Linear"]
    assert named(record, "backward", 1) == ["Linear"]
    assert all(span.left is not None for span in record.spans[1])


# -- when data was there --------------------------------------------------------------------------------------------


def test_a_handle_knows_when_its_data_was_there_long_before_its_wait(lab):
    code = (
        "x = torch.ones(1000)\nwith span('computing'):\n    handle = dist.all_reduce(x, async_op=True)\n"
        "    while not handle.is_completed(): pass\ndist.barrier()\nhandle.wait()"
    )
    record = recorded(lab, code)
    for mine in record.ops:
        op = mine[0]
        assert op.asynchronous
        assert op.entered < op.there < op.waited[0]
        assert op.arrived == op.there
        assert op.ended == op.waited[1]


def test_sends_and_receives_are_under_way_until_their_wait(lab):
    code = (
        "x = torch.ones(1)\nwith span('computing'):\n    handle = dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)\n"
    )
    record = recorded(lab, code + "    handle.wait()")
    assert [op.there for mine in record.ops for op in mine] == [None, None]
    assert [o.late for o in overlaps(record)] == [1, 1]


def test_a_blocking_call_in_a_span_is_not_hidden(lab):
    code = "x = torch.ones(1_000_000)\nwith span('backward'):\n    dist.all_reduce(x)\n"
    record = recorded(lab, code)
    for r, found in enumerate(overlaps(record)):
        (op,) = record.ops[r]
        (span,) = record.spans[r]
        assert span.entered <= op.entered < op.left <= span.left
        assert found.hidden == 0
        assert found.communicating == pytest.approx(op.left - op.entered)
        assert found.computing == pytest.approx(span.left - span.entered - found.communicating)


# -- DDP and FSDP ---------------------------------------------------------------------------------------------------


def hooked(hook="None, default_hooks.allreduce_hook"):
    """Make a DistributedDataParallel; it rebuilds its buckets in its second step, which tells of them."""
    code = DDP + "model = DistributedDataParallel(model, bucket_cap_mb=0.02)\n"
    return code + (f"model.register_comm_hook({hook})\n" if hook else "") + 2 * TRAIN + "model.zero_grad()\n"


def test_ddps_buckets_leave_while_the_backward_pass_goes_on(lab):
    lab.run(hooked())
    record = recorded(lab, WATCHED)
    for r in (0, 1):
        buckets = record.ops[r]
        assert len(buckets) > 3
        assert {(op.op, op.asynchronous, op.line, bool(op.error)) for op in buckets} == {("all_reduce", True, 5, False)}
        assert sum(op.bytes for op in buckets) == 4 * lab.pull("sum(p.numel() for p in model.parameters())")[r]
        (backward,) = [s for s in record.spans[r] if s.name == "backward"]
        layers = [s for s in record.spans[r] if s.of == "backward" and s is not backward]
        assert [s.name for s in layers] == LAYERS[::-1]
        assert buckets[0].entered < layers[-1].entered, "the first one left before the last layer's turn"
        assert all(backward.entered < op.entered < op.there <= backward.left for op in buckets)
        ((computed, done),) = record.logs[r].stood
        assert layers[-1].left <= computed <= done <= backward.left
        assert all(op.waited == (computed, done, 5) for op in buckets), "DDP waits for them at the end"
        known = [under_way(op, done) for op in buckets]
        assert all(computed >= b for a, b in computing(record, r) if backward.entered < a < computed)
        assert all(way is not None for way in known)
    assert [o.open + o.late for o in overlaps(record)] == [0, 0]
    assert "never waited for" not in lab.last.timeline().facts


def test_watching_ddp_changes_no_gradient(lab):
    lab.run(hooked() + TRAIN + "plain = [p.grad.clone() for p in model.parameters()]\nmodel.zero_grad()")
    lab.run(WATCHED + "same = all(torch.equal(p.grad, q) for p, q in zip(model.parameters(), plain))")
    assert lab.pull("same") == [True, True]


def test_ddps_own_buckets_have_an_open_end_and_its_wait_is_no_computing(lab):
    lab.run(hooked(hook=""))
    record = recorded(lab, WATCHED)
    for r, found in enumerate(overlaps(record)):
        assert all(op.witnessed for op in record.ops[r])
        assert found.open == len(record.ops[r]) > 3
        assert found.communicating == found.hidden == 0
        ((computed, done),) = record.logs[r].stood
        assert not [p for p in computing(record, r) if p[0] < done and p[1] > computed]
    assert "not counted" in lab.last.timeline().times


def test_a_compressing_hook_is_recorded_with_the_bytes_that_travel(lab):
    lab.run(hooked("None, default_hooks.fp16_compress_hook"))
    record = recorded(lab, WATCHED)
    for r in (0, 1):
        assert len(record.ops[r]) > 3
        assert all(op.asynchronous and op.there is not None and op.waited for op in record.ops[r])
        assert sum(op.bytes for op in record.ops[r]) == 2 * lab.pull("sum(p.numel() for p in model.parameters())")[r]


def test_hooks_that_a_learner_writes_are_recorded_and_waited_for_where_they_are(lab):
    lab.run(MODEL + "handles = []\nfor p in model.parameters():\n    p.register_post_accumulate_grad_hook("
            "lambda p: handles.append(dist.all_reduce(p.grad, async_op=True)))")  # fmt: skip
    record = recorded(lab, WATCHED + "for handle in handles: handle.wait()")
    for mine in record.ops:
        assert len(mine) == 42
        assert all(op.there is not None and op.waited[2] == 6 for op in mine)
    assert [o.hidden > 0 for o in overlaps(record)] == [True, True]


def test_fsdp_gathers_and_scatters_are_recorded_and_its_layers_are_watched(lab):
    lab.run(
        MODEL + "from torch.distributed.fsdp import fully_shard\nfor block in model.blocks: fully_shard(block)\n"
        "fully_shard(model)\n" + TRAIN + "model.zero_grad()"
    )
    record = recorded(lab, WATCHED)
    for r in (0, 1):
        names = [op.primitive.name for op in record.ops[r]]
        assert names.count("all_gather") == 1 + 2 * 3, (
            "blocks are gathered again for the backward pass, the root is kept"
        )
        assert names.count("reduce_scatter") == 4
        assert named(record, "forward", r) == ["forward", *LAYERS]
        assert named(record, "backward", r) == ["backward", *LAYERS[::-1]]
    alone = "[p.grad.full_tensor() for p in model.parameters()]"
    lab.run(f"watched = {alone}\nmodel.zero_grad()\n{TRAIN}same = all(map(torch.equal, watched, {alone}))")
    assert lab.pull("same") == [True, True]


# -- a program of its own -------------------------------------------------------------------------------------------


def test_a_program_has_spans_that_do_nothing():
    code = "from labkit.rank import cell_record, tiny\nfrom labkit.rank.spans import span\nmodel = tiny.Transformer()\n"
    code += "with span('x'), span.layers(model): tiny.loss(model, tiny.batch(0)).backward()\n"
    code += "print(len(cell_record.current.spans), sum(len(m._forward_hooks) for m in model.modules()))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "0 0\n"


# -- what goes wrong; the last ones, for they start labs of their own ------------------------------------------------


def test_what_fails_is_never_there_and_the_next_cell_works():
    code = "with span('x'):\n    if rank == 0:\n        handle = dist.all_reduce(torch.ones(3), async_op=True)\n"
    with labkit.start(2, timeout=3) as lab:
        with pytest.raises(StuckError):
            lab.run(code + "        handle.wait()")
        (op,) = lab.last.timeline().record.ops[0]
        assert op.there is None
        assert lab.run("x = torch.ones(1)\ndist.all_reduce(x)\nprint(int(x))") == ["2\n"] * 2


def test_a_rank_that_never_used_spans_notes_nothing_for_them():
    with labkit.start(2) as lab:
        code = "handle = dist.all_reduce(torch.ones(3), async_op=True)\nhandle.wait()"
        assert [op.there for mine in recorded(lab, code).ops for op in mine] == [None, None]
        lab.run("with span('x'): pass")
        assert all(op.there is not None for mine in recorded(lab, code).ops for op in mine)
