"""The simpler policies, their names, and limits in words."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tinker_deadlines import DEFAULT_DEADLINES_S, TinkerCallKind, Work, env_var_for
from tinker_deadlines.calls import KINDS
from tinker_deadlines.limits import LEAST_COMPLETED
from tinker_deadlines.policy import (
    FixedPolicy,
    LearnedPolicy,
    Limit,
    P99x3Policy,
    Policy,
    Sample,
    ScaledPolicy,
    explain,
    policy_in_use,
    policy_named,
    use_policy,
)

MODEL = "Qwen/Qwen3-8B"
WORK = Work(4000, 1024, fresh=False)


@pytest.fixture(autouse=True)
def _policy_put_back() -> Iterator[None]:
    """What a test uses is gone after it."""
    before = policy_in_use()
    yield
    use_policy(before)


@pytest.mark.parametrize(
    "text",
    [
        "flat",
        "fixed:120",
        "fixed:sample=120,optim_step=900",
        "scaled",
        "scaled:alpha=0.001",
        "p99x3",
        "p99x3:ceiling_sampling=900",
        "learned",
        "learned:alpha=0.0001,ceiling_sampling=900,ceiling_training=7200",
    ],
)
def test_a_policy_has_the_name_that_it_was_made_by(text: str) -> None:
    """Names say all that was set; each makes a new policy, which answers for every kind and learns from anything."""
    policy = policy_named(text)
    assert policy.name == text
    assert isinstance(policy, Policy)
    assert policy_named(text) is not policy
    for kind in KINDS:
        assert policy.limit(kind, None, None).seconds > 0
        policy.learn(Sample(kind, None, None, 1.0, "completed"))


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "is not a policy; there are flat, fixed:SECONDS, scaled, p99x3 and learned"),
        ("lerned", "is not a policy"),
        ("flat:120", "not an option of the policy flat; it has none"),
        ("fixed", "says no number of seconds"),
        ("fixed:", "says no number of seconds"),
        ("fixed:0", "'0' is not a positive finite number"),
        ("fixed:inf", "'inf' is not a positive finite number"),
        ("fixed:2m", "'2m' is not a positive finite number"),
        ("fixed:smaple=3", "'smaple' is not a kind of Tinker call"),
        ("fixed:120,sample=3", "name each kind"),
        ("learned:alpha", "'alpha' is not a positive finite number"),
        ("learned:alpha=1", "less than 1"),
        ("learned:beta=1", "'beta' is not an option of the policy learned; its options are alpha, ceiling_sampling"),
        ("learned:3", "not an option"),
        ("p99x3:alpha=1e-4", "'alpha' is not an option of the policy p99x3"),
    ],
)
def test_a_name_that_means_no_policy_is_said_in_a_sentence(text: str, says: str) -> None:
    """It says what is wrong and what there is."""
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        policy_named(text)
    assert "\n" not in str(caught.value)


def test_a_fixed_number_is_a_persons() -> None:
    """Kinds that are not named keep the default."""
    policy = FixedPolicy({"sample": 7})
    assert policy.limit("sample", WORK, MODEL) == Limit(7.0, "the policy 'fixed:sample=7'", "fixed")
    assert policy.limit("sample", None, None).fixed
    assert policy.limit("rest", None, None) == Limit(60.0, "the default", "flat")
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive finite"):
            FixedPolicy(wrong)


def test_three_times_the_p99_needs_thirty_calls() -> None:
    """Before, the default holds; then three times what all but one in a hundred took, scaled by the work."""
    policy = P99x3Policy()
    predicted_s = LearnedPolicy().predicted_s("sample", WORK, MODEL)
    for number in range(100):
        if number < LEAST_COMPLETED:
            assert policy.limit("sample", WORK, MODEL).seconds == 300
        policy.learn(Sample("sample", WORK, MODEL, predicted_s * (9 if number == 99 else 2), "completed"))
        policy.learn(Sample("sample", WORK, MODEL, 1e4, "killed"))
    limit = policy.limit("sample", WORK, MODEL)
    assert limit.seconds == pytest.approx(3 * 2 * predicted_s, rel=0.06)
    assert (limit.basis, limit.completed, limit.predicted_s) == ("learned", 100, predicted_s)
    double = WORK._replace(prompt_tokens=8000, max_tokens=2048)
    assert policy.limit("sample", double, MODEL).seconds > 1.5 * limit.seconds
    assert policy.limit("sample", WORK, "another").seconds == 300


@pytest.mark.parametrize("make", [ScaledPolicy, LearnedPolicy, P99x3Policy])
def test_a_person_may_change_the_ceilings(
    make: type[ScaledPolicy | LearnedPolicy | P99x3Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By keyword or in the environment, where it is read when the policy is made; the keyword wins."""
    assert (make().bounds("sample"), make().bounds("save_state")) == ((5.0, 1800.0), (20.0, 3600.0))
    monkeypatch.setenv("TINKER_DEADLINES_CEILING_SAMPLING", "400")
    monkeypatch.setenv("TINKER_DEADLINES_CEILING_TRAINING", "9000")
    policy = make()
    assert [policy.bounds(kind)[1] for kind in KINDS] == [400, 400, 9000, 9000, 9000, 9000, 9000, 600, 600]
    assert make(ceiling_sampling_s=50).bounds("sample") == (5.0, 50)
    monkeypatch.setenv("TINKER_DEADLINES_CEILING_SAMPLING", "an hour")
    with pytest.raises(ValueError, match=r"TINKER_DEADLINES_CEILING_SAMPLING is 'an hour'.*1800"):
        make()
    assert policy.bounds("sample")[1] == 400


def test_a_fresh_call_is_given_its_allowance_by_the_scaled_policy() -> None:
    """It knows no shapes: only where the caller says so."""
    policy = ScaledPolicy()
    told, plain = WORK._replace(fresh=True), WORK._replace(fresh=None)
    assert policy.limit("sample", told, MODEL).seconds == policy.limit("sample", plain, MODEL).seconds + 30


def test_a_limit_explains_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number, the prediction, the quantile, n, what it rests on, who set it, and the bound that it ran into."""
    assert str(explain("sample")) == "sample: 300.0 s, set by the default, the same whatever the work."
    use_policy(LearnedPolicy())
    said = explain("sample", Work(8192, 1024, fresh=False), "Qwen/Qwen3-4B")
    assert (said.floor_s, said.ceiling_s, said.bound_by) == (5.0, 1800.0, None)
    assert str(said) == (
        "sample: 100.2 s, set by the policy 'learned', cold: 0 of 30 calls completed so far. The work model predicts "
        "4.2 s. 99.97 % of the calls that are alive are meant to end within the limit."
    )
    huge = explain("forward_backward", Work(tokens=10**8), MODEL)
    assert huge.bound_by == "ceiling" and "99.999 %" in str(huge)
    assert str(huge).endswith("It is the ceiling of this policy for forward_backward.")
    assert explain("rest", Work(fresh=False)).bound_by == "floor"
    for _ in range(40):
        policy_in_use().learn(Sample("sample", WORK, None, 3.0, "completed"))
    assert "learned from 40 completed calls" in str(explain("sample", WORK))
    monkeypatch.setenv(env_var_for("sample"), "5")
    assert str(explain("sample", WORK)) == (
        "sample: 5.0 s, set by WMO_TINKER_DEADLINE_SAMPLE, a person's number that is obeyed exactly."
    )
    use_policy(ScaledPolicy())
    assert "from the work alone" in str(explain("optim_step"))


def test_a_policy_of_ones_own_needs_two_methods() -> None:
    """A third party's policy is taken as it is, and explains itself as far as it says anything."""

    class Mine:
        name = "mine"

        def limit(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> Limit:
            return Limit(DEFAULT_DEADLINES_S[kind] / 2, "my policy", "learned", completed=3)

        def learn(self, sample: Sample) -> None: ...

    use_policy(Mine())
    assert str(explain("sample")) == "sample: 150.0 s, set by my policy, learned from 3 completed calls."
