"""Which sampling client of a session is handed out? The one of the same weights, until it fails or they change."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Mapping
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from tinker_deadlines import clock
from tinker_deadlines.limits import SAMPLERS_KEPT
from tinker_deadlines.sdk.facts import is_doubted

__all__ = ["Samplers", "weights_of"]


class _Making(NamedTuple):
    """A sampling client on its way."""

    task: asyncio.Task[Any]
    since: float


def weights_of(arguments: Mapping[str, Any]) -> Hashable | None:
    """What a sampling client is made of; equal calls have equal ones. `None` for one that nobody else may have.

    Ephemeral weights have no name: they belong to the one client that was made with them.
    """
    if arguments.get("sampling_session_id") is not None:
        return None
    key = tuple(sorted(item for item in arguments.items() if item[1] is not None))
    try:
        hash(key)
    except TypeError:
        return None
    return key


class Samplers:
    """The sampling clients of one session. `get` runs on the SDK's loop, everything else anywhere."""

    def __init__(self) -> None:
        # Reentrant: a client that is collected may make this thread come by again.
        self._lock = threading.RLock()
        self._alive: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        # Those asked for last are kept although nobody holds them: the next trial asks again.
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._making: dict[Hashable, _Making] = {}

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, Any]], within_s: float) -> Any:
        """The client of some weights; who asks while it is made gets the same one, or the same error.

        Args:
            key: Its weights.
            make: Makes it.
            within_s: Seconds after which one that is still being made is waited for by nobody who comes.
        """
        with self._lock:
            client = self._alive.get(key)
            if client is not None and not is_doubted(client):
                self._keep(key, client)
                return client
            making = self._making.get(key)
            if making is None or clock.monotonic() - making.since >= within_s:
                making = self._making[key] = _Making(asyncio.ensure_future(make()), clock.monotonic())
                making.task.add_done_callback(lambda _: self._made(key, making))
        # Whoever gives up gives up for himself alone.
        return await asyncio.shield(making.task)

    def _made(self, key: Hashable, making: _Making) -> None:
        task = making.task
        failed = task.cancelled() or task.exception() is not None
        with self._lock:
            if self._making.get(key) is not making:
                return  # another has its place, or the weights were saved anew
            del self._making[key]
            if not failed:
                self._alive[key] = task.result()
                self._keep(key, task.result())

    def _keep(self, key: Hashable, client: Any) -> None:
        self._kept[key] = client
        self._kept.move_to_end(key)
        while len(self._kept) > SAMPLERS_KEPT:
            self._kept.popitem(last=False)

    def drop(self, client: Any) -> bool:
        """Hands a client out no more; false where another has its place by now."""
        with self._lock:
            keys = [key for key, each in list(self._alive.items()) if each is client]
            for key in keys:
                self._forget(key)
        return bool(keys)

    def saved(self, path: str) -> None:
        """Hands out no client that was made of what lay under a path before something was saved there."""
        with self._lock:
            for key in [*self._alive, *self._making]:
                if isinstance(key, tuple) and ("model_path", path) in key:
                    self._forget(key)

    def _forget(self, key: Hashable) -> None:
        self._alive.pop(key, None)
        self._kept.pop(key, None)
        self._making.pop(key, None)

    def clear(self) -> None:
        """Hands out none of them any more."""
        with self._lock:
            self._alive.clear()
            self._kept.clear()
            self._making.clear()
