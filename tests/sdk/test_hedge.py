"""Second attempts of sampling calls that may have been lost: through whom, of what, how many, and what stays."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import tinker
from sdk_brisk import Brisk
from sdk_calls import ADAM, DATUM, KEY, PARAMS, PROMPT
from sdk_tools import VERSION, eventually, run_script, settled

import tinker_deadlines
from tinker_deadlines import StuckCallError
from tinker_deadlines.calls import board
from tinker_deadlines.lab import Lab
from tinker_deadlines.lab.proxy import FaultProxy
from tinker_deadlines.limits import HEDGE_CLIENTS
from tinker_deadlines.liveness.watcher import watcher
from tinker_deadlines.sdk import hedge
from tinker_deadlines.sdk.facts import facts_of, known_of
from tinker_deadlines.sdk.probe import ask
from tinker_deadlines.sdk.traffic import call_in_context
from tinker_deadlines.testing import FakeClock

LOST = '[[fault]]\nname="lost"\ndo="future_never_completes"\npath="asample"\nnth={nth}\n'


@pytest.fixture
def losing(through: Callable[[str], FaultProxy]) -> Callable[[str], FaultProxy]:
    """A function that puts a proxy in front of the lab that loses the samples of these numbers."""
    return lambda nth: through(LOST.format(nth=nth))


def sample(client: Any) -> Any:
    return client.sample(prompt=PROMPT, num_samples=1, sampling_params=PARAMS)


def sessions_seen(proxy: FaultProxy) -> list[str]:
    """The sessions that samples were submitted through, in order, once each."""
    submitted = [record.session for record in proxy.log if record.path.endswith("asample")]
    return list(dict.fromkeys(filter(None, submitted)))


def test_weights_with_a_name_go_through_a_session_of_their_own(
    lab: Lab, brisk: Brisk, losing: Callable[[str], FaultProxy]
) -> None:
    """By their path, as the first attempt had them; and one session does for all second attempts."""
    proxy = losing("[2, 4]")
    service = tinker.ServiceClient(base_url=proxy.url, api_key=KEY)
    training = settled(service.create_lora_training_client(lab.base_model, rank=4))
    path = settled(training.save_weights_for_sampler("named")).path
    client = settled(service.create_sampling_client(model_path=path))
    answers = [settled(sample(client)) for _ in range(4)]
    assert all(answer.sequences for answer in answers)
    assert len(hedge._services) == 1 and len(hedge._samplers) == 1
    (name,) = hedge._samplers
    assert name[-1] == ("model_path", path)
    assert len(sessions_seen(proxy)) == 2
    assert not board.in_flight


@pytest.mark.parametrize("how", ["ephemeral", "unpickled", "made before", "recorded for training"])
def test_weights_that_another_session_may_not_have_stay_where_they_are(
    lab: Lab, brisk: Brisk, losing: Callable[[str], FaultProxy], how: str
) -> None:
    """Never the base model in the place of an adapter: what is not known to have a name is tried on its own client."""
    if how == "recorded for training" and VERSION < (0, 38):
        pytest.skip("this version records nothing")
    proxy = losing("2")
    if how == "made before":
        tinker_deadlines.uninstall()
    service = tinker.ServiceClient(base_url=proxy.url, api_key=KEY)
    training = settled(service.create_lora_training_client(lab.base_model, rank=4))
    if how == "ephemeral":
        client = settled(training.save_weights_and_get_sampling_client())
    elif how == "recorded for training":
        client = settled(service.create_sampling_client(base_model=lab.base_model, record_stability_info=True))
    else:
        path = settled(training.save_weights_for_sampler("unknown")).path
        client = settled(service.create_sampling_client(model_path=path))
    if how == "unpickled":
        client = pickle.loads(pickle.dumps(client))
    if how == "made before":
        tinker_deadlines.install()
        watcher.start(brisk, ask, lambda kind: 6.0)
    assert not facts_of(client).elsewhere
    settled(sample(client))
    assert settled(sample(client)).sequences
    assert not hedge._services and not hedge._samplers
    assert len(sessions_seen(proxy)) == 1


@pytest.mark.skipif(VERSION < (0, 38), reason="this version does not keep how a service client was made")
def test_the_second_session_is_made_like_the_first(lab: Lab, brisk: Brisk, losing: Callable[[str], FaultProxy]) -> None:
    """In the same project, with the same words on the run: it is paid for by whoever pays for the first."""
    proxy = losing("2")
    service = tinker.ServiceClient({"run": "7"}, "project-7", base_url=proxy.url, api_key=KEY)
    client = settled(service.create_sampling_client(base_model=lab.base_model))
    settled(sample(client))
    settled(sample(client))
    (made,) = hedge._services.values()
    assert (made._project_id, made._user_metadata) == ("project-7", {"run": "7"})


def test_an_answer_to_the_first_attempt_cancels_the_second(
    lab: Lab, brisk: Brisk, make_tinker_lab: Callable[..., Lab]
) -> None:
    """So does a person who cancels the call."""
    slow = make_tinker_lab(latency="4.0", poll_s=0.1)
    service = tinker.ServiceClient(base_url=slow.url, api_key=KEY)
    client = settled(service.create_sampling_client(base_model=slow.base_model))
    made: list[hedge.SecondAttempt] = []
    original = hedge.SecondAttempt.start

    def start(self: hedge.SecondAttempt) -> None:
        made.append(self)
        original(self)

    hedge.SecondAttempt.start = start  # type: ignore[method-assign]
    try:
        answered, cancelled = sample(client), sample(client)
        eventually(lambda: len(made) == 2 and all(each._future is not None for each in made))
        inner = cancelled.future() if hasattr(cancelled, "future") else cancelled
        assert inner.cancel()
        assert settled(answered).sequences
        futures = [each._future for each in made]
        eventually(lambda: all(each.done() for each in futures))
        assert any(each.cancelled() for each in futures)
        assert all(each._over for each in made)
    finally:
        hedge.SecondAttempt.start = original  # type: ignore[method-assign]


def test_only_sampling_is_tried_twice(lab: Lab, brisk: Brisk, make_tinker_lab: Callable[..., Lab]) -> None:
    """Training calls are overdue as well, and executed once each."""
    slow = make_tinker_lab(latency="0.6", poll_s=0.1)
    service = tinker.ServiceClient(base_url=slow.url, api_key=KEY)
    training = settled(service.create_lora_training_client(slow.base_model, rank=4))
    calls = [training.forward_backward([DATUM], "cross_entropy"), training.optim_step(ADAM)]
    for call in calls:
        settled(call)
    executed = [each["type"] for each in slow.executions()]
    assert executed.count("ForwardBackward") == 1 and executed.count("OptimStep") == 1
    assert not hedge._services


def test_a_persons_number_is_not_tried_twice(
    lab: Lab, brisk: Brisk, losing: Callable[[str], FaultProxy], limits: Any
) -> None:
    """It expires when it is meant to, and nothing is sent again."""
    proxy = losing('"1.."')
    service = tinker.ServiceClient(base_url=proxy.url, api_key=KEY)
    client = settled(service.create_sampling_client(base_model=lab.base_model))
    limits(sample=1.0)
    with pytest.raises(StuckCallError) as caught:
        settled(sample(client))
    assert 1.0 <= caught.value.elapsed_s < 1.5
    assert sum(record.path.endswith("asample") for record in proxy.log) == 1 and not hedge._services


def test_a_share_of_the_calls_may_be_tried_twice() -> None:
    """Ten a minute, and one of five on top; what was not used in a minute is no more."""
    with FakeClock() as clock:
        allowance = hedge.Allowance()
        assert [allowance.take() for _ in range(11)] == [True] * 10 + [False]
        for _ in range(5):
            allowance.call()
        assert [allowance.take() for _ in range(2)] == [True, False]
        clock.advance(120)
        assert sum(allowance.take() for _ in range(100)) == 10
        for _ in range(10_000):
            allowance.call()
        clock.advance(24 * 3600)
        assert sum(allowance.take() for _ in range(1000)) == 10


def test_uninstalling_finishes_the_second_session(lab: Lab, brisk: Brisk, losing: Callable[[str], FaultProxy]) -> None:
    """The service hears of it, and nothing holds the clients any more."""
    proxy = losing("2")
    service = tinker.ServiceClient(base_url=proxy.url, api_key=KEY)
    client = settled(service.create_sampling_client(base_model=lab.base_model))
    settled(sample(client))
    settled(sample(client))
    gone = [weakref.ref(each) for each in (*hedge._services.values(), *hedge._samplers.values())]
    assert len(gone) == 2
    tinker_deadlines.uninstall()
    assert not hedge._services and not hedge._samplers
    eventually(lambda: gc.collect() is not None and not any(each() for each in gone))
    if VERSION >= (0, 36):
        eventually(lambda: any("finish" in record.path for record in proxy.log))


def test_while_a_second_session_is_made_nobody_waits_for_it(lab: Lab, brisk: Brisk) -> None:
    """Making one may hang for its whole limit: other second attempts go through the client that they have."""
    service = tinker.ServiceClient(base_url=lab.url, api_key=KEY)
    client = settled(service.create_sampling_client(base_model=lab.base_model))
    assert facts_of(client).elsewhere
    gate, inside = threading.Event(), threading.Event()

    def hangs() -> None:
        with hedge._making:
            inside.set()
            gate.wait(10)

    thread = threading.Thread(target=hangs)
    thread.start()
    try:
        assert inside.wait(5)
        started_at = time.monotonic()
        assert hedge._fresh(client, lab.url) is None
        assert time.monotonic() - started_at < 0.5
    finally:
        gate.set()
        thread.join()


def test_where_no_second_session_can_be_made_the_first_one_serves(
    lab: Lab, brisk: Brisk, losing: Callable[[str], FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service refuses further sessions: the call is tried again all the same."""
    proxy = losing("2")
    service = tinker.ServiceClient(base_url=proxy.url, api_key=KEY)
    client = settled(service.create_sampling_client(base_model=lab.base_model))
    settled(sample(client))

    def refuses(*_: Any, **__: Any) -> Any:
        raise RuntimeError("too many sessions")

    monkeypatch.setattr(hedge, "_make", refuses)
    assert settled(sample(client)).sequences
    assert len(sessions_seen(proxy)) == 1


def test_a_client_through_which_an_attempt_failed_is_not_used_again(lab: Lab, brisk: Brisk) -> None:
    """Its session may be over: the next second attempt makes another."""
    service = tinker.ServiceClient(base_url=lab.url, api_key=KEY)
    client = settled(service.create_sampling_client(base_model=lab.base_model))
    token = call_in_context.set(hedge._NOT_COUNTED)
    try:
        fresh = hedge._fresh(client, lab.url)
        assert fresh is not None and hedge._fresh(client, lab.url) is fresh
    finally:
        call_in_context.reset(token)
    answers: list[Any] = []

    def fails(_: Any) -> Any:
        future: Future[Any] = Future()
        future.set_exception(RuntimeError("session expired"))
        return future

    attempt = hedge.SecondAttempt(fails, client, lab.url, answers.append)
    attempt.run()
    attempt.tell()
    assert answers == [] and not hedge._samplers and not hedge._services


def test_clients_of_few_weights_are_kept(lab: Lab, brisk: Brisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that saves new weights each step does not hold a client of each for ever."""
    service = tinker.ServiceClient(base_url=lab.url, api_key=KEY)
    client = settled(service.create_sampling_client(base_model=lab.base_model))
    monkeypatch.setattr(hedge, "_make", lambda *_: object())
    for step in range(3 * HEDGE_CLIENTS):
        known = known_of(client)
        assert known is not None
        known.facts = known.facts._replace(path=f"tinker://run/{step}")
        assert hedge._fresh(client, lab.url) is not None
    assert len(hedge._samplers) == HEDGE_CLIENTS


def test_the_interpreter_ends_with_second_sessions_open(lab: Lab) -> None:
    """It finishes them on its way out, and does not hang for it."""
    done = run_script(
        f"""
import tinker, tinker_deadlines
from tinker_deadlines.sdk import hedge
from tinker_deadlines.sdk.traffic import call_in_context
from tinker_deadlines.testing import FakeClock
tinker_deadlines.install()
service = tinker.ServiceClient(base_url={lab.url!r}, api_key={KEY!r})
client = service.create_sampling_client(base_model={lab.base_model!r})
client = client.result() if hasattr(client, "result") else client
call_in_context.set(hedge._NOT_COUNTED)
assert hedge._fresh(client, {lab.url!r}) is not None
print(len(hedge._services))
""",
        PYTHONWARNINGS="ignore",
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_lets_go_of_its_parents_clients() -> None:
    """It neither uses nor finishes them, and its locks are free."""
    hedge._services[("a", "b", "c")] = object()
    read, write = os.pipe()
    with hedge._making, hedge.allowance._lock:
        child = os.fork()
        if child == 0:
            ok = not hedge._services and not hedge._samplers
            thread = threading.Thread(target=lambda: os.write(write, b"1" if ok and hedge.allowance.take() else b"0"))
            thread.start()
            thread.join(5)
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    hedge._services.clear()
    assert os.read(read, 1) == b"1"
    os.close(read)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_learns_from_its_own_calls_alone() -> None:
    """What its parent has not learned yet is the parent's; the locks of what is known are free."""
    from tinker_deadlines.calls import Call, Ended
    from tinker_deadlines.sdk import facts, learning
    from tinker_deadlines.sdk.patterns import patterns

    learning._backlog.append(Ended(Call("sample", 1.0, "test"), "completed", 1.0, None))
    learner = learning.law._learner("sample", None)
    read, write = os.pipe()
    with learning.law._lock, learner._lock, patterns._lock, facts._lock:
        child = os.fork()
        if child == 0:

            def learns() -> None:
                empty = not learning._backlog
                learning._ended(Ended(Call("sample", 1.0, "test"), "completed", 1.0, None))
                learning.settle()
                facts.known_of(object())
                patterns.failed(Call("sample", 1.0, "test"))
                learning.law.limit("sample", None, "a new model")
                os.write(write, b"1" if empty else b"0")

            thread = threading.Thread(target=learns)
            thread.start()
            thread.join(5)
            os._exit(0)
    os.close(write)
    assert os.read(read, 1) == b"1"
    os.waitpid(child, 0)
    os.close(read)
    learning._backlog.clear()


LEARNING_IN_A_CHILD = """
import os, sys, time, tinker, tinker_deadlines
from tinker_deadlines.liveness.watcher import watcher
tinker_deadlines.install()
child = os.fork()
if child == 0:
    assert watcher._thread is None
    service = tinker.ServiceClient(base_url=sys.argv[1], api_key="tml-x")
    client = service.create_sampling_client(base_model=sys.argv[2])
    client = client.result() if hasattr(client, "result") else client
    client.sample(tinker.ModelInput.from_ints([1, 2]), 1, tinker.SamplingParams(max_tokens=2)).result(20)
    alive = watcher._thread is not None and watcher._thread.is_alive()
    os._exit(0 if alive else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_was_forked_before_any_client_is_watched_over(lab: Lab) -> None:
    """The SDK works in it, and so do we: its sessions are looked at."""
    text = f"import sys; sys.argv[1:] = [{lab.url!r}, {lab.base_model!r}]\n{LEARNING_IN_A_CHILD}"
    done = run_script(text, PYTHONWARNINGS="ignore")
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
