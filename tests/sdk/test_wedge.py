"""Can a training client be wedged through us? Cancelled while it queues, in the SDK a call takes its turn with it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from sdk_calls import ADAM, DATUM, Clients, connect
from sdk_tools import VERSION, eventually, run_script, settled

from tinker_deadlines import FencedClientError, StuckCallError
from tinker_deadlines.calls import board
from tinker_deadlines.lab import Lab

# op0 takes this long at the service; whatever is given up meanwhile is given up while it waits for its turn.
SLOW_S = 0.6
QUICK_S = 0.1


@pytest.fixture
def slow_first(lab: Lab) -> Iterator[tuple[Lab, Clients]]:
    """A lab in which the first optimizer step is answered late, and clients of it."""
    rule = f'[[fault]]\nname = "slow"\ndo = "delay"\ndelay_s = {SLOW_S}\npath = "*/optim_step"\nnth = 1\n'
    with Lab(faults=rule, poll_s=0.2) as slow:
        yield slow, connect(slow.url, slow.base_model)


def steps(lab: Lab, clients: Clients) -> list[int]:
    """The numbers of the optimizer steps that were really executed for this training client."""
    model = clients.training.model_id
    return [each["seq_id"] for each in lab.executions() if each["model_id"] == model and each["type"] == "OptimStep"]


async def step(clients: Clients) -> Any:
    """An optimizer step in the form that this version's scripts use."""
    if VERSION >= (0, 38):
        return clients.training.optim_step(ADAM)
    return await clients.training.optim_step_async(ADAM)


async def by_wait_for(second: Awaitable[Any]) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(second, QUICK_S)


async def by_result_async(second: Any) -> None:
    with pytest.raises((asyncio.TimeoutError, TimeoutError)):
        await second.result_async(timeout=QUICK_S)


async def by_cancelling_the_task(second: Awaitable[Any]) -> None:
    async def wait() -> None:
        await second

    task = asyncio.create_task(wait())
    await asyncio.sleep(QUICK_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_a_task_group(second: Awaitable[Any]) -> None:
    async def wait() -> None:
        await second

    async def fail() -> None:
        await asyncio.sleep(QUICK_S)
        raise ValueError

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(wait())
            group.create_task(fail())


async def by_cancelling_the_future(second: Any) -> None:
    await asyncio.sleep(QUICK_S)
    second.future().cancel()


async def by_a_timeout(second: Awaitable[Any]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(QUICK_S):
            await second


WAYS = [by_wait_for, by_result_async, by_cancelling_the_task, by_a_task_group, by_cancelling_the_future, by_a_timeout]


async def three_steps(clients: Clients, way: Callable[[Any], Awaitable[None]], patience_s: float) -> bool:
    """op0 is slow, op1 is given up while it queues; whether op2 comes to an end."""
    first = await step(clients)
    second = await step(clients)
    await way(second)
    third = await step(clients)
    ended, _ = await asyncio.wait([asyncio.ensure_future(wait_for_it(third))], timeout=patience_s)
    await asyncio.wait([asyncio.ensure_future(wait_for_it(first))], timeout=patience_s)
    return bool(ended)


async def wait_for_it(future: Any) -> Any:
    return await future


@pytest.mark.parametrize("way", WAYS)
def test_a_queued_call_that_is_given_up_does_not_wedge_its_client(
    way: Callable[[Any], Awaitable[None]], slow_first: tuple[Lab, Clients], installed: None
) -> None:
    """Whatever way op1 is given up while it queues, op2 is sent and ends, and op1 itself is executed once, in order."""
    lab, clients = slow_first
    assert asyncio.run(three_steps(clients, way, patience_s=15))
    executed = eventually(lambda: len(steps(lab, clients)) >= 3 and steps(lab, clients))
    assert executed == sorted(executed)
    assert len(executed) == 3
    eventually(lambda: not board.in_flight)


@pytest.mark.parametrize("way", [by_wait_for, by_cancelling_the_task])
def test_without_us_the_client_is_wedged(
    way: Callable[[Any], Awaitable[None]], slow_first: tuple[Lab, Clients]
) -> None:
    """The control: the same program without us leaves op2 waiting for ever, so that the test above can fail."""
    lab, clients = slow_first
    assert not asyncio.run(three_steps(clients, way, patience_s=SLOW_S + 1.5))
    assert len(steps(lab, clients)) == 1


def test_the_result_of_a_call_that_was_given_up_is_still_delivered(
    slow_first: tuple[Lab, Clients], installed: None
) -> None:
    """A later `result()` of the step that was given up returns its answer, where without us it would be cancelled."""
    _, clients = slow_first

    async def main() -> Any:
        await step(clients)
        second = await step(clients)
        await by_wait_for(second)
        return second

    second = asyncio.run(main())
    assert settled(second) is not None


def test_ctrl_c_while_a_call_queues(slow_first: tuple[Lab, Clients], installed: None) -> None:
    """Ctrl-C in the main thread, in `result()` and in `asyncio.run`, leaves the client usable."""
    lab, clients = slow_first

    def interrupt() -> None:
        threading.Timer(QUICK_S, os.kill, (os.getpid(), signal.SIGINT)).start()

    async def main() -> None:
        await step(clients)
        second = await step(clients)
        interrupt()
        await second

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    third = clients.training.optim_step(ADAM)
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        third.result()
    assert settled(clients.training.optim_step(ADAM)) is not None
    eventually(lambda: len(steps(lab, clients)) == 4)


def test_a_step_that_expires_while_it_runs_is_not_sent_twice(
    slow_first: tuple[Lab, Clients], installed: None, limits: Any
) -> None:
    """A step that is given up is executed once; its error says "indeterminate" and still holds the late result."""
    lab, clients = slow_first
    limits(0.2)
    with pytest.raises(StuckCallError) as caught:
        clients.training.optim_step(ADAM).result()
    limits(20)
    assert caught.value.indeterminate
    assert caught.value.late.result(10) is not None
    assert settled(clients.training.optim_step(ADAM)) is not None
    assert len(steps(lab, clients)) == 2


def test_after_a_chunk_has_failed_every_later_call_is_bounded(installed: None, limits: Any) -> None:
    """A batch with one part refused wedges its client in the SDK: one later call expires, and then none is sent."""
    rule = '[[fault]]\nname = "part"\ndo = "status"\nstatus = 400\nbody = "no"\npath = "*/forward_backward"\nnth = 2\n'
    with Lab(faults=rule, poll_s=0.2) as broken:
        clients = connect(broken.url, broken.base_model)
        limits(1.0)
        with pytest.raises(Exception) as caught:
            clients.training.forward_backward([DATUM] * 2500, "cross_entropy").result()
        assert not isinstance(caught.value, StuckCallError)
        limits(0.3)
        for _ in range(2):
            started_at = time.monotonic()
            try:
                clients.training.optim_step(ADAM).result()
            except StuckCallError as error:
                assert error.submission == "not sent"
            except FencedClientError as error:
                assert isinstance(error.cause, StuckCallError)
            assert time.monotonic() - started_at < 0.8


def test_only_one_call_at_a_time_is_on_the_clock(slow_first: tuple[Lab, Clients], installed: None, limits: Any) -> None:
    """Steps of 0.6 s each, sent ahead with a limit of 1 s, all end: a clock starts when the predecessor ended."""
    rule = f'[[fault]]\nname = "slow"\ndo = "delay"\ndelay_s = {SLOW_S}\npath = "*/optim_step"\n'
    with Lab(faults=rule, poll_s=0.2) as slow:
        clients = connect(slow.url, slow.base_model)
        limits(SLOW_S / 0.6)
        futures = [clients.training.optim_step(ADAM) for _ in range(4)]
        for future in futures:
            assert settled(future) is not None


def test_a_script_of_somebody_else(slow_first: tuple[Lab, Clients]) -> None:
    """A program that never heard of us and gives a queued step up ends well when its process is started with us."""
    lab, _ = slow_first
    done = run_script(SCRIPT, TINKER_BASE_URL=lab.url, MODEL=lab.base_model)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["given", "up", "third", "done"]


SCRIPT = """
import asyncio, os, warnings
warnings.simplefilter("ignore")
import tinker_deadlines; tinker_deadlines.install()
import tinker

async def main():
    service = tinker.ServiceClient()
    training = await service.create_lora_training_client_async(base_model=os.environ["MODEL"], rank=4)
    params = tinker.AdamParams(learning_rate=1e-3)
    first = await training.optim_step_async(params)
    second = await training.optim_step_async(params)
    try:
        await asyncio.wait_for(second, 0.1)
    except asyncio.TimeoutError:
        print("given up", flush=True)
    third = await training.optim_step_async(params)
    await asyncio.wait_for(third, 15)
    print("third done", flush=True)

asyncio.run(main())
"""
