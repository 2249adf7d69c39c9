"""Show questions, answers, tiles and steps on a page that moves by itself: the state, and what it is made from.

`view.mjs` and `view.css` beside this module draw it, in JupyterLab and on a page without a kernel alike.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from labkit.floor import kernel_internals
from labkit.floor.errors import LabError
from labkit.grading.prediction import ROUNDING, SLIPS, Prediction, Series
from labkit.show import markdown
from labkit.show.prediction import Answer, Answers, asked, bundle, code, plain, reply

HERE = Path(__file__).parent


class View(anywidget.AnyWidget):
    """Data that a page shows and lets its reader act on; a subclass says what it is and hears what the reader did.

    A page without a kernel shows what `repr` and `_repr_html_` give, or, from `meta`, what `page` makes.
    """

    _esm = HERE / "view.mjs"
    _css = HERE / "view.css"
    kind = traitlets.Unicode().tag(sync=True)
    data = traitlets.Dict().tag(sync=True)
    said = traitlets.Dict(allow_none=True, default_value=None).tag(sync=True)
    replied = traitlets.Unicode(allow_none=True, default_value=None).tag(sync=True)
    _ipython_display_ = None  # ipywidgets 7 would display it by itself, without what a page without a kernel shows

    def __init__(self, **state: Any) -> None:
        super().__init__(**state)
        kernel_internals.answer_where_asked(self.comm)
        self.observe(self._hear, "said")

    @property
    def meta(self) -> dict[str, Any] | None:
        """What a page without a kernel makes this view from; None where it cannot."""
        return None

    def heard(self, said: dict[str, Any]) -> None:
        """Act on what the reader did; a LabError is shown beside it."""
        raise NotImplementedError

    def _hear(self, change: dict[str, Any]) -> None:
        self.replied = None  # so that the same reply once more is one
        try:
            self.heard(change["new"])
        except LabError as error:
            self.replied = f"<span role='alert'>{escape(str(error))}</span>"

    def _repr_html_(self) -> str:
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        live, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        data, told = bundle(self, self.meta)
        return {**live, **data}, {**metadata, **told}


def page(
    meta: dict[str, Any],
    question: Callable[[str], Prediction | Series],
    tool: Callable[[str], Callable[[dict[str, Any]], dict[str, Any]] | None] = lambda _: None,
) -> dict[str, Any] | None:
    """Return what `view.mjs` shows without a kernel of an output with this metadata; None where it shows nothing.

    `question` finds a question, or a series, by its name: `labkit.content.question`. `tool` finds what makes a tool's
    view of a kind: `labkit.content.view`; such views need the module of `labkit.show.controls`.
    """
    kind = meta.get("kind", "")
    if made := tool(kind):
        return made(meta)
    if kind in ("predict", "answer", "choose", "answers"):
        found = question(meta["name"])
        if isinstance(found, Series):
            data = choose(found) if kind == "choose" else _answers(found)
        else:
            data = _predict(found) if kind == "predict" else _answer(found)
        return {"kind": kind, "data": data}
    if kind == "steps":
        from labkit.show.film import frames  # matplotlib

        return {"kind": kind, "data": {"frames": frames(meta["scene"])}}
    if kind == "tiles":
        from labkit.show import compared

        flow = compared.again(meta)
        return {"kind": kind, "data": {**compared.tiles(flow), **compared.answers(flow)}}
    return None


def predict(prediction: Prediction) -> dict[str, Any]:
    """Return the data of a question: nothing in it depends on the answer."""
    options = {"options": [code(option.text) for option in prediction.options]} if prediction.options else {}
    question = {"question": asked("Predict", prediction.question), "label": plain(prediction.question)}
    return {"name": prediction.name, **question, **options, "unit": prediction.unit}


def choose(series: Series) -> dict[str, Any]:
    """Return the data of a series: nothing in it depends on the answers."""
    parts = [
        {
            "question": code(part.question),
            "label": f"{number}. {plain(part.question)}",
            "options": [f"{letter}. {plain(option.text)}" for letter, option in part.lettered],
        }
        for number, part in enumerate(series.parts, 1)
    ]
    return {"name": series.name, "question": asked("Choose", series.question), "parts": parts}


def _predict(prediction: Prediction) -> dict[str, Any]:
    """Return the data of a question that the page reads the number of: it takes one below zero, or it does not."""
    numbers = [] if prediction.options else [float(prediction.answer), *(trap.value for trap in prediction.traps)]
    return {**predict(prediction), "negative": min(numbers, default=0) < 0}


def _answer(prediction: Prediction) -> dict[str, Any]:
    shown = Answer(prediction, None)
    data = {
        "name": prediction.name,
        "unit": prediction.unit,
        "short": code(shown.short),
        "folded": shown.told,
        "why": markdown.html(prediction.why),
        "elsewhere": markdown.html(prediction.elsewhere),
    }
    if prediction.options:
        texts = [option.text for option in prediction.options]
        options = [[code(shown.words(o.text)), markdown.html(o.reply)] for o in prediction.options]
        return {**data, "options": options, "answer": texts.index(str(prediction.answer))}
    traps = [[trap.value, markdown.html(trap.reply)] for trap in prediction.traps]
    numbers = {"answer": prediction.answer, "within": prediction.within, "traps": traps, "rounding": ROUNDING}
    return {**data, **numbers, "slips": [*map(list, SLIPS.items())]}


def _answers(series: Series) -> dict[str, Any]:
    parts = [
        {
            "question": code(part.question),
            "replies": [markdown.html(reply(part, option.text)) for option in part.options],
            "answer": [option.text for option in part.options].index(str(part.answer)),
        }
        for part in series.parts
    ]
    return {"name": series.name, "parts": parts, "folded": Answers(series, [None] * len(parts)).told}
