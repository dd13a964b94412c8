"""Which policy does a name mean? Names are what people write on a command line, such as `learned:alpha=1e-4`."""

from __future__ import annotations

import math
from typing import Any

from tinker_deadlines.calls import TinkerCallKind
from tinker_deadlines.policy.fixed import FixedPolicy
from tinker_deadlines.policy.flat import FlatPolicy
from tinker_deadlines.policy.learned import LearnedPolicy
from tinker_deadlines.policy.p99x3 import P99x3Policy
from tinker_deadlines.policy.protocol import Policy
from tinker_deadlines.policy.scaled import ScaledPolicy
from tinker_deadlines.policy.work_model import Predicts

__all__ = ["policy_named"]

_CEILINGS = {"ceiling_sampling": "ceiling_sampling_s", "ceiling_training": "ceiling_training_s"}
_OPTIONS: dict[str, dict[str, str]] = {
    "flat": {},
    "scaled": {"alpha": "alpha", **_CEILINGS},
    "p99x3": _CEILINGS,
    "learned": {"alpha": "alpha", **_CEILINGS},
}
_MAKERS: dict[str, Any] = {"scaled": ScaledPolicy, "p99x3": P99x3Policy, "learned": LearnedPolicy}


def policy_named(text: str, *, work_model: Predicts | None = None) -> Policy:
    """Makes the policy that a name means.

    Args:
        text: `flat`, `fixed:120`, `fixed:sample=120,optim_step=900`, `scaled`, `p99x3` or `learned`. The last three
            take options: `learned:alpha=1e-4,ceiling_sampling=900`; `p99x3` has no `alpha`.
        work_model: Another than the shipped one, for policies that have one.

    Raises:
        ValueError: it means none; one sentence says why.
    """
    name, _, rest = text.partition(":")
    if name == "fixed":
        return FixedPolicy(_fixed(text, rest))
    options = _OPTIONS.get(name)
    if options is None:
        raise ValueError(f"{text!r} is not a policy; there are flat, fixed:SECONDS, scaled, p99x3 and learned")
    arguments = {}
    for key, number in _numbers(text, rest).items():
        if key not in options:
            known = f"its options are {', '.join(options)}" if options else "it has none"
            raise ValueError(f"{text!r}: {key or number!r} is not an option of the policy {name}; {known}")
        if key == "alpha" and number >= 1:
            raise ValueError(f"{text!r}: alpha is the share of living calls that may be cut, less than 1")
        arguments[options[key]] = number
    if name == "flat":
        return FlatPolicy()
    policy: Policy = _MAKERS[name](work_model=work_model, **arguments)
    return policy


def _fixed(text: str, rest: str) -> float | dict[TinkerCallKind, float]:
    numbers: dict[Any, float] = _numbers(text, rest)
    if not numbers:
        raise ValueError(f"{text!r} says no number of seconds; write fixed:120 or fixed:sample=120")
    if "" not in numbers:
        return numbers
    if len(numbers) > 1:
        raise ValueError(f"{text!r} says one number for all kinds and others for some; name each kind")
    return numbers[""]


def _numbers(text: str, rest: str) -> dict[str, float]:
    """Reads `key=number,…`; a number without a key has the key ""."""
    numbers = {}
    for item in rest.split(",") if rest else []:
        key, _, value = item.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"{text!r}: {value!r} is not a positive finite number")
        numbers[key.strip()] = number
    return numbers
