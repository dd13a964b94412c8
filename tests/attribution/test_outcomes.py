"""How an episode ended, whose fault it was, and that no error of the infrastructure ever makes it trainable."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines import (
    AbandonedCallsError,
    BudgetExhaustedError,
    DeadlineExpiry,
    ForkedProcessError,
    TinkerDeadlineError,
    UntrainableGroupError,
    blame_of,
    episode_outcome,
    group_advantages,
    score_episodes,
    trainable,
)
from tinker_deadlines.attribution import OUTCOMES
from tinker_deadlines.attribution.outcomes import INFRASTRUCTURE
from tinker_deadlines.calls import Verdict
from tinker_deadlines.errors import Blame
from tinker_deadlines.limits import ALIVE_S


def make(name: str, base: str = "Exception_", **attributes: Any) -> Exception:
    error: Exception = type(name, (type(base, (Exception,), {}),), {})("words")
    for key, value in attributes.items():
        setattr(error, key, value)
    return error


def expiry(verdict: Verdict | None = None) -> DeadlineExpiry:
    return TinkerDeadlineError("sample", elapsed_s=300.1, deadline_s=300.0, verdict=verdict)


def wall(**facts: Any) -> BudgetExhaustedError:
    return BudgetExhaustedError("sample", owner="episode 7", budget_s=1800.0, **facts)


TIMEOUTS: dict[str, tuple[BaseException, Blame]] = {
    "our expiry": (expiry(), "call"),
    "a wedged session": (expiry("session wedged"), "session"),
    "an outage": (expiry("outage"), "service"),
    "a blocked loop": (expiry("loop blocked"), "loop"),
    "a lost result": (expiry("result lost"), "call"),
    "the builtin": (TimeoutError(), "call"),
    "the SDK's": (make("APITimeoutError"), "call"),
    "httpx's": (make("ReadTimeout", base="TimeoutException"), "call"),
    "a wall during an outage": (wall(verdict="outage"), "service"),
    "a wall during a pause": (wall(verdict="paused"), "service"),
    "a wall around a dead session": (wall(verdict="session wedged"), "session"),
    "a wall around a lost result": (wall(verdict="result lost"), "call"),
    "a wall around a silent call": (wall(silent_s=ALIVE_S + 1), "call"),
}
ERRORS: dict[str, tuple[BaseException, Blame]] = {
    "the SDK's connection": (make("APIConnectionError"), "service"),
    "throttled": (make("APIStatusError", status_code=429), "service"),
    "a broken service": (make("InternalServerError", status_code=500), "service"),
    "a failed request": (make("RequestFailedError", category="server"), "service"),
    "reset": (ConnectionResetError(104, "reset by peer"), "service"),
    "too many abandoned": (AbandonedCallsError(33, 32), "call"),
    "somebody's who says so": (make("SomeError", blame="session"), "session"),
    "a word for blame that is none": (make("APIConnectionError", blame="nobody"), "service"),
}
CLIENTS: dict[str, tuple[BaseException, Blame]] = {
    "a refused request": (make("BadRequestError", status_code=400), "caller"),
    "a failed request of the user's": (make("RequestFailedError", category="user"), "caller"),
    "input-dependent": (expiry("input-dependent failure"), "caller"),
    "a bug": (KeyError("reward"), "caller"),
    "forked": (ForkedProcessError("SamplingClient.sample"), "caller"),
    "a group that was refused": (UntrainableGroupError(["ok", "infra_error"]), "caller"),
    "a wall of somebody else's": (make("SomeWall", blame="budget"), "caller"),
}
STOPPED: dict[str, tuple[BaseException, Blame]] = {
    "Ctrl-C": (KeyboardInterrupt(), "caller"),
    "exit": (SystemExit(1), "caller"),
    "a cancelled task": (asyncio.CancelledError(), "caller"),
    "a cancelled future": (concurrent.futures.CancelledError(), "caller"),
}
WALLS: dict[str, tuple[BaseException, Blame]] = {
    "the wall": (wall(), "budget"),
    "a wall around a slow call": (wall(verdict="slow", silent_s=1.0), "budget"),
    "a wall around a call that shows life": (wall(silent_s=ALIVE_S), "budget"),
    "a wall before anything was sent": (wall(submission="not sent"), "budget"),
}
ALL = {
    "infra_timeout": TIMEOUTS,
    "infra_error": ERRORS,
    "client_error": CLIENTS,
    "cancelled": STOPPED,
    "agent_timeout": WALLS,
}
CASES = [
    pytest.param(error, outcome, blame, id=name)
    for outcome, errors in ALL.items()
    for name, (error, blame) in errors.items()
]
INFRA = [error for errors in (TIMEOUTS, ERRORS) for error, _ in errors.values()]
OTHERS = [error for errors in (CLIENTS, STOPPED, WALLS) for error, _ in errors.values()]


@pytest.mark.parametrize("error, outcome, blame", CASES)
def test_an_error_is_an_outcome_and_somebodys_fault(error: BaseException, outcome: Any, blame: Blame) -> None:
    """Each kind of error has its outcome and its blame, whoever raised it: us, the SDK, a transport, a script."""
    assert (episode_outcome(error), blame_of(error)) == (outcome, blame)


def test_no_error_is_an_episode_that_came_to_its_end() -> None:
    """`None` is "ok", and nobody's fault."""
    assert episode_outcome(None) == "ok" and blame_of(None) is None and blame_of("ok") is None


def test_three_outcomes_are_the_agents() -> None:
    """The end, the wall and the agent's own mistake say something about it; nothing else does."""
    assert [one for one in OUTCOMES if trainable(one)] == ["ok", "agent_timeout", "agent_error"]
    assert {blame_of(one) for one in OUTCOMES} <= {None, *get_args(Blame)}


@pytest.mark.parametrize("ask", [trainable, blame_of])
def test_a_word_that_is_no_outcome_is_an_error(ask: Any) -> None:
    """A typing error would otherwise mask an episode, or count it, in silence."""
    with pytest.raises(ValueError, match=r"'infra_timout' is not an outcome .* infra_timeout"):
        ask("infra_timout")


def raised_from(errors: list[BaseException], how: list[str]) -> BaseException:
    """One error made of several: grouped, raised from each other, or raised while another was handled."""
    whole, *rest = errors
    for one, way in zip(rest, how, strict=False):
        if way == "group":
            whole = BaseExceptionGroup("several", [one, whole])
        elif way == "cause":
            wrapped = make("EpisodeFailed")
            wrapped.__cause__, wrapped.__context__ = whole, one
            whole = wrapped
        else:
            wrapped = make("HandlerFailed")
            wrapped.__context__ = BaseExceptionGroup("before", [whole, one])
            whole = wrapped
    return whole


ways = st.lists(st.sampled_from(["group", "cause", "context"]), min_size=5, max_size=5)


@given(st.sampled_from(INFRA), st.lists(st.sampled_from(OTHERS), max_size=4), ways, st.randoms(), st.floats())
def test_no_infrastructure_cause_ever_yields_a_number(
    cause: BaseException, others: list[BaseException], how: list[str], random: Any, number: float
) -> None:
    """Wherever it stands in what ended an episode, it is infrastructure: no reward, no advantage, no score."""
    errors = [cause, *others]
    random.shuffle(errors)
    error = raised_from(errors, how)
    outcome = episode_outcome(error)
    assert outcome in INFRASTRUCTURE
    assert blame_of(error) in ("call", "session", "service", "loop")
    assert not trainable(outcome)
    for policy in ("mask", "truncate"):
        group = group_advantages([1.0, number, 0.0], ["ok", outcome, "ok"], policy=policy)
        without = group_advantages([1.0, 0.0], ["ok", "ok"], policy=policy)
        assert (group.advantages[1], group.weights[1]) == (0.0, 0.0)
        assert (group.mean, group.std) == (without.mean, without.std)
    alone = score_episodes([number], [outcome])
    assert (alone.score, alone.attrition, alone.passed) == (None, 1.0, False)


@given(st.lists(st.sampled_from(OTHERS), min_size=1, max_size=5), ways)
def test_without_one_nothing_is_blamed_on_the_infrastructure(errors: list[BaseException], how: list[str]) -> None:
    """Errors of the script and walls, grouped and chained in any way, are no attrition."""
    error = raised_from(errors, how)
    assert episode_outcome(error) not in INFRASTRUCTURE
    assert blame_of(error) in ("budget", "caller")


def test_a_wall_reached_while_an_expiry_was_handled_is_not_the_agents() -> None:
    """A loop that repeats a dead call until the wall has spent the episode's time on it; `from None` says otherwise."""

    def repeat(**suppressed: bool) -> BaseException:
        try:
            try:
                raise expiry()
            except DeadlineExpiry:
                if suppressed:
                    raise wall() from None
                raise wall()  # noqa: B904 - the point
        except BudgetExhaustedError as error:
            return error

    assert episode_outcome(repeat()) == "infra_timeout"
    assert episode_outcome(repeat(suppressed=True)) == "agent_timeout"


def test_of_several_errors_the_wall_counts_last() -> None:
    """An episode of several tasks is the agent's only where all of them ran into the wall."""
    both = BaseExceptionGroup("tasks", [wall(), wall()])
    assert episode_outcome(both) == "agent_timeout"
    assert episode_outcome(BaseExceptionGroup("tasks", [wall(), asyncio.CancelledError()])) == "cancelled"
    assert (
        episode_outcome(BaseExceptionGroup("tasks", [asyncio.CancelledError(), wall(), KeyError()])) == "client_error"
    )


class Hostile(Exception):
    """Raises whatever is looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_no_exception_makes_it_raise() -> None:
    """One that raises when it is looked at is the caller's; one that was raised from itself comes to an end."""
    assert (episode_outcome(Hostile()), blame_of(Hostile())) == ("client_error", "caller")
    first, second = make("First"), make("Second")
    first.__cause__, second.__cause__ = second, first
    assert episode_outcome(first) == "client_error"
    assert episode_outcome(make("Odd", blame=[])) == "client_error"


class Silent(Exception):
    blame = property(lambda self: 1 / 0)


@pytest.mark.parametrize("hostile", [Hostile, Silent])
def test_a_hostile_error_is_never_trainable(hostile: type[Exception]) -> None:
    """Not even in a group with a wall, or as what a wall was raised from."""
    assert not trainable(episode_outcome(BaseExceptionGroup("two", [wall(), hostile()])))
    from_it = wall()
    from_it.__cause__ = hostile()
    assert not trainable(episode_outcome(from_it))


@pytest.mark.parametrize("verdict", [None, *get_args(Verdict)])
def test_a_wall_says_whose_time_it_was(verdict: Verdict | None) -> None:
    """Only a wall that is the budget's own says that it is no failure of the service."""
    error = wall(verdict=verdict)
    assert (error.blame == "budget") == ("not a failure of the service" in str(error))
    assert (error.blame == "budget") == (verdict in (None, "slow", "behind earlier calls", "input-dependent failure"))
