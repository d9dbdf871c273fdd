"""The life of a service: resolve its model, select its runtime, render, apply, wait for its pods, tell. Pure.

What is made belongs to the service, and goes with it. What is not rendered any more goes when what takes its place is
ready. A service that is refused keeps what runs, and says why there is nothing newer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from modelyard.models import settings as models_settings
from modelyard.models.settings import DeliverySettings
from modelyard.models.world import ModelNode, node
from modelyard.objects import Key, Namespace, ResourceType
from modelyard.objects.kinds import CONFIG_MAPS, NAMESPACES, NODES, PODS
from modelyard.objects.parse import namespace
from modelyard.reconcile.plan import FAILED, Child, Plan, ServedKind, Want, World
from modelyard.workloads import returning, settings
from modelyard.workloads.changes import Changes, Identity, changes, identity
from modelyard.workloads.components import texts
from modelyard.workloads.diagnosis import UNSCHEDULABLE, Trouble
from modelyard.workloads.render import render
from modelyard.workloads.resolution import Resolved, recorded, resolve, unasked
from modelyard.workloads.settings import ServingSettings
from modelyard.workloads.standing import COMPONENTS, ComponentStanding, floor, is_workload, stand
from modelyard.workloads.story import LATEST, Standing, told
from modelyard.workloads.values import Abilities, Refused, Rendered
from modelyard.workloads.world import (
    ASKED,
    BINDINGS,
    INFERENCE_SERVICES,
    MODELS_WANTED,
    PODS_WANTED,
    RUNTIMES_WANTED,
    SERVICES_WANTED,
    VARIANTS,
    ServicePod,
    StoredChild,
    StoredService,
    child_kinds,
    wanted,
)

SETTINGS, MODEL_SETTINGS = "serving-settings", "model-settings"
PATIENCE = 1800.0
"""Seconds that a run stays for pods to become ready. They may do so later, too: then only nobody watches them."""
_MODEL_LABEL = "models.ome.io/"
_ROUTES = ("external-service", "ingress")


@dataclass(eq=False)
class ServiceRollOut:
    """InferenceServices. ``home`` is the controller's namespace, where the settings are.

    ``served`` are the kinds that the server has, of those it may have; ``seen`` is where the last look at each service
    is left for whoever follows a roll-out.
    """

    home: str
    served: frozenset[ServedKind] = frozenset()
    seen: MutableMapping[Key, Standing] = field(default_factory=dict)

    name = "roll-out"
    about = INFERENCE_SERVICES
    asks = ASKED

    @property
    def wants(self) -> tuple[Want[Any], ...]:
        """Services, what they name, what is made for them, their pods, nodes, and what administrators say."""
        return (
            SERVICES_WANTED,
            *MODELS_WANTED,
            *RUNTIMES_WANTED,
            *wanted(self.served),
            PODS_WANTED,
            returning.REVISIONS_WANTED,
            Want(NODES, node, cached=True, use="models"),
            Want(NAMESPACES, namespace, use="services"),
            self._settings(settings.CONFIG_MAP, SETTINGS),
            self._settings(models_settings.CONFIG_MAP, MODEL_SETTINGS),
        )

    def _settings(self, name: str, called: str) -> Want[Mapping[str, str]]:
        return Want(
            CONFIG_MAPS,
            lambda obj: texts(obj.get("data")),
            field_selector=f"metadata.name={name}",
            namespace=self.home,
            use="services",
            called=called,
        )

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        """What is to be made, taken away and told for the service of this name."""
        service: StoredService | None = world[INFERENCE_SERVICES].get(key)
        if service is None or service.subject.deleting:
            self.seen.pop(key, None)
            return None
        resolved = resolve(service, world)
        here = self._returned(
            self._standing(service, resolved, self._rendered(service, resolved, world), world), world, now
        )
        self.seen[key] = here
        deeds = _Deeds.of(here, self._owned(service, world))
        plan = told(here, deeds.words, now)
        waits = deeds.waits or [one.message for one in here.states.values() if self._awaited(here, one, now)]
        return replace(
            plan,
            apply=tuple(child for child in deeds.apply),
            delete=tuple(Child(one.kind, one.key, one.body["metadata"]["uid"]) for one in deeds.delete),
            awaits=tuple(waits),
            noted=True,
            due=returning.look_again(service, resolved, here.states.values(), now) if here.good else None,
            annotations=_forgotten(service) if not deeds.words else {},
        )

    def _rendered(self, service: StoredService, found: Resolved, world: World) -> Rendered | Refused:
        if found.problem is not None or service.resource is None:
            assert found.problem is not None
            return found.problem
        home = service.key.namespace
        folders, _ = DeliverySettings.read(_text(world, MODEL_SETTINGS).get(models_settings.KEY, ""))
        chosen, _ = ServingSettings.read(_text(world, SETTINGS), folders)
        here: Namespace | None = world[NAMESPACES].get(Key("", home))
        abilities = Abilities(frozenset(map(str, self.served)), chosen, {home: here} if here is not None else {})
        kinds = [one for one in (VARIANTS, BINDINGS) if one in world]
        elsewhere = frozenset(
            name for kind in kinds for one in world[kind].by("namespace", home) for name in one.workloads
        )
        return render(
            service.resource,
            found.model.served if found.model is not None else None,
            found.runtime.resource if found.runtime is not None else None,
            abilities,
            weights=[one.served for one in found.weights],
            elsewhere=elsewhere,
        )

    def _owned(self, service: StoredService, world: World) -> list[StoredChild]:
        return [one for kind in child_kinds(self.served) for one in world[kind].by("owner", service.subject.uid)]

    def _standing(
        self, service: StoredService, resolved: Resolved, result: Rendered | Refused, world: World
    ) -> Standing:
        home = service.key.namespace
        owned = {identity(one.body): one for one in self._owned(service, world) if one.key.namespace == home}
        pods: dict[str, list[ServicePod]] = {}
        for pod in world[PODS].by("service", (home, service.label)):
            pods.setdefault(pod.component, []).append(pod)
        if isinstance(result, Refused):
            alive = [one for one in owned.values() if is_workload(one)]
            states = {
                kind: stand(kind, "", [one for one in alive if one.component == kind], pods.get(kind, ()), 1)
                for kind in COMPONENTS
                if any(one.component == kind for one in alive)
            }
            routed = any(one.component in _ROUTES for one in owned.values())
            return Standing(service, resolved, result, states=states, routed=routed)
        there = dict(owned)
        kinds = {(kind.group, kind.kind): kind for kind in child_kinds(self.served)}
        for child in result.children:
            found = identity(child.body)
            other = world[kinds[found[:2]]].get(Key(home, child.name)) if found[:2] in kinds else None
            if other is not None:
                there[found] = other
        diff = changes(service.subject.uid, result.children, [one.body for one in there.values()], {})
        held = _held(service, resolved, result, diff, owned)
        if held:
            diff = replace(
                diff,
                apply=tuple(one for one in diff.apply if not one.component),
                delete=tuple(one for one in diff.delete if not owned[identity(one)].component),
            )
        stale = {identity(one.body) for one in diff.apply}
        states = {}
        for kind, mode in result.modes.items():
            made = {identity(c.body) for c in result.children if c.component == kind and _makes_pods(c.body)}
            mine = [owned[one] for one in made if one in owned]
            if held:  # in whatever form it is there
                mine = [one for one in owned.values() if one.component == kind and is_workload(one)]
                made = {identity(one.body) for one in mine}
            state = stand(kind, mode, mine, pods.get(kind, ()), floor(result.children, kind), stale, len(made))
            states[kind] = self._explained(state, resolved, world)
        routes = {identity(one.body) for one in result.children if one.component in _ROUTES}
        return Standing(service, resolved, result, diff, states, all(one in owned for one in routes), there, held)

    def _returned(self, here: Standing, world: World, now: float) -> Standing:
        """As it is to be where an update has not become ready: with the pods of the revision before."""
        service, result = here.service, here.result
        if isinstance(result, Refused) or here.held or here.changes.conflicts:
            return here
        owned = self._owned(service, world)
        here = replace(here, good=returning.good_revisions(service, here.states, owned, world))
        given_up = returning.given_up(service, here.resolved, here.states.values(), now)
        again = returning.returned(service, here.resolved)
        if not again and given_up is None:
            return here
        before = returning.as_it_was(service, result, owned, world)
        if before is None:
            return here
        if again:
            stored: Mapping[str, Any] = next(
                (one for one in service.status["conditions"] if one.get("type") == LATEST), {}
            )
            why = str(stored.get("message") or "")
        else:
            assert given_up is not None
            why = (
                f"generation {service.subject.generation} did not become ready ({given_up.message}); what served before"
            )
            why += " serves again: change the service to try anew"
        there = self._standing(service, here.resolved, before, world)
        return replace(there, good=recorded(service).get(returning.GOOD, ""), returned=why)

    def _explained(self, state: ComponentStanding, resolved: Resolved, world: World) -> ComponentStanding:
        """With what the scheduler cannot know: that no node has the model yet, and why."""
        if state.trouble is None or state.trouble.reason != UNSCHEDULABLE:
            return state
        waiting = next(one for one in state.pods if one.trouble is state.trouble)
        nodes: list[ModelNode] = list(world[NODES].all())
        for label, value in waiting.selector.items():
            if label.startswith(_MODEL_LABEL) and not any(one.labels.get(label) == value for one in nodes):
                known = [one for one in (resolved.model, *resolved.weights) if one is not None]
                model = next((one for one in known if one.served.stored.label == label), None)
                said = f"{model.served.name}: {model.words}" if model is not None else label
                trouble = Trouble("NoNodeHasModel", f"no node has the model yet; {said}")
                return replace(state, trouble=trouble)
        return state

    def _awaited(self, here: Standing, one: ComponentStanding, now: float) -> bool:
        """Whether a run stays for a component: while it can still become ready, and not for ever."""
        if one.rolled_out or here.problem is not None or (one.trouble is not None and one.trouble.final):
            return False
        since = returning.begun(here.service, here.resolved)
        return since is None or now < since + PATIENCE


@dataclass(frozen=True, slots=True)
class _Deeds:
    """What is to be written and taken away now, and in words; ``waits``: what has to go before the rest is written."""

    apply: tuple[Mapping[str, Any], ...] = ()
    delete: tuple[StoredChild, ...] = ()
    waits: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        made = [f"{one['kind']} {one['metadata']['name']}" for one in self.apply]
        return made + [f"{one.kind.kind} {one.key.name} (goes)" for one in self.delete]

    @classmethod
    def of(cls, here: Standing, owned: list[StoredChild]) -> _Deeds:
        result, diff = here.result, here.changes
        if isinstance(result, Refused) or diff.conflicts:
            return cls()
        done = {kind for kind, one in here.states.items() if one.rolled_out}
        ready = {kind for kind, one in here.states.items() if one.ready}
        apply = tuple(child.body for child in diff.apply if ready.issuperset(child.after))
        kept = {
            (one.kind, one.name) for one in result.retired if not done.issuperset(set(one.after) & here.states.keys())
        }
        mine = {identity(one.body): one for one in owned}
        delete = []
        for one in _found(diff, mine):
            # What serves goes when what takes its place does.
            replaced = is_workload(one) and one.component in here.states and one.component not in done
            if not replaced and (one.kind.kind, one.key.name) not in kept:
                delete.append(one)
        return cls(apply, tuple(delete), tuple(f"{one} to be gone" for one in diff.leaving))


def _held(
    service: StoredService,
    resolved: Resolved,
    result: Rendered,
    diff: Changes,
    owned: Mapping[Identity, StoredChild],
) -> tuple[str, ...]:
    """Why what would restart live pods is not done: nobody has asked for it."""
    alive = {one.component for one in owned.values() if is_workload(one)}
    changed = {identity(one.body) for one in diff.apply} | {identity(one) for one in diff.delete}
    restarts = any(name in changed for name, one in owned.items() if is_workload(one))
    return tuple(unasked(service, resolved)) if restarts and alive.issuperset(result.modes) else ()


def _found(diff: Changes, mine: Mapping[Identity, StoredChild]) -> Iterator[StoredChild]:
    for body in diff.delete:
        if (one := mine.get(identity(body))) is not None:
            yield one


def _makes_pods(body: Mapping[str, Any]) -> bool:
    group, kind, _ = identity(body)
    return is_workload(StoredChild(ResourceType(group, "", kind, "", True), dict(body), ""))


def _forgotten(service: StoredService) -> dict[str, str | None]:
    """Nothing is left to do, so that nothing has failed."""
    return dict.fromkeys([one for one in (FAILED,) if one in service.annotations])


def _text(world: World, called: str) -> Mapping[str, str]:
    return next(iter(world[called].all()), {})
