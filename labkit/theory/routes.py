"""Bytes from each rank to each other one, as textbooks and Gloo's source have it: `matrix[src, dst]` of n ranks and S.

Each is a function of n, S in bytes and the root. Imports neither torch nor a cluster.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Matrix = Callable[[int, float, int], np.ndarray]


def nothing(n: int, nbytes: float, root: int) -> np.ndarray:
    """Send no data at all."""
    return np.zeros((n, n))


def binomial_tree(n: int, nbytes: float, root: int) -> np.ndarray:
    """S into each rank but the root: a rank gets it from the one that lacks its highest bit."""
    matrix = np.zeros((n, n))
    for v in range(1, n):
        matrix[(v - (1 << v.bit_length() - 1) + root) % n, (v + root) % n] = nbytes
    return matrix


def from_root(n: int, nbytes: float, root: int) -> np.ndarray:
    """Let the root send a part to each other rank."""
    matrix = np.zeros((n, n))
    matrix[root, :] = nbytes / n
    matrix[root, root] = 0
    return matrix


def to_root(n: int, nbytes: float, root: int) -> np.ndarray:
    """Let each other rank send a part to the root."""
    return from_root(n, nbytes, root).T


def each_to_each(n: int, nbytes: float, root: int) -> np.ndarray:
    """Send a part from each rank to each other one."""
    return nbytes / n * (1 - np.eye(n))


def ring(times: int, step: int) -> Matrix:
    """Go round the ring so many times, n - 1 parts a time; `step` is 1 to the next rank, -1 to the one before."""

    def matrix(n: int, nbytes: float, root: int) -> np.ndarray:
        ranks, sent = np.arange(n), np.zeros((n, n))
        sent[ranks, (ranks + step) % n] = times * nbytes / n * (n - 1)
        return sent

    return matrix


def ring_then_to_root(n: int, nbytes: float, root: int) -> np.ndarray:
    """Once round the ring, to reduce each part, then the parts to the root."""
    return ring(1, -1)(n, nbytes, root) + to_root(n, nbytes, root)
