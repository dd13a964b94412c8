"""How is a Tinker server broken on purpose? By a reverse proxy in front of it, on a thread of its own.

    with FaultProxy("http://127.0.0.1:8000", Faults.from_file("faults.toml")) as proxy:
        service = tinker.ServiceClient(base_url=proxy.url)

The proxy's thread runs an event loop that owns all state but the log; other threads reach it through the loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from types import TracebackType
from typing import Self, TypeVar

import h11

from tinker_deadlines.lab import actions, batches
from tinker_deadlines.lab.attribution import Attribution
from tinker_deadlines.lab.client_side import ClientSide, ConnectionEnded, WatchedProtocol
from tinker_deadlines.lab.control import CONTROL_PREFIX, answer_control
from tinker_deadlines.lab.exchange import Exchange, UpstreamFailed
from tinker_deadlines.lab.fault_log import FaultLog, Record
from tinker_deadlines.lab.faults import Faults, Rule
from tinker_deadlines.lab.matcher import CONNECTION, Matcher
from tinker_deadlines.lab.upstream import Upstream

STOP_WITHIN_S = 5.0
"""How long `start`, `stop` and `heal` wait for the proxy's thread. It needs milliseconds; this bounds a bug."""
BACKLOG = 1024

_T = TypeVar("_T")


class FaultProxy:
    """A reverse proxy that does to requests what its rules say, and passes all others through unchanged.

    Args:
        upstream: The server's URL, http or https.
        faults: The rules.
        host: The address to listen on; anything but loopback makes the server behind reachable to others.
        port: The port to listen on; 0 takes a free one.
        log_path: A file to which every record is appended as JSON Lines.
        on_fault: Called on the proxy's thread with the record of every request that a fault is done to.

    Raises:
        ValueError: `upstream` is not the URL of an HTTP server.
    """

    def __init__(
        self,
        upstream: str,
        faults: Faults,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        log_path: str | PathLike[str] | None = None,
        on_fault: Callable[[Record], None] | None = None,
    ) -> None:
        self.upstream = Upstream(upstream)
        self.matcher = Matcher(faults)
        self._log = FaultLog(log_path, on_fault)
        self._host, self._port = host, port
        self._core = _Loop(self.upstream, self.matcher, self._log)
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Listens, and returns once connections are accepted.

        Raises:
            OSError: the address cannot be bound, or the log cannot be written.
            RuntimeError: the proxy was started before.
        """
        if self._thread is not None:
            raise RuntimeError("this FaultProxy was started before; make another one")
        self._log.open()
        ready: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._core.run, args=(self._host, self._port, ready), name="tinker-lab-fault-proxy", daemon=True
        )
        self._thread.start()
        try:
            self._port = ready.result(STOP_WITHIN_S)
        except BaseException:
            self._log.close()
            raise
        return self

    def stop(self) -> None:
        """Stops listening and ends every connection, the silent ones too; a second call does nothing."""
        if self._thread is None or not self._thread.is_alive():
            return
        self._core.request_stop()
        self._thread.join(STOP_WITHIN_S)
        self._log.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where clients reach the proxy."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def log(self) -> list[Record]:
        """What was done so far, in the order of arrival."""
        return self._log.records()

    def heal(self, name: str | None = None) -> list[str]:
        """Ends the fault `name`, or all, for all later requests; returns the names of those ended.

        Raises:
            ValueError: no rule has that name.
        """
        return self._on_loop(lambda: self.matcher.heal(name))

    def reset(self) -> None:
        """Starts over: counts, held sessions and futures, healings, the clock and the log in memory."""
        self._on_loop(self._core.reset)

    def _on_loop(self, call: Callable[[], _T]) -> _T:
        if self._thread is None or not self._thread.is_alive():
            return call()
        return self._core.call(call).result(STOP_WITHIN_S)


class _Loop:
    """The event loop of one proxy, and what its connections share."""

    def __init__(self, upstream: Upstream, matcher: Matcher, log: FaultLog) -> None:
        self.upstream, self.matcher, self.log = upstream, matcher, log
        self.attribution = Attribution()
        self.held = batches.HeldCompletions(matcher)
        self._rewrites_batches = batches.concerns_batches(matcher.faults)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._transports: set[asyncio.WriteTransport] = set()
        self._started_at = 0.0
        self._ordinal = 0

    # --- the thread ---

    def run(self, host: str, port: int, ready: concurrent.futures.Future[int]) -> None:
        """The proxy's thread: listens until asked to stop. The port, or why there is none, goes to `ready`."""
        self._loop = asyncio.new_event_loop()
        try:
            self._loop.run_until_complete(self._serve(host, port, ready))
        except BaseException as error:  # it belongs to the thread that waits in start()
            if not ready.done():
                ready.set_exception(error)
        finally:
            self._loop.close()

    async def _serve(self, host: str, port: int, ready: concurrent.futures.Future[int]) -> None:
        loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._started_at = loop.time()
        server = await loop.create_server(
            lambda: WatchedProtocol(self._accept, loop), host, port, backlog=BACKLOG, reuse_address=True
        )
        ready.set_result(server.sockets[0].getsockname()[1])
        await self._stopping.wait()
        server.close()
        for transport in tuple(self._transports):
            transport.abort()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_WITHIN_S / 2)

    def call(self, call: Callable[[], _T]) -> concurrent.futures.Future[_T]:
        """Runs `call` on the loop."""
        result: concurrent.futures.Future[_T] = concurrent.futures.Future()

        def run() -> None:
            try:
                result.set_result(call())
            except BaseException as error:  # it belongs to the thread that asked
                result.set_exception(error)

        assert self._loop is not None
        self._loop.call_soon_threadsafe(run)
        return result

    def request_stop(self) -> None:
        """Asks the loop to end; safe from any thread, and after it has ended."""
        if self._loop is not None and self._stopping is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)

    # --- what exchanges share ---

    def now_s(self) -> float:
        """Seconds since the proxy started, or was reset."""
        return self._loop.time() - self._started_at if self._loop is not None else 0.0

    def next_ordinal(self) -> int:
        """The number of the next record."""
        self._ordinal += 1
        return self._ordinal

    def reset(self) -> None:
        """Starts over, but for what is known of who owns which id."""
        self.matcher.reset()
        self.log.clear()
        self._ordinal = 0
        if self._loop is not None:
            self._started_at = self._loop.time()

    # --- connections ---

    def _accept(self, protocol: WatchedProtocol, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = ClientSide(reader, writer)
        rule = self.matcher.decide(CONNECTION, self.now_s(), "connection")
        if rule is not None:
            client.stop_reading()
        task = asyncio.get_running_loop().create_task(self._connection(client, rule))
        transport = writer.transport
        protocol.on_gone = task.cancel
        self._tasks.add(task)
        self._transports.add(transport)
        task.add_done_callback(lambda done: self._ended(done, protocol, transport))

    def _ended(self, task: asyncio.Task[None], protocol: WatchedProtocol, transport: asyncio.WriteTransport) -> None:
        protocol.on_gone = None
        self._tasks.discard(task)
        self._transports.discard(transport)
        if not task.cancelled() and task.exception() is not None:
            context = {"message": "a connection of the fault proxy failed", "exception": task.exception()}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _connection(self, client: ClientSide, rule: Rule | None) -> None:
        transport = self.upstream.connect()
        try:
            if rule is not None:
                self._log_silent_connection(rule)
                await asyncio.Event().wait()
            while True:
                event = await client.next_event()
                if not isinstance(event, h11.Request):
                    break
                await self._request(Exchange(self, client, transport, event))
                if not client.start_next_request():
                    break
        except (ConnectionEnded, ConnectionError):
            pass
        except h11.RemoteProtocolError as error:
            await _refuse(client, error)
        finally:
            client.close()
            await transport.aclose()

    def _log_silent_connection(self, rule: Rule) -> None:
        record = Record(
            t_s=self.now_s(),
            ordinal=self.next_ordinal(),
            method=CONNECTION.method,
            path=CONNECTION.path,
            kind=None,
            session=None,
            model=None,
            rule=rule.name,
            action=rule.action.do,
        )
        self.log.begin(record)
        self.log.finish(record)

    async def _request(self, exchange: Exchange) -> None:
        try:
            if exchange.path.startswith(CONTROL_PREFIX):
                await exchange.read_body()
                await answer_control(exchange, reset=self.reset)
                return
            await self._decide_and_perform(exchange)
        except UpstreamFailed as error:
            await self._answer_for_upstream(exchange, error)
        finally:
            exchange.finish()
            await exchange.aclose()

    async def _decide_and_perform(self, exchange: Exchange) -> None:
        silent = self.matcher.decide(exchange.facts, self.now_s(), "head")
        if silent is not None:
            exchange.client.stop_reading()
            exchange.begin(silent)
            await exchange.silence()
        facts = await exchange.read_body()
        rule = self.matcher.decide(facts, self.now_s())
        exchange.begin(rule)
        if rule is not None:
            await actions.perform(exchange, rule)
        elif self._rewrites_batches and facts.endpoint == "retrieve_futures":
            await batches.poll(exchange, self.held)
        else:
            await actions.pass_on(exchange)

    async def _answer_for_upstream(self, exchange: Exchange, error: UpstreamFailed) -> None:
        if exchange.record is not None:
            exchange.record.action = "upstream_failed"
        if not exchange.client.can_answer:
            exchange.client.reset()
            raise ConnectionEnded
        detail = f"the fault proxy got no answer from {self.upstream.netloc}: {error}"
        await exchange.answer_json(502, {"detail": detail})


async def _refuse(client: ClientSide, error: h11.RemoteProtocolError) -> None:
    if client.can_answer:
        body = f"the fault proxy cannot read this as HTTP/1.1: {error}\n".encode()
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
        answer = h11.Response(status_code=error.error_status_hint, headers=[*headers, (b"connection", b"close")])
        with suppress(ConnectionError, h11.LocalProtocolError):
            await client.send(answer, h11.Data(data=body), h11.EndOfMessage())
