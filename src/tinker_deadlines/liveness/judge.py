"""A call has reached its limit: is it over, or does it go on? Pure: facts in, a decision out.

A number that a person set is obeyed exactly. A number that we chose is stretched by evidence only: a call that shows
life goes on to the ceiling, a paused one has its clock stopped, one in an outage is waited for. What is silent is
asked about first; what is dead, or what nothing can be found out about, is over.
"""

from __future__ import annotations

from typing import NamedTuple

from tinker_deadlines.calls import Call, Verdict
from tinker_deadlines.liveness.signs import Session
from tinker_deadlines.liveness.thresholds import Thresholds
from tinker_deadlines.liveness.verdict import conclude

__all__ = ["Decision", "judge", "shows_life"]


class Decision(NamedTuple):
    """What becomes of a call at its limit."""

    until: float | None
    """The instant when to look again; `None` when it is over."""
    verdict: Verdict | None = None
    ask: bool = False
    """Whether its session should be asked now."""


def shows_life(call: Call, session: Session | None, now: float, within_s: float) -> bool:
    """Whether the service has lately answered something that says it works on this very call.

    A call whose result the SDK asks for together with all others of its session has no traffic of its own once it was
    submitted: there, the session's polls count.
    """
    traffic = call.traffic
    if traffic is None or traffic.alive_at is None:
        return False
    if now - traffic.alive_at <= within_s:
        return True
    return not traffic.polls and session is not None and now - session.last_at <= within_s


def judge(call: Call, session: Session | None, now: float, thresholds: Thresholds, ceiling_s: float) -> Decision:
    """Decides on a call whose alarm has gone off.

    Args:
        call: The call.
        session: What was seen of its session; `None` where it has none.
        now: The present instant.
        thresholds: The durations that count.
        ceiling_s: Seconds after which a call of its kind is over whatever life it shows.
    """
    if call.limit is None or call.limit.fixed:
        return Decision(None, call.verdict)
    elapsed_s, traffic = call.elapsed_until(now), call.traffic
    if traffic is not None and traffic.paused:
        over = traffic.paused_s(now) >= thresholds.pause_budget_s
        return Decision(None if over else now + thresholds.look_again_s, "paused")
    if elapsed_s < call.limit_s:
        return Decision(now + call.limit_s - elapsed_s)  # it was paused meanwhile
    alive = shows_life(call, session, now, thresholds.alive_s)
    if elapsed_s >= ceiling_s:
        return Decision(None, "result lost" if alive else call.verdict)
    again = min(now + thresholds.look_again_s, now + ceiling_s - elapsed_s)
    if alive:
        return Decision(again, "slow")
    if session is None or session.way is None:
        return Decision(None)
    return _by_probe(call, session, now, thresholds, again)


def _by_probe(call: Call, session: Session, now: float, thresholds: Thresholds, again: float) -> Decision:
    answers = session.known(now, thresholds.ask_every_s)
    verdict = None if answers is None else conclude(answers)
    if now - session.last_at <= thresholds.ask_from_s:
        verdict = "slow"  # just heard of: no need to ask
    if verdict in ("outage", "paused"):
        return Decision(again, verdict)
    if verdict == "slow":
        # The session lives. What was never sent waits on our side; what was, has lost its answer or its connection.
        return Decision(again, "behind earlier calls") if call.traffic is None else Decision(None, "result lost")
    if verdict is not None:
        return Decision(None, verdict)
    asked_s = None if session.asked_at is None else now - session.asked_at
    if asked_s is None or asked_s >= thresholds.ask_every_s:
        return Decision(now + thresholds.in_vain_s, ask=True)
    if asked_s < thresholds.in_vain_s:
        return Decision(now + thresholds.in_vain_s - asked_s)
    return Decision(None)
