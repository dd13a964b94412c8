"""How is a future bounded? By its own timed wait, or by a future of ours that an alarm completes.

`wait_with_deadline` waits on anything with `result(timeout)`. `BoundedFuture` is what installed mode hands out: a
`concurrent.futures.Future` that completes from the SDK's future or from our alarm, whichever is first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from threading import TIMEOUT_MAX
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar, cast

from tinker_deadlines import clock
from tinker_deadlines.budgets import Budget, current
from tinker_deadlines.calls import SAMPLING_KINDS, TRAINING_KINDS, Call, Outcome, TinkerCallKind, Verdict, Work, board
from tinker_deadlines.errors import BudgetExhaustedError, DeadlineExpiry, ForkedProcessError, Late, TinkerDeadlineError
from tinker_deadlines.limits import MIN_LIMIT_S, override_for
from tinker_deadlines.policy import limit_for
from tinker_deadlines.waiting.lanes import Lane
from tinker_deadlines.waiting.lean import LeanCondition
from tinker_deadlines.waiting.limit import budget_for, ends_at, expiry_of, is_budgets
from tinker_deadlines.waiting.timer import Alarm, timer

__all__ = ["BoundedFuture", "DeadlineFuture", "wait_with_deadline"]

log = logging.getLogger("tinker_deadlines")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


# How many forks lie between the first process and this one: a future of the parent is recognised by its number.
_generation = 0


def forked() -> None:
    """Makes the futures of the parent say in a forked child that they can never complete there."""
    global _generation
    _generation += 1


class DeadlineFuture(Protocol[T_co]):
    """What can be waited on: a `concurrent.futures.Future`, an SDK future, or anything of the kind."""

    def result(self, timeout: float | None = None) -> T_co:
        """Waits up to `timeout` seconds for the result; raises `TimeoutError` when there is none by then."""


def wait_with_deadline(kind: TinkerCallKind, future: DeadlineFuture[T], work: Work | None = None) -> T:
    """Waits for a future at most its limit. The call itself goes on after an expiry; nothing is cancelled.

    Args:
        kind: The kind of call, which decides its limit.
        future: The future, with a `result(timeout)` of its own.
        work: Its size, where it is known.

    Returns:
        The future's result.

    Raises:
        TinkerDeadlineError: the limit passed first; `error.late.result(timeout)` still collects a late result.
        BudgetExhaustedError: an enclosing budget passed first, or had nothing left.
        ValueError: the kind is unknown, or its environment variable holds rubbish.
        BaseException: whatever the call raised, a `TimeoutError` of its own included, as it is.
    """
    started_at = clock.monotonic()
    source = source_of(future)
    done = getattr(source, "done", None)
    if done is not None and (current() is None or done()):
        # No limit is shorter than this first look, so it needs nothing that a limit needs, and nothing is done before
        # it that the SDK's loop would have to wait for. What it finds finished is not put on the board.
        try:
            result = future.result(timeout=MIN_LIMIT_S)
        except TimeoutError:
            if done():
                return future.result(timeout=0)  # its own error, or a result that came in this very moment
        except DeadlineExpiry as expiry:
            raise_as_ours(expiry)
        else:
            override_for(kind)  # a limit that is rubbish is said all the same
            return result
    if isinstance(source, BoundedFuture):
        return cast("T", _wait_for_bounded(source, kind))
    return _wait(kind, future, done, work, started_at)


def source_of(future: object) -> object:
    """The standard future underneath one of the SDK's, whose own `done` warns or does not exist; else `future`."""
    if type(future) is Future:
        return future
    inner = getattr(future, "future", None)
    return inner() if callable(inner) else future


def _wait(
    kind: TinkerCallKind,
    future: DeadlineFuture[T],
    done: Callable[[], bool] | None,
    work: Work | None,
    started_at: float,
) -> T:
    limit = limit_for(kind, work)
    budget = budget_for(kind)
    call = Call(kind, limit.seconds, limit.owner, work=work)
    call.submitted_at = call.started_at = started_at
    board.begin(call)
    try:
        result = future.result(timeout=min(max(0.0, ends_at(call, budget) - clock.monotonic()), TIMEOUT_MAX))
    except DeadlineExpiry as expiry:
        board.end(call, "expired", expiry)
        raise_as_ours(expiry)
    except TimeoutError as error:
        if done is not None and done():
            # Not our clock: the call itself raised this, or finished in the very moment when the wait gave up.
            return _last_look(future, call)
        if done is None and clock.monotonic() < ends_at(call, budget):
            # Nothing to ask: only a wait that lasted until the limit can have been ours.
            board.end(call, "failed", error)
            raise
        raise _expiry_of(call, budget, future) from error
    except (KeyboardInterrupt, CancelledError):
        board.end(call, "cancelled")
        raise
    except BaseException as error:
        board.end(call, "failed", error)
        raise
    board.end(call, "completed")
    return result


def _wait_for_bounded(future: BoundedFuture[T], kind: TinkerCallKind) -> T:
    """Waits for a future that an alarm of ours bounds already: only a budget around this wait may cut it shorter."""
    override_for(kind)
    budget = budget_for(kind)
    try:
        return future.result(None if budget is None else max(0.0, budget.deadline - clock.monotonic()))
    except DeadlineExpiry as expiry:
        raise_as_ours(expiry)
    except TimeoutError:
        if future.done():
            return future.result()
        raise future.error_for(budget, TinkerDeadlineError, late=future) from None


def raise_as_ours(expiry: DeadlineExpiry) -> NoReturn:
    """One expiry, two faces: where installed mode expired a future, functions of ours raise `TinkerDeadlineError`."""
    if isinstance(expiry, TinkerDeadlineError):
        raise expiry
    raise TinkerDeadlineError(**expiry.facts()) from expiry


def _expiry_of(call: Call, budget: Budget | None, late: Late) -> BaseException:
    error = expiry_of(call, budget, TinkerDeadlineError, late=late)
    board.end(call, "out_of_budget" if isinstance(error, BudgetExhaustedError) else "expired", error)
    return error


def _last_look(future: DeadlineFuture[T], call: Call) -> T:
    try:
        result = future.result(timeout=0)
    except BaseException as error:
        board.end(call, "failed", error)
        raise
    board.end(call, "completed")
    return result


class _ListWhenAsked:
    """An attribute that is an empty list from the moment when it is asked for: few are asked, and each takes room."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, holder: object, owner: type | None = None) -> list[Any]:
        made: list[Any] = []
        setattr(holder, self._name, made)
        return made


class BoundedFuture(Future[T]):
    """A future of ours: it completes from the future it follows or from its alarm, whichever is first.

    A training call cannot be cancelled: `cancel()` is refused and returns False, because in the SDK a training call
    that is cancelled before its turn never passes the turn on, and every later call of its client waits for ever. A
    task or `asyncio.wait_for` that waits on one is cancelled all the same; the call goes on underneath, and a later
    `result()` still delivers.
    """

    expiry_error: ClassVar[type[DeadlineExpiry]] = TinkerDeadlineError

    _waiters = _ListWhenAsked()
    """What `concurrent.futures.wait` and its like hang on a future."""

    def __init__(self, call: Call, budget: Budget | None, lane: Lane | None = None) -> None:
        # Not `super().__init__()`: its Condition alone costs more memory than the rest of a pending call together.
        # These are the attributes that it sets; a test compares them with those of a plain Future.
        self._condition = LeanCondition()  # type: ignore[assignment]
        self._state = "PENDING"
        self._result = None
        self._error: BaseException | float | None = None
        self._done_callbacks: list[Callable[[Future[T]], object]] = []
        self._call = call
        self._budget = budget
        self._lane = lane
        self._followed: Future[T] | None = None
        self._alarm: Alarm | None = None
        self._over = False
        self._generation = _generation
        call.owner = self
        board.begin(call)
        if lane is None:
            self._set_alarm()
        else:
            call.started_at = None
            lane.enter(self)
            if budget is not None and call.started_at is None:
                self._set_alarm()

    def result(self, timeout: float | None = None) -> T:
        """Waits for the result as a plain future does.

        Raises:
            ForkedProcessError: the call was made by the parent of this forked child: nothing here can complete it.
        """
        self._refuse_in_fork()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the error as a plain future does; raises as `result` does in a forked child."""
        self._refuse_in_fork()
        return super().exception(timeout)

    def _refuse_in_fork(self) -> None:
        if self._generation != _generation and self._state == "PENDING":
            raise ForkedProcessError(f"result() of {self._call.method or self._call.kind}")

    # The clock ----------------------------------------------------------------------------------------------------

    def start_clock(self) -> None:
        """Starts the limit's clock: for a training call, when its predecessor on that client ended."""
        self._call.started_at = clock.monotonic()
        self._set_alarm()

    def _set_alarm(self, until: float | None = None) -> None:
        """Sets the alarm for the call's end, or to look at it again at an instant; a budget is never overstepped."""
        instant = ends_at(self._call, self._budget)
        if until is not None:
            instant = until if self._budget is None else min(until, self._budget.deadline)
        alarm = timer.set(instant, self)
        # Only then, so that of two alarms that are set at once none is lost sight of.
        previous, self._alarm = self._alarm, alarm
        if previous is not None:
            timer.take_back(previous)
        if self._over:
            self._stop_clock()  # it ended while the alarm was being set

    def _stop_clock(self) -> None:
        self._over = True
        self._call.owner = None
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            timer.take_back(alarm)
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.leave(self)

    # How it ends --------------------------------------------------------------------------------------------------

    def follow(self, future: Future[T]) -> None:
        """Completes from `future` when that does, unless this one is over by then."""
        with self._condition:
            promised, self._followed = self._followed, future
        if promised is not None:
            future.add_done_callback(lambda ended: _pass_on(ended, promised))
        if self._state != "PENDING" and (self.cancelled() or self._call.kind in SAMPLING_KINDS):
            future.cancel()  # over before it was there to be let go of
        future.add_done_callback(self._complete_from)

    def finish(self, result: T) -> None:
        """Completes with a result that came without a future, unless this one is over by then."""
        self._stop_clock()
        try:
            received = self._received(result)
        except Exception as error:
            self.fail(error)
            return
        try:
            self.set_result(received)
        except InvalidStateError:
            self._arrived_late(result)
            late = self._late()
            if not late.done():
                late.set_result(result)
            return
        self._followed = None  # it refers to this one, and both to the result
        board.end(self._call, "completed")

    def fail(self, error: BaseException) -> None:
        """Completes with what the call raised, unless this one is over by then."""
        self._stop_clock()
        try:
            self.set_exception(error)
        except InvalidStateError:
            late = self._late()
            if not late.done():
                late.set_exception(error)
            return
        self._followed = None
        board.end(self._call, "failed", error)

    def _late(self) -> Future[T]:
        """Where a late result arrives: the future that is followed, or a promise until there is one."""
        with self._condition:
            if self._followed is None:
                self._followed = Future()
            return self._followed

    def _complete_from(self, future: Future[T]) -> None:
        # Read as they lie there: a future that tells its callbacks does not change any more, and each of its methods
        # takes its lock, on the SDK's loop.
        if future._state != "FINISHED":
            if self._over:
                return  # cancelled by us, after its end
            self._stop_clock()
            if self._state == "PENDING" and super().cancel():
                self._notify_cancelled()
                board.end(self._call, "cancelled")
            return
        error = future._exception
        if error is not None:
            self.fail(error)
        else:
            self.finish(future._result)  # type: ignore[arg-type]

    def _received(self, result: T) -> T:
        """A result on its way to whoever waits; a subclass may look at it first."""
        return result

    def _arrived_late(self, result: T) -> None:
        """A result that came after the end; a subclass may have to close it."""

    def expire(self) -> None:
        """Ends the call because its time ran out, unless it has finished in the meantime."""
        followed = self._followed
        if self._over or (followed is not None and followed._state == "FINISHED"):
            return  # it is over, or its callback is on the way
        try:
            if self._goes_on():
                return
        except Exception:
            # Whatever fails in looking for evidence: without any, a call ends at its limit.
            log.exception("a call at its limit could not be judged")
        self._end_early()

    def convict(self, verdict: Verdict, findings: tuple[str, ...]) -> None:
        """Ends the call before its time, because it was found to be dead; unless it has finished in the meantime."""
        followed = self._followed
        if self._over or (followed is not None and followed._state == "FINISHED"):
            return
        self._call.verdict, self._call.findings = verdict, findings
        self._end_early()
        self.expired()

    def _goes_on(self) -> bool:
        """Whether the call is let go on although its time is up; a subclass may know more, and set another alarm."""
        return False

    def _end_early(self) -> None:
        call, lane = self._call, self._lane
        if lane is not None and call.started_at is None:
            ahead = lane.ahead_of(self)
            calls = "1 earlier call" if ahead == 1 else f"{ahead} earlier calls"
            call.findings = (*call.findings, f"It stood behind {calls} of its client.")
        self._stop_clock()  # before a person's callback can hold this up: the next in the lane has its turn now
        try:
            # Of its error, only the instant, which the garbage collector need not look at: see `_exception`.
            at = clock.monotonic()
            self.set_exception(at)  # type: ignore[arg-type]
        except InvalidStateError:
            return
        outcome: Outcome = "out_of_budget" if is_budgets(call, self._budget, at) else "expired"
        board.end(call, outcome, self._exception if board.observers else None)

    @property
    def _exception(self) -> BaseException | None:
        """What a plain future keeps here. An expiry's error is made when it is read first.

        A session that wedges expires thousands of calls in one moment, and nobody reads most of their errors.
        """
        error = self._error
        if not isinstance(error, float):
            return error
        with self._condition:
            if isinstance(self._error, float):
                self._error = self.error_for(self._budget, self.expiry_error, at=self._error, late=self._late())
            return self._error

    @_exception.setter
    def _exception(self, error: BaseException | float | None) -> None:
        self._error = error

    def error_for(
        self, budget: Budget | None, error: type[DeadlineExpiry], *, at: float | None = None, late: Late
    ) -> DeadlineExpiry | BudgetExhaustedError:
        """Makes the error for whoever stops waiting for this call, now or at an instant."""
        return expiry_of(self._call, budget, error, at=at, sent=self._was_sent(), late=late)

    @property
    def call(self) -> Call:
        """The call that this future bounds."""
        return self._call

    def expired(self) -> None:
        """Lets go of what an expired call still holds: a sampling call stops polling and frees its slot."""
        if self._call.kind in SAMPLING_KINDS and self._followed is not None and self._error is not None:
            self._followed.cancel()

    def let_go(self) -> None:
        """Stops what still works on a training call whose client is given up: nobody's turn hangs on it any more."""
        if self._followed is not None:
            self._followed.cancel()

    def _was_sent(self) -> bool | None:
        """Whether the call was seen to leave; `None` where its traffic is not watched."""
        return None

    def cancel(self) -> bool:
        """Cancels the call for a person; refused for a training call, which goes on (see the class)."""
        if self._call.kind in TRAINING_KINDS or not super().cancel():
            return False
        self._notify_cancelled()
        self._stop_clock()
        board.end(self._call, "cancelled")
        if self._followed is not None:
            self._followed.cancel()
        return True

    def _notify_cancelled(self) -> None:
        """Tells `concurrent.futures.wait` and its like, once, however often it is cancelled."""
        with self._condition:
            if self._state == "CANCELLED":
                self.set_running_or_notify_cancel()


def _pass_on(ended: Future[T], promised: Future[T]) -> None:
    if ended.cancelled():
        promised.cancel()
    elif promised.set_running_or_notify_cancel():
        error = ended.exception()
        if error is not None:
            promised.set_exception(error)
        else:
            promised.set_result(ended.result())
