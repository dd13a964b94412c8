"""What may be done with a call whose answer is missing? One rule for each kind, and what it can cost at worst.

One owner of retries: inside a call it is the SDK, which repeats requests for as long as the call is let live; around a
call it is your script. This library repeats what its rule lets it, and counts it here.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tinker_deadlines.calls import TinkerCallKind
from tinker_deadlines.limits import PROBE_LIMIT_S, RECOVERIES_FOR_ONE, RECOVERY_LIMIT_S

__all__ = ["RULES", "Rule", "Where", "WorstCase", "worst_case"]

Where = Literal["never", "same client", "fresh session", "fresh training client"]
"""Where a call may be made once more."""


class Rule(NamedTuple):
    """What is true of a call of one kind that was sent and not answered."""

    again: Where
    attempts: int
    """How often it is made in all, by us and for one call of the caller."""
    meanwhile: Literal["sent", "indeterminate"]
    """What is known of the service: that the call does no harm, or that it may have been executed."""
    sure: str
    """What makes sure that nothing is done twice, in a sentence."""


_SAMPLED = Rule(
    "fresh session", 2, "sent", "it changes nothing: the first answer counts, and the other attempt is cancelled"
)
_TRAINED = Rule(
    "fresh training client", RECOVERIES_FOR_ONE, "indeterminate",
    "it is never sent again to a client that may have executed it: a recoverable client sends it to one that was "
    "restored from before it, any other is fenced",
)  # fmt: skip
_SAVED = Rule(
    "fresh training client", RECOVERIES_FOR_ONE, "indeterminate",
    "it is looked for under its name first, and used where it landed",
)  # fmt: skip
_MADE = Rule(
    "never", 1, "indeterminate",
    "a client may have been made that nobody knows of: it ends with its session, and one that arrives late is closed",
)  # fmt: skip

RULES: dict[TinkerCallKind, Rule] = {
    "sample": _SAMPLED,
    "compute_logprobs": _SAMPLED,
    "forward_backward": _TRAINED,
    "optim_step": _TRAINED,
    "load_state": _TRAINED,
    "save_state": _SAVED,
    "save_weights_for_sampler": _SAVED,
    "connect": _MADE,
    "rest": Rule("never", 1, "sent", "whether it may be repeated is in the table of methods; it is left to you"),
}


class WorstCase(NamedTuple):
    """What one call of the caller can take, whatever the service does."""

    seconds: float
    """Until it has ended, from when its limit's clock starts; pauses that the service announces come on top."""
    attempts: int
    """How often it is made."""
    recovered_s: float | None
    """The same where its training client is recoverable; `None` where that makes no difference."""

    def __str__(self) -> str:
        times = "once" if self.attempts == 1 else f"at most {self.attempts} times"
        said = f"At worst it ends after {self.seconds:.0f} s and is made {times}"
        if self.recovered_s is not None:
            said += f", on a recoverable client after {self.recovered_s:.0f} s"
        return f"{said}; the requests within it are repeated by the SDK, and it is repeated by nobody else."


def worst_case(kind: TinkerCallKind, limit_s: float, ceiling_s: float | None, *, fixed: bool) -> WorstCase:
    """What a call can cost at worst.

    Args:
        kind: Its kind.
        limit_s: Its limit in seconds.
        ceiling_s: The policy's ceiling for the kind in seconds; `None` where it has none.
        fixed: Whether a person set the limit, which is then all that counts.
    """
    rule = RULES[kind]
    alive_s = limit_s if fixed or ceiling_s is None else max(limit_s, ceiling_s)
    once_s = alive_s if fixed else alive_s + PROBE_LIMIT_S
    hedged = rule.again == "fresh session" and not fixed
    recovers = rule.again == "fresh training client"
    return WorstCase(once_s, 2 if hedged else 1, rule.attempts * (once_s + RECOVERY_LIMIT_S) if recovers else None)
