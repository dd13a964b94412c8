"""How did an episode end, whose fault was it, and does its number say something about the agent?

Three outcomes are the agent's, and have a number: it came to its end, it ran into its own wall, it made a mistake that
ended it. The others are not, whatever number somebody has for them. In doubt an error is not the agent's: an episode
that is left out makes an estimate wider, one that is scored for an error of the infrastructure makes it wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from tinker_deadlines.classification import is_capacity_error
from tinker_deadlines.errors import Blame, BudgetExhaustedError, DeadlineExpiry

__all__ = ["INFRASTRUCTURE", "OUTCOMES", "EpisodeOutcome", "blame_of", "episode_outcome", "outcome_named", "trainable"]

EpisodeOutcome = Literal[
    "ok", "agent_timeout", "agent_error", "client_error", "cancelled", "infra_timeout", "infra_error"
]
"""How an episode ended.

`ok`: it came to its end. `agent_timeout`: its own budget ran out. `agent_error`: the agent did something that ended it;
no exception tells that, only the harness knows. `client_error`: the script, its environment, its grader, or a request
that was refused for what it asked. `cancelled`: somebody stopped it. `infra_timeout`, `infra_error`: a call was cut, or
the service or the way to it failed.
"""

OUTCOMES: tuple[EpisodeOutcome, ...] = get_args(EpisodeOutcome)
INFRASTRUCTURE: frozenset[EpisodeOutcome] = frozenset({"infra_timeout", "infra_error"})
_TRAINABLE: frozenset[EpisodeOutcome] = frozenset({"ok", "agent_timeout", "agent_error"})

# Where there is no error to ask. Of an episode that came to its end nobody is to blame.
_BLAME: dict[EpisodeOutcome, Blame | None] = {
    "ok": None,
    "agent_timeout": "budget",
    "agent_error": "caller",
    "client_error": "caller",
    "cancelled": "caller",
    "infra_timeout": "call",
    "infra_error": "service",
}

# Of several errors that ended an episode together, and none of them the infrastructure's, the first of these counts.
_BEFORE_THE_WALL: tuple[EpisodeOutcome, ...] = ("client_error", "cancelled", "agent_timeout")


class _Ending(NamedTuple):
    outcome: EpisodeOutcome
    blame: Blame


def episode_outcome(error: BaseException | None) -> EpisodeOutcome:
    """Names how an episode ended, from the error that ended it; `None` is an episode that came to its end.

    An error of the infrastructure counts wherever it stands: in a group, as what the error was raised from, or as what
    was being handled when it was raised. So a wall that ran out in the handler of an expiry, while the call was
    repeated, is not the agent's; `raise … from None` says that what came before is over. Never raises, and needs no
    SDK to be importable.
    """
    return "ok" if error is None else _ending_of(error).outcome


def blame_of(ended: BaseException | EpisodeOutcome | None) -> Blame | None:
    """Tells whose fault it is that an episode ended so: of any exception, or of an outcome; `None` if nobody's.

    Errors of this library say it themselves; those of the SDK and its transports are told by their status and class.
    Never raises for an exception.

    Raises:
        ValueError: the word given is not an outcome.
    """
    if isinstance(ended, BaseException):
        return _ending_of(ended).blame
    return None if ended is None else _BLAME[outcome_named(ended)]


def trainable(outcome: EpisodeOutcome) -> bool:
    """Whether the number of an episode that ended so says something about the agent.

    Raises:
        ValueError: `outcome` is not an outcome.
    """
    return outcome_named(outcome) in _TRAINABLE


def outcome_named(outcome: EpisodeOutcome) -> EpisodeOutcome:
    """The outcome itself: a word that is none would otherwise be left out, or counted, in silence.

    Raises:
        ValueError: `outcome` is not an outcome.
    """
    if outcome not in OUTCOMES:
        raise ValueError(f"{outcome!r} is not an outcome of an episode; the outcomes are {', '.join(OUTCOMES)}")
    return outcome


def _ending_of(error: BaseException) -> _Ending:
    try:
        for one in _behind(error):
            ending = _alone(one)
            if ending.outcome in INFRASTRUCTURE:
                return ending
        return min(map(_alone, _leaves(error)), key=lambda ending: _BEFORE_THE_WALL.index(ending.outcome))
    except Exception:
        # An error object that raises when it is looked at says nothing that could be classified.
        return _Ending("client_error", "caller")


def _alone(error: BaseException) -> _Ending:
    """What one error says, whatever it was raised from."""
    told = _told_by(error)
    if isinstance(error, BudgetExhaustedError) and told == "budget":
        return _Ending("agent_timeout", "budget")
    is_timeout = isinstance(error, (DeadlineExpiry, BudgetExhaustedError)) or _named(error, "Timeout")
    if told is None and is_capacity_error(error):
        told = "call" if is_timeout else "service"
    if told not in (None, "budget", "caller"):
        return _Ending("infra_timeout" if is_timeout else "infra_error", told)
    stopped = not isinstance(error, Exception) or _named(error, "CancelledError")
    return _Ending("cancelled" if stopped else "client_error", "caller")


def _told_by(error: BaseException) -> Blame | None:
    """Whose fault an error says that it is; `None` for all that do not know the word."""
    told = getattr(error, "blame", None)
    return next((blame for blame in get_args(Blame) if blame == told), None)


def _named(error: BaseException, word: str) -> bool:
    return any(word in cls.__name__ for cls in type(error).__mro__)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """An error itself, or those of a group."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _behind(error: BaseException) -> Iterator[BaseException]:
    """An error, or those of a group, and then whatever they were raised from or while it was handled."""
    seen: set[int] = set()
    found = [error]
    for one in found:  # grows while it is walked
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, BaseExceptionGroup):
            found.extend(one.exceptions)
        else:
            yield one
        found.extend(before for before in _before(one) if before is not None)


def _before(error: BaseException) -> tuple[BaseException | None, ...]:
    """What an error was raised from, and what was being handled then, unless `from None` says that it is over."""
    if error.__suppress_context__ and error.__cause__ is None:
        return ()
    return error.__cause__, error.__context__
