"""How does training go on after a client is dead? On a fresh one that is brought to where the ledger says it stood.

Every training call of a recoverable client passes through here. Its caller has a future of ours, which completes once
the ledger has the answer. A call is sent to the client in use as soon as it is made, so that pipelining stays what it
is; when a call comes back with an error that says nothing about the call itself, the client is given up, and a thread
makes another, restores the last confirmed checkpoint, makes the calls since then again, and then those that are open.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import tenacity
from tinker.lib.public_interfaces.rest_client import RestClient  # not exported at the top level in every version

from tinker_deadlines import clock, limits
from tinker_deadlines.budgets import run_within
from tinker_deadlines.errors import BudgetExhaustedError, DeadlineExpiry, DivergedError, RecoveryFailedError
from tinker_deadlines.liveness.watcher import watcher
from tinker_deadlines.recovery.digest import digest_of
from tinker_deadlines.recovery.ledger import Checkpoint, Entry, Event
from tinker_deadlines.sdk.errands import on_thread, on_worker
from tinker_deadlines.sdk.kept import Kept
from tinker_deadlines.sdk.remaking import Making, finish, place_of, remade
from tinker_deadlines.sdk.saves import SAVES, landed
from tinker_deadlines.sdk.submitted import (
    Promise,
    Submitted,
    error_of,
    is_about_the_client,
    lasts,
    named,
    said,
    saved_name,
    standard,
)
from tinker_deadlines.sdk.surface import SURFACE
from tinker_deadlines.waiting.limit import budget_for
from tinker_deadlines.waiting.timer import timer

__all__ = ["Recovering"]

log = logging.getLogger("tinker_deadlines")

_STEP, _SAVE = "optim_step", "save_state"
_LOADS = ("load_state", "load_state_with_optimizer")


class Lost(NamedTuple):
    """What a fault cost."""

    noticed_s: float
    """Seconds that a call waited before its client was given up."""
    restored_s: float
    """Seconds to make another client and restore the checkpoint."""
    replayed_s: float
    """Seconds to make the calls since then again."""


class Recovering:
    """One training client for whoever trains, whatever becomes of the SDK's.

    Args:
        client: The SDK's.
        making: The call that made it, where that was seen.
        kept: What is kept of it; with entries of a process before this one, it goes on from there.
    """

    def __init__(self, client: Any, making: Making | None, kept: Kept) -> None:
        self.client = client
        self._making = making
        self._kept = kept
        self._ledger = kept.ledger
        # Whoever sends holds it, so that calls are sent in the order of their numbers; and whoever changes the ledger.
        self._lock = threading.RLock()
        self._open: dict[int, Submitted] = {}
        # Which of the clients is in use: what comes from one before is about nothing that matters any more.
        self._generation = 0
        self._state: str = "live"
        self._failure: RecoveryFailedError | None = None
        self._service: Any = None
        self._inbox: deque[Callable[[], None]] = deque()
        self._inbox_lock = threading.Lock()
        self._draining = False
        # What the client in use was sent and has not answered.
        self._on_their_way: set[Future[Any]] = set()
        self._saved_step = 0
        self._step_ended_at = 0.0
        self._saves_refused = False
        # What was saved on the client in use, by method and name.
        self._saved_names: set[tuple[str, str]] = set()
        self._ours: deque[str] = deque()
        self._restored = Checkpoint(0, 0, "")
        self._lost = Lost(0.0, 0.0, 0.0)
        self._made_at = 0.0
        # Calls of the process before this one that are answered from the ledger, and how many were asked for by now.
        self._answered = 0
        self._replayed = 0
        self._begin()

    def _begin(self) -> None:
        making = self._making
        self._needs_base = making is None or not making.repeatable
        if not self._ledger.entries and not self._ledger.checkpoints:
            return
        last = self._ledger.last_confirmed or Checkpoint(0, 0, "")
        self._note(self._ledger.resumed(last.after))
        self._answered, self._saved_step = last.after, last.step
        self._needs_base = self._needs_base and not last.path
        if last.path:
            log.info("going on with the run %r from the checkpoint of step %d", self._kept.run, last.step)
            self._generation += 1
            self._start()

    def _note(self, event: Event) -> None:
        self._kept.note(event)

    # Calls ------------------------------------------------------------------------------------------------------------

    def submit(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        """Makes a training call; its future completes when the ledger has the answer.

        Raises:
            RecoveryFailedError: the client was given up, and training could not be recovered.
            DivergedError: this call is not the one that the run made in its place.
            BaseException: what the SDK says about the arguments.
        """
        digest = digest_of([method, named(method, args, kwargs)])
        row = SURFACE["TrainingClient"][method]
        assert row.kind is not None
        budget = budget_for(row.kind, f"TrainingClient.{method}")
        with self._lock:
            if self._replayed < self._answered:
                return self._answer_again(method, digest)
            if self._failure is not None:
                raise self._failure
            self._note(self._ledger.submitted(method, digest))
            number = len(self._ledger.entries)
            self._look_back(number, method, digest)
            call = self._open[number] = Submitted(number, budget, self._overdrawn)
            self._kept.spool.keep(number, (method, args, kwargs))
            if self._state == "live":
                try:
                    # What bounds the call for its caller is its budget; what is sent may outlive it.
                    run_within(None, self._send, call)
                except BaseException as error:
                    if not is_about_the_client(error):
                        self._end(call)
                        self._note(self._ledger.failed(number, said(error)))
                        raise
                    self._fence(error)
            elif self._state == "fenced":
                self._start()
            return call.promise

    def _overdrawn(self, call: Submitted) -> None:
        self._later(partial(self._cut, call))

    def _cut(self, call: Submitted) -> None:
        """Ends a call whose caller's budget is spent. It is not to be part of what is trained, and may be already."""
        budget = call.budget
        assert budget is not None
        with self._lock:
            if call.number not in self._open:
                return
            method = self._ledger.entry(call.number).method
            kind = SURFACE["TrainingClient"][method].kind
            assert kind is not None
            error = BudgetExhaustedError(
                kind, owner=budget.name, budget_s=budget.seconds, elapsed_s=clock.monotonic() - call.sent_at,
                method=f"TrainingClient.{method}", submission="indeterminate",
            )  # fmt: skip
            self._note(self._ledger.failed(call.number, said(error)))
            self._end(call)
            self._fence(error)
        call.promise.set_exception(error)

    def _answer_again(self, method: str, digest: str) -> Future[Any]:
        """Answers a call from the ledger."""
        number = self._replayed + 1
        found = self._ledger.divergence(number, method, digest)
        if found is not None:
            raise DivergedError(self._kept.run, found.step, number, found.was, found.now)
        self._replayed = number
        entry, promise = self._ledger.entry(number), Promise()
        if entry.state == "failed":
            promise.set_exception(RuntimeError(f"call {number} ({method}) failed in the process before this one"))
            return promise
        try:
            promise.set_result(self._kept.answer_of(entry))
        except Exception as error:
            last = self._ledger.last_confirmed or Checkpoint(0, 0, "")
            promise.set_exception(RecoveryFailedError(error, 0, "", last.step, last.path))
        return promise

    def _look_back(self, number: int, method: str, digest: str) -> None:
        """Says once when what is trained anew is not what the process before trained after the checkpoint."""
        former = self._ledger.former
        place = number - self._answered - 1
        if former and place < len(former) and (former[place].method, former[place].digest) != (method, digest):
            log.warning(
                "from step %d on this run differs from what it was before: nothing of that is part of the checkpoint, "
                "and what is trained now takes its place", former[place].step
            )  # fmt: skip
            self._ledger.former = []

    def _send(self, call: Submitted) -> None:
        """Sends an open call to the client in use, and a checkpoint's save before or after it where one is due."""
        method, args, kwargs = self._kept.spool[call.number]
        if self._needs_base and method not in _LOADS:
            self._needs_base = False
            self._save(Checkpoint(call.number - 1, 0, ""))
        call.sent_at = clock.monotonic()
        future = self._sent(getattr(self.client, method)(*args, **kwargs))
        future.add_done_callback(partial(self._ended, self._generation, call))
        if method == _STEP:
            step, spacing = self._ledger.entry(call.number).step, self._kept.spacing()
            if step - self._saved_step >= spacing.steps and not self._saves_refused:
                log.info("%s", spacing)
                self._save(Checkpoint(call.number, step, ""))

    def _sent(self, returned: Any) -> Future[Any]:
        """The standard future of a call that was sent to the client in use."""
        future = standard(returned)
        self._on_their_way.add(future)
        future.add_done_callback(self._on_their_way.discard)
        return future

    def _ended(self, generation: int, call: Submitted, future: Future[Any]) -> None:
        # On the SDK's loop, most of the time: writing waits.
        self._later(partial(self._take, generation, call, future))

    def _take(self, generation: int, call: Submitted, future: Future[Any]) -> None:
        """Takes in how a call ended."""
        error = error_of(future)
        found = self._look_up(generation, call, error) if error is not None else future.result()
        with self._lock:
            if generation != self._generation or call.number not in self._open:
                return
            if error is None or found is not None:
                result = self._confirm(call, found)
                tell = partial(call.promise.set_result, result)
            elif self._taken_name(call, error) or not is_about_the_client(error, call.blamed):
                tell = partial(call.promise.set_exception, error)
                self._fail(call, error)
            else:
                call.blamed += 1
                self._fence(error, getattr(error, "elapsed_s", clock.monotonic() - call.sent_at))
                return
        tell()

    def _look_up(self, generation: int, call: Submitted, error: BaseException) -> Any:
        """The answer of a save that failed or expired, and landed all the same; else `None`."""
        with self._lock:
            if generation != self._generation or call.number not in self._open:
                return None
            method, name = self._saves_as(call)
            if not name or self._taken_name(call, error):
                return None
            client = self.client
        if getattr(error, "status_code", None) != 409 and not isinstance(error, DeadlineExpiry):
            return None
        return landed(client, method, name)

    def _saves_as(self, call: Submitted) -> tuple[str, str]:
        """The method of a call, and the name that it saves under; "" where it saves nothing."""
        arguments = self._kept.spool[call.number]
        return arguments[0], saved_name(arguments)

    def _taken_name(self, call: Submitted, error: BaseException) -> bool:
        """Whether a save is refused because its name was used before, which is the caller's to know."""
        return getattr(error, "status_code", None) == 409 and self._saves_as(call) in self._saved_names

    def _confirm(self, call: Submitted, result: Any) -> Any:
        entry = self._ledger.entry(call.number)
        kept = self._kept
        kept_text = kept.text_of(result)
        if entry.method == _SAVE:
            kept.took(save_s=clock.monotonic() - call.sent_at)
        elif entry.method == _STEP:
            now = clock.monotonic()
            kept.took(step_s=now - max(self._step_ended_at, call.sent_at))
            self._step_ended_at = now
        args = kept.spool[call.number]
        self._note(self._ledger.confirmed(call.number, kept_text))
        if entry.method in SAVES:
            self._saved_names.add(self._saves_as(call))
        if entry.method == _SAVE and self._ledger.at_rest(call.number) and lasts(args):
            self._reached(Checkpoint(call.number, self._step_of(call.number), result.path))
        if not entry.changes:
            kept.spool.drop(call.number)
        self._end(call, keep=True)
        for each in self._open.values():
            each.blamed = 0
        self._let_go()
        return result

    def _fail(self, call: Submitted, error: BaseException) -> None:
        self._note(self._ledger.failed(call.number, said(error)))
        self._end(call)
        if call.blamed:
            self._fence(error)  # it may be executed yet, and is not to be part of what is trained

    def _end(self, call: Submitted, *, keep: bool = False) -> None:
        self._open.pop(call.number, None)
        if call.alarm is not None:
            timer.take_back(call.alarm)
        if not keep:
            self._kept.spool.drop(call.number)

    # Checkpoints --------------------------------------------------------------------------------------------------

    def _save(self, at: Checkpoint) -> None:
        """Has the state saved as it is after the last call that was sent."""
        name = f"deadlines-{self._generation}-{at.step}-{at.after}"
        sent_at = clock.monotonic()
        try:
            future = self._sent(self.client.save_state(name, ttl_seconds=limits.CHECKPOINT_TTL_S))
        except Exception as error:
            log.warning("no checkpoint could be taken: %s: %s", type(error).__name__, error)
            return
        self._saved_step = at.step
        generation = self._generation
        future.add_done_callback(lambda ended: self._later(partial(self._saved, generation, at, sent_at, ended)))

    def _saved(self, generation: int, at: Checkpoint, sent_at: float, future: Future[Any]) -> None:
        with self._lock:
            error = error_of(future)
            if generation != self._generation:
                return
            if error is None:
                self._kept.took(save_s=clock.monotonic() - sent_at)
                path = future.result().path
                self._ours.append(path)
                self._reached(at._replace(path=path))
                self._let_go()
            elif is_about_the_client(error):
                self._fence(error)
            else:
                self._saves_refused = True
                log.warning(
                    "the service refuses checkpoints (%s): a fault from now on costs everything since the last one",
                    error,
                )

    def _reached(self, checkpoint: Checkpoint) -> None:
        self._saved_step = max(self._saved_step, checkpoint.step)
        self._note(self._ledger.checkpoint(*checkpoint))

    def _let_go(self) -> None:
        """Lets go of batches that every checkpoint contains which may be restored, and of older checkpoints of ours."""
        restorable = self._ledger.restorable()
        if len(restorable) >= self._kept.keep:
            oldest = restorable[self._kept.keep - 1]
            self._kept.spool.drop_until(oldest.after)
            paths = {each.path for each in restorable[: self._kept.keep]}
            while self._ours and self._ours[0] not in paths and len(self._ours) > self._kept.keep:
                self._delete(self._ours.popleft())

    def _delete(self, path: str) -> None:
        try:
            RestClient(self.client.holder).delete_checkpoint_from_tinker_path(path)
        except Exception as error:
            log.debug("an old checkpoint was not deleted, and goes when its time is over: %s", error)

    def _step_of(self, number: int) -> int:
        entry = self._ledger.entry(number)
        return entry.step if entry.method == _STEP else entry.step - 1

    # Recovery -------------------------------------------------------------------------------------------------------

    def _fence(self, cause: BaseException, noticed_s: float = 0.0) -> None:
        """Gives the client in use up, and begins to make another when a call waits for one.

        Args:
            cause: What is wrong with it.
            noticed_s: Seconds for which a call had waited by then.
        """
        if self._state != "live":
            return
        self._generation += 1
        self._note(self._ledger.fenced(said(cause)))
        self._lost = Lost(noticed_s, 0.0, 0.0)
        log.warning("a training client is given up: %s", said(cause))
        watcher.tell("fenced", cause=type(cause).__name__, open=len(self._open))
        self._state = "fenced"
        if self._open:
            self._start()

    def _start(self) -> None:
        self._state = "recovering"
        on_thread(self._recover)

    def _recover(self) -> None:
        first_s = limits.RECOVERY_WAIT_S
        waits = tenacity.wait_exponential(multiplier=first_s, max=limits.RECOVERY_WAIT_MOST_S) + tenacity.wait_random(
            0, first_s
        )
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(limits.RECOVERY_ATTEMPTS)
            | tenacity.stop_after_delay(limits.RECOVERY_LIMIT_S),
            wait=waits,
            retry=tenacity.retry_if_exception(is_about_the_client),
            before_sleep=_say_attempt,
            reraise=True,
        )
        try:
            replayed = retrying(self._attempt)
        except BaseException as error:
            self._give_up(error, retrying.statistics.get("attempt_number", 1))
            return
        lost, step = self._lost, self._restored.step
        log.warning(
            "training goes on: noticed after %.1f s, step %d restored in %.1f s, %d calls made again in %.1f s",
            lost.noticed_s, step, lost.restored_s, replayed, lost.replayed_s,
        )  # fmt: skip
        watcher.tell("recovered", step=step, replayed=replayed, **lost._asdict())

    def _attempt(self) -> int:
        """Makes a client, brings it to where the ledger stands, and puts it into use; returns the calls made again."""
        began = clock.monotonic()
        replayed = self._bring_up()
        done = clock.monotonic()
        with self._lock:
            self._lost = self._lost._replace(restored_s=self._made_at - began, replayed_s=done - self._made_at)
            self._note(self._ledger.recovered())
            self._state = "live"
            # In their order: of two calls that were on their way, the second one's answer may have come alone.
            for entry in self._ledger.lineage(self._restored.after):
                if entry.number >= min(self._open, default=entry.number + 1) and not self._send_in_turn(entry):
                    break
        return replayed

    def _send_in_turn(self, entry: Entry) -> bool:
        """Sends a call of the lineage to the new client; false if that one is given up already."""
        call = self._open.get(entry.number)
        try:
            if call is None:
                self._send_again(entry)
            else:
                self._send(call)
        except Exception as error:
            if call is None or is_about_the_client(error, call.blamed):
                if call is not None:
                    call.blamed += 1
                self._fence(error)
                return False
            self._fail(call, error)
            self._later(partial(call.promise.set_exception, error))
        return True

    def _send_again(self, entry: Entry) -> None:
        """Sends a call whose caller has its answer."""
        method, args, kwargs = self._kept.spool[entry.number]
        future = self._sent(getattr(self.client, method)(*args, **kwargs))
        generation = self._generation
        future.add_done_callback(lambda ended: self._later(partial(self._sent_again, generation, ended)))

    def _sent_again(self, generation: int, future: Future[Any]) -> None:
        error = error_of(future)
        with self._lock:
            if error is not None and generation == self._generation:
                self._fence(error)

    def _bring_up(self) -> int:
        failure: BaseException | None = None
        for checkpoint in [*self._ledger.restorable()[: self._kept.keep], None]:
            if checkpoint is None and not (self._making is not None and self._making.repeatable):
                break
            at = checkpoint or Checkpoint(0, 0, "")
            if any(entry.number not in self._kept.spool for entry in self._ledger.lineage(at.after)):
                break  # what came after it was let go of, or was another process's
            try:
                service, client = remade(place_of(self.client), self._making, at.path)
            except Exception as error:
                failure = failure or error
                if getattr(error, "status_code", None) not in (400, 404, 410) or checkpoint is None:
                    raise
                log.warning("the checkpoint of step %d cannot be restored: %s", at.step, error)
                continue
            self._made_at = clock.monotonic()
            try:
                count = self._replay(client, at.after)
            except BaseException:
                finish(service)
                raise
            self._use(service, client, at)
            return count
        raise failure or LookupError(
            "there is no checkpoint to restore, and how the client was made was not seen, or it was made without a seed"
        )

    def _use(self, service: Any, client: Any, at: Checkpoint) -> None:
        with self._lock:
            former, self._service = self._service, service
            abandoned = [*self._on_their_way]
            self._on_their_way.clear()
            self.client, self._restored = client, at
            self._saved_names = set()
            self._generation += 1
            self._saved_step = at.step
        for future in abandoned:
            # They would be asked for as long as the process lives, over connections of their own.
            getattr(future, "let_go", future.cancel)()
        if former is not None:
            finish(former)

    def _replay(self, client: Any, after: int) -> int:
        """Makes the calls that are done, and not in the checkpoint, again on a client, up to the first open one."""
        lineage = self._ledger.lineage(after)
        again = list(itertools.takewhile(lambda entry: entry.state == "confirmed", lineage))
        waiting: deque[Future[Any]] = deque()
        for entry in again:
            method, args, kwargs = self._kept.spool[entry.number]
            waiting.append(standard(getattr(client, method)(*args, **kwargs)))
            if len(waiting) >= limits.REPLAYED_AT_ONCE:
                waiting.popleft().result()
        for future in waiting:
            future.result()
        return len(again)

    def _give_up(self, error: BaseException, attempts: int) -> None:
        with self._lock:
            last = self._ledger.last_confirmed or Checkpoint(0, 0, "")
            failure = self._failure = RecoveryFailedError(error, attempts, self._kept.run, last.step, last.path)
            self._state = "lost"
            calls = list(self._open.values())
            for call in calls:
                self._end(call)
        log.error("%s", failure)
        watcher.tell("lost", cause=type(error).__name__, attempts=attempts)
        for call in calls:
            call.promise.set_exception(failure)

    # In the order in which things happen ----------------------------------------------------------------------------

    def _later(self, what: Callable[[], None]) -> None:
        """Does something on a worker, one after the other."""
        # Not the lock of the ledger: the SDK's loop comes through here, and must not wait for a disk.
        with self._inbox_lock:
            self._inbox.append(what)
            if self._draining:
                return
            self._draining = True
        on_worker(self._drain)

    def _drain(self) -> None:
        while True:
            with self._inbox_lock:
                if not self._inbox:
                    self._draining = False
                    return
                what = self._inbox.popleft()
            try:
                what()
            except Exception as error:
                # A mistake of ours must not leave anybody waiting for an answer that is lost.
                log.exception("what became of a training call could not be taken in")
                self._give_up(error, 0)

    def close(self) -> None:
        """Ends the session that recovery began, and closes the ledger."""
        service, self._service = self._service, None
        if service is not None:
            finish(service)
        self._kept.close()


def _say_attempt(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    wait_s = state.next_action.sleep if state.next_action is not None else 0.0
    log.warning("attempt %d to recover failed (%s); the next one in %.0f s", state.attempt_number, error, wait_s)
