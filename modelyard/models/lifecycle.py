"""The life of a model: its files on the nodes that are to have them, and the truth about that in its status. Pure.

Nodes are chosen as the scheduler would choose them; each is brought the files by a Job (``legs``), a few at a time per
source, those first that pods wait for. Reports of nodes and their labels are kept as published. When the model goes,
its files go, unless they are to be kept; a node that is gone holds up nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modelyard.models import bringing, clearing, jobs, legs, names, running, settings, story, world
from modelyard.models.delivery_steps import delivery_steps
from modelyard.models.legs import Leg, NodeStage, Site, Wish
from modelyard.models.placement import (
    Exclusion,
    describe_exclusions,
    exclusion_by_affinity,
    exclusion_by_labels,
)
from modelyard.models.running import MODEL, ModelJob, ModelPod
from modelyard.models.settings import DeliverySettings
from modelyard.models.world import (
    CHECKED,
    ModelClaim,
    ModelNode,
    NodeReport,
    ReportEntry,
    StoredModel,
    TransferProgress,
)
from modelyard.objects import Key, ResourceType
from modelyard.objects.kinds import CONFIG_MAPS, JOBS, NODES, PERSISTENT_VOLUME_CLAIMS, PODS
from modelyard.objects.parse import epoch
from modelyard.reconcile.plan import LOOK_UPS, Mark, Plan, Want, World
from modelyard.reconcile.write_rules import WriteRules

REPORTS, SETTINGS = "model-reports", "model-settings"
MOST_AT_ONCE = 50
"""Nodes that one plan marks, starts or clears; the others come with the next."""
MOST_REMOVALS = 50
"""Jobs that remove files of one namespace's models, above which no more are created for its deleted ones."""
MOST_NEEDS = 50
"""Secrets that a plan asks for."""
FLUSH = 30.0
"""Seconds between two notes of a transfer's progress in a node's report."""
_LARGEST_REPORT = 2 * 1024 * 1024
FULL = 768 * 1024
"""Bytes of a node's report beyond which no model is added: a ConfigMap has a MiB, and what is there grows."""


def _wish(obj: Mapping[str, Any]) -> object:
    metadata = obj["metadata"]
    annotations = metadata.get("annotations") or {}
    asked = tuple(annotations.get(name) for name in (world.NUDGE, world.VERIFY, world.LIFECYCLE))
    return metadata.get("generation"), metadata.get("deletionTimestamp"), asked


def _models(kind: ResourceType) -> Want[StoredModel]:
    indexes = {"source": world.source_of, "called": world.called}
    return Want(kind, lambda obj: world.model(kind, obj), indexes=indexes, wish=_wish, namespace="", use="models")


@dataclass(eq=False)
class ModelDelivery:
    """Models of one kind. ``home`` is the controller's namespace, where Jobs and reports are.

    ``progress`` is what somebody who follows transfers last saw, by model and node; ``seen`` is where the last plan of
    each model is left for them.
    """

    about: ResourceType
    home: str
    progress: MutableMapping[tuple[Key, str], TransferProgress] = field(default_factory=dict)
    seen: MutableMapping[Key, Sequence[Leg]] = field(default_factory=dict)

    name: str = field(init=False)

    def __post_init__(self) -> None:
        """The name follows from the kind."""
        self.name = f"deliver-{self.about.plural}"

    @property
    def wants(self) -> tuple[Want[Any], ...]:
        """All models (they share sources), nodes, what is made for models, and the pods that wait for one."""
        return (
            *map(_models, names.KINDS),
            Want(NODES, world.node, cached=True, indexes={"model": world.labels_of}, use="models"),
            Want(
                CONFIG_MAPS,
                world.report,
                label_selector=f"{names.REPORT_LABEL}=true",
                indexes={"model": world.entries_of},
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
            Want(
                JOBS,
                running.job,
                label_selector=MODEL,
                indexes={"model": running.model_of, "source": running.busy_at, "removes": running.removes_of},
                namespace="",
            ),
            Want(
                PODS,
                running.pod,
                cached=True,
                indexes={"waits": running.waits_of, "job": running.job_of, "node": running.mounted_on},
                use="models",
                namespace="",
            ),
            Want(PERSISTENT_VOLUME_CLAIMS, world.claim, cached=True, namespace=""),
        )

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        """What is to be made, marked and told for the model of this name."""
        model: StoredModel | None = world[self.about].get(key)
        if model is None:
            self.seen.pop(key, None)
            return None
        found, wrong = self._settings(world)
        if (other := self._namesake(model, world)) is not None:
            return self._apart(model, other, now)
        if wrong is not None:
            self.seen[key] = ()
            return story.held(model, "SettingsInvalid", wrong, now)
        if model.subject.deleting:
            return self._end(model, found, world, now)
        problem = model.problem or self._too_many(model, found, world)
        goal: jobs.Goal | None = None
        if problem is None:
            try:
                goal = jobs.target(model, found)
                problem = self._base_model(model, world)
            except jobs.NotAllowed as error:
                problem = error.reason, str(error)
        if problem is not None or goal is None:
            return self._refuse(model, problem or ("InvalidSpec", ""), world, now)
        wish = Wish(model, goal, found, self.home, self._lacks(found, world), world.get(LOOK_UPS))
        if goal.claim is not None:
            return self._of_claim(wish, world, now)
        parts = self._parts(wish, world, now)
        self.seen[key] = parts
        plan = story.told(wish, parts, _parent_facts(parts), now, lambda: self._explain_no_nodes(wish, world))
        return self._with(plan, model, parts, world)

    def _explain_no_nodes(self, wish: Wish, world: World) -> str:
        """Return why no node is chosen for a model."""
        causes = (_exclusion(wish.model, node, wish.settings) for node in world[NODES].all())
        return describe_exclusions(cause for cause in causes if cause is not None)

    def _settings(self, world: World) -> tuple[DeliverySettings, str | None]:
        stored: settings.ConfigText | None = world[SETTINGS].get(Key(self.home, settings.CONFIG_MAP))
        return DeliverySettings.read(stored.text if stored is not None else None)

    def _lacks(self, found: DeliverySettings, world: World) -> str:
        """What Jobs are to mount and could not."""
        stored = world[SETTINGS].get(Key(self.home, found.ca_bundle)) if found.ca_bundle else None
        if not found.ca_bundle or (stored is not None and stored.authorities):
            return ""
        return (
            f"ConfigMap {self.home}/{found.ca_bundle}, which caBundle in ConfigMap {settings.CONFIG_MAP} names, has no"
            f" {settings.CA_FILE}: create it, or leave caBundle out"
        )

    # Nodes

    def _parts(self, wish: Wish, world: World, now: float) -> list[Leg]:
        model, parts = wish.model, []
        chosen = {node.name for node in world[NODES].all() if _exclusion(model, node, wish.settings) is None}
        sites = self._sites(model, world, chosen)
        for name, site in sites.items():
            report: NodeReport | None = world[REPORTS].get(Key(self.home, name))
            if name not in chosen:
                parts.append(clearing.remove(wish, site, now))
            elif site.entry is None and report is not None and _full(report, model.key.namespace):
                parts.append(bringing.no_room(site))
            else:
                parts.append(bringing.deliver(wish, site, now))
        return self._in_turn(wish, parts, sites, world) if any(leg.starts for leg in parts) else parts

    def not_chosen(self, model: StoredModel, node: ModelNode, world: World) -> str:
        """Say why a node is not given the model; ``""``: it is."""
        found, _ = self._settings(world)
        return str(_exclusion(model, node, found) or "")

    def _in_turn(self, wish: Wish, parts: list[Leg], sites: Mapping[str, Site], world: World) -> list[Leg]:
        """Of the parts that would begin, as many as have their turn at the source; the others stand aside.

        Of the namespaces that wait the one with the fewest turns is next, and none has more than its share, whatever
        its models, its pods and the statuses that it may have written itself say.
        """
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
        done = []
        for leg in parts:
            if leg.starts and free <= 0:
                done.append(bringing.stand_aside(leg, sites[leg.node]))
                continue
            free -= leg.starts
            done.append(leg)
        return done

    def _sites(self, model: StoredModel, world: World, chosen: Iterable[str] = ()) -> dict[str, Site]:
        """These nodes, and those that say something of the model or have a Job for it, be they gone; by name."""
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
            entry, ours = self._entry(model, name, world), tuple(jobs_of.get(name, ()))
            users, progress = tuple(world[PODS].by("node", name)), self._progress(model, name, entry)
            sites[name] = Site(name, node, label, entry, ours, _pods(ours, world), users, progress)
        return sites

    def _entry(self, model: StoredModel, node: str, world: World) -> ReportEntry | None:
        found: NodeReport | None = world[REPORTS].get(Key(self.home, node))
        return found.entry(model.entry) if found is not None else None

    def _progress(self, model: StoredModel, node: str, entry: ReportEntry | None) -> TransferProgress | None:
        newest = self.progress.get((model.key, node))
        if newest is None or entry is None:
            return None
        before = epoch(entry.progress.last_updated) if entry.progress is not None else 0.0
        return newest if epoch(newest.last_updated) - before >= FLUSH else None

    # What follows

    def _with(self, plan: Plan, model: StoredModel, parts: Iterable[Leg], world: World) -> Plan:
        """The plan with what its parts make, mark and await."""
        acting: list[tuple[Leg, tuple[Mark, ...]]] = []
        for leg in parts:
            marks = self._marks(model, leg, world)
            if marks or leg.apply or leg.hand_over or leg.delete:
                acting.append((leg, marks))
        left = len(acting) > MOST_AT_ONCE
        acting = acting[:MOST_AT_ONCE]
        dues = [leg.due for leg in parts if leg.due is not None]
        awaits = {what for leg in parts for what in leg.awaits} | ({"the other nodes"} if left else set())
        exists = bool(acting) or any(leg.label or leg.entry is not None or leg.job is not None for leg in parts)
        return replace(
            plan,
            marks=tuple(mark for _, marks in acting for mark in marks),
            apply=tuple(made for leg, _ in acting for made in leg.apply),
            hand_over=tuple(given for leg, _ in acting for given in leg.hand_over),
            delete=tuple(child for leg, _ in acting for child in leg.delete),
            homes=frozenset({self.home}),
            rules=WriteRules.of((JOBS,)),
            awaits=tuple(sorted(awaits))[:10],
            needs=tuple(sorted({secret for leg in parts for secret in leg.needs}))[:MOST_NEEDS],
            due=min(dues, default=None),
            urgency=len(tuple(world[PODS].by("waits", model.label))),
            by_shift=True,
            steps=delivery_steps(parts, acting),
            finalizer_name=names.finalizer(self.about),
            finalizer=self._finalizer(model, exists),
        )

    def _finalizer(self, model: StoredModel, exists: bool) -> bool | None:
        """Set the finalizer once something exists that has to be cleared: what is refused before that needs none."""
        lacks = not model.subject.deleting and names.finalizer(self.about) not in model.finalizers
        return True if exists and lacks else None

    def _marks(self, model: StoredModel, leg: Leg, world: World) -> tuple[Mark, ...]:
        """What the node says otherwise than it should."""
        marks = []
        node: ModelNode | None = world[NODES].get(Key("", leg.node))
        if node is not None and node.labels.get(model.label) != leg.label:
            marks.append(Mark(NODES, node.key, node.uid, labels={model.label: leg.label}))
        found: NodeReport | None = world[REPORTS].get(Key(self.home, leg.node))
        stored = found.entries.get(model.entry) if found is not None else None
        if found is not None and leg.entry is not None and leg.entry is found.entry(model.entry):
            return tuple(marks)
        wanted = leg.entry.text() if leg.entry is not None else None
        if stored == wanted or (found is None and node is None):
            return tuple(marks)
        create: dict[str, Any] = {}
        if found is None and node is not None:
            owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
            create = {
                "metadata": {
                    "name": node.name,
                    "namespace": self.home,
                    "labels": {names.REPORT_LABEL: "true", "node": names.shortened(node.name, 63)},
                    "annotations": {
                        "models.ome.io/node-name": node.name,
                        "models.ome.io/managed-by": "model-agent",
                    },
                    "ownerReferences": [owner],
                }
            }
        uid = found.uid if found is not None else ""
        marks.append(Mark(CONFIG_MAPS, Key(self.home, leg.node), uid, data={model.entry: wanted}, create=create))
        return tuple(marks)

    def _end(self, model: StoredModel, found: DeliverySettings, world: World, now: float) -> Plan | None:
        """A model that is being deleted: its files go first, then our finalizer."""
        if names.finalizer(self.about) not in model.finalizers:
            return None
        goal = jobs.Goal(found.models_root, found.models_root, "", "")
        wish = Wish(model, goal, found, self.home)
        parts = [clearing.remove(wish, site, now) for site in self._sites(model, world).values()]
        removals = [job for job in world[JOBS].by("removes", model.key.namespace) if job.key.namespace == self.home]
        if len(removals) >= MOST_REMOVALS:
            parts = [clearing.stand_aside(leg) if leg.apply else leg for leg in parts]
        self.seen[model.key] = parts
        plan = self._with(Plan(model.subject, "Removing", story.removing(parts)), model, parts, world)
        claimed = [one for one in world[JOBS].by("model", model.identifier) if one.key.namespace != self.home]
        if model.key.namespace:
            claimed = [one for one in claimed if one.key.namespace == model.key.namespace]
        gone = tuple(legs.gone(one) for one in claimed if not one.deleting)
        plan = replace(plan, delete=(*plan.delete, *gone))
        if all(leg.stage is NodeStage.GONE for leg in parts) and len(parts) <= MOST_AT_ONCE:
            return replace(plan, finalizer=False, awaits=())
        return story.while_removing(plan, model, parts, now)

    def _refuse(self, model: StoredModel, problem: tuple[str, str], world: World, now: float) -> Plan:
        """A model that cannot be delivered as it is: no node says that it is ready."""
        parts = []
        for site in self._sites(model, world).values():
            if site.node is None:
                continue
            entry = site.entry.model_copy(update={"status": legs.FAILED}) if site.entry is not None else None
            stale = tuple(legs.gone(one) for one in site.jobs if not one.deleting)
            label = legs.FAILED if site.label else None
            parts.append(Leg(site.name, NodeStage.FAILED, problem[0], problem[1], label, entry, delete=stale))
        self.seen[model.key] = parts
        return self._with(story.refused(model, problem, now), model, parts, world)

    def _namesake(self, model: StoredModel, world: World) -> StoredModel | None:
        """The oldest of the models that nodes know by the name of this one, which is cut short; ``None``: it itself."""
        alike = [
            other
            for kind in names.KINDS
            for name in (model.label, model.entry)
            for other in world[kind].by("called", name)
        ]
        oldest = min(alike, key=_age, default=model)
        return None if oldest.subject.ref == model.subject.ref else oldest

    def _apart(self, model: StoredModel, other: StoredModel, now: float) -> Plan:
        """A model that nodes could not tell from another one: nothing is done to what they have."""
        self.seen[model.key] = ()
        finalizer = names.finalizer(self.about)
        if model.subject.deleting:
            mine = finalizer in model.finalizers
            done = Plan(model.subject, "Removed", finalizer_name=finalizer, by_shift=True)
            return replace(done, finalizer=False if mine else None)
        why = (
            f"nodes would know it by the name that {other.subject.ref} has there ({model.label}): give it another name"
        )
        return story.refused(model, ("NameTaken", why), now)

    def _too_many(self, model: StoredModel, found: DeliverySettings, world: World) -> tuple[str, str] | None:
        """Why a model is one too many of its namespace."""
        if not model.key.namespace:
            return None
        beside = tuple(world[names.BASE_MODELS].by("namespace", model.key.namespace))
        most = found.models_per_namespace
        if len(beside) <= most or sum(_age(other) < _age(model) for other in beside) < most:
            return None
        return "TooManyModels", (
            f"namespace {model.key.namespace} has {len(beside)} models, of which the oldest {most} are delivered:"
            f" delete some, or have an administrator raise modelsPerNamespace in ConfigMap {settings.CONFIG_MAP}"
        )

    # Files in a claim

    def _of_claim(self, wish: Wish, world: World, now: float) -> Plan:
        """A model whose files are in a claim: once that is bound, a short Job reads what they are."""
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
        self.seen[model.key] = [leg, *elsewhere]
        plan = self._with(story.told(wish, [leg], _parent_facts([leg]), now), model, elsewhere, world)
        wanted = leg.entry.text() if leg.entry is not None else None
        # A pod mounts claims of its own namespace only, so that is where the Job is.
        return replace(
            plan,
            annotations={**plan.annotations, **({CHECKED: wanted} if wanted != (model.checked or None) else {})},
            apply=(*plan.apply, *leg.apply),
            delete=(*plan.delete, *leg.delete),
            homes=plan.homes | {goal.claim.namespace},
            finalizer=plan.finalizer or self._finalizer(model, bool(leg.apply or leg.job)),
            rules=WriteRules.of((JOBS,)),
            awaits=(*plan.awaits, *leg.awaits),
            steps={**plan.steps, **delivery_steps([leg], [(leg, ())])},
            needs=(*plan.needs, *leg.needs),
            due=min((due for due in (plan.due, leg.due) if due is not None), default=None),
        )

    def _base_model(self, model: StoredModel, world: World) -> tuple[str, str] | None:
        """What is wrong with the base model of fine-tuned weights."""
        if self.about != names.FINE_TUNED_WEIGHTS or model.spec is None:
            return None
        reference = model.spec.base_model_ref  # type: ignore[union-attr]
        kind = names.BASE_MODELS if reference.namespace else names.CLUSTER_BASE_MODELS
        if world[kind].get(Key(reference.namespace or "", reference.name)) is None:
            return "BaseModelNotFound", f"spec.baseModelRef: there is no {kind.kind} {reference.name}: create it first"
        return None


def _exclusion(model: StoredModel, node: ModelNode, delivery: DeliverySettings) -> Exclusion | None:
    """Say why a node is not given a model; ``None``: it is."""
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
    pending = len(tuple(world[PODS].by("waits", model.label)))
    return turns[model.key.namespace], -pending, *_age(model)


def _full(report: NodeReport, namespace: str) -> bool:
    """Whether a node's report has no room for another model: a namespace's have half of it."""
    return report.size > FULL or bool(namespace and report.of(namespace) > FULL // 2)


def _age(model: StoredModel) -> tuple[float, str, Key]:
    return model.created, model.subject.kind.kind, model.key


def _pods(ours: Iterable[ModelJob], world: World) -> dict[str, ModelPod]:
    """The pod of each Job: the one that has said something, or the newest. One in another namespace is a forgery."""
    found = {}
    for one in ours:
        pods = [pod for pod in world[PODS].by("job", one.uid) if pod.key.namespace == one.key.namespace]
        pods.sort(key=lambda pod: (bool(pod.report), pod.created))
        if pods:
            found[one.uid] = pods[-1]
    return found


def _parent_facts(parts: Iterable[Leg]) -> ReportEntry | None:
    """The entry that the model's facts are taken from: of the nodes that are ready, the newest."""
    ready = [leg.entry for leg in parts if leg.stage is NodeStage.READY and leg.entry is not None]
    return max(ready, key=lambda entry: entry.delivered.finished, default=None)
