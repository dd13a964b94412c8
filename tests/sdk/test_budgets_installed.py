"""Do budgets hold inside scripts that do not know us? Refused before anything is sent, or cut, and closable after."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tinker
from sdk_calls import ADAM, DATUM, KEY, PARAMS, PROMPT, Clients, connect
from sdk_switch import Switch
from sdk_tools import settled

from tinker_deadlines import BudgetExhaustedError, StuckCallError, episode, is_capacity_error
from tinker_deadlines.lab import Lab
from tinker_deadlines.lab.faults import Faults


@pytest.fixture(scope="module")
def watched() -> Iterator[tuple[Lab, Clients]]:
    """A lab whose proxy writes down every request, and clients of it."""
    with Lab(faults=Faults(), poll_s=0.2) as lab:
        yield lab, connect(lab.url, lab.base_model)


def requests(lab: Lab) -> list[str]:
    """The paths of all requests so far that belong to calls."""
    assert lab.proxy is not None
    background = ("session_heartbeat", "telemetry", "dynamic_config", "token")
    return [record.path for record in lab.proxy.log if not any(part in record.path for part in background)]


def spent() -> Any:
    """A budget of which nothing is left."""
    budget = episode(0.001, name="tiny")
    budget.__enter__()
    time.sleep(0.01)
    return budget


def test_with_nothing_left_a_call_is_refused_before_it_is_sent(watched: tuple[Lab, Clients], installed: None) -> None:
    """Inside a spent budget every call raises `BudgetExhaustedError` at once, and no request leaves."""
    lab, clients = watched
    rest = clients.rest
    before = requests(lab)
    budget = spent()
    try:
        for call in (
            lambda: clients.sampling.sample(PROMPT, 1, PARAMS),
            lambda: clients.sampling.compute_logprobs(PROMPT),
            lambda: clients.training.forward_backward([DATUM], "cross_entropy"),
            lambda: clients.training.optim_step(ADAM),
            lambda: clients.training.save_state("x"),
            lambda: clients.service.create_sampling_client(base_model=lab.base_model),
            lambda: tinker.ServiceClient(base_url=lab.url, api_key=KEY).holder,
            lambda: rest.list_sessions(limit=1),
            lambda: asyncio.run(awaited(clients.training.optim_step_async(ADAM))),
            lambda: asyncio.run(awaited(clients.sampling.sample_async(PROMPT, 1, PARAMS))),
        ):
            with pytest.raises(BudgetExhaustedError) as caught:
                call()
            assert (caught.value.owner, caught.value.submission) == ("tiny", "not sent")
            assert not is_capacity_error(caught.value)
            assert not isinstance(caught.value, (TimeoutError, tinker.TinkerError))
    finally:
        budget.__exit__(None, None, None)
    assert requests(lab) == before
    assert settled(clients.training.optim_step(ADAM)) is not None


async def awaited(awaitable: Any) -> Any:
    return await awaitable


def test_a_call_in_flight_is_cut_at_the_wall(
    switch: Switch, make_clients: Callable[..., Clients], installed: None, limits: Any
) -> None:
    """What is in flight when the smallest budget ends is cut with its owner's name; the larger one goes on."""
    clients = make_clients(switch.url)
    switch.mode = "silent"
    started_at = time.monotonic()
    with episode(30, name="run"), episode(0.4, name="turn"):
        futures = [clients.sampling.sample(PROMPT, 1, PARAMS), clients.training.optim_step(ADAM)]
        futures.append(clients.training.forward_backward([DATUM], "cross_entropy"))  # behind the step: its queue clock
        for future in futures:
            with pytest.raises(BudgetExhaustedError) as caught:
                future.result()
            assert caught.value.owner == "turn"
            assert time.monotonic() - started_at < 0.9
        assert caught.value.submission == "not sent"
    limits(0.3)
    with episode(30, name="run"), pytest.raises(StuckCallError):
        clients.sampling.sample(PROMPT, 1, PARAMS).result()


def test_connecting_is_cut_at_the_wall(switch: Switch, installed: None, lab: Lab) -> None:
    """A client that is being made is cut at the wall too, on a thread and on an event loop."""
    switch.mode = "silent"

    async def on_loop() -> None:
        async with episode(0.3, name="episode"):
            await tinker.ServiceClient(base_url=switch.url, api_key=KEY).create_sampling_client_async(base_model="m")

    for call in (lambda: asyncio.run(on_loop()), lambda: in_episode(lambda: new_holder(switch.url))):
        started_at = time.monotonic()
        with pytest.raises(BudgetExhaustedError):
            call()
        assert time.monotonic() - started_at < 1.3


def in_episode(call: Callable[[], Any]) -> Any:
    with episode(0.3, name="episode"):
        return call()


def new_holder(url: str) -> Any:
    return tinker.ServiceClient(base_url=url, api_key=KEY).holder


@pytest.mark.skipif(not hasattr(tinker.ServiceClient, "__exit__"), reason="from 0.29 on a service client is closed")
def test_closing_works_in_a_spent_budget(lab: Lab, installed: None) -> None:
    """`close()` and leaving a `with` block are not refused where nothing is left: they have a limit of their own."""
    for leave in (
        lambda service: service.close("success").result(),
        lambda service: service.__exit__(None, None, None),
    ):
        service = tinker.ServiceClient(base_url=lab.url, api_key=KEY)
        assert service.holder is not None
        budget = spent()
        try:
            leave(service)
        finally:
            budget.__exit__(None, None, None)
        with pytest.raises(RuntimeError):
            service.holder  # noqa: B018


@pytest.mark.skipif(not hasattr(tinker.ServiceClient, "__exit__"), reason="from 0.29 on a service client is closed")
def test_a_wall_inside_a_with_block(switch: Switch, lab: Lab, installed: None, limits: Any) -> None:
    """The wall's own error is what leaves `with ServiceClient()`, though the service does not answer any more."""
    limits(rest=0.3)
    with pytest.raises(BudgetExhaustedError), tinker.ServiceClient(base_url=switch.url, api_key=KEY) as service:
        sampling = settled(service.create_sampling_client(base_model=lab.base_model))
        switch.mode = "silent"
        with episode(0.3, name="episode"):
            sampling.sample(PROMPT, 1, PARAMS).result()


def test_threads_and_tasks_inherit_the_budget(
    switch: Switch, make_clients: Callable[..., Clients], installed: None
) -> None:
    """Calls of threads, pool threads and tasks that are started inside a budget are cut by it."""
    clients = make_clients(switch.url)
    switch.mode = "silent"
    owners: list[str] = []

    def call() -> None:
        try:
            clients.sampling.sample(PROMPT, 1, PARAMS).result(5)
        except BudgetExhaustedError as error:
            owners.append(error.owner)

    async def tasks() -> None:
        with episode(0.3, name="task"):
            await asyncio.gather(*[asyncio.create_task(call_async()) for _ in range(2)])

    async def call_async() -> None:
        try:
            await clients.sampling.sample_async(PROMPT, 1, PARAMS)
        except BudgetExhaustedError as error:
            owners.append(error.owner)

    with ThreadPoolExecutor(1) as pool, episode(0.3, name="thread"):
        thread = threading.Thread(target=call)
        thread.start()
        pool.submit(call).result(5)
        thread.join(5)
    asyncio.run(tasks())
    assert owners == ["thread"] * 2 + ["task"] * 2
