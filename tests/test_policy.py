"""How long a call may take: a person's number, else the policy's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines import DEFAULT_DEADLINES_S, TinkerCallKind, Work, deadline_for, env_var_for
from tinker_deadlines.calls import KINDS
from tinker_deadlines.policy import FlatPolicy, Limit, Sample, limit_for, policy_in_use, use_policy

sizes = st.none() | st.integers(min_value=0, max_value=10**9)
works = st.none() | st.builds(Work, *[sizes] * 6, st.none() | st.booleans())


@given(st.sampled_from(KINDS), works, st.none() | st.text())
def test_the_flat_policy_knows_the_kind_alone(kind: TinkerCallKind, work: Work | None, model: str | None) -> None:
    """Work and model make no difference to it."""
    assert FlatPolicy().limit(kind, work, model).seconds == DEFAULT_DEADLINES_S[kind]
    assert deadline_for(kind, work, model) == DEFAULT_DEADLINES_S[kind]


def test_a_limit_names_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default, or the variable in which a person set it."""
    assert limit_for("sample") == Limit(300.0, "the default", "flat")
    monkeypatch.setenv(env_var_for("sample"), "5")
    assert limit_for("sample") == Limit(5.0, "WMO_TINKER_DEADLINE_SAMPLE", "fixed")
    assert limit_for("sample").fixed and not limit_for("rest").fixed


def test_a_persons_number_outranks_every_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set in the environment is obeyed exactly, whatever the policy would say; the policy says the rest."""

    class Stingy:
        name = "stingy"

        def limit(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> Limit:
            return Limit(1.0, self.name)

        def learn(self, sample: Sample) -> None: ...

    previous = use_policy(Stingy())
    try:
        monkeypatch.setenv(env_var_for("sample"), "1234.5")
        assert deadline_for("sample") == 1234.5
        assert deadline_for("rest") == 1.0
        assert policy_in_use().name == "stingy"
    finally:
        use_policy(previous)
    assert deadline_for("rest") == 60.0
