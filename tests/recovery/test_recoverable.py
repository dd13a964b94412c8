"""Training on the real SDK while the service fails: each loss is that of a run without faults, to the last digit."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker
from tinker import types
from train import batch, begin, train

import tinker_deadlines
from tinker_deadlines import FencedClientError, RecoveryFailedError, env_var_for, episode, limits, recoverable
from tinker_deadlines.calls import KINDS
from tinker_deadlines.lab import Lab
from tinker_deadlines.lab.faults import Faults
from tinker_deadlines.lab.proxy import FaultProxy
from tinker_deadlines.policy import FlatPolicy, Limit
from tinker_deadlines.recovery.runs import RECOVER_VARIABLE, RUN_VARIABLE

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
]

STEPS, SAVE_EVERY = 12, 5
LIMITS = {"connect": "6", "load_state": "3", "rest": "6"}
SCRIPT = Path(__file__).with_name("train.py")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Limits of a second or two; whatever is installed is taken back."""
    for kind in KINDS:
        monkeypatch.setenv(env_var_for(kind), LIMITS.get(kind, "1.5"))
    monkeypatch.setenv("TINKER_DEADLINES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TINKER_DEADLINES_RECORD", "off")
    monkeypatch.setattr(limits, "RECOVERY_WAIT_S", 0.05)
    yield
    close_run()
    tinker_deadlines.uninstall()


@pytest.fixture(scope="module")
def expected(tinker_lab: Lab) -> list[str]:
    """The losses of a run without faults, and without us."""
    return train(begin(tinker_lab.url, tinker_lab.base_model), STEPS, SAVE_EVERY)


def behind(lab: Lab, rules: str) -> FaultProxy:
    return FaultProxy(lab.url, Faults.from_toml(rules))


def fault(do: str, where: str, name: str = "fault") -> str:
    return f'[[fault]]\nname = "{name}"\ndo = "{do}"\n{where}\n'


def executed(lab: Lab, session: str) -> list[str]:
    """What the lab executed of a session's training, in order."""
    return [str(each["type"]) for each in lab.executions() if each["session_id"] == session]


# Each is a fault of its own at another moment of a call: before it arrives, after it is executed, and while it is
# asked for; of a batch, a step, and a save; once, and for the rest of the session.
CASES = {
    "a batch that never arrives": fault("never_answers", 'path = "forward_backward"\nnth = 7'),
    "a step whose answer never comes": fault("future_never_completes", 'path = "optim_step"\nnth = 7'),
    "a batch that is executed, and its answer lost": fault(
        "lose_answer", 'path = "forward_backward"\nnth = 7\nthen = "silence"'
    ),
    "a session that goes silent": fault("silence_session", 'path = "optim_step"\nnth = 8'),
    "a save that never answers": fault("future_never_completes", 'path = "save_weights"\nnth = 2'),
    "a promise that the service forgot": fault("status", 'kind = "optim_step"\nphase = "poll"\nnth = 7\nstatus = 410'),
    "a restore that hangs as well": fault("future_never_completes", 'path = "optim_step"\nnth = 7')
    + fault("future_never_completes", 'path = "load_weights"\nnth = 1', "restore"),
    "a second session that goes silent while it is brought up": fault("silence_session", 'path = "optim_step"\nnth = 8')
    + fault("silence_session", 'session = 2\npath = "forward_backward"\nnth = 2', "second"),
}


@pytest.mark.parametrize("rules", CASES.values(), ids=CASES)
def test_losses_are_those_of_a_run_without_faults(tinker_lab: Lab, expected: list[str], rules: str) -> None:
    """Whatever is lost at whatever moment: the caller sees calls that take longer, and the same numbers."""
    with behind(tinker_lab, rules) as proxy:
        client = recoverable(begin(proxy.url, tinker_lab.base_model), checkpoint_every=3)
        assert train(client, STEPS, SAVE_EVERY) == expected
        assert any(each.rule for each in proxy.log)
        last = client.model_id
    # The server's own word: what survives was restored once, and each step after that was executed once, in order.
    ran = [str(each["type"]) for each in tinker_lab.executions() if each["model_id"] == last]
    trained = [each for each in ran if each in ("ForwardBackward", "OptimStep")]
    assert trained == ["ForwardBackward", "OptimStep"] * (len(trained) // 2)


def test_without_a_fault_nothing_is_done_twice(tinker_lab: Lab, expected: list[str]) -> None:
    """A run that nothing happens to has one session, and each call once."""
    client = recoverable(begin(tinker_lab.url, tinker_lab.base_model))
    assert train(client, STEPS, SAVE_EVERY) == expected
    ran = [str(each["type"]) for each in tinker_lab.executions() if each["model_id"] == client.model_id]
    assert ran.count("OptimStep") == ran.count("ForwardBackward") == STEPS
    assert ran.count("LoadWeights") == 0


def test_a_recoverable_client_is_a_training_client(tinker_lab: Lab) -> None:
    """It has the SDK's class, attributes and futures, in async code too, and a sampling client of its weights."""
    client = recoverable(begin(tinker_lab.url, tinker_lab.base_model))
    assert isinstance(client, tinker.TrainingClient)
    assert recoverable(client) is client
    assert client.model_id and client.get_info().model_id == client.model_id
    future = client.forward_backward(batch(1), "cross_entropy")
    assert isinstance(future, tinker.APIFuture)
    assert not future.future().cancel()

    async def step() -> Any:
        await client.optim_step(types.AdamParams(learning_rate=0.01))
        return await client.forward(batch(1), "cross_entropy")

    assert asyncio.run(step()).metrics["loss:sum"] < future.result().metrics["loss:sum"]
    made = client.save_weights_and_get_sampling_client()
    sampler = made.result() if hasattr(made, "result") else made
    assert isinstance(sampler, tinker.SamplingClient)
    prompt = types.ModelInput.from_ints([1, 2, 3])
    assert sampler.sample(prompt, 1, types.SamplingParams(max_tokens=1, seed=1)).result().sequences
    with pytest.raises(ValueError, match="No data"):
        client.forward_backward([], "cross_entropy")
    with pytest.raises(TypeError, match="takes a training client"):
        recoverable(sampler)


def test_a_call_that_its_callers_budget_cut_is_not_part_of_what_is_trained(
    tinker_lab: Lab, expected: list[str]
) -> None:
    """The step after it is trained as if it had not been made, although the service had executed it."""
    with behind(tinker_lab, fault("future_never_completes", 'path = "forward_backward"\nnth = 2')) as proxy:
        client = recoverable(begin(proxy.url, tinker_lab.base_model))
        first = client.forward_backward(batch(1), "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=0.01)).result()
        with episode(0.4, name="turn"), pytest.raises(tinker_deadlines.BudgetExhaustedError):
            client.forward_backward(batch(9), "cross_entropy").result()
        second = client.forward_backward(batch(2), "cross_entropy").result()
    assert [repr(first.result().metrics["loss:sum"]), repr(second.metrics["loss:sum"])] == expected[:2]


def test_an_outage_that_does_not_end_leaves_what_is_needed_to_go_on(
    tinker_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the checkpoint, its step, and the command; further calls raise it at once."""
    monkeypatch.setattr(limits, "RECOVERY_ATTEMPTS", 2)
    monkeypatch.setenv(env_var_for("connect"), "1")
    monkeypatch.setenv(env_var_for("load_state"), "1")
    rules = fault("silence_session", 'path = "optim_step"\nnth = 4') + fault(
        "status", 'path = "create_session"\nnth = "2.."\nstatus = 500', "down"
    )
    with behind(tinker_lab, rules) as proxy:
        client = recoverable(begin(proxy.url, tinker_lab.base_model), checkpoint_every=2, run="outage")
        with pytest.raises(RecoveryFailedError) as failed:
            train(client, STEPS)
        began = time.monotonic()
        with pytest.raises(RecoveryFailedError):
            client.optim_step(types.AdamParams(learning_rate=0.01))
        assert time.monotonic() - began < 0.2
    error = failed.value
    assert (error.step, error.attempts) == (2, 2)
    assert error.path.startswith("tinker://")
    assert "tinker-deadlines run --resume outage" in str(error)
    assert tinker_deadlines.last_confirmed("outage") == [(1, 2, error.path)]


# Without recovery -----------------------------------------------------------------------------------------------------


def test_a_client_whose_step_is_unknown_is_fenced_until_its_late_result_comes(tinker_lab: Lab) -> None:
    """The next call is refused within milliseconds, with the first cause; the late result lifts the fence."""
    rules = fault("try_again", 'kind = "optim_step"\nfor_s = 2.5\nqueue_state = "active"\ninterval_s = 0.2\ntimes = 1')
    with behind(tinker_lab, rules) as proxy:
        tinker_deadlines.install()
        client = begin(proxy.url, tinker_lab.base_model)
        client.forward_backward(batch(1), "cross_entropy").result()
        with pytest.raises(tinker_deadlines.StuckCallError) as unknown:
            client.optim_step(types.AdamParams(learning_rate=0.01)).result()
        began = time.monotonic()
        with pytest.raises(FencedClientError, match="may or may not have been executed") as fenced:
            client.forward_backward(batch(2), "cross_entropy")
        assert time.monotonic() - began < 0.01
        assert fenced.value.cause is unknown.value
        unknown.value.late.result(5)
        assert client.forward_backward(batch(2), "cross_entropy").result().metrics


# After the process ----------------------------------------------------------------------------------------------------


Done = subprocess.CompletedProcess[str]


def ran(lab_url: str, model: str, *options: str, kill_at: int = 0, steps: int = STEPS) -> Done:
    command = [sys.executable, "-m", "tinker_deadlines", "run", "--no-live", *options, str(SCRIPT), lab_url, model]
    return subprocess.run(
        [*command, str(steps), str(kill_at)],
        env={**os.environ, "TINKER_TELEMETRY": "0", "PYTHONWARNINGS": "ignore"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def losses_of(done: Done) -> list[str]:
    return re.findall(r"^loss \d+ (\S+)$", done.stdout, re.MULTILINE)


def test_a_killed_run_is_gone_on_with(tinker_lab: Lab, expected_of_script: list[str]) -> None:
    """The script starts again; what the checkpoint has is not sent, and every loss is that of a run without faults."""
    killed = ran(tinker_lab.url, tinker_lab.base_model, "--recover", kill_at=10)
    assert killed.returncode == -signal.SIGKILL
    found = re.search(r"the run is kept as (\S+); after a crash, go on with: (.+)", killed.stderr)
    assert found is not None, killed.stderr
    assert losses_of(killed) == expected_of_script[:10]
    before = len(tinker_lab.executions())
    again = ran(tinker_lab.url, tinker_lab.base_model, "--resume", found[1])
    assert again.returncode == 0, again.stderr
    assert losses_of(again) == expected_of_script
    sent = [str(each["type"]) for each in tinker_lab.executions()[before:]]
    assert sent.count("OptimStep") == STEPS - 8  # the last save of its own was after step 8
    assert f"tinker-deadlines run --resume {found[1]} " in found[0]


@pytest.fixture(scope="module")
def expected_of_script(tinker_lab: Lab) -> list[str]:
    """The losses of the script, saving every 8 steps."""
    return train(begin(tinker_lab.url, tinker_lab.base_model), STEPS, 8)


def test_a_script_that_does_something_else_is_stopped_at_the_first_step_that_differs(
    tinker_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is sent, with the step's number."""
    monkeypatch.setenv(RECOVER_VARIABLE, "1")
    monkeypatch.setenv(RUN_VARIABLE, "changed")
    tinker_deadlines.install()
    train(begin(tinker_lab.url, tinker_lab.base_model), 5, 4)
    close_run()
    client = begin(tinker_lab.url, tinker_lab.base_model)
    for step in (1, 2):
        client.forward_backward(batch(step), "cross_entropy").result()
        client.optim_step(types.AdamParams(learning_rate=0.01)).result()
    with pytest.raises(
        tinker_deadlines.DivergedError, match=r"step 3 .*forward_backward with other arguments"
    ) as error:
        client.forward_backward(batch(99), "cross_entropy")
    assert (error.value.step, error.value.call) == (3, 5)


def close_run() -> None:
    """As if the process had ended."""
    from tinker_deadlines.sdk import recoverable as module

    module.close()


def test_clients_of_two_runs_have_a_ledger_each(tinker_lab: Lab) -> None:
    """However they are made in turn, no two clients of a process write one ledger."""
    from tinker_deadlines.recovery.runs import ledgers_of

    clients = [recoverable(begin(tinker_lab.url, tinker_lab.base_model), run=name) for name in ("one", "two", "one")]
    runs = Path(os.environ["TINKER_DEADLINES_HOME"]) / "runs"
    assert [len(ledgers_of(runs / name)) for name in ("one", "two")] == [2, 1]
    assert len({client.model_id for client in clients}) == 3


def test_a_mistake_of_ours_ends_the_calls_that_wait(tinker_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """When an answer cannot be taken in, its caller and those behind it get an error instead of waiting for ever."""
    client = recoverable(begin(tinker_lab.url, tinker_lab.base_model))
    monkeypatch.setattr(client._recovering, "_confirm", lambda call, result: 1 / 0)
    waiting = [client.forward_backward(batch(1), "cross_entropy"), client.optim_step(types.AdamParams())]
    for future in waiting:
        with pytest.raises(RecoveryFailedError, match="division by zero"):
            future.result(5)


def test_a_run_in_use_is_refused(tinker_lab: Lab) -> None:
    """The command says which process has it, and ends with 2."""
    from tinker_deadlines.recovery.runs import Run

    run = Run("busy")
    done = ran(tinker_lab.url, tinker_lab.base_model, "--resume", "busy", steps=1)
    run.close()
    assert "in use by process" in done.stderr
    unknown = ran(tinker_lab.url, tinker_lab.base_model, "--resume", "no-such-run")
    assert unknown.returncode == 2
    assert "there is no run 'no-such-run' to go on with" in unknown.stderr


def test_what_recovery_does_is_said(tinker_lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """Once when a client is given up, with the cause, and once when training goes on, with what it cost."""
    with behind(tinker_lab, CASES["a step whose answer never comes"]) as proxy, caplog.at_level(logging.WARNING):
        train(recoverable(begin(proxy.url, tinker_lab.base_model)), STEPS)
    said = [record.getMessage() for record in caplog.records if record.name == "tinker_deadlines"]
    assert len([each for each in said if each.startswith("a training client is given up: StuckCallError")]) == 1
    assert any(re.match(r"training goes on: noticed after \d\.\d s, step \d+ restored in", each) for each in said)


@pytest.mark.parametrize("method", ["save_state", "save_weights_for_sampler"])
def test_a_save_that_landed_is_used(tinker_lab: Lab, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Its answer is lost, and what comes after it is told that the name exists: the SDK would repeat it for 300 s."""
    monkeypatch.delenv(env_var_for("save_state"))
    monkeypatch.delenv(env_var_for("save_weights_for_sampler"))
    path = "save_weights_for_sampler" if "sampler" in method else "save_weights"
    rules = fault("lose_answer", f'path = "{path}"\nnth = 1') + fault(
        "status", f'path = "{path}"\nnth = "2.."\nstatus = 409', "taken"
    )
    with behind(tinker_lab, rules) as proxy:
        tinker_deadlines.install()
        client = begin(proxy.url, tinker_lab.base_model)
        began = time.monotonic()
        saved = getattr(client, method)("mine").result()
        assert time.monotonic() - began < 5
        assert saved.path.endswith("/mine")
        assert len([each for each in proxy.log if each.rule == "taken"]) <= 3


class Second:
    """A policy whose limits are a second, not set by a person."""

    name = "second"

    def limit(self, kind: object, work: object, model: object) -> Limit:
        return Limit(1.0 if kind == "save_state" else 6.0, "the policy 'second'", "learned", 0.1)

    def learn(self, sample: object) -> None:
        """Learns nothing."""


@pytest.mark.parametrize("theirs", [False, True], ids=["a limit of ours", "a person's limit"])
def test_a_save_whose_answer_never_comes_is_looked_for_at_its_limit(
    tinker_lab: Lab, monkeypatch: pytest.MonkeyPatch, theirs: bool
) -> None:
    """It is used when it landed; a limit that a person set is obeyed exactly all the same."""
    if not theirs:
        monkeypatch.delenv(env_var_for("save_state"))
    with behind(tinker_lab, fault("future_never_completes", 'path = "save_weights"')) as proxy:
        tinker_deadlines.install()
        tinker_deadlines.use_policy(Second())  # type: ignore[arg-type]
        try:
            client = begin(proxy.url, tinker_lab.base_model)
            save = client.save_state("looked-for")
            if theirs:
                with pytest.raises(tinker_deadlines.StuckCallError):
                    save.result()
            else:
                assert save.result(8).path.endswith("/looked-for")
        finally:
            tinker_deadlines.use_policy(FlatPolicy())
