"""Where a model's files are: one grammar for every storage URI, and the typed value it gives.

Ten kinds: hf, s3, obs, oci, gs, az, github, pvc, local, vendor. Prefixes are case-sensitive, nothing is decoded, and no
part is looked up anywhere: parsing is pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from modelyard.models.storage.errors import FetchError, invalid_uri

ADDRESSING_STYLES = ("virtual", "path")
"""Values of the parameter ``addressingStyle``: the bucket is part of the host's name, or the first part of the path."""
REGIONAL = ("s3", "obs", "oci")
"""Kinds of bucket with a region; all but the first have an address for each, so that one must be named."""
LONGEST = 2048
"""Characters of a URI; the longest object key of any source is 1024 bytes."""

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")
CLAIM = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?\Z")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}\Z")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}\Z")
_REGION = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")
_REVISION = re.compile(r"(?!@\Z)[A-Za-z0-9@_][A-Za-z0-9._/+@=,-]{0,254}\Z")
"""Names that git allows for branches and tags, such as ``release@2`` and ``@scope/package@1.0.0``."""
_AZURE_HOST = ".blob.core.windows.net"


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository of a model hub that speaks Hugging Face's API."""

    repository: str
    revision: str = "main"
    kind: Literal["hf"] = "hf"

    def __str__(self) -> str:
        return f"hf://{self.repository}@{self.revision}"


@dataclass(frozen=True, slots=True)
class Bucket:
    """What lies below a prefix of a bucket; at Azure, of a container.

    ``namespace`` is that of oci, and the account of az; ``region`` is that of s3, obs and oci, where given.
    """

    kind: Literal["s3", "obs", "oci", "gs", "az"]
    bucket: str
    prefix: str = ""
    region: str | None = None
    namespace: str | None = None

    def __str__(self) -> str:
        if self.kind == "az":
            return f"az://{self.namespace}/{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")
        if self.namespace is not None:
            region = f"@{self.region}" if self.region else ""
            return f"oci://n/{self.namespace}{region}/b/{self.bucket}/o/{self.prefix}"
        region = f"@{self.region}" if self.region else ""
        return f"{self.kind}://{self.bucket}{region}" + (f"/{self.prefix}" if self.prefix else "")


@dataclass(frozen=True, slots=True)
class GitHubRelease:
    """The files of a release; ``latest`` is the newest one that is no draft and no preview."""

    owner: str
    repository: str
    tag: str = "latest"
    kind: Literal["github"] = "github"

    def __str__(self) -> str:
        return f"github://{self.owner}/{self.repository}@{self.tag}"


@dataclass(frozen=True, slots=True)
class ClaimFolder:
    """A folder in a PersistentVolumeClaim; without ``namespace``, of the namespace of whoever refers to it."""

    claim: str
    path: str
    namespace: str | None = None
    kind: Literal["pvc"] = "pvc"

    def __str__(self) -> str:
        return f"pvc://{self.namespace + ':' if self.namespace else ''}{self.claim}/{self.path}"


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A folder that is on the node already; absolute."""

    path: str
    kind: Literal["local"] = "local"

    def __str__(self) -> str:
        return f"local://{self.path}"


@dataclass(frozen=True, slots=True)
class VendorModel:
    """A model that a vendor's own machinery brings; there is nothing to fetch."""

    vendor: str
    resource_type: str
    path: str
    kind: Literal["vendor"] = "vendor"

    def __str__(self) -> str:
        return f"vendor://{self.vendor}/{self.resource_type}/{self.path}"


StorageURI: TypeAlias = HubModel | Bucket | GitHubRelease | ClaimFolder | LocalFolder | VendorModel


def parse(uri: str) -> StorageURI:
    """The value of a storage URI; FetchError with the reason InvalidURI says what is wrong and what can be written."""
    kinds = ", ".join(f"{kind}://" for kind in _KINDS)
    kind, found, rest = uri.partition("://")
    if len(uri.encode("utf-8", "replace")) > LONGEST:
        raise invalid_uri(uri, f"is longer than {LONGEST} bytes", "write a shorter one")
    if not found or kind not in _KINDS:
        known = f"; the scheme is written in lower case: {kind.lower()}://" if kind.lower() in _KINDS else ""
        if kind == "ms":
            known = "; ModelScope is not read: copy the model to a bucket or a hub"
        raise invalid_uri(uri, "unknown storage type", f"begin with one of {kinds}{known}")
    if any(character.isspace() or not character.isprintable() for character in uri):
        raise invalid_uri(uri, "has white space or control characters", "write it without")
    return _KINDS[kind](uri, rest)


def cache_path(cache_uri: str) -> str:
    """Where a Kthena backend's cache is mounted: host and path of the URI, with one slash before and none behind."""
    _, found, rest = cache_uri.partition("://")
    inner = "/".join(part for part in rest.split("/") if part) if found else ""
    return f"/{inner}" if inner else ""


def kthena_model_path(cache_uri: str, model_uri: str) -> str:
    """Where every container of a Kthena backend expects the model: below the cache, by the MD5 of the URI's text."""
    return f"{cache_path(cache_uri)}/{hashlib.md5(model_uri.encode(), usedforsecurity=False).hexdigest()}"


def overlap(one: str, other: str) -> bool:
    """Whether of two absolute paths one is the other, or leads into it: what is mounted at one shows the other."""
    one, other = one.rstrip("/"), other.rstrip("/")
    return one == other or other.startswith(f"{one}/") or one.startswith(f"{other}/")


def _plain(uri: str, path: str, what: str) -> str:
    """A path of which no part is empty or leads up; '/' around it is kept as given."""
    inner = path.strip("/")
    if inner and any(part in ("", ".", "..") for part in inner.split("/")):
        raise invalid_uri(uri, f"the {what} has an empty part, '.' or '..'", "write it without")
    return path


def _hf(uri: str, rest: str) -> HubModel:
    repository, at, revision = rest.partition("@")
    shape = "write hf://owner/name or hf://owner/name@revision"
    if not repository:
        raise invalid_uri(uri, "missing model id", shape)
    parts = repository.split("/")
    if len(parts) > 2 or not all(_SEGMENT.match(part) and ".." not in part and "--" not in part for part in parts):
        raise invalid_uri(uri, f"{repository!r} is no model id", shape)
    if at and (not _REVISION.match(revision) or ".." in revision):
        raise invalid_uri(uri, "empty revision" if not revision else f"{revision!r} is no revision", shape)
    return HubModel(repository, revision or "main")


def _bucket_name(uri: str, name: str, shape: str) -> str:
    if not name:
        raise invalid_uri(uri, "missing bucket name", shape)
    if not _BUCKET.match(name) or ".." in name:
        raise invalid_uri(uri, f"{name!r} is no bucket name", shape)
    return name


def check_bucket(uri: Bucket, parameters: Mapping[str, str]) -> None:
    """Refuse parameters that lead to no address. Raises ``FetchError``."""
    style = parameters.get("addressingStyle")
    if style not in (None, *ADDRESSING_STYLES):
        styles = " or ".join(ADDRESSING_STYLES)
        raise FetchError(
            "InvalidURI", f"{uri}: addressingStyle {style[:50]!r} is none; write {styles}, or leave it out"
        )
    region = uri.region or parameters.get("aws_region") or parameters.get("region")
    if region is not None and uri.kind in REGIONAL and not is_region(region):  # It is part of the host's name.
        raise FetchError("InvalidURI", f"{uri}: {region[:100]!r} is no region; write one such as eu-west-1")
    if region is None and uri.kind in REGIONAL[1:] and not parameters.get("endpoint"):
        shape = f"oci://n/{uri.namespace}@REGION/b/{uri.bucket}/o/{uri.prefix}"
        shape = shape if uri.kind == "oci" else f"obs://{uri.bucket}@REGION/{uri.prefix}"
        remedy = f"write {shape}, or give the parameter region or endpoint"
        raise FetchError("InvalidURI", f"{uri}: names no region, without which there is no address; {remedy}")


def is_account(text: str) -> bool:
    """Report whether this can be an Azure storage account: it becomes part of a host's name."""
    return _ACCOUNT.match(text) is not None


def is_region(text: str) -> bool:
    """Whether this can be a region: it becomes part of a host's name."""
    return len(text) <= 63 and _REGION.match(text) is not None


def _region(uri: str, region: str, shape: str) -> str:
    if not is_region(region):
        raise invalid_uri(uri, "empty region after '@'" if not region else f"{region!r} is no region", shape)
    return region


def _of_region(kind: Literal["s3", "obs"], uri: str, rest: str) -> Bucket:
    shape = f"write {kind}://bucket, {kind}://bucket/prefix or {kind}://bucket@region/prefix"
    first, _, prefix = rest.partition("/")
    bucket, at, region = first.partition("@")
    name = _bucket_name(uri, bucket, shape)
    return Bucket(kind, name, _plain(uri, prefix, "prefix"), _region(uri, region, shape) if at else None)


def _gs(uri: str, rest: str) -> Bucket:
    bucket, _, prefix = rest.partition("/")
    name = _bucket_name(uri, bucket, "write gs://bucket or gs://bucket/prefix")
    return Bucket("gs", name, _plain(uri, prefix, "prefix"))


def _oci(uri: str, rest: str) -> Bucket:
    shape = "write oci://n/NAMESPACE/b/BUCKET/o/PATH or oci://NAMESPACE@REGION/BUCKET/PATH"
    first, _, behind = rest.partition("/")
    if "@" in first:
        namespace, _, region = first.partition("@")
        bucket, _, prefix = behind.partition("/")
    else:
        parts = rest.split("/", 5)
        if len(parts) < 6 or (parts[0], parts[2], parts[4]) != ("n", "b", "o"):
            raise invalid_uri(uri, "does not have the parts n, b and o in this order", shape)
        (namespace, _, region), bucket, prefix = parts[1].partition("@"), parts[3], parts[5]
        if "@" in parts[1]:
            _region(uri, region, shape)
    if not _SEGMENT.match(namespace):
        raise invalid_uri(uri, "missing namespace" if not namespace else f"{namespace!r} is no namespace", shape)
    where = _region(uri, region, shape) if region or "@" in first else None
    return Bucket("oci", _bucket_name(uri, bucket, shape), _plain(uri, prefix, "path"), where, namespace)


def _az(uri: str, rest: str) -> Bucket:
    shape = "write az://account/container or az://account/container/path"
    account, _, behind = rest.partition("/")
    account = account.removesuffix(_AZURE_HOST)
    container, _, path = behind.partition("/")
    if not account:
        raise invalid_uri(uri, "missing account name", shape)
    if not container:
        raise invalid_uri(uri, "missing container name", shape)
    if not is_account(account):
        raise invalid_uri(uri, f"{account!r} is no account name (3 to 24 lower-case letters and digits)", shape)
    if not _BUCKET.match(container):
        raise invalid_uri(uri, f"{container!r} is no container name", shape)
    return Bucket("az", container, _plain(uri, path, "path"), namespace=account)


def _github(uri: str, rest: str) -> GitHubRelease:
    shape = "write github://owner/repository or github://owner/repository@tag"
    name, at, tag = rest.partition("@")
    parts = name.split("/")
    if not parts[0]:
        raise invalid_uri(uri, "missing owner", shape)
    if len(parts) < 2 or not parts[1]:
        raise invalid_uri(uri, "missing repository", shape)
    if len(parts) > 2:
        raise invalid_uri(uri, "has more than owner and repository", shape)
    if not all(_SEGMENT.match(part) and ".." not in part for part in parts):
        raise invalid_uri(uri, f"{name!r} is no repository", shape)
    if at and (not _REVISION.match(tag) or ".." in tag):
        raise invalid_uri(uri, "empty tag" if not tag else f"{tag!r} is no tag", shape)
    return GitHubRelease(parts[0], parts[1], tag or "latest")


def _pvc(uri: str, rest: str) -> ClaimFolder:
    shape = "write pvc://claim/path or pvc://namespace:claim/path"
    if not rest:
        raise invalid_uri(uri, "names no claim", shape)
    first, _, path = rest.partition("/")
    if first.count(":") > 1:
        raise invalid_uri(uri, "more than one ':' before the first '/'", shape)
    namespace, colon, claim = first.rpartition(":")
    if colon and not namespace:
        raise invalid_uri(uri, "empty namespace before ':'", shape)
    if colon and not claim:
        raise invalid_uri(uri, "empty claim after ':'", shape)
    if colon and not _NAMESPACE.match(namespace):
        raise invalid_uri(uri, f"{namespace!r} is no namespace (1 to 63 lower-case letters, digits and hyphens)", shape)
    if not claim:
        raise invalid_uri(uri, "empty claim", shape)
    if not CLAIM.match(claim):
        raise invalid_uri(uri, f"{claim!r} is no name of a PersistentVolumeClaim", shape)
    if not path.strip("/"):
        raise invalid_uri(uri, "missing path in the claim", shape)
    return ClaimFolder(claim, _plain(uri, path, "path"), namespace or None)


def _local(uri: str, rest: str) -> LocalFolder:
    shape = "write local:///absolute/path"
    if not rest:
        raise invalid_uri(uri, "missing path", shape)
    if not rest.startswith("/"):
        raise invalid_uri(uri, f"{rest!r} is not absolute", shape)
    return LocalFolder(_plain(uri, rest, "path"))


def _vendor(uri: str, rest: str) -> VendorModel:
    parts = rest.split("/", 2)
    if len(parts) < 3 or not all(parts):
        raise invalid_uri(uri, "does not have three parts", "write vendor://vendor/type/path")
    return VendorModel(parts[0], parts[1], _plain(uri, parts[2], "path"))


_KINDS: dict[str, Callable[[str, str], StorageURI]] = {
    "hf": _hf,
    "s3": partial(_of_region, "s3"),
    "obs": partial(_of_region, "obs"),
    "oci": _oci,
    "gs": _gs,
    "az": _az,
    "github": _github,
    "pvc": _pvc,
    "local": _local,
    "vendor": _vendor,
}
