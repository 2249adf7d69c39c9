"""Rewording breaks nothing: every sentence about an outcome is rewritten, and all that is decided stays as it was."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labkit.cluster import check
from labkit.cluster.healing import heal
from labkit.cluster.state import State
from labkit.grading.attempt import Attempt
from labkit.grading.exercise import Exercise
from labkit.grading.finding import Finding, judged
from labkit.grading.inputs import Case
from labkit.outcome import phrases, sentences
from labkit.outcome.advice import advice
from labkit.outcome.outcome import Did, Healed, Instead, Note, Outcome, RankOutcome, Waiting
from labkit.outcome.sentences import judge
from labkit.show.verdict import Verdict
from labkit.show.waits import Waits
from labkit.theory.fingerprint import DTYPE, OPERATION, ROOT
from tests.recorded import Told, told

ROOM = (phrases, sentences)
WIDE = {c: c + 0xFEE0 for c in [*range(ord("A"), ord("Z") + 1), *range(ord("a"), ord("z") + 1)]}
BACK = {other: c for c, other in WIDE.items()}
REWRITTEN: dict[str, Callable[[str], str]] = {
    "in other letters": lambda text: text.translate(WIDE),
    "all the same": lambda text: "¤",
}
CUT = {"start": 0, "end": 900, "error": "RuntimeError"}
FAILED = {"enqueued": True, "error": "DistBackendError"}
WITHOUT = Instead(Did.FINISHED, without=True)
TRACEBACK = """\
ZeroDivisionError   Traceback (most recent call last)
Cell In[7], line 3
----> 3 f(0)

Cell In[{}], line 2, in f(a)
----> 2     y = x + 1

TypeError: unsupported operand
"""
CELLS = ("x = 1", "x = dist.all_reduce(x)\ny = x + 1")


@dataclass
class Recorded:
    """What became of a cell: the ranks' logs, what they waited in, what they did instead, what they raised."""

    logs: list[Told]
    waiting: dict[int, str | Waiting]
    instead: dict[int, Instead]
    raised: dict[int, dict[str, Any]]
    more: dict[str, Any]

    @property
    def outcome(self) -> Outcome:
        ranks = [
            RankOutcome(r, answer={"record": log(r), "error": ("", "", {})}, **self.raised.get(r, {}))
            for r, log in enumerate(self.logs)
        ]
        waiting = {r: Waiting(w, 2, source="…") if isinstance(w, str) else w for r, w in self.waiting.items()}
        return Outcome(ranks, **{"ended": "stuck", "waiting": waiting, "elsewhere": self.instead, **self.more})


def recorded(logs, waiting=(), instead=(), raised=(), **more) -> Recorded:
    return Recorded(logs, dict(waiting), dict(instead), dict(raised), more)


def met(n: int, *which: int, op: str = "all_reduce", **more: Any) -> list[Told]:
    """Logs of n ranks, of which these were in a collective when the cell was cut short."""
    return [Told(n).meet(op, **CUT, **more) if r in which else Told(n) for r in range(n)]


def misfit(differs: str, say: Callable[[str], str]) -> Recorded:
    error = {"ename": "MismatchError", "evalue": say(f"Ranks disagree on the {differs}: …"), "differs": differs}
    return recorded(met(2, 0, 1), {0: "all_reduce"}, {1: Instead(Did.RAISED, "MismatchError")}, {1: error})


def table(say: Callable[[str], str]) -> dict[str, Recorded]:
    """Every kind of ending, wait and deed; `say` rewrites what a rank itself has put into words."""
    tags = [Told(2).send(1, tag=1, asynchronous=True), Told(2).recv(0, tag=2, **CUT)]
    left = [*met(3, 0, 1)[:2], Told(3).meet("all_reduce")]
    clocks = met(2, 0)
    clocks[0].log.clock, clocks[1].log.clock = ("a", 100.0), ("b", 200.0)
    raised = {"ename": "TypeError", "evalue": "'NoneType' and 'int'", "raised": "learner", "at": 1.0}
    freed = {"ename": "RuntimeError", "evalue": "closed", "raised": "operation", "at": 2.0}
    nccl = {"ename": "DistBackendError", "raised": "operation", "at": 1.0}
    behind = {"joined": True, "beside": False, "steps": {}}
    late = [Told(4).send(r ^ 1, 0, 150).recv(r ^ 1, 0, 300) for r in (0, 1)] + [Told(4), Told(4)]
    late = [p.meet("all_reduce", 1 if r > 1 else 300, 305) for r, p in enumerate(late)]
    last = [*(Told(4).meet("all_reduce", start, 205, ranks=range(3)) for start in (0, 1, 200)), Told(4)]
    ran = Told(3)
    ran.log.ended = 0.1
    stood = Instead(Did.STOOD, line=3)
    went_on, died = Instead(Did.WENT_ON, line=4, function=("f", 2)), Instead(Did.DIED, "SIGKILL")
    return {
        "a root is missing": recorded(met(3, 0, op="broadcast", peer=1), {0: "broadcast"}, {1: WITHOUT, 2: WITHOUT}),
        "never ran": recorded(met(2, 0), {0: "all_reduce"}, {1: Instead(Did.NEVER_RAN)}),
        "different deeds": recorded(met(4, 0), {0: "all_reduce"}, {1: WITHOUT, 2: went_on, 3: Instead(Did.NEVER_RAN)}),
        "one died": recorded([Told(3).recv(1, **CUT), Told(3), Told(3)], {0: "recv"}, {1: WITHOUT, 2: died}),
        "one left": recorded(left, {0: "all_reduce", 1: "all_reduce"}, {2: WITHOUT}),
        "one took its part": recorded(left, {0: "all_reduce", 1: "all_reduce"}, {2: WITHOUT}, ended="slow"),
        "tags, and all ended": recorded(tags, {1: "recv"}, {0: Instead(Did.FINISHED)}),
        "tags, and one went on": recorded(tags, {1: "recv"}, {0: went_on}),
        "for how long": recorded(clocks, {0: "all_reduce"}, {1: went_on}, at=205.0),
        "it runs": recorded(met(4, 0), {0: "all_reduce"}, {1: went_on, 2: Instead(Did.SILENT), 3: Instead(Did.STOPPED)},
                            ended="runs", at=2.0),
        "a cycle, and one behind it": recorded([Told(3).send(p, **CUT) for p in (1, 0, 0)],
                                              dict.fromkeys(range(3), "send")),
        "collectives of two groups": recorded(
            [Told(2).meet("all_reduce", group=g, **CUT) for g in "23"], {0: "all_reduce", 1: "all_reduce"}
        ),
        "a handle": recorded([Told(2).start("all_reduce", 0, None).recv(1, **CUT), Told(2)], {0: "recv"}, {1: WITHOUT}),
        "in a function": recorded(met(2, 0), {0: Waiting("wait", 9, ("f", 2), seen="item (line 9)")}, {1: WITHOUT}),
        "making a group": recorded([Told(2), Told(2)], {0: "new_group"}, {1: went_on}),
        "one raised": recorded(met(2, 0), {}, {1: Instead(Did.RAISED, "TypeError")},
                               {1: raised | {"traceback": TRACEBACK.format(7)}, 0: freed}, ended=""),
        "one raised in an earlier cell": recorded(met(2, 0), {}, {}, {1: raised | {"traceback": TRACEBACK.format(4)}},
                                                  ended=""),
        "all raised": recorded([Told(2), Told(2)], {}, {}, dict.fromkeys(range(2), raised), ended=""),
        "one suffered": recorded(met(3, 0, 1), {}, {0: Instead(Did.RAISED, "RuntimeError")},
                                 {0: freed, 1: freed | {"raised": "lab"}}, dead={2: "SIGKILL"}),
        "one could not be freed": recorded(met(3, 0, 1), {0: "all_reduce", 1: "all_reduce"}, {2: WITHOUT},
                                          dead={1: "SIGKILL"}),
        "one was ended": recorded(met(3, 0), {0: "all_reduce"}, {1: Instead(Did.SILENT), 2: died},
                                  dead={1: "SIGKILL", 2: "SIGKILL"}),
        "NCCL": recorded([Told(2).send(1 - r, **FAILED) for r in range(2)], {}, {}, dict.fromkeys(range(2), nccl),
                         ended=""),
        "calls differ": misfit(OPERATION, say),
        "roots differ": misfit(ROOT, say),
        "dtypes differ": misfit(DTYPE, say),
        "stopped": recorded(met(2), {}, dict.fromkeys(range(2), went_on), ended="stopped"),
        "stopped at a prompt": recorded(met(3, 0), {0: "all_reduce"}, {1: stood, 2: WITHOUT}, ended="stopped"),
        "slow": recorded(met(2, 0), {0: "all_reduce"}, {1: went_on}, ended="slow"),
        "lost": recorded(met(2), ended="lost"),
        "a longest wait": recorded(late, ended=""),
        "a last one": recorded(last, ended=""),
        "a cell that nobody knows the end of": recorded([Told(3).recv(1, 0, None), Told(3), ran]),
        "a collective is left open": recorded(met(2), ended="", more=behind),
    }  # fmt: skip


def facts(of: Recorded, name: str) -> dict[str, Any]:
    """All that is decided on the way to the sentences, and the sentences."""
    logs = told(*of.logs)
    open_ = of.more.pop("more", None)
    outcome = None if "nobody knows" in name else of.outcome
    for r, rank in enumerate(outcome.ranks if open_ else ()):
        rank.groups = open_ | {"compared": {"0": ([0, 1], 1 - r, 1 - r)}}
    waits = Waits(logs, outcome)
    error = judge(outcome, logs) if outcome and outcome.ended != "runs" else None
    found = None
    if outcome and outcome.ended != "runs" and (outcome.cut_short or outcome.errors):
        case, exercise = Case([np.zeros(2)] * len(logs)), Exercise("f", "", "", "", lambda xs: xs, "")
        found = judged(exercise, case, Attempt(outcome), [np.zeros(2)] * len(logs), "")
    said = [str(error), *(error.notes if error else ()), sentences.title(waits), repr(waits), *waits.says]
    said += found.says if found else []
    nodes = [waits._node(r) for r in range(len(logs))]
    return {
        "error": (type(error), len(error.notes) if error else 0),
        "advice": advice(outcome, (), CELLS, {}) if outcome else [],
        "graph": (waits.waiting, waits.instead, waits.arrows, waits.cycles, waits.handles, waits.seconds, waits.long),
        "picture": [node.kind for node in nodes],
        "stacks": list(waits.stacks),
        "finding": found and (found.state, found.wrong, found.report and found.report.elsewhere, len(found.says)),
        "sentences": [text.translate(BACK) for text in [*said, *(node.words for node in nodes)]],
    }


@pytest.fixture(params=REWRITTEN)
def rewritten(request, monkeypatch) -> Callable[[str], str]:
    """Rewrite whatever a function of the room says, for all who call it."""
    say = REWRITTEN[request.param]
    for module in ROOM:
        for function in vars(module).copy().values():
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                _rewrite(function, say, monkeypatch)
    return say


def _rewrite(function: Callable[..., Any], say: Callable[[str], str], monkeypatch) -> None:
    if (kind := inspect.signature(function).return_annotation) not in ("str", "list[str]"):
        return

    def said(*args: Any, **kwargs: Any) -> Any:
        words = function(*args, **kwargs)
        return (say(words) if words else "") if kind == "str" else [*map(say, words)]

    for name, module in list(sys.modules.items()):
        for attribute in [a for a, v in vars(module).items() if v is function] if name.startswith("labkit.") else ():
            monkeypatch.setattr(module, attribute, said)


PLAIN = {name: facts(of, name) for name, of in table(str).items()}


def test_the_table_has_whatever_a_rank_may_do():
    assert {i.did for f in PLAIN.values() for i in f["graph"][1].values()} == set(Did)
    assert {f["finding"][0] for f in PLAIN.values() if f["finding"]} >= {"deadlock", "raises", "slow", "stopped"}
    assert {kind for f in PLAIN.values() for kind in f["picture"]} == {"waits", "done", "failed", "busy"}


@pytest.mark.parametrize("name", PLAIN)
def test_no_diagnosis_hangs_on_words(name, rewritten):
    was, now = PLAIN[name], facts(table(rewritten)[name], name)
    if rewritten("a") == rewritten("b"):
        assert now.pop("sentences") != was["sentences"]
    for what, decided in now.items():
        assert decided == was[what], what


class Engines(SimpleNamespace):
    """Four ranks: the last one has died, and the controller; another one dies as they join, and is left out."""

    n, cells, state, were = 4, (), State(), [0, 1, 3]
    gpu = SimpleNamespace(lost=list, daemon_died=lambda: False, told=lambda: HEALED[1:5])

    def rejoin(self, shrink: bool) -> list[int]:
        self.n = 3
        return [2]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        groups = {"steps": {}, "compared": {}, "groups": 2, "joined": True}
        answers = {
            "lost": True,
            "dead": {2: "SIGKILL"},
            "ask": {0: groups, 1: groups},
            "call": SimpleNamespace(ended="", answers={2: {"back": ["f"], "lost": ["x"]}}),
        }
        return lambda *args, **kwargs: answers.get(name)


HEALED = [
    Note(Healed.CONTROLLER),
    Note(Healed.DAEMON),
    Note(Healed.FAULT, (2,)),
    Note(Healed.LOST_GPU, (2,)),
    Note(Healed.TURNS, why="no daemon"),
    Note(Healed.ANEW, (2,), back=("f",), lost=("x",)),
    Note(Healed.SHRUNK, (0, 1, 3), 3),
    Note(Healed.JOINED, (0, 1), 3),
    Note(Healed.SUBGROUPS),
]


@pytest.mark.parametrize("groups", [1, 2])
def test_what_was_healed_is_noted_and_the_check_leaves_out_groups_of_its_own(rewritten, monkeypatch, groups):
    notes = heal(Engines(), range(3))
    assert notes == HEALED
    assert {note.what for note in notes} == set(Healed)
    exercise = Exercise("f", "", "", "", lambda xs: xs, "def f(x):\n    return x\n", ranks=(2,))
    ready = {"groups": groups, "joined": True, "cell": "", "state": "function", "source": ""}
    console = SimpleNamespace(engines=Engines(), recover=lambda: None, call=lambda *_: [ready] * 2)
    found = Finding("deadlock", ["It hangs."], healed=notes)
    monkeypatch.setattr(check, "prepared", lambda engines: contextlib.nullcontext())
    monkeypatch.setattr(check._Check, "run", lambda *_: found)
    checked = check.check(console, exercise, lambda cell: None, lambda *_: None)
    assert checked.healed == (HEALED[:-1] if groups == 1 else HEALED)
    assert phrases.healed(HEALED[0]).capitalize() in repr(Verdict(exercise, replace(checked)))
