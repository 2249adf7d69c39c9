"""A forgotten `%%px`: after a NameError for a name that only the ranks have, say where it lives."""

from __future__ import annotations

from typing import Any

from labkit.cluster.engines import Engines

# What `agent.prepare` puts there.
ON_RANKS = ("torch", "dist", "rank", "world_size", "device", "comms", "timed", "tiny")


def watch(shell: Any, engines: Engines) -> None:
    """Look at every cell of the notebook that ends, for as long as the lab runs."""

    def remind(result: Any) -> None:
        if engines.stopped:
            shell.events.unregister("post_run_cell", remind)
        elif name := missing(result.error_in_exec, shell.user_ns):
            print(f"{name} lives on the ranks, and this cell ran in the notebook. Begin it with %%px.")

    shell.events.register("post_run_cell", remind)


def missing(error: BaseException | None, space: dict[str, Any]) -> str:
    """The ranks' name that a cell's own line asked for, or a function of a cell; "" where it is something else."""
    if not isinstance(error, NameError) or error.name not in ON_RANKS or error.__traceback__ is None:
        return ""
    at = error.__traceback__
    while at.tb_next is not None:
        at = at.tb_next
    return error.name if at.tb_frame.f_globals is space else ""
