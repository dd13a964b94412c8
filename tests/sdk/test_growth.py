"""Does anything grow? Threads, alarms, calls in flight, lanes, sessions: after thousands of calls as before them."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tinker
from sdk_calls import ADAM, KEY, PARAMS, PROMPT, Clients
from sdk_switch import Switch
from sdk_tools import eventually, settled

from tinker_deadlines import StuckCallError, install
from tinker_deadlines.calls import Call, board
from tinker_deadlines.lab import Lab
from tinker_deadlines.recovery.sessions import session_budget
from tinker_deadlines.sdk.futures import SDKFuture
from tinker_deadlines.sdk.wrappers import _lanes
from tinker_deadlines.waiting.timer import timer
from tinker_deadlines.waiting.workers import workers

SAMPLES = 1000
AT_ONCE = 100


def samples(clients: Clients, count: int) -> None:
    for _ in range(count // AT_ONCE):
        futures = [clients.sampling.sample(PROMPT, 1, PARAMS) for _ in range(AT_ONCE)]
        for future in futures:
            future.result(60)


@pytest.mark.timeout(180)
def test_thousands_of_samples_leave_nothing_behind(make_clients: Callable[..., Clients], installed: None) -> None:
    """1,000 samples and 100 steps add no thread, alarm, call, lane, and hold no object."""
    clients = make_clients()
    samples(clients, 200)
    for _ in range(20):
        settled(clients.training.optim_step(ADAM))
    threads, lanes, objects = threading.active_count(), len(_lanes), ours_alive()
    alarms = len(timer)  # another test's call may still be in flight
    samples(clients, SAMPLES)
    for _ in range(100):
        settled(clients.training.optim_step(ADAM))
    eventually(lambda: not board.in_flight)
    assert len(timer) <= alarms
    assert threading.active_count() <= threads + 2
    assert len(_lanes) <= lanes
    assert len(_lanes[clients.training]) == 0
    eventually(
        lambda: ours_alive() <= objects + SAMPLES // 20,
        what=f"{ours_alive()} objects of calls are held, {objects} before",
    )


def ours_alive() -> int:
    """Calls and futures of ours that something still holds: a call that has ended may cost no memory."""
    # Counted, not measured: tracemalloc crashes interpreters in which the SDK's transport has threads of its own.
    gc.collect()
    return sum(isinstance(each, (Call, SDKFuture)) for each in gc.get_objects()) + len(board.in_flight)


def test_lanes_go_with_their_clients(make_clients: Callable[..., Clients], installed: None) -> None:
    """A training client that nobody holds any more takes its lane with it."""
    clients = make_clients()
    settled(clients.training.optim_step(ADAM))
    gc.collect()
    before = len(_lanes)
    clients.training = None
    eventually(lambda: gc.collect() is not None and len(_lanes) < before)


def test_thousands_of_expiries_leave_nothing_behind(
    switch: Switch, make_clients: Callable[..., Clients], installed: None, limits: Any
) -> None:
    """500 samples that expire together add no alarm, no call and only threads that go away."""
    clients = make_clients(switch.url)
    limits(sample=0.3)
    switch.mode = "silent"
    alarms = len(timer)
    futures = [clients.sampling.sample(PROMPT, 1, PARAMS) for _ in range(500)]
    for future in futures:
        with pytest.raises(StuckCallError):
            future.result(10)
    assert len(timer) <= alarms
    eventually(lambda: not board.in_flight)


@pytest.mark.timeout(200)
def test_a_client_that_arrives_late_is_closed(
    switch: Switch, lab: Lab, installed: None, limits: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients that arrive after their callers gave up leave no threads; their workers are counted and come back."""
    caplog.set_level(logging.WARNING)
    before = workers.abandoned
    limits(connect=0.3)
    switch.mode = "silent"
    services = [tinker.ServiceClient(base_url=switch.url, api_key=KEY) for _ in range(4)]
    for service in services:
        with pytest.raises(StuckCallError) as caught:
            settled(service.create_sampling_client(base_model=lab.base_model))
        assert caught.value.indeterminate or caught.value.submission == "not sent"
    assert workers.abandoned == before + 4
    threads = threading.active_count()
    switch.mode = "pass"
    switch.drop()
    eventually(lambda: workers.abandoned <= before, within_s=150)
    assert threading.active_count() <= threads + 2
    limits(connect=20)
    # The service clients themselves were made by the person, and are usable now.
    assert settled(services[0].create_sampling_client(base_model=lab.base_model)) is not None


@pytest.mark.timeout(200)
def test_a_late_client_can_still_be_had(switch: Switch, lab: Lab, installed: None, limits: Any) -> None:
    """The error of a connection that was given up still hands out the client when it arrives."""
    limits(connect=0.3)
    switch.mode = "silent"
    with pytest.raises(StuckCallError) as caught:
        settled(
            tinker.ServiceClient(base_url=switch.url, api_key=KEY).create_sampling_client(base_model=lab.base_model)
        )
    switch.mode = "pass"
    switch.drop()

    def late() -> Any:
        try:
            return caught.value.late.result(1)
        except TimeoutError:
            return None

    assert isinstance(eventually(late, within_s=150), tinker.SamplingClient)


def sockets() -> int:
    """Sockets that this process has open."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(descriptor.readlink()).startswith("socket:")
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts sockets where Linux shows them")
def test_rollout_trials_leave_nothing_behind(make_tinker_lab: Callable[..., Lab]) -> None:
    """150 trials that each make their own clients add no session, thread, socket, call, or client.

    `python -m benchmarks.sessions` has the figures of 500.
    """
    lab = make_tinker_lab(poll_s=0.5)
    install()

    def trial(_: int) -> None:
        service = tinker.ServiceClient(base_url=lab.url, api_key=KEY)
        settled(settled(service.create_sampling_client(base_model=lab.base_model)).sample(PROMPT, 1, PARAMS))

    def service_clients() -> int:
        gc.collect()
        return sum(isinstance(each, tinker.ServiceClient) for each in gc.get_objects())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(trial, range(40)))
        threads, open_sockets, clients = threading.active_count(), sockets(), service_clients()
        objects = ours_alive()
        list(pool.map(trial, range(150)))
        assert session_budget.counts().created == 1
        assert threading.active_count() <= threads + 4
        assert sockets() <= open_sockets + 16  # both ends of a connection are this process's own here
        eventually(lambda: service_clients() <= clients)
        # Calls that have ended are held for about a second, until they were learned from and recorded.
        eventually(lambda: ours_alive() <= objects + 20, what=f"{ours_alive()} objects of calls are held")


def test_installing_many_times_grows_nothing(make_clients: Callable[..., Clients]) -> None:
    """Installing again and again adds no layer: a call costs the same after a hundred times."""
    clients = make_clients()
    for _ in range(100):
        install()
    function = tinker.SamplingClient.__dict__["sample"]
    depth = 0
    while hasattr(function, "__wrapped__"):
        function, depth = function.__wrapped__, depth + 1
    assert depth <= 3
    started_at = time.monotonic()
    assert settled(clients.sampling.sample(PROMPT, 1, PARAMS)) is not None
    assert time.monotonic() - started_at < 10
