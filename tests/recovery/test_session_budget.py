"""How many sessions a process has made, and whether it may make another: the budget, and the breaker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tinker_deadlines import SessionBudgetError
from tinker_deadlines.limits import SESSION_BUDGET, sessions_allowed, sharing_wanted
from tinker_deadlines.recovery.sessions import Breaker, Breakers, SessionBudget

MOST = 6


class BudgetMachine(RuleBasedStateMachine):
    """A budget, and beside it the truth: what the service holds after each creation, as far as it could be known."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = SessionBudget()
        self.pending: list[int] = []
        self.held: list[str] = []
        self.lost = self.created = self.finished_in_all = self.warnings = 0

    @rule()
    def begin(self) -> None:
        held = len(self.pending) + len(self.held) + self.lost
        if held < MOST:
            self.pending.append(self.budget.begin(MOST))
            self.created += 1
        else:
            with pytest.raises(SessionBudgetError) as caught:
                self.budget.begin(MOST)
            assert (caught.value.open, caught.value.most, caught.value.created) == (held, MOST, self.created)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), how=st.sampled_from(["made", "refused", "lost"]))
    def answer(self, data: st.DataObject, how: str) -> None:
        number = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        if how == "made":
            self.budget.made(number, f"session_{number}")
            self.held.append(f"session_{number}")
        elif how == "refused":
            self.budget.refused(number)
            self.created -= 1
        else:
            self.budget.lost(number)
            self.lost += 1
        # Whatever is said of it afterwards: it was answered once.
        self.budget.refused(number)
        self.budget.lost(number)
        self.budget.made(number, "another")

    @precondition(lambda self: self.held)
    @rule(data=st.data(), confirmed=st.booleans())
    def end(self, data: st.DataObject, confirmed: bool) -> None:
        session = data.draw(st.sampled_from(self.held))
        if confirmed:
            self.held.remove(session)
            self.finished_in_all += 1
            self.budget.finished(session)
            self.budget.finished(session)
        self.budget.orphaned(session)  # where it was finished, it is none

    @rule()
    def warn(self) -> None:
        self.warnings += bool(self.budget.warning(MOST))

    @invariant()
    def it_knows_what_may_be_held(self) -> None:
        counts = self.budget.counts()
        assert counts.open == len(self.pending) + len(self.held) + self.lost <= MOST
        assert (counts.created, counts.finished) == (self.created, self.finished_in_all)
        assert counts.unanswered == len(self.pending) + self.lost
        assert set(counts.orphans) <= set(self.held)
        assert self.warnings <= 1


TestBudget = BudgetMachine.TestCase


def test_a_person_hears_of_it_once_at_four_fifths() -> None:
    """Not at seven of ten sessions, at eight, and never again."""
    budget = SessionBudget()
    for number in range(7):
        budget.made(budget.begin(10), str(number))
    assert budget.warning(10) == ""
    budget.begin(10)
    assert "8 of at most 10" in budget.warning(10)
    budget.begin(10)
    assert budget.warning(10) == ""


@pytest.mark.parametrize("text", ["0", "-3", "many", "1.5", ""])
def test_a_budget_of_rubbish_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable, the value and the default."""
    monkeypatch.setenv("TINKER_DEADLINES_SESSIONS", text)
    with pytest.raises(ValueError, match="TINKER_DEADLINES_SESSIONS") as caught:
        sessions_allowed()
    assert repr(text) in str(caught.value) and str(SESSION_BUDGET) in str(caught.value)


def test_what_a_person_sets_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget and the sharing are read from the environment at each use."""
    assert (sessions_allowed(), sharing_wanted()) == (200, True)
    monkeypatch.setenv("TINKER_DEADLINES_SESSIONS", "7")
    monkeypatch.setenv("TINKER_DEADLINES_SHARE", "off")
    assert (sessions_allowed(), sharing_wanted()) == (7, False)
    monkeypatch.setenv("TINKER_DEADLINES_SHARE", "perhaps")
    with pytest.raises(ValueError, match="TINKER_DEADLINES_SHARE"):
        sharing_wanted()


FINDINGS = st.tuples(
    st.sampled_from([None, "slow", "outage", "paused", "session wedged", "loop blocked"]), st.booleans()
)


@given(st.lists(FINDINGS, max_size=30))
def test_a_breaker_is_as_the_last_probe_found_it(findings: list[tuple[str | None, bool]]) -> None:
    """An outage opens it; any answer closes it; a loop that is blocked on our side says nothing."""
    breaker, is_open = Breaker(), False
    for now, (verdict, answered) in enumerate(findings):
        breaker.probed(verdict, float(now), answered=answered)  # type: ignore[arg-type]
        if verdict == "outage":
            is_open = True
        elif answered or verdict in ("slow", "paused", "session wedged"):
            is_open = False
        assert breaker.is_open is is_open


@given(st.lists(st.floats(0, 100), max_size=50))
def test_of_all_who_wait_one_asks_at_a_time(instants: list[float]) -> None:
    """At most once in ten seconds, however many wait; nobody asks while it is closed."""
    breaker = Breaker()
    assert not breaker.may_ask(0.0, 10.0)
    breaker.probed("outage", 0.0)
    asked = [now for now in sorted(instants) if breaker.may_ask(now, 10.0)]
    assert all(later - earlier >= 10.0 for earlier, later in zip([0.0, *asked], asked, strict=False))


def test_an_endpoint_has_one_breaker_under_all_its_names() -> None:
    """What is found at an origin holds for the address that stands for it, and for no other."""
    breakers = Breakers()
    breakers.of("").probed("outage", 0.0)
    breakers.of("https://origin", "").probed("outage", 1.0)
    assert breakers.of("").is_open and breakers.of("https://origin").is_open
    assert not breakers.of("https://elsewhere").is_open
    breakers.of("https://origin").probed("slow", 2.0)
    assert not breakers.of("").is_open
