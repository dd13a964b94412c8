"""What does installed mode add to the CPU that the SDK itself spends on a sample?

Two processes make rounds of samples with 1,000 in flight at the same time, each against a lab in a process of its own:
one with `install()`, one without, and then the other way round. What the machine does to one, it does to the other: a
processor whose clock moves by a third within seconds, as a shared one does, would drown the difference otherwise.
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import IO, NamedTuple

from benchmarks.report import Bar

IN_FLIGHT = 1_000
MODEL = "tinker-lab/byte-tiny"
SETTLE_S = 1.2
"""Seconds after `install()`: the record is open by then."""


class Client:
    """A process that makes rounds of samples when it is told to."""

    def __init__(self, url: str, home: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.installed", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TINKER_TELEMETRY": "0", "TINKER_DEADLINES_HOME": home},
        )
        self.hear()

    def tell(self, word: str) -> None:
        """Sends a line to it."""
        stdin: IO[str] | None = self._process.stdin
        assert stdin is not None
        stdin.write(f"{word}\n")
        stdin.flush()

    def hear(self) -> str:
        """Waits for a line of its."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.wait(timeout=10)


@contextlib.contextmanager
def _client(home: str) -> Iterator[Client]:
    lab = subprocess.Popen(
        [sys.executable, "-m", "tinker_deadlines", "lab", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert lab.stdout is not None
        client = Client(lab.stdout.readline().strip(), home)
        try:
            yield client
        finally:
            client.close()
    finally:
        lab.terminate()
        lab.wait(timeout=10)


def _round(clients: tuple[Client, Client], ways: tuple[str, str]) -> tuple[float, float]:
    """One round of both at the same time: CPU microseconds a sample of each."""
    for client, way in zip(clients, ways, strict=True):
        client.tell(way)
    for client in clients:
        client.hear()
    for client in clients:
        client.tell("go")
    first, second = (float(client.hear()) for client in clients)
    return first, second


class Cost(NamedTuple):
    """Medians over pairs of rounds: CPU microseconds per sample, and the ratio to the SDK alone at the same time."""

    cpu_us: float
    ratio: float


def measure(way: str, rounds: int) -> tuple[Cost, Cost]:
    """What a sample costs without us, and in one of our ways."""
    plain, bounded, ratios = [], [], []
    with tempfile.TemporaryDirectory() as home, _client(f"{home}/a") as one, _client(f"{home}/b") as other:
        clients = (one, other)
        _round(clients, (way, way))
        for _ in range(rounds):
            ours, theirs = _round(clients, (way, "plain"))
            theirs_too, ours_too = _round(clients, ("plain", way))
            plain += [theirs, theirs_too]
            bounded += [ours, ours_too]
            ratios.append((ours * ours_too / theirs / theirs_too) ** 0.5)
    return Cost(statistics.median(plain), 1.0), Cost(statistics.median(bounded), statistics.median(ratios))


def serve(url: str) -> None:
    """Makes rounds, as told on the standard input."""
    import tinker

    import tinker_deadlines

    warnings.simplefilter("ignore", FutureWarning)
    service = tinker.ServiceClient(base_url=url, api_key="tml-benchmark")
    client = service.create_sampling_client(base_model=MODEL).result()
    prompt = tinker.ModelInput.from_ints(list(range(64)))
    parameters = tinker.SamplingParams(max_tokens=1, seed=1)
    print("ready", flush=True)
    for line in sys.stdin:
        way = line.strip()
        os.environ["TINKER_DEADLINES_RECORD"] = "off" if way == "bounded" else ""
        if way != "plain":
            tinker_deadlines.install()
        time.sleep(SETTLE_S)
        gc.collect()
        print("set", flush=True)
        sys.stdin.readline()
        started = time.process_time()
        futures = [client.sample(prompt, 1, parameters) for _ in range(IN_FLIGHT)]
        for future in futures:
            future.result()
        print((time.process_time() - started) / IN_FLIGHT * 1e6, flush=True)
        tinker_deadlines.uninstall()


def markdown(rounds: int) -> tuple[str, list[Bar]]:
    """Measures against labs and shows it, with the bars that it must keep."""
    alone, bounded = measure("bounded", rounds)
    alone_too, recorded = measure("installed", rounds)
    bars = [
        Bar("% of the SDK's own CPU that bounding adds", (bounded.ratio - 1) * 100, 3.0),
        Bar("% of it that bounding, learning and recording add", (recorded.ratio - 1) * 100, 3.9),
    ]
    text = [
        "## Installed mode: CPU of a `sample` at 1,000 in flight",
        "",
        "Two processes at the same time, one with and one without, and then the other way round.",
        "",
        "| way | CPU µs a sample | the SDK alone meanwhile |",
        "| --- | ---: | ---: |",
        f"| **tinker-deadlines, nothing recorded** | {bounded.cpu_us:.0f} | {alone.cpu_us:.0f} |",
        f"| **tinker-deadlines** | {recorded.cpu_us:.0f} | {alone_too.cpu_us:.0f} |",
        "",
        *(bar.line() for bar in bars),
        "",
    ]
    return "\n".join(text), bars


if __name__ == "__main__":
    serve(sys.argv[1])
