"""What becomes of a call at its limit: every branch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from calls_made import BY_PERSON, BY_POLICY, make_call
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines.calls import Call, Verdict
from tinker_deadlines.liveness.judge import Decision, judge, shows_life
from tinker_deadlines.liveness.signs import Session
from tinker_deadlines.liveness.thresholds import Thresholds
from tinker_deadlines.liveness.verdict import Answers
from tinker_deadlines.testing import FakeClock

SHIPPED = Thresholds()
CEILING_S = 1800.0
WEDGED, OUTAGE, SLOW, BLOCKED = (
    Answers(True, False, True),
    Answers(True, False, False),
    Answers(True, True, True),
    Answers(loop=False),
)


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock(1000.0) as fake:
        yield fake


def session_silent_since(clock: FakeClock, silence_s: float) -> Session:
    """A session that can be asked, and was last heard of so many seconds ago."""
    session = Session("one")
    session.way, session.last_at = object(), clock.monotonic() - silence_s
    return session


def probed(session: Session, answers: Answers, at: float) -> Session:
    session.asked_at, session.answers, session.answered_at = at, answers, at
    return session


def judged(call: Call, session: Session | None, clock: FakeClock, ceiling_s: float = CEILING_S) -> Decision:
    return judge(call, session, clock.monotonic(), SHIPPED, ceiling_s)


def test_a_persons_number_is_obeyed(clock: FakeClock) -> None:
    """However much life the call shows, and however far the ceiling is."""
    call = make_call(limit=BY_PERSON)
    clock.advance(60)
    assert call.traffic is not None
    call.traffic.ended("retrieve_future 408", poll=True)
    assert judged(call, session_silent_since(clock, 0), clock) == Decision(None)


def test_a_call_without_a_policy_ends_at_its_limit(clock: FakeClock) -> None:
    """Nobody said that its number was ours to stretch."""
    call = make_call(limit=None)
    clock.advance(60)
    assert judged(call, None, clock) == Decision(None)


def test_a_persons_number_keeps_a_verdict_that_was_found_before(clock: FakeClock) -> None:
    """The error says what is known."""
    call = make_call(limit=BY_PERSON)
    call.verdict = "session wedged"
    clock.advance(60)
    assert judged(call, None, clock) == Decision(None, "session wedged")


def test_a_paused_call_is_looked_at_again(clock: FakeClock) -> None:
    """For as long as the service says that it is paused, past limit and ceiling."""
    call = make_call()
    assert call.traffic is not None
    call.traffic.pause("capacity")
    clock.advance(5 * 3600)
    assert judged(call, None, clock) == Decision(clock.monotonic() + SHIPPED.look_again_s, "paused")


def test_a_pause_has_a_budget_too(clock: FakeClock) -> None:
    """After six hours the call is over."""
    call = make_call()
    assert call.traffic is not None
    call.traffic.pause("capacity")
    clock.advance(SHIPPED.pause_budget_s)
    assert judged(call, None, clock) == Decision(None, "paused")


def test_paused_time_does_not_count(clock: FakeClock) -> None:
    """A call that was paused for a while gets what is left of its limit, from then on."""
    call = make_call()
    assert call.traffic is not None
    clock.advance(10)
    call.traffic.pause("rate limit")
    clock.advance(100)
    call.traffic.pause("")
    clock.advance(20)
    assert judged(call, None, clock) == Decision(clock.monotonic() + 30.0)


def test_a_call_that_shows_life_goes_on(clock: FakeClock) -> None:
    """It is slow, and looked at again; no later than at its ceiling."""
    call = make_call()
    clock.advance(60)
    assert call.traffic is not None
    call.traffic.ended("retrieve_future 408", poll=True)
    assert judged(call, None, clock) == Decision(clock.monotonic() + SHIPPED.look_again_s, "slow")
    assert judged(call, None, clock, 63.0) == Decision(clock.monotonic() + 3.0, "slow")


def test_life_goes_out_of_date(clock: FakeClock) -> None:
    """What was answered within 100 s counts; what failed does not."""
    call = make_call(sent=True)
    assert call.traffic is not None
    assert not shows_life(call, None, clock.monotonic(), SHIPPED.alive_s)
    call.traffic.ended("asample 503", good=False)
    assert not shows_life(call, None, clock.monotonic(), SHIPPED.alive_s)
    call.traffic.ended("retrieve_future 408", poll=True)
    clock.advance(SHIPPED.alive_s)
    assert shows_life(call, None, clock.monotonic(), SHIPPED.alive_s)
    clock.advance(0.1)
    assert not shows_life(call, None, clock.monotonic(), SHIPPED.alive_s)


def test_the_sessions_polls_count_for_a_call_without_its_own(clock: FakeClock) -> None:
    """Some versions ask for all results of a session together; a call with polls of its own is judged by those."""
    together, alone, unsent = make_call(), make_call(), make_call(sent=False)
    assert together.traffic is not None and alone.traffic is not None
    together.traffic.ended("asample 200")
    alone.traffic.ended("retrieve_future 408", poll=True)
    clock.advance(300)
    session, now = session_silent_since(clock, 3), clock.monotonic()
    assert shows_life(together, session, now, SHIPPED.alive_s)
    assert not shows_life(alone, session, now, SHIPPED.alive_s)
    assert not shows_life(unsent, session, now, SHIPPED.alive_s)
    session.last_at = now - SHIPPED.alive_s - 1
    assert not shows_life(together, session, now, SHIPPED.alive_s)


def test_a_call_that_was_never_answered_does_not_borrow_life(clock: FakeClock) -> None:
    """Its request has left and nothing came: that others are answered says nothing on it."""
    call = make_call()
    clock.advance(300)
    assert not shows_life(call, session_silent_since(clock, 0), clock.monotonic(), SHIPPED.alive_s)


def test_at_the_ceiling_it_is_over_whatever_life_it_shows(clock: FakeClock) -> None:
    """What lives and never ends has lost its result; what is silent keeps the verdict found so far."""
    alive, silent = make_call(), make_call()
    clock.advance(CEILING_S)
    assert alive.traffic is not None
    alive.traffic.ended("retrieve_future 408", poll=True)
    silent.verdict = "outage"
    assert judged(alive, None, clock) == Decision(None, "result lost")
    assert judged(silent, None, clock) == Decision(None, "outage")


@pytest.mark.parametrize("askable", [None, False])
def test_what_nobody_can_ask_about_is_over(clock: FakeClock, askable: bool | None) -> None:
    """Without a session, or with one that cannot be asked, a silent call ends at its limit."""
    call, session = make_call(), None if askable is None else Session("one")
    clock.advance(60)
    assert judged(call, session, clock) == Decision(None)


def test_in_an_outage_it_is_waited_for(clock: FakeClock) -> None:
    """Nobody is answered: ending calls helps nobody."""
    call = make_call()
    clock.advance(60)
    session = probed(session_silent_since(clock, 60), OUTAGE, clock.monotonic() - 1)
    assert judged(call, session, clock) == Decision(clock.monotonic() + SHIPPED.look_again_s, "outage")


def test_a_probe_that_hears_of_a_pause_stretches_too(clock: FakeClock) -> None:
    """Even before the call itself has heard of it."""
    call = make_call()
    clock.advance(60)
    session = probed(session_silent_since(clock, 60), Answers(True, True, True, "billing"), clock.monotonic())
    assert judged(call, session, clock) == Decision(clock.monotonic() + SHIPPED.look_again_s, "paused")


@pytest.mark.parametrize(
    "answers, verdict", [(WEDGED, "session wedged"), (BLOCKED, "loop blocked"), (SLOW, "result lost")]
)
def test_what_the_probe_found_dead_is_over(clock: FakeClock, answers: Answers, verdict: Verdict) -> None:
    """With its verdict; where the session lives, a request that was sent and not answered has lost its result."""
    call = make_call()
    clock.advance(60)
    session = probed(session_silent_since(clock, 60), answers, clock.monotonic() - 1)
    assert judged(call, session, clock) == Decision(None, verdict)


def test_what_was_never_sent_waits_on_our_side(clock: FakeClock) -> None:
    """The session lives: it is behind earlier calls, and goes on."""
    call = make_call(sent=False)
    clock.advance(60)
    session = probed(session_silent_since(clock, 60), SLOW, clock.monotonic() - 1)
    again = clock.monotonic() + SHIPPED.look_again_s
    assert judged(call, session, clock) == Decision(again, "behind earlier calls")


@pytest.mark.parametrize("asked_s_ago", [None, 12.0])
def test_a_session_that_was_just_heard_of_need_not_be_asked(clock: FakeClock, asked_s_ago: float | None) -> None:
    """It lives; also where an older probe is out of date by that, and none may be made yet."""
    sent, unsent = make_call(), make_call(sent=False)
    clock.advance(60)
    session, now = session_silent_since(clock, 2), clock.monotonic()
    if asked_s_ago is not None:
        probed(session, SLOW, now - asked_s_ago)
    assert judged(sent, session, clock) == Decision(None, "result lost")
    assert judged(unsent, session, clock) == Decision(now + SHIPPED.look_again_s, "behind earlier calls")


def test_a_silent_session_is_asked(clock: FakeClock) -> None:
    """The call waits for what comes of it."""
    call = make_call()
    clock.advance(60)
    session = session_silent_since(clock, 60)
    assert judged(call, session, clock) == Decision(clock.monotonic() + SHIPPED.in_vain_s, ask=True)
    probed(session, WEDGED, clock.monotonic() - SHIPPED.ask_every_s - 1)  # out of date
    assert judged(call, session, clock) == Decision(clock.monotonic() + SHIPPED.in_vain_s, ask=True)


def test_one_that_is_being_asked_is_waited_for(clock: FakeClock) -> None:
    """Somewhat longer than the probe may take: each of its questions may need all of its time."""
    call = make_call()
    clock.advance(60)
    session = session_silent_since(clock, 60)
    session.asked_at = clock.monotonic() - 4
    assert judged(call, session, clock) == Decision(clock.monotonic() + SHIPPED.in_vain_s - 4)


@pytest.mark.parametrize("answers", [None, Answers(), Answers(True, None, True)])
def test_one_that_was_asked_in_vain_is_given_up(clock: FakeClock, answers: Answers | None) -> None:
    """The probe did not come back, or settled nothing: what nothing can be found out about is over."""
    call = make_call()
    clock.advance(60)
    session = session_silent_since(clock, 60)
    session.asked_at = clock.monotonic() - SHIPPED.in_vain_s
    if answers is not None:
        session.answers, session.answered_at = answers, clock.monotonic() - 1
    assert judged(call, session, clock) == Decision(None)


@given(
    st.floats(0, 4000),
    st.booleans(),
    st.one_of(st.none(), st.floats(0, 4000)),
    st.one_of(st.none(), st.floats(0, 4000)),
    st.one_of(st.none(), st.floats(0, 100)),
    st.sampled_from([WEDGED, OUTAGE, SLOW, BLOCKED, Answers()]),
    st.sampled_from([BY_POLICY, BY_PERSON]),
)
def test_it_always_comes_to_an_end(
    age_s: float,
    sent: bool,
    alive_s_ago: float | None,
    silent_s: float | None,
    asked_s_ago: float | None,
    answers: Answers,
    limit: object,
) -> None:
    """Whatever was seen: to be looked at later, never in the past, and unless paused never beyond its ceiling."""
    with FakeClock(10_000.0) as clock:
        call = make_call(sent=sent, limit=limit)  # type: ignore[arg-type]
        clock.advance(age_s)
        now = clock.monotonic()
        if call.traffic is not None and alive_s_ago is not None:
            call.traffic.alive_at = now - alive_s_ago
        session = None if silent_s is None else session_silent_since(clock, silent_s)
        if session is not None and asked_s_ago is not None:
            probed(session, answers, now - asked_s_ago)
        decision = judged(call, session, clock)
        if decision.until is not None:
            assert now <= decision.until <= max(now + SHIPPED.in_vain_s, 10_000.0 + CEILING_S) + 1e-6
            assert age_s < CEILING_S
