"""How is an awaitable bounded? By a handle on its own loop, and without ever cancelling a training call."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from tinker_deadlines import clock
from tinker_deadlines.budgets import Budget
from tinker_deadlines.calls import TRAINING_KINDS, Call, TinkerCallKind, Work, board
from tinker_deadlines.errors import BudgetExhaustedError, DeadlineExpiry, Late, TinkerDeadlineError
from tinker_deadlines.policy import limit_for
from tinker_deadlines.waiting.futures import BoundedFuture, raise_as_ours, source_of
from tinker_deadlines.waiting.limit import budget_for, ends_at, expiry_of

__all__ = ["await_with_deadline", "until_any"]

T = TypeVar("T")


async def await_with_deadline(kind: TinkerCallKind, awaitable: Awaitable[T], work: Work | None = None) -> T:
    """Awaits at most the limit.

    A coroutine is cancelled when its limit passes, as `asyncio.timeout` does it. A future of the SDK, and anything
    awaited under a training kind, is never cancelled, neither by the limit nor by the cancellation of the task that
    waits: it goes on, and `error.late` may still collect its result.

    Args:
        kind: The kind of call, which decides its limit.
        awaitable: The awaitable: a coroutine, an SDK future, a task.
        work: Its size, where it is known.

    Returns:
        What the awaitable returns.

    Raises:
        TinkerDeadlineError: the limit passed first.
        BudgetExhaustedError: an enclosing budget passed first, or had nothing left.
        ValueError: the kind is unknown, or its environment variable holds rubbish.
        BaseException: whatever the awaitable raises, a `TimeoutError` of its own included, as it is.
    """
    try:
        limit = limit_for(kind, work)
        budget = budget_for(kind)
    except BaseException:
        if inspect.iscoroutine(awaitable):
            awaitable.close()  # refused before it started: no warning that it was never awaited
        raise
    source = source_of(awaitable)
    if isinstance(source, BoundedFuture):
        return cast("T", await _await_bounded(source, budget))
    call = Call(kind, limit.seconds, limit.owner, work=work)
    board.begin(call)
    try:
        if kind not in TRAINING_KINDS and (type(awaitable) is _COROUTINE or isinstance(awaitable, Coroutine)):
            result: T = await _await_coroutine(awaitable, call, budget)
        else:
            result = await _await_shielded(awaitable, source, call, budget)
    except DeadlineExpiry as expiry:
        board.end(call, "expired", expiry)
        raise_as_ours(expiry)
    except BaseException as error:
        _end(call, error)
        raise
    board.end(call, "completed")
    return result


async def _nothing() -> None: ...


_probe = _nothing()
_COROUTINE: type = type(_probe)
_probe.close()


def _end(call: Call, error: BaseException) -> None:
    if isinstance(error, BudgetExhaustedError):
        board.end(call, "out_of_budget", error)
    elif isinstance(error, (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)):
        board.end(call, "cancelled")
    else:
        board.end(call, "failed", error)


class _Alarm:
    """Cancels a task at an instant, and remembers that it did."""

    __slots__ = ("_task", "went_off")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.went_off = False

    def __call__(self) -> None:
        self.went_off = True
        self._task.cancel()


async def _await_coroutine(coroutine: Awaitable[T], call: Call, budget: Budget | None) -> T:
    loop = asyncio.get_running_loop()
    task = cast("asyncio.Task[Any]", asyncio.current_task())
    cancels = task.cancelling()
    alarm = _Alarm(task)
    handle = clock.call_later(loop, ends_at(call, budget) - clock.monotonic(), alarm)
    try:
        result = await coroutine
    except asyncio.CancelledError as error:
        # Ours only if nobody else wanted this task cancelled as well: then the other's cancellation goes on.
        if alarm.went_off and task.uncancel() <= cancels:
            raise expiry_of(call, budget, TinkerDeadlineError, late=None) from error
        raise
    except BaseException:
        if alarm.went_off:
            task.uncancel()
        raise
    finally:
        handle.cancel()
    if alarm.went_off:
        task.uncancel()  # it finished all the same: the result counts
    return result


async def _await_bounded(future: BoundedFuture[T], budget: Budget | None) -> T:
    """Awaits a future that an alarm of ours bounds already: only a budget around this wait may cut it shorter."""
    await until_any(future, deadline=math.inf if budget is None else budget.deadline)
    if not future.done():
        raise future.error_for(budget, TinkerDeadlineError, late=future)
    if future.cancelled():
        raise asyncio.CancelledError
    try:
        return future.result()
    except DeadlineExpiry as expiry:
        raise_as_ours(expiry)


async def _await_shielded(awaitable: Awaitable[T], inner: object, call: Call, budget: Budget | None) -> T:
    """Awaits without a way for a cancellation, ours or a person's, to reach what is waited for.

    It waits for `inner`, the standard future underneath a future of the SDK; for anything else, for a task.
    """
    source: Future[T] | asyncio.Future[T] = inner if isinstance(inner, Future) else asyncio.ensure_future(awaitable)
    try:
        await until_any(source, deadline=ends_at(call, budget))
    finally:
        if source is not awaitable and isinstance(source, asyncio.Task) and not source.done():
            _goes_on(source)
    if not source.done():
        late: Late | None = source if isinstance(source, Future) else None
        raise expiry_of(call, budget, TinkerDeadlineError, late=late)
    if source.cancelled():
        raise asyncio.CancelledError
    return source.result()


async def until_any(*sources: Future[Any] | asyncio.Future[Any], deadline: float = math.inf) -> None:
    """Waits until one of the futures is done, on whichever thread, or until the instant; touches none of them."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def wake_from_thread(_: object) -> None:
        # A loop that was closed meanwhile has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(wake)

    for source in sources:
        source.add_done_callback(wake_from_thread if isinstance(source, Future) else wake)
    handle = None if deadline == math.inf else clock.call_later(loop, deadline - clock.monotonic(), wake)
    try:
        await waiter
    finally:
        if handle is not None:
            handle.cancel()


# Tasks made here that go on although nobody waits any more: a loop itself refers to its tasks only weakly.
_going_on: set[asyncio.Task[Any]] = set()


def _goes_on(task: asyncio.Task[Any]) -> None:
    _going_on.add(task)

    def ended(_: object) -> None:
        _going_on.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: its waiter has an error already

    task.add_done_callback(ended)
