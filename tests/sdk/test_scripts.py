"""Do programs that were never changed for us run as before, with every call of theirs bounded?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sdk_tools import path_with_source

from tinker_deadlines.lab import Lab

WHOLE_FLOW = Path(__file__).parents[1] / "lab" / "whole_flow.py"
INSTALLED = "import tinker_deadlines as t, runpy, sys; t.install(); sys.argv = sys.argv[1:]; "
INSTALLED += "runpy.run_path(sys.argv[0], run_name='__main__')"

TRAINING = """
import asyncio, os
import tinker
from tinker import types

async def main():
    service = tinker.ServiceClient()
    training = await service.create_lora_training_client_async(base_model=os.environ["MODEL"], rank=4)
    tokens = training.get_tokenizer().encode("slow is not dead")
    inputs = {
        "target_tokens": types.TensorData(data=tokens[1:], dtype="int64"),
        "weights": types.TensorData(data=[1.0] * (len(tokens) - 1), dtype="float32"),
    }
    datum = types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
    ahead = []
    for _ in range(4):
        computed = await training.forward_backward_async([datum], "cross_entropy")
        ahead.append((computed, await training.optim_step_async(types.AdamParams(learning_rate=1e-2))))
    losses = []
    for computed, applied in ahead:
        losses.append((await computed.result_async()).metrics["loss:sum"])
        await applied.result_async()
    sampling = await training.save_weights_and_get_sampling_client_async()
    prompt, params = types.ModelInput.from_ints(tokens), types.SamplingParams(max_tokens=5)
    answers = await asyncio.gather(*[
        sampling.sample_async(prompt=prompt, num_samples=2, sampling_params=params) for _ in range(16)
    ])
    print(losses[-1] < losses[0], len(answers), len(await sampling.compute_logprobs_async(prompt)) == len(tokens))

asyncio.run(main())
"""


def run(program: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a script from its file with us installed."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", INSTALLED, str(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env={**os.environ, **path_with_source(), **environment},
    )


@pytest.mark.timeout(120)
def test_a_script_that_trains_and_samples(lab: Lab, tmp_path: Path) -> None:
    """An async training script that submits ahead and samples in parallel ends as it does without us."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    done = run(script, TINKER_BASE_URL=lab.url, MODEL=lab.base_model)
    assert (done.returncode, done.stdout) == (0, "True 16 True\n"), done.stderr


@pytest.mark.timeout(120)
def test_a_script_that_uses_every_method(lab: Lab) -> None:
    """The script that walks through the whole public surface of this SDK version works with every call bounded."""
    done = run(WHOLE_FLOW, lab.url, BASE_MODEL=lab.base_model)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all of it works\n")


@pytest.mark.parametrize("first", ["install()", "uninstall()", "StuckCallError", "guard", "recoverable"])
def test_a_script_may_name_us_before_the_sdk(first: str, tmp_path: Path) -> None:
    """Under `run`, what it touches of ours first imports `tinker`, and with it installs us, in good order."""
    script = tmp_path / "first.py"
    script.write_text(f"import tinker_deadlines\ntinker_deadlines.{first}\nimport tinker\nprint('ran')\n")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tinker_deadlines", "run", "--quiet", str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **path_with_source(), "TINKER_DEADLINES_RECORD": "off"},
    )
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
