"""What has a training client been asked to do, in what order, and what of it is known to be done?

A ledger is made of events and of nothing else: applying the events of a run again gives the same ledger. Calls are
numbered from 1 in the order of their submission. A call ends in one of two ways for whoever made it, and that is the
promise that everything here keeps: **a call that returned is applied once; a call that raised is not applied at all.**

Lineage: what is trained is the last confirmed checkpoint, or the first weights where there is none, and every call
after it that is not failed, in order. A client that may have done more or less than that is given up, and another one
is brought to where the lineage stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

__all__ = ["Checkpoint", "Divergence", "Entry", "Event", "Ledger", "State"]

Event = Mapping[str, Any]
"""What happened, as it is written down: "what", and what belongs to it."""

State = Literal["submitted", "indeterminate", "confirmed", "failed"]
"""What is known of a call: on its way, on its way to a client that was given up, done, or not done and never to be."""

# Whether the weights are at rest after a call: gradients that are gathered belong to no checkpoint.
_GATHERS = frozenset({"forward_backward", "forward_backward_custom"})
_STEPS = frozenset({"optim_step"})
_CHANGES = _GATHERS | _STEPS | {"load_state", "load_state_with_optimizer"}


class Checkpoint(NamedTuple):
    """A state with its optimizer that the service keeps."""

    after: int
    """The number of the last call that it contains; 0 before the first."""
    step: int
    """Optimizer steps that it contains."""
    path: str
    """Where it is, as the service names it."""


class Divergence(NamedTuple):
    """The first call of a resumed run that is not the one that was made in its place."""

    number: int
    step: int
    """The optimizer step that it belongs to, counted from 1."""
    was: str
    """The method that was called."""
    now: str
    """The method that is called instead, or the same with other arguments."""


class Entry:
    """One call."""

    __slots__ = ("digest", "method", "number", "result_at", "state", "step")

    def __init__(self, number: int, method: str, digest: str, step: int) -> None:
        self.number = number
        self.method = method
        self.digest = digest
        # The optimizer step that it belongs to, counted from 1.
        self.step = step
        self.state: State = "submitted"
        # Where its result is kept; `None` where it has none, or it is not kept.
        self.result_at: int | None = None

    @property
    def changes(self) -> bool:
        """Whether it changes what is trained."""
        return self.method in _CHANGES


class Ledger:
    """The calls of one training client, and the checkpoints that were taken between them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.checkpoints: list[Checkpoint] = []
        self.made = ""
        """Which call made the client, as a digest; "" before that is known, "unseen" where nobody saw it."""
        self.cause = ""
        """Why the client may not be used before it is recovered; "" while it may."""
        self.recoveries = 0
        self.former: list[Entry] = []
        """What the process before this one did after the checkpoint that this one went on from."""
        self._steps = 0  # optimizer steps submitted that have not failed
        self._open: dict[int, Entry] = {}

    def apply(self, event: Event, at: int | None = None) -> None:
        """Takes an event in.

        Args:
            event: What happened, as `submitted` and its siblings make it.
            at: Where it is written down; a result is found again by that.

        Raises:
            ValueError: it cannot have happened: the ledger is not the one that it belongs to.
        """
        what = event["what"]
        if what == "opened":
            self.made = event["made"] or "unseen"
        elif what == "submitted":
            self._submit(event)
        elif what == "checkpoint":
            self._checkpoint(Checkpoint(event["after"], event["step"], event["path"]))
        elif what in ("fenced", "recovered"):
            self.cause = event.get("cause", "")
            self.recoveries += what == "recovered"
            for entry in self._open.values():
                entry.state = "indeterminate" if what == "fenced" else "submitted"
        elif what == "resumed":
            self._go_back_to(event["after"])
        elif what in ("confirmed", "failed"):
            self._end(self.entry(event["number"]), what)
            self.entry(event["number"]).result_at = at if event.get("result") is not None else None

    def _submit(self, event: Event) -> None:
        number = event["number"]
        if number != len(self.entries) + 1:
            raise ValueError(f"call {number} cannot follow call {len(self.entries)}")
        entry = self._open[number] = Entry(number, event["method"], event["digest"], self._steps + 1)
        self.entries.append(entry)
        if event["method"] in _STEPS:
            self._steps += 1

    def _end(self, entry: Entry, how: Literal["confirmed", "failed"]) -> None:
        if entry.number not in self._open:
            raise ValueError(f"call {entry.number} is {entry.state} already and cannot be {how}")
        entry.state = how
        del self._open[entry.number]
        if how == "failed" and entry.method in _STEPS:
            self._steps -= 1

    def _go_back_to(self, after: int) -> None:
        """A process that goes on from a checkpoint makes the calls after it again."""
        self.cause = ""
        self.former = self.entries[after:]
        del self.entries[after:]
        self._open = {number: entry for number, entry in self._open.items() if number <= after}
        self._steps = sum(entry.method in _STEPS and entry.state != "failed" for entry in self.entries)
        self.checkpoints = [each for each in self.checkpoints if each.after <= after]

    def _checkpoint(self, checkpoint: Checkpoint) -> None:
        if self.checkpoints and checkpoint.after < self.checkpoints[-1].after:
            return  # an older one whose answer came late
        self.checkpoints.append(checkpoint)

    def entry(self, number: int) -> Entry:
        """The call of a number.

        Raises:
            ValueError: there is none.
        """
        if not 1 <= number <= len(self.entries):
            raise ValueError(f"there is no call {number}: the last one is {len(self.entries)}")
        return self.entries[number - 1]

    # What it says ------------------------------------------------------------------------------------------------

    @property
    def last_confirmed(self) -> Checkpoint | None:
        """The last checkpoint all of whose calls are known to have ended; `None` before the first."""
        return next(iter(self.restorable()), None)

    def restorable(self) -> list[Checkpoint]:
        """The checkpoints that training can go on from, the last one first."""
        first_open = next(iter(self._open), len(self.entries) + 1)
        return [each for each in reversed(self.checkpoints) if each.after < first_open]

    def open(self) -> list[Entry]:
        """The calls that have not ended, oldest first."""
        return list(self._open.values())

    def lineage(self, after: int) -> list[Entry]:
        """The calls after a checkpoint that make up what is trained, in order: those that are done, and open ones.

        Of the done ones only those that change it: what was read or saved need not be read or saved again.
        """
        return [
            entry
            for entry in self.entries[after:]
            if entry.state != "failed" and (entry.state != "confirmed" or entry.changes)
        ]

    @property
    def steps(self) -> int:
        """Optimizer steps that were submitted and have not failed."""
        return self._steps

    def at_rest(self, number: int) -> bool:
        """Whether a state saved after a call contains everything until then: no gradients are gathered for a step."""
        for entry in reversed(self.entries[:number]):
            if entry.state != "failed" and entry.changes:
                return entry.method not in _GATHERS
        return True

    def divergence(self, number: int, method: str, digest: str) -> Divergence | None:
        """What is different about the call that is made now in the place of one that was made before."""
        entry = self.entry(number)
        if entry.method == method and entry.digest == digest:
            return None
        now = method if method != entry.method else f"{method} with other arguments"
        return Divergence(number, entry.step, entry.method, now)

    # Events ------------------------------------------------------------------------------------------------------

    @staticmethod
    def opened(made: str) -> Event:
        """A client was made by this call, which is a digest, or "" where it was not seen."""
        return {"what": "opened", "made": made}

    def submitted(self, method: str, digest: str) -> Event:
        """The next call is on its way."""
        return {"what": "submitted", "number": len(self.entries) + 1, "method": method, "digest": digest}

    @staticmethod
    def confirmed(number: int, result: str | None) -> Event:
        """A call was answered; `result` is its answer as text, where it is kept."""
        return {"what": "confirmed", "number": number, "result": result}

    @staticmethod
    def failed(number: int, error: str) -> Event:
        """A call was refused, or its caller was told that it will not be done."""
        return {"what": "failed", "number": number, "error": error}

    @staticmethod
    def fenced(cause: str) -> Event:
        """The client may have done more or less than is known, and is given up."""
        return {"what": "fenced", "cause": cause}

    @staticmethod
    def recovered() -> Event:
        """Another client stands where the lineage stands; what is open is on its way to it."""
        return {"what": "recovered"}

    @staticmethod
    def resumed(after: int) -> Event:
        """Another process goes on after this call; what came later is made again."""
        return {"what": "resumed", "after": after}

    @staticmethod
    def checkpoint(after: int, step: int, path: str) -> Event:
        """The service keeps a state."""
        return {"what": "checkpoint", "after": after, "step": step, "path": path}

    @classmethod
    def of(cls, events: Iterable[tuple[int, Event]]) -> Ledger:
        """The ledger that events make, each with where it is written down."""
        ledger = cls()
        for at, event in events:
            ledger.apply(event, at)
        return ledger
