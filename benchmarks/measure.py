"""How are two ways compared fairly? In shuffled rounds of batches in one run, by the median of the rounds."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

BATCH_S = 0.006
"""Seconds that a batch is made to last: long beside the clock's resolution, short beside a machine's moods."""


class Cost(NamedTuple):
    """Microseconds per call of one way: median, 10th and 90th percentile of the rounds."""

    median_us: float
    p10_us: float
    p90_us: float


def _summary(rounds_us: list[float]) -> Cost:
    ordered = sorted(rounds_us)
    return Cost(statistics.median(ordered), ordered[len(ordered) // 10], ordered[len(ordered) - 1 - len(ordered) // 10])


def compare(ways: dict[str, Callable[[], object]], *, rounds: int, seed: int = 1) -> dict[str, Cost]:
    """Times plain callables against each other."""

    def batch(way: Callable[[], object], times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            way()
        return time.perf_counter() - started

    sizes = {name: _size(lambda n, way=way: batch(way, n)) for name, way in ways.items()}
    results: dict[str, list[float]] = {name: [] for name in ways}
    order, dice = list(ways), random.Random(seed)
    for _ in range(rounds):
        dice.shuffle(order)
        for name in order:
            results[name].append(batch(ways[name], sizes[name]) / sizes[name] * 1e6)
    return {name: _summary(results[name]) for name in ways}


async def compare_async(
    ways: dict[str, Callable[[], Awaitable[object]]], *, rounds: int, seed: int = 1
) -> dict[str, Cost]:
    """Times coroutine functions against each other on the running loop."""

    async def batch(way: Callable[[], Awaitable[object]], times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            await way()
        return time.perf_counter() - started

    sizes = {}
    for name, way in ways.items():
        times = 4
        while (took := await batch(way, times)) < BATCH_S / 2:
            times *= 2
        sizes[name] = max(4, int(times * BATCH_S / took))
    results: dict[str, list[float]] = {name: [] for name in ways}
    order, dice = list(ways), random.Random(seed)
    for _ in range(rounds):
        dice.shuffle(order)
        for name in order:
            results[name].append(await batch(ways[name], sizes[name]) / sizes[name] * 1e6)
    return {name: _summary(results[name]) for name in ways}


def _size(batch: Callable[[int], float]) -> int:
    times = 4
    while (took := batch(times)) < BATCH_S / 2:
        times *= 2
    return max(4, int(times * BATCH_S / took))
