"""How do the SDK's methods get bounded, and how are they put back? Patched on its own classes, and restored exactly.

One patch serves everybody: `install()` makes it bound every client, `guard(client)` only the clients it was given and
those that they make.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import tinker

from tinker_deadlines.liveness.stacks import stack_of
from tinker_deadlines.liveness.watcher import watcher
from tinker_deadlines.sdk import hedge, learning, private, traffic
from tinker_deadlines.sdk.probe import ask
from tinker_deadlines.sdk.shared import closing_the_last, handing_out, shared, sharing_sampler, sharing_session
from tinker_deadlines.sdk.surface import SURFACE, Method, row_for
from tinker_deadlines.sdk.wrappers import Bounder, bounded, scope

__all__ = ["guard", "install", "public_methods", "sdk_version", "uninstall"]

log = logging.getLogger("tinker_deadlines")
Client = TypeVar("Client")

_lock = threading.RLock()
_undo: list[Callable[[], None]] = []

# Where clients live that are not exported at the top level in every version.
_HOMES = {
    "RestClient": "tinker.lib.public_interfaces.rest_client",
    "AdminClient": "tinker.lib.public_interfaces.admin_client",
    "auth": "tinker.auth",
}


def install(*, share: bool | None = None) -> None:
    """Bounds every call of every Tinker client in this process, those made before included.

    Calls that run into their limit raise `StuckCallError`. Installing twice does nothing more.

    Args:
        share: Whether service clients that are made alike from now on share a session; by default what
            `TINKER_DEADLINES_SHARE` says, else yes.

    Raises:
        ValueError: `TINKER_DEADLINES_SHARE` is neither "on" nor "off".
    """
    with _lock:
        shared.start(share=share)
        _patch()
        scope.everything = True


def uninstall() -> None:
    """Puts every method back exactly as it was; calls in flight stay bounded. Guarded clients are let go as well.

    Where somebody patched a method after us, ours stays below theirs and passes everything on.
    """
    with _lock:
        scope.clear()
        hedge.close()
        shared.stop()
        while _undo:
            _undo.pop()()
        traffic.stop()
        watcher.stop()
        learning.stop()


def guard(client: Client) -> Client:
    """Bounds the calls of one client, and of the clients that it makes; returns it.

    Args:
        client: A service, training, sampling, REST or admin client, or the future of one.

    Raises:
        TypeError: it is none of these.
    """
    found = [each for each in map(_client_class, SURFACE) if isinstance(each, type) and isinstance(client, each)]
    if not found and not isinstance(client, tinker.APIFuture):
        raise TypeError(f"guard() takes a client of the Tinker SDK or the future of one, not {type(client).__name__}")
    with _lock:
        shared.start(everybody=False)
        _patch()
        scope.add(client)
    if isinstance(client, tinker.APIFuture):
        inner: Future[Any] = client.future()
        inner.add_done_callback(_guard_result)
    return client


def _guard_result(future: Future[Any]) -> None:
    if not future.cancelled() and future.exception() is None:
        scope.add(future.result())


def sdk_version() -> tuple[int, ...]:
    """The version of the SDK, such as (0, 38, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", tinker.__version__)[:3])


class Found(NamedTuple):
    """A public method as the SDK defines it."""

    client: str
    name: str
    owner: Any
    member: Any


_SPECIAL = ("__init__", "__enter__", "__exit__")


def public_methods() -> Iterator[Found]:
    """Enumerates the public methods and properties of every public client of this version of the SDK."""
    for client in SURFACE:
        owner = _client_class(client)
        if owner is None:
            continue
        names = getattr(owner, "__all__", None) if inspect.ismodule(owner) else vars(owner)
        for name in list(names or vars(owner)):
            member = inspect.getattr_static(owner, name, None)
            if name.startswith("_") and name not in _SPECIAL:
                continue
            if inspect.ismodule(owner) and getattr(member, "__module__", None) != owner.__name__:
                continue
            if inspect.isfunction(member) or isinstance(member, (staticmethod, classmethod, property)):
                yield Found(client, name, owner, member)


def _client_class(name: str) -> Any:
    found = getattr(tinker, name, None)
    if found is None and name in _HOMES:
        try:
            home = importlib.import_module(_HOMES[name])
        except ImportError:
            return None
        return home if name == "auth" else getattr(home, name, None)
    return found


# Patching -----------------------------------------------------------------------------------------------------------


def _patch() -> None:
    if _undo:
        return
    version = sdk_version()
    _patch_sessions()  # first, so that it lies below what bounds the same methods
    unknown = []
    for found in public_methods():
        row = row_for(found.client, found.name)
        if row is None:
            unknown.append(f"{found.client}.{found.name}")
        elif row.kind is not None and not _delegates(found, row, version):
            _replace(found, row, version)
    if unknown:
        log.warning("not bounded, because tinker-deadlines does not know them yet: %s", ", ".join(unknown))
    _patch_unpickling(version)
    traffic.start()
    learning.start()
    watcher.stack = lambda: stack_of(private.sdk_thread())
    watcher.start(learning.law, ask, learning.ceiling_s)


def _delegates(found: Found, row: Method, version: tuple[int, ...]) -> bool:
    """Whether a method is an async twin that calls the public one, where the call is caught."""
    return (
        found.name.endswith("_async")
        and inspect.iscoroutinefunction(inspect.unwrap(_function_of(found.member)))
        and row.async_form_in(version) == "delegates"
    )


def _function_of(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    return getattr(member, "__func__", member)


def _replace(found: Found, row: Method, version: tuple[int, ...]) -> None:
    function = _function_of(found.member)
    label = f"{found.client}.{found.name}"
    cell = _deprecated_cell(function)
    if cell is not None:
        # `@deprecated` warns a fixed number of frames up: it stays outermost, and what it calls is replaced.
        inner = cell.cell_contents
        ours = cell.cell_contents = bounded(Bounder(label, row, inner, version))

        def put_back() -> None:
            if cell.cell_contents is ours:
                cell.cell_contents = inner

        _undo.append(put_back)
        return
    replacement: Any = bounded(Bounder(label, row, function, version))
    if isinstance(found.member, property):
        replacement = property(replacement, found.member.fset, found.member.fdel, found.member.__doc__)
    elif not inspect.isfunction(found.member):
        replacement = type(found.member)(replacement)
    _set(found.owner, found.name, found.member, replacement)


def _set(owner: Any, name: str, original: Any, replacement: Any) -> None:
    setattr(owner, name, replacement)

    def put_back() -> None:
        if inspect.getattr_static(owner, name) is replacement:
            setattr(owner, name, original)

    _undo.append(put_back)


def _deprecated_cell(function: Any) -> Any:
    """The closure cell in which a `@deprecated` wrapper keeps what it calls; `None` for any other function.

    Found by holding a function, not by `__wrapped__`: the SDK has swapped the cell itself by then.
    """
    if hasattr(function, "__deprecated__"):
        for cell in function.__closure__ or ():
            if inspect.isfunction(cell.cell_contents):
                return cell
    return None


def _patch_sessions() -> None:
    """Has sessions counted and shared, wherever this version of the SDK makes and ends them."""
    place = private.holder_module()
    if place is not None:
        module, name = place
        _set(module, name, getattr(module, name), sharing_session(getattr(module, name)))
    maker = private.sampler_maker()
    if maker is not None:
        owner, name = maker
        member = inspect.getattr_static(owner, name)
        _set(owner, name, member, staticmethod(sharing_sampler(_function_of(member))))
    for client, name, wrap in (
        (tinker.ServiceClient, "close", closing_the_last),
        (tinker.SamplingClient, "__reduce__", handing_out),
        (tinker.SamplingClient, "get_sampler_handle", handing_out),
    ):
        if name in vars(client):
            _set(client, name, vars(client)[name], wrap(vars(client)[name]))


def _patch_unpickling(version: tuple[int, ...]) -> None:
    place = private.unpickling_module()
    if place is not None:
        module, name = place
        original = getattr(module, name)
        row = Method("connect", blocks="always")
        _set(module, name, original, bounded(Bounder("unpickling a SamplingClient", row, original, version)))
