"""Whose turn is it on a training client? A training call's clock starts when its predecessor ended.

Scripts submit a batch ahead: `forward_backward` and `optim_step` of the next step wait on the service while this
step is still worked on. A clock that started at submission would charge a batch for its predecessor.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

__all__ = ["Lane"]


class Runner(Protocol):
    """What stands in a lane."""

    def start_clock(self) -> None:
        """It is this one's turn."""


class Lane:
    """The calls of one training client, in the order of their submission; the clock of the first one runs."""

    __slots__ = ("_fences", "_lock", "_queue", "_running")

    def __init__(self) -> None:
        # Reentrant: a signal handler may submit a call while this thread submits one.
        self._lock = threading.RLock()
        self._queue: deque[Runner] = deque()
        self._running: Runner | None = None
        # Calls that were given up and may or may not have been executed.
        self._fences: list[Runner] = []

    @property
    def fence(self) -> Runner | None:
        """The first call whose outcome is unknown: while there is one, nothing more may be sent."""
        return self._fences[0] if self._fences else None

    def fence_off(self, runner: Runner) -> None:
        """Notes that the outcome of a call is unknown."""
        self._fences.append(runner)

    def lift(self, runner: Runner) -> None:
        """Notes that the outcome of a call became known after all."""
        with self._lock:
            if runner in self._fences:
                self._fences.remove(runner)

    def enter(self, runner: Runner) -> None:
        """Joins at the end; starts the runner's clock at once when it is alone."""
        with self._lock:
            if self._running is not None:
                self._queue.append(runner)
                return
            self._running = runner
        runner.start_clock()

    def leave(self, runner: Runner) -> None:
        """Leaves from wherever it stands; starts the clock of the next one when its own was running."""
        with self._lock:
            if runner is not self._running:
                if runner in self._queue:
                    self._queue.remove(runner)
                return
            self._running = self._queue.popleft() if self._queue else None
            following = self._running
        if following is not None:
            following.start_clock()

    def ahead_of(self, runner: Runner) -> int:
        """How many calls stand before this one."""
        with self._lock:
            if runner is self._running or runner not in self._queue:
                return 0
            return 1 + list(self._queue).index(runner)

    def __len__(self) -> int:
        with self._lock:
            return len(self._queue) + (self._running is not None)
