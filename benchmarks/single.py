"""What does it cost to bound one call: a finished future, one from a loop, a blocking callable, an awaitable?"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import anyio
import func_timeout
import pebble
import stamina
import stopit
import tenacity
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from benchmarks.measure import Cost, compare, compare_async
from benchmarks.report import Bar, Table
from tinker_deadlines import await_with_deadline, call_with_deadline, wait_with_deadline

LONG_S = 300.0
OURS = "tinker-deadlines"


def _new_thread(call: Callable[[], Any]) -> Any:
    box: list[Any] = []
    thread = threading.Thread(target=lambda: box.append(call()), daemon=True)
    thread.start()
    thread.join(LONG_S)
    return box[0]


def _stopit(call: Callable[[], Any]) -> Any:
    with stopit.ThreadingTimeout(LONG_S):
        return call()


class Ways:
    """The ways to bound a blocking callable, with the pools that they need."""

    def __init__(self) -> None:
        self.executor = concurrent.futures.ThreadPoolExecutor(4)
        self.pebble_pool = pebble.ThreadPool(max_workers=4)
        self.retrying = tenacity.Retrying(stop=tenacity.stop_after_attempt(3))
        self.stamina = stamina.RetryingCaller(attempts=3).on(OSError)

    def around(self, call: Callable[[], Any], *, threads: bool = True) -> dict[str, Callable[[], Any]]:
        """Every peer around a blocking callable."""
        ways: dict[str, Callable[[], Any]] = {
            "tenacity.Retrying (retries, bounds nothing)": lambda: self.retrying(call),
            "stamina.RetryingCaller (retries, bounds nothing)": lambda: self.stamina(call),
            "ThreadPoolExecutor (shared).submit.result": lambda: self.executor.submit(call).result(LONG_S),
            "pebble.ThreadPool.schedule.result": lambda: self.pebble_pool.schedule(call).result(LONG_S),
            "func_timeout": lambda: func_timeout.func_timeout(LONG_S, call),
            "stopit.ThreadingTimeout": lambda: _stopit(call),
            "a new daemon thread per call": lambda: _new_thread(call),
        }
        return ways if threads else dict(list(ways.items())[:2])

    def close(self) -> None:
        """Ends the pools."""
        self.executor.shutdown()
        self.pebble_pool.close()
        self.pebble_pool.join()


def _start_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def finished_future(ways: Ways, rounds: int) -> Table:
    """A future that is finished already."""
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    future.set_result(1)
    costs = compare(
        {
            "future.result() (no bound)": future.result,
            "future.result(timeout)": lambda: future.result(LONG_S),
            OURS: lambda: wait_with_deadline("sample", future),
            **ways.around(lambda: future.result(LONG_S)),
        },
        rounds=rounds,
    )
    plain, ours = costs["future.result(timeout)"].median_us, costs[OURS].median_us
    bar = Bar("added ÷ future.result(timeout)", (ours - plain) / plain, 2.0)
    return Table("wait_with_deadline: a future that is finished already", costs, "future.result() (no bound)", [bar])


def loop_future(ways: Ways, loop: asyncio.AbstractEventLoop, rounds: int) -> Table:
    """A future that another thread's event loop finishes: the SDK's pattern."""

    async def tick() -> int:
        await asyncio.sleep(0)
        return 1

    def submit() -> concurrent.futures.Future[int]:
        return asyncio.run_coroutine_threadsafe(tick(), loop)

    costs = compare(
        {
            "future.result() (no bound)": lambda: submit().result(),
            "future.result(timeout)": lambda: submit().result(LONG_S),
            OURS: lambda: wait_with_deadline("sample", submit()),
            **ways.around(lambda: submit().result(LONG_S)),
        },
        rounds=2 * rounds,
    )
    bar = Bar("÷ future.result(timeout)", costs[OURS].median_us / costs["future.result(timeout)"].median_us, 1.1)
    return Table(
        "wait_with_deadline: a future finished by another thread's event loop",
        costs,
        "future.result() (no bound)",
        [bar],
    )


def blocking_callable(ways: Ways, rounds: int) -> Table:
    """A callable that returns at once."""

    def call() -> int:
        return 1

    costs = compare(
        {
            "bare call (no bound)": call,
            OURS: lambda: call_with_deadline("connect", call),
            **ways.around(call),
        },
        rounds=rounds,
    )
    ours = costs[OURS].median_us
    bars = [
        Bar(
            "÷ shared ThreadPoolExecutor",
            ours / costs["ThreadPoolExecutor (shared).submit.result"].median_us,
            1.0,
        ),
        Bar("÷ a new daemon thread per call", ours / costs["a new daemon thread per call"].median_us, 0.5),
    ]
    return Table("call_with_deadline: a callable that returns at once", costs, "bare call (no bound)", bars)


async def coroutine(rounds: int) -> Table:
    """A coroutine that returns at once."""

    async def work() -> int:
        return 1

    async def by_timeout() -> int:
        async with asyncio.timeout(LONG_S):
            return await work()

    async def by_anyio() -> int:
        with anyio.fail_after(LONG_S):
            return await work()

    costs = await compare_async(
        {
            "await (no bound)": work,
            "asyncio.timeout": by_timeout,
            OURS: lambda: await_with_deadline("sample", work()),
            "asyncio.wait_for": lambda: asyncio.wait_for(work(), LONG_S),
            "anyio.fail_after": by_anyio,
            "tenacity.AsyncRetrying (retries, bounds nothing)": lambda: tenacity.AsyncRetrying()(work),
            f"{OURS}, a training kind (never cancels)": lambda: await_with_deadline("optim_step", work()),
        },
        rounds=rounds,
    )
    bar = Bar("÷ asyncio.timeout", costs[OURS].median_us / costs["asyncio.timeout"].median_us, 1.6)
    return Table("await_with_deadline: a coroutine that returns at once", costs, "await (no bound)", [bar])


async def sdk_future(loop: asyncio.AbstractEventLoop, rounds: int) -> Table:
    """A future of the SDK that its loop finishes."""

    async def tick() -> int:
        await asyncio.sleep(0)
        return 1

    def submit() -> AwaitableConcurrentFuture[int]:
        return AwaitableConcurrentFuture(asyncio.run_coroutine_threadsafe(tick(), loop))

    async def plainly() -> int:
        return await submit()

    async def by_timeout() -> int:
        async with asyncio.timeout(LONG_S):
            return await submit()

    costs = await compare_async(
        {
            "await (no bound)": plainly,
            "asyncio.timeout (cancels it)": by_timeout,
            "asyncio.wait_for (cancels it)": lambda: asyncio.wait_for(submit(), LONG_S),
            f"{OURS} (never cancels it)": lambda: await_with_deadline("optim_step", submit()),
        },
        rounds=2 * rounds,
    )
    ratio = costs[f"{OURS} (never cancels it)"].median_us / costs["asyncio.wait_for (cancels it)"].median_us
    bar = Bar("÷ asyncio.wait_for", ratio, 1.0)
    return Table("await_with_deadline: a future of the SDK", costs, "await (no bound)", [bar])


def tables(rounds: int) -> list[Table]:
    """Every comparison of a single call."""
    ways, loop = Ways(), _start_loop()
    try:
        return [
            finished_future(ways, rounds),
            loop_future(ways, loop, rounds),
            blocking_callable(ways, rounds),
            asyncio.run(coroutine(rounds)),
            asyncio.run(sdk_future(loop, rounds)),
        ]
    finally:
        ways.close()
        loop.call_soon_threadsafe(loop.stop)


__all__ = ["Cost", "tables"]
