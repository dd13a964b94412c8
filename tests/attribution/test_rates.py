"""A score and what is missing from it, side by side; and whether what expires is long."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines import EpisodeOutcome, expiry_by_length, score_episodes, trainable
from tinker_deadlines.attribution import OUTCOMES
from tinker_deadlines.attribution.outcomes import INFRASTRUCTURE

# The score ----------------------------------------------------------------------------------------------------------


def test_both_rates_and_the_reason_are_said() -> None:
    """100 episodes of which 12 were cut: the score is over the rest, and does not pass."""
    outcomes: list[EpisodeOutcome] = ["ok"] * 80 + ["agent_timeout"] * 5 + ["infra_timeout"] * 12 + ["client_error"] * 3
    score = score_episodes([1.0] * 40 + [0.0] * 45 + [None] * 15, outcomes)
    assert (score.score, score.attrition) == (pytest.approx(40 / 85), 0.12)
    assert (score.valid, score.total, score.passed) == (85, 100, False)
    assert str(score) == (
        "score 0.4706 over 85 of 100 episodes, infrastructure attrition 12 %; not passed: 85 % are valid, at least "
        "90 % must be; the others: 3 client_error, 12 infra_timeout"
    )


@pytest.mark.parametrize("valid, total, passed", [(9, 10, True), (90, 100, True), (899, 1000, False), (1, 1, True)])
def test_the_gate_is_at_nine_of_ten(valid: int, total: int, passed: bool) -> None:
    """Exactly nine in ten pass."""
    outcomes: list[EpisodeOutcome] = ["ok"] * valid + ["infra_error"] * (total - valid)
    assert score_episodes([0.0] * total, outcomes).passed == passed


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from(OUTCOMES))), st.floats(0, 1))
def test_the_score_is_the_mean_over_the_valid_ones(rows: list[tuple[float, Any]], least: float) -> None:
    """What is not valid has no part in it; without a valid one there is no score, and nothing passes."""
    score = score_episodes([reward for reward, _ in rows], [outcome for _, outcome in rows], least_valid=least)
    valid = [reward for reward, outcome in rows if trainable(outcome)]
    assert score.valid == len(valid)
    assert score.score == (pytest.approx(math.fsum(valid) / len(valid)) if valid else None)
    assert score.passed == (bool(valid) and len(valid) / len(rows) >= least)
    assert round(score.attrition * len(rows)) == sum(outcome in INFRASTRUCTURE for _, outcome in rows)
    assert "attrition" in str(score) and "score" in str(score)


@pytest.mark.parametrize("least", [-0.1, 1.1, math.nan, 90])
def test_the_gate_is_a_share(least: float) -> None:
    """90 is not taken for 90 %."""
    with pytest.raises(ValueError, match="not a share"):
        score_episodes([], [], least_valid=least)


# Lengths ------------------------------------------------------------------------------------------------------------


def episodes(rate: Any, count: int = 1000) -> list[tuple[int, bool]]:
    """Episodes of 100 to 100 + `count` tokens, in disorder, of which `rate(share)` expire."""
    draw = random.Random(7)
    made = [(100 + number, draw.random() < rate(number / count)) for number in range(count)]
    draw.shuffle(made)
    return made


def test_a_rate_that_rises_with_length_is_warned_of() -> None:
    """Bins of a tenth each, the rates of the shortest and of the longest, and what to do."""
    trend = expiry_by_length(episodes(lambda share: 0.01 + 0.1 * share**2))
    assert [(one.number, one.shortest, one.longest, one.episodes) for one in trend.bins[:2]] == [
        (1, 100, 199, 100), (2, 200, 299, 100)
    ]  # fmt: skip
    assert len(trend.bins) == 10
    assert trend.z is not None and trend.z > 3
    assert trend.warning is not None and "rises with length" in trend.warning and "1000 to 1099" in trend.warning
    assert str(trend).count("\n") == 11 and trend.warning in str(trend)


@pytest.mark.parametrize("rate", [lambda share: 0.05, lambda share: 0.1 * (1 - share)], ids=["even", "falling"])
def test_another_rate_is_not(rate: Any) -> None:
    """Neither one that is the same everywhere nor one that falls."""
    trend = expiry_by_length(episodes(rate))
    assert trend.warning is None and trend.z is not None and trend.z < 3
    assert "no rise" in str(trend)


def test_the_statistic_is_cochran_and_armitages() -> None:
    """Of a table of ten bins of ten, worked out by hand: T = Σ i·xᵢ against its hypergeometric law."""
    expired = [0, 0, 0, 0, 0, 1, 2, 3, 4, 5]
    rows = [(10 * bin_ + place, place < expired[bin_]) for bin_ in range(10) for place in range(10)]
    # T = 130 where 82.5 is expected; the variance is 15·85/(100·99) · 825 = 106.25.
    assert expiry_by_length(rows).z == pytest.approx((130 - 15 * 5.5) / math.sqrt(106.25))


def test_by_chance_it_warns_once_in_740_looks_at_most() -> None:
    """Of all ways in which 20 of 200 episodes can expire whatever their length, counted, not drawn."""
    ways = {(0, 0): 1}  # by how many expired and the sum of their bins' numbers
    for number in range(1, 11):
        more: dict[tuple[int, int], int] = {}
        for (expired, summed), count in ways.items():
            for here in range(21 - expired):
                key = (expired + here, summed + number * here)
                more[key] = more.get(key, 0) + count * math.comb(20, here)
        ways = more
    least = 20 * 5.5 + 3 * math.sqrt(20 * 180 / (200 * 199) * 20 * 82.5)
    at_chance = sum(count for (expired, summed), count in ways.items() if expired == 20 and summed >= least)
    assert 1 / 3000 < at_chance / math.comb(200, 20) < 1 / 740


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=60))
def test_every_episode_is_in_one_bin(rows: list[tuple[int, bool]]) -> None:
    """Equal lengths stand together, bins do not overlap, and too few episodes say nothing."""
    trend = expiry_by_length(iter(rows))
    assert sum(one.episodes for one in trend.bins) == len(rows)
    assert sum(one.expired for one in trend.bins) == sum(expired for _, expired in rows)
    assert all(left.longest < right.shortest for left, right in zip(trend.bins, trend.bins[1:], strict=False))
    assert all(1 <= one.number <= 10 and 0 <= one.rate <= 1 for one in trend.bins)
    if sum(expired for _, expired in rows) < 10:
        assert trend.z is None and trend.warning is None and "too few" in str(trend)


def test_one_length_for_all_has_no_trend() -> None:
    """With nothing to compare, nothing is said."""
    trend = expiry_by_length([(7, number % 2 == 0) for number in range(100)])
    assert len(trend.bins) == 1 and trend.z is None


def test_a_lopsided_set_of_lengths_is_not_judged() -> None:
    """With one long episode in a hundred, a few that expired by chance would look like a trend."""
    trend = expiry_by_length([(10, number < 8) for number in range(990)] + [(20, number < 2) for number in range(10)])
    assert trend.z is None


@pytest.mark.parametrize("length", [-1, math.nan, math.inf])
def test_a_length_is_a_number_of_tokens(length: Any) -> None:
    """Anything else is refused."""
    with pytest.raises(ValueError, match="not the length"):
        expiry_by_length([(length, True)])
