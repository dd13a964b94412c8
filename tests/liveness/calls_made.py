"""Calls in flight for tests that need no SDK: with a traffic, an owner that notes what is done to it, and a limit."""

from __future__ import annotations

from typing import Any

from tinker_deadlines.calls import Call, TinkerCallKind, Traffic, Verdict, board
from tinker_deadlines.policy import Limit

BY_POLICY = Limit(60.0, "the policy 'test'", "learned", 5.0)
BY_PERSON = Limit(60.0, "WMO_TINKER_DEADLINE_SAMPLE", "fixed")


class Owner:
    """Stands where the future of a call stands."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.convicted: list[tuple[Verdict, tuple[str, ...]]] = []
        self.asked_again = 0

    def convict(self, verdict: Verdict, findings: tuple[str, ...]) -> None:
        self.convicted.append((verdict, findings))
        self.call.owner = None
        board.end(self.call, "expired")

    def expire(self) -> None:
        self.asked_again += 1


def make_call(
    session: str | None = "one",
    *,
    kind: TinkerCallKind = "sample",
    limit: Limit | None = BY_POLICY,
    sent: bool = True,
    queued: bool = False,
) -> Call:
    """A call of now; `sent`: its request has left; `queued`: it waits for its predecessor."""
    seconds = limit.seconds if limit is not None else 60.0
    call = Call(kind, seconds, "test", limit=limit, session=session)
    if sent:
        call.traffic = Traffic()
    if queued:
        call.started_at = None
    return call


def in_flight(session: str | None = "one", **how: Any) -> tuple[Call, Owner]:
    """The same, on the board, with an owner."""
    call = make_call(session, **how)
    owner = call.owner = Owner(call)
    board.begin(call)
    return call, owner
