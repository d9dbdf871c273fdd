"""What an administrator says about the delivery of models: the ConfigMap ``modelyard-models``, key ``settings``. Pure.

It is read in the controller's namespace, where tenants do not write. Where there is none, the defaults hold.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import posixpath
import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from modelyard.objects import DocumentError, describe_url_problem, first_fault, parse_document
from modelyard.reconcile.plans import Want, settings_wanted

CONFIG_MAP = "modelyard-models"
KEY, CA_FILE = "settings", "ca.crt"
WANTED = "model-settings"
"""Name in a ``World`` of the settings, for whoever uses what was delivered."""
LOCAL_IMAGE = "modelyard.dev/modelyard:local"

_PROXY = re.compile(r"http://(?:[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}/?\Z")
_NEVER_BY_PROXY = ("localhost", "127.0.0.0/8", "169.254.0.0/16", ".svc", ".cluster.local")
"""Inside the machine or the cluster, and metadata services, which other libraries ask for identities."""

LONGEST_PATH = 1024
"""Bytes of a model's path."""

Settings = TypeVar("Settings", bound=BaseModel)
Folder = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$", max_length=512)]


class DeliverySettings(BaseModel):
    """Where files go, what they may be fetched from, and what a fetching Job takes."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    image: str = Field(LOCAL_IMAGE, description="image of the Jobs on the nodes: the one the worker runs")
    models_root: Folder = Field("/mnt/models", description="folder of the models on every node")
    roots: list[Folder] = Field(default_factory=list, description="further folders that cluster-scoped models may use")
    namespace_roots: dict[str, list[Folder]] = Field(
        default_factory=dict, description="by namespace, folders that its models may use beside MODELS_ROOT/NAMESPACE"
    )
    endpoints: list[str] = Field(
        default_factory=list,
        description="hosts (HOST, HOST:PORT, or with * for a part) that the parameter endpoint may name; exactly named,"
        " they may be internal",
    )
    hub_endpoint: str | None = Field(None, description="URL of the hub that hf:// means; unset: huggingface.co")
    ca_bundle: str | None = Field(
        None,
        description="ConfigMap in the controller's namespace whose key ca.crt has, as PEM, all authorities that sources"
        " are believed by; unset: those of the image",
    )
    https_proxy: str | None = Field(
        None,
        description="address of an HTTP proxy (http://HOST:PORT, without credentials) by which Jobs reach https://"
        " sources and places of results; unset: they connect directly",
    )
    no_proxy: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.:*/\[\]_-]{1,253}$")]] = Field(
        default_factory=list,
        max_length=1000,
        description="hosts, domains and networks that Jobs reach without httpsProxy, in addition to those inside the"
        " cluster (.svc, .cluster.local, localhost)",
    )
    node_identity: bool = Field(
        False, description="whether models of a namespace may use the cloud identity of the node they are fetched on"
    )
    nodes_per_source: int = Field(4, ge=1, le=1000, description="nodes that fetch from one source at a time")
    parallel: int = Field(8, ge=1, le=64, description="requests that one Job has under way at a time")
    part_size: int = Field(
        4 << 20, ge=65536, le=1 << 30, description="bytes of one request, and what a kill of the Job may cost each"
    )
    bandwidth: int | None = Field(None, ge=1, description="bytes per second that one Job may fetch; unset: no limit")
    source_bandwidth: int | None = Field(
        None,
        ge=1,
        description="bytes per second that all Jobs at one source may fetch; each may nodesPerSource-th of it",
    )
    minimum_rate: int = Field(
        128 << 10,
        ge=0,
        description="bytes per second that a source must send, as an average over five minutes of waiting for it; 0:"
        " any rate",
    )
    delivery_deadline: int = Field(
        86_400,
        ge=600,
        le=30 * 86_400,
        description="seconds that one Job may take; the next one continues with what has arrived",
    )
    free_disk_percent: int = Field(
        10, ge=0, le=90, description="percent of a node's disk, in bytes and in inodes, that deliveries leave free"
    )
    namespace_disk_percent: int = Field(
        50,
        ge=1,
        le=100,
        description="percent of a node's disk, in bytes and in inodes, that the models of one namespace may have",
    )
    bytes_per_namespace: int | None = Field(
        None, ge=1, description="bytes on one node that the models of one namespace may have; unset: the percentage"
    )
    files_per_namespace: int = Field(
        200_000, ge=1, description="files and folders on one node that the models of one namespace may have"
    )
    models_per_namespace: int = Field(
        100, ge=1, description="models of one namespace that are delivered, the oldest first: all share a node's report"
    )
    cpu: str = Field("2", description="CPU that a Job asks for")
    memory: str = Field("1Gi", description="memory that a Job asks for, and its limit")
    run_as_user: int = Field(0, ge=0, description="user of the Jobs: it must be able to write below the roots")
    node_selector: dict[str, str] = Field(
        default_factory=dict, description="labels that a node must carry to be given any model"
    )
    tolerations: list[dict[str, Any]] = Field(
        default_factory=lambda: [{"operator": "Exists", "effect": "NoSchedule"}],
        description="tolerations of the Jobs, which go to the nodes that models are for whatever else may not",
    )

    @classmethod
    def read(cls, text: str | None) -> tuple[DeliverySettings, str | None]:
        """The settings, and what is wrong with them: of a document that cannot be used, nothing is."""
        return read_settings(cls, text, CONFIG_MAP, KEY)

    @field_validator("https_proxy")
    @classmethod
    def _proxy_without_secrets(cls, value: str | None) -> str | None:
        if value is not None and not _PROXY.match(value):
            raise ValueError("is no plain address of a proxy; write http://HOST:PORT, without user and password")
        return value

    @property
    def proxy_environment(self) -> dict[str, str]:
        """Variables for a container's HTTPS proxy, if any, in both spellings: programs differ in which they prefer."""
        if self.https_proxy is None:
            return {}
        exceptions = ",".join(dict.fromkeys((*self.no_proxy, *_NEVER_BY_PROXY)))
        return {"HTTPS_PROXY": self.https_proxy, "https_proxy": self.https_proxy} | dict.fromkeys(
            ("NO_PROXY", "no_proxy"), exceptions
        )

    @property
    def rate(self) -> int | None:
        """Bytes per second that one Job may fetch, so that all at one source stay within its; ``None``: no limit."""
        shared = None if self.source_bandwidth is None else max(1, self.source_bandwidth // self.nodes_per_source)
        return min((one for one in (self.bandwidth, shared) if one is not None), default=None)

    def share(self, namespace: str) -> int:
        """Turns at one source that a namespace's models may have: half, so that no namespace keeps the others out."""
        return -(-self.nodes_per_source // 2) if namespace else self.nodes_per_source

    def allowed(self, namespace: str) -> list[tuple[str, str]]:
        """Where models of a namespace (``""``: cluster-scoped ones) may be: (root of a store, folder below it)."""
        if not namespace:
            return [(root, root) for root in (self.models_root, *self.roots)]
        own = [(root, root) for root in self.namespace_roots.get(namespace, ())]
        return [(self.models_root, f"{self.models_root}/{namespace}"), *own]

    def place(self, namespace: str, path: str) -> tuple[str, str] | None:
        """The root and folder that a model of the namespace may have this path in; ``None``: in none."""
        if not path.startswith("/") or posixpath.normpath(path) != path.rstrip("/") or "\0" in path:
            return None
        if len(path.encode("utf-8", "replace")) > LONGEST_PATH:
            return None
        for root, below in self.allowed(namespace):
            if path.startswith(f"{below}/") and not path.startswith(f"{root}/.modelyard"):
                return root, below
        return None

    @property
    def hosts(self) -> AllowedHosts:
        return AllowedHosts(tuple(self.endpoints), f"endpoints in ConfigMap {CONFIG_MAP}")


class AllowedHosts(NamedTuple):
    """The hosts that tenants may name, as an administrator lists them; ``where`` they are listed, for messages."""

    listed: tuple[str, ...]
    where: str

    def names(self, endpoint: str) -> bool:
        """Whether the endpoint's host is listed as it stands: only then may it be one inside the cluster."""
        parts = urlsplit(endpoint)
        return (parts.hostname or "").rstrip(".") in self._for(parts.port)

    def _for(self, port: int | None) -> list[str]:
        split = [one.partition(":") if one.count(":") == 1 else (one, "", "") for one in self.listed]
        return [host for host, _, number in split if number in ("", str(port))]

    def refusal(self, endpoint: str, purpose: str) -> str | None:
        """Why this endpoint is not for this purpose, with the remedy; ``None``: it may be."""
        if problem := describe_url_problem(endpoint):
            return f"endpoint {problem}"
        parts = urlsplit(endpoint)
        host, port = (parts.hostname or "").rstrip("."), parts.port
        if not host or parts.username or parts.query or parts.fragment:
            return f"endpoint {endpoint[:200]!r} is no plain URL: write https://HOST[:PORT]"
        if self.names(endpoint) or (not internal(host) and any(fnmatch.fnmatchcase(host, p) for p in self._for(port))):
            return None
        return (
            f"endpoint {endpoint[:200]!r} is not among those that may be {purpose}: whoever administers the cluster"
            f" allows it by adding {host} to {self.where}"
        )


def internal(host: str) -> bool:
    """Whether this is an address, or a name that only means something inside a cluster or a machine."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".svc", ".local", ".internal", ".localhost"))
    return True


def read_settings(model: type[Settings], text: str | None, config_map: str, key: str) -> tuple[Settings, str | None]:
    """Return the settings in a key of a ConfigMap, and what is wrong with them; then they are the defaults."""
    try:
        document = parse_document(text or "")
        return (model.model_validate(document) if document is not None else model()), None
    except DocumentError as error:
        return model(), f"ConfigMap {config_map}, key {key}: {error}"
    except ValidationError as error:
        return model(), f"ConfigMap {config_map}, key {key}: {first_fault(error)}"


def delivery_settings_wanted(home: str) -> Want[DeliverySettings]:
    """Want the settings for whoever uses what was delivered; a document that cannot be used counts as absent."""
    return settings_wanted(home, CONFIG_MAP, lambda data: DeliverySettings.read(data.get(KEY))[0], WANTED)


class ConfigText(NamedTuple):
    """What a ConfigMap has: settings, as text, and whether there are authorities in it."""

    text: str
    authorities: bool


def read(obj: Mapping[str, Any]) -> ConfigText:
    """A ConfigMap of the controller's namespace."""
    data = obj.get("data") or {}
    return ConfigText(data.get(KEY, ""), CA_FILE in data)
