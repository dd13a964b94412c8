"""The only module that reads time: the machine's clock, and the exchange of it for another."""

from __future__ import annotations

import threading
import time

import pytest

from tinker_deadlines import clock
from tinker_deadlines.testing import FakeClock


def test_the_machines_clock_is_the_monotonic_one() -> None:
    """Unless a test says otherwise, time is what `time.monotonic` says."""
    assert clock.monotonic is time.monotonic


def test_another_clock_is_read_until_none_is_asked_for() -> None:
    """`use` exchanges every function of the module, and `use(None)` brings all of them back."""
    before = (clock.monotonic, clock.wait, clock.acquire, clock.call_later)
    clock.use(FakeClock(start=5))
    during = (clock.monotonic, clock.wait, clock.acquire, clock.call_later)
    assert clock.monotonic() == 5
    clock.use(None)
    assert (clock.monotonic, clock.wait, clock.acquire, clock.call_later) == before
    assert not set(before) & set(during)


def test_whoever_waits_is_told_of_another_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was registered with `on_change` is called at each exchange, once."""
    told: list[float] = []
    monkeypatch.setattr(clock, "_on_change", [])
    clock.on_change(lambda: told.append(clock.monotonic()))
    with FakeClock(start=7):
        assert told == [7]
    assert len(told) == 2


@pytest.mark.parametrize("timeout_s", [-1.0, 0.0, 1e300, float("inf")])
def test_no_number_is_too_long_or_too_short_to_wait_for(timeout_s: float) -> None:
    """A free lock is got whatever the timeout, negative and beyond the platform's longest included."""
    assert clock.acquire(threading.Lock(), timeout_s)


def test_a_held_lock_is_not_got() -> None:
    """The wait for a lock that stays held ends with false."""
    lock = threading.Lock()
    lock.acquire()
    assert not clock.acquire(lock, 0.001)
    assert not clock.acquire(lock, -5)


@pytest.mark.parametrize("timeout_s", [1e300, None])
def test_a_wait_of_any_length_ends_when_it_is_notified(timeout_s: float | None) -> None:
    """A condition that is notified wakes who waits for ever, or beyond the platform's longest wait."""
    condition = threading.Condition()
    ready = threading.Event()
    woken = threading.Event()

    def wait() -> None:
        with condition:
            ready.set()
            clock.wait(condition, timeout_s)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    assert ready.wait(5)
    with condition:
        condition.notify()
    assert woken.wait(5)
