"""Fetch what ranks have kept, and draw it as curves, times and bars: a part of `Lab`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.cluster.console import Console
from labkit.faces import arguments
from labkit.floor.errors import LabError

if TYPE_CHECKING:  # these bring matplotlib and ipywidgets, for which no start() should wait
    from labkit.show.bars import Bars
    from labkit.show.curves import Curves
    from labkit.show.times import Times


class Drawing:
    """The part of a lab that fetches what ranks have in their variables, and draws lists and dicts."""

    @property
    def _console(self) -> Console:
        raise NotImplementedError

    def pull(self, expression: str) -> list[Any]:
        """Fetch a value from every rank, index = rank: tensors as numpy arrays, else numbers, text, lists, dicts.

        Raises `LabError` where a rank lacks it.
        """
        arguments.text('lab.pull("x")', expression)
        return self._fetched("labkit.rank.agent.pull", expression)

    def curves(
        self, *expressions: str, every: int = 1, over: str | Sequence[str] | None = None, unit: str = "",
        overlay: bool = False, rank: int | None = None, xlabel: str = "", ylabel: str = "",
    ) -> Curves:  # fmt: skip
        """Draw lists of numbers that ranks recorded, such as losses: a line per rank and a panel per expression.

        >>> lab.curves("losses")
        >>> lab.curves("alone", "together", every=5)     # a value was kept after every fifth step
        >>> lab.curves("losses", over="seconds", unit="s")
        >>> lab.curves("sync", "async_", overlay=True, over=["sync_s", "async_s"], unit="s")

        Args:
            every: how many steps lie between two values.
            over: the name of a list on the ranks to draw against instead of steps, or one name for each expression; as
                long as the values, never going back. `unit` is what its numbers are in.
            overlay: draw one line per expression, all in one panel: where ranks differ, their mean, with a shade from
                the lowest rank to the highest.
            rank: draw this rank alone.
            xlabel, ylabel: what the axes say: else the names of the lists in `over`, and nothing. "loss", "ms/step".

        Ranks that lack the list are left out. Raises `LabError` where all do, or where it is not a list of numbers.
        """
        if not expressions:
            raise LabError('lab.curves() needs a list to draw. Append a number per step, then lab.curves("losses").')
        arguments.text('lab.curves("losses")', *expressions)
        against = arguments.against(expressions, every, over, unit)
        only = arguments.ranks(rank, self._console.engines.n)
        lists = {name: self._held(name, only) for name in dict.fromkeys([*expressions, *against])}
        pulled = {name: lists[name] for name in expressions}
        of = {name: (x, lists[x]) for name, x in zip(expressions, against, strict=True)} if against else None
        from labkit.show.curves import Curves
        from labkit.show.overlay import Overlay

        return (Overlay if overlay else Curves)(pulled, every, of, unit, xlabel, ylabel)

    def times(self, *expressions: str, warmup: int = 0) -> Times:
        """Draw the times that each rank has kept: a dot for each repetition, a row for each rank, the medians marked.

        >>> lab.times("readings", warmup=3)       # a list of seconds on every rank
        >>> lab.times("flat", "one_by_one")       # lists, or what timed(...) returned, over one axis

        The first `warmup` repetitions are drawn hollow and left out of the median. Raises `LabError` where a rank has
        no such times.
        """
        arguments.quoted(
            'which times to draw: lab.times("readings"), where every rank has a list of seconds', expressions
        )
        kept = {expression: self._fetched("labkit.rank.agent.readings", expression) for expression in expressions}
        engines = self._console.engines
        from labkit.show.times import Times
        from labkit.theory import gpu_sharing

        shared = gpu_sharing.said([m.processor for m in engines.members], engines.gpu.under_mps)
        return Times(kept, warmup, shared)

    def bars(self, *expressions: str, formula: Mapping[str, Any] | None = None) -> Bars:
        """Draw bytes by kind that every rank has in a dict: a stacked bar for each rank, all expressions on one scale.

        >>> lab.bars("ddp", "zero1")                         # %%px: ddp = footprint(model, optimizer)
        >>> lab.bars("ddp", formula={"ddp": 16 * 12_444})    # bytes per rank, drawn as a dashed mark

        A formula's value is one number for all ranks, or a list with one for each. Raises `LabError` where a rank
        lacks the dict, or where it holds anything but numbers, 0 or more.
        """
        arguments.quoted(
            'what to draw: lab.bars("ddp"), where every rank has ddp = footprint(model, optimizer)', expressions
        )
        held = {expression: self.pull(expression) for expression in expressions}
        from labkit.show.bars import Bars

        return Bars(held, formula)

    def _fetched(self, path: str, expression: str) -> list[Any]:
        """Call a function of `labkit.rank` that returns an error or a value on every rank, and return the values."""
        pulled = self._console.call(path, expression)
        arguments.all_have(expression, {r: error for r, (error, _) in enumerate(pulled) if error})
        return [value for _, value in pulled]

    def _held(self, expression: str, ranks: Sequence[int] | None = None) -> dict[int, Any]:
        """Fetch what each of these ranks has under an expression, without those that lack it."""
        answers = dict(enumerate(self._console.call("labkit.rank.agent.pull", expression)))
        asked = {r: answers[r] for r in (answers if ranks is None else ranks)}
        held = {r: value for r, (error, value) in asked.items() if not error}
        if not held:
            arguments.all_have(expression, {r: error for r, (error, _) in asked.items()})
        return held
