"""From which silence on is something done? The shipped numbers together, so that a test can scale them down."""

from __future__ import annotations

from typing import NamedTuple

from tinker_deadlines import limits

__all__ = ["Thresholds"]


class Thresholds(NamedTuple):
    """Durations in seconds; each is explained at its constant in `limits`."""

    look_every_s: float = limits.LOOK_EVERY_S
    silence_s: float = limits.SILENCE_S
    ask_from_s: float = limits.ASK_FROM_S
    ask_every_s: float = limits.ASK_EVERY_S
    probe_limit_s: float = limits.PROBE_LIMIT_S
    alive_s: float = limits.ALIVE_S
    look_again_s: float = limits.LOOK_AGAIN_S
    stall_s: float = limits.STALL_S
    pause_notices_s: tuple[float, ...] = limits.PAUSE_NOTICES_S
    pause_budget_s: float = limits.PAUSE_BUDGET_S

    @property
    def in_vain_s(self) -> float:
        """So long after it was asked, a session was asked in vain: more than the questions of a probe may take."""
        return (self.probe_limit_s + self.ask_every_s) / 2

    def scaled(self, factor: float) -> Thresholds:
        """All of them times `factor`: for a day that is played in minutes."""
        scaled = {name: factor * getattr(self, name) for name in self._fields if name != "pause_notices_s"}
        return self._replace(**scaled, pause_notices_s=tuple(factor * each for each in self.pause_notices_s))
