"""Labs and notebooks for the tests on live ranks; afterwards nothing that they started may be left."""

from __future__ import annotations

import multiprocessing.util
import secrets
import tempfile
from pathlib import Path

import psutil
import pytest

import labkit
from tests.live.notebook import Notebook
from tests.live.processes import carrying, eventually
from tests.live.ranks import Ranks

MARK = "LABKIT_TEST_SESSION"  # everything that a test here starts inherits it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.live)


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left():
    """Give this session's processes a mark and their files a place of their own; at the end both are empty."""
    mark = secrets.token_hex(8)
    multiprocessing.util.get_temp_dir()  # it is made once a process and outlives this fixture: not in `place`
    with tempfile.TemporaryDirectory(prefix="live-") as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        patch.setenv("TMPDIR", place)
        patch.setenv("IPYTHONDIR", f"{place}/ipython")
        patch.setattr(tempfile, "tempdir", None)
        for name in ("XDG_RUNTIME_DIR", "LABKIT_SHARED", "LABKIT_QUIET"):
            patch.delenv(name, raising=False)
        yield
        assert eventually(lambda: not _left(mark)), f"still running: {_left(mark)}"
        assert not list(Path(place).glob("labkit-*"))


def _left(mark: str) -> list[str]:
    """Marked processes of labs and notebooks, in words; pytest's own helpers may live on."""
    left = []
    for process in carrying(mark):
        try:
            words = " ".join(process.cmdline())
            if "LABKIT_RUN" in process.environ() or "labkit/cluster" in words or "ipykernel" in words:
                left.append(f"{process.pid} {words}")
        except psutil.Error:
            continue
    return left


@pytest.fixture(scope="module")
def lab():
    """Three ranks that give up waiting after two seconds, for a whole module."""
    with labkit.start(3, timeout=2) as lab:
        yield lab


@pytest.fixture(scope="module", params=[2, 3, 4], ids="{} ranks".format)
def ranks(request):
    """Ranks without a lab: two, three and four of them in turn."""
    with Ranks(request.param) as pool:
        yield pool


@pytest.fixture(scope="module")
def three():
    """Three ranks without a lab."""
    with Ranks(3) as pool:
        yield pool


@pytest.fixture(scope="module")
def own_progress(tmp_path_factory):
    """Keep what a module's checks find right in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_PROGRESS", str(tmp_path_factory.mktemp("progress")))
        yield


@pytest.fixture(scope="module")
def training(own_progress):
    """Let a module's labs import once, before they fork, what each rank's first optimizer imports: a second of CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_PRELOAD", "torch._dynamo")
        yield


@pytest.fixture(scope="module")
def notebook():
    """A notebook with three ranks, for a whole module."""
    with Notebook() as notebook:
        notebook.value("from labkit import start\nlab = start(3, timeout=20)")
        yield notebook
