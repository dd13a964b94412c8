"""Between which limits does a policy answer, and how many living calls may it cut? One answer for each kind."""

from __future__ import annotations

from tinker_deadlines.calls import SAMPLING_KINDS, TRAINING_KINDS, TinkerCallKind
from tinker_deadlines.limits import (
    CEILINGS_S,
    DEFAULT_DEADLINES_S,
    FALSE_KILLS,
    FALSE_KILLS_ONCE,
    FLOORS_S,
    FRESH_ALLOWANCE_S,
    ONCE_KINDS,
    ceiling_for,
)

__all__ = ["Bounds", "false_kills_for", "name_with"]


def false_kills_for(kind: TinkerCallKind) -> float:
    """The share of living calls of a kind that a limit may cut: smaller where a call may not be repeated."""
    return FALSE_KILLS_ONCE if kind in ONCE_KINDS else FALSE_KILLS


def name_with(name: str, **options: float | None) -> str:
    """The name of a policy with those of its options that are set, as `policy_named` reads it."""
    said = ",".join(f"{key}={number:g}" for key, number in options.items() if number is not None)
    return f"{name}:{said}" if said else name


class Bounds:
    """The floors and ceilings of the limits that a policy works out, in seconds.

    Args:
        ceiling_sampling_s: The ceiling of sampling and log-probabilities; by default what the environment variable
            `TINKER_DEADLINES_CEILING_SAMPLING` says now, else 1800.
        ceiling_training_s: That of training calls and saves; by default `TINKER_DEADLINES_CEILING_TRAINING`, else 3600.

    Raises:
        ValueError: a variable that is needed holds anything but a positive finite number of seconds.
    """

    def __init__(self, ceiling_sampling_s: float | None = None, ceiling_training_s: float | None = None) -> None:
        if ceiling_sampling_s is None:
            ceiling_sampling_s = ceiling_for("sampling", CEILINGS_S["sample"])
        if ceiling_training_s is None:
            ceiling_training_s = ceiling_for("training", CEILINGS_S["forward_backward"])
        self._of: dict[TinkerCallKind, tuple[float, float]] = {}
        for kind, ceiling_s in CEILINGS_S.items():
            if kind in SAMPLING_KINDS:
                ceiling_s = ceiling_sampling_s
            elif kind in TRAINING_KINDS:
                ceiling_s = ceiling_training_s
            # A person's ceiling that lies under our floor is obeyed.
            self._of[kind] = (min(FLOORS_S[kind], ceiling_s), ceiling_s)

    def within(self, kind: TinkerCallKind, seconds: float, *, fresh: bool = False, knows_little: bool = False) -> float:
        """What becomes of the seconds that a policy worked out for a call.

        Args:
            kind: The kind of call.
            seconds: What the policy worked out.
            fresh: It is the first call on new weights or of a new shape, which may take longer than its work says.
            knows_little: Too little of its work is known: then the limit is not below the default of its kind.
        """
        if fresh:
            seconds += FRESH_ALLOWANCE_S
        if knows_little:
            seconds = max(seconds, DEFAULT_DEADLINES_S[kind])
        floor_s, ceiling_s = self._of[kind]
        return floor_s if seconds < floor_s else min(seconds, ceiling_s)

    def of(self, kind: TinkerCallKind) -> tuple[float, float]:
        """The floor and the ceiling of a kind."""
        return self._of[kind]
