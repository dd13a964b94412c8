"""How do the parts of the service work together? One engine holds sessions, models, samplers and promises."""

from __future__ import annotations

import asyncio
from typing import Any

from .bases import BaseModels
from .config import LabConfig
from .execution import Executor
from .promises import Failure, Promise, Promises
from .refusal import Refused
from .samplers import Samplers
from .sessions import Session, Sessions
from .store import Store
from .training import Trainer
from .wire import Json, real, table, whole


class Engine:
    """The whole service behind the HTTP surface. All methods run on one event loop, save `executions`."""

    def __init__(self, config: LabConfig) -> None:
        self.config = config
        self.store = Store(config.state)
        self.bases = BaseModels(config.state / "models", config.base_models)
        self.promises = Promises()
        self.executor = Executor(config.latency)
        self.sessions = Sessions(config.session_cap, config.session_expiry_s, self._ended)
        self.trainer = Trainer(self.bases, self.store, self.sessions, self.promises, self.executor)
        self.samplers = Samplers(self.bases, self.trainer, self.sessions, self.promises, self.executor)
        self._closing = asyncio.Event()

    def executions(self) -> list[dict[str, Any]]:
        return self.executor.executions()

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Returns whether `event` was set within the time; a closing server waits for nothing."""
        if event.is_set() or timeout_s <= 0:
            return event.is_set()
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._closing.wait())]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._closing.is_set():
            raise Refused(503, "The lab is closing.")
        return event.is_set()

    async def completed(self, body: Json) -> Json:
        """Answers retrieve_futures: which samples of one sampler have finished since the cursor."""
        target = table(body, "target")
        sampler = self.samplers.find(target.get("sampling_session_id"))
        name = self.samplers.target(sampler.sampler_id, whole(target, "cloned_sampler_id", 0))
        cursor = whole(body, "prev_cursor", 0)
        finished, after = self.samplers.completions.since(name, cursor)
        if not finished:
            timeout_s = min(real(body, "timeout", self.config.poll_s), self.config.poll_s)
            await self.wait(self.samplers.completions.changed(name), timeout_s)
            finished, after = self.samplers.completions.since(name, cursor)
        return {"completions": [self._completion(request_id) for request_id in finished], "cursor": after}

    def close(self) -> None:
        """Wakes everyone who waits and drops what is in flight."""
        self._closing.set()
        self.samplers.close()
        for session in self.sessions.all():
            self._ended(session)
        self.executor.close()

    def _completion(self, request_id: str) -> Json:
        promise = self.promises.find(request_id)
        failed = promise is None or isinstance(promise.outcome, Failure)
        return {"state": "failed" if failed else "finished", "request_id": request_id}

    def _ended(self, session: Session) -> None:
        for promise in self.promises.unfinished(session.session_id):
            promise.finish(Failure(f"The session {session.session_id} ended before the request was done."))
        for model_id in session.models:
            self.trainer.drop(model_id)


def try_again(promise: Promise) -> Json:
    """Returns what a caller hears whose request is not done yet."""
    return {"type": "try_again", "request_id": promise.request_id, "queue_state": "active"}
