"""A TCP relay whose other end can vanish: nothing here knows HTTP, so nothing here can answer by mistake."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

from tinker_deadlines.waiting.workers import workers

Mode = Literal["pass", "silent", "headers", "drip", "slow", "refuse"]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"


@functools.cache
def _shared_loop() -> asyncio.AbstractEventLoop:
    """One loop for all switches, for as long as the process lives: what a test left open closes there later."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="switches", daemon=True).start()
    return loop


class Switch:
    """Relays to `upstream` while `mode` is "pass"; otherwise what arrives is read and goes nowhere.

    Modes: "silent" says nothing, "headers" answers with headers and no body, "drip" goes on with a byte of white
    space every `interval_s`, "slow" relays each piece `delay_s` late, "refuse" resets connections.
    """

    def __init__(self, upstream: str) -> None:
        self.mode: Mode = "pass"
        self.interval_s = 0.05
        self.delay_s = 1.0
        self.accepted = 0
        self.bytes_in = 0
        address = urlsplit(upstream)
        self._upstream = (address.hostname, address.port)
        self._loop = _shared_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    def __enter__(self) -> Self:
        self._server = self._on_loop(asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=1024))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_loop(self._stop())

    def drop(self) -> None:
        """Resets every connection."""
        self._on_loop(self._drop())

    def _on_loop(self, coroutine: object) -> object:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(5)

    async def _drop(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _stop(self) -> None:
        self._server.close()
        await self._drop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # aborted connections are closed by callbacks

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        answers: asyncio.Task[None] | None = None
        upstream: asyncio.StreamWriter | None = None
        try:
            while piece := await reader.read(65536):
                self.bytes_in += len(piece)
                if self.mode == "refuse":
                    break
                if self.mode in ("pass", "slow"):
                    if self.mode == "slow":
                        await asyncio.sleep(self.delay_s)
                    if upstream is None:
                        back, upstream = await asyncio.open_connection(*self._upstream)
                        answers = asyncio.create_task(self._answers(back, writer))
                    upstream.write(piece)
                elif self.mode in ("headers", "drip") and answers is None:
                    answers = asyncio.create_task(self._useless(writer))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, upstream):
                if end is not None:
                    end.transport.abort()
            if answers is not None:
                answers.cancel()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            if self.mode in ("pass", "slow"):
                writer.write(piece)
            elif self.mode in ("headers", "drip"):
                await self._useless(writer)
        writer.close()

    async def _useless(self, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while self.mode == "drip":
            writer.write(b" ")
            await asyncio.sleep(self.interval_s)
        await asyncio.Event().wait()


def everybody_is_back(relay: Switch, within_s: float = 10.0) -> bool:
    """Resets what hangs, and looks a while whether all threads that were given up have come back."""
    relay.drop()
    until = time.monotonic() + within_s
    while workers.abandoned and time.monotonic() < until:
        time.sleep(0.01)
    return not workers.abandoned
