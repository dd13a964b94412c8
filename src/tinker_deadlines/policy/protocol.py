"""What does a policy answer, and what may it learn from? The protocol that anybody may implement."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, runtime_checkable

from tinker_deadlines.calls import TinkerCallKind, Work

__all__ = ["Basis", "Ending", "Limit", "Policy", "Sample"]

Basis = Literal["flat", "fixed", "scaled", "cold", "learned"]
"""Where a limit comes from: the kind alone, a person, the work, the work while too little is learned, or experience."""

Ending = Literal["completed", "killed", "wedged", "slow", "late"]
"""How a call ended that a policy may learn from, see `Sample`."""


class Limit(NamedTuple):
    """A duration, who set it, and what it rests on."""

    seconds: float
    owner: str
    """Who set it: the name of an environment variable, "the default", or the policy by its name."""
    basis: Basis = "flat"
    predicted_s: float | None = None
    """What the work model predicts for the call, in seconds; `None` where it was not asked."""
    quantile: float | None = None
    """The share of living calls that the limit is meant to let end."""
    completed: int = 0
    """Completed calls of the same kind and model behind it."""

    @property
    def fixed(self) -> bool:
        """Whether a person set the number: it is obeyed exactly, and neither tightened nor stretched."""
        return self.basis == "fixed"


class Sample(NamedTuple):
    """One call, or one verdict on a call, that a policy may learn from.

    `ended` says what `elapsed_s` means:

    - `completed`: the call ended after `elapsed_s`.
    - `killed`: our limit cut it after `elapsed_s`; whether it was slow or dead is not known yet.
    - `wedged`: the verdict on one that was killed: it would never have ended. It teaches nothing.
    - `slow`: the verdict on one that was killed: it would have ended, some time after `elapsed_s`.
    - `late`: one that had been killed after `limit_s` did end, after `elapsed_s`: the kill was false.
    """

    kind: TinkerCallKind
    work: Work | None
    model: str | None
    elapsed_s: float
    """Seconds on the limit's clock."""
    ended: Ending
    limit_s: float | None = None


@runtime_checkable
class Policy(Protocol):
    """How long calls may take. Pure: no clock, no I/O, no threads; `learn` may be called on any thread."""

    name: str

    def limit(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> Limit:
        """How long a call of this kind, work and model may take. Asked for every call, before it starts."""

    def learn(self, sample: Sample) -> None:
        """Takes in how a call ended; a policy that does not learn leaves it alone."""
