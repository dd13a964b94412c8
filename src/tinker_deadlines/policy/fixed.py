"""What if a person has decided? Their number for a kind is obeyed exactly; kinds without one keep the default."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tinker_deadlines.calls import KINDS, TinkerCallKind, Work
from tinker_deadlines.limits import DEFAULT_DEADLINES_S, env_var_for
from tinker_deadlines.policy.protocol import Limit, Sample

__all__ = ["FixedPolicy"]


class FixedPolicy:
    """A person's numbers.

    Args:
        seconds: One number of seconds for all kinds, or one for each kind that is named.

    Raises:
        ValueError: a number is not positive and finite, or a key is not a kind of call.
    """

    def __init__(self, seconds: float | Mapping[TinkerCallKind, float]) -> None:
        numbers = seconds if isinstance(seconds, Mapping) else dict.fromkeys(KINDS, seconds)
        for kind, number in numbers.items():
            env_var_for(kind)  # raises for what is not a kind
            if not (math.isfinite(number) and number > 0):
                raise ValueError(f"a limit is a positive finite number of seconds, not {number!r} ({kind})")
        said = ",".join(f"{kind}={number:g}" for kind, number in numbers.items())
        self.name = f"fixed:{said}" if isinstance(seconds, Mapping) else f"fixed:{seconds:g}"
        self._limits = {kind: Limit(default_s, "the default") for kind, default_s in DEFAULT_DEADLINES_S.items()}
        for kind, number in numbers.items():
            self._limits[kind] = Limit(float(number), f"the policy '{self.name}'", "fixed")

    def limit(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> Limit:
        """The person's number, else the default of the kind."""
        return self._limits[kind]

    def learn(self, sample: Sample) -> None:
        """Leaves it alone: a person has decided."""
