"""Three hosts for the tests here, for one worker's session; each test finds them whole and empty.

Without the means the tests are skipped by the name of what is missing; LABKIT_HOSTS=required makes that a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.hosts import Hosts
from tests.hosts.means import missing
from tests.hosts.notebook import HostNotebook


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "hosts: starts three hosts, with namespaces, sshd and Slurm of their own")


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
def _three(means: None) -> Iterator[Hosts]:
    with Hosts() as hosts:
        yield hosts


@pytest.fixture
def hosts(_three: Hosts) -> Iterator[Hosts]:
    """The three hosts, whatever the test before has done to them."""
    yield _three
    _three.restore()


@pytest.fixture
def notebook(hosts: Hosts) -> Iterator[HostNotebook]:
    """A notebook on head."""
    with HostNotebook(hosts) as notebook:
        yield notebook
