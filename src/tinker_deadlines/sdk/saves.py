"""Did a save land whose answer is missing? What the service keeps of the run is looked through for its name."""

from __future__ import annotations

import logging
from typing import Any

import tinker
from tinker import types
from tinker.lib.public_interfaces.rest_client import RestClient  # not exported at the top level in every version

from tinker_deadlines.budgets import run_within
from tinker_deadlines.limits import LOOK_UP_S
from tinker_deadlines.sdk import private
from tinker_deadlines.sdk.traffic import call_in_context
from tinker_deadlines.waiting.blocking import call_with_deadline

__all__ = ["SAVES", "landed"]

log = logging.getLogger("tinker_deadlines")

# The methods whose saves have names, and where the service keeps them.
SAVES: dict[str, tuple[str, Any]] = {
    "save_state": ("weights", types.SaveWeightsResponse),
    "save_weights_for_sampler": ("sampler_weights", types.SaveWeightsForSamplerResponse),
}


def landed(client: Any, method: str, name: str) -> Any:
    """The answer that a save would have had, if the service keeps what it saved; else `None`.

    Args:
        client: The training client that saved.
        method: One of `SAVES`.
        name: The name that was saved under.
    """
    section, answer = SAVES[method]
    path = f"tinker://{client.model_id}/{section}/{name}"
    try:
        # Bounded here: it is part of a call that is bounded.
        found = run_within(None, call_with_deadline, "rest", lambda: _paths(client))
    except Exception as error:
        log.info("whether a save landed could not be found out: %s: %s", type(error).__name__, error)
        return None
    return answer(path=path) if path in found else None


def _paths(client: Any) -> set[str]:
    token = call_in_context.set(None)
    try:
        checkpoints = _rest(client).list_checkpoints(client.model_id).result(LOOK_UP_S).checkpoints
    finally:
        call_in_context.reset(token)
    return {each.tinker_path for each in checkpoints}


def _rest(client: Any) -> Any:
    """A client for a question; over connections of its own where the SDK has them, because a session may be dead."""
    holder = private.holder_of(client)
    if "base_url" in (RestClient.__init__.__kwdefaults__ or {}):
        return tinker.RestClient(base_url=private.address_of(holder), api_key=private.key_of(holder))
    return RestClient(holder)
