"""May a call have been lost? A sampling call that is overdue gets a second attempt; the first answer of the two wins.

The second attempt goes through a session of its own where the weights can be named again, else through the same
client: a call that the service has lost is answered either way. At most a share of the traffic is repeated.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import tinker

from tinker_deadlines import clock
from tinker_deadlines.calls import Call
from tinker_deadlines.limits import HEDGE_CLIENTS, HEDGE_SHARE, HEDGE_WINDOW_S, HEDGES_A_MINUTE
from tinker_deadlines.sdk import private
from tinker_deadlines.sdk.facts import facts_of
from tinker_deadlines.sdk.shared import apart, finish
from tinker_deadlines.sdk.traffic import call_in_context
from tinker_deadlines.waiting.blocking import call_with_deadline
from tinker_deadlines.waiting.workers import Job, workers

__all__ = ["Allowance", "SecondAttempt", "allowance", "close", "forked"]

log = logging.getLogger("tinker_deadlines")


class Allowance:
    """How many second attempts may be made: a share of the calls of the last minutes, and some a minute on top."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Of this window and of the one before: calls made, and second attempts.
        self._since = clock.monotonic()
        self._calls, self._calls_before = 0, 0
        self._taken, self._taken_before = 0, 0

    def call(self) -> None:
        """Notes a call, which earns a share of a second attempt."""
        if clock.monotonic() - self._since >= HEDGE_WINDOW_S:
            self._turn_over()
        self._calls += 1  # racing threads may lose one

    def take(self) -> bool:
        """Takes one second attempt; false when none is left."""
        with self._lock:
            self._turn_over()
            allowed = HEDGES_A_MINUTE + HEDGE_SHARE * (self._calls + self._calls_before)
            if self._taken + self._taken_before + 1 > allowed:
                return False
            self._taken += 1
            return True

    def _turn_over(self) -> None:
        with self._lock:
            passed = (clock.monotonic() - self._since) // HEDGE_WINDOW_S
            if passed < 1:
                return
            self._since += passed * HEDGE_WINDOW_S
            self._calls_before, self._taken_before = (self._calls, self._taken) if passed == 1 else (0, 0)
            self._calls = self._taken = 0

    def forked(self) -> None:
        """A fork copies the lock in whatever state another thread held it."""
        self._lock = threading.RLock()


allowance = Allowance()

# The clients of second attempts: a service client for each place, and sampling clients for the weights used last.
_services: dict[tuple[Any, ...], Any] = {}
_samplers: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
_making = threading.RLock()
_inherited: list[Any] = []


def forked() -> None:
    """A forked child has no use for its parent's clients, nor may it finish their sessions."""
    global _making, _services, _samplers
    _inherited.append((_services, _samplers))  # kept, because the SDK's own finalizers reckon with its loop
    _making, _services, _samplers = threading.RLock(), {}, OrderedDict()
    allowance.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forked)


def close() -> None:
    """Finishes the sessions that second attempts were made through, without waiting for it."""
    _samplers.clear()
    while _services:
        try:
            _, service = _services.popitem()
        except KeyError:
            break  # another thread was faster
        finish(service)


# What a second attempt does belongs to a call that is on the board already.
_NOT_COUNTED = Call("sample", 0.0, "the first attempt", "a second attempt")


class SecondAttempt(Job):
    """A sampling call, made once more.

    Args:
        again: Makes the call on a client.
        client: The client of the first attempt.
        answered: Is given the result, unless the first attempt was answered before.
    """

    __slots__ = ("_again", "_answered", "_client", "_fresh", "_future", "_over")

    def __init__(
        self, again: Callable[[Any], Any], client: Any, origin: str | None, answered: Callable[[Any], None]
    ) -> None:
        super().__init__()
        self._again = again
        self._client = (client, origin)
        self._answered = answered
        self._fresh: Any = None
        self._future: Any = None
        self._over = False

    def start(self) -> None:
        """Starts it on a worker.

        Raises:
            AbandonedCallsError: too many threads are stuck already.
        """
        workers.start(self)

    def run(self) -> None:
        """Makes the call; its client first, where that needs a session of its own."""
        if self._over:
            return
        token = call_in_context.set(_NOT_COUNTED)
        try:
            self._fresh = _fresh(*self._client)
            self._future = self._again(self._fresh or self._client[0])
        except Exception as error:
            log.warning("a second attempt could not be made: %s: %s", type(error).__name__, error)
        finally:
            call_in_context.reset(token)

    def tell(self) -> None:
        """Listens for its result."""
        future = self._future
        if future is None:
            return
        inner: Future[Any] = future.future() if hasattr(future, "future") else future
        if self._over:
            inner.cancel()
            return
        self._future = inner
        inner.add_done_callback(self._ended)

    def _ended(self, future: Future[Any]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            log.warning("a second attempt failed: %s: %s", type(error).__name__, error)
            if self._fresh is not None:
                _give_up(self._fresh)
        elif not self._over:
            self._answered(future.result())

    def forget(self) -> None:
        """The first attempt is over: nobody needs this one any more."""
        self._over = True
        future = self._future
        if isinstance(future, Future):
            future.cancel()


def _fresh(client: Any, origin: str | None) -> Any:
    """A sampling client of the same weights in a session of its own, one for all second attempts; else `None`."""
    holder, facts = private.holder_of(client), facts_of(client)
    if holder is None or origin is None or not facts.elsewhere:
        return None
    weights = {"model_path": facts.path} if facts.path is not None else {"base_model": facts.model}
    place = (origin, private.key_of(holder), repr(facts.options))
    name = (*place, *weights.items())
    sampler = _samplers.get(name)
    # While another makes one, which may take a while, nobody waits for it: this attempt goes through the first client.
    if sampler is not None or not _making.acquire(blocking=False):
        return sampler
    try:
        # Bounded here: inside of a second attempt, the SDK's methods are let through.
        sampler = call_with_deadline("connect", functools.partial(_make, place, facts.options, weights))
        _samplers[name] = sampler
        while len(_samplers) > HEDGE_CLIENTS:
            _samplers.popitem(last=False)
    except Exception as error:
        log.warning("no session could be made for second attempts: %s: %s", type(error).__name__, error)
    finally:
        _making.release()
    return sampler


def _make(place: tuple[Any, ...], options: tuple[tuple[str, Any], ...], weights: dict[str, Any]) -> Any:
    origin, key, _ = place
    service = _services.get(place)
    if service is None:
        service = tinker.ServiceClient(base_url=origin, api_key=key, **dict(options))
        service = _services.setdefault(place, service)
    with apart():
        made = service.create_sampling_client(**weights)
        return made.result() if hasattr(made, "result") else made


def _give_up(sampler: Any) -> None:
    """Lets go of a client through which a second attempt failed, with its session: the next one starts afresh."""
    for name, each in list(_samplers.items()):
        if each is sampler:
            service = _services.pop(name[:3], None)
            for other in [other for other in list(_samplers) if other[:3] == name[:3]]:
                _samplers.pop(other, None)
            if service is not None:
                finish(service)
