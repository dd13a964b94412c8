"""Which completions may a batch poll report? That is `/retrieve_futures`, where many futures are polled at a time.

Newer SDKs can wait for all samples of a sampling session with one long poll that returns completed ids and a cursor.
A future that a fault holds is taken out of such an answer, and put into a later one when the fault lets go of it.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import httpx

from tinker_deadlines.lab.attribution import Facts
from tinker_deadlines.lab.exchange import Exchange
from tinker_deadlines.lab.faults import Faults, FutureNeverCompletes, TryAgain
from tinker_deadlines.lab.matcher import Matcher

RELEASE_CHECK_S = 0.1
"""How late, at most, a released completion is reported to a poll that is waiting at the server. Arbitrary."""


def concerns_batches(faults: Faults) -> bool:
    """Whether any rule can hold a future."""
    return any(isinstance(rule.action, TryAgain | FutureNeverCompletes) for rule in faults.rules)


class HeldCompletions:
    """The completions that were taken out of batch answers, by poll target."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._held: dict[str, dict[str, Any]] = {}

    def hold(self, target: str, completion: Any) -> None:
        """Keeps a completion until its fault lets go of it."""
        self._held.setdefault(target, {})[completion["request_id"]] = completion

    def release(self, target: str, now_s: float) -> list[Any]:
        """Takes out the completions that nothing holds any more."""
        held = self._held.get(target, {})
        free = [
            request_id
            for request_id in held
            if self._matcher.holder(Facts("POST", "-", phase="poll", request_id=request_id), now_s) is None
        ]
        return [held.pop(request_id) for request_id in free]


async def poll(exchange: Exchange, held: HeldCompletions) -> None:
    """Answers a batch poll with the server's completions, less those held, plus those released."""
    document = _object(bytes(exchange.body))
    target = json.dumps(document.get("target"), sort_keys=True)
    fetching = asyncio.ensure_future(_fetch(exchange))
    try:
        while True:
            released = held.release(target, exchange.core.now_s())
            if released:
                await exchange.answer_json(200, {"completions": released, "cursor": document.get("prev_cursor", 0)})
                return
            done, _ = await asyncio.wait([fetching], timeout=RELEASE_CHECK_S)
            if done:
                response, body = fetching.result()
                await _answer(exchange, held, target, response, body)
                return
    finally:
        fetching.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await fetching


async def _fetch(exchange: Exchange) -> tuple[httpx.Response, bytes]:
    response = await exchange.forward(identity=True)
    body, _ = await exchange.read_answer(response)
    return response, body


async def _answer(
    exchange: Exchange, held: HeldCompletions, target: str, response: httpx.Response, body: bytes
) -> None:
    if exchange.silenced_meanwhile():
        await exchange.silence()
    document = _object(body)
    completions = document.get("completions")
    if response.status_code == 200 and isinstance(completions, list):
        document["completions"] = [one for one in completions if not _is_held(exchange, held, target, one)]
        await exchange.answer_json(200, document)
        return
    headers = [(name, value) for name, value in response.headers.raw if name.lower() == b"content-type"]
    await exchange.answer(response.status_code, headers, body)


def _is_held(exchange: Exchange, held: HeldCompletions, target: str, completion: Any) -> bool:
    request_id = completion.get("request_id") if isinstance(completion, dict) else None
    if not isinstance(request_id, str):
        return False
    core = exchange.core
    rule = core.matcher.decide_future(core.attribution.poll_of(request_id, exchange.facts), core.now_s())
    if rule is None:
        return False
    held.hold(target, completion)
    exchange.mark(rule)
    return True


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
