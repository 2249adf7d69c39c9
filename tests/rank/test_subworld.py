"""Being one of n ranks for a while leaves nothing behind, wherever it is broken off. One process, its own world."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from labkit.rank import subworld
from labkit.rank.subworld import Gate, one_of


@pytest.fixture
def space(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "one")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    subworld.make(1, 10, 500)
    yield {"rank": "mine", "x": 3}
    subworld.destroy(0)
    if dist.is_initialized():
        dist.destroy_process_group()


def standing(space):
    """What must be as it was before, once the groups that were made have been let go."""
    subworld.destroy_temporary()
    world = distributed_c10d._world
    groups = (world.default_pg, set(world.pg_map), set(world.pg_names), set(world.pg_group_ranks))
    return (*groups, dict(os.environ), dict(space), signal.getsignal(signal.SIGINT))


def test_meanwhile_the_sub_group_is_the_world_and_afterwards_it_is_not(space):
    before = standing(space)
    with one_of(1, 1000, space):
        assert dist.group.WORLD is subworld._groups[1]
        assert (space["rank"], space["world_size"], os.environ["WORLD_SIZE"]) == (0, 1, "1")
        assert dist.new_group([0]) in distributed_c10d._world.pg_map
        space["x"] = 4
    space["x"] = 3
    assert standing(space) == before


def test_groups_made_inside_are_there_until_the_next_time_for_ranks_that_are_not_done_with_them(space):
    with one_of(1, 1000, space):
        first = dist.new_group([0])
    assert first in distributed_c10d._world.pg_map
    with one_of(1, 2000, space):
        assert first not in distributed_c10d._world.pg_map
        second, gone = dist.new_group([0]), dist.new_group([0])
        dist.destroy_process_group(gone)
    subworld.destroy(3000)
    assert second not in distributed_c10d._world.pg_map
    subworld.make(1, 10, 500)


def leave(space, error):
    with one_of(1, 1000, space):
        dist.new_group([0])
        dist.new_group([0])
        del space["rank"], os.environ["WORLD_SIZE"]
        raise error


def test_an_error_inside_passes_and_leaves_nothing(space):
    before = standing(space)
    with pytest.raises(KeyError):
        leave(space, KeyError)
    assert standing(space) == before


@pytest.mark.parametrize(("place", "name"), [(subworld, "_assert_in"), (dist, "destroy_process_group")])
def test_a_step_that_fails_leaves_the_others_to_be_done(space, monkeypatch, place, name):
    before = standing(space)
    whole = getattr(place, name)

    def fails(what):
        whole(what)
        if what != 1:
            raise OSError

    with contextlib.suppress(KeyError):
        leave(space, KeyError)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, fails)
        with pytest.raises(OSError):
            leave(space, KeyError)
    assert standing(space) == before


def test_a_world_that_was_destroyed_inside_stays_so_and_so_does_another_that_was_made(space):
    with one_of(1, 1000, space):
        dist.destroy_process_group()
    assert not dist.is_initialized()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    subworld.make(1, 10, 500)
    with one_of(1, 1000, space):
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert not dist.is_initialized(), "the lab joins all of them again"
    assert space == {"rank": "mine", "x": 3}


def run(space):
    """As `function.run` does."""
    reached = []
    with Gate() as gate, one_of(1, 1000, space):
        try:
            with gate.opened():
                reached.append("began")
                dist.get_rank()
                reached.append("ended")
        except KeyboardInterrupt:
            reached.append("broken off")
    return reached


def interrupted(space, step):
    """Run with Stop's signal at the step-th instruction of subworld.py or contextlib.py; whether it came to that."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename not in (subworld.__file__, contextlib.__file__):
            return None
        frame.f_trace_opcodes = frame.f_code.co_filename == subworld.__file__
        count += event in ("opcode", "line")
        if count == step:
            count += 1
            signal.raise_signal(signal.SIGINT)
        return trace

    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        run(space)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(tracing)
    return count > step


def test_stop_at_any_instruction_leaves_nothing(space):
    before = standing(space)
    step = 1
    while interrupted(space, step):
        assert standing(space) == before, f"at instruction {step}"
        step += 1
    assert step > 100


def test_stop_breaks_off_the_function_once_and_nothing_around_it(space):
    assert run(space) == ["began", "ended"]
    with Gate() as gate:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), gate.opened():
            pytest.fail("a Stop that came before is not forgotten")
        signal.raise_signal(signal.SIGINT)
    with Gate() as gate:
        with pytest.raises(KeyboardInterrupt):
            twice(gate)
        signal.raise_signal(signal.SIGINT)


def twice(gate):
    """Two Stops: the second falls into what the first has left to clear away."""
    with gate.opened():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)


def test_each_time_groups_meet_in_a_place_of_their_own(space):
    """A group that is named by its ranks only has the same name each time."""
    for count in (1000, 2000):
        with one_of(1, count, space):
            _, store = distributed_c10d._world.pg_map[dist.group.WORLD]
            assert not store.check(["somebody"])
            store.set("somebody", "was here")
    _, store = distributed_c10d._world.pg_map[subworld._groups[1]]
    assert not store.check(["somebody"])
