"""What do requests and answers look like on the wire? Protobuf where the SDK wants it, JSON elsewhere.

Numbers of fields are those of the SDK's `tinker_public.proto`, the same from 0.25.0 to 0.38.0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import protobuf as pb
from .losses import Datum, TrainOutput
from .model import EOS, VOCABULARY, Array, Tokens
from .refusal import bad
from .sampling import (
    DEFAULT_MAX_TOKENS,
    SampledSequence,
    SampleOutput,
    SampleWork,
    SamplingParams,
    TopK,
)

PROTOBUF = "application/x-protobuf"
FLOAT32, INT64, INT32 = 1, 2, 3

Json = dict[str, Any]
AnyArray = npt.NDArray[Any]


@dataclass(frozen=True)
class TrainRequest:
    """A forward or forward_backward request; its data stay encoded until the request is known to be wanted."""

    model_id: str
    seq_id: int
    loss_fn: str
    config: Mapping[str, float | str]
    forward_only: bool
    raw_data: list[bytes]


def decompress(body: bytes, encoding: str) -> bytes:
    """Undoes the content encoding; the SDK sends zstd where the client config asks for it."""
    if encoding in ("", "identity"):
        return body
    if encoding != "zstd":
        raise bad(f"The lab does not know the content encoding {encoding!r}.")
    import zstandard  # the SDK brings it along

    try:
        return bytes(zstandard.ZstdDecompressor().decompressobj().decompress(body))
    except zstandard.ZstdError as error:
        raise bad(f"The body is not zstd: {error}.") from None


# ---- forward and forward_backward -------------------------------------------------------------------------------


def read_train_request(body: bytes) -> TrainRequest:
    """Reads the protobuf form of forward and forward_backward."""
    model_id = loss_fn = ""
    seq_id = 0
    forward_only = False
    old: dict[str, float | str] = {}
    new: dict[str, float | str] = {}
    data: list[bytes] = []
    for number, value in pb.fields(body):
        if number == 1:
            model_id = pb.bytes_of(value).decode()
        elif number == 2:
            seq_id = pb.int_of(value)
        elif number == 3:
            data.append(pb.bytes_of(value))
        elif number == 4:
            loss_fn = pb.bytes_of(value).decode()
        elif number == 5:
            name, content = _entry(pb.bytes_of(value))
            old[name] = pb.number_of(content)
        elif number == 6:
            forward_only = bool(value)
        elif number == 7:  # the same settings again, in the form that also knows strings
            name, content = _entry(pb.bytes_of(value))
            new[name] = _setting(pb.bytes_of(content))
    return TrainRequest(model_id, seq_id, loss_fn, new or old, forward_only, data)


def read_data(raw: Sequence[bytes]) -> list[Datum]:
    """Decodes the data of a request; raises `Refused` naming the first datum that makes no sense."""
    data = []
    for place, message in enumerate(raw):
        try:
            data.append(_read_datum(place, message))
        except (ValueError, IndexError, MemoryError) as error:  # sizes and indices that contradict each other
            raise bad(f"Datum {place} cannot be read: {error}.") from None
    return data


def stable(raw_datum: bytes) -> bytes:
    """Returns the same bytes for the same datum: protobuf may write its named inputs in any order."""
    return b"".join(sorted(pb.blob(number, pb.bytes_of(value)) for number, value in pb.fields(raw_datum)))


def _entry(message: bytes) -> tuple[str, pb.Value]:
    found = dict(pb.fields(message))
    return pb.bytes_of(found.get(1, b"")).decode(), found.get(2, b"")


def _setting(message: bytes) -> float | str:
    for number, value in pb.fields(message):
        return pb.number_of(value) if number == 1 else pb.bytes_of(value).decode()
    return 0.0


def _read_datum(place: int, message: bytes) -> Datum:
    tokens: list[Tokens] = []
    inputs: dict[str, AnyArray] = {}
    for number, value in pb.fields(message):
        if number == 1:
            tokens.append(_read_chunk(place, pb.bytes_of(value)))
        elif number == 2:
            name, content = _entry(pb.bytes_of(value))
            inputs[name] = _read_tensor(pb.bytes_of(content))
    targets = inputs.pop("target_tokens", None)
    if targets is None:
        raise bad(f"Datum {place}: loss_fn_inputs['target_tokens'] is missing.")
    model_input = np.concatenate(tokens) if tokens else np.zeros(0, dtype=np.int64)
    for what, ids in (("model input", model_input), ("target_tokens", targets)):
        if ids.size and (ids.min() < 0 or ids.max() >= VOCABULARY):
            raise bad(f"Datum {place}: {what} has a token outside 0..{VOCABULARY - 1}.")
    return Datum(
        model_input, targets.astype(np.int64), {name: array.astype(np.float64) for name, array in inputs.items()}
    )


def _read_chunk(place: int, message: bytes) -> Tokens:
    for number, value in pb.fields(message):
        if number == 1:
            packed = dict(pb.fields(pb.bytes_of(value))).get(1, b"")
            return np.frombuffer(pb.bytes_of(packed), dtype=np.int32).astype(np.int64)
    raise bad(f"Datum {place}: the lab's model reads text only, not images or audio.")


def _read_tensor(message: bytes) -> AnyArray:
    dense, dtype, shape = b"", FLOAT32, list[int]()
    sparse: dict[int, pb.Value] | None = None
    for number, value in pb.fields(message):
        if number == 1:
            dense = pb.bytes_of(value)
        elif number == 2:
            sparse = dict(pb.fields(pb.bytes_of(value)))
        elif number == 3:
            dtype = pb.int_of(value)
        elif number == 4:
            shape += pb.unpacked(value)
    kind: type | None = {FLOAT32: np.float32, INT64: np.int64, INT32: np.int32}.get(dtype)
    if kind is None:
        raise bad(f"A tensor has the type number {dtype}; the lab reads float32, int64 and int32.")
    if sparse is not None:
        parts = {number: pb.bytes_of(value) for number, value in sparse.items()}
        rows = np.frombuffer(parts.get(2, b""), dtype=np.int64)
        columns = np.frombuffer(parts.get(3, b""), dtype=np.int64)
        return from_csr(np.frombuffer(parts.get(1, b""), dtype=kind), rows, columns, shape, 0)
    array: AnyArray = np.frombuffer(dense, dtype=kind)
    return array.reshape(shape) if shape else array


def from_csr(values: AnyArray, rows: AnyArray, columns: AnyArray, shape: Sequence[int], filler: int) -> AnyArray:
    """Returns the dense form of a sparse matrix given by its compressed rows."""
    dense = np.full(tuple(shape), filler, dtype=values.dtype)
    dense[np.repeat(np.arange(len(rows) - 1), np.diff(rows)), columns] = values
    return dense


def write_train_output(output: TrainOutput) -> bytes:
    """Writes a `ForwardBackwardOutput` message with one record that batches all datums."""
    columns = {"logprobs": output.logprobs, "elementwise_loss": output.losses}
    record = b"".join(pb.blob(2, pb.text(1, name) + pb.blob(2, _batched(arrays))) for name, arrays in columns.items())
    record += pb.integer(3, len(output.logprobs))
    metrics = (pb.blob(3, pb.text(1, name) + pb.double(2, value)) for name, value in output.metrics.items())
    return pb.text(1, "ArrayRecord") + pb.blob(2, record) + b"".join(metrics)


def _batched(arrays: Sequence[Array]) -> bytes:
    parts = [array.astype(np.float32).tobytes() for array in arrays]
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64).tobytes()
    trailing = list(arrays[0].shape[1:])
    return (
        pb.blob(1, b"".join(parts))
        + pb.blob(2, offsets)
        + pb.integer(3, FLOAT32)
        + (pb.packed(4, trailing) if trailing else b"")
    )


def train_output_json(output: TrainOutput) -> Json:
    pairs = zip(output.logprobs, output.losses, strict=True)
    return {
        "loss_fn_output_type": "ArrayRecord",
        "loss_fn_outputs": [
            {"logprobs": tensor_json(logprobs), "elementwise_loss": tensor_json(losses)} for logprobs, losses in pairs
        ],
        "metrics": output.metrics,
    }


def tensor_json(array: AnyArray) -> Json:
    kind = "int64" if array.dtype.kind == "i" else "float32"
    return {"data": array.ravel().tolist(), "dtype": kind, "shape": list(array.shape)}


# ---- sampling ---------------------------------------------------------------------------------------------------


def read_sample_request(body: Json, default_seed: int) -> SampleWork:
    """Reads the JSON of an asample request; raises `Refused` if it makes no sense."""
    return SampleWork(
        prompt=read_prompt(body.get("prompt")),
        params=_read_params(table(body, "sampling_params"), default_seed),
        num_samples=whole(body, "num_samples", 1),
        prompt_logprobs=bool(body.get("prompt_logprobs")),
        topk_prompt_logprobs=whole(body, "topk_prompt_logprobs", 0),
        topk_sample_logprobs=whole(body, "topk_sample_logprobs", 0),
        targets=_read_targets(table(body, "target_prompt_logprobs")),
        alternatives=whole(body, "prompt_alt_tokens_k", 0),
        last_n=None if body.get("prompt_logprobs_last_n") is None else whole(body, "prompt_logprobs_last_n", 0),
    )


def read_prompt(prompt: object) -> Tokens:
    if not isinstance(prompt, dict) or not isinstance(prompt.get("chunks"), list):
        raise bad("The prompt must be a model input with a list of chunks.")
    tokens: list[int] = []
    for chunk in prompt["chunks"]:
        if not isinstance(chunk, dict) or not isinstance(chunk.get("tokens"), list):
            raise bad("The lab's model reads text only; every chunk of the prompt must be encoded_text.")
        tokens += chunk["tokens"]
    if not all(isinstance(token, int) and 0 <= token < VOCABULARY for token in tokens):
        raise bad(f"The tokens of the prompt must be whole numbers in 0..{VOCABULARY - 1}.")
    return np.array(tokens, dtype=np.int64)


def _read_params(params: Json, default_seed: int) -> SamplingParams:
    tokens, strings = _read_stop(params.get("stop"))
    return SamplingParams(
        max_tokens=whole(params, "max_tokens", DEFAULT_MAX_TOKENS),
        seed=whole(params, "seed", default_seed),
        temperature=real(params, "temperature", 1.0),
        top_k=whole(params, "top_k", -1),
        top_p=real(params, "top_p", 1.0),
        stop_tokens=tokens,
        stop_strings=strings,
    )


def _read_stop(stop: object) -> tuple[frozenset[int], tuple[bytes, ...]]:
    """The end-of-text token stops by default; an empty list switches that off."""
    if stop is None:
        return frozenset({EOS}), ()
    stops = [stop] if isinstance(stop, str) else stop
    if isinstance(stops, list) and all(isinstance(item, int) for item in stops):
        return frozenset(stops), ()
    if isinstance(stops, list) and all(isinstance(item, str) and item for item in stops):
        return frozenset({EOS}), tuple(item.encode() for item in stops)
    raise bad("stop must be a string, a list of strings, or a list of token ids.")


def _read_targets(tensor: Json) -> Tokens | None:
    """Reads a matrix of token ids, dense or sparse; -1 stands for a cell that nothing is asked about."""
    if not tensor:
        return None
    try:
        values, shape = np.array(tensor["data"], dtype=np.int64), tuple(tensor["shape"])
        rows, columns = tensor.get("sparse_crow_indices"), tensor.get("sparse_col_indices")
        sparse = rows is not None and columns is not None
        matrix = from_csr(values, np.array(rows), np.array(columns), shape, -1) if sparse else values.reshape(shape)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, MemoryError) as error:
        raise bad(f"target_prompt_logprobs cannot be read: {error}.") from None
    if matrix.ndim != 2 or (matrix.size and (matrix.min() < -1 or matrix.max() >= VOCABULARY)):
        raise bad(f"target_prompt_logprobs must be a matrix of token ids in 0..{VOCABULARY - 1}, or -1.")
    return matrix


def table(body: Json, name: str) -> Json:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad(f"{name} must be an object, not {value!r}.")
    return value


def whole(body: Json, name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad(f"{name} must be a whole number, not {value!r}.")
    return value


def real(body: Json, name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad(f"{name} must be a number, not {value!r}.")
    return float(value)


def write_sample_output(output: SampleOutput) -> bytes:
    """Writes a `SampleResponse` message."""
    out = b"".join(pb.blob(1, _sequence(sequence)) for sequence in output.sequences)
    if output.prompt_logprobs is not None:
        out += pb.blob(2, output.prompt_logprobs.astype(np.float32).tobytes())
    if output.topk_prompt_logprobs is not None:
        out += pb.blob(3, _topk(output.topk_prompt_logprobs))
    if output.target_logprobs is not None:
        out += pb.blob(5, _tensor(output.target_logprobs))
    if output.alternatives is not None:
        pair = output.alternatives
        out += pb.blob(6, pb.blob(1, _tensor(pair.token_ids)) + pb.blob(2, _tensor(pair.logprobs)))
    return out


def _sequence(sequence: SampledSequence) -> bytes:
    return (
        pb.integer(1, 0 if sequence.stop_reason == "stop" else 1)
        + pb.blob(2, np.array(sequence.tokens, dtype=np.int32).tobytes())
        + pb.blob(3, np.array(sequence.logprobs, dtype=np.float32).tobytes())
        + (pb.blob(4, _topk(sequence.topk)) if sequence.topk is not None else b"")
    )


def _topk(table: TopK) -> bytes:
    length, width = table.token_ids.shape
    return (
        pb.blob(1, table.token_ids.astype(np.int32).tobytes())
        + pb.blob(2, table.logprobs.astype(np.float32).tobytes())
        + pb.integer(3, width)
        + pb.integer(4, length)
    )


def _tensor(array: AnyArray) -> bytes:
    whole_numbers = array.dtype.kind == "i"
    content = array.astype(np.int64 if whole_numbers else np.float32).tobytes()
    return pb.blob(1, content) + pb.integer(3, INT64 if whole_numbers else FLOAT32) + pb.packed(4, list(array.shape))


def sample_output_json(output: SampleOutput) -> Json:
    """The JSON form, for callers without protobuf; no SDK from 0.25.0 on asks for it."""
    prompt = output.prompt_logprobs
    return {
        "type": "sample",
        "sequences": [
            {"tokens": s.tokens, "logprobs": s.logprobs, "stop_reason": s.stop_reason} for s in output.sequences
        ],
        "prompt_logprobs": None if prompt is None else [None if np.isnan(p) else float(p) for p in prompt],
    }


# ---- results ----------------------------------------------------------------------------------------------------

Result = TrainOutput | SampleOutput | Json

_AS_JSON: dict[type, Callable[[Any], Json]] = {TrainOutput: train_output_json, SampleOutput: sample_output_json}
_AS_PROTOBUF: dict[type, Callable[[Any], bytes]] = {
    TrainOutput: write_train_output,
    SampleOutput: write_sample_output,
}


def encode(result: Result, accept: str) -> tuple[bytes, str]:
    """Returns body and content type of a result in the form that the caller accepts."""
    if PROTOBUF in accept and type(result) in _AS_PROTOBUF:
        return _AS_PROTOBUF[type(result)](result), PROTOBUF
    as_json = _AS_JSON[type(result)](result) if type(result) in _AS_JSON else result
    return json.dumps(as_json).encode(), "application/json"
