"""How long should this much work take? Seconds from the sizes of a call and of its model, before anything is learned.

A non-negative linear model: a base and a term for each size that matters. It need not be good. What is learned is the
law of elapsed / predicted: a prediction that is wrong by the same factor everywhere shifts that law, one that is wrong
by different factors widens it, and either way limits stay on the safe side.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from math import frexp
from typing import NamedTuple, Protocol

from tinker_deadlines.calls import TinkerCallKind, Work
from tinker_deadlines.limits import (
    KNOWN_MODELS,
    MIDDLE_MODEL,
    SIZE_EXTRA_B,
    SIZE_REFERENCE_B,
    WORK_PRIORS,
    WorkPrior,
)

__all__ = ["ModelSize", "Predictor", "WorkModel", "model_size"]


class ModelSize(NamedTuple):
    """Parameters of a model, in billions."""

    total_b: float
    active_b: float
    """Those that work on each token: fewer than all in a mixture of experts."""

    def slowdown(self) -> float:
        """How many times longer than a dense 4B model it takes for the same work."""
        e = math.sqrt(self.total_b * self.active_b)
        return (SIZE_EXTRA_B + e) / (SIZE_EXTRA_B + SIZE_REFERENCE_B)


# "4B", "235b", "0.6B"; not the 22B of "A22B", nor the 4 of "4bit".
_TOTAL = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z0-9])")
_ACTIVE = re.compile(r"(?<![a-z0-9])a(\d+(?:\.\d+)?)b(?![a-z0-9])")


@functools.lru_cache(maxsize=256)
def model_size(model: str | None) -> ModelSize:
    """Reads the size of a model from its name, such as `Qwen/Qwen3-235B-A22B`.

    A name that is listed in `limits.KNOWN_MODELS` counts as listed, one that says nothing as `limits.MIDDLE_MODEL`; one
    that names its total alone is dense.
    """
    name = (model or "").rpartition("/")[2].lower()
    known = [beginning for beginning in KNOWN_MODELS if name.startswith(beginning)]
    if known:
        return ModelSize(*KNOWN_MODELS[max(known, key=len)])
    total = _TOTAL.search(name)
    if total is None or not float(total[1]):
        return ModelSize(*MIDDLE_MODEL)
    active = _ACTIVE.search(name)
    total_b = float(total[1])
    return ModelSize(total_b, min(float(active[1]) or total_b, total_b) if active else total_b)


# Sizes below 2^63 keep their powers of two apart.
_SHAPE_BITS = 6


class Predictor:
    """The seconds that calls of one kind and model are expected to take."""

    __slots__ = ("_base_s", "_places", "_terms", "_typical_s", "_varies")

    def __init__(self, prior: WorkPrior, size: ModelSize) -> None:
        slowdown = size.slowdown()
        self._base_s = prior.seconds
        self._terms = tuple(
            (
                Work._fields.index(term.size),
                term.seconds * (slowdown if term.by_model else 1.0),
                -(-term.typical // term.per),
                term.per,
            )
            for term in prior.terms
        )
        self._places = tuple(place for place, _, _, _ in self._terms)
        self._typical_s = prior.seconds + sum(each_s * typical for _, each_s, typical, _ in self._terms)
        self._varies = prior.varies

    def __call__(self, work: Work | None) -> float:
        """Seconds for this much work; a size that is not known counts as a typical one."""
        return self.measure(work)[0]

    def measure(self, work: Work | None) -> tuple[float, int]:
        """Seconds for this much work, and its shape: a number that is the same for sizes of the same powers of two.

        A service that compiles its programs does so for shapes like these.
        """
        seconds, shape = self._base_s, 1
        if work is None:
            return self._typical_s, 0
        for place, each_s, typical, per in self._terms:
            size = work[place]
            shape <<= _SHAPE_BITS
            if size is None:
                seconds += each_s * typical
            else:
                seconds += each_s * (size if per == 1 else -(-size // per))
                shape += frexp(size)[1]
        return seconds, shape

    def says_little(self, work: Work | None) -> bool:
        """Whether the work varies much in calls of this kind, and nothing is known of this one's."""
        if not self._varies:
            return False
        if work is not None:
            for place in self._places:
                if work[place] is not None:
                    return False
        return True


class Predicts(Protocol):
    """What makes the predictor of a kind and model: `WorkModel`, or another of your own."""

    def predictor(self, kind: TinkerCallKind, model: str | None) -> Predictor:
        """The predictor of one kind and model."""


class WorkModel:
    """The shipped work model, or one with other priors.

    Args:
        priors: What a call of each kind takes; kinds that are left out have the shipped ones.
        size: The size of every model, whatever its name; by default the name says it.
    """

    def __init__(self, priors: Mapping[TinkerCallKind, WorkPrior] | None = None, size: ModelSize | None = None) -> None:
        self._priors = {**WORK_PRIORS, **(priors or {})}
        self._size = size

    def predictor(self, kind: TinkerCallKind, model: str | None) -> Predictor:
        """The predictor of one kind and model."""
        return Predictor(self._priors[kind], self._size or model_size(model))
