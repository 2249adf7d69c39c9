"""What the oldest and the newest versions that labkit runs on do otherwise, or cannot do."""

from importlib import metadata

import pytest
from packaging.version import Version

torch = Version(metadata.version("torch"))
GLOO_ALL_TO_ALL = pytest.mark.skipif(torch < Version("2.12"), reason="Gloo has all_to_all for lists since torch 2.12")
# It counts, on its members alone, and the ranks meet in the next group under their count.
GROUP_AFTER_LOCAL_ONE = pytest.mark.skipif(
    torch >= Version("2.14"),
    reason="since torch 2.14 all ranks' next group hangs after one made by its members",
)
SUBSHELLS = Version(metadata.version("ipykernel")) >= Version("7")  # threads that hear a page's messages beside a cell
GLOOS_LOOP = {"gloo_tcp_loop"} if torch >= Version("2.13") else set()  # the thread that sends and receives has a name
