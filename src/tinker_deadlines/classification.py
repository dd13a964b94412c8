"""Is an error the infrastructure's, or the caller's? By its status if it has one, else its class, else its words.

A structured code or status outranks a phrase. No SDK needs to be importable, and classification itself never raises.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Literal

from tinker_deadlines.errors import DeadlineExpiry, FactsError

__all__ = ["is_capacity_error", "outcome_for"]

# 408 and 429 are the service asking for patience, 529 is "overloaded" in the field's usage.
_TRANSIENT_STATUSES = frozenset({408, 429, 529})

# Classes of the SDK, of its transports and of its sampling subprocess, by name: none of them needs to be importable.
_TRANSIENT_CLASSES = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "ClientConnectionError",
        "ConnectionError",
        "InternalServerError",
        "NetworkError",
        "RateLimitError",
        "RemoteProtocolError",
        "RetryableException",  # what the SDK raises where the service forgot a request
        "SidecarError",
        "StreamingError",
        "Timeout",
        "TimeoutError",
        "TimeoutException",
        "TransportError",
        "gaierror",
    }
)

# Codes that are words: gRPC's canonical ones. A code that is not among them decides nothing.
_TRANSIENT_CODES = frozenset(
    {"aborted", "deadline_exceeded", "internal", "resource_exhausted", "unavailable", "unknown"}
)
_CLIENT_CODES = frozenset(
    {
        "already_exists",
        "failed_precondition",
        "invalid_argument",
        "not_found",
        "out_of_range",
        "permission_denied",
        "unauthenticated",
        "unimplemented",
    }
)

_TRANSIENT_PHRASES = re.compile(
    r"timed[ -]?out|time-?out|too many requests|rate.?limit|throttl|overloaded|capacity|temporarily unavailable"
    r"|service unavailable|bad gateway|gateway time|internal server error|connection (?:error|reset|refused|aborted)"
    r"|server disconnected|broken pipe|sidecar|requests appear to be stuck",
    re.IGNORECASE,
)


def is_capacity_error(exc: BaseException) -> bool:
    """Tells whether an error is transient: the infrastructure's, not the caller's.

    Throttling, 408, 429, 529 and every 5xx, connection and transport failures, failures of the SDK's subprocess,
    failed requests that are not of the category *user*, and this library's own expiries are. Everything else,
    `BudgetExhaustedError` among it, is the caller's. A structured code or status always outranks a phrase in the
    message. A group is transient when every error in it is. Never raises, and needs no SDK to be importable.
    """
    try:
        return _is_transient(exc)
    except Exception:
        # An error object that raises when it is looked at says nothing that could be classified.
        return False


def outcome_for(exc: BaseException) -> Literal["capacity_error", "client_error"]:
    """Names the class of an error: "capacity_error" where `is_capacity_error` holds, else "client_error"."""
    return "capacity_error" if is_capacity_error(exc) else "client_error"


def _is_transient(exc: BaseException) -> bool:
    if isinstance(exc, DeadlineExpiry):
        return True
    if isinstance(exc, FactsError) or not isinstance(exc, Exception):
        return False
    if isinstance(exc, ExceptionGroup):
        return all(_is_transient(one) for one in exc.exceptions)
    category = _word_in(_look_at(exc, "category"))
    if category in ("user", "server", "unknown"):
        return category != "user"
    code = _code_of(exc)
    if isinstance(code, int):
        return code in _TRANSIENT_STATUSES or code >= 500
    if code is not None:
        return code in _TRANSIENT_CODES
    if any(cls.__name__ in _TRANSIENT_CLASSES or cls.__name__.startswith("Sidecar") for cls in type(exc).__mro__):
        return True
    return bool(_TRANSIENT_PHRASES.search(str(exc)))


def _look_at(holder: object, name: str) -> object:
    """An attribute, or `None`: some errors have properties that raise, such as a request that was never set."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def _called(method: Callable[[], object]) -> object:
    try:
        return method()
    except Exception:
        return None


def _word_in(value: object) -> str:
    """The lower-case word that an enum member or a string stands for; "" for anything else."""
    for word in (_look_at(value, "value"), _look_at(value, "name"), value):
        if isinstance(word, str):
            return word.lower()
    return ""


def _code_of(exc: BaseException) -> int | str | None:
    """The HTTP status that an error carries, wherever the common clients keep it, else gRPC's word for it.

    Only a status that says failure: one of 200, around an answer that could not be read, decides nothing.
    """
    found = None
    for holder in (exc, _look_at(exc, "response")):
        for name in ("status_code", "status", "code", "http_status"):
            value = _look_at(holder, name)
            if callable(value):
                value = _called(value)  # gRPC: `code()`
            number = _look_at(value, "value") if isinstance(value, enum.Enum) else value
            if isinstance(number, str) and number.isdecimal():
                number = int(number)
            if isinstance(number, int) and not isinstance(number, bool) and 400 <= number <= 599:
                return int(number)
            word = _word_in(value)
            if found is None and (word in _TRANSIENT_CODES or word in _CLIENT_CODES):
                found = word
    return found
