"""What does the model say next? Seeded sampling, and the log-probabilities of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .model import (
    BYTES,
    CONTEXT_LENGTH,
    EOS,
    VOCABULARY,
    Array,
    Tokens,
    Weights,
    forward,
    log_softmax,
)
from .refusal import bad

DEFAULT_MAX_TOKENS = 128  # when the request does not say; arbitrary, long enough to read
MAX_SAMPLES = 4096
MASK_LOGPROB = -99999.0  # the SDK's filler for cells of a top-k table that hold nothing


@dataclass(frozen=True)
class SamplingParams:
    max_tokens: int = DEFAULT_MAX_TOKENS
    seed: int = 0
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    stop_tokens: frozenset[int] = frozenset({EOS})
    stop_strings: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class SampleWork:
    """One sampling request, decoded."""

    prompt: Tokens
    params: SamplingParams
    num_samples: int = 1
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    targets: Tokens | None = None
    alternatives: int = 0
    last_n: int | None = None


@dataclass
class TopK:
    token_ids: Tokens
    logprobs: Array


@dataclass
class SampledSequence:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_reason: str = "length"
    topk: TopK | None = None


@dataclass
class SampleOutput:
    sequences: list[SampledSequence]
    prompt_logprobs: Array | None = None
    topk_prompt_logprobs: TopK | None = None
    target_logprobs: Array | None = None
    alternatives: TopK | None = None


def check(work: SampleWork) -> None:
    """Raises `Refused` unless the request can be answered."""
    params, length = work.params, len(work.prompt)
    if length == 0:
        raise bad("The prompt is empty; it needs at least one token.")
    if params.max_tokens < 1 or not 1 <= work.num_samples <= MAX_SAMPLES:
        raise bad(f"max_tokens must be at least 1, and num_samples between 1 and {MAX_SAMPLES}.")
    if not all(0 <= k <= VOCABULARY for k in (work.topk_prompt_logprobs, work.topk_sample_logprobs, work.alternatives)):
        raise bad(f"The width of a table of tokens must be between 0 and {VOCABULARY}.")
    if length + params.max_tokens > CONTEXT_LENGTH:
        raise bad(
            f"Prompt length {length} plus max_tokens {params.max_tokens} exceeds the context length {CONTEXT_LENGTH}."
        )
    if not params.temperature >= 0 or not 0 < params.top_p <= 1 or params.top_k == 0 or params.top_k < -1:
        raise bad("temperature must be at least 0, top_p in (0, 1], and top_k -1 or at least 1.")
    if work.last_n is not None and not 1 <= work.last_n <= length - 1:
        raise bad(f"prompt_logprobs_last_n must be between 1 and {length - 1}, not {work.last_n}.")
    if work.targets is not None and work.targets.shape[0] != length - 1:
        raise bad(f"target_prompt_logprobs must have {length - 1} rows, not {work.targets.shape[0]}.")


def sample(weights: Weights, work: SampleWork) -> SampleOutput:
    """Answers one request; the same weights and work give the same answer to the bit."""
    seen = forward(weights, work.prompt)
    output = SampleOutput(_generate(weights, seen.mixed[-1], seen.logprobs[-1], work))
    _score_prompt(seen.logprobs[:-1], work, output)
    return output


def _generate(weights: Weights, state: Array, first: Array, work: SampleWork) -> list[SampledSequence]:
    """Continues all samples in step: one row of the state and one stream of random numbers for each."""
    params, count = work.params, work.num_samples
    draws = np.stack([_random(params.seed, i).random(params.max_tokens) for i in range(count)])
    sequences = [SampledSequence() for _ in range(count)]
    tables: list[Array] = []
    state, logprobs = np.repeat(state[None], count, axis=0), np.repeat(first[None], count, axis=0)
    live = count
    for step in range(params.max_tokens):
        tokens = choose(logprobs, draws[:, step], params)
        tables.append(logprobs)
        for sequence, token, row in zip(sequences, tokens.tolist(), logprobs, strict=True):
            if sequence.stop_reason != "stop":
                sequence.tokens.append(token)
                sequence.logprobs.append(float(row[token]))
                if _stops(sequence.tokens, params):
                    sequence.stop_reason = "stop"
                    live -= 1
        if live == 0 or step + 1 == params.max_tokens:
            break
        state, logprobs = _advance(weights, state, tokens)
    if work.topk_sample_logprobs:
        for i, sequence in enumerate(sequences):
            sequence.topk = top_k(np.stack([t[i] for t in tables[: len(sequence.tokens)]]), work.topk_sample_logprobs)
    return sequences


def _random(seed: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([abs(seed), int(seed < 0), stream]))


def _advance(weights: Weights, state: Array, tokens: Tokens) -> tuple[Array, Array]:
    """One step of `model.forward` for one new token a row, from the state instead of the whole past."""
    matrices = weights.matrices
    embedded = weights.embedding[tokens]
    state = weights.decay * state + embedded @ matrices["mix"] * weights.gain
    residual = embedded + np.tanh(state @ matrices["mlp_in"]) @ matrices["mlp_out"]
    return state, log_softmax(residual @ matrices["unembed"] + weights.bias)


def choose(logprobs: Array, draws: Array, params: SamplingParams) -> Tokens:
    """Picks one token a row, given one uniform number in [0, 1) a row. Temperature 0 picks the likeliest."""
    if params.temperature == 0:
        likeliest: Tokens = logprobs.argmax(axis=1)
        return likeliest
    scores = logprobs / params.temperature
    if 0 < params.top_k < VOCABULARY:
        kth = np.partition(scores, -params.top_k, axis=1)[:, -params.top_k, None]
        scores = np.where(scores >= kth, scores, -np.inf)
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    if params.top_p < 1:
        chances = _nucleus(chances / chances.sum(axis=1, keepdims=True), params.top_p)
    cumulated = chances.cumsum(axis=1)
    picked: Tokens = (cumulated > draws[:, None] * cumulated[:, -1:]).argmax(axis=1)
    return picked


def _nucleus(chances: Array, top_p: float) -> Array:
    """Keeps the likeliest tokens that together reach `top_p`, at least one."""
    order = np.argsort(-chances, axis=1, kind="stable")
    ordered = np.take_along_axis(chances, order, axis=1)
    keep = ordered.cumsum(axis=1) - ordered < top_p
    kept = np.zeros_like(chances)
    np.put_along_axis(kept, order, np.where(keep, ordered, 0.0), axis=1)
    return kept


def _stops(tokens: Sequence[int], params: SamplingParams) -> bool:
    if tokens[-1] in params.stop_tokens:
        return True
    if not params.stop_strings:
        return False
    longest = max(map(len, params.stop_strings))
    tail = bytes(token for token in tokens[-longest:] if token < BYTES)
    return any(tail.endswith(text) for text in params.stop_strings)


def _score_prompt(logprobs: Array, work: SampleWork, output: SampleOutput) -> None:
    """Fills in what was asked about the prompt. Row i of `logprobs` is about prompt position i + 1."""
    length = len(work.prompt)
    first_scored = length - work.last_n if work.last_n is not None else 1
    if work.prompt_logprobs:
        scored = np.concatenate([[np.nan], logprobs[np.arange(length - 1), work.prompt[1:]]])
        scored[:first_scored] = np.nan
        output.prompt_logprobs = scored
    if work.topk_prompt_logprobs:
        table = top_k(logprobs, work.topk_prompt_logprobs)
        width = table.token_ids.shape[1]
        ids = np.vstack([np.zeros((1, width), dtype=np.int64), table.token_ids])
        values = np.vstack([np.full((1, width), MASK_LOGPROB), table.logprobs])
        ids[:first_scored], values[:first_scored] = 0, MASK_LOGPROB
        output.topk_prompt_logprobs = TopK(ids, values)
    if work.targets is not None:
        found = np.take_along_axis(logprobs, np.maximum(work.targets, 0), axis=1)
        output.target_logprobs = np.where(work.targets >= 0, found, 0.0)
    if work.alternatives:
        output.alternatives = _alternatives(logprobs, work)


def _alternatives(logprobs: Array, work: SampleWork) -> TopK:
    random = _random(work.params.seed, work.num_samples)
    draws = random.random((work.alternatives, len(logprobs)))
    tokens = np.stack([choose(logprobs, row, work.params) for row in draws], axis=1)
    return TopK(tokens, np.take_along_axis(logprobs, tokens, axis=1))


def top_k(logprobs: Array, k: int) -> TopK:
    """Returns the `k` likeliest tokens of every row, likeliest first."""
    ids = np.argsort(-logprobs, axis=1, kind="stable")[:, : min(k, logprobs.shape[1])]
    return TopK(ids, np.take_along_axis(logprobs, ids, axis=1))
