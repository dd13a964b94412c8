"""What does each fault do to the request that it takes? One function an action."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httpx

from tinker_deadlines.lab.client_side import ConnectionEnded
from tinker_deadlines.lab.exchange import Exchange
from tinker_deadlines.lab.faults import (
    AuthBlackhole,
    Delay,
    Drip,
    FutureNeverCompletes,
    HeadersThenSilence,
    LoseAnswer,
    NeverAnswers,
    RefuseHeartbeat,
    Reset,
    Rule,
    SilenceSession,
    Status,
    TryAgain,
)
from tinker_deadlines.lab.upstream import end_to_end


async def perform(exchange: Exchange, rule: Rule) -> None:
    """Does what `rule` says to the request, of which everything is known and nothing answered."""
    await _PERFORM[type(rule.action)](exchange, rule)


async def pass_on(exchange: Exchange) -> None:
    """Forwards the request and relays its answer: no fault, unless its session falls silent meanwhile."""
    await exchange.relay(await exchange.forward())


async def _never_answers(exchange: Exchange, rule: Rule) -> None:
    await exchange.drain()
    await exchange.silence()


async def _headers_then_silence(exchange: Exchange, rule: Rule) -> None:
    response = await exchange.forward()
    body, _ = await exchange.read_answer(response)
    exchange.learn(response, body)
    headers = end_to_end(response.headers.raw)
    if not body:  # a head that promises nothing would be a whole answer
        headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    status = response.status_code if response.status_code not in (204, 304) else 200
    await exchange.start_answer(status, headers)
    await exchange.silence()


async def _drip(exchange: Exchange, rule: Rule) -> None:
    interval_s = cast(Drip, rule.action).interval_s
    response = await exchange.forward()
    body, _ = await exchange.read_answer(response)
    exchange.learn(response, body)
    await exchange.start_answer(response.status_code, end_to_end(response.headers.raw))
    for byte in body:
        await asyncio.sleep(interval_s)
        await exchange.send_data(bytes((byte,)))
    await exchange.end_answer()


async def _delay(exchange: Exchange, rule: Rule) -> None:
    response = await exchange.forward()
    await asyncio.sleep(cast(Delay, rule.action).delay_s)
    await exchange.relay(response)


async def _reset(exchange: Exchange, rule: Rule) -> None:
    await exchange.drain()
    exchange.client.reset()
    raise ConnectionEnded


async def _lose_answer(exchange: Exchange, rule: Rule) -> None:
    response = await exchange.forward()
    await exchange.read_answer(response)
    await exchange.drain()
    match cast(LoseAnswer, rule.action).then:
        case "reset":
            exchange.client.reset()
        case "close":
            exchange.client.close()
        case "silence":
            await exchange.silence()
    raise ConnectionEnded


async def _status(exchange: Exchange, rule: Rule) -> None:
    action = cast(Status, rule.action)
    headers = [(name.encode(), value.encode()) for name, value in action.headers]
    if not any(name.lower() == b"content-type" for name, _ in headers):
        kind = b"application/json" if action.body[:1] in ("{", "[") else b"text/plain; charset=utf-8"
        headers.append((b"content-type", kind))
    await exchange.answer(action.status, headers, action.body.encode())


async def _refuse_heartbeat(exchange: Exchange, rule: Rule) -> None:
    status = cast(RefuseHeartbeat, rule.action).status
    await exchange.answer_json(status, {"detail": f"The session is not served any more (fault {rule.name!r})."})


async def _try_again(exchange: Exchange, rule: Rule) -> None:
    action = cast(TryAgain | FutureNeverCompletes, rule.action)
    if exchange.facts.phase != "poll":
        await _hold_future(exchange, rule)
        return
    # A server answers a poll when something happened or a while has passed; answered at once, the SDK would spin.
    await asyncio.sleep(action.interval_s)
    answer = {"type": "try_again", "request_id": exchange.facts.request_id, "queue_state": action.queue_state}
    if action.queue_state_reason:
        answer["queue_state_reason"] = action.queue_state_reason
    await exchange.answer_json(408, answer)


async def _hold_future(exchange: Exchange, rule: Rule) -> None:
    response: httpx.Response = await exchange.forward()
    announced = await exchange.relay(response, hold=rule)
    if announced is None and exchange.record is not None:
        exchange.record.action = f"{rule.action.do} (the server announced no future)"


_PERFORM: dict[type[Any], Callable[[Exchange, Rule], Awaitable[None]]] = {
    NeverAnswers: _never_answers,
    AuthBlackhole: _never_answers,
    SilenceSession: _never_answers,
    HeadersThenSilence: _headers_then_silence,
    Drip: _drip,
    Delay: _delay,
    Reset: _reset,
    LoseAnswer: _lose_answer,
    Status: _status,
    RefuseHeartbeat: _refuse_heartbeat,
    TryAgain: _try_again,
    FutureNeverCompletes: _try_again,
}
