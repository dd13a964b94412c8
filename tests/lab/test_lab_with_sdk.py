"""The lab under the real SDK, as an object, as a command, and as a fixture."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tinker_deadlines.lab import Lab

WHOLE_FLOW = Path(__file__).with_name("whole_flow.py")
COMMAND = "import sys; from tinker_deadlines.lab import serve; sys.exit(serve(**eval(sys.argv[1])))"
pytest_plugins = ["pytester"]


def walk_through(lab: Lab, **variables: str) -> None:
    """Runs the whole flow in a process of its own: the SDK keeps threads and connections for its whole life."""
    environment = os.environ | {"TINKER_API_KEY": "tml-lab", "TINKER_TELEMETRY": "0"} | variables
    done = subprocess.run(
        [sys.executable, str(WHOLE_FLOW), lab.url],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0 and done.stdout.endswith("all of it works\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"retrieve_futures": True, "compress": True, "join_sampling_sessions": True, "inline_limit_bytes": 200},
        {"jwt_auth": False, "poll_s": 0.01, "latency": "0.001"},
    ],
    ids=["plain", "every-option", "slow-and-keyed"],
)
def test_the_whole_surface_of_the_sdk_works(settings: dict[str, object]) -> None:
    """Every public method that has a sensible call does what it says, in each way the server can be set up."""
    with Lab(**settings) as lab:  # type: ignore[arg-type]
        walk_through(lab, PLAIN_KEYS="" if settings.get("jwt_auth", True) else "1")


def test_steps_are_executed_once_each() -> None:
    """What the SDK submitted is what the lab executed: no number of a model appears twice."""
    with Lab() as lab:
        walk_through(lab)
        executed = [(entry["model_id"], entry["seq_id"]) for entry in lab.executions()]
        assert len(executed) == len(set(executed)) and not any(entry["failed"] for entry in lab.executions())


def test_a_lab_is_gone_when_it_is_stopped() -> None:
    """After stop nothing listens, the temporary state is removed, and stopping again does nothing."""
    lab = Lab().start()
    url, state = lab.url, Path(lab.base_model).parents[2]
    assert httpx.get(f"{url}/healthz").json() == {"status": "ok"} and state.is_dir()
    lab.stop()
    lab.stop()
    assert not state.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")
    with pytest.raises(RuntimeError, match="not running"):
        _ = lab.url


def test_a_lab_with_faults_answers_through_the_proxy(tmp_path: Path) -> None:
    """With rules given, the URL is the proxy's, and the rules are obeyed."""
    rules = '[[fault]]\nname = "busy"\npath = "/api/v1/get_server_capabilities"\ndo = "status"\nstatus = 503\n'
    (tmp_path / "rules.toml").write_text(rules)
    for source in (rules, tmp_path / "rules.toml"):
        with Lab(faults=source) as lab:
            assert httpx.get(f"{lab.url}/api/v1/get_server_capabilities").status_code == 503
            assert httpx.get(f"{lab.url}/healthz").status_code == 200


@pytest.fixture
def command() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", COMMAND, "{}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_url_and_ends_cleanly(command: subprocess.Popen[str], sent: signal.Signals) -> None:
    """The first line is the URL of a server that accepts; Ctrl-C and SIGTERM end it with 0."""
    assert command.stdout is not None
    url = command.stdout.readline().strip()
    assert httpx.get(f"{url}/healthz").status_code == 200
    command.send_signal(sent)
    assert command.wait(10) == 0


def test_a_port_in_use_is_one_sentence_and_exit_code_2() -> None:
    """Nothing but the reason is printed when the address cannot be had."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_command(f"{{'port': {port}}}")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"The lab cannot listen on 127.0.0.1 port {port}: Address already in use.\n"


@pytest.mark.parametrize(
    "settings",
    [
        {"latency": "fast"},
        {"port": 70000},
        {"state": "/proc/nowhere"},
        {"faults": "/nowhere.toml"},
        {"upstream": "nowhere"},
        {"host": "no such host"},
    ],
)
def test_rubbish_settings_are_one_sentence_and_exit_code_2(settings: dict[str, object]) -> None:
    """Bad input ends the command with one plain line."""
    done = run_command(repr(settings))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1


def run_command(settings: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-c", COMMAND, settings]
    return subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=20)


def test_killed_servers_leave_their_checkpoints(tmp_path: Path) -> None:
    """A server killed outright can be started again on its state, and has what was saved."""
    settings = repr({"state": str(tmp_path)})
    saved = ""
    for round_ in range(2):
        process = subprocess.Popen([sys.executable, "-c", COMMAND, settings], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with httpx.Client(base_url=process.stdout.readline().strip()) as http:
            if round_ == 0:
                saved = save_something(http)
            paths = [c["tinker_path"] for c in http.get("/api/v1/checkpoints").json()["checkpoints"]]
        process.kill()
        process.wait()
        process.stdout.close()
        assert paths == [saved]


def save_something(http: httpx.Client) -> str:
    def post(call: str, /, **body: object) -> dict[str, str]:
        content: dict[str, str] = http.post(f"/api/v1/{call}", json=body).json()
        return content

    session = post("create_session", tags=[])["session_id"]
    model = "tinker-lab/byte-tiny"
    post("create_model", session_id=session, model_seq_id=0, base_model=model, lora_config={"rank": 4})
    promise = post("save_weights", model_id=f"{session}:train:0", seq_id=1, path="kept")
    return post("retrieve_future", request_id=promise["request_id"])["path"]


def test_the_fixtures_are_there_for_other_projects(pytester: pytest.Pytester) -> None:
    """A project that has the package installed gets a lab by naming a fixture, and imports nothing heavy before."""
    pytester.makepyfile(
        """
        import sys
        import urllib.request

        def test_light():
            assert "numpy" not in sys.modules and "tinker" not in sys.modules and "starlette" not in sys.modules

        def test_shared(tinker_lab):
            assert urllib.request.urlopen(tinker_lab.url + "/healthz").status == 200

        def test_own(make_tinker_lab, tinker_lab):
            own = make_tinker_lab(session_cap=1)
            assert own.url != tinker_lab.url
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=3)
