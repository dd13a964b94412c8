"""A blocking callable runs on a worker, and its caller waits at most its limit."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import logging
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tinker_deadlines import (
    AbandonedCallsError,
    BudgetExhaustedError,
    TinkerDeadlineError,
    call_with_deadline,
    env_var_for,
    episode,
)
from tinker_deadlines.calls import KINDS, TinkerCallKind, board
from tinker_deadlines.testing import FakeClock
from tinker_deadlines.waiting import blocking
from tinker_deadlines.waiting.workers import Workers, workers


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()
    until(lambda: workers.abandoned == 0)


def test_a_callable_returns_its_value_from_another_thread() -> None:
    """`None` and exceptions as values included."""
    for value in (1, None, ValueError("as a value"), [1]):
        assert call_with_deadline("rest", lambda: value) is value  # noqa: B023
    assert call_with_deadline("rest", threading.current_thread) is not threading.current_thread()
    assert board.tallies["rest"].completed == 5 and not board.in_flight


@pytest.mark.parametrize(
    "own",
    [
        ValueError("x"),
        TimeoutError("mine"),
        concurrent.futures.TimeoutError("concurrent.futures' is the same class"),
        KeyboardInterrupt("mine"),
        SystemExit(3),
        asyncio.CancelledError(),
        GeneratorExit(),
        StopIteration(4),
        ExceptionGroup("both", [ValueError()]),
    ],
)
def test_whatever_it_raises_is_raised_here(own: BaseException) -> None:
    """The very object, with the traceback of where it was raised."""

    def deep() -> None:
        raise own

    with pytest.raises(type(own)) as raised:
        call_with_deadline("connect", deep)
    assert raised.value is own
    names = [frame.name for frame in traceback.extract_tb(own.__traceback__)]
    assert "call_with_deadline" in names and names[-1] == "deep"
    assert board.tallies["connect"].failed == 1 and not board.in_flight


def test_the_callable_sees_its_callers_context() -> None:
    """Context variables are readable; what it sets stays its own."""
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("caller's")

    def look() -> str:
        found = variable.get()
        variable.set("callable's")
        return found

    assert call_with_deadline("rest", look) == "caller's"
    assert variable.get() == "caller's"


@pytest.mark.parametrize("kind", KINDS)
def test_a_callable_that_blocks_expires(kind: TinkerCallKind, gate: threading.Event) -> None:
    """At the limit of its kind, with its facts, and its thread counts as abandoned."""
    with FakeClock(moves_by_itself=True), pytest.raises(TinkerDeadlineError) as expired:
        call_with_deadline(kind, gate.wait)
    assert expired.value.elapsed_s == pytest.approx(expired.value.deadline_s)
    assert expired.value.kind == kind
    assert workers.abandoned == 1
    assert board.tallies[kind].expired == 1 and not board.in_flight


def test_a_late_result_can_be_collected(gate: threading.Event) -> None:
    """By any number of people, any number of times; before it is there, `TimeoutError`."""
    with FakeClock(moves_by_itself=True), pytest.raises(TinkerDeadlineError) as expired:
        call_with_deadline("connect", lambda: gate.wait() and "late")
    late = expired.value.late
    assert late is not None
    for timeout in (0, -1, 0.001):
        with pytest.raises(TimeoutError, match="has not ended"):
            late.result(timeout=timeout)
    gate.set()
    assert [late.result(timeout=5), late.result(), late.result(timeout=1e300), late.result(0)] == ["late"] * 4


def test_a_late_error_can_be_collected(gate: threading.Event) -> None:
    """What the callable raised late is raised where its result is asked for."""

    def fail() -> None:
        gate.wait()
        raise ValueError("late")

    with FakeClock(moves_by_itself=True), pytest.raises(TinkerDeadlineError) as expired:
        call_with_deadline("connect", fail)
    gate.set()
    with pytest.raises(ValueError, match="late"):
        expired.value.late.result(timeout=5)  # type: ignore[union-attr]


def test_a_budget_cuts_a_callable(gate: threading.Event) -> None:
    """With the name of its owner."""
    with FakeClock(moves_by_itself=True), episode(5, name="wall"), pytest.raises(BudgetExhaustedError, match="'wall'"):
        call_with_deadline("connect", gate.wait)
    assert board.tallies["connect"].out_of_budget == 1 and not board.in_flight


def test_past_the_most_abandoned_a_call_is_refused_and_later_served_again(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refusals are counted as such and do not add to the abandoned ones."""
    monkeypatch.setattr(blocking, "workers", pool := Workers(most_abandoned=2))
    with FakeClock(moves_by_itself=True):
        for _ in range(2):
            with pytest.raises(TinkerDeadlineError):
                call_with_deadline("connect", gate.wait)
    for _ in range(5):
        with pytest.raises(AbandonedCallsError, match="2 blocking Tinker calls"):
            call_with_deadline("connect", gate.wait)
    assert pool.abandoned == 2 and board.tallies["connect"].refused == 5
    gate.set()
    until(lambda: pool.abandoned == 0)
    assert call_with_deadline("connect", lambda: "served") == "served"
    assert not board.in_flight


def test_a_call_that_never_got_a_worker_was_not_sent(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error says that it is safe to try again, where one that ran says that it is not known."""
    monkeypatch.setattr(blocking, "workers", Workers(most=1))
    begun = threading.Event()
    running = threading.Thread(target=lambda: call_with_deadline("connect", lambda: begun.set() or gate.wait()))
    running.start()
    assert begun.wait(5)
    time.sleep(0.005)
    with FakeClock(moves_by_itself=True), pytest.raises(TinkerDeadlineError) as expired:
        call_with_deadline("connect", lambda: 1)
    assert expired.value.submission == "not sent"
    gate.set()
    running.join()


def test_calls_may_be_nested() -> None:
    """A callable that makes a bounded call gets another worker."""

    def nested(depth: int) -> int:
        return call_with_deadline("rest", lambda: nested(depth - 1)) + 1 if depth else 0

    assert nested(10) == 10


def test_no_thread_is_started_in_the_steady_state() -> None:
    """Ten thousand calls one after the other leave no thread, no call, no alarm."""
    call_with_deadline("rest", int)
    threads = threading.active_count()
    for _ in range(10_000):
        call_with_deadline("rest", int)
    assert threading.active_count() <= threads
    assert not board.in_flight


def test_expiry_and_return_have_one_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand races around the limit: a result, or an expiry whose late result can still be collected."""
    monkeypatch.setenv(env_var_for("rest"), "0.001")
    results = expiries = 0
    for number in range(1000):
        pause_s = 0.0006 + (number % 10) * 0.0001
        try:
            assert call_with_deadline("rest", lambda: time.sleep(pause_s) or "done") == "done"  # noqa: B023
            results += 1
        except TinkerDeadlineError as expired:
            assert expired.late is not None and expired.late.result(timeout=5) == "done"
            expiries += 1
    assert results + expiries == 1000
    until(lambda: workers.abandoned == 0)
    tally = board.tallies["rest"]
    assert (tally.completed, tally.expired) == (results, expiries)


def test_an_end_between_expiry_and_its_error_keeps_the_late_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The callable returns while the error is being made: nobody takes its result for himself."""
    gate, real = threading.Event(), blocking._expiry_of

    def end_meanwhile(call: Any, budget: Any, box: Any) -> BaseException:
        gate.set()
        assert box.result(timeout=5) is True
        return real(call, budget, box)

    monkeypatch.setattr(blocking, "_expiry_of", end_meanwhile)
    with FakeClock(moves_by_itself=True), pytest.raises(TinkerDeadlineError) as expired:
        call_with_deadline("rest", gate.wait)
    assert expired.value.late is not None and expired.value.late.result(timeout=1) is True
    until(lambda: workers.abandoned == 0)


def test_ctrl_c_ends_the_call_for_its_caller(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """What interrupts the wait comes through; the call is cancelled, its thread abandoned."""

    def interrupt(lock: Any, timeout_s: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(blocking.clock, "acquire", interrupt)
    with pytest.raises(KeyboardInterrupt):
        call_with_deadline("connect", gate.wait)
    assert board.tallies["connect"].cancelled == 1 and not board.in_flight
    assert workers.abandoned == 1


def test_a_call_leaves_no_cycle() -> None:
    """Neither a result nor an error, nor what the callable held, waits for a collection."""

    class Thing:
        pass

    gc.disable()
    try:
        for fails in (False, True):
            thing = Thing()

            def work(held: Any = thing, fails: bool = fails) -> None:
                if fails:
                    raise ValueError

            try:
                call_with_deadline("rest", work)
            except ValueError:
                pass
            gone = weakref.ref(thing)
            del thing, work
            until(lambda: gone() is None)  # noqa: B023
    finally:
        gc.enable()


# Clients that arrive late -------------------------------------------------------------------------------------------


class Client:
    """What the SDK's service client looks like from here."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.closed: list[tuple[Any, ...]] = []
        self.gate = gate
        self.thread: threading.Thread | None = None

    def close(self, *args: Any) -> None:
        self.thread = threading.current_thread()
        if self.gate is not None:
            self.gate.wait(20)
        self.closed.append(args)


class SDKClient(Client):
    __module__ = "tinker.lib.public_interfaces.service_client"


def late(make: Callable[[], Any]) -> None:
    gate = threading.Event()
    with FakeClock(moves_by_itself=True), pytest.raises(TinkerDeadlineError):
        call_with_deadline("connect", lambda: (gate.wait(), make())[1])
    gate.set()
    until(lambda: workers.abandoned == 0)


def test_a_client_that_arrives_late_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """Once, and it is said."""
    client = SDKClient()
    with caplog.at_level(logging.WARNING):
        late(lambda: client)
        until(lambda: client.closed)
        until(lambda: "a SDKClient arrived after its caller had given up and was closed" in caplog.text)
    assert len(client.closed) == 1


def test_nothing_but_the_sdks_own_is_closed() -> None:
    """A file or a socket of a person is theirs."""
    client = Client()
    late(lambda: client)
    time.sleep(0.005)
    assert client.closed == []


def test_a_client_in_time_is_not_closed() -> None:
    """It belongs to its caller."""
    client = SDKClient()
    assert call_with_deadline("connect", lambda: client) is client
    time.sleep(0.005)
    assert client.closed == []


def test_closing_holds_up_nobody(gate: threading.Event) -> None:
    """A `close` that blocks does so on a thread of its own: the worker serves the next call at once."""
    client = SDKClient(gate)
    late(lambda: client)
    until(lambda: client.thread)
    for _ in range(5):
        assert call_with_deadline("rest", lambda: 1) == 1
    assert client.thread is not None and client.thread.name == "tinker-deadlines-close"
