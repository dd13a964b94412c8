"""Which private names of the SDK are touched? Each behind one small function, here and nowhere else.

Where a name is missing in some version, the feature that needs it degrades and says so once; bounding never fails.
A contract test runs every function against every supported version.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from types import ModuleType
from typing import Any

__all__ = [
    "address_of",
    "base_model_of",
    "detach",
    "finish",
    "heartbeat",
    "holder_module",
    "holder_of",
    "is_closed",
    "is_session_made_by",
    "key_of",
    "known_losses_may_come_again",
    "options_of",
    "pools_of",
    "redirected",
    "sampler_maker",
    "sdk_loop",
    "sdk_thread",
    "service_around",
    "session_held_by",
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
    return session_held_by(holder_of(client))


def session_held_by(holder: Any) -> str | None:
    """The session of what clients send their requests through; `None` where it has none."""
    session = getattr(holder, "_session_id", None)
    return session if isinstance(session, str) else None


def holder_module() -> tuple[ModuleType, str] | None:
    """Where service clients find the class of what they send their requests through: a module and a name in it."""
    from tinker.lib.public_interfaces import service_client

    name = "InternalClientHolder"
    if not hasattr(service_client, name):
        _say_once(name, "sessions are neither shared nor counted")
        return None
    return service_client, name


def is_session_made_by(arguments: Mapping[str, Any]) -> bool:
    """Whether that class, called with these arguments, makes a session: not one without, nor another's again."""
    return not arguments.get("_skip_session") and arguments.get("session_id") is None


def sampler_maker() -> tuple[type, str] | None:
    """Where the coroutine function is that makes a sampling client, of which all others make use: a class and a name.

    It is called on the SDK's loop with a session's holder, and by name with `model_path`, `base_model`,
    `sampling_session_id` of one that is made already, and `retry_config`.
    """
    from tinker import SamplingClient

    name = "_create_impl"
    if name not in vars(SamplingClient):
        _say_once(name, "sampling clients are not shared")
        return None
    return SamplingClient, name


def is_closed(holder: Any) -> bool:
    """Whether nothing can be sent through it any more; false in versions that cannot close one."""
    return bool(getattr(holder, "_closed", False))


def detach(service: Any) -> None:
    """Takes its session away from a service client, which must be closed right after: closing it leaves that open."""
    if "_session_holder" in vars(service):
        service._session_holder = None


def service_around(holder: Any) -> Any:
    """A service client of a session that is there already, to close it with; `None` where that cannot be made."""
    from tinker import ServiceClient

    service = ServiceClient()
    if "_session_holder" not in vars(service):
        return None
    service._session_holder = holder
    return service


def finish(holder: Any, session: str, status: str, limit_s: float) -> Coroutine[Any, Any, None] | None:
    """A request that ends a session, as closing its service client does; `None` in versions that cannot.

    It goes over the connection that the session was made with. Those of `close` need a thread of the interpreter's for
    what they look up first, and an interpreter that is shutting down has none to give.

    Args:
        holder: What the session's requests go through.
        session: The session's name.
        status: How it ended: "success", "errored" or "interrupted".
        limit_s: Seconds that the request may take.
    """
    from tinker import ServiceClient
    from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

    if not hasattr(ServiceClient, "close"):
        return None

    async def end() -> None:
        body = {"reason": {"type": status}, "detail": None}
        with holder.aclient(ClientConnectionPoolType.SESSION) as client:
            await client.post(
                f"/api/v1/sessions/{session}/finish",
                body=body,
                cast_to=type(None),
                options={"max_retries": 0, "timeout": limit_s},
            )

    return end()


def known_losses_may_come_again(holder: Any) -> None:
    """Has a session take a custom loss that it has already: another of its service clients brings it.

    The SDK refuses a loss that its one service client brings a second time. Nothing is done where it has no losses.
    """
    register, losses = getattr(holder, "_register_custom_loss", None), getattr(holder, "_custom_losses", None)
    if register is None or not isinstance(losses, dict):
        return

    def register_once(loss: Any) -> None:
        if loss.key not in losses:
            register(loss)

    holder._register_custom_loss = register_once


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
