"""What does a type checker see of the public API? Checked by mypy in strict mode, never run."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Literal, assert_type

import tinker

import tinker_deadlines
from tinker_deadlines import (
    DEADLINE_ENV_PREFIX,
    DEFAULT_DEADLINES_S,
    AbandonedCallsError,
    Budget,
    BudgetExhaustedError,
    DeadlineExpiry,
    DeadlineFuture,
    DivergedError,
    EpisodeOutcome,
    FencedClientError,
    ForkedProcessError,
    Limit,
    OutcomePolicy,
    Policy,
    RecoveryFailedError,
    Sample,
    SessionBudgetError,
    StuckCallError,
    TinkerCallKind,
    TinkerDeadlineError,
    UntrainableGroupError,
    Work,
    await_with_deadline,
    blame_of,
    call_with_deadline,
    deadline_for,
    env_var_for,
    episode,
    episode_outcome,
    expiry_by_length,
    explain,
    group_advantages,
    guard,
    install,
    is_capacity_error,
    last_confirmed,
    outcome_for,
    policy_named,
    ready,
    ready_async,
    recoverable,
    remaining_s,
    score_episodes,
    trainable,
    uninstall,
    use_policy,
    wait_with_deadline,
)


class OwnFuture:
    """Anything with a timed `result` can be waited on."""

    def result(self, timeout: float | None = None) -> bytes:
        return b"" if timeout is None else bytes(int(timeout))


def results_keep_their_type(future: Future[int], own: OwnFuture) -> None:
    assert_type(wait_with_deadline("sample", future), int)
    assert_type(wait_with_deadline("sample", own, work=Work(prompt_tokens=7)), bytes)
    assert_type(call_with_deadline("connect", lambda: "a client"), str)
    waitable: DeadlineFuture[bytes] = own
    assert_type(waitable.result(1.0), bytes)


async def a_number() -> complex:
    return 1j


async def awaitables_keep_their_type() -> None:
    assert_type(await await_with_deadline("rest", a_number(), None), complex)


def the_sdks_futures_can_be_waited_on(
    sampler: tinker.SamplingClient, prompt: tinker.ModelInput, params: tinker.SamplingParams
) -> None:
    response = wait_with_deadline("sample", sampler.sample(prompt, 1, params))
    assert_type(response, tinker.SampleResponse)


def a_guarded_client_keeps_its_type(client: tinker.ServiceClient) -> None:
    assert_type(guard(client), tinker.ServiceClient)
    assert_type(install(), None)
    assert_type(install(share=False), None)
    assert_type(uninstall(), None)


async def fresh_weights_are_warmed(training: tinker.TrainingClient) -> float:
    sampler = training.save_weights_and_get_sampling_client()
    assert_type(ready(sampler), float)
    return await ready_async(sampler.result(), streams=4)


def kinds_are_literals(kind: TinkerCallKind) -> None:
    assert_type(deadline_for(kind, Work(datums=4, tokens=512), "a-model"), float)
    assert_type(env_var_for("optim_step"), str)
    assert_type(DEFAULT_DEADLINES_S, dict[TinkerCallKind, float])
    assert_type(DEADLINE_ENV_PREFIX, str)
    deadline_for("smaple")  # type: ignore[arg-type]
    wait_with_deadline("training", OwnFuture())  # type: ignore[arg-type]


async def budgets_are_context_managers() -> None:
    with episode(1800, name="episode 7") as outer:
        assert_type(outer, Budget)
        assert_type(outer.remaining_s(), float)
    async with episode(60.0) as inner:
        assert_type(inner, Budget)
    assert_type(remaining_s(), float)


def errors_carry_facts(error: BaseException) -> str:
    assert_type(is_capacity_error(error), bool)
    assert_type(outcome_for(error), Literal["capacity_error", "client_error"])
    if isinstance(error, DeadlineExpiry):
        assert_type(error.elapsed_s, float)
        assert_type(error.submission, Literal["not sent", "sent", "indeterminate"])
        return error.kind
    if isinstance(error, BudgetExhaustedError):
        return error.owner
    if isinstance(error, AbandonedCallsError):
        return str(error.abandoned)
    if isinstance(error, ForkedProcessError):
        return error.what
    if isinstance(error, SessionBudgetError):
        return str(error.open + error.most + error.created)
    return tinker_deadlines.__version__


def expiries_have_two_faces(ours: TinkerDeadlineError, the_sdks: StuckCallError) -> None:
    timeout: TimeoutError = ours
    connection: tinker.APIConnectionError = the_sdks
    both: list[DeadlineExpiry] = [ours, the_sdks]
    del timeout, connection, both


class Patient:
    """A policy of somebody's own."""

    name = "patient"

    def limit(self, kind: TinkerCallKind, work: Work | None, model: str | None) -> Limit:
        return Limit(3600.0, self.name)

    def learn(self, sample: Sample) -> None:
        assert_type(sample.elapsed_s, float)


def policies_can_be_ones_own() -> None:
    assert_type(use_policy(Patient()), Policy)
    assert_type(policy_named("learned"), Policy)
    assert_type(explain("sample").limit, Limit)


def episodes_have_outcomes(error: BaseException | None, policy: OutcomePolicy) -> tuple[float, ...]:
    outcome = episode_outcome(error)
    assert_type(outcome, EpisodeOutcome)
    assert_type(trainable(outcome), bool)
    assert_type(blame_of(error), Literal["call", "session", "service", "loop", "budget", "caller"] | None)
    assert_type(blame_of("infra_timeout"), Literal["call", "session", "service", "loop", "budget", "caller"] | None)
    trainable("infra_timout")  # type: ignore[arg-type]
    group_advantages([1.0, None], ["ok", outcome])  # type: ignore[call-arg]
    try:
        group = group_advantages([1.0, None], ["ok", outcome], policy=policy)
    except UntrainableGroupError as refused:
        assert_type(refused.outcomes, tuple[str, ...])
        raise
    assert_type(group.weights, tuple[float, ...])
    assert_type(score_episodes([1.0, None], ["ok", outcome]).score, float | None)
    assert_type(expiry_by_length([(4096, True)]).warning, str | None)
    return group.advantages


def a_recoverable_client_keeps_its_type(client: tinker.TrainingClient) -> None:
    assert_type(recoverable(client, checkpoint_every=10), tinker.TrainingClient)
    for confirmed in last_confirmed("run"):
        assert_type(confirmed.step, int)
        assert_type(confirmed.path, str)


def errors_of_recovery_carry_their_facts(error: Exception) -> None:
    if isinstance(error, FencedClientError):
        assert_type(error.method, str)
    if isinstance(error, RecoveryFailedError):
        assert_type(error.command, str)
    if isinstance(error, DivergedError):
        assert_type(error.step, int)
