"""What would a policy have done on the calls of a trace? Each call is given its limit, and learned from when it ends.

Events come in the order of time: a limit is asked for when a call is submitted, from what is known then; how long it
took is told to the policy when it ends, or when its limit cuts it. A call that is cut and may be repeated is repeated
at once, up to three tries in all, each with at least twice the limit of the one before unless a person set it. A try
that ends in less than half of the time that an earlier one was given says that the earlier one was dead; otherwise it
was slow. A call that may not be repeated has no such verdict: it counts as slow, and as late if it ends within twice
its limit, since nobody cancels it.

What a repeated call takes is in the trace, or is supposed: as long as before if it was slow, and if it was dead, as
long as the median of its kind and model.
"""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
from collections.abc import Iterable

from tinker_deadlines.calls import TinkerCallKind
from tinker_deadlines.limits import CEILINGS_S, ONCE_KINDS
from tinker_deadlines.policy.protocol import Limit, Policy, Sample
from tinker_deadlines.replay.figures import Figures, Tallies
from tinker_deadlines.replay.trace import Recorded, Trace

__all__ = ["TRIES", "replay"]

TRIES = 3
# An earlier try was dead if a later one ended in less than this share of the time that the earlier one was given.
_DEAD_BELOW = 0.5
# A late result is still waited for until so many limits have passed.
_LATE_WITHIN = 2.0


def replay(trace: Trace, policy: Policy) -> Figures:
    """Runs a policy over a trace. The policy keeps what it learns: give each replay a new one."""
    replaying = _Replay(trace, policy)
    replaying.run()
    return replaying.tallies.figures(policy.name)


class _Try:
    """One try of a call."""

    __slots__ = ("call", "cut_at", "latency_s", "limit_s", "number", "started_at")

    def __init__(self, call: Recorded, started_at: float, number: int, cut_at: tuple[float, ...]) -> None:
        self.call = call
        self.started_at = started_at
        self.number = number
        self.cut_at = cut_at
        """The limits at which the tries before it were cut, in seconds."""
        self.limit_s = 0.0
        self.latency_s = math.inf


class _Replay:
    def __init__(self, trace: Trace, policy: Policy) -> None:
        self.calls = trace.calls
        self.policy = policy
        self.tallies = Tallies()
        self.medians = _Medians(trace.calls)
        self.pending: list[tuple[float, int, _Try]] = []
        self.ordinals = itertools.count()

    def run(self) -> None:
        pending = self.pending
        for call in self.calls:
            while pending and pending[0][0] <= call.t:
                self._end(heapq.heappop(pending)[2])
            self._start(_Try(call, call.t, 0, ()))
        while pending:
            self._end(heapq.heappop(pending)[2])

    def _start(self, a_try: _Try) -> None:
        call = a_try.call
        limit = self.policy.limit(call.kind, call.work, call.model)
        a_try.limit_s = limit.seconds
        if a_try.number == 0:
            self.tallies.submitted(limit.seconds)
            a_try.latency_s = math.inf if call.latency_s is None else call.latency_s
        else:
            a_try.limit_s = _stretched(limit, a_try.cut_at[-1], call.kind)
            a_try.latency_s = self._retry_latency_s(call, a_try.number)
        after_s = min(a_try.latency_s, a_try.limit_s)
        heapq.heappush(self.pending, (a_try.started_at + after_s, next(self.ordinals), a_try))

    def _retry_latency_s(self, call: Recorded, number: int) -> float:
        if number <= len(call.retries):
            return call.retries[number - 1]
        return self.medians.of(call) if call.latency_s is None else call.latency_s

    def _end(self, a_try: _Try) -> None:
        call, latency_s, limit_s = a_try.call, a_try.latency_s, a_try.limit_s
        if a_try.number < 0:
            self.policy.learn(Sample(call.kind, call.work, call.model, latency_s, "late", limit_s))
        elif latency_s <= limit_s:
            self.policy.learn(Sample(call.kind, call.work, call.model, latency_s, "completed"))
            if a_try.cut_at:
                self._judge(call, a_try.cut_at, latency_s)
        else:
            self._cut(a_try)

    def _cut(self, a_try: _Try) -> None:
        call, limit_s = a_try.call, a_try.limit_s
        self.policy.learn(Sample(call.kind, call.work, call.model, limit_s, "killed", limit_s))
        self.tallies.cut(limit_s, alive=a_try.latency_s < math.inf)
        cut_at = (*a_try.cut_at, limit_s)
        now = a_try.started_at + limit_s
        if call.kind not in ONCE_KINDS and len(cut_at) < TRIES:
            self._start(_Try(call, now, a_try.number + 1, cut_at))
            return
        self._judge(call, cut_at, math.inf)
        if call.kind not in ONCE_KINDS or a_try.latency_s < math.inf:
            self.tallies.lost += 1
        if call.kind in ONCE_KINDS and a_try.latency_s <= _LATE_WITHIN * limit_s:
            a_try.number = -1
            heapq.heappush(self.pending, (a_try.started_at + a_try.latency_s, next(self.ordinals), a_try))

    def _judge(self, call: Recorded, cut_at: tuple[float, ...], ended_after_s: float) -> None:
        """Tells the verdicts on tries that were cut, from how long the last one took."""
        for limit_s in cut_at:
            wedged = ended_after_s < _DEAD_BELOW * limit_s
            self.policy.learn(
                Sample(call.kind, call.work, call.model, limit_s, "wedged" if wedged else "slow", limit_s)
            )


def _stretched(limit: Limit, before_s: float, kind: TinkerCallKind) -> float:
    """The limit of a repeated try, in seconds: at least twice the one before, under the ceiling."""
    return limit.seconds if limit.fixed else max(limit.seconds, min(2 * before_s, CEILINGS_S[kind]))


class _Medians:
    """The median latency of each kind and model, worked out when it is first asked for."""

    def __init__(self, calls: Iterable[Recorded]) -> None:
        self._calls = calls
        self._of: dict[tuple[TinkerCallKind, str | None], float] | None = None

    def of(self, call: Recorded) -> float:
        """The median for calls like this one, in seconds; infinite if none ever ended."""
        if self._of is None:
            latencies: dict[tuple[TinkerCallKind, str | None], list[float]] = {}
            for other in self._calls:
                if other.latency_s is not None:
                    latencies.setdefault((other.kind, other.model), []).append(other.latency_s)
            self._of = {key: statistics.median(those) for key, those in latencies.items()}
        return self._of.get((call.kind, call.model), math.inf)
