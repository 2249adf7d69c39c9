"""Name what can go wrong for a learner; each message ends with what to do next. Imports nothing of labkit."""

from __future__ import annotations


class LabError(Exception):
    """Something a learner can mend; the message ends with the next action."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython prints: the message alone, since the frames are labkit's and not the learner's."""
        return [f"{type(self).__name__}: {self}"]


class JoinError(LabError):
    """Ranks that run, and cannot be joined in a process group; `why` is what they said, after a colon, or ""."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The ranks cannot be joined{why}. Call lab.stop() and start() for new ones.")
        self.why = why


class HostError(LabError):
    """A host of the lab does not answer any more, and its ranks are gone with it."""


class MismatchError(LabError):
    """Ranks make calls that do not fit: raised before any of them runs. `differs` is in what, see `fingerprint`."""

    def __init__(self, message: str, differs: str = "") -> None:
        super().__init__(message)
        self.differs = differs


class CellError(LabError):
    """A `%%px` cell that ended on the ranks as an error.

    The message is its one cause ("rank 2: ZeroDivisionError: division by zero"). `traceback` is that rank's,
    cut to the learner's own lines; `notes` say what happened to the other ranks and what was healed.
    """

    def __init__(self, message: str, traceback: str = "", notes: list[str] | None = None) -> None:
        super().__init__(message)
        self.traceback = traceback
        self.notes = notes or []

    def _render_traceback_(self) -> list[str]:
        """Return the learner's lines on the rank, the cause, then what became of the others."""
        lines = self.traceback.splitlines() + super()._render_traceback_()
        lines += [f"  · {note}" for note in self.notes]
        return lines


class StuckError(CellError):
    """A cell that could not finish: some ranks waited for others that never came."""


class StoppedError(CellError):
    """A cell that the learner stopped."""
