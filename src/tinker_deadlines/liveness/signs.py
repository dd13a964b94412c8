"""When did a session last show life? Pure bookkeeping, fed by the traffic and by calls that end."""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import Any

from tinker_deadlines import clock
from tinker_deadlines.limits import EXPIRIES_IN_A_ROW, LOAD_WINDOW, SESSIONS_KEPT
from tinker_deadlines.liveness.verdict import Answers

__all__ = ["Session", "Sessions", "sessions"]


class Session:
    """What was seen of one session of the SDK. Instants are of the monotonic clock.

    Signs of life are completed calls, polls that were answered, and reports on a queue. A heartbeat that is answered
    is noted, but proves less: the SDK's heartbeat goes on while its sampling connections are dead.
    """

    __slots__ = (
        "answered_at", "answers", "asked_at", "convicted_at", "expiries", "gone", "heartbeat_at", "id", "last_at",
        "ratios", "suspicion", "way",
    )  # fmt: skip

    def __init__(self, identity: str) -> None:
        self.id = identity
        self.last_at = clock.monotonic()
        self.heartbeat_at: float | None = None
        # Of the last completed calls: when, and how many times longer than predicted they took.
        self.ratios: deque[tuple[float, float]] = deque(maxlen=LOAD_WINDOW)
        self.suspicion = 0.0
        # How to ask it something: whatever the prober needs.
        self.way: Any = None
        self.asked_at: float | None = None
        self.answers: Answers | None = None
        self.answered_at = 0.0
        # When it was last found to be dead; calls in a row that ran into their limits; and whether the service says
        # that it has ended.
        self.convicted_at: float | None = None
        self.expiries = 0
        self.gone = False

    def seen(self) -> None:
        """Notes a sign of life."""
        self.last_at = clock.monotonic()
        self.suspicion = 0.0

    def completed(self, ratio: float | None) -> None:
        """Notes a completed call, which took `ratio` times what was predicted; `None` where that says nothing."""
        self.seen()
        self.expiries = 0
        if ratio is not None:
            self.ratios.append((self.last_at, ratio))

    def why_dead(self) -> str:
        """Why nobody should begin anything with it any more; "" where somebody may."""
        if self.gone:
            return "the service says that it has ended"
        if self.convicted_at is not None and self.last_at <= self.convicted_at:
            return "it was found to be wedged"
        if self.expiries >= EXPIRIES_IN_A_ROW:
            return f"{self.expiries} of its calls in a row ran into their limits"
        return ""

    def load(self, usual: float) -> float:
        """How many times slower than usual its last completed calls were; never below 1.

        Args:
            usual: The median ratio of elapsed to predicted of all calls before.
        """
        return self.load_since(-math.inf, usual) or 1.0

    def load_since(self, instant: float, usual: float) -> float | None:
        """The same of those that completed after an instant; `None` where none did."""
        ratios = [ratio for at, ratio in self.ratios.copy() if at >= instant]
        if not ratios:
            return None
        return max(1.0, median(ratios) / usual) if usual > 0 else 1.0

    def known(self, now: float, within_s: float) -> Answers | None:
        """What the last probe found, where that is not older than `within_s` and no sign of life came since."""
        fresh = self.answers is not None and now - self.answered_at <= within_s and self.last_at <= self.answered_at
        return self.answers if fresh else None


class Sessions:
    """The sessions that calls of this process went through."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def of(self, identity: str) -> Session:
        """The session of this name, which is new the first time it is asked for; the most silent ones are forgotten."""
        session = self._sessions.get(identity)
        if session is None:
            while len(self._sessions) >= SESSIONS_KEPT:
                # The oldest may be the one that everything goes through; the most silent is not.
                silent = min(self._sessions.copy().values(), key=lambda each: each.last_at)
                self._sessions.pop(silent.id, None)
            session = self._sessions.setdefault(identity, Session(identity))
        return session

    def get(self, identity: str | None) -> Session | None:
        """The session of this name, if it is known."""
        return None if identity is None else self._sessions.get(identity)

    def all(self) -> list[Session]:
        """Every session that is known."""
        return list(self._sessions.copy().values())

    def clear(self) -> None:
        """Forgets everything: for a forked child and for tests."""
        self._sessions.clear()


sessions = Sessions()
