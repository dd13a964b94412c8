"""Do other people's programs see what they would see without us? Types, futures, warnings, signatures, patches."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import tinker
from sdk_calls import ADAM, CALLS, DATUM, KEY, PARAMS, PROMPT, Clients, connect, enumerate_surface, prepare
from sdk_switch import Switch
from sdk_tools import VERSION, eventually, settled
from tinker import APIFuture
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

import tinker_deadlines
from tinker_deadlines import StuckCallError
from tinker_deadlines.lab import Lab

NOW = VERSION >= (0, 38)


@pytest.fixture(scope="module")
def clients(lab: Lab) -> Clients:
    """Clients for every test of this module."""
    return connect(lab.url, lab.base_model)


def sample(clients: Clients) -> Any:
    return clients.sampling.sample(PROMPT, 1, PARAMS)


# Types ----------------------------------------------------------------------------------------------------------------


def test_each_method_returns_the_type_that_it_returns_without_us(clients: Clients, lab: Lab) -> None:
    """Every method of every client hands out the very type that the SDK's own does."""
    labels = [
        f"{client}.{name}" for client, name, _ in enumerate_surface()
        if f"{client}.{name}" in CALLS and not name.startswith("__")
        and name not in ("close", "raise_if_tinker_not_accessible", "create_custom_loss", "forward_backward_custom")
    ]  # fmt: skip

    def types_of() -> dict[str, type]:
        found: dict[str, type] = {}
        for label in labels:
            try:
                value = prepare(label, clients)()
            except Exception as error:  # a checkpoint that does not exist, before 0.38 said where it is asked for
                found[label] = type(error)
                continue
            found[label] = type(value)
        return found

    without = types_of()
    tinker_deadlines.install()
    assert {name: str(kind) for name, kind in types_of().items()} == {
        name: str(kind) for name, kind in without.items()
    } | {name: "<class 'tinker_deadlines.sdk.futures.SDKFuture'>" for name, kind in without.items() if kind is Future}


@pytest.mark.skipif(not NOW, reason="from 0.38 on, plain methods return futures that can be awaited")
def test_on_an_event_loop_the_types_are_the_same(clients: Clients, installed: None) -> None:
    """A client that is asked for on a running event loop arrives as the SDK's future that is also a client."""

    async def main() -> None:
        making = clients.service.create_lora_training_client(base_model=clients.model, rank=4)
        assert isinstance(making, tinker.TrainingClient)
        assert isinstance(making, APIFuture)
        assert type(making).__name__ == "BackcompatTrainingClientFuture"
        assert type(await making) is tinker.TrainingClient
        sampling = clients.service.create_sampling_client(base_model=clients.model)
        assert type(sampling).__name__ == "BackcompatSamplingClientFuture"
        assert type(await sampling) is tinker.SamplingClient
        assert isinstance(clients.rest.list_sessions(), AwaitableConcurrentFuture)

    asyncio.run(main())


@pytest.mark.skipif(not NOW, reason="from 0.38 on, the future of a client is also a client")
def test_the_future_of_a_client_is_a_client(clients: Clients, installed: None, limits: Any) -> None:
    """Methods and attributes of a client can be used on its future, and are bounded."""
    training = clients.service.create_lora_training_client(base_model=clients.model, rank=4)
    assert training.optim_step(ADAM).result() is not None
    assert training.model_id
    sampling = clients.service.create_sampling_client(base_model=clients.model)
    assert sampling.sample(PROMPT, 1, PARAMS).result() is not None


# What can be done with a future ---------------------------------------------------------------------------------------


def test_everything_that_is_done_with_futures(clients: Clients, installed: None) -> None:
    """`result`, `wait`, `as_completed` and callbacks work on the futures that are handed out."""
    future = sample(clients)
    assert isinstance(future, Future)
    assert len(future.result(10).sequences) == 1
    futures = [sample(clients) for _ in range(4)]
    done, pending = concurrent.futures.wait(futures, timeout=10)
    assert len(done) == 4 and not pending
    assert len(list(concurrent.futures.as_completed([sample(clients) for _ in range(4)], timeout=10))) == 4
    seen: list[Any] = []
    future = sample(clients)
    future.add_done_callback(seen.append)
    eventually(lambda: seen)
    assert seen[0].done() and seen[0].exception() is None
    step = clients.training.optim_step(ADAM)
    assert isinstance(step, AwaitableConcurrentFuture)
    seen.clear()
    step.future().add_done_callback(seen.append)
    eventually(lambda: seen)
    assert step.result() is seen[0].result()


def test_everything_that_is_done_with_futures_on_a_loop(clients: Clients, installed: None) -> None:
    """`await`, `gather`, tasks of `coroutine()`, `result_async` and `wait_for` work on what is handed out."""

    async def main() -> None:
        training = clients.training
        assert await training.optim_step(ADAM) is not None
        assert await training.optim_step(ADAM).result_async() is not None
        assert await training.optim_step(ADAM).result_async(timeout=10) is not None
        assert len(await asyncio.gather(training.optim_step(ADAM), training.forward([DATUM], "cross_entropy"))) == 2
        assert await asyncio.wait_for(training.optim_step(ADAM), 10) is not None
        assert await (await training.forward_backward_async([DATUM], "cross_entropy")) is not None
        assert await clients.sampling.sample_async(PROMPT, 1, PARAMS) is not None
        assert len(await asyncio.gather(*[clients.sampling.compute_logprobs_async(PROMPT) for _ in range(4)])) == 4
        if NOW:
            assert await sample(clients) is not None
            assert await asyncio.create_task(sample(clients).coroutine()) is not None
            assert await asyncio.gather(*[sample(clients).coroutine() for _ in range(3)])
        else:
            assert await asyncio.wrap_future(sample(clients)) is not None

    asyncio.run(main())


def test_a_persons_own_timeout(clients: Clients, switch: Switch, make_clients: Any, installed: None) -> None:
    """`result(timeout)` raises the builtin `TimeoutError` and cancels nothing: the result comes all the same."""
    far = make_clients(switch.url)
    switch.mode, switch.delay_s = "slow", 0.3
    for call in (lambda: sample(far), lambda: far.training.optim_step(ADAM)):
        future = call()
        with pytest.raises(TimeoutError) as caught:
            future.result(timeout=0.05)
        assert type(caught.value) is TimeoutError
        assert future.result(timeout=20) is not None

    async def main() -> None:
        step = far.training.optim_step(ADAM)
        with pytest.raises(TimeoutError):
            await step.result_async(timeout=0.05)
        assert await step.result_async(timeout=20) is not None

    asyncio.run(main())


def test_a_sample_can_be_cancelled(switch: Switch, make_clients: Any, installed: None) -> None:
    """A person's `cancel()` of a sample is obeyed at once."""
    far = make_clients(switch.url)
    switch.mode = "silent"
    future = sample(far)
    assert future.cancel() and future.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()


def test_the_errors_of_the_service_come_through(clients: Clients) -> None:
    """What the SDK raises is raised as the same class with the same words, at the same place."""

    def errors() -> list[tuple[type, str]]:
        found = []
        for call in (
            lambda: settled(clients.rest.get_training_run("no-such-run")),
            lambda: settled(clients.service.create_lora_training_client(base_model="no/such-model")),
            lambda: settled(clients.service.create_sampling_client()),
            lambda: settled(clients.rest.get_training_run_by_tinker_path("nonsense")),
            lambda: settled(clients.training.load_state("tinker://no/such/state")),
            lambda: clients.training.optim_step(1, 2, 3, 4),
        ):
            with pytest.raises(Exception) as caught:
                call()
            found.append((type(caught.value), str(caught.value)[:60]))
        return found

    without = errors()
    tinker_deadlines.install()
    assert errors() == without


# What inspects methods ------------------------------------------------------------------------------------------------


def describe() -> dict[str, Any]:
    """What can be seen of every public method from outside."""
    seen = {}
    for client, name, member in enumerate_surface():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        seen[f"{client}.{name}"] = (
            type(member),
            str(inspect.signature(function)),
            inspect.iscoroutinefunction(function),
            function.__name__,
            function.__qualname__,
            function.__doc__,
            function.__module__,
            getattr(function, "__deprecated__", None),
        )
    return seen


def test_methods_look_the_same(installed: None) -> None:
    """Signature, name, docstring, deprecation and being a coroutine function are those of the SDK's own methods."""
    with_us = describe()
    tinker_deadlines.uninstall()
    assert with_us == describe()


CLASSES = {client for client, _, _ in enumerate_surface() if client != "auth"}


def class_of(name: str) -> Any:
    from tinker.lib.public_interfaces import rest_client

    return getattr(tinker, name, None) or getattr(rest_client, name)


def picture() -> dict[str, Any]:
    """The identity of everything that a patch could replace: members of classes, contents of closure cells, modules."""
    seen: dict[str, Any] = {}
    owners = {name: class_of(name) for name in CLASSES}
    owners["auth"] = getattr(tinker, "auth", None)
    for name, owner in owners.items():
        for key, member in dict(vars(owner) if owner is not None else {}).items():
            seen[f"{name}.{key}"] = member
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            for number, cell in enumerate(getattr(function, "__closure__", None) or ()):
                seen[f"{name}.{key} cell {number}"] = cell.cell_contents
    from httpx import AsyncClient
    from tinker.lib.public_interfaces import sampling_client

    seen["send"] = AsyncClient.__dict__["send"]
    seen["unpickle"] = sampling_client._unpickle_sampling_client
    return seen


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(one[key] is other[key] for key in one)


def test_uninstall_restores_exactly() -> None:
    """After `uninstall()` every member and every closure cell is the very object that it was."""
    before = picture()
    tinker_deadlines.install()
    once = picture()
    assert not same(before, once)
    tinker_deadlines.install()
    assert same(once, picture())
    tinker_deadlines.uninstall()
    assert same(before, picture())
    tinker_deadlines.uninstall()
    assert same(before, picture())
    tinker_deadlines.install()
    tinker_deadlines.uninstall()
    assert same(before, picture())


def test_calls_in_flight_stay_bounded_after_uninstall(
    switch: Switch, make_clients: Callable[..., Clients], limits: Any
) -> None:
    """A call that is under way when `uninstall()` comes still ends with its expiry."""
    far = make_clients(switch.url)
    limits(0.4)
    switch.mode = "silent"
    tinker_deadlines.install()
    future = sample(far)
    tinker_deadlines.uninstall()
    with pytest.raises(StuckCallError):
        future.result(5)


# Patches of other people ----------------------------------------------------------------------------------------------


def trace(cls: type, name: str, seen: list[str]) -> Callable[[], None]:
    """Patches a method as the cookbook's tracing does; returns what takes the patch off again."""
    original = getattr(cls, name)

    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(name)
        returned = original(self, *args, **kwargs)
        future = returned.future() if hasattr(returned, "future") else returned
        future.add_done_callback(lambda done: seen.append(type(done.exception()).__name__))
        return returned

    setattr(cls, name, traced)
    return lambda: setattr(cls, name, original)


@pytest.mark.parametrize("ours_first", [True, False])
def test_patches_of_other_people(
    ours_first: bool, switch: Switch, make_clients: Callable[..., Clients], limits: Any
) -> None:
    """Tracing put on before or after us sees the expiry, takes itself off, and leaves the SDK as it was after both."""
    before = picture()
    far = make_clients(switch.url)
    seen: list[str] = []
    if ours_first:
        tinker_deadlines.install()
    take_off = trace(tinker.SamplingClient, "sample", seen)
    if not ours_first:
        tinker_deadlines.install()
    limits(0.3)
    switch.mode = "silent"
    with pytest.raises(StuckCallError):
        sample(far).result(5)
    eventually(lambda: len(seen) == 2 or not ours_first)
    assert seen[0] == "sample"
    if ours_first:
        assert seen[1] == "StuckCallError"
        take_off()
        with pytest.raises(StuckCallError):
            sample(far).result(5)
        tinker_deadlines.uninstall()
    else:
        tinker_deadlines.uninstall()
        take_off()
    assert same(before, picture())


def test_uninstall_leaves_a_patch_on_top_alone(clients: Clients) -> None:
    """Where somebody's patch lies over ours, `uninstall()` does not take theirs off, and calls go on, unbounded."""
    original = tinker.SamplingClient.__dict__["sample"]
    tinker_deadlines.install()
    seen: list[str] = []
    trace(tinker.SamplingClient, "sample", seen)
    tinker_deadlines.uninstall()
    try:
        assert settled(sample(clients)) is not None
        assert seen[0] == "sample"
    finally:
        tinker.SamplingClient.sample = original


# Warnings -------------------------------------------------------------------------------------------------------------


def warned(call: Callable[[], Any]) -> list[tuple[str, int, type, str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settled_or_not(call)
    # A connection that the SDK left to the garbage collector may be found in any moment.
    meant = [each for each in caught if each.category is not ResourceWarning]
    return [(each.filename, each.lineno, each.category, str(each.message)[:50]) for each in meant]


def settled_or_not(call: Callable[[], Any]) -> None:
    try:
        settled(call())
    except Exception:
        return


def test_warnings_point_at_the_callers_line(clients: Clients) -> None:
    """A deprecation is attributed to the line that made the call, as without us, so that filters go on matching."""
    path = "tinker://no/such/state"

    def calls() -> list[tuple[str, int, type, str]]:
        return [
            *warned(lambda: clients.training.load_state(path)),
            *warned(lambda: settled(clients.service.get_server_capabilities())),
            *warned(lambda: settled(clients.service.create_rest_client())),
            *warned(lambda: tinker.ServiceClient(base_url=clients.url, api_key=KEY, nonsense=1)),
            *warned(lambda: asyncio.run(run(clients.sampling.sample_async(PROMPT, 1, PARAMS)))),
        ]

    without = calls()
    assert NOW is False or {filename for filename, *_ in without} == {__file__}
    tinker_deadlines.install()
    assert calls() == without


async def run(awaitable: Any) -> Any:
    return await awaitable


# Leaving a block ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(tinker.ServiceClient, "__exit__"), reason="from 0.29 on it is a context manager")
@pytest.mark.parametrize("mode", ["silent", "refuse"])
def test_the_exception_that_leaves_a_with_block_survives(
    mode: Any, switch: Switch, lab: Lab, installed: None, limits: Any
) -> None:
    """An exception on its way out of `with ServiceClient()` is the one that is seen, within the limit of closing."""

    class OwnError(Exception):
        pass

    limits(rest=0.4)
    started_at = time.monotonic()
    with pytest.raises(OwnError), tinker.ServiceClient(base_url=switch.url, api_key=KEY) as service:
        assert service.holder is not None
        switch.mode = mode
        switch.drop()
        started_at = time.monotonic()
        raise OwnError
    assert time.monotonic() - started_at < 0.9


@pytest.mark.skipif(not hasattr(tinker.ServiceClient, "__exit__"), reason="from 0.29 on it is a context manager")
def test_leaving_a_with_block_in_order(lab: Lab, installed: None) -> None:
    """Without an exception the block ends the session and returns nothing, as in the SDK."""
    with tinker.ServiceClient(base_url=lab.url, api_key=KEY) as service:
        assert type(service) is tinker.ServiceClient
        settled(service.create_sampling_client(base_model=lab.base_model))
    with pytest.raises(RuntimeError):
        service.holder  # noqa: B018


# The SDK's own loop ---------------------------------------------------------------------------------------------------


def test_a_callback_on_the_sdk_loop_may_call(clients: Clients, installed: None) -> None:
    """A done-callback that samples on the SDK's loop goes straight through and blocks nothing."""
    answers: list[Any] = []
    on: list[str] = []

    def again(_: Any) -> None:
        on.append(threading.current_thread().name)
        answers.append(sample(clients))

    first = sample(clients)
    first.add_done_callback(again)
    first.result(10)
    eventually(lambda: answers)
    assert answers[0].result(10) is not None
    assert sample(clients).result(10) is not None


def test_a_callback_that_never_returns_delays_no_other_expiry(
    switch: Switch, make_clients: Callable[..., Clients], installed: None, limits: Any
) -> None:
    """Expiries of others are on time while a done-callback of one expired call blocks for ever."""
    far = make_clients(switch.url)
    limits(0.3)
    switch.mode = "silent"
    release = threading.Event()
    sample(far).add_done_callback(lambda _: release.wait(20))
    time.sleep(0.1)
    started_at = time.monotonic()
    try:
        futures = [sample(far) for _ in range(20)]
        for future in futures:
            with pytest.raises(StuckCallError):
                future.result(5)
        assert time.monotonic() - started_at < 0.3 + 0.5
    finally:
        release.set()


# Calls in unusual forms -----------------------------------------------------------------------------------------------


def test_self_may_be_passed_by_name(clients: Clients, installed: None) -> None:
    """A method looked up on its class and called with `self=` works as in the SDK."""
    assert settled(tinker.TrainingClient.forward(self=clients.training, data=[DATUM], loss_fn="cross_entropy"))


def test_what_cannot_be_measured_is_left_to_the_sdk(clients: Clients) -> None:
    """An argument that raises when its size is asked for fails as it does without us, in the SDK's own words."""

    class Unreadable:
        @property
        def max_tokens(self) -> int:
            raise RuntimeError("only we would look")

    def error() -> str:
        with pytest.raises(Exception) as caught:
            settled(clients.sampling.sample(PROMPT, 1, Unreadable()))
        return type(caught.value).__name__ + str(caught.value)[:60]

    without = error()
    tinker_deadlines.install()
    assert error() == without
    assert "only we" not in without


class Inheriting(tinker.SamplingClient):
    """Somebody's own client."""

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        return super().sample(*args, **kwargs)


def test_a_subclass_of_somebody(
    switch: Switch, make_clients: Callable[..., Clients], installed: None, limits: Any
) -> None:
    """A method that somebody overrides and that calls the SDK's own is bounded there."""
    far = make_clients(switch.url)
    far.sampling.__class__ = Inheriting
    limits(0.3)
    switch.mode = "silent"
    with pytest.raises(StuckCallError):
        sample(far).result(5)
