"""Seconds from work, before anything is learned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines import DEFAULT_DEADLINES_S, TinkerCallKind, Work
from tinker_deadlines.calls import KINDS
from tinker_deadlines.limits import MIDDLE_MODEL, WORK_PRIORS
from tinker_deadlines.policy import LearnedPolicy, ScaledPolicy, WorkModel, model_size

POLICIES = (ScaledPolicy, LearnedPolicy)


@pytest.mark.parametrize(
    "name, total_b, active_b",
    [
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", 235, 22),
        ("Qwen/Qwen3-4B-Instruct-2507", 4, 4),
        ("Qwen/Qwen3.5-397B-A17B", 397, 17),
        ("meta-llama/Llama-3.1-8B", 8, 8),
        ("Qwen2.5-0.5b-4bit", 0.5, 0.5),
        ("openai/gpt-oss-120b", 117, 5.1),
        ("moonshotai/Kimi-K2.6", 1000, 32),
        ("deepseek-ai/DeepSeek-V3.1", 671, 37),
        ("a/model-3B-A30B", 3, 3),
        ("a/model-0B", *MIDDLE_MODEL),
        ("tiny-qwen3", *MIDDLE_MODEL),
        ("", *MIDDLE_MODEL),
        (None, *MIDDLE_MODEL),
    ],
)
def test_a_models_name_says_its_size(name: str | None, total_b: float, active_b: float) -> None:
    """Total and active billions as they stand in the name, from the table, or the documented middle."""
    assert model_size(name) == (total_b, active_b)


@pytest.mark.parametrize("make", POLICIES)
def test_the_cold_limits_fit_the_work(make: type[ScaledPolicy | LearnedPolicy]) -> None:
    """Small work gets a narrow limit, large work on large models a wide one, before anything is learned."""
    policy = make()

    def limit_s(kind: TinkerCallKind, work: Work | None, model: str | None) -> float:
        return policy.limit(kind, work, model).seconds

    assert limit_s("sample", Work(8192, 1024), "Qwen/Qwen3-4B") <= 150
    for model in ("openai/gpt-oss-120b", "nvidia/Nemotron-3-Super-120B-A12B", "a/dense-120B"):
        assert 900 <= limit_s("sample", Work(240_000), model) <= 1800
    assert limit_s("forward_backward", Work(datums=1, tokens=256 * 1024), "Qwen/Qwen3.5-397B-A17B") >= 2700
    for kind in ("optim_step", "save_state", "save_weights_for_sampler"):
        assert limit_s(kind, Work(datums=512), "a/b-8B") > limit_s(kind, Work(datums=62), "a/b-8B")


@pytest.mark.parametrize("make", POLICIES)
@pytest.mark.parametrize("kind", ["sample", "compute_logprobs", "forward_backward"])
@pytest.mark.parametrize("work", [None, Work(), Work(num_samples=4, rank=8)])
def test_work_that_is_not_known_gets_no_less_than_the_default(
    make: type[ScaledPolicy | LearnedPolicy], kind: TinkerCallKind, work: Work | None
) -> None:
    """Where the work varies much, a typical call says little of one whose work nobody knows."""
    assert make().limit(kind, work, "a/b-0.1B").seconds >= DEFAULT_DEADLINES_S[kind]


def test_samples_of_one_prompt_run_side_by_side() -> None:
    """Their number does not enter the prediction."""
    predict = WorkModel().predictor("sample", None)
    assert predict(Work(100, 100, 64)) == predict(Work(100, 100, 1))


def test_chunks_of_a_batch_count_in_full() -> None:
    """The SDK sends 1,024 datums in one request, and 1,025 in two."""
    predict = WorkModel().predictor("forward_backward", "a/b-4B")
    assert predict(Work(datums=1024, tokens=0)) == predict(Work(datums=1, tokens=0)) == pytest.approx(4.0)
    assert predict(Work(datums=1025, tokens=0)) == pytest.approx(5.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_typical_call_is_what_unknown_sizes_are(kind: TinkerCallKind) -> None:
    """No work at all and work of which nothing is known are predicted alike, whatever the kind."""
    predict = WorkModel().predictor(kind, None)
    assert predict(None) == pytest.approx(predict(Work()))
    assert predict(Work(*[0] * 6)) == pytest.approx(WORK_PRIORS[kind].seconds)


@given(st.sampled_from(KINDS), st.tuples(*[st.integers(0, 2**40)] * 6))
def test_a_shape_is_the_sizes_powers_of_two(kind: TinkerCallKind, sizes: tuple[int, ...]) -> None:
    """Sizes of the same powers of two are the same shape; twice the size is another where the size matters."""
    predictor = WorkModel().predictor(kind, None)
    rounded = [1 << (size.bit_length() - 1) if size else 0 for size in sizes]
    shape = predictor.measure(Work(*sizes))[1]
    assert predictor.measure(Work(*rounded))[1] == shape
    for term in WORK_PRIORS[kind].terms:
        place = Work._fields.index(term.size)
        doubled = [*sizes[:place], sizes[place] * 2 + 1, *sizes[place + 1 :]]
        assert predictor.measure(Work(*doubled))[1] != shape
