"""What a probe's answers mean: every combination of them."""

from __future__ import annotations

import itertools

import pytest

from tinker_deadlines.calls import Verdict
from tinker_deadlines.liveness.verdict import Answers, conclude, say

ANSWERS = (True, False, None)


@pytest.mark.parametrize(
    "loop, session, fresh, verdict",
    [
        (False, None, None, "loop blocked"),
        (True, False, True, "session wedged"),
        (True, False, False, "outage"),
        (True, True, None, "slow"),
    ],
)
def test_the_table(loop: bool | None, session: bool | None, fresh: bool | None, verdict: Verdict) -> None:
    """Each row of the table in the module's docstring."""
    assert conclude(Answers(loop, session, fresh)) == verdict


def expected(loop: bool | None, session: bool | None, fresh: bool | None, paused: str) -> Verdict | None:
    """The table, said once more: the first row that fits."""
    match (loop, bool(paused), session, fresh):
        case (False, _, _, _):
            return "loop blocked"
        case (_, True, _, _):
            return "paused"
        case (_, _, True, _):
            return "slow"
        case (_, _, False, True):
            return "session wedged"
        case (_, _, False, False):
            return "outage"
    return None


@pytest.mark.parametrize("paused", ["", "billing"])
@pytest.mark.parametrize("loop, session, fresh", list(itertools.product(ANSWERS, repeat=3)))
def test_every_combination(loop: bool | None, session: bool | None, fresh: bool | None, paused: str) -> None:
    """All 54 sets of answers; only a session that did not answer while a fresh connection did is convicted."""
    answers = Answers(loop, session, fresh, paused)
    verdict = conclude(answers)
    assert verdict == expected(loop, session, fresh, paused)
    if verdict == "session wedged":
        assert loop is not False and session is False and fresh is True and not paused


@pytest.mark.parametrize("paused", ["", "capacity"])
@pytest.mark.parametrize("loop, session, fresh", list(itertools.product(ANSWERS, repeat=3)))
def test_a_verdict_has_words_and_no_verdict_has_none(
    loop: bool | None, session: bool | None, fresh: bool | None, paused: str
) -> None:
    """A sentence for each verdict, which ends with a full stop; nothing where nothing was found."""
    answers = Answers(loop, session, fresh, paused)
    said = say(answers)
    assert bool(said) == (conclude(answers) is not None)
    assert not said or (said.endswith(".") and ".." not in said)


def test_a_pause_says_what_for() -> None:
    """The reason stands in the sentence."""
    assert say(Answers(True, True, True, "billing")) == "The service says that it is paused (billing)."


def test_a_blocked_loop_says_where_it_stands() -> None:
    """Its frames stand behind the sentence; a loop that runs has no such addition."""
    blocked = say(Answers(loop=False, stack="train.py:3 tokenize"))
    assert blocked.endswith("It stood in: train.py:3 tokenize.")
    assert "stood" not in say(Answers(True, True, True, stack="train.py:3 tokenize"))
