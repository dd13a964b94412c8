"""What is the least that a future needs of a condition? Its lock, and a list of waiters once somebody waits.

A plain `Future` spends 1.2 KiB on its condition: a dictionary of bound methods, and a deque that stays empty for all
but the few futures that a thread waits on. This one is the lock itself with one more field.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

__all__ = ["LeanCondition"]

if TYPE_CHECKING:

    class _RLock:
        def __enter__(self) -> bool: ...
        def __exit__(self, *error: object) -> None: ...
        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
        def release(self) -> None: ...
        def _release_save(self) -> Any: ...
        def _acquire_restore(self, state: Any) -> None: ...

else:
    _RLock = type(threading.RLock())


class LeanCondition(_RLock):
    """The part of `threading.Condition` that `concurrent.futures` uses, with the same meaning."""

    __slots__ = ("_waiters",)

    _waiters: list[Any] | None

    def wait(self, timeout: float | None = None) -> bool:
        """Lets the lock go, waits to be notified or for `timeout` seconds, and takes the lock again."""
        waiter = threading.Lock()
        waiter.acquire()
        waiters: list[Any] | None = getattr(self, "_waiters", None)
        if waiters is None:
            waiters = self._waiters = []
        waiters.append(waiter)
        state = self._release_save()
        notified = False
        try:
            longest_s = -1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
            notified = waiter.acquire(timeout=longest_s)
            return notified
        finally:
            self._acquire_restore(state)
            if not notified and waiter in waiters:
                waiters.remove(waiter)

    def notify_all(self) -> None:
        """Wakes everybody who waits. The lock is held."""
        waiters = getattr(self, "_waiters", None)
        if waiters:
            self._waiters = None
            for waiter in waiters:
                waiter.release()
