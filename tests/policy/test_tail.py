"""The law of elapsed / predicted: a censored histogram with a tail."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines.limits import TAIL_PRIOR_SLOPE
from tinker_deadlines.policy.tail import BINS, MOST_WEIGHT, Law, bin_of

ratios = st.floats(min_value=1e-4, max_value=1e5)
laws = st.lists(st.tuples(ratios, st.booleans()), max_size=60)


def law_of(calls: list[tuple[float, bool]]) -> Law:
    law = Law()
    for ratio, censored in calls:
        law.add(bin_of(ratio), censored=censored)
    return law


def test_with_nothing_learned_a_limit_is_twenty_four_predictions() -> None:
    """And a hundred and five where a call may not be repeated; half of the calls take longer than predicted."""
    fit = Law().fit()
    assert fit.ratio_for(3e-4) == pytest.approx(24, abs=0.5)
    assert fit.ratio_for(1e-5) == pytest.approx(105, abs=1)
    assert fit.median() == pytest.approx(1, rel=0.06)
    assert fit.slope == pytest.approx(TAIL_PRIOR_SLOPE, abs=0.02)


@given(laws, st.lists(ratios, min_size=2, max_size=20))
def test_survival_never_rises_and_is_never_nothing(calls: list[tuple[float, bool]], ages: list[float]) -> None:
    """The older a call, the fewer are older; suspicion may take the logarithm."""
    fit = law_of(calls).fit()
    shares = [fit.survival(age) for age in [0.0, *sorted(ages), math.inf]]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0 and shares[-1] > 0


@given(laws, st.floats(1e-7, 1e-2))
def test_a_smaller_share_of_false_kills_asks_for_a_wider_ratio(calls: list[tuple[float, bool]], alpha: float) -> None:
    """The ratio for a share and the share beyond a ratio are each other's inverse in the tail."""
    fit = law_of(calls).fit()
    assert fit.ratio_for(alpha / 2) > fit.ratio_for(alpha)
    assert fit.survival(fit.ratio_for(alpha)) == pytest.approx(alpha, rel=1e-6)


@given(laws, st.randoms())
def test_the_order_of_calls_makes_no_difference(calls: list[tuple[float, bool]], shuffler: random.Random) -> None:
    """The same calls make the same law."""
    shuffled = list(calls)
    shuffler.shuffle(shuffled)
    assert law_of(shuffled).fit() == law_of(calls).fit()


def test_the_body_is_what_was_seen() -> None:
    """Of many log-normal calls the law finds the quantiles again, and the tail beyond them within a factor of two."""
    source = random.Random(5)
    fit = law_of([(source.lognormvariate(0.5, 0.4), False) for _ in range(3900)]).fit()
    assert fit.median() == pytest.approx(math.exp(0.5), rel=0.06)
    assert fit.survival(math.exp(0.5 + 0.4 * 1.2816)) == pytest.approx(0.1, rel=0.25)  # a bin is 5 % wide
    exact = math.exp(0.5 + 0.4 * 3.432)  # the share 3e-4 of a normal law lies beyond 3.432 deviations
    assert exact * 0.9 < fit.ratio_for(3e-4) < exact * 2


def test_calls_that_were_cut_count_as_at_least_so_long() -> None:
    """A law that is cut at 2 and told so stays wide; one that forgets what it cut takes its own knife for the end."""
    source = random.Random(6)
    seen = [source.lognormvariate(0, 0.8) for _ in range(2000)]
    honest = law_of([(min(ratio, 2.0), ratio > 2.0) for ratio in seen]).fit().ratio_for(3e-4)
    forgetful = law_of([(ratio, False) for ratio in seen if ratio <= 2.0]).fit().ratio_for(3e-4)
    assert honest > 15.0 > 1.5 * forgetful  # exp(0.8 * 3.432) = 15.6 is right


def test_the_tail_believes_calls_that_were_cut_within_it() -> None:
    """Cut at 30, within the slowest five per cent, a heavy tail looks as heavy as it is; forgotten, it looks light."""
    source = random.Random(8)
    seen = [source.paretovariate(1.25) for _ in range(3900)]
    honest = law_of([(min(ratio, 30.0), ratio > 30.0) for ratio in seen]).fit()
    forgetful = law_of([(ratio, False) for ratio in seen if ratio <= 30.0]).fit()
    whole = law_of([(ratio, False) for ratio in seen]).fit()
    assert whole.slope == pytest.approx(0.8, rel=0.15)
    assert honest.slope == pytest.approx(whole.slope, rel=0.15)
    assert forgetful.slope < 0.7 * whole.slope


def test_calls_that_were_cut_early_say_nothing_of_later() -> None:
    """As many again that were cut at a third of the prediction leave the median where it is."""
    source = random.Random(9)
    seen = [(source.lognormvariate(0, 0.4), False) for _ in range(1500)]
    assert law_of([*seen, *[(0.3, True)] * 1500]).fit().median() == pytest.approx(1.0, rel=0.06)


def test_calls_that_always_take_the_same_time_leave_room() -> None:
    """Nothing is known of a tail that was never seen but the prior: the limit stays several times what is usual."""
    assert 5 < law_of([(1.0, False)] * 3000).fit().ratio_for(3e-4) < 15


def test_counts_are_halved_and_the_present_wins() -> None:
    """The weight never exceeds its maximum, and a law follows a change within a few thousand calls."""
    law = Law()
    for _ in range(10_000):
        law.add(bin_of(1.0))
        assert law.weight <= MOST_WEIGHT
    for _ in range(6000):
        law.add(bin_of(8.0))
    assert law.epoch > 3
    assert law.fit().median() == pytest.approx(8, rel=0.06)


def test_nothing_can_be_taken_back_that_is_not_there() -> None:
    """A count does not go below nothing, and the weight with it."""
    law = Law()
    law.add(7, censored=True)
    law.add(7, -5.0, censored=True)
    law.add(8, -1.0)
    assert (law.weight, law.censored[7], law.ended[8]) == (0, 0, 0)


def test_every_ratio_has_a_bin() -> None:
    """From nothing to infinity, and what is no number too."""
    assert [bin_of(ratio) for ratio in (-1.0, 0.0, math.nan, 1e300, math.inf)] == [0, 0, 0, BINS - 1, BINS - 1]


def test_the_quantile_is_of_completed_calls_alone() -> None:
    """Neither the prior nor calls that were cut count; with none there is none."""
    law = Law()
    law.add(200, censored=True)
    assert law.quantile(0.99) is None
    for ratio in range(1, 101):
        law.add(bin_of(float(ratio)))
    assert law.quantile(0.99) == pytest.approx(99, rel=0.06)
    assert law.quantile(1.0) == pytest.approx(100, rel=0.06)
