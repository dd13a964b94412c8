"""What every test of the contract with the SDK starts from: a lab, short limits, and whatever it installed put back."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sdk_brisk import CEILING_S, THRESHOLDS, Brisk
from sdk_calls import Clients, connect
from sdk_switch import Switch, everybody_is_back

import tinker_deadlines
from tinker_deadlines.lab import Lab
from tinker_deadlines.lab.faults import Faults
from tinker_deadlines.lab.proxy import FaultProxy
from tinker_deadlines.liveness.signs import sessions
from tinker_deadlines.liveness.watcher import watcher
from tinker_deadlines.policy import use_policy
from tinker_deadlines.sdk import futures, hedge, learning, private, wrappers
from tinker_deadlines.sdk.patterns import Patterns
from tinker_deadlines.sdk.probe import ask
from tinker_deadlines.waiting.workers import workers

HERE = Path(__file__).parent


# The SDK leaves its connections to the garbage collector, which may find them during any later test or after all.
# Python 3.13.0 stumbles over one whose server has closed before.
LEFT_OPEN = (
    "ignore:unclosed:ResourceWarning",
    "ignore:Exception ignored in. <(function _SelectorTransport|socket):pytest.PytestUnraisableExceptionWarning",
)


def pytest_configure(config: pytest.Config) -> None:
    for line in LEFT_OPEN:
        config.addinivalue_line("filterwarnings", line)


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """After the last test pytest collects garbage once more, under filters that were without ours."""
    warnings.filterwarnings("ignore", "unclosed", ResourceWarning)
    about_them = "Exception ignored in. <(function _SelectorTransport|socket)"
    warnings.filterwarnings("ignore", about_them, pytest.PytestUnraisableExceptionWarning)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.matrix)
            for warning in (FutureWarning, DeprecationWarning):
                # The SDK's own: it deprecates half of its methods in 0.38, and all of them are tested.
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{warning.__name__}"))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A lab that answers at once, for tests that need nothing else."""
    with Lab(poll_s=0.5, session_cap=100_000) as running:
        yield running


@pytest.fixture
def switch(lab: Lab) -> Iterator[Switch]:
    """A TCP relay in front of the lab that can be made to go silent."""
    with Switch(lab.url) as relay:
        yield relay
        # Whatever still waits on it gets its answer, so that its threads do not stay for the next test.
        relay.mode = "pass"
        # Some come back only when their own time is over: a request of the SDK may not notice that its connection went.
        everybody_is_back(relay)


@pytest.fixture(autouse=True)
def _sessions_come_to_rest() -> Iterator[None]:
    """After a test its sessions send no more heartbeats: hundreds would keep a machine busy."""
    yield
    loop = private.sdk_loop()

    def rest() -> None:
        for task in asyncio.all_tasks(loop):
            if getattr(task.get_coro(), "__qualname__", "").endswith("._session_heartbeat"):
                task.cancel()

    if loop is not None and loop.is_running():
        loop.call_soon_threadsafe(rest)


@pytest.fixture(autouse=True)
def _room_for_threads_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the threads that earlier tests left in the SDK not count against the limit; one test tests the limit."""
    monkeypatch.setattr(workers, "_most_abandoned", 10_000)


@pytest.fixture
def installed() -> Iterator[None]:
    """Deadlines for everybody, for the length of one test; each client connects for itself, to be seen doing it."""
    tinker_deadlines.install(share=False)
    yield
    tinker_deadlines.uninstall()


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Brisk]:
    """Deadlines for everybody by the brisk policy and law, and nothing left of what earlier tests did."""
    monkeypatch.setattr(watcher, "thresholds", THRESHOLDS)
    allowance = hedge.Allowance()
    for module in (hedge, futures, wrappers):
        monkeypatch.setattr(module, "allowance", allowance)
    monkeypatch.setattr(learning, "patterns", Patterns())
    hedge.close()
    sessions.clear()
    policy = Brisk()
    tinker_deadlines.install()
    before = use_policy(policy)
    watcher.start(policy, ask, lambda kind: CEILING_S)
    yield policy
    use_policy(before)
    tinker_deadlines.uninstall()
    sessions.clear()


@pytest.fixture
def through(lab: Lab) -> Iterator[Callable[[str], FaultProxy]]:
    """A function that puts a proxy with faults in front of the lab."""
    running: list[FaultProxy] = []

    def make(rules: str) -> FaultProxy:
        proxy = FaultProxy(lab.url, Faults.from_toml(rules)).start()
        running.append(proxy)
        return proxy

    yield make
    for proxy in running:
        proxy.heal()
        proxy.stop()


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that sets limits in seconds: `limits(0.3)` for all kinds, `limits(sample=0.3)` for single ones."""

    def set_limits(every: float | None = None, **each: float) -> None:
        for kind in tinker_deadlines.DEFAULT_DEADLINES_S:
            seconds = each.get(kind, every)
            if seconds is not None:
                monkeypatch.setenv(tinker_deadlines.env_var_for(kind), str(seconds))

    return set_limits


@pytest.fixture
def make_clients(lab: Lab) -> Callable[..., Clients]:
    """A function that makes one client of each sort, through the URL it is given, not bounded by anything."""
    return lambda url=lab.url: connect(url, lab.base_model)


@pytest.fixture(autouse=True)
def _nothing_stays_installed() -> Iterator[None]:
    yield
    tinker_deadlines.uninstall()
