"""In what order are the requests of one model executed? Strictly by `seq_id`, each at most once.

A gap waits: request 3 is not executed before 1 and 2 were. A request that is refused gives up its turn as soon as a
later one is there, so that a caller who goes on after a refusal is not stuck behind it. The request that is being
refused may be repeated until then: that is how the SDK waits for a name that is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from .promises import Promise
from .refusal import Refused

Execute = Callable[[], Awaitable[None]]
FIRST_SEQ_ID = 1


@dataclass
class TurnQueue:
    """The requests of one model."""

    next_seq_id: int = 0  # the creation of the model, before the first request of its client
    closed: bool = False
    _promises: dict[int, Promise] = field(default_factory=dict)
    _waiting: dict[int, Execute] = field(default_factory=dict)
    _refused: set[int] = field(default_factory=set)
    _task: asyncio.Task[None] | None = None

    def repeated(self, seq_id: int, kind: str, fingerprint: str) -> Promise | None:
        """Returns the promise made under this `seq_id` before; raises 409 if it was for something else."""
        promise = self._promises.get(seq_id)
        if promise is None:
            if seq_id < self.next_seq_id:
                raise Refused(409, f"seq_id {seq_id} has had its turn; the next one is {self.next_seq_id}.")
            return None
        if not promise.same_as(kind, fingerprint):
            raise Refused(409, f"seq_id {seq_id} was already used for {promise.kind} with another type or payload.")
        return promise

    def add(self, promise: Promise, execute: Execute) -> None:
        self._refused.discard(promise.seq_id)
        self._promises[promise.seq_id] = promise
        self._waiting[promise.seq_id] = execute
        self._go_on()

    def refuse(self, seq_id: int) -> None:
        """Notes that the request was refused; its turn will be skipped."""
        self._refused.add(seq_id)
        self._go_on()

    def close(self) -> None:
        """Executes nothing any more; what is being executed is cut off."""
        self.closed = True
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def _go_on(self) -> None:
        if self._task is not None or self.closed:
            return
        while self._waiting and self.next_seq_id in self._refused:
            self._refused.discard(self.next_seq_id)
            self.next_seq_id += 1
        execute = self._waiting.pop(self.next_seq_id, None)
        if execute is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(execute))

    async def _run(self, execute: Execute) -> None:
        await execute()
        self.next_seq_id += 1
        self._task = None
        self._go_on()
