"""How many sessions has this process made, and may it make another now? A budget, and a breaker for each endpoint.

Pure: no threads, no clock, no SDK. Whoever uses one from several threads holds a lock of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from tinker_deadlines.calls import Verdict
from tinker_deadlines.errors import SessionBudgetError
from tinker_deadlines.limits import SESSION_WARN_SHARE

__all__ = ["Breaker", "Breakers", "Counts", "SessionBudget", "session_budget"]


class Counts(NamedTuple):
    """Where a process stands with its sessions."""

    created: int
    """Creations that were begun and not refused by the service: answered, unanswered, and still going on."""
    finished: int
    """Sessions of which the service confirmed the end."""
    orphans: tuple[str, ...]
    """Sessions that this process has no more use for and could not finish, by their ids."""
    unanswered: int
    """Creations whose answer has not come: the service may hold a session of each, whose id nobody knows."""

    @property
    def open(self) -> int:
        """Sessions that the service may still hold, as far as is known: what counts against the budget."""
        return self.created - self.finished


class SessionBudget:
    """Counts the sessions of a process against the number it may hold open.

    A creation is indeterminate until it is answered, so it counts from its beginning, and it goes on to count if the
    answer never comes. One that the service refused has made nothing, and a session that was finished is held no more.
    """

    def __init__(self) -> None:
        self._begun = 0
        self._pending: set[int] = set()
        self._unanswered = 0
        self._made: set[str] = set()
        self._finished = 0
        self._orphans: dict[str, None] = {}
        self._warned = False

    def counts(self) -> Counts:
        """The counts as of now."""
        created = len(self._pending) + self._unanswered + len(self._made) + self._finished
        return Counts(created, self._finished, tuple(self._orphans), self._unanswered + len(self._pending))

    def begin(self, most: int) -> int:
        """Begins a creation and returns its number.

        Args:
            most: How many sessions may be open.

        Raises:
            SessionBudgetError: so many are.
        """
        counts = self.counts()
        if counts.open >= most:
            raise SessionBudgetError(counts.open, most, counts.created)
        self._begun += 1
        self._pending.add(self._begun)
        return self._begun

    def warning(self, most: int) -> str:
        """A sentence, once, when four fifths of the budget are used; "" before that and ever after."""
        if self._warned or self.counts().open < SESSION_WARN_SHARE * most:
            return ""
        self._warned = True
        return (
            f"{self.counts().open} of at most {most} Tinker sessions of this process are open, and it will be refused "
            "more: share one ServiceClient, or close() each when it is done"
        )

    def made(self, number: int, session: str) -> None:
        """Notes that a creation was answered with a session."""
        if number in self._pending:
            self._pending.discard(number)
            self._made.add(session)

    def refused(self, number: int) -> None:
        """Notes that a creation was refused, or never sent: there is no session."""
        self._pending.discard(number)

    def lost(self, number: int) -> None:
        """Notes that a creation failed without an answer: there may be a session."""
        if number in self._pending:
            self._pending.discard(number)
            self._unanswered += 1

    def finished(self, session: str) -> None:
        """Notes that the service confirmed the end of a session."""
        if session in self._made:
            self._made.discard(session)
            self._orphans.pop(session, None)
            self._finished += 1

    def orphaned(self, session: str) -> None:
        """Notes that a session has no more use here and could not be finished: it stays until the service ends it."""
        if session in self._made:
            self._orphans[session] = None

    def clear(self) -> None:
        """Forgets everything: for a forked child, whose parent's sessions are not its own, and for tests."""
        SessionBudget.__init__(self)


class Breaker:
    """Whether one endpoint is down. A probe's verdict opens it, never a number of failures, and a probe closes it.

    Failures are no evidence: a service that refuses a payload a hundred times is up, and one that fell silent is down
    at the first call.
    """

    def __init__(self) -> None:
        self.opened_at: float | None = None
        self._asked_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the endpoint is down, as far as is known."""
        return self.opened_at is not None

    def probed(self, verdict: Verdict | None, now: float, *, answered: bool = False) -> None:
        """Takes in what a probe found.

        Args:
            verdict: Its verdict: an outage opens the breaker; any that takes an answer closes it.
            now: The present instant.
            answered: Whether somebody at the endpoint answered, where there is no verdict.
        """
        if verdict == "outage":
            if self.opened_at is None:
                self.opened_at = self._asked_at = now
        elif answered or verdict in ("slow", "paused", "session wedged"):
            self.opened_at = self._asked_at = None

    def may_ask(self, now: float, every_s: float) -> bool:
        """Whether whoever waits should ask the endpoint now; true for one of them, once every `every_s` seconds."""
        if self._asked_at is None or now - self._asked_at < every_s:
            return False
        self._asked_at = now
        return True


class Breakers:
    """A breaker for each endpoint, under every name that it has."""

    def __init__(self) -> None:
        self._named: dict[str, Breaker] = {}

    def of(self, *names: str) -> Breaker:
        """The breaker of an endpoint by any of its names, which are the same one's from now on."""
        found = next((self._named[name] for name in names if name in self._named), None) or Breaker()
        for name in names:
            self._named[name] = found
        return found

    def clear(self) -> None:
        """Closes all: for a forked child and for tests."""
        self._named.clear()


session_budget = SessionBudget()
