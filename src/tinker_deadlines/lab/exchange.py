"""How does one request pass through the proxy? It is read, attributed, decided on, forwarded and relayed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Protocol, cast

import h11
import httpx

from tinker_deadlines.lab.attribution import Attribution, Facts
from tinker_deadlines.lab.client_side import ClientSide, ConnectionEnded
from tinker_deadlines.lab.fault_log import FaultLog, Record
from tinker_deadlines.lab.faults import Rule, SilenceSession
from tinker_deadlines.lab.matcher import Matcher
from tinker_deadlines.lab.upstream import Upstream, end_to_end

HELD_BODY_BYTES = 16 * 1024 * 1024
"""A rule is decided on once this much of a body is read, or all of it; the rest is streamed. The SDK names the session
of a sample behind its prompt, and keeps at most 10 MB of prompts in dispatch."""
HELD_ANSWER_BYTES = 64 * 1024
"""Answers that may name ids are read up to here before they are passed on, so that no later request outruns them."""


class Core(Protocol):
    """What the exchanges of one proxy share."""

    upstream: Upstream
    matcher: Matcher
    attribution: Attribution
    log: FaultLog

    def now_s(self) -> float:
        """Seconds since the proxy started."""

    def next_ordinal(self) -> int:
        """The number of the next record."""


class UpstreamFailed(Exception):
    """The server could not be reached, or broke off before it answered."""


class Exchange:
    """One request and its answer."""

    def __init__(
        self, core: Core, client: ClientSide, transport: httpx.AsyncHTTPTransport, request: h11.Request
    ) -> None:
        self.core = core
        self.client = client
        self.method = request.method.decode("ascii")
        self.target = request.target
        self.path = request.target.partition(b"?")[0].decode("ascii", "replace")
        self.headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        self.raw_headers = request.headers.raw_items()
        self.body = bytearray()
        self.body_complete = False
        self.facts = Facts(self.method, self.path)
        self.record: Record | None = None
        self._transport = transport
        self._response: httpx.Response | None = None
        self._started_s = core.now_s()

    # --- the request ---

    async def read_body(self) -> Facts:
        """Reads the body, as far as it is held, and says whose request it is."""
        while not self.body_complete and len(self.body) < HELD_BODY_BYTES:
            self.body += await self._next_data() or b""
        self.facts = self.core.attribution.facts(self.method, self.path, self.headers, bytes(self.body))
        return self.facts

    async def drain(self) -> None:
        """Reads what is left of the request and drops it."""
        while not self.body_complete:
            await self._next_data()

    async def _next_data(self) -> bytes | None:
        event = await self.client.next_event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            self.body_complete = True
            return None
        raise ConnectionEnded

    async def _stream(self) -> AsyncIterator[bytes]:
        yield bytes(self.body)
        while not self.body_complete:
            data = await self._next_data()
            if data:
                yield data

    # --- the server ---

    async def forward(self, *, identity: bool = False) -> httpx.Response:
        """Sends the request to the server and returns its answer, of which only the head has been read.

        Args:
            identity: Ask for an answer without content encoding, whatever the client accepts.

        Raises:
            UpstreamFailed: there is no answer.
        """
        headers = self.raw_headers
        if identity:
            headers = [(name, value) for name, value in headers if name.lower() != b"accept-encoding"]
        content = bytes(self.body) if self.body_complete else self._stream()
        request = self.core.upstream.request(self.method, self.target, headers, content)
        try:
            self._response = await self._transport.handle_async_request(request)
        except httpx.TransportError as error:
            raise UpstreamFailed(str(error) or type(error).__name__) from error
        return self._response

    async def aclose(self) -> None:
        """Lets go of the server's answer, read or not."""
        response, self._response = self._response, None
        if response is not None:
            await cast(httpx.AsyncByteStream, response.stream).aclose()

    async def read_answer(
        self, response: httpx.Response, most: int | None = None
    ) -> tuple[bytes, AsyncIterator[bytes]]:
        """The answer's body, up to about `most` bytes, and what follows it."""
        chunks = aiter(cast(httpx.AsyncByteStream, response.stream))
        held = bytearray()
        try:
            while most is None or len(held) < most:
                held += await anext(chunks)
        except StopAsyncIteration:
            pass
        except httpx.TransportError as error:
            raise UpstreamFailed(str(error) or type(error).__name__) from error
        return bytes(held), chunks

    # --- the answer ---

    async def relay(self, response: httpx.Response, hold: Rule | None = None) -> str | None:
        """Passes the server's answer on; returns the id of the future it announces, if any, which `hold` then holds."""
        if self.silenced_meanwhile():
            await self.silence()
        attribution, announced, rest = self.core.attribution, None, None
        held = b""
        if attribution.learns_from(self.facts) and "json" in response.headers.get("content-type", ""):
            held, rest = await self.read_answer(response, HELD_ANSWER_BYTES)
            announced = self.learn(response, held)
        if hold is not None and announced is not None:
            self.core.matcher.hold_future(announced, hold)
        await self.start_answer(response.status_code, end_to_end(response.headers.raw), held)
        await self._relay_rest(rest if rest is not None else aiter(cast(httpx.AsyncByteStream, response.stream)))
        return announced

    def learn(self, response: httpx.Response, answer: bytes) -> str | None:
        """Keeps the ids in an answer; returns the id of the future it announces, if any."""
        if response.status_code != 200:
            return None
        learned = self.core.attribution.learn(self.facts, answer, response.headers.get("content-encoding", ""))
        if self.record is not None and self.record.session is None:
            self.record.session = learned.session
        return learned.future

    async def _relay_rest(self, chunks: AsyncIterator[bytes]) -> None:
        try:
            async for chunk in chunks:
                await self.send_data(chunk)
        except httpx.TransportError:
            # The head is out: the only honest way left to say that the server broke off is to break off.
            self.client.reset()
            raise ConnectionEnded from None
        await self.end_answer()

    async def start_answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
        """Sends the head of an answer, and the beginning of its body with it."""
        if self.record is not None:
            self.record.status = status
            self.record.bytes = len(body)
        head = h11.Response(status_code=status, headers=headers, reason=_reason(status))
        await self.client.send(head, *([h11.Data(data=body)] if body else []))

    async def send_data(self, data: bytes) -> None:
        """Sends a piece of the body."""
        if self.record is not None:
            self.record.bytes = (self.record.bytes or 0) + len(data)
        await self.client.send(h11.Data(data=data))

    async def end_answer(self) -> None:
        """Ends the answer, once the request has been read to its end."""
        await self.drain()
        await self.client.send(h11.EndOfMessage())

    async def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Answers in the server's place."""
        await self.drain()
        bodiless = status in (204, 304)
        if not bodiless:
            headers = [*headers, (b"content-length", str(len(body)).encode())]
        await self.start_answer(status, headers, b"" if bodiless or self.method == "HEAD" else body)
        await self.end_answer()

    async def answer_json(self, status: int, document: object) -> None:
        """Answers in the server's place with JSON."""
        await self.answer(status, [(b"content-type", b"application/json")], json.dumps(document).encode())

    # --- silence and the record ---

    async def silence(self) -> None:
        """Says nothing until the client goes or the proxy stops."""
        self.finish()
        await asyncio.Event().wait()

    def begin(self, rule: Rule | None) -> None:
        """Opens the request's record."""
        self.record = Record(
            t_s=self._started_s,
            ordinal=self.core.next_ordinal(),
            method=self.method,
            path=self.path,
            kind=self.facts.kind,
            session=self.facts.session,
            model=self.facts.model or self.facts.base_model,
            rule=rule.name if rule else None,
            action=rule.action.do if rule else "pass",
        )
        self.core.log.begin(self.record)

    def finish(self) -> None:
        """Closes the request's record, once."""
        record, self.record = self.record, None
        if record is not None:
            if record.status is not None:
                record.duration_s = self.core.now_s() - self._started_s
            self.core.log.finish(record)

    def mark(self, rule: Rule) -> None:
        """Notes in the record that `rule` took the request after it had begun as one without a fault."""
        if self.record is not None:
            self.record.rule, self.record.action = rule.name, rule.action.do
            self.core.log.say(self.record)

    def silenced_meanwhile(self) -> bool:
        """Whether the session fell silent while the server was being waited for."""
        holder = self.core.matcher.holder(self.facts, self.core.now_s())
        if holder is None or not isinstance(holder.action, SilenceSession):
            return False
        self.mark(holder)
        return True


def _reason(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""
