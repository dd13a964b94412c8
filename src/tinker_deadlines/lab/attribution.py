"""Whose request is this? The call kind, session and model behind a request of the Tinker wire.

The wire names its owner differently from request to request: a session id in JSON, a model id in the first field of a
protobuf message that may be compressed, a sampling session, or nothing but the id of a future. What bodies and answers
reveal is kept here, so that a poll can be counted as part of the call, and of the session, that submitted it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import unquote

_KIND_OF_PATH = {
    "asample": "sample",
    "forward": "forward_backward",
    "forward_backward": "forward_backward",
    "optim_step": "optim_step",
    "save_weights": "save_state",
    "save_weights_external": "save_state",
    "load_weights": "load_state",
    "save_weights_for_sampler": "save_weights_for_sampler",
    "auth/token": "connect",
    "client/config": "connect",
    "client/dynamic_config": "connect",
    "get_server_capabilities": "connect",
    "create_session": "connect",
    "create_model": "connect",
    "create_custom_loss": "connect",
    "create_sampling_session": "connect",
    "join_sampling_session": "connect",
    "get_info": "connect",
    "retrieve_futures": "sample",
}
_KIND_OF_REQUEST_TYPE = {
    "Sample": "sample",
    "Forward": "forward_backward",
    "ForwardBackward": "forward_backward",
    "OptimStep": "optim_step",
    "SaveWeights": "save_state",
    "SaveWeightsExternal": "save_state",
    "LoadWeights": "load_state",
    "SaveWeightsForSampler": "save_weights_for_sampler",
    "CreateModel": "connect",
    "CreateCustomLoss": "connect",
}
_SUBMISSIONS = frozenset(
    {"asample", "forward", "forward_backward", "optim_step", "save_weights", "save_weights_external"}
    | {"save_weights_for_sampler", "load_weights", "create_model", "create_custom_loss", "copy_weights", "unload_model"}
)
_POLLS = frozenset({"retrieve_future", "retrieve_futures"})
_TEACHES = _SUBMISSIONS | {"create_session", "create_sampling_session", "retrieve_future"}
_API = re.compile(r"^.*?/api/v\d+/")
_ID_KEYS = ("session_id", "model_id", "sampling_session_id", "request_id", "base_model")
_ID_IN_JSON = re.compile(rb'"(' + "|".join(_ID_KEYS).encode() + rb')"\s*:\s*"([^"\\]{1,512})"')
_LOGPROBS_IN_JSON = re.compile(rb'"prompt_logprobs"\s*:\s*true')
_ONE_TOKEN_IN_JSON = re.compile(rb'"max_tokens"\s*:\s*1\b')
_OWNER_OF_ID = re.compile(r"^(?P<session>.+?):(?:train|sample):")
PARSED_WHOLE_BYTES = 64 * 1024
"""JSON up to this size is parsed; in larger bodies, which are prompts, the ids are searched for."""
REMEMBERED_CALLS = 100_000
"""Futures whose submission is remembered; the oldest is forgotten first. Arbitrary: some 50 MB at most."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one request when a rule is decided on."""

    method: str
    path: str
    kind: str = "rest"
    phase: str | None = None
    session: str | None = None
    session_ordinal: int | None = None
    model: str | None = None
    base_model: str | None = None
    request_id: str | None = None
    sampling_session: str | None = None

    @property
    def endpoint(self) -> str:
        """The path behind `/api/v1/`."""
        return endpoint_of(self.path)


class Learned(NamedTuple):
    """What an answer says of its request: the session it belongs to, and the future it announces."""

    session: str | None
    future: str | None


class Attribution:
    """Remembers which session and model every id seen belongs to. Not thread-safe: one event loop owns it."""

    def __init__(self) -> None:
        self._ordinals: dict[str, int] = {}
        self._session_of: dict[str, str] = {}
        self._model_of: dict[str, str] = {}
        self._base_of: dict[str, str] = {}
        self._calls: dict[str, Facts] = {}

    def facts(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Facts:
        """What the request says of itself, and what earlier traffic says of the ids in it.

        Args:
            method: The HTTP method.
            path: The path without its query.
            headers: Header values by lower-case name.
            body: The body, or as much of its beginning as has been read.
        """
        endpoint = endpoint_of(path)
        ids = _ids_of(endpoint, headers, body)
        call = self._calls.get(ids.get("request_id", "")) if endpoint == "retrieve_future" else None
        if call is not None:
            return replace(call, method=method, path=path, phase="poll")
        session = ids.get("session_id") or self._session_behind(ids)
        model = ids.get("model_id") or self._model_of.get(ids.get("sampling_session_id", ""))
        return Facts(
            method=method,
            path=path,
            kind=_kind_of(endpoint, headers, body),
            phase="submit" if endpoint in _SUBMISSIONS else "poll" if endpoint in _POLLS else None,
            session=session,
            session_ordinal=self._ordinal(session),
            model=model,
            base_model=ids.get("base_model") or self._base_of.get(model or ids.get("sampling_session_id", "")),
            request_id=ids.get("request_id"),
            sampling_session=ids.get("sampling_session_id"),
        )

    def learns_from(self, facts: Facts) -> bool:
        """Whether the answer to this request reveals ids worth keeping."""
        return facts.endpoint in _TEACHES

    def learn(self, facts: Facts, answer: bytes, encoding: str = "") -> Learned:
        """Keeps the ids in a JSON answer, and returns those that concern the request itself."""
        said = _strings_of(decoded(answer, encoding))
        session = facts.session or said.get("session_id")
        model = said.get("model_id") or facts.model
        if session is not None:
            self._learn_owners(facts, said, session, model)
        request_id = said.get("request_id")
        if request_id is None or facts.phase != "submit":
            return Learned(session, None)
        if len(self._calls) >= REMEMBERED_CALLS:
            del self._calls[next(iter(self._calls))]
        ordinal = self._ordinal(session)
        call = replace(facts, session=session, session_ordinal=ordinal, model=model, request_id=request_id)
        self._calls[request_id] = call
        return Learned(session, request_id)

    def _learn_owners(self, facts: Facts, said: Mapping[str, str], session: str, model: str | None) -> None:
        sampler = said.get("sampling_session_id")
        for owned in (model, sampler):
            if owned:
                self._session_of[owned] = session
                base = facts.base_model or (self._base_of.get(model) if model else None)
                if base:
                    self._base_of[owned] = base
        if sampler and model:
            self._model_of[sampler] = model
        self._ordinal(session)

    def poll_of(self, request_id: str, batch: Facts) -> Facts:
        """The facts of a single poll of this future, for a future that a batch poll reports on."""
        call = self._calls.get(request_id, batch)
        path = batch.path.removesuffix("s")
        return replace(call, method="POST", path=path, phase="poll", request_id=request_id)

    def _session_behind(self, ids: Mapping[str, str]) -> str | None:
        for key in ("model_id", "sampling_session_id", "request_id"):
            owned = ids.get(key)
            if owned is None:
                continue
            if owned in self._session_of:
                return self._session_of[owned]
            found = _OWNER_OF_ID.match(owned + ":")
            if found:
                return found["session"]
        return None

    def _ordinal(self, session: str | None) -> int | None:
        if session is None or session.startswith("sessionless-"):  # what REST clients call themselves in telemetry
            return None
        return self._ordinals.setdefault(session, len(self._ordinals) + 1)


def endpoint_of(path: str) -> str:
    """The path behind `/api/v1/`, or the whole path without its first slash where there is no such prefix."""
    return _API.sub("", path).strip("/") if "/api/" in path else path.strip("/")


def decoded(body: bytes, encoding: str) -> bytes:
    """The beginning of a body as it was before its content encoding; nothing where that cannot be told."""
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip" | "deflate":
            return _decoded_zlib(body)
        case "zstd":
            return _decoded_zstd(body)
        case _:
            return b""


def _decoded_zlib(body: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=47).decompress(body, 4 * PARSED_WHOLE_BYTES)
    except zlib.error:  # a broken body is the server's to refuse; here it only means "unknown"
        return b""


def _decoded_zstd(body: bytes) -> bytes:
    try:
        import zstandard  # comes with tinker, which sends this encoding; nothing else does
    except ImportError:
        return b""
    reader = zstandard.ZstdDecompressor().stream_reader(body)
    try:
        return reader.read(4 * PARSED_WHOLE_BYTES)
    except zstandard.ZstdError:
        return b""


def _kind_of(endpoint: str, headers: Mapping[str, str], body: bytes) -> str:
    if endpoint == "retrieve_future":
        return _KIND_OF_REQUEST_TYPE.get(headers.get("x-tinker-request-type", ""), "rest")
    if endpoint == "asample" and _LOGPROBS_IN_JSON.search(body) and _ONE_TOKEN_IN_JSON.search(body):
        # The SDK's compute_logprobs is a sample of one token that asks for the prompt's log-probabilities.
        return "compute_logprobs"
    return _KIND_OF_PATH.get(endpoint, "rest")


def _ids_of(endpoint: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
    ids = _ids_in_path(endpoint)
    if not body:
        return ids
    plain = decoded(body, headers.get("content-encoding", ""))
    if "protobuf" in headers.get("content-type", ""):
        model = _first_string_of_protobuf(plain)
        return ids | ({"model_id": model} if model else {})
    return ids | _strings_of(plain)


def _ids_in_path(endpoint: str) -> dict[str, str]:
    head, _, rest = endpoint.partition("/")
    owned = unquote(rest.partition("/")[0])
    key = {"sessions": "session_id", "training_runs": "model_id", "samplers": "sampling_session_id"}.get(head)
    return {key: owned} if key and owned and owned != "search" else {}


def _strings_of(body: bytes) -> dict[str, str]:
    """The ids among the members of a JSON object, those of its `target` included; never a person's metadata."""
    if len(body) > PARSED_WHOLE_BYTES:
        return {key.decode(): value.decode("utf-8", "replace") for key, value in _ID_IN_JSON.findall(body)}
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    target = document.get("target")
    members = {**(target if isinstance(target, dict) else {}), **document}
    return {key: members[key] for key in _ID_KEYS if isinstance(members.get(key), str)}


def _first_string_of_protobuf(body: bytes) -> str | None:
    """Field 1 of a message that begins with it: the model id of a ForwardBackwardRequest."""
    if len(body) < 2 or body[0] != 0x0A:
        return None
    length, at, shift = 0, 1, 0
    while at < len(body) and shift < 35:
        byte = body[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    text = body[at : at + length]
    try:
        return text.decode() if 0 < length == len(text) <= 512 else None
    except UnicodeDecodeError:
        return None
