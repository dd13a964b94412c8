"""The shipped numbers, and the numbers that a person sets in the environment."""

from __future__ import annotations

import math
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines import (
    DEADLINE_ENV_PREFIX,
    DEFAULT_DEADLINES_S,
    TinkerCallKind,
    await_with_deadline,
    call_with_deadline,
    deadline_for,
    env_var_for,
    wait_with_deadline,
)
from tinker_deadlines.calls import KINDS
from tinker_deadlines.limits import parse_seconds
from tinker_deadlines.testing import FakeFuture

SHIPPED = [
    ("sample", 300),
    ("compute_logprobs", 300),
    ("forward_backward", 900),
    ("optim_step", 600),
    ("save_state", 600),
    ("load_state", 600),
    ("save_weights_for_sampler", 600),
    ("connect", 60),
    ("rest", 60),
]
RUBBISH = [
    "",
    " ",
    "abc",
    "nan",
    "-nan",
    "inf",
    "-inf",
    "infinity",
    "-1",
    "0",
    "-0.0",
    "0e5",
    "1e400",
    "1e-400",
    "5s",
    "0x10",
    "1,5",
    "1__0",
    "9" * 400,
    "None",
    "True",
    "५ s",
    "\udcff",
]


def test_the_shipped_defaults_in_their_order() -> None:
    """Kinds and seconds are those of the contract, in its order."""
    assert list(DEFAULT_DEADLINES_S.items()) == SHIPPED
    assert list(KINDS) == [kind for kind, _ in SHIPPED]


@pytest.mark.parametrize("kind, limit_s", SHIPPED)
def test_a_kind_has_its_default_and_its_variable(kind: TinkerCallKind, limit_s: float) -> None:
    """With nothing set, the default holds; the variable is the prefix and the kind in capitals."""
    assert deadline_for(kind) == limit_s
    assert DEADLINE_ENV_PREFIX == "WMO_TINKER_DEADLINE_"
    assert env_var_for(kind) == f"WMO_TINKER_DEADLINE_{kind.upper()}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_variable_is_read_at_every_call(kind: TinkerCallKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is set, changed, or removed counts from the next call on, and for its own kind alone."""
    for text, expected in (("12.5", 12.5), ("7", 7.0)):
        monkeypatch.setenv(env_var_for(kind), text)
        assert deadline_for(kind) == expected
        assert [deadline_for(other) for other in KINDS if other != kind] == [s for k, s in SHIPPED if k != kind]
    monkeypatch.delenv(env_var_for(kind))
    assert deadline_for(kind) == DEFAULT_DEADLINES_S[kind]


def test_a_variable_set_below_os_environ_counts() -> None:
    """`os.putenv` is not seen by Python itself; `os.environ` and `os.environb` are."""
    name = env_var_for("sample")
    os.environb[name.encode()] = b"3"
    try:
        assert deadline_for("sample") == 3
    finally:
        del os.environ[name]
    assert deadline_for("sample") == 300


@pytest.mark.parametrize("text", RUBBISH)
def test_rubbish_is_refused_with_variable_value_and_fix(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything but a positive finite number raises `ValueError` at once, by way of every function."""
    name = env_var_for("forward_backward")
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError) as refused:
        deadline_for("forward_backward")
    for fact in (name, repr(text), "positive finite number of seconds", "remove it", "900"):
        assert fact in str(refused.value)
    assert deadline_for("sample") == 300


def test_every_function_refuses_rubbish(monkeypatch: pytest.MonkeyPatch) -> None:
    """All three say so before they wait, on a finished future and on a coroutine that never starts as well."""
    monkeypatch.setenv(env_var_for("sample"), "abc")
    called: list[int] = []
    for future in (FakeFuture(), FakeFuture(1, after_s=0)):
        with pytest.raises(ValueError, match="SAMPLE is 'abc'"):
            wait_with_deadline("sample", future)
    with pytest.raises(ValueError, match="SAMPLE is 'abc'"):
        call_with_deadline("sample", lambda: called.append(1))

    async def never() -> None:
        called.append(1)

    with pytest.raises(ValueError, match="SAMPLE is 'abc'"):
        await_with_deadline("sample", never()).send(None)
    assert called == []


@pytest.mark.parametrize(
    "text, seconds",
    [
        (" 5 ", 5.0),
        ("\t5\n", 5.0),
        ("1_000", 1000.0),
        ("٣", 3.0),
        ("+2", 2.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1e300", 1e300),
        ("1e-9", 0.001),
        ("5e-324", 0.001),
        ("0.001", 0.001),
        ("0.0011", 0.0011),
        ("0" * 5000 + "7", 7.0),
    ],
)
def test_what_python_reads_as_a_number_is_obeyed(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever `float` takes for a positive finite number counts exactly; less than a millisecond counts as one."""
    monkeypatch.setenv(env_var_for("rest"), text)
    assert deadline_for("rest") == seconds


@pytest.mark.parametrize("text", ["1e300", str(sys.float_info.max)])
def test_a_limit_beyond_what_a_platform_can_wait_is_no_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that no lock can wait for counts as for ever."""
    monkeypatch.setenv(env_var_for("sample"), text)
    assert call_with_deadline("sample", lambda: 1) == 1
    import asyncio
    import threading
    from concurrent.futures import Future

    future: Future[int] = Future()
    threading.Timer(0.005, future.set_result, (2,)).start()
    assert wait_with_deadline("sample", future) == 2
    assert asyncio.run(await_with_deadline("sample", asyncio.sleep(0, 3))) == 3


@pytest.mark.parametrize("kind", ["", "SAMPLE", "sampling", None, 5, ["sample"]])
def test_an_unknown_kind_is_refused(kind: object) -> None:
    """Every function names the kinds that there are."""
    functions = [
        lambda: env_var_for(kind),  # type: ignore[arg-type]
        lambda: deadline_for(kind),  # type: ignore[arg-type]
        lambda: wait_with_deadline(kind, FakeFuture(1, after_s=0)),  # type: ignore[arg-type]
        lambda: wait_with_deadline(kind, FakeFuture()),  # type: ignore[arg-type]
        lambda: call_with_deadline(kind, lambda: 1),  # type: ignore[arg-type,return-value]
    ]
    for function in functions:
        with pytest.raises(ValueError, match="the kinds are sample, compute_logprobs"):
            function()


def test_an_environment_replaced_by_a_dict_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tests put a plain dict in place of `os.environ`."""
    monkeypatch.setattr(os, "environ", {env_var_for("sample"): "4"})
    assert deadline_for("sample") == 4
    assert deadline_for("rest") == 60
    os.environ[env_var_for("rest")] = "abc"
    with pytest.raises(ValueError, match="REST is 'abc'"):
        deadline_for("rest")


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_float_is_obeyed_exactly_or_refused(seconds: float) -> None:
    """Positive and finite: as it is, but at least a millisecond. All else: `ValueError`."""
    if math.isfinite(seconds) and seconds > 0:
        assert parse_seconds(repr(seconds), what="it", example=1) == max(seconds, 0.001)
    else:
        with pytest.raises(ValueError, match="it is"):
            parse_seconds(repr(seconds), what="it", example=1)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text raises anything but `ValueError`, and none gives a limit that is not positive and finite."""
    try:
        seconds = parse_seconds(text, what="it", example=1)
    except ValueError as refused:
        assert repr(text) in str(refused)
    else:
        assert 0.001 <= seconds < math.inf
