"""How is a blocking callable bounded? It runs on a worker, and its caller waits for it at most until its limit."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tinker_deadlines import clock
from tinker_deadlines.budgets import Budget, run_within
from tinker_deadlines.calls import Call, TinkerCallKind, Work, board
from tinker_deadlines.errors import AbandonedCallsError, BudgetExhaustedError, TinkerDeadlineError
from tinker_deadlines.policy import limit_for
from tinker_deadlines.waiting.limit import budget_for, ends_at, expiry_of
from tinker_deadlines.waiting.workers import Job, workers

__all__ = ["call_with_deadline"]

T = TypeVar("T")
log = logging.getLogger("tinker_deadlines")


def call_with_deadline(kind: TinkerCallKind, call: Callable[[], T], work: Work | None = None) -> T:
    """Runs a blocking callable on a daemon thread and waits for it at most its limit.

    The callable sees the caller's context variables. Once given up, its thread never delays the interpreter's exit;
    a client that it still makes is closed when it arrives.

    Args:
        kind: The kind of call, which decides its limit.
        call: The callable.
        work: Its size, where it is known.

    Returns:
        What the callable returns.

    Raises:
        TinkerDeadlineError: the limit passed first.
        BudgetExhaustedError: an enclosing budget passed first, or had nothing left.
        AbandonedCallsError: too many calls were given up that still hold a thread.
        ValueError: the kind is unknown, or its environment variable holds rubbish.
        BaseException: whatever the callable raises, with its traceback.
    """
    limit = limit_for(kind, work)
    budget = budget_for(kind)
    bounded = Call(kind, limit.seconds, limit.owner, work=work)
    box = _Box(call)
    try:
        board.begin(bounded)
        workers.start(box)
        if not clock.acquire(box.done, ends_at(bounded, budget) - clock.monotonic()) and box.give_up():
            raise _expiry_of(bounded, budget, box)
    except BaseException as error:
        # Ctrl-C, or a refusal to start: the call is over for its caller. An expiry is counted already.
        if box.give_up():
            board.end(bounded, "refused" if isinstance(error, AbandonedCallsError) else "cancelled")
        raise
    if box.error is not None:
        own, box.error = box.error, None
        board.end(bounded, "failed", own)
        try:
            raise own
        finally:
            # A frame, or a box, that refers to the error that refers to it would keep both until the next collection.
            del own
    board.end(bounded, "completed")
    return box.value  # type: ignore[return-value]


def _expiry_of(call: Call, budget: Budget | None, box: _Box[T]) -> BaseException:
    # A call that still waits for a worker was never sent.
    error = expiry_of(call, budget, TinkerDeadlineError, sent=None if box.started else False, late=box)
    board.end(call, "out_of_budget" if isinstance(error, BudgetExhaustedError) else "expired", error)
    return error


class _Box(Job, Generic[T]):
    """What a callable returned or raised, and who still wants it."""

    __slots__ = ("_call", "_context", "_given_up", "_lock", "done", "error", "value")

    def __init__(self, call: Callable[[], T]) -> None:
        super().__init__()
        self._call: Callable[[], T] | None = call
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._given_up = False
        # Held until the callable has ended.
        self.done = threading.Lock()
        self.done.acquire()
        self.value: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Runs the callable and keeps what comes of it."""
        call, self._call = self._call, None
        try:
            self.value = self._context.run(call)  # type: ignore[arg-type]
        except BaseException as error:
            self.error = error

    def tell(self) -> None:
        """Wakes the caller, or closes a client that arrives when nobody waits any more."""
        with self._lock:
            self.done.release()
            late = self._given_up
        if late:
            close_late(self.value)

    @property
    def started(self) -> bool:
        """Whether a worker has taken the callable."""
        return self._call is None

    def give_up(self) -> bool:
        """Says that the caller stops waiting; false when the callable ended before that was said first."""
        with self._lock:
            if not self._given_up:
                self._given_up = not self.done.acquire(blocking=False)
        if self._given_up:
            workers.abandon(self)
        return self._given_up

    def result(self, timeout: float | None = None) -> T:
        """Waits up to `timeout` seconds for what the callable returned late, or raises what it raised.

        Raises:
            TimeoutError: it has not ended yet.
        """
        if not self.done.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)):
            raise TimeoutError("the call has not ended yet")
        self.done.release()
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


def close_late(client: object) -> None:
    """Closes a client that arrives after its caller gave up, so that its session does not live on unused.

    Only what the Tinker SDK made is touched, and only where it can be closed: a service client. Training and sampling
    clients have nothing to close; they go with their last reference. Closing may block for as long as making did: it
    has a thread of its own, because the worker belongs to the next call already, and the SDK's loop to everybody.
    """
    if getattr(client, "close", None) is None or not type(client).__module__.startswith("tinker."):
        return
    closer = threading.Thread(target=_close, args=(client,), name="tinker-deadlines-close", daemon=True)
    with contextlib.suppress(RuntimeError):  # no further thread: the session goes when the service misses its heartbeat
        run_within(None, closer.start)


def _close(client: Any) -> None:
    with contextlib.suppress(Exception):
        client.close("interrupted", "arrived after its caller had given up")
        log.warning("a %s arrived after its caller had given up and was closed", type(client).__name__)
