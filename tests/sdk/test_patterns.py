"""Failures that follow the input or the weights, told from a bad service."""

from __future__ import annotations

from typing import Any

import pytest
import tinker

from tinker_deadlines.calls import Call, TinkerCallKind, Work
from tinker_deadlines.sdk import facts
from tinker_deadlines.sdk.facts import Facts, Known
from tinker_deadlines.sdk.patterns import Patterns, digest_of
from tinker_deadlines.testing import FakeClock

BASE, ADAPTER = Facts("model", elsewhere=True), Facts("model", path="tinker://weights")


class Client:
    """Something of which something is known."""


def call(payload: Any, known: Known | None = None, kind: TinkerCallKind = "sample") -> Call:
    made = Call(kind, 10, "", work=Work(prompt_tokens=3), model="model")
    client = Client()
    if known is not None:
        facts._known[client] = known
    made.args = (client, payload)
    return made


def test_a_payload_that_fails_while_others_pass_is_to_blame() -> None:
    """From the third failure on, when at least three others of its kind passed meanwhile."""
    patterns = Patterns()
    assert [patterns.failed(call("bad")) for _ in range(5)] == [None] * 5
    for other in range(3):
        patterns.completed(call(other))
    assert patterns.failed(call("bad")) == "input-dependent failure"
    assert patterns.failed(call("another")) is None


def test_a_payload_that_passed_once_is_not() -> None:
    """Not even when it fails again."""
    patterns = Patterns()
    for _ in range(3):
        patterns.failed(call("good"))
        patterns.completed(call("other"))
    first = call("good")
    first.work = Work(prompt_tokens=3, fresh=True)
    patterns.completed(first)
    assert patterns.failed(call("good")) is None


def test_weights_that_fail_while_their_base_answers_are_not_available() -> None:
    """From the third failure in a row on; one success, or a base model that fails as well, and they are not accused."""
    patterns, base, adapter = Patterns(), Known(BASE, "s"), Known(ADAPTER, "s")
    with FakeClock() as clock:
        for number in range(5):
            assert patterns.failed(call(number, adapter)) is None
            clock.advance(1)
        patterns.completed(call("x", base))
        assert patterns.failed(call("y", adapter)) == "adapter unavailable"
        patterns.completed(call("z", adapter))
        assert patterns.failed(call("y", adapter)) is None


def test_a_call_is_counted_once() -> None:
    """However often it is reported, and what it was made with is let go of."""
    patterns = Patterns()
    failed = call("bad")
    for _ in range(5):
        patterns.failed(failed)
    assert failed.args is None
    patterns.completed(failed)


def test_payloads_of_the_sdk_are_told_apart() -> None:
    """Equal prompts have equal digests; others, and other settings, have not; what cannot be pickled has none."""

    def digest(tokens: list[int], **settings: Any) -> bytes | None:
        prompt = tinker.ModelInput.from_ints(tokens)
        return digest_of(("client", prompt, 1, tinker.SamplingParams(**settings)), None)

    assert digest([1, 2], seed=1) == digest([1, 2], seed=1) is not None
    assert len({digest([1, 2]), digest([1, 3]), digest([1, 2], seed=2)}) == 3
    assert digest_of(("client", lambda: None), {}) is None


@pytest.mark.parametrize("outcome", ["failed", "completed"])
def test_what_has_no_source_is_left_alone(outcome: str) -> None:
    """Calls that were not made by a method of the SDK."""
    getattr(Patterns(), outcome)(Call("sample", 10, ""))
