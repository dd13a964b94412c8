"""The lab's smaller parts: latency, tokenizer, checkpoints on disk, protobuf."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines.lab import protobuf, wire
from tinker_deadlines.lab.config import LabConfig
from tinker_deadlines.lab.latency import Latency, Work, nominal_s, parse_latency
from tinker_deadlines.lab.losses import TrainOutput
from tinker_deadlines.lab.refusal import Refused
from tinker_deadlines.lab.store import Checkpoint, Missing, Store
from tinker_deadlines.lab.tokenizer import write_tokenizer

CHECKPOINT = Checkpoint(
    run="session_1:train:0", section="weights", name="a b", base_model="m", lora={"rank": 4}, created_s=1.0
)
ARRAYS = {"x.a": np.arange(6.0).reshape(2, 3)}


# ---- latency -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("0", Latency()),
        (" 0.01 ", Latency(scale=0.01)),
        ("scale=0.01,jitter=0.2,seed=7,load=0.05", Latency(scale=0.01, jitter=0.2, seed=7, load=0.05)),
        ("load=1", Latency(load=1.0)),
    ],
)
def test_latency_specifications_are_read(spec: str, expected: Latency) -> None:
    """A specification is a scale or a list of named numbers."""
    assert parse_latency(spec) == expected


@pytest.mark.parametrize(
    "spec", ["", "x", "-1", "nan", "inf", "scale", "speed=1", "scale=1,scale=2", "seed=0.5", "1,2"]
)
def test_rubbish_latency_is_refused_in_one_sentence(spec: str) -> None:
    """A specification that makes no sense is named together with what would make sense."""
    with pytest.raises(ValueError, match="Bad latency") as error:
        parse_latency(spec)
    assert repr(spec) in str(error.value) and "0.01" in str(error.value)


def test_latency_grows_with_work_and_load() -> None:
    """More tokens, more datums and more load take longer; scale 0 takes no time at all."""
    assert nominal_s("Sample", Work(100, 200)) > nominal_s("Sample", Work(100, 100)) > nominal_s("Sample", Work(0, 100))
    assert nominal_s("ForwardBackward", Work(100, datums=9)) > nominal_s("ForwardBackward", Work(100, datums=1))
    sampler = Latency(scale=1.0, load=0.1).sampler()
    assert sampler.draw_s("OptimStep", Work(), 10) == pytest.approx(2 * sampler.draw_s("OptimStep", Work(), 0))
    assert Latency(jitter=1.0).sampler().draw_s("Sample", Work(9, 9), 9) == 0.0


def test_jitter_is_repeatable() -> None:
    """Two samplers of the same seed draw the same latencies."""
    one, two = (Latency(scale=1, jitter=0.3, seed=5).sampler() for _ in range(2))
    drawn = [one.draw_s("OptimStep", Work(), 0) for _ in range(5)]
    assert drawn == [two.draw_s("OptimStep", Work(), 0) for _ in range(5)]
    assert len(set(drawn)) == 5


# ---- tokenizer ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> object:
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return transformers.AutoTokenizer.from_pretrained(str(directory))


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_survives_the_tokenizer(tokenizer: object, text: str) -> None:
    """Any text comes back from its tokens, and the tokens are its bytes unless it spells a special token."""
    tokens = tokenizer.encode(text)  # type: ignore[attr-defined]
    assert tokenizer.decode(tokens) == text  # type: ignore[attr-defined]
    if "<|" not in text:
        assert tokens == list(text.encode())


def test_special_tokens_come_after_the_bytes(tokenizer: object) -> None:
    """Beginning, end and padding have the numbers that the model knows."""
    assert tokenizer.encode("a<|eos|>") == [97, 257]  # type: ignore[attr-defined]
    assert tokenizer.eos_token_id == 257 and tokenizer.bos_token_id == 256  # type: ignore[attr-defined]


# ---- checkpoints -------------------------------------------------------------------------------------------------


def test_a_checkpoint_outlives_its_store(tmp_path: Path) -> None:
    """Facts and arrays are read back to the bit by another store on the same directory."""
    saved = Store(tmp_path).save(CHECKPOINT, ARRAYS)
    found, arrays = Store(tmp_path).load("tinker://session_1:train:0/weights/a b")
    assert found == saved and found.size_bytes == 48
    assert arrays.keys() == ARRAYS.keys() and np.array_equal(arrays["x.a"], ARRAYS["x.a"])


def test_an_interrupted_write_leaves_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that dies before the rename leaves the old checkpoint, and its leftovers are not listed."""
    store = Store(tmp_path)
    store.save(CHECKPOINT, ARRAYS)
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(SystemExit))
    with pytest.raises(SystemExit):
        store.save(replace(CHECKPOINT, created_s=2.0), {"x.a": ARRAYS["x.a"] + 1})
    monkeypatch.undo()
    assert [c.created_s for c in Store(tmp_path).checkpoints()] == [1.0]
    assert np.array_equal(Store(tmp_path).load(CHECKPOINT.path)[1]["x.a"], ARRAYS["x.a"])


def test_an_expired_checkpoint_is_gone(tmp_path: Path) -> None:
    """After its time to live a checkpoint is neither listed nor found, and its name is free."""
    store = Store(tmp_path)
    store.save(replace(CHECKPOINT, expires_s=time.time() - 1), ARRAYS)
    assert not store.checkpoints() and not store.exists(CHECKPOINT.run, "weights", "a b")
    with pytest.raises(Missing, match="no checkpoint"):
        store.load(CHECKPOINT.path)


@pytest.mark.parametrize(
    "path", ["", "x", "tinker://a", "tinker://a/b/c", "tinker:///weights/x", "tinker://../weights/"]
)
def test_rubbish_paths_are_missing(tmp_path: Path, path: str) -> None:
    """What is not a path of a checkpoint is reported as missing, never looked for on disk."""
    with pytest.raises(Missing, match="is not a path"):
        Store(tmp_path).checkpoint(path)


def test_a_name_cannot_leave_the_directory(tmp_path: Path) -> None:
    """Dots and slashes in a run or a name stay inside the state directory."""
    Store(tmp_path / "state").save(replace(CHECKPOINT, run="../../x", name="../../y"), ARRAYS)
    assert list(tmp_path.iterdir()) == [tmp_path / "state"]


def test_a_state_directory_with_a_colon_is_refused(tmp_path: Path) -> None:
    """The SDK would cut the tokenizer's name at the colon, so the lab says so first."""
    with pytest.raises(ValueError, match="colon"):
        LabConfig(state=tmp_path / "a:b")


# ---- protobuf ----------------------------------------------------------------------------------------------------


@given(number=st.integers(0, 2**63), content=st.binary(max_size=300))
def test_protobuf_fields_come_back(number: int, content: bytes) -> None:
    """What is written is read."""
    message = protobuf.integer(3, number) + protobuf.blob(200, content)
    assert list(protobuf.fields(message)) == [(3, number), (200, content)]


@given(content=st.binary(max_size=200))
def test_rubbish_is_malformed_and_nothing_worse(content: bytes) -> None:
    """Any bytes are either read or refused with the one error meant for it."""
    try:
        wire.read_data(wire.read_train_request(content).raw_data)
    except (protobuf.Malformed, Refused, UnicodeDecodeError):
        pass


def test_the_sdk_reads_what_the_lab_writes() -> None:
    """Batched outputs of several lengths and dimensions arrive in the SDK as they were."""
    conv = pytest.importorskip("tinker.proto.response_conv")
    output = TrainOutput(
        logprobs=[np.array([[-1.0, -2.0]]), np.array([[-3.0, -4.0], [-5.0, -6.0]])],
        losses=[np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [5.0, 6.0]])],
        metrics={"loss:sum": 21.0},
    )
    read = conv.deserialize_forward_backward_output(wire.write_train_output(output))
    assert read.metrics == {"loss:sum": 21.0}
    assert [o["logprobs"].data for o in read.loss_fn_outputs] == [[-1.0, -2.0], [-3.0, -4.0, -5.0, -6.0]]
    assert [o["elementwise_loss"].shape for o in read.loss_fn_outputs] == [[1, 2], [2, 2]]


def test_the_lab_reads_what_the_sdk_writes() -> None:
    """Dense and sparse tensors, settings and tokens of a training request arrive as they were."""
    conv = pytest.importorskip("tinker.proto.request_conv")
    from tinker import types

    weights = types.TensorData(
        data=[2.0], dtype="float32", shape=[2, 2], sparse_crow_indices=[0, 0, 1], sparse_col_indices=[1]
    )
    targets = types.TensorData(data=[7, 8, 9, 10], dtype="int64", shape=[2, 2])
    datum = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2]), loss_fn_inputs={"target_tokens": targets, "weights": weights}
    )
    request = types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(
            data=[datum], loss_fn="ppo", loss_fn_config={"clip_low_threshold": 0.5}
        ),
        model_id="m",
        seq_id=3,
    )
    read = wire.read_train_request(conv.forward_backward_request_to_proto(request).SerializeToString())
    assert (read.model_id, read.seq_id, read.loss_fn, read.forward_only) == ("m", 3, "ppo", False)
    assert read.config == {"clip_low_threshold": 0.5}
    (datum_read,) = wire.read_data(read.raw_data)
    assert datum_read.tokens.tolist() == [1, 2]
    assert datum_read.targets.tolist() == [[7, 8], [9, 10]]
    assert datum_read.inputs["weights"].tolist() == [[0.0, 0.0], [0.0, 2.0]]
