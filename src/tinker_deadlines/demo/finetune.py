"""How is a model finetuned on a text? An ordinary Tinker script that waits for its steps a few steps later.

It knows nothing of this library. Each step's loss is printed with all its digits, so that two runs can be compared.
"""

from __future__ import annotations

import argparse
from collections import deque
from typing import Any

import tinker
from tinker import types

TEXT = "a call that returned is applied once; a call that raised is not applied at all. "
RATE = 0.01
AHEAD = 2


def batch(tokens: list[int], step: int) -> list[types.Datum]:
    """The datums of a step: the text, begun at another place each time."""
    turned = tokens[step % len(tokens) :] + tokens[: step % len(tokens)]
    weights = types.TensorData(data=[1.0] * (len(turned) - 1), dtype="float32")
    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(turned[:-1]),
            loss_fn_inputs={"target_tokens": types.TensorData(data=turned[1:], dtype="int64"), "weights": weights},
        )
    ]


def finish(step: int, computed: Any, stepped: Any) -> None:
    """Waits for a step and says its loss."""
    loss = computed.result().metrics["loss:sum"]
    stepped.result()
    print(f"loss {step} {loss!r}", flush=True)


def main() -> None:
    """Finetunes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=16)
    options = parser.parse_args()
    service = tinker.ServiceClient(base_url=options.base_url)
    training = service.create_lora_training_client(base_model=options.model, rank=8, seed=1).result()
    tokens = list(TEXT.encode())
    waiting: deque[tuple[int, Any, Any]] = deque()
    for step in range(1, options.steps + 1):
        computed = training.forward_backward(batch(tokens, step), "cross_entropy")
        waiting.append((step, computed, training.optim_step(types.AdamParams(learning_rate=RATE))))
        if step % 8 == 0:
            training.save_state(f"step-{step}").result()
        if len(waiting) > AHEAD:
            finish(*waiting.popleft())
    for each in waiting:
        finish(*each)


if __name__ == "__main__":
    main()
