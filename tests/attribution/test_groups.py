"""Advantages of a group: an episode that is left out is out of loss, baseline and deviation alike."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines import EpisodeOutcome, UntrainableGroupError, group_advantages, trainable
from tinker_deadlines.attribution import OUTCOMES

rewards = st.floats(-1e6, 1e6)
out = st.sampled_from([one for one in OUTCOMES if not trainable(one)])
whatever = st.none() | st.floats()
policies = st.sampled_from(["mask", "truncate"])
counted = st.tuples(rewards, st.sampled_from(["ok", "agent_error"]))


@given(st.lists(counted, max_size=8), st.data(), policies, st.booleans())
def test_a_group_with_a_masked_row_is_the_group_without_it(
    rows: list[tuple[float, Any]], data: Any, policy: Any, divide: bool
) -> None:
    """Bit for bit, whatever reward stands in the row, wherever it stands."""
    place = data.draw(st.integers(0, len(rows)))
    masked = [*rows[:place], (data.draw(whatever), data.draw(out)), *rows[place:]]
    without = group_advantages(*columns(rows), policy=policy, divide_by_std=divide)
    group = group_advantages(*columns(masked), policy=policy, divide_by_std=divide)
    assert (group.advantages[place], group.weights[place]) == (0.0, 0.0)
    assert group._replace(advantages=cut(group.advantages, place), weights=cut(group.weights, place)) == without


def columns(rows: list[tuple[float, Any]]) -> tuple[list[float], list[EpisodeOutcome]]:
    return [reward for reward, _ in rows], [outcome for _, outcome in rows]


def cut(values: tuple[float, ...], place: int) -> tuple[float, ...]:
    return values[:place] + values[place + 1 :]


@given(st.lists(st.tuples(rewards, st.sampled_from(OUTCOMES)), max_size=8), policies, st.booleans())
def test_advantages_are_finite_and_sum_to_nothing(rows: list[tuple[float, Any]], policy: Any, divide: bool) -> None:
    """Whatever the group: none that counts, one, or all with the same reward."""
    group = group_advantages(*columns(rows), policy=policy, divide_by_std=divide)
    assert len(group.advantages) == len(group.weights) == len(rows)
    assert all(map(math.isfinite, group.advantages))
    assert set(group.weights) <= {0.0, 1.0}
    assert math.fsum(group.advantages) == pytest.approx(0, abs=1e-3)
    if sum(group.weights) < 2:
        assert set(group.advantages) <= {0.0} and group.std is None
    assert (group.mean is None) == (not any(group.weights))


@pytest.mark.parametrize(
    "divide, expected",
    [(False, (2 / 3, 0.0, -1 / 3, -1 / 3)), (True, (2 / math.sqrt(3), 0.0, -1 / math.sqrt(3), -1 / math.sqrt(3)))],
)
def test_a_group_worked_out_by_hand(divide: bool, expected: tuple[float, ...]) -> None:
    """Of the rewards 1, 1, 0, 0 with the second masked: mean 1/3, deviation 1/√3."""
    group = group_advantages([1, 1, 0, 0], ["ok", "infra_timeout", "ok", "ok"], policy="mask", divide_by_std=divide)
    assert group.advantages == pytest.approx(expected, rel=1e-3)
    assert group.weights == (1, 0, 1, 1)
    assert (group.mean, group.std) == (pytest.approx(1 / 3), pytest.approx(1 / math.sqrt(3)))


@given(rewards, st.integers(1, 9))
def test_equal_rewards_have_no_advantage(reward: float, count: int) -> None:
    """Exactly none: rounding does not make one."""
    group = group_advantages([reward] * count, ["ok"] * count, policy="mask")
    assert set(group.advantages) == {0.0} and set(group.weights) == {1.0}


def test_what_each_policy_makes_of_a_wall() -> None:
    """Masked, it is out; truncated, it counts with what it had done; an error refuses the group."""
    rows = ([1.0, 0.5, 0.0], ["ok", "agent_timeout", "ok"])
    assert group_advantages(*rows, policy="mask").weights == (1, 0, 1)
    assert group_advantages(*rows, policy="truncate").weights == (1, 1, 1)
    assert group_advantages(*rows, policy="truncate").mean == 0.5
    with pytest.raises(UntrainableGroupError):
        group_advantages(*rows, policy="error")


@given(st.sampled_from([one for one in OUTCOMES if one not in ("ok", "agent_error")]))
def test_the_policy_error_refuses_what_was_cut_or_failed(outcome: EpisodeOutcome) -> None:
    """The error says how the episodes ended, and pickles."""
    with pytest.raises(UntrainableGroupError, match=f"2 {outcome}, 1 ok.*Play the group again") as caught:
        group_advantages([None, 1.0, None], [outcome, "ok", outcome], policy="error")
    copied = pickle.loads(pickle.dumps(caught.value))
    assert copied.outcomes == (outcome, "ok", outcome) and str(copied) == str(caught.value)


def test_the_policy_error_lets_a_whole_group_through() -> None:
    """With nothing cut, all policies say the same."""
    rows = ([1.0, 0.0, 0.5], ["ok", "agent_error", "ok"])
    assert group_advantages(*rows, policy="error") == group_advantages(*rows, policy="mask")


@pytest.mark.parametrize("reward", [None, math.nan, math.inf])
def test_an_episode_that_counts_needs_a_number(reward: float | None) -> None:
    """None, or one that is no number, is not taken for 0."""
    with pytest.raises(ValueError, match=r"episode 1 of the group ended as 'ok' and counts, but its reward is"):
        group_advantages([1.0, reward], ["ok", "ok"], policy="mask")


@pytest.mark.parametrize(
    "arguments, policy, message",
    [
        (([1.0], ["fine"]), "mask", "'fine' is not an outcome"),
        (([1.0], ["ok", "ok"]), "mask", "1 rewards and 2 outcomes"),
        (([1.0], ["ok"]), "zero", "'zero' is not an outcome policy; they are error, mask, truncate"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: Any, policy: Any, message: str) -> None:
    """The message names what is wrong and what is allowed."""
    with pytest.raises(ValueError, match=message):
        group_advantages(*arguments, policy=policy)
