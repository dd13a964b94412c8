"""How is one request carried out, and what bears witness to it? Latency, a worker thread, and the execution log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from .latency import Latency, Work
from .promises import Failure, Promise
from .refusal import Refused
from .wire import Result

Act = Callable[[], Result]
WORKERS = 2  # numpy holds the interpreter for most of a small model's work, so more would only queue elsewhere


@dataclass(frozen=True)
class Execution:
    """One request that was really carried out."""

    ordinal: int
    session_id: str
    model_id: str
    seq_id: int
    type: str
    request_id: str
    started_at: float
    duration_s: float
    failed: bool


class Executor:
    """Carries out requests and writes down that it did."""

    def __init__(self, latency: Latency) -> None:
        self._latency = latency.sampler()
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="tinker-lab-work")
        self._log: list[Execution] = []
        self.in_flight = 0

    def executions(self) -> list[dict[str, Any]]:
        """Returns what was executed, in order; may be called from any thread."""
        return [asdict(execution) for execution in list(self._log)]

    async def carry_out(self, promise: Promise, act: Act, work: Work) -> None:
        """Waits as long as the latency model says, does the work, and fulfils the promise.

        A promise that was settled meanwhile (its caller cancelled, its session ended) is not executed.
        """
        delay_s = self._latency.draw_s(promise.kind, work, self.in_flight)
        self.in_flight += 1
        try:
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            if promise.done.is_set():
                return
            started_at, started_s = time.time(), time.monotonic()
            outcome = await asyncio.get_running_loop().run_in_executor(self._pool, _attempt, act)
            self._write_down(promise, outcome, started_at, time.monotonic() - started_s)
            promise.finish(outcome)
        finally:
            self.in_flight -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _write_down(self, promise: Promise, outcome: Result | Failure, started_at: float, duration_s: float) -> None:
        self._log.append(
            Execution(
                ordinal=len(self._log),
                session_id=promise.session_id,
                model_id=promise.model_id,
                seq_id=promise.seq_id,
                type=promise.kind,
                request_id=promise.request_id,
                started_at=started_at,
                duration_s=duration_s,
                failed=isinstance(outcome, Failure),
            )
        )


def _attempt(act: Act) -> Result | Failure:
    try:
        return act()
    except Refused as refused:
        return Failure(refused.detail)
    except Exception as error:  # whatever goes wrong in a request is that request's outcome
        return Failure(f"{type(error).__name__}: {error}", "server")
