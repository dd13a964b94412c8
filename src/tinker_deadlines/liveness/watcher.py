"""Who looks at the sessions? One thread, once a second; it asks the suspected ones and convicts the dead ones.

It costs nothing while every session shows life: the calls in flight are only walked through when one is silent.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tinker_deadlines import clock
from tinker_deadlines.budgets import run_within
from tinker_deadlines.calls import Call, TinkerCallKind, Verdict, Work, board
from tinker_deadlines.errors import AbandonedCallsError
from tinker_deadlines.limits import CONVICT_FROM, DUMPED_CALLS, HEDGE_CROWD, LOAD_BY_CHANCE, STALLS_KEPT, SUSPECT_FROM
from tinker_deadlines.liveness.judge import Decision, judge
from tinker_deadlines.liveness.signs import Session, sessions
from tinker_deadlines.liveness.stacks import busiest_stack
from tinker_deadlines.liveness.suspicion import Waiting, suspicion
from tinker_deadlines.liveness.thresholds import Thresholds
from tinker_deadlines.liveness.verdict import Answers, conclude, say
from tinker_deadlines.waiting.workers import Job, workers

__all__ = ["Law", "Prober", "Watcher", "watcher"]

log = logging.getLogger("tinker_deadlines")

Prober = Callable[[Any, float], Answers]
"""Asks a session, by its `way`, the questions of a probe, each for at most so many seconds. It may block so long."""

Listener = Callable[[str, dict[str, Any]], None]
"""Is told of events by name, with their facts: numbers and words that hold nothing of a person's data."""


class Stall(NamedTuple):
    """A time in which this process was kept from running: the machine slept, or something held the interpreter."""

    at: float
    seconds: float
    stack: str

    def where(self) -> str:
        """Where the busiest thread stood at its end, as an addition to a sentence."""
        return f"; the busiest thread stands in {self.stack}" if self.stack else ""


class Law(Protocol):
    """What is known of how long calls take."""

    def predicted_s(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> float:
        """Seconds that the work model predicts."""

    def survival(self, kind: TinkerCallKind, model: str | None, ratio: float) -> float:
        """The probability that a call takes more than `ratio` times its prediction."""

    def median_ratio(self, kind: TinkerCallKind, model: str | None) -> float:
        """What a call usually takes, in terms of its prediction."""


class Watcher:
    """Looks, asks and convicts."""

    def __init__(self) -> None:
        self.thresholds = Thresholds()
        self.listeners: tuple[Listener, ...] = ()
        # Told of each call that ends at its limit; says whether its failure fits a pattern.
        self.on_dead: Callable[[Call], Verdict | None] | None = None
        # Done at every look, for whoever has something to do once in a while.
        self.on_look: Callable[[], None] | None = None
        # Says where the SDK's loop stands.
        self.stack: Callable[[], str] = lambda: ""
        # When this process was kept from running, by what, and for how many seconds.
        self._stalls: deque[Stall] = deque(maxlen=STALLS_KEPT)
        # When calls in flight were last let go on for that, by their numbers.
        self._excused_at: dict[int, float] = {}
        self._dumped_at: float | None = None
        self._law: Law | None = None
        self._prober: Prober | None = None
        self._ceiling: Callable[[TinkerCallKind], float] | None = None
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = True
        self._asked_to_look = False
        self._paused: dict[int, tuple[Call, int]] = {}

    def start(self, law: Law, prober: Prober, ceiling: Callable[[TinkerCallKind], float]) -> None:
        """Starts to look; a watcher that looks already goes on by the new law."""
        with self._condition:
            self._law, self._prober, self._ceiling = law, prober, ceiling
            self._stopped = False
            self._see_to_thread()

    def go_on(self) -> None:
        """Looks on in a forked child, where it has no thread until there is a session to look at."""
        if self._thread is None and not self._stopped:
            with self._condition:
                self._see_to_thread()

    def _see_to_thread(self) -> None:
        if self._thread is None and not self._stopped:
            thread = threading.Thread(target=self._run, name="tinker-deadlines-watcher", daemon=True)
            run_within(None, thread.start)
            self._thread = thread

    def stop(self) -> None:
        """Stops to look."""
        with self._condition:
            self._stopped = True
            self._condition.notify()

    def wake(self) -> None:
        """Has it look now: a probe was answered, or the clock is another one."""
        with self._condition:
            self._asked_to_look = True
            self._condition.notify()

    def forked(self) -> None:
        """Starts afresh in a forked child, by the same law: the thread stayed with the parent, and so did its calls."""
        sessions.clear()
        self._condition = threading.Condition()
        self._thread = None
        self._asked_to_look = False
        self._dumped_at = None
        self._stalls.clear()
        self._excused_at, self._paused = {}, {}

    def _run(self) -> None:
        due = clock.monotonic()
        while True:
            with self._condition:
                if not self._stopped and not self._asked_to_look:
                    due = clock.monotonic() + self.thresholds.look_every_s
                    clock.wait(self._condition, self.thresholds.look_every_s)
                if self._stopped:
                    self._thread = None
                    return
                self._asked_to_look = False
            try:
                self.look(late_s=clock.monotonic() - due)
            except Exception:
                # Looking on must never end: without it, calls end by their own limits alone.
                log.exception("the watcher stumbled")

    # Looking ---------------------------------------------------------------------------------------------------------

    def look(self, late_s: float = 0.0) -> None:
        """Looks once at every session and every pause.

        Args:
            late_s: Seconds that this look comes late.
        """
        if self.on_look is not None:
            self.on_look()
        now, known = clock.monotonic(), sessions.all()
        if late_s > self.thresholds.stall_s:
            # Nobody was heard because nobody listened: the silence is ours.
            stall = Stall(now, late_s, busiest_stack())
            self._stalls.append(stall)
            self._excused_at = {each: at for each, at in self._excused_at.copy().items() if each in board.in_flight}
            log.warning("this process was kept from running for %.1f s%s", late_s, stall.where())
            self.tell("stall", seconds=late_s, stack=stall.stack)
            for session in known:
                session.last_at = now
        silent = [session for session in known if now - session.last_at >= self.thresholds.ask_from_s]
        if silent:
            waiting = defaultdict(list)
            for call in board.pending():
                if call.session is not None and not (call.traffic is not None and call.traffic.paused):
                    waiting[call.session].append(call)
            for session in silent:
                self._look_at(session, waiting[session.id], now)
        self._notice_pauses(now)

    def _look_at(self, session: Session, calls: list[Call], now: float) -> None:
        running = [call for call in calls if call.started_at is not None]
        if not running:
            session.suspicion = 0.0
            return
        since = max(session.last_at, min(call.started_at or now for call in running))
        silence_s = now - since
        session.suspicion = self._suspicion(session, running, silence_s, now)
        if session.suspicion < SUSPECT_FROM or silence_s < self.thresholds.ask_from_s:
            return
        answers = session.known(now, self.thresholds.ask_every_s)
        if answers is None:
            self.ask(session)
        if silence_s < self.thresholds.silence_s:
            return
        verdict = conclude(answers) if answers is not None else None
        if verdict is None and session.suspicion >= CONVICT_FROM and self._asked_in_vain(session, now):
            # Where nobody could be asked, the silence may be that of a poll, which is only answered when there is news.
            unanswered = answers is not None and answers.session is False
            verdict = "session wedged" if unanswered or silence_s >= self.thresholds.alive_s else None
        if verdict == "session wedged":
            self._convict(session, calls, verdict, silence_s, answers)

    def _suspicion(self, session: Session, calls: list[Call], silence_s: float, now: float) -> float:
        law = self._law
        if law is None:
            return 0.0
        usual = law.median_ratio(calls[0].kind, calls[0].model)

        def waiting(call: Call) -> Waiting:
            return Waiting(
                call.elapsed_until(now),
                law.predicted_s(call.kind, call.work, call.model),
                lambda ratio: law.survival(call.kind, call.model, ratio),
            )

        return suspicion(map(waiting, calls), silence_s, session.load(usual))

    def _asked_in_vain(self, session: Session, now: float) -> bool:
        """Whether a probe was made of late and settled nothing, or cannot be made."""
        if session.way is None or self._prober is None:
            return True
        return session.asked_at is not None and now - session.asked_at >= self.thresholds.in_vain_s

    def _convict(
        self, session: Session, calls: list[Call], verdict: Verdict, silence_s: float, answers: Answers | None
    ) -> None:
        finding = (
            f"Its session had shown no sign of life for {silence_s:.1f} s with {len(calls)} calls in flight "
            f"(suspicion {session.suspicion:.1f})."
        )
        findings = (finding, *([say(answers)] if answers is not None else []))
        ended = [call for call in calls if call.owner is not None and not (call.limit is None or call.limit.fixed)]
        if not ended:
            return
        session.convicted_at = clock.monotonic()
        log.warning("session %s is wedged: its %d calls are ended. %s", session.id, len(ended), " ".join(findings))
        self.tell(
            "conviction", session=session.id, verdict=verdict, calls=len(ended), silence_s=silence_s,
            suspicion=session.suspicion,
        )  # fmt: skip
        self._dump(clock.monotonic())
        for call in ended:
            owner = call.owner
            if owner is not None:
                owner.convict(verdict, findings)

    # Asking ----------------------------------------------------------------------------------------------------------

    def ask(self, session: Session) -> None:
        """Asks a session on a worker, unless it was asked of late."""
        now = clock.monotonic()
        if self._prober is None or session.way is None:
            return
        if session.asked_at is not None and now - session.asked_at < self.thresholds.ask_every_s:
            return
        session.asked_at = now
        try:
            workers.start(_Probe(self, session, self._prober, self.thresholds.probe_limit_s))
        except (AbandonedCallsError, RuntimeError) as error:
            log.warning("session %s could not be asked: %s", session.id, error)

    def answered(self, session: Session, answers: Answers) -> None:
        """Takes in what a probe found, and has everything decided that waited for it."""
        session.answers, session.answered_at = answers, clock.monotonic()
        self.tell(
            "probe", session=session.id, loop=answers.loop, answered=answers.session, fresh=answers.fresh,
            paused=answers.paused, verdict=conclude(answers),
        )  # fmt: skip
        if conclude(answers) == "loop blocked":
            log.warning("session %s: %s", session.id, say(answers))
        self.wake()
        for call in list(board.in_flight.copy().values()):
            owner = call.owner
            if owner is not None and call.session == session.id and call.elapsed_s() >= call.limit_s:
                owner.expire()

    # Calls at their limit --------------------------------------------------------------------------------------------

    def decide(self, call: Call) -> Decision:
        """Decides on a call whose alarm went off, and says once when it is let go on."""
        if self._ceiling is None or self._stopped:
            return Decision(None)
        now, session = clock.monotonic(), sessions.get(call.session)
        decision = self._excused(call, now) or judge(call, session, now, self.thresholds, self._ceiling(call.kind))
        if decision.verdict is not None:
            call.verdict = decision.verdict
        if decision.ask and session is not None:
            self.ask(session)
        if decision.until is None:
            self._find_out(call, session, now)
        elif not call.overdue and decision.verdict not in (None, "paused"):
            call.overdue = True
            log.warning(
                "%s is overdue: %.1f s on a limit of %.1f s; %s, so it goes on (at most %.0f s)",
                call.method or call.kind, call.elapsed_s(), call.limit_s, _WHY[decision.verdict],
                self._ceiling(call.kind),
            )  # fmt: skip
            self.tell("overdue", kind=call.kind, call=call.id, limit_s=call.limit_s, verdict=decision.verdict)
        return decision

    def may_be_lost(self, call: Call) -> bool:
        """Whether a call that is overdue and alive took too long for what others take now, so that it may be lost.

        A service that became slower is slow for everybody. Where many wait, others must have been answered since this
        one was sent, and it must have taken its limit times what they show of the load.
        """
        session, law = sessions.get(call.session), self._law
        if session is None or law is None or call.started_at is None:
            return True
        answers = session.known(clock.monotonic(), self.thresholds.ask_every_s)
        if session.suspicion >= SUSPECT_FROM and (answers is None or conclude(answers) != "slow"):
            return False  # it may be the session that is dead, which is about to be found out
        load = session.load_since(call.started_at, law.median_ratio(call.kind, call.model))
        if load is None:
            return len(board.in_flight) < HEDGE_CROWD
        return load <= LOAD_BY_CHANCE or call.elapsed_s() >= call.limit_s * load

    def _excused(self, call: Call, now: float) -> Decision | None:
        """Lets a call go on for as long as this process was kept from running; not where a person set its limit."""
        if call.started_at is None or call.limit is None or call.limit.fixed:
            return None
        since = max(call.started_at, self._excused_at.get(call.id, call.started_at))
        stalled_s = sum(stall.seconds for stall in self._stalls if stall.at > since)
        if not stalled_s:
            return None
        self._excused_at[call.id] = now
        return Decision(now + stalled_s, "local")

    def _find_out(self, call: Call, session: Session | None, now: float) -> None:
        """Gathers what is known of a call that is over now; who is in flight is told once for all that end together."""
        findings = list(call.findings)
        answers = None if session is None else session.known(now, self.thresholds.ask_every_s)
        if answers is not None and (said := say(answers)):
            findings.append(said)
        if call.verdict == "local" and self._stalls:
            findings.append(f"This process was kept from running for {self._stalls[-1].seconds:.1f} s meanwhile.")
        if session is not None and session.suspicion:
            findings.append(f"The suspicion against its session was {session.suspicion:.1f}.")
        if self.on_dead is not None and call.verdict in (None, "result lost"):
            call.verdict = self.on_dead(call) or call.verdict
        call.findings = tuple(findings)
        self._dump(now)

    def _dump(self, now: float) -> None:
        """Tells who is in flight and where the SDK's loop stands, before anything is ended; once in a while."""
        if self._dumped_at is not None and now - self._dumped_at < self.thresholds.ask_every_s:
            return
        self._dumped_at = now
        rows = [
            {
                "kind": each.kind, "age_s": round(each.age_s(), 3), "limit_s": round(each.limit_s, 3),
                "session": each.session, "queued": each.started_at is None, "verdict": each.verdict,
                "queue_state": each.traffic.queue_state if each.traffic is not None else None,
                "exchanges": each.traffic.exchanges if each.traffic is not None else 0,
            }
            for each in board.pending()[:DUMPED_CALLS]
        ]  # fmt: skip
        self.tell("dump", in_flight=rows, calls=len(board.in_flight), stack=self.stack())

    def paused(self, call: Call) -> None:
        """Notes a call that the service says it has paused, so that its caller hears of a long pause."""
        self._paused.setdefault(call.id, (call, 0))

    def _notice_pauses(self, now: float) -> None:
        notices = self.thresholds.pause_notices_s
        due: dict[tuple[str, float], int] = defaultdict(int)
        for call, step in list(self._paused.values()):
            traffic = call.traffic
            if traffic is None or not traffic.paused or call.id not in board.in_flight:
                self._paused.pop(call.id, None)
            elif now - (traffic.alive_at or traffic.sent_at) > self.thresholds.alive_s:
                traffic.pause("")  # nobody says so any more: what is silent from here on may be dead
            elif step < len(notices) and now - traffic.paused_at >= notices[step]:
                self._paused[call.id] = (call, step + 1)
                due[traffic.paused, notices[step]] += 1
        for (reason, seconds), calls in due.items():
            log.warning(
                "the service has paused %d calls for %.0f s (%s): their clocks stand still", calls, seconds, reason
            )
            self.tell("pause", reason=reason, seconds=seconds, calls=calls)

    def tell(self, name: str, **facts: Any) -> None:
        """Tells whoever listens that something happened: its name, and numbers and words on it."""
        for listen in self.listeners:
            try:
                listen(name, facts)
            except Exception:
                log.exception("a listener failed")


_WHY: dict[Verdict | None, str] = {
    "slow": "the service has answered for it of late",
    "outage": "the service does not answer anybody",
    "behind earlier calls": "it waits to be sent",
    "local": "this process was kept from running meanwhile",
}


class _Probe(Job):
    """The questions of one probe, on their way through a worker."""

    __slots__ = ("_answers", "_limit_s", "_prober", "_session", "_watcher")

    def __init__(self, watcher: Watcher, session: Session, prober: Prober, limit_s: float) -> None:
        super().__init__()
        self._watcher, self._session, self._prober, self._limit_s = watcher, session, prober, limit_s
        self._answers = Answers()

    def run(self) -> None:
        """Asks."""
        try:
            self._answers = self._prober(self._session.way, self._limit_s)
        except Exception:
            log.exception("a probe failed")

    def tell(self) -> None:
        """Hands the answers over."""
        self._watcher.answered(self._session, self._answers)


watcher = Watcher()
clock.on_change(watcher.wake)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watcher.forked)
