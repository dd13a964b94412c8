"""One thread and one heap for all pending calls."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinker_deadlines import budgets, episode
from tinker_deadlines.testing import FakeClock
from tinker_deadlines.waiting import timer as module
from tinker_deadlines.waiting.timer import Alarm, Timer


class Target:
    def __init__(self, told: list[Any] | None = None, name: Any = None) -> None:
        self.told: list[Any] = told if told is not None else []
        self.name = name
        self.cleaned = threading.Event()
        self.thread: threading.Thread | None = None

    def expire(self) -> None:
        self.thread = threading.current_thread()
        self.told.append(self.name)

    def expired(self) -> None:
        self.cleaned.set()


class Blocks(Target):
    def __init__(self) -> None:
        super().__init__()
        self.begun, self.gate = threading.Event(), threading.Event()

    def expire(self) -> None:
        self.begun.set()
        self.gate.wait(20)


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock(start=0) as fake:
        yield fake


def test_an_alarm_goes_off_at_its_instant_and_not_before(clock: FakeClock) -> None:
    """To the last microsecond before it nothing happens; at it, everything."""
    timer, target = Timer(), Target()
    timer.set(5, target)
    clock.advance(5 - 1e-6)
    assert not target.cleaned.wait(0.01)
    clock.advance(2e-6)
    assert target.cleaned.wait(5)
    assert target.told == [None] and len(timer) == 0


steps = st.lists(
    st.tuples(st.just("set"), st.integers(0, 30))
    | st.tuples(st.just("take back"), st.integers(0, 30))
    | st.tuples(st.just("wait"), st.integers(0, 10)),
    max_size=40,
)


@given(steps)
@settings(max_examples=60)
def test_the_heap_is_what_a_list_would_be(steps: list[tuple[str, int]]) -> None:
    """Whatever is set and taken back when: what is due comes in the order of its instants, once, and nothing else."""
    timer, now, told = Timer(), 0.0, []
    alarms: list[Alarm] = []
    model: dict[int, float] = {}
    timer._wakes_at = float("-inf")  # no thread: this test pops by itself
    for step, number in steps:
        if step == "set":
            model[len(alarms)] = now + number
            alarms.append(timer.set(now + number, Target(told, len(alarms))))
        elif step == "take back" and alarms:
            timer.take_back(alarms[number % len(alarms)])
            model.pop(number % len(alarms), None)
            if number % 7 == 0:
                timer._tidy_up()
        else:
            now += number
            due = sorted((when, name) for name, when in model.items() if when <= now)
            assert [target.name for target in timer._pop_due(now)] == [name for _, name in due]
            for _, name in due:
                del model[name]
        assert len(timer) == len(model)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.data())
@settings(max_examples=20, deadline=None)
def test_what_is_due_is_told_in_order(instants: list[int], data: st.DataObject) -> None:
    """By the thread too: after each advance, those and only those whose instant has come, the earliest first."""
    timer, told = Timer(), list[int]()
    with FakeClock(start=0) as clock:
        alarms = [timer.set(when, Target(told, number)) for number, when in enumerate(instants)]
        taken = data.draw(st.sets(st.integers(0, len(instants) - 1)))
        for number in taken:
            timer.take_back(alarms[number])
        for now in (7, 14, 21):
            clock.advance(7)
            due = [
                number
                for _, number in sorted((when, n) for n, when in enumerate(instants) if n not in taken and when <= now)
            ]
            until(lambda: len(told) >= len(due))  # noqa: B023
            assert sorted(told) == sorted(due)
            assert [instants[number] for number in told] == sorted(instants[number] for number in told)
        assert len(timer) == 0


def test_an_earlier_alarm_wakes_the_thread(clock: FakeClock) -> None:
    """One that is set while the thread sleeps until a later one is not missed; nor is one that is set meanwhile."""
    timer = Timer()
    targets = {when: Target() for when in (1000, 100, 10, 1)}
    for when, target in targets.items():
        timer.set(when, target)
        time.sleep(0.002)
    for when in sorted(targets):
        clock.advance(when - clock.monotonic())
        assert targets[when].cleaned.wait(5)
        assert [target.cleaned.is_set() for target in targets.values()].count(True) == sorted(targets).index(when) + 1


def test_a_real_alarm_is_punctual() -> None:
    """By the machine's clock: not early, and late by less than 50 ms."""
    timer, late = Timer(), []

    class Measures(Target):
        def expire(self) -> None:
            late.append(time.monotonic() - self.name)

    for number in range(200):
        when = time.monotonic() + 0.001 + number % 40 / 1000
        timer.set(when, Measures(name=when))
    until(lambda: len(late) == 200)
    assert min(late) >= 0 and sorted(late)[197] < 0.05


def test_another_clock_wakes_the_thread() -> None:
    """A thread that sleeps by the machine's clock notices a fake one, and the machine's again afterwards."""
    timer, first, second = Timer(), Target(), Target()
    timer.set(time.monotonic() + 3600, first)
    time.sleep(0.005)
    with FakeClock() as clock:
        clock.advance(3601)
        timer.wake()  # what `clock.use` does for the library's own
        assert first.cleaned.wait(5)
    timer.wake()
    timer.set(time.monotonic() + 0.005, second)
    assert second.cleaned.wait(5)


def test_the_librarys_timer_is_woken_by_another_clock() -> None:
    """Nobody has to do it by hand."""
    target = Target()
    module.timer.set(time.monotonic() + 3600, target)
    time.sleep(0.005)
    with FakeClock() as clock:
        clock.advance(3601)
        assert target.cleaned.wait(5)


# What is let go of --------------------------------------------------------------------------------------------------


def test_an_alarm_taken_back_lets_go_of_its_target() -> None:
    """At once, long before its instant; once more is nothing."""
    timer, target = Timer(), Target()
    gone = weakref.ref(target)
    alarm = timer.set(time.monotonic() + 3600, target)
    gc.disable()
    try:
        del target
        assert gone() is not None and len(timer) == 1
        timer.take_back(alarm)
        timer.take_back(alarm)
        assert gone() is None and len(timer) == 0
    finally:
        gc.enable()


def test_an_alarm_that_went_off_lets_go_of_its_target(clock: FakeClock) -> None:
    """The thread that told it does not keep the last one until the next."""
    timer, target = Timer(), Target()
    cleaned, gone = target.cleaned, weakref.ref(target)
    alarm = timer.set(1, target)
    del target
    clock.advance(1)
    assert cleaned.wait(5)
    until(lambda: gone() is None)
    assert alarm[2] is None


def test_alarms_taken_back_are_tidied_up() -> None:
    """A hundred thousand calls that ended in time leave a heap of a few thousand, not of a hundred thousand."""
    timer = Timer()
    kept = timer.set(time.monotonic() + 3600, Target())
    for _ in range(100_000):
        timer.take_back(timer.set(time.monotonic() + 3600, Target))
    assert len(timer._heap) < 5000 and len(timer) == 1
    timer.take_back(kept)


def test_threads_set_and_take_back_without_losing_any(clock: FakeClock) -> None:
    """Four threads, a thousand alarms: those not taken back go off, once each, the others never."""
    timer, told = Timer(), list[int]()

    def work(start: int) -> None:
        for number in range(start, 1000, 4):
            alarm = timer.set(1, Target(told, number))
            if number % 3:
                timer.take_back(alarm)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.advance(1)
    until(lambda: len(told) >= 334)
    time.sleep(0.005)
    assert sorted(told) == list(range(0, 1000, 3))


# Who tells ----------------------------------------------------------------------------------------------------------


def test_targets_are_never_told_on_the_timers_thread(clock: FakeClock) -> None:
    """Nor on the caller's: on a daemon of its own, outside of any budget."""
    timer, target, found = Timer(), Target(), []
    target.expired = lambda: (found.append(budgets.current()), target.cleaned.set())  # type: ignore[method-assign,return-value,func-returns-value]
    with episode(100):
        timer.set(1, target)
        clock.advance(1)
        assert target.cleaned.wait(5)
    assert target.thread is not None and target.thread.name == "tinker-deadlines-expiry" and target.thread.daemon
    assert timer._thread is not None and timer._thread is not target.thread and timer._thread.daemon
    assert found == [None]


def test_one_that_blocks_delays_nobody(clock: FakeClock) -> None:
    """Those due with it, those due later, and the cleaning up of those told before: another thread goes on."""
    timer = Timer()
    before, stuck, after, later = Target(), Blocks(), Target(), Target()
    timer.set(1, before)
    timer.set(1, stuck)
    timer.set(1, after)
    timer.set(2, later)
    clock.advance(1)
    assert after.cleaned.wait(5) and before.cleaned.wait(5)
    again = Blocks()
    timer.set(1, again)
    assert again.begun.wait(5)
    clock.advance(1)
    assert later.cleaned.wait(5)
    for target in (stuck, again):
        assert not target.cleaned.is_set()
        target.gate.set()
        assert target.cleaned.wait(5)


def test_one_that_raises_disturbs_nobody(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the rest is told."""

    class Raises(Target):
        def expire(self) -> None:
            raise ValueError("mine")

    timer, last = Timer(), Target()
    timer.set(1, Raises())
    timer.set(2, last)
    clock.advance(2)
    assert last.cleaned.wait(5)
    assert "an expiry could not be delivered" in caplog.text


def test_one_thread_tells_everybody(clock: FakeClock) -> None:
    """A thousand due at once start no thousand threads."""
    timer = Timer()
    targets = [Target() for _ in range(1000)]
    threads = threading.active_count()
    for target in targets:
        timer.set(1, target)
    clock.advance(1)
    until(lambda: all(target.cleaned.is_set() for target in targets))
    assert threading.active_count() <= threads + 3


def test_tellers_leave_when_there_is_nothing_to_tell(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while without expiries their thread ends; the next expiry gets a new one, and none is lost."""
    monkeypatch.setattr(module, "WORKER_IDLE_S", 0.0005)
    timer = Timer()
    for number in range(1, 60):
        target = Target()
        timer.set(number, target)
        clock.advance(1)
        assert target.cleaned.wait(5)
    assert target.thread is not None
    target.thread.join(5)
    assert timer._teller._threads == 0


def test_a_thread_that_cannot_start_is_tried_again(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the platform has no further thread, alarms set meanwhile go off as soon as it has one."""
    timer, target, real = Timer(), Target(), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            timer.set(1, Target())
    timer.set(1, Target())
    with monkeypatch.context() as patch:

        def refuse_tellers(thread: threading.Thread) -> None:
            real(thread) if thread.name != "tinker-deadlines-expiry" else refuse(thread)

        patch.setattr(threading.Thread, "start", refuse_tellers)
        timer.set(1, target)
        clock.advance(1)
        time.sleep(0.01)
        assert not target.told
    assert target.cleaned.wait(5)


# Signals and forks --------------------------------------------------------------------------------------------------


def test_the_timer_is_reentrant() -> None:
    """A signal handler that makes a call while its thread is setting an alarm does not wait for itself."""
    timer, target = Timer(), Target()
    with timer._condition:
        timer.set(time.monotonic(), target)
    assert target.cleaned.wait(5)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_signals_may_set_alarms_at_any_moment() -> None:
    """Thousands of calls interrupted by a handler that makes calls itself: no deadlock, nothing lost."""
    timer, told = Timer(), list[int]()
    handled = 0

    def handle(*_: object) -> None:
        nonlocal handled
        handled += 1
        timer.set(time.monotonic(), Target(told, "handler"))

    previous = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for _ in range(3000):
            timer.take_back(timer.set(time.monotonic() + 3600, Target()))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    until(lambda: len(told) == handled)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_afresh() -> None:
    """Its parent's alarms and thread are not there, and alarms of its own go off."""
    module.timer.set(time.monotonic() + 3600, Target())
    child = os.fork()
    if child == 0:
        target = Target()
        afresh = len(module.timer) == 0 and module.timer._thread is None
        module.timer.set(time.monotonic() + 0.001, target)
        os._exit(0 if afresh and target.cleaned.wait(5) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
