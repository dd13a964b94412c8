"""What has been asked of the lab, and how does it stand? A promise for every request that is answered later."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from .refusal import Refused, bad
from .wire import Result

KEPT_PROMISES = 50_000  # finished promises that can still be asked for; older ones answer 410, as expired ones do

LOOKED_AT = 8


@dataclass(frozen=True)
class Failure:
    """A request that was taken on and then failed; `category` is the service's word for whose fault it was."""

    error: str
    category: str = "user"


@dataclass(eq=False)
class Promise:
    """One request and, once it is done, its outcome."""

    request_id: str
    kind: str
    fingerprint: str
    session_id: str = ""
    model_id: str = ""
    seq_id: int = 0
    outcome: Result | Failure | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def finish(self, outcome: Result | Failure) -> bool:
        """Sets the outcome unless there is one; returns whether it was set."""
        if self.done.is_set():
            return False
        self.outcome = outcome
        self.done.set()
        return True

    def same_as(self, kind: str, fingerprint: str) -> bool:
        return (self.kind, self.fingerprint) == (kind, fingerprint)


class Promises:
    """All promises by request id."""

    def __init__(self, kept: int = KEPT_PROMISES) -> None:
        self._kept = kept
        self._promises: OrderedDict[str, Promise] = OrderedDict()

    def add(self, promise: Promise) -> None:
        self._promises[promise.request_id] = promise
        if len(self._promises) > self._kept:
            self._forget_oldest()

    def find(self, request_id: str) -> Promise | None:
        return self._promises.get(request_id)

    def get(self, request_id: str) -> Promise:
        """Returns the promise; one that is not known (any more) answers 410, which the SDK takes for expired."""
        promise = self._promises.get(request_id)
        if promise is None:
            raise Refused(410, f"The request {request_id!r} is not known; its result has expired or never existed.")
        return promise

    def repeated(self, request_id: str, kind: str, fingerprint: str) -> Promise | None:
        """Returns the promise of a request that was made before; the same id for something else is 409."""
        promise = self._promises.get(request_id)
        if promise is not None and not promise.same_as(kind, fingerprint):
            raise Refused(409, f"The request {request_id!r} was already made with another type or payload.")
        return promise

    def unfinished(self, session_id: str) -> list[Promise]:
        return [p for p in self._promises.values() if p.session_id == session_id and not p.done.is_set()]

    def _forget_oldest(self) -> None:
        # Only the few oldest are looked at, so that a flood of unfinished requests does not make each new one slow.
        for request_id in list(islice(self._promises, LOOKED_AT)):
            promise = self._promises[request_id]
            if promise.done.is_set():
                promise.outcome = None
                del self._promises[request_id]


class Completions:
    """The finished requests of each sampler in the order they finished, for callers that poll for many at once."""

    def __init__(self) -> None:
        self._finished: dict[str, list[str]] = {}
        self._changed: dict[str, asyncio.Event] = {}

    def add(self, target: str, request_id: str) -> None:
        self._finished.setdefault(target, []).append(request_id)
        self._changed.setdefault(target, asyncio.Event()).set()

    def since(self, target: str, cursor: int) -> tuple[list[str], int]:
        """Returns what has finished after `cursor`, and the cursor to ask with next."""
        if cursor < 0:
            raise bad(f"prev_cursor must not be negative, and is {cursor}.")
        finished = self._finished.get(target, [])
        return finished[cursor:], max(cursor, len(finished))

    def changed(self, target: str) -> asyncio.Event:
        """Returns an event that is set when something finishes from now on."""
        event = self._changed.setdefault(target, asyncio.Event())
        event.clear()
        return event
