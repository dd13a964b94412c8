"""`tinker-deadlines replay` and `explain` as a person uses them, in processes of their own."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tinker_deadlines import record
from tinker_deadlines.calls import Call, Work, board

CALLS = [
    {"t": float(t), "kind": "sample", "model": "m", "work": {"prompt_tokens": 100, "max_tokens": 100},
     "latency_s": None if t == 40 else 2.0, "session": "s", "in_flight": 1}
    for t in range(60)
]  # fmt: skip
LINES = "\n".join(map(json.dumps, CALLS))


def said(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tinker_deadlines", *args],
        input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_file_and_standard_input_and_gzip_are_the_same(tmp_path: Path) -> None:
    """One dead call of sixty is noticed by each policy, at its limit."""
    (tmp_path / "run.jsonl").write_text(LINES)
    with gzip.open(tmp_path / "run.jsonl.gz", "wt") as file:
        file.write(LINES)
    told = [
        said("replay", "--json", "--policy", "flat,fixed:20,learned", *args, stdin=LINES)
        for args in ((str(tmp_path / "run.jsonl"),), (str(tmp_path / "run.jsonl.gz"),), ("-",))
    ]
    documents = [json.loads(each.stdout)[0]["policies"] for each in told]
    assert documents[0] == documents[1] == documents[2]
    assert [each["policy"] for each in documents[0]] == ["flat", "fixed:20", "learned"]
    assert {each["dead"] for each in documents[0]} == {1} and {each["false_kills"] for each in documents[0]} == {0}
    assert documents[0][0]["noticed_median_s"] == 300 and documents[0][1]["noticed_median_s"] == 20


def test_a_recorded_run_is_replayed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the beginning of its id."""
    monkeypatch.setenv("TINKER_DEADLINES_HOME", str(tmp_path))
    recorder = record.start()
    for _ in range(5):
        call = Call("sample", 60, "the default", work=Work(prompt_tokens=3))
        board.begin(call)
        board.end(call, "completed")
    recorder.close()
    told = said("replay", f"record:{recorder.run[:8]}", "--json")
    assert json.loads(told.stdout)[0]["calls"] == 5, told.stderr


def test_examples_are_listed_and_run() -> None:
    """With a table for people."""
    assert "slow-spell" in said("replay", "--list").stdout
    told = said("replay", "skyrl", "--policy", "flat,scaled")
    assert told.returncode == 0 and "| scaled" in told.stdout and "964 calls" in told.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "say which calls to replay"),
        (("nowhere.jsonl",), "neither a file nor a built-in trace"),
        ((".",), "cannot be read"),
        ((sys.executable,), "cannot be read"),
        (("-",), "no calls in it"),
        (("skyrl", "--policy", "nonsense"), "is not a policy"),
        (("skyrl", "--policy", ","), "names no policy"),
        (("record:nothing",), "nothing"),
    ],
)
def test_rubbish_gets_one_sentence(args: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And exit status 2."""
    told = said("replay", *args)
    assert (told.returncode, told.stdout) == (2, "")
    assert words in told.stderr and len(told.stderr.strip().splitlines()) == 1


def test_a_limit_is_explained() -> None:
    """The prediction, the basis and who set it; every kind where none is named; a person's number as such."""
    told = said("explain", "sample", "--model", "Qwen/Qwen3-4B", "--work", "prompt_tokens=8192,max_tokens=1024").stdout
    assert "predicts" in told and "cold" in told and "learned" in told
    assert len(said("explain").stdout.splitlines()) == 9
    assert "flat" not in said("explain", "--policy", "fixed:7").stdout
    for args in (("explain", "nonsense"), ("explain", "sample", "--work", "size=3"), ("explain", "--policy", "x")):
        assert said(*args).returncode == 2
