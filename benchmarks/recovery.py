"""Is a run with a fault equal to one without, whatever it is and whenever it comes? On the real SDK, against the lab.

usage: python -m benchmarks.recovery [KIND ...] [--steps 40] [--wedges 24]

For each kind of fault of the lab and each moment of a call, a run of 40 steps, pipelined, saving every 8, is trained by
a recoverable client while that fault comes. Its losses and its last weights have to be those of a run without faults,
to the last bit, and by the lab's own list each step has to be executed once on the client that survives.

With --wedges, one run instead, each of whose sessions goes silent after three steps: what grows with each is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

LIMIT_S = 2
LIMITS_S = {"CONNECT": 8, "REST": 8, "LOAD_STATE": 4}
for _kind in ("FORWARD_BACKWARD", "OPTIM_STEP", "SAVE_STATE", "LOAD_STATE", "CONNECT", "REST"):
    os.environ[f"WMO_TINKER_DEADLINE_{_kind}"] = str(LIMITS_S.get(_kind, LIMIT_S))
os.environ.update(TINKER_TELEMETRY="0", TINKER_DEADLINES_RECORD="off", TINKER_API_KEY="tml-benchmark")

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "recovery"))

KINDS = {
    "never answers": 'do = "never_answers"',
    "accepts and is silent": 'do = "accepts_silent"',
    "headers, then silence": 'do = "headers_then_silence"',
    "a byte every 30 s": 'do = "drip"\ninterval_s = 30',
    "answered 5 s later": 'do = "delay"\ndelay_s = 5',
    "reset before it": 'do = "reset"',
    "answer lost, reset": 'do = "lose_answer"',
    "answer lost, closed": 'do = "lose_answer"\nthen = "close"',
    "answer lost, silence": 'do = "lose_answer"\nthen = "silence"',
    "status 500": 'do = "status"\nstatus = 500',
    "status 429": 'do = "status"\nstatus = 429',
    "status 404": 'do = "status"\nstatus = 404',
    "status 410": 'do = "status"\nstatus = 410',
    "paused for 3 s": 'do = "try_again"\nfor_s = 3',
    "never completes": 'do = "future_never_completes"',
    "the session goes silent": 'do = "silence_session"',
}
"""What goes wrong. Refused heartbeats and lost token exchanges belong to no moment of a training call."""

LOST = 'do = "future_never_completes"\npath = "optim_step"\nnth = 15'
MOMENTS = {
    "queued behind it": 'path = "forward_backward"\nnth = 15',
    "the POST of a step": 'path = "optim_step"\nnth = 15',
    "polling": 'kind = "optim_step"\nphase = "poll"\nnth = 15',
    "a save": 'path = "save_weights"\nnth = 2',
    "recovery's session": 'path = "create_session"\nnth = 2',
    "recovery's restore": 'path = "load_weights"\nnth = 1',
    "recovery's replay": 'session = 2\npath = "forward_backward"\nnth = 2',
}


class Found(NamedTuple):
    """What a run came to."""

    losses: list[str]
    weights: str
    recoveries: int
    once: bool
    seconds: float


def weights_of(state: Path, path: str) -> str:
    """A checkpoint's arrays as a digest."""
    from tinker_deadlines.lab.store import Store

    _, arrays = Store(state).load(path)
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode() + arrays[name].tobytes())
    return found.hexdigest()


def run(rules: str | None, steps: int, *, recover: bool) -> Found:
    """Trains under a fault; without one where there are no rules."""
    from train import begin, train

    import tinker_deadlines
    from tinker_deadlines.lab import Lab
    from tinker_deadlines.lab.faults import Faults

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        os.environ["TINKER_DEADLINES_HOME"] = home
        with Lab(Path(home) / "lab", faults=None if rules is None else Faults.from_toml(rules)) as lab:
            client: Any = begin(lab.url, lab.base_model)
            if recover:
                client = tinker_deadlines.recoverable(client)
            losses = train(client, steps)
            path = client.save_state("last").result().path
            ran = [str(each["type"]) for each in lab.executions() if each["model_id"] == client.model_id]
            weights = weights_of(Path(home) / "lab", path)
        recoveries = client._recovering._ledger.recoveries if recover else 0
        from tinker_deadlines.sdk import recoverable

        recoverable.close()
    trained = [each for each in ran if each in ("ForwardBackward", "OptimStep")]
    once = trained == ["ForwardBackward", "OptimStep"] * (len(trained) // 2)
    return Found(losses, weights, recoveries, once, time.monotonic() - began)


def rules_for(kind: str, moment: str) -> str | None:
    """The faults of a case as a file; `None` where the lab has no such fault at this moment."""
    from tinker_deadlines.lab.faults import Faults

    text = f'[[fault]]\nname = "fault"\n{KINDS[kind]}\n{MOMENTS[moment]}\n'
    if moment.startswith("recovery"):
        text += f'[[fault]]\nname = "first"\n{LOST}\n'
    try:
        Faults.from_toml(text)
    except ValueError:
        return None
    return text


@contextlib.contextmanager
def a_lab(faults: str) -> Iterator[str]:
    """The URL of a lab in a process of its own, so that what it holds is not counted as ours."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(faults)
        file.flush()
        command = [sys.executable, "-m", "tinker_deadlines", "lab", "--faults", file.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as lab:
            try:
                assert lab.stdout is not None
                yield lab.stdout.readline().strip()
            finally:
                lab.terminate()


def held() -> str:
    """What this process holds."""
    files = len(list(Path("/proc/self/fd").iterdir()))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return f"{threading.active_count()} threads, {files} files and sockets, {pages * 4 // 1024} MiB"


def wedged(wedges: int) -> int:
    """One run with many wedges: says what the process holds after each few."""
    import httpx
    from train import begin, train

    import tinker_deadlines

    rules = "".join(
        f'[[fault]]\nname = "{number}"\ndo = "silence_session"\nsession = {number}\npath = "optim_step"\nnth = 3\n'
        for number in range(1, wedges + 1)
    )
    steps, model = 3 * wedges + 8, "tinker-lab/byte-tiny"
    with a_lab("") as url:
        expected = train(begin(url, model), steps)
    tinker_deadlines.install()
    with tempfile.TemporaryDirectory() as home, a_lab(rules) as url:
        os.environ["TINKER_DEADLINES_HOME"] = home
        client: Any = tinker_deadlines.recoverable(begin(url, model), checkpoint_every=1)

        def say(step: int, loss: str) -> None:
            if step % 12 == 0:
                print(f"step {step:3}: {client._recovering._ledger.recoveries} recovered, {held()}", flush=True)

        losses = train(client, steps, say=say)
        sessions = {each["session_id"] for each in httpx.get(f"{url}/lab/executions").json()}
        from tinker_deadlines.sdk import recoverable

        recoverable.close()
    print(f"{wedges} wedges, {len(sessions)} sessions, losses equal: {losses == expected}")
    return losses != expected


def main() -> int:
    """Runs all cases, and says of each whether it is equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--wedges", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import tinker_deadlines
    from tinker_deadlines import limits

    limits.RECOVERY_WAIT_S = 0.2
    if options.wedges:
        return wedged(options.wedges)
    expected = run(None, options.steps, recover=False)
    tinker_deadlines.install()
    unequal, cases = 0, 0
    for kind in options.kinds or KINDS:
        for moment in MOMENTS:
            rules = rules_for(kind, moment)
            if rules is None:
                continue
            cases += 1
            try:
                found = run(rules, options.steps, recover=True)
                equal = found.losses == expected.losses and found.weights == expected.weights and found.once
                said = f"{'equal' if equal else 'NOT EQUAL'}, {found.recoveries} recovered, {found.seconds:.1f} s"
            except Exception as error:
                equal, said = False, f"FAILED: {type(error).__name__}: {str(error)[:200]}"
            unequal += not equal
            print(f"{kind:24} {moment:20} {said}", flush=True)
    print(f"{cases} runs of {options.steps} steps: {cases - unequal} equal to one without faults, {unequal} not")
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main())
