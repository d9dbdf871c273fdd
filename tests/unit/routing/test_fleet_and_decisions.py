"""What a router knows, what it decides about a request, and what it says of both."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_world import a_pod, a_route, a_server

from modelyard.objects import Key, Pod
from modelyard.objects.parse import pod as parse_pod
from modelyard.routing import body, objects
from modelyard.routing.decide import MOST_SESSIONS, Arrival, Decider, Forward, Question, most_attempts
from modelyard.routing.errors import ErrorAnswer
from modelyard.routing.explain import explain
from modelyard.routing.fleet import FleetChange, RoutedFleet
from modelyard.routing.schedule import RoutedPod

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


def test_members_of_a_long_body_are_set_behind_the_others() -> None:
    raw = orjson.dumps({"model": "m", "text": "x" * 300_000}) + b" \n"
    changed = body.edited(raw, {"model": "real", "stream": None})
    assert changed == raw[:-3] + b',"model":"real","stream":null} \n'


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
    told.pods.clear()
    told.update()
    empty = "\n".join(lines(decider, asked(headers={"tier": "gold"})))
    assert "503: no available pods for model server: shop/server" in empty
