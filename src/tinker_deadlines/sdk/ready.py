"""Are fresh weights ready for a wave of samples? Small ones go out over many streams at once until all are answered."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, TypeGuard, cast

from tinker import ModelInput, SamplingClient, SamplingParams

from tinker_deadlines import clock
from tinker_deadlines.calls import Work
from tinker_deadlines.limits import READY_STREAMS
from tinker_deadlines.sdk.facts import known_of
from tinker_deadlines.waiting.aio import await_with_deadline
from tinker_deadlines.waiting.futures import DeadlineFuture, source_of, wait_with_deadline

__all__ = ["ready", "ready_async"]

_WORK = Work(prompt_tokens=1, max_tokens=1, num_samples=1, fresh=True)


def ready(sampler: SamplingClient | DeadlineFuture[SamplingClient], streams: int = READY_STREAMS) -> float:
    """Warms fresh weights: sends small samples over several streams at once, and waits until each is answered.

    Where weights were published just now, a fifth of the first wave was seen to be lost. These calls carry `fresh`
    work, so that they are given the time that it takes, and what it takes is not learned as the time of a sample.

    Args:
        sampler: A sampling client, or the SDK's future of one.
        streams: How many samples are sent at once.

    Returns:
        Seconds until the last one was answered.

    Raises:
        ValueError: `streams` is below 1.
        TinkerDeadlineError: one of them ran into its limit.
        BudgetExhaustedError: an enclosing budget ran out.
        BaseException: whatever one of them, or the making of the client, raised.
    """
    started_at = clock.monotonic()
    sent: list[Any] = []
    try:
        client = wait_with_deadline("connect", sampler) if _is_future(sampler) else sampler
        _send(client, streams, sent)
        for sample in sent:
            wait_with_deadline("sample", sample, _WORK)
    finally:
        _let_go(sent)
    return clock.monotonic() - started_at


async def ready_async(sampler: SamplingClient | DeadlineFuture[SamplingClient], streams: int = READY_STREAMS) -> float:
    """Does what `ready` does, for async code: it is awaited, and the event loop goes on meanwhile."""
    started_at = clock.monotonic()
    sent: list[Any] = []
    try:
        client = await await_with_deadline("connect", cast(Any, sampler)) if _is_future(sampler) else sampler
        _send(client, streams, sent)
        await asyncio.gather(*(await_with_deadline("sample", sample, _WORK) for sample in sent))
    finally:
        _let_go(sent)
    return clock.monotonic() - started_at


def _is_future(sampler: object) -> TypeGuard[DeadlineFuture[SamplingClient]]:
    return hasattr(sampler, "result")  # in some versions it is a sampling client as well


def _send(client: Any, streams: int, sent: list[Any]) -> None:
    if streams < 1:
        raise ValueError(f"streams is {streams}; it must be at least 1")
    known = known_of(client)
    for _ in range(streams):
        if known is not None:
            known.used = False  # each of them is the first on its stream
        # Token 0 is a token of every vocabulary.
        sent.append(client.sample(ModelInput.from_ints([0]), 1, SamplingParams(max_tokens=1)))


def _let_go(sent: list[Any]) -> None:
    """Cancels what is not answered yet: it holds no turn, and nobody waits for it any more."""
    for sample in sent:
        inner = source_of(sample)
        if isinstance(inner, Future):
            inner.cancel()
