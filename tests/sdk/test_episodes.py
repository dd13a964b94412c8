"""What do a group's advantages come to when the service cuts one of its episodes, with the real SDK?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import tinker
from sdk_calls import KEY, PROMPT
from sdk_tools import settled

from tinker_deadlines import (
    BudgetExhaustedError,
    EpisodeOutcome,
    blame_of,
    episode,
    episode_outcome,
    group_advantages,
    score_episodes,
)
from tinker_deadlines.lab import Lab
from tinker_deadlines.lab.proxy import FaultProxy

GROUP = 4


class Episode(NamedTuple):
    """One sample, as a group's row."""

    reward: float | None
    outcome: EpisodeOutcome


def sampler(url: str, lab: Lab) -> Any:
    return settled(tinker.ServiceClient(base_url=url, api_key=KEY).create_sampling_client(base_model=lab.base_model))


def play(client: Any, seed: int) -> Episode:
    """Samples with a seed, and grades what came; an episode that did not end by itself is not graded."""
    params = tinker.SamplingParams(max_tokens=8, seed=seed)
    try:
        said = settled(client.sample(PROMPT, 1, params), 60).sequences[0]
    except Exception as error:
        return Episode(None, episode_outcome(error))
    return Episode(sum(said.tokens) / 256, episode_outcome(None))


@pytest.mark.parametrize(
    "fault, cut", [("future_never_completes", 2), ("silence_session", GROUP)], ids=["lost sample", "silent session"]
)
def test_a_group_without_the_episode_that_was_cut(
    fault: str, cut: int, lab: Lab, through: Callable[[str], FaultProxy], installed: None, limits: Any
) -> None:
    """One of four samples never comes back: its siblings' advantages are those of a group that never had it."""
    proxy = through(f'[[fault]]\nname = "cut"\ndo = "{fault}"\npath = "asample"\nnth = {cut}\n')
    limits(sample=2.5)
    client = sampler(proxy.url, lab)
    group = [play(client, seed) for seed in range(1, GROUP + 1)]
    assert [row.outcome for row in group] == ["infra_timeout" if n == cut else "ok" for n in range(1, GROUP + 1)]

    limits(sample=60)
    whole = sampler(lab.url, lab)
    siblings = [play(whole, seed) for seed in range(1, GROUP + 1) if seed != cut]
    for policy in ("mask", "truncate"):
        got = group_advantages(*zip(*group, strict=True), policy=policy)
        expected = group_advantages(*zip(*siblings, strict=True), policy=policy)
        assert got.advantages == (*expected.advantages[: cut - 1], 0.0, *expected.advantages[cut - 1 :])
        assert (got.mean, got.std, sum(got.weights)) == (expected.mean, expected.std, GROUP - 1)
        assert any(got.advantages)
    score = score_episodes(*zip(*group, strict=True))
    assert (score.score, score.attrition, score.passed) == (expected.mean, 1 / GROUP, False)


@pytest.mark.parametrize(
    "rule, outcome, blame",
    [
        ('do = "delay"\npath = "asample"\ndelay_s = 8', "agent_timeout", "budget"),
        (
            'do = "try_again"\npath = "retrieve_future"\nfor_s = 8\ninterval_s = 0.1\nqueue_state = "paused_capacity"',
            "infra_timeout",
            "service",
        ),
    ],
    ids=["slow", "paused"],
)
def test_whose_time_a_wall_was(
    rule: str, outcome: str, blame: str, lab: Lab, through: Callable[[str], FaultProxy], installed: None
) -> None:
    """At its wall, an episode with a slow sample has used its time up; one that the service paused has not."""
    client = sampler(through(f'[[fault]]\nname = "rule"\n{rule}\n').url, lab)
    with pytest.raises(BudgetExhaustedError) as caught, episode(2.0, name="episode 7"):
        settled(client.sample(PROMPT, 1, tinker.SamplingParams(max_tokens=8)), 60)
    assert (episode_outcome(caught.value), blame_of(caught.value)) == (outcome, blame)
