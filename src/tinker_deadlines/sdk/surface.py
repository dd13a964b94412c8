"""Which call is each public method of the SDK? One table for every client and every supported version.

A test enumerates the SDK's public methods in each supported version and fails on one that this table does not know.
Pure data and pure functions: nothing here imports the SDK.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from tinker_deadlines.calls import TinkerCallKind, Work

__all__ = ["LOCAL", "SURFACE", "Method", "row_for"]

Argument = Callable[[str], Any]
"""Gives the value of a named argument of a call; `None` where it was not passed."""

Repeat = Literal["yes", "no", "new name"]
"""May the caller make the call again after a lost answer: yes, no, or only under a name that was not used."""

AsyncForm = Literal["delegates", "worker", "task"]
"""How the deprecated `*_async` twin of a method does its work, see `Method.async_form`."""


class Method(NamedTuple):
    """One public method."""

    kind: TinkerCallKind | None
    """The kind of call; `None` for what answers from memory and is left alone."""
    blocks: Literal["never", "always", "before 0.38"] = "never"
    """Whether the caller's thread waits for the service before the method returns."""
    repeat: Repeat = "yes"
    work: Callable[[Argument], Work | None] | None = None
    """Reads the size of the work from the arguments."""
    ordered: bool = False
    """Whether it takes a numbered turn on its training client."""
    async_form: AsyncForm = "worker"
    """Before 0.38 a twin either calls the public method, which is caught there ("delegates"), or does the work itself,
    on the caller's event loop: "worker" moves it off that loop, "task" leaves it there because it runs a person's code
    or only returns a future."""
    async_form_now: AsyncForm = "delegates"
    """The same from 0.38 on, where nearly all twins delegate."""
    closes: bool = False
    """Whether it ends a client: bounded by its own short limit, whatever budget is spent."""

    def blocks_in(self, version: tuple[int, ...]) -> bool:
        """Whether it blocks its caller in this version of the SDK."""
        return self.blocks == "always" or (self.blocks == "before 0.38" and version < (0, 38))

    def async_form_in(self, version: tuple[int, ...]) -> AsyncForm:
        """How its `*_async` twin works in this version of the SDK."""
        return self.async_form_now if version >= (0, 38) else self.async_form


def _length(sequence: Any) -> int | None:
    """The token count of a `ModelInput`: it raises for an image whose count is not known."""
    try:
        return int(sequence.length)
    except (AttributeError, TypeError, ValueError):
        return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _sampling_work(argument: Argument) -> Work:
    return _sampling_work_of(
        _length(argument("prompt")),
        _whole(getattr(argument("sampling_params"), "max_tokens", None)),
        _whole(argument("num_samples")),
    )


# A thousand calls of the same work in flight need one of these, and the garbage collector has one to look at.
_sampling_work_of = functools.lru_cache(maxsize=1024)(Work)


def _logprobs_work(argument: Argument) -> Work:
    return Work(prompt_tokens=_length(argument("prompt")))


def _batch_work(argument: Argument) -> Work | None:
    data = argument("data")
    if not isinstance(data, (list, tuple)):  # anything else may be a generator that can be read only once
        return None
    lengths = [_length(getattr(datum, "model_input", None)) for datum in data]
    tokens = None if None in lengths else sum(length for length in lengths if length is not None)
    return Work(datums=len(data), tokens=tokens)


def _rank_work(argument: Argument) -> Work:
    return Work(rank=_whole(argument("rank")))


LOCAL = Method(None)

_CONNECT = Method("connect", blocks="always")
# From 0.38 on these return a future but still connect on the caller's thread before they do.
_NEW_MODEL = Method("connect", blocks="always", repeat="no", work=_rank_work)
_NEW_MODEL_FROM_STATE = Method("load_state", blocks="always", repeat="no")
_REST = Method("rest", blocks="always")
_REST_ONCE = Method("rest", blocks="always", repeat="no")
_BATCH = Method("forward_backward", repeat="no", work=_batch_work, ordered=True, async_form="delegates")
_LOAD = Method("load_state", repeat="no", ordered=True, async_form="task", async_form_now="task")

SURFACE: dict[str, dict[str, Method]] = {
    "auth": {
        "raise_if_tinker_not_accessible": _CONNECT,
        "get_tinker_token": LOCAL,
        "tinker_has_credentials": LOCAL,
    },
    "ServiceClient": {
        "__init__": LOCAL,
        "__enter__": Method("rest", blocks="always"),
        "__exit__": Method("rest", blocks="always", closes=True),
        "close": Method("rest", blocks="always", closes=True),
        "holder": _CONNECT,
        "create_lora_training_client": _NEW_MODEL,
        "create_training_client_from_state": _NEW_MODEL_FROM_STATE,
        "create_training_client_from_state_with_optimizer": _NEW_MODEL_FROM_STATE,
        "create_sampling_client": _CONNECT,
        "create_custom_loss": Method("connect", blocks="always", repeat="no"),
        "create_rest_client": _CONNECT,
        # Its twin in 0.38 makes a REST client first, which connects on the caller's event loop.
        "get_server_capabilities": _CONNECT._replace(async_form_now="worker"),
        "copy_weights": _REST_ONCE,
        "get_console_url": LOCAL,
        "get_telemetry": LOCAL,
    },
    "TrainingClient": {
        "__init__": LOCAL,
        "forward": _BATCH._replace(repeat="yes"),
        "forward_backward": _BATCH,
        "forward_backward_custom": _BATCH._replace(blocks="before 0.38", async_form="task"),
        "optim_step": Method("optim_step", repeat="no", ordered=True, async_form="delegates"),
        "save_state": Method("save_state", repeat="new name", ordered=True, async_form="delegates"),
        "save_weights_external": Method("save_state", repeat="new name", ordered=True, async_form="delegates"),
        "save_weights_for_sampler": Method(
            "save_weights_for_sampler", repeat="new name", ordered=True, async_form="delegates"
        ),
        "save_weights_and_get_sampling_client": Method("save_weights_for_sampler", blocks="before 0.38", ordered=True),
        "load_state": _LOAD,
        "load_state_with_optimizer": _LOAD,
        "create_sampling_client": _CONNECT,
        "get_info": _CONNECT,
        "get_tokenizer": _CONNECT,
        "get_console_url": LOCAL,
        "get_telemetry": LOCAL,
    },
    "SamplingClient": {
        "__init__": LOCAL,
        "create": _CONNECT,
        "sample": Method("sample", work=_sampling_work, async_form="delegates"),
        "compute_logprobs": Method("compute_logprobs", work=_logprobs_work, async_form="delegates"),
        "get_tokenizer": _CONNECT,
        "get_base_model": _CONNECT,
        "from_sampler_handle": _CONNECT,
        "get_sampler_handle": LOCAL,
        "get_telemetry": LOCAL,
        # The SDK calls it on its own loop; it only logs.
        "on_queue_state_change": LOCAL,
    },
    "RestClient": {
        "__init__": _CONNECT,
        "get_server_capabilities": _REST,
        "get_training_run": _REST,
        "get_training_run_by_tinker_path": _REST,
        "get_weights_info_by_tinker_path": _REST,
        "get_checkpoint_archive_url": _REST,
        "get_checkpoint_archive_url_from_tinker_path": _REST,
        "list_training_runs": _REST,
        "list_checkpoints": _REST,
        "list_user_checkpoints": _REST,
        "get_external_weights_urls": _REST,
        "get_session": _REST,
        "list_sessions": _REST,
        "search_sessions": _REST,
        "get_sampler": _REST,
        "whoami": _REST,
        "get_audit_log": _REST,
        "get_billing_usage": _REST,
        "get_current_checkpoint_storage_usage": _REST,
        "export_session_trace": _REST,
        "set_checkpoint_ttl_from_tinker_path": _REST,
        "assign_session_project": _REST,
        "delete_checkpoint": _REST_ONCE,
        "delete_checkpoint_from_tinker_path": _REST_ONCE,
        "publish_checkpoint_from_tinker_path": _REST_ONCE,
        "unpublish_checkpoint_from_tinker_path": _REST_ONCE,
        "copy_weights": _REST_ONCE,
        "get_telemetry": LOCAL,
    },
    "AdminClient": {
        "__init__": _CONNECT,
        "get_audit_log": _REST,
        "get_billing_usage": _REST,
        "get_current_checkpoint_storage_usage": _REST,
        "get_telemetry": LOCAL,
    },
}


def row_for(client: str, name: str) -> Method | None:
    """The row of a public method, a deprecated `*_async` twin under its own method's; `None` if it is not known."""
    methods = SURFACE.get(client, {})
    return methods.get(name) or methods.get(name.removesuffix("_async"))
