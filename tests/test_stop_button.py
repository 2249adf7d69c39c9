"""Who hears Stop: a press before a cell's code is kept for it, and a widget's action gives the button back."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from labkit.cluster import stop_button
from labkit.faces import between_cells


def test_a_press_before_a_cells_code_begins_counts_in_the_block_that_it_enters_first(monkeypatch):
    shell = SimpleNamespace(user_ns={}, run_code=lambda: None, run_ast_nodes=lambda: None)
    monkeypatch.setattr(stop_button, "get_ipython", lambda: shell)
    button = stop_button.Stop()
    button.press(signal.SIGINT, None)  # no code of the learner runs yet
    with pytest.raises(stop_button.StoppedError), button:
        assert button.pressed == 1
    with button:
        assert button.pressed == 0


def test_a_press_is_taken_once_and_one_after_a_part_that_must_not_be_torn_is_heard():
    button = stop_button.Stop()
    with button:
        with button.whole():
            pass
        button.press(signal.SIGINT, None)
        assert [button.taken(), button.taken(), button.pressed] == [True, False, 1]
    with button:
        with pytest.raises(KeyboardInterrupt), button.whole():
            button.press(signal.SIGINT, None)
        assert not button.wished


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_after_a_widgets_action_the_kernel_has_its_own_handler_again_however_it_ended(monkeypatch, error):
    heard = []

    def action():
        heard.append("action")
        if error:
            raise error

    kernel = SimpleNamespace(
        io_loop=SimpleNamespace(add_callback=lambda call, *given: call(*given), call_later=lambda _, call: call()),
        pre_handler_hook=lambda: heard.append("before"),
        post_handler_hook=lambda: heard.append("after"),
    )
    monkeypatch.setattr(between_cells, "_kernel", lambda: kernel)
    if error is ValueError:  # the loop logs it
        with pytest.raises(ValueError):
            between_cells.after_the_cell(action)
    else:
        between_cells.after_the_cell(action)
    assert heard == ["before", "action", "after"]


def test_a_press_ends_the_wait_for_a_line_and_counts():
    button = stop_button.Stop()
    with button:
        assert button.answer(lambda: "n") == "n"
        assert button.answer(lambda: button.press(signal.SIGINT, None)) is None
        assert (button.pressed, button.answer(lambda: "not asked, for Stop was pressed")) == (1, None)
        assert button.taken()


def test_who_is_called_away_from_a_prompt_has_not_pressed_stop():
    button = stop_button.Stop()
    with button:
        button.call_away()  # nobody is asked
        assert button.answer(button.call_away) is None
        assert (button.pressed, button.answer(lambda: "p x")) == (0, "p x")


def test_after_an_error_of_what_asks_a_press_is_noted_as_ever():
    button = stop_button.Stop()
    with button:
        with pytest.raises(ZeroDivisionError):
            button.answer(lambda: str(1 / 0))
        button.press(signal.SIGINT, None)
        assert button.taken()
