"""Does connecting leave the caller's event loop alone? And does `guard` bound what it was given, and nothing else?"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
import tinker
from sdk_calls import ADAM, KEY, PARAMS, PROMPT, Clients
from sdk_switch import Switch
from sdk_tools import VERSION, settled

import tinker_deadlines
from tinker_deadlines import StuckCallError, guard
from tinker_deadlines.lab import Lab
from tinker_deadlines.waiting.workers import workers

NOW = VERSION >= (0, 38)
TICK_S = 0.02
GAP_S = 0.2


async def longest_gap(work: Callable[[], Any]) -> tuple[float, float]:
    """Runs `work` beside a ticker; the longest pause between two ticks, and how long the work took."""
    ticks = [time.monotonic()]

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            ticks.append(time.monotonic())

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(5 * TICK_S)
    started_at = time.monotonic()
    await work()
    took_s = time.monotonic() - started_at
    ticker.cancel()
    ticks.append(time.monotonic())
    return max(later - earlier for earlier, later in itertools.pairwise(ticks)), took_s


def connections(clients: Clients) -> dict[str, Callable[[], Any]]:
    """Every way to a client or to capabilities that async code has in this version, each on a fresh service client."""

    async def make(name: str, *args: Any, **kwargs: Any) -> Any:
        return await getattr(clients.fresh_service(), name)(*args, **kwargs)

    model = clients.model
    ways = {
        "create_lora_training_client_async": lambda: make("create_lora_training_client_async", model, rank=4),
        "create_sampling_client_async": lambda: make("create_sampling_client_async", base_model=model),
        "get_server_capabilities_async": lambda: make("get_server_capabilities_async"),
        "save_weights_and_get_sampling_client_async": (
            lambda: run(clients.training.save_weights_and_get_sampling_client_async())
        ),
    }
    if NOW:
        ways["create_lora_training_client"] = lambda: make("create_lora_training_client", model, rank=4)
        ways["create_sampling_client"] = lambda: make("create_sampling_client", base_model=model)
        ways["save_weights_and_get_sampling_client"] = lambda: run(
            clients.training.save_weights_and_get_sampling_client()
        )
    return ways


async def run(awaitable: Any) -> Any:
    return await awaitable


WAYS = [
    "create_lora_training_client_async",
    "create_sampling_client_async",
    "get_server_capabilities_async",
    "save_weights_and_get_sampling_client_async",
    *(["create_lora_training_client", "create_sampling_client", "save_weights_and_get_sampling_client"] if NOW else []),
]


@pytest.mark.parametrize("way", WAYS)
def test_connecting_does_not_stall_the_loop(
    way: str, switch: Switch, make_clients: Callable[..., Clients], installed: None
) -> None:
    """While a slow server is connected to, other tasks of the caller's loop go on as if nothing were."""
    clients = make_clients(switch.url)
    switch.mode, switch.delay_s = "slow", 0.4
    gaps_s = []
    for _ in range(3):
        # The best of three: a busy machine keeps a loop waiting as well, but not each time.
        gap_s, took_s = asyncio.run(longest_gap(connections(clients)[way]))
        assert took_s > 0.35, "the server was not slow"
        gaps_s.append(gap_s)
        if gap_s < GAP_S:
            return
    raise AssertionError(gaps_s)


def test_without_us_the_loop_is_stalled(switch: Switch, make_clients: Callable[..., Clients]) -> None:
    """The control: the SDK alone keeps the loop for as long as it connects, so that the test above can fail."""
    clients = make_clients(switch.url)
    switch.mode, switch.delay_s = "slow", 0.4
    gap_s, _ = asyncio.run(longest_gap(connections(clients)["create_sampling_client_async"]))
    assert gap_s > GAP_S


def test_a_cancelled_connection_leaves_the_loop_at_once(
    switch: Switch, make_clients: Callable[..., Clients], installed: None
) -> None:
    """`asyncio.wait_for` around making a client fires on time, where the SDK's own would keep the loop."""
    clients = make_clients(switch.url)
    switch.mode = "silent"

    async def main() -> float:
        started_at = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(connections(clients)["create_sampling_client_async"](), 0.2)
        return time.monotonic() - started_at

    assert asyncio.run(main()) < 0.7
    assert workers.abandoned >= 1


# guard ----------------------------------------------------------------------------------------------------------------


def is_bounded(future: Any) -> bool:
    inner = future.future() if hasattr(future, "future") else future
    return "SDKFuture" in type(inner).__name__


def test_guard_bounds_one_client_and_what_it_makes(lab: Lab, make_clients: Callable[..., Clients]) -> None:
    """The clients that a guarded client makes are bounded too; another client of the same class is untouched."""
    other = make_clients()
    service = tinker.ServiceClient(base_url=lab.url, api_key=KEY)
    assert guard(service) is service
    training = settled(service.create_lora_training_client(base_model=lab.base_model, rank=4))
    sampling = settled(service.create_sampling_client(base_model=lab.base_model))
    assert is_bounded(training.optim_step(ADAM))
    assert is_bounded(sampling.sample(PROMPT, 1, PARAMS))
    ephemeral = settled(training.save_weights_and_get_sampling_client())
    assert is_bounded(ephemeral.sample(PROMPT, 1, PARAMS))
    assert not is_bounded(other.training.optim_step(ADAM))
    assert not is_bounded(other.sampling.sample(PROMPT, 1, PARAMS))


def test_what_is_made_on_a_loop_is_guarded(lab: Lab) -> None:
    """A client that a guarded client makes in async code is bounded."""

    async def main() -> Any:
        service = guard(tinker.ServiceClient(base_url=lab.url, api_key=KEY))
        training = await service.create_lora_training_client_async(base_model=lab.base_model, rank=4)
        ephemeral = await training.save_weights_and_get_sampling_client_async()
        return training, ephemeral

    training, ephemeral = asyncio.run(main())
    assert is_bounded(training.optim_step(ADAM))
    assert is_bounded(ephemeral.sample(PROMPT, 1, PARAMS))


def test_the_rest_client_of_a_guarded_client_is_guarded(
    switch: Switch, make_clients: Callable[..., Clients], limits: Any
) -> None:
    """The REST client that a guarded service client makes is bounded."""
    clients = make_clients(switch.url)
    rest = guard(clients.service).create_rest_client()
    limits(0.3)
    switch.mode = "silent"
    with pytest.raises(StuckCallError):
        rest.list_sessions().result(5)


def test_guarded_calls_expire_and_others_do_not(
    switch: Switch, make_clients: Callable[..., Clients], limits: Any
) -> None:
    """In one silence, the call of a guarded client expires while the same call of another is left to wait."""
    guarded, other = make_clients(switch.url), make_clients(switch.url)
    guard(guarded.sampling)
    limits(0.3)
    switch.mode = "silent"
    waiting = other.sampling.sample(PROMPT, 1, PARAMS)
    with pytest.raises(StuckCallError):
        guarded.sampling.sample(PROMPT, 1, PARAMS).result(5)
    with pytest.raises(TimeoutError):
        waiting.result(timeout=0.3)


@pytest.mark.skipif(not NOW, reason="from 0.38 on, making a client returns the future of one")
def test_guarding_the_future_of_a_client(make_clients: Callable[..., Clients]) -> None:
    """`guard` takes the future of a client: used as the client or awaited, its calls are bounded."""
    clients = make_clients()
    future = guard(clients.service.create_lora_training_client(base_model=clients.model, rank=4))
    assert is_bounded(future.optim_step(ADAM))
    assert is_bounded(future.result().optim_step(ADAM))


@pytest.mark.parametrize("rubbish", [None, 1, "client", object(), tinker.ServiceClient, [], ValueError()])
def test_guard_refuses_what_is_no_client(rubbish: Any) -> None:
    """`guard` of anything that is not a client says so, and patches nothing."""
    before = tinker.SamplingClient.__dict__["sample"]
    with pytest.raises(TypeError, match="client"):
        guard(rubbish)
    assert tinker.SamplingClient.__dict__["sample"] is before


def test_guard_then_install_then_uninstall(make_clients: Callable[..., Clients]) -> None:
    """`install()` after `guard()` bounds everybody; `uninstall()` lets the guarded client go as well."""
    one, other = make_clients(), make_clients()
    original = tinker.SamplingClient.__dict__["sample"]
    guard(one.sampling)
    tinker_deadlines.install()
    assert is_bounded(other.sampling.sample(PROMPT, 1, PARAMS))
    tinker_deadlines.uninstall()
    assert not is_bounded(one.sampling.sample(PROMPT, 1, PARAMS))
    assert tinker.SamplingClient.__dict__["sample"] is original
    tinker_deadlines.install()
    tinker_deadlines.uninstall()
    guard(other.sampling)
    assert not is_bounded(one.sampling.sample(PROMPT, 1, PARAMS))
