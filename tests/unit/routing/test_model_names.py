"""A model name belongs to the namespace that has held it longest without interruption, for the controller and for every
router alike. The tenant of each attack has every right in its own namespace and none elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st
from kthena_models import rendered_named
from names_world import Names, Router
from routing_world import HOME, a_server
from service_world import SERVED, Fleet

from modelyard.objects import Key
from modelyard.reconcile.plans.plan import ServedKind
from modelyard.resources import ModelRoute, ModelServer
from modelyard.routing import model_names
from modelyard.routing.decide import Arrival, Decider, Question
from modelyard.routing.explain import explain
from modelyard.routing.fleet import ServerPods
from modelyard.routing.model_names import MOST_NAMES, RECORDS, HeldNames, digest, read_bindings, read_record
from modelyard.routing.name_records import NameRecords
from modelyard.routing.objects import route, server
from modelyard.routing.table import Destination
from modelyard.workloads.rendering.model_routes import ROUTED
from modelyard.workloads.rendering.settings import CONFIG_MAP

NETWORKING = frozenset(ServedKind(kind.api_version, kind.__name__) for kind in (ModelServer, ModelRoute))
SERVERS = (Key("shop", "server"), Key("evil", "server"))
NEVER = [{"modelMatch": {"uri": {"exact": "/never"}}, "targetModels": [{"modelServerName": "server"}]}]


@pytest.fixture
def names() -> Names:
    """A victim ``shop`` with a model and an adapter, and an older route of the namespace ``evil``; all recorded."""
    names = Names()
    names.put("old", "decoy", namespace="evil", age=50)
    names.put("chat", "llama", "sql", age=5)
    names.tick()
    return names


def everywhere(names: Names, model: str, holder: str, *routers: Router) -> None:
    """Requests go there in routers that run, in one that starts now, and in one that starts after the next tick."""
    for router in (*routers, Router(names)):
        assert router.look().asks(model) == holder
    names.tick()
    for router in (*routers, Router(names)):
        assert router.look().asks(model) == holder


def test_an_adapter_that_an_older_route_adds_later_takes_nothing(names: Names) -> None:
    running = Router(names)
    names.put("old", "decoy", "llama", "sql", namespace="evil")
    everywhere(names, "llama", "shop", running)
    everywhere(names, "sql", "shop", running)
    everywhere(names, "decoy", "evil", running)
    reason, message = names.conflicts("old", "evil")
    assert reason == "ModelNameInUse"
    assert "'llama' is held by shop/chat" in message
    assert names.conflicts("chat") == ("NoConflicts", "no other route comes first for any of its names")


def test_a_model_name_where_there_was_none_takes_nothing(names: Names) -> None:
    names.put("nameless", None, "toy", namespace="evil", age=55)
    names.tick()
    running = Router(names)
    names.put("nameless", "llama", "toy", namespace="evil")
    everywhere(names, "llama", "shop", running)
    everywhere(names, "toy", "evil", running)
    assert "shop/chat" in names.conflicts("nameless", "evil")[1]


def test_a_model_takes_no_name_from_an_adapter_and_an_adapter_none_from_a_model(names: Names) -> None:
    names.put("thief", "sql", "llama", namespace="evil", age=1)
    everywhere(names, "sql", "shop")
    everywhere(names, "llama", "shop")


def test_forged_annotations_labels_and_statuses_count_for_nothing(names: Names) -> None:
    names.put("old", "decoy", "llama", namespace="evil")
    since = "2000-01-01T00:00:00.000000Z"
    names.annotate("old", "evil", **{"modelyard.dev/held-since": since, model_names.RECORDS_LABEL: "model-names"})
    everywhere(names, "llama", "shop")
    assert names.conflicts("old", "evil")[0] == "ModelNameInUse"


def test_a_record_that_a_tenant_writes_in_its_own_namespace_is_none() -> None:
    forged = {"metadata": {"name": f"{RECORDS}.shop", "namespace": "evil", "uid": "u"}, "data": {"names": ""}}
    want = model_names.records_wanted(HOME)
    assert want.spaces(["evil"]) == want.spaces(()) == (HOME,), "records are read there alone"
    names = Names()
    names.put("chat", "llama")
    names.tick()
    assert (HOME, f"{RECORDS}.shop") == model_names.record_key(HOME, "shop")
    assert read_record(forged) is not None, "only its place tells it from one of ours"


def test_a_name_that_was_removed_and_added_again_counts_from_the_second_time(names: Names) -> None:
    running = Router(names)
    names.put("old", "decoy", "llama", namespace="evil")
    names.tick()
    names.put("chat", "mistral", "sql")  # the victim gives it up
    names.tick()
    everywhere(names, "llama", "evil", running)
    names.put("chat", "llama", "sql")
    everywhere(names, "llama", "evil", running)
    assert "evil/old" in names.conflicts("chat")[1]
    names.put("old", "decoy", namespace="evil")
    names.tick()
    everywhere(names, "llama", "shop", running)


def test_a_name_that_moves_between_routes_of_a_namespace_is_held_without_interruption(names: Names) -> None:
    running, before = Router(names), names.record["shop"]
    names.put("old", "decoy", "llama", namespace="evil")
    names.tick()
    names.remove("chat")
    names.put("other", "llama", "sql")
    everywhere(names, "llama", "shop", running)
    assert names.record["shop"] == before


def test_an_edit_that_makes_a_route_unusable_gives_its_name_to_nobody(names: Names) -> None:
    running = Router(names)
    names.put("old", "decoy", "llama", namespace="evil")
    names.put("chat", "llama", "sql", rules=[{"modelMatch": {"uri": {"regex": "("}}}])
    everywhere(names, "llama", "", running)
    names.put("chat", "llama", "sql")
    everywhere(names, "llama", "shop", running)


def test_a_request_that_no_rule_of_the_holder_takes_goes_to_no_other_tenant(names: Names) -> None:
    names.put("chat", "llama", "sql", rules=NEVER)
    names.put("old", "decoy", "llama", namespace="evil")
    everywhere(names, "llama", "")
    names.put("more", "llama")
    everywhere(names, "llama", "shop")


def test_a_full_restart_keeps_who_holds_what(names: Names) -> None:
    names.put("old", "decoy", "llama", namespace="evil")
    names.tick()
    names.put("chat", "llama", "sql", "more")  # its route is newer, and edited last
    names.restart()
    before = names.record
    everywhere(names, "llama", "shop")
    assert names.record["evil"] == before["evil"]
    assert before["shop"] in names.record["shop"]


@pytest.mark.parametrize("hours", [2, -2])
def test_a_clock_that_jumps_gives_a_name_to_no_other_namespace(hours: int) -> None:
    """The holder's time was set before the clock was right, or the rival's is set before it."""
    names = Names()
    names.tick(seconds=3600.0 * hours)
    names.put("chat", "llama", "sql", age=5)
    names.put("chat", "llama", "sql", "more")
    names.tick()
    running = Router(names)
    for jump in (-hours, hours, -hours):
        names.put(f"thief{jump}", "llama", "sql", namespace=f"evil{jump}", age=60)
        names.tick(seconds=3600.0 * jump)
        everywhere(names, "llama", "shop", running)
        everywhere(names, "sql", "shop", running)
    names.restart()
    everywhere(names, "llama", "shop", running)


def test_of_names_that_come_together_the_older_is_first_though_the_clock_is_behind() -> None:
    names = Names()
    names.tick(seconds=-7200)
    names.put("young", "llama", namespace="a-rival", age=5)
    names.put("old", "llama", namespace="shop", age=10)
    names.tick()
    everywhere(names, "llama", "shop")


def test_an_upgrade_without_records_keeps_what_was_decided_by_age_and_records_it_once() -> None:
    names = Names()
    names.put("first", "llama", namespace="bank", age=30)
    names.put("first", "llama", "x", namespace="bank")  # edited since
    names.put("second", "llama", namespace="evil", age=20)
    names.put("third", "base", "llama", namespace="acme", age=40)
    names.put("third", "base", namespace="acme")
    running = Router(names)
    assert running.asks("llama") == "bank", "the oldest object, as before there were records"
    names.tick("bank", "evil")
    names.restart()
    names.put("third", "base", "llama", namespace="acme")  # in the midst of it
    names.tick()
    everywhere(names, "llama", "bank", running)
    names.put("zeroth", "y", "llama", namespace="oldest", age=58)
    everywhere(names, "llama", "bank", running)


def test_an_upgrade_that_is_killed_in_the_midst_goes_on_by_the_same_order() -> None:
    names = Names()
    names.put("a", "one", "x", namespace="older", age=9)
    names.put("a", "one", "x", "y", namespace="older")
    names.put("b", "two", "x", namespace="younger", age=5)
    names.put("c", "three", namespace="else", age=50)
    names.tick("else")
    names.restart()
    assert not any(name == RECORDS for name in names.config_maps), "not all is recorded"
    names.tick()
    assert names.config_maps[RECORDS]["data"].keys() == {"_all"}
    everywhere(names, "x", "older")


def test_without_any_controller_a_router_takes_no_name_from_whom_it_knows_to_hold_it() -> None:
    names = Names()
    names.put("chat", "llama", age=5)
    names.put("old", "decoy", namespace="evil", age=50)
    router = Router(names, reads=False)
    names.put("old", "decoy", "llama", namespace="evil")
    assert router.look().asks("llama") == "shop"
    names.put("chat", "llama", "more")
    assert router.look().asks("llama") == "shop"
    names.remove("chat")
    assert router.look().asks("llama") == "evil"
    names.put("chat", "llama", age=59)
    assert router.look().asks("llama") == "evil"


def test_a_record_that_is_deleted_is_written_again_as_it_was(names: Names) -> None:
    names.put("old", "decoy", "llama", namespace="evil")
    names.tick()
    running, before = Router(names), names.record
    assert "shop/chat" in names.conflicts("old", "evil")[1]
    for name in (f"{RECORDS}.shop", RECORDS):
        del names.config_maps[name]
    assert running.look().asks("llama") == "shop"
    assert "shop/chat" in names.conflicts("old", "evil")[1]
    names.tick()
    assert names.record == before
    assert names.config_maps[RECORDS]["data"].keys() == {"_all"}
    everywhere(names, "llama", "shop", running)


def test_records_that_cannot_be_read_any_more_stay_as_they_were(names: Names) -> None:
    router = Router(names)
    names.put("old", "decoy", "llama", namespace="evil")
    router._reads = False
    names.config_maps.clear()
    assert router.look().asks("llama") == "shop"


@pytest.mark.parametrize("edited", [False, True])
def test_names_that_come_while_the_controller_is_away_are_the_first_ones_for_all(names: Names, edited: bool) -> None:
    """An old object that adds the name, against a new one, or against one that was edited earlier."""
    if edited:
        names.put("chat", "llama", "sql", "new")
    else:
        names.put("later", "new", age=1)
    early = Router(names)
    names.put("old", "decoy", "new", namespace="evil")
    everywhere(names, "new", "shop", early)
    assert "'new' is held by shop/" in names.conflicts("old", "evil")[1]


def test_a_binding_of_the_administrator_comes_before_who_holds_a_name(names: Names) -> None:
    running = Router(names)
    names.put("theirs", "llama", namespace="acme", age=1)
    names.tick()
    names.bind(acme="llama\nacme/*", infra="*-base")
    assert running.look().asks("llama") == "acme"
    everywhere(names, "llama", "acme", running)
    assert names.conflicts("chat") == (
        "ModelNameReserved",
        "'llama' is bound by an administrator to namespace acme; choose another name, or have ConfigMap"
        f" {model_names.BINDINGS} changed",
    )
    everywhere(names, "sql", "shop", running)
    names.put("bad", "acme/chat", "x-base", namespace="evil")
    everywhere(names, "acme/chat", "", running)
    everywhere(names, "x-base", "", running)
    names.bind()
    everywhere(names, "llama", "shop", running)
    everywhere(names, "acme/chat", "evil", running)


def test_a_name_that_a_binding_takes_away_is_closed(names: Names) -> None:
    router = Router(names)
    names.bind(acme="llama")
    assert router.look().closed == {"llama"}
    assert "llama" not in router.fleet.table


def test_an_invalid_binding_is_reported_and_changes_no_other(names: Names) -> None:
    names.put("theirs", "acme/chat", namespace="acme", age=1)
    names.put("ours", "base", namespace="infra", age=1)
    names.bind(acme="acme/*\n- list\n" + "x" * 300, Bad_Name="llama", infra='["base"]\nbase')
    everywhere(names, "acme/chat", "acme")
    everywhere(names, "base", "infra")
    everywhere(names, "llama", "shop")
    reported = names.config_maps[model_names.BINDINGS]["metadata"]["annotations"][model_names.BINDING_PROBLEMS]
    assert "data['Bad_Name']: not the name of a namespace" in reported
    assert "'- list': looks like YAML" in reported
    assert "longer than 256 characters" in reported
    names.bind(acme="acme/*")
    names.config_maps[model_names.BINDINGS]["metadata"]["annotations"] = {model_names.BINDING_PROBLEMS: reported}
    names.tick()
    assert names.config_maps[model_names.BINDINGS]["metadata"]["annotations"] == {model_names.BINDING_PROBLEMS: None}


@pytest.mark.parametrize(
    ("data", "name", "namespaces"),
    [
        ({"a": "*"}, "anything", {"a"}),
        ({"a": "*", "b": "chat*"}, "chat-1", {"b"}),
        ({"a": "*", "b": "chat*", "c": "chat-1"}, "chat-1", {"c"}),
        ({"a": "x*", "b": "x*"}, "xy", {"a", "b"}),
        ({"a": "a*", "b": "*b"}, "ab", {"a", "b"}),
        ({"a": "meta/*/chat"}, "meta/llama/chat", {"a"}),
        ({"a": "meta/*/chat"}, "meta/llama/chat\n", None),
        ({"a": "a.c"}, "abc", None),
        ({"a": "a.*"}, "abc", None),
        ({"a": "ü*"}, "über", {"a"}),
        ({"a": "*" * 200 + "b"}, "a" * 256, None),
        ({"a": ""}, "", None),
        ({}, "x", None),
    ],
)
def test_what_a_pattern_binds(data: dict[str, str], name: str, namespaces: set[str] | None) -> None:
    bindings = read_bindings({"metadata": {"name": "b", "namespace": HOME}, "data": data})
    assert bindings.namespaces(name) == namespaces
    assert not bindings.problems


def test_a_star_is_a_name_like_any_other(names: Names) -> None:
    names.put("star", "*", "l*", namespace="evil", age=59)
    everywhere(names, "llama", "shop")
    everywhere(names, "other", "")
    everywhere(names, "*", "evil")


def test_no_tenant_fills_the_records_and_past_the_limit_its_own_object_says_so(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("model_names", "name_records", "lifecycle"):
        monkeypatch.setattr(f"modelyard.routing.{module}.MOST_NAMES", 5)
    names.put("one", "a0", *(f"a{number}" for number in range(1, 4)), namespace="evil", age=40)
    names.tick()
    names.put("two", "b0", "b1", namespace="evil", age=59)
    everywhere(names, "decoy", "evil")
    everywhere(names, "b0", "")
    everywhere(names, "llama", "shop")
    assert len(names.record["evil"].splitlines()) == 5
    assert names.conflicts("two", "evil") == (
        "TooManyModelNames",
        "'b0' is not served: namespace evil has 5 names, the limit; remove some of its routes; "
        "'b1' is not served: namespace evil has 5 names, the limit; remove some of its routes",
    )
    names.remove("one", "evil")
    names.tick()
    everywhere(names, "b0", "evil")


def test_a_record_with_as_many_names_as_there_may_be_fits_into_a_config_map() -> None:
    longest = {digest(name): name for name in (f"{number:06}" + "ü" * 250 for number in range(MOST_NAMES))}
    text = model_names.record_text(dict.fromkeys(longest, model_names.time_text(1.8e9)), longest)
    assert len(text.encode()) < 512 * 1024
    read = read_record({"metadata": {"name": f"{RECORDS}.shop", "namespace": HOME}, "data": {"names": text * 2}})
    assert read is not None
    assert read.since.keys() == longest.keys()


def test_however_many_names_change_a_namespace_has_one_write_in_a_tick(names: Names) -> None:
    for number in range(50):
        names.put(f"r{number}", f"m{number}", f"x{number}", namespace="evil")
        names.put("chat", "llama", "sql", f"y{number}")
    names.now += 1
    assert sorted(plan.subject.key.name for plan in names.plans()) == [f"{RECORDS}.evil", f"{RECORDS}.shop"]
    assert names.tick() == 2
    assert names.tick() == 0


def test_a_name_of_any_length_and_form_is_held() -> None:
    odd = ["a" * 256, "ü" * 256, "a b\nc", "..", "-", "a\x00b", "👾", "meta-llama/Llama-3.1-8B@v1:x"]
    names = Names()
    for number, name in enumerate(odd):
        names.put(f"r{number}", name, age=1)
    names.tick()
    for name in odd:
        names.put("thief", "decoy", name, namespace="evil")
        everywhere(names, name, "shop")
    assert len(names.record["shop"].splitlines()) == len(odd), "no name begins a line of its own"


def test_lines_of_a_record_that_cannot_be_read_are_skipped() -> None:
    good = f"{digest('llama')} 2026-01-01T00:00:00.000000Z llama"
    for text in ("", "x", f"x\n{good}\n\ny 1", f"{good}\n{digest('x')} soon"):
        read = read_record({"metadata": {"name": f"{RECORDS}.shop", "namespace": HOME}, "data": {"names": text}})
        assert read is not None
        assert set(read.since) == ({digest("llama")} if good in text else set())
    assert read_record({"metadata": {"name": f"{RECORDS}.Bad_Name", "namespace": HOME}}) is None
    assert read_record({"metadata": {"name": "other", "namespace": HOME}}) is None


def test_a_shift_of_some_namespaces_leaves_the_records_of_all_others(names: Names) -> None:
    before = names.record
    names.controller = NameRecords(HOME, ["bank"])
    names.routes = {key: obj for key, obj in names.routes.items() if key.namespace == "bank"}
    names.put("chat", "llama", namespace="bank", age=59)
    names.tick()
    assert {space: names.record[space] for space in before} == before
    reason, message = names.conflicts("chat", "bank")
    assert reason == "ModelNameInUse"
    assert "namespace shop" in message, "its route is not seen here"


def test_explain_says_who_holds_a_name(names: Names) -> None:
    names.put("old", "decoy", "llama", namespace="evil")
    names.tick()
    held, refused = Router(names).fleet.holding("llama").lines()
    assert held.startswith("the name belongs to namespace shop (held since 2026-01-01T00:54:00")
    assert refused == "no requests for it go to the routes of evil"
    names.bind(acme="llama")
    assert next(Router(names).fleet.holding("llama").lines()) == "nobody holds it; bound by an administrator to acme"
    (alone,) = Router(names).fleet.holding("sql").lines()
    assert alone.startswith("the name belongs to namespace shop (held since "), "also where no other claims it"
    assert list(Router(names).fleet.holding("nobodys").lines()) == []


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["tick", "put", "put", "remove", "restart"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["r", "s"]),
        st.sampled_from([None, "x", "y"]),
        st.sets(st.sampled_from(["x", "y", "z"])),
        st.integers(0, 59),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(_EVENTS)
def test_nobody_loses_a_recorded_name_without_giving_it_up(events: list[Any]) -> None:
    names = Names()
    names.tick()
    router = Router(names)
    holders: dict[str, str] = {}

    def has(space: str, name: str) -> bool:
        claimed = (obj["spec"] for key, obj in names.routes.items() if key.namespace == space)
        return any(name in (spec.get("modelName"), *spec.get("loraAdapters", ())) for spec in claimed)

    for event, space, route_name, model, adapters, age in events:
        adapters = sorted(adapters - {model})
        if event == "put" and (model or adapters):
            names.put(route_name, model, *adapters, namespace=space, age=age)
        elif event == "remove" and Key(space, route_name) in names.routes:
            names.remove(route_name, space)
        elif event == "restart":
            names.restart()
            router = Router(names)
        elif event == "tick":
            names.tick()
        router.look()
        for name in "xyz":
            if (holder := holders.get(name)) and has(holder, name):
                assert router.asks(name) == holder
            elif holder:
                del holders[name]
            if event == "tick" and (now := router.asks(name)):
                holders[name] = now
    names.tick()
    fresh = Router(names)
    for name in "xyz":
        assert fresh.asks(name) == router.look().asks(name)
    assert fresh.fleet.table == router.fleet.table


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.sets(st.sampled_from("xyz"))), max_size=8))
def test_records_that_change_are_the_records_that_are_read_whole(steps: list[dict[str, set[str]]]) -> None:
    """But for records that are not there any more, which stay as they were."""
    followed, kept = HeldNames(), dict[str, model_names.NameRecord]()
    for number, step in enumerate(steps):
        records = tuple(
            model_names.NameRecord(Key(HOME, space), "", space, {digest(name): f"{number % 2}" for name in names})
            for space, names in step.items()
        )
        before = {name: dict(followed.since(name)) for name in "xyz"}
        differing = followed.update(records, ())
        whole = HeldNames()
        kept |= {record.namespace: record for record in records}
        whole.update(tuple(kept.values()), ())
        for name in "xyz":
            assert followed.since(name) == whole.since(name)
            assert differing is not None
            assert (followed.since(name) != before[name]) == (digest(name) in differing)


def a_service() -> list[dict[str, Any]]:
    """The routes of an InferenceService that the router serves, with an adapter."""
    fleet = Fleet(served=SERVED | NETWORKING)
    fleet.put("ConfigMap", CONFIG_MAP, "home", data={"ingress": "{}"})
    fleet.model()
    fleet.runtime()
    args = ["--enable-lora", "--served-model-name", "llama", "--lora-modules", "sql=/sql"]
    runner = {"name": "ome-container", "image": "engine:1", "args": args}
    fleet.service(engine={"runner": runner}, annotations={ROUTED: "true"})
    fleet.settle()
    fleet.up("chat-engine")
    fleet.settle()
    return [obj for (kind, _, _), obj in fleet.objects.items() if kind == "ModelRoute"]


def a_model() -> list[dict[str, Any]]:
    """The routes of a Model with adapters."""
    return [dict(each.body) for each in rendered_named("vllm").children if each.kind == "ModelRoute"]


@pytest.mark.parametrize("make", [a_service, a_model])
def test_routes_that_services_and_models_make_hold_their_names_as_others_do(
    make: Callable[[], list[dict[str, Any]]],
) -> None:
    names, made = Names(), make()
    names.put("old", "decoy", namespace="evil", age=50)
    assert made
    for obj in made:
        names.put(obj["metadata"]["name"], obj["spec"].get("modelName"), *obj["spec"].get("loraAdapters", ()), age=1)
    names.tick()
    running = Router(names)
    held = [name for obj in names.routes.values() for name in route(obj).claims if name != "decoy"]
    assert len(held) > 1, "a model and its adapters"
    names.put("old", "decoy", *held, namespace="evil")
    names.put("copy", held[0], *held[1:], namespace="evil")
    for name in held:
        everywhere(names, name, "shop", running)
    everywhere(names, "decoy", "evil", running)


def test_a_service_that_names_what_another_namespace_holds_is_conflicted_and_serves_the_rest(names: Names) -> None:
    names.put("theirs", "own", "llama", namespace="acme", age=59)
    for name, holder in (("llama", "shop"), ("own", "acme")):
        everywhere(names, name, holder)
    reason, message = names.conflicts("theirs", "acme")
    assert reason == "ModelNameInUse"
    assert "'llama' is held by shop/chat" in message


def test_the_decisions_of_fronts_and_pickers_go_to_the_holder(names: Names) -> None:
    """HTTP and gRPC have the same decider; ``explain`` shows what it decides."""
    names.put("old", "decoy", "llama", namespace="evil")
    names.tick()
    decider = Decider()
    decider.fleet = Router(names).fleet
    decider.fleet.backends = {key: ServerPods(server(a_server(namespace=key.namespace))) for key in SERVERS}
    body = orjson.dumps({"model": "llama", "messages": []})
    question = decider.question(Arrival("POST", "/v1/chat/completions", {}, body))
    assert isinstance(question, Question)
    destination = decider.destination(question)
    assert isinstance(destination, Destination)
    assert destination.route.key == Key("shop", "chat")
    text = "\n".join(explain(decider, question, 0.0))
    assert "the name belongs to namespace shop (held since" in text
    assert "no requests for it go to the routes of evil" in text
    assert "ModelRoute evil" not in text
