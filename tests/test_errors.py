"""Which clock ran out, whose fault it is, and what is known: the errors, their words, and the classification."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import enum
import http
import multiprocessing
import pickle
import socket
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines import (
    AbandonedCallsError,
    BudgetExhaustedError,
    DeadlineExpiry,
    ForkedProcessError,
    SessionBudgetError,
    TinkerDeadlineError,
    env_var_for,
    is_capacity_error,
    outcome_for,
)
from tinker_deadlines.calls import KINDS, TRAINING_KINDS
from tinker_deadlines.errors import submission_of

EXPIRY = TinkerDeadlineError(
    "forward_backward",
    elapsed_s=900.04,
    deadline_s=900.0,
    limit_owner="the default",
    method="TrainingClient.forward_backward",
    submission="indeterminate",
    evidence=("It was seen.",),
)
ERRORS: list[Any] = [
    EXPIRY,
    TinkerDeadlineError("sample", elapsed_s=1, deadline_s=1),
    DeadlineExpiry("rest", elapsed_s=2, deadline_s=1),
    BudgetExhaustedError("sample", owner="episode 7", budget_s=1800, elapsed_s=12.34, method="m", submission="sent"),
    AbandonedCallsError(33, 32),
    ForkedProcessError("SamplingClient.sample"),
    SessionBudgetError(200, 200, 207),
]
IDS = [f"{number} {type(error).__name__}" for number, error in enumerate(ERRORS)]


# What they say ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_expiry_says_cause_and_remedy(kind: Any) -> None:
    """`timed out`, the kind, both numbers to a tenth, the environment variable and what to do."""
    error = TinkerDeadlineError(kind, elapsed_s=12.345, deadline_s=12.04)
    for fact in ("timed out", kind, "12.3 s", "12.0 s", env_var_for(kind), "set ", "the default"):
        assert fact in str(error)
    assert isinstance(error, TimeoutError)
    assert error.blame == "call"


def test_an_expiry_tells_all_that_is_known() -> None:
    """Method and evidence are in the message, and the variable that set the limit is named once."""
    assert "(TrainingClient.forward_backward)" in str(EXPIRY)
    assert "It was seen." in str(EXPIRY)
    by_a_person = TinkerDeadlineError("sample", elapsed_s=1, deadline_s=1, limit_owner=env_var_for("sample"))
    assert str(by_a_person).count(env_var_for("sample")) == 1


def test_what_is_known_of_the_work() -> None:
    """Unsent is unsent; reading is harmless; training and creation may have been executed."""
    for kind in KINDS:
        assert submission_of(kind, False) == "not sent"
        doubtful = kind in TRAINING_KINDS or kind == "connect"
        for sent in (True, None):
            assert submission_of(kind, sent) == ("indeterminate" if doubtful else "sent")
    assert EXPIRY.indeterminate and not ERRORS[1].indeterminate
    assert "do not repeat it" in str(EXPIRY)
    assert "safe to try again" in str(ERRORS[1])


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
def test_an_error_reads_the_same_everywhere(error: Any) -> None:
    """`str`, `args`, `repr` and a traceback have the message, and the public module."""
    assert error.args == (str(error),)
    assert repr(error) == f"{type(error).__name__}({str(error)!r})"
    assert traceback.format_exception_only(error) == [f"tinker_deadlines.{type(error).__name__}: {error}\n"]


# Pickling -----------------------------------------------------------------------------------------------------------


def assert_same(copied: Any, error: Any) -> None:
    assert type(copied) is type(error)
    assert copied.facts() == {**error.facts(), **({"late": None} if "late" in error.facts() else {})}
    assert str(copied) == str(error)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", ERRORS, ids=IDS)
def test_an_error_pickles_with_all_its_facts(error: Any, protocol: int) -> None:
    """By every protocol."""
    assert_same(pickle.loads(pickle.dumps(error, protocol)), error)


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
def test_an_error_copies_with_all_its_facts(error: Any) -> None:
    """Shallow and deep."""
    assert_same(copy.copy(error), error)
    assert_same(copy.deepcopy(error), error)


def test_notes_travel_and_the_late_handle_stays() -> None:
    """What a person added is pickled; the handle for a late result is of this process."""
    handle = SimpleNamespace(result=lambda timeout=None: 1, lock=object().__init__)
    error = TinkerDeadlineError("sample", elapsed_s=1, deadline_s=1, late=handle)
    error.add_note("step 7")
    copied = pickle.loads(pickle.dumps(error))
    assert copied.__notes__ == ["step 7"]
    assert error.late is handle and copied.late is None


class Unpickled(TinkerDeadlineError):
    """A person's subclass."""


def test_a_subclass_pickles_too() -> None:
    """The class of what comes back is the subclass."""
    assert_same(
        pickle.loads(pickle.dumps(Unpickled("rest", elapsed_s=1, deadline_s=1))),
        Unpickled("rest", elapsed_s=1, deadline_s=1),
    )


def _raise(number: int) -> None:
    raise ERRORS[number]


def test_an_error_crosses_processes() -> None:
    """A worker that was spawned raises, and its parent gets every fact."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for number, error in enumerate(ERRORS):
            assert_same(pool.submit(_raise, number).exception(40), error)


# Classification -----------------------------------------------------------------------------------------------------


def make(name: str, *bases: type, message: str = "", **attributes: Any) -> Exception:
    error: Exception = type(name, bases or (Exception,), {})(message)
    for key, value in attributes.items():
        setattr(error, key, value)
    return error


class Category(enum.StrEnum):
    Unknown = "unknown"
    Server = "server"
    User = "user"


class Code(enum.Enum):
    UNAVAILABLE = (14, "unavailable")
    INVALID_ARGUMENT = (3, "invalid argument")


def status(number: Any, message: str = "", where: str = "status_code") -> Exception:
    return make("APIStatusError", message=message, **{where: number})


def within_response(number: Any) -> Exception:
    return make("HTTPStatusError", response=SimpleNamespace(status_code=number))


TRANSIENT = {
    "our expiry": EXPIRY,
    "throttled": status(429),
    "request timeout": status(408),
    "internal": status(500),
    "overloaded": status(529),
    "bad gateway, as text": status("502"),
    "unavailable, as an enum": status(http.HTTPStatus.SERVICE_UNAVAILABLE),
    "504 as .status": status(504, where="status"),
    "504 as .code": status(504, where="code"),
    "504 as .http_status": status(504, where="http_status"),
    "httpx-like 503": within_response(503),
    "server category": make("RequestFailedError", category=Category.Server),
    "unknown category": make("RequestFailedError", category=Category.Unknown),
    "server category, as text": make("RequestFailedError", category="Server"),
    "a category outranks a status": make("RequestFailedError", category="server", status_code=400),
    "gRPC-like": make("RpcError", code=lambda: Code.UNAVAILABLE),
    "a word for a code": make("Error", code="RESOURCE_EXHAUSTED"),
    "builtin timeout": TimeoutError(),
    "concurrent timeout": concurrent.futures.TimeoutError(),
    "socket timeout": TimeoutError(),
    "asyncio timeout": TimeoutError(),
    "connection": ConnectionError(),
    "reset": ConnectionResetError(104, "reset by peer"),
    "broken pipe": BrokenPipeError(),
    "name resolution": socket.gaierror(-3, "Temporary failure in name resolution"),
    "tinker-like connection": make("APIConnectionError"),
    "tinker-like timeout": make("APITimeoutError", type("APIConnectionError", (Exception,), {})),
    "rate limit by class": make("RateLimitError"),
    "httpx-like transport": make("ReadError", type("TransportError", (Exception,), {})),
    "httpcore-like network": make("ConnectError", type("NetworkError", (Exception,), {})),
    "requests-like timeout": make("ReadTimeout", type("Timeout", (Exception,), {})),
    "aiohttp-like": make("ServerDisconnectedError", type("ClientConnectionError", (Exception,), {})),
    "sidecar": make("SidecarDiedError"),
    "phrase: timed out": RuntimeError("the request timed out"),
    "phrase: stuck": RuntimeError("requests appear to be stuck"),
    "phrase: overloaded": RuntimeError("Overloaded, please wait"),
    "an answer that could not be read": make("StreamingError", response=SimpleNamespace(status_code=200)),
    "a group of transient ones": ExceptionGroup("two", [TimeoutError(), ExceptionGroup("one", [status(503)])]),
}
CLIENT = {
    "bad request": status(400),
    "unauthorized": status(401),
    "forbidden": status(403),
    "not found": status(404),
    "conflict": status(409),
    "unprocessable": status(422),
    "httpx-like 404": within_response(404),
    "a status outranks a phrase": status(400, "the request timed out: too many requests"),
    "a status outranks a class": make("RateLimitError", status_code=401),
    "user category": make("RequestFailedError", category=Category.User),
    "user category, as text": make("RequestFailedError", category="USER"),
    "user category outranks a phrase": make("RequestFailedError", message="timed out", category="user"),
    "user category outranks a status": make("RequestFailedError", category="user", status_code=500),
    "gRPC-like": make("RpcError", code=lambda: Code.INVALID_ARGUMENT, message="timed out"),
    "a word for a code": make("TimeoutException", code="unauthenticated"),
    "the wall": ERRORS[3],
    "too many abandoned": ERRORS[4],
    "forked": ERRORS[5],
    "value": ValueError("no such tensor"),
    "key": KeyError("x"),
    "nothing": Exception(),
    "Ctrl-C": KeyboardInterrupt("timed out"),
    "exit": SystemExit("timed out"),
    "cancelled": asyncio.CancelledError("timed out"),
    "cancelled future": concurrent.futures.CancelledError(),
    "a group with one of the caller's": ExceptionGroup("two", [TimeoutError(), ValueError("mine")]),
    "a group with a cancellation": BaseExceptionGroup("two", [TimeoutError(), KeyboardInterrupt()]),
}


@pytest.mark.parametrize("error", TRANSIENT.values(), ids=TRANSIENT)
def test_the_infrastructures_errors_are_transient(error: BaseException) -> None:
    """Throttling, server errors, transport, and our expiries."""
    assert is_capacity_error(error)
    assert outcome_for(error) == "capacity_error"


@pytest.mark.parametrize("error", CLIENT.values(), ids=CLIENT)
def test_everything_else_is_the_callers(error: BaseException) -> None:
    """A structured code outranks a phrase; interruptions and the episode's wall are nobody's failure."""
    assert not is_capacity_error(error)
    assert outcome_for(error) == "client_error"


@given(st.integers(400, 599), st.text(), st.sampled_from(["status_code", "status", "code", "http_status"]))
def test_a_status_decides_whatever_the_message(number: int, message: str, where: str) -> None:
    """408, 429 and 5xx are transient and every other status of failure is not, wherever it stands."""
    for error in (status(number, message + " timed out", where), within_response(number)):
        assert is_capacity_error(error) == (number in (408, 429) or number >= 500)


class Hostile(Exception):
    """Raises whatever is looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError("no words")


class HalfHostile(TimeoutError):
    @property
    def status_code(self) -> int:
        raise RuntimeError("never set")

    @property
    def response(self) -> int:
        raise LookupError("never set")

    def code(self) -> int:
        raise ValueError("not now")


def test_classification_never_raises() -> None:
    """An object that raises when it is looked at is the caller's, unless its class says more."""
    assert not is_capacity_error(Hostile())
    assert is_capacity_error(HalfHostile())


anything = st.none() | st.booleans() | st.integers() | st.text() | st.floats() | st.lists(st.integers()) | st.binary()


@given(
    st.text(),
    st.dictionaries(
        st.sampled_from(["category", "status_code", "status", "code", "http_status", "response"]), anything
    ),
)
def test_any_attributes_are_classified(message: str, attributes: dict[str, Any]) -> None:
    """Whatever stands in the attributes, there is an answer, always the same."""
    error = make("SomeError", message=message, **attributes)
    assert outcome_for(error) in ("capacity_error", "client_error")
    assert outcome_for(error) == outcome_for(error)


def test_the_wall_is_not_retried_by_those_who_look_for_words() -> None:
    """The message of a budget has none of the words that retry loops look for, and its class is no `TimeoutError`."""
    wall = ERRORS[3]
    assert not isinstance(wall, TimeoutError)
    assert wall.blame == "budget" and wall.owner in str(wall) and "1800.0 s" in str(wall)
    for word in ("timed out", "timeout", "connection", "capacity", "unavailable", "rate"):
        assert word not in str(wall).lower()
