"""What the oldest versions that labkit runs on cannot do."""

from importlib import metadata

import pytest
from packaging.version import Version

GLOO_ALL_TO_ALL = pytest.mark.skipif(
    Version(metadata.version("torch")) < Version("2.12"), reason="Gloo has all_to_all for lists since torch 2.12"
)
