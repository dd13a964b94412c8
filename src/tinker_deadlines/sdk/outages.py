"""Is the service down, and who waits for it? New sessions do, until somebody there answers again.

A breaker for each endpoint opens on the verdict of a probe. While it is open, one of those who wait asks the endpoint
once in a while, over a connection of its own.
"""

from __future__ import annotations

import logging
import threading

from tinker_deadlines import clock
from tinker_deadlines.calls import Verdict, board
from tinker_deadlines.liveness.watcher import watcher
from tinker_deadlines.policy import limit_for
from tinker_deadlines.recovery.sessions import Breaker, Breakers
from tinker_deadlines.sdk.probe import anybody_at
from tinker_deadlines.sdk.stuck import StuckCallError
from tinker_deadlines.sdk.traffic import call_in_context

__all__ = ["Outages", "outages"]

log = logging.getLogger("tinker_deadlines")


class Outages:
    """The breakers of this process. Safe from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._breakers = Breakers()
        # Where to ask, by the addresses that service clients are made with.
        self._origins: dict[str, str] = {}

    def probed(self, address: str, origin: str, verdict: Verdict | None, *, answered: bool) -> None:
        """Takes in what a probe found.

        Args:
            address: The address that service clients are made with; "" for the SDK's own.
            origin: Where their requests go.
            verdict: The verdict on the session that was asked.
            answered: Whether a fresh connection was answered.
        """
        with self._changed:
            self._origins[address] = origin
            breaker = self._breakers.of(origin, address)
            was_open = breaker.is_open
            breaker.probed(verdict, clock.monotonic(), answered=answered)
            self._say(breaker, origin, was_open=was_open)

    def _say(self, breaker: Breaker, origin: str, *, was_open: bool) -> None:
        self._changed.notify_all()
        if breaker.is_open and not was_open:
            log.warning("%s is down: no new session is made until it answers", origin)
        elif was_open and not breaker.is_open:
            log.warning("%s answers again", origin)

    def is_down(self, address: str) -> bool:
        """Whether a probe found nobody at an address, and none has found anybody since."""
        return self._breakers.of(address).is_open

    def wait_out(self, address: str) -> None:
        """Waits while the service at an address is down, for as long as the call in whose context it is may take.

        Raises:
            StuckCallError: it is still down then, and nothing was sent.
        """
        if not self.is_down(address):
            return
        call = call_in_context.get()
        call = call if call is not None and call.id in board.in_flight else None
        limit_s = call.limit_s if call is not None else limit_for("connect", None, None).seconds
        started_at, cause = clock.monotonic(), (f"A probe found {self._origins.get(address, address)} down.",)
        if call is not None:
            call.verdict, call.findings = "outage", cause
        while self.is_down(address):
            elapsed_s = clock.monotonic() - started_at
            if elapsed_s >= limit_s or (call is not None and call.id not in board.in_flight):
                raise StuckCallError(
                    "connect", elapsed_s=elapsed_s, deadline_s=limit_s, submission="not sent", verdict="outage",
                    evidence=cause,
                )  # fmt: skip
            self._ask_or_wait(address, limit_s - elapsed_s)
        if call is not None:
            call.verdict, call.findings = None, ()

    def _ask_or_wait(self, address: str, at_most_s: float) -> None:
        every_s, limit_s = watcher.thresholds.ask_every_s, watcher.thresholds.probe_limit_s
        origin = self._origins.get(address, address)
        with self._changed:
            breaker = self._breakers.of(address)
            if not breaker.may_ask(clock.monotonic(), every_s):
                if breaker.is_open:
                    clock.wait(self._changed, min(every_s, at_most_s))
                return
        answered, _ = anybody_at(origin, limit_s)
        with self._changed:
            was_open = breaker.is_open
            breaker.probed(None, clock.monotonic(), answered=answered)
            self._say(breaker, origin, was_open=was_open)

    def clear(self) -> None:
        """Takes every service for up: nothing is watched any more."""
        with self._changed:
            self._breakers.clear()
            self._origins.clear()
            self._changed.notify_all()

    def forked(self) -> None:
        """A fork copies the lock in whatever state another thread held it."""
        Outages.__init__(self)


outages = Outages()
