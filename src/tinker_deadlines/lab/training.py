"""What can be asked of a model in training? Its creation, its steps, its saves and loads, each in its turn."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from . import losses
from .bases import BaseModels
from .execution import Act, Executor
from .latency import Work
from .model import Array, Lora, LoraSpec, Weights
from .optimizer import AdamParams, adam_step
from .promises import Promise, Promises
from .refusal import Refused, bad, unknown
from .sessions import Session, Sessions
from .store import Checkpoint, Missing, Run, Store, split_path
from .turns import FIRST_SEQ_ID, TurnQueue
from .wire import Json, TrainRequest, read_data, real, stable, table, whole

Prepare = Callable[[], tuple[Act, Work]]
CREATION = 0  # a model's creation has turn 0, before the first request of its client
LAST_SEQ_ID = 2**31 - 1  # it is a 32-bit number in protobuf
LONGEST_NAME = 200  # in bytes, as a file name
MAX_RANK = 512
SHORTEST_TTL_S = 3600  # one hour and ten years: the bounds that the SDK documents
LONGEST_TTL_S = 10 * 366 * 86_400


@dataclass(eq=False)
class TrainingModel:
    """One model in training."""

    model_id: str
    session: Session
    base_model: str
    lora: Lora
    turns: TurnQueue = field(default_factory=TurnQueue)
    names_being_saved: set[tuple[str, str]] = field(default_factory=set)
    user_metadata: Mapping[str, str] | None = None
    last_request_s: float = field(default_factory=time.time)


class Trainer:
    """All models in training."""

    def __init__(
        self, bases: BaseModels, store: Store, sessions: Sessions, promises: Promises, executor: Executor
    ) -> None:
        self._bases = bases
        self._store = store
        self._sessions = sessions
        self._promises = promises
        self._executor = executor
        self._models: dict[str, TrainingModel] = {}

    # ---- models ------------------------------------------------------------------------------------------------

    def model(self, model_id: object) -> TrainingModel:
        """Returns a model whose session is alive."""
        model = self._models.get(str(model_id))
        if model is None:
            session_id = str(model_id).partition(":")[0]
            self._sessions.alive(session_id)  # says so if the model went with its session
            raise unknown(f"There is no model {model_id!r}.")
        self._sessions.alive(model.session.session_id)
        return model

    def find(self, model_id: str) -> TrainingModel | None:
        return self._models.get(model_id)

    def drop(self, model_id: str) -> None:
        """Ends a model; its checkpoints stay."""
        model = self._models.pop(model_id, None)
        if model is not None:
            model.turns.close()

    def create(self, body: Json) -> Promise:
        """Answers create_model."""
        if table(body, "optimizer_config").get("type", "adamw") != "adamw":
            raise bad("The lab's only optimizer is adamw.")
        return self._new_model("CreateModel", body, lambda: (self._bases.resolve(body.get("base_model")), _spec(body)))

    def load(self, body: Json) -> Promise:
        """Answers load_weights: into a model that exists, or, with a session instead, into one that it creates."""
        path, optimizer = str(body.get("path")), bool(body.get("optimizer"))
        if body.get("model_id") is None:
            return self._new_model("LoadWeights", body, lambda: self._settings_of(path, body), (path, optimizer))
        model = self.model(body["model_id"])

        def prepare() -> tuple[Act, Work]:
            if (seq_id := whole(body, "seq_id", 0)) != FIRST_SEQ_ID:
                raise bad(f"LoadWeights is not permitted with seq_id {seq_id}; it can only be a model's first request.")
            self._check_fits(path, model, optimizer)
            return lambda: self._restore(model, path, optimizer), Work()

        return self._take_turn(model, body, "LoadWeights", prepare)

    def _new_model(
        self,
        kind: str,
        body: Json,
        settings: Callable[[], tuple[str, LoraSpec]],
        load: tuple[str, bool] | None = None,
    ) -> Promise:
        session = self._sessions.alive(body.get("session_id"))
        model_id = f"{session.session_id}:train:{whole(body, 'model_seq_id', 0)}"
        fingerprint = fingerprint_of(body)
        known = self._promises.repeated(f"{model_id}:{CREATION}", kind, fingerprint)
        if known is not None:
            return known
        base_model, spec = settings()
        if load is not None and load[1]:
            self._check_optimizer(load[0])
        lora = Lora(self._bases.weights(base_model), spec)
        model = TrainingModel(model_id, session, base_model, lora, user_metadata=body.get("user_metadata"))
        self._models[model_id] = model
        session.models.append(model_id)

        def act() -> Json:
            self._store.save_run(_run_of(model))
            if load is not None:
                return self._restore(model, *load)
            return {"type": "create_model", "model_id": model_id}

        return self._submit(model, CREATION, kind, fingerprint, lambda: (act, Work()))

    def unload(self, body: Json) -> Promise:
        model = self.model(body.get("model_id"))
        promise = Promise(f"{model.model_id}:unload", "UnloadModel", "")
        promise.finish({"type": "unload_model", "model_id": model.model_id})
        self._promises.add(promise)
        self.drop(model.model_id)
        return promise

    def info(self, model_id: object) -> Json:
        model = self.model(model_id)
        name = self._bases.tokenizer_directory(model.base_model)
        return {
            "type": "get_info",
            "model_id": model.model_id,
            "model_name": name,
            "model_data": {"arch": "leaky-mixer", "model_name": name, "tokenizer_id": name},
            "is_lora": True,
            "lora_rank": model.lora.spec.rank,
            "optimizer_config": {"type": "adamw"},
        }

    # ---- steps -------------------------------------------------------------------------------------------------

    def train(self, request: TrainRequest) -> Promise:
        """Answers forward_backward and forward."""
        model = self.model(request.model_id)
        kind = "Forward" if request.forward_only else "ForwardBackward"
        settings = json.dumps([request.loss_fn, dict(request.config)], sort_keys=True).encode()
        fingerprint = hashlib.sha256(settings + b"".join(map(stable, request.raw_data))).hexdigest()

        def prepare() -> tuple[Act, Work]:
            data = read_data(request.raw_data)
            losses.check(request.loss_fn, data, request.config)
            learn = not request.forward_only
            tokens = sum(len(datum.tokens) for datum in data)
            return (
                lambda: losses.run(model.lora, data, request.loss_fn, request.config, learn),
                Work(prompt_tokens=tokens, datums=len(data)),
            )

        return self._submit(model, _turn(request.seq_id), kind, fingerprint, prepare)

    def optim_step(self, body: Json) -> Promise:
        model = self.model(body.get("model_id"))

        def prepare() -> tuple[Act, Work]:
            params = _adam_params(body)
            return lambda: {"type": "optim_step", "metrics": adam_step(model.lora, params)}, Work()

        return self._take_turn(model, body, "OptimStep", prepare)

    # ---- saves -------------------------------------------------------------------------------------------------

    def save(self, body: Json, kind: str, section: str) -> Promise:
        """Answers save_weights, save_weights_for_sampler and save_weights_external where they name a checkpoint."""
        model = self.model(body.get("model_id"))

        def prepare() -> tuple[Act, Work]:
            expiry(body)
            name = self._free_name(model, body, section)
            key = (section, name)
            model.names_being_saved.add(key)

            def act() -> Json:
                try:
                    saved = self._write(model, name, section, body)
                finally:
                    model.names_being_saved.discard(key)
                return {"type": body.get("type"), "path": saved.path, "size_bytes": saved.size_bytes}

            return act, Work()

        return self._take_turn(model, body, kind, prepare)

    def publish(self, body: Json, publish: Callable[[TrainingModel, Weights], str]) -> Promise:
        """Answers save_weights_for_sampler without a name: hands the weights to a sampler at once."""
        model = self.model(body.get("model_id"))

        def act() -> Json:
            sampler_id = publish(model, model.lora.weights())
            return {"type": "save_weights_for_sampler", "sampling_session_id": sampler_id}

        return self._take_turn(model, body, "SaveWeightsForSampler", lambda: (act, Work()))

    def _free_name(self, model: TrainingModel, body: Json, section: str) -> str:
        name = str(body.get("path") or f"step-{whole(body, 'seq_id', 0):06d}")
        if "/" in name or len(name.encode()) > LONGEST_NAME or not name.isprintable():
            raise bad(f"The name {name[:50]!r} cannot be used; it must be printable, short, and without a slash.")
        taken = self._store.exists(model.model_id, section, name) or (section, name) in model.names_being_saved
        if taken and not body.get("overwrite"):
            raise Refused(409, f"tinker://{model.model_id}/{section}/{name} already exists.")
        return name

    def _write(self, model: TrainingModel, name: str, section: str, body: Json) -> Checkpoint:
        with_optimizer = section == "weights"
        checkpoint = Checkpoint(
            run=model.model_id,
            section=section,
            name=name,
            base_model=model.base_model,
            lora=asdict(model.lora.spec),
            created_s=time.time(),
            expires_s=expiry(body),
            optimizer=with_optimizer,
            user_metadata=body.get("user_metadata"),
        )
        return self._store.save(checkpoint, model.lora.state(with_optimizer))

    # ---- loads -------------------------------------------------------------------------------------------------

    def weights_at(self, path: str) -> tuple[str, Weights]:
        """Returns base model and complete weights of a checkpoint."""
        checkpoint, arrays = self._load(path)
        lora = Lora(self._bases.weights(checkpoint.base_model), LoraSpec(**checkpoint.lora))
        lora.restore(arrays, optimizer=False)
        return checkpoint.base_model, lora.weights()

    def _restore(self, model: TrainingModel, path: str, optimizer: bool) -> Json:
        model.lora.restore(self._load(path)[1], optimizer)
        return {"type": "load_weights", "path": path, "model_id": model.model_id}

    def _load(self, path: str) -> tuple[Checkpoint, dict[str, Array]]:
        try:
            split_path(path)
            return self._store.load(path)
        except Missing as missing:
            raise unknown(str(missing)) from None

    def _checkpoint(self, path: str) -> Checkpoint:
        try:
            return self._store.checkpoint(path)
        except Missing as missing:
            raise unknown(str(missing)) from None

    def _settings_of(self, path: str, body: Json) -> tuple[str, LoraSpec]:
        checkpoint = self._checkpoint(path)
        wanted = body.get("base_model")
        if wanted is not None and self._bases.resolve(wanted) != checkpoint.base_model:
            raise bad(f"{path} belongs to the base model {checkpoint.base_model}, not {wanted}.")
        return self._bases.resolve(checkpoint.base_model), LoraSpec(**checkpoint.lora)

    def _check_optimizer(self, path: str) -> None:
        if not self._checkpoint(path).optimizer:
            raise bad(f"{path} has no optimizer state; load it without.")

    def _check_fits(self, path: str, model: TrainingModel, optimizer: bool) -> None:
        checkpoint = self._checkpoint(path)
        spec = LoraSpec(**checkpoint.lora)
        own = model.lora.spec
        if (checkpoint.base_model, spec.rank, spec.matrices()) != (model.base_model, own.rank, own.matrices()):
            raise bad(
                f"{path} does not fit: it is {checkpoint.base_model} with rank {spec.rank}, "
                f"and the model is {model.base_model} with rank {own.rank}."
            )
        if optimizer:
            self._check_optimizer(path)

    # ---- turns -------------------------------------------------------------------------------------------------

    def _take_turn(self, model: TrainingModel, body: Json, kind: str, prepare: Prepare) -> Promise:
        seq_id = _turn(whole(body, "seq_id", CREATION))
        return self._submit(model, seq_id, kind, fingerprint_of(body), prepare)

    def _submit(self, model: TrainingModel, seq_id: int, kind: str, fingerprint: str, prepare: Prepare) -> Promise:
        known = model.turns.repeated(seq_id, kind, fingerprint)
        if known is not None:
            return known
        model.last_request_s = time.time()
        try:
            act, work = prepare()
        except Refused:
            model.turns.refuse(seq_id)
            raise
        promise = Promise(
            request_id=f"{model.model_id}:{seq_id}",
            kind=kind,
            fingerprint=fingerprint,
            session_id=model.session.session_id,
            model_id=model.model_id,
            seq_id=seq_id,
        )
        self._promises.add(promise)
        model.turns.add(promise, lambda: self._executor.carry_out(promise, act, work))
        return promise


def fingerprint_of(body: Json) -> str:
    """Returns what two sendings of the same request have in common."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _turn(seq_id: int) -> int:
    if not FIRST_SEQ_ID <= seq_id <= LAST_SEQ_ID:
        raise bad(f"seq_id must be a whole number from {FIRST_SEQ_ID} on, and is {seq_id}.")
    return seq_id


def expiry(body: Json) -> float | None:
    """Returns when a checkpoint expires, in seconds since the epoch, or None for never."""
    if body.get("ttl_seconds") is None:
        return None
    ttl_s = whole(body, "ttl_seconds", 0)
    if not SHORTEST_TTL_S <= ttl_s <= LONGEST_TTL_S:
        raise bad(f"ttl_seconds must be between {SHORTEST_TTL_S} and {LONGEST_TTL_S}, and is {ttl_s}.")
    return time.time() + ttl_s


def _run_of(model: TrainingModel) -> Run:
    return Run(
        run=model.model_id,
        session=model.session.session_id,
        base_model=model.base_model,
        lora=asdict(model.lora.spec),
        created_s=time.time(),
        user_metadata=model.user_metadata,
    )


def _spec(body: Json) -> LoraSpec:
    config = table(body, "lora_config")
    if not config:
        raise bad("The lab trains LoRA adapters only; create_model needs a lora_config.")
    rank = whole(config, "rank", LoraSpec.rank)
    if not 1 <= rank <= MAX_RANK:
        raise bad(f"The LoRA rank must be between 1 and {MAX_RANK}, and is {rank}.")
    parts = {name: bool(config.get(name, True)) for name in ("train_attn", "train_mlp", "train_unembed")}
    if not any(parts.values()):
        raise bad("At least one of train_mlp, train_attn and train_unembed must be true.")
    seed = None if config.get("seed") is None else whole(config, "seed", 0)
    return LoraSpec(rank=rank, seed=seed, **parts)


def _adam_params(body: Json) -> AdamParams:
    if body.get("optimizer_params") is not None:
        raise bad("The lab's only optimizer is adamw; optim_step takes AdamParams.")
    given = table(body, "adam_params")
    known = asdict(AdamParams())
    if unknown_names := sorted(set(given) - set(known)):
        raise bad(f"adam_params has no {unknown_names[0]!r}.")
    return AdamParams(**{name: real(given, name, default) for name, default in known.items()})
