"""How answers are kept: equal when they are read, and nothing is run by reading them."""

from __future__ import annotations

import base64
import os
import pickle
from typing import Any

import pytest
from tinker import types

from tinker_deadlines.recovery.digest import digest_of
from tinker_deadlines.sdk.results import as_text, from_text

TENSOR = types.TensorData(data=[0.1, -3.3, 1e-30], dtype="float32", shape=[3])
ANSWERS = [
    types.ForwardBackwardOutput(
        loss_fn_output_type="x", loss_fn_outputs=[{"logprobs": TENSOR}], metrics={"loss:sum": 0.1 + 0.2}
    ),
    types.OptimStepResponse(metrics={"norm": 1 / 3}),
    types.SaveWeightsResponse(path="tinker://run/weights/one"),
]


@pytest.mark.matrix
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_an_answer_comes_back_to_the_last_bit(answer: Any) -> None:
    """Every number of it, in the SDK's own class."""
    again = from_text(as_text(answer))
    assert type(again) is type(answer)
    assert digest_of(again) == digest_of(answer)


class Attack:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("echo ran > /dev/null",)


@pytest.mark.parametrize("what", [Attack(), os.system, eval], ids=["a command", "a function", "a builtin"])
def test_a_file_that_somebody_changed_runs_nothing(what: Any) -> None:
    """What is no answer of the SDK is refused by name."""
    with pytest.raises(pickle.UnpicklingError, match="an answer has no"):
        from_text(base64.b85encode(pickle.dumps(what)).decode())
