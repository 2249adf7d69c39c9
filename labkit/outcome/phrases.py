"""Put one value of an outcome into words: what a rank did, what it waits in, what was done to heal.

These words are for people alone: code that decides something looks at the values.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.floor.words import listed, ranks
from labkit.outcome.outcome import Did, Healed, Instead, Note, Waiting
from labkit.theory.log import place

MANY = 8  # names that are shown one by one
DID = {
    Did.FINISHED: "finished the {ran}{without}",
    Did.LEFT: "left {left} and finished the {ran}",
    Did.NEVER_RAN: "never ran the {ran}",
    Did.DIED: "died ({what})",
    Did.RAISED: "raised {what}{line}",
    Did.SILENT: "did not answer",
    Did.STOPPED: "stood still (SIGSTOP)",
    Did.STOOD: "stood at the debugger's prompt{line}",
    Did.WENT_ON: "went on computing{long}{line}",
    Did.COMPUTES: "compute{s}",
    Did.COMPUTED: "computed",
    Did.INSIDE: "{was} in {label}",
    Did.NOT_YET: "had not arrived yet",
}
DOES = {  # while the cell runs, where that differs
    Did.SILENT: "{does} not answer",
    Did.STOPPED: "stand{s} still (SIGSTOP)",
    Did.STOOD: "stand{s} at the debugger's prompt{line}",
    Did.WENT_ON: "{computes}{long}{line}",
}
AGAIN = "run the cells that make your variables again"
HEALED = {
    Healed.CONTROLLER: "the controller had died and was started anew",
    Healed.DAEMON: f"the MPS daemon under which the ranks share the GPU had died; {AGAIN}",
    Healed.FAULT: "such an error of one rank ends the use of the GPU for all ranks that share it under MPS; " + AGAIN,
    Healed.LOST_GPU: f"{{ranks}} lost the GPU: after such an error every CUDA call of the process fails; {AGAIN}",
    Healed.TURNS: "from now on the ranks take turns on the GPU: {why}",
    Healed.ANEW: "{ranks} {was} started anew{back}, without variables{lost}",
    Healed.JOINED: "the process group is joined again{kept}",
    Healed.SHRUNK: "{ranks} {goes} on {without}{now}",
    Healed.SUBGROUPS: "sub-groups are gone with the old group: make them again",
}


def did(instead: Instead, many: int = 1, live: bool = False, long: str = "") -> str:
    """Say what so many ranks did that do not wait, or do in a cell that runs still; `long` says for how long.

    >>> did(Instead(Did.WENT_ON, line=7), long="4.5 s"), did(Instead(Did.STOPPED), 2, live=True)
    ('went on computing for 4.5 s (line 7)', 'stand still (SIGSTOP)')
    """
    one = many == 1
    now = ("has been" if one else "have been") if long else "is" if one else "are"
    return (DID | DOES if live else DID)[instead.did].format(
        what=instead.what,
        ran=instead.ran,
        without=" without it" * instead.without,
        label=instead.call and label(instead.call),
        left=instead.call and called(instead.call) + where(instead.call),
        s="s" * one,
        was="was" if one else "were",
        does="does" if one else "do",
        computes=f"{now} computing",
        long=long and f" for {long}",
        line=f" (line {instead.line}{inside(instead)})" if instead.line else "",
    )


def inside(what: Instead | Waiting, form: str = ", {}") -> str:
    """Name the learner's function that a rank is in: ", in ring, its line 4"."""
    return form.format(f"in {what.function[0]}, its line {what.function[1]}") if what.function else ""


def called(waiting: Waiting, handle: str = "the wait for ") -> str:
    """Name what a rank waits in: "send", "the wait for isend", "all_reduce among ranks 0, 1"."""
    return f"{handle * waiting.handle}{waiting.call}{f' among {ranks(waiting.group)}' if waiting.group else ''}"


def label(waiting: Waiting) -> str:
    """Name what a rank waits in, and its line: "send, line 7"."""
    return ", ".join(filter(None, [called(waiting), place(waiting.line, waiting.function)]))


def where(waiting: Waiting) -> str:
    """Say where a rank waits, behind the name of what it waits in: " (line 7), seen in synchronize (line 8)"."""
    at = place(waiting.line, waiting.function)
    return f"{f' ({at})' * bool(at)}{f', seen in {waiting.seen}' * bool(waiting.seen)}"


def how(waiting: Waiting) -> str:
    """Say how a rank waits, and where: "for the handle of isend (line 4)", "in recv from any rank (line 2)"."""
    call = called(waiting, "for the handle of ") if waiting.handle else f"in {called(waiting)}"
    return f"{call}{' from any rank' * waiting.anybody}{where(waiting)}"


def freed(waiting: Waiting) -> str:
    """Say where a rank was freed: "send (line 9, in ring, its line 4)"."""
    return f"{waiting.call} (line {waiting.line}{inside(waiting)}){f', seen in {waiting.seen}' * bool(waiting.seen)}"


def cell(newest: bool) -> str:
    """Name the cell that a line of a traceback is in."""
    return "This cell" if newest else "An earlier cell"


def healed(note: Note) -> str:
    """Say what was done to bring the ranks back.

    >>> healed(Note(Healed.ANEW, (1,), back=("step", "Model"), lost=("x",)))
    'rank 1 was started anew, with step and Model again, without variables (x is lost)'
    >>> healed(Note(Healed.SHRUNK, (0, 2, 3), 3))
    'ranks 0, 2, 3 go on as a group of 3, and are ranks 0–2 from now on'
    """
    kept = {0: "", note.of: "; all variables are kept"}.get(len(note.ranks), "; the other ranks keep their variables")
    now = ranks(range(note.of))
    return HEALED[note.what].format(
        ranks=ranks(note.ranks),
        was="was" if len(note.ranks) == 1 else "were",
        back=f", with {named(note.back)} again" if note.back else "",
        lost=f" ({named(note.lost)} {'is' if len(note.lost) == 1 else 'are'} lost)" if note.lost else "",
        kept=kept,
        why=note.why,
        goes="goes" if note.of == 1 else "go",
        without="alone" if note.of == 1 else f"as a group of {note.of}",
        now="" if note.ranks == tuple(range(note.of)) else f", and {'is' if note.of == 1 else 'are'} {now} from now on",
    )


def named(names: Sequence[str]) -> str:
    """Name some names, and count those beyond `MANY`."""
    return listed(names if len(names) <= MANY else [*names[: MANY - 1], f"{len(names) - MANY + 1} more"])
