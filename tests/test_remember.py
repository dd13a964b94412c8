"""Does the second run begin where the first stopped? The real SDK, in processes of their own, and a real record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tinker_deadlines.lab import Lab

RUN = """
import json, os, sys, time
import tinker, tinker_deadlines
from tinker_deadlines import Work, explain
from tinker_deadlines.sdk import learning

tinker_deadlines.install()
service = tinker.ServiceClient(base_url=os.environ["LAB"], api_key="tml-test")
sampler = service.create_sampling_client(base_model=os.environ["MODEL"]).result()
until = time.monotonic() + 10
while not learning.law.state() or time.monotonic() < until - 9.5:
    time.sleep(0.05)
work = Work(prompt_tokens=3, max_tokens=4, num_samples=1)
before = explain("sample", work, "byte-tiny").limit
prompt = tinker.ModelInput.from_ints([1, 2, 3])
for _ in range(int(sys.argv[1])):
    sampler.sample(prompt, 1, tinker.SamplingParams(max_tokens=4, seed=1)).result()
learning.settle()
after = explain("sample", work, "byte-tiny").limit
print(json.dumps([before.completed, after.completed]))
if "uninstall" in sys.argv:
    tinker_deadlines.uninstall()
"""


def run(lab: Lab, home: Path, *args: str, url: str = "", **environment: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *args],
        env={
            **os.environ, "LAB": url or lab.url, "MODEL": str(lab.base_model), "TINKER_DEADLINES_HOME": str(home),
            **environment,
        },
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    numbers: list[int] = json.loads(done.stdout.splitlines()[-1])
    return numbers


@pytest.mark.parametrize("end", ["uninstall", "exit"])
def test_the_second_run_begins_where_the_first_stopped(tinker_lab: Lab, tmp_path: Path, end: str) -> None:
    """What the first learned is there, whether it ended with `uninstall()` or with its process; calls add up."""
    assert run(tinker_lab, tmp_path, "10", end) == [0, 9]  # the first call on new weights teaches nothing
    assert run(tinker_lab, tmp_path, "5", end) == [9, 13]


def test_what_was_learned_of_one_service_says_nothing_on_another(tinker_lab: Lab, tmp_path: Path) -> None:
    """A lab on loopback under another name is another service."""
    assert run(tinker_lab, tmp_path, "10") == [0, 9]
    elsewhere = tinker_lab.url.replace("127.0.0.1", "localhost")
    assert run(tinker_lab, tmp_path, "5", url=elsewhere) == [0, 4]


def test_two_at_once_add_up(tinker_lab: Lab, tmp_path: Path) -> None:
    """Neither overwrites the other."""
    both = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, "6"],
            env={
                **os.environ, "LAB": tinker_lab.url, "MODEL": str(tinker_lab.base_model),
                "TINKER_DEADLINES_HOME": str(tmp_path),
            },
            stdout=subprocess.DEVNULL,
        )
        for _ in range(2)
    ]  # fmt: skip
    assert [each.wait(60) for each in both] == [0, 0]
    assert run(tinker_lab, tmp_path, "1")[0] == 10


def test_nothing_is_kept_when_the_record_is_off(tinker_lab: Lab, tmp_path: Path) -> None:
    """No file appears, and every run starts anew."""
    assert run(tinker_lab, tmp_path, "4", TINKER_DEADLINES_RECORD="off") == [0, 3]
    assert list(tmp_path.iterdir()) == []


def test_no_path_of_a_machine_is_kept(tinker_lab: Lab, tmp_path: Path) -> None:
    """A model that is named by its directory is known by the directory's own name; no key and no token either."""
    run(tinker_lab, tmp_path, "3")
    kept: Any = (tmp_path / "record.sqlite").read_bytes()
    assert b"byte-tiny" in kept
    for secret in (str(tinker_lab.base_model).rpartition("/")[0], "tml-test", str(tmp_path)):
        assert secret.encode() not in kept
