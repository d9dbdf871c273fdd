"""From a service, its model and its runtime to complete child objects, or a refusal that names field and remedy. Pure.

Equal input gives equal children, byte for byte in their canonical form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from modelyard.objects import MODE, MULTI_NODE, RAY, SERVERLESS, VIRTUAL, Namespace, TargetRef, texts
from modelyard.resources import InferenceService, ServingRuntime
from modelyard.workloads.rendering import metadata, names, predictors, routes
from modelyard.workloads.rendering.components import ServiceComponent, components, effective, mode, pod_fields
from modelyard.workloads.rendering.files import ServedModel, base_files, claim_files
from modelyard.workloads.rendering.fine_tuned import Loading, checked, loading
from modelyard.workloads.rendering.groups import (
    LEADER_WORKER_SET,
    MOST_OBJECTS,
    PodGroup,
    leader_worker_set,
    stateful_sets,
    without_scraping,
)
from modelyard.workloads.rendering.lora import loaded, started_engine, with_adapters
from modelyard.workloads.rendering.metadata import Marked
from modelyard.workloads.rendering.model_routes import engine_of, routing, served_name
from modelyard.workloads.rendering.own_code import PLAIN, runs_code_of_model
from modelyard.workloads.rendering.pods import (
    MODEL_PATH,
    NONE,
    PREFERRED,
    REQUIRED,
    ModelFiles,
    PodDraft,
    assembled,
    filled,
    isolated,
    probed,
    service_ports,
    template,
    with_env,
    with_files,
    with_parallelism,
)
from modelyard.workloads.rendering.reach import HOST_PATHS, SERVICE_ACCOUNTS, by_annotations, check, rights
from modelyard.workloads.rendering.request_limits import CONCURRENCY, check_limits, timeout_notes, with_concurrency
from modelyard.workloads.rendering.scaling import Scaling, by_keda, disruption_budget, scaled, without_replicas
from modelyard.workloads.rendering.shared import shared
from modelyard.workloads.rendering.special import knative, ray_clusters, with_rdma
from modelyard.workloads.rendering.unused_fields import older_forms, ray_scaling, unused_fields, unused_keda, unused_tag
from modelyard.workloads.rendering.values import (
    Abilities,
    Body,
    ChildObject,
    Note,
    Refusal,
    Refused,
    Rendered,
    Retired,
    Right,
    plain,
)

SELECTION = "modelyard.dev/model-node-selection"
"""Annotation: whether pods need (``required``), prefer (``preferred``) or ignore (``none``) nodes with the model."""
_SCRAPE = "ome.io/enable-prometheus-scraping"
_NOT_BUILT = {
    "ome.io/inject-model-init": "store the model as the engine reads it: nothing here decrypts models in the pod",
    "ome.io/inject-serving-sidecar": "name the weights in spec.model.fineTunedWeights: they are delivered to the nodes",
    "ome.io/inject-fine-tuned-adapter": "name the weights in spec.model.fineTunedWeights",
}
"""Annotations that ask for containers which only the peer's own images can run, and what to do instead."""

_OF_A_PREDICTOR = ("Deployment", "HorizontalPodAutoscaler", "Service")
"""What a service in the older form has under its own name."""


def render(
    service: InferenceService,
    model: ServedModel | None,
    runtime: ServingRuntime | None,
    abilities: Abilities,
    *,
    weights: Sequence[ServedModel] = (),
    elsewhere: frozenset[str] = frozenset(),
) -> Rendered | Refused:
    """What is made for a service. ``elsewhere`` names the workloads that a VariantAutoscaling or a binding scales."""
    try:
        return _Rendering(service, model, runtime, abilities, tuple(weights), elsewhere).result()
    except Refusal as refusal:
        return refusal.refused


@dataclass(frozen=True, slots=True)
class _Parts:
    children: list[ChildObject]
    notes: tuple[Note, ...]
    backend: routes.Backend
    selector: Mapping[str, str] = field(default_factory=dict)


class _Rendering:
    def __init__(
        self,
        service: InferenceService,
        model: ServedModel | None,
        runtime: ServingRuntime | None,
        abilities: Abilities,
        weights: tuple[ServedModel, ...],
        elsewhere: frozenset[str],
    ) -> None:
        self.service, self.model, self.runtime, self.abilities = service, model, runtime, abilities
        self.elsewhere, self.settings = elsewhere, abilities.settings
        self.namespace = abilities.namespaces.get(service.namespace, Namespace(service.namespace))
        self.metadata = plain(service.metadata.model_dump(), "metadata")
        self.annotations = texts(self.metadata.get("annotations"))
        self.spec = effective(service)
        self.weights = weights
        self.weight: ServedModel | None = None
        self.files: ModelFiles | None = None
        self.notes: list[Note] = []
        self.tag = ""
        self.untagged: list[str] = []
        self.rights: set[Right] = set()

    def result(self) -> Rendered:
        service = self.service
        if self.annotations.get(MODE) == VIRTUAL:
            url = f"http://{routes.internal(service.name, service.namespace)}"
            return Rendered(url=url, address=url, virtual=True)
        reference, folders = self.spec.get("model") or {}, self.settings.models
        self.files = base_files(reference, self.model, service.namespace, folders)
        if self.files is None and (uri := predictors.storage_uri(service)):
            self.files = claim_files(uri, service.namespace, predictors.STORAGE_FIELD)
        self.weights = checked(reference, self.model, self.weights, self._weights_field)
        self.weight = self.weights[0] if self.weights else None
        self.tag = predictors.image_tag(service)
        found = components(service, self.spec, self.runtime)
        for one in found:
            for name, remedy in _NOT_BUILT.items():
                if one.metadata.get(name, "false") != "false":
                    raise Refusal("NotSupported", f"metadata.annotations[{name}]", "is not supported", remedy)
        split = any(one.kind == names.DECODER for one in found)
        modes = {one.kind: mode(one, split, self.abilities, self._zero(one)) for one in found}
        parts = {one.kind: self._component(one, modes[one.kind]) for one in found}
        entry = names.ROUTER if names.ROUTER in parts else names.ENGINE
        about = routes.RoutedService(
            service.name, service.namespace, texts(self.metadata.get("labels")), self.annotations
        )
        settings = routes.overridden(self.settings.ingress, self.annotations)
        decisive = next(kind for kind in (names.ROUTER, names.DECODER, names.ENGINE) if kind in modes)
        older = predictors.migrates(service)
        if modes[decisive] == SERVERLESS:
            routed = routes.serverless(about, tuple(parts), settings, self.namespace, self.abilities)
        else:
            backends = {kind: part.backend for kind, part in parts.items()}
            selectors = {kind: part.selector for kind, part in parts.items()}
            routed = routes.routed(about, backends, settings, self.namespace, self.abilities, selectors, older)
        engine = parts.get(names.ENGINE, parts[entry]).backend
        behind = routing(about, parts[entry].backend, engine, parts[entry].children, settings, self.abilities)
        children = [
            *shared(service, self.model, self.weights, names.ROUTER in parts),
            *(child for part in parts.values() for child in part.children),
            *routed.children,
            *behind.children,
        ]
        notes = [*self.notes, *(note for part in parts.values() for note in part.notes)]
        notes += [Note("RouterNotServed", behind.hindrance, entry)] if behind.hindrance else []
        notes += [Note("TooManyAdapters", behind.surplus, entry)] if behind.surplus else []
        timeouts = {kind: part.backend.seconds for kind, part in parts.items()}
        by_knative = {kind for kind, how in modes.items() if how == SERVERLESS}
        made = {child.kind for child in children}
        notes += timeout_notes(timeouts, entry, by_knative, made, settings.ingress_class_name)
        notes += older_forms(service, self.model, self.runtime)
        notes += unused_tag(self.tag, self.untagged)
        kinds = {kind: {child.kind for child in part.children} for kind, part in parts.items()}
        for one in found:
            place = self._place(one) if modes[one.kind] in (MULTI_NODE, RAY) else ""
            unscaled = any(note.reason == "ScalerNotServed" and note.component == one.kind for note in notes)
            notes += unused_fields(one, modes[one.kind], place, kinds[one.kind], unscaled)
        notes += unused_keda(self.spec, set().union(*kinds.values()))
        return Rendered(
            children=tuple(children),
            retired=tuple(
                Retired(kind, service.name, tuple(parts))
                for kind in _OF_A_PREDICTOR
                if older and (kind, service.name) not in {(one.kind, one.name) for one in children}
            ),
            notes=tuple(notes),
            modes=modes,
            entry=entry,
            url=behind.url or routed.url,
            address=routed.address,
            rights=frozenset(self.rights),
        )

    def _zero(self, one: ServiceComponent) -> bool:
        return without_replicas(one, self.spec, one.name in self.elsewhere)

    def _component(self, one: ServiceComponent, how: str) -> _Parts:
        runtime = self.runtime.name if self.runtime is not None else ""
        marks = metadata.marked(self.service, one, self.model, self.weight, runtime)
        grouped = how in (MULTI_NODE, RAY)
        place = self._place(one) if grouped else ""
        workers = int((one.spec.get("worker") or {}).get("size") or 0) if grouped else 0
        size = workers + 1
        weights = self._loading(one, (place, "worker") if workers else (place,))
        self.notes += weights.notes
        pod = self._pod(one, place, size, weights, leads=True)
        worker = self._pod(one, "worker", size, weights, leads=False) if workers else None
        if how != SERVERLESS:
            pod, worker = self._limited(one, pod, worker)
        annotations = self._scraped(marks.pod_annotations, pod)
        of_workers = metadata.marked(self.service, one, self.model, self.weight, runtime, "worker") if worker else marks
        backend = routes.Backend(
            one.kind,
            one.name,
            service_ports(pod.container)[0]["port"],
            one.spec.get("timeoutSeconds") or None,
            served_name(pod.container),
            engine_of(pod.container),
            tuple(sorted(loaded(pod.container))),
        )
        about = metadata.of(one.name, self.service.namespace, marks.labels, marks.annotations)
        check_limits(one)
        if how == SERVERLESS:
            status = self.service.status.components if self.service.status else None
            seen = (status or {}).get(one.kind)
            told = seen.model_dump(by_alias=True, exclude_none=True) if seen else {}
            body = knative(one, pod, about, marks.labels, annotations, told)
            return _Parts([ChildObject(body, one.kind)], (), backend._replace(port=80))
        if grouped:
            group = PodGroup(
                one.name,
                self.service.namespace,
                pod,
                worker,
                workers,
                marks.labels,
                marks.annotations,
                annotations,
                metadata.selector(self.service.name, one.kind),
                of_workers.labels,
                {**annotations, **of_workers.pod_annotations},
            )
            return (self._ray if how == RAY else self._groups)(one, marks, group, backend)
        labels = {**marks.labels, names.APP: one.name}
        selector = {names.APP: one.name}
        about = {**about, "labels": labels}
        scaling = self._scaled(one, TargetRef("apps/v1", "Deployment", one.name), about)
        spec: Body = {
            "selector": {"matchLabels": selector},
            "strategy": _strategy(one.spec.get("deploymentStrategy") or {}),
            "template": template(pod, labels, annotations),
        }
        if scaling.replicas is not None:
            spec["replicas"] = scaling.replicas
        bodies = [
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": about, "spec": spec},
            self._service(one, marks, labels, selector, pod),
            scaling.scaler,
            disruption_budget(one, about, selector, self.abilities),
        ]
        return _Parts(
            _children(bodies, one.kind, None if "replicas" in spec else one.initial),
            scaling.notes,
            backend,
            metadata.selector(self.service.name, one.kind),
        )

    def _limited(
        self, component: ServiceComponent, pod: PodDraft, worker: PodDraft | None
    ) -> tuple[PodDraft, PodDraft | None]:
        most = component.spec.get("containerConcurrency")
        container, problem = with_concurrency(pod.container, most)
        if problem:
            message = f"{component.kind}: containerConcurrency {most} has no effect: {problem}"
            self.notes.append(Note(CONCURRENCY, message, component.kind))
            return pod, worker
        # An engine that spans nodes is started with the same arguments on each.
        if worker is not None and started_engine(worker.container) is not None:
            limited, _ = with_concurrency(worker.container, most)
            worker = worker.with_container(lambda _: limited)
        return pod.with_container(lambda _: container), worker

    def _scaled(self, one: ServiceComponent, target: TargetRef, about: Body) -> Scaling:
        return scaled(
            one,
            target,
            about,
            self.spec,
            one.name in self.elsewhere or target.name in self.elsewhere,
            self.abilities,
            self.settings.keda_config,
            self.namespace,
        )

    def _groups(self, one: ServiceComponent, marks: Marked, group: PodGroup, backend: routes.Backend) -> _Parts:
        group = replace(group, worker_annotations=without_scraping(group.worker_annotations))
        about = group.metadata(one.name)
        leaders = {**group.selector, names.WORKER_INDEX: "0"}
        fixed, more = max(one.least, 1), one.most if one.spec.get("maxReplicas") else 0
        notes: tuple[Note, ...] = ()
        bodies: list[Body | None] = []
        seed = None
        if self.abilities.version(LEADER_WORKER_SET[1], LEADER_WORKER_SET[0]):
            target = TargetRef(*LEADER_WORKER_SET, names.group_set(one.name))
            scaler: Body | None = None
            replicas: int | None = fixed
            if more > fixed or self._zero(one):
                scaling = self._scaled(one, target, about)
                scaler, replicas, notes = scaling.scaler, scaling.replicas, scaling.notes
            bodies += [leader_worker_set(group, replicas), scaler]
            seed = one.initial if replicas is None else None
        else:
            _few(one, fixed * group.size)
            bodies += stateful_sets(group, fixed)
            if more > fixed:
                message = (
                    f"{one.kind}: {fixed} of {more} groups: without LeaderWorkerSet, which is not"
                    " served here, a group is made of StatefulSets of its own, which nothing scales"
                )
                notes = (Note("ScalerNotServed", message, one.kind),)
        bodies.append(self._service(one, marks, marks.labels, leaders, group.leader))
        bodies.append(disruption_budget(one, about, group.selector, self.abilities))
        return _Parts(_children(bodies, one.kind, seed), notes, backend, leaders)

    def _ray(self, one: ServiceComponent, marks: Marked, group: PodGroup, backend: routes.Backend) -> _Parts:
        heads = {**group.selector, "ray.io/node-type": "head"}
        _few(one, one.least)
        bodies = ray_clusters(group, max(one.least, 1), self.settings.multinode_prober)
        service = self._service(one, marks, marks.labels, heads, group.leader)
        service["spec"]["ports"][0].setdefault("name", "http")
        taken = {port["port"] for port in service["spec"]["ports"]}
        for name, number in (("dashboard", 8265), ("metrics", 8000), ("redis", 6379)):
            if number not in taken:
                port = {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}
                service["spec"]["ports"].append(port)
        notes = ray_scaling(one, by_keda(one, self.spec))
        return _Parts(_children([*bodies, service], one.kind), notes, backend, heads)

    def _service(
        self,
        one: ServiceComponent,
        marks: Marked,
        labels: Mapping[str, str],
        selector: Mapping[str, str],
        pod: PodDraft,
    ) -> Body:
        kind = {**self.annotations, **(one.spec.get("annotations") or {})}
        spec = {**routes.service_type(kind), "selector": dict(selector), "ports": service_ports(pod.container)}
        about = metadata.of(one.name, self.service.namespace, labels, marks.service_annotations)
        return {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": spec}

    def _scraped(self, annotations: Mapping[str, str], pod: PodDraft) -> dict[str, str]:
        if self.annotations.get(_SCRAPE) != "true":
            return dict(annotations)
        port = str(service_ports(pod.container)[0]["port"])
        wanted = {"scrape": "true", "path": "/metrics", "port": port}
        return {**{f"prometheus.io/{name}": value for name, value in wanted.items()}, **annotations}

    def _place(self, one: ServiceComponent) -> str:
        """Which part of a component its leader is made of: its own, or the component's, or the workers'."""
        if "leader" in one.spec:
            return "leader"
        return "" if one.spec.get("runner") or one.spec.get("containers") else "worker"

    def _loading(self, component: ServiceComponent, places: Sequence[str]) -> Loading:
        if self.files is None:
            return Loading()
        if self.model is None or not self.weights or (component.kind == names.ROUTER and not self.weights[0].merged):
            return Loading((self.files,))
        paths = {place: f"{component.path}.{place}" if place else component.path for place in places}
        drafts = [self._drafted(component, component.spec, place, path) for place, path in paths.items()]
        containers, field = [draft.container for draft, _ in drafts], self._weights_field
        at = (self.service.namespace, self.settings.models)
        return loading(self.files, self.weights, self.model, containers, *at, component.kind, field)

    @property
    def _weights_field(self) -> str:
        own = self.service.spec.model
        older = predictors.migrates(self.service) and not (own is not None and own.fine_tuned_weights)
        return "spec.predictor.model.fineTunedWeights" if older else "spec.model.fineTunedWeights"

    def _pod(self, one: ServiceComponent, place: str, size: int, weights: Loading, leads: bool) -> PodDraft:
        path = f"{one.path}.{place}" if place else one.path
        pod, asked = self._drafted(one, one.spec, place, path)
        for container in pod.spec["containers"]:
            if not isinstance(container.get("image"), str) or not container["image"]:
                remedy = "write it, or use a runtime that has it"
                raise Refusal("InvalidSpec", f"{path}.containers[{container['name']}]", "has no image", remedy)
        try:
            given = self._drafted(one, one.given, place, path)[1]
        except Refusal:
            given = frozenset()
        own = [(one.path, one.own), *((f"{one.path}.{name}", one.own.get(name) or {}) for name in ("leader", "worker"))]
        own.append(("spec.predictor.model", {"runtimeVersion": self.tag if one.kind == names.ENGINE else ""}))
        is_own = self.files is not None and (self.model is None or self.model.stored.subject.kind.namespaced)
        untrusted = "spec.model.name" if is_own and any(map(runs_code_of_model, pod.spec["containers"])) else ""
        has_rights = check(path, asked, given, self.namespace, own, untrusted)
        self.rights |= asked
        if one.kind == names.ROUTER:
            account = names.component(self.service.name, names.ROUTER)
            self.rights.add(Right(SERVICE_ACCOUNTS, "serviceAccountName", account))
            spec = {name: value for name, value in pod.spec.items() if name != "serviceAccount"}
            pod = PodDraft({**spec, "serviceAccountName": account}, pod.main)
        elif not pod.spec.get("serviceAccountName"):
            pod = PodDraft({"automountServiceAccountToken": False, **pod.spec}, pod.main)
        if one.kind != names.ROUTER or MODEL_PATH in json.dumps(pod.container):
            selection = self._selection()
            for files in weights.files:
                pod = with_files(pod, files, selection)
                if "hostPath" in files.source:
                    self.rights.add(Right(HOST_PATHS, "volumes.hostPath", str(files.source["hostPath"])))

        def last(container: Body) -> Body:
            if one.kind != names.ROUTER:
                container = with_parallelism(container, size, path)
            container = self._tagged(filled(container, self.metadata, PLAIN if has_rights else None), one)
            container = with_adapters(container, weights.adapters, self._weights_field)
            return probed(container) if leads else container

        return PodDraft(isolated(pod.spec), pod.main).with_container(last)

    def _tagged(self, container: Body, one: ServiceComponent) -> Body:
        if not self.tag or one.kind != names.ENGINE:
            return container
        image = container["image"]
        if "@" in image:
            self.untagged.append(image)
        return {**container, "image": predictors.with_tag(image, self.tag)}

    def _drafted(self, one: ServiceComponent, spec: Body, place: str, path: str) -> tuple[PodDraft, frozenset[Right]]:
        part = spec.get(place) or {} if place else spec
        pod = assembled(pod_fields(part), part.get("runner"), path)
        if config := spec.get("config"):
            values = {name: config[name] for name in sorted(config)}
            pod = pod.with_container(lambda container: with_env(container, values, replace=True))
        steering = one.metadata if spec is one.spec else texts(spec.get("annotations"))
        pod = with_rdma(pod, steering, self.settings.rdma_profiles, one.path)
        asked = rights(pod.spec) | by_annotations(steering) | by_annotations(texts(part.get("annotations")))
        if one.kind == names.ROUTER:
            asked = frozenset(one for one in asked if not one.field.startswith("serviceAccount"))
        return pod, asked

    def _selection(self) -> str:
        wanted = self.annotations.get(SELECTION, REQUIRED)
        if wanted not in (REQUIRED, PREFERRED, NONE):
            remedy = f"write {REQUIRED}, {PREFERRED} or {NONE}"
            raise Refusal("InvalidSpec", f"metadata.annotations[{SELECTION}]", f"{wanted} is not known", remedy)
        return wanted


def _children(bodies: Sequence[Body | None], component: str, seed: int | None = None) -> list[ChildObject]:
    """``seed`` is of the first, the workload, where a scaler has its replicas."""
    found = [ChildObject(body, component) for body in bodies if body is not None]
    return found if seed is None else [replace(found[0], seed=seed), *found[1:]]


def _few(one: ServiceComponent, count: int) -> None:
    if count > MOST_OBJECTS:
        problem = f"its groups would be {count} objects of their own, at most {MOST_OBJECTS} are made"
        remedy = "lower it, or have LeaderWorkerSet installed, which has all groups in one object"
        raise Refusal("TooManyGroups", f"{one.path}.minReplicas", problem, remedy)


def _strategy(given: Mapping[str, object]) -> Body:
    kind = given.get("type") or "RollingUpdate"
    if kind != "RollingUpdate":
        return {"type": kind}
    return {"type": kind, "rollingUpdate": given.get("rollingUpdate") or {"maxUnavailable": 0, "maxSurge": 1}}
