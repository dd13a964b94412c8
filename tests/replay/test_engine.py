"""What a policy would have done: the order of events, tries, verdicts, and the bars on the simulated worlds."""

from __future__ import annotations

import pytest

from tinker_deadlines import TinkerCallKind, Work
from tinker_deadlines.policy import FixedPolicy, Limit, Sample
from tinker_deadlines.policy.protocol import Ending
from tinker_deadlines.replay import Figures, Recorded, Trace, load, pooled, replay, run, table, world


class Scribe:
    """Gives a limit that it may stretch, and writes down what it is told."""

    name = "scribe"

    def __init__(self, limit_s: float = 10.0) -> None:
        self.limit_s = limit_s
        self.story: list[tuple[Ending | str, float]] = []

    def limit(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> Limit:
        self.story.append(("asked", float(work.max_tokens or 0) if work else 0.0))
        return Limit(self.limit_s, self.name, "scaled")

    def learn(self, sample: Sample) -> None:
        self.story.append((sample.ended, sample.elapsed_s))


def call(
    t: float, latency_s: float | None, *retries: float, kind: TinkerCallKind = "sample", work: Work | None = None
) -> Recorded:
    return Recorded(t, kind, None, work, latency_s, retries=retries)


def story(*calls: Recorded, limit_s: float = 10.0) -> tuple[list[tuple[Ending | str, float]], Figures]:
    scribe = Scribe(limit_s)
    figures = replay(Trace("here", calls), scribe)
    return scribe.story, figures


def test_a_policy_knows_the_work_before_and_the_time_after() -> None:
    """A call that is submitted while another is in flight is given its limit without what that one will take."""
    told, figures = story(
        call(0, 5, work=Work(max_tokens=1)), call(3, 1, work=Work(max_tokens=2)), call(6, 1, work=Work(max_tokens=3))
    )
    assert told == [("asked", 1), ("asked", 2), ("completed", 1), ("completed", 5), ("asked", 3), ("completed", 1)]
    assert (figures.calls, figures.false_kills, figures.dead) == (3, 0, 0)


def test_a_dead_call_is_found_by_the_next_try() -> None:
    """The retry ends in less than half of the limit: the first was dead, noticed after its limit."""
    told, figures = story(call(0, None, 4.0))
    assert told == [("asked", 0), ("killed", 10), ("asked", 0), ("completed", 4), ("wedged", 10)]
    assert figures.dead == 1 and figures.noticed_median_s == 10
    assert figures.waited_h == 10 / 3600 and figures.false_kills == 0


def test_a_slow_call_is_found_by_the_next_try_too() -> None:
    """The retry takes as long, under twice the limit: the first was slow, and its kill false."""
    told, figures = story(call(0, 15))
    assert told == [("asked", 0), ("killed", 10), ("asked", 0), ("completed", 15), ("slow", 10)]
    assert figures.false_kills == 1 and figures.false_kills_per_10k == 10_000
    assert figures.lost == 0 and figures.dead == 0


@pytest.mark.parametrize("retry_s, verdict", [(4.9, "wedged"), (5.1, "slow")])
def test_half_of_the_limit_tells_dead_from_slow(retry_s: float, verdict: Ending) -> None:
    """By how long the next try takes, whatever the first would have taken."""
    for latency_s in (None, 11.0):
        told, _ = story(call(0, latency_s, retry_s))
        assert told[-2:] == [("completed", retry_s), (verdict, 10)]


def test_after_three_tries_a_call_is_lost() -> None:
    """Each has twice the limit of the one before; all are taken for slow."""
    told, figures = story(call(0, 100))
    assert told[:6] == [("asked", 0), ("killed", 10), ("asked", 0), ("killed", 20), ("asked", 0), ("killed", 40)]
    assert told[6:] == [("slow", 10), ("slow", 20), ("slow", 40)]
    assert (figures.lost, figures.false_kills) == (1, 3)


def test_a_persons_number_is_not_stretched() -> None:
    """Three tries of ten seconds each."""
    figures = replay(Trace("here", (call(0, 15),)), FixedPolicy(10))
    assert (figures.lost, figures.false_kills) == (1, 3)


def test_a_call_that_may_not_be_repeated_has_one_try() -> None:
    """It counts as slow, and as late when it ends within twice its limit; lost if it was alive."""
    told, figures = story(call(0, 15, kind="optim_step"), call(12, 1, kind="optim_step"))
    assert told == [("asked", 0), ("killed", 10), ("slow", 10), ("asked", 0), ("completed", 1), ("late", 15)]
    assert (figures.lost, figures.false_kills) == (1, 1)
    told, figures = story(call(0, 25, kind="optim_step"), call(1, None, kind="optim_step"))
    assert "late" not in dict(told)
    assert (figures.lost, figures.false_kills, figures.dead) == (1, 1, 1)


def test_a_retry_that_was_not_recorded_is_supposed() -> None:
    """That of a dead call takes the median of its kind and model; without any, it is dead as well."""
    told, _ = story(call(0, 2), call(1, 3), call(2, 9), call(3, None), call(4, 5, kind="rest"))
    assert told[-2:] == [("completed", 3), ("wedged", 10)]
    _, figures = story(call(0, None))
    assert (figures.lost, figures.dead) == (1, 3)


def test_figures_are_pooled_and_shown_side_by_side() -> None:
    """Counts add up, seconds are averaged; each policy has a row, and a dash where nothing was measured."""
    one = replay(Trace("a", (call(0, 1), call(2, None, 1.0))), Scribe(10.0))
    other = replay(Trace("b", (call(0, 1), call(2, 1))), Scribe(30.0))
    both = pooled([one, other])
    assert (both.calls, both.dead, both.limit_median_s, both.noticed_median_s) == (4, 1, 20.0, 10.0)
    lines = table([one, other]).splitlines()
    assert len(lines) == 4 and len({len(line) for line in lines}) == 1
    assert "false kills per 10,000" in lines[0] and " - |" in lines[3]


def test_policies_are_run_each_on_its_own() -> None:
    """By name they are new each time, and believe what the trace's world believes."""
    trace = world("steady", 2, 1500)
    flat, learned, again = run(trace, ["flat", "learned", "learned"])
    assert learned == again
    assert flat.limit_median_s == 300 and (learned.limit_median_s or 0) < 150
    with pytest.raises(ValueError, match="is not a policy"):
        run(trace, ["learnt"])


@pytest.mark.parametrize(
    "name, bar", [("steady", 1), ("growing-context", 1), ("slow-spell", 3), ("stragglers", 7), ("bigger-model", 1)]
)
def test_the_learned_policy_holds_its_bars(name: str, bar: float) -> None:
    """Four seeds of each world: few false kills, none lost, a tight limit. `benchmarks/replay.py` runs all eight."""
    figures = pooled([run(world(name, seed), ["learned"])[0] for seed in range(4)])
    assert figures.false_kills_per_10k <= bar
    assert figures.lost == 0
    if name == "steady":
        assert (figures.limit_median_s or 0) < 80


def test_a_flat_number_is_much_worse() -> None:
    """In a slow spell a flat 120 s kills a hundred times what the learned policy does, and loses calls for good."""
    learned, flat = run(world("slow-spell", 1), ["learned", "fixed:120"])
    assert flat.false_kills > 100 * learned.false_kills and flat.lost > 0


def test_nothing_that_was_measured_would_have_been_killed() -> None:
    """On the measured trace every policy lets every call end, and the learned one has the narrower limits."""
    flat, scaled, learned = run(load("skyrl"), ["flat", "scaled", "learned"])
    assert flat.false_kills == scaled.false_kills == learned.false_kills == 0
    assert (learned.limit_median_s or 0) < (flat.limit_median_s or 0) / 4
