"""One lab for all notebooks that `pytest --nbval` checks: four ranks start once, not once a notebook.

It stands here, above tests/, because pytest reads only the conftest.py files above the paths it is given.
"""

import os
import tempfile

import pytest

# What a test or a checked notebook does is nobody's progress.
_progress = tempfile.TemporaryDirectory(prefix="progress-")
os.environ["LABKIT_PROGRESS"] = _progress.name


def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    cells = [item for item in session.items if item.path.suffix == ".ipynb"]
    if not cells or config.option.collectonly:
        return
    import labkit

    os.environ["LABKIT_QUIET"] = "1"
    lab = labkit.start(4)
    config.add_cleanup(lab.stop)
    # Every notebook's kernel inherits this; start() in it joins these ranks afresh.
    os.environ["LABKIT_SHARED"] = str(lab.address)
    config.add_cleanup(lambda: os.environ.pop("LABKIT_SHARED", None))
