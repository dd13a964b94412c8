"""Does anything of a person's reach the record?"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given
from recording import begin_call, end_call, traffic_of

from tinker_deadlines.calls import board
from tinker_deadlines.errors import TinkerDeadlineError
from tinker_deadlines.record import Recorder
from tinker_deadlines.record.privacy import clean, command_word, exchange_word, facts_of, model_word, number

Start = Callable[..., Recorder]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B"),
        ("openai/gpt-oss-120b:peft", "openai/gpt-oss-120b:peft"),
        ("gpt-4", "gpt-4"),
        ("tinker://0b5c/sampler_weights/alice-secret", "path"),
        ("/home/alice/models/qwen", "path"),
        ("./models/qwen", "path"),
        ("~/models", "path"),
        ("models/alice/qwen", "path"),
        ("C:\\models\\qwen", "path"),
        ("my secret prompt", "path"),
        ("tests/record", "path"),
        ("", "path"),
        (None, None),
        (Path("/home/alice"), "path"),
    ],
)
def test_a_model_is_kept_by_name_and_never_by_path(
    name: object, word: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public name stays; whatever may be an address or a place on a disk becomes the word "path"."""
    monkeypatch.chdir(Path(__file__).parent.parent.parent)
    assert model_word(name) == word


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("It had 3 HTTP exchanges; the last ended 4.0 s ago.", "It had 3 HTTP exchanges; the last ended 4.0 s ago."),
        ("loaded tinker://0b5c/weights/alice-1 just now", "loaded tinker://(address) just now"),
        ("POST https://host.example/api/v1/x?k=v failed", "POST https://(address) failed"),
        ("key tml-AbCd1234xyz was refused", "key (key) was refused"),
        ("Bearer abcdef.ghijkl", "(key)"),
        ("api_key=verysecret now", "(key) now"),
        ("cannot read /home/alice/data/train.jsonl: gone", "cannot read (path) gone"),
        ("in ~/work/secret", "in (path)"),
        ("cannot open '/home/alice/my data/x.jsonl'", 'cannot open "(path)"'),
        ('File "/home/alice/my project/loop.py", line 3, in run', 'File "loop.py", line 3, in run'),
        ("1/2 of them, and/or more", "1/2 of them, and/or more"),
        ("nul\0 and \ud800", "nul and ?"),
    ],
)
def test_text_loses_what_is_somebody_s(text: str, kept: str) -> None:
    """Keys, addresses and paths are taken out of a text; the rest of it stays readable."""
    assert clean(text) == kept


def test_the_key_in_use_is_taken_out_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of no known shape is known by being the one in the environment."""
    monkeypatch.setenv("TINKER_API_KEY", "hunter22")
    assert clean("refused:hunter22!") == "refused:(key)!"


def test_a_stack_keeps_its_frames_and_loses_its_source() -> None:
    """Which function waits where is kept; the line of code, in which a prompt may stand, is not."""

    def secret_stack(prompt: str) -> str:
        return "".join(traceback.format_stack())

    kept = clean(secret_stack(prompt="the treasure is under the oak"))
    assert "treasure" not in kept
    assert "in secret_stack" in kept
    assert 'File "test_record_privacy.py", line ' in kept
    assert str(Path(__file__).parent) not in kept


@pytest.mark.parametrize(
    ("last", "word"),
    [
        ("retrieve_future 200", "retrieve_future 200"),
        ("asample ReadTimeout", "asample ReadTimeout"),
        ("alice-secret 200", "other 200"),
        ("", ""),
    ],
)
def test_an_exchange_is_kept_by_the_service_s_own_words(last: str, word: str) -> None:
    """An address may end in the name of somebody's checkpoint: only words of the service stay."""
    assert exchange_word(last) == word


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("/home/alice/train.py data=/x key=1", "train.py"),
        ("-m recipes.rl.train model=8b", "-m recipes.rl.train"),
        ("train.py", "train.py"),
        ("", ""),
    ],
)
def test_a_command_is_kept_by_the_script_s_name(command: str, word: str) -> None:
    """No argument and no directory of what was run is kept."""
    assert command_word(command) == word


def test_facts_keep_numbers_and_words_and_lose_contents() -> None:
    """What others report is kept in shape; prompts, tokens and long lists of numbers leave their length."""
    reported = {
        "age_s": 1.5,
        "alive": True,
        "prompt": "the treasure is under the oak",
        "tokens": [1, 2, 3],
        "work": {"tokens": 512, "prompt_tokens": 7},
        "ids": list(range(100)),
        "model": "tinker://x/y",
        "nothing": None,
        "nan": float("nan"),
        "odd": object(),
        "raw": b"secret",
        "calls": [{"kind": "sample", "where": "/home/alice/x"}],
    }
    assert facts_of(reported) == {
        "age_s": 1.5,
        "alive": True,
        "prompt": "29 long",
        "tokens": "3 long",
        "work": {"tokens": 512, "prompt_tokens": 7},
        "ids": "100 numbers",
        "model": "path",
        "nothing": None,
        "nan": None,
        "odd": "object",
        "raw": "bytes",
        "calls": [{"kind": "sample", "where": "(path)"}],
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=10), JSON, max_size=5))
@example({"deep": [[[[[[[[[[1]]]]]]]]]]})
def test_whatever_is_reported_can_be_kept(reported: dict[str, Any]) -> None:
    """Facts of any shape become JSON that every database takes."""
    text = json.dumps(facts_of(reported), allow_nan=False, ensure_ascii=False)
    assert text.encode("utf-8").decode("utf-8") == text  # no lone surrogates
    assert "\\u0000" not in text


@given(st.text(alphabet="abc/\\.~:'\" \n-_", max_size=60))
def test_no_path_is_left_over(text: str) -> None:
    """After cleaning, no absolute path with a name in it stands in a text."""
    kept = clean(f"at /secret/{text.replace(' ', '')[:5]}x and {text}")
    assert "/secret" not in kept


@given(st.one_of(st.none(), st.text(), st.floats(), st.integers(-(2**60), 2**60)))
def test_a_number_is_finite_or_nothing(value: object) -> None:
    """What databases and JSON disagree on becomes nothing."""
    kept = number(value)
    assert kept is None or abs(kept) < float("inf")


def test_nothing_of_a_person_s_is_in_the_file(start: Start, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run full of secrets leaves a file in which none of them stands, in no table and no left-over page."""
    secrets = ["hunter22hunter22", "alice-secret", "under-the-oak", "train-secret.jsonl", "tml-AAAABBBB", "home/alice"]
    monkeypatch.setenv("TINKER_API_KEY", secrets[0])
    recorder = start(command=f"/home/alice/run.py data={secrets[3]}")
    call = begin_call(model=f"tinker://{secrets[1]}/weights", session=f"tinker://{secrets[1]}")
    call.limit_owner = "budget of /home/alice/x"
    call.findings = (f"Its payload {secrets[4]} fails.",)
    call.traffic = traffic_of(f"{secrets[1]} 200")
    call.traffic.queue_state = f"tinker://{secrets[1]}"
    evidence = call.evidence(call.submitted_at)
    error = TinkerDeadlineError("sample", elapsed_s=1, deadline_s=1, evidence=(*evidence, f"key {secrets[0]}"))
    board.end(call, "expired", error)
    end_call("failed", ValueError(f"{secrets[2]} /home/alice/{secrets[3]}"))
    recorder.probe({"prompt": secrets[2], "why": f"no answer for {secrets[4]} from tinker://{secrets[1]}/x"})
    recorder.event("dump", {"stack": f'  File "/home/alice/a.py", line 1, in f\n    sample("{secrets[2]}")\n'})
    recorder.close()
    kept = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"expired" in kept
    assert [secret for secret in secrets if secret.encode() in kept] == []
