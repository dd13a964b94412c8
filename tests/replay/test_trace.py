"""Traces: read from JSON Lines, or built in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tinker_deadlines import Work
from tinker_deadlines.replay import EXAMPLES, Recorded, TraceError, load, parse, read, world

GOOD = {"t": 2, "kind": "sample", "latency_s": 1.5}


def test_a_line_is_a_call() -> None:
    """What is known is taken, other keys are ignored, and calls are put in the order of their submission."""
    full = {
        "t": 1.25,
        "kind": "sample",
        "model": "m",
        "work": {"prompt_tokens": 7, "colour": "red", "fresh": True},
        "latency_s": None,
        "session": "s0",
        "in_flight": 8,
        "retries": [2, 3.5],
        "first_of_shape": True,
    }
    trace = parse([json.dumps(GOOD), "", json.dumps(full), "  \n"], "here")
    assert trace.name == "here" and trace.work_model is None
    assert trace.calls == (
        Recorded(1.25, "sample", "m", Work(7, fresh=True), None, "s0", 8, (2.0, 3.5)),
        Recorded(2.0, "sample", None, None, 1.5),
    )


@pytest.mark.parametrize(
    "line, says",
    [
        ("{", "not JSON"),
        ("3", "a call is an object"),
        ({}, "t is missing"),
        ({"t": 1, "kind": "sample"}, "latency_s is missing"),
        ({**GOOD, "kind": "smaple"}, "'smaple' is not a kind of call"),
        ({**GOOD, "kind": ["sample"]}, "is not a kind of call"),
        ({**GOOD, "t": "now"}, "t is a finite number of seconds, not 'now'"),
        ({**GOOD, "t": True}, "t is a finite number"),
        ({**GOOD, "latency_s": -1}, "less than no time"),
        ('{"t": 1, "kind": "sample", "latency_s": NaN}', "latency_s is a finite number"),
        ({**GOOD, "retries": 3}, "retries is a list"),
        ({**GOOD, "retries": [None]}, "retries is a finite number"),
        ({**GOOD, "model": 4}, "model is a text"),
        ({**GOOD, "work": [1]}, "work is an object"),
        ({**GOOD, "work": {"max_tokens": "many"}}, "max_tokens in work is a number of at least 0, not 'many'"),
        ({**GOOD, "work": {"datums": -3}}, "datums in work"),
        ({**GOOD, "work": {"fresh": 1}}, "fresh in work"),
    ],
)
def test_a_line_that_is_no_call_is_named(line: object, says: str) -> None:
    """The message names the file, the line and the cause."""
    text = line if isinstance(line, str) else json.dumps(line)
    with pytest.raises(TraceError, match=r"^mine\.jsonl, line 3: ") as caught:
        parse([json.dumps(GOOD), "", text], "mine.jsonl")
    assert says in str(caught.value)


def test_files_are_read_plain_or_compressed(tmp_path: Path) -> None:
    """Both hold the same; what is no trace is said in a sentence that names the file."""
    plain, compressed = tmp_path / "calls.jsonl", tmp_path / "calls.jsonl.gz"
    plain.write_text(json.dumps(GOOD), encoding="utf-8")
    compressed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(plain).calls == read(compressed).calls == load(str(plain)).calls
    empty, broken, binary = tmp_path / "empty", tmp_path / "broken.gz", tmp_path / "binary"
    empty.write_text("\n")
    broken.write_bytes(compressed.read_bytes()[:-9])
    binary.write_bytes(b"\xff\xfe\x00")
    for path, says in (
        (empty, "has no calls in it"),
        (broken, "cannot be read"),
        (binary, "cannot be read"),
        (tmp_path, "cannot be read"),
        (tmp_path / "nowhere", "does not exist"),
    ):
        with pytest.raises(TraceError, match=says) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_a_name_that_is_neither_file_nor_example_is_said() -> None:
    """With the names that there are."""
    with pytest.raises(TraceError, match=r"neither a file nor a built-in trace; those are steady, .*skyrl"):
        load("stedy")


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_there(name: str) -> None:
    """Each has its calls, in order, of work that a policy can see."""
    trace = load(name)
    assert trace.name == name
    assert len(trace.calls) == (964 if name == "skyrl" else 10_000)
    assert [call.t for call in trace.calls] == sorted(call.t for call in trace.calls)
    assert EXAMPLES[name]


def test_a_world_is_made_by_its_seed() -> None:
    """The same seed makes the same world; what is special in one is all in which it differs from another."""
    assert world("steady", 3, 200) == world("steady", 3, 200)
    assert world("steady", 3, 200).calls != world("steady", 4, 200).calls
    latencies = [[call.latency_s or 0 for call in world(name, 1, 2000).calls] for name in ("steady", "slow-spell")]
    assert sum(latencies[1][1000:1200]) == pytest.approx(4 * sum(latencies[0][1000:1200]))
    assert latencies[0][:1000] == latencies[1][:1000]
    dead = sum(call.latency_s is None for call in load("steady").calls)
    assert 1 <= dead <= 12
    with pytest.raises(ValueError, match="there is no world 'calm'; there are steady"):
        world("calm")
