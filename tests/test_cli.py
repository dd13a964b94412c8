"""Does the command line say in one sentence what is wrong, and show how it is used?"""

from __future__ import annotations

import signal
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import tinker_deadlines
from running import RUN, WITHIN_S, run, start, write

# The command in a Python that does not have some package.
WITHOUT = "import sys; sys.modules[{!r}] = None; from tinker_deadlines.cli import main; sys.exit(main([{!r}]))"

COMMAND = (sys.executable, "-m", "tinker_deadlines")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--limit", "sample=abc", "s.py"], "--limit sample is 'abc', which is not a positive finite number"),
        (["run", "--limit", "sample=-1", "s.py"], "--limit sample is '-1'"),
        (["run", "--limit", "sample=nan", "s.py"], "--limit sample is 'nan'"),
        (["run", "--limit", "sample=", "s.py"], "--limit sample is ''"),
        (["run", "--limit", "sample", "s.py"], "must be KIND=SECONDS, such as sample=300"),
        (["run", "--limit", "smaple=3", "s.py"], "did you mean 'sample'? the kinds are sample, compute_logprobs,"),
        (["run", "--limit", "foo=3", "s.py"], "'foo' is not a kind of Tinker call, the kinds are sample,"),
        (["run", "--wall", "-1", "s.py"], "--wall is '-1', which is not a positive finite number of seconds"),
        (["run", "--wall", "inf", "s.py"], "--wall is 'inf'"),
        (["run", "--exit-grace", "soon", "s.py"], "--exit-grace is 'soon'"),
        (["run", "--exit-grace", "-2", "s.py"], "--exit-grace is '-2'"),
        (["run", "missing.py"], "the script 'missing.py' cannot be opened: No such file or directory"),
        (["run", "nul\\0.py"], "cannot be opened"),
        (["run"], "say which script to run"),
        (["run", "-m"], "say which script to run, or with -m which module"),
        (["run", "--limt", "sample=3", "s.py"], "no such option: --limt"),
        (["rum", "s.py"], "no such command 'rum'"),
        (["lab", "--port", "abc"], "invalid value for '--port'"),
        (["lab", "--port", "70000"], "invalid value for '--port'"),
        (["lab", "--latency", "slow"], "Bad latency 'slow'"),
        (["lab", "--faults", "missing.toml"], "missing.toml: cannot read the fault file"),
        (["demo", "now"], "unexpected extra argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    """No traceback, no box: one line on standard error, nothing on standard output, and nothing was run."""
    write(tmp_path, "s.py", "print('it ran')\n")
    done = run(*COMMAND, *arguments, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("", 2)
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_rubbish_in_the_environment_is_said_before_the_script_starts(tmp_path: Path) -> None:
    """A variable that holds no number of seconds is named at once, not at the first call hours later."""
    write(tmp_path, "s.py", "print('it ran')\n")
    code = (
        "import os, sys; os.environ['WMO_TINKER_DEADLINE_SAMPLE'] = 'x'; "
        "from tinker_deadlines.cli import main; sys.exit(main(['run', 's.py']))"
    )
    done = run(sys.executable, "-c", code, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("", 2)
    assert "the environment variable WMO_TINKER_DEADLINE_SAMPLE is 'x'" in done.stderr


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named(missing: str, tmp_path: Path) -> None:
    """Without the packages of the command line, one sentence says how to get them."""
    done = run(sys.executable, "-c", WITHOUT.format(missing, "demo"), cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert 'pip install "tinker-deadlines[cli]"' in done.stderr


@pytest.mark.parametrize("command", ["lab", "demo"])
def test_a_missing_lab_is_named(command: str, tmp_path: Path) -> None:
    """Without the packages of the lab, one sentence says how to get them."""
    done = run(sys.executable, "-c", WITHOUT.format("uvicorn", command), cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert 'pip install "tinker-deadlines[lab]"' in done.stderr


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    """`--version` prints name and version."""
    done = run(*COMMAND, "--version", cwd=tmp_path)
    assert (done.stdout, done.returncode) == (f"tinker-deadlines {tinker_deadlines.__version__}\n", 0)


@pytest.mark.parametrize("command", [[], ["run"], ["lab"], ["demo"]], ids=" ".join)
def test_every_help_has_an_example(command: list[str], tmp_path: Path) -> None:
    """`--help` says what a command does and shows how it is called."""
    done = run(*COMMAND, *command, "--help", cwd=tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    assert f"{' '.join(['tinker-deadlines', *command])}" in done.stdout
    assert "Example" in done.stdout


def test_the_help_of_run_states_the_grace(tmp_path: Path) -> None:
    """A person learns from `--help` how long a process may go on after its main code."""
    assert "default: 30" in run(*COMMAND, "run", "--help", cwd=tmp_path).stdout


def test_everything_after_the_script_is_the_script_s(tmp_path: Path) -> None:
    """Options that we have as well are not ours once the script is named."""
    write(tmp_path, "s.py", "import sys; print(sys.argv[1:])\n")
    done = run(*RUN, "--quiet", "--limit", "sample=3", "s.py", "--help", "--limit", "x", "--", "-m", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("['--help', '--limit', 'x', '--', '-m']\n", "")


def test_the_wall_cuts_and_is_named(tmp_path: Path) -> None:
    """`--wall` bounds all calls together; what it cuts is an exhausted budget, by that name."""
    write(
        tmp_path,
        "s.py",
        """
        from concurrent.futures import Future
        from tinker_deadlines import BudgetExhaustedError, wait_with_deadline
        try:
            wait_with_deadline("sample", Future())
        except BudgetExhaustedError as error:
            print(error.owner, error.budget_s)
        """,
    )
    done = run(*RUN, "--wall", "0.3", "s.py", cwd=tmp_path)
    assert done.stdout == "--wall 0.3\n"
    assert "was cut after 0." in done.stderr
    assert "by the budget '--wall' of 0.3 s" in done.stderr


def test_the_lab_says_its_url_first_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    """`lab` prints where it listens, answers there, and leaves with status 0."""
    process = start(*COMMAND, "lab", "--state", "state", cwd=tmp_path)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    with urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=10) as answer:
        assert answer.status == 200
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, stderr = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, stderr) == (0, "")
    assert time.monotonic() - began < 10
    assert (tmp_path / "state").is_dir()
