"""What if nothing is known about a call? Each kind has one number, whatever the work."""

from __future__ import annotations

from tinker_deadlines.calls import TinkerCallKind, Work
from tinker_deadlines.limits import DEFAULT_DEADLINES_S
from tinker_deadlines.policy.protocol import Limit, Sample

__all__ = ["FlatPolicy"]

_LIMITS = {kind: Limit(seconds, "the default") for kind, seconds in DEFAULT_DEADLINES_S.items()}


class FlatPolicy:
    """The shipped ceiling of ignorance of each kind."""

    name = "flat"

    def limit(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> Limit:
        """The default of the kind; work and model make no difference."""
        return _LIMITS[kind]

    def learn(self, sample: Sample) -> None:
        """Leaves it alone: the numbers are what they are."""
