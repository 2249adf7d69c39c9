"""Offer sliders over plain values that call a function and show what it returns."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import ipywidgets

from labkit.faces import between_cells
from labkit.floor.errors import CellError, LabError
from labkit.floor.words import listed
from labkit.show.box import LINES, Box
from labkit.show.captured import Shown, shown
from labkit.show.keys import DEAF

# A picture that waits for its successor is faint, but not at once: most successors come sooner than an eye notices.
STYLE = "<style>.labkit-old {opacity: 0.4; transition: opacity 0.2s 0.3s}</style>"
ERROR = '<div role="alert" style="white-space: pre-wrap; color: var(--jp-error-color1, #c62828)">{}</div>'


class Knob(Box):
    """Sliders over values that you choose; each move calls `show` with the values and displays what it returns.

    >>> knob = Knob(lambda n, op: f"{op}: {2 * (n - 1)} steps", n=[2, 4, 8], op=["all_reduce"])
    >>> knob
    n: 2, op: all_reduce
    all_reduce: 2 steps
    >>> knob.go(n=8)
    >>> knob
    n: 8, op: all_reduce
    all_reduce: 14 steps

    Args:
        show: takes the values by their names. What it returns is displayed as a cell's last line is, a string as text,
            and what it printed above. It may run code on the ranks: `Knob(lambda cap: step_with(cap), cap=[1, 25])`.
        choices: for each name a list of numbers, strings, bools or None.
        start: the values to begin with, `{"cap": 25}`; else the first of each list.
        labels, units: what stands left of a slider, `{"cap": "bucket size"}`, and behind its values, `{"cap": "MiB"}`.

    `show` runs after the cell that is running, never beside it, and Stop stops it. Moves that come meanwhile wait, and
    only the last of them counts. What goes wrong after a move is said in the widget, and the next move may go well;
    what goes wrong when the knob is made or in `go` is raised in your cell. Without a kernel the page shows what was
    there last.
    """

    def __init__(
        self,
        show: Callable[..., Any],
        /,
        *,
        start: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        units: Mapping[str, str] | None = None,
        **choices: Any,
    ) -> None:
        self._choices = {name: _checked(name, values) for name, values in choices.items()}
        _fits(show, self._choices)
        for what, given in (("start", start), ("labels", labels), ("units", units)):
            self._known(given or {}, what)
        self._function = show
        self._labels, self._units = {**(labels or {})}, {**(units or {})}
        begin = {name: self._choice(name, value) for name, value in (start or {}).items()}
        self._controls = {name: self._control(name, begin.get(name, v[0])) for name, v in self._choices.items()}
        self._said = ipywidgets.HTML(layout={"min_height": "1.6em", "margin": "0 0 0 4px"})
        self._picture = ipywidgets.HTML()
        self._moved = False  # since `show` was called last
        self._busy = threading.Lock()
        self._mover = 0  # the thread that moves the controls from code
        self._at: dict[str, Any] = {}
        self._shown = Shown("", "")
        self._error: BaseException | None = None
        for control in self._controls.values():
            control.observe(lambda _: self._move(), "value")
        hidden = ipywidgets.HTML(DEAF + LINES + STYLE, layout={"display": "none"})
        super().__init__([*self._controls.values(), self._said, self._picture, hidden])
        self.add_class("labkit-knob")
        self.go()

    @property
    def values(self) -> dict[str, Any]:
        """The values that the controls have."""
        return {name: control.value for name, control in self._controls.items()}

    def go(self, **values: Any) -> None:
        """Move controls and show what comes of it: `knob.go(cap=25)`; without a value it is computed once more.

        Raises `LabError` for an unknown control or a value that is not among its choices, and what `show` raises.
        """
        self._known(values, "go")
        chosen = {name: self._choice(name, value) for name, value in values.items()}
        before, self._mover = self._mover, threading.get_ident()
        try:
            for name, value in chosen.items():
                self._controls[name].value = value
        finally:
            self._mover = before
        self._moved = True
        if not between_cells.in_turn():
            self._wait()
        elif self._run() and self._error is not None:
            raise self._error

    # -- what it shows ----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"{self._words(self._at)}\n{self._shown.text}".rstrip()

    def _repr_html_(self) -> str:
        return f"<div>{escape(self._words(self._at))}</div>{self._shown.html}"

    def _words(self, values: Mapping[str, Any]) -> str:
        return ", ".join(f"{self._labels.get(name, name)}: {self._say(name, v)}" for name, v in values.items())

    def _say(self, name: str, value: Any) -> str:
        return " ".join([_said(value), *([self._units[name]] if name in self._units and value is not None else [])])

    # -- what moves it ----------------------------------------------------------------------------------------------

    def _move(self) -> None:
        if self._mover != threading.get_ident():
            self._moved = True
            self._wait()

    def _wait(self) -> None:
        self._said.value = f"{escape(self._words(self.values))}: waits for the cell that is running …"
        between_cells.after_the_cell(self._run)

    def _run(self) -> bool:
        """Show what the controls say until they say nothing new, and tell whether it was done in this thread."""
        done = False
        while self._moved and self._busy.acquire(blocking=False):  # else the thread that holds it will see the move
            try:
                while self._moved:
                    self._moved = False
                    self._show()
                    done = True
            finally:
                self._busy.release()
        return done

    def _show(self) -> None:
        values = self.values
        self._said.value = f"{escape(self._words(values))}: running …"
        self._picture.add_class("labkit-old")
        self._error = None
        try:
            self._shown = shown(lambda: self._function(**values))
        except (Exception, KeyboardInterrupt) as error:
            self._error, self._shown = error, _failure(error)
        self._at = values
        self._picture.value = self._shown.html
        self._picture.remove_class("labkit-old")
        self._said.value = ""

    # -- its choices ------------------------------------------------------------------------------------------------

    def _control(self, name: str, value: Any) -> Any:
        values = self._choices[name]
        wide = max(len(self._labels.get(n, n)) for n in self._choices) * 0.6 + 1
        look: dict[str, Any] = {
            "description": self._labels.get(name, name),
            "style": {"description_width": f"{wide:.0f}em"},
            "layout": {"width": "32em", "max_width": "98%"},
        }
        options = [(self._say(name, v), v) for v in values]
        if len(values) > 1 and not any(isinstance(v, (bool, str, type(None))) for v in values):
            return ipywidgets.SelectionSlider(options=options, value=value, continuous_update=False, **look)
        return ipywidgets.Dropdown(options=options, value=value, **look)

    def _choice(self, name: str, value: Any) -> Any:
        for choice in self._choices[name]:
            if isinstance(choice, bool) == isinstance(value, bool) and choice == value:  # 1 is not True here
                return choice
        raise LabError(
            f"{name}={value!r} is not on this knob. Choose {listed([*map(repr, self._choices[name])], 'or')}."
        )

    def _known(self, names: Mapping[str, Any], where: str) -> None:
        for name in names:
            if name not in self._choices:
                raise LabError(f"{where}: this knob has no {name!r}. It has {listed([*self._choices])}.")


def _checked(name: str, values: Any) -> list[Any]:
    """Return the choices of one control, as a list of values that it can say."""
    listing = values.tolist() if type(values).__module__ == "numpy" else values
    if not isinstance(listing, (list, tuple, range)) or not listing:
        raise LabError(f"{name}={values!r} is not a list to choose from. Give its values, such as {name}=[1, 2, 4].")
    for nth, value in enumerate(listing):
        if not isinstance(value, (bool, int, float, str, type(None))):
            raise LabError(f"{name} has {value!r}, which no slider can show. Give numbers, strings, bools or None.")
        if any(value == other for other in listing[:nth]) or value != value:
            raise LabError(f"{name} has {value!r} twice, or it is not a number (nan). Give every value once.")
    return [*listing]


def _fits(show: Any, choices: Mapping[str, Any]) -> None:
    """Refuse a function that cannot be called with these names."""
    if not callable(show):
        raise LabError(f"{show!r} cannot be called. Give a function first: Knob(lambda cap: …, cap=[1, 25]).")
    if not choices:
        raise LabError("A knob needs something to choose. Give each name a list: Knob(show, cap=[1, 25]).")
    try:
        inspect.signature(show).bind(**choices)
    except TypeError as error:
        raise LabError(
            f"The function does not take {listed([*choices])}: {error}. Name its parameters as the lists."
        ) from None
    except ValueError:
        pass  # a built-in one without a signature


def _said(value: Any) -> str:
    """Write a value beside its slider.

    >>> [_said(v) for v in (25, 24_000, 0.1, 1e-5, True, None, "ring")]
    ['25', '24,000', '0.1', '1e-05', 'on', 'none', 'ring']
    """
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return "none" if value is None else "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _failure(error: BaseException) -> Shown:
    """Show what went wrong: what a LabError says, else the error's name and words."""
    if isinstance(error, KeyboardInterrupt):
        text = "You stopped it. Move the knob to begin again."
    else:
        text = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, CellError):
        text = "\n".join([text, *(f"  · {note}" for note in error.notes)])
    return Shown(text, ERROR.format(escape(text)))
