"""What is said of ModelRoutes: accepted, references resolved, conflicted."""

from __future__ import annotations

from typing import Any

import pytest
from routing_world import a_route, a_router_configuration, a_server, plan, told, written

from modelyard.routing import objects

GOOD = {
    "Accepted": ("True", "Accepted"),
    "ResolvedRefs": ("True", "ResolvedRefs"),
    "Conflicted": ("False", "NoConflicts"),
}


def message(type: str, *objects: dict[str, Any]) -> str:
    found = plan(*objects)
    assert found is not None
    assert found.status is not None
    return next(one.message for one in found.status.conditions if one.type == type)


def test_a_route_whose_targets_are_there_is_accepted_and_resolved() -> None:
    assert told(a_route(), a_server()) == GOOD


def test_the_generation_is_told() -> None:
    found = plan(a_route(), a_server())
    assert found is not None
    assert found.status is not None
    assert found.status.fields == {"observedGeneration": 1}
    assert {one.observed_generation for one in found.status.conditions} == {1}


def rule(**match: Any) -> list[dict[str, Any]]:
    return [{"modelMatch": match, "targetModels": [{"modelServerName": "server"}]}]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"rules": []}, "NoTargets"),
        ({"rules": [{"targetModels": []}]}, "NoTargets"),
        ({"rules": [{"name": "no targets"}]}, "NoTargets"),
        ({"rules": [{"targetModels": [{"modelServerName": "server", "weight": 0}]}]}, "NoTargets"),
        ({"rules": rule(uri={"regex": "["})}, "InvalidRegex"),
        ({"rules": rule(headers={"x-user": {"regex": "(?=admin)"}})}, "InvalidRegex"),
        ({"rules": rule(uri={"regex": r"(a)\1"})}, "InvalidRegex"),
        ({"rules": rule(uri={"regex": "a" * 1025})}, "InvalidRegex"),
        ({"rules": rule(uri={"regex": "((a{10}){100}){2}"})}, "InvalidRegex"),
        ({"rules": rule(uri={"regex": "a{1001}"})}, "InvalidRegex"),
        ({"rules": rule(uri={"regex": "\ud800"})}, "InvalidRegex"),
        ({"rules": rule(uri={"exact": "/a", "prefix": "/"})}, "InvalidSpec"),
        ({"rules": "none"}, "InvalidSpec"),
        ({"rules": None}, "InvalidSpec"),
        ({"rules": [None]}, "InvalidSpec"),
        ({"modelName": None}, "InvalidSpec"),
        ({"modelName": "m" * 257}, "InvalidSpec"),
        ({"modelName": 7}, "InvalidSpec"),
        ({"loraAdapters": ["llama"]}, "InvalidSpec"),
        ({"loraAdapters": ["a", "a"]}, "InvalidSpec"),
    ],
)
def test_a_route_that_cannot_be_followed_says_why_and_no_more(spec: dict[str, Any], reason: str) -> None:
    assert told(a_route(**spec), a_server()) == {"Accepted": ("False", reason)}


@pytest.mark.parametrize(
    "regex",
    [
        *("^/v1/", r"[(?=]", r"\\1", r"a*\++", "(?i)x", "(?P<a>b)", r"[\]\\1]", "[]a]+"),
        *(r"a\z", r"\pL+", "a(?i)b", r"\Q+\E", "[[:alpha:]]", "(" * 500 + ")" * 500),
    ],
)
def test_a_regular_expression_of_re2_is_accepted(regex: str) -> None:
    assert told(a_route(rules=rule(uri={"regex": regex})), a_server()) == GOOD


def test_a_spec_that_is_no_object_is_told() -> None:
    assert told({**a_route(), "spec": "?"}) == {"Accepted": ("False", "InvalidSpec")}
    assert told({**a_route(), "spec": None}) == {"Accepted": ("False", "InvalidSpec")}


def test_what_is_told_of_a_bad_object_is_bounded() -> None:
    headers = {"x" * 100_000: {"regex": "["}}
    assert len(message("Accepted", a_route(rules=rule(headers=headers)))) <= 1000


def test_fields_of_a_newer_peer_are_ignored_and_told() -> None:
    route = a_route(parentRefs=[{"name": "gateway"}])
    assert told(route, a_server()) == {**GOOD, "SpecWarning": ("True", "FieldsIgnored")}
    assert message("SpecWarning", route, a_server()).startswith("without effect: spec.parentRefs: ")


def test_a_server_that_is_missing_is_named() -> None:
    route = a_route("route", "llama", "server", "absent", "b", "c", "d")
    assert told(route, a_server())["ResolvedRefs"] == ("False", "ModelServerNotFound")
    assert message("ResolvedRefs", route, a_server()) == "not in this namespace: absent; b; c; and 1 more"


def test_a_server_of_another_namespace_is_not_found() -> None:
    assert told(a_route(), a_server(namespace="bank"))["ResolvedRefs"] == ("False", "ModelServerNotFound")


HELD = "which gets all requests for it; choose another name, or have an administrator bind this one to your namespace"
OWN = "choose another name, or delete one of the two routes"


def test_the_older_of_two_routes_with_one_model_wins_across_namespaces() -> None:
    older, younger = a_route("z", age=2, namespace="bank"), a_route("a", age=1)
    assert told(older, younger)["Conflicted"] == ("False", "NoConflicts")
    assert told(younger, older)["Conflicted"] == ("True", "ModelNameInUse")
    assert message("Conflicted", younger, older) == f"'llama' is held by bank/z, {HELD}"


def test_of_two_routes_of_one_age_the_first_by_namespace_and_name_wins() -> None:
    first, second = a_route("b", namespace="bank"), a_route("a", namespace="shop")
    assert told(first, second)["Conflicted"] == ("False", "NoConflicts")
    assert told(second, first)["Conflicted"] == ("True", "ModelNameInUse")


def test_a_model_name_of_another_namespace_takes_none_from_an_older_adapter() -> None:
    adapter = a_route("adapter", None, age=9, adapters=("llama",))
    thief = a_route("thief", age=1, namespace="hostile")
    assert told(adapter, thief)["Conflicted"] == ("False", "NoConflicts")
    assert told(thief, adapter)["Conflicted"] == ("True", "ModelNameInUse")
    assert message("Conflicted", thief, adapter) == f"'llama' is held by shop/adapter, {HELD}"


def test_a_model_name_takes_requests_from_an_older_adapter_of_that_name() -> None:
    adapter, model = a_route("adapter", None, age=9, adapters=("llama",)), a_route("model", age=1)
    assert told(model, adapter)["Conflicted"] == ("False", "NoConflicts")
    assert told(adapter, model)["Conflicted"] == ("True", "ModelNameInUse")
    assert message("Conflicted", adapter, model) == (
        f"'llama' is the model of shop/model, so that it is never taken for an adapter of this route; {OWN}"
    )


def test_two_routes_with_one_adapter_conflict() -> None:
    older, younger = a_route("old", "a", age=2, adapters=("x",)), a_route("new", "b", age=1, adapters=("y", "x"))
    assert told(older, younger)["Conflicted"] == ("False", "NoConflicts")
    assert message("Conflicted", younger, older) == f"'x' belongs to shop/old, which is older and comes first; {OWN}"


def test_a_route_that_is_not_served_keeps_no_name_from_others() -> None:
    broken = a_route("broken", age=9, rules=[])
    leaving = a_route("leaving", age=8)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    assert told(a_route(), broken, leaving)["Conflicted"] == ("False", "NoConflicts")


def test_what_is_told_already_is_not_written_again() -> None:
    route = a_route()
    stored = written(route, plan(route, a_server()))
    settled = plan(stored, a_server())
    assert settled is not None
    assert not settled.writes
    assert not settled.notices


def test_a_route_that_only_tells_never_acts() -> None:
    found = plan(a_route())
    assert found is not None
    assert found.writes
    assert not found.acts


def test_a_route_that_went_bad_takes_back_what_it_cannot_say_any_more() -> None:
    route = a_route()
    stored = {**written(route, plan(route, a_server())), "spec": {**route["spec"], "rules": []}}
    found = plan(stored, a_server())
    assert found is not None
    assert found.status is not None
    assert [one.type for one in found.status.conditions] == ["Accepted"]
    assert found.status.transient == {"Accepted", "ResolvedRefs", "Conflicted", "RateLimitShared"}
    assert [(one.reason, one.kind) for one in found.notices] == [("NoTargets", "Warning")]


def test_only_news_is_announced() -> None:
    route = a_route()
    fine = plan(route, a_server())
    assert fine is not None
    assert not fine.notices, "that all is well from the start"
    lost = plan(written(route, fine))
    assert lost is not None
    assert [(one.reason, one.kind) for one in lost.notices] == [("ModelServerNotFound", "Warning")]
    found = plan(written(route, plan(route)), a_server())
    assert found is not None
    assert [(one.reason, one.kind) for one in found.notices] == [("ResolvedRefs", "Normal")]


def test_a_status_that_is_no_status_does_no_harm() -> None:
    for status in ("text", {"conditions": "text"}, {"conditions": [None, {"type": "Accepted"}]}, []):
        assert told({**a_route(), "status": status}, a_server()) == GOOD


def test_a_route_that_is_gone_or_going_needs_nothing() -> None:
    route = a_route()
    route["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    assert plan(route) is None


@pytest.mark.parametrize("time", ["2026-11-22t10:00:00z", "0000-01-01T00:00:00Z", ""])
def test_a_time_that_a_calendar_does_not_have_keeps_nothing_from_being_told(time: str) -> None:
    obj = a_route()
    theirs = {"type": "Accepted", "status": "False", "reason": "Mine", "message": "", "lastTransitionTime": time}
    found = plan({**obj, "status": {"conditions": [theirs]}}, a_server())
    assert found is not None
    assert found.status is not None
    assert [one.reason for one in found.notices] == ["Accepted"]


REDIS = "redis.infra.svc:6379"
LISTED = f'redis: {{servers: {{"{REDIS}": "rediss://:secret@redis.infra.svc:6379/0"}}}}'


def limited(address: str = REDIS, **limits: Any) -> dict[str, Any]:
    """A route whose replicas are to count together."""
    return a_route(rateLimit={"unit": "minute", "global": {"redis": {"address": address}}, **limits})


@pytest.mark.parametrize(
    ("route", "configuration", "condition", "text"),
    [
        (limited(inputTokensPerUnit=5), LISTED, ("True", "Shared"), "count in the Redis at redis.infra.svc:6379"),
        (limited(outputTokensPerUnit=5), LISTED, ("True", "Shared"), "count in the Redis at redis.infra.svc:6379"),
        (limited("r.shop.svc:6379", inputTokensPerUnit=5), None, ("True", "Shared"), "r.shop.svc:6379"),
        (limited("r.shop:1", inputTokensPerUnit=5), "", ("True", "Shared"), "r.shop:1"),
        (limited(), LISTED, ("False", "NoLimit"), "set inputTokensPerUnit or outputTokensPerUnit"),
        (limited("r.shop.svc:6379"), None, ("False", "NoLimit"), "r.shop.svc:6379 is not used"),
        (limited(inputTokensPerUnit=5), None, ("False", "AddressNotAccepted"), "which does not exist; name such"),
        (limited(inputTokensPerUnit=5), "", ("False", "AddressNotAccepted"), "redis.infra.svc:6379 is not used"),
        (limited("r.bank.svc:1", inputTokensPerUnit=5), LISTED, ("False", "AddressNotAccepted"), "namespace shop"),
        (limited("r.shop.evil:1", inputTokensPerUnit=5), LISTED, ("False", "AddressNotAccepted"), "r.shop.evil:1"),
        (limited(inputTokensPerUnit=5), "redis: 7", ("Unknown", "ConfigurationInvalid"), "a router's log"),
        (limited(inputTokensPerUnit=5), "[", ("Unknown", "ConfigurationInvalid"), "cannot be read"),
    ],
)
def test_a_route_tells_whether_its_limits_are_shared(
    route: dict[str, Any], configuration: str | None, condition: tuple[str, str], text: str
) -> None:
    more = [] if configuration is None else [a_router_configuration(configuration)]
    assert told(route, a_server(), *more)["RateLimitShared"] == condition
    assert text in message("RateLimitShared", route, a_server(), *more)


def test_only_the_routers_own_configuration_accepts_addresses() -> None:
    route = limited(inputTokensPerUnit=5)
    theirs = a_router_configuration(LISTED, namespace="shop"), a_router_configuration(LISTED, name="other")
    assert told(route, a_server(), *theirs)["RateLimitShared"] == ("False", "AddressNotAccepted")
    keyless = {**a_router_configuration(""), "data": {"else": LISTED}}
    assert "has no key routerConfiguration" in message("RateLimitShared", route, a_server(), keyless)


def test_credentials_of_a_redis_are_not_told() -> None:
    for text in (LISTED, f"{LISTED}: ]", LISTED.replace("servers", "serverz")):
        text_of_route = message(
            "RateLimitShared", limited(inputTokensPerUnit=5), a_server(), a_router_configuration(text)
        )
        assert "secret" not in text_of_route


def test_a_route_without_shared_limits_says_nothing_of_them() -> None:
    assert told(a_route(rateLimit={"inputTokensPerUnit": 5}), a_server()) == GOOD
    stored = written(limited(), plan(limited(), a_server()))
    del stored["spec"]["rateLimit"]
    planned = plan(stored, a_server())
    assert planned is not None
    assert planned.status is not None
    assert "RateLimitShared" in planned.status.transient
    assert "RateLimitShared" not in {item.type for item in planned.status.conditions}


def test_that_an_address_is_not_used_is_worth_a_warning_once() -> None:
    route = limited(inputTokensPerUnit=5)
    planned = plan(route, a_server())
    assert planned is not None
    assert [(item.reason, item.kind) for item in planned.notices] == [("AddressNotAccepted", "Warning")]
    again = plan(written(route, planned), a_server())
    assert again is not None
    assert not again.notices


def test_a_rate_limit_without_a_limit_is_none_and_told() -> None:
    route = a_route(rateLimit={"unit": "hour"})
    assert objects.route(route).budget is None
    assert "spec.rateLimit" in message("SpecWarning", route, a_server())
