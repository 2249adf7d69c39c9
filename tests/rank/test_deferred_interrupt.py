"""An interrupt that comes while a library is imported waits until it is whole, and comes then."""

from __future__ import annotations

import importlib
import sys

import pytest
from torch.distributed import distributed_c10d

from labkit.rank import deferred_interrupt
from labkit.rank.subworld import Gate

INTERRUPTED = "import signal\nsignal.raise_signal(signal.SIGINT)\nWHOLE = True\n"


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Makes a module that is interrupted in the middle of its import, in a folder of this name; returns its name."""

    def make(folder: str) -> str:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "interrupted_library.py").write_text(INTERRUPTED)
        monkeypatch.syspath_prepend(tmp_path / folder)
        monkeypatch.delitem(sys.modules, "interrupted_library", raising=False)
        importlib.invalidate_caches()
        return "interrupted_library"

    return make


def call_by_name(name: str) -> None:
    """Import a module, then compute on; the name is that under which the notebook calls a rank."""
    importlib.import_module(name)
    while True:
        pass


def test_a_library_is_imported_to_its_end_and_then_the_function_is_interrupted(library):
    name = library("site-packages")
    with Gate() as gate, pytest.raises(KeyboardInterrupt), gate.opened():
        call_by_name(name)
    assert sys.modules[name].WHOLE
    assert not deferred_interrupt._waiting.locked()


def test_a_module_of_the_learners_own_is_broken_off_like_a_cell(library):
    name = library("mine")
    with Gate() as gate, pytest.raises(KeyboardInterrupt), gate.opened():
        call_by_name(name)
    assert name not in sys.modules


# What torch's own function does as long as it gathers the transfers of a batch in one group call of NCCL.
BATCH = "def batch_isend_irecv():\n    import signal\n    signal.raise_signal(signal.SIGINT)\n    left.append(True)\n"


def test_a_batch_of_transfers_is_left_before_its_cell_is_interrupted():
    its = {"left": []}
    exec(compile(BATCH, distributed_c10d.__file__, "exec"), its)

    def call_by_name() -> None:
        its["batch_isend_irecv"]()
        while True:
            pass

    with Gate() as gate, pytest.raises(KeyboardInterrupt), gate.opened():
        call_by_name()
    assert its["left"] == [True]
