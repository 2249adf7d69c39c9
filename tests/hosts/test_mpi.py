"""Ranks on two hosts by MPI."""

from __future__ import annotations

from tests.hosts.everywhere import Ends, Everywhere, Launcher


class Mpi(Launcher):
    arguments = "engines='mpi', hosts={'na': 2, 'nb': 2}"
    by = "by mpiexec"

    def environment(self, hosts):
        return {**hosts.mpi, "PATH": f"/usr/bin:{hosts.environment()['PATH']}"}  # not the environment's own mpiexec


class TestEverywhere(Mpi, Everywhere):
    pass


class TestEnds(Mpi, Ends):
    pass
