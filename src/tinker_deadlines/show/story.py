"""What happened so far? The counts of the board, and the last calls that were cut: bounded, however long it lasts."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tinker_deadlines import clock
from tinker_deadlines.calls import KINDS, Board, Ended, Outcome, TinkerCallKind, board
from tinker_deadlines.errors import BudgetExhaustedError, DeadlineExpiry

__all__ = ["COUNTED", "Cut", "Row", "Story", "age", "total"]

# Cuts kept in full; all are counted. A person reads a page, and a week of a failing service would fill the memory.
KEPT_CUTS = 100

COUNTED: tuple[Outcome, ...] = ("completed", "failed", "expired", "out_of_budget", "cancelled", "refused")


class Cut(NamedTuple):
    """One call that was given up."""

    at_s: float
    """Seconds since the story began."""
    kind: TinkerCallKind
    method: str
    outcome: Outcome
    """"expired": its own limit ran out. "out_of_budget": a budget around it did."""
    elapsed_s: float
    limit_s: float
    """Its own limit, or the size of the budget that cut it."""
    limit_owner: str
    """Who set that limit: "the default", an environment variable, or the name of the budget."""
    submission: str
    """What is known of the work: "not sent", "sent" or "indeterminate"."""

    def sentence(self) -> str:
        """What was cut, after how long, by what, and what that means for the work."""
        name = self.method or self.kind
        meaning = _MEANING.get(self.submission, self.submission)
        if self.outcome == "out_of_budget":
            budget = f"the budget {self.limit_owner!r} of {self.limit_s:g} s"
            cut = f"{name} was cut after {self.elapsed_s:.1f} s by {budget}"
            if self.submission == "sent":
                meaning = "it was not answered"  # and trying again inside a wall that is spent cannot succeed
        else:
            cut = f"{name} given up after {self.elapsed_s:.1f} s (limit {self.limit_s:g} s, {self.limit_owner})"
        return f"{cut}: {meaning}"


_MEANING = {
    "not sent": "it had not been sent",
    "sent": "it may be tried again",
    "indeterminate": "indeterminate, it may have been executed",
}


class Row(NamedTuple):
    """One kind of call: how many ended how, and what is in flight."""

    kind: TinkerCallKind
    counts: dict[Outcome, int]
    in_flight: int
    oldest_s: float
    """Of the calls in flight, the longest time on its limit's clock in seconds; 0 where none is."""
    limit_s: float
    """The limit of that call in seconds."""


class Story:
    """What happened on a board since it began to look."""

    def __init__(self, of: Board = board) -> None:
        self._board = of
        self._lock = threading.Lock()
        self.began_at = clock.monotonic()
        self.cuts: deque[Cut] = deque(maxlen=KEPT_CUTS)
        self.cuts_in_all = 0
        self._stop: Callable[[], None] | None = None
        self._on_cut: Callable[[], None] = lambda: None

    def begin(self, on_cut: Callable[[], None]) -> None:
        """Looks at every call that ends from now on; `on_cut` must return at once, on whichever thread it is called."""
        self._on_cut = on_cut
        self._stop = self._board.observe(self._note)

    def end(self) -> None:
        """Looks no more."""
        if self._stop is not None:
            self._stop()

    def _note(self, ended: Ended) -> None:
        if ended.outcome not in ("expired", "out_of_budget"):
            return
        cut = _cut_of(ended, clock.monotonic() - self.began_at)
        with self._lock:
            self.cuts.append(cut)
            self.cuts_in_all += 1
        self._on_cut()

    def cuts_after(self, number: int) -> tuple[list[Cut], int]:
        """The cuts after the first `number` as far as they are kept, and how many there were in all."""
        with self._lock:
            new = min(self.cuts_in_all - number, len(self.cuts))
            return (list(self.cuts)[-new:] if new > 0 else []), self.cuts_in_all

    def duration_s(self) -> float:
        """Seconds since the story began."""
        return clock.monotonic() - self.began_at

    def rows(self) -> list[Row]:
        """One row for each kind that was called."""
        pending = self._board.pending()
        rows = []
        for kind in KINDS:
            tally = self._board.tallies.get(kind)
            calls = [call for call in pending if call.kind == kind]
            if tally is None and not calls:
                continue
            counts: dict[Outcome, int] = {name: getattr(tally, name, 0) for name in COUNTED}
            oldest = max(calls, key=lambda call: call.elapsed_s(), default=None)
            oldest_s, limit_s = (0.0, 0.0) if oldest is None else (oldest.elapsed_s(), oldest.limit_s)
            rows.append(Row(kind, counts, len(calls), oldest_s, limit_s))
        return rows


def _cut_of(ended: Ended, at_s: float) -> Cut:
    call, error = ended.call, ended.error
    limit_s, owner, submission = call.limit_s, call.limit_owner, ""
    elapsed_s = ended.elapsed_s
    if isinstance(error, BudgetExhaustedError):
        limit_s, owner, submission, elapsed_s = error.budget_s, error.owner, error.submission, error.elapsed_s
    elif isinstance(error, DeadlineExpiry):
        submission = error.submission
    return Cut(at_s, call.kind, call.method, ended.outcome, elapsed_s, limit_s, owner, submission)


def total(rows: list[Row], outcome: Outcome) -> int:
    """How many calls of all kinds ended so."""
    return sum(row.counts[outcome] for row in rows)


def age(seconds: float) -> str:
    """A duration as people read it: 0:01:23."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
