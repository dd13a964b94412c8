"""How is a student taught on what it says itself? An ordinary Tinker script: it knows nothing of this library.

Each step the student samples, the teacher says how likely it would have been to say the same, and the student is moved
towards that with `importance_sampling` (on-policy distillation; the loss is the reverse KL divergence per token).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import mean
from typing import Any, NamedTuple, TypeVar

import tinker
from tinker import types

T = TypeVar("T")


class Answer(NamedTuple):
    """What the student said to a prompt."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]


LESSON = "slow is not dead, and nothing hangs. "
PROMPTS = ("slow is", "nothing", "not dead", "and ", "hangs. ", "is not d")
TEACHER_STEPS = 12
TEACHER_RATE = 0.01
ATTEMPTS = 4


def insist(what: str, attempt: Callable[[], T], again: Callable[[], T] | None = None) -> T:
    """Tries again when the connection fails, as scripts do; the later attempts may differ from the first."""
    for left in reversed(range(ATTEMPTS)):
        try:
            return attempt()
        except tinker.APIConnectionError as error:
            if not left:
                raise
            print(f"retry {what} after {type(error).__name__}", flush=True)
            attempt = again or attempt
    raise AssertionError("not reached")


def all_of(what: str, submit: Callable[[Any], Any], inputs: list[Any]) -> list[Any]:
    """Submits all calls, waits for each, and makes one whose connection failed again."""
    futures = [submit(each) for each in inputs]
    return [
        insist(what, future.result, partial(resubmit, submit, each))
        for future, each in zip(futures, inputs, strict=True)
    ]


def resubmit(submit: Callable[[Any], Any], each: Any) -> Any:
    """Makes a call anew and waits for it."""
    return submit(each).result()


def connect(url: str, model: str) -> tuple[tinker.ServiceClient, tinker.TrainingClient]:
    """Makes a service client and a training client; a new service client at each attempt."""
    service = tinker.ServiceClient(base_url=url)
    return service, service.create_lora_training_client(base_model=model, rank=16, seed=1).result()


def tensor(values: list[Any], dtype: Any) -> types.TensorData:
    """Numbers as the SDK wants them."""
    return types.TensorData(data=values, dtype=dtype)


def teach(training: tinker.TrainingClient, tokens: list[int]) -> str:
    """Trains the teacher on the lesson and returns the path of its weights."""
    weights = tensor([1.0] * (len(tokens) - 1), "float32")
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tensor(tokens[1:], "int64"), "weights": weights},
    )
    for _ in range(TEACHER_STEPS):
        computed = training.forward_backward([datum], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=TEACHER_RATE)).result()
    print(f"teacher loss={computed.result().metrics['loss:sum'] / len(tokens):.3f}", flush=True)
    return str(training.save_weights_for_sampler("teacher").result().path)


def sample(sampler: tinker.SamplingClient, prompts: list[list[int]], seed: int, length: int) -> list[Answer]:
    """One answer of the student to each prompt."""

    def submit(numbered: tuple[int, list[int]]) -> Any:
        params = types.SamplingParams(max_tokens=length, temperature=1.0, seed=seed + numbered[0])
        return sampler.sample(types.ModelInput.from_ints(numbered[1]), 1, params)

    said = [response.sequences[0] for response in all_of("sample", submit, list(enumerate(prompts)))]
    return [Answer(prompt, list(one.tokens), list(one.logprobs)) for prompt, one in zip(prompts, said, strict=True)]


def grade(teacher: tinker.SamplingClient, answers: list[Answer]) -> list[list[float]]:
    """How likely the teacher finds each token of each answer: the log-probabilities."""
    texts = [types.ModelInput.from_ints(answer.prompt + answer.tokens) for answer in answers]
    scores = all_of("compute_logprobs", teacher.compute_logprobs, texts)
    return [list(score[len(answer.prompt) :]) for score, answer in zip(scores, answers, strict=True)]


def datum(answer: Answer, grades: list[float]) -> types.Datum:
    """An answer to learn from: what the teacher likes better than the student does has an advantage."""
    whole = answer.prompt + answer.tokens
    padding = [0.0] * (len(answer.prompt) - 1)
    advantages = [theirs - own for theirs, own in zip(grades, answer.logprobs, strict=True)]
    inputs = {
        "target_tokens": tensor(whole[1:], "int64"),
        "logprobs": tensor(padding + answer.logprobs, "float32"),
        "advantages": tensor(padding + advantages, "float32"),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(whole[:-1]), loss_fn_inputs=inputs)


def distill(options: argparse.Namespace) -> None:
    """Trains a teacher, then the student."""
    service, training = insist("connect", lambda: connect(options.base_url, options.model))
    tokenizer = insist("get_tokenizer", training.get_tokenizer)
    teacher = service.create_sampling_client(model_path=teach(training, tokenizer.encode(LESSON * 2))).result()

    def new_student() -> tinker.TrainingClient:
        return service.create_lora_training_client(base_model=options.model, rank=16, seed=2).result()

    student = insist("create student", new_student)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS for _ in range(options.copies)]
    for step in range(1, options.steps + 1):
        began = time.monotonic()
        sampler = student.save_weights_and_get_sampling_client().result()
        answers = sample(sampler, prompts, seed=1000 * step, length=options.length)
        grades = grade(teacher, answers)
        data = [datum(answer, grade) for answer, grade in zip(answers, grades, strict=True)]
        computed = student.forward_backward(data, "importance_sampling")
        student.optim_step(types.AdamParams(learning_rate=options.learning_rate)).result()
        computed.result()
        own = mean(value for answer in answers for value in answer.logprobs)
        reward = mean(value for grade in grades for value in grade)
        seconds = time.monotonic() - began
        kl = own - reward
        print(f"step {step}/{options.steps} kl={kl:.3f} reward={reward:.3f} seconds={seconds:.1f}", flush=True)
    print(f"saved {student.save_state('distilled').result().path}", flush=True)


def main() -> None:
    """Reads the arguments and distils."""
    parser = argparse.ArgumentParser(description="On-policy distillation.")
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--copies", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    distill(parser.parse_args())


if __name__ == "__main__":
    main()
