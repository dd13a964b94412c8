"""Does the table know the SDK? Enumerated from the SDK itself, and tried out where trying is possible."""

from __future__ import annotations

import ast
import asyncio
import inspect
import pickle
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import tinker
from sdk_calls import CALLS, KEY, PARAMS, PROMPT, Clients, enumerate_surface, prepare
from sdk_switch import Switch
from sdk_tools import VERSION, settled

from tinker_deadlines.calls import KINDS, TRAINING_KINDS
from tinker_deadlines.lab import Lab
from tinker_deadlines.sdk import private
from tinker_deadlines.sdk.install import install, public_methods, sdk_version, uninstall
from tinker_deadlines.sdk.surface import SURFACE, row_for

SURFACE_HERE = [(client, name, member) for client, name, member in enumerate_surface()]
NAMES_HERE = {f"{client}.{name}" for client, name, _ in SURFACE_HERE}

# Rows that a supported version does not have, from the SDK's change notes. What is not listed must be there.
SINCE = {
    "auth.raise_if_tinker_not_accessible": (0, 30),
    "auth.get_tinker_token": (0, 30),
    "auth.tinker_has_credentials": (0, 30),
    "ServiceClient.__enter__": (0, 29),
    "ServiceClient.__exit__": (0, 29),
    "ServiceClient.close": (0, 27),
    "ServiceClient.copy_weights": (0, 30),
    "ServiceClient.create_custom_loss": (0, 32),
    "ServiceClient.get_console_url": (0, 30),
    "TrainingClient.get_console_url": (0, 30),
    "TrainingClient.save_weights_external": (0, 30),
    "SamplingClient.from_sampler_handle": (0, 32),
    "SamplingClient.get_sampler_handle": (0, 32),
    "RestClient.get_server_capabilities": (0, 38),
    "RestClient.get_external_weights_urls": (0, 30),
    "RestClient.search_sessions": (0, 36),
    "RestClient.get_current_checkpoint_storage_usage": (0, 36),
    "RestClient.copy_weights": (0, 36),
    "AdminClient": (0, 36),
}
UNTIL = {
    "RestClient.get_checkpoint_archive_url": (0, 36),
    "RestClient.get_checkpoint_archive_url_from_tinker_path": (0, 36),
}


def function_of(member: Any) -> Any:
    """The function that a member calls in the end, below the SDK's decorators."""
    member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    return inspect.unwrap(member)


def test_the_table_knows_every_public_method() -> None:
    """The table has a row for each public method of each public client, deprecated twins under their own method."""
    assert [f"{client}.{name}" for client, name, _ in SURFACE_HERE if row_for(client, name) is None] == []


def test_our_own_enumeration_finds_what_this_one_finds() -> None:
    """No method is invisible to `install()`: it enumerates the same surface as the test does."""
    assert {f"{found.client}.{found.name}" for found in public_methods()} == NAMES_HERE


def test_no_row_is_stale() -> None:
    """Each row stands for a method that this version has, or that the notes above say it lacks."""
    wrong = []
    for row in (f"{client}.{name}" for client, rows in SURFACE.items() for name in rows):
        since = SINCE.get(row) or SINCE.get(row.partition(".")[0])
        expected = (since is None or VERSION >= since) and (row not in UNTIL or VERSION < UNTIL[row])
        if (row in NAMES_HERE) is not expected:
            wrong.append(f"{row}: there={row in NAMES_HERE}, noted={expected}")
    assert wrong == []


def test_every_method_that_makes_a_call_is_called_by_these_tests() -> None:
    """A method of the table that makes a call, and that this version has, is in the list of calls."""
    calling = {
        f"{client}.{name}" for client, rows in SURFACE.items() for name, row in rows.items() if row.kind is not None
    }
    assert calling & NAMES_HERE <= set(CALLS)
    assert set(CALLS) <= calling


def test_kinds() -> None:
    """Each method is of the kind that its limit is meant for."""
    kinds = {f"{client}.{name}": row.kind for client, rows in SURFACE.items() for name, row in rows.items()}
    special = {
        "ServiceClient.__enter__": "rest",
        "ServiceClient.__exit__": "rest",
        "ServiceClient.close": "rest",
        "ServiceClient.copy_weights": "rest",
        "ServiceClient.create_training_client_from_state": "load_state",
        "ServiceClient.create_training_client_from_state_with_optimizer": "load_state",
        "TrainingClient.forward": "forward_backward",
        "TrainingClient.forward_backward": "forward_backward",
        "TrainingClient.forward_backward_custom": "forward_backward",
        "TrainingClient.optim_step": "optim_step",
        "TrainingClient.save_state": "save_state",
        "TrainingClient.save_weights_external": "save_state",
        "TrainingClient.save_weights_for_sampler": "save_weights_for_sampler",
        "TrainingClient.save_weights_and_get_sampling_client": "save_weights_for_sampler",
        "TrainingClient.load_state": "load_state",
        "TrainingClient.load_state_with_optimizer": "load_state",
        "SamplingClient.sample": "sample",
        "SamplingClient.compute_logprobs": "compute_logprobs",
        "RestClient.__init__": "connect",
        "AdminClient.__init__": "connect",
    }
    for label, kind in kinds.items():
        if kind is not None:
            by_client = "rest" if label.startswith(("RestClient", "AdminClient")) else "connect"
            assert kind == special.get(label, by_client), label
            assert kind in KINDS


LOCAL_ROWS = {
    "auth.get_tinker_token",
    "auth.tinker_has_credentials",
    "ServiceClient.__init__",
    "ServiceClient.get_console_url",
    "ServiceClient.get_telemetry",
    "TrainingClient.__init__",
    "TrainingClient.get_console_url",
    "TrainingClient.get_telemetry",
    "SamplingClient.__init__",
    "SamplingClient.get_sampler_handle",
    "SamplingClient.get_telemetry",
    "SamplingClient.on_queue_state_change",
    "RestClient.get_telemetry",
    "AdminClient.get_telemetry",
}


def test_only_what_answers_from_memory_is_left_alone() -> None:
    """The rows without a kind are exactly these few, none of which waits for anything."""
    local = {f"{client}.{name}" for client, rows in SURFACE.items() for name, row in rows.items() if row.kind is None}
    assert local == LOCAL_ROWS


def test_what_must_never_be_repeated() -> None:
    """Gradients, steps, new models, loads and deletions may not be repeated; saves only under a new name."""
    repeat = {f"{client}.{name}": row.repeat for client, rows in SURFACE.items() for name, row in rows.items()}
    for label in (
        "forward_backward",
        "forward_backward_custom",
        "optim_step",
        "load_state",
        "load_state_with_optimizer",
    ):
        assert repeat[f"TrainingClient.{label}"] == "no"
    for label in ("save_state", "save_weights_external", "save_weights_for_sampler"):
        assert repeat[f"TrainingClient.{label}"] == "new name"
    for label in ("create_lora_training_client", "create_training_client_from_state", "create_custom_loss"):
        assert repeat[f"ServiceClient.{label}"] == "no"
    for label in ("delete_checkpoint", "copy_weights", "publish_checkpoint_from_tinker_path"):
        assert repeat[f"RestClient.{label}"] == "no"
    assert repeat["TrainingClient.forward"] == repeat["SamplingClient.sample"] == "yes"


def source_of(member: Any) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function_of(member))))


def calls_in(member: Any) -> set[str]:
    """The names of the methods that a method's own source calls, on whatever object."""
    return {
        node.func.attr
        for node in ast.walk(source_of(member))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }


def test_a_twin_that_is_said_to_delegate_calls_a_public_method() -> None:
    """A twin that is left alone calls the public method, where the call is caught, or calls nothing at all."""
    for client, name, member in SURFACE_HERE:
        row = row_for(client, name)
        if not name.endswith("_async") or row is None or row.async_form_in(sdk_version()) != "delegates":
            continue
        called = calls_in(member)
        assert name.removesuffix("_async") in called or not called, f"{client}.{name} calls {called}"


def test_turns_are_taken_by_the_methods_that_are_said_to_take_them() -> None:
    """A method of a training client is `ordered` exactly if its source takes a numbered turn."""

    def takes_turn(function: Any, depth: int = 6) -> bool:
        names = {node.attr for node in ast.walk(source_of(function)) if isinstance(node, ast.Attribute)}
        if names & {"_take_turn", "_get_request_id", "_reserve_request_ids"}:
            return True
        inner = (vars(tinker.TrainingClient).get(each) for each in names)
        return depth > 0 and any(takes_turn(each, depth - 1) for each in inner if inspect.isfunction(each))

    for client, name, member in SURFACE_HERE:
        row = row_for(client, name)
        if client == "TrainingClient" and not name.endswith("_async") and row is not None and row.kind is not None:
            assert row.ordered is takes_turn(member), name


def test_what_blocks_its_caller(
    make_clients: Callable[..., Clients], switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without us, against silence, exactly the methods that are said to block keep their caller's thread."""
    monkeypatch.setenv("TINKER_BASE_URL", switch.url)
    clients = make_clients(switch.url)
    labels = sorted(
        label for label in set(CALLS) & NAMES_HERE
        if not CALLS[label].from_memory
        and not label.startswith("RestClient.")
        and label != "auth.raise_if_tinker_not_accessible"
    )  # fmt: skip
    made = {label: prepare(label, clients) for label in labels if not label.endswith((".close", "__exit__"))}
    switch.mode = "silent"
    threads = {}
    for label, call in made.items():
        threads[label] = threading.Thread(target=quietly(call), daemon=True)
        threads[label].start()
    for thread in threads.values():
        thread.join(0.5)
    for label, thread in threads.items():
        client, _, name = label.partition(".")
        row = row_for(client, name)
        assert row is not None
        if thread.is_alive():
            assert row.blocks_in(sdk_version()), f"{label} blocks and is not said to"


def quietly(call: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        try:
            call()
        except BaseException:
            return

    return run


# What we know of the SDK's private parts ------------------------------------------------------------------------------


def test_the_sdk_loop_is_the_one_its_calls_run_on(make_clients: Callable[..., Clients]) -> None:
    """`private.sdk_loop()` is the loop on which the SDK runs its coroutines, in a thread that is not the caller's."""
    clients = make_clients()

    async def which() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
        return asyncio.get_running_loop(), threading.current_thread()

    loop, thread = settled(clients.service.holder.run_coroutine_threadsafe(which()))
    assert private.sdk_loop() is loop
    assert private.sdk_thread() is thread
    assert thread is not threading.current_thread()


def test_what_unpickles_a_sampling_client_is_where_we_look(make_clients: Callable[..., Clients]) -> None:
    """A pickled sampling client names the very function that `private.unpickling_module()` finds."""
    place = private.unpickling_module()
    assert place is not None
    module, name = place
    assert isinstance(module, ModuleType)
    function = getattr(module, name)
    assert isinstance(function, FunctionType)
    clients = make_clients()
    assert clients.sampling.__reduce__()[0] is function
    assert isinstance(pickle.loads(pickle.dumps(clients.sampling)), tinker.SamplingClient)


def test_what_a_clients_requests_go_through_is_found_without_connecting(lab: Lab) -> None:
    """A service client has no session before its first call; its clients share the one it has then, and its key."""
    service = tinker.ServiceClient(base_url=lab.url, api_key=KEY)
    assert private.holder_of(service) is None and private.session_of(service) is None
    sampling = settled(service.create_sampling_client(base_model=lab.base_model))
    training = settled(service.create_lora_training_client(base_model=lab.base_model, rank=4))
    holder = private.holder_of(service)
    assert holder is not None and holder is private.holder_of(sampling) is private.holder_of(training)
    assert private.session_of(service) == private.session_of(sampling) == private.session_of(training)
    assert isinstance(private.session_of(service), str)
    assert private.key_of(holder) == KEY
    assert private.address_of(holder) == lab.url and private.address_of(object()) is None
    assert private.base_model_of(sampling) in (lab.base_model, None)
    assert private.session_of(object()) is None and private.base_model_of(object()) is None


def test_a_service_client_says_how_it_was_made(lab: Lab) -> None:
    """What makes another one like it; versions that keep it elsewhere say nothing, and so does what is none."""
    plain, named = (
        tinker.ServiceClient(base_url=lab.url, api_key=KEY),
        tinker.ServiceClient({"run": "7"}, "project", base_url=lab.url, api_key=KEY),
    )
    assert private.options_of(plain) == () and private.options_of(object()) == ()
    assert dict(private.options_of(named)) == (
        {"user_metadata": {"run": "7"}, "project_id": "project"} if hasattr(named, "_project_id") else {}
    )


def test_what_a_sampling_method_returned_follows_another_future(make_clients: Callable[..., Clients]) -> None:
    """From 0.38 on it is a future around a future, which can be told to follow another one; before, it is plain."""
    value = make_clients().sampling.sample(PROMPT, 1, tinker.SamplingParams(max_tokens=1))
    raw = value.future() if hasattr(value, "_future") else value
    other: Future[str] = Future()
    pending: Future[str] = Future()
    if hasattr(value, "_mirror"):
        assert not private.redirected(value, pending, other)  # it does not follow that one
    if private.redirected(value, raw, other):
        other.set_result("another's")
        assert value.result() == "another's" and value.done()
    else:
        assert sdk_version() < (0, 38) or raw.done()
    raw.result(10)


def test_a_session_says_for_what_it_has_connections(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """Those it has used by now; what is no session has none."""
    service = tinker.ServiceClient(base_url=lab.url, api_key=KEY)
    client = settled(service.create_sampling_client(base_model=lab.base_model))
    settled(client.sample(PROMPT, 1, PARAMS))
    in_use = private.pools_of(private.holder_of(client))
    assert {"session", "sample"} <= in_use and in_use & {"retrieve_promise", "retrieve_futures"}
    assert not [record for record in caplog.records if "no table of connections" in record.getMessage()]
    assert private.pools_of(object()) == frozenset()


@pytest.mark.parametrize("pool", ["session", "sample", "train", "retrieve_promise"])
def test_a_session_answers_a_heartbeat_over_each_of_its_connections(lab: Lab, pool: str) -> None:
    """Within the limit, while an unknown session is refused in words."""
    service = tinker.ServiceClient(base_url=lab.url, api_key=KEY)
    settled(service.create_sampling_client(base_model=lab.base_model))
    holder, session = private.holder_of(service), private.session_of(service)
    assert session is not None
    settled(holder.run_coroutine_threadsafe(private.heartbeat(holder, session, pool, 5.0)))
    with pytest.raises(tinker.APIStatusError):
        settled(holder.run_coroutine_threadsafe(private.heartbeat(holder, "session_unknown", pool, 5.0)))


def test_a_service_client_connects_with_the_class_that_we_find(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """By keywords, once, for a session of its own; what needs no session and what has another's is told apart."""
    place = private.holder_module()
    assert place is not None
    calls: list[dict[str, Any]] = []
    original = getattr(*place)

    def connects(**arguments: Any) -> Any:
        calls.append(arguments)
        return original(**arguments)

    monkeypatch.setattr(*place, connects)
    service = tinker.ServiceClient({"run": "7"}, base_url=lab.url, api_key=KEY)
    settled(service.create_sampling_client(base_model=lab.base_model))
    settled(service.create_sampling_client(base_model=lab.base_model))
    service.create_rest_client()
    assert [private.is_session_made_by(arguments) for arguments in calls] in ([True, False], [True])
    assert (calls[0]["user_metadata"], calls[0]["base_url"], calls[0]["api_key"]) == ({"run": "7"}, lab.url, KEY)
    assert not private.is_session_made_by({"session_id": "session_1"})
    assert private.session_held_by(private.holder_of(service)) == private.session_of(service)
    assert private.session_held_by(None) is None


def test_every_sampling_client_is_made_by_the_function_that_we_find(
    make_clients: Callable[..., Clients], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, on the SDK's loop: from a model, from a path, from a training client, and from ephemeral weights."""
    place = private.sampler_maker()
    assert place is not None
    calls: list[dict[str, Any]] = []
    original = getattr(*place)

    async def makes(holder: Any, **arguments: Any) -> Any:
        assert asyncio.get_running_loop() is private.sdk_loop()
        calls.append(arguments)
        return await original(holder, **arguments)

    monkeypatch.setattr(*place, staticmethod(makes))
    clients = make_clients()
    path = settled(clients.training.save_weights_for_sampler("found")).path
    settled(clients.service.create_sampling_client(model_path=path))
    settled(clients.training.create_sampling_client(path))
    settled(clients.training.save_weights_and_get_sampling_client())
    named = [(each["model_path"], each["base_model"], each["sampling_session_id"] is None) for each in calls]
    assert named[:3] == [(None, clients.model, True), (path, None, True), (path, None, True)]
    assert named[3][0] is None and not named[3][2]


def test_a_session_outlives_a_client_that_it_was_taken_from(lab: Lab) -> None:
    """A detached service client can be closed and is closed then; another one around the session ends it."""
    service = tinker.ServiceClient(base_url=lab.url, api_key=KEY)
    client = settled(service.create_sampling_client(base_model=lab.base_model))
    holder = private.holder_of(service)
    assert not private.is_closed(holder)
    private.detach(service)
    assert private.holder_of(service) is None
    if not hasattr(service, "close"):
        return
    settled(service.close("success"))
    with pytest.raises(RuntimeError, match="closed"):
        _ = service.holder
    assert settled(client.sample(PROMPT, 1, PARAMS)).sequences
    around = private.service_around(holder)
    assert private.session_of(around) == private.session_of(client)
    settled(around.close("success"))
    assert private.is_closed(holder) and not private.is_closed(object())


def test_a_session_can_be_finished_over_its_own_connection(lab: Lab) -> None:
    """The service says afterwards that it has ended; versions that cannot close a client cannot end a session."""
    service = tinker.ServiceClient(base_url=lab.url, api_key=KEY)
    holder, session = service.holder, private.session_of(service)
    assert session is not None
    request = private.finish(holder, session, "errored", 5.0)
    assert (request is not None) is hasattr(service, "close")
    if request is not None:
        settled(holder.run_coroutine_threadsafe(request))
        with pytest.raises(tinker.APIStatusError) as caught:
            settled(holder.run_coroutine_threadsafe(private.heartbeat(holder, session, "session", 5.0)))
        assert caught.value.status_code == 410


def test_a_loss_that_a_session_has_may_come_again(lab: Lab) -> None:
    """The SDK refuses it by its key, unless we said that it may come; versions without losses are left as they are."""
    service = tinker.ServiceClient(base_url=lab.url, api_key=KEY)
    holder, loss = service.holder, SimpleNamespace(key="the key", name="the name")
    private.known_losses_may_come_again(object())
    if not hasattr(holder, "_register_custom_loss"):
        private.known_losses_may_come_again(holder)
        assert not hasattr(holder, "_register_custom_loss")
        return
    holder._register_custom_loss(loss)
    with pytest.raises(ValueError, match="already created"):
        holder._register_custom_loss(loss)
    private.known_losses_may_come_again(holder)
    holder._register_custom_loss(loss)


def test_the_functions_of_private_are_the_ones_tested_here() -> None:
    """`sdk/private.py` offers nothing that this file does not test."""
    assert set(private.__all__) == {
        "sdk_loop", "sdk_thread", "unpickling_module", "address_of", "base_model_of", "heartbeat", "holder_of",
        "key_of", "options_of", "pools_of", "redirected", "session_of", "session_held_by", "holder_module",
        "is_session_made_by", "sampler_maker", "is_closed", "detach", "service_around", "finish",
        "known_losses_may_come_again",
    }  # fmt: skip


def test_versions_are_read_as_numbers() -> None:
    """`sdk_version()` starts with the numbers of the installed SDK."""
    assert sdk_version()[:2] == VERSION


def test_training_kinds_cover_every_ordered_method() -> None:
    """A method that takes a turn is of a kind that is never cancelled."""
    for rows in SURFACE.values():
        for row in rows.values():
            assert not row.ordered or row.kind in TRAINING_KINDS


def test_installing_leaves_nothing_unbounded(caplog: pytest.LogCaptureFixture) -> None:
    """`install()` has nothing to warn about in a supported version."""
    install()
    uninstall()
    assert "not bounded" not in caplog.text
