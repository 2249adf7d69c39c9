"""One lab for all notebooks that `pytest --nbval` checks, and what stays together when tests run side by side.

It stands here, above tests/, because pytest reads only the conftest.py files above the paths it is given.
"""

import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

pytest_plugins = ("suite", "nbval_notes")  # .ci/suite.py: which part runs, and what is said of it

_lab: Any = None
_environment = pytest.MonkeyPatch()


def pytest_configure(config: pytest.Config) -> None:
    place = tempfile.TemporaryDirectory(prefix="workbook-")
    config.add_cleanup(place.cleanup)
    os.environ["LABKIT_PROGRESS"] = f"{place.name}/progress"  # what a test or a checked notebook does is nobody's
    if config.pluginmanager.hasplugin("nbval"):
        import nbval.kernel

        # Jupyter only looks for TCP ports that are free: on a busy machine somebody has them before the kernel does.
        nbval.kernel.KernelManager = lambda **options: KernelManager(
            transport="ipc", ip=f"{place.name}/{secrets.token_hex(4)}", **options
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Four ranks start with the first cell and stop after the last; every notebook's kernel inherits where they are.

    Where a profile says where the ranks are, each notebook starts its own: those on other hosts cannot be shared.
    """
    global _lab
    if _is_cell(item):
        _environment.setenv("LABKIT_QUIET", "1")
    if _is_cell(item) and _lab is None and not os.environ.get("LABKIT_PROFILE"):
        import labkit

        _environment.setenv("LABKIT_PRELOAD", "torch._dynamo")  # or each rank's first optimizer imports it
        _lab = labkit.start(4)
        _environment.setenv("LABKIT_SHARED", str(_lab._address))
    try:
        return (yield)
    finally:
        if not _is_cell(nextitem):
            _environment.undo()
            if _lab is not None:
                _lab.stop()
                _lab = None


def _is_cell(item: pytest.Item | None) -> bool:
    return item is not None and item.path.suffix == ".ipynb"


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker gets a whole file, or one lesson's tests of it, or every second notebook: these share four ranks."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._notebooks: dict[str, int] = {}

        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            if file.endswith(".ipynb"):
                return f"notebooks {self._notebooks.setdefault(file, len(self._notebooks)) % 2}"
            lesson = re.search(r"\[(lesson\w+)-", test)
            return f"{file} {lesson[1]}" if lesson else file

    return ByFile(config, log)
