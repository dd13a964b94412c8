"""The rules per kind agree with what the errors say and with the table of methods, and the worst case holds."""

from __future__ import annotations

import time

import pytest
import tinker
from tinker import types

import tinker_deadlines
from tinker_deadlines import env_var_for
from tinker_deadlines.calls import KINDS, TinkerCallKind
from tinker_deadlines.errors import submission_of
from tinker_deadlines.lab import Lab
from tinker_deadlines.lab.faults import Faults
from tinker_deadlines.lab.proxy import FaultProxy
from tinker_deadlines.recovery.rules import RULES, worst_case
from tinker_deadlines.sdk.surface import SURFACE


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_rule_that_agrees_with_its_errors(kind: TinkerCallKind) -> None:
    """What is known of the service meanwhile is what the error of such a call says."""
    assert RULES[kind].meanwhile == submission_of(kind, True)
    assert RULES[kind].attempts >= 1


def test_what_a_method_may_be_repeated_agrees_with_its_kinds_rule() -> None:
    """A method that may not be repeated is of a kind that is never made again on the same client."""
    for client, methods in SURFACE.items():
        for name, method in methods.items():
            if method.kind is not None and method.repeat == "no":
                assert RULES[method.kind].again in ("never", "fresh training client"), f"{client}.{name}"
            if method.repeat == "new name":
                assert "looked for under its name" in RULES[method.kind or "rest"].sure


def test_a_persons_number_is_the_worst_case_of_a_call() -> None:
    """It is obeyed exactly, and nothing is made twice for it; elsewhere the ceiling counts, and a probe."""
    assert worst_case("sample", 30.0, None, fixed=True)[:2] == (30.0, 1)
    assert worst_case("sample", 30.0, 1800.0, fixed=False)[:2] == (1810.0, 2)
    assert worst_case("optim_step", 30.0, 3600.0, fixed=False).recovered_s is not None
    assert "made once" in str(worst_case("connect", 30.0, None, fixed=True))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_a_call_that_never_ends_keeps_to_its_worst_case(tinker_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the SDK, behind a fault that never heals: within the seconds and the attempts that were stated."""
    limit_s = 1.0
    monkeypatch.setenv(env_var_for("sample"), str(limit_s))
    stated = worst_case("sample", limit_s, None, fixed=True)
    rules = Faults.from_toml('[[fault]]\nname = "never"\ndo = "future_never_completes"\nkind = "sample"\n')
    with FaultProxy(tinker_lab.url, rules) as proxy:
        tinker_deadlines.install()
        try:
            service = tinker.ServiceClient(base_url=proxy.url, api_key="tml-test")
            made = service.create_sampling_client(base_model=tinker_lab.base_model)
            sampler = made.result() if hasattr(made, "result") else made
            began = time.monotonic()
            with pytest.raises(tinker_deadlines.StuckCallError):
                sampler.sample(types.ModelInput.from_ints([1]), 1, types.SamplingParams(max_tokens=1)).result()
            assert time.monotonic() - began < stated.seconds + 0.5
            assert sum(each.path.endswith("asample") for each in proxy.log) <= stated.attempts
        finally:
            tinker_deadlines.uninstall()
