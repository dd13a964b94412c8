"""One call of every public method that makes one: what the tests that claim "every method" go through.

Written by hand, against the SDK's documentation, not read from the table under test.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tinker
from sdk_tools import VERSION, settled
from tinker import types

KEY = "tml-test"
TOKENS = [5, 6, 7, 8, 9]
PROMPT = types.ModelInput.from_ints(TOKENS)
PARAMS = types.SamplingParams(max_tokens=4, seed=1)
ADAM = types.AdamParams(learning_rate=1e-3)
DATUM = types.Datum(
    model_input=types.ModelInput.from_ints(TOKENS[:-1]),
    loss_fn_inputs={
        "target_tokens": types.TensorData(data=TOKENS[1:], dtype="int64"),
        "weights": types.TensorData(data=[1.0] * 4, dtype="float32"),
    },
)
STATE = "tinker://11111111-1111-1111-1111-111111111111:train:0/weights/checkpoint"


@dataclasses.dataclass
class Clients:
    """One client of each sort."""

    url: str
    model: str
    service: Any
    training: Any = None
    sampling: Any = None
    rest: Any = None
    admin: Any = None
    auth: Any = None

    def with_training_of_its_own(self) -> Clients:
        """The same clients, but for another training client: calls of one wait for each other."""
        made = settled(self.service.create_lora_training_client(base_model=self.model, rank=4))
        return dataclasses.replace(self, training=made)

    def fresh_service(self) -> Any:
        """A service client that has not connected yet."""
        return tinker.ServiceClient(base_url=self.url, api_key=KEY)


def connect(url: str, model: str) -> Clients:
    """Makes one client of each sort that this SDK version has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clients = Clients(url, model, tinker.ServiceClient(base_url=url, api_key=KEY))
        clients.training = settled(clients.service.create_lora_training_client(base_model=model, rank=4))
        clients.sampling = settled(clients.service.create_sampling_client(base_model=model))
        clients.rest = clients.service.create_rest_client()
        if hasattr(tinker, "AdminClient"):
            clients.admin = tinker.AdminClient(base_url=url, api_key=KEY)
    clients.auth = getattr(tinker, "auth", None)
    return clients


class Made(NamedTuple):
    """A call of a method: on which client of `Clients`, and with what."""

    on: Callable[[Clients], Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012 - never written to
    from_memory: bool = False
    """Whether this SDK version answers it without a request once the clients exist."""


def service(clients: Clients) -> Any:
    return clients.service


def training(clients: Clients) -> Any:
    return clients.training


def sampling(clients: Clients) -> Any:
    return clients.sampling


def rest(clients: Clients) -> Any:
    return clients.rest


def admin(clients: Clients) -> Any:
    return clients.admin


def custom_loss(data: Any, logprobs: Any) -> Any:
    raise AssertionError("no answer ever reaches the loss")


LOCAL_NOW = VERSION >= (0, 38)
ONE = (TOKENS[0],)
MODEL_ID = "11111111-1111-1111-1111-111111111111:train:0"

CALLS: dict[str, Made] = {
    "auth.raise_if_tinker_not_accessible": Made(lambda clients: clients.auth),
    "ServiceClient.__enter__": Made(service, from_memory=True),
    "ServiceClient.__exit__": Made(service, (None, None, None)),
    "ServiceClient.close": Made(service, ("success",)),
    "ServiceClient.holder": Made(service, from_memory=True),
    "ServiceClient.create_lora_training_client": Made(service, ("@model",), {"rank": 4}),
    "ServiceClient.create_training_client_from_state": Made(service, (STATE,)),
    "ServiceClient.create_training_client_from_state_with_optimizer": Made(service, (STATE,)),
    "ServiceClient.create_sampling_client": Made(service, (), {"base_model": "@model"}),
    "ServiceClient.create_custom_loss": Made(service, (lambda logprobs: (logprobs.sum(), {}), {"logprobs": 1})),
    "ServiceClient.create_rest_client": Made(service, from_memory=True),
    "ServiceClient.get_server_capabilities": Made(service),
    "ServiceClient.copy_weights": Made(service, (STATE,)),
    "TrainingClient.forward": Made(training, ([DATUM], "cross_entropy")),
    "TrainingClient.forward_backward": Made(training, ([DATUM], "cross_entropy")),
    "TrainingClient.forward_backward_custom": Made(training, ([DATUM], custom_loss)),
    "TrainingClient.optim_step": Made(training, (ADAM,)),
    "TrainingClient.save_state": Made(training, ("a-name",)),
    "TrainingClient.save_weights_external": Made(training, ("a-name",)),
    "TrainingClient.save_weights_for_sampler": Made(training, ("a-name",)),
    "TrainingClient.save_weights_and_get_sampling_client": Made(training),
    "TrainingClient.load_state": Made(training, (STATE,)),
    "TrainingClient.load_state_with_optimizer": Made(training, (STATE,)),
    "TrainingClient.create_sampling_client": Made(training, (STATE.replace("weights", "sampler_weights"),)),
    "TrainingClient.get_info": Made(training, from_memory=LOCAL_NOW),
    "TrainingClient.get_tokenizer": Made(training, from_memory=LOCAL_NOW),
    "SamplingClient.create": Made(lambda clients: type(clients.sampling), ("@holder",), {"base_model": "@model"}),
    "SamplingClient.sample": Made(sampling, (PROMPT, 1, PARAMS)),
    "SamplingClient.compute_logprobs": Made(sampling, (PROMPT,)),
    "SamplingClient.get_tokenizer": Made(sampling, from_memory=LOCAL_NOW),
    "SamplingClient.get_base_model": Made(sampling, from_memory=LOCAL_NOW),
    "SamplingClient.from_sampler_handle": Made(
        lambda clients: type(clients.sampling), ("@handle",), {"api_key": KEY}, from_memory=True
    ),
    "RestClient.__init__": Made(lambda clients: type(clients.rest), from_memory=True),
    "RestClient.get_server_capabilities": Made(rest),
    "RestClient.get_training_run": Made(rest, (MODEL_ID,)),
    "RestClient.get_training_run_by_tinker_path": Made(rest, (STATE,)),
    "RestClient.get_weights_info_by_tinker_path": Made(rest, (STATE,)),
    "RestClient.get_checkpoint_archive_url": Made(rest, (MODEL_ID, "weights/checkpoint")),
    "RestClient.get_checkpoint_archive_url_from_tinker_path": Made(rest, (STATE,)),
    "RestClient.list_training_runs": Made(rest),
    "RestClient.list_checkpoints": Made(rest, (MODEL_ID,)),
    "RestClient.list_user_checkpoints": Made(rest),
    "RestClient.get_external_weights_urls": Made(rest, (STATE.replace("weights", "external_weights"),)),
    "RestClient.get_session": Made(rest, ("a-session",)),
    "RestClient.list_sessions": Made(rest),
    "RestClient.search_sessions": Made(rest, ("@search",)),
    "RestClient.get_sampler": Made(rest, ("a-sampler",)),
    "RestClient.whoami": Made(rest, from_memory=True),
    "RestClient.get_audit_log": Made(rest),
    "RestClient.get_billing_usage": Made(rest, ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")),
    "RestClient.get_current_checkpoint_storage_usage": Made(rest),
    "RestClient.export_session_trace": Made(rest, ("a-session",)),
    "RestClient.set_checkpoint_ttl_from_tinker_path": Made(rest, (STATE, 3600)),
    "RestClient.assign_session_project": Made(rest, ("a-session", "a-project")),
    "RestClient.delete_checkpoint": Made(rest, (MODEL_ID, "weights/checkpoint")),
    "RestClient.delete_checkpoint_from_tinker_path": Made(rest, (STATE,)),
    "RestClient.publish_checkpoint_from_tinker_path": Made(rest, (STATE,)),
    "RestClient.unpublish_checkpoint_from_tinker_path": Made(rest, (STATE,)),
    "RestClient.copy_weights": Made(rest, (STATE, "a-project")),
    "AdminClient.__init__": Made(lambda clients: type(clients.admin), from_memory=True),
    "AdminClient.get_audit_log": Made(admin),
    "AdminClient.get_billing_usage": Made(admin, ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")),
    "AdminClient.get_current_checkpoint_storage_usage": Made(admin),
}

PUBLIC_SPECIAL = {"__init__", "__enter__", "__exit__"}


def enumerate_surface() -> Iterator[tuple[str, str, Any]]:
    """Every public method, property and constructor of every public client: (client, name, member as it is stored).

    Independent of the library under test: whatever in `tinker` is a class called `…Client`, what its clients return
    from methods called `create_rest_client`, and the functions of `tinker.auth`.
    """
    offered = {name: getattr(tinker, name) for name in dir(tinker) if name.endswith("Client")}
    clients = {name: cls for name, cls in offered.items() if inspect.isclass(cls)}
    from tinker.lib.public_interfaces import rest_client

    clients.setdefault("RestClient", rest_client.RestClient)
    for client, cls in clients.items():
        for name, member in inspect.getmembers_static(cls):
            if name.startswith("_") and name not in PUBLIC_SPECIAL:
                continue
            if name in PUBLIC_SPECIAL and name not in vars(cls):
                continue
            if inspect.isfunction(member) or isinstance(member, (staticmethod, classmethod, property)):
                yield client, name, member
    auth = getattr(tinker, "auth", None)
    for name in getattr(auth, "__all__", ()):
        yield "auth", name, inspect.getattr_static(auth, name)


def resolve(value: Any, clients: Clients) -> Any:
    """Puts what only exists at run time in the place of a `@name`."""
    match value:
        case "@model":
            return clients.model
        case "@holder":
            return clients.service.holder
        case "@handle":
            return clients.sampling.get_sampler_handle()
        case "@search":
            return types.SessionSearchRequest()
    return value


def prepare(label: str, clients: Clients, twin: bool = False, *, alone: bool = True) -> Callable[[], Any]:
    """A callable that makes the call, with everything looked up that must not count; `twin`: its `*_async` form."""
    made = CALLS[label]
    client, _, name = label.partition(".")
    if client == "TrainingClient" and alone:
        clients = clients.with_training_of_its_own()
    target = made.on(clients)
    args = [resolve(value, clients) for value in made.args]
    kwargs = {key: resolve(value, clients) for key, value in made.kwargs.items()}
    if name == "holder":
        return lambda: target.holder
    if name == "__init__":
        return lambda: target(base_url=clients.url, api_key=KEY) if VERSION >= (0, 36) else target(clients.rest.holder)
    method = getattr(target, name + "_async" if twin else name)
    return lambda: method(*args, **kwargs)
