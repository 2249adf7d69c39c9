"""What a page tells the kernel of fields and buttons, as JupyterLab sends it: handled in the order of sending.

JupyterLab sends all of it to a thread of the kernel, a subshell. A kernel without subshells has its one thread.
"""

from __future__ import annotations

import ast
from typing import Any

import pytest

from tests.live.notebook import ENOUGH, Notebook

pytestmark = pytest.mark.live

CLICK = {"method": "custom", "content": {"event": "click"}}
WATCHED = """
import threading, ipywidgets
from labkit import Atlas, Predict, WhatIf
from labkit.show.box import Box

handled = []
handle = ipywidgets.Widget._handle_msg

def watched(widget, message):
    handled.append((type(widget).__name__, threading.current_thread().name))
    handle(widget, message)

ipywidgets.Widget._handle_msg = watched
"""


def update(**state: Any) -> dict[str, Any]:
    """What a field's view says when somebody has written into it, or chosen."""
    return {"method": "update", "state": state, "buffer_paths": []}


@pytest.fixture(scope="module")
def notebook():
    with Notebook() as nb:
        assert nb.run(WATCHED).status == "ok"
        yield nb


@pytest.fixture(scope="module")
def subshell(notebook) -> str | None:
    """Where JupyterLab has widgets' messages handled."""
    return notebook.subshell()


def tell(notebook: Notebook, subshell: str | None, *said: tuple[str, dict[str, Any]]) -> list[tuple[str, Any]]:
    """Send each widget its message, all before the first is answered, and wait until all are handled.

    Returns which widgets the kernel has given a new state meanwhile, and what state.
    """
    client, waiting, told = notebook.client, set(), []
    for model, data in said:
        message = client.session.msg("comm_msg", {"comm_id": model, "data": data})
        message["header"]["subshell_id"] = subshell
        client.shell_channel.send(message)
        waiting.add(message["header"]["msg_id"])
    while waiting:
        heard = client.get_iopub_msg(timeout=ENOUGH)
        if heard["msg_type"] == "status" and heard["content"]["execution_state"] == "idle":
            waiting.discard(heard["parent_header"].get("msg_id"))
        elif heard["msg_type"] == "comm_msg" and heard["content"]["data"]["method"] == "update":
            told.append((heard["content"]["comm_id"], heard["content"]["data"]["state"]))
    return told


@pytest.mark.parametrize(
    ("made", "first", "says", "second", "answers"),
    [
        ("Atlas()", "box._text", update(value="no log"), "box._button", CLICK),
        ("Predict('tokens_that_hide_it')", "box", update(said={"choice": "no number", "nth": 1}), "box",
         update(said={"choice": "none", "nth": 2})),
        ("WhatIf()", "box", update(said={"n": 3}), "box", update(said={"op": 1})),
        ("Box([ipywidgets.HBox([ipywidgets.Text(), ipywidgets.Button()])])", "box.children[0].children[0]",
         update(value="deep"), "box.children[0].children[1]", CLICK),
    ],
)  # fmt: skip
def test_what_is_done_in_a_widget_is_handled_on_one_thread(notebook, subshell, made, first, says, second, answers):
    pair = ast.literal_eval(notebook.value(f"box = {made}; handled.clear(); ({first}.model_id, {second}.model_id)"))
    for _ in range(3):
        tell(notebook, subshell, (pair[0], says), (pair[1], answers))
    handled = ast.literal_eval(notebook.value("handled"))
    assert [kind for kind, _ in handled] == [handled[0][0], handled[1][0]] * 3
    assert {thread for _, thread in handled} == {f"subshell-{subshell}" if subshell else "MainThread"}


@pytest.mark.parametrize("held_back", [False, True])
def test_what_was_chosen_is_there_when_the_button_is_pressed(notebook, subshell, held_back):
    """Also what the page still held back when the button was pressed; it comes before the page answers the kernel."""
    code = """
field, button, seen = ipywidgets.Text(), ipywidgets.Button(), []
box = Box([field, button])
button.on_click(lambda _: seen.append(field.value))
(field.model_id, button.model_id, box._sent.model_id, box._back.model_id)
"""
    field, button, sent, back = ast.literal_eval(notebook.value(code))
    typed = [f"attempt {i}" for i in range(20)]
    for i, text in enumerate(typed):
        before = [(field, update(value="half" if held_back else text)), (button, CLICK)]
        (asked,) = (state["value"] for model, state in tell(notebook, subshell, *before) if model == sent)
        assert asked == i + 1
        assert ast.literal_eval(notebook.value("seen")) == typed[:i]
        tell(notebook, subshell, *[(field, update(value=text))] * held_back, (back, update(value=asked)))
    assert ast.literal_eval(notebook.value("seen")) == typed


def test_clicks_are_acted_on_in_their_order_each_when_the_page_has_answered_it(notebook, subshell):
    code = """
one, two, seen = ipywidgets.Button(), ipywidgets.Button(), []
box = Box([one, ipywidgets.VBox([two])])
one.on_click(lambda _: seen.append(1))
two.on_click(lambda _: seen.append(2))
(one.model_id, two.model_id, box._back.model_id)
"""
    one, two, back = ast.literal_eval(notebook.value(code))
    tell(notebook, subshell, (one, CLICK), (two, CLICK), (two, CLICK))
    seen = []
    for answered, acted in ((1, [1]), (3, [2, 2])):
        assert ast.literal_eval(notebook.value("seen")) == seen
        tell(notebook, subshell, (back, update(value=answered)))
        seen += acted
    assert ast.literal_eval(notebook.value("one.click(); seen")) == [*seen, 1]
