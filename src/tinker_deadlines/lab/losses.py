"""What is the loss of a datum, and how does it change with each log-probability?

All losses are sums over tokens, never means, as on the service. Each is a function of the log-probabilities of the
target tokens, so each returns the loss of every token and its derivative by that token's log-probability.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .model import Array, Lora, Tokens, Weights, backward, forward
from .refusal import bad

PPO_CLIP_LOW, PPO_CLIP_HIGH = 0.8, 1.2  # the service's documented defaults

Tensors = Mapping[str, Array]
LossConfig = Mapping[str, float | str]
Loss = Callable[[Array, Tensors, LossConfig], tuple[Array, Array]]


@dataclass(frozen=True)
class Datum:
    """One training example: `targets[t]` is what should follow `tokens[: t + 1]`; it may name several per position."""

    tokens: Tokens
    targets: Tokens
    inputs: Tensors


@dataclass
class TrainOutput:
    """What forward and forward_backward return: per datum and summed up."""

    logprobs: list[Array] = field(default_factory=list)
    losses: list[Array] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


def cross_entropy(logprobs: Array, inputs: Tensors, config: LossConfig) -> tuple[Array, Array]:
    weights = inputs["weights"]
    return -logprobs * weights, -weights


def importance_sampling(logprobs: Array, inputs: Tensors, config: LossConfig) -> tuple[Array, Array]:
    ratio = np.exp(logprobs - inputs["logprobs"])
    gain = ratio * inputs["advantages"]
    return -gain, -gain


def ppo(logprobs: Array, inputs: Tensors, config: LossConfig) -> tuple[Array, Array]:
    low = float(config.get("clip_low_threshold", PPO_CLIP_LOW))
    high = float(config.get("clip_high_threshold", PPO_CLIP_HIGH))
    ratio = np.exp(logprobs - inputs["logprobs"])
    gain = ratio * inputs["advantages"]
    clipped = np.clip(ratio, low, high) * inputs["advantages"]
    # Where the clipped gain is the smaller one, the ratio has no influence any more.
    return -np.minimum(gain, clipped), np.where(gain <= clipped, -gain, 0.0)


LOSSES: Mapping[str, tuple[Loss, tuple[str, ...]]] = {
    "cross_entropy": (cross_entropy, ("weights",)),
    "importance_sampling": (importance_sampling, ("logprobs", "advantages")),
    "ppo": (ppo, ("logprobs", "advantages")),
}
CONFIG_NAMES: Mapping[str, frozenset[str]] = {
    "ppo": frozenset({"clip_low_threshold", "clip_high_threshold"}),
}


def check(loss_fn: str, data: list[Datum], config: LossConfig) -> None:
    """Raises `Refused` unless the loss can be computed on every datum."""
    if loss_fn not in LOSSES:
        raise bad(f"The lab does not compute the loss {loss_fn!r}; it has {', '.join(sorted(LOSSES))}.")
    if unknown := sorted(set(config) - CONFIG_NAMES.get(loss_fn, frozenset())):
        raise bad(f"The loss {loss_fn!r} has no setting {unknown[0]!r}.")
    if not data:
        raise bad("No data: a forward pass needs at least one datum.")
    names = LOSSES[loss_fn][1]
    for number, datum in enumerate(data):
        if len(datum.tokens) == 0 or len(datum.tokens) != len(datum.targets):
            raise bad(
                f"Datum {number}: target_tokens has length {len(datum.targets)} and the model input "
                f"{len(datum.tokens)}; they must be equal and not 0."
            )
        _check_inputs(number, datum, loss_fn, names)


def _check_inputs(number: int, datum: Datum, loss_fn: str, names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in datum.inputs]
    if missing:
        raise bad(f"Datum {number}: the loss {loss_fn!r} needs loss_fn_inputs[{missing[0]!r}].")
    if unknown := sorted(set(datum.inputs) - set(names)):
        raise bad(f"Datum {number}: the loss {loss_fn!r} does not take loss_fn_inputs[{unknown[0]!r}].")
    for name in names:
        if datum.inputs[name].shape != datum.targets.shape:
            raise bad(
                f"Datum {number}: {name} has shape {list(datum.inputs[name].shape)} and target_tokens "
                f"{list(datum.targets.shape)}; they must be equal."
            )


def run(lora: Lora, data: list[Datum], loss_fn: str, config: LossConfig, learn: bool) -> TrainOutput:
    """Computes the loss of all data and, if `learn`, adds its gradients to the adapters."""
    weights = lora.weights()
    loss = LOSSES[loss_fn][0]
    output = TrainOutput()
    for datum in data:
        logprobs, losses = _one(lora, weights, datum, loss, config, learn)
        output.logprobs.append(logprobs)
        output.losses.append(losses)
    output.metrics["loss:sum"] = float(sum(float(losses.sum()) for losses in output.losses))
    return output


def _one(
    lora: Lora, weights: Weights, datum: Datum, loss: Loss, config: LossConfig, learn: bool
) -> tuple[Array, Array]:
    seen = forward(weights, datum.tokens)
    targets = datum.targets.reshape(len(datum.tokens), -1)
    rows = np.arange(len(targets))[:, None]
    logprobs = seen.logprobs[rows, targets].reshape(datum.targets.shape)
    losses, slopes = loss(logprobs, datum.inputs, config)
    if learn:
        wanted = np.zeros_like(seen.logprobs)
        np.add.at(wanted, (rows, targets), slopes.reshape(targets.shape))
        lora.accumulate(backward(weights, seen, wanted))
    return logprobs, losses
