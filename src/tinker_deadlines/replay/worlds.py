"""What would calls look like if something were wrong? Six simulated worlds of 10,000 samples each, by their seed.

A call takes `(0.5 + prompt / prefill + generated / decode) x load x log-normal noise x straggler` seconds. A policy
sees the prompt and `max_tokens`, never what is generated; its work model is wrong by a factor of two in each term, and
in two of the worlds by much more. One call in 2,000 is dead. Nothing here is a measurement of the service.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import NamedTuple

from tinker_deadlines.calls import Work
from tinker_deadlines.limits import WorkPrior, WorkTerm
from tinker_deadlines.policy.work_model import ModelSize, WorkModel
from tinker_deadlines.replay.trace import Recorded, Trace

__all__ = ["CALLS", "WORLDS", "World", "world"]

CALLS = 10_000
_DEAD = 5e-4
_STRAGGLERS = 5e-4
_NOISE = 0.35


class World(NamedTuple):
    """What is special in one world; `x` is how far the run has come, from 0 to 1."""

    about: str
    prompt: Callable[[float], float] = lambda _: 4000.0
    """The median prompt, in tokens."""
    load: Callable[[float], float] = lambda _: 1.0
    """How many times slower than usual everything is."""
    stragglers: float = _STRAGGLERS
    """The share of calls that take at least twice as long as they should, without an upper end."""
    prefill: float = 8000.0
    """Tokens of the prompt that are read in a second."""
    decode: float = 60.0
    """Tokens that are generated in a second."""


WORLDS: dict[str, World] = {
    "steady": World("nothing happens but one straggler in 2,000 calls"),
    "growing-context": World("prompts grow forty times over the run", prompt=lambda x: 1500.0 * 40.0**x),
    "slow-spell": World("a tenth of the run is four times slower", load=lambda x: 4.0 if 0.5 <= x < 0.6 else 1.0),
    "stragglers": World("one call in 200 is a straggler", stragglers=5e-3),
    "bigger-model": World("the model is four to five times slower than thought", prefill=1500.0, decode=15.0),
    "wrong-prior": World("the model is fifteen to sixty times slower than thought", prefill=4000 / 15, decode=2.0),
}

# What the policies believe in all of them.
_BELIEF = WorkModel(
    {
        "sample": WorkPrior(
            1.0, (WorkTerm("prompt_tokens", 1 / 4000, 4000), WorkTerm("max_tokens", 1 / 120, 1024)), varies=True
        )
    },
    ModelSize(4.0, 4.0),
)


def world(name: str, seed: int = 0, calls: int = CALLS) -> Trace:
    """Makes the trace of one world. The same name, seed and number of calls make the same trace.

    Calls follow each other, each submitted when the one before it has ended; a dead one does not hold up the next.

    Raises:
        ValueError: there is no such world.
    """
    if name not in WORLDS:
        raise ValueError(f"there is no world {name!r}; there are {', '.join(WORLDS)}")
    here = WORLDS[name]
    random_ = random.Random(seed)
    # Of their own, so that the first tries are the same whatever a retry would have taken.
    retry_random = random.Random(seed + 1_000_003)
    recorded, t = [], 0.0
    for number in range(calls):
        x = number / calls
        prompt = here.prompt(x) * math.exp(random_.gauss(0, 0.6))
        allowed = random_.choice([256, 1024, 4096])
        generated = allowed * random_.betavariate(1.2, 2.0)
        usual_s = (0.5 + prompt / here.prefill + generated / here.decode) * here.load(x)
        straggler = _straggler(random_, here.stragglers)
        dead = random_.random() < _DEAD
        latency_s = None if dead else usual_s * math.exp(random_.gauss(0, _NOISE)) * straggler
        retries = tuple(
            usual_s * math.exp(retry_random.gauss(0, _NOISE)) * _straggler(retry_random, _STRAGGLERS) for _ in range(2)
        )
        recorded.append(Recorded(t, "sample", None, Work(round(prompt), allowed, 1), latency_s, "s0", 1, retries))
        t += latency_s or 0.0
    return Trace(name if seed == 0 else f"{name}#{seed}", tuple(recorded), _BELIEF)


def _straggler(random_: random.Random, share: float) -> float:
    return 2.0 * random_.paretovariate(1.5) if random_.random() < share else 1.0
