"""How long may several calls take together, and whose wall cut one of them?

A budget is a named deadline around a block: `with episode(1800, name="episode 7") as budget:`. Budgets nest; the
smallest around a call counts, and the error names its owner. asyncio tasks inherit the budget through their context.
Threads do not inherit contexts, so while any budget is open `threading.Thread.start` and
`ThreadPoolExecutor.submit` are patched to hand it on; the patches go when the last budget closes.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

from tinker_deadlines import clock

__all__ = ["Budget", "current", "episode", "remaining_s"]

_current: ContextVar[Budget | None] = ContextVar("tinker_deadlines_budget", default=None)


class Budget:
    """A named deadline around the calls of a block; a context manager, sync and async, for one use.

    Attributes:
        name: What errors call it.
        seconds: Its size in seconds.
        deadline: The instant when it is spent, on the monotonic clock; infinite before the block is entered.
    """

    __slots__ = ("_open", "_outer", "_token", "deadline", "name", "seconds")

    def __init__(self, seconds: float, name: str) -> None:
        self.name = name
        self.seconds = seconds
        self.deadline = math.inf
        self._outer: Budget | None = None
        self._open = False
        self._token: Any = None

    def remaining_s(self) -> float:
        """Seconds until the smallest budget from here outwards is spent: never negative, infinite before entry."""
        smallest = self.smallest()
        return max(0.0, smallest.deadline - clock.monotonic()) if smallest is not None else math.inf

    def smallest(self) -> Budget | None:
        """The open budget with the earliest deadline from here outwards; `None` where none is open."""
        found: Budget | None = None
        budget: Budget | None = self
        while budget is not None:
            if budget._open and (found is None or budget.deadline < found.deadline):
                found = budget
            budget = budget._outer
        return found

    def __enter__(self) -> Self:
        if self._token is not None:
            raise RuntimeError(f"the budget {self.name!r} was entered before; make one with episode() for each block")
        outer = _current.get()
        # One that was left in another context stays in this one for ever: do not grow a chain of them.
        while outer is not None and not outer._open:
            outer = outer._outer
        self._outer = outer
        self.deadline = clock.monotonic() + self.seconds
        self._open = True
        self._token = _current.set(self)
        _threads.opened()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._open:
            return
        # A thread or task that outlives the block keeps a reference to this budget: closed, it binds nobody.
        self._open = False
        _threads.closed()
        # Left in another context than it was entered in, as async generators do: being closed is enough.
        with contextlib.suppress(ValueError):
            _current.reset(self._token)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<Budget {self.name!r} of {self.seconds:g} s, {self.remaining_s():.1f} s left>"


def episode(seconds: float, name: str = "episode") -> Budget:
    """Bounds everything in a block together: `with episode(1800, name="episode 7") as budget:`.

    A call inside gets the smaller of its own limit and what is left; when the budget is what cuts it, or when nothing
    is left before it is sent, the call raises `BudgetExhaustedError` with this name.

    Args:
        seconds: The size of the budget, positive and finite.
        name: What errors call it.

    Raises:
        ValueError: `seconds` is not a positive finite number.
    """
    try:
        size = float(seconds)
    except (OverflowError, TypeError, ValueError):
        size = math.nan
    if not (math.isfinite(size) and size > 0):
        raise ValueError(f"a budget needs a positive finite number of seconds, not {seconds!r}")
    return Budget(size, name)


def current() -> Budget | None:
    """The budget with the earliest deadline around the caller; `None` outside of all."""
    budget = _current.get()
    return None if budget is None else budget.smallest()


def remaining_s() -> float:
    """Seconds left in the smallest budget around the caller; infinite outside of all."""
    budget = _current.get()
    return math.inf if budget is None else budget.remaining_s()


def run_within(budget: Budget | None, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls `function` under `budget`, whatever budget the calling thread has."""
    token = _current.set(budget)
    try:
        return function(*args, **kwargs)
    finally:
        _current.reset(token)


class _Threads:
    """Hands budgets on to threads for as long as any budget is open."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may close a generator's budget while this thread opens one.
        self._lock = threading.RLock()
        self._open = 0
        self._theirs: Any = None
        self._ours: Any = None

    def opened(self) -> None:
        with self._lock:
            self._open += 1
            if self._open == 1:
                self._patch()

    def closed(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._restore()

    def forked(self) -> None:
        """A fork copies the lock in whatever state another thread held it."""
        self._lock = threading.RLock()

    def _patch(self) -> None:
        start: Any = threading.Thread.start
        submit: Any = ThreadPoolExecutor.submit

        @functools.wraps(start)
        def start_within(thread: threading.Thread) -> None:
            budget = _current.get()
            if budget is not None:
                run = thread.run

                def run_once() -> None:
                    vars(thread).pop("run", None)  # the thread and its `run` would refer to each other for ever
                    run_within(budget, run)

                thread.run = run_once  # type: ignore[method-assign]
            start(thread)

        @functools.wraps(submit)
        def submit_within(pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            # The submitter's budget, or none: not that of whoever's submission started the pool's thread.
            return submit(pool, run_within, _current.get(), function, *args, **kwargs)

        self._theirs = (start, submit)
        self._ours = (start_within, submit_within)
        threading.Thread.start = self._ours[0]  # type: ignore[method-assign]
        ThreadPoolExecutor.submit = self._ours[1]  # type: ignore[method-assign]

    def _restore(self) -> None:
        # Where somebody patched on top of us meanwhile, ours stay below theirs: they hand on nothing without a budget.
        if threading.Thread.start is self._ours[0]:
            threading.Thread.start = self._theirs[0]  # type: ignore[method-assign]
        if ThreadPoolExecutor.submit is self._ours[1]:
            ThreadPoolExecutor.submit = self._theirs[1]  # type: ignore[method-assign]


_threads = _Threads()


def forked() -> None:
    """Makes the hand-over to threads usable in a forked child."""
    _threads.forked()
