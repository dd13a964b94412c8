"""Fault rules: what a file may say, what it is told when it is wrong, and which requests a rule takes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinker_deadlines.lab import faults as rules
from tinker_deadlines.lab.attribution import Attribution, Facts
from tinker_deadlines.lab.faults import Faults, Nth, Rule
from tinker_deadlines.lab.matcher import CONNECTION, Matcher, selects

SUBMIT = Facts("POST", "/api/v1/asample", kind="sample", phase="submit", session="s-1", session_ordinal=1)
JSON_BODY = {"content-type": "application/json"}


def poll(request_id: str, session: str = "s-1") -> Facts:
    return Facts("POST", "/api/v1/retrieve_future", kind="sample", phase="poll", session=session, request_id=request_id)


def one(text: str) -> Rule:
    (rule,) = Faults.from_toml("[[fault]]\n" + text).rules
    return rule


def matcher(text: str) -> Matcher:
    return Matcher(Faults.from_toml("[[fault]]\n" + text))


def fired(of: Matcher, count: int, facts: Facts = SUBMIT, now_s: float = 0.0) -> list[int]:
    """The ordinals, from 1, of the requests that a rule took."""
    return [ordinal for ordinal in range(1, count + 1) if of.decide(facts, now_s) is not None]


# --- files ------------------------------------------------------------------------------------------------------------


def test_every_key_is_read() -> None:
    """A rule with every common key comes out as the value it describes."""
    rule = one(
        'name = "slow"\ndo = "delay"\ndelay_s = 2\npath = "asample"\nkind = "sample"\nphase = "submit"\n'
        'session = 1\nmodel = "Qwen/*"\nnth = [1, 3]\nprobability = 0.5\nseed = 7\nafter = 2\nfrom_s = 1\n'
        "until_s = 9.5\ntimes = 3"
    )
    assert rule == Rule(
        name="slow",
        action=rules.Delay(delay_s=2.0),
        path="asample",
        kind="sample",
        phase="submit",
        session=1,
        model="Qwen/*",
        nth=Nth(((1, 1), (3, 3))),
        probability=0.5,
        seed=7,
        after=2,
        from_s=1.0,
        until_s=9.5,
        times=3,
    )


NEEDED = {"delay": "delay_s = 1", "try_again": "for_s = 1", "status": "status = 503"}


@pytest.mark.parametrize("do", sorted(rules.ACTIONS))
def test_every_action_can_be_written_with_its_needed_keys_alone(do: str) -> None:
    """Each action needs at most one key of its own; all the others have defaults."""
    assert one(f'do = "{do}"\n{NEEDED.get(do, "")}').action.do == do


@pytest.mark.parametrize("do", sorted(NEEDED))
def test_a_missing_needed_key_is_named(do: str) -> None:
    """A rule without the key that its action needs says which one is missing."""
    with pytest.raises(ValueError, match=f"rule 1: key '{NEEDED[do].split()[0]}' is missing; do = '{do}' needs it"):
        one(f'do = "{do}"')


def test_a_body_written_as_a_table_is_sent_as_json() -> None:
    """`body` takes a text as it is, and a table as JSON."""
    action = one('do = "status"\nstatus = 429\nheaders = {Retry-After = 2}\nbody = {detail = "later"}').action
    assert action == rules.Status(status=429, headers=(("Retry-After", "2"),), body='{"detail": "later"}')


BAD = {
    "typo in key": ('do = "delay"\ndely_s = 1', "unknown key 'dely_s' (value 1); did you mean 'delay_s'?"),
    "key of another action": ('do = "reset"\ndelay_s = 1', "does not go with do = 'reset'; it goes with delay"),
    "typo in action": ('do = "never_answer"', "key 'do' is 'never_answer', but must be one of"),
    "near action": ('do = "never_answer"', "did you mean 'never_answers'?"),
    "no action": ('path = "asample"', "key 'do' is missing"),
    "unknown kind": ('do = "reset"\nkind = "sampel"', "key 'kind' is 'sampel', but must be one of sample,"),
    "nth of zero": ('do = "reset"\nnth = 0', "key 'nth' is 0, but must be a whole number from 1"),
    "nth backwards": ('do = "reset"\nnth = "5..3"', "key 'nth' is '5..3', but must be"),
    "nth of truth": ('do = "reset"\nnth = true', "key 'nth' is True, but must be"),
    "empty nth": ('do = "reset"\nnth = []', "key 'nth' is [], but must be"),
    "probability": ('do = "reset"\nprobability = 1.5', "key 'probability' is 1.5, but must be a number from 0 to 1"),
    "nan": ('do = "delay"\ndelay_s = nan', "key 'delay_s' is nan, but must be a number of seconds, 0 or more"),
    "infinity": ('do = "delay"\ndelay_s = inf', "key 'delay_s' is inf, but must be"),
    "negative": ('do = "delay"\ndelay_s = -1', "key 'delay_s' is -1, but must be"),
    "status": ('do = "status"\nstatus = 99', "key 'status' is 99, but must be a number from 200 to 599"),
    "header": ('do = "status"\nstatus = 500\nheaders = {"a b" = "c"}', "key 'headers' is"),
    "split": ('do = "status"\nstatus = 500\nheaders = {a = "b\\r\\nc"}', "key 'headers' is"),
    "framing": ('do = "status"\nstatus = 500\nheaders = {Content-Length = 3}', "key 'headers' is"),
    "date as body": ('do = "status"\nstatus = 500\nbody = [2026-01-01]', "key 'body' is"),
    "window": ('do = "reset"\nfrom_s = 3\nuntil_s = 2', "'until_s' is 2, but must be later than 'from_s', which is 3"),
    "until": ('do = "reset"\nuntil = "noon"', "key 'until' is 'noon', but must be 'healed'"),
    "healed and times": ('do = "reset"\nuntil = "healed"\ntimes = 2', "excludes 'times'"),
    "accept with kind": ('do = "accepts_silent"\nkind = "sample"', "'accepts_silent' reads no body to know it"),
    "queue state": ('do = "try_again"\nfor_s = 1\nqueue_state = "idle"', "key 'queue_state' is 'idle', but must be"),
    "session": ('do = "reset"\nsession = 0', "key 'session' is 0, but must be a session id"),
    "long value": ('do = "' + "x" * 500 + '"', "xxx..., but must be one of"),
}  # fmt: skip


@pytest.mark.parametrize("text, message", BAD.values(), ids=BAD.keys())
def test_rubbish_is_answered_with_one_plain_sentence(text: str, message: str) -> None:
    """An error names the file, the rule, the key, the value and what would be allowed, on one line."""
    with pytest.raises(ValueError) as raised:
        Faults.from_toml(f'[[fault]]\nname = "mine"\n{text}', source="f.toml")
    said = str(raised.value)
    assert said.startswith("f.toml: rule 'mine': ")
    assert message in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "text, message",
    [
        ("x =", "not valid TOML"),
        ("x = " + "[" * 5000, "f.toml: not "),
        ("faults = 1", "unknown key 'faults' (value 1); rules are written as [[fault]] tables"),
        ("fault = 1", "rules are written as [[fault]] tables"),
        ("fault = [1]", "rules are written as [[fault]] tables"),
        ('[[fault]]\nname="a"\ndo="reset"\n[[fault]]\nname="a"\ndo="reset"', "two fault rules are named 'a'"),
        ('[[fault]]\nname=3\ndo="reset"', "rule 1: key 'name' is 3"),
    ],
)
def test_a_file_that_holds_no_rules_says_so(text: str, message: str) -> None:
    """Broken TOML and foreign tables are refused with the name of the file."""
    with pytest.raises(ValueError) as raised:
        Faults.from_toml(text, source="f.toml")
    assert message in str(raised.value)
    assert str(raised.value).startswith("f.toml: ")


@given(st.text(max_size=80))
def test_any_text_is_either_rules_or_a_value_error(text: str) -> None:
    """No text makes reading fail in any other way."""
    try:
        Faults.from_toml(text)
    except ValueError as error:
        assert "\n" not in str(error).removeprefix("fault file: ") or "not valid TOML" in str(error)


@given(
    st.sampled_from([*rules._COMMON, *rules._OF_ACTIONS]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers(), max_size=3),
    st.sampled_from(sorted(rules.ACTIONS)),
)
def test_any_value_of_any_key_is_either_taken_or_a_value_error(key: str, value: object, do: str) -> None:
    """No value of any TOML type makes a check fail in any other way."""
    table = {"do": do, "delay_s": 1} if do == "delay" else {"do": do}
    try:
        rules._rule_of({**table, key: value}, "r")
    except ValueError as error:
        assert "key" in str(error)


def test_files_are_read_and_named(tmp_path: Path) -> None:
    """A file that is missing, or not text, is a ValueError that begins with its path."""
    good, binary = tmp_path / "good.toml", tmp_path / "binary.toml"
    good.write_text('[[fault]]\ndo = "reset"')
    binary.write_bytes(b"\xff\xfe")
    assert len(Faults.from_file(good).rules) == 1
    with pytest.raises(ValueError, match=r"missing.toml: cannot read the fault file: No such file"):
        Faults.from_file(tmp_path / "missing.toml")
    with pytest.raises(ValueError, match=r"binary.toml: not valid TOML: byte 0 is not UTF-8"):
        Faults.from_file(binary)


EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "faults").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_of_the_documentation_are_valid(path: Path) -> None:
    """Every file under docs/faults reads, and holds at least one rule."""
    assert Faults.from_file(path).rules


def test_there_are_examples() -> None:
    """The documentation ships example files."""
    assert len(EXAMPLES) >= 10


def test_every_action_is_in_an_example() -> None:
    """Each action is shown at work in at least one example file."""
    shown = {rule.action.do for path in EXAMPLES for rule in Faults.from_file(path).rules}
    assert shown == set(rules.ACTIONS)


# --- which ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern, path, matches",
    [
        ("asample", "/api/v1/asample", True),
        ("/api/v1/asample", "/api/v1/asample", True),
        ("sample", "/api/v1/asample", False),
        ("save_weights", "/api/v1/save_weights_for_sampler", False),
        ("save_weights*", "/api/v1/save_weights_for_sampler", True),
        ("auth/token", "/api/v1/auth/token", True),
        ("sessions/*/finish", "/api/v1/sessions/abc/finish", True),
        ("/api/*/asample", "/api/v1/asample", True),
    ],
)
def test_path_is_a_suffix_of_whole_segments_or_a_glob(pattern: str, path: str, matches: bool) -> None:
    """A plain path must match whole segments from the right; a glob may match the whole path or such a suffix."""
    assert selects(Rule(name="r", action=rules.Reset(), path=pattern), Facts("POST", path)) is matches


@pytest.mark.parametrize(
    "text, matches",
    [
        ("session = 1", True),
        ("session = 2", False),
        ('session = "s-*"', True),
        ('session = "s-2"', False),
        ('model = "s-1:train:0"', True),
        ('model = "Qwen/Qwen3-32B"', True),
        ('model = "Qwen/*"', True),
        ('model = "meta*"', False),
        ('phase = "poll"', False),
        ('kind = "sample"', True),
        ('kind = "rest"', False),
    ],
)
def test_a_rule_selects_by_session_model_phase_and_kind(text: str, matches: bool) -> None:
    """Sessions are named by id, glob or ordinal; models by id or by the name of their base."""
    facts = Facts(
        "POST",
        "/api/v1/asample",
        kind="sample",
        phase="submit",
        session="s-1",
        session_ordinal=1,
        model="s-1:train:0",
        base_model="Qwen/Qwen3-32B",
    )
    assert selects(one(f'do = "reset"\n{text}'), facts) is matches


@pytest.mark.parametrize(
    "do, path, matches",
    [
        ("auth_blackhole", "/api/v1/auth/token", True),
        ("auth_blackhole", "/api/v1/asample", False),
        ("refuse_heartbeat", "/api/v1/session_heartbeat", True),
        ("refuse_heartbeat", "/api/v1/telemetry", False),
    ],
)
def test_an_action_for_one_endpoint_takes_no_other(do: str, path: str, matches: bool) -> None:
    """`auth_blackhole` and `refuse_heartbeat` need no path: they know theirs."""
    assert selects(one(f'do = "{do}"'), Facts("POST", path)) is matches


def test_a_session_can_be_silenced_only_by_a_request_that_has_one() -> None:
    """`silence_session` does not count requests whose session is unknown."""
    silence = matcher('do = "silence_session"\nnth = 1')
    assert silence.decide(Facts("GET", "/api/v1/healthz"), 0.0) is None
    assert silence.decide(SUBMIT, 0.0) is not None


# --- how often and when -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", [1, 2, 3, 4, 5, 6]),
        ("nth = 3", [3]),
        ("nth = [1, 4]", [1, 4]),
        ('nth = "3.."', [3, 4, 5, 6]),
        ('nth = "2..3"', [2, 3]),
        ("after = 4", [5, 6]),
        ("times = 2", [1, 2]),
        ("after = 1\ntimes = 2", [2, 3]),
        ('nth = 3\nuntil = "healed"', [3, 4, 5, 6]),
        ("probability = 0.0", []),
    ],
)
def test_counting(text: str, expected: list[int]) -> None:
    """`nth` counts matching requests, `after` passes the first, `times` bounds, `until = "healed"` goes on."""
    assert fired(matcher(f'do = "reset"\n{text}'), 6) == expected


@given(
    st.lists(st.booleans(), max_size=40),
    st.integers(0, 5),
    st.integers(1, 5),
    st.sets(st.integers(1, 20), min_size=1, max_size=5),
)
def test_only_matching_requests_are_counted(matching: list[bool], after: int, times: int, nth: set[int]) -> None:
    """Requests that a rule does not select change nothing in what it does to those that it selects."""
    text = f'do = "reset"\npath = "asample"\nafter = {after}\ntimes = {times}\nnth = {sorted(nth)}'
    mixed, other = matcher(text), Facts("POST", "/api/v1/optim_step")
    taken = [mixed.decide(SUBMIT if one_matches else other, 0.0) is not None for one_matches in matching]
    seen = 0
    expected: list[bool] = []
    for one_matches in matching:
        seen += one_matches
        expected.append(one_matches and seen in nth and seen > after and sum(expected) < times)
    assert taken == expected


@given(st.floats(0, 1), st.integers(0, 2**40), st.integers(0, 60))
def test_chance_is_a_function_of_the_seed(probability: float, seed: int, count: int) -> None:
    """The same seed takes the same requests, however often it is asked, and after a reset."""
    text = f'do = "reset"\nprobability = {probability!r}\nseed = {seed}'
    first, second = matcher(text), matcher(text)
    taken = fired(first, count)
    first.reset()
    assert taken == fired(second, count) == fired(first, count)


@given(st.integers(0, 2**32))
def test_a_higher_probability_takes_all_that_a_lower_one_takes(seed: int) -> None:
    """With one seed, raising the probability only adds requests."""
    low, high = (fired(matcher(f'do = "reset"\nseed = {seed}\nprobability = {p}'), 40) for p in (0.2, 0.6))
    assert set(low) <= set(high)


def test_probability_is_about_the_share_of_requests_taken() -> None:
    """Of 4,000 requests, a probability of 0.25 takes a quarter, give or take four standard deviations."""
    share = len(fired(matcher('do = "reset"\nprobability = 0.25\nseed = 1'), 4000)) / 4000
    assert abs(share - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 4000)


def test_a_window_opens_and_closes() -> None:
    """Outside `from_s` to `until_s` nothing is done, though requests are counted."""
    windowed = matcher('do = "reset"\nfrom_s = 1\nuntil_s = 2\nnth = "3.."')
    assert [windowed.decide(SUBMIT, now_s) is not None for now_s in (0.0, 1.0, 1.5, 1.9, 2.0)] == [
        False, False, True, True, False,
    ]  # fmt: skip


def test_the_first_rule_of_the_file_is_done_and_all_count() -> None:
    """A request taken by one rule still counts for the rules behind it."""
    both = Matcher(
        Faults.from_toml('[[fault]]\nname="a"\ndo="reset"\nnth=1\n[[fault]]\nname="b"\ndo="never_answers"\nnth=[1,2]')
    )
    names = [rule.name if (rule := both.decide(SUBMIT, 0.0)) else None for _ in range(3)]
    assert names == ["a", "b", None]


def test_a_connection_is_decided_on_before_its_requests() -> None:
    """`accepts_silent` counts connections; with `path` it counts heads; it never counts whole requests."""
    bare, with_path = matcher('do = "accepts_silent"\nnth = 2'), matcher('do = "accepts_silent"\npath = "asample"')
    assert [bare.decide(CONNECTION, 0.0, "connection") is not None for _ in range(3)] == [False, True, False]
    assert bare.decide(SUBMIT, 0.0) is None
    assert with_path.decide(CONNECTION, 0.0, "connection") is None
    assert with_path.decide(SUBMIT, 0.0, "head") is not None


# --- what is held -----------------------------------------------------------------------------------------------------


def test_a_silent_session_stays_silent_and_no_other_does() -> None:
    """Once silenced, every request of the session is taken, whatever its path; other sessions are not."""
    silence = matcher('do = "silence_session"\npath = "asample"\nnth = 1')
    heartbeat = Facts("POST", "/api/v1/session_heartbeat", session="s-1")
    assert silence.decide(heartbeat, 0.0) is None
    assert silence.decide(SUBMIT, 0.0) is not None
    assert silence.decide(heartbeat, 1.0) is not None
    assert silence.decide(Facts("POST", "/api/v1/session_heartbeat", session="s-2"), 1.0) is None


def test_healing_ends_what_is_held() -> None:
    """A healed rule takes nothing any more and lets go of its sessions; healing twice ends nothing twice."""
    silence = matcher('name = "gone"\ndo = "silence_session"')
    assert silence.decide(SUBMIT, 0.0) is not None
    assert silence.heal("gone") == ["gone"]
    assert silence.heal() == []
    assert silence.decide(SUBMIT, 0.0) is None


def test_healing_an_unknown_rule_names_the_near_one() -> None:
    """The error says which rules there are."""
    with pytest.raises(ValueError, match=r"no rule is named 'gon'; did you mean 'gone'\? known are gone"):
        matcher('name = "gone"\ndo = "reset"').heal("gon")


def test_a_silence_with_an_end_ends() -> None:
    """`until_s` bounds what is held, not only what is taken."""
    silence = matcher('do = "silence_session"\nuntil_s = 5')
    assert silence.decide(SUBMIT, 4.0) is not None
    assert silence.decide(SUBMIT, 4.9) is not None
    assert silence.decide(SUBMIT, 5.0) is None


def test_try_again_counts_futures_and_holds_each_from_its_first_poll() -> None:
    """The second future polled is held for two seconds from then; its polls do not count again, nor do the first's."""
    again = matcher('do = "try_again"\nfor_s = 2\nnth = 2')
    asked = [("a", 0.0), ("a", 0.1), ("b", 1.0), ("a", 1.1), ("b", 2.9), ("b", 3.0), ("c", 3.0)]
    assert [again.decide(poll(future), now_s) is not None for future, now_s in asked] == [
        False, False, True, False, True, False, False,
    ]  # fmt: skip


def test_a_held_future_is_held_for_ever_or_until_healed() -> None:
    """`future_never_completes` takes a submission; the polls of its future are taken from then on."""
    never = matcher('name = "lost"\ndo = "future_never_completes"\nnth = 1')
    rule = never.decide(SUBMIT, 0.0)
    assert rule is not None
    never.hold_future("f-1", rule)
    assert never.decide(poll("f-1"), 1e9) is rule
    assert never.decide(poll("f-2"), 1.0) is None
    never.heal("lost")
    assert never.decide(poll("f-1"), 1.0) is None


# --- attribution ------------------------------------------------------------------------------------------------------


def facts_of(known: Attribution, path: str, body: dict[str, object]) -> Facts:
    return known.facts("POST", f"/api/v1/{path}", JSON_BODY, json.dumps(body).encode())


@pytest.mark.parametrize(
    "path, body, kind",
    [
        ("asample", {"prompt_logprobs": False}, "sample"),
        ("asample", {"prompt_logprobs": True, "sampling_params": {"max_tokens": 1}}, "compute_logprobs"),
        ("asample", {"prompt_logprobs": True, "sampling_params": {"max_tokens": 16}}, "sample"),
        ("forward_backward", {}, "forward_backward"),
        ("save_weights_external", {}, "save_state"),
        ("load_weights", {}, "load_state"),
        ("create_model", {}, "connect"),
        ("session_heartbeat", {}, "rest"),
        ("sessions/s-1/finish", {}, "rest"),
    ],
)
def test_the_kind_comes_from_path_and_body(path: str, body: dict[str, object], kind: str) -> None:
    """Each endpoint belongs to one call kind; `compute_logprobs` is told from `sample` by what it asks for."""
    assert facts_of(Attribution(), path, body).kind == kind


def test_a_poll_of_an_unknown_future_gets_its_kind_from_the_header() -> None:
    """The SDK names the request type in a header of each poll."""
    headers = {**JSON_BODY, "x-tinker-request-type": "SaveWeights"}
    assert Attribution().facts("POST", "/api/v1/retrieve_future", headers, b"{}").kind == "save_state"


def test_ids_lead_back_to_their_session() -> None:
    """Models, sampling sessions and futures with opaque ids are attributed to the session that they came from."""
    known = Attribution()
    known.learn(facts_of(known, "create_session", {}), b'{"session_id": "S"}')
    known.learn(facts_of(known, "create_model", {"session_id": "S", "base_model": "tiny"}), b'{"request_id": "r0"}')
    made = facts_of(known, "retrieve_future", {"request_id": "r0"})
    known.learn(made, b'{"model_id": "M"}')
    known.learn(facts_of(known, "create_sampling_session", {"session_id": "S"}), b'{"sampling_session_id": "P"}')
    known.learn(facts_of(known, "asample", {"sampling_session_id": "P"}), b'{"request_id": "r1"}')
    step, sampled = (
        facts_of(known, "optim_step", {"model_id": "M"}),
        facts_of(known, "retrieve_future", {"request_id": "r1"}),
    )
    batch = facts_of(known, "retrieve_futures", {"target": {"sampling_session_id": "P"}})
    assert (made.kind, made.phase, made.session) == ("connect", "poll", "S")
    assert (step.session, step.session_ordinal, step.base_model) == ("S", 1, "tiny")
    assert (sampled.kind, sampled.session) == ("sample", "S")
    assert (batch.session, batch.phase) == ("S", "poll")


def test_the_id_scheme_helps_where_nothing_was_learned() -> None:
    """`session:train:n` and `session:sample:n` name their session themselves, in bodies and in paths."""
    known = Attribution()
    assert facts_of(known, "optim_step", {"model_id": "S:train:0"}).session == "S"
    assert facts_of(known, "retrieve_future", {"request_id": "S:sample:0:7"}).session == "S"
    assert known.facts("GET", "/api/v1/samplers/S%3Asample%3A0", {}, b"").session == "S"
    assert known.facts("POST", "/api/v1/sessions/S/finish", {}, b"").session == "S"


@pytest.mark.parametrize("compressed", [False, True])
def test_the_model_of_a_protobuf_body_is_read(compressed: bool) -> None:
    """A forward_backward request is protobuf, zstd-compressed or not; its first field is the model id."""
    pb = pytest.importorskip("tinker.proto.tinker_public_pb2")
    zstandard = pytest.importorskip("zstandard")
    body = pb.ForwardBackwardRequest(model_id="S:train:3", seq_id=4, loss_fn="ppo").SerializeToString()
    headers = {"content-type": "application/x-protobuf"}
    if compressed:
        headers["content-encoding"], body = "zstd", zstandard.ZstdCompressor().compress(body)
    facts = Attribution().facts("POST", "/api/v1/forward_backward", headers, body)
    assert (facts.model, facts.session) == ("S:train:3", "S")


def test_ids_behind_a_long_prompt_are_found() -> None:
    """A body too large to be parsed is searched; the sampling session stands behind the prompt."""
    body: dict[str, object] = {"prompt": list(range(50_000)), "sampling_session_id": "S:sample:1"}
    assert facts_of(Attribution(), "asample", body).session == "S"


def test_metadata_does_not_name_the_session() -> None:
    """Only the members of the request itself count, not what a person put into its metadata."""
    body: dict[str, object] = {"session_id": "S", "user_metadata": {"session_id": "other", "model_id": "x:train:1"}}
    facts = facts_of(Attribution(), "create_model", body)
    assert (facts.session, facts.model) == ("S", None)


@given(st.binary(max_size=64), st.sampled_from(["", "gzip", "zstd", "br", "deflate"]), st.booleans())
def test_attribution_survives_any_body(body: bytes, encoding: str, proto: bool) -> None:
    """Broken bodies are the server's to refuse; here they are merely unattributed."""
    headers = {"content-encoding": encoding, "content-type": "application/x-protobuf" if proto else "application/json"}
    known = Attribution()
    known.learn(known.facts("POST", "/api/v1/forward_backward", headers, body), body)


def test_the_documentation_shows_the_examples_as_they_are() -> None:
    """docs/lab.md repeats each example file word for word, its comment as text, and names every key and action."""
    page = (Path(__file__).parents[2] / "docs" / "lab.md").read_text(encoding="utf-8")
    for path in EXAMPLES:
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = " ".join(line[2:] for line in lines if line.startswith("# "))
        body = "\n".join(line for line in lines if not line.startswith("# ")).strip()
        assert f"**`{path.name}`.** {comment}\n\n```toml\n{body}\n```" in page
    for key in [*rules._COMMON, *rules._OF_ACTIONS, *rules.ACTIONS]:
        assert f"`{key}`" in page or f"{key} = " in page, key
