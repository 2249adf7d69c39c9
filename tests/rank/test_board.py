"""A board shows what has been put up for a call, and never anything else."""

from __future__ import annotations

import errno
import os
import sys

import pytest
import torch.distributed as dist

from labkit.rank.board import ROOM, SLOTS, FileBoard, StoreBoard


def boards(tmp_path, n=3):
    first = FileBoard.make(str(tmp_path / "board"), n)
    return [first, *(FileBoard(first.path, i, n) for i in range(1, n))]


def test_everyone_reads_what_everyone_has_written(tmp_path):
    a, b, c = boards(tmp_path)
    a.write(1, b"one")
    c.write(1, b"three")
    assert a.read(1) == b.read(1) == c.read(1) == {0: b"one", 2: b"three"}
    assert a.read(2) == {}


def test_a_slot_that_is_used_again_shows_nothing_of_before(tmp_path):
    a, b, _ = boards(tmp_path)
    a.write(1, b"old")
    b.write(1 + SLOTS, b"new")
    assert b.read(1 + SLOTS) == {1: b"new"}
    a.write(1 + SLOTS, b"newer")
    assert b.read(1) == {}


def test_a_record_that_is_half_written_is_not_there(tmp_path):
    a, b, _ = boards(tmp_path)
    a.write(1, b"x" * 100)
    with open(tmp_path / "board", "r+b") as file:
        file.seek(1 % SLOTS * 3 * ROOM + 50)
        file.write(b"y")
    assert b.read(1) == {}


def test_what_is_taken_back_is_not_there(tmp_path):
    a, b, _ = boards(tmp_path)
    a.write(1, b"one")
    a.take_back(1)
    assert b.read(1) == {}


def test_the_first_rank_removes_the_file(tmp_path):
    a, b, _ = boards(tmp_path)
    b.remove()
    assert (tmp_path / "board").exists()
    a.remove()
    a.remove()
    assert not (tmp_path / "board").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="files in memory are Linux's")
def test_on_a_full_disk_a_board_is_in_memory(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    a, b = boards(tmp_path, 2)
    assert list(tmp_path.iterdir()) == []
    b.write(1, b"two")
    a.write(1, b"one")
    assert a.read(1) == b.read(1) == {0: b"one", 1: b"two"}
    a.remove()
    b.write(2, b"still")
    assert b.read(2) == {1: b"still"}
    with open(tmp_path / "mine", "xb") as mine:
        os.dup2(mine.fileno(), number := int(a.path.rpartition("/")[2]))
        with pytest.raises(FileNotFoundError):
            FileBoard(a.path, 1, 2)
        if number != mine.fileno():
            os.close(number)


def test_a_board_in_a_store_is_the_same(tmp_path):
    store = dist.HashStore()
    a, b = StoreBoard(store, 0, 2), StoreBoard(store, 1, 2)
    a.write(1, b"one\x00\xff")
    assert b.read(1) == {0: b"one\x00\xff"}
    b.write(1 + SLOTS, b"two")
    assert a.read(1 + SLOTS) == {1: b"two"}
    b.take_back(1 + SLOTS)
    assert a.read(1 + SLOTS) == {}
