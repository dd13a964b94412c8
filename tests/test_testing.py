"""The fakes for other people's tests do what they promise."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tinker_deadlines import (
    BudgetExhaustedError,
    TinkerDeadlineError,
    await_with_deadline,
    call_with_deadline,
    clock,
    episode,
    wait_with_deadline,
)
from tinker_deadlines.testing import BareFuture, FakeClock, FakeFuture


def test_a_clock_stands_still_until_it_is_moved() -> None:
    """Real time makes no difference to a fake clock; `advance` does."""
    fake = FakeClock(start=100)
    time.sleep(0.002)
    assert fake.monotonic() == 100
    fake.advance(0.5)
    assert fake.monotonic() == 100.5


def test_a_clock_starts_at_the_machines_instant() -> None:
    """What was set by the machine's clock keeps its order under a fake one."""
    before = time.monotonic()
    assert before <= FakeClock().monotonic() <= time.monotonic()


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_a_clock_never_goes_back(seconds: float) -> None:
    """A monotonic clock refuses to be moved by anything but a finite, non-negative number."""
    with pytest.raises(ValueError, match="monotonic"):
        FakeClock().advance(seconds)


def test_the_block_ends_and_the_machines_clock_is_back() -> None:
    """The context manager gives the clock back, after an exception too."""
    with pytest.raises(ZeroDivisionError), FakeClock(start=1):
        clock.monotonic() / (clock.monotonic() - 1)
    assert clock.monotonic is time.monotonic


def test_many_threads_move_one_clock() -> None:
    """No advance is lost when threads race."""
    fake = FakeClock(start=0)

    def advance() -> None:
        for _ in range(1000):
            fake.advance(1)

    threads = [threading.Thread(target=advance) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fake.monotonic() == 4000


def in_thread(call: object) -> tuple[threading.Thread, list[BaseException]]:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            call()  # type: ignore[operator]
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, caught


def test_a_wait_ends_when_the_fake_time_passes_its_limit() -> None:
    """`advance` on one thread gives up a future that another waits on, in a few real milliseconds."""
    with FakeClock() as fake:
        future = FakeFuture[None]()
        thread, caught = in_thread(lambda: wait_with_deadline("sample", future))
        while not future.waits:
            time.sleep(0.001)
        fake.advance(299)
        thread.join(0.01)
        assert thread.is_alive()
        fake.advance(1)
        started = time.monotonic()
        thread.join(5)
        assert time.monotonic() - started < 1
    assert isinstance(caught[0], TinkerDeadlineError)
    assert caught[0].elapsed_s == pytest.approx(300)


def test_a_blocking_call_ends_when_the_fake_time_passes_its_limit() -> None:
    """`advance` gives up a callable that blocks."""
    entered, gate = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        gate.wait()

    with FakeClock() as fake:
        thread, caught = in_thread(lambda: call_with_deadline("connect", block))
        assert entered.wait(5)
        fake.advance(60)
        thread.join(5)
        gate.set()
    assert isinstance(caught[0], TinkerDeadlineError)


async def _advance_soon(fake: FakeClock, seconds: float) -> None:
    await asyncio.sleep(0.001)
    fake.advance(seconds)


def test_an_await_ends_when_the_fake_time_passes_its_limit() -> None:
    """`advance` gives up an awaitable on an event loop, coroutine and shielded future alike."""

    async def main() -> None:
        for kind, limit_s in (("sample", 300), ("optim_step", 600)):
            move = asyncio.ensure_future(_advance_soon(fake, limit_s))
            with pytest.raises(TinkerDeadlineError):
                await await_with_deadline(kind, asyncio.sleep(3600))  # type: ignore[arg-type]
            await move

    with FakeClock() as fake:
        asyncio.run(main())


def test_an_await_that_ends_in_time_leaves_nothing_on_the_loop() -> None:
    """A handle of the fake clock that was cancelled does not look at the time for ever."""

    async def main() -> None:
        assert await await_with_deadline("sample", asyncio.sleep(0, "done")) == "done"
        await asyncio.sleep(0.005)
        assert asyncio.get_running_loop()._scheduled == []  # type: ignore[attr-defined]

    with FakeClock():
        asyncio.run(main())


def test_a_clock_that_moves_by_itself_needs_no_second_thread() -> None:
    """Each of the three functions gives up what never finishes, at once, and the time has moved to its limit."""
    gate = threading.Event()
    with FakeClock(start=0, moves_by_itself=True) as fake:
        with pytest.raises(TinkerDeadlineError):
            wait_with_deadline("sample", FakeFuture())
        assert fake.monotonic() == pytest.approx(300)
        with pytest.raises(TinkerDeadlineError):
            call_with_deadline("connect", gate.wait)
        assert fake.monotonic() == pytest.approx(360)
        with pytest.raises(TinkerDeadlineError):
            asyncio.run(await_with_deadline("rest", asyncio.sleep(3600)))  # type: ignore[arg-type]
        assert fake.monotonic() == pytest.approx(420)
        with episode(5, name="short"), pytest.raises(BudgetExhaustedError, match="short"):
            wait_with_deadline("sample", FakeFuture())
        assert fake.monotonic() == pytest.approx(425)
    gate.set()


def test_a_future_finishes_after_fake_seconds() -> None:
    """`after_s` counts on the library's clock: before it the future is pending, from it on it has its result."""
    with FakeClock() as fake:
        future = FakeFuture("late", after_s=10)
        assert not future.done()
        with pytest.raises(TimeoutError):
            future.result(timeout=0)
        fake.advance(10)
        assert future.done() and future.result(timeout=0) == "late"


def test_a_future_finishes_when_it_is_told() -> None:
    """`finish` ends a future that would never have ended, and wakes who waits on it."""
    future = FakeFuture("told")
    timer = threading.Timer(0.005, future.finish)
    timer.start()
    assert future.result(timeout=5) == "told"


def test_a_future_raises_the_error_it_was_given() -> None:
    """A `TimeoutError` of its own, say, as soon as it finishes."""
    error = TimeoutError("mine")
    with pytest.raises(TimeoutError) as caught:
        FakeFuture(error=error, after_s=0).result()
    assert caught.value is error


def test_a_bare_future_cannot_be_asked() -> None:
    """It has `result(timeout)` and nothing else that a wait could ask."""
    assert not hasattr(BareFuture(), "done")


def test_a_future_may_finish_in_the_moment_the_wait_gives_up() -> None:
    """The wait says `TimeoutError`, and the future is done right after it."""
    with FakeClock(moves_by_itself=True):
        future = FakeFuture("just so", finishes_as_wait_ends=True)
        with pytest.raises(TimeoutError):
            future.result(timeout=1)
        assert future.done() and future.result() == "just so"
