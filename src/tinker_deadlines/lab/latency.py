"""How long does a call take? A model of its work and of the load, scaled by what the user asked for.

At scale 1 a call takes about what it takes on a service with a mid-sized model; at 0, the default, no time is added
at all. With `scale=0.01` an hour of a slow day is played in half a minute.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

# Seconds at scale 1. They are plausible, not measured: what matters is that they grow with the right things.
BASE_S = {
    "CreateModel": 8.0,
    "LoadWeights": 12.0,
    "SaveWeights": 10.0,
    "SaveWeightsForSampler": 6.0,
    "SaveWeightsExternal": 15.0,
    "OptimStep": 1.5,
    "ForwardBackward": 2.0,
    "Forward": 1.0,
    "Sample": 0.5,
}
PREFILL_S_PER_TOKEN = 0.0001
GENERATE_S_PER_TOKEN = 0.015
TRAIN_S_PER_TOKEN = 0.0004
TRAIN_S_PER_DATUM = 0.02

_NAMES = ("scale", "jitter", "seed", "load")


@dataclass(frozen=True)
class Work:
    """What a call has to do, in the units that cost time."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    datums: int = 0


@dataclass(frozen=True)
class Latency:
    """A latency model.

    Args:
        scale: What the seconds of the model are multiplied with; 0 adds no time.
        jitter: Spread of a log-normal factor; 0.2 moves most calls by up to a fifth.
        seed: Starts the stream of jitter.
        load: By what part each other call in flight slows a call down.
    """

    scale: float = 0.0
    jitter: float = 0.0
    seed: int = 0
    load: float = 0.0

    def sampler(self) -> LatencySampler:
        return LatencySampler(self)


class LatencySampler:
    """Draws latencies one after the other; the same seed draws the same ones."""

    def __init__(self, latency: Latency) -> None:
        self.latency = latency
        self._random = random.Random(latency.seed)

    def draw_s(self, kind: str, work: Work, in_flight: int) -> float:
        """Returns the seconds that a call takes while `in_flight` others are being worked on."""
        latency = self.latency
        if latency.scale == 0:
            return 0.0
        factor = math.exp(self._random.gauss(0.0, latency.jitter)) if latency.jitter else 1.0
        return latency.scale * nominal_s(kind, work) * (1.0 + latency.load * in_flight) * factor


def nominal_s(kind: str, work: Work) -> float:
    """Returns the seconds of a call at scale 1 on an idle server."""
    seconds = BASE_S.get(kind, 0.0)
    if kind == "Sample":
        return seconds + PREFILL_S_PER_TOKEN * work.prompt_tokens + GENERATE_S_PER_TOKEN * work.generated_tokens
    share = 1.0 / 3.0 if kind == "Forward" else 1.0  # a forward pass is about a third of forward and backward
    return seconds + share * (TRAIN_S_PER_TOKEN * work.prompt_tokens + TRAIN_S_PER_DATUM * work.datums)


def parse_latency(spec: str) -> Latency:
    """Reads a `--latency` specification.

    `SPEC` is a scale (`0`, `0.01`) or a comma-separated list of `scale=`, `jitter=`, `seed=` and `load=`.

    Raises:
        ValueError: With one sentence that says what is wrong and what would be right.
    """
    text = spec.strip()
    if "=" not in text:
        text = f"scale={text}"
    values: dict[str, float] = {}
    for part in text.split(","):
        name, separator, number = (piece.strip() for piece in part.partition("="))
        if not separator or name not in _NAMES or name in values:
            raise _bad(spec, f"{part.strip()!r} is not one of scale=, jitter=, seed=, load=, each at most once")
        values[name] = _number(spec, name, number)
    seed = int(values.pop("seed", 0))
    return Latency(seed=seed, **values)


def _number(spec: str, name: str, text: str) -> float:
    try:
        value = float(int(text)) if name == "seed" else float(text)
    except ValueError:
        kind = "a whole number" if name == "seed" else "a number"
        raise _bad(spec, f"{name} must be {kind}, not {text!r}") from None
    if not math.isfinite(value) or value < 0:
        raise _bad(spec, f"{name} must be finite and not negative, not {text!r}")
    return value


def _bad(spec: str, reason: str) -> ValueError:
    return ValueError(
        f"Bad latency {spec!r}: {reason}; examples are '0.01' and 'scale=0.01,jitter=0.2,seed=7,load=0.05'."
    )
