"""What the ranks wrote, made readable: equal outputs merged, causes told from consequences, frames cut."""

from __future__ import annotations

import re
from dataclasses import dataclass

from labkit.floor.errors import LabError
from labkit.floor.words import ANSI, alike, ranks
from labkit.outcome.outcome import Outcome
from labkit.outcome.phrases import cell

# What torch's detail mode compares: the operation, the shape and the dtype help a learner, the rest does not.
FINGERPRINT = re.compile(
    r"CollectiveFingerPrint\(SequenceNumber=\d+,? ?OpType=(\w+)(?:, TensorShape=(\[[^]]*\]), TensorDtypes=(\w+))?"
    r".*?(?=, but Rank|\.?\s*Collectives differ|$)"
)
# What a DataLoader puts before an error of its worker's. A LabError says all in its message.
PASSED_ON = re.compile(rf"^Caught {LabError.__name__} in .*\n[\w.]*{LabError.__name__}: ", re.DOTALL)

LONG = 5_000  # characters of a message that are read
# What ranks say that came to a monitored barrier and only felt that another did not: rank 0 names that one.
CAME = "successfully reached monitoredBarrier"
REFUSED = "Connection refused"  # by a rank that has left the call in which all connect


@dataclass(frozen=True)
class Cause:
    """An error that no other rank caused, with all the ranks that raised it."""

    ranks: list[int]
    ename: str
    evalue: str
    traceback: str

    def __str__(self) -> str:
        return f"{ranks(self.ranks)}: {named(self.ename, self.evalue)}"


def merge(texts: dict[int, str]) -> str:
    """Merge the ranks' texts: in rank order, equal ones told once, every line behind its ranks.

    >>> print(merge({0: "hi\\n", 1: "hi\\n", 2: "ho\\n"}), end="")
    ranks 0, 1 │ hi
    rank 2     │ ho
    """
    groups = alike({r: plain(text) for r, text in texts.items() if text})
    labels = {said: ranks(who) for said, who in groups.items()}
    width = max(map(len, labels.values()), default=0)
    lines = [f"{labels[said]:<{width}} │ {line}" for said in groups for line in said.split("\n")]
    return "".join((line[:-1] if line.endswith("│ ") else line) + "\n" for line in lines)


def plain(text: str) -> str:
    """Return what of a text remains to be read: no colours, progress bars in their last state, no last newline."""
    lines = ANSI.sub("", text).removesuffix("\n").split("\n")
    return "\n".join(next((s for s in reversed(line.split("\r")) if s), "") for line in lines)


def root_cause(outcome: Outcome) -> tuple[list[Cause], dict[int, str]]:
    """Tell causes from consequences, by what the ranks recorded when they raised.

    An error is a consequence where the lab brought it about, to free a rank, and where it came out of an operation
    after another rank had raised or died, or says itself that it is one (`CAME`, `REFUSED`). A `LabError` says what has
    happened, and is none, though another rank may have felt what it tells of before it was raised. Returns the causes
    in the order of their first rank, equal ones merged, and for every other rank what it suffered ("Connection closed
    by peer"). Both have short messages.
    """
    causes: dict[tuple[str, str], Cause] = {}
    consequences = {}
    errors = outcome.errors
    felt = {r for r, e in errors.items() if e.raised == "lab" or (e.raised == "operation" and CAME in e.evalue)}
    refused = {r for r, e in errors.items() if e.raised == "operation" and REFUSED in e.evalue}
    felt |= refused if set(errors) - refused - felt else set()  # the other one raised before, and told of it later
    first = min((e.at for r, e in errors.items() if r not in felt), default=0)
    told = {r for r, e in errors.items() if e.ename == LabError.__name__}
    late = {r for r, e in errors.items() if e.at > first or outcome.dead or told} - told
    suffered = felt | {r for r in late if errors[r].raised == "operation"}
    for r in sorted(errors, key=lambda r: (r in suffered, r)):
        error = errors[r]
        message = shorten(error.evalue)
        if (error.ename, message) in causes and error.raised != "lab":
            causes[error.ename, message].ranks.append(r)
        elif r in suffered:
            consequences[r] = message.rstrip(".") or "interrupted"
        else:
            causes[error.ename, message] = Cause([r], error.ename, message, error.traceback)
    return list(causes.values()), consequences


def named(ename: str, evalue: str) -> str:
    """Write an exception in one line, as Python does: "ValueError: no", or "AssertionError" alone.

    >>> named("AssertionError", "")
    'AssertionError'
    """
    return f"{ename}: {evalue}" if evalue else ename


def shorten(evalue: str) -> str:
    """Cut from a message what differs between runs or helps no learner: ports, addresses, C++ sources.

    >>> shorten("[/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234")
    'Connection closed by peer'
    """
    text = PASSED_ON.sub("", ANSI.sub("", evalue[:LONG]))
    text = re.split(
        r"\.?\s*This is typically caused by a remote|\s*Exception raised from \S+ at |\)?\.?\s*Collectives differ in |"
        r"\s*Search for `cuda|\s*CUDA kernel errors might be ",
        text,
    )[0]
    more = f" … ({len(evalue):,} characters)" if len(text) == LONG < len(evalue) else ""
    text = re.sub(r"\[?(?<![\w./+-])[\w./+-]*/[\w./+-]+\.(?:cc|cpp|cu|cuh|h|hpp):\d+\]?,?\s*", "", text)
    text = re.sub(r"^\[rank\d+\]:\[\w+ [\d:.]+ [\w.]+:\d+\] ", "", text)  # torch's log has the rank and the time
    text = re.sub(r"^NCCL error in:\s*", "NCCL error: ", text)
    text = re.sub(r"\s*Last error:\s*\Z", "", text)  # NCCL has one for some failures only
    text = re.sub(r"\s*\[[\w.:%]+\]:\d+|\s*\b\d{1,3}(?:\.\d{1,3}){3}:\d+", "", text)
    text = FINGERPRINT.sub(lambda m: " ".join(filter(None, m.groups())), text)
    text = re.sub(r"\(\d+\.py, line (\d+)\)", r"(line \1)", text)  # a SyntaxError names a temporary file
    text = re.sub(r"\b0x[0-9a-fA-F]{6,}", "0x…", text)
    text = re.sub(r"^(?:Read|Write|writev|readv|recv|send)(?: error)?:\s*", "", text.strip())
    return text.strip() + more


def trim(traceback: str) -> str:
    """Cut an IPython traceback to the learner's own lines.

    Frames of Python, torch and labkit go; so do the header and the closing message, which the error repeats.
    Engines number cells on their own, so frames say "This cell" or "An earlier cell".
    """
    newest, kept = _kept(traceback)
    return "\n\n".join(CELL.sub(lambda m: cell(int(m[1]) == newest), block) for block in kept)


def lines(traceback: str) -> list[tuple[bool, int]]:
    """List the lines of cells that an error came through, outermost first: whether of the last cell, and the number."""
    newest, kept = _kept(traceback)
    return [(int(m[1]) == newest, int(m[2])) for block in kept if (m := IN_CELL.match(block))]


def _kept(traceback: str) -> tuple[int, list[str]]:
    """Return the number of the last cell in an IPython traceback, and the frames that `trim` shows."""
    text = ANSI.sub("", traceback).strip("\n")
    newest = max((int(n) for n in re.findall(r"^ *Cell In\[(\d+)\]", text, re.MULTILINE)), default=0)
    kept: list[str] = []
    repeated = 0
    for block in re.split(r"\n\n+(?=\S)", text):
        block = re.sub(r"\A(-{20,}\n)?(\w[\w.]* +Traceback \(most recent call last\)\n)?", "", block)
        if FOREIGN.match(block):
            continue
        if kept and block == kept[-1]:
            repeated += 1
            continue
        kept += [f"… the same frame {repeated} more times"] * bool(repeated) + [block]
        repeated = 0
    while kept and not FRAME.match(kept[-1]):  # the closing message, which may have several paragraphs
        kept.pop()
    if kept:  # a SyntaxError has its message in the block
        kept[-1] = re.sub(r"\n\w[\w.]*Error\b.*\Z", "", kept[-1], flags=re.DOTALL)
    return newest, kept


CELL = re.compile(r"\A *Cell In\[(\d+)\]")
IN_CELL = re.compile(rf"{CELL.pattern}, line (\d+)")
FRAME = re.compile(r"\A *(Cell In\[|File |… the same frame)")
FOREIGN = re.compile(r"\AFile (\S*/(site-packages|dist-packages|labkit|lib/python3[.\d]*)/|<)")
