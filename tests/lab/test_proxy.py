"""The fault proxy on real sockets: what passes, what each fault does on the wire, and what is written down about it."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tinker_deadlines.lab import Lab
from tinker_deadlines.lab.fault_log import Record, fault_line
from tinker_deadlines.lab.faults import Faults
from tinker_deadlines.lab.proxy import FaultProxy

BOUND_S = 10.0
"""No wait of these tests is longer: what should happen happens at once, and what should not is watched briefly."""
QUIET_S = 0.05
"""How long a connection is watched that should stay silent."""
MEGABYTE = 1024 * 1024
TLS = ssl.create_default_context()


# --- a stub of a Tinker server ----------------------------------------------------------------------------------------


class Stub:
    """A server that counts what it executes: sessions, sampling sessions, futures that are complete at once."""

    def __init__(self) -> None:
        self.executed: Counter[str] = Counter()
        self.last_headers: list[tuple[bytes, bytes]] = []
        self.last_target = ""
        self.completions: list[dict[str, str]] = []
        self.batch_wait_s = 0.02
        self.release = threading.Event()
        routes = [
            Route("/api/v1/{name:path}", self.api, methods=["GET", "POST"]),
            Route("/echo", self.echo, methods=["GET", "POST", "PUT", "HEAD"]),
            Route("/stream", self.stream),
            Route("/bare/{status:int}", self.bare),
            Route("/encoded", self.encoded),
            Route("/moved", self.moved),
            Route("/breaks", self.breaks),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), port=0, log_level="critical", http="h11", ws="none", lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    async def api(self, request: Request) -> Response:
        name = request.path_params["name"]
        body = json.loads(await request.body() or b"{}")
        self.executed[name] += 1
        if name == "create_session":
            return JSONResponse({"session_id": f"S{self.executed[name]}"})
        if name == "create_sampling_session":
            return JSONResponse({"sampling_session_id": f"opaque-{body['session_id']}"})
        if name == "retrieve_futures":
            return JSONResponse({"completions": self.completions, "cursor": 7})
        if name in ("asample", "optim_step"):
            return JSONResponse({"request_id": f"future-{name}-{self.executed[name]}"})
        return JSONResponse({"name": name, "request_id": body.get("request_id")})

    async def echo(self, request: Request) -> Response:
        self.last_headers, self.last_target = request.headers.raw, request.scope["raw_path"].decode()
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
        return JSONResponse({"bytes": size, "query": str(request.url.query)}, headers={"Keep-Alive": "timeout=9"})

    async def stream(self, request: Request) -> Response:
        async def pieces() -> object:
            for _ in range(64):
                yield b"x" * (MEGABYTE // 2)

        return StreamingResponse(pieces())  # type: ignore[arg-type]

    async def bare(self, request: Request) -> Response:
        return Response(status_code=request.path_params["status"])

    async def encoded(self, request: Request) -> Response:
        return Response(b"not really gzip", headers={"Content-Encoding": "gzip"})

    async def moved(self, request: Request) -> Response:
        return Response(status_code=302, headers={"Location": "/echo"})

    async def breaks(self, request: Request) -> Response:
        async def pieces() -> object:
            yield b"half"
            raise ConnectionAbortedError

        return StreamingResponse(pieces(), headers={"Content-Length": "8"})  # type: ignore[arg-type]

    def start(self) -> str:
        self._thread.start()
        eventually(lambda: self._server.started)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(BOUND_S)


def eventually(true: Callable[[], object]) -> None:
    """Waits, within bounds, until something is true."""
    end = time.monotonic() + BOUND_S
    while not true():
        assert time.monotonic() < end, "did not become true in time"
        time.sleep(0.005)


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    yield server
    server.stop()


@pytest.fixture
def broken(stub: Stub) -> Iterator[Callable[..., FaultProxy]]:
    """Makes a proxy with these rules in front of the stub."""
    upstream, started = stub.start(), []

    def make(rules: str = "", **options: object) -> FaultProxy:
        started.append(FaultProxy(upstream, Faults.from_toml(rules), **options).start())  # type: ignore[arg-type]
        return started[-1]

    yield make
    for proxy in started:
        proxy.stop()


Broken = Callable[..., FaultProxy]


def rule(text: str) -> str:
    return "[[fault]]\n" + text.replace("; ", "\n")


def connect(proxy: FaultProxy) -> socket.socket:
    host, port = proxy.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=BOUND_S)


def send(sock: socket.socket, path: str, body: dict[str, object] | None = None) -> None:
    data = json.dumps(body or {}).encode()
    sock.sendall(
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        .encode() + data
    )  # fmt: skip


def is_silent(sock: socket.socket, for_s: float = QUIET_S) -> bool:
    """Whether the connection stays open with nothing said on it."""
    sock.settimeout(for_s)
    try:
        return sock.recv(1, socket.MSG_PEEK) is None
    except TimeoutError:
        return True
    finally:
        sock.settimeout(BOUND_S)


def read_head(sock: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        assert byte, "the connection ended within the head"
        head += byte
    return head


def post(proxy: FaultProxy, path: str, body: dict[str, object] | None = None) -> httpx.Response:
    return httpx.post(proxy.url + path, json=body or {}, timeout=BOUND_S, verify=TLS)


# --- what passes ------------------------------------------------------------------------------------------------------


def test_a_request_passes_unchanged(broken: Broken, stub: Stub) -> None:
    """Path, query, body and end-to-end headers arrive; `Host` is the server's and hop-by-hop headers stay behind."""
    proxy = broken()
    headers = {"X-Api-Key": "k", "Connection": "keep-alive, X-Hop", "X-Hop": "1", "TE": "trailers", "Accept": "a/b"}
    answer = httpx.post(proxy.url + "/echo?a=%20b&a=c", content=b"12345", headers=headers)
    sent = {name.decode(): value.decode() for name, value in stub.last_headers}
    assert answer.json() == {"bytes": 5, "query": "a=%20b&a=c"}
    assert sent["x-api-key"] == "k"
    assert sent["accept"] == "a/b"
    assert sent["host"] == proxy.upstream.netloc
    assert not {"x-hop", "te", "connection", "transfer-encoding"} & set(sent)
    assert "keep-alive" not in answer.headers


def test_the_path_goes_out_byte_for_byte(broken: Broken, stub: Stub) -> None:
    """Escapes in a path are neither resolved nor added."""
    proxy = broken()
    with closing(connect(proxy)) as sock:
        sock.sendall(b"GET /%65cho HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_head(sock).startswith(b"HTTP/1.1 200")
    assert stub.last_target == "/%65cho"


def test_no_header_is_added(broken: Broken, stub: Stub) -> None:
    """A request with nothing but a host arrives with nothing but a host."""
    proxy = broken()
    with closing(connect(proxy)) as sock:
        sock.sendall(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
        read_head(sock)
    assert [name for name, _ in stub.last_headers] == [b"host"]


def test_large_bodies_pass_both_ways(broken: Broken) -> None:
    """50 MB up, with a length and in chunks, and 32 MB down."""
    proxy = broken()
    piece = b"x" * MEGABYTE
    with httpx.Client(verify=TLS, base_url=proxy.url, timeout=BOUND_S) as client:
        assert client.post("/echo", content=piece * 50).json()["bytes"] == 50 * MEGABYTE
        assert client.post("/echo", content=(piece for _ in range(50))).json()["bytes"] == 50 * MEGABYTE
        assert len(client.get("/stream").content) == 32 * MEGABYTE


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body_keep_the_connection(broken: Broken, status: int) -> None:
    """204, 304 and HEAD are framed rightly: the next request on the connection is answered."""
    proxy = broken()
    with httpx.Client(verify=TLS, base_url=proxy.url) as client:
        assert client.get(f"/bare/{status}").status_code == status
        head = client.head("/echo")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 0
        assert client.get("/echo").json()["bytes"] == 0


def test_one_connection_carries_many_requests(broken: Broken) -> None:
    """Keep-alive works, and pipelined requests are answered in order."""
    proxy = broken()
    with closing(connect(proxy)) as sock:
        sock.sendall(b"GET /bare/204 HTTP/1.1\r\nHost: x\r\n\r\nGET /bare/304 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_head(sock).startswith(b"HTTP/1.1 204")
        assert read_head(sock).startswith(b"HTTP/1.1 304")


def test_expect_100_continue_is_answered(broken: Broken) -> None:
    """A client that waits for leave to send its body gets it."""
    proxy = broken()
    with closing(connect(proxy)) as sock:
        sock.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert read_head(sock).startswith(b"HTTP/1.1 100")
        sock.sendall(b"abc")
        assert read_head(sock).startswith(b"HTTP/1.1 200")


def test_nothing_is_decoded_or_followed(broken: Broken) -> None:
    """A content encoding and a redirect reach the client as they are."""
    proxy = broken()
    with httpx.Client(verify=TLS, base_url=proxy.url) as client:
        with client.stream("GET", "/encoded") as answer:
            assert b"".join(answer.iter_raw()) == b"not really gzip"
        moved = client.get("/moved")
    assert (moved.status_code, moved.headers["location"]) == (302, "/echo")


def test_many_connections_at_once(broken: Broken) -> None:
    """A hundred requests in flight are all answered."""
    proxy = broken()
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(post(proxy, "/echo").status_code)) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert answers == [200] * 100


def test_a_server_that_is_down_is_a_502() -> None:
    """The answer is JSON and says which server was not reached."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with FaultProxy(f"http://127.0.0.1:{port}", Faults()) as proxy:
        answer = post(proxy, "/api/v1/asample")
        assert answer.status_code == 502
        assert f"127.0.0.1:{port}" in answer.json()["detail"]
        assert proxy.log[0].action == "upstream_failed"


def test_a_server_that_breaks_off_is_seen_to_break_off(broken: Broken) -> None:
    """Half an answer does not become a whole one."""
    with pytest.raises(httpx.TransportError):
        httpx.get(broken().url + "/breaks", timeout=BOUND_S)


def test_rubbish_is_refused(broken: Broken) -> None:
    """What is not HTTP/1.1, an attempt at HTTP/2 included, is answered with 400 and the connection's end."""
    proxy = broken()
    with closing(connect(proxy)) as sock:
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert read_head(sock).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://x", "http://", "http://u:p@x", "http://x/?q=1", "http://["])
def test_an_upstream_that_is_no_server_is_refused(url: str) -> None:
    """The error comes when the proxy is made, not when it is used, and repeats no password."""
    with pytest.raises(ValueError, match="upstream") as raised:
        FaultProxy(url, Faults())
    assert "u:p" not in str(raised.value)


def test_an_address_in_use_is_an_oserror(broken: Broken) -> None:
    """`start` raises what the operating system said."""
    port = int(broken().url.rsplit(":", 1)[1])
    with pytest.raises(OSError):
        broken(port=port)


# --- silence ----------------------------------------------------------------------------------------------------------


def test_never_answers(broken: Broken, stub: Stub) -> None:
    """The request is read to its end, the server does not see it, the connection stays open and silent."""
    proxy = broken(rule('do = "never_answers"; path = "asample"; nth = 1'))
    with closing(connect(proxy)) as sock:
        send(sock, "/api/v1/asample", {"filler": "x" * 4 * MEGABYTE})
        eventually(lambda: proxy.log)
        assert is_silent(sock)
        assert post(proxy, "/api/v1/asample").status_code == 200
        assert is_silent(sock)
    assert stub.executed["asample"] == 1


def test_accepts_silent_reads_nothing(broken: Broken) -> None:
    """The connection is accepted, and what is sent on it backs up until the sender blocks."""
    proxy = broken(rule('do = "accepts_silent"; nth = 1'))
    with closing(connect(proxy)) as sock:
        assert backs_up(sock)
        assert is_silent(sock)
        assert post(proxy, "/echo").status_code == 200


def test_accepts_silent_with_a_path_reads_the_head_alone(broken: Broken) -> None:
    """A path is known only from the head; the body behind it stays unread."""
    proxy = broken(rule('do = "accepts_silent"; path = "forward_backward"'))
    with closing(connect(proxy)) as sock:
        sock.sendall(b"POST /api/v1/forward_backward HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        assert backs_up(sock)
        assert is_silent(sock)
    assert post(proxy, "/echo").status_code == 200


def backs_up(sock: socket.socket) -> bool:
    """Whether at most 32 MB can be sent before nobody takes any more."""
    sock.settimeout(0.2)
    piece, sent = b"x" * MEGABYTE, 0
    try:
        while sent < 32:
            sock.sendall(piece)
            sent += 1
    except TimeoutError:
        return True
    return False


def test_headers_then_silence(broken: Broken, stub: Stub) -> None:
    """The server's status and headers arrive, not one byte of its body does."""
    proxy = broken(rule('do = "headers_then_silence"; path = "asample"'))
    with closing(connect(proxy)) as sock:
        send(sock, "/api/v1/asample")
        head = read_head(sock)
        assert head.startswith(b"HTTP/1.1 200")
        assert b"application/json" in head
        assert is_silent(sock)
    assert stub.executed["asample"] == 1


def test_drip(broken: Broken) -> None:
    """The body arrives whole, byte by byte, at least an interval apart on the whole."""
    proxy = broken(rule('do = "drip"; path = "asample"; interval_s = 0.005'))
    with closing(connect(proxy)) as sock:
        send(sock, "/api/v1/asample")
        head = read_head(sock).lower()
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        started = time.monotonic()
        pieces: list[bytes] = []
        while sum(len(piece) for piece in pieces) < length:
            pieces.append(sock.recv(1000))
        took_s = time.monotonic() - started
    assert json.loads(b"".join(pieces)) == {"request_id": "future-asample-1"}
    assert took_s >= 0.005 * (length - 2)
    assert len(pieces) > length / 2


def test_delay(broken: Broken, stub: Stub) -> None:
    """The server does its work at once; its answer comes later by the delay."""
    proxy = broken(rule('do = "delay"; path = "asample"; delay_s = 0.1'))
    with closing(connect(proxy)) as sock:
        started = time.monotonic()
        send(sock, "/api/v1/asample")
        eventually(lambda: stub.executed["asample"] == 1)
        assert is_silent(sock, 0.02)
        assert read_head(sock).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - started >= 0.1


def test_auth_blackhole(broken: Broken) -> None:
    """The token exchange alone is silent."""
    proxy = broken(rule('do = "auth_blackhole"'))
    with closing(connect(proxy)) as sock:
        send(sock, "/api/v1/auth/token")
        assert is_silent(sock)
    assert post(proxy, "/api/v1/healthz").status_code == 200


# --- broken connections -----------------------------------------------------------------------------------------------


def test_reset(broken: Broken, stub: Stub) -> None:
    """The client sees ECONNRESET, the server sees nothing."""
    proxy = broken(rule('do = "reset"; path = "asample"'))
    with closing(connect(proxy)) as sock:
        send(sock, "/api/v1/asample")
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    assert stub.executed["asample"] == 0


def test_lose_answer_executes_once(broken: Broken, stub: Stub) -> None:
    """The server executes the step exactly once, the client sees a reset; the resend is the client's own."""
    proxy = broken(rule('do = "lose_answer"; path = "optim_step"; nth = 1'))
    with closing(connect(proxy)) as sock:
        send(sock, "/api/v1/optim_step")
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    assert stub.executed["optim_step"] == 1
    assert post(proxy, "/api/v1/optim_step").status_code == 200
    assert stub.executed["optim_step"] == 2


@pytest.mark.parametrize("then", ["close", "silence"])
def test_lose_answer_in_other_ways(broken: Broken, stub: Stub, then: str) -> None:
    """`then` says whether the connection is closed in order, or stays open without a word."""
    proxy = broken(rule(f'do = "lose_answer"; path = "optim_step"; then = "{then}"'))
    with closing(connect(proxy)) as sock:
        send(sock, "/api/v1/optim_step")
        eventually(lambda: stub.executed["optim_step"] == 1)
        assert is_silent(sock) if then == "silence" else sock.recv(1) == b""


# --- answers in the server's place ------------------------------------------------------------------------------------


def test_status(broken: Broken, stub: Stub) -> None:
    """Status, headers and body are the rule's; the server sees nothing; the connection goes on."""
    proxy = broken(
        rule(
            'do = "status"; path = "asample"; times = 1; status = 429; '
            'headers = {Retry-After = 2}; body = {detail = "x"}'
        )
    )
    with httpx.Client(verify=TLS, base_url=proxy.url) as client:
        answer = client.post("/api/v1/asample", json={})
        assert (answer.status_code, answer.headers["retry-after"], answer.json()) == (429, "2", {"detail": "x"})
        assert stub.executed["asample"] == 0
        assert client.post("/api/v1/asample", json={}).status_code == 200


@pytest.mark.parametrize("status", [204, 304, 599])
def test_status_without_a_body(broken: Broken, status: int) -> None:
    """Any status is framed rightly, the bodiless ones and the unknown ones too."""
    proxy = broken(rule(f'do = "status"; path = "asample"; times = 1; status = {status}; body = "text"'))
    with httpx.Client(verify=TLS, base_url=proxy.url) as client:
        assert client.post("/api/v1/asample", json={}).status_code == status
        assert client.post("/api/v1/asample", json={}).status_code == 200


def test_refuse_heartbeat(broken: Broken) -> None:
    """Heartbeats get 410, everything else is served."""
    proxy = broken(rule('do = "refuse_heartbeat"'))
    assert post(proxy, "/api/v1/session_heartbeat", {"session_id": "S1"}).status_code == 410
    assert post(proxy, "/api/v1/asample").status_code == 200


def test_try_again_for_a_while(broken: Broken, stub: Stub) -> None:
    """A future's polls are answered 408 with the queue state until `for_s` is over, then by the server."""
    proxy = broken(
        rule(
            'do = "try_again"; for_s = 0.1; interval_s = 0.01; '
            'queue_state = "paused_rate_limit"; queue_state_reason = "why"'
        )
    )
    statuses: list[int] = []
    while 200 not in statuses:
        answer = post(proxy, "/api/v1/retrieve_future", {"request_id": "r"})
        statuses.append(answer.status_code)
        if answer.status_code == 408:
            assert answer.json() == {
                "type": "try_again",
                "request_id": "r",
                "queue_state": "paused_rate_limit",
                "queue_state_reason": "why",
            }
    assert statuses[:-1] == [408] * (len(statuses) - 1)
    assert len(statuses) > 2
    assert stub.executed["retrieve_future"] == 1


def test_future_never_completes(broken: Broken, stub: Stub) -> None:
    """The submission is answered; its future alone answers "try again", until the rule is healed."""
    proxy = broken(rule('name = "lost"; do = "future_never_completes"; path = "asample"; nth = 1; interval_s = 0.001'))
    lost, kept = (post(proxy, "/api/v1/asample").json()["request_id"] for _ in range(2))
    for _ in range(3):
        assert post(proxy, "/api/v1/retrieve_future", {"request_id": lost}).status_code == 408
    assert post(proxy, "/api/v1/retrieve_future", {"request_id": kept}).status_code == 200
    assert stub.executed["asample"] == 2
    assert proxy.heal("lost") == ["lost"]
    assert post(proxy, "/api/v1/retrieve_future", {"request_id": lost}).status_code == 200


def batch(proxy: FaultProxy) -> dict[str, object]:
    target = {"type": "sampling_session", "sampling_session_id": "opaque-S1", "cloned_sampler_id": 0}
    answer: dict[str, object] = post(proxy, "/api/v1/retrieve_futures", {"target": target, "prev_cursor": 3}).json()
    return answer


def test_a_held_future_is_taken_out_of_batches(broken: Broken, stub: Stub) -> None:
    """A batch poll does not report it, reports it once when it is healed, and always reports its siblings."""
    proxy = broken(rule('do = "future_never_completes"; path = "asample"; nth = 1'))
    lost, kept = (post(proxy, "/api/v1/asample").json()["request_id"] for _ in range(2))
    done = {name: {"request_id": name, "state": "finished"} for name in (lost, kept)}
    stub.completions = list(done.values())
    assert batch(proxy) == {"completions": [done[kept]], "cursor": 7}
    stub.completions = []
    assert batch(proxy) == {"completions": [], "cursor": 7}
    proxy.heal()
    assert batch(proxy) == {"completions": [done[lost]], "cursor": 3}
    assert batch(proxy) == {"completions": [], "cursor": 7}


def test_try_again_holds_back_batches_for_a_while(broken: Broken, stub: Stub) -> None:
    """A completion is reported `for_s` after the server first reported it."""
    proxy = broken(rule('do = "try_again"; for_s = 0.05'))
    stub.completions = [{"request_id": "r", "state": "finished"}]
    assert batch(proxy)["completions"] == []
    stub.completions = []
    eventually(lambda: batch(proxy)["completions"] == [{"request_id": "r", "state": "finished"}])


# --- a session falls silent -------------------------------------------------------------------------------------------


def test_a_silent_session_is_silent_while_another_works(broken: Broken) -> None:
    """Heartbeats, samples through opaque ids, polls and REST of the one hang; those of the other are answered."""
    proxy = broken(rule('do = "silence_session"; path = "optim_step"; session = 1'))
    futures = {}
    for session in ("S1", "S2"):
        assert post(proxy, "/api/v1/create_session").json() == {"session_id": session}
        post(proxy, "/api/v1/create_sampling_session", {"session_id": session})
        answer = post(proxy, "/api/v1/asample", {"sampling_session_id": f"opaque-{session}"})
        futures[session] = answer.json()["request_id"]

    def requests_of(session: str) -> list[tuple[str, dict[str, object]]]:
        return [
            ("/api/v1/optim_step", {"model_id": f"{session}:train:0"}),
            ("/api/v1/session_heartbeat", {"session_id": session}),
            ("/api/v1/asample", {"sampling_session_id": f"opaque-{session}"}),
            ("/api/v1/retrieve_future", {"request_id": futures[session]}),
            (f"/api/v1/sessions/{session}/finish", {}),
        ]

    for path, body in requests_of("S1"):
        with closing(connect(proxy)) as sock:
            send(sock, path, body)
            eventually(lambda: (proxy.log[-1].path, proxy.log[-1].action) == (path, "silence_session"))  # noqa: B023
            assert is_silent(sock), path
    for path, body in requests_of("S2"):
        assert post(proxy, path, body).status_code == 200, path
    assert post(proxy, "/api/v1/create_session").json() == {"session_id": "S3"}


def test_a_poll_in_flight_falls_silent_with_its_session(broken: Broken) -> None:
    """An answer that the server gives after the session fell silent does not get through."""
    proxy = broken(
        rule('do = "silence_session"; path = "optim_step"; session = "S"')
        + rule('\ndo = "delay"; path = "telemetry"; delay_s = 0.2').replace("[[fault]]", "\n[[fault]]")
    )
    with closing(connect(proxy)) as waiting, closing(connect(proxy)) as trigger:
        send(waiting, "/api/v1/telemetry", {"session_id": "S"})
        eventually(lambda: len(proxy.log) == 1)
        send(trigger, "/api/v1/optim_step", {"model_id": "S:train:0"})
        eventually(lambda: len(proxy.log) == 2)
        assert is_silent(trigger)
        eventually(lambda: proxy.log[0].action == "silence_session")
        assert is_silent(waiting)


# --- the proxy itself -------------------------------------------------------------------------------------------------


def test_stop_releases_silent_connections_at_once(broken: Broken) -> None:
    """`stop` ends connections that are held, read or not, and a second `stop` does nothing."""
    proxy = broken(rule('do = "never_answers"; path = "asample"') + "\n" + rule('do = "accepts_silent"; nth = 2'))
    with closing(connect(proxy)) as reading, closing(connect(proxy)) as unread:
        send(reading, "/api/v1/asample")
        eventually(lambda: len(proxy.log) == 2)
        assert is_silent(reading)
        assert is_silent(unread)
        started = time.monotonic()
        proxy.stop()
        proxy.stop()
        assert time.monotonic() - started < 1
        assert reading.recv(1) == b""
        assert unread.recv(1) == b""


def test_a_client_that_gives_up_is_let_go(broken: Broken) -> None:
    """When the client closes a silent connection, the proxy forgets it."""
    proxy = broken(rule('do = "never_answers"; path = "asample"'))
    with closing(connect(proxy)) as sock:
        send(sock, "/api/v1/asample")
        eventually(lambda: len(proxy._core._tasks) == 1)
    eventually(lambda: not proxy._core._tasks)


def test_the_log_says_what_was_done_to_whom(broken: Broken, tmp_path: Path) -> None:
    """Each request has a record, in memory and as a line of JSON; the listener hears of faults alone."""
    heard: list[Record] = []
    log = tmp_path / "log.jsonl"
    proxy = broken(
        rule('name = "busy"; do = "status"; path = "asample"; nth = 1; status = 503'),
        log_path=log,
        on_fault=heard.append,
    )
    post(proxy, "/api/v1/create_session")
    post(proxy, "/api/v1/asample?key=secret", {"sampling_session_id": "S1:sample:0", "prompt": "secret"})
    post(proxy, "/api/v1/asample", {"sampling_session_id": "S1:sample:0"})
    proxy.stop()
    first, second, third = proxy.log
    assert first.session == "S1"
    assert (second.ordinal, second.method, second.path, second.kind) == (2, "POST", "/api/v1/asample", "sample")
    assert (second.session, second.rule, second.action, second.status) == ("S1", "busy", "status", 503)
    assert (third.rule, third.action, third.status) == (None, "pass", 200)
    assert first.bytes == len('{"session_id":"S1"}')
    assert third.duration_s is not None and third.duration_s > 0
    assert [json.loads(line) for line in log.read_text().splitlines()] == [record.as_dict() for record in proxy.log]
    assert "secret" not in log.read_text()
    assert heard == [second]
    assert "status (rule busy): POST /api/v1/asample of session S1" in fault_line(second)


def test_a_silence_is_in_the_log_while_it_lasts(broken: Broken) -> None:
    """A request that is never answered has its record at once, without status and duration."""
    proxy = broken(rule('name = "hole"; do = "never_answers"; path = "asample"'))
    with closing(connect(proxy)) as sock:
        send(sock, "/api/v1/asample")
        eventually(lambda: proxy.log)
        record = proxy.log[0]
    assert (record.rule, record.action, record.status, record.duration_s) == ("hole", "never_answers", None, None)


def test_the_proxy_is_asked_and_healed_over_http(broken: Broken, stub: Stub) -> None:
    """`/lab/proxy/` answers log, heal and reset, itself, and takes nothing else."""
    proxy = broken(rule('name = "busy"; do = "status"; status = 503; path = "asample"'))
    assert post(proxy, "/api/v1/asample").status_code == 503
    control = proxy.url + "/lab/proxy/"
    assert [record["rule"] for record in httpx.get(control + "log", verify=TLS).json()["records"]] == ["busy"]
    assert httpx.post(control + "heal", verify=TLS, json={"name": "bussy"}).status_code == 404
    assert "did you mean 'busy'?" in httpx.post(control + "heal?name=bussy", verify=TLS).json()["detail"]
    assert httpx.post(control + "heal", verify=TLS, content=b"{").status_code == 404
    assert httpx.post(control + "heal", verify=TLS, json={"name": "busy"}).json() == {"healed": ["busy"]}
    assert post(proxy, "/api/v1/asample").status_code == 200
    assert httpx.post(control + "reset", verify=TLS).json() == {"reset": True}
    assert httpx.get(control + "log", verify=TLS).json() == {"records": []}
    assert post(proxy, "/api/v1/asample").status_code == 503
    assert httpx.get(control + "heal", verify=TLS).status_code == 405
    assert httpx.get(control + "nothing", verify=TLS).status_code == 404
    assert httpx.post(control + "heal", verify=TLS).json() == {"healed": ["busy"]}
    assert sum(stub.executed.values()) == 1


def test_reset_starts_the_counts_over(broken: Broken) -> None:
    """After `reset` the first request is the first again."""
    proxy = broken(rule('do = "status"; status = 503; path = "asample"; nth = 1'))
    statuses = [post(proxy, "/api/v1/asample").status_code for _ in range(2)]
    proxy.reset()
    assert [*statuses, post(proxy, "/api/v1/asample").status_code] == [503, 200, 503]


def test_a_proxy_is_started_once(broken: Broken) -> None:
    """A second `start` is refused with the remedy."""
    proxy = broken()
    with pytest.raises(RuntimeError, match="make another one"):
        proxy.start()


# --- the SDK itself ---------------------------------------------------------------------------------------------------

PREAMBLE = """
import os, sys, tinker
url, base_model = sys.argv[1:]
prompt, params = tinker.ModelInput.from_ints([104, 105]), tinker.SamplingParams(max_tokens=2)
def service(): return tinker.ServiceClient(base_url=url, api_key="tml-lab")
"""


def sdk_script(lab: Lab, script: str) -> str:
    """What a script of the SDK prints; in a process of its own, as the SDK leaves its sockets to the collector."""
    pytest.importorskip("tinker")
    command = [sys.executable, "-c", PREAMBLE + script, lab.url, lab.base_model]
    environment = {**os.environ, "TINKER_TELEMETRY": "0", "PYTHONWARNINGS": "ignore"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=4 * BOUND_S, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_the_sdk_repeats_a_lost_step_and_it_is_executed_once() -> None:
    """A training run through a lost answer and a reset ends well, with each call executed exactly once."""
    rules = (
        rule('do = "lose_answer"; path = "optim_step"; nth = 1')
        + "\n"
        + rule('do = "reset"; path = "asample"; nth = 1')
    )
    script = """
training = service().create_lora_training_client(base_model=base_model, rank=2).result(10)
training.optim_step(tinker.AdamParams(learning_rate=0.001)).result(10)
sampling = service().create_sampling_client(base_model=base_model).result(10)
print(len(sampling.sample(prompt, 1, params).result(10).sequences))
"""
    with Lab(faults=rules) as lab:
        assert sdk_script(lab, script) == "1"
        executed = Counter(execution["type"] for execution in lab.executions())
        assert lab.proxy is not None
        done = [record.action for record in lab.proxy.log if record.rule]
    assert (executed["OptimStep"], executed["Sample"]) == (1, 1)
    assert done == ["lose_answer", "reset"]


def test_the_sdk_meets_a_silent_session() -> None:
    """A sample of the wedged session stays pending; a new service client of the same process samples."""
    script = """
first, second = (service().create_sampling_client(base_model=base_model).result(10) for _ in range(2))
wedged, fine = first.sample(prompt, 1, params), second.sample(prompt, 1, params)
print(len(fine.result(10).sequences), wedged.future().done(), flush=True)
os._exit(0)
"""
    with Lab(faults=rule('do = "silence_session"; session = 1; path = "asample"')) as lab:
        assert sdk_script(lab, script) == "1 False"
