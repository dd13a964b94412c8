"""How unlikely is this silence? A number that adds up over the calls that wait for the same session.

For each call, the probability that it is still not done, given that it was not when the session last showed life,
from the learned law of its kind; φ is the sum of -log10 of these. Ages are divided by the recent load, so that a
service that became four times slower is not taken for a dead one. The rule and its simulation are in
`docs/policies.md`: no false alarm under a load that alternates between once and four times the usual; a dead session
noticed after 15 s with 64 calls in flight, after 48 s with 8. It follows the φ-accrual detectors of Akka and
Cassandra, which know only heartbeats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

__all__ = ["Waiting", "suspicion"]

# The law's tail never reaches nothing; a survival below this says "practically never" all the same. Far below any
# that is met: a call that was there already when its session fell silent would say nothing more.
_LEAST = 1e-300


class Waiting(NamedTuple):
    """A call that waits for a session."""

    age_s: float
    """Seconds on its limit's clock."""
    predicted_s: float
    """Seconds that it was predicted to take."""
    survival: Callable[[float], float]
    """The probability that a call of its sort takes more than this many times its prediction."""


def suspicion(calls: Iterable[Waiting], silence_s: float, load: float = 1.0) -> float:
    """φ: 0 while nothing is strange; 3 for a silence that comes once in a thousand times, 8 for once in 10^8.

    Args:
        calls: The calls in flight on one session.
        silence_s: Seconds since the session last showed life, at most since the oldest of the calls was sent.
        load: How many times slower than usual the session's last completed calls were.
    """
    phi = 0.0
    for call in calls:
        scale = max(call.predicted_s * load, 1e-9)
        then = call.survival(max(0.0, call.age_s - silence_s) / scale)
        now = call.survival(max(0.0, call.age_s) / scale)
        phi += math.log10(max(then, _LEAST) / max(min(now, then), _LEAST))
    return phi
