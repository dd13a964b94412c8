"""How is code under deadlines tested without waiting? With a clock that a test moves, and futures that misbehave.

```python
from tinker_deadlines import TinkerDeadlineError, wait_with_deadline
from tinker_deadlines.testing import FakeClock, FakeFuture

def test_a_dead_sample_is_given_up():
    with FakeClock(moves_by_itself=True) as clock:
        with pytest.raises(TinkerDeadlineError):
            wait_with_deadline("sample", FakeFuture())  # never finishes: 300 seconds of it pass in none
```
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tinker_deadlines import clock

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = ["POLL_S", "BareFuture", "FakeClock", "FakeFuture"]

T = TypeVar("T")

POLL_S = 0.002
"""How often, in real seconds, something that waits looks at the fake time."""


class FakeClock:
    """A clock that stands still until a test moves it; a context manager that makes the whole library read it.

    Whatever the library waits for by this clock, on any thread or event loop, returns a few real milliseconds after
    `advance` has carried the time past its end. What waits by itself is out of reach: a `concurrent.futures.Future`
    handed to `wait_with_deadline` waits in real time, which is what `FakeFuture` is for, and so does `asyncio.sleep`.

    Args:
        start: The first instant; by default the machine's own, so that what was set before keeps its order.
        moves_by_itself: A wait of the three functions moves the time to its own end instead of waiting for `advance`,
            for a test on one thread. What has not ended within a few real milliseconds by then has run out of time.
    """

    def __init__(self, start: float | None = None, *, moves_by_itself: bool = False) -> None:
        self._now = time.monotonic() if start is None else float(start)
        self._moves_by_itself = moves_by_itself
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        """The present instant."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves the time on, from any thread.

        Raises:
            ValueError: `seconds` is negative or not a finite number: this clock is monotonic too.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"a monotonic clock moves on by a finite number of seconds, not by {seconds!r}")
        with self._lock:
            self._now += seconds

    def _advance_to(self, instant: float) -> None:
        with self._lock:
            self._now = max(self._now, instant)

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """Waits on a condition that is held for a real moment at most; whoever waits looks at the time again."""
        if timeout_s is None or timeout_s > 0:
            condition.wait(POLL_S)

    def acquire(self, lock: clock.Lock, timeout_s: float) -> bool:
        """Waits for a lock until it is got or `timeout_s` have passed on this clock."""
        end = self._now + timeout_s
        while not lock.acquire(timeout=POLL_S):
            if self._moves_by_itself:
                self._advance_to(end)
            if self._now >= end:
                return lock.acquire(blocking=False)
        return True

    def call_later(self, loop: AbstractEventLoop, delay_s: float, call: Callable[[], object]) -> clock.Handle:
        """Calls `call` on the event loop when `delay_s` have passed on this clock."""
        return _Handle(self, loop, self._now + delay_s, call)

    def __enter__(self) -> Self:
        clock.use(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clock.use(None)


class _Handle:
    """A call on an event loop that looks at the fake time until its instant has come."""

    def __init__(self, fake: FakeClock, loop: AbstractEventLoop, when: float, call: Callable[[], object]) -> None:
        self._fake = fake
        self._loop = loop
        self._when = when
        self._call: Callable[[], object] | None = call
        self._look_later()

    def _look_later(self) -> None:
        self._handle = self._loop.call_later(POLL_S, self._look)

    def _look(self) -> None:
        if self._fake._moves_by_itself:
            self._fake._advance_to(self._when)
        if self._fake.monotonic() < self._when:
            self._look_later()
        elif self._call is not None:
            self._call()

    def cancel(self) -> None:
        """Takes the call back."""
        self._call = None
        self._handle.cancel()


class BareFuture(Generic[T]):
    """The least that can be waited on: `result(timeout)`, and no `done()` to ask. It waits by the library's clock.

    Args:
        result: What it finishes with.
        error: What it raises instead, a `TimeoutError` of its own included.
        after_s: When it finishes, in seconds from now on the library's clock; by default never.
        finishes_as_wait_ends: It finishes in the very moment in which a wait on it has given up.
    """

    def __init__(
        self,
        result: T | None = None,
        *,
        error: BaseException | None = None,
        after_s: float = math.inf,
        finishes_as_wait_ends: bool = False,
    ) -> None:
        self._result = result
        self._error = error
        self._finishes_at = clock.monotonic() + after_s
        self._finishes_as_wait_ends = finishes_as_wait_ends
        self._condition = threading.Condition()
        self._waits = itertools.count(1)
        self.waits = 0
        """How often `result` was called."""

    def finish(self) -> None:
        """Finishes now, from any thread."""
        with self._condition:
            self._finishes_at = -math.inf
            self._condition.notify_all()

    def result(self, timeout: float | None = None) -> T:
        """Waits up to `timeout` seconds of the library's clock.

        Raises:
            TimeoutError: it has not finished by then.
            BaseException: the error that it was given.
        """
        self.waits = next(self._waits)
        end = math.inf if timeout is None else clock.monotonic() + timeout
        with self._condition:
            while clock.monotonic() < self._finishes_at:
                if clock.monotonic() >= end:
                    if self._finishes_as_wait_ends:
                        self._finishes_at = -math.inf
                    raise TimeoutError
                self._wait_until(min(end, self._finishes_at))
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def _wait_until(self, instant: float) -> None:
        source: Any = getattr(clock.monotonic, "__self__", None)
        if isinstance(source, FakeClock) and source._moves_by_itself and math.isfinite(instant):
            source._advance_to(instant)
        else:
            clock.wait(self._condition, None if math.isinf(instant) else instant - clock.monotonic())


class FakeFuture(BareFuture[T]):
    """A future that misbehaves on demand and can be asked whether it is done; see `BareFuture` for its arguments."""

    def done(self) -> bool:
        """Whether it has finished."""
        return clock.monotonic() >= self._finishes_at
