"""How does an answer become an HTTP response, and a refusal a status with a sentence?"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .engine import Engine
from .refusal import Refused, bad
from .wire import Json, decompress

Handler = Callable[[Engine, Request], Awaitable[Any]]
Endpoint = Callable[[Request], Awaitable[Response]]


def endpoint(handler: Handler) -> Endpoint:
    """Wraps a handler: what it returns is sent as JSON unless it is a response already."""

    async def answer(request: Request) -> Response:
        try:
            content = await handler(request.app.state.engine, request)
        except Refused as refused:
            return JSONResponse({"detail": refused.detail}, refused.status)
        return content if isinstance(content, Response) else JSONResponse(content)

    return answer


async def body_of(request: Request) -> Json:
    """Reads a JSON object."""
    raw = decompress(await request.body(), request.headers.get("content-encoding", ""))
    try:
        body = json.loads(raw or b"{}")
    except ValueError:
        raise bad("The body is not JSON.") from None
    if not isinstance(body, dict):
        raise bad("The body must be a JSON object.")
    return body


async def plain_error(request: Request, error: Exception) -> Response:
    """Answers paths and methods that do not exist in the same form as everything else."""
    assert isinstance(error, HTTPException)
    detail = f"{error.detail}: {request.method} {request.url.path}"
    return JSONResponse({"detail": detail}, error.status_code, dict(error.headers or {}))


def number(request: Request, name: str, default: int) -> int:
    """Reads a whole number from the query."""
    text = request.query_params.get(name)
    try:
        value = default if text is None else int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise bad(f"{name} must be a whole number of at least 0, not {text!r}.")
    return value
