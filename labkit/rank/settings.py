"""Run a function of the learner's under the settings of torch and Python that a new process has, then put them back."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch

from labkit.rank import torch_internals
from labkit.rank.torch_internals import MODULE_HOOKS, PRINT_OPTIONS

_entered: list[Any] = []  # contexts that are not left


@contextlib.contextmanager
def as_new() -> Iterator[None]:
    """Run what is inside under torch's own defaults (`SETTINGS`), then put back what it or the learner had set."""
    with contextlib.ExitStack() as undo:
        for read, write, new in SETTINGS:
            undo.callback(_put_back, read, write, before := read())
            if new is not KEPT and before != new:
                write(new)
        undo.callback(set_random_states, random_states())
        for hooks in MODULE_HOOKS:
            undo.callback(_refill, hooks, dict(hooks))
            hooks.clear()
        yield


def seed(number: int) -> None:
    """Let all ranks draw the same numbers; `torch.manual_seed` would walk the stack for each GPU that is not there."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def drawn() -> bytes:
    """Read the generators' states: others than before where numbers were drawn meanwhile."""
    return pickle.dumps([s.numpy() if isinstance(s, torch.Tensor) else s for s in random_states()])


def random_states() -> list[Any]:
    """Return the state of each generator of random numbers; of a GPU's only where one is in use."""
    gpu = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), np.random.get_state(), random.getstate(), *gpu]


def set_random_states(states: Sequence[Any]) -> None:
    """Set them; a GPU that was first used meanwhile is left as it is."""
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    for state in states[3:]:
        torch.cuda.set_rng_state(state)


def let_old_names_be() -> None:
    """Say nothing of a call of torch.distributed that has a new name as well: it does what it did."""
    warnings.filterwarnings("ignore", r"`torch\.distributed\.[a-z]\w*` is deprecated", FutureWarning)


def _directory() -> str:
    """Return the working directory; "" where that has gone."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return ""


def _enter_inference(mode: bool) -> None:
    """Begin or end inference mode for good: torch has no setter, and a context that is not left."""
    context = torch.inference_mode(mode)
    context.__enter__()
    _entered.append(context)


def _flushes_denormal() -> bool:
    """Tell whether numbers that are too small for a float's exponent become 0; torch does not say."""
    return bool(torch.tensor([1e-40], device="cpu").mul(1) == 0)


def _alarm() -> bool:
    return signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0)


def _set_alarm(on: bool) -> None:
    if not on:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _go_to(directory: str) -> None:
    if directory:
        os.chdir(directory)


def _in_one_line(message: Warning | str, category: type[Warning], *place: Any) -> str:
    """Write a warning as Python does; what torch says in a paragraph to most beginners, in one line."""
    said = next((says for part, says in PLAINLY.items() if part in str(message)), "")
    return f"torch warned that {said}.\n" if said else _as_python(message, category, *place)


_as_python = warnings.formatwarning
PLAINLY = {
    "an autograd kernel was not registered": "autograd does not follow this call: pass p.data, or x.detach()",
    "of a Tensor that is not a leaf": ".grad stays None on a tensor that was computed from others",
}
KEPT = object()  # a setting that stays as it is found
# That torch will call a function by another name is nothing that the learner's function prints.
QUIET = [("ignore", None, FutureWarning, None, 0), *warnings.filters]
Setting = tuple[Callable[[], Any], Callable[[Any], Any], Any]  # read it, write it, and what a new process has
SETTINGS: tuple[Setting, ...] = (
    (torch.is_inference_mode_enabled, _enter_inference, False),
    (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    (torch_internals.default_device, torch.set_default_device, None),
    (torch.is_grad_enabled, torch.set_grad_enabled, True),
    (torch.get_num_threads, torch.set_num_threads, KEPT),
    (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda said: torch.use_deterministic_algorithms(said[0], warn_only=said[1]),
        (False, False),
    ),
    (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on), False),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, False),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
    (_flushes_denormal, torch.set_flush_denormal, False),
    (_alarm, _set_alarm, KEPT),
    (lambda: dict(PRINT_OPTIONS), PRINT_OPTIONS.update, KEPT),
    (np.geterr, lambda said: np.seterr(**said), KEPT),
    (lambda: dict(os.environ), lambda said: _refill(os.environ, said), KEPT),
    (_directory, _go_to, KEPT),
    (lambda: list(warnings.filters), lambda said: warnings.filters.__setitem__(slice(None), said), QUIET),  # type: ignore[index]
    (lambda: warnings.formatwarning, lambda said: setattr(warnings, "formatwarning", said), _in_one_line),
    (sys.gettrace, sys.settrace, KEPT),
    (sys.getprofile, sys.setprofile, KEPT),
    (sys.getrecursionlimit, sys.setrecursionlimit, KEPT),
    (gc.isenabled, lambda on: (gc.enable if on else gc.disable)(), KEPT),
    (torch_internals.saved_hooks, torch_internals.leave_saved_hooks, KEPT),
    # The last, and so the first that is put back: they change what the others read.
    (torch_internals.modes, torch_internals.leave_modes, KEPT),
)


def _put_back(read: Callable[[], Any], write: Callable[[Any], Any], before: Any) -> None:
    with contextlib.suppress(OSError):  # the directory has gone
        if read() != before:
            write(before)


def _refill(mapping: MutableMapping[Any, Any], before: Mapping[Any, Any]) -> None:
    mapping.clear()
    mapping.update(before)
