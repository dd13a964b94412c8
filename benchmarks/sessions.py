"""What do 500 rollout trials leave behind that each make a service client and a sampling client?

python -m benchmarks.sessions [--trials N] [--alone N]

The lab runs in a process of its own: threads, sockets and memory counted here are those of the trials. Beside it, what
the SDK leaves behind alone, for fewer trials: each of its sessions sends heartbeats for as long as the process lives.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

KEY = "tml-lab"
MODEL = "tinker-lab/byte-tiny"
WORKERS = 16


class Figures(NamedTuple):
    threads: int
    sockets: int
    futures: int
    memory_mb: float
    sessions: int
    samplers: int

    @classmethod
    def now(cls, url: str) -> Figures:
        gc.collect()
        sockets = sum(_is_socket(each) for each in Path("/proc/self/fd").iterdir())
        futures = sum(isinstance(each, Future) for each in gc.get_objects())
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        ids = _get(url, "sessions?limit=10000")["sessions"]
        samplers = sum(len(_get(url, f"sessions/{each}")["sampler_ids"]) for each in ids)
        memory_mb = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        return cls(threading.active_count(), sockets, futures, memory_mb, len(ids), samplers)


def _is_socket(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith("socket:")
    except OSError:
        return False


def _get(url: str, path: str) -> Any:
    request = urllib.request.Request(f"{url}/api/v1/{path}", headers={"X-API-Key": KEY})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def _is_open(url: str, session: str) -> bool:
    body, headers = json.dumps({"session_id": session}).encode(), {"X-API-Key": KEY, "Content-Type": "application/json"}
    try:
        urllib.request.urlopen(
            urllib.request.Request(f"{url}/api/v1/session_heartbeat", body, headers), timeout=10
        ).close()
    except urllib.error.HTTPError as error:
        error.close()
        return False
    return True


def trial(url: str, weights: dict[str, str]) -> None:
    import tinker

    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    client = service.create_sampling_client(**weights)
    client = client.result() if hasattr(client, "result") else client
    client.sample(tinker.ModelInput.from_ints([1, 2, 3]), 1, tinker.SamplingParams(max_tokens=2)).result()


def measure(url: str, trials: int, *, with_us: bool) -> list[tuple[str, Figures]]:
    import tinker_deadlines

    if with_us:
        tinker_deadlines.install()
    weights = {"base_model": MODEL}
    rows = []
    with ThreadPoolExecutor(WORKERS) as pool:
        done = 0
        for upto in (trials // 10, trials // 2, trials):
            list(pool.map(lambda _: trial(url, weights), range(upto - done)))
            done = upto
            rows.append((f"{done} trials", Figures.now(url)))
    return rows


def run(mode: str, trials: int) -> str:
    """One process with its own lab; returns its rows as a table."""
    lab = subprocess.Popen(
        [sys.executable, "-m", "tinker_deadlines", "lab"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert lab.stdout is not None
        url = lab.stdout.readline().strip()
        command = [sys.executable, "-m", "benchmarks.sessions", "--inside", mode, url, str(trials)]
        environment = {**os.environ, "PYTHONWARNINGS": "ignore", "TINKER_DEADLINES_RECORD": "off"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        sessions = _get(url, "sessions?limit=10000")["sessions"]
        still_open = sum(_is_open(url, each) for each in sessions)
        return done.stdout + f"\nAfter its exit {still_open} of its {len(sessions)} sessions are open on the service.\n"
    finally:
        lab.terminate()
        lab.wait(10)
        assert lab.stdout is not None
        lab.stdout.close()


def inside(mode: str, url: str, trials: int) -> None:
    warnings.simplefilter("ignore")
    started = time.monotonic()
    rows = measure(url, trials, with_us=mode == "shared")
    print(f"| {mode} | " + " | ".join(Figures._fields) + " |")
    print("| --- " * (len(Figures._fields) + 1) + "|")
    for name, figures in rows:
        print(f"| {name} | " + " | ".join(f"{each:.4g}" for each in figures) + " |")
    print(f"\n{time.monotonic() - started:.1f} s in all.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500, help="trials that share (default 500)")
    parser.add_argument("--alone", type=int, default=100, help="trials of the SDK alone (default 100)")
    options = parser.parse_args()
    print(run("shared", options.trials))
    print(run("the SDK alone", options.alone))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
