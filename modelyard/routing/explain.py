"""Why a request would go where it goes: routes of its name, the rule, the draw, the pods with their points. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from modelyard.fairness import WorkBudget
from modelyard.objects import Key
from modelyard.resources import MINDIE
from modelyard.routing.decide import Decider, Question
from modelyard.routing.errors import ErrorAnswer
from modelyard.routing.fleet import RoutedFleet
from modelyard.routing.objects import Route, RoutingRule, TextTest
from modelyard.routing.schedule import RoutedPod
from modelyard.routing.table import MATCH_WORK, takes


def explain(decider: Decider, question: Question, now: float) -> Iterator[str]:
    """Lines for a reader. The draw by weight is made as for a request, so it may come out otherwise another time."""
    fleet, name = decider.fleet, question.model
    routes, lora = fleet.table.tried(name)
    yield from fleet.holding(name).lines()
    if not routes:
        yield f"404: no ModelRoute serves {name!r}; served are: {', '.join(fleet.table.names) or 'none'}"
        return
    effort = WorkBudget(MATCH_WORK)
    for route in routes:
        yield f"ModelRoute {route.key}{' (by an adapter name)' if lora else ''}{_budget(route)}"
        rule = next((number for number, rule in enumerate(route.rules) if takes(rule, question.asked, effort)), None)
        for number, one in enumerate(route.rules):
            later = rule is not None and number > rule
            word = "takes it" if number == rule else "is not reached" if later else "does not take it"
            yield f"  rule {number}{f' {one.name}' if one.name else ''}: {word} ({_conditions(one) or 'no conditions'})"
        if rule is not None:
            yield from _targets(fleet, route, route.rules[rule])
            if any(target.weight for target in route.rules[rule].targets):
                break
    yield from _pods(decider, question, now)


def _targets(fleet: RoutedFleet, route: Route, rule: RoutingRule) -> Iterator[str]:
    total = sum(target.weight for target in rule.targets)
    for target in rule.targets:
        backend = fleet.backends.get(Key(route.key.namespace, target.server))
        ready = "does not exist" if backend is None else f"{len(backend.serving)} ready pods"
        share = f"{100 * target.weight / total:.3g} %" if total else "0 %"
        yield f"    {share} to ModelServer {target.server} (weight {target.weight}): {ready}"


def _pods(decider: Decider, question: Question, now: float) -> Iterator[str]:
    found = decider.destination(question)
    if isinstance(found, ErrorAnswer):
        yield f"{found.status}: {found.message}"
        return
    if found.instead_of:
        yield f"drawn was {found.instead_of}, which has no ready pods"
    yield f"ModelServer {found.server}"
    forward = decider.forward(question, found, now)
    if isinstance(forward, ErrorAnswer):
        yield f"  {forward.status}: {forward.message}"
        return
    server = forward.server
    asked = " (as asked)" if forward.upstream_model == question.model else ""
    yield f"  model sent: {forward.upstream_model}{asked}"
    yield f"  prompt: about {question.tokens} tokens"
    retry = "each of the best pods once"
    if server.retry is not None:
        retry = f"{server.retry.attempts} more, {server.retry.interval:g} s apart"
    limit = "the router's --head-seconds" if server.timeout is None else f"{server.timeout:g} s"
    yield f"  attempts: {retry}; {limit} to the head of the answer"
    if server.engine == MINDIE:
        yield "  engine: MindIE; its metrics are not read, so only the requests that this router sent count as load"
    if forward.connector is not None:
        yield f"  prefill and decode apart, by connector {forward.connector.value}"
    for place, attempt in enumerate(forward.attempts, 1):
        points = " + ".join(f"{name} {value:g}" for name, value in attempt.points.items())
        total = f"; points {sum(attempt.points.values()):g} = {points}" if points else ""
        yield f"  {place}. {attempt.pod.key.name} {_state(attempt.pod)}{total}"
        if attempt.prefill is not None:
            yield f"     after prefill by {attempt.prefill.key.name} {_state(attempt.prefill)}"


def _state(pod: RoutedPod) -> str:
    told = pod.gauges
    if told is None:
        return f"at {pod.url}: metrics not read"
    load = f"running {_number(told.running)}, waiting {_number(told.waiting)}, cache {_number(100 * told.usage, ' %')}"
    return f"at {pod.url}: {load}, TTFT {told.ttft:.3f} s, ITL {told.tpot:.3f} s"


def _number(value: float, unit: str = "") -> str:
    return "unknown" if math.isnan(value) else f"{value:.0f}{unit}"


def _conditions(rule: RoutingRule) -> str:
    found = [f"model {rule.model!r}"] if rule.model is not None else []
    found += [f"path {_test(rule.path)}"] if rule.path is not None else []
    return ", ".join([*found, *(f"header {name} {_test(test)}" for name, test in rule.headers)])


def _test(test: TextTest) -> str:
    for word, value in (("is", test.exact), ("begins with", test.prefix), ("has", test.regex)):
        if value is not None:
            return f"{word} {value!r}"
    return "is anything"


def _budget(route: Route) -> str:
    if route.budget is None:
        return ""
    limits = ((route.budget.input, "input"), (route.budget.output, "output"))
    told = " and ".join(f"{limit} {name}" for limit, name in limits if limit is not None)
    return f", at most {told} tokens per {route.budget.seconds} s"
