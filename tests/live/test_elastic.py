"""A lab that goes on without ranks that die, and grows again: numbers, variables, and all that works on the ranks."""

from __future__ import annotations

import os
import re
import signal

import pytest

import labkit
from labkit import CellError, LabError, StoppedError, StuckError
from labkit.cluster.engines import Engines
from labkit.faces import progress
from labkit.show.flow import Flow
from tests.live.processes import eventually, states
from tests.live.test_healing import controller, killed

DIES = "import os, signal\nif rank in {ranks}: os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()"
SUM = (
    "y = torch.ones(2)\ndist.all_reduce(y)\nprint(rank, world_size, dist.get_rank(), int(y[0]), globals().get('keep'))"
)


@pytest.fixture(scope="module")
def four():
    with labkit.start(4, timeout=5) as lab:
        yield lab


@pytest.fixture
def lab(four):
    """Four ranks that know which they were."""
    four.elastic = False
    four.grow()
    four.run("keep = 100 + rank\nSCALE = 3\ndef scaled(x): return SCALE * x")
    four.elastic = True
    return four


def go_on(lab, *kept):
    """All ranks that are left have one group and their variables; None stands for a new rank."""
    told = [f"{r} {len(kept)} {r} {len(kept)} {None if was is None else 100 + was}\n" for r, was in enumerate(kept)]
    assert lab.run(SUM) == told
    assert lab.n == len(kept) == len(lab.pull("rank"))
    assert set(states(lab)) == {"idle"}


def loses(lab, *ranks):
    with pytest.raises(CellError) as caught:
        lab.run(DIES.format(ranks=set(ranks)))
    return caught.value


def test_the_others_go_on_with_their_variables_and_are_numbered_anew(lab):
    error = loses(lab, 1)
    assert str(error) == "rank 1 died (SIGKILL)"
    assert error.notes[-2:] == [
        "ranks 0, 2, 3 go on as a group of 3, and are ranks 0–2 from now on",
        "the process group is joined again; all variables are kept",
    ]
    go_on(lab, 0, 2, 3)
    assert [row["rank"] for row in lab._engines.table()] == [0, 1, 2]
    assert lab.hosts == [[0, 1, 2]]


def test_the_first_rank_and_the_last_can_be_left_out(lab):
    assert loses(lab, 0, 3).notes[-2] == "ranks 1, 2 go on as a group of 2, and are ranks 0, 1 from now on"
    go_on(lab, 1, 2)


def test_where_no_number_changes_none_is_told(lab):
    assert loses(lab, 3).notes[-2] == "ranks 0–2 go on as a group of 3"


def test_a_second_death_leaves_out_another_and_one_rank_goes_on_alone(lab):
    loses(lab, 1)
    loses(lab, 1)
    go_on(lab, 0, 3)
    assert loses(lab, 0).notes[-2] == "rank 1 goes on alone, and is rank 0 from now on"
    go_on(lab, 3)


def test_where_all_ranks_die_all_are_started_anew(lab):
    assert loses(lab, *range(4)).notes[0].startswith("ranks 0–3 were started anew, ")
    go_on(lab, None, None, None, None)


def test_a_lab_grows_to_as_many_ranks_as_it_had_and_the_new_ones_have_the_cells_definitions(lab, capsys):
    lab.run("only = 1", ranks=0)
    loses(lab, 0, 2)
    lab.run("import math\ndef later(x): return math.floor(x)")
    lab.grow()
    assert re.match(r"Ranks 2, 3 were started anew, with .*scaled.*later again, ", capsys.readouterr().out)
    go_on(lab, 1, 3, None, None)
    assert lab.pull("scaled(later(1.5))") == [3, 3, 3, 3]
    lab.grow()  # there is none to add
    assert capsys.readouterr().out.count("anew") == 0


def test_the_new_rank_gets_its_weights_from_another_and_the_loss_goes_on_as_if_nothing_had_happened(lab):
    lab.run("""
def begin():
    torch.manual_seed(0)
    model = tiny.Model()
    return model, torch.optim.Adam(model.parameters(), lr=0.01), []

def train(model, optimizer, losses, until, dies=None):
    while len(losses) < until:
        if dies == (rank, len(losses)):
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
        loss = tiny.loss(model, tiny.batch(len(losses), rank, world_size))
        optimizer.zero_grad()
        loss.backward()
        loss = loss.detach()
        for tensor in (*(p.grad for p in model.parameters()), loss):
            dist.all_reduce(tensor)
            tensor /= world_size
        optimizer.step()
        losses.append(loss.item())

def as_on_rank_0(model, optimizer, losses):
    told = comms.broadcast((model.state_dict(), optimizer.state_dict(), losses) if rank == 0 else None)
    model.load_state_dict(told[0]), optimizer.load_state_dict(told[1])
    losses[:] = told[2]

undisturbed = begin()
train(*undisturbed, until=12)
copy = begin()
""")
    undisturbed = lab.pull("undisturbed[2]")[0]
    with pytest.raises(CellError, match=r"rank 1 died \(SIGKILL\)"):
        lab.run("train(*copy, until=12, dies=(1, 4))")
    lab.run("as_on_rank_0(*copy)\ntrain(*copy, until=8)")
    lab.grow()
    lab.run("if rank == 3: copy = begin()\nas_on_rank_0(*copy)\ntrain(*copy, until=12)")
    (losses,) = {tuple(losses) for losses in lab.pull("copy[2]")}
    assert losses == pytest.approx(undisturbed, rel=1e-4)


def test_a_rank_that_dies_between_cells_is_left_out_before_the_next_one(lab, capsys):
    os.kill(lab._engines.members[2].pid, signal.SIGKILL)
    assert eventually(lambda: states(lab)[2] == "dead")
    go_on(lab, 0, 1, 3)
    said = capsys.readouterr().out
    assert "Rank 2 had died (SIGKILL); ranks 0, 1, 3 go on as a group of 3, and are ranks 0–2 from now on; " in said
    with pytest.raises(LabError, match="this lab has the ranks 0 to 2"):
        lab.run("pass", ranks=3)


def test_a_rank_that_is_gone_by_now_is_not_sent_a_cell(lab):
    os.kill(lab._engines.members[0].pid, signal.SIGKILL)
    assert eventually(lambda: states(lab)[0] == "dead")
    with pytest.raises(LabError, match=r"only the ranks 0 to 2 now\. Choose among them, or call lab\.grow\(\)\."):
        lab.run("pass", ranks=3)
    go_on(lab, 1, 2, 3)


def test_a_rank_that_dies_while_the_others_join_is_left_out_as_well(lab):
    lab.run(
        "import labkit.rank.group as g, torch.distributed as d, os, signal\n"
        "real = d.init_process_group\n"
        "def dying(*a, **k):\n"
        "    d.init_process_group = real\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if rank == 2: d.init_process_group = dying"
    )
    assert loses(lab, 0).notes[-2] == "ranks 1, 3 go on as a group of 2, and are ranks 0, 1 from now on"
    go_on(lab, 1, 3)


def test_a_rank_that_stands_still_is_left_out(lab):
    with pytest.raises(CellError, match=r"rank 2 stood still \(SIGSTOP\) and was ended"):
        lab.run("import signal\nif rank == 2: signal.raise_signal(signal.SIGSTOP)\ndist.barrier()")
    go_on(lab, 0, 1, 3)


def test_what_a_cell_did_is_told_by_the_numbers_that_its_ranks_had(lab):
    loses(lab, 1)
    assert re.match(r"Rank 1 died \(SIGKILL\), while ranks 0, 2, 3 waited [\d.]+ m?s in barrier", lab.why().why)
    assert [log is None for log in lab._console.records()] == [False, True, False, False]
    lab.grow()
    assert [log is None for log in lab._console.records()] == [False, True, False, False]


def test_a_hang_among_those_that_are_left_names_them_by_their_new_numbers(lab):
    loses(lab, 0)
    with pytest.raises(StuckError) as caught:
        lab.run("if rank != 2:\n    dist.all_reduce(torch.ones(1))")
    assert str(caught.value).startswith("rank 2 is missing: it finished the cell, while ranks 0, 1 wait in all_reduce")
    assert lab.why().why.startswith("Rank 2 is missing")
    go_on(lab, 1, 2, 3)


def test_pictures_checks_and_the_guard_work_on_those_that_are_left(lab):
    loses(lab, 2)
    with pytest.raises(CellError, match="Ranks disagree on the reduction: rank 2 calls"):
        lab.run("dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM)")
    lab.run("x = torch.tensor([1.0 + rank])")
    assert isinstance(flow := lab.flow("dist.all_reduce(x)", "x"), Flow)
    assert len(flow.seen.after) == 3
    lab.run("def total(x):\n    y = x.clone()\n    dist.all_reduce(y)\n    return y")
    verdict = lab.check("total", means="all_reduce")
    assert verdict.ok
    assert "Not run on 4 ranks: this lab has 3." in repr(verdict)
    assert lab.wire("dist.all_reduce(x)").n == 3
    go_on(lab, 0, 1, 3)


def test_a_rank_that_dies_in_a_check_is_started_anew(lab):
    lab.run("import os, signal\ndef total(x):\n    if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n    return x")
    assert not lab.check("total", means="all_reduce").ok
    assert lab.n == 4


def test_healing_by_hand_leaves_a_dead_rank_out_and_keeps_what_is_well(lab, capsys):
    loses(lab, 3)
    lab.heal()
    assert capsys.readouterr().out == ""
    os.kill(lab._engines.members[0].pid, signal.SIGKILL)
    assert eventually(lambda: states(lab)[0] == "dead")
    lab.heal()
    go_on(lab, 1, 2)


def test_a_lab_that_is_elastic_no_more_replaces_a_rank_and_still_grows(lab):
    loses(lab, 1)
    lab.elastic = False
    loses(lab, 0)
    go_on(lab, None, 2, 3)
    lab.grow()
    go_on(lab, None, 2, 3, None)


def test_a_new_controller_knows_those_that_are_left(lab, capsys):
    loses(lab, 1)
    killed(controller(lab))
    go_on(lab, 0, 2, 3)
    lab.grow()
    go_on(lab, 0, 2, 3, None)


def test_a_lab_that_cannot_grow_goes_on_as_it_is_and_grows_later(lab, monkeypatch):
    loses(lab, 1)

    def none(*_):
        raise LabError("There is none.")

    with monkeypatch.context() as patch:
        patch.setattr(lab._engines.processes, "new_engines", none)
        with pytest.raises(LabError, match=r"There is none\."):
            lab.grow()
    go_on(lab, 0, 2, 3)
    lab.grow()
    go_on(lab, 0, 2, 3, None)


def test_a_lab_grows_once_the_cell_that_runs_has_ended(lab):
    loses(lab, 0)
    lab._console.send("import time\ntime.sleep(1)\ndone = True", range(3))
    lab.grow()
    assert lab.pull("globals().get('done')") == [True, True, True, None]
    go_on(lab, 1, 2, 3, None)


def test_stop_while_the_new_ranks_join_is_told_and_leaves_the_lab_well(lab, monkeypatch):
    loses(lab, 2)
    really = Engines.join

    def pressed(engines):
        signal.raise_signal(signal.SIGINT)
        return really(engines)

    with monkeypatch.context() as patch:
        patch.setattr(Engines, "join", pressed)
        with pytest.raises(StoppedError):
            lab.grow()
    go_on(lab, 0, 1, 3, None)


def test_a_program_of_the_cells_is_for_as_many_ranks_as_are_left(lab, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "HERE", tmp_path)
    lab.run("only = rank", ranks=[0, 2])
    lab.run("other = rank", ranks=1)
    loses(lab, 1)
    lab.run("print(rank)")
    assert "--nproc-per-node 3" in lab.script("mine.py").text
    program = (tmp_path / "mine.py").read_text()
    assert "if rank in (0, 1):" in program
    assert "other" not in program


def test_sub_groups_are_said_to_be_gone(lab):
    lab.run("pair = dist.new_group([0, 1])")
    assert loses(lab, 3).notes[-1] == "sub-groups are gone with the old group: make them again"


def test_magics_reach_those_that_are_left(notebook):
    notebook.run("lab.elastic = True")
    assert notebook.run("%%px\n" + DIES.format(ranks={0})).status == "error"
    assert notebook.run("%%px\nprint(rank, world_size)").stdout == "rank 0 │ 0 2\nrank 1 │ 1 2\n"
    assert notebook.run("%%px --targets 1\nprint(rank)").stdout == "rank 1 │ 1\n"
    assert "this lab has the ranks 0 to 1" in notebook.run("%%px --targets 2\nrank").stderr
    notebook.run("lab.grow()")
    assert notebook.run("%%px\nprint(world_size)").stdout == "ranks 0–2 │ 3\n"
