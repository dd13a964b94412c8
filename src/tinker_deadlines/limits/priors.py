"""How much work is how much time, before anything is learned? The priors of the work model, each with its source.

Seconds that a call is expected to take. They are drawn from the few figures that public issue threads and run logs
give, each within a factor of about three, and need not be better: the law of elapsed / predicted is learned, and it is
wide while it is not. Seconds of the terms that depend on the model are those of a 4B model.
"""

from __future__ import annotations

from typing import NamedTuple

from tinker_deadlines.calls import TinkerCallKind

__all__ = [
    "KNOWN_MODELS",
    "MIDDLE_MODEL",
    "SIZE_EXTRA_B",
    "SIZE_REFERENCE_B",
    "WORK_PRIORS",
    "WorkPrior",
    "WorkTerm",
]


class WorkTerm(NamedTuple):
    """What one size of a call's work adds to its time."""

    size: str
    """The field of `Work`."""
    seconds: float
    """Per unit, on a 4B model where `by_model`."""
    typical: int
    """What counts where the size is not known."""
    by_model: bool = True
    """Whether a larger model takes longer for it."""
    per: int = 1
    """A unit is so many of the size, the last one counted in full."""


class WorkPrior(NamedTuple):
    """What a call of one kind takes: seconds whatever its work, and the terms of its work."""

    seconds: float
    terms: tuple[WorkTerm, ...] = ()
    varies: bool = False
    """Whether its work varies so much that a typical call says little of one whose work is not known: such a call
    gets no less than the flat default."""


# Reading a prompt: 10,000 tokens a second on a 4B model; a prompt of 4,000 tokens was sampled from in 1.7 s in all, and
# 240k tokens on a 120B model took more than 120 s, which this puts at 50 s to 180 s by the kind of model.
_PROMPT_S = 1e-4

WORK_PRIORS: dict[TinkerCallKind, WorkPrior] = {
    # Trivial samples 2.4 s, short ones of small students 2.8 s at the mean, 7.7 s at p95, 10.2 s at most. Of the tokens
    # allowed, a third or so are generated, at 130 a second: 2.5 ms for each allowed one. `num_samples` is no term:
    # the samples of one prompt are generated side by side, and the longest of them is bounded by `max_tokens` too.
    "sample": WorkPrior(
        0.8, (WorkTerm("prompt_tokens", _PROMPT_S, 4096), WorkTerm("max_tokens", 2.5e-3, 2048)), varies=True
    ),
    # Small ones took 1.5 s at most.
    "compute_logprobs": WorkPrior(0.8, (WorkTerm("prompt_tokens", _PROMPT_S, 4096),), varies=True),
    # Small ones 1.5 s to 2.7 s at the mean, 10.2 s at most; the service's training cycles last up to 10 s. Per token,
    # the middle, by ratio, of two figures that lie a factor of thirty apart: SFT steps of 128 datums in 4.0 s on a 4B
    # model, and 1,200 s to 1,800 s for 256k tokens in one context on a 397B model. The SDK cuts a batch into requests
    # of 1,024 datums, which run one after the other.
    "forward_backward": WorkPrior(
        3.0, (WorkTerm("tokens", 1e-4, 65536), WorkTerm("datums", 1.0, 128, per=1024)), varies=True
    ),
    # Small ones 0.5 s, within a cycle of up to 10 s. On one model 512 datums took more than 120 s, 62 datums less.
    "optim_step": WorkPrior(2.0, (WorkTerm("datums", 0.02, 128),)),
    # 2.4 s small, 5.3 s at the mean for an adapter's export, 14 s for rank 32 on Kimi-K2.5. The optimizer's state grows
    # with the rank; a save waits for the step before it, which grows with its datums.
    "save_state": WorkPrior(4.0, (WorkTerm("rank", 0.05, 32), WorkTerm("datums", 0.01, 0))),
    # 4.4 s at the mean, 18 s at most, and one outlier of 80 s.
    "save_weights_for_sampler": WorkPrior(4.0, (WorkTerm("rank", 0.05, 32), WorkTerm("datums", 0.01, 0))),
    # A 120B model with its optimizer took more than 120 s and was allowed 600 s.
    "load_state": WorkPrior(4.0, (WorkTerm("rank", 0.1, 32),)),
    # A service or sampling client 0.5 s to 0.7 s, a session 1.3 s over HTTP; a training client, the one with a rank,
    # 8 s to 15 s on a 1B model.
    "connect": WorkPrior(2.0, (WorkTerm("rank", 0.2, 0, by_model=False),)),
    # From a list of runs in a tenth of a second to an archive of a checkpoint in minutes.
    "rest": WorkPrior(2.0),
}

# How the time grows with the model. Mean seconds per SFT step of batch 128 in a published sweep over 35 models follow
# 3 + 0.2 e, with e the geometric mean of total and active parameters in billions, nearly all within a factor of two:
# Qwen3-4B 4.0, Llama-3.1-8B 6.6, gpt-oss-120b 8.7, Qwen3-30B-A3B 8.0 to 12.5, Qwen3-235B-A22B 20.3, Kimi-K2.6 32.9,
# Llama-3.1-70B 26.4, Qwen3.5-397B-A17B 29.7. So the time goes as 15 + e, and the reference is e = 4.
SIZE_EXTRA_B = 15.0
SIZE_REFERENCE_B = 4.0

# Models whose names do not say their parameters: (total, active) in billions, from their model cards. The longest
# beginning of the name's last part that is listed counts. Of Kimi-K3 no figure is known here; it counts as K2.
KNOWN_MODELS: dict[str, tuple[float, float]] = {
    "deepseek-r1": (671.0, 37.0),
    "deepseek-v3": (671.0, 37.0),
    "gpt-oss-120b": (117.0, 5.1),
    "gpt-oss-20b": (21.0, 3.6),
    "kimi-k": (1000.0, 32.0),
}

# A model of which nothing is known counts as a dense one of 30B: in the middle, by ratio, of the 1B to 1000B on offer.
MIDDLE_MODEL = (30.0, 30.0)
