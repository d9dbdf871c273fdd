"""The life of a model: its files on the nodes that are to have them, and the truth about that in its status. Pure.

Nodes are chosen as the scheduler would choose them; each is brought the files by a Job (``legs``), a few at a time per
source, those first that pods wait for. Reports of nodes and their labels are kept as published. When the model goes,
its files go, unless they are to be kept; a node that is gone holds up nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from modelyard.models.delivery import bringing, clearing, jobs, legs, names, running, story, world
from modelyard.models.delivery.legs import Leg, NodeStage, Site, Wish
from modelyard.models.delivery.placement import (
    Exclusion,
    describe_exclusions,
    exclusion_by_affinity,
    exclusion_by_labels,
)
from modelyard.models.delivery.running import MODEL, ModelJob, ModelPod
from modelyard.models.delivery.world import (
    CHECKED,
    ModelClaim,
    ModelNode,
    NodeReport,
    ReportEntry,
    StoredModel,
    TransferProgress,
)
from modelyard.models.storage import DeliverySettings, settings
from modelyard.objects import CONFIG_MAPS, JOBS, NODES, PERSISTENT_VOLUME_CLAIMS, PODS, Key, ResourceType, epoch
from modelyard.reconcile.plans import (
    LOOK_UPS,
    Mark,
    Plan,
    PlanStep,
    StepId,
    StepPhase,
    Want,
    World,
    WriteRules,
    wish_of,
    with_steps,
)
from modelyard.resources.ome import FineTunedWeightSpec

REPORTS, SETTINGS = "model-reports", "model-settings"
MOST_AT_ONCE = 50
"""Nodes that one plan marks, starts or clears; the others come with the next."""
MOST_REMOVALS = 50
"""Jobs that remove files of one namespace's models, above which no more are created for its deleted ones."""
FLUSH = 30.0
"""Seconds between two notes of a transfer's progress in a node's report."""
_PHASES = {NodeStage.WAITING: StepPhase.WAITING, NodeStage.FAILED: StepPhase.FAILED}
_LARGEST_REPORT = 2 * 1024 * 1024
FULL = 768 * 1024
"""Bytes of a node's report beyond which no model is added: a ConfigMap has a MiB, and what is there grows."""


_ALL_MODELS = tuple(
    Want(
        kind,
        partial(world.model, kind),
        indexes={
            "source": lambda one: (one.source,) if one.waiting else (),
            "called": lambda one: (one.label, one.entry),  # what nodes know it by
        },
        wish=wish_of(world.NUDGE, world.VERIFY, world.LIFECYCLE),
        namespace="",
        use="models",
    )
    for kind in names.KINDS
)
_OF_NODES: Final = {"model": lambda one: (label for label in one.labels if label.startswith(names.PREFIX))}
_OF_REPORTS: Final = {"model": lambda one: one.entries}
_OF_JOBS: Final = {
    "model": lambda one: (one.model,),
    "source": lambda one: (one.task.source,) if one.state == "Active" and one.task.source else (),
    "removes": lambda one: (one.task.namespace,) if one.state == "Active" and one.task.purpose == jobs.REMOVE else (),
}
_OF_PODS: Final = {
    "waits": lambda one: one.labels,
    "job": lambda one: (one.job,) if one.job else (),
    "node": lambda one: (one.node,) if one.mounts else (),
}


@dataclass(eq=False)
class ModelDelivery:
    """Models of one kind. ``home`` is the controller's namespace, where Jobs and reports are.

    ``progress`` is what somebody who follows transfers last saw, by model and node. Plans have the legs of all nodes.
    """

    about: ResourceType
    home: str
    progress: MutableMapping[tuple[Key, str], TransferProgress] = field(default_factory=dict)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"deliver-{self.about.plural}"

    @property
    def wants(self) -> tuple[Want[Any], ...]:
        """All models (they share sources), nodes, what is made for models, and the pods that wait for one."""
        return (
            *_ALL_MODELS,
            Want(NODES, world.node, cached=True, indexes=_OF_NODES, use="models"),
            Want(
                CONFIG_MAPS,
                world.report,
                label_selector=f"{names.REPORT_LABEL}=true",
                indexes=_OF_REPORTS,
                largest=_LARGEST_REPORT,
                namespace=self.home,
                called=REPORTS,
            ),
            Want(
                CONFIG_MAPS,
                settings.read,
                label_selector=f"!{names.REPORT_LABEL}",
                namespace=self.home,
                called=SETTINGS,
            ),
            Want(JOBS, running.job, label_selector=MODEL, indexes=_OF_JOBS, namespace=""),
            Want(PODS, running.pod, cached=True, indexes=_OF_PODS, use="models", namespace=""),
            Want(PERSISTENT_VOLUME_CLAIMS, world.claim, cached=True, namespace=""),
        )

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        model: StoredModel | None = world[self.about].get(key)
        if model is None:
            return None
        found, wrong = self._settings(world)
        if (other := self._namesake(model, world)) is not None:
            return self._apart(model, other, now)
        if wrong is not None:
            return story.held(model, "SettingsInvalid", wrong, now)
        if model.subject.deleting:
            return self._end(model, found, world, now)
        try:
            goal = self._goal(model, found, world)
        except jobs.NotAllowed as error:
            return self._refuse(model, (error.reason, str(error)), world, now)
        wish = Wish(model, goal, found, self.home, self._lacks(found, world), world.get(LOOK_UPS))
        if goal.claim is not None:
            return self._of_claim(wish, world, now)
        causes = {node.name: _exclusion(model, node, found) for node in world[NODES].all()}
        parts = self._parts(wish, {name for name, cause in causes.items() if cause is None}, world, now)
        plan = story.told(
            wish, parts, _parent_facts(parts), now, lambda: describe_exclusions(filter(None, causes.values()))
        )
        return self._with(plan, model, parts, world)

    def _settings(self, world: World) -> tuple[DeliverySettings, str | None]:
        stored: settings.ConfigText | None = world[SETTINGS].get(Key(self.home, settings.CONFIG_MAP))
        return DeliverySettings.read(stored.text if stored is not None else None)

    def _lacks(self, found: DeliverySettings, world: World) -> str:
        stored = world[SETTINGS].get(Key(self.home, found.ca_bundle)) if found.ca_bundle else None
        if not found.ca_bundle or (stored is not None and stored.authorities):
            return ""
        return (
            f"ConfigMap {self.home}/{found.ca_bundle}, which caBundle in ConfigMap {settings.CONFIG_MAP} names, has no"
            f" {settings.CA_FILE}: create it, or leave caBundle out"
        )

    def _parts(self, wish: Wish, chosen: Collection[str], world: World, now: float) -> list[Leg]:
        parts, sites = [], self._sites(wish.model, world, chosen)
        for name, site in sites.items():
            if name not in chosen:
                parts.append(clearing.remove(wish, site, now))
            elif site.entry is None and self._is_full(name, wish.model.key.namespace, world):
                parts.append(bringing.no_room(site))
            else:
                parts.append(bringing.deliver(wish, site, now))
        return self._in_turn(wish, parts, sites, world) if any(leg.starts for leg in parts) else parts

    def not_chosen(self, model: StoredModel, node: ModelNode, world: World) -> str:
        """Say why a node is not given the model; ``""``: it is."""
        found, _ = self._settings(world)
        return str(_exclusion(model, node, found) or "")

    def _in_turn(self, wish: Wish, parts: list[Leg], sites: Mapping[str, Site], world: World) -> list[Leg]:
        """Sort by turns: the namespace with the fewest is next; none exceeds its share, whatever its statuses say."""
        model, share = wish.model, wish.settings.share
        busy = [one for one in world[JOBS].by("source", model.source) if one.key.namespace == self.home]
        turns = Counter(one.task.namespace for one in busy)
        before: Counter[str] = Counter()
        mine = _order(model, turns, world)
        for kind in names.KINDS:
            for other in world[kind].by("source", model.source):
                if other.subject.ref != model.subject.ref and _order(other, turns, world) < mine:
                    before[other.key.namespace] += other.waiting
        claims = {space: min(count, max(0, share(space) - turns[space])) for space, count in before.items()}
        space = model.key.namespace
        free = wish.settings.nodes_per_source - len(busy) - sum(claims.values())
        free = min(free, share(space) - turns[space] - claims.get(space, 0))
        late = {leg.node for leg in [leg for leg in parts if leg.starts][max(0, free) :]}
        return [bringing.stand_aside(leg, sites[leg.node]) if leg.node in late else leg for leg in parts]

    def _sites(self, model: StoredModel, world: World, chosen: Iterable[str] = ()) -> dict[str, Site]:
        jobs_of = defaultdict[str, list[ModelJob]](list)
        for one in world[JOBS].by("model", model.identifier):
            if one.key.namespace == self.home:
                jobs_of[one.task.node].append(one)
        known = {*chosen, *jobs_of, *(one.key.name for one in world[REPORTS].by("model", model.entry))}
        known |= {node.name for node in world[NODES].by("model", model.label)}
        sites = {}
        for name in sorted(known):
            node: ModelNode | None = world[NODES].get(Key("", name))
            label = node.labels.get(model.label) if node is not None else None
            report: NodeReport | None = world[REPORTS].get(Key(self.home, name))
            entry, ours = report.entry(model.entry) if report is not None else None, tuple(jobs_of[name])
            users, progress = tuple(world[PODS].by("node", name)), self._progress(model, name, entry)
            sites[name] = Site(name, node, label, entry, ours, _pods(ours, world), users, progress)
        return sites

    def _is_full(self, node: str, namespace: str, world: World) -> bool:
        report: NodeReport | None = world[REPORTS].get(Key(self.home, node))
        return report is not None and (report.size > FULL or bool(namespace and report.of(namespace) > FULL // 2))

    def _progress(self, model: StoredModel, node: str, entry: ReportEntry | None) -> TransferProgress | None:
        newest = self.progress.get((model.key, node))
        if newest is None or entry is None:
            return None
        before = epoch(entry.progress.last_updated) if entry.progress is not None else 0.0
        return newest if epoch(newest.last_updated) - before >= FLUSH else None

    def _with(self, plan: Plan, model: StoredModel, parts: Sequence[Leg], world: World) -> Plan:
        marked = {leg.node: self._marks(model, leg, world) for leg in parts}
        acting = [leg.node for leg in parts if marked[leg.node] or leg.apply or leg.hand_over or leg.delete]
        awaits = {what for leg in parts for what in leg.awaits}
        awaits |= {"the other nodes"} if len(acting) > MOST_AT_ONCE else set()
        # The finalizer is set once there is something to clear up: what is refused before that needs none.
        on_nodes = (leg.job is not None or (leg.node and (leg.label or leg.entry is not None)) for leg in parts)
        lacks = not model.subject.deleting and names.finalizer(self.about) not in model.finalizers
        plan = replace(
            plan,
            homes=frozenset({self.home}),
            rules=WriteRules.of((JOBS,)),
            awaits=tuple(sorted(awaits))[:10],
            needs=tuple(sorted({secret for leg in parts for secret in leg.needs})),
            due=min((leg.due for leg in parts if leg.due is not None), default=None),
            urgency=len(tuple(world[PODS].by("waits", model.label))),
            by_shift=True,
            finalizer_name=names.finalizer(self.about),
            finalizer=True if lacks and (acting or any(on_nodes)) else None,
            details=parts,
        )
        return with_steps(plan, _steps(parts, {node: marked[node] for node in acting[:MOST_AT_ONCE]}))

    def _marks(self, model: StoredModel, leg: Leg, world: World) -> tuple[Mark, ...]:
        node: ModelNode | None = world[NODES].get(Key("", leg.node))
        report: NodeReport | None = world[REPORTS].get(Key(self.home, leg.node))
        marks: tuple[Mark, ...] = ()
        if node is not None and node.labels.get(model.label) != leg.label:
            marks = (Mark(NODES, node.key, node.uid, labels={model.label: leg.label}),)
        if report is not None and leg.entry is not None and leg.entry is report.entry(model.entry):
            return marks
        wanted, key = leg.entry.text() if leg.entry is not None else None, Key(self.home, leg.node)
        if report is not None and report.entries.get(model.entry) != wanted:
            return (*marks, Mark(CONFIG_MAPS, key, report.uid, data={model.entry: wanted}))
        if report is not None or node is None or wanted is None:
            return marks
        metadata = {
            "name": node.name,
            "namespace": self.home,
            "labels": {names.REPORT_LABEL: "true", "node": names.shortened(node.name, 63)},
            "annotations": {"models.ome.io/node-name": node.name, "models.ome.io/managed-by": "model-agent"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}],
        }
        return (*marks, Mark(CONFIG_MAPS, key, "", data={model.entry: wanted}, create={"metadata": metadata}))

    def _end(self, model: StoredModel, found: DeliverySettings, world: World, now: float) -> Plan | None:
        if names.finalizer(self.about) not in model.finalizers:
            return None
        wish = Wish(model, jobs.Goal(found.models_root, found.models_root, "", ""), found, self.home)
        parts = [clearing.remove(wish, site, now) for site in self._sites(model, world).values()]
        removals = [job for job in world[JOBS].by("removes", model.key.namespace) if job.key.namespace == self.home]
        if len(removals) >= MOST_REMOVALS:
            parts = [clearing.stand_aside(leg) if leg.apply else leg for leg in parts]
        plan = self._with(story.removing(model, parts, now), model, parts, world)
        space, ours = model.key.namespace, world[JOBS].by("model", model.identifier)
        claimed = [one for one in ours if one.key.namespace != self.home and space in ("", one.key.namespace)]
        plan = replace(plan, delete=(*plan.delete, *(legs.gone(one) for one in claimed if not one.deleting)))
        if all(leg.stage is NodeStage.GONE for leg in parts) and len(parts) <= MOST_AT_ONCE:
            return replace(plan, finalizer=False, awaits=(), status=None, wanted=None)
        return plan

    def _refuse(self, model: StoredModel, problem: tuple[str, str], world: World, now: float) -> Plan:
        parts = []
        for site in self._sites(model, world).values():
            if site.node is None:
                continue
            entry = site.entry.model_copy(update={"status": legs.FAILED}) if site.entry is not None else None
            stale = tuple(legs.gone(one) for one in site.jobs if not one.deleting)
            label = legs.FAILED if site.label else None
            parts.append(Leg(site.name, NodeStage.FAILED, problem[0], problem[1], label, entry, delete=stale))
        return self._with(story.refused(model, problem, now), model, parts, world)

    def _namesake(self, model: StoredModel, world: World) -> StoredModel | None:
        alike = [
            other
            for kind in names.KINDS
            for name in (model.label, model.entry)
            for other in world[kind].by("called", name)
        ]
        oldest = min(alike, key=_age, default=model)
        return None if oldest.subject.ref == model.subject.ref else oldest

    def _apart(self, model: StoredModel, other: StoredModel, now: float) -> Plan:
        finalizer = names.finalizer(self.about)
        if model.subject.deleting:
            takes_off = False if finalizer in model.finalizers else None
            return Plan(model.subject, "Removed", finalizer=takes_off, finalizer_name=finalizer, by_shift=True)
        why = (
            f"nodes would know it by the name that {other.subject.ref} has there ({model.label}): give it another name"
        )
        return story.refused(model, ("NameTaken", why), now)

    def _goal(self, model: StoredModel, found: DeliverySettings, world: World) -> jobs.Goal:
        if model.problem is not None:
            raise jobs.NotAllowed(*model.problem)
        space, most = model.key.namespace, found.models_per_namespace
        models = tuple(world[names.BASE_MODELS].by("namespace", space)) if space else ()
        if len(models) > most and sum(_age(other) < _age(model) for other in models) >= most:
            text = f"namespace {space} has {len(models)} models, of which the oldest {most} are delivered: delete some,"
            remedy = f"or have an administrator raise modelsPerNamespace in ConfigMap {settings.CONFIG_MAP}"
            raise jobs.NotAllowed("TooManyModels", f"{text} {remedy}")
        goal = jobs.target(model, found)
        if isinstance(model.spec, FineTunedWeightSpec):
            base = model.spec.base_model_ref
            kind = names.base_models(base.namespace)
            if world[kind].get(Key(base.namespace or "", base.name)) is None:
                text = f"spec.baseModelRef: there is no {kind.kind} {base.name}: create it first"
                raise jobs.NotAllowed("BaseModelNotFound", text)
        return goal

    def _of_claim(self, wish: Wish, world: World, now: float) -> Plan:
        model, goal = wish.model, wish.goal
        assert goal.claim is not None
        place: ModelClaim | None = world[PERSISTENT_VOLUME_CLAIMS].get(goal.claim)
        ours: tuple[ModelJob, ...] = tuple(
            one for one in world[JOBS].by("model", model.identifier) if one.key.namespace == goal.claim.namespace
        )
        node = ModelNode("", "", {}, place is not None and place.bound, 0.0, True)
        entry = ReportEntry.read(model.checked) if model.checked else None
        site = Site("", node, None, entry, ours, _pods(ours, world))
        leg = bringing.deliver(wish, site, now)
        if place is None or not place.bound:
            reason = "ClaimNotFound" if place is None else "ClaimNotBound"
            what = "does not exist: create it" if place is None else "is not bound to a volume yet"
            leg = replace(leg, reason=reason, message=f"PersistentVolumeClaim {goal.claim} {what}")
        elsewhere = [clearing.remove(wish, site, now) for site in self._sites(model, world).values()]
        plan = story.told(wish, [leg], _parent_facts([leg]), now)
        wanted = leg.entry.text() if leg.entry is not None else None
        checked = {CHECKED: wanted} if wanted != (model.checked or None) else {}
        plan = self._with(replace(plan, annotations={**plan.annotations, **checked}), model, [leg, *elsewhere], world)
        # A pod mounts claims of its own namespace only, so that is where the Job is.
        return replace(plan, homes=plan.homes | {goal.claim.namespace})


def _steps(parts: Iterable[Leg], acting: Mapping[str, tuple[Mark, ...]]) -> dict[StepId, PlanStep]:
    steps = {}
    for leg in parts:
        is_done = leg.stage in (NodeStage.READY, NodeStage.GONE)
        if is_done and leg.node not in acting and not leg.awaits:
            continue
        phase = StepPhase.DONE if is_done else _PHASES.get(leg.stage, StepPhase.ACTIVE)
        progress = leg.entry.progress if leg.entry is not None else None
        share = progress.completed_bytes / progress.total_bytes if progress and progress.total_bytes > 0 else None
        message = f"{leg.reason}: {leg.message}" if leg.message else leg.reason
        step = PlanStep(phase, message, share, awaits=leg.awaits)
        if (marks := acting.get(leg.node)) is not None:
            step = replace(step, marks=marks, apply=leg.apply, hand_over=leg.hand_over, delete=leg.delete)
        steps[_step_of(leg)] = step
    return steps


def _step_of(leg: Leg) -> StepId:
    if leg.stage in (NodeStage.REMOVING, NodeStage.GONE):
        return StepId("remove", leg.node)
    if not leg.node:
        return StepId("inspect")
    checking = leg.stage is NodeStage.READY and (leg.starts or leg.job is not None)
    return StepId("verify" if checking else "fetch", leg.node)


def _exclusion(model: StoredModel, node: ModelNode, delivery: DeliverySettings) -> Exclusion | None:
    if model.spec is None or model.uri is None:
        return Exclusion("not chosen, as the model cannot be read")
    storage = model.spec.storage
    if not node.serves:
        return Exclusion("of the control plane")
    administrator = f"nodeSelector in ConfigMap {settings.CONFIG_MAP}"
    return (
        exclusion_by_labels(delivery.node_selector, administrator, node.labels)
        or exclusion_by_labels(storage.node_selector, "spec.storage.nodeSelector", node.labels)
        or exclusion_by_affinity(storage.node_affinity, "spec.storage.nodeAffinity", node.name, node.labels)
    )


def _order(model: StoredModel, turns: Mapping[str, int], world: World) -> tuple[int, int, float, str, Key]:
    """Whose turn it is: of the namespace with the fewest, then whom most pods wait for, then who waits longest."""
    return turns[model.key.namespace], -len(tuple(world[PODS].by("waits", model.label))), *_age(model)


def _age(model: StoredModel) -> tuple[float, str, Key]:
    return model.created, model.subject.kind.kind, model.key


def _pods(ours: Iterable[ModelJob], world: World) -> dict[str, ModelPod]:
    """The pod of each Job: the one that has said something, or the newest. One in another namespace is a forgery."""
    pods_of = {
        job.uid: [pod for pod in world[PODS].by("job", job.uid) if pod.key.namespace == job.key.namespace]
        for job in ours
    }
    return {uid: max(pods, key=lambda pod: (bool(pod.report), pod.created)) for uid, pods in pods_of.items() if pods}


def _parent_facts(parts: Iterable[Leg]) -> ReportEntry | None:
    ready = [leg.entry for leg in parts if leg.stage is NodeStage.READY and leg.entry is not None]
    return max(ready, key=lambda entry: entry.delivered.finished, default=None)
