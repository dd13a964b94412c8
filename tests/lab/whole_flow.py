"""Does every public method of an SDK work against a server? Run with that SDK's interpreter: `whole_flow.py URL`.

Imports the SDK and the standard library only. Each step prints its name; the first that fails ends the script.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TINKER_API_KEY", "tml-lab")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a tokenizer that needs the network must fail here, not hang
warnings.simplefilter("ignore")

import tinker  # noqa: E402
from tinker import types  # noqa: E402

TEXT = "Grüße, 世界! 🎈\tslow is not dead\n"
STEPS = 3


def step(name: str) -> None:
    print(f"  {name}", flush=True)


def settled(value: Any) -> Any:
    """Returns a call's result, whether this SDK version returns it or a future of it."""
    return value.result(60) if hasattr(value, "result") else value


def offered(client: Any, name: str) -> Callable[..., Any] | None:
    method: Callable[..., Any] | None = getattr(client, name, None)
    return method


def datum(tokens: list[int], **inputs: list[float]) -> types.Datum:
    tensors = {name: types.TensorData(data=values, dtype="float32") for name, values in inputs.items()}
    targets = types.TensorData(data=tokens[1:], dtype="int64")
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={"target_tokens": targets, **tensors}
    )


def cross_entropy_datum(tokens: list[int]) -> types.Datum:
    return datum(tokens, weights=[1.0] * (len(tokens) - 1))


def connect(url: str) -> tuple[Any, str]:
    service = tinker.ServiceClient(base_url=url, user_metadata={"test": "whole flow"})
    capabilities = settled(service.get_server_capabilities())
    model = os.environ.get("BASE_MODEL") or capabilities.supported_models[0].model_name
    step(f"connect, get_server_capabilities: {model}")
    return service, model


def train(training: Any, tokenizer: Any) -> list[float]:
    tokens = tokenizer.encode(TEXT)
    assert tokenizer.decode(tokens) == TEXT, "the tokenizer does not round-trip"
    data = [cross_entropy_datum(tokens), cross_entropy_datum(tokens[: len(tokens) // 2])]
    losses = []
    for _ in range(STEPS):
        computed = training.forward_backward(data, "cross_entropy")
        applied = training.optim_step(types.AdamParams(learning_rate=1e-2))
        losses.append(settled(computed).metrics["loss:sum"])
        settled(applied)
    assert losses[-1] < losses[0], f"the loss does not fall: {losses}"
    step(f"forward_backward, optim_step: loss {losses[0]:.2f} -> {losses[-1]:.2f}")
    output = settled(training.forward(data, "cross_entropy"))
    assert len(output.loss_fn_outputs) == len(data)
    own = output.loss_fn_outputs[0]["logprobs"]
    assert len(own.data) == len(tokens) - 1
    assert abs(sum(output.loss_fn_outputs[0]["elementwise_loss"].data) + sum(own.data)) < 1e-3
    step("forward")
    for loss_fn in ("importance_sampling", "ppo"):
        example = datum(tokens, logprobs=list(own.data), advantages=[1.0] * (len(tokens) - 1))
        result = settled(training.forward_backward([example], loss_fn))
        assert abs(result.metrics["loss:sum"] + len(tokens) - 1) < 1e-2, result.metrics
        step(f"forward_backward: {loss_fn}")
    settled(training.optim_step(types.AdamParams(learning_rate=1e-3)))
    return losses


def score(training: Any, tokenizer: Any) -> float:
    data = [cross_entropy_datum(tokenizer.encode(TEXT))]
    return float(settled(training.forward(data, "cross_entropy")).metrics["loss:sum"])


def save_and_load(service: Any, training: Any, tokenizer: Any, model: str) -> str:
    state = settled(training.save_state("whole-flow", ttl_seconds=7200)).path
    settled(training.save_state("whole-flow", overwrite=True))
    step(f"save_state: {state}")
    expected = score(training, tokenizer)
    resumed = settled(service.create_training_client_from_state_with_optimizer(state))
    assert score(resumed, tokenizer) == expected, "a resumed client computes something else"
    step("create_training_client_from_state_with_optimizer")
    again = settled(service.create_training_client_from_state(state))
    assert score(again, tokenizer) == expected
    step("create_training_client_from_state")
    fresh = settled(service.create_lora_training_client(base_model=model, rank=8, seed=7))
    settled(fresh.load_state(state))
    assert score(fresh, tokenizer) == expected
    other = settled(service.create_lora_training_client(base_model=model, rank=8, seed=8))
    settled(other.load_state_with_optimizer(state))
    step("load_state, load_state_with_optimizer")
    external = offered(training, "save_weights_external")
    if external is not None:
        path = settled(external("whole-flow-external")).path
        step(f"save_weights_external: {path}")
    return str(state)


def sample(sampler: Any, tokenizer: Any) -> None:
    prompt = types.ModelInput.from_ints(tokenizer.encode("slow is"))
    params = types.SamplingParams(max_tokens=12, seed=3, temperature=0.8, top_p=0.95, top_k=40, stop=["\n\n"])
    answers = [
        settled(sampler.sample(prompt, num_samples=2, sampling_params=params, include_prompt_logprobs=True))
        for _ in range(2)
    ]
    first, second = ([sequence.tokens for sequence in answer.sequences] for answer in answers)
    assert first == second, "the same seed samples something else"
    assert len(first) == 2 and first[0] != first[1]
    assert all(len(s.tokens) == len(s.logprobs) for s in answers[0].sequences)
    assert answers[0].prompt_logprobs[0] is None
    table = settled(sampler.sample(prompt, 1, params, True, 3)).topk_prompt_logprobs
    assert table[0] is None and len(table[1]) == 3
    step("sample")
    scores = settled(sampler.compute_logprobs(prompt))
    assert scores[0] is None and scores[1:] == answers[0].prompt_logprobs[1:]
    step("compute_logprobs")
    assert sampler.get_tokenizer().decode(tokenizer.encode(TEXT)) == TEXT
    assert settled(sampler.get_base_model())
    step("SamplingClient.get_tokenizer, get_base_model")


def sample_everywhere(service: Any, training: Any, tokenizer: Any, model: str) -> str:
    sample(settled(service.create_sampling_client(base_model=model)), tokenizer)
    path = str(settled(training.save_weights_for_sampler("whole-flow")).path)
    step(f"save_weights_for_sampler: {path}")
    sample(settled(service.create_sampling_client(model_path=path)), tokenizer)
    sample(settled(training.create_sampling_client(path)), tokenizer)
    ephemeral = settled(training.save_weights_and_get_sampling_client())
    sample(ephemeral, tokenizer)
    step("save_weights_and_get_sampling_client")
    sample(pickle.loads(pickle.dumps(ephemeral)), tokenizer)
    step("a pickled sampling client")
    tokens = tokenizer.encode(TEXT)
    by_training = settled(training.forward([cross_entropy_datum(tokens)], "cross_entropy"))
    by_sampling = settled(ephemeral.compute_logprobs(types.ModelInput.from_ints(tokens)))
    pairs = zip(by_training.loss_fn_outputs[0]["logprobs"].data, by_sampling[1:], strict=True)
    assert all(abs(a - b) < 1e-5 for a, b in pairs), "training and sampling disagree"
    step("training and sampling agree on log-probabilities")
    return path


def newer_sampling(service: Any, training: Any, tokenizer: Any, model: str) -> None:
    sampler = settled(service.create_sampling_client(base_model=model))
    tokens = tokenizer.encode("slow is")
    prompt, params = types.ModelInput.from_ints(tokens), types.SamplingParams(max_tokens=2, seed=1)
    names = sampler.sample.__code__.co_varnames if hasattr(sampler.sample, "__code__") else ()
    names = getattr(sampler.sample, "__wrapped__", sampler.sample).__code__.co_varnames or names
    if "topk_sample_logprobs" in names:
        answer = settled(sampler.sample(prompt, 1, params, topk_sample_logprobs=4))
        assert len(answer.sequences[0].topk_logprobs[0]) == 4
        step("sample: topk_sample_logprobs")
    if "target_prompt_logprobs" in names:
        wanted = types.TensorData(data=tokens[1:], dtype="int64", shape=[len(tokens) - 1, 1])
        answer = settled(sampler.sample(prompt, 1, params, True, target_prompt_logprobs=wanted))
        assert answer.target_prompt_logprobs.data == answer.prompt_logprobs[1:]
        step("sample: target_prompt_logprobs")
    if "prompt_alt_tokens_k" in names:
        answer = settled(sampler.sample(prompt, 1, params, prompt_alt_tokens_k=2))
        assert list(answer.prompt_alt_tokens.tokens.shape) == [len(tokens) - 1, 2]
        step("sample: prompt_alt_tokens_k")
    if "prompt_logprobs_last_n" in names:
        scores = settled(sampler.compute_logprobs(prompt, prompt_logprobs_last_n=2))
        assert [score is None for score in scores] == [True] * (len(tokens) - 2) + [False] * 2
        step("compute_logprobs: prompt_logprobs_last_n")


def manage(service: Any, training: Any, state: str, sampler_path: str) -> None:
    rest = service.create_rest_client()
    run = training.model_id
    assert run in [r.training_run_id for r in settled(rest.list_training_runs(limit=50)).training_runs]
    assert settled(rest.get_training_run(run)).lora_rank == 8
    assert settled(rest.get_training_run_by_tinker_path(state)).training_run_id == run
    assert settled(rest.get_weights_info_by_tinker_path(state)).lora_rank == 8
    paths = [c.tinker_path for c in settled(rest.list_checkpoints(run)).checkpoints]
    assert state in paths and sampler_path in paths
    assert state in [c.tinker_path for c in settled(rest.list_user_checkpoints(limit=100)).checkpoints]
    step("list and get training runs, checkpoints, weights info")
    settled(rest.set_checkpoint_ttl_from_tinker_path(state, 7200))
    settled(rest.publish_checkpoint_from_tinker_path(state))
    by_path = {c.tinker_path: c for c in settled(rest.list_checkpoints(run)).checkpoints}
    assert by_path[state].public and by_path[state].expires_at is not None
    settled(rest.unpublish_checkpoint_from_tinker_path(state))
    step("publish, unpublish, set ttl")
    session_id = service.holder.get_session_id()
    assert session_id in settled(rest.list_sessions()).sessions
    session = settled(rest.get_session(session_id))
    assert run in session.training_run_ids and session.sampler_ids
    assert settled(rest.get_sampler(session.sampler_ids[0])).base_model
    settled(rest.assign_session_project(session_id, "project"))
    assert settled(rest.export_session_trace(session_id)).startswith("http")
    step("sessions, sampler, project, trace")
    optional(rest, state)
    settled(rest.delete_checkpoint_from_tinker_path(sampler_path))
    assert sampler_path not in [c.tinker_path for c in settled(rest.list_checkpoints(run)).checkpoints]
    step("delete checkpoint")


def optional(rest: Any, state: str) -> None:
    """Calls what only some versions have."""
    if offered(rest, "get_checkpoint_archive_url_from_tinker_path"):
        assert settled(rest.get_checkpoint_archive_url_from_tinker_path(state)).url.startswith("http")
        step("checkpoint archive url")
    if offered(rest, "get_external_weights_urls"):
        path = state.replace("/weights/whole-flow", "/external_weights/whole-flow-external")
        assert settled(rest.get_external_weights_urls(path)).urls
        step("external weights urls")
    if offered(rest, "copy_weights"):
        print("   ", settled(rest.copy_weights(state, destination_project_id="project")))
        step("copy weights")
    # The SDK reads the answer from the token that a server hands out, so there must be one.
    if offered(rest, "whoami") and not os.environ.get("PLAIN_KEYS"):
        assert settled(rest.whoami()).user_urn
        step("whoami")


async def asynchronously(service: Any, training: Any, tokenizer: Any, model: str) -> None:
    sampler = await service.create_sampling_client_async(base_model=model)
    prompt = types.ModelInput.from_ints(tokenizer.encode("async"))
    params = types.SamplingParams(max_tokens=4)
    calls = [sampler.sample_async(prompt=prompt, num_samples=1, sampling_params=params) for _ in range(20)]
    assert len(await asyncio.gather(*calls)) == 20
    assert len(await sampler.compute_logprobs_async(prompt)) == len("async")
    data = [cross_entropy_datum(tokenizer.encode(TEXT))]
    computed = await training.forward_backward_async(data, "cross_entropy")
    applied = await training.optim_step_async(types.AdamParams())
    await computed, await applied
    await (await training.save_state_async("whole-flow-async"))
    step("the async methods")


def main() -> None:
    url = sys.argv[1]
    print(f"tinker {tinker.__version__} against {url}", flush=True)
    service, model = connect(url)
    training = settled(service.create_lora_training_client(base_model=model, rank=8, seed=7))
    step(f"create_lora_training_client: {training.model_id}")
    assert settled(training.get_info()).model_data.tokenizer_id
    tokenizer = training.get_tokenizer()
    step("get_info, get_tokenizer")
    train(training, tokenizer)
    state = save_and_load(service, training, tokenizer, model)
    sampler_path = sample_everywhere(service, training, tokenizer, model)
    newer_sampling(service, training, tokenizer, model)
    manage(service, training, state, sampler_path)
    asyncio.run(asynchronously(service, training, tokenizer, model))
    if offered(service, "close"):
        settled(service.close("success"))
        step("close")
    print("all of it works", flush=True)


if __name__ == "__main__":
    main()
