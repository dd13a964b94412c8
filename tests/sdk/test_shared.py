"""Sessions on the real SDK: who shares one, how it ends, what happens when it fails, and how many there may be."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import tinker
from sdk_brisk import Brisk
from sdk_calls import KEY, PARAMS, PROMPT, Clients
from sdk_switch import Switch
from sdk_tools import VERSION, eventually, path_with_source, run_script, settled

import tinker_deadlines
from tinker_deadlines import SessionBudgetError, StuckCallError, ready, ready_async
from tinker_deadlines.lab import Lab
from tinker_deadlines.liveness.signs import sessions
from tinker_deadlines.liveness.verdict import Answers
from tinker_deadlines.liveness.watcher import watcher
from tinker_deadlines.recovery.sessions import session_budget
from tinker_deadlines.sdk import private
from tinker_deadlines.sdk.facts import facts_of
from tinker_deadlines.sdk.outages import outages
from tinker_deadlines.sdk.shared import Shared, shared

CLOSES = hasattr(tinker.ServiceClient, "close")
needs_close = pytest.mark.skipif(not CLOSES, reason="this version cannot finish a session")


class Service:
    """A lab of one test, and what it says of its sessions: the witness."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.url = lab.url
        self.model = lab.base_model

    def get(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", headers={"X-API-Key": KEY})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def sessions(self) -> list[str]:
        return list(self.get("sessions")["sessions"])

    def samplers(self) -> list[str]:
        return [sampler for session in self.sessions() for sampler in self.get(f"sessions/{session}")["sampler_ids"]]

    def end(self, session: str) -> None:
        body = json.dumps({"reason": {"type": "success"}}).encode()
        headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
        path = f"{self.url}/api/v1/sessions/{session}/finish"
        urllib.request.urlopen(urllib.request.Request(path, body, headers), timeout=10).close()

    def has_ended(self, session: str) -> bool:
        body, path = json.dumps({"session_id": session}).encode(), f"{self.url}/api/v1/session_heartbeat"
        headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
        try:
            urllib.request.urlopen(urllib.request.Request(path, body, headers), timeout=10).close()
        except urllib.error.HTTPError as error:
            error.close()
            return error.code == 410
        return False

    def client(self, **options: Any) -> Any:
        return tinker.ServiceClient(base_url=self.url, api_key=KEY, **options)

    def sampler(self, service: Any, **options: Any) -> Any:
        return settled(service.create_sampling_client(**(options or {"base_model": self.model})))


@pytest.fixture
def service(make_tinker_lab: Callable[..., Lab]) -> Service:
    return Service(make_tinker_lab(poll_s=0.5))


@pytest.fixture
def sharing() -> Iterator[None]:
    """Deadlines for everybody as they are by default, with nothing left of what earlier tests did."""
    sessions.clear()
    tinker_deadlines.install()
    yield
    tinker_deadlines.uninstall()
    sessions.clear()


def sample(client: Any) -> Any:
    return client.sample(PROMPT, 1, PARAMS)


# Who shares -----------------------------------------------------------------------------------------------------------

TRIALS = 48


def saved_path(service: Service) -> str:
    training = settled(service.client().create_lora_training_client(service.model, rank=4))
    return str(settled(training.save_weights_for_sampler("rollouts")).path)


def test_rollouts_in_threads_share_a_session_and_a_sampler(service: Service, sharing: None) -> None:
    """Trials that each make a service client and a sampling client end with one of each on the service."""
    path = saved_path(service)

    def trial(_: int) -> Any:
        client = service.sampler(service.client(), model_path=path)
        assert isinstance(client, tinker.SamplingClient)
        return settled(sample(client)), client

    with ThreadPoolExecutor(8) as pool:
        answers, clients = zip(*pool.map(trial, range(TRIALS)), strict=True)
    assert all(answer.sequences for answer in answers)
    assert len({id(client) for client in clients}) == 1
    assert len(service.sessions()) == len(service.samplers()) == 1
    executed = [each["type"] for each in service.lab.executions()]
    assert executed.count("Sample") == TRIALS


def test_rollouts_in_tasks_share_a_session_and_a_sampler(service: Service, sharing: None) -> None:
    """The same in async code, where all ask at once; the loop is not held up."""

    async def trial() -> Any:
        client = service.client()
        if VERSION >= (0, 38):
            return await client.create_sampling_client(base_model=service.model)
        return await client.create_sampling_client_async(base_model=service.model)

    async def main() -> list[Any]:
        return await asyncio.gather(*(trial() for _ in range(TRIALS)))

    assert len({id(client) for client in asyncio.run(main())}) == 1
    assert len(service.sessions()) == len(service.samplers()) == 1


def test_a_sampler_that_nobody_holds_is_kept_for_the_next_trial(service: Service, sharing: None) -> None:
    """Trials one after the other, each with its client gone before the next one begins."""
    for _ in range(4):
        settled(sample(service.sampler(service.client())))
        gc.collect()
    assert len(service.sessions()) == len(service.samplers()) == 1


def test_what_was_made_otherwise_is_not_shared(
    service: Service, sharing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another key, other words on the run, or another environment: a session of its own, for each pair alike."""
    service.sampler(service.client())
    for options in ({"user_metadata": {"run": "7"}}, {"user_metadata": {"run": "8"}}, {"project_id": "project-1"}):
        for _ in range(2):
            service.sampler(service.client(**options))
    service.sampler(tinker.ServiceClient(base_url=service.url, api_key="tml-another"))
    service.sampler(tinker.ServiceClient(base_url=service.url + "/", api_key=KEY, user_metadata={}))
    monkeypatch.setenv("TINKER_TAGS", "a-tag")
    service.sampler(service.client())
    assert len(service.sessions()) in (6, 7)  # whether an address with a stroke is the same is the SDK's to say


def test_other_weights_are_other_clients(service: Service, sharing: None) -> None:
    """A path, a base model, a way to retry: only what is asked for in the same words is the same client."""
    from tinker.lib.retry_handler import RetryConfig

    path = saved_path(service)
    one = service.client()
    asked: list[dict[str, Any]] = [
        {"model_path": path},
        {"base_model": service.model},
        {"base_model": service.model, "retry_config": RetryConfig(max_connections=7)},
    ]
    clients = [service.sampler(one, **options) for options in asked]
    again = [service.sampler(service.client(), **options) for options in asked]
    assert len({id(client) for client in clients}) == 3
    assert clients[:2] == again[:2]
    assert facts_of(clients[0]).path == path and facts_of(clients[0]).elsewhere


def test_ephemeral_weights_are_never_shared(service: Service, sharing: None) -> None:
    """Each is the only client of its weights; training clients are never shared either."""
    training = settled(service.client().create_lora_training_client(service.model, rank=4))
    other = settled(service.client().create_lora_training_client(service.model, rank=4))
    assert training is not other
    made = [settled(training.save_weights_and_get_sampling_client()) for _ in range(2)]
    assert made[0] is not made[1]
    assert len(service.sessions()) == 1 and len(service.samplers()) == 2


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_sharing_can_be_turned_off(how: str, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then each service client has its session, as without us; a second `install()` leaves it off."""
    if how == "environment":
        monkeypatch.setenv("TINKER_DEADLINES_SHARE", "off")
    tinker_deadlines.install(share=False) if how == "argument" else tinker_deadlines.install()
    tinker_deadlines.install()
    for _ in range(3):
        service.sampler(service.client())
    assert len(service.sessions()) == len(service.samplers()) == 3


def test_a_guarded_client_shares_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """`guard()` bounds calls, and changes nothing else: nobody's sessions are counted."""
    monkeypatch.setenv("TINKER_DEADLINES_SESSIONS", "1")
    for _ in range(2):
        service.sampler(tinker_deadlines.guard(service.client()))
    assert len(service.sessions()) == 2


def test_weights_that_are_saved_anew_are_sampled_from_a_new_client(service: Service, sharing: None) -> None:
    """A client of a path is handed out until something is saved under that path again."""
    path = saved_path(service)
    first = service.sampler(service.client(), model_path=path)
    base = service.sampler(service.client())
    shared.saved(path)
    assert service.sampler(service.client(), model_path=path) is not first
    assert service.sampler(service.client()) is base


def test_the_save_itself_says_so(service: Service, sharing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every save that completes, the path is told, in all forms of the call."""
    told: list[str] = []
    monkeypatch.setattr(shared, "saved", told.append)
    assert told == [saved_path(service)]


# How it ends ----------------------------------------------------------------------------------------------------------


@needs_close
def test_the_last_one_to_close_ends_the_session(service: Service, sharing: None) -> None:
    """A service client that is closed is closed, and the others work on until the last of them is."""
    first, second = service.client(), service.client()
    one, two = service.sampler(first), service.sampler(second)
    assert one is two
    (session,) = service.sessions()
    with pytest.raises(TypeError):
        first.close()
    settled(first.close("success"))
    settled(first.close("success"))
    with pytest.raises(RuntimeError, match="closed"):
        service.sampler(first)
    assert not service.has_ended(session)
    assert settled(sample(two)).sequences
    with second:
        pass
    assert service.has_ended(session)
    eventually(lambda: session_budget.counts()[:2] == (1, 1))
    assert settled(sample(service.sampler(service.client()))).sequences
    assert len(service.sessions()) == 2


@needs_close
def test_a_client_that_was_dropped_still_has_its_session(service: Service, sharing: None) -> None:
    """Without us its session would have gone on: closing another one does not end it."""
    kept = service.sampler(service.client())
    gc.collect()
    closing = service.client()
    service.sampler(closing)
    settled(closing.close("success"))
    assert settled(sample(kept)).sequences


def test_custom_losses_of_clients_that_share_do_not_collide(service: Service, sharing: None) -> None:
    """Two service clients may each bring the same loss, as they may without us."""
    one, two = service.client().holder, service.client().holder
    assert one is two
    if hasattr(one, "_register_custom_loss"):
        loss = type("Loss", (), {"key": "the key", "name": "the name"})
        one._register_custom_loss(loss)
        two._register_custom_loss(loss)


INSTALL = "import tinker, tinker_deadlines; tinker_deadlines.install()"
SCRIPT = """
import os, sys, time, tinker
service = tinker.ServiceClient()
client = service.create_sampling_client(base_model=os.environ["MODEL"])
client = client.result() if hasattr(client, "result") else client
{then}
"""


def at_exit(service: Service, then: str) -> subprocess.CompletedProcess[str]:
    environment = {"TINKER_BASE_URL": service.url, "TINKER_API_KEY": KEY, "MODEL": service.model}
    script = INSTALL + SCRIPT.format(then=then)
    return run_script(script, PYTHONWARNINGS="ignore", TINKER_DEADLINES_RECORD="off", **environment)


@needs_close
@pytest.mark.parametrize("then, status", [("", "success"), ("raise ValueError", "errored")])
def test_what_a_script_leaves_open_is_finished(then: str, status: str, service: Service) -> None:
    """With the way in which the script ended, and its own exit status."""
    done = at_exit(service, then)
    assert done.returncode == (1 if then else 0), done.stderr
    (session,) = service.lab._engine().sessions.all()
    assert session.status["reason"] == {"type": status}


@needs_close
def test_a_session_that_others_still_need_is_left_alone(service: Service) -> None:
    """One whose sampling client was pickled, which another process may use on, and one with a call in flight."""
    assert at_exit(service, "import pickle; pickle.dumps(client)").returncode == 0
    in_flight = """
from tinker_deadlines.calls import Call, board
board.begin(Call("sample", 9, "", session=client.holder._session_id))
"""
    assert at_exit(service, in_flight).returncode == 0
    assert len(service.sessions()) == 2
    assert not any(service.has_ended(session) for session in service.sessions())


@needs_close
def test_sigterm_finishes_sessions_under_run(service: Service, tmp_path: Any) -> None:
    """The process is one that SIGTERM killed, its sessions are finished, and its summary is said."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(then="print('ready', flush=True)\ntime.sleep(60)"))
    environment = {"TINKER_BASE_URL": service.url, "TINKER_API_KEY": KEY, "MODEL": service.model}
    environment["PYTHONWARNINGS"] = "ignore"
    process = subprocess.Popen(
        [sys.executable, "-m", "tinker_deadlines", "run", str(script)],
        env={**os.environ, **path_with_source(), "TINKER_DEADLINES_RECORD": "off", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        said_ready = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=40)
    assert said_ready == "ready\n", said
    assert process.returncode == -signal.SIGTERM
    assert "1 Tinker call" in said or "Tinker calls" in said
    (session,) = service.lab._engine().sessions.all()
    assert session.status["reason"] == {"type": "interrupted"}


# What fails -----------------------------------------------------------------------------------------------------------


def test_a_client_that_failed_is_not_handed_out_again(service: Service, sharing: None) -> None:
    """Whoever asks next gets another; and evicting the old one does not evict the one that took its place."""
    first = service.sampler(service.client())
    assert shared.evict(first)
    second = service.sampler(service.client())
    assert second is not first
    assert not shared.evict(first)
    assert service.sampler(service.client()) is second
    assert len(service.sessions()) == 1


def test_an_expiry_says_that_a_client_failed(
    switch: Switch, lab: Lab, sharing: None, limits: Callable[..., None]
) -> None:
    """After one, the sampling client is another; after three in a row, the session is another."""
    made: list[Any] = []
    for number in range(4):
        client = settled(
            tinker.ServiceClient(base_url=switch.url, api_key=KEY).create_sampling_client(base_model=lab.base_model)
        )
        made.append(client)
        if number < 3:
            limits(sample=0.2)
            switch.mode = "silent"
            with pytest.raises(StuckCallError):
                settled(sample(client))
            switch.mode = "pass"
            switch.drop()
    assert len({id(client) for client in made}) == 4
    assert [private.session_of(client) == private.session_of(made[0]) for client in made] == [True, True, True, False]


def test_a_failure_of_the_caller_says_nothing_on_the_client(service: Service, sharing: None) -> None:
    """A prompt that is refused leaves the client as it is."""
    client = service.sampler(service.client())
    with pytest.raises(tinker.TinkerError):
        settled(client.sample(PROMPT, 1, tinker.SamplingParams(max_tokens=-5)))
    assert service.sampler(service.client()) is client


def test_a_budgets_end_says_nothing_on_the_client(make_tinker_lab: Callable[..., Lab], sharing: None) -> None:
    """An episode that is over says that it took too long, not that its client is dead."""
    service = Service(make_tinker_lab(latency="5.0", poll_s=0.2))
    client = service.sampler(service.client())
    with tinker_deadlines.episode(0.2), pytest.raises(tinker_deadlines.BudgetExhaustedError):
        settled(sample(client))
    assert service.sampler(service.client()) is client


def test_a_session_that_the_service_has_ended_is_given_to_nobody(service: Service, sharing: None) -> None:
    """Who was first to hear of it gets the error; the next service client has a session of its own."""
    service.sampler(service.client())
    (session,) = service.sessions()
    service.end(session)
    with pytest.raises(tinker.APIStatusError):
        settled(service.client().create_sampling_client(base_model=service.model, retry_config=None, **other_weights()))
    assert settled(sample(service.sampler(service.client()))).sequences
    assert len(service.sessions()) == 2


def other_weights() -> dict[str, Any]:
    """What makes a client another one, so that it is asked for on the service."""
    return {"record_stability_info": True} if VERSION >= (0, 30) else {"model_path": "tinker://none/weights/none"}


def test_a_wedged_session_is_given_to_nobody_and_finished_when_it_is_free(service: Service, sharing: None) -> None:
    """While somebody holds a client of it, it stays; afterwards the next creation finishes it."""
    first = service.client()
    client = service.sampler(first)
    (session,) = service.sessions()
    seen = sessions.of(session)
    seen.convicted_at = time.monotonic() + 1
    service.sampler(service.client())
    assert len(service.sessions()) == 2
    assert not service.has_ended(session)
    del first, client
    gc.collect()
    service.sampler(service.client(user_metadata={"run": "7"}))
    if CLOSES:
        eventually(lambda: service.has_ended(session))
        eventually(lambda: session_budget.counts().finished == 1)


def test_a_heartbeat_that_is_refused_says_that_a_session_is_gone(service: Service, sharing: None) -> None:
    """The SDK sends one each ten seconds: the next service client does not have to find out."""
    one = service.client()
    service.sampler(one)
    (session,) = service.sessions()
    service.end(session)
    holder = private.holder_of(one)
    with pytest.raises(tinker.APIStatusError):
        settled(holder.run_coroutine_threadsafe(private.heartbeat(holder, session, "session", 5.0)))
    assert settled(sample(service.sampler(service.client()))).sequences


# How it is made -------------------------------------------------------------------------------------------------------


class Holder:
    """What a session's requests go through, without an SDK."""

    def __init__(self, number: int) -> None:
        self._session_id = f"session_{number}"


@pytest.fixture
def apart_from_the_others(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    one = Shared()
    session_budget.clear()
    one.start(share=True)
    yield one
    one.stop()


ARGUMENTS = {"base_url": "http://127.0.0.1:1", "api_key": KEY}


@pytest.mark.parametrize("round_", range(20))
def test_many_who_ask_at_once_get_one_creation(round_: int, apart_from_the_others: Shared) -> None:
    """Thirty threads, twenty times: one session is made, and all have it."""
    made: list[Holder] = []

    def make(**_: Any) -> Holder:
        time.sleep(0.005)
        made.append(Holder(len(made)))
        return made[-1]

    with ThreadPoolExecutor(30) as pool:
        got = list(pool.map(lambda _: apart_from_the_others.session_for(make, ARGUMENTS), range(30)))
    assert len(made) == 1 and set(got) == set(made)
    slot = apart_from_the_others.slot_of(made[0])
    assert slot is not None and slot.users == 30


def test_a_creation_that_fails_fails_for_all_who_waited_and_for_nobody_else(apart_from_the_others: Shared) -> None:
    """They get its error; who comes later tries anew. A creation that was refused is not counted."""
    entered, go_on = threading.Event(), threading.Event()

    def refused(**_: Any) -> Any:
        entered.set()
        go_on.wait(10)
        raise ValueError("no such project")

    def ask() -> Any:
        try:
            return apart_from_the_others.session_for(refused, ARGUMENTS)
        except ValueError as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask) for _ in range(4)]
        entered.wait(10)
        go_on.set()
        errors = [answer.result(10) for answer in answers]
    assert all(isinstance(error, ValueError) for error in errors)
    assert session_budget.counts().open == 0
    assert isinstance(apart_from_the_others.session_for(lambda **_: Holder(1), ARGUMENTS), Holder)


def test_nobody_waits_for_a_creation_that_hangs(apart_from_the_others: Shared, limits: Callable[..., None]) -> None:
    """After the limit of its kind, those who wait make another; the late one is counted, and has one user."""
    limits(connect=0.1)
    go_on = threading.Event()

    def hangs(**_: Any) -> Holder:
        go_on.wait(10)
        return Holder(1)

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(apart_from_the_others.session_for, hangs, ARGUMENTS)
        eventually(lambda: session_budget.counts().unanswered == 1)
        other = apart_from_the_others.session_for(lambda **_: Holder(2), ARGUMENTS)
        assert other._session_id == "session_2"
        go_on.set()
        assert late.result(10)._session_id == "session_1"
    assert apart_from_the_others.session_for(lambda **_: Holder(3), ARGUMENTS) is other
    assert session_budget.counts()[:2] == (2, 0)


def test_options_that_cannot_be_compared_are_not_shared(apart_from_the_others: Shared) -> None:
    """Older versions take anything by keyword."""
    odd = {**ARGUMENTS, "http_client": object()}
    got = {apart_from_the_others.session_for(lambda **_: Holder(id(object())), odd) for _ in range(2)}
    assert len(got) == 2


def test_sessions_are_counted_against_a_budget(
    service: Service, sharing: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At four fifths it is said, beyond it nothing is sent, and what is closed makes room."""
    monkeypatch.setenv("TINKER_DEADLINES_SESSIONS", "5")
    caplog.set_level(logging.WARNING)
    clients = [service.client(user_metadata={"run": str(number)}) for number in range(6)]
    for number, client in enumerate(clients[:5]):
        service.sampler(client)
        assert ("4 of at most 5" in caplog.text) is (number >= 3)
    with pytest.raises(SessionBudgetError) as caught:
        service.sampler(clients[5])
    assert (caught.value.open, caught.value.most, caught.value.created) == (5, 5, 5)
    assert len(service.sessions()) == 5
    if CLOSES:
        settled(clients[0].close("success"))
        eventually(lambda: session_budget.counts().open == 4)
        assert settled(sample(service.sampler(clients[5]))).sequences


def test_a_creation_without_an_answer_counts(switch: Switch, lab: Lab, sharing: None) -> None:
    """It may have been made: where the connection broke before it was asked for, it was not."""
    request = type("Request", (), {"url": type("Url", (), {"path": "/api/v1/create_session"})})
    asked, before = Exception("reset"), Exception("reset")
    asked.request = request  # type: ignore[attr-defined]
    before.request = type("Request", (), {"url": type("Url", (), {"path": "/api/v1/client/config"})})  # type: ignore[attr-defined]
    refused = Exception("no")
    refused.status_code = 400  # type: ignore[attr-defined]
    for number, (error, unanswered) in enumerate([(asked, 1), (before, 1), (refused, 1)]):

        def make(error: Exception = error, **_: Any) -> Any:
            raise error

        with pytest.raises(Exception, match=r"reset|no"):
            shared.session_for(make, {**ARGUMENTS, "project_id": str(number)})
        assert session_budget.counts().unanswered == unanswered


def test_while_the_service_is_down_no_session_is_made(
    switch: Switch, lab: Lab, sharing: None, brisk: Brisk, limits: Callable[..., None]
) -> None:
    """A probe's verdict says so; who asks waits, and says so if it was in vain; an answer lets everybody in."""
    one = tinker.ServiceClient(base_url=switch.url, api_key=KEY)
    client = settled(one.create_sampling_client(base_model=lab.base_model))
    settled(sample(client))
    (session,) = [each for each in sessions.all() if each.id == private.session_of(client)]
    switch.mode = "refuse"
    switch.drop()
    accepted = switch.accepted
    watcher.answered(session, Answers(loop=True, session=False, fresh=False))
    assert outages.is_down(switch.url)
    limits(connect=0.5)
    before = session_budget.counts()
    with pytest.raises(StuckCallError) as caught:
        other = tinker.ServiceClient({"run": "7"}, base_url=switch.url, api_key=KEY)
        settled(other.create_sampling_client(base_model=lab.base_model))
    assert (caught.value.verdict, caught.value.blame, caught.value.submission) == ("outage", "service", "not sent")
    assert switch.url in str(caught.value)
    assert session_budget.counts() == before and switch.accepted - accepted <= 1
    limits(connect=20)
    waiting: Future[Any] = Future()

    def wait() -> None:
        late = tinker.ServiceClient({"run": "8"}, base_url=switch.url, api_key=KEY)
        waiting.set_result(settled(late.create_sampling_client(base_model=lab.base_model)))

    threading.Thread(target=wait, daemon=True).start()
    switch.mode = "pass"
    assert settled(sample(waiting.result(20))).sequences
    assert not outages.is_down(switch.url)


def test_a_forked_child_lets_go_of_its_parents_sessions(service: Service, sharing: None) -> None:
    """It has made none itself, and finishes none of them."""
    service.sampler(service.client())
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps([len(shared._slots), len(shared._open), session_budget.counts().created]).encode())
        shared.close_all("success", 0.1)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert json.loads(os.read(reading, 100)) == [0, 0, 0]
    os.close(reading)
    (session,) = service.sessions()
    assert not service.has_ended(session)


def test_pickles_are_as_they_were(service: Service, sharing: None) -> None:
    """A shared sampling client goes into another process and samples there."""
    client = pickle.loads(pickle.dumps(service.sampler(service.client())))
    assert type(client) is tinker.SamplingClient
    assert settled(sample(client)).sequences


# Ready ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("installed_", [True, False])
def test_fresh_weights_are_warmed_over_several_streams(installed_: bool, service: Service, brisk: Brisk) -> None:
    """Each stream has one small sample, of fresh work, from which nothing is learned about other samples."""
    if not installed_:
        tinker_deadlines.uninstall()
    training = settled(service.client().create_lora_training_client(service.model, rank=4))
    client = training.save_weights_and_get_sampling_client()
    assert 0 < ready(client, streams=5) < 30
    assert asyncio.run(ready_async(settled(client), streams=3)) < 30
    samples = [each for each in service.lab.executions() if each["type"] == "Sample"]
    assert len(samples) == 8
    if installed_:
        eventually(lambda: len([each for each in brisk.samples if each.kind == "sample"]) == 8)
        learned = [each.work for each in brisk.samples if each.kind == "sample"]
        assert all(work is not None and work.fresh and work.max_tokens == 1 for work in learned)
        session = sessions.get(private.session_of(settled(client)))
        assert session is not None and not session.ratios


def test_what_keeps_weights_from_getting_ready_is_raised(
    switch: Switch, make_clients: Callable[..., Clients], installed: None, limits: Callable[..., None]
) -> None:
    """Within the limit of its calls, with none of them left over; a number of streams that makes no sense at once."""
    clients = make_clients(switch.url)
    with pytest.raises(ValueError, match="streams"):
        ready(clients.sampling, streams=0)
    limits(sample=0.3)
    switch.mode = "silent"
    started_at = time.monotonic()
    with pytest.raises(tinker_deadlines.TinkerDeadlineError):
        ready(clients.sampling, streams=4)
    with pytest.raises(tinker_deadlines.TinkerDeadlineError):
        asyncio.run(ready_async(clients.sampling, streams=4))
    assert time.monotonic() - started_at < 5
    eventually(lambda: not [each for each in tinker_deadlines.calls.board.pending() if each.kind == "sample"])
