"""Slow is not dead: are dead sessions found, and is nothing alive ended? In real time, the SDK against the lab.

python -m benchmarks.liveness [CASE ...]

Each case runs in a process of its own, three at a time, against a lab with a fault proxy in another process, with the
shipped policy after some 200 completed calls, and with the shipped thresholds. Two cases play two hours in a minute,
with thresholds and calls scaled alike; finer, the machine's own hiccups would be outages. `day` is a whole day on a
simulated clock, where only completed calls are signs of life and nobody can be asked. Returns 1 when a bar is not met.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.report import Bar

WARM_UP = 200
PROMPT_TOKENS = 16
MAX_TOKENS = 2
WITHIN_S = 175.0
"""Seconds that a case may take."""


class Found(NamedTuple):
    """What a case found: figures to show, and bars to keep."""

    figures: dict[str, str]
    bars: list[Bar]


# The lab, in a process of its own -------------------------------------------------------------------------------------


def serve(scale: float, rules: str) -> None:
    """Runs a lab and a proxy in front of it; prints their addresses, and takes new scales on its standard input."""
    from tinker_deadlines.lab import Lab
    from tinker_deadlines.lab.faults import Faults
    from tinker_deadlines.lab.latency import Latency
    from tinker_deadlines.lab.proxy import FaultProxy

    with Lab(latency=f"scale={scale},jitter=0.2", poll_s=5.0, session_cap=10_000) as lab:
        started_at = time.monotonic()
        with FaultProxy(lab.url, Faults.from_toml(rules)) as proxy:
            print(json.dumps([lab.url, proxy.url, lab.base_model, started_at]), flush=True)
            for line in sys.stdin:
                lab._engine().executor._latency = Latency(scale=float(line), jitter=0.2).sampler()
                print("done", flush=True)


class Served:
    """A lab in another process, and the proxy in front of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.lab_url, self.url, self.model, self._started_at = json.loads(process.stdout.readline())

    def scale(self, scale: float) -> None:
        """Makes calls that start from now on take `scale` times what they take on a usual service."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(scale, file=self._process.stdin, flush=True)
        self._process.stdout.readline()

    def samples(self) -> int:
        """How many samples were executed: the witness."""
        return sum(each["type"] == "Sample" for each in self._get(self.lab_url, "/lab/executions", "executions"))

    def deaths(self) -> dict[str, float]:
        """When each rule was first applied, by the monotonic clock, which all processes share."""
        first: dict[str, float] = {}
        for record in self._get(self.url, "/lab/proxy/log", "records"):
            if record["rule"] is not None:
                first.setdefault(record["rule"], self._started_at + record["t_s"])
        return first

    @staticmethod
    def _get(url: str, path: str, name: str) -> list[dict[str, Any]]:
        import httpx

        answer = httpx.get(url + path, timeout=30).json()
        return list(answer[name] if isinstance(answer, dict) else answer)


@contextmanager
def served(scale: float, rules: str = "") -> Iterator[Served]:
    """A lab and a proxy with these rules."""
    command = [sys.executable, "-m", "benchmarks.liveness", "--serve", str(scale), "--rules", rules]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Served(process)
    finally:
        process.terminate()
        process.wait(10)


# Calls ----------------------------------------------------------------------------------------------------------------


def connected(lab: Served, url: str | None = None) -> Any:
    """A sampling client in a session of its own."""
    import tinker

    service = tinker.ServiceClient(base_url=url or lab.url, api_key="tml-benchmark")
    return service.create_sampling_client(base_model=lab.model).result()


def sampled(client: Any) -> Any:
    """The standard future of a sample."""
    import tinker

    prompt = tinker.ModelInput.from_ints(list(range(PROMPT_TOKENS)))
    future = client.sample(prompt, 1, tinker.SamplingParams(max_tokens=MAX_TOKENS, seed=1))
    return future.future() if hasattr(future, "future") else future


def warmed_up(clients: list[Any], each: int, at_once: int = 8) -> int:
    """Makes `each` samples with every client, so that the law of their time is learned; returns how many in all."""
    for start in range(0, each, at_once):
        futures = [sampled(client) for client in clients for _ in range(min(at_once, each - start))]
        for future in futures:
            future.result(60)
    return each * len(clients)


class Ends:
    """How calls end: when, and with what error."""

    def __init__(self, futures: list[Future[Any]]) -> None:
        self.at: dict[int, float] = {}
        self.futures = futures
        for place, future in enumerate(futures):
            future.add_done_callback(lambda _, place=place: self.at.setdefault(place, time.monotonic()))

    def wait(self, within_s: float) -> None:
        """Waits for all of them."""
        until = time.monotonic() + within_s
        while len(self.at) < len(self.futures) and time.monotonic() < until:
            time.sleep(0.05)

    def verdicts(self) -> Counter[str]:
        """How many ended with what verdict; "answered" and "in flight" for those that did not."""
        return Counter(map(self._verdict, range(len(self.futures))))

    def _verdict(self, place: int) -> str:
        future = self.futures[place]
        if not future.done():
            return "in flight"
        error = future.exception()
        return "answered" if error is None else getattr(error, "verdict", None) or type(error).__name__


@contextmanager
def bounded(factor: float = 1.0) -> Iterator[Counter[str]]:
    """Installs deadlines as they ship, with thresholds times `factor`; counts what the watcher tells."""
    import tinker_deadlines
    from tinker_deadlines.liveness.thresholds import Thresholds
    from tinker_deadlines.liveness.watcher import watcher

    events: Counter[str] = Counter()
    watcher.thresholds = Thresholds().scaled(factor)
    watcher.listeners = (*watcher.listeners, lambda name, _: events.update([name]))
    tinker_deadlines.install()
    yield events


# Dead -----------------------------------------------------------------------------------------------------------------

TRIALS = 20
WAVE = 5
WAVE_S = 10.0


def dies(in_flight: int, at_most_s: float) -> Found:
    """Sessions that go silent, each with so many calls in flight, while a fresh one works."""
    warm = WARM_UP // TRIALS
    # The last of the calls in flight is the one with which its session dies; the others are being worked on.
    rules = "".join(
        f'[[fault]]\nname="{trial}"\ndo="silence_session"\n'
        f'session={trial + 1}\npath="asample"\nnth={warm + in_flight}\n'
        for trial in range(TRIALS)
    )
    with served(4.0, rules) as lab, bounded():
        clients = [connected(lab) for _ in range(TRIALS)]
        warmed_up(clients, warm)
        ends = []
        for wave in range(0, TRIALS, WAVE):
            # Not all at once: what is measured is how long it takes to find out, not how fast a lab in Python is.
            if wave:
                time.sleep(WAVE_S)
            ends += [Ends([sampled(client) for _ in range(in_flight)]) for client in clients[wave : wave + WAVE]]
        fresh = connected(lab)
        answers = [sampled(fresh) for _ in range(8)]
        for each in ends:
            each.wait(90)
        deaths = lab.deaths()
        works = sum(answer.result(30) is not None for answer in answers)
    verdicts = sum((each.verdicts() for each in ends), Counter[str]())
    found_s = [
        max(each.at.values()) - deaths[str(trial)] if len(each.at) == in_flight else math.inf
        for trial, each in enumerate(ends)
    ]
    # What was answered before the session died is no call in flight.
    missed = sum(verdicts.values()) - verdicts["session wedged"] - verdicts["answered"]
    return Found(
        {
            "sessions": str(TRIALS),
            "convicted after s (median, least, most)": ", ".join(
                f"{seconds:.1f}" for seconds in (statistics.median(found_s), min(found_s), max(found_s))
            ),
            "calls": _said(verdicts),
        },
        [
            Bar(f"{in_flight} in flight: convicted after s, median of {TRIALS}", statistics.median(found_s), at_most_s),
            Bar(f"{in_flight} in flight: calls that ended in another way", missed, 0),
            Bar(f"{in_flight} in flight: samples of a fresh session that were not answered", 8 - works, 0),
        ],
    )


def hangs() -> Found:
    """99 healthy samples, and one whose request is never answered."""
    rules = f'[[fault]]\nname="hang"\ndo="never_answers"\npath="asample"\nnth={WARM_UP + 50}\n'
    with served(1.0, rules) as lab, bounded() as events:
        client = connected(lab)
        warmed_up([client], WARM_UP, 40)
        started_at = time.monotonic()
        ends = Ends([sampled(client) for _ in range(100)])
        ends.wait(90)
    verdicts = ends.verdicts()
    errors = [error for future in ends.futures if future.done() and (error := future.exception()) is not None]
    limit_s = getattr(errors[0], "deadline_s", math.inf) if errors else math.inf
    return Found(
        {
            "calls": _said(verdicts),
            "the one ended after s, at a limit of": f"{max(ends.at.values()) - started_at:.1f}, {limit_s:.1f}",
        },
        [
            Bar("one of 100 hangs: healthy calls that were not answered", 99 - verdicts["answered"], 0),
            Bar("one of 100 hangs: not found", float(len(errors) != 1), 0),
            # Its session may have to be asked first.
            Bar("one of 100 hangs: s beyond its limit", max(ends.at.values()) - started_at - limit_s, 30),
            Bar("one of 100 hangs: convictions", events["conviction"], 0),
        ],
    )


def lost() -> Found:
    """A sample that the service lost: polled, and never completing. The run goes on with the second attempt."""
    rules = f'[[fault]]\nname="lost"\ndo="future_never_completes"\npath="asample"\nnth={WARM_UP + 5}\n'
    with served(1.0, rules) as lab, bounded():
        client = connected(lab)
        warm = warmed_up([client], WARM_UP, 40)
        started_at = time.monotonic()
        ends = Ends([sampled(client) for _ in range(10)])
        ends.wait(90)
        took_s = max(ends.at.values()) - started_at
        again = lab.samples() - warm - 10
    limit_s = ends.futures[0].call.limit_s  # type: ignore[attr-defined]
    return Found(
        {"calls": _said(ends.verdicts()), "answered after s, at a limit of": f"{took_s:.1f}, {limit_s:.1f}"},
        [
            Bar("one is lost: calls that were not answered", 10 - ends.verdicts()["answered"], 0),
            Bar("one is lost: s beyond its limit until the second answer", took_s - limit_s, 30),
            Bar("one is lost: second attempts beyond the one", abs(again - 1), 0),
        ],
    )


# Slow -----------------------------------------------------------------------------------------------------------------


def slow() -> Found:
    """512 samples in flight, all six times slower than the run so far."""
    with served(4.0) as lab, bounded() as events:
        client = connected(lab, lab.lab_url)
        warm = warmed_up([client], 256, 64)
        lab.scale(24.0)
        started_at = time.monotonic()
        ends = Ends([sampled(client) for _ in range(512)])
        ends.wait(120)
        took_s = max(ends.at.values()) - started_at
        time.sleep(1)
        again = lab.samples() - warm - 512
    verdicts = ends.verdicts()
    limit_s = ends.futures[0].call.limit_s  # type: ignore[attr-defined]
    return Found(
        {
            "calls": _said(verdicts),
            "the last after s, at a limit of": f"{took_s:.1f}, {limit_s:.1f}",
            "overdue": str(events["overdue"]),
            "probes": str(events["probe"]),
        },
        [
            Bar("512 six times slower: expired", 512 - verdicts["answered"], 0),
            Bar("512 six times slower: resubmitted", again, 0),
            Bar("512 six times slower: convictions", events["conviction"], 0),
        ],
    )


SCALE = 1 / 120


def alternating() -> Found:
    """Two scaled hours of load that alternates between once and four times the usual every ten scaled minutes."""
    usual = 10.0 * SCALE / 0.53  # 10 scaled seconds a call; the lab's takes 0.53 s at scale 1
    with served(usual) as lab, bounded(SCALE) as events:
        client = connected(lab, lab.lab_url)
        warmed_up([client], WARM_UP)
        ended: Counter[str] = Counter()
        until, slower = time.monotonic() + 7200 * SCALE, False
        in_flight = [sampled(client) for _ in range(8)]
        turns_at = time.monotonic() + 600 * SCALE
        while time.monotonic() < until:
            if time.monotonic() >= turns_at:
                slower, turns_at = not slower, turns_at + 600 * SCALE
                lab.scale(usual * (4 if slower else 1))
            for place, future in enumerate(in_flight):
                if future.done():
                    ended[Ends([future])._verdict(0)] += 1
                    in_flight[place] = sampled(client)
            time.sleep(0.002)
    return Found(
        {"calls": _said(ended), "probes": str(events["probe"]), "stalls of our own": str(events["stall"])},
        [
            Bar("1x and 4x for two scaled hours: convictions", events["conviction"], 0),
            Bar("1x and 4x for two scaled hours: calls not answered", ended.total() - ended["answered"], 0),
        ],
    )


def paused() -> Found:
    """A service that says it has no capacity, for two scaled hours."""
    rules = (
        f'[[fault]]\nname="pause"\ndo="try_again"\npath="asample"\nfrom_s=0\nfor_s={7200 * SCALE}\n'
        f'interval_s=0.2\nqueue_state="paused_capacity"\nafter={WARM_UP}\n'
    ).replace('path="asample"', 'kind="sample"')
    with served(0.1, rules) as lab, bounded(SCALE) as events:
        client = connected(lab)
        warmed_up([client], WARM_UP, 40)
        started_at = time.monotonic()
        ends = Ends([sampled(client) for _ in range(8)])
        ends.wait(7200 * SCALE + 60)
    verdicts = ends.verdicts()
    return Found(
        {
            "calls": _said(verdicts),
            "answered after s": f"{min(ends.at.values()) - started_at:.1f} to {max(ends.at.values()) - started_at:.1f}",
            "notices": str(events["pause"]),
        },
        [
            Bar("paused for two scaled hours: calls not answered", 8 - verdicts["answered"], 0),
            Bar(
                "paused for two scaled hours: s short of the pause",
                7200 * SCALE - min(ends.at.values()) + started_at,
                0,
            ),
            Bar("paused for two scaled hours: notices missed", 3 - events["pause"], 0),
        ],
    )


# A simulated day ------------------------------------------------------------------------------------------------------


def day() -> Found:
    """A day of load that alternates every ten minutes, with 1, 8 and 64 calls in flight; no polls, no probes."""
    figures, bars = {}, []
    for in_flight in (1, 8, 64):
        convicted, suspected, calls = _day(in_flight)
        figures[f"{in_flight} in flight"] = f"{calls} calls, suspicion of 8 or more at {suspected} looks"
        bars.append(Bar(f"1x and 4x for a simulated day, {in_flight} in flight: calls convicted", convicted, 0))
    return Found(figures, bars)


def _day(in_flight: int) -> tuple[int, int, int]:
    from tinker_deadlines.calls import Call, Work, board
    from tinker_deadlines.limits import CONVICT_FROM
    from tinker_deadlines.liveness.signs import sessions
    from tinker_deadlines.liveness.watcher import Watcher
    from tinker_deadlines.policy import LearnedPolicy, Sample
    from tinker_deadlines.testing import FakeClock

    dice, law, work = random.Random(in_flight), LearnedPolicy(), Work(prompt_tokens=4096, max_tokens=1024)
    convicted = suspected = calls = 0

    class Owner:
        """Counts what is done to a call."""

        def convict(self, verdict: Any, findings: Any) -> None:
            nonlocal convicted
            convicted += 1

    with FakeClock(0.0) as clock:
        sessions.clear()
        session, watcher = sessions.of("one"), Watcher()
        watcher._law, watcher._ceiling, watcher._stopped = law, lambda _: 1800.0, False
        ends: list[tuple[float, int, Call]] = []

        def start(now: float) -> None:
            nonlocal calls
            calls += 1
            call = Call("sample", 60.0, "the day", work=work, limit=law.limit("sample", work, None), session="one")
            call.owner = Owner()
            board.begin(call)
            load = 4.0 if now // 600 % 2 else 1.0
            takes_s = (0.9 + 0.015 * dice.uniform(100, 1024)) * load * math.exp(dice.gauss(0, 0.35))
            heapq.heappush(ends, (now + takes_s, calls, call))

        for _ in range(in_flight):
            start(0.0)
        for second in range(86_400):
            while ends[0][0] <= second + 1:
                at, _, call = heapq.heappop(ends)
                clock.advance(max(0.0, at - clock.monotonic()))
                board.end(call, "completed")
                sample = Sample("sample", work, None, call.elapsed_s(), "completed")
                law.learn(sample)
                session.completed(sample.elapsed_s / law.predicted_s("sample", work, None))
                start(at)
            clock.advance(second + 1 - clock.monotonic())
            watcher.look()
            suspected += session.suspicion >= CONVICT_FROM
        board.clear()
    return convicted, suspected, calls


# All of them ----------------------------------------------------------------------------------------------------------

CASES: dict[str, Callable[[], Found]] = {
    "dies-64": lambda: dies(64, 20.0),
    "alternating": alternating,
    "paused": paused,
    "dies-8": lambda: dies(8, 60.0),
    "slow": slow,
    "hangs": hangs,
    "lost": lost,
    "day": day,
}


def _said(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.most_common()) or "none"


def run(case: str) -> Found:
    """Runs a case in a process of its own; one that fails misses a bar."""
    command = [sys.executable, "-m", "benchmarks.liveness", "--case", case]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=True)
        figures, bars = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        print(getattr(error, "stderr", None) or error, file=sys.stderr)
        return Found({}, [Bar(f"{case}: failed", 1, 0)])
    return Found(figures, [Bar(*bar) for bar in bars])


def markdown(cases: list[str]) -> tuple[str, list[Bar]]:
    """Runs the cases and shows them, with their bars."""
    with ThreadPoolExecutor(3) as pool:
        found = dict(zip(cases, pool.map(run, cases), strict=True))
    rows = ["| case | figure | |", "| --- | --- | --- |"]
    for case, each in found.items():
        rows += [f"| {case} | {name} | {value} |" for name, value in each.figures.items()]
    bars = [bar for each in found.values() for bar in each.bars]
    return "\n".join(["## Slow or dead", "", *rows, "", *(bar.line() for bar in bars), ""]), bars


def main() -> int:
    """Runs what the command line says; returns 1 when a bar is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"which of {', '.join(CASES)}; all without any")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--rules", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.rules)
        return 0
    if options.case is not None:
        os.environ["TINKER_TELEMETRY"] = "0"
        warnings.simplefilter("ignore")
        print(json.dumps(CASES[options.case]()), flush=True)
        os._exit(0)  # what still hangs is meant to
    unknown = [case for case in options.cases if case not in CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    text, bars = markdown(options.cases or list(CASES))
    print(text, flush=True)
    return int(not all(bar.met for bar in bars))


if __name__ == "__main__":
    sys.exit(main())
