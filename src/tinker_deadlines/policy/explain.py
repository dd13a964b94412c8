"""Why this number? A limit in words: the prediction, the quantile, what it rests on, and who set it."""

from __future__ import annotations

from typing import NamedTuple

from tinker_deadlines.calls import TinkerCallKind
from tinker_deadlines.limits import LEAST_COMPLETED
from tinker_deadlines.policy.protocol import Limit

__all__ = ["Explanation"]


class Explanation(NamedTuple):
    """A limit and how it came to be; `str()` is the sentence for people."""

    kind: TinkerCallKind
    limit: Limit
    floor_s: float | None = None
    """The floor of the policy for this kind; `None` where it has none."""
    ceiling_s: float | None = None
    """Its ceiling."""

    @property
    def bound_by(self) -> str | None:
        """`floor` or `ceiling` where that is the number, else `None`."""
        if self.limit.fixed or self.limit.basis == "flat":
            return None
        if self.limit.seconds == self.ceiling_s:
            return "ceiling"
        return "floor" if self.limit.seconds == self.floor_s else None

    def __str__(self) -> str:
        limit = self.limit
        said = [f"{self.kind}: {limit.seconds:.1f} s, set by {limit.owner}{self._basis()}."]
        if limit.predicted_s is not None:
            said.append(f"The work model predicts {limit.predicted_s:.1f} s.")
        if limit.quantile is not None:
            said.append(f"{100 * limit.quantile:.5g} % of the calls that are alive are meant to end within the limit.")
        if self.bound_by is not None:
            said.append(f"It is the {self.bound_by} of this policy for {self.kind}.")
        return " ".join(said)

    def _basis(self) -> str:
        match self.limit.basis:
            case "fixed":
                return ", a person's number that is obeyed exactly"
            case "scaled":
                return ", from the work alone"
            case "cold":
                return f", cold: {self.limit.completed} of {LEAST_COMPLETED} calls completed so far"
            case "learned":
                return f", learned from {self.limit.completed} completed calls"
            case _:
                return ", the same whatever the work"
