"""What the delivery of models looks at, as plain values: models, nodes, reports and claims. Pure.

Nothing here raises: a model that cannot be read is kept with what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from modelyard.models.delivery import names, placement
from modelyard.models.detection import SKIP_ANNOTATIONS
from modelyard.models.storage import ClaimFolder, FetchError, LocalFolder, StorageURI, VendorModel, source_uri
from modelyard.objects import (
    LONGEST_PROBLEM,
    Key,
    ResourceType,
    condition,
    cut,
    epoch,
    key_of,
    mapping,
    stored_status,
    texts,
)
from modelyard.reconcile.plans import OfSubject, Subject
from modelyard.resources import ClusterBaseModel, FineTunedWeight, ResourceInvalid
from modelyard.resources.ome import BaseModel as BaseModelResource, BaseModelSpec, FineTunedWeightSpec

Object = Mapping[str, Any]

NUDGE = "modelyard.dev/deliver"
"""Annotation: another value delivers anew, and at once what waits to be tried again."""
VERIFY = "modelyard.dev/verify"
"""Annotation: a time (RFC 3339); files that were not checked since then are checked against their manifest."""
RETENTION = "modelyard.dev/retention"
"""Annotation: Delete (the default) or Retain the files when the model, or a node's part in it, goes."""
LIFECYCLE = "modelyard.dev/lifecycle"
"""Annotation: one of ``LIFECYCLES``, which the status repeats."""
LIFECYCLES = ("Deprecated", "Experiment", "Public", "Internal")
FILLED = "modelyard.dev/filled"
"""Annotation: the fields of the spec that were filled with what was found in the files, and the values."""
CHECKED = "modelyard.dev/claim-report"
"""Annotation: what was found in the claim of a model whose files are in one."""


@dataclass(frozen=True, slots=True)
class StoredModel(OfSubject):
    """A BaseModel, ClusterBaseModel or FineTunedWeight; ``problem`` says why there is no ``spec`` or no ``uri``."""

    subject: Subject
    created: float
    spec: BaseModelSpec | FineTunedWeightSpec | None
    uri: StorageURI | None
    problem: tuple[str, str] | None
    status: Mapping[str, Any]
    finalizers: tuple[str, ...]
    nudge: str
    verify: float
    retain: bool
    checked: str
    filled: str
    told: bool
    """Whether anybody wants to know what is in its files."""
    entry: str
    """Its entry in node reports."""
    label: str
    """Its label on nodes."""
    identifier: str
    """Its name in labels of what is made for it."""
    lifecycle: str = ""
    """Its annotation ``LIFECYCLE``, which may be none of those."""

    @property
    def is_deprecated(self) -> bool:
        return self.lifecycle == "Deprecated"

    @property
    def source(self) -> str:
        """What is shared with others that fetch from there: the host, however its address is written."""
        parameters = self.spec.storage.parameters if self.spec is not None else None
        endpoint = (parameters or {}).get("endpoint", "")
        try:
            host = (urlsplit(endpoint).hostname or "").rstrip(".")
        except ValueError:  # then nothing is fetched from there
            host = ""
        return host[:256] or (self.uri.kind if self.uri is not None else "")

    @property
    def waiting(self) -> int:
        """Nodes that it said were waiting for their turn at the source."""
        count = mapping(self.status.get("delivery")).get("waiting")
        return count if isinstance(count, int) and 0 < count < 2**31 and not self.subject.deleting else 0


_RESOURCES: Mapping[ResourceType, type[BaseModelResource] | type[FineTunedWeight]] = {
    names.BASE_MODELS: BaseModelResource,
    names.CLUSTER_BASE_MODELS: ClusterBaseModel,
    names.FINE_TUNED_WEIGHTS: FineTunedWeight,
}


def model(kind: ResourceType, obj: Object) -> StoredModel:
    """A model as the API sends it."""
    metadata = obj["metadata"]
    annotations = texts(metadata.get("annotations"))
    labels = texts(metadata.get("labels"))
    spec, uri, problem = _spec(kind, obj)
    key = key_of(obj)
    return StoredModel(
        Subject.of(kind, obj),
        epoch(metadata.get("creationTimestamp")),
        spec,
        uri,
        problem,
        stored_status(obj),
        tuple(metadata.get("finalizers") or ()),
        annotations.get(NUDGE, "")[:100],
        epoch(annotations.get(VERIFY)),
        annotations.get(RETENTION) == "Retain" or labels.get(names.KEEP_LABEL, "").lower() == "true",
        annotations.get(CHECKED, ""),
        annotations.get(FILLED, ""),
        not any(annotations.get(name, "").lower() == "true" for name in SKIP_ANNOTATIONS),
        names.entry_key(kind, key),
        names.label_key(kind, key),
        names.identifier(kind, key),
        cut(annotations.get(LIFECYCLE, ""), 100),
    )


def _spec(
    kind: ResourceType, obj: Object
) -> tuple[BaseModelSpec | FineTunedWeightSpec | None, StorageURI | None, tuple[str, str] | None]:
    body = {"metadata": {"name": obj["metadata"]["name"]}, "spec": obj.get("spec")}
    try:
        found = _RESOURCES[kind].parse(body, unknown="accept")
    except ResourceInvalid as error:
        text = "; ".join(f"{path}: {text}" for path, text in error.problems)
        reason = "InvalidURI" if all(path.endswith("storageUri") for path, _ in error.problems) else "InvalidSpec"
        return None, None, (reason, cut(text, LONGEST_PROBLEM))
    except Exception as error:  # whatever a tenant has thought of
        return None, None, ("InvalidSpec", cut(f"cannot be read: {type(error).__name__}: {error}", LONGEST_PROBLEM))
    spec: BaseModelSpec | FineTunedWeightSpec = found.spec
    if wrong := placement.excess(spec.storage.node_affinity):
        return spec, None, ("InvalidSpec", f"spec.storage.nodeAffinity {wrong}")
    try:
        return spec, source_uri(spec.storage.storage_uri, spec.storage.parameters), None
    except FetchError as error:
        return spec, None, (error.reason, cut(str(error), LONGEST_PROBLEM))


@dataclass(frozen=True, slots=True)
class ModelNode:
    """A node that models may go to. ``ready_since`` is when it became (or ceased to be) ready."""

    name: str
    uid: str
    labels: Mapping[str, str]
    ready: bool
    since: float
    serves: bool
    """Whether pods are meant to run on it: no node of the control plane."""

    @property
    def key(self) -> Key:
        return Key("", self.name)


_CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")


def node(obj: Object) -> ModelNode:
    """A node as the API sends it."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    taints = {taint.get("key") for taint in (obj.get("spec") or {}).get("taints") or ()}
    ready = condition(status, "Ready")
    return ModelNode(
        metadata["name"],
        metadata["uid"],
        metadata.get("labels") or {},
        ready.get("status") == "True" and not metadata.get("deletionTimestamp"),
        epoch(ready.get("lastTransitionTime")),
        taints.isdisjoint(_CONTROL_PLANE),
    )


Text = Annotated[str, Field(max_length=1024)]


class Noted(BaseModel):
    """What was written as JSON: more than is known is left out."""

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Delivered(Noted):
    """How far a model's files are in one place, and which: the part of a node's report that only Modelyard has.

    ``failures`` counts in a row, of which ``failed`` were told as such, since ``failing`` (epoch seconds); ``next`` is
    when to try again. ``left`` are roots that the model has moved away from, where its files still are.
    """

    uid: Text = ""
    fingerprint: Text = ""
    uri: Annotated[str, Field(max_length=2048)] = ""
    root: Text = ""
    path: Text = ""
    revision: Text | None = None
    manifest_sha256: Text | None = None
    bytes: int | None = None
    files: int | None = None
    seconds: float | None = None
    fetched_bytes: int | None = None
    from_store: bool | None = None
    weights: Text = ""
    finished: float = Field(0, allow_inf_nan=False)
    verified: float = Field(0, allow_inf_nan=False)
    nudge: Annotated[str, Field(max_length=100)] = ""
    reason: Text = ""
    message: Text = ""
    failures: int = Field(0, ge=0, le=2**31)
    failed: int = Field(0, ge=0, le=2**31)
    failing: float = Field(0, allow_inf_nan=False)
    next: float = Field(0, allow_inf_nan=False)
    facts: dict[str, Any] = Field(default_factory=dict)
    facts_error: Text | None = None
    left: Annotated[tuple[Text, ...], Field(max_length=8)] = ()


class TransferProgress(Noted):
    """How far a transfer is, as published for node reports; ``trouble``, which is ours: what is being tried again."""

    phase: Text = ""
    total_bytes: int = 0
    completed_bytes: int = 0
    total_files: int = 0
    completed_files: int = 0
    speed_bytes_per_sec: float = Field(0, allow_inf_nan=False)
    last_updated: Text = ""
    trouble: Text = ""


class ReportEntry(Noted):
    """A model's entry in the report of a node: published keys, and ours in ``delivered``."""

    name: Annotated[str, Field(max_length=253)] = ""
    status: Text = ""
    config: dict[str, Any] | None = None
    progress: TransferProgress | None = None
    delivered: Delivered = Delivered()

    @classmethod
    def read(cls, text: str) -> ReportEntry | None:
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None

    def text(self) -> str:
        """As it is stored: the same for the same entry."""
        found = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return json.dumps(found, sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The report of one node: entries of models by key, as text."""

    key: Key
    uid: str
    entries: Mapping[str, str]
    size: int
    """Bytes of all entries."""
    parsed: dict[str, ReportEntry | None] = field(default_factory=dict, compare=False)
    """Entries that were asked for: a fleet's are many, and change rarely."""

    def of(self, namespace: str) -> int:
        """Bytes of the entries of a namespace's models."""
        return sum(_bytes(text) for key, text in self.entries.items() if key.startswith(f"{namespace}."))

    def entry(self, model: str) -> ReportEntry | None:
        if model not in self.parsed:
            text = self.entries.get(model)
            self.parsed[model] = ReportEntry.read(text) if text is not None else None
        return self.parsed[model]


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def report(obj: Object) -> NodeReport:
    """A node's report as the API sends it."""
    entries = texts(obj.get("data"))
    return NodeReport(key_of(obj), obj["metadata"]["uid"], entries, sum(map(_bytes, entries.values())))


@dataclass(frozen=True, slots=True)
class ModelClaim:
    """A PersistentVolumeClaim. ``read_only``: no pod may write to it."""

    key: Key
    bound: bool
    read_only: bool = False


def claim(obj: Object) -> ModelClaim:
    """A claim as the API sends it."""
    read_only = (obj.get("spec") or {}).get("accessModes") == ["ReadOnlyMany"]
    return ModelClaim(key_of(obj), (obj.get("status") or {}).get("phase") == "Bound", read_only)


def has_files(uri: StorageURI) -> bool:
    """Whether files are brought to nodes for it, which somebody has to take away again."""
    return not isinstance(uri, ClaimFolder | LocalFolder | VendorModel)
