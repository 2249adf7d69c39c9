"""Three hosts for the tests here, for one worker's session; each test finds them whole and empty.

Without the means the tests are skipped by the name of what is missing; LABKIT_HOSTS=required makes that a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.files import NODES
from tests.hosts.hosts import Hosts
from tests.hosts.means import missing
from tests.hosts.notebook import HostNotebook

pytest.register_assert_rewrite("tests.hosts.everywhere")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.hosts)


@pytest.fixture(scope="session")
def means() -> None:
    """Skip where three hosts cannot be made, or fail there if they are required."""
    if lack := missing():
        if os.environ.get("LABKIT_HOSTS") == "required":
            pytest.fail(lack, pytrace=False)
        pytest.skip(lack)


@pytest.fixture(scope="session")
def three(means: None) -> Iterator[Hosts]:
    """The three hosts as the tests before have left them: for a lab that several tests share."""
    with Hosts() as hosts:
        yield hosts


@pytest.fixture
def hosts(three: Hosts) -> Iterator[Hosts]:
    """The three hosts; whatever a test does to them is undone."""
    yield three
    three.restore()


@pytest.fixture(scope="class")
def shared(three: Hosts, request: pytest.FixtureRequest) -> Iterator[HostNotebook]:
    """A notebook with a lab that all tests of a launcher's class share."""
    launcher = request.cls()
    for node in NODES:  # the ranks' pids are the same on both, and free on head
        three.run(node, ["sh", "-c", "echo 20000 >/proc/sys/kernel/ns_last_pid"])
    with launcher.open(three) as notebook:
        cell = launcher.start(notebook)
        assert cell.status == "ok", cell
        yield notebook
        notebook.run("lab.stop()")
    three.restore()


@pytest.fixture
def notebook(hosts: Hosts) -> Iterator[HostNotebook]:
    """A notebook on head."""
    with HostNotebook(hosts) as notebook:
        yield notebook
