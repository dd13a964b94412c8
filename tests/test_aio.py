"""An awaitable is bounded by a handle on its own loop, and a training call is never cancelled."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any

import pytest

from tinker_deadlines import (
    BudgetExhaustedError,
    TinkerDeadlineError,
    await_with_deadline,
    budgets,
    env_var_for,
    episode,
)
from tinker_deadlines.calls import KINDS, TRAINING_KINDS, Call, TinkerCallKind, board
from tinker_deadlines.errors import DeadlineExpiry
from tinker_deadlines.testing import FakeClock
from tinker_deadlines.waiting import aio
from tinker_deadlines.waiting.futures import BoundedFuture

OTHER_KINDS = sorted(set(KINDS) - TRAINING_KINDS)


class SDKFuture:
    """What the SDK's futures look like: awaitable, with the standard future in `future()`, no `done`."""

    def __init__(self) -> None:
        self.inner: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self.inner

    def result(self, timeout: float | None = None) -> Any:
        return self.inner.result(timeout)

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self.inner).__await__()


def run(main: Callable[[], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    with asyncio.Runner(**options) as runner:
        return runner.run(main())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten real milliseconds for every kind."""
    for kind in KINDS:
        monkeypatch.setenv(env_var_for(kind), "0.01")


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


# Results and errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_results_in_time_are_returned(kind: TinkerCallKind) -> None:
    """Of coroutines, tasks, futures of the loop, of threads, and of the SDK, finished before or meanwhile."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert await await_with_deadline(kind, asyncio.sleep(0, "coroutine")) == "coroutine"
        assert await await_with_deadline(kind, asyncio.sleep(0.001, "slow")) == "slow"
        assert await await_with_deadline(kind, asyncio.ensure_future(asyncio.sleep(0, "task"))) == "task"
        future = loop.create_future()
        loop.call_soon(future.set_result, "future")
        assert await await_with_deadline(kind, future) == "future"
        for delay_s in (None, 0.001):
            theirs = SDKFuture()
            if delay_s is None:
                theirs.inner.set_result("SDK")
            else:
                threading.Timer(delay_s, theirs.inner.set_result, ("SDK",)).start()
            assert await await_with_deadline(kind, theirs) == "SDK"
        assert loop._scheduled == [] or all(handle.cancelled() for handle in loop._scheduled)  # type: ignore[attr-defined]

    run(main)
    assert board.tallies[kind].completed == 6 and not board.in_flight


@pytest.mark.parametrize("kind", ["sample", "optim_step"])
@pytest.mark.parametrize(
    "own",
    [TimeoutError("mine"), ValueError("x"), ExceptionGroup("g", [ValueError()]), concurrent.futures.CancelledError()],
)
def test_an_error_of_the_call_is_itself(kind: TinkerCallKind, own: BaseException) -> None:
    """From a coroutine and from a future: the very object, with the traceback of where it was raised."""

    async def deep() -> None:
        await asyncio.sleep(0)
        raise own

    async def main() -> None:
        with pytest.raises(type(own)) as raised:
            await await_with_deadline(kind, deep())
        assert raised.value is own
        assert traceback.extract_tb(own.__traceback__)[-1].name == "deep"
        if not isinstance(own, concurrent.futures.CancelledError):
            theirs = SDKFuture()
            theirs.inner.set_exception(own)
            with pytest.raises(type(own)) as raised:
                await await_with_deadline(kind, theirs)
            assert raised.value is own

    run(main)
    assert not board.in_flight


@pytest.mark.parametrize("own", [KeyboardInterrupt, SystemExit])
def test_interruptions_come_through(own: type[BaseException]) -> None:
    """Ctrl-C inside a coroutine ends the loop, and the call is over on the board."""

    async def interrupted() -> None:
        raise own

    with pytest.raises(own):
        run(lambda: await_with_deadline("sample", interrupted()))
    assert not board.in_flight


# Expiry -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_a_coroutine_is_cancelled_at_its_limit(kind: TinkerCallKind) -> None:
    """As `asyncio.timeout` does it: its cleaning up runs first, and the task goes on uncancelled."""
    cleaned: list[int] = []

    async def clean() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            cleaned.append(1)

    async def main() -> None:
        with pytest.raises(TinkerDeadlineError) as expired:
            await await_with_deadline(kind, clean())
        assert cleaned == [1]
        assert expired.value.elapsed_s == pytest.approx(expired.value.deadline_s, rel=0.01)
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        await asyncio.sleep(0)

    with FakeClock(moves_by_itself=True):
        run(main)
    assert board.tallies[kind].expired == 1 and not board.in_flight


@pytest.mark.parametrize("kind", KINDS)
def test_a_future_of_the_sdk_is_never_cancelled(kind: TinkerCallKind, short: None) -> None:
    """Neither by the limit, nor by the cancellation of the task that waits; a late result is in the error."""

    async def main() -> None:
        theirs = SDKFuture()
        with pytest.raises(TinkerDeadlineError) as expired:
            await await_with_deadline(kind, theirs)
        task = asyncio.ensure_future(await_with_deadline(kind, theirs))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(await_with_deadline(kind, theirs), 0.001)
        assert not theirs.inner.cancelled() and not theirs.inner.done()
        theirs.inner.set_result("late")
        assert expired.value.late is not None and expired.value.late.result(timeout=0) == "late"

    run(main)
    assert board.tallies[kind].cancelled == 2 and not board.in_flight


@pytest.mark.parametrize("kind", sorted(TRAINING_KINDS))
def test_a_coroutine_of_a_training_kind_is_never_cancelled(kind: TinkerCallKind, short: None) -> None:
    """It goes on after the limit and after a cancellation, even if nobody refers to it any more."""
    ended: list[str] = []

    async def main() -> None:
        gates = [asyncio.Event() for _ in range(2)]

        async def step(gate: asyncio.Event, name: str) -> None:
            try:
                await gate.wait()
            except BaseException:
                ended.append("cancelled")
                raise
            ended.append(name)

        with pytest.raises(TinkerDeadlineError) as expired:
            await await_with_deadline(kind, step(gates[0], "after the limit"))
        assert expired.value.submission == "indeterminate"
        task = asyncio.ensure_future(await_with_deadline(kind, step(gates[1], "after a cancellation")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gc.collect()
        for gate in gates:
            gate.set()
        for _ in range(3):
            await asyncio.sleep(0)

    run(main)
    assert ended == ["after the limit", "after a cancellation"]
    assert not aio._going_on


def test_what_goes_on_may_fail_quietly(short: None) -> None:
    """Its waiter has an error already: asyncio does not report another one that was never retrieved."""
    reported: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        gate = asyncio.Event()

        async def fail() -> None:
            await gate.wait()
            raise ValueError("late")

        with pytest.raises(TinkerDeadlineError):
            await await_with_deadline("optim_step", fail())
        gate.set()
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()

    run(main)
    assert reported == []


def test_a_coroutine_that_swallows_its_cancellation_gives_its_result(short: None) -> None:
    """It finished all the same: the result counts, and no cancellation is left behind."""

    async def stubborn() -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            pass
        return "done"

    async def main() -> None:
        assert await await_with_deadline("sample", stubborn()) == "done"
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        await asyncio.sleep(0)

    run(main)


def test_an_error_while_it_is_cancelled_is_its_own(short: None) -> None:
    """What the cleaning up raises comes through, as with `asyncio.timeout`."""

    async def fails() -> None:
        try:
            await forever()
        finally:
            raise ValueError("in cleaning up")

    async def main() -> None:
        with pytest.raises(ValueError, match="in cleaning up"):
            await await_with_deadline("sample", fails())
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    run(main)


def test_an_expiry_of_installed_mode_is_ours_here() -> None:
    """A future that installed mode expired raises `TinkerDeadlineError` with the same facts."""

    class Stuck(DeadlineExpiry, OSError):
        pass

    class Installed(BoundedFuture[Any]):
        expiry_error = Stuck

    async def main() -> None:
        theirs = SDKFuture()
        theirs.inner = Installed(Call("sample", 0.005, "the default"), None)
        with pytest.raises(TinkerDeadlineError) as expired:
            await await_with_deadline("sample", theirs)
        assert isinstance(expired.value.__cause__, Stuck) and expired.value.deadline_s == 0.005

    run(main)


def test_other_coroutines_are_coroutines(short: None) -> None:
    """A compiled one, say: of another type, but with `send`, `throw` and `close`."""
    thrown: list[BaseException] = []

    class Compiled(Coroutine[Any, Any, None]):
        def __init__(self) -> None:
            self.inner = forever()

        def send(self, value: Any) -> Any:
            return self.inner.send(value)

        def throw(self, *error: Any) -> Any:
            thrown.append(error[0])
            return self.inner.throw(*error)

        def close(self) -> None:
            self.inner.close()

        def __await__(self) -> Any:
            return self

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            return self.send(None)

    async def main() -> None:
        with pytest.raises(TinkerDeadlineError):
            await await_with_deadline("sample", Compiled())

    run(main)
    assert len(thrown) == 1


# Other people's cancellations ---------------------------------------------------------------------------------------


def test_a_cancellation_from_outside_is_a_cancellation() -> None:
    """It reaches the coroutine and comes out as itself."""

    async def main() -> None:
        task = asyncio.ensure_future(await_with_deadline("sample", forever()))
        await asyncio.sleep(0)
        task.cancel("by me")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run(main)
    assert board.tallies["sample"].cancelled == 1 and not board.in_flight


@pytest.mark.parametrize("kind", ["sample", "optim_step"])
def test_a_cancellation_that_races_with_the_limit_is_never_lost(
    kind: TinkerCallKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the very moment of the expiry, in either order, many times: cancelled, or expired and then cancelled."""
    monkeypatch.setenv(env_var_for(kind), "0.001")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in range(200):
            task = asyncio.ensure_future(await_with_deadline(kind, forever()))
            loop.call_later(0.001 + (number % 5 - 2) * 0.00005, task.cancel)
            try:
                await task
            except TinkerDeadlineError:
                pass
            except asyncio.CancelledError:
                assert task.cancelled()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    run(main)


def test_both_in_one_turn_of_the_loop() -> None:
    """When the limit and somebody else cancel in the same turn, the other's cancellation goes on, in either order."""

    async def main(ours_first: bool) -> None:
        task = asyncio.ensure_future(await_with_deadline("sample", forever()))
        await asyncio.sleep(0)
        handle = next(iter(handles))
        for step in (handle, task.cancel) if ours_first else (task.cancel, handle):
            step()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    handles: list[Any] = []

    class Catches(FakeClock):
        def call_later(self, loop: Any, delay_s: float, call: Any) -> Any:
            handles[:] = [call]
            return super().call_later(loop, delay_s, call)

    with Catches():
        for ours_first in (True, False):
            run(lambda: main(ours_first))  # noqa: B023


@pytest.mark.parametrize("outer_s", [0.005, 10])
def test_asyncio_timeout_around_it(outer_s: float, short: None) -> None:
    """The smaller of the two is what is raised, each as its own kind."""

    async def main() -> None:
        with pytest.raises(TimeoutError) as raised:
            async with asyncio.timeout(outer_s):
                await await_with_deadline("sample", forever())
        assert (type(raised.value) is TimeoutError) == (outer_s < 0.01)
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    run(main)


@pytest.mark.parametrize("inner_s, outer_s, cut", [(5, 60, "rest"), (60, 5, "connect")])
def test_nested_limits(inner_s: float, outer_s: float, cut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smaller one cuts, and is named."""
    monkeypatch.setenv(env_var_for("rest"), f"{inner_s / 1000}")
    monkeypatch.setenv(env_var_for("connect"), f"{outer_s / 1000}")

    async def main() -> None:
        with pytest.raises(TinkerDeadlineError) as expired:
            await await_with_deadline("connect", await_with_deadline("rest", forever()))
        assert expired.value.kind == cut
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    run(main)


def test_nested_limits_in_one_turn() -> None:
    """Both pass at once: one expiry comes out, and no cancellation is left."""

    async def main() -> None:
        with pytest.raises(TinkerDeadlineError):
            await await_with_deadline("connect", await_with_deadline("rest", forever()))
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        await asyncio.sleep(0)

    with FakeClock(moves_by_itself=True):
        run(main)


def test_inside_a_task_group(short: None) -> None:
    """An expiry cancels its siblings and comes out in the group; a sibling's failure cancels the wait."""

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as raised:
            async with asyncio.TaskGroup() as group:
                group.create_task(await_with_deadline("sample", forever()))
                sibling = group.create_task(forever())
        assert isinstance(raised.value.exceptions[0], TinkerDeadlineError) and sibling.cancelled()

        async def fail() -> None:
            raise ValueError

        with pytest.raises(ExceptionGroup) as raised:
            async with asyncio.TaskGroup() as group:
                waits = group.create_task(await_with_deadline("sample", forever()))
                group.create_task(fail())
        assert isinstance(raised.value.exceptions[0], ValueError) and waits.cancelled()

    run(main)
    assert not board.in_flight


def test_around_a_task_group(short: None) -> None:
    """A group inside the coroutine is cancelled as a whole."""

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(forever())

    async def main() -> None:
        with pytest.raises(TinkerDeadlineError):
            await await_with_deadline("sample", group())
        assert len(asyncio.all_tasks()) == 1

    run(main)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
@pytest.mark.parametrize("kind", ["sample", "optim_step"])
def test_eager_tasks(kind: TinkerCallKind, short: None) -> None:
    """A task that starts at once is bounded like any other."""

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        assert await asyncio.create_task(await_with_deadline(kind, asyncio.sleep(0, 1))) == 1
        with pytest.raises(TinkerDeadlineError):
            await asyncio.create_task(await_with_deadline(kind, forever()))
        theirs = SDKFuture()
        with pytest.raises(TinkerDeadlineError):
            await asyncio.create_task(await_with_deadline(kind, theirs))
        assert not theirs.inner.cancelled()

    run(main)


# Budgets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sample", "optim_step"])
def test_a_budget_cuts_an_await(kind: TinkerCallKind) -> None:
    """With the name of its owner; the awaitable runs under it."""

    async def main() -> None:
        async with episode(0.01, name="wall"):
            with pytest.raises(BudgetExhaustedError, match="'wall'"):
                await await_with_deadline(kind, forever())

            async def look() -> Any:
                return budgets.current()

            with pytest.raises(BudgetExhaustedError, match="was not sent"):
                await await_with_deadline(kind, look())

    run(main)
    assert board.tallies[kind].out_of_budget == board.tallies[kind].refused == 1 and not board.in_flight


# Endings ------------------------------------------------------------------------------------------------------------


def test_a_loop_that_ends_first_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The SDK's future completes when the loop that waited is closed: nobody is woken, nothing is logged."""
    theirs = SDKFuture()
    tasks: list[Any] = []

    async def main() -> None:
        tasks.append(asyncio.ensure_future(await_with_deadline("sample", theirs)))
        await asyncio.sleep(0)

    run(main)
    theirs.inner.set_result(1)
    assert caplog.text == ""
    assert board.tallies["sample"].cancelled == 1 and not board.in_flight


def test_a_wait_that_is_dropped_is_over() -> None:
    """One that is closed half way, as the collector does it, leaves the board and counts as cancelled."""

    async def main() -> None:
        waits = await_with_deadline("sample", SDKFuture())
        waits.send(None)
        assert len(board.in_flight) == 1
        waits.close()

    run(main)
    assert board.tallies["sample"].cancelled == 1 and not board.in_flight


def test_ten_thousand_awaits_leave_nothing() -> None:
    """No call on the board, no task, no handle that is still to come."""

    async def main() -> None:
        theirs = SDKFuture()
        theirs.inner.set_result(1)
        for _ in range(5_000):
            await await_with_deadline("sample", asyncio.sleep(0))
            await await_with_deadline("optim_step", theirs)
        loop = asyncio.get_running_loop()
        assert sum(not handle.cancelled() for handle in loop._scheduled) == 0  # type: ignore[attr-defined]
        assert len(asyncio.all_tasks()) == 1

    started = time.perf_counter()
    run(main)
    assert time.perf_counter() - started < 5
    assert not board.in_flight and not aio._going_on


def test_completion_and_expiry_have_one_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand futures that end around the limit: a result, or an expiry with the late result."""
    monkeypatch.setenv(env_var_for("sample"), "0.01")

    async def one(theirs: SDKFuture) -> Any:
        try:
            return await await_with_deadline("sample", theirs)
        except TinkerDeadlineError as expired:
            return expired.late

    async def main() -> list[Any]:
        futures = [SDKFuture() for _ in range(1000)]
        tasks = [asyncio.ensure_future(one(theirs)) for theirs in futures]
        await asyncio.sleep(0)

        def complete() -> None:
            for number, theirs in enumerate(futures):
                if number % 50 == 0:
                    time.sleep(0.0008)
                theirs.inner.set_result("done")

        thread = threading.Thread(target=complete)
        thread.start()
        results = await asyncio.gather(*tasks)
        thread.join()
        return results

    results = run(main)
    assert len(results) == 1000
    assert {result if result == "done" else result.result(timeout=0) for result in results} == {"done"}
