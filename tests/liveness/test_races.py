"""A call is convicted, expires and is answered in the same moment: it ends once, and nothing of it stays behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from calls_made import BY_POLICY

from tinker_deadlines import TinkerDeadlineError
from tinker_deadlines.calls import Call, Tally, board
from tinker_deadlines.liveness.signs import sessions
from tinker_deadlines.liveness.verdict import Answers
from tinker_deadlines.liveness.watcher import Watcher
from tinker_deadlines.waiting.futures import BoundedFuture
from tinker_deadlines.waiting.timer import timer

TIMES = 1000
FINDINGS = ("Its session had shown no sign of life.",)


class Racers:
    """Threads that start the same round together, again and again."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._barrier = threading.Barrier(count)
        self._errors: list[BaseException] = []

    def run(self, rounds: list[tuple[Callable[[], Any], ...]]) -> None:
        def race(lane: int) -> None:
            for each in rounds:
                self._barrier.wait(20)
                try:
                    each[lane]()
                except BaseException as error:
                    self._errors.append(error)

        threads = [threading.Thread(target=race, args=(lane,)) for lane in range(self._count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
        assert self._errors == []


@pytest.fixture(autouse=True)
def _sessions() -> Iterator[None]:
    sessions.clear()
    yield
    sessions.clear()


class Looked(BoundedFuture[int]):
    """Asks a watcher at its limit, as a call of the SDK does."""

    watcher: Watcher

    def _goes_on(self) -> bool:
        decision = self.watcher.decide(self._call)
        if decision.until is None:
            return False
        self._set_alarm(decision.until)
        return True


def bounded(kind: type[BoundedFuture[int]] = BoundedFuture) -> tuple[BoundedFuture[int], Future[int]]:
    source: Future[int] = Future()
    future = kind(Call("sample", 60.0, "test", limit=BY_POLICY, session="one"), None)
    future.follow(source)
    return future, source


def counted(tally: Tally | None) -> dict[str, int]:
    return {} if tally is None else {name: getattr(tally, name) for name in Tally.__slots__ if getattr(tally, name)}


def test_convicted_while_it_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand times: a result or an expiry, counted once, and what the two sides see is the same."""
    alarms = len(timer)
    made = [bounded() for _ in range(TIMES)]

    def answer(source: Future[int]) -> None:
        if source.set_running_or_notify_cancel():
            source.set_result(1)

    Racers(2).run(
        [
            (lambda f=future: f.convict("session wedged", FINDINGS), lambda s=source: answer(s))
            for future, source in made
        ]
    )
    results = [future.exception(5) for future, _ in made]
    assert all(error is None or isinstance(error, TinkerDeadlineError) for error in results)
    assert all(error is None or (error.verdict, error.blame) == ("session wedged", "session") for error in results)
    expired = sum(error is not None for error in results)
    wanted = {"completed": TIMES - expired, "expired": expired}
    assert counted(board.tallies.get("sample")) == {name: count for name, count in wanted.items() if count}
    assert not board.in_flight and len(timer) <= alarms
    assert all(future.call.owner is None for future, _ in made)


def test_an_answer_that_is_on_its_way_outranks_a_conviction() -> None:
    """The source has finished and our callback has not run yet: the result is there, and nobody is told otherwise."""
    source: Future[int] = Future()
    future = BoundedFuture[int](Call("sample", 60.0, "test", limit=BY_POLICY), None)
    source.add_done_callback(lambda _: future.convict("session wedged", FINDINGS))
    future.follow(source)
    source.set_result(7)
    assert future.result(5) == 7
    assert counted(board.tallies.get("sample")) == {"completed": 1}


def test_what_is_over_is_not_convicted_after_all() -> None:
    """Neither its verdict nor its findings change: the record would tell of a death that was none."""
    future, source = bounded()
    source.set_result(7)
    future.convict("session wedged", FINDINGS)
    assert future.call.verdict is None and future.call.findings == ()


def test_convicted_by_two_at_once() -> None:
    """A thousand times: it expires once."""
    made = [bounded() for _ in range(TIMES)]
    Racers(3).run([(lambda f=future: f.convict("session wedged", FINDINGS),) * 3 for future, _ in made])
    assert counted(board.tallies.get("sample")) == {"expired": TIMES}
    assert all(source.cancelled() for _, source in made)


def test_at_its_limit_twice_at_once_and_answered() -> None:
    """A thousand times: the alarm and the answer of a probe ask about it together, and a result comes in between."""
    watcher = Watcher()
    watcher._ceiling, watcher._stopped = lambda kind: 1e9, False
    Looked.watcher = watcher
    alarms = len(timer)
    made = [bounded(Looked) for _ in range(TIMES)]
    for future, _ in made:
        future.call.started_at -= 61.0  # type: ignore[operator]
    session = sessions.of("one")
    session.way = object()
    rounds = []
    for number, (future, source) in enumerate(made):

        def answer(source: Future[int] = source, number: int = number) -> None:
            if number % 2 and source.set_running_or_notify_cancel():
                source.set_result(1)

        rounds.append((future.expire, future.expire, answer))
    session.answers, session.answered_at = Answers(True, False, False), float("inf")  # an outage: it is waited for
    session.last_at = -1e9
    Racers(3).run(rounds)
    answered = [future for number, (future, _) in enumerate(made) if number % 2]
    waiting = [future for number, (future, _) in enumerate(made) if not number % 2]
    assert [future.result(5) for future in answered] == [1] * len(answered)
    assert not any(future.done() for future in waiting) and len(board.in_flight) == len(waiting)
    for future in waiting:
        future.cancel()
    assert not board.in_flight and len(timer) <= alarms


def test_of_two_alarms_set_at_once_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread sets an alarm to look again, another does: the earlier of the two is taken back."""
    future, source = bounded()
    alarms, set_alarm = len(timer), type(timer).set

    def another_in_between(self: Any, when: float, target: Any) -> Any:
        monkeypatch.setattr(type(timer), "set", set_alarm)
        future._set_alarm(when)
        return timer.set(when, target)

    monkeypatch.setattr(type(timer), "set", another_in_between)
    future._set_alarm(future.call.submitted_at + 100.0)
    assert len(timer) == alarms
    source.set_result(1)
    assert len(timer) == alarms - 1


def test_an_alarm_of_what_is_over_asks_nobody() -> None:
    """It may go off in the moment of the end: the call is not judged, and not said to be overdue."""
    Looked.watcher = Watcher()
    Looked.watcher._ceiling = lambda kind: pytest.fail("it was judged")
    Looked.watcher._stopped = False
    future, source = bounded(Looked)
    source.set_result(1)
    future.expire()
    assert future.result(5) == 1 and not future.call.overdue


def test_a_whole_session_is_convicted_while_its_calls_are_answered() -> None:
    """A thousand calls: the watcher's look, the answers, and a second look, all at the same time; none is lost."""
    watchers = [Watcher() for _ in range(2)]
    for watcher in watchers:
        watcher._law, watcher._prober, watcher._ceiling, watcher._stopped = Never(), None, lambda kind: 1e9, False
    session = sessions.of("one")
    made = [bounded() for _ in range(TIMES)]
    for future, _ in made:
        future.call.started_at -= 500.0  # type: ignore[operator]
    session.last_at -= 500.0

    def answer() -> None:
        for _, source in made:
            if source.set_running_or_notify_cancel():
                source.set_result(1)

    Racers(3).run([(watchers[0].look, watchers[1].look, answer)])
    results = [future.exception(5) for future, _ in made]
    expired = sum(isinstance(error, TinkerDeadlineError) for error in results)
    assert sum(counted(board.tallies.get("sample")).values()) == TIMES
    assert board.tallies["sample"].expired == expired and not board.in_flight


class Never:
    """A law by which every silence is the end."""

    def predicted_s(self, *_: Any) -> float:
        return 1.0

    def survival(self, kind: Any, model: Any, ratio: float) -> float:
        return 1.0 if ratio < 10 else 1e-12

    def median_ratio(self, *_: Any) -> float:
        return 1.0
