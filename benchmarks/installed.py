"""What does installed mode add to the CPU that the SDK itself spends on a sample?

One process makes rounds of samples with 1,000 in flight, against a lab in a process of its own: without us, with us and
nothing recorded, with everything, and the same backwards. A processor whose clock moves by a third within seconds, as a
shared one does, would drown the difference. The lab does the same work whoever asks, and what the machine does to one
process it does to the other: what a round costs is counted in what it cost the lab in the same seconds.
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
from pathlib import Path
from typing import IO, NamedTuple

from benchmarks.report import Bar

IN_FLIGHT = 1_000
MODEL = "tinker-lab/byte-tiny"
SETTLE_S = 1.2
"""Seconds after `install()`: the record is open by then."""


class Client:
    """A process that makes rounds of samples when it is told to."""

    def __init__(self, url: str, lab: int, home: str) -> None:
        self._lab = lab
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.installed", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TINKER_TELEMETRY": "0", "TINKER_DEADLINES_HOME": home},
        )
        self.hear()

    def round(self, way: str) -> tuple[float, float]:
        """Has it make a round in one of the ways; returns CPU microseconds a sample, and what they are of the lab's."""
        self.tell(way)
        self.hear()
        before_s = cpu_s(self._lab)
        self.tell("go")
        cpu_us = float(self.hear())
        return cpu_us, cpu_us / (cpu_s(self._lab) - before_s)

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


def cpu_s(process: int) -> float:
    """CPU seconds that the threads of a process have used."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


@contextlib.contextmanager
def _client(home: str) -> Iterator[Client]:
    lab = subprocess.Popen(
        [sys.executable, "-m", "tinker_deadlines", "lab", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert lab.stdout is not None
        client = Client(lab.stdout.readline().strip(), lab.pid, home)
        try:
            yield client
        finally:
            client.close()
    finally:
        lab.terminate()
        lab.wait(timeout=10)


class Cost(NamedTuple):
    """Medians over rounds: CPU microseconds per sample, the ratio to the SDK alone, and the standard error of that."""

    cpu_us: float
    ratio: float
    error: float


WAYS = ("plain", "bounded", "installed")
# The standard error of a median is larger than that of a mean by this, for errors that are normal.
MEDIAN_ERROR = 1.2533


def measure(turns: int) -> dict[str, Cost]:
    """What a sample costs in each way: without us, without a record, and with everything."""
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as home, _client(home) as client:
        for way in WAYS:
            client.round(way)
        for _ in range(turns):
            for way in (*WAYS, *reversed(WAYS)):
                found[way].append(client.round(way))
    of_labs = {way: [of_lab for _, of_lab in rounds] for way, rounds in found.items()}
    alone = statistics.median(of_labs["plain"])
    # The middle half tells how wide it is: a round that another process disturbs says nothing.
    errors = {way: _error(values) for way, values in of_labs.items()}
    return {
        way: Cost(
            statistics.median(cpu_us for cpu_us, _ in rounds),
            statistics.median(of_labs[way]) / alone,
            0.0 if way == "plain" else (errors[way] ** 2 + errors["plain"] ** 2) ** 0.5,
        )
        for way, rounds in found.items()
    }


def _error(values: list[float]) -> float:
    """The relative standard error of the median, from the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return MEDIAN_ERROR * (high - low) / 1.349 / middle / len(values) ** 0.5


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
        f"One process against one lab, {2 * turns} rounds of each way in turn; a round's CPU is counted in the lab's.",
        "",
        "| way | CPU µs a sample | ratio | standard error |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {names[way]} | {cost.cpu_us:.0f} | {cost.ratio:.3f} | {cost.error:.3f} |" for way, cost in costs.items()),
        "",
        *(bar.line() for bar in bars),
        "",
    ]
    return "\n".join(text), bars


if __name__ == "__main__":
    serve(sys.argv[1])
