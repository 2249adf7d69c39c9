"""Put fields, buttons and sliders in a column, as every widget of the workbook has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any

import ipywidgets

from labkit.floor import kernel_internals
from labkit.floor.errors import LabError

# ipywidgets sets sentences in lines of 28 px, as high as a button.
LINES = "<style>.labkit-box .widget-html-content {line-height: 1.6}</style>"


class Box(ipywidgets.VBox):
    """Widgets one below the other; what is done in them is handled in the order in which it was done.

    A page without a kernel shows what `repr` and `_repr_html_` give.

    A click would overtake the change before it, twice:

    - The page holds a widget's next changes back until the kernel has answered the last one, and sends a click at once
      (ipywidgets' `WidgetModel.send_sync_message`). On a busy machine a button acted on the second of four choices.
      So a click is acted on once a number has gone to the page and come back: what was held back comes before it.
    - JupyterLab has a thread of the kernel (a subshell) handle all that widgets tell it. ipykernel 7.4 sends a widget's
      messages to the thread that last answered for this widget instead: a field that has been written into to one, a
      button that has never changed to another. Here every message goes where it was sent to, as with older versions.

    `button.click()` acts at once.
    """

    def __init__(self, children: Sequence[ipywidgets.Widget]) -> None:
        super().__init__(children)
        self.add_class("labkit-box")
        within = list(_within(self))
        buttons = [widget for widget in within if isinstance(widget, ipywidgets.Button)]
        if buttons:
            self._clicked: list[ipywidgets.Button] = []  # and not yet acted on
            self._sent, self._back = ipywidgets.IntText(), ipywidgets.IntText()  # how many clicks; never shown
            self._echo = ipywidgets.jsdlink((self._sent, "value"), (self._back, "value"))
            self._back.observe(lambda _: self._act(), "value")
            within += [self._sent, self._back]
        for button in buttons:
            kernel_internals.hear_clicks(button, self._heard)
        for widget in within:
            kernel_internals.answer_where_asked(widget.comm)

    def _repr_html_(self) -> str | None:
        return None

    # ipywidgets 7 would display it by itself, without what a page without a kernel shows.
    _ipython_display_ = None

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        live = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        html = self._repr_html_()
        static = {"text/plain": repr(self), **({} if html is None else {"text/html": html})}
        return {"application/vnd.jupyter.widget-view+json": live, **static}

    @staticmethod
    def attempt(action: Callable[[], object], said: ipywidgets.HTML) -> None:
        """Do what a button asks for, and let `said` show the error of it that a learner can mend."""
        try:
            action()
        except LabError as error:
            said.value = f"<span role='alert'>{escape(str(error))}</span>"

    def _heard(self, button: ipywidgets.Button, content: dict[str, Any], _: Any) -> None:
        if content.get("event") == "click":
            self._clicked.append(button)
            self._sent.value += 1

    def _act(self) -> None:
        """Act on all clicks but the last ones, after which the page has not answered yet."""
        while len(self._clicked) > self._sent.value - self._back.value:
            self._clicked.pop(0).click()


def _within(widget: ipywidgets.Widget) -> Iterator[ipywidgets.Widget]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from _within(child)
