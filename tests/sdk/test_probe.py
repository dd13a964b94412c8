"""What a probe asks, over which connections, and that it never takes longer than it may."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tinker
from sdk_calls import KEY, PARAMS, PROMPT
from sdk_switch import Switch
from sdk_tools import eventually, settled

from tinker_deadlines.calls import Call, TinkerCallKind, Traffic, board
from tinker_deadlines.lab import Lab
from tinker_deadlines.liveness.signs import sessions
from tinker_deadlines.liveness.verdict import conclude
from tinker_deadlines.sdk import facts
from tinker_deadlines.sdk.private import sdk_loop
from tinker_deadlines.sdk.probe import Way, ask, pools

ALL = frozenset({"session", "sample", "train", "retrieve_promise", "rest_support_redirect"})


@pytest.fixture(autouse=True)
def _sessions() -> Iterator[None]:
    sessions.clear()
    yield
    sessions.clear()


def waiting(kind: TinkerCallKind, *, answered: bool = False, polls: int = 0, session: str = "one") -> Call:
    """A call in flight: its submission is on its way, or answered, or it polls for its result."""
    call = Call(kind, 60.0, "test", session=session)
    call.traffic = Traffic()
    if answered:
        call.traffic.ended("asample 200")
    for _ in range(polls):
        call.traffic.ended("retrieve_future 408", poll=True)
    board.begin(call)
    return call


@pytest.mark.parametrize(
    "kind, how, in_use, expected",
    [
        ("sample", {}, ALL, {"sample"}),
        ("compute_logprobs", {}, ALL, {"sample"}),
        ("forward_backward", {}, ALL, {"train"}),
        ("sample", {"answered": True}, ALL, {"retrieve_promise"}),
        ("sample", {"polls": 3}, ALL | {"retrieve_futures"}, {"retrieve_promise"}),
        ("sample", {"answered": True}, ALL | {"retrieve_futures"}, {"retrieve_futures"}),
        ("optim_step", {"answered": True}, ALL | {"retrieve_futures"}, {"retrieve_promise"}),
        ("rest", {}, ALL, {"session"}),
        ("sample", {"session": "another"}, ALL, {"session"}),
        ("sample", {}, frozenset(), {"session"}),
        ("sample", {}, frozenset({"session"}), {"session"}),
    ],
)
def test_it_asks_over_the_connections_that_calls_wait_for(
    kind: TinkerCallKind, how: dict[str, Any], in_use: frozenset[str], expected: set[str]
) -> None:
    """Those of submissions before their answer, those of polls after it; else those of the session's heartbeat."""
    waiting(kind, **how)
    assert pools("one", in_use) == expected


def test_it_asks_over_all_that_are_waited_for() -> None:
    """A session may wait for several."""
    waiting("sample")
    waiting("forward_backward", polls=1)
    assert pools("one", ALL) == {"sample", "retrieve_promise"}


class Holder:
    """What a session's requests go through, of which the connections for some purposes are dead."""

    def __init__(self, *dead: str) -> None:
        self.dead = dead
        self.asked: list[str] = []
        self.answered: list[str] = []
        self._client_pools = {_Pool(name): None for name in ALL}

    @contextlib.contextmanager
    def aclient(self, pool: Any) -> Iterator[Any]:
        self.asked.append(pool.value)
        holder = self

        class Service:
            async def session_heartbeat(self, **_: Any) -> None:
                await asyncio.sleep(30 if pool.value in holder.dead else 0.01)
                holder.answered.append(pool.value)

        class Client:
            service = Service()

        yield Client()


class _Pool:
    def __init__(self, value: str) -> None:
        self.value = value


def way_of(holder: Any, lab: Lab) -> Way:
    way = Way(holder, "one")
    way.origin = lab.url
    return way


@pytest.fixture
def loop(make_clients: Callable[..., Any]) -> asyncio.AbstractEventLoop:
    """The SDK's loop, running."""
    make_clients()
    running = sdk_loop()
    assert running is not None
    return running


def test_a_session_whose_samples_are_not_answered_is_dead_though_its_heartbeat_is(
    lab: Lab, loop: asyncio.AbstractEventLoop
) -> None:
    """The connections of samples are dead, those of the session live on: the verdict is that of the samples."""
    waiting("sample")
    holder = Holder("sample")
    assert conclude(ask(way_of(holder, lab), 0.5)) == "session wedged" and holder.asked == ["sample"]


def test_a_session_of_which_some_connections_live_is_not_dead(lab: Lab, loop: asyncio.AbstractEventLoop) -> None:
    """Its calls over the living ones must not die with those over the dead ones, which have limits of their own."""
    waiting("sample")
    waiting("forward_backward", polls=1)
    some, all_of_them = Holder("sample"), Holder("sample", "retrieve_promise")
    assert conclude(ask(way_of(some, lab), 0.5)) == "slow"
    assert conclude(ask(way_of(all_of_them, lab), 0.5)) == "session wedged"


def test_it_takes_no_longer_than_it_may(lab: Lab, loop: asyncio.AbstractEventLoop, switch: Switch) -> None:
    """Nobody answers, over however many connections: the questions are asked side by side."""
    waiting("sample")
    waiting("forward_backward", polls=1)
    switch.mode = "silent"
    way = way_of(holder := Holder("sample", "retrieve_promise"), lab)
    way.origin = switch.url
    started_at = time.monotonic()
    assert conclude(ask(way, 0.5)) == "outage"
    assert time.monotonic() - started_at < 1.5 and len(holder.asked) == 2


def test_a_blocked_loop_is_asked_nothing_later(lab: Lab, loop: asyncio.AbstractEventLoop) -> None:
    """What was asked of it is taken back; the stack says where it stands."""
    gate, holder = threading.Event(), Holder()

    def in_the_way() -> None:
        gate.wait(10)

    loop.call_soon_threadsafe(in_the_way)
    try:
        started_at = time.monotonic()
        answers = ask(way_of(holder, lab), 0.3)
        assert time.monotonic() - started_at < 1.5
    finally:
        gate.set()
    assert conclude(answers) == "loop blocked" and "in_the_way" in answers.stack
    done = threading.Event()
    loop.call_soon_threadsafe(done.set)
    assert done.wait(5)
    time.sleep(0.04)
    assert holder.answered == []


def test_a_session_that_is_gone_cannot_be_asked(lab: Lab, loop: asyncio.AbstractEventLoop) -> None:
    """Whatever held it was collected: nothing is found out, and nothing fails."""
    way = way_of(Holder(), lab)
    gc.collect()
    assert way.holder is None
    answers = ask(way, 0.5)
    assert (answers.loop, answers.session) == (True, None) and conclude(answers) is None


def test_an_address_that_is_not_known_is_no_answer(lab: Lab, loop: asyncio.AbstractEventLoop) -> None:
    """Before the first answer nobody knows where to ask afresh."""
    way = Way(holder := Holder("session"), "one")
    answers = ask(way, 0.3)
    assert holder.asked == ["session"] and answers.session is False and answers.fresh is False


def test_a_thousand_sessions_leave_no_holder_behind(lab: Lab, installed: None) -> None:
    """Sessions are remembered, with how to ask them; what their requests went through is not held by that."""

    class Client(tinker.SamplingClient):
        def __init__(self, number: int) -> None:
            self.holder = Holder()
            self.holder._session_id = f"session-{number}"  # type: ignore[attr-defined]
            self._base_model = "model"

    gone = []
    before = len(facts._known)
    for number in range(1000):
        client = Client(number)
        known = facts.known_of(client)
        assert known is not None and known.session == f"session-{number}"
        gone.append(weakref.ref(client.holder))
        del client
    gc.collect()
    assert not any(holder() for holder in gone)
    assert len(facts._known) <= before and len(sessions.all()) >= 990


@pytest.mark.skipif(not hasattr(tinker.ServiceClient, "close"), reason="this version never lets go of a session")
def test_a_session_of_the_sdk_goes_when_it_is_closed(lab: Lab, installed: None) -> None:
    """A real one, after samples were made through it; until then the SDK holds it itself."""
    service = tinker.ServiceClient(base_url=lab.url, api_key=KEY)
    client = settled(service.create_sampling_client(base_model=lab.base_model))
    settled(client.sample(PROMPT, 1, PARAMS))
    known = facts.known_of(client)
    assert known is not None
    session = sessions.get(known.session)
    assert session is not None and session.way.holder is not None
    settled(service.close("success"))
    del service, client, known
    eventually(lambda: gc.collect() is not None and session.way.holder is None)
