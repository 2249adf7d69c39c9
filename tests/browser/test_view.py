"""The views of the workbook without a kernel and without Jupyter: what the page says is what Python says.

The page has a model of its own making, which has what `labkit/show/view.mjs` asks of one and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from labkit.content import predictions, question
from labkit.floor.errors import LabError
from labkit.grading.prediction import Prediction, Trap
from labkit.show import compared, view
from labkit.show.flow import Flow
from labkit.show.guess import hold
from labkit.show.prediction import Answer
from labkit.show.sealed import SealedFlow
from labkit.show.steps import Steps
from tests.test_flow_value import BOTH, SUMS, Origin, seen
from tests.test_sealed import SWAPPED
from tests.test_steps import chain

pytestmark = pytest.mark.browser

CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text()
WHERE = "http://views.invalid/"
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>views</title>
<link rel="stylesheet" href="view.css"><style>:root {color-scheme: light dark; background: Canvas; color: CanvasText}
</style><body><button>before</button><script type="module">
import view, * as rules from "./view.mjs";
class Model {
  constructor(state) { this.state = state; this.heard = {}; }
  get(name) { return this.state[name]; }
  set(name, value) { this.state[name] = value; (this.heard[`change:${name}`] ?? []).forEach(hear => hear()); }
  on(name, hear) { (this.heard[name] ??= []).push(hear); }
  save_changes() {}
}
window.rules = rules;
window.keys = 0;
document.addEventListener("keydown", () => window.keys += 1);
window.show = state => {
  const el = document.createElement("div");
  el.className = "jp-OutputArea-output";
  document.body.append(el);
  return view.render({ model: new Model({ said: null, replied: null, ...state }), el });
};
document.title = "ready";
</script>"""
MIB = Prediction("How much?", 24, "24: **six** of 4.", unit="MiB", traps=(Trap(12, "One way."), Trap(11.5, "No.")))
NUMBERS = [MIB, replace(MIB, answer=-40.0, unit="", traps=(Trap(-20, "No."),)), replace(MIB, answer=0, traps=())]
NUMBERS += [p for p in predictions.every().values() if not p.options]
TYPED = """24|24.0|28|28.8|28.9|29|12|11.7|48|3|192|24000|0.024|2.4e7|0|-1|-24|-40|-20|40|1,170|1,170.5 MiB|12,345,678
1,17|0,170|2,5e3|1.5,000|1,17,000|many|24 <b>|nan|1 2|-|it's|it's "so"|back\\slash||24 mib.| `24` |.5|5.|1e-7|1e300|
1_000|+7|1e10|123456789.123|9999999999|0.0001|0.00001|24 GB|1e5 MiB|∞|1.2e3e4""".replace("\n", "|").split("|")
WORDS = seen([["r0"], ["r1"]], [["r1"], [None]], [[Origin(1)], []])
ODD = seen([[1.0], [2.0]], [[float("inf"), 1 / 3, 2.0], None], [[Origin(0), BOTH, Origin(1)], []])
MANY = seen([[0.0] * 3] * 2, [[0.0, float("nan"), 1e9]] * 2, [[Origin(0), Origin(0, 1), Origin(0, 2)]] * 2)
TILES: list[tuple[Flow, list[list[str]]]] = [
    *((Flow(SWAPPED), [[a, b], [c, "2"]]) for a, b, c in (("3", "4", "1"), ("3.0", "", "−1"), ("3", "x", ""))),
    (Flow(SWAPPED), [["", " "], ["", ""]]),
    *((Flow(SUMS, "reduce"), [["11"], [said]]) for said in ("?", "11", "none", "")),
    *((Flow(WORDS, "gather"), [[said], ["–"]]) for said in ("r1", "r2", "?", "3", "None")),
    *(
        (Flow(ODD), [["inf", said, "2.0000001"], ["[]"]])
        for said in ("1/3", "0.333", "0.3", "1/0", "1_0", "-nan", ".33")
    ),
    *((Flow(ODD), [["Infinity", "", "True"], [said]]) for said in ("0", "nothing", "-", "inf")),
    *((Flow(MANY), [[said] * 3, ["1", "2", "3"]]) for said in ("0", "nan", "1e9", "1000000100", "1e-10")),
]


@pytest.fixture
def page(chromium: BrowserContext) -> Iterator[Page]:
    """A page without a view yet; its files come from the package, and nothing else does."""

    def answer(route: Route) -> None:
        name = route.request.url.removeprefix(WHERE)
        if name:
            route.fulfill(path=view.HERE / name)
        else:
            route.fulfill(body=PAGE, content_type="text/html")

    page = chromium.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    page.route("**", answer)
    page.goto(WHERE)
    expect(page).to_have_title("ready")
    yield page
    page.close()
    assert wrong == []


def show(page: Page, *shown: dict[str, Any] | None) -> None:
    """Put views under one another, as `page` makes them."""
    assert all(shown)
    page.evaluate("shown => shown.forEach(window.show)", list(shown))


def asked(kind: str, prediction: Prediction) -> dict[str, Any]:
    made = view.page({"kind": kind, "name": prediction.name}, lambda _: prediction)
    assert made
    return made["data"]


def said(prediction: Prediction, typed: str, late: bool) -> str:
    """What Python says to a number that is locked in, or why it is none."""
    try:
        return Answer(prediction, prediction.choice(typed), None, late)._repr_html_()
    except LabError as error:
        return str(error)


def test_a_number_is_read_and_answered_as_python_does(page):
    cases = [(p, typed, late) for p in NUMBERS for typed, late in zip(TYPED, [False, True] * len(TYPED), strict=False)]
    answered = page.evaluate(
        """({asked, cases}) => cases.map(([k, typed, late]) => {
            try {
                const choice = rules.choice(asked[k][0], typed);
                return `<div class='labkit-answer'>${rules.answered(asked[k][1], {choice, late})}</div>`;
            } catch (error) { return error.message; }
        })""",
        {
            "asked": [(asked("predict", p), asked("answer", p)) for p in NUMBERS],
            "cases": [(NUMBERS.index(p), typed, late) for p, typed, late in cases],
        },
    )
    differ = [(p.question, typed, js, py) for (p, typed, late), js in zip(cases, answered, strict=True)
              if js != (py := said(p, typed, late))]  # fmt: skip
    assert differ == []
    assert len({text.split("</b>")[0] for text in answered}) > 50


def test_a_number_is_written_as_python_does(page):
    numbers = [0, 1, -1, 24.0, 1170, 12345678, 1234567.125, 0.1, 1 / 3, 1e-4, 1e-5, 9999999999.4, 99999999999, -2.5e17]
    assert page.evaluate("numbers => numbers.map(rules.written)", numbers) == [f"{n:,.10g}" for n in numbers]


def test_each_choice_is_answered_as_python_does(page):
    every = [p for p in predictions.every().values() if p.options]
    cases = [(p, i, late) for p in every for i in range(len(p.options)) for late in (False, True)]
    answered = page.evaluate(
        "({data, cases}) => cases.map(([k, choice, late]) => rules.answered(data[k], {choice, late}))",
        {
            "data": [asked("answer", p) for p in every],
            "cases": [(every.index(p), i, late) for p, i, late in cases],
        },
    )
    wanted = [Answer(p, p.options[i].text, None, late)._repr_html_() for p, i, late in cases]
    assert [f"<div class='labkit-answer'>{html}</div>" for html in answered] == wanted


def told(flow: Flow, typed: Sequence[Sequence[str]]) -> Any:
    """What Python says to tiles: its sentences, and the words of each tile; or why there are none."""
    try:
        held = hold(flow.places, typed, flow.meant)
    except LabError as error:
        return str(error)
    return [list(held.sentences), [[compared.judged(*tile)[0] for tile in row] for row in held.rows]]


def test_tiles_are_read_and_compared_as_python_does(page):
    answered = page.evaluate(
        """cases => cases.map(([data, typed]) => {
            try {
                const {sentences, tiles} = rules.compared(data, typed);
                return [sentences, tiles.map(row => row.map(({text, mark}) => mark ? `${text} ${mark}` : text))];
            } catch (error) { return error.message; }
        })""",
        [({**compared.tiles(flow), **compared.answers(flow)}, typed) for flow, typed in TILES],
    )
    assert answered == [told(flow, typed) for flow, typed in TILES]
    assert sum(isinstance(one, str) for one in answered) == 3
    assert any("more tiles are wrong" in str(one) for one in answered)


def test_a_question_locks_in_by_keyboard_and_then_its_answer_appears_and_is_told(page):
    show(page, *(view.page({"kind": kind, "name": "late_receiver"}, question) for kind in ("predict", "answer")))
    expect(page.get_by_text("Choose an answer above and lock it in, then its answer appears here.")).to_be_visible()
    expect(page.get_by_text("rendezvous")).to_be_hidden()
    expect(
        page.get_by_role("radiogroup", name="Rank 1 receives a second late. When does rank 0 return")
    ).to_be_visible()
    lock = page.get_by_role("button", name="Lock it in")
    expect(lock).to_be_disabled()
    page.get_by_role("button", name="before").focus()
    for key in ("Tab", "ArrowDown", "ArrowDown", "Tab", "Enter"):
        page.keyboard.press(key)
    expect(page.get_by_role("status")).to_have_text("Locked in: c. a second later: when rank 1 receives")
    expect(page.get_by_role("status")).to_be_focused()
    # Notebook 7 hears keys before the page does, and leaves them to an element that says so.
    expect(page.get_by_role("status")).to_have_attribute("data-lm-suppress-shortcuts", "true")
    expect(lock).to_have_count(0)
    answer = page.locator("[aria-live=polite]")
    expect(answer).to_contain_text("✓ You predicted c. a second later: when rank 1 receives. That is right.")
    expect(answer.get_by_text("rendezvous")).to_be_visible()
    assert page.evaluate("keys") == 1, "only the first key was pressed outside"


def test_two_questions_on_a_page_do_not_share_their_choice(page):
    show(page, *[view.page({"kind": "predict", "name": "late_receiver"}, question)] * 2)
    first, second = page.get_by_role("radiogroup").all()
    first.get_by_role("radio").nth(0).check()
    second.get_by_role("radio").nth(1).check()
    expect(first.get_by_role("radio").nth(0)).to_be_checked()


def test_an_answer_that_was_opened_before_is_not_called_predicted(page):
    show(page, *(view.page({"kind": kind, "name": "algbw_of_a_ring"}, question) for kind in ("predict", "answer")))
    page.get_by_text("The answer", exact=True).click()
    field = page.get_by_role("textbox", name="Your answer")
    field.fill("1,17")
    field.press("Enter")
    expect(page.get_by_role("button", name="Lock it in")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text(
        "'1,17' has a comma, which parts thousands here, as in 1,170. Write 1.17 if you mean that."
    )
    field.fill("25")
    page.get_by_role("button", name="Lock it in").click()
    expect(page.locator("[aria-live=polite]")).to_contain_text(
        "✗ You chose 25 GB/s when the answer was already there to read"
    )


def test_a_series_is_locked_in_some_now_and_the_others_later(page):
    show(page, *(view.page({"kind": kind, "name": "eight_situations"}, question) for kind in ("choose", "answers")))
    lock = page.get_by_role("button", name="Lock in what is chosen")
    lock.click()
    expect(page.get_by_role("status")).to_contain_text("Nothing new is chosen.")
    lists = page.get_by_role("combobox")
    expect(lists).to_have_count(8)
    expect(page.get_by_role("combobox", name="1. Any rank's loss may become nan.")).to_have_count(1)
    lists.nth(0).select_option(index=2)
    lists.nth(1).focus()
    page.keyboard.press("ArrowDown")
    lock.click()
    expect(page.get_by_role("status")).to_have_text("Locked in: 2 of 8 answers")
    answers = page.locator("[aria-live=polite]")
    expect(answers).to_contain_text("1 of 2 right. 6 questions still open")
    expect(answers.locator("li")).to_have_count(2)
    for i in range(2, 8):
        lists.nth(i).select_option(index=1)
    lock.click()
    expect(lock).to_be_disabled()
    expect(answers).to_contain_text(" of 8 right.")
    expect(answers.locator("li").nth(7)).to_be_visible()


def test_tiles_are_filled_in_by_keyboard_and_then_the_flow_is_shown(page):
    show(page, view.page(SealedFlow(Flow(SWAPPED)).meta or {}, question))
    expect(page.locator("img")).to_have_count(0)
    page.get_by_role("textbox", name="rank 0, place 0").focus()
    for typed in ("3", "5"):
        page.keyboard.type(typed)
        page.keyboard.press("Enter")
    page.get_by_role("button", name="Same on every rank").click()
    expect(page.get_by_role("textbox", name="rank 1, place 1")).to_have_value("5")
    page.get_by_role("textbox", name="rank 1, place 1").fill("x")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Rank 1, place 1: 'x' is not a number.")
    page.get_by_role("textbox", name="rank 1, place 1").fill("2")
    page.get_by_role("button", name="Compare with the ranks").press("Enter")
    expect(page.get_by_role("status")).to_contain_text("2 of 4 tiles are right.")
    expect(page.get_by_role("status")).to_be_focused()
    expect(page.get_by_text("✗ 4")).to_be_visible()
    expect(page.locator("img[alt*='After, y: rank 0 holds [3, 4]']")).to_be_visible()
    assert page.evaluate("keys") == 0


def test_steps_go_by_button_arrow_and_slider_and_play_to_their_end(page):
    page.clock.install()
    show(page, view.page(Steps(chain(4)).meta or {}, question))
    group = page.get_by_role("group", name="Step through the messages")
    picture, title = group.locator("img"), group.get_by_role("status")
    expect(picture).to_have_attribute("alt", "step 1: 0→1 [3, 4]")
    group.get_by_role("button", name="one step on").click()
    expect(picture).to_have_attribute("alt", "step 2: 1→2 [3, 4]")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(title).to_have_text("step 1 of 3")
    slider = group.get_by_role("slider", name="step")
    slider.press("ArrowRight")
    expect(title).to_have_text("step 2 of 3")
    expect(slider).to_have_attribute("aria-valuetext", "step 2 of 3")
    slider.press("End")
    expect(picture).to_have_attribute("alt", "after step 3: ranks 0–3: x = [3, 4]")
    group.get_by_role("button", name="Play").click()
    expect(title).to_have_text("step 1 of 3")
    page.clock.run_for(1300)
    expect(title).to_have_text("step 2 of 3")
    group.get_by_role("button", name="Pause").click()
    page.clock.run_for(5000)
    expect(title).to_have_text("step 2 of 3")
    group.get_by_role("button", name="Play").click()
    page.clock.run_for(5000)
    expect(title).to_have_text("after step 3")
    expect(group.get_by_role("button", name="Play")).to_be_visible()
    assert page.evaluate("keys") == 0


def contrasts(page: Page) -> list[tuple[str, float]]:
    return page.evaluate(f"() => {{{CONTRASTS} return inOutputs()}}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_readable_in_the_pages_own_colours_before_and_after(page, scheme):
    page.emulate_media(color_scheme=scheme)
    kinds = (("predict", "answer"), ("predict", "answer"), ("choose", "answers"))
    names = ("late_receiver", "algbw_of_a_ring", "eight_situations")
    kept = [{"kind": kind, "name": name} for pair, name in zip(kinds, names, strict=True) for kind in pair]
    kept += [SealedFlow(Flow(SWAPPED)).meta or {}, Steps(chain(3)).meta or {}]
    show(page, *(view.page(meta, question) for meta in kept))
    before = contrasts(page)
    page.get_by_role("radio").first.check()
    for name, typed in (("Your answer", "25"), ("rank 0, place 0", "3"), ("rank 0, place 1", "3")):
        page.get_by_role("textbox", name=name).fill(typed)
    page.get_by_role("combobox").first.select_option(index=1)
    for button in ("Lock it in", "Lock it in", "Lock in what is chosen", "Compare with the ranks"):
        page.get_by_role("button", name=button).first.click()
    after = contrasts(page)
    assert len(after) > len(before) > 40
    assert [(text, ratio) for text, ratio in before + after if ratio < 4.5] == []


def test_a_kind_that_is_unknown_shows_nothing_and_an_end_takes_a_view_away(page):
    assert view.page({"kind": "of a later version"}, question) is None
    page.evaluate("() => { window.end = show({kind: 'of a later version', data: {}}); }")
    show(page, view.page({"kind": "predict", "name": "late_receiver"}, question))
    views = page.locator(".labkit-live")
    expect(views.first).to_be_empty()
    expect(views.last).not_to_be_empty()
    page.evaluate("() => end()")
    expect(views).to_have_count(1)
    expect(views).not_to_be_empty()
