"""A training run as a script makes one: pipelined, with saves of its own. It prints each step's loss to the last digit.

usage: python train.py URL MODEL [STEPS] [KILL_AT]
"""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from typing import Any

import tinker
from tinker import types

AHEAD = 2


def batch(step: int) -> list[types.Datum]:
    """Two datums that are different for each step."""
    tokens = [(7 * step + 3 * place) % 200 + 1 for place in range(24)]
    weights = types.TensorData(data=[1.0] * 23, dtype="float32")
    inputs = {"target_tokens": types.TensorData(data=tokens[1:], dtype="int64"), "weights": weights}
    return [types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)] * 2


def begin(url: str, model: str) -> Any:
    """Makes a training client."""
    service = tinker.ServiceClient(base_url=url, api_key="tml-test")
    made = service.create_lora_training_client(base_model=model, rank=4, seed=1)
    return made.result() if hasattr(made, "result") else made


def train(client: Any, steps: int = 40, save_every: int = 8, say: Any = None) -> list[str]:
    """Trains, a few steps ahead of what it waits for; returns the loss of each step with all its digits."""
    losses: list[str] = []
    waiting: deque[tuple[Any, Any]] = deque()

    def finish(computed: Any, stepped: Any) -> None:
        losses.append(repr(computed.result().metrics["loss:sum"]))
        stepped.result()
        if say is not None:
            say(len(losses), losses[-1])

    for step in range(1, steps + 1):
        computed = client.forward_backward(batch(step), "cross_entropy")
        waiting.append((computed, client.optim_step(types.AdamParams(learning_rate=0.01))))
        if step % save_every == 0:
            client.save_state(f"step-{step}").result()
        while len(waiting) > AHEAD:
            finish(*waiting.popleft())
    while waiting:
        finish(*waiting.popleft())
    return losses


def main() -> None:
    """Trains by the arguments of the command line."""
    url, model = sys.argv[1:3]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 40
    kill_at = int(sys.argv[4]) if len(sys.argv) > 4 else 0

    def say(step: int, loss: str) -> None:
        print(f"loss {step} {loss}", flush=True)
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    train(begin(url, model), steps, say=say)


if __name__ == "__main__":
    main()
