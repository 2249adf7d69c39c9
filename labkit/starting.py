"""Start a lab: check what is asked for, choose how many ranks with which backend, and make the `Lab`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from IPython.core.getipython import get_ipython

from labkit.cluster import memory_check
from labkit.cluster.console import FILES
from labkit.cluster.engines import Choose, Engines
from labkit.cluster.live_line import QUIET
from labkit.cluster.processes import Processes
from labkit.cluster.spread import KINDS, MOST, PROFILE, Spread, read_profile, spread
from labkit.cluster.start_queue import turn
from labkit.cluster.stop_button import STOP
from labkit.faces import current_lab, no_ranks
from labkit.floor import file_limit, words
from labkit.floor.errors import HostError, JoinError, LabError
from labkit.lab import Lab

BACKENDS = ("gloo", "nccl")
SLOW = "their times say nothing about NCCL's bandwidth"
SHARED = "LABKIT_SHARED"  # the address of a cluster that this notebook may use (see `Lab._address`)


@dataclass(frozen=True)
class StartRequest:
    """What `start()` was asked for, checked; `spread` where there are several hosts, `config` a profile's settings."""

    n: int | None
    backend: str | None
    engines: str | None
    timeout: float
    spread: Spread | None = None
    config: Any = None


@dataclass(frozen=True)
class Started:
    """What `start()` did: as text, how many ranks, with which backend, and why; how they share a GPU, where they do."""

    request: StartRequest
    engines: Engines
    reason: str

    def __str__(self) -> str:
        return "\n".join(filter(None, [self.reason, self.engines.gpu.said()]))


def start(
    n: int | None = None,
    backend: str | None = None,
    engines: str | None = None,
    timeout: float = 10,
    *,
    nodes: int | None = None,
    per_node: int | None = None,
    hosts: Mapping[str, int] | Sequence[str] | None = None,
    profile: str | None = None,
) -> Lab:
    """Start `n` ranks that `%%px` cells run on, joined in one process group, and return the `Lab`.

    >>> lab = start()        # NCCL: a rank per GPU, or 4 that share one GPU; without a GPU, Gloo: 4 CPU ranks
    >>> lab = start(8)       # 8 ranks
    >>> with start(2) as lab:
    ...     lab.run("print(rank)")
    >>> lab = start(engines="ssh", hosts={"na": 2, "nb": 2})     # ranks 0 and 1 on na, 2 and 3 on nb
    >>> lab = start(engines="slurm", nodes=2, per_node=4)
    >>> lab = start(profile="gpu")                               # as an ipyparallel profile says

    Args:
        n: how many ranks, 1 to 16 on one host, by default one per GPU, or 4 where there is one GPU or none.
        backend: "gloo" or "nccl"; by default "nccl" where each rank gets a GPU of its own, or there is exactly one
            for all. With "nccl" more ranks than GPUs share them.
        engines: "ssh", "slurm" or "mpi" for ranks on several hosts, or another launcher that ipyparallel knows; by
            default ranks are forked on this host where that is safe.
        timeout: seconds that a rank may wait in a collective before the lab frees it. A wait that no rank can
            end is freed after one second already.
        nodes: how many hosts, where Slurm or MPI chooses them.
        per_node: how many ranks on each; by default one per GPU, or 2 without GPUs.
        hosts: their names, with the ranks of each: {"na": 2, "nb": 2}; or names alone, with `per_node`.
        profile: the name of an ipyparallel profile: its ipcluster_config.py names the launcher and its settings, and
            hosts, nodes and per_node as c.Lab.hosts and so on. What you give here takes precedence. Where you name
            neither a profile nor a launcher, the environment variable LABKIT_PROFILE may name the profile.

    Ranks are numbered host by host. A second `start()` with the same arguments returns the running lab; with
    different ones it replaces that lab. Raises `LabError`, with what to do next, where it cannot do what you ask.
    """
    if hasattr(getattr(get_ipython(), "kernel", None), "engine_id"):  # it is ipyparallel's
        raise LabError(
            "This cell runs on the ranks, and start() would start new ranks from each of them. "
            "lab lives in the notebook: run start() in a cell without %%px."
        )
    file_limit.spare(**FILES)
    request = _checked(n, backend, engines, timeout, nodes, per_node, hosts, profile)
    if (running := current_lab.running()) is not None:
        started = current_lab.started()
        if started.request == request and running.running:
            with contextlib.suppress(HostError):  # its job has ended, say: a new one is what is wished for
                running.heal()
                print(started)
                return cast(Lab, running)
        running.stop()
    STOP.watch(get_ipython())
    try:
        started = _started(request)
        lab = Lab(started.engines)
    except BaseException as error:
        no_ranks.explain(no_ranks.after(error), instead=True)
        raise
    current_lab.begin(lab, started)
    print(started)
    return lab


def start_engines(n: int, timeout: float) -> Engines:
    """Start CPU ranks for a command in a terminal: no lab holds them, nothing is printed, and the caller stops them."""
    return _started(_checked(n, "gloo", None, timeout, None, None, None, None)).engines


def _checked(
    n: Any, backend: Any, engines: Any, timeout: Any, nodes: Any, per_node: Any, hosts: Any, profile: Any
) -> StartRequest:
    """Return what was asked for, or say what to ask for instead; a profile gives what is not asked for."""
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise LabError(f"n={n!r} is not a number of ranks. Choose 1 to {MOST}, such as start(4).")
    if backend is not None and backend not in BACKENDS:
        raise LabError(f"backend={backend!r} is unknown here. Choose 'gloo' (CPUs) or 'nccl' (GPUs), or leave it out.")
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not 0 < timeout < 1e6:
        raise LabError(f"timeout={timeout!r} is not a time to wait. Give seconds, such as start(timeout=10).")
    config = None
    profile = profile or (os.environ.get(PROFILE) if engines is None and hosts is None else None)
    if profile:
        named, count, config = read_profile(profile)
        engines = engines or (None if named == "labkit" else named)
        n = n or count
        if nodes is per_node is hosts is None:
            nodes, per_node, hosts = (config.Lab.get(name) for name in ("nodes", "per_node", "hosts"))
    if hosts is not None and engines is None:
        engines = "ssh"
    if engines is not None and not isinstance(engines, str):
        raise LabError(f'engines={engines!r} is not a name of a launcher. Leave it out, or give one, such as "mpi".')
    if engines in KINDS:
        return StartRequest(
            n, backend, engines, float(timeout), spread(engines, nodes, per_node, hosts, n, config), config
        )
    for name, value in (("nodes", nodes), ("per_node", per_node), ("hosts", hosts)):
        if value is not None:
            reached = words.listed([repr(kind) for kind in KINDS], "or")
            instead = f", not {engines!r}" if engines else ""
            raise LabError(f"{name}= is for several hosts. Say how they are reached: engines={reached}{instead}.")
    if n is not None and n > MOST and engines is None:
        raise LabError(f"n={n!r} is not a number of ranks for one host. Choose 1 to {MOST}, such as start(4).")
    return StartRequest(n, backend, engines, float(timeout), None, config)


def _started(request: StartRequest, failed: str = "") -> Started:
    """Start ranks in a cluster of their own or in a shared one, and say why these; on CPUs where NCCL has `failed`."""
    backend = reason = ""

    def choose(gpus: list[int]) -> tuple[int, str, list[int]]:
        nonlocal backend, reason
        if request.spread:
            at, backend, reason = _choose_far(request, request.spread, gpus, failed)
            return len(at), backend, at
        chosen, backend, reason = _choose(request.n, request.backend, gpus[0], failed)
        if backend == "nccl":
            memory_check.check_gpu(chosen, gpus[0])
        return chosen, backend, []

    shared = os.environ.get(SHARED) if request.engines is None else None
    say, done = _progress()
    try:
        attached = _attached(shared, request.timeout, choose, say) if shared else None
        if attached is not None:
            return Started(request, attached, reason)
        processes = Processes(request.engines or _default_launcher(), request.spread, request.config)
        if request.spread:
            engines = Engines.start(request.timeout, processes, choose, say)
            return Started(request, engines, f"{reason}\n{_where(engines)}")
        with turn(say):
            memory_check.check(request.n or 4)
            return Started(request, Engines.start(request.timeout, processes, choose, say), reason)
    except JoinError as error:
        if request.backend or backend != "nccl":
            raise
        started = _started(replace(request, backend="gloo"), f"NCCL could not join ranks on GPUs{error.why}")
        return replace(started, request=request)
    finally:
        done()


def _choose(n: int | None, backend: str | None, gpus: int, failed: str = "") -> tuple[int, str, str]:
    """Choose how many ranks with which backend, and say why; what has `failed` is why it is not another one."""
    have = words.count(gpus, "GPU") if gpus else "no GPU"
    if backend == "nccl" and gpus == 0:
        raise LabError(f"NCCL wants a GPU, and torch finds {have} here. Call start() for CPU ranks with Gloo.")
    asked = backend is not None
    backend = backend or ("nccl" if gpus == 1 or (n or 1) <= gpus else "gloo")
    if backend == "nccl":
        n = n or (gpus if gpus > 1 else 4)
        each = "each on a GPU of its own" if n <= gpus else f"which share {have} for teaching: {SLOW}"
        return n, backend, f"{words.count(n, 'rank')} with NCCL, {each}{f': torch finds {have} here' * (n <= gpus)}."
    why = "as you asked" if asked and gpus else f"torch finds {'only ' * (gpus > 0)}{have} here"
    return n or 4, backend, f"{words.count(n or 4, 'CPU rank')} with Gloo: {failed or why}."


def _choose_far(request: StartRequest, far: Spread, gpus: list[int], failed: str) -> tuple[list[int], str, str]:
    """Choose the host of each rank and the backend, and say how many ranks on what."""
    at = far.seats(gpus, request.n)
    each = [gpus[h] for h in sorted(set(at))]
    enough = all(at.count(h) <= gpus[h] for h in at)
    if request.backend == "nccl" and not all(each):
        have = words.listed([f"{g} on host {h}" for h, g in enumerate(gpus)])
        raise LabError(
            f"NCCL wants a GPU on each host, and torch finds {have}. Leave the backend out for CPU ranks with Gloo."
        )
    backend = request.backend or ("nccl" if enough or set(each) == {1} else "gloo")
    if not (backend == "nccl" and enough) and (most := max(map(at.count, at))) > MOST:
        raise LabError(f"{most} ranks on one host are too many. Choose {MOST} or fewer, such as per_node=2.")
    kind = "rank" if backend == "nccl" else "CPU rank"
    own = "each on a GPU of its own" if enough else f"which share GPUs for teaching ({SLOW})"
    how = f"NCCL, {own}" if backend == "nccl" else "Gloo"
    hosts = words.count(len(set(at)), "host")
    because = f" ({failed})" if failed else ""
    return at, backend, f"{words.count(len(at), kind)} with {how}{because}, on {hosts} {far.by}:"


def _where(engines: Engines) -> str:
    """Say which ranks are on which host, and what other users of the network could see."""
    hosts = words.alike({m.rank: m.host for m in engines.members})
    each = words.listed([f"{words.ranks(rs)} on {host}" for host, rs in hosts.items()])
    return (
        f"{each}.\nThe notebook's messages to the ranks are encrypted. What the ranks send one another is not, so use "
        "a network that you trust."
    )


def _default_launcher() -> str:
    """Choose to fork on Linux; elsewhere a fork after imports is unsafe, so engines are started one by one."""
    return "labkit" if sys.platform == "linux" else "local"


def _attached(address: str, timeout: float, choose: Choose, say: Callable[[str], None]) -> Engines | None:
    """Start ranks in a shared cluster; None where it no longer answers, so that a cluster of one's own serves."""
    try:
        shared = Processes.attach(address)
    except (OSError, LabError, ValueError, KeyError):  # gone, or no address at all
        return None
    return Engines.start(timeout, shared, choose, say)


def _progress() -> tuple[Callable[[str], None], Callable[[], None]]:
    """Return what shows a line that says what start() does, and what clears it; nothing outside notebooks."""
    shell = get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None or os.environ.get(QUIET) is not None:
        return (lambda line: None), (lambda: None)
    from IPython.display import clear_output

    def say(line: str) -> None:
        clear_output(wait=True)
        print(line)

    return say, clear_output
