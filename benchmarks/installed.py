"""What does installed mode add to the CPU that the SDK itself spends on a sample?

One process makes rounds of samples with 1,000 in flight, against a lab in a process of its own: without us, with us and
nothing recorded, with everything, and the same backwards. A processor whose clock moves by a third within seconds, as a
shared one does, then moves all three alike on average; each turn gives one ratio, and the median of them counts.
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

    def round(self, way: str) -> float:
        """Has it make a round in one of the ways; returns CPU microseconds a sample."""
        self.tell(way)
        self.hear()
        self.tell("go")
        return float(self.hear())

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


class Cost(NamedTuple):
    """Medians over turns: CPU microseconds per sample, and the ratio to the SDK alone, with its quartiles."""

    cpu_us: float
    ratio: float
    quartiles: tuple[float, float]


WAYS = ("plain", "bounded", "installed")


def measure(turns: int) -> dict[str, Cost]:
    """What a sample costs in each way: without us, without a record, and with everything."""
    cpu_us: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as home, _client(home) as client:
        for way in WAYS:
            client.round(way)
        for _ in range(turns):
            for way in (*WAYS, *reversed(WAYS)):
                cpu_us[way].append(client.round(way))
    # A turn's two rounds of one way, as one.
    by_turn = {
        way: [(one * other) ** 0.5 for one, other in zip(found[::2], found[1::2], strict=True)]
        for way, found in cpu_us.items()
    }
    costs = {}
    for way, found in by_turn.items():
        ratios = sorted(ours / alone for ours, alone in zip(found, by_turn["plain"], strict=True))
        low, _, high = statistics.quantiles(ratios, n=4) if turns > 1 else (ratios[0],) * 3
        costs[way] = Cost(statistics.median(found), statistics.median(ratios), (low, high))
    return costs


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


def markdown(turns: int) -> tuple[str, list[Bar]]:
    """Measures against a lab and shows it, with the bars that it must keep."""
    costs = measure(turns)
    bounded, recorded = costs["bounded"], costs["installed"]
    bars = [
        Bar("% of the SDK's own CPU that bounding adds", (bounded.ratio - 1) * 100, 3.0),
        Bar("% of it that bounding, learning and recording add", (recorded.ratio - 1) * 100, 3.9),
    ]
    names = {
        "plain": "the SDK alone",
        "bounded": "**tinker-deadlines, nothing recorded**",
        "installed": "**tinker-deadlines**",
    }
    text = [
        "## Installed mode: CPU of a `sample` at 1,000 in flight",
        "",
        f"One process against one lab, in {turns} turns of each way there and back; ratios within a turn.",
        "",
        "| way | CPU µs a sample | ratio, median | quartiles |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {names[way]} | {cost.cpu_us:.0f} | {cost.ratio:.3f} | {low:.3f} to {high:.3f} |"
            for way, cost in costs.items()
            for low, high in [cost.quartiles]
        ),
        "",
        *(bar.line() for bar in bars),
        "",
    ]
    return "\n".join(text), bars


if __name__ == "__main__":
    serve(sys.argv[1])
