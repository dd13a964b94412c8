"""How does an episode get a wall of its own? A script that knows this library, for one `with` block."""

from __future__ import annotations

import argparse
from statistics import mean

import tinker
from tinker import types

from tinker_deadlines.budgets import episode
from tinker_deadlines.errors import BudgetExhaustedError

PROMPT = "slow is not"
TURNS = 3
EPISODES = 2


def play(sampler: tinker.SamplingClient, tokens: list[int]) -> float:
    """Plays one episode of a few turns and returns its reward."""
    rewards = []
    for turn in range(TURNS):
        params = types.SamplingParams(max_tokens=8, seed=turn)
        said = sampler.sample(types.ModelInput.from_ints(tokens), 1, params).result().sequences[0]
        tokens = tokens + list(said.tokens)
        rewards.append(mean(said.logprobs or [0.0]))
    return mean(rewards)


def main() -> None:
    """Plays the episodes and says what came of each."""
    parser = argparse.ArgumentParser(description="Episodes with a wall.")
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--wall", type=float, default=2.0)
    options = parser.parse_args()
    sampler = tinker.ServiceClient(base_url=options.base_url).create_sampling_client(base_model=options.model).result()
    tokens = sampler.get_tokenizer().encode(PROMPT)
    for number in range(1, EPISODES + 1):
        try:
            with episode(options.wall, name=f"episode {number}"):
                reward = play(sampler, tokens)
        except BudgetExhaustedError as wall:
            print(f"episode {number} over: the wall of {wall.budget_s:g} s, no reward", flush=True)
        else:
            print(f"episode {number} reward={reward:.3f}", flush=True)


if __name__ == "__main__":
    main()
