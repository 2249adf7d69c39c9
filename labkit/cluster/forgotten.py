"""A forgotten `%%px`: after a NameError for a name that only the ranks have, say where it lives."""

from __future__ import annotations

from typing import Any

from labkit.cluster.engines import Engines
from labkit.theory.cells import GIVEN

PATIENCE = 10.0  # seconds that the ranks may take to say whether they have a name


def watch(shell: Any, engines: Engines) -> None:
    """Look at every cell of the notebook that ends, for as long as the lab runs."""

    def remind(result: Any) -> None:
        if engines.stopped:
            shell.events.unregister("post_run_cell", remind)
        elif (name := missing(result.error_in_exec, shell.user_ns)) and (name in GIVEN or _has(engines, name)):
            print(f"{name} lives on the ranks, and this cell ran in the notebook. Begin it with %%px.")

    shell.events.register("post_run_cell", remind)


def missing(error: BaseException | None, space: dict[str, Any]) -> str:
    """The name that a cell's own line asked for in vain, or a function of a cell; "" where it is something else."""
    if not isinstance(error, NameError) or not error.name or error.__traceback__ is None:
        return ""
    at = error.__traceback__
    while at.tb_next is not None:
        at = at.tb_next
    return error.name if at.tb_frame.f_globals is space else ""


def _has(engines: Engines, name: str) -> bool:
    """Whether the ranks have a variable of this name; where one cannot answer nobody knows."""
    if engines.dead() or engines.lost():
        return False
    outcome = engines.call("labkit.rank.function.describe", dict.fromkeys(range(engines.n), (name,)), PATIENCE)
    return outcome.well and any(what["state"] != "missing" for what in outcome.answers.values())
