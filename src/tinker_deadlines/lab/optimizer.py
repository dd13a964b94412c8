"""How does an optimizer step change the adapters? AdamW, as the service documents it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .model import Lora


@dataclass(frozen=True)
class AdamParams:
    """The numbers of one step; the defaults are the SDK's."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


def adam_step(lora: Lora, params: AdamParams) -> dict[str, float]:
    """Applies the accumulated gradients, forgets them, and returns the step's metrics.

    `grad_clip_norm` 0 means no clipping. Weight decay is decoupled from the gradient.
    """
    norm = float(np.sqrt(sum(float((grad**2).sum()) for _, _, grad in lora.parameters())))
    clip = params.grad_clip_norm
    factor = clip / norm if 0 < clip < norm else 1.0
    lora.step += 1
    bias1 = 1.0 - params.beta1**lora.step
    bias2 = 1.0 - params.beta2**lora.step
    for name, value, grad in lora.parameters():
        grad = grad * factor
        first = lora.moments.setdefault(f"{name}.first", np.zeros_like(value))
        second = lora.moments.setdefault(f"{name}.second", np.zeros_like(value))
        first += (1.0 - params.beta1) * (grad - first)
        second += (1.0 - params.beta2) * (grad**2 - second)
        value *= 1.0 - params.learning_rate * params.weight_decay
        value -= params.learning_rate * (first / bias1) / (np.sqrt(second / bias2) + params.eps)
    lora.changed()
    return {"grad_norm": norm, "step": float(lora.step)}
