"""What time is it, and how is time waited for? The only module that reads a clock.

Everything here but `wall` is monotonic: a jump of the wall clock changes nothing. The functions are looked up on this
module at every use (`clock.monotonic()`), so that `tinker_deadlines.testing.FakeClock` can stand in for them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = ["acquire", "call_later", "monotonic", "on_change", "use", "wait", "wall"]


class Lock(Protocol):
    """What `acquire` needs of a lock: `threading.Lock` and its like."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...


class Handle(Protocol):
    """What takes a call on an event loop back."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """A source of time: the system's, or a test's."""

    def monotonic(self) -> float:
        """The present instant in seconds, from an arbitrary origin."""

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """Waits on a condition that is held until it is notified or `timeout_s` have passed."""

    def acquire(self, lock: Lock, timeout_s: float) -> bool:
        """Waits at most `timeout_s` for a lock; true when it was got."""

    def call_later(self, loop: AbstractEventLoop, delay_s: float, call: Callable[[], object]) -> Handle:
        """Calls `call` on the event loop after `delay_s`, unless the handle is cancelled before."""


class SystemClock:
    """The machine's monotonic clock."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def wait(condition: threading.Condition, timeout_s: float | None) -> None:
        """Waits on the condition in real time."""
        condition.wait(timeout_s if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))

    @staticmethod
    def acquire(lock: Lock, timeout_s: float) -> bool:
        """Waits for the lock in real time; longer than the platform can wait counts as for ever."""
        return lock.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))

    @staticmethod
    def call_later(loop: AbstractEventLoop, delay_s: float, call: Callable[[], object]) -> Handle:
        """Leaves it to the event loop's own clock."""
        return loop.call_later(delay_s, call)


monotonic = SystemClock.monotonic
wait = SystemClock.wait
acquire = SystemClock.acquire
call_later = SystemClock.call_later


def wall() -> float:
    """The wall clock in seconds since 1970, UTC: for people to read, never to measure with."""
    return time.time()


_on_change: list[Callable[[], None]] = []


def on_change(wake: Callable[[], None]) -> None:
    """Has `wake` called whenever another clock is used: for whoever waits by the old one."""
    _on_change.append(wake)


def use(clock: Clock | None) -> None:
    """Makes every part of the library read `clock`; `None` returns to the machine's own. For tests."""
    global monotonic, wait, acquire, call_later
    source = clock if clock is not None else SystemClock
    monotonic = source.monotonic
    wait = source.wait
    acquire = source.acquire
    call_later = source.call_later
    for wake in _on_change:
        wake()
