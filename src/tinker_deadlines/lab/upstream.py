"""How does a request reach the real server, unchanged? Over one upstream connection per client connection.

A client's connection carries one exchange at a time, so its twin upstream needs no pool, and a thousand clients cost no
search through a thousand connections. The transport is used below `httpx.AsyncClient`: no redirects, no decoding, no
cookies, no default headers, no time limits, and nothing that a program under test may have patched on the client.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import AsyncIterator, Iterable
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"}
    | {b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_OURS_TO_SAY = frozenset({b"host", b"expect"})
KEEPALIVE_S = 2.0
"""Idle upstream connections are dropped sooner than servers drop theirs (uvicorn: 5 s), or a request would race it."""

Headers = list[tuple[bytes, bytes]]


class Upstream:
    """The server behind the proxy.

    Raises:
        ValueError: `url` is not the address of an HTTP server.
    """

    def __init__(self, url: str) -> None:
        try:
            urlsplit(url)  # httpx takes an unclosed bracket for a host
            self._base = httpx.URL(url)
        except (httpx.InvalidURL, ValueError, TypeError) as error:
            raise ValueError(f"upstream is {url!r}, which is not a URL: {error}") from None
        if self._base.scheme not in ("http", "https") or not self._base.host:
            raise ValueError(f"upstream is {url!r}, but must be a URL such as http://127.0.0.1:8000 or https://host")
        if self._base.userinfo or self._base.query or self._base.fragment:
            raise ValueError(
                "upstream must be scheme, host, port and path only, without credentials, query or fragment"
            )
        self._prefix = self._base.raw_path.rstrip(b"/")
        self._tls: ssl.SSLContext | None = None
        self._proxy = _proxy_for(self._base)

    @property
    def netloc(self) -> str:
        """Host and port, for messages."""
        return self._base.netloc.decode("ascii", "replace")

    def connect(self) -> httpx.AsyncHTTPTransport:
        """A transport for one client connection; it connects with its first request."""
        if self._tls is None:
            # Loading the certificate store takes some 20 ms: once, and not at all for http.
            secure = self._base.scheme == "https" or self._proxy is not None
            self._tls = ssl.create_default_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        limits = httpx.Limits(max_connections=2, max_keepalive_connections=1, keepalive_expiry=KEEPALIVE_S)
        return httpx.AsyncHTTPTransport(verify=self._tls, http2=False, limits=limits, proxy=self._proxy)

    def request(
        self, method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], content: bytes | AsyncIterator[bytes]
    ) -> httpx.Request:
        """The client's request, addressed to the server; `target` goes out byte for byte."""
        return httpx.Request(
            method,
            self._base,
            headers=[(name, value) for name, value in end_to_end(headers) if name.lower() not in _OURS_TO_SAY],
            content=content,
            extensions={"target": self._prefix + target},
        )


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that a proxy passes on: all but those that concern one connection only."""
    listed = list(headers)
    named = {
        name.strip().lower() for key, value in listed if key.lower() == b"connection" for name in value.split(b",")
    }
    return [(name, value) for name, value in listed if name.lower() not in HOP_BY_HOP | named]


def _proxy_for(url: httpx.URL) -> str | None:
    if _is_loopback(url.host) or proxy_bypass(url.host):
        return None
    return getproxies().get(url.scheme)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
