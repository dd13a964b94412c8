"""A future is bounded by its own timed wait, or by a future of ours; and what the call raised comes through."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tinker_deadlines import (
    BudgetExhaustedError,
    ForkedProcessError,
    TinkerDeadlineError,
    budgets,
    env_var_for,
    episode,
    wait_with_deadline,
)
from tinker_deadlines.calls import KINDS, TRAINING_KINDS, Call, TinkerCallKind, board
from tinker_deadlines.errors import DeadlineExpiry
from tinker_deadlines.testing import BareFuture, FakeClock, FakeFuture
from tinker_deadlines.waiting.futures import BoundedFuture
from tinker_deadlines.waiting.lanes import Lane
from tinker_deadlines.waiting.timer import timer

OWN_TIMEOUTS = [TimeoutError("mine"), concurrent.futures.TimeoutError("mine"), TimeoutError("mine")]


class Stuck(DeadlineExpiry, OSError):
    """What an expiry looks like in installed mode: not a `TimeoutError`."""


class Installed(BoundedFuture[Any]):
    expiry_error = Stuck


def bounded(
    kind: TinkerCallKind = "rest", limit_s: float = 10, make: type[BoundedFuture[Any]] = BoundedFuture
) -> tuple[BoundedFuture[Any], Future[Any]]:
    future = make(Call(kind, limit_s, "the default"), budgets.current())
    theirs: Future[Any] = Future()
    future.follow(theirs)
    return future, theirs


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


# wait_with_deadline -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [FakeFuture, BareFuture])
def test_a_result_in_time_is_returned(make: type) -> None:
    """A finished future at once, a slow one when it comes; each is counted as completed and nothing is left."""
    with FakeClock(moves_by_itself=True):
        assert wait_with_deadline("sample", make("now", after_s=0)) == "now"
        assert wait_with_deadline("sample", make("later", after_s=299)) == "later"
    assert not board.in_flight


@pytest.mark.parametrize("make", [FakeFuture, BareFuture])
@pytest.mark.parametrize("kind", KINDS)
def test_a_future_that_never_ends_expires(kind: TinkerCallKind, make: type) -> None:
    """Exactly at the limit of its kind, with all facts; the wait's own error is the cause."""
    with FakeClock(moves_by_itself=True) as clock:
        before = clock.monotonic()
        future = make()
        with pytest.raises(TinkerDeadlineError) as expired:
            wait_with_deadline(kind, future)
    error = expired.value
    assert clock.monotonic() - before == pytest.approx(error.deadline_s)
    assert (error.kind, error.late) == (kind, future)
    assert error.elapsed_s == pytest.approx(error.deadline_s)
    assert isinstance(error.__cause__, TimeoutError)
    assert board.tallies[kind].expired == 1 and not board.in_flight


def test_a_late_result_can_be_collected() -> None:
    """`error.late.result(timeout)` waits for it."""
    with FakeClock(moves_by_itself=True):
        with pytest.raises(TinkerDeadlineError) as expired:
            wait_with_deadline("sample", FakeFuture("late", after_s=301))
        late = expired.value.late
        assert late is not None
        with pytest.raises(TimeoutError):
            late.result(timeout=0.5)
        assert late.result(timeout=1) == "late"


@pytest.mark.parametrize("after_s", [0, 5, 300 - 1e-6])
@pytest.mark.parametrize("make", [FakeFuture, BareFuture])
@pytest.mark.parametrize("own", [*OWN_TIMEOUTS, ValueError("x"), KeyboardInterrupt(), SystemExit(3), CancelledError()])
def test_an_error_of_the_call_is_itself(own: BaseException, make: type, after_s: float) -> None:
    """A `TimeoutError` of its own included, from futures that can be asked and from those that cannot."""
    with FakeClock(moves_by_itself=True), pytest.raises(type(own)) as raised:
        wait_with_deadline("sample", make(error=own, after_s=after_s))
    assert raised.value is own
    assert not board.in_flight
    assert "sample" not in board.tallies or board.tallies["sample"].expired == 0


def test_a_future_of_the_sdks_shape_is_asked_underneath() -> None:
    """One without `done`, but with the standard future in `future()`: its own `TimeoutError` is its own."""
    own = TimeoutError("mine")
    inner: Future[Any] = Future()
    threading.Timer(0.005, inner.set_exception, (own,)).start()
    with pytest.raises(TimeoutError) as raised:
        wait_with_deadline("sample", SimpleNamespace(result=inner.result, future=lambda: inner))  # type: ignore[arg-type]
    assert raised.value is own


def test_a_future_without_done_is_not_asked_again() -> None:
    """Its own `TimeoutError` is raised as it came; a second `result` could answer with another one."""
    own = TimeoutError("mine")
    future = BareFuture[None](error=own, after_s=1)
    with FakeClock(moves_by_itself=True), pytest.raises(TimeoutError):
        wait_with_deadline("sample", future)
    assert future.waits == 1


@pytest.mark.parametrize("own", [None, TimeoutError("mine"), ValueError("mine")])
def test_what_ends_as_the_wait_gives_up_counts(own: BaseException | None) -> None:
    """The last look: a result is returned, an error is the call's own."""
    with FakeClock(moves_by_itself=True), episode(1000):  # without a budget, a first look would find it
        future = FakeFuture("just so", error=own, finishes_as_wait_ends=True)
        if own is None:
            assert wait_with_deadline("sample", future) == "just so"
        else:
            with pytest.raises(type(own)) as raised:
                wait_with_deadline("sample", future)
            assert raised.value is own
    assert board.tallies["sample"].expired == 0


def test_the_calls_traceback_comes_through() -> None:
    """Where it was raised can be read."""

    def deep() -> None:
        raise ValueError("deep")

    with concurrent.futures.ThreadPoolExecutor(1) as pool, pytest.raises(ValueError) as raised:
        wait_with_deadline("sample", pool.submit(deep))
    assert "deep" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]


def test_nothing_is_cancelled_by_an_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call goes on: the future is pending and delivers later."""
    monkeypatch.setenv(env_var_for("forward_backward"), "0.001")
    future: Future[int] = Future()
    with pytest.raises(TinkerDeadlineError) as expired:
        wait_with_deadline("forward_backward", future)
    assert not future.done() and expired.value.submission == "indeterminate"
    future.set_result(5)
    assert expired.value.late is not None and expired.value.late.result(timeout=0) == 5


def test_an_expiry_of_installed_mode_is_ours_here() -> None:
    """A future that installed mode expired raises `TinkerDeadlineError` with the same facts, finished or not."""
    error: list[BaseException] = []

    def wait() -> None:
        try:
            wait_with_deadline("rest", future)
        except TinkerDeadlineError as expired:
            error.append(expired)

    with FakeClock() as clock:
        future, _ = bounded(make=Installed)
        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: future._condition._waiters)  # type: ignore[attr-defined]
        assert len(board.in_flight) == 1  # one call, however many wait for it
        clock.advance(10)
        waiting.join(5)
    with pytest.raises(TinkerDeadlineError) as again:
        wait_with_deadline("rest", future)
    for expired in (error[0], again.value):
        assert isinstance(expired, TinkerDeadlineError) and isinstance(expired.__cause__, Stuck)
        assert expired.facts() == expired.__cause__.facts()
    assert again.value.deadline_s == 10


def test_a_wait_does_not_hurry_a_call_that_has_its_own_clock() -> None:
    """A training call that waits for its predecessor is not cut by the limit of the kind, only by a budget."""
    lane = Lane()
    with FakeClock() as clock:
        first = BoundedFuture[Any](Call("optim_step", 600, "the default"), None, lane)
        second = BoundedFuture[Any](Call("optim_step", 600, "the default"), None, lane)
        clock.advance(599)  # the second one's clock has not started
        with episode(0.01, name="wall"), pytest.raises(BudgetExhaustedError) as spent:
            threading.Thread(target=clock.advance, args=(0.01,)).start()
            wait_with_deadline("optim_step", second)
        assert spent.value.owner == "wall" and not second.done()
        clock.advance(1)
        assert isinstance(first.exception(5), TinkerDeadlineError)
        clock.advance(600)
        assert isinstance(second.exception(5), TinkerDeadlineError)


def test_an_expiry_leaves_no_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the error is let go of, so are the future and its result, without a collection."""
    monkeypatch.setenv(env_var_for("sample"), "0.001")
    gc.disable()
    try:
        future: Future[Any] = Future()
        gone = weakref.ref(future)
        try:
            wait_with_deadline("sample", future)
        except TinkerDeadlineError:
            pass
        del future
        assert gone() is None
    finally:
        gc.enable()


# BoundedFuture: a Future in every way --------------------------------------------------------------------------------


def test_it_has_what_a_plain_future_has() -> None:
    """Every attribute that `Future.__init__` sets on this Python, with an equal value; so it may be left out."""
    future, _ = bounded()
    plain = vars(Future())
    ours = BoundedFuture[int](Call("rest", 10, ""), None)
    for name in set(plain) - {"_condition"}:
        assert getattr(ours, name) == plain[name]
    assert hasattr(ours, "_condition")
    assert isinstance(future, Future)


def test_a_result_and_an_error_pass_through() -> None:
    """With the very object, an own `TimeoutError` included, and the traceback."""
    future, theirs = bounded()
    theirs.set_result("value")
    assert future.result() == "value" and future.exception() is None
    for own in OWN_TIMEOUTS:
        future, theirs = bounded()
        theirs.set_exception(own)
        assert future.exception() is own
    assert board.tallies["rest"].completed == 1 and board.tallies["rest"].failed == len(OWN_TIMEOUTS)
    assert not board.in_flight


def test_it_works_with_the_standard_librarys_functions() -> None:
    """`wait`, `as_completed`, `add_done_callback`, `asyncio.wrap_future` and `gather`."""
    pairs = [bounded() for _ in range(4)]
    futures = [future for future, _ in pairs]
    called: list[Future[Any]] = []
    futures[0].add_done_callback(called.append)
    pairs[0][1].set_result(0)
    pairs[1][1].set_exception(ValueError())
    futures[2].cancel()
    done, pending = concurrent.futures.wait(futures, timeout=0)
    assert done == set(futures[:3]) and pending == {futures[3]}
    assert set(concurrent.futures.as_completed(futures[:3], timeout=0)) == set(futures[:3])
    first, _ = concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
    assert futures[1] in first
    assert called == [futures[0]]

    async def main() -> list[Any]:
        threading.Timer(0.005, pairs[3][1].set_result, (3,)).start()
        return await asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)

    results = asyncio.run(main())
    assert results[0] == 0 and results[3] == 3
    assert isinstance(results[1], ValueError) and isinstance(results[2], asyncio.CancelledError)


def test_a_persons_own_timeout_is_the_builtin_one() -> None:
    """It cancels nothing, ends nothing, and is no expiry."""
    future, theirs = bounded()
    for wait in (future.result, future.exception):
        with pytest.raises(TimeoutError) as raised:
            wait(timeout=0.001)
        assert type(raised.value) is TimeoutError
    assert not future.done() and not theirs.cancelled()
    theirs.set_result(1)
    assert future.result(timeout=0) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_it_expires_at_its_limit(kind: TinkerCallKind) -> None:
    """With the facts of the call; a training call underneath is not cancelled, a sampling call is."""
    with FakeClock() as clock:
        future, theirs = bounded(kind)
        clock.advance(10)
        error = future.exception(timeout=5)
        assert isinstance(error, TinkerDeadlineError)
        assert (error.kind, error.elapsed_s, error.deadline_s) == (kind, pytest.approx(10), 10)
        until(lambda: not timer._teller.busy())
        if kind in ("sample", "compute_logprobs"):
            until(theirs.cancelled)
        else:
            time.sleep(0.002)
            assert not theirs.done()
            theirs.set_result("late")
            assert error.late is not None and error.late.result(timeout=0) == "late"
    assert future.exception() is error
    assert board.tallies[kind].expired == 1 and not board.in_flight


def test_a_budget_ends_it_with_the_budgets_error() -> None:
    """The owner of the smallest is named."""
    with FakeClock() as clock, episode(5, name="wall"):
        future, _ = bounded()
        clock.advance(5)
        error = future.exception(timeout=5)
    assert isinstance(error, BudgetExhaustedError) and error.owner == "wall"


def test_a_call_without_a_future_yet_can_be_late() -> None:
    """It expires before it was submitted; what it is submitted as later is still collected from the error."""
    with FakeClock() as clock:
        future: BoundedFuture[int] = BoundedFuture(Call("connect", 10, ""), None)
        clock.advance(10)
        error = future.exception(timeout=5)
    assert isinstance(error, TinkerDeadlineError) and error.late is not None
    with pytest.raises(TimeoutError):
        error.late.result(timeout=0)
    waiting = ThreadPoolExecutor(1).submit(error.late.result, 5)
    theirs: Future[int] = Future()
    future.follow(theirs)
    with pytest.raises(TimeoutError):
        error.late.result(timeout=0)
    theirs.set_result(7)
    assert error.late.result(timeout=0) == 7 and waiting.result(5) == 7


@pytest.mark.parametrize("own", [None, *OWN_TIMEOUTS])
def test_what_a_method_returns_after_its_expiry_is_collected_from_the_error(own: BaseException | None) -> None:
    """A method without a future of its own: its late value, or what it raised late."""
    with FakeClock() as clock:
        future: BoundedFuture[int] = BoundedFuture(Call("connect", 10, ""), None)
        clock.advance(10)
        error = future.exception(timeout=5)
    assert isinstance(error, TinkerDeadlineError) and error.late is not None
    if own is None:
        future.finish(7)
        assert error.late.result(timeout=0) == 7
    else:
        future.fail(own)
        with pytest.raises(type(own)) as caught:
            error.late.result(timeout=0)
        assert caught.value is own


def test_the_error_of_an_expiry_is_one_object_that_tells_the_moment_of_the_expiry() -> None:
    """However late it is read, and from however many threads."""
    with FakeClock() as clock:
        future: BoundedFuture[int] = BoundedFuture(Call("connect", 10, ""), None)
        clock.advance(10)
        concurrent.futures.wait([future], timeout=5)
        clock.advance(100)
        with ThreadPoolExecutor(8) as pool:
            errors = list(pool.map(lambda _: future.exception(timeout=0), range(64)))
    assert len({id(error) for error in errors}) == 1
    assert isinstance(errors[0], TinkerDeadlineError) and errors[0].elapsed_s == 10


def test_a_sampling_call_that_expired_before_it_had_a_future_is_cancelled_when_it_has_one() -> None:
    """Nobody waits for it any more: it must not go on polling."""
    with FakeClock() as clock:
        futures = {kind: BoundedFuture[int](Call(kind, 10, ""), None) for kind in KINDS}
        clock.advance(10)
        for kind, future in futures.items():
            assert future.exception(timeout=5)
            theirs: Future[int] = Future()
            future.follow(theirs)
            assert theirs.cancelled() == (kind in ("sample", "compute_logprobs"))


# Cancelling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(TRAINING_KINDS))
def test_a_training_call_cannot_be_cancelled(kind: TinkerCallKind) -> None:
    """Not by a person, not by a task, not by `wait_for`: it goes on and delivers."""
    future, theirs = bounded(kind)
    assert future.cancel() is False

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(future), 0.001)
        task = asyncio.ensure_future(asyncio.wrap_future(future))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not future.cancelled() and not theirs.cancelled()
    theirs.set_result(1)
    assert future.result(timeout=0) == 1


@pytest.mark.parametrize("kind", sorted(set(KINDS) - TRAINING_KINDS))
def test_any_other_call_is_cancelled_with_what_it_follows(kind: TinkerCallKind) -> None:
    """However often; waiters are told once, and the board too."""
    future, theirs = bounded(kind)
    called: list[bool] = []
    future.add_done_callback(lambda done: called.append(done.cancel()))
    assert [future.cancel(), future.cancel(), future.cancel()] == [True] * 3
    assert future.cancelled() and theirs.cancelled() and called == [True]
    assert concurrent.futures.wait([future], timeout=0).done == {future}
    with pytest.raises(CancelledError):
        future.result()
    assert board.tallies[kind].cancelled == 1 and not board.in_flight


def test_a_finished_call_cannot_be_cancelled() -> None:
    """As with a plain future."""
    future, theirs = bounded()
    theirs.set_result(1)
    assert future.cancel() is False and future.result() == 1


def test_a_call_that_the_sdk_cancels_is_cancelled() -> None:
    """A training call too: nothing is left to wait for."""
    for kind in ("sample", "optim_step"):
        future, theirs = bounded(kind)  # type: ignore[arg-type]
        theirs.cancel()
        assert future.cancelled()
        assert board.tallies[kind].cancelled == 1  # type: ignore[index]


# Races --------------------------------------------------------------------------------------------------------------


def test_expiry_and_completion_have_one_winner() -> None:
    """A thousand races: one outcome, told once, the board agrees, and the other side's answer is not lost."""
    won = {"result": 0, "expired": 0}
    barrier = threading.Barrier(2)
    pairs: list[tuple[BoundedFuture[Any], Future[Any]]] = []
    for _ in range(1000):
        future: BoundedFuture[Any] = BoundedFuture(Call("rest", 1000, ""), None)
        theirs: Future[Any] = Future()
        future.follow(theirs)
        pairs.append((future, theirs))

    def complete() -> None:
        for _, theirs in pairs:
            barrier.wait()
            theirs.set_result("result")

    thread = threading.Thread(target=complete)
    thread.start()
    for future, theirs in pairs:
        told: list[Any] = []
        future.add_done_callback(told.append)
        barrier.wait()
        future.expire()
        theirs.result(timeout=5)
        until(future.done)
        error = future.exception()
        won["result" if error is None else "expired"] += 1
        if error is not None:
            assert isinstance(error, TinkerDeadlineError) and error.late.result(timeout=0) == "result"  # type: ignore[union-attr]
        assert told == [future]
    thread.join()
    tally = board.tallies["rest"]
    until(lambda: tally.completed + tally.expired == 1000)
    assert (tally.completed, tally.expired) == (won["result"], won["expired"])
    assert not board.in_flight


def test_cancel_and_completion_have_one_winner() -> None:
    """A thousand races: cancelled, or the result, never an error from the machinery."""
    barrier = threading.Barrier(2)
    pairs = [bounded() for _ in range(1000)]

    def complete() -> None:
        for _, theirs in pairs:
            barrier.wait()
            try:
                theirs.set_result(1)
            except InvalidStateError:
                pass

    thread = threading.Thread(target=complete)
    thread.start()
    for future, _ in pairs:
        barrier.wait()
        future.cancel()
    thread.join()
    for future, _ in pairs:
        assert future.cancelled() or future.result(timeout=5) == 1
    tally = board.tallies["rest"]
    assert tally.completed + tally.cancelled == 1000 and not board.in_flight


# Leaks --------------------------------------------------------------------------------------------------------------


def test_a_completed_call_is_let_go_of_at_once() -> None:
    """No alarm, no board, no cycle with what it followed keeps a result alive."""

    class Result:
        pass

    gc.disable()
    try:
        future, theirs = bounded()
        result = Result()
        gone = [weakref.ref(future), weakref.ref(theirs), weakref.ref(result)]
        theirs.set_result(result)
        assert future.result() is result
        del future, theirs, result
        assert [ref() for ref in gone] == [None] * 3
    finally:
        gc.enable()


def test_ten_thousand_calls_leave_nothing() -> None:
    """No thread, no pending call, no alarm that still has its target."""
    alarms, threads = len(timer), threading.active_count()
    for _ in range(10_000):
        future, theirs = bounded()
        theirs.set_result(1)
        future.result(timeout=0)
    assert len(timer) == alarms
    assert len(timer._heap) < 5000
    assert threading.active_count() <= threads + 1
    assert not board.in_flight and board.tallies["rest"].completed == 10_000


def test_an_alarm_that_is_set_while_its_call_ends_is_taken_back() -> None:
    """The clock of a queued call may start on another thread in the very moment in which it ends."""
    alarms = len(timer)
    future, theirs = bounded()
    theirs.set_result(1)
    future.start_clock()
    assert len(timer) == alarms
    pairs = [bounded() for _ in range(500)]
    barrier = threading.Barrier(2)

    def start() -> None:
        for future, _ in pairs:
            barrier.wait()
            future.start_clock()

    thread = threading.Thread(target=start)
    thread.start()
    for _, theirs in pairs:
        barrier.wait()
        theirs.set_result(1)
    thread.join()
    assert len(timer) == alarms


def test_a_pending_call_is_small() -> None:
    """What a call in flight takes beside its result: its future, its record, its alarm."""
    future, _ = bounded()
    alarm = future._alarm
    assert alarm is not None
    sizes = [future, vars(future), future._call, future._waiters, future._done_callbacks, alarm, *alarm[:2]]
    assert sum(map(sys.getsizeof, sizes)) + sys.getsizeof(future._condition) < 1500


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_future_of_the_parent_fails_at_once_in_a_forked_child() -> None:
    """Whatever would complete it stayed with the parent; one that is finished still has its result."""
    pending, _ = bounded(limit_s=30)
    finished, theirs = bounded()
    theirs.set_result("kept")
    child = os.fork()
    if child == 0:
        try:
            wait_with_deadline("rest", pending)
        except ForkedProcessError:
            os._exit(0 if finished.result() == "kept" else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pending.cancel()
