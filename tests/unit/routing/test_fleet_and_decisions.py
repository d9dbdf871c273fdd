"""What a router knows, what it decides about a request, and what it says of both."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Iterator
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st
from routing_world import a_pod, a_route, a_server

from modelyard.objects import Key, Pod
from modelyard.objects.parse import pod as parse_pod
from modelyard.routing import body, objects
from modelyard.routing.decide import MOST_SESSIONS, Arrival, Decider, Forward, Question, most_attempts, pause
from modelyard.routing.errors import ErrorAnswer
from modelyard.routing.explain import explain
from modelyard.routing.fleet import FleetChange, RoutedFleet
from modelyard.routing.schedule import EngineGauges, RoutedPod

GROUPS = {"groupKey": "g", "prefillLabels": {"role": "p"}, "decodeLabels": {"role": "d"}}


class Told:
    """A fleet and the objects it was told of, in the namespace ``shop``."""

    def __init__(self, fleet: RoutedFleet) -> None:
        self.fleet = fleet
        self.routes: dict[str, objects.Route] = {}
        self.servers: dict[str, objects.Server] = {}
        self.pods: dict[str, Pod] = {}

    def put(self, *found: dict[str, Any]) -> FleetChange:
        for one in found:
            name = one["metadata"]["name"]
            if one["kind"] == "ModelRoute":
                self.routes[name] = objects.route(one)
            elif one["kind"] == "ModelServer":
                self.servers[name] = objects.server(one)
            else:
                self.pods[name] = parse_pod(one)
        return self.update()

    def update(self) -> FleetChange:
        servers, pods = tuple(self.servers.values()), tuple(self.pods.values())
        return self.fleet.update(tuple(self.routes.values()), lambda _: servers, lambda _: pods, ["shop"])


def pod(name: str, ip: str = "10.0.0.1", **more: Any) -> dict[str, Any]:
    found = a_pod(name, **more)
    found["status"]["podIP"] = ip
    return found


def names(fleet: RoutedFleet, server: str = "server") -> list[str]:
    return [one.key.name for one in fleet.backends[Key("shop", server)].pods]


def asked(path: str = "/v1/chat/completions", headers: dict[str, str] | None = None, **data: Any) -> Arrival:
    given = {"model": "llama", "messages": [{"role": "user", "content": "hello"}], **data}
    return Arrival("POST", path, headers or {}, orjson.dumps(given))


def forwarded(decider: Decider, arrival: Arrival) -> Forward:
    question = decider.question(arrival)
    assert isinstance(question, Question), question
    destination = decider.destination(question)
    assert not isinstance(destination, ErrorAnswer), destination
    found = decider.forward(question, destination, 0.0)
    assert isinstance(found, Forward), found
    return found


def test_of_a_request_under_way_hardly_more_is_kept_than_its_bytes() -> None:
    arrival = asked(user=[0.5] * 200_000, messages=[{"role": "user", "content": "\U0001f600" + "x" * 2_000_000}])
    tracemalloc.start()
    try:
        question = Decider().question(arrival)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(question, Question)
    assert question.tokens > 500_000
    assert kept < 200_000


@pytest.mark.parametrize(
    "found",
    [
        pod("p", ready=False),
        pod("p", phase="Pending"),
        pod("p", deleting=True),
        pod("p", ip=""),
        pod("p", app="other"),
    ],
    ids=["not ready", "pending", "deleted", "no address", "other labels"],
)
def test_pods_that_get_no_request(found: dict[str, Any]) -> None:
    told = Told(RoutedFleet())
    told.put(a_route(), a_server(), pod("good"), found)
    assert names(told.fleet) == ["good"]


def test_a_pod_keeps_what_is_known_of_it_until_it_is_another_process() -> None:
    told = Told(RoutedFleet())
    assert told.put(a_route(), a_server(), pod("p")).served == {Key("shop", "server")}
    (before,) = told.fleet.backends[Key("shop", "server")].pods
    before.outstanding = 3
    assert told.put(a_server("other", app="x")).gone == ()
    assert told.fleet.backends[Key("shop", "server")].pods == (before,)
    restarted = pod("p")
    restarted["status"]["containerStatuses"] = [{"state": {"running": {"startedAt": "2026-01-01T02:00:00Z"}}}]
    assert told.put(restarted).gone == ((Key("shop", "server"), before),)
    assert told.fleet.backends[Key("shop", "server")].pods[0].outstanding == 0
    told.pods.clear()
    assert [one.key.name for _, one in told.update().gone] == ["p"]
    told.servers.clear()
    told.update()
    assert told.fleet.backends == {}


def test_labels_that_drift_away_and_groups_that_change_are_followed() -> None:
    told = Told(RoutedFleet())
    told.put(a_server(groups=GROUPS), pod("p", app="llama", g="0", role="p"), pod("d", app="llama", g="0", role="d"))
    backend = told.fleet.backends[Key("shop", "server")]
    assert [one.key.name for one in (*backend.prefill, *backend.decode)] == ["p", "d"]
    told.put(pod("d", app="llama", g="", role="d"))
    assert told.fleet.backends[Key("shop", "server")].serving == ()
    told.put(pod("p", app="gone"))
    assert names(told.fleet) == ["d"]


def test_an_ipv6_pod_has_brackets() -> None:
    told = Told(RoutedFleet())
    told.put(a_server(), pod("p", "fd00::1"))
    assert told.fleet.backends[Key("shop", "server")].pods[0].url == "http://[fd00::1]:8000"


ROUTES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["m", "n"]), st.booleans()), max_size=12)


@given(ROUTES)
def test_step_by_step_or_at_once_the_table_is_the_same(steps: list[tuple[str, str, bool]]) -> None:
    told, at_once = Told(RoutedFleet()), Told(RoutedFleet())
    for age, (name, model, there) in enumerate(steps):
        if there:
            told.put(a_route(name, model, age=age))
        else:
            told.routes.pop(name, None)
            told.update()
    at_once.routes = told.routes
    at_once.update()
    assert told.fleet.table == at_once.fleet.table


@pytest.mark.parametrize(
    ("arrival", "status", "code"),
    [
        (asked("/v1/load_lora_adapter"), 404, "unknown_url"),
        (asked("/v1/chat/completions/"), 404, "unknown_url"),
        (asked()._replace(method="PUT"), 405, "method_not_allowed"),
        (asked(headers={"content-encoding": "br"}), 415, "unsupported_encoding"),
        (asked(model=3), 400, None),
        (asked()._replace(headers={"content-type": "multipart/form-data"}), 400, None),
    ],
)
def test_what_is_not_understood(arrival: Arrival, status: int, code: str | None) -> None:
    found = Decider().question(arrival)
    assert isinstance(found, ErrorAnswer)
    assert (found.status, found.code) == (status, code)


def test_from_the_name_to_the_bytes() -> None:
    decider = Decider(random=Random(1))
    told = Told(decider.fleet)
    question = decider.question(asked())
    assert isinstance(question, Question)
    missing = decider.destination(question)
    assert isinstance(missing, ErrorAnswer)
    assert missing.code == "model_not_found"
    told.put(a_route(adapters=("sql",)))
    lost = decider.destination(question)
    assert isinstance(lost, ErrorAnswer)
    assert "shop/server" in lost.message
    server = a_server()
    server["spec"]["model"] = "real"
    told.put(server)
    destination = decider.destination(question)
    assert not isinstance(destination, ErrorAnswer)
    empty = decider.forward(question, destination, 0.0)
    assert isinstance(empty, ErrorAnswer)
    assert (empty.status, empty.retry_after) == (503, 5)
    told.put(pod("p"), pod("q", "10.0.0.2"))

    found = forwarded(decider, asked(stream=True))
    assert (found.upstream_model, found.withhold, len(found.attempts)) == ("real", True, 2)
    sent = orjson.loads(decider.calls(found, found.attempts[0]).body)
    assert (sent["model"], sent["stream_options"]) == ("real", {"include_usage": True})
    adapter = forwarded(decider, asked(model="sql"))
    assert decider.calls(adapter, adapter.attempts[0]).body == asked(model="sql").body
    # Embeddings have no stream to ask usage of.
    assert not forwarded(decider, asked("/v1/embeddings", stream=True)).withhold

    first = found.attempts[0].pod
    decider.begun(found, found.attempts[0])
    assert (first.outstanding, first.queued_tokens) == (1, 9)
    decider.answered(found, found.attempts[0], 200)
    assert (first.outstanding, first.queued_tokens) == (1, 0)
    decider.ended(found, found.attempts[0], was_answered=True)
    assert (first.outstanding, first.queued_tokens) == (0, 0)
    again = decider.forward(found.question, found.destination, 0.0, {first})
    assert isinstance(again, Forward)
    assert [one.pod for one in again.attempts] == [found.attempts[1].pod]


@pytest.mark.parametrize(("attempts", "most", "left"), [(None, 5, 0), (0, 1, 1), (7, 8, 1)])
def test_whether_pods_are_tried_again_is_the_policys_word(attempts: int | None, most: int, left: int) -> None:
    decider = Decider()
    server = a_server()
    if attempts is not None:
        server["spec"]["trafficPolicy"] = {"retry": {"attempts": attempts}}
    Told(decider.fleet).put(a_route(), server, pod("p"))
    found = forwarded(decider, asked())
    assert most_attempts(found) == most
    again = decider.forward(found.question, found.destination, 0.0, {found.attempts[0].pod})
    assert isinstance(again, Forward)
    assert len(again.attempts) == left


@given(st.integers(0, 20), st.floats(0, 1), st.sampled_from(["0s", "1ns", "100ms", "3s"]))
def test_the_pause_before_a_retry_is_at_least_the_interval(number: int, jitter: float, interval: str) -> None:
    decider = Decider()
    server = a_server()
    server["spec"]["trafficPolicy"] = {"retry": {"attempts": 20, "retryInterval": interval}}
    Told(decider.fleet).put(a_route(), server, pod("p"))
    forward = forwarded(decider, asked())
    assert forward.server.retry is not None
    least = forward.server.retry.interval if number else 0.0
    assert least <= pause(forward, number, jitter) <= 1.5 * least


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/v1/responses", {"input": "hello", "instructions": "x" * 4000}),
        ("/v1/responses", {"input": [{"role": "user", "content": "hello"}], "instructions": "x" * 4000}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "system": "x" * 4000}),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "hi"}], "system": [{"type": "text", "text": "x" * 4000}]},
        ),
    ],
)
def test_instructions_count_and_bring_requests_to_the_pod_that_had_them(path: str, given: dict[str, Any]) -> None:
    decider = Decider()
    Told(decider.fleet).put(a_route(), a_server(), pod("p"), pod("q", "10.0.0.2"))

    def sent(**more: Any) -> Forward:
        return forwarded(decider, Arrival("POST", path, {}, orjson.dumps({"model": "llama", **given, **more})))

    first = sent()
    assert 1000 < first.question.tokens < 1030
    decider.begun(first, first.attempts[0])
    decider.answered(first, first.attempts[0], 200)
    decider.ended(first, first.attempts[0], was_answered=True)
    turns = [{"role": "user", "content": "another"}]
    second = sent(**{"input": turns} if path == "/v1/responses" else {"messages": turns})
    assert second.attempts[0].pod is first.attempts[0].pod
    assert second.attempts[0].points["prefix-cache"] > 90
    other = "instructions" if path == "/v1/responses" else "system"
    third = sent(**{other: "y" * 4000})
    assert third.attempts[0].points["prefix-cache"] == 0


def test_a_session_stays_with_its_pod_where_that_is_scored() -> None:
    from modelyard.routing.plugins import Configuration, Plugins

    decider = Decider(Configuration(Plugins(scores=(("session-affinity", 1.0),))))
    Told(decider.fleet).put(a_route(), a_server(), *(pod(f"p{n}", f"10.0.0.{n}") for n in range(1, 9)))
    arrival = asked(headers={"x-session-id": "mine"})
    first = forwarded(decider, arrival)
    decider.begun(first, first.attempts[0])
    decider.answered(first, first.attempts[0], 200)
    assert {forwarded(decider, arrival).attempts[0].pod for _ in range(20)} == {first.attempts[0].pod}


def test_sessions_of_one_namespace_push_out_none_of_another_and_go_with_their_pod() -> None:
    from modelyard.routing.plugins import Configuration, Plugins

    decider = Decider(Configuration(Plugins(scores=(("session-affinity", 1.0),))))
    decider.fleet.update(
        tuple(objects.route(a_route(model=space, namespace=space)) for space in ("shop", "other")),
        lambda space: (objects.server(a_server(namespace=space)),),
        lambda space: tuple(parse_pod(pod(f"p{n}", f"10.0.0.{n}", namespace=space)) for n in range(1, 9)),
        ("shop", "other"),
    )

    def answered(model: str, session: str) -> RoutedPod:
        found = forwarded(decider, asked(model=model, headers={"x-session-id": session}))
        decider.begun(found, found.attempts[0])
        decider.answered(found, found.attempts[0], 200)
        decider.ended(found, found.attempts[0], was_answered=True)
        return found.attempts[0].pod

    first = answered("shop", "mine")
    for number in range(MOST_SESSIONS + 1):
        answered("other", str(number))
    assert {answered("shop", "mine") for _ in range(20)} == {first}
    assert [len(one) for one in decider._sessions.values()] == [1, MOST_SESSIONS]
    decider.forget(Key("shop", "server"), first)
    assert list(decider._sessions) == ["other"]


FORM = (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\x00name="model"\r\n\r\nno\r\n'
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nllama\r\n--x--\r\n'
)


def test_a_form_is_edited_where_it_names_the_model_and_nowhere_else() -> None:
    found = body.read_form(FORM, 'multipart/form-data; boundary="x"')
    assert isinstance(found, body.ModelRequest)
    assert found.model == "llama"
    changed = body.with_changes(found, {"model": "a/longer/name"})
    assert changed == FORM.replace(b"\r\n\r\nllama\r\n", b"\r\n\r\na/longer/name\r\n")
    assert body.with_changes(found, {}) is FORM


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"--x",
        b"--x\r\n",
        FORM.replace(b"llama", b" "),
        FORM.replace(b"llama", b"\xff"),
        FORM.replace(b'"file"', b'"model"'),
        FORM.replace(b"\r\n\r\nllama", b""),
        b"--x\r\nA: " + b"a" * 5000 + b"\r\n\r\nllama\r\n--x--",
    ],
)
def test_forms_that_name_no_model(raw: bytes) -> None:
    assert isinstance(body.read_form(raw, "multipart/form-data; boundary=x"), ErrorAnswer)


@given(st.binary(max_size=300))
def test_no_form_breaks_the_reader(raw: bytes) -> None:
    body.read_form(b"--x\r\n" + raw, "multipart/form-data; boundary=x")


LONG = "x" * 300_000


def test_members_of_a_long_body_are_set_behind_the_others() -> None:
    raw = orjson.dumps({"model": "m", "text": LONG}) + b" \n"
    assert body.edited(raw, {"model": "real"}) == raw[:-3] + b',"model":"real"} \n'


@pytest.mark.parametrize("size", [10, 300_000, 2_000_000])
def test_edits_write_no_null_at_any_size(size: int) -> None:
    text = '[{\\"' * (size // 4)
    raw = b'{"big": 123456789012345678901234567890, "\\u0073tream":true,"n":2,"deep":[[[[[[[[[{"n":[{}]}]]]]]]]]],'
    raw += b'"stream_options":{"include_usage":true},"messages":[{"content":' + orjson.dumps(text) + b'}],"n":3}'
    changed = body.edited(raw, {"stream": None, "stream_options": None, "n": None, "absent": None, "max_tokens": 1})
    assert json.loads(changed) == {
        "big": 123456789012345678901234567890,
        "deep": [[[[[[[[[{"n": [{}]}]]]]]]]]],
        "messages": [{"content": text}],
        "max_tokens": 1,
    }


def test_a_body_of_countless_members_is_edited_all_the_same() -> None:
    raw = b"{" + b'"a":1,' * 300_000 + b'"stream":true,"m":[' + b"[[]]," * 90_000 + b"1]}"
    assert orjson.loads(body.edited(raw, {"stream": None})) == {"a": 1, "m": [*([[[]]] * 90_000), 1]}


@pytest.mark.parametrize("connector", ["http", "nixl", None])
@pytest.mark.parametrize("text", ["hello", LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    ("path", "given", "prefill"),
    [
        ("/v1/chat/completions", {"max_completion_tokens": 300, "n": 2}, {"max_tokens": 1, "max_completion_tokens": 1}),
        ("/v1/chat/completions", {"max_tokens": 300, "min_tokens": 9}, {"max_tokens": 1, "min_tokens": 1}),
        ("/v1/completions", {"best_of": 3}, {"max_tokens": 1}),
        ("/v1/messages", {"max_tokens": 300, "system": "Be brief."}, {"max_tokens": 1, "system": "Be brief."}),
        ("/v1/responses", {"max_output_tokens": 300}, {"max_output_tokens": 1, "store": False}),
        (
            "/v1/responses",
            {"instructions": "Be brief.", "background": True, "store": True},
            {"instructions": "Be brief.", "max_output_tokens": 1, "store": False},
        ),
    ],
)
def test_a_prefill_call_generates_one_token_on_every_path(
    path: str, given: dict[str, Any], prefill: dict[str, Any], text: str, connector: str | None
) -> None:
    decider = Decider()
    server = a_server(groups=GROUPS)
    server["spec"] |= {"kvConnector": {"type": connector}} if connector else {"inferenceEngine": "SGLang"}
    labels = {"app": "llama", "g": "0"}
    prefill_pod, decode_pod = pod("p", role="p", **labels), pod("d", "10.0.0.2", role="d", **labels)
    Told(decider.fleet).put(a_route(), server, prefill_pod, decode_pod)
    sent = {"model": "llama", "input": text, "stream": True, "stream_options": {"include_usage": True}, **given}
    forward = forwarded(decider, Arrival("POST", path, {}, orjson.dumps(sent)))
    calls = decider.calls(forward, forward.attempts[0])
    assert calls.prefill is not None
    first = orjson.loads(calls.prefill)
    transfer = {name: first.pop(name) for name in ("kv_transfer_params", "bootstrap_room") if name in first}
    assert first == {"model": "llama", "input": text, **prefill}
    assert len(transfer) == (connector != "http")
    answered = {"kv_transfer_params": {"remote_host": "h"}}
    if connector == "nixl":
        assert orjson.loads(decider.decode_body(forward, forward.attempts[0], answered)) == {**sent, **answered}
    else:
        met = {"bootstrap_host": "10.0.0.1", "bootstrap_room": transfer["bootstrap_room"]} if transfer else {}
        assert orjson.loads(calls.body) == {**sent, **met}
    lost = orjson.loads(decider.decode_body(forward, forward.attempts[0], {}))
    assert None not in lost.values(), "nothing came of the prefill call"


def lines(decider: Decider, arrival: Arrival) -> Iterator[str]:
    question = decider.question(arrival)
    assert isinstance(question, Question)
    return explain(decider, question, 0.0)


def test_why_a_request_goes_where_it_goes() -> None:
    decider = Decider()
    told = Told(decider.fleet)
    assert next(lines(decider, asked())).startswith("404: no ModelRoute serves 'llama'")
    rules = [
        {
            "name": "gold",
            "modelMatch": {"headers": {"Tier": {"exact": "gold"}}},
            "targetModels": [{"modelServerName": "server"}],
        },
        {"targetModels": [{"modelServerName": "server", "weight": 30}, {"modelServerName": "none", "weight": 10}]},
    ]
    told.put(a_route(rules=rules, rateLimit={"inputTokensPerUnit": 9, "unit": "minute"}), a_server(), pod("p"))
    text = "\n".join(lines(decider, asked()))
    assert "ModelRoute shop/route, at most 9 input tokens per 60 s" in text
    assert "rule 0 gold: does not take it (header tier is 'gold')" in text
    assert "75 % to ModelServer server (weight 30): 1 ready pods" in text
    assert "25 % to ModelServer none (weight 10): does not exist" in text
    gold = "\n".join(lines(decider, asked(headers={"tier": "gold"})))
    assert "rule 0 gold: takes it" in gold
    assert "1. p at http://10.0.0.1:8000: metrics not read; points" in gold, "where nothing is drawn"
    assert "rule 1: is not reached" in gold
    server = a_server()
    server["metadata"]["annotations"] = {"modelyard.dev/inference-engine": "MindIE"}
    told.put(server)
    decider.fleet.backends[Key("shop", "server")].pods[0].gauges = EngineGauges(0.0, waiting=2, running=math.nan)
    mindie = "\n".join(lines(decider, asked(headers={"tier": "gold"})))
    assert "engine: MindIE; its metrics are not read" in mindie
    assert "running unknown, waiting 2, cache 0 %" in mindie
    told.pods.clear()
    told.update()
    empty = "\n".join(lines(decider, asked(headers={"tier": "gold"})))
    assert "503: no available pods for model server: shop/server" in empty
