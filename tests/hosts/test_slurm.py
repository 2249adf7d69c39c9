"""Ranks on two hosts by Slurm."""

from __future__ import annotations

from tests.hosts.everywhere import Ends, Everywhere, Launcher


class Slurm(Launcher):
    arguments = "engines='slurm', nodes=2, per_node=2"
    by = "by Slurm"


class TestEverywhere(Slurm, Everywhere):
    pass


class TestEnds(Slurm, Ends):
    pass
