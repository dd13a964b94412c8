"""The lab's model: its gradients, its determinism, its learning."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tinker_deadlines.lab import losses
from tinker_deadlines.lab.model import EOS, VOCABULARY, Array, Lora, LoraSpec, Shape, base_weights, forward
from tinker_deadlines.lab.optimizer import AdamParams, adam_step
from tinker_deadlines.lab.refusal import Refused
from tinker_deadlines.lab.sampling import SampleWork, SamplingParams, choose, sample

TEXT = np.frombuffer(b"slow is not dead, and dead is not slow", dtype=np.uint8).astype(np.int64)
SMALL = Shape(width=5, mixer=6, hidden=7)


def lora(shape: Shape = SMALL, rank: int = 3, stir: bool = True, **parts: bool) -> Lora:
    """A model whose adapters are all non-zero, so that every gradient path is used."""
    made = Lora(base_weights("test", shape), LoraSpec(rank=rank, seed=1, **parts))
    if stir:
        random = np.random.default_rng(2)
        for _, value, _ in made.parameters():
            value += random.normal(0, 0.02, value.shape)
        made.changed()
    return made


def data(loss_fn: str, targets_per_token: int = 1) -> list[losses.Datum]:
    random = np.random.default_rng(3)
    shape = (len(TEXT) - 1,) if targets_per_token == 1 else (len(TEXT) - 1, targets_per_token)
    targets = random.integers(0, VOCABULARY, shape)
    names = losses.LOSSES[loss_fn][1]
    low = {"weights": 0.0, "advantages": -1.0, "logprobs": -7.0}
    high = {"weights": 2.0, "advantages": 1.0, "logprobs": -4.0}
    inputs = {name: random.uniform(low[name], high[name], shape) for name in names}
    return [losses.Datum(TEXT[:-1], targets, inputs)]


def loss_of(model: Lora, examples: list[losses.Datum], loss_fn: str, config: Mapping[str, float]) -> float:
    return losses.run(model, examples, loss_fn, config, learn=False).metrics["loss:sum"]


@pytest.mark.parametrize("targets_per_token", [1, 3])
@pytest.mark.parametrize("loss_fn", sorted(losses.LOSSES))
def test_gradients_are_the_slopes_of_the_loss(loss_fn: str, targets_per_token: int) -> None:
    """Every accumulated gradient equals the finite difference of the loss by that parameter."""
    model, examples = lora(), data(loss_fn, targets_per_token)
    losses.run(model, examples, loss_fn, {}, learn=True)
    gradients = {name: grad.copy() for name, _, grad in model.parameters()}
    values = {name: value for name, value, _ in model.parameters()}
    random = np.random.default_rng(4)
    step = 1e-6
    for name, value in values.items():
        for _ in range(4):
            at = tuple(random.integers(0, size) for size in value.shape)
            around = []
            for sign in (1, -1):
                value[at] += sign * step
                model._weights = None
                around.append(loss_of(model, examples, loss_fn, {}))
                value[at] -= sign * step
            slope = (around[0] - around[1]) / (2 * step)
            assert gradients[name][at] == pytest.approx(slope, rel=2e-4, abs=2e-5), (name, at)


def test_ppo_ignores_what_is_clipped() -> None:
    """A token whose ratio is beyond the threshold in the direction of its advantage has no gradient."""
    old = np.array([-5.0, -5.0, -5.0, -5.0])
    new = old + np.log([2.0, 2.0, 0.5, 1.0])
    inputs = {"logprobs": old, "advantages": np.array([1.0, -1.0, -1.0, 1.0])}
    loss, slope = losses.ppo(new, inputs, {})
    assert loss == pytest.approx([-1.2, 2.0, 0.8, -1.0])
    assert slope == pytest.approx([0.0, 2.0, 0.0, -1.0])
    loosened, _ = losses.ppo(new, inputs, {"clip_high_threshold": 3.0})
    assert loosened[0] == pytest.approx(-2.0)


def test_only_the_chosen_matrices_are_trained() -> None:
    """With train_mlp alone, the model has adapters on the two matrices of the perceptron only."""
    model = lora(train_attn=False, train_unembed=False)
    assert sorted(model.adapters) == ["mlp_in", "mlp_out"]


def test_training_lowers_the_loss() -> None:
    """A few steps of Adam make the training text likelier."""
    model = lora(Shape(), rank=16, stir=False)
    examples = [losses.Datum(TEXT[:-1], TEXT[1:], {"weights": np.ones(len(TEXT) - 1)})]
    seen = []
    for _ in range(15):
        seen.append(losses.run(model, examples, "cross_entropy", {}, learn=True).metrics["loss:sum"])
        adam_step(model, AdamParams(learning_rate=1e-2))
    assert seen[-1] < 0.5 * seen[0]


def test_gradients_add_up_until_the_step() -> None:
    """Two forward_backward calls before a step leave the sum of their gradients, and the step forgets it."""
    once, twice = lora(), lora()
    losses.run(once, data("cross_entropy") * 2, "cross_entropy", {}, learn=True)
    for _ in range(2):
        losses.run(twice, data("cross_entropy"), "cross_entropy", {}, learn=True)
    for (_, _, one), (_, _, two) in zip(once.parameters(), twice.parameters(), strict=True):
        assert np.array_equal(one, two)
    adam_step(once, AdamParams())
    assert all(not grad.any() for _, _, grad in once.parameters())


def test_gradient_clipping_limits_the_norm() -> None:
    """Clipping scales the gradient, so that a step without momentum or normalisation would be bounded."""
    clipped, free = lora(), lora()
    for model in (clipped, free):
        losses.run(model, data("cross_entropy"), "cross_entropy", {}, learn=True)
    norm = adam_step(free, AdamParams(grad_clip_norm=0.0))["grad_norm"]
    adam_step(clipped, AdamParams(grad_clip_norm=norm / 10))
    first = "unembed.a.first"
    assert clipped.moments[first] == pytest.approx(free.moments[first] / 10)


def test_a_checkpoint_with_its_optimizer_continues_to_the_bit() -> None:
    """Steps after a restore equal the steps that would have followed without it, bit for bit."""

    def one_step(model: Lora) -> Array:
        losses.run(model, data("cross_entropy"), "cross_entropy", {}, learn=True)
        adam_step(model, AdamParams(learning_rate=1e-2))
        return forward(model.weights(), TEXT).logprobs

    model, restored = lora(), lora(stir=False)
    one_step(model)
    restored.restore(model.state(optimizer=True), optimizer=True)
    assert np.array_equal(one_step(model), one_step(restored))


def test_a_prefix_does_not_see_what_follows() -> None:
    """The model is causal: later tokens change nothing before them."""
    weights = base_weights("test", Shape())
    assert np.array_equal(forward(weights, TEXT).logprobs[:9], forward(weights, TEXT[:9]).logprobs)


def test_base_models_differ_by_name_and_not_by_time() -> None:
    """The same name gives the same weights, another name others."""
    one, same, other = (base_weights(name, SMALL).embedding for name in ("a", "a", "b"))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


def test_sampling_repeats_for_a_seed_whatever_the_number_of_samples() -> None:
    """Sample i of a seed is the same alone and among others; other seeds differ."""
    weights = base_weights("test", Shape())
    params = SamplingParams(max_tokens=20, seed=5, stop_tokens=frozenset())
    alone = sample(weights, SampleWork(TEXT, params, 1)).sequences[0]
    among = sample(weights, SampleWork(TEXT, params, 4)).sequences
    assert alone.tokens == among[0].tokens != among[1].tokens
    other = sample(weights, SampleWork(TEXT, SamplingParams(max_tokens=20, seed=6), 1)).sequences[0]
    assert other.tokens != alone.tokens


def test_sampled_logprobs_are_those_of_a_forward_pass() -> None:
    """The log-probability returned with a sampled token is the one that scoring the text gives."""
    weights = base_weights("test", Shape())
    params = SamplingParams(max_tokens=20, seed=5, temperature=0.7, top_k=9, top_p=0.9, stop_tokens=frozenset())
    sequence = sample(weights, SampleWork(TEXT, params)).sequences[0]
    table = forward(weights, np.array([*TEXT, *sequence.tokens])).logprobs
    scored = table[np.arange(len(TEXT) - 1, len(TEXT) + 19), sequence.tokens]
    assert sequence.logprobs == pytest.approx(scored, abs=1e-12)


def test_sampling_limits_what_can_be_chosen() -> None:
    """top_k and top_p leave the likeliest tokens only, and temperature 0 the likeliest alone."""
    logprobs = np.log(np.array([[0.5, 0.3, 0.15, 0.05]] * 200))
    draws = np.linspace(0, 1, 200, endpoint=False)
    chosen = {
        "all": choose(logprobs, draws, SamplingParams()),
        "top_k": choose(logprobs, draws, SamplingParams(top_k=2)),
        "top_p": choose(logprobs, draws, SamplingParams(top_p=0.6)),
        "greedy": choose(logprobs, draws, SamplingParams(temperature=0)),
    }
    assert {name: set(tokens.tolist()) for name, tokens in chosen.items()} == {
        "all": {0, 1, 2, 3},
        "top_k": {0, 1},
        "top_p": {0, 1},
        "greedy": {0},
    }


def test_sampling_stops_where_it_is_told() -> None:
    """A stop token or string ends the sequence, is part of it, and is the reason given."""
    weights = base_weights("test", Shape())
    free = SamplingParams(max_tokens=40, seed=5, stop_tokens=frozenset())
    tokens = sample(weights, SampleWork(TEXT, free)).sequences[0].tokens
    for stop in (
        SamplingParams(max_tokens=40, seed=5, stop_tokens=frozenset({tokens[6]})),
        SamplingParams(max_tokens=40, seed=5, stop_tokens=frozenset(), stop_strings=(bytes(tokens[5:7]),)),
    ):
        sequence = sample(weights, SampleWork(TEXT, stop)).sequences[0]
        assert sequence.stop_reason == "stop"
        assert sequence.tokens == tokens[: len(sequence.tokens)] and len(sequence.tokens) <= 7
    assert EOS not in tokens


@pytest.mark.parametrize(
    ("loss_fn", "config", "change", "said"),
    [
        ("gspo", {}, {}, "does not compute the loss 'gspo'"),
        ("cross_entropy", {"beta": 1.0}, {}, "no setting 'beta'"),
        ("cross_entropy", {}, {"weights": None}, "needs loss_fn_inputs['weights']"),
        ("cross_entropy", {}, {"mask": np.ones(3)}, "does not take loss_fn_inputs['mask']"),
        ("cross_entropy", {}, {"weights": np.ones(2)}, "weights has shape [2]"),
    ],
)
def test_data_that_cannot_be_computed_is_refused(
    loss_fn: str, config: dict[str, float], change: dict[str, Array | None], said: str
) -> None:
    """What is wrong with a datum, a loss or a setting is said in one sentence with status 400."""
    inputs = {"weights": np.ones(3), **change}
    given = {name: value for name, value in inputs.items() if value is not None}
    with pytest.raises(Refused) as refused:
        losses.check(loss_fn, [losses.Datum(TEXT[:3], TEXT[1:4], given)], config)
    assert refused.value.status == 400 and said in refused.value.detail
