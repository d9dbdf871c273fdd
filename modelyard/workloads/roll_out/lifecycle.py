"""The life of a service: resolve its model, select its runtime, render, apply, wait for its pods, tell. Pure.

What is made belongs to the service, and goes with it. What is not rendered any more goes when what takes its place is
ready. A service that is refused keeps what runs, and says why there is nothing newer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from modelyard.models.delivery import ModelNode, node
from modelyard.models.storage import settings as models_settings
from modelyard.objects import (
    CONTROLLER_REVISIONS,
    NAMESPACES,
    NODES,
    PODS,
    Key,
    Namespace,
    ResourceType,
    epoch,
    namespace,
)
from modelyard.reconcile.plans import (
    FAILED,
    NO_CHILDREN,
    Child,
    Plan,
    ServedKind,
    Want,
    World,
    WriteRules,
    settings_wanted,
    with_spec_warning,
)
from modelyard.resources import InferenceService
from modelyard.workloads.rendering import (
    Abilities,
    Body,
    Refused,
    Rendered,
    ServingSettings,
    child_rules,
    render,
    settings,
)
from modelyard.workloads.roll_out import canaries, gates, holding, recorded_inputs, returning
from modelyard.workloads.roll_out.canaries import is_canary
from modelyard.workloads.roll_out.changes import changes, identity
from modelyard.workloads.roll_out.deeds import Deeds
from modelyard.workloads.roll_out.diagnosis import NO_MODEL, UNSCHEDULABLE, Trouble
from modelyard.workloads.roll_out.recovery import groups, recover
from modelyard.workloads.roll_out.resolution import Resolved, offered_runtimes, recorded, resolve
from modelyard.workloads.roll_out.returning import Aim
from modelyard.workloads.roll_out.roll_out_steps import roll_out_steps
from modelyard.workloads.roll_out.rollout_state import Standing
from modelyard.workloads.roll_out.standing import (
    COMPONENTS,
    ComponentStanding,
    floor,
    in_turn,
    is_workload,
    makes_pods,
    stand,
)
from modelyard.workloads.roll_out.story import LATEST, UNREPORTED, told
from modelyard.workloads.roll_out.world import (
    ASKED,
    BINDINGS,
    INFERENCE_SERVICES,
    MODELS_WANTED,
    OF_SERVICE,
    RUNTIMES_WANTED,
    SERVICES_WANTED,
    VARIANTS,
    ServicePod,
    StoredChild,
    StoredService,
    child_kinds,
    classes_wanted,
    wanted,
)

SETTINGS = "serving-settings"
READY_WITHIN = 1800.0
"""Seconds that a run stays for pods to become ready. They may do so later, too: then only nobody watches them."""
_MODEL_LABEL = "models.ome.io/"
_ROUTES = ("external-service", "ingress")


@dataclass(eq=False)
class RollOut(ABC):
    """Services of one kind. ``home`` is the controller's namespace, where the settings are.

    ``served`` are the kinds that the server has, of those it may have. Updates are compared where there is a
    ``prometheus`` (its address), by ``readings`` (``None``: nobody here measures). Plans have a ``Standing``.
    """

    home: str
    served: frozenset[ServedKind] = frozenset()
    prometheus: str = ""
    readings: MutableMapping[Key, gates.GateReading] | None = None

    labels = OF_SERVICE
    name = "roll-out"
    about = INFERENCE_SERVICES
    asks = ASKED
    well: ClassVar[Mapping[str, str]] = {LATEST: "True", "Ready": "True"}
    """Of a status that says that all is as it was asked for: the conditions, the one to look at first."""

    @property
    @abstractmethod
    def kinds(self) -> tuple[ResourceType, ...]:
        """Of what is made, where the server has them."""

    @property
    @abstractmethod
    def named(self) -> tuple[Want[Any], ...]:
        """The services, and what they name."""

    @abstractmethod
    def resolve(self, service: StoredService, world: World) -> Resolved: ...

    @abstractmethod
    def render(self, service: StoredService, found: Resolved, abilities: Abilities, world: World) -> Rendered | Refused:
        """Return the objects of a service."""

    def resolve_recorded(self, service: StoredService, inputs: Body, world: World) -> Resolved:
        """Resolve what a service named when these inputs were recorded. Whatever they say, it raises nothing."""
        return self.resolve(service, world)

    def beside(self, service: StoredService, world: World) -> Sequence[str]:
        """What another controller has made of the service, with pods that would be beside those that are made here."""
        return ()

    def canaries(self, service: StoredService, found: Resolved, result: Rendered) -> Mapping[str, int]:
        """By component, the percentage of requests that a new revision is to have, beside what serves."""
        return {}

    def tell(self, here: Standing, doing: Sequence[str], now: float) -> Plan:
        """Return a plan with the status. ``doing`` names what is being written or taken away."""
        return told(here, doing, now)

    def least(self, service: StoredService, result: Rendered, component: str) -> int:
        """The replicas of a workload below which its component is not ready."""
        return floor(result.children, component)

    @property
    def wants(self) -> tuple[Want[Any], ...]:
        return (
            *self.named,
            *wanted(self.kinds, self.labels, self.served),
            returning.revisions_wanted(self.labels),
            recorded_inputs.records_wanted(self.home),
            Want(NODES, node, cached=True, use="models"),
            Want(NAMESPACES, namespace, use="services"),
            settings_wanted(self.home, settings.CONFIG_MAP, lambda data: ServingSettings.read(data)[0], SETTINGS),
            models_settings.delivery_settings_wanted(self.home),
        )

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        service: StoredService | None = world[self.about].get(key)
        if service is None or service.subject.deleting:
            return None
        resolved = self.resolve(service, world)
        result = self.rendered(service, resolved, world)
        here = self._judged(self._standing(service, resolved, result, world), world, now)
        owned = self._owned(service, world)
        deeds, recovery = Deeds.of(here, owned), recover(groups(owned, self._pods(service, world)), now)
        good = here.aim.revision.name if here.aim is not None and here.done else here.good
        kept, older = returning.kept(here.aim if here.states else None, good, self.labels, service, world)
        marks = recorded_inputs.record_mark(self.home, resolved.runtime, world) if kept else ()
        plan = with_spec_warning(self.tell(here, [*deeds.words, *recovery.words], now), service.status)
        again = returning.look_again(service, here.aim, now) if here.aim is not None and not here.done else None
        awaited = self._awaited(here, now)
        waits = list(deeds.waits) or [state.message for state in awaited]
        waits += [here.watch.words] if here.watch is not None else []
        is_written = all(state.rolled_out for state in here.states.values())
        if not waits and here.updates and is_written and not (here.canary or here.returned):
            waits = [UNREPORTED]
        children = (Child(child.kind, child.key, child.body["metadata"]["uid"]) for child in deeds.delete)
        delete = (*children, *older, *recovery.children(owned))
        plan = replace(plan, apply=(*deeds.apply, *kept), delete=delete, awaits=tuple(waits))
        return replace(
            plan,
            marks=marks,
            rules=self._rules(here, world),
            steps=roll_out_steps(plan, here, awaited, self.well),
            notices=(*plan.notices, *recovery.notices),
            noted=True,
            due=min((one for one in (again, recovery.due) if one is not None), default=None),
            # Nothing is left to do, so that nothing has failed.
            annotations={FAILED: None} if FAILED in service.annotations and not deeds.words else {},
            details=here,
        )

    def _rules(self, here: Standing, world: World) -> WriteRules:
        if isinstance(here.result, Refused):
            return NO_CHILDREN
        name = here.service.key.namespace
        namespace: Namespace = world[NAMESPACES].get(Key("", name)) or Namespace(name)
        return child_rules((*self.kinds, CONTROLLER_REVISIONS), here.result.rights, namespace)

    def rendered(self, service: StoredService, found: Resolved, world: World) -> Rendered | Refused:
        if problem := found.problem or service.problem:
            return problem
        home = service.key.namespace
        chosen = self._settings_of(world)
        here: Namespace | None = world[NAMESPACES].get(Key("", home))
        abilities = Abilities(frozenset(map(str, self.served)), chosen, {home: here} if here is not None else {})
        return self.render(service, found, abilities, world)

    def _settings_of(self, world: World) -> ServingSettings:
        chosen: ServingSettings = next(iter(world[SETTINGS].all()), ServingSettings())
        return chosen.model_copy(update={"models": next(iter(world[models_settings.WANTED].all()), chosen.models)})

    def _scaled(self, service: StoredService, world: World) -> frozenset[str]:
        stores = (world[one] for kind in (VARIANTS, BINDINGS) if (one := f"scaled by {kind.kind}") in world)
        scalers = (one for store in stores for one in store.by("namespace", service.key.namespace))
        return frozenset(name for one in scalers if one.owner != service.subject.uid for name in one.workloads)

    def _owned(self, service: StoredService, world: World) -> list[StoredChild]:
        """Of its own namespace: anybody may write its uid down elsewhere."""
        found = (one for kind in self.kinds for one in world[kind].by("owner", service.subject.uid))
        return [one for one in found if one.key.namespace == service.key.namespace]

    def _pods(self, service: StoredService, world: World) -> Iterable[ServicePod]:
        found: Iterable[ServicePod] = world[PODS].by("service", (service.key.namespace, service.label))
        return found

    def _standing(
        self, service: StoredService, resolved: Resolved, result: Rendered | Refused, world: World
    ) -> Standing:
        home = service.key.namespace
        owned = {identity(one.body): one for one in self._owned(service, world)}
        pods: dict[str, list[ServicePod]] = {}
        for pod in self._pods(service, world):
            pods.setdefault(pod.component, []).append(pod)
        if isinstance(result, Refused):
            alive = [one for one in owned.values() if is_workload(one)]
            states = {
                kind: stand(kind, "", [one for one in alive if one.component == kind], pods.get(kind, ()), 1)
                for kind in dict.fromkeys((*COMPONENTS, *(one.component for one in alive)))
                if any(one.component == kind for one in alive)
            }
            routed = any(one.component in _ROUTES for one in owned.values())
            return Standing(service, resolved, result, states=states, routed=routed, there=owned)
        there = dict(owned)
        kinds = {(kind.group, kind.kind): kind for kind in self.kinds}
        for child in result.children:
            found = identity(child.body)
            other = world[kinds[found[:2]]].get(Key(home, child.name)) if found[:2] in kinds else None
            if other is not None:
                there[found] = other
        diff = changes(service.subject.uid, result.children, [one.body for one in there.values()])
        held = holding.held(service, resolved, result, diff, owned, self.beside(service, world))
        if held:
            delete = tuple(one for one in diff.delete if not owned[identity(one)].component)
            diff = replace(diff, apply=tuple(one for one in diff.apply if not one.component), delete=delete)
        stale = {identity(one.body) for one in diff.apply}
        states = {}
        for kind, mode in result.modes.items():
            making = [one.body for one in result.children if one.component == kind and makes_pods(one.body)]
            made = {identity(one) for one in making if not is_canary(one)}
            mine = [owned[one] for one in made if one in owned]
            if held:  # in whatever form it is there
                mine = [one for one in owned.values() if one.component == kind and is_workload(one)]
                made = {identity(one.body) for one in mine}
            state = stand(kind, mode, mine, pods.get(kind, ()), self.least(service, result, kind), stale, len(made))
            if held and not mine:  # another controller's: all that is known of them are the pods
                state = replace(state, ready=state.ready_pods > 0, wanted=max(1, len(state.pods)))
            for one in filter(is_canary, making):  # which serves nothing that would be missed
                tried = stand(kind, mode, [owned[identity(one)]] if identity(one) in owned else [], (), 1, stale)
                state = replace(
                    state, rolled_out=state.rolled_out and tried.rolled_out, wanted=state.wanted + tried.wanted
                )
            states[kind] = self._explained(state, resolved, world)
        routes = {identity(one.body) for one in result.children if one.component in _ROUTES}
        return Standing(service, resolved, result, diff, states, all(one in owned for one in routes), there, held)

    def _judged(self, here: Standing, world: World, now: float) -> Standing:
        service, result = here.service, here.result
        if isinstance(result, Refused) or here.held or here.changes.conflicts:
            return here
        inputs = recorded_inputs.record(service, here.resolved.runtime)
        aim, noted = Aim.of(service, here.resolved, inputs, result), recorded(service)
        compared = noted.get(gates.COMPARED, "") if aim.since is not None else ""
        good = noted.get(returning.GOOD, "")
        before = self._previous(service, aim, world) if good != aim.revision.name else None
        if isinstance(before, Refused):
            if aim.returned(service):  # its earlier pods serve, and stay as they are
                return self._standing(service, here.resolved, before, world)
            here, before = replace(here, unreturnable=str(before)), None
        if before is not None and not aim.returned(service):
            wanted = self.canaries(service, here.resolved, result)
            if (mixed := canaries.beside(result, before, wanted, here.there)) is not None:
                here = replace(
                    self._standing(service, here.resolved, mixed, world), canary=canaries.told(mixed, wanted)
                )
        begun = not any(makes_pods(one.body) for one in in_turn(here.changes.apply, here.there.values()))
        here = replace(here, aim=aim, begun=begun, good=good, compared=compared)
        done = returning.is_done(aim, result, here.states.values(), now)
        accepted = here if here.canary else replace(here, good=aim.revision.name, done=True)
        if before is None:
            return accepted if done else here
        stuck = None
        if aim.returned(service):
            why = recorded(service)[returning.RETURNED]
        elif (stuck := returning.given_up(service, aim, here.states.values(), now)) is not None:
            why = _why(service, f"did not become ready ({stuck.hindrance})")
        elif not done or aim.since is None:
            return here
        elif compared or (watch := self._watch(here, aim.since, before, world, now)) is None:
            return accepted
        elif (verdict := gates.verdict(watch, (self.readings or {}).get(service.key))) is None:
            # Then it takes a run, which measures.
            late = self.readings is None and not here.canary and now >= watch.until
            return replace(here, watch=watch, done=late)
        elif not verdict.worse:
            return replace(accepted, compared=verdict.words)
        else:
            why = _why(service, f"{returning.WORSE} ({verdict.words})")
        there = self._standing(service, here.resolved, before, world)
        return replace(there, aim=aim, begun=begun, good=here.good, returned=why, failed=stuck)

    def _previous(self, service: StoredService, aim: Aim, world: World) -> Rendered | Refused | None:
        """``None`` where there is none, or its pods are those that are asked for: nothing to go back to."""
        stored = returning.last_good(service, world)
        if stored is None:
            return None
        inputs = stored.inputs()
        then = recorded_inputs.recorded_service(service, inputs)
        result = self.rendered(then, self.resolve_recorded(then, inputs, world), world)
        if isinstance(result, Refused):
            return replace(result, problem=f"in what served before ({stored.key.name}): {result.problem}")
        return None if returning.pods_hash(result.children) == aim.revision.pods else result

    def _watch(
        self, here: Standing, since: float, before: Rendered, world: World, now: float
    ) -> gates.GateWatch | None:
        cluster, noted = self._settings_of(world).gate, recorded(here.service)
        gate, problem = gates.settings(here.service.annotations.get(gates.GATE, ""), cluster)
        if not gate.enabled or not (gate.prom_server_address or self.prometheus):
            return None
        pods = frozenset(pod.key.name for one in here.states.values() for pod in one.pods)
        names = gates.pods_of(one.name for one in before.children if makes_pods(one.body))
        if here.canary and not (pods := frozenset(name for name in pods if names.fullmatch(name) is None)):
            return None
        ready = epoch(noted[gates.READY]) if gates.READY in noted else now
        return gates.GateWatch(here.service.key.namespace, pods, names, since, ready, gate, bool(here.canary), problem)

    def _explained(self, state: ComponentStanding, resolved: Resolved, world: World) -> ComponentStanding:
        if state.trouble is None or state.trouble.reason != UNSCHEDULABLE:
            return state
        waiting = next(one for one in state.pods if one.trouble is state.trouble)
        nodes: list[ModelNode] = list(world[NODES].all())
        for label, value in waiting.selector.items():
            if label.startswith(_MODEL_LABEL) and not any(one.labels.get(label) == value for one in nodes):
                known = [one for one in (resolved.model, *resolved.weights) if one is not None]
                model = next((one for one in known if one.served.stored.label == label), None)
                said = f"{model.served.name}: {model.words}" if model is not None else label
                return replace(state, trouble=Trouble(NO_MODEL, f"no node has the model yet; {said}"))
        return state

    def _awaited(self, standing: Standing, now: float) -> list[ComponentStanding]:
        """Not those that wait for a person or for nodes, nor those that come after: the reconcile shift looks on."""
        late = standing.aim is not None and standing.aim.since is not None and now >= standing.aim.since + READY_WITHIN
        if standing.problem is not None or late:
            return []
        behind = [state for state in standing.states.values() if not state.rolled_out]
        hindered = [state for state in behind if state.trouble is not None and state.trouble.is_outside]
        return [state for state in behind if state not in hindered and (state.exists or not hindered)]


class ServiceRollOut(RollOut):
    """InferenceServices."""

    @property
    def kinds(self) -> tuple[ResourceType, ...]:
        return child_kinds(self.served)

    @property
    def named(self) -> tuple[Want[Any], ...]:
        return (SERVICES_WANTED, *MODELS_WANTED, *RUNTIMES_WANTED, *classes_wanted(self.served))

    def resolve(self, service: StoredService, world: World) -> Resolved:
        return resolve(service, world)

    def resolve_recorded(self, service: StoredService, inputs: Body, world: World) -> Resolved:
        """Resolve its model as it is now, and its runtime as it was recorded."""

        def choose(service: StoredService, resolved: Resolved, world: World) -> Resolved:
            offered = offered_runtimes(service.key.namespace, world)
            runtime = recorded_inputs.recorded_runtime(inputs, service.key.namespace, offered, world)
            return replace(resolved, runtime=runtime)

        return resolve(service, world, choose)

    def render(self, service: StoredService, found: Resolved, abilities: Abilities, world: World) -> Rendered | Refused:
        assert isinstance(service.resource, InferenceService)
        result = render(
            service.resource,
            found.model.served if found.model is not None else None,
            found.runtime.resource if found.runtime is not None else None,
            abilities,
            weights=[one.served for one in found.weights],
            elsewhere=self._scaled(service, world),
        )
        if isinstance(result, Refused) or result.virtual:
            return result
        noted = (*found.notes, *canaries.notes(self.canaries(service, found, result), result.modes))
        return replace(result, notes=(*result.notes, *noted)) if noted else result

    def canaries(self, service: StoredService, found: Resolved, result: Rendered) -> Mapping[str, int]:
        """Of Deployments alone."""
        assert isinstance(service.resource, InferenceService)
        return canaries.wished(
            service.resource, found.runtime.resource if found.runtime is not None else None, result.modes
        )


def _why(service: StoredService, what: str) -> str:
    generation = service.subject.generation
    return f"generation {generation} {what}; what served before serves again: change the service to try anew"
