"""Limits that are learned: what each ending and each verdict does to them."""

from __future__ import annotations

import json
import logging
import math
import random
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines import TinkerCallKind, Work
from tinker_deadlines.calls import KINDS
from tinker_deadlines.limits import CEILINGS_S, FLOORS_S, FRESH_ALLOWANCE_S, LEAST_COMPLETED
from tinker_deadlines.policy import LearnedPolicy, Sample, ScaledPolicy, merge
from tinker_deadlines.policy.protocol import Ending

MODEL = "Qwen/Qwen3-8B"
WORK = Work(4000, 1024, 1, fresh=False)
PREDICTED_S = LearnedPolicy().predicted_s("sample", WORK, MODEL)

kinds = st.sampled_from(KINDS)
latencies = st.floats(min_value=0.01, max_value=3000.0)
sizes = st.none() | st.integers(min_value=0, max_value=10**7)
endings = st.lists(st.tuples(latencies, st.sampled_from(["completed", "killed", "slow", "late"])), max_size=80)
works = st.none() | st.builds(Work, *[sizes] * 6, st.none() | st.booleans())


def sample(
    elapsed_s: float, ended: Ending = "completed", limit_s: float | None = None, kind: TinkerCallKind = "sample"
) -> Sample:
    return Sample(kind, WORK, MODEL, elapsed_s, ended, limit_s)


def limit_s(policy: LearnedPolicy, kind: TinkerCallKind = "sample", work: Work | None = WORK) -> float:
    return policy.limit(kind, work, MODEL).seconds


def taught(elapsed: list[float], policy: LearnedPolicy | None = None) -> LearnedPolicy:
    policy = policy or LearnedPolicy()
    for elapsed_s in elapsed:
        policy.learn(sample(elapsed_s))
    return policy


def usual(count: int, seed: int = 1) -> list[float]:
    source = random.Random(seed)
    return [PREDICTED_S * source.lognormvariate(-0.3, 0.35) for _ in range(count)]


def test_it_starts_as_the_scaled_policy_and_tightens() -> None:
    """Cold is what the work alone says; after a thousand usual calls the limit is less than half of that."""
    policy = LearnedPolicy()
    cold = policy.limit("sample", WORK, MODEL)
    assert cold.seconds == ScaledPolicy().limit("sample", WORK, MODEL).seconds
    assert (cold.basis, cold.completed, cold.owner) == ("cold", 0, "the policy 'learned'")
    assert cold.quantile == pytest.approx(1 - 3e-4) and cold.predicted_s == PREDICTED_S
    taught(usual(1000), policy)
    warm = policy.limit("sample", WORK, MODEL)
    assert (warm.basis, warm.completed) == ("learned", 1000)
    assert max(usual(1000)) < warm.seconds < cold.seconds / 2


@given(st.lists(latencies, max_size=LEAST_COMPLETED - 1))
def test_no_limit_is_narrower_than_cold_before_thirty_calls(elapsed: list[float]) -> None:
    """However fast the first calls are."""
    cold = limit_s(LearnedPolicy())
    assert limit_s(taught(elapsed)) >= cold
    fast = taught([0.5] * (LEAST_COMPLETED - 1))
    assert limit_s(fast) == cold
    assert limit_s(taught([0.5], fast)) < cold


@given(st.lists(latencies, max_size=80), kinds, works, st.integers(0, 5), st.integers(0, 10**7))
def test_more_work_never_gets_less_time(
    elapsed: list[float], kind: TinkerCallKind, work: Work | None, place: int, more: int
) -> None:
    """Of two calls that are both fresh, or both not, the larger one has the wider limit or the same."""
    policy = LearnedPolicy()
    for elapsed_s in elapsed:
        policy.learn(Sample(kind, WORK, MODEL, elapsed_s, "completed"))
    smaller = (work or Work())._replace(fresh=False)
    if smaller[place] is None:
        smaller = Work(*smaller[:place], 0, *smaller[place + 1 :])
    larger = Work(*smaller[:place], (smaller[place] or 0) + more, *smaller[place + 1 :])
    for policy_ in (policy, ScaledPolicy()):
        assert policy_.limit(kind, smaller, MODEL).seconds <= policy_.limit(kind, larger, MODEL).seconds


@given(
    st.lists(st.tuples(latencies, st.sampled_from(["completed", "killed", "slow", "late"])), max_size=60), kinds, works
)
def test_limits_lie_between_floor_and_ceiling(
    calls: list[tuple[float, Ending]], kind: TinkerCallKind, work: Work | None
) -> None:
    """Whatever was learned and whatever the work; a person's own ceiling is obeyed even under the floor."""
    wide, low = LearnedPolicy(), LearnedPolicy(ceiling_sampling_s=3.0, ceiling_training_s=7.0)
    for policy in (wide, low):
        for elapsed_s, ended in calls:
            policy.learn(sample(elapsed_s, ended, elapsed_s / 2, kind))
    assert FLOORS_S[kind] <= limit_s(wide, kind, work) <= CEILINGS_S[kind]
    if kind not in ("connect", "rest"):
        assert limit_s(low, kind, work) == (3.0 if kind in ("sample", "compute_logprobs") else 7.0)


@given(st.lists(latencies, max_size=60), st.integers(1, 10), st.integers(0, 6))
def test_a_wedge_teaches_nothing(elapsed: list[float], kills: int, earlier_kills: int) -> None:
    """Killed and found to have been dead: state and limits are what they were before."""
    policy = taught(elapsed)
    for _ in range(earlier_kills):
        policy.learn(sample(100.0, "killed"))
    before, state = limit_s(policy), policy.state()
    for _ in range(kills):
        policy.learn(sample(100.0, "killed"))
    for _ in range(kills):
        policy.learn(sample(100.0, "wedged"))
    assert (limit_s(policy), policy.state()) == (before, state)


@given(st.lists(latencies, min_size=1, max_size=60))
def test_a_verdict_on_nothing_is_no_verdict(elapsed: list[float]) -> None:
    """A wedge beside no kill that is open does not narrow anything: the doubling of another one stays."""
    policy = taught(elapsed)
    policy.learn(sample(50.0, "killed"))
    policy.learn(sample(50.0, "slow"))
    before = policy.state(), limit_s(policy)
    policy.learn(sample(50.0, "wedged"))
    assert (policy.state(), limit_s(policy)) == before


@given(st.lists(latencies, max_size=120), st.integers(1, 8))
def test_after_a_false_kill_limits_are_wider(elapsed: list[float], kills: int) -> None:
    """Each kill doubles them at once; neither the verdict nor the true time makes them narrower than they were."""
    policy = taught(elapsed)
    for number in range(kills):
        before = policy.limit("sample", WORK, MODEL).seconds
        policy.learn(sample(before, "killed", before))
        if number < 4 and before * 2 <= CEILINGS_S["sample"] and before > FLOORS_S["sample"]:
            assert limit_s(policy) == pytest.approx(2 * before)
        policy.learn(sample(before, "slow", before))
        assert limit_s(policy) >= before
        policy.learn(sample(before * 1.5, "late", before))
        assert limit_s(policy) >= before
    assert policy.false_kills() == kills


def test_the_guard_comes_down_with_completed_calls() -> None:
    """At most sixteen times; of one doubling nothing is left after thirty-five calls."""
    policy = taught([*usual(500)])
    before = limit_s(policy)
    policy.learn(sample(before, "killed"))
    assert limit_s(policy) == pytest.approx(2 * before)
    taught(usual(40, seed=2), policy)
    assert limit_s(policy) == pytest.approx(before, rel=0.1)
    tight = LearnedPolicy(alpha=0.04)
    taught(usual(500), tight)
    before = limit_s(tight)
    for _ in range(50):
        tight.learn(sample(before, "killed"))
    assert limit_s(tight) == pytest.approx(16 * before)


def test_a_late_end_takes_the_place_of_the_cut() -> None:
    """The time at which it was cut is forgotten, the true one learned."""
    cut, honest = taught([2.0] * 50), taught([2.0] * 50)
    cut.learn(sample(20.0, "killed", 20.0))
    cut.learn(sample(20.0, "slow", 20.0))
    assert cut.state()[f"sample {MODEL}"]["censored"]
    cut.learn(sample(33.0, "late", 20.0))
    honest.learn(sample(33.0))
    told, plain = cut.state()[f"sample {MODEL}"], honest.state()[f"sample {MODEL}"]
    assert (told["ended"], told["censored"], told["false_kills"]) == (plain["ended"], {}, 1)


def test_a_late_end_of_one_that_passed_for_dead_raises_the_guard_again() -> None:
    """The verdict was wrong, and so was taking the doubling back."""
    policy = taught(usual(300))
    before = limit_s(policy)
    policy.learn(sample(before, "killed", before))
    policy.learn(sample(before, "wedged", before))
    assert limit_s(policy) == before
    policy.learn(sample(before + 1, "late", before))
    assert limit_s(policy) >= 2 * before


def test_a_policy_that_kills_too_much_stops_tightening_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """With more than one in a hundred killed, neither the law nor the guard comes down, until fewer are."""
    policy = taught(usual(300), LearnedPolicy(alpha=0.04))
    with caplog.at_level(logging.WARNING, logger="tinker_deadlines"):
        for _ in range(5):
            policy.learn(sample(10.0, "killed"))
            policy.learn(sample(10.0, "slow"))
    assert [record.message.count(f"sample on {MODEL}") for record in caplog.records] == [1]
    frozen = limit_s(policy)
    assert frozen < CEILINGS_S["sample"]
    taught([PREDICTED_S / 2] * 190, policy)
    assert limit_s(policy) == frozen
    taught([PREDICTED_S / 2] * 300, policy)
    assert limit_s(policy) < frozen / 4


def test_dead_calls_do_not_count_as_killed(caplog: pytest.LogCaptureFixture) -> None:
    """A session that died with many calls in flight does not take the policy's right to be strict."""
    policy = taught(usual(200))
    verdict: tuple[Ending, ...] = ("killed", "wedged")
    for ended in verdict:
        for _ in range(64):
            policy.learn(sample(60.0, ended))
    assert caplog.records == []
    before = limit_s(policy)
    taught([PREDICTED_S / 4] * 150, policy)
    assert limit_s(policy) < before


@given(st.lists(latencies, max_size=60), st.randoms())
def test_the_order_of_completed_calls_makes_no_difference(elapsed: list[float], shuffler: random.Random) -> None:
    """The same calls in another order are the same state, and the same limit for who loads it."""
    shuffled = list(elapsed)
    shuffler.shuffle(shuffled)
    one, other = LearnedPolicy(), LearnedPolicy()
    one.load(taught(elapsed).state())
    other.load(taught(shuffled).state())
    assert one.state() == other.state() and limit_s(one) == limit_s(other)


# A new shape --------------------------------------------------------------------------------------------------------


def test_a_new_shape_is_given_time_to_get_ready() -> None:
    """The first call of a power of two of its sizes has the allowance; what it took is not learned."""
    policy = LearnedPolicy()
    work, same, longer = Work(4100, 1024), Work(8000, 1100), Work(8300, 1024)
    ready = policy.limit("sample", work._replace(fresh=False), MODEL).seconds
    assert limit_s(policy, work=work) == pytest.approx(ready + FRESH_ALLOWANCE_S)
    policy.learn(Sample("sample", work, MODEL, 33.0, "completed"))
    assert policy.limit("sample", work, MODEL).completed == 0
    for known in (work, same):
        plain = known._replace(fresh=False)
        assert limit_s(policy, work=known) == limit_s(policy, work=plain)
    plain = longer._replace(fresh=False)
    assert limit_s(policy, work=longer) == pytest.approx(limit_s(policy, work=plain) + FRESH_ALLOWANCE_S)
    told = work._replace(fresh=True)
    assert limit_s(policy, work=told) == pytest.approx(ready + FRESH_ALLOWANCE_S)
    policy.learn(Sample("sample", told, MODEL, 33.0, "completed"))
    assert policy.limit("sample", work, MODEL).completed == 0


def test_the_cut_of_a_fresh_call_widens_but_is_no_work() -> None:
    """The guard goes up; the law stays as it is."""
    policy = LearnedPolicy(alpha=0.01)
    before = limit_s(policy)
    told = WORK._replace(fresh=True)
    policy.learn(Sample("sample", told, MODEL, 99.0, "killed"))
    policy.learn(Sample("sample", told, MODEL, 99.0, "slow"))
    assert limit_s(policy) == pytest.approx(2 * before)
    assert policy.state()[f"sample {MODEL}"]["censored"] == {}


# Keeping ------------------------------------------------------------------------------------------------------------


@given(endings, kinds)
def test_the_state_survives_json(calls: list[tuple[float, Ending]], kind: TinkerCallKind) -> None:
    """What is loaded is what was saved, with full weight; nothing of it is this process's own to hand over."""
    policy = LearnedPolicy()
    for elapsed_s, ended in calls:
        policy.learn(sample(elapsed_s, ended, elapsed_s / 2, kind))
    state = policy.state()
    again = LearnedPolicy()
    again.load(json.loads(json.dumps(state)))
    assert again.state() == state
    fitted = LearnedPolicy()
    fitted.load(state)
    assert limit_s(again, kind) == limit_s(fitted, kind)
    assert all(not delta["ended"] and not delta["completed"] for delta in again.delta().values())


counts = st.dictionaries(st.integers(0, 329).map(str), st.integers(1, 3000).map(float), max_size=6)
deltas = st.builds(
    lambda epoch, ended, censored, completed: {
        "version": 1,
        "epoch": epoch,
        "ended": ended,
        "censored": censored,
        "completed": completed,
        "false_kills": completed % 3,
    },
    st.integers(0, 5),
    counts,
    counts,
    st.integers(0, 9000),
)


@given(deltas, st.lists(deltas, max_size=5), st.randoms())
def test_deltas_may_be_merged_in_any_order(
    state: dict[str, Any], others: list[dict[str, Any]], shuffler: random.Random
) -> None:
    """Concurrent runs add up to the same, whoever ends first; the weight stays bounded."""
    merged, again = merge(state, {}), merge(state, {})
    for delta in others:
        merged = merge(merged, delta)
    shuffler.shuffle(others)
    for delta in others:
        again = merge(again, delta)
    assert merged == again
    assert sum(merged["ended"].values()) + sum(merged["censored"].values()) <= 4000
    assert merged["completed"] == state["completed"] + sum(delta["completed"] for delta in others)


def test_a_run_goes_on_where_earlier_ones_stopped() -> None:
    """Two runs that began with the same state are merged into it; a third one knows what both saw."""
    first = taught(usual(400))
    start = {key: merge({}, delta) for key, delta in first.delta().items()}
    runs = [LearnedPolicy(), LearnedPolicy()]
    merged = dict(start)
    for number, run in enumerate(runs):
        run.load(start)
        taught(usual(2500, seed=10 + number), run)
        for key, delta in run.delta().items():
            merged[key] = merge(merged[key], delta)
    third = LearnedPolicy()
    third.load(merged)
    limit = third.limit("sample", WORK, MODEL)
    assert (limit.basis, limit.completed) == ("learned", 5400)
    assert limit.seconds == pytest.approx(limit_s(taught(usual(5400, seed=3))), rel=0.25)


def test_what_was_handed_over_is_not_handed_over_again() -> None:
    """`take` leaves the law as it is and the next delta without what was taken."""
    policy = taught(usual(100))
    law = policy.state()
    taken = policy.delta(take=True)
    assert taken[f"sample {MODEL}"]["completed"] == 100
    assert policy.state() == law
    assert policy.delta()[f"sample {MODEL}"]["completed"] == 0
    taught(usual(7), policy)
    assert policy.delta()[f"sample {MODEL}"]["completed"] == 7


def test_a_long_runs_delta_is_all_that_it_knows() -> None:
    """Halved along with the law: what it hands over to nobody else's state is its own state."""
    policy = taught(usual(6000))
    key = f"sample {MODEL}"
    state, merged = policy.state()[key], merge({}, policy.delta()[key])
    assert state["epoch"] > 0
    assert {name: state[name] for name in merged} == merged


def test_loading_keeps_what_was_learned_meanwhile() -> None:
    """A state that comes after the first calls goes under them, whatever its epoch."""
    earlier = taught(usual(9000))
    assert earlier.state()[f"sample {MODEL}"]["epoch"] > 0
    policy = taught(usual(50, seed=4))
    policy.load(earlier.state())
    assert policy.limit("sample", WORK, MODEL).completed == 9050
    delta = policy.delta()[f"sample {MODEL}"]
    assert delta["completed"] == 50
    again = merge(earlier.state()[f"sample {MODEL}"], delta)
    assert again["ended"] == policy.state()[f"sample {MODEL}"]["ended"]


@pytest.mark.parametrize(
    "key, entry",
    [
        ("smaple", {}),
        ("sample", {"version": 2}),
        ("sample", {"version": 1, "epoch": 0}),
        ("sample", {"version": 1, "epoch": 0, "ended": {"400": 1}, "censored": {}, "completed": 0, "false_kills": 0}),
        ("sample", {"version": 1, "epoch": "x", "ended": {}, "censored": {}, "completed": 0, "false_kills": 0}),
        ("sample", {"version": 1, "epoch": 0, "ended": [1], "censored": {}, "completed": 0, "false_kills": 0}),
    ],
)
def test_a_state_that_cannot_be_read_is_left_out_and_named(
    key: str, entry: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The others are loaded; the run starts cold where nothing is known."""
    good = taught(usual(100)).state()
    policy = LearnedPolicy()
    policy.load({key: entry, **good})
    assert [key in record.message for record in caplog.records] == [True]
    assert policy.limit("sample", WORK, MODEL).completed == 100
    assert policy.limit("sample", WORK, None).completed == 0


def test_a_checkpoints_path_is_no_model() -> None:
    """All of them share one learner, and no path is in what is kept."""
    policy = LearnedPolicy()
    for step in range(50):
        policy.learn(Sample("sample", WORK, f"tinker://run-{step}/sampler_weights/final", 3.0, "completed"))
    assert policy.limit("sample", WORK, "tinker://run-99/sampler_weights/final").completed == 50
    assert list(policy.state()) == ["sample"]


# For suspicion ------------------------------------------------------------------------------------------------------


def test_the_law_tells_how_unusual_an_age_is() -> None:
    """What suspicion asks: the share of calls that take longer, and the median, by kind and model."""
    policy = taught(usual(2000))
    assert policy.median_ratio("sample", MODEL) == pytest.approx(math.exp(-0.3), rel=0.08)
    assert policy.survival("sample", MODEL, 0.0) == 1.0
    assert 1e-6 < policy.survival("sample", MODEL, 4.0) < 1e-2
    assert policy.survival("sample", "another", 4.0) > 1e-2


def test_threads_may_learn_at_the_same_time() -> None:
    """No sample is lost, and limits can be asked for meanwhile."""
    policy = LearnedPolicy()
    samples = usual(500)

    def learn() -> None:
        for elapsed_s in samples:
            policy.learn(sample(elapsed_s))
            assert policy.limit("sample", WORK, MODEL).seconds > 0

    threads = [threading.Thread(target=learn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert policy.limit("sample", WORK, MODEL).completed == 2000
