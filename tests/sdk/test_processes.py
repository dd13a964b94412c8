"""What happens in other processes: workers that are spawned, forked, or never import the SDK at all?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sdk_tools import path_with_source

import tinker_deadlines
from tinker_deadlines.lab import Lab

SOURCE = Path(tinker_deadlines.__file__).parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the hook in it, as a wheel puts it into `site-packages`."""
    place = tmp_path_factory.mktemp("site")
    candidates = [SOURCE.parent / "tinker_deadlines_hook.pth", *map(Path, sys.path)]
    hooks = [path if path.suffix == ".pth" else path / "tinker_deadlines_hook.pth" for path in candidates]
    hook = next(path for path in hooks if path.is_file())
    (place / hook.name).write_text(hook.read_text())
    # Python reads `.pth` files of site directories alone: this is what makes one of ours a site directory.
    (place / "sitecustomize.py").write_text(f"import site; site.addsitedir({str(place)!r})\n")
    return place


def run(program: Path | str, site: Path, *, within_s: float = 50, **environment: str) -> dict[str, Any]:
    """Runs a program with the hook in place and returns the JSON of its last line."""
    paths = [str(site), path_with_source().get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))]
    command = [sys.executable, str(program)] if isinstance(program, Path) else [sys.executable, "-c", program]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONWARNINGS": "ignore",
            **environment,
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


WORKERS = """
import json, multiprocessing, os, pickle, sys, time

def work(pickled):
    import tinker
    sampling = pickle.loads(pickled)
    prompt = tinker.ModelInput.from_ints([1, 2, 3])
    answer = sampling.sample(prompt, 1, tinker.SamplingParams(max_tokens=2)).result(20)
    future = sampling.sample(prompt, 1, tinker.SamplingParams(max_tokens=2))
    inner = future.future() if hasattr(future, "future") else future
    return type(answer).__name__, "tinker_deadlines.sdk.install" in sys.modules, type(inner).__name__ == "SDKFuture"

if __name__ == "__main__":
    import tinker
    service = tinker.ServiceClient()
    sampling = service.create_sampling_client(base_model=os.environ["MODEL"])
    sampling = sampling.result() if hasattr(sampling, "result") else sampling
    context = multiprocessing.get_context(sys.argv[1] if len(sys.argv) > 1 else os.environ["METHOD"])
    with context.Pool(1) as pool:
        print(json.dumps(pool.apply_async(work, (pickle.dumps(sampling),)).get(40)))
"""


@pytest.mark.parametrize("installed", ["1", "0"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_are_guarded_by_the_hook(method: str, installed: str, site: Path, lab: Lab, tmp_path: Path) -> None:
    """A pickled sampling client is bounded in a worker exactly if `TINKER_DEADLINES_INSTALL` is 1."""
    program = tmp_path / "workers.py"
    program.write_text(WORKERS)
    guarded = installed == "1"
    assert run(
        program, site, METHOD=method, TINKER_DEADLINES_INSTALL=installed, TINKER_BASE_URL=lab.url, MODEL=lab.base_model
    ) == ["SampleResponse", guarded, guarded]  # type: ignore[comparison-overlap]


FORKED = """
import json, multiprocessing, os, pickle, sys, time, threading
import tinker_deadlines; tinker_deadlines.install()
import tinker
started = os.environ["STARTED"] == "1"
prompt, params = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=2)
if started:
    service = tinker.ServiceClient()
    sampling = service.create_sampling_client(base_model=os.environ["MODEL"])
    sampling = sampling.result() if hasattr(sampling, "result") else sampling
    sampling.sample(prompt, 1, params).result(20)
    pickled = pickle.dumps(sampling)

def new_client():
    made = tinker.ServiceClient().create_sampling_client(base_model=os.environ["MODEL"])
    made = made.result(20) if hasattr(made, "result") else made
    made.sample(prompt, 1, params).result(20)

calls = {"a new client": new_client}
if started:
    calls["a sample"] = lambda: sampling.sample(prompt, 1, params).result(20)
    calls["unpickling"] = lambda: pickle.loads(pickled)

def child(queue):
    for name, call in calls.items():
        at = time.monotonic()
        try:
            call()
            error = None
        except BaseException as raised:
            error = type(raised).__name__
        queue.put([name, error, time.monotonic() - at])

context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, args=(queue,))
process.start()
print(json.dumps([queue.get(timeout=30) for _ in calls]), flush=True)
process.join(5)
if process.is_alive():
    process.kill()
os._exit(0)
"""


def test_a_forked_child_fails_fast(site: Path, lab: Lab) -> None:
    """Where the SDK had started before the fork, calls, new clients and unpickling in the child are refused at once."""
    ended = run(FORKED, site, STARTED="1", TINKER_BASE_URL=lab.url, MODEL=lab.base_model)
    assert [name for name, *_ in ended] == ["a new client", "a sample", "unpickling"]
    for _, error, after_s in ended:
        assert error == "ForkedProcessError"
        assert after_s < 1.0


def test_a_child_that_was_forked_before_the_sdk_started_works(site: Path, lab: Lab) -> None:
    """Where the SDK had not started, a forked child makes clients and calls as usual."""
    ended = run(FORKED, site, STARTED="0", TINKER_BASE_URL=lab.url, MODEL=lab.base_model)
    assert [[name, error] for name, error, _ in ended] == [["a new client", None]]


def test_the_hook_imports_nothing_by_itself(site: Path) -> None:
    """A program that never imports `tinker` does not get it, nor this library's patches, from the hook."""
    program = (
        "import sys, json; print(json.dumps([name for name in sys.modules if name.startswith(('tinker', 'httpx'))]))"
    )
    loaded = run(program, site, TINKER_DEADLINES_INSTALL="1")
    assert "tinker" not in loaded and "httpx" not in loaded
    assert "tinker_deadlines.sdk.install" not in loaded
    assert run(program, site, TINKER_DEADLINES_INSTALL="0") == []  # type: ignore[comparison-overlap]
    assert run(program, site, TINKER_DEADLINES_INSTALL="yes") == []  # type: ignore[comparison-overlap]


def test_the_hook_installs_under_every_way_to_import(site: Path) -> None:
    """`import tinker`, `from tinker import …` and the import of a submodule all install, once the SDK is there."""
    for statement in ("import tinker", "from tinker import SamplingClient", "import tinker.types"):
        program = f"""
{statement}
import sys, json, tinker
from tinker_deadlines.sdk.wrappers import scope
print(json.dumps([scope.everything, hasattr(tinker.SamplingClient.sample, "__wrapped__"), len(sys.meta_path)]))
"""
        everything, wrapped, _ = run(program, site, TINKER_DEADLINES_INSTALL="1")
        assert everything and wrapped


def test_the_hook_leaves_a_failing_import_as_it_is(site: Path, tmp_path: Path) -> None:
    """Where `tinker` is missing or broken, the program sees the very error that it would see without the hook."""
    broken = tmp_path / "tinker"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ValueError('broken on purpose')\n")
    program = """
import json, sys
found = []
for _ in range(2):
    try:
        import tinker
    except Exception as error:
        found.append([type(error).__name__, str(error), error.__context__ is None, error.__cause__ is None])
print(json.dumps(found))
"""
    with_hook, without = (
        run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}", site, TINKER_DEADLINES_INSTALL=value)
        for value in "10"
    )
    assert with_hook == without
    assert with_hook[0][:2] == ["ValueError", "broken on purpose"]  # type: ignore[index]
    missing = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
    with_hook, without = (run(missing + program, site, TINKER_DEADLINES_INSTALL=value) for value in "10")
    assert with_hook == without
    assert with_hook[0][0] == "ModuleNotFoundError"  # type: ignore[index]


def test_an_interpreter_ends_though_calls_hang(site: Path) -> None:
    """A process whose calls are stuck ends at once when its script does."""
    program = """
import json, os, socket, threading
import tinker_deadlines; tinker_deadlines.install()
import tinker
hole = socket.create_server(("127.0.0.1", 0))
service = tinker.ServiceClient(base_url="http://127.0.0.1:%d" % hole.getsockname()[1])
try:
    service.holder
except tinker.APIConnectionError as error:
    print(json.dumps([type(error).__name__, error.kind]), flush=True)
"""
    started_at = time.monotonic()
    assert run(program, site, WMO_TINKER_DEADLINE_CONNECT="0.3") == ["StuckCallError", "connect"]  # type: ignore[comparison-overlap]
    assert time.monotonic() - started_at < 20
