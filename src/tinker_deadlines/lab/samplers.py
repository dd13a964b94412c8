"""What can be sampled from? Base models, checkpoints, and weights that a model in training handed over."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from . import sampling
from .bases import BaseModels
from .execution import Executor
from .latency import Work
from .model import Weights, seed_from
from .promises import Completions, Failure, Promise, Promises
from .refusal import Refused, bad, unknown
from .sessions import Sessions
from .training import Trainer, TrainingModel, fingerprint_of
from .wire import Json, read_sample_request, whole

CLONE_BLOCK = 1_000_000_000  # the SDK numbers the requests of copy n of a sampler from n billion on


@dataclass
class Box:
    """Holds weights; samplers that share a box see them change together."""

    weights: Weights


@dataclass(eq=False)
class Sampler:
    """One sampling session, or the source of a single request without one."""

    sampler_id: str
    session_id: str
    base_model: str
    model_path: str | None
    box: Box
    fingerprint: str = ""
    copies: int = field(default=0)


class Samplers:
    """All samplers."""

    def __init__(
        self, bases: BaseModels, trainer: Trainer, sessions: Sessions, promises: Promises, executor: Executor
    ) -> None:
        self._bases = bases
        self._trainer = trainer
        self._sessions = sessions
        self._promises = promises
        self._executor = executor
        self._samplers: dict[str, Sampler] = {}
        self._inflight: dict[str, Box] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._adding = threading.Lock()  # weights are handed over on a worker thread
        self.completions = Completions()

    def create(self, body: Json) -> Sampler:
        """Answers create_sampling_session; repeating it returns the same sampler."""
        session = self._sessions.alive(body.get("session_id"))
        sampler_id = _id_of(session.session_id, body)
        known = self._samplers.get(sampler_id)
        if known is not None:
            if known.fingerprint != fingerprint_of(body):
                raise Refused(409, f"The sampling session {sampler_id!r} was already created from something else.")
            return known
        sampler = self._source(sampler_id, session.session_id, body)
        sampler.fingerprint = fingerprint_of(body)
        self._add(sampler)
        return sampler

    def publisher(self, body: Json) -> Callable[[TrainingModel, Weights], str]:
        """Returns what makes a sampler of a model's weights: fixed ones, or ones that later calls replace."""
        seq_id = whole(body, "sampling_session_seq_id", -1)
        kind = body.get("kind", "snapshot")
        if seq_id < 0:
            raise bad("save_weights_for_sampler needs a path or a sampling_session_seq_id.")
        if kind not in ("snapshot", "inflight"):
            raise bad(f"The kind of a sampler is 'snapshot' or 'inflight', not {kind!r}.")

        def publish(model: TrainingModel, weights: Weights) -> str:
            box = Box(weights)
            if kind == "inflight":
                box = self._inflight.setdefault(model.model_id, box)
                box.weights = weights
            session_id = model.session.session_id
            self._add(Sampler(_id_of(session_id, body), session_id, model.base_model, None, box))
            return _id_of(session_id, body)

        return publish

    def find(self, sampler_id: object) -> Sampler:
        sampler = self._samplers.get(str(sampler_id))
        if sampler is None:
            raise unknown(f"There is no sampling session {sampler_id!r}.")
        return sampler

    def info(self, sampler_id: str) -> Json:
        sampler = self.find(sampler_id)
        name = self._bases.tokenizer_directory(sampler.base_model)
        return {"sampler_id": sampler_id, "base_model": name, "model_path": sampler.model_path}

    def join(self, body: Json) -> int:
        """Answers join_sampling_session with the number of a new copy."""
        sampler = self.find(body.get("sampling_session_id"))
        sampler.copies += 1
        return sampler.copies

    def sample(self, body: Json, idempotency_key: str | None) -> tuple[Promise, list[str]]:
        """Answers asample; returns the promise and the ids of the sequences that it will hold."""
        in_session = body.get("sampling_session_id") is not None
        seq_id = whole(body, "seq_id", 0)
        name = f"{body['sampling_session_id']}:{seq_id}" if in_session else f"sample:{idempotency_key or uuid.uuid4()}"
        fingerprint = fingerprint_of(body)
        known = self._promises.repeated(name, "Sample", fingerprint)
        if known is not None:
            return known, _sequence_ids(name, whole(body, "num_samples", 1))
        sampler = self.find(body["sampling_session_id"]) if in_session else self._source(name, "", body)
        if sampler.session_id:
            self._sessions.alive(sampler.session_id)
        work = read_sample_request(body, default_seed=seed_from(f"{sampler.base_model} {seq_id}") >> 1)
        sampling.check(work)
        promise = Promise(name, "Sample", fingerprint, sampler.session_id, sampler.sampler_id, seq_id)
        self._promises.add(promise)
        effort = Work(len(work.prompt), work.params.max_tokens * work.num_samples)
        self._start(self._sample(promise, sampler, work, effort))
        return promise, _sequence_ids(name, work.num_samples)

    def cancel(self, promise: Promise) -> None:
        if promise.kind != "Sample":
            raise bad(f"Only sampling can be cancelled, and {promise.request_id!r} is {promise.kind}.")
        promise.finish(Failure("The request was cancelled by its caller."))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def target(self, sampler_id: str, copy: int) -> str:
        return f"{sampler_id}#{copy}"

    async def _sample(self, promise: Promise, sampler: Sampler, work: sampling.SampleWork, effort: Work) -> None:
        await self._executor.carry_out(promise, lambda: sampling.sample(sampler.box.weights, work), effort)
        self.completions.add(self.target(sampler.sampler_id, promise.seq_id // CLONE_BLOCK), promise.request_id)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _source(self, sampler_id: str, session_id: str, body: Json) -> Sampler:
        path = body.get("model_path")
        if path is not None:
            base_model, weights = self._trainer.weights_at(str(path))
        elif body.get("base_model") is not None:
            base_model = self._bases.resolve(body["base_model"])
            weights = self._bases.weights(base_model)
        else:
            raise bad("Sampling needs a sampling session, a model_path or a base_model.")
        return Sampler(sampler_id, session_id, base_model, path, Box(weights))

    def _add(self, sampler: Sampler) -> None:
        with self._adding:
            if sampler.sampler_id not in self._samplers:
                self._samplers[sampler.sampler_id] = sampler
                self._sessions.find(sampler.session_id).samplers.append(sampler.sampler_id)


def _id_of(session_id: str, body: Json) -> str:
    return f"{session_id}:sample:{whole(body, 'sampling_session_seq_id', 0)}"


def _sequence_ids(request_id: str, num_samples: int) -> list[str]:
    return [f"{request_id}:{i}" for i in range(num_samples)]
