"""The thread that looks: what it asks, whom it convicts, and what never stops it. On a clock that the tests move."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from calls_made import BY_PERSON, Owner, in_flight

from tinker_deadlines import clock as clock_module
from tinker_deadlines.calls import TinkerCallKind, Work, board
from tinker_deadlines.limits import HEDGE_CROWD
from tinker_deadlines.liveness import watcher as watcher_module
from tinker_deadlines.liveness.signs import Session, sessions
from tinker_deadlines.liveness.thresholds import Thresholds
from tinker_deadlines.liveness.verdict import Answers
from tinker_deadlines.liveness.watcher import Watcher
from tinker_deadlines.testing import FakeClock
from tinker_deadlines.waiting.workers import Job

SHIPPED = Thresholds()
WEDGED, OUTAGE, SLOW = Answers(True, False, True), Answers(True, False, False), Answers(True, True, True)
CEILING_S = 1800.0


class Law:
    """Calls take 5 s, more or less: memoryless."""

    def predicted_s(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> float:
        return 5.0

    def survival(self, kind: TinkerCallKind, model: str | None, ratio: float) -> float:
        return math.exp(-ratio)

    def median_ratio(self, kind: TinkerCallKind, model: str | None) -> float:
        return math.log(2)


class AtOnce:
    """Stands where the workers stand: a job is done before `start` returns."""

    def start(self, job: Job) -> None:
        job.run()
        job.tell()


class Probe:
    """A prober that gives the answers it was told to, and counts how often it was asked."""

    def __init__(self, answers: Answers | Exception) -> None:
        self.answers = answers
        self.asked = 0

    def __call__(self, way: Any, limit_s: float) -> Answers:
        self.asked += 1
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    sessions.clear()
    with FakeClock(1000.0) as fake:
        yield fake
    sessions.clear()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_module, "workers", AtOnce())


def looking(prober: Any) -> Watcher:
    """A watcher that looks when it is told to, and by no thread of its own."""
    made = Watcher()
    made._law, made._prober, made._ceiling, made._stopped = Law(), prober, lambda kind: CEILING_S, False
    return made


def askable(name: str = "one") -> Session:
    session = sessions.of(name)
    session.way = object()
    return session


def look_for(watcher: Watcher, clock: FakeClock, seconds: float, every_s: float = 1.0) -> None:
    for _ in range(round(seconds / every_s)):
        clock.advance(every_s)
        watcher.look()


def events_of(watcher: Watcher) -> list[tuple[str, dict[str, Any]]]:
    events: list[tuple[str, dict[str, Any]]] = []
    watcher.listeners = (lambda name, facts: events.append((name, facts)),)
    return events


# Convicting -----------------------------------------------------------------------------------------------------------


def test_a_silent_session_is_asked_and_convicted(clock: FakeClock, at_once: None) -> None:
    """Asked once the silence is strange, convicted with all its calls after 15 s of it, in one event."""
    probe = Probe(WEDGED)
    watcher, session = looking(probe), askable()
    events = events_of(watcher)
    calls = [in_flight() for _ in range(8)]
    look_for(watcher, clock, 5)
    assert probe.asked == 1  # φ is 8 · 5 / (5 · ln 10) = 3.5
    look_for(watcher, clock, 9)
    assert not any(owner.convicted for _, owner in calls)
    look_for(watcher, clock, 1)
    assert [verdict for _, owner in calls for verdict, _ in owner.convicted] == ["session wedged"] * 8
    findings = " ".join(calls[0][1].convicted[0][1])
    assert "no sign of life for 15.0 s with 8 calls in flight" in findings and "a fresh connection did" in findings
    assert f"suspicion {session.suspicion:.1f}" in findings
    names = [name for name, _ in events]
    assert names.count("conviction") == 1 and names.count("dump") == 1
    assert names.index("dump") > names.index("probe")
    assert not board.in_flight


@pytest.mark.parametrize("answers", [SLOW, OUTAGE, Answers(loop=False), Answers(True, True, True, "billing")])
def test_a_session_with_an_excuse_is_not_convicted(clock: FakeClock, at_once: None, answers: Answers) -> None:
    """Slow, an outage, a blocked loop or a pause: however long it is silent and however high the suspicion."""
    probe = Probe(answers)
    watcher, session = looking(probe), askable()
    calls = [in_flight() for _ in range(8)]
    look_for(watcher, clock, 300)
    assert session.suspicion > 100
    assert not any(owner.convicted for _, owner in calls)
    assert probe.asked == pytest.approx(300 / SHIPPED.ask_every_s, abs=2)


def test_without_a_prober_suspicion_alone_convicts(clock: FakeClock) -> None:
    """From φ = 8 on, Akka's threshold, and not before."""
    watcher = looking(None)
    watcher._law = Slow()
    askable()
    calls = [in_flight() for _ in range(2)]
    look_for(watcher, clock, 184)  # φ is 2 · 184 / (20 · ln 10) = 7.99
    assert not any(owner.convicted for _, owner in calls)
    look_for(watcher, clock, 1)
    assert [owner.convicted[0][0] for _, owner in calls] == ["session wedged"] * 2


def test_without_a_prober_no_poll_is_mistaken_for_silence(clock: FakeClock) -> None:
    """However high the suspicion: 100 s of silence are longer than any poll is open."""
    watcher, session = looking(None), askable()
    calls = [in_flight() for _ in range(8)]
    look_for(watcher, clock, SHIPPED.alive_s - 1)
    assert session.suspicion > 60 and not any(owner.convicted for _, owner in calls)
    look_for(watcher, clock, 1)
    assert all(owner.convicted for _, owner in calls)


class Slow(Law):
    """Calls take 20 s."""

    def predicted_s(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> float:
        return 20.0


@pytest.mark.parametrize("answers", [Answers(), Answers(True, None, True), Answers(fresh=True)])
def test_a_probe_that_settles_nothing_leaves_it_to_suspicion(clock: FakeClock, at_once: None, answers: Answers) -> None:
    """Nobody was asked about the session itself: as without a prober."""
    probe = Probe(answers)
    watcher = looking(probe)
    askable()
    calls = [in_flight() for _ in range(8)]
    look_for(watcher, clock, SHIPPED.alive_s - 1)
    assert not any(owner.convicted for _, owner in calls) and probe.asked > 1
    look_for(watcher, clock, 1 + SHIPPED.ask_every_s)
    assert all(owner.convicted for _, owner in calls)


def test_a_session_that_does_not_answer_is_convicted_though_nobody_else_was_asked(
    clock: FakeClock, at_once: None
) -> None:
    """Whether a fresh connection works is not known: from φ = 8 on, once there was time for an answer."""
    watcher, session = looking(Probe(Answers(True, False, None))), askable()
    calls = [in_flight() for _ in range(2)]
    look_for(watcher, clock, 46)  # φ is 2 · 46 / (5 · ln 10) = 7.99
    assert not any(owner.convicted for _, owner in calls)
    look_for(watcher, clock, 11)
    assert all(owner.convicted for _, owner in calls) and session.suspicion < 12


def test_a_prober_that_raises_is_no_answer_and_no_end(
    clock: FakeClock, at_once: None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, asked again later, and suspicion decides."""
    probe = Probe(RuntimeError("the prober stumbled"))
    watcher = looking(probe)
    askable()
    _, owner = in_flight()
    look_for(watcher, clock, 99)
    assert probe.asked > 1 and not owner.convicted
    assert any("a probe failed" in record.getMessage() for record in caplog.records)
    look_for(watcher, clock, 20)
    assert owner.convicted


def test_a_listener_that_raises_disturbs_nobody(clock: FakeClock, at_once: None) -> None:
    """The conviction is carried out, and the next listener hears of it."""
    watcher, heard = looking(Probe(WEDGED)), []

    def raises(name: str, facts: dict[str, Any]) -> None:
        raise RuntimeError("the listener stumbled")

    watcher.listeners = (raises, lambda name, facts: heard.append(name))
    askable()
    calls = [in_flight() for _ in range(8)]
    look_for(watcher, clock, 15)
    assert all(owner.convicted for _, owner in calls) and "conviction" in heard


def test_a_persons_number_is_not_convicted(clock: FakeClock, at_once: None) -> None:
    """Its calls wait as long as they were told to; those with our own numbers do not."""
    watcher = looking(Probe(WEDGED))
    askable()
    theirs, ours = [in_flight(limit=BY_PERSON) for _ in range(4)], [in_flight() for _ in range(4)]
    look_for(watcher, clock, 40)
    assert not any(owner.convicted for _, owner in theirs)
    assert all(owner.convicted for _, owner in ours)


def test_queued_calls_go_with_their_session(clock: FakeClock, at_once: None) -> None:
    """They add no suspicion, since nothing was asked for yet, and are ended with the others."""
    watcher, session = looking(Probe(WEDGED)), askable()
    _, running = in_flight(kind="forward_backward")
    _, queued = in_flight(kind="optim_step", queued=True, sent=False)
    look_for(watcher, clock, 10)
    assert session.suspicion == pytest.approx(10 / (5 * math.log(10)))
    look_for(watcher, clock, 30)
    assert running.convicted and queued.convicted


def test_a_session_with_queued_calls_alone_is_not_suspected(clock: FakeClock, at_once: None) -> None:
    """Nobody waits for the service."""
    probe = Probe(WEDGED)
    watcher, session = looking(probe), askable()
    _, queued = in_flight(kind="optim_step", queued=True, sent=False)
    look_for(watcher, clock, 100)
    assert session.suspicion == 0.0 and probe.asked == 0 and not queued.convicted


def test_other_sessions_are_left_alone(clock: FakeClock, at_once: None) -> None:
    """One is silent, the other answers: its calls go on."""
    watcher = looking(Probe(WEDGED))
    askable("dead")
    lives = askable("lives")
    dead, living = [in_flight("dead") for _ in range(8)], [in_flight("lives") for _ in range(8)]
    for _ in range(60):
        clock.advance(1)
        lives.seen()
        watcher.look()
    assert all(owner.convicted for _, owner in dead)
    assert not any(owner.convicted for _, owner in living)


def test_a_sign_of_life_after_the_probe_saves_a_session(clock: FakeClock, at_once: None) -> None:
    """What the probe found is out of date by it."""
    watcher, session = looking(Probe(WEDGED)), askable()
    calls = [in_flight() for _ in range(8)]
    look_for(watcher, clock, 14)
    session.seen()
    look_for(watcher, clock, 4)
    assert not any(owner.convicted for _, owner in calls)


def test_the_load_makes_patient(clock: FakeClock, at_once: None) -> None:
    """Where the last calls took eight times as long as usual, so does the suspicion."""
    watcher, session = looking(Probe(WEDGED)), askable()
    for _ in range(20):
        session.completed(8 * math.log(2))
    _, owner = in_flight()
    look_for(watcher, clock, 16)
    assert session.suspicion == pytest.approx(16 / (8 * 5 * math.log(10)))
    assert not owner.convicted


# A long poll ----------------------------------------------------------------------------------------------------------


def test_one_training_call_in_a_long_poll_is_asked_about_and_goes_on(clock: FakeClock, at_once: None) -> None:
    """With a narrow law φ jumps past 8 within one poll of 45 s; the session answers the probe, so nothing is ended."""
    probe = Probe(SLOW)
    watcher, session = looking(probe), askable()
    watcher._law = Narrow()
    call, owner = in_flight(kind="forward_backward")
    jumps: list[float] = []
    for _ in range(10):
        look_for(watcher, clock, 45)
        jumps.append(session.suspicion)
        assert call.traffic is not None
        call.traffic.ended("retrieve_future 408", poll=True)
        session.seen()
    assert jumps[0] > 8 and jumps == sorted(jumps, reverse=True)
    assert not owner.convicted and probe.asked >= 3


def test_a_long_poll_is_no_evidence_where_nobody_can_be_asked(clock: FakeClock) -> None:
    """φ jumps past 8 in each poll of 90 s, as the SDK's other HTTP client has them; nothing is ended for that."""
    watcher, session = looking(None), askable()
    watcher._law = Narrow()
    call, owner = in_flight(kind="forward_backward")
    for _ in range(5):
        look_for(watcher, clock, 90)
        assert call.traffic is not None
        call.traffic.ended("retrieve_future 408", poll=True)
        session.seen()
    assert not owner.convicted


class Narrow(Law):
    """All calls take just as long as predicted, as a learned law has it after hundreds of them."""

    def survival(self, kind: TinkerCallKind, model: str | None, ratio: float) -> float:
        return 1.0 if ratio <= 1.05 else max(1e-300, 0.05 * (ratio / 1.05) ** -13)


# Time that is not what it seems ---------------------------------------------------------------------------------------


def test_a_stall_of_our_own_is_not_the_sessions_silence(clock: FakeClock, at_once: None) -> None:
    """Nobody was heard because nobody listened: the silence starts anew, and the stall is told."""
    probe = Probe(WEDGED)
    watcher, session = looking(probe), askable()
    events = events_of(watcher)
    calls = [in_flight() for _ in range(8)]
    clock.advance(300)
    watcher.look(late_s=299.0)
    assert session.last_at == clock.monotonic() and probe.asked == 0
    assert [(name, facts["seconds"]) for name, facts in events] == [("stall", 299.0)]
    look_for(watcher, clock, 4)
    assert probe.asked == 0
    look_for(watcher, clock, 11)
    assert all(owner.convicted for _, owner in calls)  # it is silent all the same


def test_the_thread_notices_a_stall_by_itself(clock: FakeClock, at_once: None) -> None:
    """It wakes 300 s late, and suspects nobody for that."""
    watcher, session = Watcher(), askable()
    told = threading.Event()
    watcher.listeners = (lambda name, facts: told.set() if name == "stall" and facts["seconds"] > 290 else None,)
    _, owner = in_flight()
    watcher.start(Law(), Probe(WEDGED), lambda kind: CEILING_S)
    try:
        time.sleep(0.02)  # it waits now
        clock.advance(300)
        assert told.wait(5)
    finally:
        watcher.stop()
    assert session.last_at == 1300.0 and not owner.convicted


def test_a_jump_of_the_wall_clock_changes_nothing(
    clock: FakeClock, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours ahead and two back: no stall, no suspicion, no notice."""
    wall = time.time()
    watcher, session = looking(Probe(WEDGED)), askable()
    events = events_of(watcher)
    _, owner = in_flight()
    for jump_s in (7200.0, -7200.0):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: wall + jump_s)
        monkeypatch.setattr(clock_module, "wall", lambda jump_s=jump_s: wall + jump_s)
        look_for(watcher, clock, 2)
    assert session.suspicion == 0.0 and events == [] and not owner.convicted


def test_a_call_at_its_limit_is_excused_for_a_stall(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """It goes on for as long as the process stood still, once for each stall, and is said to be overdue."""
    watcher = looking(None)
    call, _ = in_flight("one")
    sessions.of("one")
    clock.advance(55)
    watcher.look(late_s=50.0)
    clock.advance(5)
    decision = watcher.decide(call)
    assert (decision.until, decision.verdict) == (clock.monotonic() + 50.0, "local")
    assert call.overdue and sum("is overdue" in record.getMessage() for record in caplog.records) == 1
    clock.advance(50)
    assert watcher.decide(call).until is None
    assert any("kept from running for 50.0 s" in each for each in call.findings)


def test_each_stall_excuses_once(clock: FakeClock) -> None:
    """A second one counts by itself, for a call that is overdue already too; one before the call does not."""
    watcher = looking(None)
    clock.advance(20)
    watcher.look(late_s=19.0)
    call, _ = in_flight(None)
    clock.advance(60)
    watcher.look(late_s=10.0)
    first = watcher.decide(call)
    assert first.until == clock.monotonic() + 10.0
    clock.advance(10)
    watcher.look(late_s=7.0)
    assert watcher.decide(call).until == clock.monotonic() + 7.0
    clock.advance(7)
    assert watcher.decide(call).until is None


def test_a_stall_does_not_excuse_where_a_person_set_the_limit(clock: FakeClock) -> None:
    """Obeyed exactly means that."""
    watcher = looking(None)
    call, _ = in_flight(limit=BY_PERSON)
    clock.advance(60)
    watcher.look(late_s=50.0)
    assert watcher.decide(call).until is None


# Pauses ---------------------------------------------------------------------------------------------------------------


def test_a_long_pause_is_noticed_at_1_5_and_15_minutes(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """Once each, for all calls together; never before, and never again."""
    watcher = looking(None)
    events = events_of(watcher)
    calls = [in_flight() for _ in range(3)]
    for call, _ in calls:
        assert call.traffic is not None
        call.traffic.pause("capacity")
        watcher.paused(call)
    for _ in range(3600 // 10):
        clock.advance(10)
        for call, _ in calls:
            assert call.traffic is not None
            call.traffic.ended("retrieve_future 408", poll=True)
            watcher.paused(call)
        watcher.look()
    told = [facts for name, facts in events if name == "pause"]
    assert [(each["seconds"], each["calls"], each["reason"]) for each in told] == [
        (60.0, 3, "capacity"), (300.0, 3, "capacity"), (900.0, 3, "capacity"),
    ]  # fmt: skip
    assert sum("has paused 3 calls" in record.getMessage() for record in caplog.records) == 3


def test_a_second_pause_is_noticed_like_the_first(clock: FakeClock) -> None:
    """Its minutes count from its own start."""
    watcher = looking(None)
    events = events_of(watcher)
    call, _ = in_flight()
    assert call.traffic is not None
    for _ in range(2):
        call.traffic.ended("asample 408")
        call.traffic.pause("rate limit")
        watcher.paused(call)
        look_for(watcher, clock, 70)
        call.traffic.pause("")
        look_for(watcher, clock, 5)
    assert [facts["seconds"] for name, facts in events if name == "pause"] == [60.0, 60.0]


def test_a_pause_ends_with_its_call(clock: FakeClock) -> None:
    """Nothing is kept of it."""
    watcher = looking(None)
    call, _ = in_flight()
    assert call.traffic is not None
    call.traffic.pause("capacity")
    watcher.paused(call)
    board.end(call, "cancelled")
    look_for(watcher, clock, 1)
    assert not watcher._paused


def test_a_paused_service_for_two_hours_ends_nothing(clock: FakeClock, at_once: None) -> None:
    """Neither by suspicion nor at a limit, as long as it says so again and again."""
    watcher, session = looking(Probe(OUTAGE)), askable()
    calls = [in_flight() for _ in range(8)]
    for call, _ in calls:
        assert call.traffic is not None
        call.traffic.pause("capacity")
        watcher.paused(call)
    for _ in range(7200 // 30):
        look_for(watcher, clock, 30, every_s=10)
        session.seen()
        for call, _ in calls:
            assert call.traffic is not None
            call.traffic.ended("retrieve_future 408", poll=True)
    for call, owner in calls:
        assert not owner.convicted and call.elapsed_s() == 0.0
        assert watcher.decide(call).until is not None


def test_a_pause_that_nobody_confirms_is_over(clock: FakeClock, at_once: None) -> None:
    """A session that dies while it is paused is found all the same: the clock runs, and suspicion with it."""
    watcher, _ = looking(Probe(WEDGED)), askable()
    calls = [in_flight() for _ in range(8)]
    for call, _ in calls:
        assert call.traffic is not None
        call.traffic.pause("capacity")
        watcher.paused(call)
    look_for(watcher, clock, SHIPPED.alive_s / 2)
    for call, _ in calls:
        assert call.traffic is not None
        call.traffic.ended("retrieve_future ConnectError", good=False)  # no confirmation
    look_for(watcher, clock, SHIPPED.alive_s / 2)
    assert not any(owner.convicted for _, owner in calls)
    look_for(watcher, clock, 40)
    assert all(owner.convicted for _, owner in calls)


# Deciding -------------------------------------------------------------------------------------------------------------


def test_a_stopped_watcher_lets_every_call_end(clock: FakeClock) -> None:
    """Whatever life it shows: without a watcher, limits are limits."""
    watcher = looking(None)
    call, _ = in_flight()
    clock.advance(60)
    assert call.traffic is not None
    call.traffic.ended("retrieve_future 408", poll=True)
    assert watcher.decide(call).until is not None
    watcher.stop()
    assert watcher.decide(call).until is None


@pytest.mark.parametrize("silence_s", [2.0, 60.0])
def test_whatever_lets_a_call_go_on_has_words_for_it(
    clock: FakeClock, at_once: None, caplog: pytest.LogCaptureFixture, silence_s: float
) -> None:
    """Alive, in an outage, or not sent yet: said once for each call, however often it is looked at."""
    watcher, session = looking(Probe(OUTAGE)), askable()
    alive, _ = in_flight()
    unsent, _ = in_flight(sent=False)
    clock.advance(60)
    assert alive.traffic is not None
    session.last_at = clock.monotonic() - silence_s
    if silence_s < 5:
        alive.traffic.ended("retrieve_future 408", poll=True)
    else:
        watcher.ask(session)
    for _ in range(3):
        for call in (alive, unsent):
            assert watcher.decide(call).until is not None
    assert [record.getMessage().count("overdue") for record in caplog.records if "overdue" in record.msg] == [1, 1]


def test_a_call_at_its_limit_has_its_session_asked(clock: FakeClock, at_once: None) -> None:
    """And is decided on when the answers come, not when its alarm goes off the next time."""
    probe = Probe(WEDGED)
    watcher, session = looking(probe), askable()
    call, owner = in_flight()
    clock.advance(60)
    assert watcher.decide(call).until is not None
    assert probe.asked == 1 and owner.asked_again == 1
    decision = watcher.decide(call)
    assert (decision.until, call.verdict) == (None, "session wedged")
    assert any("a fresh connection did" in each for each in call.findings)
    assert session.asked_at == clock.monotonic()


def test_a_pattern_explains_a_call_of_which_nothing_else_is_known(clock: FakeClock) -> None:
    """It is asked once for each call that ends, and does not outrank what the probe found."""
    watcher, asked = looking(None), []
    watcher.on_dead = lambda call: asked.append(call) or "input-dependent failure"
    unknown, _ = in_flight(None)
    outage, _ = in_flight(None)
    clock.advance(CEILING_S)
    outage.verdict = "outage"
    for call in (unknown, outage):
        assert watcher.decide(call).until is None
    assert unknown.verdict == "input-dependent failure" and outage.verdict == "outage"
    assert unknown in asked


def test_who_is_in_flight_is_told_once_for_all_that_end_together(clock: FakeClock) -> None:
    """With ages and limits, no more than a hundred of them, and where the loop stands."""
    watcher = looking(None)
    events = events_of(watcher)
    watcher.stack = lambda: "loop.py:1 run"
    calls = [in_flight(None) for _ in range(150)]
    clock.advance(60)
    for call, _ in calls:
        watcher.decide(call)
    (dump,) = [facts for name, facts in events if name == "dump"]
    assert len(dump["in_flight"]) == 100 and dump["calls"] == 150 and dump["stack"] == "loop.py:1 run"
    assert dump["in_flight"][0]["age_s"] == 60.0
    clock.advance(SHIPPED.ask_every_s)
    watcher.decide(calls[0][0])
    assert sum(name == "dump" for name, _ in events) == 2


# Lost, or slow like everybody's ---------------------------------------------------------------------------------------


def test_a_call_with_few_beside_it_may_be_lost_at_its_limit(clock: FakeClock) -> None:
    """There is nobody to compare it with, and it costs little to try again."""
    watcher, _ = looking(None), askable()
    calls = [in_flight() for _ in range(HEDGE_CROWD - 1)]
    clock.advance(60)
    assert all(watcher.may_be_lost(call) for call, _ in calls)


def test_of_many_that_all_take_long_none_is_lost(clock: FakeClock) -> None:
    """Nobody was answered since they were sent; then those who are took six times as long, and so may the rest."""
    watcher, session = looking(None), askable()
    session.completed(math.log(2))
    clock.advance(1)
    calls = [in_flight() for _ in range(512)]
    clock.advance(60)
    assert not any(watcher.may_be_lost(call) for call, _ in calls)
    session.completed(6 * math.log(2))
    clock.advance(60)
    assert not any(watcher.may_be_lost(call) for call, _ in calls)
    clock.advance(6 * 60 - 120)
    assert all(watcher.may_be_lost(call) for call, _ in calls)


def test_one_that_hangs_while_others_are_answered_may_be_lost(clock: FakeClock) -> None:
    """At its limit, however many there are."""
    watcher, session = looking(None), askable()
    calls = [in_flight() for _ in range(100)]
    clock.advance(5)
    for _ in range(99):
        session.completed(1.2 * math.log(2))  # somewhat slower than usual, by chance
    clock.advance(55)
    assert watcher.may_be_lost(calls[0][0])


def test_a_call_of_a_suspected_session_is_not_called_lost(clock: FakeClock) -> None:
    """The session may be dead: its calls end together when that is found out, and second attempts are for nothing."""
    watcher, session = looking(None), askable()
    call, _ = in_flight()
    look_for(watcher, clock, 60)
    assert session.suspicion > 3 and not watcher.may_be_lost(call)
    session.answers, session.answered_at = WEDGED, clock.monotonic()
    assert not watcher.may_be_lost(call)
    session.answers = SLOW  # a poll is open, and nothing else is in flight
    assert watcher.may_be_lost(call)
    session.answers = None
    session.seen()
    assert watcher.may_be_lost(call)


def test_without_a_session_a_call_may_be_lost(clock: FakeClock) -> None:
    """Nothing is known of others."""
    watcher = looking(None)
    assert all(watcher.may_be_lost(in_flight(None)[0]) for _ in range(100))


# The thread -----------------------------------------------------------------------------------------------------------


def eventually(condition: Callable[[], Any], within_s: float = 5.0) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_one_thread_looks_until_it_is_stopped(clock: FakeClock) -> None:
    """However often it is started; stopped and started again, it looks again."""
    watcher = Watcher()
    for _ in range(3):
        watcher.start(Law(), None, lambda kind: CEILING_S)  # type: ignore[arg-type]
        thread = watcher._thread
        watcher.start(Law(), None, lambda kind: CEILING_S)  # type: ignore[arg-type]
        assert thread is not None and watcher._thread is thread and thread.daemon
        watcher.stop()
        eventually(lambda thread=thread: not thread.is_alive())
        assert watcher._thread is None


def test_a_look_that_fails_is_said_and_not_the_last(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """A law of somebody else that raises must not end looking."""
    watcher, looks = Watcher(), []

    class Broken(Law):
        def survival(self, kind: TinkerCallKind, model: str | None, ratio: float) -> float:
            looks.append(ratio)
            raise ZeroDivisionError

    askable()
    in_flight()
    clock.advance(10)
    watcher.start(Broken(), Probe(WEDGED), lambda kind: CEILING_S)
    try:
        eventually(lambda: len(looks) > 2)
    finally:
        watcher.stop()
    assert any("the watcher stumbled" in record.getMessage() for record in caplog.records)


def test_a_probe_that_hangs_does_not_hold_the_watcher_up(clock: FakeClock) -> None:
    """It is on a worker: meanwhile every look returns at once, and nobody asks the same session again."""
    gate, asked = threading.Event(), []

    def hangs(way: Any, limit_s: float) -> Answers:
        asked.append(way)
        gate.wait(10)
        return SLOW

    watcher, session = looking(hangs), askable()
    for _ in range(8):
        in_flight(limit=BY_PERSON)
    started_at = time.monotonic()
    try:
        look_for(watcher, clock, 14)
        look_for(watcher, clock, 4)
        assert time.monotonic() - started_at < 2.0
        eventually(lambda: asked)
        assert len(asked) == 1 and session.answers is None
    finally:
        gate.set()
    eventually(lambda: session.answers is SLOW)


def test_ten_thousand_calls_are_looked_at_in_no_time(clock: FakeClock, at_once: None) -> None:
    """On a hundred silent sessions, with the law of the shipped policy: well within the second between two looks."""
    from tinker_deadlines.policy import LearnedPolicy

    watcher = looking(Probe(SLOW))
    watcher._law = LearnedPolicy()
    for number in range(100):
        askable(str(number))
    for number in range(10_000):
        in_flight(str(number % 100))
    clock.advance(20)
    started_at = time.thread_time()
    watcher.look()
    assert time.thread_time() - started_at < 2.0, "with a hundred probes answered on the same thread"
    assert all(session.suspicion > 0 for session in sessions.all())


def test_a_session_that_answers_costs_no_walk_through_the_calls(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While every session shows life, the calls in flight are not looked at."""
    watcher = looking(None)
    askable().seen()
    in_flight()
    monkeypatch.setattr(board, "pending", lambda: pytest.fail("walked through the calls"))
    watcher.look()


def test_too_many_stuck_threads_are_said_and_no_end(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no worker can be had, suspicion alone decides, once the silence is longer than any poll."""
    from tinker_deadlines.errors import AbandonedCallsError

    class Full:
        def start(self, job: Job) -> None:
            raise AbandonedCallsError(32, 32)

    monkeypatch.setattr(watcher_module, "workers", Full())
    watcher, _ = looking(Probe(SLOW)), askable()
    calls = [in_flight() for _ in range(8)]
    look_for(watcher, clock, SHIPPED.alive_s - 1)
    assert not any(owner.convicted for _, owner in calls)
    look_for(watcher, clock, 15)
    assert any("could not be asked" in record.getMessage() for record in caplog.records)
    assert all(owner.convicted for _, owner in calls)


def test_an_owner_that_went_meanwhile_is_no_error(clock: FakeClock, at_once: None) -> None:
    """A call may end between the look and the conviction."""
    watcher = looking(Probe(WEDGED))
    askable()
    calls = [in_flight() for _ in range(8)]

    class Ending(Owner):
        def convict(self, verdict: Any, findings: tuple[str, ...]) -> None:
            super().convict(verdict, findings)
            for other, _ in calls:
                other.owner = None

    calls[0][0].owner = Ending(calls[0][0])
    logging.getLogger("tinker_deadlines").setLevel(logging.ERROR)
    look_for(watcher, clock, 15)
    assert not any(owner.convicted for _, owner in calls[1:])
