"""The life of a ModelRoute's roll-out: the next weights, or those of before, by what was measured. Pure.

Memory is written before weights. The memory names the generation that it was decided for: weights that are not those of
the step, in that very generation, are still to be written; in a later one somebody has changed them, and is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from modelyard.objects import PODS, Condition, Key, Notice, controller_of, timestamp
from modelyard.reconcile.plans import (
    UNATTENDED_SECONDS,
    ObjectResult,
    Plan,
    PlanStep,
    ResultState,
    Status,
    StepId,
    StepPhase,
    Want,
    World,
    is_status_due,
    parse_memory,
    render_memory,
    status_plan,
    wish_of,
)
from modelyard.routing import findings
from modelyard.routing.lifecycle import PODS_WANTED, SERVERS_WANTED
from modelyard.routing.objects import ROUTES, SERVERS, Route, Server, route
from modelyard.routing.rolling import (
    EDITED,
    MEMORY,
    ROLLED_BACK,
    ROLLED_OUT,
    WISH,
    RouteReading,
    RouteRollOut,
    RouteRollOutMemory,
    RouteWatch,
    RuleWeights,
    verdict,
    weights_at,
)

CONDITION, INVALID, ROLLING, WAITING = "RolledOut", "InvalidRollOut", "RollingOut", "NoReadyPods"
_TARGET = "modelServerName"
_UNTOLD: Mapping[str, Any] = {"status": None, "news": ()}


class StoredRoute(NamedTuple):
    """A ModelRoute with what is wished of its weights. ``rules`` are as the API sends them."""

    key: Key
    route: Route
    rules: Sequence[Mapping[str, Any]]
    wish: str
    memory: str
    maker: str


def stored(obj: Mapping[str, Any]) -> StoredRoute:
    """A ModelRoute as the API sends it."""
    found, annotations, owner = route(obj), obj["metadata"].get("annotations") or {}, controller_of(obj)
    rules = obj["spec"].get("rules") or [] if found.problem is None else []
    wish, memory = (one if isinstance(one := annotations.get(name), str) else "" for name in (WISH, MEMORY))
    maker = f"{owner.kind} {owner.name}" if owner is not None else ""
    return StoredRoute(found.key, found, rules, wish, memory, maker)


@dataclass(frozen=True, slots=True)
class RouteStanding:
    """How a roll-out stands: why it cannot be (``problem``), what it is at (``says``), what is to be measured."""

    wish: RouteRollOut | None
    memory: RouteRollOutMemory
    says: str
    problem: str = ""
    watch: RouteWatch | None = None
    ladder: tuple[str, ...] = ()
    """The weights of each step, in words."""

    def result(self, key: Key) -> ObjectResult:
        """Return the result of the roll-out at the end of a run."""
        ended = INVALID if self.problem else self.memory.ended
        if not ended:
            return ObjectResult(ResultState.PENDING, f"ModelRoute {key} is not at its end: {self.says}")
        state = ResultState.DONE if ended == ROLLED_OUT else ResultState.FAILED
        return ObjectResult(state, f"ModelRoute {key}: {self.says}")

    def rows(self, key: Key) -> list[dict[str, object]]:
        """Return a row for each step that was measured."""
        return [{"route": str(key), "step": step, "result": result} for step, result in enumerate(self.memory.said, 1)]


@dataclass(eq=False)
class RouteRollOuts:
    """ModelRoutes with a wish. ``prometheus`` is where it is measured.

    ``readings`` of who measures (``None``: nobody here does, so that it takes a run, and what is planned is not to be
    carried out). ``given`` are wishes to look at in place of those that routes have. Plans have a ``RouteStanding``.
    """

    prometheus: str = ""
    readings: MutableMapping[Key, RouteReading] | None = None
    given: Mapping[Key, str] = field(default_factory=dict)

    name = "route-roll-out"
    about = ROUTES
    wants = (Want(ROUTES, stored, wish=wish_of(WISH), use="roll-outs"), SERVERS_WANTED, PODS_WANTED)

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        """What is to be written for the route of this name."""
        here: StoredRoute | None = world[ROUTES].get(key)
        if here is None or here.route.subject.deleting:
            return None
        text = self.given.get(key, here.wish)
        if not text:
            return self._forgotten(here, now)
        try:
            wish = RouteRollOut.read(text)
        except ValueError as error:
            return self._told(here, RouteStanding(None, RouteRollOutMemory(), "", str(error)), INVALID, str(error), now)
        look = _Look(here, wish, world, now, self.prometheus)
        standing, deeds = look.plan(self.readings)
        return replace(self._told(here, standing, look.reason, look.message, now), steps=look.steps(deeds), **deeds)

    def _forgotten(self, here: StoredRoute, now: float) -> Plan | None:
        status = Status({}, (), transient=frozenset({CONDITION}))
        due = is_status_due(status, here.route.status, now, 0.0)
        if not (due or here.memory):
            return None
        return Plan(
            here.route.subject, annotations={MEMORY: None} if here.memory else {}, status=status if due else None
        )

    def _told(self, here: StoredRoute, standing: RouteStanding, reason: str, message: str, now: float) -> Plan:
        subject, good = here.route.subject, reason == ROLLED_OUT
        condition = Condition(CONDITION, str(good), reason, message, subject.generation)
        status = Status({}, (condition,), transient=frozenset({CONDITION}))
        kind = "Warning" if reason in (INVALID, ROLLED_BACK, EDITED) else "Normal"
        plan = status_plan(subject, condition, status, here.route.status, now)
        return replace(plan, news=(Notice(reason, message, kind),) if plan.status else (), details=standing)


class _Look:
    """One look at a route: ``reason`` and ``message`` are those of its condition afterwards."""

    def __init__(self, here: StoredRoute, wish: RouteRollOut, world: World, now: float, prometheus: str) -> None:
        self.here, self.wish, self.world, self.now, self.prometheus = here, wish, world, now, prometheus
        memory, _ = parse_memory(RouteRollOutMemory, MEMORY, here.memory)
        if memory.wish != wish.digest:  # of the same server: what was before stays what was before
            goes_on = memory.to == wish.to and not memory.ended and self._fits(memory)
            memory = RouteRollOutMemory(wish=wish.digest, to=wish.to, before=memory.before if goes_on else ())
        if not self._fits(memory):
            memory = RouteRollOutMemory(wish=wish.digest, to=wish.to)
        self.memory = memory if memory.before else memory.model_copy(update={"before": self._before()})
        self.reason, self.message = ROLLING, ""

    @property
    def server(self) -> Key:
        return Key(self.here.key.namespace, self.wish.to)

    def _targets(self, rule: int) -> list[str]:
        return [one.get(_TARGET) or "" for one in self.here.rules[rule]["targetModels"]]

    def _weights(self, rule: int) -> tuple[int, ...]:
        return tuple(one.get("weight", 100) for one in self.here.rules[rule]["targetModels"])

    def _before(self) -> tuple[RuleWeights, ...]:
        """The rules that take part: with the server, and with others that get requests."""
        found = [index for index in range(len(self.here.rules)) if self.wish.to in self._targets(index)]
        made = [RuleWeights(rule=index, weights=self._weights(index)) for index in found]
        return tuple(one for one in made if sum(one.weights) > one.weights[self._place(one.rule)])

    def _place(self, rule: int) -> int:
        return self._targets(rule).index(self.wish.to)

    def _fits(self, memory: RouteRollOutMemory) -> bool:
        """Whether it can be of the rules that there are: anybody who may write the route may have written it."""
        rules = range(len(self.here.rules))
        return memory.step < len(self.wish.steps) and all(
            one.rule in rules
            and self.wish.to in self._targets(one.rule)
            and len(one.weights) == len(self._weights(one.rule))
            and sum(one.weights) > one.weights[self._place(one.rule)]
            for one in memory.before
        )

    def _problem(self) -> str:
        here, to = self.here, self.wish.to
        if here.route.problem is not None:
            return f"the ModelRoute is not accepted: {here.route.problem.message}"
        if here.maker:
            return (
                f"the ModelRoute is made by {here.maker}, which sets its weights - make a ModelRoute of your own for"
                " the name, and roll that out"
            )
        if not any(to in self._targets(index) for index in range(len(here.rules))):
            return (
                f"no rule of the ModelRoute has the ModelServer {to} - add {{modelServerName: {to}, weight: 0}} to the"
                " targetModels of the rules that are to go there"
            )
        server: Server | None = self.world[SERVERS].get(self.server)
        if server is None:
            return f"there is no ModelServer {self.server} - create it, with the labels of the new pods"
        if server.problem is not None:
            return f"ModelServer {self.server} is not usable: {server.problem.message}"
        if not self.prometheus:
            return "nothing can be measured - set PROMETHEUS_BASE_URL of the worker, to what scrapes the routers"
        return ""

    def _ready(self) -> int:
        server: Server | None = self.world[SERVERS].get(self.server)
        assert server is not None, "or there is a problem"
        label, value = min(server.labels.items())
        found = findings.counts(server, self.world[PODS].by("label", (self.server.namespace, label, value)))
        return found.ready if found.complete is None else found.complete

    def _wanted(self, step: int) -> dict[int, tuple[int, ...]]:
        """By rule, the weights of a step; before the first, those of before."""
        if step < 0:
            return {one.rule: one.weights for one in self.memory.before}
        percent = self.wish.steps[step]
        return {one.rule: weights_at(one.weights, self._place(one.rule), percent) for one in self.memory.before}

    def _is_set(self, wanted: Mapping[int, tuple[int, ...]]) -> bool:
        return all(self._weights(rule) == weights for rule, weights in wanted.items())

    def _filled(self, wanted: Mapping[int, tuple[int, ...]]) -> dict[str, Any]:
        rules = []
        for index, rule in enumerate(self.here.rules):
            weights = wanted.get(index, self._weights(index))
            targets = [{**one, "weight": w} for one, w in zip(rule["targetModels"], weights, strict=True)]
            rules.append({**rule, "targetModels": targets} if index in wanted else rule)
        return {"spec": {"rules": rules}}

    def plan(self, readings: Mapping[Key, RouteReading] | None) -> tuple[RouteStanding, dict[str, Any]]:
        if problem := self._problem():
            self.reason, self.message = INVALID, problem
            return RouteStanding(self.wish, self.memory, problem, problem), {}
        memory, deeds = self.memory, dict[str, Any]()
        if memory.ended:
            wanted = self._wanted(memory.step) if memory.ended == ROLLED_OUT else self._wanted(-1)
            left = memory.ended != EDITED and not self._is_set(wanted)
            if left and memory.generation == self.here.route.subject.generation:
                deeds = {"fill": self._filled(wanted)}
            self._end_told()
        elif not memory.before:
            deeds = self._end(memory.with_said("it has all requests already", ended=ROLLED_OUT))
        elif memory.step < 0:
            if not self._ready():
                self.reason, self.message = WAITING, f"waits for a ready pod of ModelServer {self.wish.to}"
                deeds = {}  # no run stays for it: once there is one, there is something to do
            else:
                deeds = self._go(0)
        elif not self._is_set(self._wanted(memory.step)):
            if memory.generation == self.here.route.subject.generation:
                deeds = self._go(memory.step)  # they were about to be set
            else:
                deeds = self._end(memory.with_said("somebody has changed the weights meanwhile", ended=EDITED))
        else:
            deeds = self._judged(readings)
        return RouteStanding(self.wish, self.memory, self.message, "", self._watch(), self._ladder()), deeds

    def steps(self, deeds: Mapping[str, Any]) -> dict[StepId, PlanStep]:
        """Return the step whose weights are set or judged; ``roll back`` where those of before come back."""
        memory, keeps = self.memory, bool(deeds.get("annotations") or deeds.get("fill"))
        if self.reason in (INVALID, WAITING):
            state = StepPhase.FAILED if self.reason == INVALID else StepPhase.WAITING
            return {StepId("wait for the server"): PlanStep(state, self.message)}
        percent = self.wish.steps[memory.step] if memory.step >= 0 else 0
        step, steps = StepId("shift", f"{percent} %"), dict[StepId, PlanStep]()
        if memory.ended == ROLLED_OUT:
            return {step: PlanStep(StepPhase.ACTIVE, self.message, 1.0, keeps=True)} if keeps else {}
        if memory.ended:
            steps[step] = PlanStep(StepPhase.FAILED, self.message)
            if keeps:
                steps[StepId("roll back")] = PlanStep(StepPhase.ACTIVE, self.message, keeps=True)
            return steps
        awaits = deeds.get("awaits", ())
        return {step: PlanStep(StepPhase.ACTIVE, self.message, percent / 100, awaits=awaits, keeps=keeps)}

    def _watch(self) -> RouteWatch | None:
        memory = self.memory
        if memory.ended or memory.step < 0:
            return None
        space, to = self.here.key.namespace, self.wish.to
        old = {
            name
            for one in memory.before
            for name, weight in zip(self._targets(one.rule), one.weights, strict=True)
            if weight and name not in ("", to)
        }
        beside = self.wish.steps[memory.step] < 100
        servers = tuple(Key(space, name) for name in sorted(old))
        return RouteWatch(self.here.key, self.server, servers, memory.since, self.wish.seconds, beside)

    def _judged(self, readings: Mapping[Key, RouteReading] | None) -> dict[str, Any]:
        memory, watch = self.memory, self._watch()
        assert watch is not None
        last = memory.step + 1 == len(self.wish.steps)
        if readings is None:  # it takes a run: something that there is to do starts one
            self._step_told()
            part = int((self.now - memory.since) // UNATTENDED_SECONDS)
            return {"fill": self._filled(self._wanted(-1 if last else memory.step + 1)), "part": part}
        found = verdict(self.wish, watch, readings.get(self.here.key), self._ready(), self.now)
        if found.goes == "wait":
            self._step_told()
            return {"awaits": (f"{self.message}: {found.words}",)}
        self.memory = memory.with_said(f"{self.wish.steps[memory.step]} %: {found.words}")
        if found.goes == "back":
            return self._end(self.memory.model_copy(update={"ended": ROLLED_BACK}), self._wanted(-1))
        if last:
            return self._end(self.memory.model_copy(update={"ended": ROLLED_OUT}))
        return self._go(memory.step + 1)

    def _go(self, step: int) -> dict[str, Any]:
        generation = self.here.route.subject.generation
        self.memory = self.memory.model_copy(update={"step": step, "since": self.now, "generation": generation})
        self._step_told()
        return self._write(self._wanted(step))

    def _end(self, memory: RouteRollOutMemory, wanted: Mapping[int, tuple[int, ...]] | None = None) -> dict[str, Any]:
        self.memory = memory.model_copy(update={"generation": self.here.route.subject.generation})
        self._end_told()
        return self._write(wanted or {})

    def _write(self, wanted: Mapping[int, tuple[int, ...]]) -> dict[str, Any]:
        """Memory, then weights. It is told when it is so: by the next look."""
        fill = self._filled(wanted) if wanted and not self._is_set(wanted) else {}
        return {"annotations": {MEMORY: render_memory(self.memory)}, "exact": True, "fill": fill, **_UNTOLD}

    def _step_told(self) -> None:
        percent, memory = self.wish.steps[self.memory.step], self.memory
        until = timestamp(memory.since + self.wish.seconds)
        place = f"step {memory.step + 1} of {len(self.wish.steps)}"
        self.message = f"{percent} % of the requests go to {self.wish.to} ({place}), until {until} at least"

    def _end_told(self) -> None:
        memory = self.memory
        said = memory.said[-1] if memory.said else ""
        percent = self.wish.steps[memory.step] if memory.step >= 0 else 0
        self.reason = memory.ended
        if memory.ended == ROLLED_OUT:
            self.message = f"{percent} % of the requests go to {self.wish.to}: {said}" if memory.step >= 0 else said
        elif memory.ended == ROLLED_BACK:
            self.message = f"the weights of before are back, {self.wish.to} serves worse: {said}"
        else:
            self.message = f"{said}: they stay as they are; change the annotation {WISH} to begin anew"

    def _ladder(self) -> tuple[str, ...]:
        return tuple(
            f"{self.wish.steps[step]} %: "
            + "; ".join(
                f"rule {rule} " + ", ".join(f"{n or 'other'} {w}" for n, w in zip(self._targets(rule), ws, strict=True))
                for rule, ws in self._wanted(step).items()
            )
            for step in range(len(self.wish.steps))
        )
