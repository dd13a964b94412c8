"""Whatever is lost, refused, late, cut or killed: what returned is applied once, what raised is not applied at all.

The recovering client against a server that is a list: each training client of it has the calls that it has executed. A
schedule of calls, answers, faults, failed recoveries and crashes is drawn at random; at its end the list of the client
in use has to be the calls that returned, in their order, and every answer the one that a run without faults gives.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tinker
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tinker_deadlines import limits
from tinker_deadlines.errors import RecoveryFailedError
from tinker_deadlines.recovery.journal import Journal
from tinker_deadlines.recovery.spool import Spool
from tinker_deadlines.sdk import recovering
from tinker_deadlines.sdk.kept import Kept
from tinker_deadlines.sdk.recovering import Recovering
from tinker_deadlines.sdk.remaking import Making
from tinker_deadlines.sdk.stuck import StuckCallError

CHANGES = ("forward_backward", "optim_step")
MAKING = Making("create_lora_training_client", {"base_model": "list", "seed": 1})


def answer_of(lineage: list[str], method: str, path: str = "") -> Any:
    seen = hashlib.sha256(repr(lineage).encode()).hexdigest()
    if method == "save_state":
        return tinker.types.SaveWeightsResponse(path=path)
    return tinker.types.OptimStepResponse(metrics={"seen": float(int(seen[:12], 16))})


class ListServer:
    """What outlives every client: the checkpoints."""

    def __init__(self) -> None:
        self.checkpoints: dict[str, list[str]] = {}
        self.clients = 0
        # How many of the next clients cannot be made, and how many of the next calls of a recovery fail.
        self.refused = 0
        self.failing = 0


class ListClient:
    """A training client whose weights are the list of what it has executed."""

    def __init__(self, server: ListServer, lineage: list[str], *, at_once: Callable[[], bool]) -> None:
        server.clients += 1
        self.model_id = f"run-{server.clients}"
        self.server = server
        self.lineage = lineage
        self.queue: deque[tuple[str, str, Future[Any]]] = deque()
        self._at_once = at_once

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: Any, **_: Any) -> Any:
            tag = str(args[0][0] if method == "forward_backward" else args[0])
            future: Future[Any] = Future()
            self.queue.append((method, tag, future))
            if self._at_once():
                if self.server.failing:
                    self.server.failing -= 1
                    self.queue.pop()
                    future.set_exception(lost())
                else:
                    self.execute(answered=True)
            return SimpleNamespace(future=lambda: future)

        if method.startswith("_"):
            raise AttributeError(method)
        return call

    def execute(self, *, answered: bool) -> None:
        """Executes the call that is first in the queue; its answer may be lost."""
        method, tag, future = self.queue.popleft()
        path = f"tinker://{self.model_id}/weights/{tag}"
        if method in CHANGES:
            self.lineage.append(f"{method} {tag}")
        if method == "save_state":
            self.server.checkpoints[path] = list(self.lineage)
        if answered:
            future.set_result(answer_of(self.lineage, method, path))
        else:
            future.set_exception(lost())


def lost() -> Exception:
    return StuckCallError("optim_step", elapsed_s=1.0, deadline_s=1.0)


class Refused(Exception):
    """The service says that the call is wrong."""

    status_code = 400


class ExactlyOnce(RuleBasedStateMachine):
    """Schedules."""

    @initialize(every=st.integers(1, 4))
    def begin(self, every: int) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(limits, "RECOVERY_WAIT_S", 0.0)
        self.patch.setattr(limits, "RECOVERY_WAIT_MOST_S", 0.0)
        self.patch.setattr(recovering, "on_worker", lambda run: self.work.append(run))  # noqa: PLW0108
        self.patch.setattr(recovering, "on_thread", lambda run: self.recoveries.append(run))  # noqa: PLW0108
        self.patch.setattr(recovering, "remade", self.remade)
        self.patch.setattr(recovering, "finish", lambda service: None)
        self.patch.setattr(recovering, "place_of", lambda client: None)
        self.patch.setattr(recovering, "landed", lambda client, method, name: None)
        self.server = ListServer()
        self.every = every
        self.script: list[tuple[str, str]] = []
        self.journal: Journal | None = None
        self.start()

    def start(self) -> None:
        """A process begins: with the ledger of the one before, if there was one."""
        if self.journal is not None:
            self.kept.close()
        self.work: list[Callable[[], None]] = []
        self.recoveries: list[Callable[[], None]] = []
        self.in_recovery = False
        self.promises: list[tuple[str, str, Future[Any]]] = []
        self.journal = Journal(Path(self.directory.name) / "ledger")
        self.kept = Kept("run", self.journal, Spool(Path(self.directory.name), lambda _: 1, 3), self.every)
        self.client = Recovering(self.made([]), MAKING, self.kept)

    def made(self, lineage: list[str]) -> Any:
        return ListClient(self.server, lineage, at_once=lambda: self.in_recovery)

    def remade(self, place: object, making: object, path: str) -> tuple[Any, Any]:
        if self.server.refused:
            self.server.refused -= 1
            raise lost()
        return object(), self.made(list(self.server.checkpoints[path]) if path else [])

    def settle(self) -> None:
        """Lets everything happen that happens by itself."""
        while self.work or self.recoveries:
            while self.work:
                self.work.pop(0)()
            if self.recoveries:
                self.in_recovery = True
                self.recoveries.pop(0)()
                self.in_recovery = False

    def submit(self, method: str, tag: str) -> None:
        arguments: tuple[Any, ...] = ([tag], "cross_entropy") if method == "forward_backward" else (tag,)
        try:
            promise = self.client.submit(method, arguments, {})
        except RecoveryFailedError:
            return
        self.promises.append((method, tag, promise))

    @property
    def lost_for_good(self) -> bool:
        return self.client._state == "lost"

    # What may happen -------------------------------------------------------------------------------------------------

    @rule(method=st.sampled_from(["forward_backward", "forward_backward", "optim_step", "optim_step", "save_state"]))
    def call(self, method: str) -> None:
        tag = f"{len(self.script)}"
        self.script.append((method, tag))
        self.submit(method, tag)

    @precondition(lambda self: self.client.client.queue)
    @rule(answered=st.booleans(), settled=st.booleans())
    def execute(self, answered: bool, settled: bool) -> None:
        self.client.client.execute(answered=answered)
        if settled:
            self.settle()

    @precondition(lambda self: self.client.client.queue)
    @rule()
    def lose(self) -> None:
        """The service never hears of the call."""
        self.client.client.queue.popleft()[2].set_exception(lost())

    @precondition(lambda self: self.client.client.queue)
    @rule()
    def refuse(self) -> None:
        """The service says that the call is wrong, and does not execute it."""
        self.client.client.queue.popleft()[2].set_exception(Refused())

    @rule()
    def let_happen(self) -> None:
        self.settle()

    @rule(clients=st.integers(0, 3), calls=st.integers(0, 3))
    def have_recovery_fail(self, clients: int, calls: int) -> None:
        self.server.refused, self.server.failing = min(clients, 2), min(calls, 2)

    @precondition(lambda self: self.promises)
    @rule(number=st.integers(0, 1000))
    def cancel(self, number: int) -> None:
        """A person's cancel reaches no training call."""
        assert not self.promises[number % len(self.promises)][2].cancel()

    @rule()
    def kill(self) -> None:
        """The process is killed, and the script begins again with the calls that it had made."""
        self.start()
        for method, tag in self.script:
            self.submit(method, tag)

    # What must be true -----------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_confirmed_twice(self) -> None:
        lineage = self.client.client.lineage if hasattr(self, "client") else []
        assert len(set(lineage)) == len(lineage)

    def teardown(self) -> None:
        if not hasattr(self, "client"):
            return
        try:
            self.server.refused = self.server.failing = 0
            self.settle()
            while self.client.client.queue and not self.lost_for_good:
                self.client.client.execute(answered=True)
                self.settle()
            self.check()
        finally:
            self.patch.undo()
            self.kept.close()
            self.directory.cleanup()

    def check(self) -> None:
        expected: list[str] = []
        for method, tag, promise in self.promises:
            assert promise.done(), f"{method} {tag} never ended"
            error = promise.exception()
            if error is not None:
                continue
            if method in CHANGES:
                expected.append(f"{method} {tag}")
            if method != "save_state":
                assert promise.result() == answer_of(expected, method), f"{method} {tag} saw something else"
        # A client that was given up because of the last call is replaced when the next one comes.
        if self.client._state == "live":
            assert self.client.client.lineage == expected


TestExactlyOnce = ExactlyOnce.TestCase
TestExactlyOnce.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
