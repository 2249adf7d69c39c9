"""Global settings of torch and Python: new while the lab runs a function, and afterwards as they were."""

from __future__ import annotations

import os
import random
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.rank import settings

_entered: list[Any] = []  # a context that nobody holds is left at once


class Passing(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def _enter(context: Any) -> None:
    context.__enter__()
    _entered.append(context)


# What a function may set and forget: how, and what tells whether it stands.
LEFT: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "device": (lambda: torch.set_default_device("meta"), lambda: torch.zeros(1).device),
    "gradients": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "determinism": (lambda: torch.use_deterministic_algorithms(True), torch.are_deterministic_algorithms_enabled),
    "autocast": (lambda: torch.set_autocast_enabled("cpu", True), lambda: torch.is_autocast_enabled("cpu")),
    "anomalies": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "precision": (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    "inference": (lambda: _enter(torch.inference_mode()), torch.is_inference_mode_enabled),
    "tiny numbers": (lambda: torch.set_flush_denormal(True), lambda: (torch.tensor([1e-39], device="cpu") / 2).item()),
    "functions' mode": (lambda: _enter(BaseTorchFunctionMode()), torch._C._len_torch_function_stack),
    "operations' mode": (lambda: _enter(Passing()), torch._C._len_torch_dispatch_stack),
    "saved tensors": (
        lambda: _enter(torch.autograd.graph.saved_tensors_hooks(torch.sin, torch.cos)),
        lambda: torch._C._autograd._top_saved_tensors_default_hooks(False),
    ),
    "an alarm": (lambda: signal.alarm(60), lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0),
    "printing": (lambda: torch.set_printoptions(precision=9), lambda: repr(torch.ones(1) / 3)),
    "hooks": (
        lambda: torch.nn.modules.module.register_module_forward_hook(lambda *_: torch.zeros(1)),
        lambda: torch.nn.Identity()(torch.ones(1)),
    ),
    "torch's numbers": (lambda: torch.manual_seed(7), torch.initial_seed),
    "numpy's numbers": (lambda: np.random.seed(7), lambda: np.random.get_state()[1][0]),
    "Python's numbers": (lambda: random.seed(7), random.getstate),
    "numpy's errors": (lambda: np.seterr(all="raise"), np.geterr),
    "environment": (lambda: os.environ.update(LEFT="here"), lambda: os.environ.get("LEFT")),
    "directory": (lambda: os.chdir("/"), os.getcwd),
    "warnings": (
        lambda: warnings.simplefilter("error", BytesWarning),
        lambda: ("error", None, BytesWarning, None, 0) in warnings.filters,
    ),
    "depth": (lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 7), sys.getrecursionlimit),
}
# Of these, what is set before does not come in; of the others, which spoil no result, it does.
NEW = {
    "warnings",
    "dtype",
    "device",
    "gradients",
    "determinism",
    "autocast",
    "anomalies",
    "precision",
    "hooks",
    "inference",
    "tiny numbers",
}


@pytest.mark.parametrize("what", LEFT)
def test_what_is_set_inside_does_not_stay_and_what_was_set_before_does_not_come_in(what, tmp_path):
    set_it, tells = LEFT[what]
    new = tells()
    with settings.as_new():
        set_it()
        assert tells() != new, "this is what is set"
    assert tells() == new
    with settings.as_new():  # as a learner's cell may have left it
        set_it()
        with settings.as_new():
            inside = tells()
        mine = tells()
    assert mine != new, "the learner's comes back"
    assert (inside == new) == (what in NEW)
    assert tells() == new


def test_a_directory_that_has_gone_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with settings.as_new():
        pass


def test_numbers_that_were_drawn_show():
    with settings.as_new():
        for draw in (lambda: torch.rand(1), np.random.rand, random.random):
            settings.seed(3)
            before = settings.drawn()
            assert settings.drawn() == before
            first = draw()
            assert settings.drawn() != before
            settings.seed(3)
            assert draw() == first


def test_names_that_torch_will_change_are_not_told_and_the_functions_own_warnings_are(recwarn):
    with settings.as_new():
        warnings.warn("another name", FutureWarning, stacklevel=1)
        warnings.warn("look here", UserWarning, stacklevel=1)
    assert [str(w.message) for w in recwarn.list] == ["look here"]


def test_a_call_of_torch_distributed_that_has_a_new_name_as_well_is_not_warned_of(recwarn):
    with warnings.catch_warnings():
        settings.let_old_names_be()
        for what in ("distributed.reduce_scatter_tensor", "distributed.all_gather_into_tensor", "something.else"):
            warnings.warn(f"`torch.{what}` is deprecated. Please use another.", FutureWarning, stacklevel=1)
    assert [str(w.message)[:24] for w in recwarn.list] == ["`torch.something.else` i"]


def test_what_torch_warns_of_in_a_paragraph_takes_one_line():
    says = "c10d::broadcast_: an autograd kernel was not registered to the Autograd key(s)"
    with settings.as_new():
        plainly, as_ever = (warnings.formatwarning(it, UserWarning, "a.py", 1) for it in (says, "look here"))
    assert plainly == "torch warned that autograd does not follow this call: pass p.data, or x.detach().\n"
    assert as_ever == "a.py:1: UserWarning: look here\n"
