"""Which private names of the SDK are touched? Each behind one small function, here and nowhere else.

Where a name is missing in some version, the feature that needs it degrades and says so once; bounding never fails.
A contract test runs every function against every supported version.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from types import ModuleType
from typing import Any

__all__ = [
    "address_of",
    "base_model_of",
    "heartbeat",
    "holder_of",
    "key_of",
    "options_of",
    "pools_of",
    "redirected",
    "sdk_loop",
    "sdk_thread",
    "session_of",
    "unpickling_module",
]

log = logging.getLogger("tinker_deadlines")


@functools.cache
def _say_once(name: str, consequence: str) -> None:
    log.warning("this version of the Tinker SDK has no %s: %s", name, consequence)


def sdk_loop() -> asyncio.AbstractEventLoop | None:
    """The SDK's own event loop, on which everything of its clients runs; `None` while it has not been started."""
    try:
        from tinker.lib.internal_client_holder import _internal_client_holder_thread_singleton as singleton

        return singleton._loop
    except (ImportError, AttributeError):
        _say_once("event loop singleton", "calls from its own callbacks and from forked children are not recognised")
        return None


def redirected(value: Any, raw: Future[Any], future: Future[Any]) -> bool:
    """Has what a sampling method of 0.38 returned, a future around a future, follow another one; false where it cannot.

    It is a whole future itself. Were another one made in its place, this one would stay for as long as the call is
    pending, because it listens to what is underneath; both together are half of what a pending call holds.

    Args:
        value: What the SDK's method returned.
        raw: The future underneath it.
        future: The one to follow instead.
    """
    mirror = getattr(value, "_mirror", None)
    if mirror is None or getattr(value, "_future", None) is not raw:
        return False
    with raw._condition:
        if raw._state not in ("PENDING", "RUNNING"):
            return False  # its callbacks are on their way
        try:
            raw._done_callbacks.remove(mirror)
        except ValueError:
            return False
    value._future = future
    future.add_done_callback(mirror)
    return True


def unpickling_module() -> tuple[ModuleType, str] | None:
    """Where the function is that makes a sampling client from a pickle: its module and its name."""
    from tinker.lib.public_interfaces import sampling_client

    name = "_unpickle_sampling_client"
    if not hasattr(sampling_client, name):
        _say_once(name, "unpickling a sampling client is not bounded")
        return None
    return sampling_client, name


def sdk_thread() -> threading.Thread | None:
    """The thread of the SDK's event loop; `None` while it has not been started."""
    try:
        from tinker.lib.internal_client_holder import _internal_client_holder_thread_singleton as singleton

        return singleton._thread
    except (ImportError, AttributeError):
        return None


def holder_of(client: Any) -> Any:
    """What a client sends its requests through, one for each session; `None` while it has none.

    Never the property of a service client: asking for it connects.
    """
    attributes = getattr(client, "__dict__", {})
    return attributes.get("holder") or attributes.get("_session_holder")


def key_of(holder: Any) -> str | None:
    """The API key that a session's requests are signed with; `None` where it comes from elsewhere. Never shown."""
    key = getattr(holder, "_api_key", None)
    return key if isinstance(key, str) else None


def address_of(holder: Any) -> str | None:
    """The service's address that a session was begun with; `None` where a version keeps it elsewhere."""
    given = getattr(holder, "_constructor_kwargs", {})
    address = getattr(holder, "_base_url", None) or given.get("base_url")
    return str(address) if address is not None else None


def options_of(service: Any) -> tuple[tuple[str, Any], ...]:
    """How a service client was made, so that another can be made like it: arguments of its class that are set.

    Not the address and the key, and nothing where a version keeps them elsewhere.
    """
    if type(service).__name__ != "ServiceClient":
        return ()
    attributes = getattr(service, "__dict__", {})
    names = ("user_metadata", "project_id", "default_headers_overrides")
    return tuple((name, attributes[f"_{name}"]) for name in names if attributes.get(f"_{name}"))


def session_of(client: Any) -> str | None:
    """The session that a client's calls go through; `None` while it has none."""
    session = getattr(holder_of(client), "_session_id", None)
    return session if isinstance(session, str) else None


def base_model_of(client: Any) -> str | None:
    """The name of a sampling client's base model; `None` where the client does not keep it."""
    model = getattr(client, "__dict__", {}).get("_base_model")
    return model if isinstance(model, str) else None


def pools_of(holder: Any) -> frozenset[str]:
    """The purposes for which a session has connections by now: "session", "sample", "train", "retrieve_promise", ..."""
    pools = getattr(holder, "_client_pools", None)
    if not isinstance(pools, dict):
        _say_once("table of connections", "a session that is silent is asked over the connections of its heartbeat")
        return frozenset()
    return frozenset(str(pool.value) for pool in list(pools))


def heartbeat(holder: Any, session: str, pool: str, limit_s: float) -> Coroutine[Any, Any, None]:
    """A request that any session answers at once, over the connections that calls of the pool use.

    Args:
        holder: What the session's requests go through.
        session: The session's name.
        pool: One of `pools_of`: each has connections of its own.
        limit_s: Seconds that the request may take.
    """
    from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

    async def beat() -> None:
        with holder.aclient(ClientConnectionPoolType(pool)) as client:
            await client.service.session_heartbeat(session_id=session, max_retries=0, timeout=limit_s)

    return beat()
