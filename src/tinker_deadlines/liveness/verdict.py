"""What do a probe's answers mean? Three questions, asked at once, tell five cases apart.

| the SDK's loop runs a no-op | the session answers | a fresh connection answers | verdict |
| --- | --- | --- | --- |
| no | | | loop blocked: starting anew cannot help |
| yes | no | yes | session wedged: every call of it is dead |
| yes | no | no | outage: wait, rebuild nothing |
| yes | yes | | slow, or a call that was lost: left to its own limit |
| yes | 402, or paused | | paused: the clock stands still |
"""

from __future__ import annotations

from typing import NamedTuple

from tinker_deadlines.calls import Verdict

__all__ = ["Answers", "conclude", "say"]


class Answers(NamedTuple):
    """What a probe found; `None` where a question could not be asked."""

    loop: bool | None = None
    """Whether the SDK's event loop ran a no-op."""
    session: bool | None = None
    """Whether the session answered."""
    fresh: bool | None = None
    """Whether a fresh connection was answered."""
    paused: str = ""
    """What the service says it is paused for."""
    stack: str = ""
    """Where the SDK's loop stood when it did not answer: file, line and function of each frame."""


def conclude(answers: Answers) -> Verdict | None:
    """The verdict on a session; `None` where the answers do not settle it."""
    if answers.loop is False:
        return "loop blocked"
    if answers.paused:
        return "paused"
    if answers.session:
        return "slow"
    if answers.session is False and answers.fresh is not None:
        return "session wedged" if answers.fresh else "outage"
    return None


_WORDS: dict[Verdict, str] = {
    "loop blocked": "The SDK's event loop did not run a no-op: something blocks it on our side, and new clients would "
    "be stuck just the same.",
    "paused": "The service says that it is paused.",
    "slow": "Its session answered a probe: it is slow, or this call was lost.",
    "session wedged": "Its session did not answer a probe while a fresh connection did: the session is wedged.",
    "outage": "Neither its session nor a fresh connection was answered: the service or the network is down.",
}


def say(answers: Answers) -> str:
    """A sentence on what the probe found; "" where it settled nothing."""
    verdict = conclude(answers)
    words = _WORDS.get(verdict, "") if verdict is not None else ""
    if verdict == "paused":
        words = f"{words.rstrip('.')} ({answers.paused})."
    return f"{words} It stood in: {answers.stack}." if answers.stack and answers.loop is False else words
