"""What do many calls cost that are pending at once? Each case in a process of its own.

`complete`: all finish; `spread`: they run out evenly over two seconds; `storm`: they run out in the same instant.
Memory is the growth of the resident set after the SDK's futures exist. Lateness is how long after its deadline a call
is told.
"""

from __future__ import annotations

import concurrent.futures
import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.report import Bar

SETTLE_S = 8.0
"""From the start of set-up to the first deadline: longer than setting up the largest case takes."""
SPREAD_S = 2.0


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def case(count: int, outcome: str) -> dict[str, float]:
    """Sets up `count` bounded futures, ends them as `outcome` says, and measures."""
    from tinker_deadlines.calls import Call
    from tinker_deadlines.waiting.futures import BoundedFuture

    sources: list[concurrent.futures.Future[int]] = [concurrent.futures.Future() for _ in range(count)]
    # The sources are the SDK's cost: the collector need not walk them again for every call that is added here.
    gc.collect()
    gc.freeze()
    threads, resident, origin = threading.active_count(), _resident_bytes(), time.monotonic()
    bounded = []
    started = time.perf_counter()
    for place, source in enumerate(sources):
        ends = SETTLE_S + (SPREAD_S * place / count if outcome == "spread" else 0.0)
        limit_s = 300.0 if outcome == "complete" else ends - (time.monotonic() - origin)
        future: BoundedFuture[int] = BoundedFuture(Call("sample", limit_s, "benchmark"), None)
        future.follow(source)
        bounded.append(future)
    setup_s = time.perf_counter() - started
    result = {
        "setup_us": setup_s / count * 1e6,
        "bytes": (_resident_bytes() - resident) / count,
        "threads": threading.active_count() - threads,
    }
    if outcome == "complete":
        started = time.perf_counter()
        for source in sources:
            source.set_result(1)
        result["finish_us"] = (time.perf_counter() - started) / count * 1e6
        assert all(future.done() for future in bounded)
        return result
    # The last to run out; asking each of them while they do would be most of what is measured.
    bounded[-1].exception()
    while not all(future.done() for future in bounded):
        time.sleep(0.25)
    late = sorted(error.elapsed_s - error.deadline_s for error in (future.exception() for future in bounded))
    result |= {name: late[int(q * (count - 1))] * 1e3 for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
    return result


def markdown(counts: tuple[int, ...] = (1_000, 10_000, 100_000)) -> tuple[str, list[Bar]]:
    """Runs every case and shows it, with the bars that it must keep."""
    rows = [
        "| calls | outcome | set-up µs a call | finish µs a call | bytes a call | threads | late p50 ms | p99 | max |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    seen: dict[tuple[int, str], dict[str, float]] = {}
    for outcome in ("complete", "spread", "storm"):
        for count in counts:
            figures = seen[count, outcome] = _in_process(count, outcome)
            cells = [
                f"{figures[name]:.3g}" if name in figures else ""
                for name in ("setup_us", "finish_us", "bytes", "threads", "p50", "p99", "max")
            ]
            rows.append(f"| {count} | {outcome} | {' | '.join(cells)} |")
    most, least = seen[counts[-1], "complete"], seen[counts[0], "complete"]
    bars = [
        Bar("bytes a pending call, 100,000 at once", most["bytes"], 1024),
        Bar("threads for 100,000 pending calls (the timer)", most["threads"], 1),
        Bar("late at p99 in ms, 100,000 pending, deadlines over 2 s", seen[counts[-1], "spread"]["p99"], 50),
        Bar(
            "(set-up + finish) a call at 100,000 ÷ at 1,000, over log n's growth",
            (most["setup_us"] + most["finish_us"]) / (least["setup_us"] + least["finish_us"]) / (5 / 3),
            1.0,
        ),
    ]
    return "\n".join(["## Many calls pending at once", "", *rows, "", *(bar.line() for bar in bars), ""]), bars


def _in_process(count: int, outcome: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.pending", str(count), outcome]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(case(int(sys.argv[1]), sys.argv[2])))
