"""Named deadlines around several calls: which one counts, who inherits it, and what is left when all are closed."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines import (
    BudgetExhaustedError,
    TinkerDeadlineError,
    await_with_deadline,
    budgets,
    call_with_deadline,
    episode,
    is_capacity_error,
    remaining_s,
    wait_with_deadline,
)
from tinker_deadlines.calls import board
from tinker_deadlines.testing import FakeClock, FakeFuture

PLAIN = (threading.Thread.start, ThreadPoolExecutor.submit)


@pytest.fixture(autouse=True)
def _patches_are_gone() -> Iterator[None]:
    yield
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == PLAIN
    assert budgets._threads._open == 0


def name_here() -> str | None:
    budget = budgets.current()
    return budget.name if budget is not None else None


# Which one counts ---------------------------------------------------------------------------------------------------


def test_outside_of_all_there_is_no_end() -> None:
    """Without a budget, infinitely much is left."""
    assert remaining_s() == math.inf
    assert budgets.current() is None


def test_a_budget_shrinks_with_time() -> None:
    """From its size at entry to zero, never below; outside its block it binds nobody."""
    with FakeClock() as clock:
        budget = episode(10, name="wall")
        assert budget.remaining_s() == math.inf
        with budget as entered:
            assert entered is budget
            assert budget.remaining_s() == remaining_s() == pytest.approx(10)
            clock.advance(4)
            assert remaining_s() == pytest.approx(6)
            clock.advance(7)
            assert remaining_s() == 0
            assert "wall" in repr(budget) and "0.0 s left" in repr(budget)
        assert remaining_s() == math.inf


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=6))
def test_the_smallest_of_nested_budgets_counts(sizes: list[float]) -> None:
    """Whatever the order of nesting, the earliest deadline around is the one that counts, and its owner is named."""
    with FakeClock(start=0):
        opened = []
        for number, size in enumerate(sizes):
            opened.append(episode(size, name=str(number)).__enter__())
            assert remaining_s() == min(sizes[: number + 1])
            assert sizes[int(name_here() or -1)] == min(sizes[: number + 1])
        for number in reversed(range(len(sizes))):
            opened.pop().__exit__(None, None, None)
            assert remaining_s() == min(sizes[:number], default=math.inf)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, "abc", None, 10**400, "1e400"])
def test_a_size_is_positive_and_finite(seconds: Any) -> None:
    """Anything else is refused when the budget is made."""
    with pytest.raises(ValueError, match="positive finite number of seconds"):
        episode(seconds)


def test_a_budget_is_for_one_block() -> None:
    """Entering it again raises, inside its block and after it."""
    budget = episode(1, name="once")
    with budget, pytest.raises(RuntimeError, match="'once' was entered before"):
        budget.__enter__()
    with pytest.raises(RuntimeError, match="'once' was entered before"):
        budget.__enter__()


def test_leaving_twice_is_leaving_once() -> None:
    """A second exit changes nothing for other budgets."""
    with episode(5, name="outer"):
        budget = episode(1).__enter__()
        budget.__exit__(None, None, None)
        budget.__exit__(None, None, None)
        assert name_here() == "outer"
        assert threading.Thread.start is not PLAIN[0]


def test_an_exception_passes_through() -> None:
    """A budget swallows nothing and is closed behind it."""
    with pytest.raises(ZeroDivisionError), episode(1):
        _ = 1 / 0
    assert budgets.current() is None


# What it does to calls ----------------------------------------------------------------------------------------------


def test_the_smaller_of_limit_and_budget_cuts_a_call() -> None:
    """The budget's end is the budget's error, with its name; the call's own limit stays the call's own."""
    with FakeClock(moves_by_itself=True), episode(400, name="wall"):
        with pytest.raises(TinkerDeadlineError):
            wait_with_deadline("sample", FakeFuture())
        with episode(1000, name="larger"), pytest.raises(BudgetExhaustedError) as cut:
            wait_with_deadline("sample", FakeFuture())
    assert (cut.value.owner, cut.value.budget_s, cut.value.kind) == ("wall", 400, "sample")
    assert cut.value.elapsed_s == pytest.approx(100)
    assert cut.value.submission == "sent"
    assert not is_capacity_error(cut.value)
    assert not isinstance(cut.value, TimeoutError)
    assert board.tallies["sample"].expired == board.tallies["sample"].out_of_budget == 1


def test_a_call_without_a_budget_left_is_refused_free_of_charge() -> None:
    """Nothing is sent, nothing is awaited, nothing is in flight; it is counted as refused."""
    calls: list[int] = []
    future = FakeFuture[int](1)

    async def coroutine() -> None:
        calls.append(1)

    with FakeClock() as clock, episode(5, name="wall"):
        clock.advance(5)
        with pytest.raises(BudgetExhaustedError) as refused:
            call_with_deadline("rest", lambda: calls.append(1))
        with pytest.raises(BudgetExhaustedError):
            wait_with_deadline("rest", future)
        with pytest.raises(BudgetExhaustedError):
            asyncio.run(await_with_deadline("rest", coroutine()))
        assert wait_with_deadline("rest", FakeFuture("there", after_s=0)) == "there"
    assert (refused.value.owner, refused.value.submission, refused.value.elapsed_s) == ("wall", "not sent", 0)
    assert "was not sent" in str(refused.value)
    assert calls == [] and future.waits == 0
    assert board.tallies["rest"].refused == 3 and not board.in_flight


# Who inherits it ----------------------------------------------------------------------------------------------------


def in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(5)
    return found[0]


class Subclass(threading.Thread):
    found: str | None = None

    def run(self) -> None:
        self.found = name_here()


def test_threads_inherit() -> None:
    """Threads, subclasses of them with a `run` of their own, timers, and threads started by these."""
    with episode(5, name="wall"):
        assert in_thread(name_here) == "wall"
        assert in_thread(lambda: in_thread(name_here)) == "wall"
        thread = Subclass()
        thread.start()
        thread.join()
        assert thread.found == "wall"
    assert in_thread(name_here) is None


def test_a_thread_that_ended_is_let_go_of() -> None:
    """Handing the budget on leaves no cycle through the thread."""
    gc.disable()
    try:
        with episode(5):
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
            gone = weakref.ref(thread)
            del thread
            assert gone() is None
    finally:
        gc.enable()


def test_pools_inherit_from_who_submits() -> None:
    """A pool's thread works under the budget of each submission, not of the one that started the thread."""
    with ThreadPoolExecutor(1) as pool:
        with episode(5, name="first"):
            assert pool.submit(name_here).result() == "first"
            assert list(pool.map(lambda _: name_here(), range(3))) == ["first"] * 3
            with episode(4, name="second"):
                assert pool.submit(name_here).result() == "second"
            assert contextvars.Context().run(lambda: pool.submit(name_here).result()) is None
        assert pool.submit(name_here).result() is None
        with episode(5, name="third"):
            assert pool.submit(name_here).result() == "third"


def test_a_pool_forwards_arguments_untouched() -> None:
    """Names that the patch uses itself are free for a person's function."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    with ThreadPoolExecutor(1) as pool, episode(5):
        sent = {"budget": 1, "pool": 3, "self": 4, "args": 5}
        assert pool.submit(function, 1, 2, **sent).result() == ((1, 2), sent)


def test_tasks_and_their_threads_inherit() -> None:
    """Tasks, `to_thread`, `run_in_executor` and task groups are inside the budget; other tasks are not."""

    async def name() -> str | None:
        return name_here()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        outside = asyncio.create_task(asyncio.sleep(0.005))
        async with episode(5, name="wall") as budget:
            assert budget.remaining_s() <= 5
            assert await asyncio.create_task(name()) == "wall"
            assert await asyncio.to_thread(name_here) == "wall"
            assert await loop.run_in_executor(None, name_here) == "wall"
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(name()) for _ in range(3)]
            assert [task.result() for task in tasks] == ["wall"] * 3
        assert await name() is None
        assert await loop.run_in_executor(None, name_here) is None
        await outside

    asyncio.run(main())


def test_tasks_side_by_side_have_their_own() -> None:
    """Two episodes in two tasks never see each other."""

    async def one(name: str) -> None:
        with episode(5, name=name):
            for _ in range(20):
                await asyncio.sleep(0)
                assert name_here() == name
                assert await asyncio.to_thread(name_here) == name

    async def main() -> None:
        await asyncio.gather(*(one(str(number)) for number in range(5)))

    asyncio.run(main())


def test_what_outlives_the_block_is_free_of_it() -> None:
    """A thread and a task that were started inside are not bound any more once the block has ended."""
    gate, found = threading.Event(), []

    def later() -> None:
        gate.wait(5)
        found.append(name_here())

    with episode(5, name="wall"):
        thread = threading.Thread(target=later)
        thread.start()
    gate.set()
    thread.join()
    assert found == [None]

    async def main() -> None:
        open_gate = asyncio.Event()

        async def wait() -> str | None:
            await open_gate.wait()
            return name_here()

        with episode(5, name="wall"):
            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
        open_gate.set()
        assert await task is None

    asyncio.run(main())


def test_a_blocking_call_works_under_the_budget_of_its_caller() -> None:
    """The callable of `call_with_deadline` sees it, whichever worker runs it, and whoever started that worker."""
    with episode(5, name="wall"):
        assert call_with_deadline("rest", name_here) == "wall"
    assert call_with_deadline("rest", name_here) is None


# Patches ------------------------------------------------------------------------------------------------------------


def test_patches_are_there_only_while_a_budget_is_open() -> None:
    """Nested and overlapping budgets share them; the last that closes takes them away."""
    first, second = episode(5), episode(5)
    first.__enter__()
    patched = (threading.Thread.start, ThreadPoolExecutor.submit)
    assert patched[0] is not PLAIN[0] and patched[1] is not PLAIN[1]
    second.__enter__()
    first.__exit__(None, None, None)
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == patched
    second.__exit__(None, None, None)
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == PLAIN


def test_somebody_elses_patch_on_top_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours stay below theirs, hand on nothing without a budget, and pile up neither then nor later."""
    started: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", PLAIN[0])  # what monkeypatch restores
        with episode(5, name="wall"):
            ours = threading.Thread.start

            def theirs(thread: threading.Thread) -> None:
                started.append(thread.name)
                ours(thread)

            threading.Thread.start = theirs  # type: ignore[method-assign]
            assert in_thread(name_here) == "wall"
        assert threading.Thread.start is theirs
        assert in_thread(name_here) is None
        for _ in range(50):
            with episode(5, name="again"):
                assert in_thread(name_here) == "again"
            assert threading.Thread.start is theirs
        assert len(started) == 52


def test_a_pool_of_a_subclass_inherits() -> None:
    """A pool that overrides `submit` and calls its parent's hands budgets on as well."""

    class Pool(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
            return super().submit(*args, **kwargs)

    with Pool(1) as pool, episode(5, name="wall"):
        assert pool.submit(name_here).result() == "wall"


def test_budgets_opened_and_closed_by_many_threads_leave_nothing() -> None:
    """A thousand blocks on eight threads: each sees its own, and the patches are gone at the end."""
    wrong: list[Any] = []

    def work(label: str) -> None:
        for _ in range(125):
            with episode(5, name=label):
                if name_here() != label:
                    wrong.append(label)

    threads = [threading.Thread(target=work, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Generators and contexts --------------------------------------------------------------------------------------------


def test_a_generator_may_be_closed_in_another_context() -> None:
    """An async generator's block that is left elsewhere than it was entered closes its budget all the same."""

    async def generator() -> AsyncIterator[int]:
        with episode(5, name="inside"):
            yield 1
            yield 2

    async def main() -> None:
        numbers = generator()
        await asyncio.create_task(numbers.__anext__())  # type: ignore[arg-type]
        await asyncio.create_task(numbers.aclose())  # type: ignore[attr-defined]
        assert budgets.current() is None

    asyncio.run(main())


def test_budgets_left_in_another_context_make_no_chain() -> None:
    """Each leaves itself behind, closed, in its context: the next one does not hang on to it."""

    def main() -> None:
        for _ in range(10):
            budget = episode(5).__enter__()
            contextvars.Context().run(budget.__exit__, None, None, None)
            assert budget._outer is None
        assert budgets.current() is None

    contextvars.copy_context().run(main)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_and_closes_budgets() -> None:
    """Even when another thread of the parent was about to open one."""
    with budgets._threads._lock:
        taken = in_thread(lambda: os.fork() or os._exit(_child()))
    _, status = os.waitpid(taken, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _child() -> int:
    try:
        with episode(5, name="child"):
            return 0 if in_thread(name_here) == "child" else 2
    except BaseException:
        return 1


def test_opening_and_closing_is_cheap() -> None:
    """A thousand budgets one after the other take less than a second: nothing piles up."""
    started = time.perf_counter()
    for _ in range(1000):
        with episode(5):
            pass
    assert time.perf_counter() - started < 1
