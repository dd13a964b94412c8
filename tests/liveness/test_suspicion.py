"""φ: how unlikely a silence is, as properties and against the law of the detectors that it follows."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tinker_deadlines.liveness.suspicion import Waiting, suspicion
from tinker_deadlines.policy import LearnedPolicy, Sample

ages = st.floats(0.0, 1e5)
predictions = st.floats(1e-3, 1e4)
loads = st.floats(1.0, 100.0)


def exponential(ratio: float) -> float:
    """The memoryless law around 1."""
    return math.exp(-ratio)


def pareto(ratio: float) -> float:
    """A law with a heavy tail, flat below 1."""
    return 1.0 if ratio <= 1 else ratio**-2.5


def steps(ratio: float) -> float:
    """A law read from a histogram: it falls in steps."""
    return max(0.05, 1.0 - 0.2 * math.floor(ratio)) if ratio < 5 else 0.05 * (ratio / 5) ** -2


learned = LearnedPolicy()
for _ in range(200):
    learned.learn(Sample("sample", None, None, 6.0, "completed"))


def from_experience(ratio: float) -> float:
    """What the shipped policy has learned from 200 calls that all took as long."""
    return learned.survival("sample", None, ratio)


laws = st.sampled_from([exponential, pareto, steps, from_experience])
Survival = Callable[[float], float]


@st.composite
def waiting(draw: st.DrawFn, law: Survival | None = None) -> Waiting:
    return Waiting(draw(ages), draw(predictions), law or draw(laws))


@given(st.lists(waiting(), max_size=8), loads)
def test_without_silence_there_is_no_suspicion(calls: list[Waiting], load: float) -> None:
    """However old the calls are and by whatever law: a session that has just answered is not suspected."""
    assert suspicion(calls, 0.0, load) == 0.0


@given(loads, st.floats(0, 1e5))
def test_without_calls_there_is_no_suspicion(load: float, silence_s: float) -> None:
    """A session of which nobody wants anything may be silent for ever."""
    assert suspicion([], silence_s, load) == 0.0


@given(st.lists(waiting(), max_size=8), st.floats(0, 1e6), loads)
def test_it_is_never_negative_and_always_finite(calls: list[Waiting], silence_s: float, load: float) -> None:
    """Also where the law has nothing left to give, and where the silence is longer than the calls are old."""
    phi = suspicion(calls, silence_s, load)
    assert phi >= 0.0 and math.isfinite(phi)


@given(st.lists(waiting(), min_size=1, max_size=8), st.floats(0, 1e5), st.floats(0, 1e5), loads)
def test_it_grows_with_the_silence(calls: list[Waiting], one_s: float, other_s: float, load: float) -> None:
    """Of two silences the longer one is at least as suspicious."""
    shorter, longer = sorted((one_s, other_s))
    assert suspicion(calls, shorter, load) <= suspicion(calls, longer, load) + 1e-9


@given(ages, st.floats(0, 1e5), predictions, st.floats(0, 1e4), laws)
def test_a_call_that_waits_on_in_silence_makes_it_grow(
    age_s: float, more_s: float, predicted_s: float, before_s: float, law: Survival
) -> None:
    """Since the same last sign of life, an older call says more."""
    early = suspicion([Waiting(before_s + age_s, predicted_s, law)], age_s)
    late = suspicion([Waiting(before_s + age_s + more_s, predicted_s, law)], age_s + more_s)
    assert early <= late * (1 + 1e-9) + 1e-9


@given(st.floats(0, 60), st.floats(0, 60), st.floats(0.5, 100), st.floats(1, 20))
def test_the_load_divides(age_s: float, silence_s: float, predicted_s: float, load: float) -> None:
    """On a service that is so many times slower, so many times as long a silence means as much."""
    usual = suspicion([Waiting(age_s, predicted_s, exponential)], silence_s)
    slower = suspicion([Waiting(age_s * load, predicted_s, exponential)], silence_s * load, load)
    assert slower == pytest.approx(usual, rel=1e-6, abs=1e-9)


@given(st.lists(waiting(exponential), min_size=1, max_size=8), st.floats(0, 1e5), loads, loads)
def test_more_load_never_makes_it_grow(calls: list[Waiting], silence_s: float, one: float, other: float) -> None:
    """By a memoryless law, what is known to be slow is suspected less."""
    less, more = sorted((one, other))
    assume(all(call.age_s / call.predicted_s < 600 for call in calls))  # beyond it the law says "practically never"
    assert suspicion(calls, silence_s, more) <= suspicion(calls, silence_s, less) + 1e-9


@given(st.floats(0.0, 300), st.floats(1, 10))
def test_by_an_exponential_law_it_is_akkas(silence_s: float, mean_s: float) -> None:
    """φ = t / (mean · ln 10): one more for every mean · ln 10 of silence, however old the call was before."""
    for before_s in (0.0, 5.0, 50.0):
        assume((before_s + silence_s) / mean_s < 600)  # beyond it the law says "practically never"
        phi = suspicion([Waiting(before_s + silence_s, mean_s, exponential)], silence_s)
        assert phi == pytest.approx(silence_s / (mean_s * math.log(10)), rel=1e-6, abs=1e-9)


@given(st.integers(1, 100), st.floats(0, 30))
def test_calls_add_up(count: int, silence_s: float) -> None:
    """Sixty-four that hear nothing say sixty-four times what one says."""
    one = Waiting(silence_s, 10.0, exponential)
    assert suspicion([one] * count, silence_s) == pytest.approx(count * suspicion([one], silence_s))


def test_a_call_that_is_old_already_still_counts() -> None:
    """One that took far too long while its session lived tells of the session's death all the same."""
    assert suspicion([Waiting(500.0, 5.0, exponential)], 50.0) == pytest.approx(50 / (5 * math.log(10)))


def test_a_call_younger_than_the_silence_counts_from_its_start() -> None:
    """It cannot have heard anything before it was there: its whole age is silence, and no more."""
    assert suspicion([Waiting(5.0, 10.0, exponential)], 500.0) == suspicion([Waiting(5.0, 10.0, exponential)], 5.0)


def test_a_prediction_of_nothing_is_no_error() -> None:
    """A policy of somebody else may predict 0 seconds."""
    assert suspicion([Waiting(5.0, 0.0, exponential)], 5.0) == pytest.approx(300.0)
