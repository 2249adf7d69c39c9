"""Ranks on two hosts over ssh."""

from __future__ import annotations

from tests.hosts.everywhere import Ends, Everywhere, Launcher


class Ssh(Launcher):
    arguments = "engines='ssh', hosts={'na': 2, 'nb': 2}"
    by = "over ssh"


class TestEverywhere(Ssh, Everywhere):
    pass


class TestEnds(Ssh, Ends):
    pass
