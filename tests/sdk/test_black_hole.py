"""Does every public method give control back when nobody answers? Each is called against a server that has vanished."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import pytest
import tinker
from sdk_calls import ADAM, CALLS, KEY, Clients, connect, custom_loss, enumerate_surface, prepare
from sdk_switch import Mode, Switch, everybody_is_back
from sdk_tools import VERSION
from tinker import APIFuture

from tinker_deadlines import AbandonedCallsError, StuckCallError
from tinker_deadlines.calls import board
from tinker_deadlines.lab import Lab
from tinker_deadlines.limits import MAX_ABANDONED_WORKERS
from tinker_deadlines.sdk import futures, wrappers
from tinker_deadlines.sdk.surface import row_for
from tinker_deadlines.waiting.workers import Workers

LIMIT_S = 0.5
GRACE_S = 0.5
AT_ONCE = 10
NAMES = [(client, name) for client, name, _ in enumerate_surface()]
LABELS = [f"{client}.{name}" for client, name in NAMES if f"{client}.{name}" in CALLS]
TWINS = [f"{client}.{name}".removesuffix("_async") for client, name in NAMES if name.endswith("_async")]
CLOSING = ("ServiceClient.close", "ServiceClient.__exit__")
HAS_EXIT = hasattr(tinker.ServiceClient, "__exit__")


Run = Callable[[dict[str, Callable[[], Any]]], dict[str, "Ended"]]


class Ended(NamedTuple):
    """How a call ended: its value or its error, and after how long."""

    value: Any
    error: BaseException | None
    after_s: float


def check_each(run: Run, calls: dict[str, Callable[[], Any]], switch: Switch) -> None:
    """Checks how the calls end, made in handfuls; one that came back late gets a second chance on its own.

    Many calls at once on a busy machine measure the machine. What is late twice, the second time alone, is our fault.
    """
    ended = run(calls)
    late = [label for label, how in ended.items() if how.after_s > LIMIT_S + GRACE_S]
    if late:
        mode, switch.mode = switch.mode, "pass"
        everybody_is_back(switch)
        switch.mode = mode
    for label in late:
        ended |= run({label: calls[label]})
    check(ended)


def timed(call: Callable[[], Any]) -> Ended:
    """Makes a call, and waits for its future without a timeout, as a script does."""
    started_at = time.monotonic()
    value = error = None
    try:
        value = call()
        if isinstance(value, (APIFuture, Future)):
            value = value.result()
    except BaseException as raised:
        error = raised
    return Ended(value, error, time.monotonic() - started_at)


async def timed_async(call: Callable[[], Any]) -> Ended:
    """Makes a call on a running event loop and awaits whatever it returns."""
    started_at = time.monotonic()
    value = error = None
    try:
        value = call()
        while inspect.isawaitable(value) or isinstance(value, Future):
            value = await (asyncio.wrap_future(value) if not inspect.isawaitable(value) else value)
    except BaseException as raised:
        error = raised
    return Ended(value, error, time.monotonic() - started_at)


def all_at_once(calls: dict[str, Callable[[], Any]]) -> dict[str, Ended]:
    """Makes the calls on a thread each."""
    ended: dict[str, Ended] = {}

    def make(label: str, call: Callable[[], Any]) -> None:
        ended[label] = timed(call)

    left = list(calls.items())
    while left:
        # In handfuls: what is measured is how late an expiry is, not how fast this machine starts threads.
        handful, left = left[:AT_ONCE], left[AT_ONCE:]
        threads = [threading.Thread(target=make, args=each, daemon=True) for each in handful]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert set(ended) == set(calls), f"never came back: {set(calls) - set(ended)}"
    return ended


def all_at_once_async(calls: dict[str, Callable[[], Any]]) -> dict[str, Ended]:
    """Makes the calls as tasks of one event loop."""

    async def main() -> list[Ended]:
        made = list(calls.values())
        async with asyncio.timeout(40):
            handfuls = [made[start : start + AT_ONCE] for start in range(0, len(made), AT_ONCE)]
            return [how for handful in handfuls for how in await asyncio.gather(*map(timed_async, handful))]

    return dict(zip(calls, asyncio.run(main()), strict=True))


def check(ended: dict[str, Ended]) -> None:
    """Each came back in time: with the error that tells its facts, or at once from what was known."""
    wrong = [problem for label, how in ended.items() if (problem := problem_with(label, how))]
    assert not wrong, "\n".join(wrong)


def problem_with(label: str, how: Ended) -> str:
    client, _, name = label.partition(".")
    row = row_for(client, name)
    assert row is not None
    if how.after_s > LIMIT_S + GRACE_S:
        return f"{label} took {how.after_s:.2f} s: {how.error!r}"
    if how.error is None:
        return "" if CALLS[label].from_memory else f"{label} returned {how.value!r} out of nothing"
    if isinstance(how.error, ImportError) and "torch" in str(how.error).lower():
        return ""  # made before anything is sent; the custom loss has a test of its own
    if isinstance(how.error, AssertionError) and "incorrect event loop" in str(how.error):
        # The SDK's own mistake: before 0.38 this twin works on no loop but the SDK's.
        return "" if name == "get_audit_log" and VERSION < (0, 38) else f"{label} raised {how.error!r}"
    if not isinstance(how.error, StuckCallError):
        return f"{label} raised {how.error!r}"
    facts = how.error
    if (facts.kind, facts.deadline_s) != (
        row.kind,
        LIMIT_S,
    ) or not LIMIT_S * 0.9 <= facts.elapsed_s <= how.after_s + 0.1:
        return f"{label}: {facts!r}"
    if not facts.method.removesuffix("_async").endswith(name.removeprefix("__")) and name != "create_sampling_client":
        return f"{label} is called {facts.method!r} in its error"
    harmless = row.kind in ("sample", "compute_logprobs", "rest")
    if facts.submission not in ("not sent", "sent" if harmless else "indeterminate"):
        return f"{label} is said to be {facts.submission!r}"
    if "timed out" not in str(facts) or (facts.evidence != () and facts.submission == "not sent"):
        return f"{label} says {facts}"
    return ""


def test_every_method_is_called_here() -> None:
    """No method of the table is left out of the calls that these tests make."""
    rows = {(client, name) for client, name in NAMES if (row := row_for(client, name)) and row.kind is not None}
    called = {tuple(label.split(".")) for label in LABELS}
    assert {(client, name.removesuffix("_async")) for client, name in rows} == called


@pytest.fixture(autouse=True)
def _with_a_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_PROJECT_ID", "a-project")  # without one, copies are refused before they are sent


@pytest.mark.parametrize("mode", ["silent", "headers", "drip"])
def test_clients_made_before_the_hole_opened(
    mode: Mode, switch: Switch, make_clients: Callable[..., Clients], installed: None, limits: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Every method of clients that exist gives control back within its limit, called on threads."""
    monkeypatch.setenv("TINKER_BASE_URL", switch.url)
    clients = make_clients(switch.url)
    calls = {label: prepare(label, clients) for label in LABELS if label not in CLOSING}
    limits(LIMIT_S)
    switch.mode = mode
    check_each(all_at_once, calls, switch)
    check(all_at_once({label: prepare(label, clients) for label in LABELS if label in CLOSING[:1]}))


@pytest.mark.parametrize("mode", ["silent", "drip"])
def test_async_clients_made_before_the_hole_opened(
    mode: Mode, switch: Switch, make_clients: Callable[..., Clients], installed: None, limits: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Every `*_async` method of clients that exist gives control back within its limit, all on one event loop."""
    monkeypatch.setenv("TINKER_BASE_URL", switch.url)
    clients = make_clients(switch.url)
    calls = {label: prepare(label, clients, twin=True) for label in TWINS}
    limits(LIMIT_S)
    switch.mode = mode
    check_each(all_at_once_async, calls, switch)


@pytest.mark.skipif(VERSION < (0, 38), reason="before 0.38 plain methods block, on an event loop as well")
def test_awaited_plain_methods(
    switch: Switch, make_clients: Callable[..., Clients], installed: None, limits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every plain method, awaited on a running event loop as 0.38 has it, gives control back within its limit."""
    monkeypatch.setenv("TINKER_BASE_URL", switch.url)
    clients = make_clients(switch.url)
    blocking = {"ServiceClient.get_server_capabilities", "auth.raise_if_tinker_not_accessible", *CLOSING}
    calls = {label: prepare(label, clients) for label in LABELS if label not in blocking}
    limits(LIMIT_S)
    switch.mode = "silent"
    check_each(all_at_once_async, calls, switch)


@pytest.mark.parametrize("mode", ["silent", "headers"])
def test_connecting_from_nothing(
    mode: Mode, switch: Switch, lab: Lab, installed: None, limits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way to make a client gives control back within its limit when there never was a server."""
    monkeypatch.setenv("TINKER_BASE_URL", switch.url)
    clients = connect(lab.url, lab.base_model)
    clients.url = switch.url
    limits(LIMIT_S)
    switch.mode = mode
    calls = {
        label: on_new_service(label, clients) for label in LABELS
        if label.startswith("ServiceClient.")
        and label not in CLOSING
        and not label.endswith(("__enter__", "custom_loss"))
    }  # fmt: skip
    calls |= {label: prepare(label, clients) for label in LABELS if VERSION >= (0, 36) and label.endswith("__init__")}
    calls |= {label: prepare(label, clients) for label in LABELS if label.startswith("auth.")}
    ended = all_at_once(calls)
    assert all(how.error is not None for how in ended.values()), ended
    check(ended)


def test_connecting_from_nothing_async(
    switch: Switch, lab: Lab, installed: None, limits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for the `*_async` forms, all on one event loop, which none of them stalls."""
    monkeypatch.setenv("TINKER_BASE_URL", switch.url)
    clients = connect(lab.url, lab.base_model)
    clients.url = switch.url
    limits(LIMIT_S)
    switch.mode = "silent"
    calls = {
        label: on_new_service(label, clients, twin=True) for label in TWINS
        if label.startswith("ServiceClient.")
    }  # fmt: skip
    ended = all_at_once_async(calls)
    assert all(how.error is not None for how in ended.values()), ended
    check(ended)


def on_new_service(label: str, clients: Clients, *, twin: bool = False) -> Callable[[], Any]:
    """The call on a service client of its own, that has never connected."""
    alone = Clients(clients.url, clients.model, clients.fresh_service())
    return prepare(label, alone, twin)


@pytest.mark.skipif(not HAS_EXIT, reason="from 0.29 on a service client is a context manager")
def test_close_and_exit_that_nobody_answers(
    switch: Switch, make_clients: Callable[..., Clients], installed: None, limits: Any
) -> None:
    """`close` and `__exit__` give up after their limit, on a client with a session and on one that still connects."""
    for label in CLOSING:
        connected = make_clients(switch.url)
        limits(LIMIT_S)
        switch.mode = "silent"
        connecting = connected.fresh_service()
        assert isinstance(timed(lambda: connecting.holder).error, StuckCallError)  # noqa: B023
        check({label: timed(prepare(label, connected))})
        check({label: timed(prepare(label, Clients(switch.url, "", connecting)))})
        limits(20)
        switch.mode = "pass"
        switch.drop()


@pytest.mark.parametrize("telemetry", ["0", "1"])
def test_argument_errors_do_not_wait_for_telemetry(
    telemetry: str, switch: Switch, make_clients: Callable[..., Clients], installed: None, limits: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A call with a bad argument ends within its limit, though the SDK tells its telemetry first and nobody listens."""
    monkeypatch.setenv("TINKER_TELEMETRY", telemetry)
    clients = make_clients(switch.url)
    limits(LIMIT_S)
    switch.mode = "silent"
    for call in (
        lambda: clients.rest.get_training_run_by_tinker_path("no path"),
        lambda: clients.rest.delete_checkpoint_from_tinker_path("no path"),
        lambda: clients.service.create_lora_training_client(
            base_model="m", train_mlp=False, train_attn=False, train_unembed=False
        ),
        lambda: clients.training.forward_backward_custom([], custom_loss, loss_type_input="nonsense"),
        lambda: clients.training.forward([object()], "cross_entropy"),
        lambda: clients.sampling.sample(None, 1, None),
    ):
        how = timed(call)
        assert how.error is not None
        assert how.after_s < LIMIT_S + GRACE_S, how
        if telemetry == "0":
            assert not isinstance(how.error, StuckCallError), how


@pytest.mark.parametrize("telemetry", ["0", "1"])
def test_async_argument_errors_do_not_wait_for_telemetry(
    telemetry: str, switch: Switch, make_clients: Callable[..., Clients], installed: None, limits: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The same on an event loop, with the `*_async` forms."""
    monkeypatch.setenv("TINKER_TELEMETRY", telemetry)
    clients = make_clients(switch.url)
    limits(LIMIT_S)
    switch.mode = "silent"
    ended = all_at_once_async(
        {
            "path": lambda: clients.rest.get_training_run_by_tinker_path_async("no path"),
            "nothing to train": lambda: clients.service.create_lora_training_client_async(
                base_model="m", train_mlp=False, train_attn=False, train_unembed=False
            ),
            "rubbish": lambda: clients.training.forward_async([object()], "cross_entropy"),
            "nothing": lambda: clients.sampling.sample_async(None, 1, None),
        }
    )
    for how in ended.values():
        assert how.error is not None
        assert how.after_s < LIMIT_S + GRACE_S, how


def test_a_training_client_in_a_hole_is_bounded_call_by_call(
    switch: Switch, make_clients: Callable[..., Clients], installed: None, limits: Any
) -> None:
    """Calls submitted one behind the other expire one limit apart: none is charged for those before it."""
    clients = make_clients(switch.url)
    limits(0.3)
    switch.mode = "silent"
    started_at = time.monotonic()
    futures = [clients.training.optim_step(ADAM) for _ in range(4)]
    for position, future in enumerate(futures, start=1):
        with pytest.raises(StuckCallError) as caught:
            future.result()
        assert 0.3 * position <= time.monotonic() - started_at + 0.01 < 0.3 * position + GRACE_S
        assert 0.29 < caught.value.elapsed_s < 0.3 + GRACE_S
    assert len(board.in_flight) == 0


def test_past_the_last_thread_a_call_is_refused_at_once(
    switch: Switch, lab: Lab, installed: None, limits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When 32 connections hold a thread each that nobody waits for, a further one is refused in words, not started."""
    # A pool of its own: threads that earlier tests have left may end at any moment.
    fresh = Workers()
    for module in (wrappers, futures):
        monkeypatch.setattr(module, "workers", fresh)
    limits(0.2)
    switch.mode = "silent"
    services = [tinker.ServiceClient(base_url=switch.url, api_key=KEY) for _ in range(MAX_ABANDONED_WORKERS + 1)]
    for service in services[:-1]:
        assert isinstance(timed(lambda: service.holder).error, StuckCallError)  # noqa: B023
    refused = timed(lambda: services[-1].holder)
    assert isinstance(refused.error, AbandonedCallsError)
    assert refused.after_s < 0.1
    assert fresh.abandoned == MAX_ABANDONED_WORKERS
