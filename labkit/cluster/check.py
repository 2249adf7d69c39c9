"""Run a learner's function on the ranks, input by input, up to the first that goes wrong; then heal.

Nothing here raises for a learner's mistake: what a function does comes back as a `Finding`.
"""

from __future__ import annotations

import copy
import random
import re
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.cluster.attempt import Reach, attempt, attempts, prepared, rejoin
from labkit.cluster.console import Console
from labkit.cluster.engines import Engines
from labkit.cluster.healing import heal
from labkit.cluster.run import Running
from labkit.cluster.stop_button import STOP
from labkit.floor import time_limits
from labkit.floor.errors import LabError
from labkit.floor.words import alike, ranks, sentence
from labkit.grading import defined_names, judge, tracing
from labkit.grading.attempt import Attempt
from labkit.grading.evidence import LastWords, last_words
from labkit.grading.exercise import Exercise
from labkit.grading.finding import Finding, judged
from labkit.grading.inputs import Case, arrays, varied
from labkit.grading.limits import STATES, below, remarks, unheard
from labkit.grading.score import scored
from labkit.outcome.outcome import Healed
from labkit.outcome.sentences import TOGETHER
from labkit.outcome.why import begins_singly

SMALL = 64  # elements of all arguments up to which gradients are checked
SHORT = 2**16  # bytes of a rank's input that is run again with other numbers
MANY, LEAST = 48, 24  # calls of a whole check: in so many, what is wrong in one of twenty shows nine times in ten

Watch = Callable[[int, float, Running], None]


@STOP
def check(
    console: Console,
    exercise: Exercise,
    saw: Callable[[str], None],
    watch: Watch,
    cells: Sequence[str] = (),
    known: Collection[str] = (),
    seed: int | None = None,
    limit: float = time_limits.CHECK,
) -> Finding:
    """Hold the learner's function on the ranks against the exercise.

    `saw` is given the cell that the function stands in, as it was typed, before anything of it runs, or nothing where
    `lab.use` has put it there; `watch` is called now and then with the inputs that were right so far, the seconds of
    the run and the run. `cells[i]` is the source of the notebook's cell [i], `known` are names of functions that are no
    misspelling of this one. `seed` is that of all that is left to chance, a different one each time where it is None.
    `limit` is how many seconds all of it may take; what has not ended by then is too slow.
    """
    engines = console.engines
    console.recover()
    sizes = [n for n in exercise.ranks if n <= engines.n]
    if not sizes:
        least = min(exercise.ranks)
        raise LabError(f"{exercise.name} needs {least} ranks or more. Start them: lab = start({max(least, 4)}).")
    seen = dict(enumerate(console.call("labkit.rank.function.ready", exercise.name)))
    groups = max(what["groups"] for what in seen.values())
    if not all(what["joined"] for what in seen.values()):
        rejoin(engines)
    cell = next((what["cell"] for what in seen.values() if what["cell"]), "")
    whose, on_ranks = defined_names.used(cell), defined_names.as_typed(cell)
    if misplaced := defined_names.misplaced(cells, exercise.name, "" if whose else on_ranks):
        return Finding("elsewhere", [misplaced])
    if whose == defined_names.WORKBOOKS:
        put = f'lab.use("{exercise.name}") has put the workbook\'s {exercise.name} on the ranks.'
        return Finding("elsewhere", [f"{put} Run the cell with your own again, and then check."])
    misspelt = defined_names.misspelt(cells, exercise.name, on_ranks, known)
    if finding := unready(exercise.name, seen, engines.state.replaced):
        finding.says += filter(None, [misspelt])
        return finding
    saw("" if whose else on_ranks)
    with prepared(engines) as reach:
        seed = secrets.randbelow(10**6) if seed is None else seed
        finding = _Check(console, exercise, reach, watch, seed, limit).run(sizes)
    if finding.state == "right" and exercise.reads and (said := exercise.reads(exercise, cell)):
        finding = Finding("not as asked", [said], right=finding.right)
    finding.says += filter(None, [misspelt, defined_names.older(cells, exercise.name, "" if whose else on_ranks)])
    if finding.state == "right" and (more := [str(n) for n in exercise.ranks if n > engines.n]):
        finding.says.append(f"Not run on {' and '.join(more)} ranks: this lab has {engines.n}.")
    if groups == 1:  # only the check's own have gone
        finding.healed = [note for note in finding.healed if note.what is not Healed.SUBGROUPS]
    return finding


def unready(name: str, seen: dict[int, dict[str, Any]], anew: Collection[int]) -> Finding | None:
    """Say that it is not attempted, or not the same everywhere; None where there is something to run.

    `anew` are the ranks whose process was replaced since the lab began: what they had is lost.
    """
    states = alike({r: what["state"] for r, what in seen.items()})
    if list(states) == ["missing"] and set(seen) <= set(anew):
        lost = f"There is no function {name} on the ranks: all of them have been started anew. Run its cell again."
        return Finding("not attempted", [lost])
    if list(states) == ["missing"]:
        return Finding("not attempted", [f"There is no function {name} on the ranks yet. Write it in a %%px cell."])
    if set(states) <= {"missing", "empty"}:
        lines = [what["line"] for what in seen.values() if what.get("line")]
        if not lines:
            empty = f"{name} is still empty. Write its body in place of the … and run its cell."
            return Finding("not attempted", [empty])
        belongs = f"write what belongs in place of the … in line {lines[0]}, and run its cell."
        return Finding("not attempted", [f"{name} is still to be written: {belongs}"])
    if "other" in states:
        what = seen[states["other"][0]]["what"]
        other = f"{name} is not a function but a value ({what}). Write def {name}(…) in a %%px cell."
        return Finding("differs", [other])
    if has := states["function"] if len(states) > 1 else []:
        without = [r for r in seen if r not in has]
        says = [f"Only {ranks(has)} {'has' if len(has) == 1 else 'have'} {name}."]
        if set(without) <= set(anew):
            says += [_started_anew(without), f"Run the cell of {name} once more, on all ranks."]
        else:
            says.append("Run its cell on all ranks, with %%px and no --targets.")
        return Finding("differs", says)
    odd = [r for r, what in seen.items() if what["source"] != seen[0]["source"]]
    if odd:
        hold = "holds" if len(odd) == 1 else "hold"
        who = ranks(odd).capitalize()
        return Finding("differs", [f"{who} {hold} a different {name} from rank 0's. Run its cell on all ranks."])
    return None


def _started_anew(which: Sequence[int]) -> str:
    has, it = ("has", "it") if len(which) == 1 else ("have", "they")
    return f"{ranks(which).capitalize()} {has} been started anew, and not all that {it} had came back."


class _Check:
    """One check on its way: what runs, with which numbers, and what was right so far."""

    def __init__(
        self, console: Console, exercise: Exercise, reach: Reach, watch: Watch, seed: int, limit: float
    ) -> None:
        self.console, self.exercise, self.reach, self.seed, self.limit = console, exercise, reach, seed, limit
        self.began = time.monotonic()
        self.right = self.runs = 0
        self._watch = watch
        self._chance = chance = random.Random(seed)
        self._factors = [1 + odd / 2**12 for odd in chance.sample(range(1, 400, 2), 2)]

    def look(self, elapsed: float, running: Running) -> None:
        self._watch(self.right, elapsed, running)

    def draw(self) -> int:
        """Draw a seed for all ranks' random numbers in one run."""
        return self._chance.randrange(2**31)

    def run(self, sizes: Sequence[int]) -> Finding:
        """Run every input on every number of ranks, until one goes wrong; judge what is right, and not as asked."""
        exercise = self.exercise
        found: list[Finding] = []
        largest: tuple[Case, Attempt, list[Any]] | None = None
        cases = {n: list(exercise.inputs(n)) for n in sizes}
        for n in sizes:
            self.reach(n)
            for case in cases[n]:
                want = _wanted(exercise, case)
                for mode in _modes(exercise, case):
                    if STOP.taken():  # between two runs; within one it is the run's own end
                        return Finding("stopped", ["You stopped the check."], right=self.right)
                    ran, finding = self.fault(case, want, mode)
                    if finding is not None:
                        return finding
                    if not mode and (largest is None or (case.n, case.size) > (largest[0].n, largest[0].size)):
                        largest = case, ran, want
                self.right += 1
                found += remarks(exercise, case, ran)
        if (finding := self.again(cases[max(sizes)])) is not None:
            return finding
        assert largest is not None, "there are inputs"
        found += unheard(exercise, *largest)
        score = scored(exercise, *largest[:2])
        if score and (less := below(exercise, score, largest[0])):
            found.append(Finding("not as asked", [less], case=largest[0], records=largest[1].records))
            score = None
        finding = Finding("right")
        for state in reversed(STATES):
            if such := [f for f in found if f.state == state]:
                finding = next(f for f in such if f.case is such[-1].case)  # of the largest input
        finding.right = self.right
        if finding.state == "right" and begins_singly(largest[1].told):
            finding.says.append(sentence([f"with NCCL, {TOGETHER}"]))
        if score:
            memory = self.memory(largest[0], finding) if exercise.counts_memory else None
            finding.score = replace(score, memory=memory).believed(exercise)
        return finding

    def attempt(self, case: Case, want: Sequence[Any], mode: str, seed: int) -> Attempt:
        """Run the function on one input."""
        self.runs += 1
        left = self.limit - (time.monotonic() - self.began)
        most = max(map(judge.most, want))
        ran = attempt(self.console, self.exercise, case, left, self.look, mode, seed=seed, most=most)
        engines = self.console.engines
        ran.last_words = _last_words(engines, engines.processes.run.path, ran)
        return ran

    def judged(self, case: Case, ran: Attempt, want: list[Any], mode: str = "") -> Finding | None:
        """Return what is wrong with it, with the ranks healed; None where it is right."""
        finding = judged(self.exercise, case, ran, want, mode)
        if finding is not None:
            finding.right = self.right
            self.mend(finding, ran)
        return finding

    def fault(self, case: Case, want: list[Any], mode: str = "") -> tuple[Attempt, Finding | None]:
        """Run it on one input, and return what is wrong with it, with all that can be said about that."""
        ran = self.attempt(case, want, mode, self.draw())
        finding = self.judged(case, ran, want, mode)
        if finding is None or finding.state == "stopped":
            return ran, finding
        finding.says[1:1] = _undefined(self.console.engines, ran)
        if ran.report.cut_short:
            return ran, finding
        if any(answer["drew"] for answer in ran.answers.values()):
            again = self.attempt(case, want, mode, self.draw())
            chance = self.judged(case, again, want, mode) is None
            finding.says.append("With other random numbers it is right on the same input. " * chance + self.told)
            if chance:
                return ran, finding
        if finding.wrong and not finding.gradient and not self.exercise.module:
            self.trace(finding)
        return ran, finding

    @property
    def told(self) -> str:
        """How to draw the same numbers once more."""
        return f'lab.check("{self.exercise.name}", seed={self.seed}) draws the same numbers once more.'

    def again(self, cases: Sequence[Case]) -> Finding | None:
        """Run it on other numbers, many times in one go, and return what goes wrong, if anything does.

        The numbers of earlier inputs are multiplied by one of two factors near 1; all random numbers are others. A
        mistake is looked at once more, alone.
        """
        chosen = [case for case in cases if 0 < case.size <= SHORT] or list(cases[:1])
        many = max(LEAST, MANY - self.runs)
        began = time.monotonic()
        drawn: list[tuple[Case, list[Any], int]] = []
        while len(drawn) < many and (not drawn or time.monotonic() - began < time_limits.RERUNS):
            case = chosen[len(drawn) % len(chosen)]
            case = varied(case, self._factors, self._chance) if self.exercise.scales else case
            drawn.append((case, _wanted(self.exercise, case), self.draw()))
        others, wants, seeds = zip(*drawn, strict=True)
        most = max(judge.most(want) for row in wants for want in row)
        well, ran = attempts(self.console, self.exercise, others, seeds, most, time_limits.RERUNS, self.look)
        begun = max((len(answer["answers"]) for answer in ran.answers.values()), default=1)  # where a rank has died
        k, found = min(max(len(well), begun - 1), len(others) - 1), None
        for i, one in enumerate(well):
            if found := judged(self.exercise, others[i], one, wants[i], ""):
                k = i
                break
        if found is None and not (ran.report.cut_short or ran.report.errors):
            return None
        case, want = others[k], wants[k]
        found = found or judged(self.exercise, case, ran, want, "")
        assert found is not None, "a run that did not end well is told"
        found.right = self.right
        self.mend(found, ran)
        if ran.report.ended in ("stopped", "lost"):
            return found
        nth = f"That was call {k + 1} of {len(others)} in a row."
        if ran.report.dead:  # with its variables: alone it would miss them
            found.says.append(f"{nth} {self.told}")
            return found
        self.reach(case.n, anew=ran.report.cut_short)
        alone = self.judged(case, self.attempt(case, want, "", seeds[k]), want)
        if alone is None and ran.report.ended == "slow":  # many calls take long, and one does not
            return None
        if alone is None:
            keeps = (
                "Alone, with the same numbers, it is right: what does it keep from call to call, or leave to chance?"
            )
            found.says.append(f"{nth} {keeps} {self.told}")
            return found
        alone.healed = list(dict.fromkeys([*found.healed, *alone.healed]))
        if case is not chosen[k % len(chosen)]:
            alone.says.append(
                "Before its numbers were multiplied, this input was right: is anything rounded, or kept from an "
                "earlier call?"
            )
        alone.says.append(self.told)
        return alone

    def memory(self, case: Case, finding: Finding) -> float | None:
        """Return the most bytes that a rank had in use at once, in runs of their own; None where one does not end well.

        The lower of two: now and then a thread of Gloo's still holds a tensor that the function has let go.
        """
        peaks = []
        for _ in range(2):
            ran = attempt(self.console, self.exercise, case, time_limits.RUN, self.look, memory=True)
            self.mend(finding, ran)
            told = [answer["memory"] for answer in ran.answers.values() if "memory" in answer]
            if len(told) < case.n:
                return None
            peaks.append(max(told))
        return min(peaks)

    def trace(self, finding: Finding) -> None:
        """Say what a wrong result is made of: run the function again on numbers that tell where they came from."""
        console, exercise, case = self.console, self.exercise, finding.case
        assert case is not None, "a wrong result has an input"
        if any(isinstance(out, judge.Large) for out in finding.outs):
            return
        wanted = tracing.origins(exercise.means, case, finding.want)
        if wanted is None or not tracing.explains(case, wanted, finding.want):
            return
        runs = []
        for probe in tracing.probes(case):
            ran = attempt(console, exercise, probe, time_limits.RUN, self.look, most=max(map(judge.most, finding.want)))
            if ran.report.cut_short or not all("out" in ran.answers.get(r, {}) for r in range(case.n)):
                self.mend(finding, ran)
                return
            runs.append([ran.answers[r]["out"] for r in range(case.n)])
        came = tracing.decoded(case, runs) if runs else None
        if came is None or not tracing.explains(case, came, finding.outs):
            return
        finding.origins = came
        if all(len(a) == len(b) for a, b, want in zip(came, wanted, finding.want, strict=True) if want is not None):
            meant = [None if w is None else row for row, w in zip(wanted, finding.want, strict=True)]
            finding.says += [sentence([mistake]) for mistake in tracing.in_words(came, meant)]
        attempt(console, exercise, case, time_limits.RUN, self.look)  # for lab.last.steps(), with the learner's numbers

    def mend(self, finding: Finding, ran: Attempt) -> None:
        """Bring the ranks back where this attempt did not end by itself."""
        if ran.report.cut_short:
            finding.healed = heal(self.console.engines, self.console.ran, broken=bool(ran.report.misfit))


def _wanted(exercise: Exercise, case: Case) -> list[Any]:
    """Return what every rank must end with."""
    given = [copy.deepcopy(x) for x in case.xs]  # one by one: ranks may share an array, and a meaning work in place
    want = list(exercise.means(given, **case.options))
    judge.check_length(want, case.n)
    return want


def _undefined(engines: Engines, ran: Attempt) -> list[str]:
    """Say who lacks a name that this run asked for, where other ranks have it: one of an earlier cell, say."""
    raised = [answer["error"][1] for answer in ran.answers.values() if answer.get("error", [""])[0] == "NameError"]
    found = re.match(r"name '(\w+)' is not defined", raised[0]) if raised else None
    if not found:
        return []
    name = found[1]
    asked = dict.fromkeys(range(engines.n), (name,))
    seen = engines.call("labkit.rank.function.describe", asked, time_limits.NAME_FOUND, press="waits").answers
    lack = [r for r, what in seen.items() if what["state"] == "missing"]
    if len(lack) in (0, engines.n):
        return []
    says = [f"{name} is not defined on {ranks(lack)}, and it is on the others."]
    if set(lack) <= engines.state.replaced:
        says.append(_started_anew(lack))
    return [*says, f"Run the cell that defines {name} once more, on all ranks."]


def _last_words(engines: Engines, folder: Path, ran: Attempt) -> dict[int, LastWords]:
    """Read where the processes were that crashed in this run, as far as they could still write it down."""
    words: dict[int, LastWords] = {}
    for r in ran.report.dead:
        try:
            wrote = (folder / f"last-words-{r}").read_text(errors="replace")
        except OSError:
            wrote = engines.wrote(r)
        if found := last_words(wrote):
            words[r] = found
    return words


def _modes(exercise: Exercise, case: Case) -> list[str]:
    """Return the modes of a run: for the values, and for the gradients where they can be checked."""
    given = [a for x in case.xs for a in arrays(x)]
    floats = not case.dtype and any(a.dtype.kind == "f" and a.size for a in given)
    if not exercise.gradients or not floats or sum(a.size for a in given) > SMALL:
        return [""]
    return ["", "one" if exercise.gradients == "one" else "all"]
