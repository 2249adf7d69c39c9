"""What a rank knows of its sockets: a handle on one that has gone leaves nothing open."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from labkit.rank import group


def open_now():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_a_handle_on_a_socket_whose_number_is_a_files_by_now_is_refused_and_leaves_nothing_open(tmp_path):
    with socket.socket() as s, open(tmp_path / "board", "w") as file:
        noted = (s.fileno(), os.fstat(s.fileno()).st_ino)
        group.opened(noted).close()
        os.dup2(file.fileno(), s.fileno())
        before = open_now()
        for inode in (noted[1], os.fstat(file.fileno()).st_ino):  # two file systems may use the same numbers
            with pytest.raises(OSError):
                group.opened((s.fileno(), inode))
        assert open_now() == before
