"""The lab over HTTP: the rules of the service, seen by a client that speaks the protocol itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tinker_deadlines.lab import Lab
from tinker_deadlines.lab import protobuf as pb

Json = dict[str, Any]
MODEL = "tinker-lab/byte-tiny"


class Raw:
    """A session that sends what it is told to, in whatever order."""

    def __init__(self, lab: Lab) -> None:
        self.http = httpx.Client(base_url=lab.url, timeout=20)
        self.session = self.ok("create_session", tags=[], user_metadata={}, sdk_version="0")["session_id"]

    def post(self, call: str, /, **body: Any) -> httpx.Response:
        return self.http.post(f"/api/v1/{call}", json=body)

    def ok(self, call: str, /, **body: Any) -> Json:
        answer = self.post(call, **body)
        assert answer.status_code == 200, answer.text
        content: Json = answer.json()
        return content

    def create_model(self, model_seq_id: int = 0, **more: Any) -> str:
        body = {"session_id": self.session, "model_seq_id": model_seq_id, "base_model": MODEL}
        promise = self.ok("create_model", **(body | {"lora_config": {"rank": 4, "seed": 1}} | more))
        return str(self.result(promise)["model_id"])

    def train(self, model: str, seq_id: int, text: bytes = b"slow is not dead", **more: Any) -> httpx.Response:
        body = training_message(model, seq_id, text, **more)
        return self.http.post(
            "/api/v1/forward_backward", content=body, headers={"Content-Type": "application/x-protobuf"}
        )

    def step(self, model: str, seq_id: int, learning_rate: float = 0.01) -> httpx.Response:
        return self.post("optim_step", model_id=model, seq_id=seq_id, adam_params={"learning_rate": learning_rate})

    def result(self, promise: Json) -> Json:
        while (answer := self.post("retrieve_future", request_id=promise["request_id"])).status_code == 408:
            pass  # the server itself waits a little before it says try again
        assert answer.status_code == 200, answer.text
        content: Json = answer.json()
        return content

    def sampler(self, number: int = 0, **source: Any) -> str:
        body = source or {"base_model": MODEL}
        answer = self.ok("create_sampling_session", session_id=self.session, sampling_session_seq_id=number, **body)
        return str(answer["sampling_session_id"])


def training_message(model: str, seq_id: int, text: bytes, loss_fn: str = "cross_entropy") -> bytes:
    tokens, count = np.frombuffer(text, dtype=np.uint8), len(text) - 1
    chunk = pb.blob(1, pb.blob(1, tokens[:-1].astype(np.int32).tobytes()))
    targets = pb.blob(1, tokens[1:].astype(np.int64).tobytes()) + pb.integer(3, 2)
    weights = pb.blob(1, np.ones(count, dtype=np.float32).tobytes()) + pb.integer(3, 1)
    inputs = [pb.blob(2, pb.text(1, n) + pb.blob(2, t)) for n, t in (("target_tokens", targets), ("weights", weights))]
    datum = pb.blob(1, chunk) + b"".join(inputs)
    return pb.text(1, model) + pb.integer(2, seq_id) + pb.blob(3, datum) + pb.text(4, loss_fn)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(poll_s=0.02) as running:
        yield running


@pytest.fixture
def connect() -> Iterator[Callable[[Lab], Raw]]:
    with ExitStack() as clients:

        def make(lab: Lab) -> Raw:
            client = Raw(lab)
            clients.callback(client.http.close)
            return client

        yield make


@pytest.fixture
def raw(lab: Lab, connect: Callable[[Lab], Raw]) -> Raw:
    return connect(lab)


@pytest.fixture
def executed(lab: Lab) -> Callable[[str], list[tuple[int, str]]]:
    return lambda model: [(e["seq_id"], e["type"]) for e in lab.executions() if e["model_id"] == model]


# ---- turns -------------------------------------------------------------------------------------------------------


def test_requests_are_executed_in_the_order_of_their_numbers(raw: Raw, executed: Any) -> None:
    """A request whose predecessor has not come waits, and is answered with try again until it has."""
    model = raw.create_model()
    late = raw.step(model, 2).json()
    waiting = raw.post("retrieve_future", request_id=late["request_id"])
    assert waiting.status_code == 408
    assert waiting.json() == {"type": "try_again", "request_id": late["request_id"], "queue_state": "active"}
    raw.result(raw.train(model, 1).json())
    raw.result(late)
    assert executed(model) == [(0, "CreateModel"), (1, "ForwardBackward"), (2, "OptimStep")]


def test_a_repeated_number_is_the_same_request(raw: Raw, executed: Any) -> None:
    """Sending a request again returns the first promise and executes nothing, before and after it is done."""
    model = raw.create_model()
    first, second = (raw.train(model, 1).json() for _ in range(2))
    result = raw.result(first)
    third = raw.train(model, 1).json()
    assert first == second == third
    assert raw.result(third) == result
    assert executed(model) == [(0, "CreateModel"), (1, "ForwardBackward")]


def test_racing_repeats_are_executed_once(raw: Raw, executed: Any) -> None:
    """Many sendings of one optimizer step at the same moment apply it once."""
    model = raw.create_model()
    raw.train(model, 1)
    answers: list[Json] = []
    threads = [threading.Thread(target=lambda: answers.append(raw.step(model, 2).json())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8 and len({answer["request_id"] for answer in answers}) == 1
    assert raw.result(answers[0])["metrics"]["step"] == 1
    assert executed(model).count((2, "OptimStep")) == 1


def test_a_number_used_for_something_else_is_a_conflict(raw: Raw) -> None:
    """The same seq_id with another payload or another type answers 409 and changes nothing."""
    model = raw.create_model()
    raw.result(raw.train(model, 1).json())
    assert raw.train(model, 1, b"something else").status_code == 409
    assert raw.step(model, 1).status_code == 409
    assert raw.result(raw.step(model, 2).json())["metrics"]["step"] == 1


def test_a_refused_request_gives_up_its_turn(raw: Raw) -> None:
    """What follows a refused request is executed; repeating the refused one later is a conflict."""
    model = raw.create_model()
    refused = raw.train(model, 1, loss_fn="dro")
    assert refused.status_code == 400 and "does not compute the loss 'dro'" in refused.json()["detail"]
    raw.result(raw.step(model, 2).json())
    assert raw.train(model, 1).status_code == 409


@pytest.mark.parametrize("seq_id", [0, -1, None, "1", 1.5])
def test_a_number_that_is_none_is_refused(raw: Raw, seq_id: Any) -> None:
    """A seq_id must be a whole number from 1 on."""
    model = raw.create_model()
    answer = raw.post("optim_step", model_id=model, seq_id=seq_id, adam_params={})
    assert answer.status_code == 400 and "seq_id" in answer.json()["detail"]


def test_training_numbers_start_at_one(raw: Raw) -> None:
    """A protobuf request without a seq_id, which reads as 0, is refused."""
    assert raw.train(raw.create_model(), 0).status_code == 400


# ---- checkpoints -------------------------------------------------------------------------------------------------


def test_a_taken_name_is_a_conflict_until_it_is_free(raw: Raw) -> None:
    """Saving under a name that exists answers 409 unless it may be overwritten, and works once the name is free."""
    model = raw.create_model()
    path = raw.result(raw.ok("save_weights", model_id=model, seq_id=1, path="a"))["path"]
    assert path == f"tinker://{model}/weights/a"
    again = {"model_id": model, "seq_id": 2, "path": "a"}
    assert raw.post("save_weights", **again).status_code == 409
    assert raw.http.delete(f"/api/v1/training_runs/{model}/checkpoints/weights/a").status_code == 200
    assert raw.result(raw.ok("save_weights", **again))["path"] == path
    assert raw.result(raw.ok("save_weights", model_id=model, seq_id=3, path="a", overwrite=True))["path"] == path


def test_a_name_is_taken_from_the_moment_it_is_asked_for(raw: Raw) -> None:
    """Of two saves under one name in flight the second is refused, though neither is on disk yet."""
    model = raw.create_model()
    first = raw.ok("save_weights", model_id=model, seq_id=2, path="b")
    assert raw.post("save_weights", model_id=model, seq_id=3, path="b").status_code == 409
    raw.result(raw.train(model, 1).json())
    raw.result(first)


@pytest.mark.parametrize("name", ["a/b", "x" * 300, "a\nb"])
def test_a_name_that_cannot_be_stored_is_refused(raw: Raw, name: str) -> None:
    """Names with slashes, control characters or of great length answer 400."""
    assert raw.post("save_weights", model_id=raw.create_model(), seq_id=1, path=name).status_code == 400


def test_weights_are_loaded_first_or_not_at_all(raw: Raw) -> None:
    """LoadWeights is permitted as a model's first request only."""
    model = raw.create_model()
    path = raw.result(raw.ok("save_weights", model_id=model, seq_id=1, path="a"))["path"]
    late = raw.post("load_weights", model_id=model, seq_id=2, path=path, optimizer=False)
    assert late.status_code == 400
    assert late.json()["detail"].startswith("LoadWeights is not permitted with seq_id 2")
    fresh = raw.create_model(1)
    loaded = raw.ok("load_weights", model_id=fresh, seq_id=1, path=path, optimizer=True)
    assert raw.result(loaded)["path"] == path


def test_a_model_can_be_created_from_a_checkpoint(raw: Raw) -> None:
    """load_weights with a session makes the model; its id follows from the session, and repeating it makes no other."""
    model = raw.create_model()
    path = raw.result(raw.ok("save_weights", model_id=model, seq_id=1, path="a"))["path"]
    body = {"session_id": raw.session, "model_seq_id": 7, "path": path, "optimizer": True}
    first, second = (raw.ok("load_weights", **body) for _ in range(2))
    assert first == second
    assert raw.result(first)["model_id"] == f"{raw.session}:train:7"
    assert raw.ok("get_info", model_id=f"{raw.session}:train:7")["lora_rank"] == 4


def test_a_checkpoint_that_does_not_fit_is_refused(raw: Raw) -> None:
    """Another rank, a missing optimizer, a missing checkpoint: each is refused with its reason."""
    model = raw.create_model()
    path = raw.result(raw.ok("save_weights", model_id=model, seq_id=1, path="a"))["path"]
    weights = raw.result(raw.ok("save_weights_for_sampler", model_id=model, seq_id=2, path="a"))["path"]

    def refusal(path: str, number: int, rank: int, optimizer: bool) -> tuple[int, str]:
        other = raw.create_model(number, lora_config={"rank": rank})
        answer = raw.post("load_weights", model_id=other, seq_id=1, path=path, optimizer=optimizer)
        return answer.status_code, answer.json()["detail"]

    sizes = f"it is {MODEL} with rank 4, and the model is {MODEL} with rank 8"
    assert refusal(path, 1, 8, False) == (400, f"{path} does not fit: {sizes}.")
    assert refusal(weights, 2, 4, True) == (400, f"{weights} has no optimizer state; load it without.")
    assert refusal(f"{path}x", 3, 4, False) == (404, f"There is no checkpoint '{path}x'.")


# ---- sessions ----------------------------------------------------------------------------------------------------


def test_sessions_are_refused_past_the_cap(connect: Callable[[Lab], Raw]) -> None:
    """One session more than allowed is refused with a sentence; finishing one makes room."""
    with Lab(session_cap=2) as lab:
        one, _ = connect(lab), connect(lab)
        refused = one.post("create_session", tags=[], sdk_version="0")
        assert refused.status_code == 400 and "Too many sessions: 2 are alive" in refused.json()["detail"]
        one.post(f"sessions/{one.session}/finish", reason={"type": "success"})
        assert connect(lab).session


def test_a_session_without_heartbeats_ends(connect: Callable[[Lab], Raw]) -> None:
    """After the expiry a session is gone: its heartbeat answers 410, and so does every use of its models."""
    with Lab(session_expiry_s=0.0) as lab:
        client = connect(lab)
        assert client.post("session_heartbeat", session_id=client.session).status_code == 410
        assert client.post("get_info", model_id=f"{client.session}:train:0").status_code == 410


def test_a_finished_session_refuses_further_work(raw: Raw) -> None:
    """Finishing ends the models: requests that wait fail, new ones answer 410, and the first reason stays."""
    model = raw.create_model()
    waiting = raw.step(model, 9).json()
    for kind in ("errored", "success"):
        assert raw.post(f"sessions/{raw.session}/finish", reason={"type": kind}).status_code == 200
    assert raw.result(waiting)["category"] == "user"
    assert raw.step(model, 1).status_code == 410
    assert raw.post("session_heartbeat", session_id=raw.session).status_code == 410
    found = raw.ok("sessions/search", display_name=None, limit=200)["sessions"]
    status = next(s["status"] for s in found if s["session_id"] == raw.session)
    assert status["reason"] == {"type": "errored"}


def test_a_repeated_session_creation_makes_one_session(lab: Lab) -> None:
    """The idempotency key of a lost answer returns the session that was made."""
    made = [
        httpx.post(f"{lab.url}/api/v1/create_session", json={"tags": []}, headers={"X-Idempotency-Key": "k"}).json()
        for _ in range(2)
    ]
    assert made[0] == made[1]


# ---- sampling ----------------------------------------------------------------------------------------------------


def sample_body(**more: Any) -> Json:
    prompt = {"chunks": [{"type": "encoded_text", "tokens": list(b"slow is")}]}
    return {"prompt": prompt, "num_samples": 1, "sampling_params": {"max_tokens": 5}, **more}


def test_a_repeated_sample_is_sampled_once(raw: Raw, executed: Any) -> None:
    """A sample is known by its sampling session and number, or by its idempotency key."""
    sampler = raw.sampler()
    numbered = [raw.ok("asample", **sample_body(sampling_session_id=sampler, seq_id=4)) for _ in range(2)]
    assert numbered[0] == numbered[1] and len(numbered[0]["sample_sequence_ids"]) == 1
    raw.result(numbered[0])
    assert executed(sampler) == [(4, "Sample")]
    keyed = [
        raw.http.post("/api/v1/asample", json=sample_body(base_model=MODEL), headers={"X-Idempotency-Key": "once"})
        for _ in range(2)
    ]
    assert keyed[0].json() == keyed[1].json()
    changed = sample_body(sampling_session_id=sampler, seq_id=4, num_samples=2)
    assert raw.post("asample", **changed).status_code == 409


def test_samples_without_a_seed_differ_by_their_number_and_repeat_by_it(raw: Raw) -> None:
    """A request without a seed draws from its own number, so that a script run again sees the same."""

    def tokens(sampler: str, seq_id: int) -> list[int]:
        result = raw.result(raw.ok("asample", **sample_body(sampling_session_id=sampler, seq_id=seq_id)))
        return list(result["sequences"][0]["tokens"])

    one, two = raw.sampler(0), raw.sampler(1)
    assert tokens(one, 1) == tokens(two, 1) != tokens(one, 2)


def test_finished_samples_can_be_polled_together(raw: Raw) -> None:
    """retrieve_futures tells what has finished since the cursor, and waits a bounded time when nothing has."""
    sampler = raw.sampler()
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0}
    assert raw.ok("retrieve_futures", target=target, prev_cursor=0) == {"completions": [], "cursor": 0}
    ids = [raw.ok("asample", **sample_body(sampling_session_id=sampler, seq_id=i))["request_id"] for i in range(3)]
    for request_id in ids:
        raw.result({"request_id": request_id})
    finished = raw.ok("retrieve_futures", target=target, prev_cursor=1)
    assert finished["cursor"] == 3
    assert {c["request_id"] for c in finished["completions"]} < set(ids) and len(finished["completions"]) == 2
    assert {c["state"] for c in finished["completions"]} == {"finished"}


def test_a_cancelled_sample_is_not_executed(connect: Callable[[Lab], Raw]) -> None:
    """Cancelling settles the promise at once, and the work is never done; training cannot be cancelled."""
    with Lab(latency="1", poll_s=0.02) as lab:
        raw = connect(lab)
        sampler = raw.sampler()
        promise = raw.ok("asample", **sample_body(sampling_session_id=sampler, seq_id=1))
        assert raw.post("cancel_future", request_id=promise["request_id"]).status_code == 200
        assert "cancelled" in raw.result(promise)["error"]
        creation = raw.ok(
            "create_model", session_id=raw.session, model_seq_id=0, base_model=MODEL, lora_config={"rank": 2}
        )
        assert raw.post("cancel_future", request_id=creation["request_id"]).status_code == 400
        assert not [e for e in lab.executions() if e["type"] == "Sample"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": {"chunks": []}}, "empty"),
        ({"prompt": 3}, "model input"),
        ({"prompt": {"chunks": [{"type": "image", "data": "x"}]}}, "text only"),
        ({"prompt": {"chunks": [{"tokens": [10**30]}]}}, "whole numbers"),
        ({"sampling_params": {"max_tokens": 10**9}}, "context length"),
        ({"sampling_params": {"max_tokens": "many"}}, "max_tokens must be a whole number"),
        ({"sampling_params": {"stop": [1, "a"]}}, "stop must be"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": []}, "must be an object"),
        ({"num_samples": 10**9}, "num_samples"),
        ({"topk_prompt_logprobs": -1}, "width"),
        ({"target_prompt_logprobs": {"data": [1], "shape": [7, 7]}}, "target_prompt_logprobs"),
        ({"prompt_logprobs_last_n": 99}, "prompt_logprobs_last_n"),
        ({"base_model": "nobody/nothing"}, "There is no base model 'nobody/nothing'"),
        ({"base_model": None}, "needs a sampling session"),
    ],
)
def test_rubbish_samples_are_refused_with_a_sentence(raw: Raw, change: Json, said: str) -> None:
    """Whatever is wrong with a sampling request is said at once, with status 400 or 404."""
    answer = raw.post("asample", **(sample_body(base_model=MODEL) | change))
    assert answer.status_code in (400, 404) and said in answer.json()["detail"]


# ---- the rest ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/api/v1/create_model", 405),
        ("GET", "/api/v1/samplers/nobody", 404),
        ("GET", "/api/v1/sessions/nobody", 404),
        ("GET", "/api/v1/training_runs/nobody", 404),
        ("GET", "/api/v1/training_runs/nobody/checkpoints", 404),
        ("GET", "/api/v1/training_runs?limit=x", 400),
        ("DELETE", "/api/v1/training_runs/nobody/checkpoints/weights/x", 404),
        ("POST", "/api/v1/training_runs/nobody/checkpoints/weights/x/publish", 404),
        ("POST", "/api/v1/retrieve_future", 410),
        ("POST", "/api/v1/get_info", 404),
        ("POST", "/api/v1/forward_backward", 400),
        ("POST", "/api/v1/create_model", 404),
        ("POST", "/api/v1/load_weights", 404),
    ],
)
def test_what_does_not_exist_is_said_in_json(raw: Raw, method: str, path: str, status: int) -> None:
    """Every refusal is JSON with one sentence in `detail`."""
    answer = raw.http.request(method, path)
    assert answer.status_code == status
    assert isinstance(answer.json()["detail"], str)


@pytest.mark.parametrize("body", [b"{", b"[]", b"3", b"\xff\xfe"])
def test_a_body_that_is_no_object_is_refused(raw: Raw, body: bytes) -> None:
    """JSON that cannot be read, or is not an object, answers 400."""
    assert raw.http.post("/api/v1/create_session", content=body).status_code == 400


def test_compressed_training_requests_are_read(raw: Raw) -> None:
    """A zstd body computes the same as a plain one; an unknown encoding is refused."""
    zstandard = pytest.importorskip("zstandard")
    model = raw.create_model()
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "zstd"}
    body = zstandard.ZstdCompressor().compress(training_message(model, 1, b"slow is not dead"))
    packed = raw.result(raw.http.post("/api/v1/forward_backward", content=body, headers=headers).json())
    assert packed == raw.result(raw.train(raw.create_model(1), 1).json())
    for encoding, content in (("lz4", body), ("zstd", b"rubbish")):
        headers["Content-Encoding"] = encoding
        assert raw.http.post("/api/v1/forward_backward", content=content, headers=headers).status_code == 400


def test_large_results_are_announced_by_their_size(connect: Callable[[Lab], Raw]) -> None:
    """A caller that allows it hears the size first, and gets the result when it asks again."""
    with Lab(inline_limit_bytes=100) as lab:
        raw = connect(lab)
        promise = raw.train(raw.create_model(), 1).json()
        announced = raw.ok("retrieve_future", request_id=promise["request_id"], allow_metadata_only=True)
        assert announced["status"] == "complete_metadata" and announced["response_payload_size"] > 100
        assert "loss:sum" in raw.result(promise)["metrics"]


def test_the_execution_log_is_served(raw: Raw, lab: Lab) -> None:
    """GET /lab/executions shows what `Lab.executions` shows, and one session's part of it on demand."""
    raw.create_model()
    assert raw.http.get("/lab/executions").json() == lab.executions()
    (mine,) = raw.http.get("/lab/executions", params={"session": raw.session}).json()
    assert (mine["type"], mine["seq_id"], mine["failed"]) == ("CreateModel", 0, False)


def test_checkpoints_and_runs_outlive_the_server(tmp_path: Path, connect: Callable[[Lab], Raw]) -> None:
    """Another server on the same state directory lists, loads and continues; results are equal to the bit."""
    with Lab(tmp_path, poll_s=1.0) as lab:
        raw = connect(lab)
        model = raw.create_model()
        raw.train(model, 1)
        raw.step(model, 2)
        path = raw.result(raw.ok("save_weights", model_id=model, seq_id=3, path="kept"))["path"]
        raw.train(model, 4)
        raw.step(model, 5)
        expected = raw.result(raw.train(model, 6).json())
    with Lab(tmp_path, poll_s=1.0) as lab:
        raw = connect(lab)
        runs = raw.http.get("/api/v1/training_runs").json()
        assert [run["training_run_id"] for run in runs["training_runs"]] == [model]
        raw.ok("load_weights", session_id=raw.session, model_seq_id=0, path=path, optimizer=True)
        resumed = f"{raw.session}:train:0"
        raw.train(resumed, 1)
        raw.step(resumed, 2)
        assert raw.result(raw.train(resumed, 3).json()) == expected
