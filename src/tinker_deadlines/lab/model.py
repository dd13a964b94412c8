"""What does the lab's language model compute? A tiny causal network in numpy with trainable low-rank adapters.

The network reads bytes. Every position's embedding is mixed with its past through leaky sums of several decays
(so the state is a fixed vector and a new token costs the same at any length), then goes through a two-layer
perceptron with a residual connection and an output projection:

    e = E[token]                           h[t] = a * h[t-1] + c * (e[t] @ mix)
    y = e + tanh(h @ mlp_in) @ mlp_out     logits = y @ unembed + bias

Base weights are frozen and depend only on the base model's name. Each of the four matrices carries an adapter
`scale * A @ B`; only adapters are trained. Everything is float64 and every sequence is computed on its own, so results
are the same to the bit whatever batch a sequence arrives in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]

BYTES = 256
BOS, EOS, PAD = 256, 257, 258
VOCABULARY = 259
CONTEXT_LENGTH = 32_768

MATRICES = ("mix", "mlp_in", "mlp_out", "unembed")
LORA_ALPHA = 32.0  # the service's value: adapters are scaled by alpha / rank

# Letters by how often English uses them. It gives untrained samples a readable alphabet, nothing more.
_COMMON = " etaoinshrdlcumwfgypbvkjxqz.,\nETAOINSHRDLCUMWFGYPBVKJXQZ0123456789"


@dataclass(frozen=True)
class Shape:
    """The sizes of a base model."""

    width: int = 24
    mixer: int = 32
    hidden: int = 48

    def of(self, matrix: str) -> tuple[int, int]:
        return {
            "mix": (self.width, self.mixer),
            "mlp_in": (self.mixer, self.hidden),
            "mlp_out": (self.hidden, self.width),
            "unembed": (self.width, VOCABULARY),
        }[matrix]


@dataclass(frozen=True)
class Weights:
    """A complete set of weights to compute with: base and adapters already added up."""

    embedding: Array
    bias: Array
    decay: Array
    gain: Array
    matrices: Mapping[str, Array]


@dataclass
class Activations:
    """What a forward pass leaves behind for its backward pass."""

    embedded: Array
    mixed: Array
    hidden: Array
    residual: Array
    logprobs: Array


@dataclass(frozen=True)
class LoraSpec:
    """Which matrices are trained, with what rank and seed."""

    rank: int = 32
    seed: int | None = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True

    def matrices(self) -> tuple[str, ...]:
        chosen = {
            "mix": self.train_attn,
            "mlp_in": self.train_mlp,
            "mlp_out": self.train_mlp,
            "unembed": self.train_unembed,
        }
        return tuple(name for name in MATRICES if chosen[name])


def seed_from(text: str) -> int:
    """A stable number for a name; Python's own `hash` differs from process to process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def base_weights(name: str, shape: Shape) -> Weights:
    """Returns the frozen weights of the base model called `name`."""
    random = np.random.Generator(np.random.PCG64(seed_from(f"base model {name}")))
    matrices = {m: random.normal(0.0, shape.of(m)[0] ** -0.5, shape.of(m)) for m in MATRICES}
    matrices["unembed"] *= 0.7
    # Decays from none (the current token alone) to a memory of about a hundred tokens.
    decay = 1.0 - np.geomspace(1.0, 0.01, shape.mixer)
    return Weights(
        embedding=random.normal(0.0, 1.0, (VOCABULARY, shape.width)),
        bias=_letter_bias(),
        decay=decay,
        gain=np.sqrt(1.0 - decay**2),  # keeps the size of the state independent of the decay
        matrices=matrices,
    )


def _letter_bias() -> Array:
    bias = np.full(VOCABULARY, -3.0)
    for place, letter in enumerate(_COMMON):
        bias[ord(letter)] = 3.0 - 0.06 * place
    bias[[BOS, PAD]] = -9.0
    bias[EOS] = -1.0
    return bias


@dataclass
class Adapter:
    """One low-rank addition to one matrix, with its gradient and its Adam moments."""

    a: Array
    b: Array
    grad_a: Array = field(init=False)
    grad_b: Array = field(init=False)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.grad_a = np.zeros_like(self.a)
        self.grad_b = np.zeros_like(self.b)


class Lora:
    """The trainable part of a model: adapters, accumulated gradients and the state of Adam."""

    def __init__(self, base: Weights, spec: LoraSpec) -> None:
        if spec.rank < 1:
            raise ValueError(f"a LoRA rank is at least 1, not {spec.rank}")
        self.base = base
        self.spec = spec
        self.scale = LORA_ALPHA / spec.rank
        random = np.random.Generator(np.random.PCG64(0 if spec.seed is None else abs(spec.seed)))
        self.adapters: dict[str, Adapter] = {}
        for name in spec.matrices():
            rows, columns = base.matrices[name].shape
            a = random.normal(0.0, rows**-0.5, (rows, spec.rank))
            self.adapters[name] = Adapter(a, np.zeros((spec.rank, columns)))
        self.moments: dict[str, Array] = {}
        self.step = 0
        self._weights: Weights | None = None

    def weights(self) -> Weights:
        """Returns base and adapters added up; the result never changes afterwards."""
        if self._weights is None:
            matrices = dict(self.base.matrices)
            for name, adapter in self.adapters.items():
                matrices[name] = matrices[name] + self.scale * (adapter.a @ adapter.b)
            base = self.base
            self._weights = Weights(base.embedding, base.bias, base.decay, base.gain, matrices)
        return self._weights

    def accumulate(self, gradients: Mapping[str, Array]) -> None:
        """Adds gradients of the full matrices, carried over to the adapters by the chain rule."""
        for name, adapter in self.adapters.items():
            adapter.grad_a += self.scale * (gradients[name] @ adapter.b.T)
            adapter.grad_b += self.scale * (adapter.a.T @ gradients[name])

    def parameters(self) -> Iterable[tuple[str, Array, Array]]:
        """Yields name, value and accumulated gradient of every trainable array, always in the same order."""
        for name, adapter in self.adapters.items():
            yield f"{name}.a", adapter.a, adapter.grad_a
            yield f"{name}.b", adapter.b, adapter.grad_b

    def changed(self) -> None:
        """Must follow any change of the adapters: forgets the summed weights and the gradients."""
        self._weights = None
        for adapter in self.adapters.values():
            adapter.clear()

    def state(self, optimizer: bool) -> dict[str, Array]:
        """Returns copies of all arrays that make a checkpoint."""
        arrays = {name: value.copy() for name, value, _ in self.parameters()}
        if optimizer:
            arrays |= {f"adam.{name}": moment.copy() for name, moment in self.moments.items()}
            arrays["adam.step"] = np.array(float(self.step))
        return arrays

    def restore(self, arrays: Mapping[str, Array], optimizer: bool) -> None:
        """Takes over a checkpoint's adapters and, if asked, its optimizer."""
        for name, value, _ in self.parameters():
            value[...] = arrays[name]
        self.moments, self.step = {}, 0
        if optimizer and "adam.step" in arrays:
            self.step = int(arrays["adam.step"])
            prefix = "adam."
            saved = (name for name in arrays if name.startswith(prefix) and name != "adam.step")
            self.moments = {name[len(prefix) :]: arrays[name].copy() for name in saved}
        self.changed()


def forward(weights: Weights, tokens: Tokens) -> Activations:
    """Returns the log-probabilities of every next token after every position, and what led to them."""
    matrices = weights.matrices
    embedded = weights.embedding[tokens]
    mixed = leaky_sums(embedded @ matrices["mix"] * weights.gain, weights.decay)
    hidden = np.tanh(mixed @ matrices["mlp_in"])
    residual = embedded + hidden @ matrices["mlp_out"]
    logits = residual @ matrices["unembed"] + weights.bias
    return Activations(embedded, mixed, hidden, residual, log_softmax(logits))


def backward(weights: Weights, seen: Activations, wanted: Array) -> dict[str, Array]:
    """Returns the gradients of all four matrices.

    Args:
        weights: What the forward pass computed with.
        seen: What the forward pass left behind.
        wanted: The derivative of the loss by every log-probability, zero where a token does not count.
    """
    matrices = weights.matrices
    d_logits = wanted - np.exp(seen.logprobs) * wanted.sum(axis=1, keepdims=True)
    d_residual = d_logits @ matrices["unembed"].T
    d_before_tanh = (d_residual @ matrices["mlp_out"].T) * (1.0 - seen.hidden**2)
    d_mixed = d_before_tanh @ matrices["mlp_in"].T
    # The sums run forwards in time, so their gradients are the same sums run backwards.
    d_inputs = leaky_sums(d_mixed[::-1], weights.decay)[::-1] * weights.gain
    return {
        "mix": seen.embedded.T @ d_inputs,
        "mlp_in": seen.mixed.T @ d_before_tanh,
        "mlp_out": seen.hidden.T @ d_residual,
        "unembed": seen.residual.T @ d_logits,
    }


def leaky_sums(inputs: Array, decay: Array) -> Array:
    """Returns `h[t] = decay * h[t-1] + inputs[t]` for all t."""
    sums = inputs.copy()
    for t in range(1, len(sums)):
        sums[t] += decay * sums[t - 1]
    return sums


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
