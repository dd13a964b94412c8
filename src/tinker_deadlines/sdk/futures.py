"""What does the caller of a bounded method get? A future of ours, in the type that the SDK would have returned."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar, Protocol, TypeVar, cast

import tinker
from tinker import APIFuture
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture
from tinker.lib.public_interfaces.rest_client import RestClient  # not exported at the top level in every version

from tinker_deadlines import clock
from tinker_deadlines.budgets import Budget
from tinker_deadlines.calls import Call, Verdict
from tinker_deadlines.errors import AbandonedCallsError, BudgetExhaustedError, DeadlineExpiry
from tinker_deadlines.limits import LOOK_UP_S, MIN_LIMIT_S, ONCE_KINDS
from tinker_deadlines.liveness.watcher import watcher
from tinker_deadlines.sdk import private, saves, traffic
from tinker_deadlines.sdk.facts import doubt, known_behind
from tinker_deadlines.sdk.hedge import SecondAttempt, allowance
from tinker_deadlines.sdk.learning import arrived_late
from tinker_deadlines.sdk.shared import shared
from tinker_deadlines.sdk.stuck import StuckCallError
from tinker_deadlines.waiting.blocking import close_late
from tinker_deadlines.waiting.futures import BoundedFuture
from tinker_deadlines.waiting.lanes import Lane
from tinker_deadlines.waiting.workers import Job, workers

__all__ = [
    "MethodJob",
    "SDKFuture",
    "future_in_type",
    "future_type_named",
    "in_type_of",
    "is_future",
    "wait_for_either",
]

T = TypeVar("T")
log = logging.getLogger("tinker_deadlines")

# Of kinds that may not be repeated, but harmless itself: it changes nothing.
_HARMLESS = frozenset({"TrainingClient.forward"})

_MADE_BY_CLIENTS = (tinker.TrainingClient, tinker.SamplingClient, RestClient)


class Repeater(Protocol):
    """What can make a call once more."""

    def second_attempt(self, future: SDKFuture[Any]) -> SecondAttempt | None:
        """Makes ready to make the call of a future a second time; `None` where that cannot be done."""


class SDKFuture(BoundedFuture[T]):
    """A bounded call of the SDK."""

    expiry_error: ClassVar[type[DeadlineExpiry]] = StuckCallError

    def __init__(
        self,
        call: Call,
        budget: Budget | None,
        lane: Lane | None,
        arrived: Callable[[Any], Any] | None = None,
        again: Repeater | None = None,
    ) -> None:
        self._arrived = arrived  # given a client that this call made, gives the one to use
        self._again = again  # makes a second attempt, where the call may be made twice
        self._second: SecondAttempt | None = None
        self._job: Job | None = None
        self._looked_up = False
        # The lane that this one keeps others from, as long as its outcome is unknown.
        self._fenced: Lane | None = None
        super().__init__(call, budget, lane)

    def settle(self, returned: Future[Any]) -> None:
        """Goes on from what the SDK's method returned: a future is followed, a value is the result."""
        error = returned.exception()
        if error is not None:
            self.fail(error)
            return
        value = returned.result()
        if is_future(value):
            self.follow_sdk(value)
        else:
            self.finish(value)

    def follow_sdk(self, value: Any) -> Any:
        """Completes from a future of the SDK, whatever its type; returns itself in that type."""
        raw = _raw(value)
        mine = value if raw is not None and private.redirected(value, raw, self) else in_type_of(value, self)
        if raw is None:
            # A combined future of 0.36 and before has none underneath: a worker waits for it.
            job = MethodJob(value.result)
            self.runs_on(job)
            workers.start(job)
            raw = job.returned
        self.follow(raw)
        return mine

    def runs_on(self, job: Job) -> None:
        """Notes the job on which the SDK's method runs, to be abandoned when this call is given up."""
        self._job = job

    def _received(self, result: T) -> T:
        if self._arrived is not None:
            if isinstance(result, _MADE_BY_CLIENTS):
                result = self._arrived(result)
            elif isinstance(path := getattr(result, "path", None), str):
                shared.saved(path)
        return result

    def _end_early(self) -> None:
        lane, call = self._lane, self._call
        if lane is None or call.kind not in ONCE_KINDS or call.method in _HARMLESS:
            super()._end_early()
            return
        # Before anybody hears of it, who may make the next call at once.
        self._fenced = lane
        lane.fence_off(self)
        super()._end_early()
        if not isinstance(self.exception(0), (DeadlineExpiry, BudgetExhaustedError)):
            self._lift_fence()

    def _lift_fence(self) -> None:
        lane, self._fenced = self._fenced, None
        if lane is not None:
            lane.lift(self)

    def fail(self, error: BaseException) -> None:
        """Fails as `BoundedFuture` does. Who hears of it and makes another client must not get the same one again."""
        doubt(self._call, known_behind(self._call), error)
        super().fail(error)

    def convict(self, verdict: Verdict, findings: tuple[str, ...]) -> None:
        """Ends the call as `BoundedFuture` does; what it went through is doubted."""
        doubt(self._call, known_behind(self._call))
        super().convict(verdict, findings)

    def _arrived_late(self, result: T) -> None:
        close_late(result)
        self._lift_fence()
        expiry, call = self._exception, self._call
        if isinstance(expiry, DeadlineExpiry) and call.started_at is not None:
            arrived_late(call, expiry.elapsed_s, call.elapsed_s())

    def _goes_on(self) -> bool:
        """Whether the evidence lets the call go on: it shows life, is paused, or its session is being asked."""
        budget = self._budget
        if budget is not None and clock.monotonic() >= budget.deadline - MIN_LIMIT_S:
            return False
        known = known_behind(self._call)  # whoever finds out about a dead call takes this away
        decision = watcher.decide(self._call)
        if decision.until is None:
            if self._call.limit is None or self._call.limit.fixed or not self.look_up():
                doubt(self._call, known)
                return False
            self._set_alarm(clock.monotonic() + LOOK_UP_S)
            return True
        if decision.verdict == "slow":
            self.look_up()
        if decision.verdict == "slow" and self._again is not None and watcher.may_be_lost(self._call):
            self._try_again()
        self._set_alarm(decision.until)
        return True

    def look_up(self) -> bool:
        """Begins to ask, once, whether a save landed whose answer is missing; false where there is nothing to ask."""
        call = self._call
        method = call.method.rpartition(".")[2]
        if self._looked_up or method not in saves.SAVES or call.traffic is None or not call.args:
            return False
        self._looked_up = True
        name = call.args[1] if len(call.args) > 1 else (call.kwargs or {}).get("name")
        if not isinstance(name, str):
            return False
        try:
            workers.start(_LookUp(self, call.args[0], method, name))
        except (AbandonedCallsError, RuntimeError) as error:
            log.warning("whether a save landed is not asked: %s", error)
            return False
        return True

    def _try_again(self) -> None:
        """Makes a second attempt, once, where the call may be made twice and the allowance has room."""
        again, self._again = self._again, None
        second = again.second_attempt(self) if again is not None and allowance.take() else None
        if second is None:
            return
        try:
            second.start()
        except (AbandonedCallsError, RuntimeError) as error:
            log.warning("no second attempt: %s", error)
            return
        self._second = second
        log.warning("%s may have been lost: a second attempt was made", self._call.method)

    def second_answer(self, result: T) -> None:
        """Takes the result of the second attempt, unless the first was faster."""
        if not self.done():
            # The first one's time says nothing: it may never have ended.
            self._call.verdict = "result lost"
            first = self._followed
            self.finish(result)
            if first is not None:
                first.cancel()

    def _stop_clock(self) -> None:
        second, self._second, self._again = self._second, None, None
        if second is not None:
            second.forget()
        super()._stop_clock()

    def _was_sent(self) -> bool | None:
        return self._call.traffic is not None if traffic.watching() else None

    def expired(self) -> None:
        """Lets go of what an expired call still holds: its worker, or the polling of a sampling call."""
        job, self._job = self._job, None
        if job is not None:
            workers.abandon(job)
        super().expired()

    def cancel(self) -> bool:
        """Cancels as `BoundedFuture` does; a method that still blocks on its worker is given up."""
        cancelled = super().cancel()
        if cancelled and self._job is not None:
            workers.abandon(self._job)
        return cancelled


class _LookUp(Job):
    """The question whether a save landed."""

    __slots__ = ("_client", "_found", "_future", "_method", "_name")

    def __init__(self, future: SDKFuture[Any], client: Any, method: str, name: str) -> None:
        super().__init__()
        self._future = future
        self._client = client
        self._method = method
        self._name = name
        self._found: Any = None

    def run(self) -> None:
        """Asks."""
        self._found = saves.landed(self._client, self._method, self._name)

    def tell(self) -> None:
        """Completes the save, if it landed."""
        if self._found is not None and not self._future.done():
            log.warning("%s had landed, and its answer was lost: it is used", self._future.call.method)
            self._future.finish(self._found)


def is_future(value: object) -> bool:
    """Whether a method returned something to wait for."""
    return _is_future_type(cast("Any", type(value)))


@functools.cache
def _is_future_type(kind: Any) -> bool:
    # Asked once of each type: an abstract class like `APIFuture` takes its time to tell who belongs to it.
    return issubclass(kind, (APIFuture, Future))


@functools.cache
def _is_standard(kind: Any) -> bool:
    return issubclass(kind, Future) and not issubclass(kind, APIFuture)


def _raw(value: Any) -> Future[Any] | None:
    """The standard future underneath what the SDK returned; `None` where it has none."""
    if _is_standard(cast("Any", type(value))):
        return cast("Future[Any]", value)
    inner = getattr(value, "future", None)
    return inner() if callable(inner) else None


def in_type_of(value: Any, future: Future[Any]) -> Any:
    """`future` in the type of what the SDK returned."""
    return future_in_type(type(value), future)


def future_in_type(kind: type, future: Future[Any]) -> Any:
    """`future` as an instance of one of the SDK's future types; as it is for a standard future."""
    return _maker_of(kind)(future)


@functools.cache
def _maker_of(kind: type) -> Callable[[Future[Any]], Any]:
    make: Callable[[Any], Any] = kind
    if _is_standard(cast("Any", kind)):
        return lambda future: future
    if issubclass(kind, Future):
        return make
    if issubclass(kind, (tinker.TrainingClient, tinker.SamplingClient)):
        return lambda future: make(AwaitableConcurrentFuture(future))
    return AwaitableConcurrentFuture


def future_type_named(annotation: object) -> type | None:
    """The future type that a method's return annotation names; `None` where it names none."""
    if not isinstance(annotation, str):
        annotation = getattr(annotation, "__name__", "")
    name = str(annotation).partition("[")[0].strip("'\"").rpartition(".")[2]
    if name in ("APIFuture", "AwaitableConcurrentFuture"):
        return AwaitableConcurrentFuture
    if name in ("ConcurrentFuture", "Future"):
        return Future
    found = getattr(tinker, name, None)
    return found if isinstance(found, type) and issubclass(found, APIFuture) else None


class MethodJob(Job):
    """One of the SDK's methods on its way through a worker; `returned` completes with what it returns or raises."""

    __slots__ = ("_call", "_error", "_value", "returned")

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self.returned: Future[Any] = Future()
        self._call: Callable[[], Any] | None = call
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Calls the method."""
        call, self._call = self._call, None
        try:
            self._value = call()  # type: ignore[misc]
        except BaseException as error:
            self._error = error

    def tell(self) -> None:
        """Completes `returned`."""
        if self._error is not None:
            self.returned.set_exception(self._error)
        else:
            self.returned.set_result(self._value)


def wait_for_either(returned: Future[Any], bounded: Future[Any]) -> None:
    """Waits until the method has returned or its call is over, whichever is first."""
    gate = threading.Event()

    def open_gate(_: object) -> None:
        gate.set()

    returned.add_done_callback(open_gate)
    bounded.add_done_callback(open_gate)
    gate.wait()
