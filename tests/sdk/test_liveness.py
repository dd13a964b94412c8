"""Slow is not dead: what becomes of calls of the real SDK when the service is slow, silent, paused, down or forgetful.

Most durations of the watcher are scaled to a fiftieth, and calls are predicted to take 20 ms.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import tinker
from sdk_brisk import LIMIT_S, Brisk
from sdk_calls import ADAM, DATUM, KEY, PARAMS, PROMPT
from sdk_switch import Switch
from sdk_tools import settled

from tinker_deadlines import StuckCallError
from tinker_deadlines.calls import board
from tinker_deadlines.lab import Lab
from tinker_deadlines.lab.proxy import FaultProxy
from tinker_deadlines.liveness.thresholds import Thresholds
from tinker_deadlines.liveness.watcher import watcher
from tinker_deadlines.sdk.private import sdk_loop
from tinker_deadlines.sdk.probe import ask


def sampler(url: str, lab: Lab) -> Any:
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    return settled(service.create_sampling_client(base_model=lab.base_model))


def sample(client: Any) -> Any:
    return client.sample(prompt=PROMPT, num_samples=1, sampling_params=PARAMS)


WEDGE = """
[[fault]]
name = "wedge"
do = "silence_session"
path = "asample"
nth = 3
"""


def test_a_dead_session_is_convicted_with_all_its_calls_before_their_limits(
    lab: Lab, brisk: Brisk, through: Callable[[str], FaultProxy]
) -> None:
    """All of them at once, with the verdict and its evidence, while a fresh session works; nothing is learned of it."""
    brisk.limit_s = 5.0
    proxy = through(WEDGE)
    client = sampler(proxy.url, lab)
    settled(sample(client))
    settled(sample(client))
    started_at = time.monotonic()
    calls = [sample(client) for _ in range(8)]
    errors = []
    for call in calls:
        with pytest.raises(StuckCallError) as caught:
            call.result()
        errors.append(caught.value)
    assert time.monotonic() - started_at < 4.5
    assert {(error.verdict, error.blame) for error in errors} == {("session wedged", "session")}
    assert "a fresh connection did" in str(errors[0]) and "no sign of life" in str(errors[0])
    assert "suspicion" in str(errors[0])
    assert settled(sample(sampler(proxy.url, lab))) is not None
    assert {each.ended for each in brisk.samples} == {"completed"}


def test_a_call_that_shows_life_goes_on_past_its_limit(
    lab: Lab, brisk: Brisk, make_tinker_lab: Callable[..., Lab], caplog: pytest.LogCaptureFixture
) -> None:
    """Polled and answered, it is overdue, which is said once, and delivers; that it took long is learned."""
    slow = make_tinker_lab(latency="0.8", poll_s=0.2)
    training = settled(
        tinker.ServiceClient(base_url=slow.url, api_key=KEY).create_lora_training_client(slow.base_model, rank=4)
    )
    with caplog.at_level(logging.WARNING, "tinker_deadlines"):
        assert settled(training.forward_backward([DATUM], "cross_entropy")) is not None
    assert sum("is overdue" in record.getMessage() for record in caplog.records) == 1
    taught = [each for each in brisk.samples if each.kind == "forward_backward"]
    assert [each.ended for each in taught] == ["completed"] and taught[0].elapsed_s > 1.0


def test_a_call_that_shows_life_for_ever_ends_at_the_ceiling(
    lab: Lab, brisk: Brisk, through: Callable[[str], FaultProxy]
) -> None:
    """Its verdict is that the result is lost; for a training call the outcome is indeterminate."""
    proxy = through('[[fault]]\nname="lost"\ndo="future_never_completes"\npath="optim_step"\n')
    watcher.start(brisk, ask, lambda kind: 2.0)
    training = settled(
        tinker.ServiceClient(base_url=proxy.url, api_key=KEY).create_lora_training_client(lab.base_model, rank=4)
    )
    with pytest.raises(StuckCallError) as caught:
        settled(training.optim_step(ADAM))
    assert caught.value.verdict == "result lost" and caught.value.indeterminate
    assert 2.0 <= caught.value.elapsed_s < 3.0


def test_a_sample_that_the_service_has_lost_is_tried_a_second_time(
    lab: Lab, brisk: Brisk, through: Callable[[str], FaultProxy]
) -> None:
    """The second attempt's answer is the call's, through a session of its own; the first teaches nothing."""
    proxy = through('[[fault]]\nname="lost"\ndo="future_never_completes"\npath="asample"\nnth=2\n')
    client = sampler(proxy.url, lab)
    settled(sample(client))
    before = len(brisk.samples)
    started_at = time.monotonic()
    assert settled(sample(client)).sequences
    assert LIMIT_S <= time.monotonic() - started_at < LIMIT_S + 2.0
    assert brisk.samples[before:] == [] or {each.kind for each in brisk.samples[before:]} == {"connect"}
    assert not board.in_flight


def test_one_that_hangs_among_many_is_found_by_its_own_clock(
    lab: Lab, brisk: Brisk, through: Callable[[str], FaultProxy]
) -> None:
    """99 answer; the one whose request is never answered ends at its limit, and its session is not blamed."""
    # A hundred at once keep a machine busy for longer than the others' thresholds.
    watcher.thresholds = Thresholds()
    brisk.limit_s = 5.0
    proxy = through('[[fault]]\nname="hang"\ndo="never_answers"\npath="asample"\nnth=50\n')
    client = sampler(proxy.url, lab)
    calls = [sample(client) for _ in range(100)]
    outcomes = []
    for call in calls:
        try:
            outcomes.append(call.result())
        except StuckCallError as error:
            outcomes.append(error)
    errors = [each for each in outcomes if isinstance(each, StuckCallError)]
    assert len(errors) == 1 and errors[0].verdict == "result lost" and errors[0].blame == "call"


def test_a_paused_service_ends_no_call(
    lab: Lab, brisk: Brisk, through: Callable[[str], FaultProxy], caplog: pytest.LogCaptureFixture
) -> None:
    """While it says "paused" the clock stands still, for as many limits as it likes; a long pause is noticed."""
    proxy = through(
        '[[fault]]\nname="pause"\ndo="try_again"\npath="retrieve_future"\nfor_s=3\nqueue_state="paused_capacity"\n'
    )
    client = sampler(proxy.url, lab)
    with caplog.at_level(logging.WARNING, "tinker_deadlines"):
        assert settled(sample(client)).sequences
    assert any("paused 1 calls" in record.getMessage() for record in caplog.records)
    assert [each for each in brisk.samples if each.kind == "sample" and each.elapsed_s > 1.5] == []


def test_an_outage_is_waited_for(lab: Lab, brisk: Brisk, switch: Switch) -> None:
    """Nobody is answered: no call is convicted; at the ceiling its error blames the service."""
    watcher.start(brisk, ask, lambda kind: 5.0)
    brisk.limit_s = 2.0
    client = sampler(switch.url, lab)
    settled(sample(client))
    switch.mode = "silent"
    with pytest.raises(StuckCallError) as caught:
        settled(sample(client))
    assert caught.value.verdict == "outage" and caught.value.blame == "service"
    assert caught.value.elapsed_s >= 5.0


def test_a_loop_that_is_blocked_is_named_with_its_stack(lab: Lab, brisk: Brisk) -> None:
    """Starting anew cannot help, so nothing is: the error says where the loop stands."""
    client = sampler(lab.url, lab)
    settled(sample(client))
    loop, gate = sdk_loop(), threading.Event()
    assert loop is not None

    def in_the_way() -> None:
        gate.wait(10)

    loop.call_soon_threadsafe(in_the_way)
    try:
        with pytest.raises(StuckCallError) as caught:
            sample(client).result()
    finally:
        gate.set()
    assert caught.value.verdict == "loop blocked" and caught.value.blame == "loop"
    assert "in_the_way" in str(caught.value)


def test_a_persons_number_is_obeyed_exactly(
    lab: Lab, brisk: Brisk, limits: Any, make_tinker_lab: Callable[..., Lab]
) -> None:
    """However much life the call shows."""
    slow = make_tinker_lab(latency="6", poll_s=0.1)
    client = sampler(slow.url, slow)
    limits(sample=0.4)
    with pytest.raises(StuckCallError) as caught:
        settled(sample(client))
    assert 0.4 <= caught.value.elapsed_s < 2.0 and caught.value.verdict is None
