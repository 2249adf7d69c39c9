"""No example is held to a wall-clock deadline, nor its making: on a busy machine a slow one would be a red test.

`make quick` tries few examples of each property (`--hypothesis-profile=quick`).
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import book as books

BUSY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("workbook", **BUSY)
settings.register_profile("quick", max_examples=10, **BUSY)
settings.load_profile("workbook")


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built book."""
    return books.built(books.shared(tmp_path_factory.getbasetemp()))
