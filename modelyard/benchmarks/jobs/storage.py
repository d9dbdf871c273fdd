"""Storage of a benchmark: where its results go and where its prompts or images come from. Pure.

Both are written as a model's storage is. What of it has an effect for which kind of source is in ``DATASET`` and
``RESULTS``; anything else that a spec has there is reported in the status (``storage_warnings``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from modelyard.benchmarks.jobs.world import Waits
from modelyard.benchmarks.records import DATASET_TOKEN, OF_IMAGES, DatasetAccess, Output, check_output
from modelyard.models.delivery import ModelClaim
from modelyard.models.storage import (
    BUCKETS,
    Bucket,
    ClaimFolder,
    DeliverySettings,
    FetchError,
    GitHubRelease,
    HubModel,
    StorageURI,
    StorageUse,
    check_bucket,
    source_uri,
    storage_warnings,
)
from modelyard.objects import PERSISTENT_VOLUME_CLAIMS, Key
from modelyard.reconcile.plans import World
from modelyard.resources.ome import BenchmarkJobSpec, StorageSpec
from modelyard.workloads.rendering import Refusal, check_claim

RESULTS_FOLDER, DATASET_FOLDER = "/mnt/benchmark-results", "/mnt/benchmark-dataset"
"""Mount points of claims in the measuring pod."""
DATASET_CREDENTIALS: Final = "/var/run/modelyard/dataset-credentials"
"""Mount point of the Secret that ``dataset.key`` names."""
COLUMNS: Final = ("prompt_column", "image_column")
"""Parameters of a data set that name its columns."""
SECRETS: Final = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
    "azure_account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "azure_connection_string": "AZURE_STORAGE_CONNECTION_STRING",
    "azure_sas_token": "AZURE_STORAGE_SAS_TOKEN",
}
"""Parameters of an output that are credentials, and the variables that hold them in the pod."""
_S3: Final = frozenset({"s3", "obs", "oci"})
_WRITTEN: Final = BUCKETS | {"pvc"}
_READ: Final = BUCKETS | {"hf", "github", "pvc"}
_FETCHED: Final = BUCKETS | {"github"}
"""Kinds of data set that the measuring process fetches itself."""
_CREDENTIALS_IN_SECRET: Final = dict.fromkeys(
    ("auth", "config_file", "profile", "security_token", "aws_profile", "gcp_credentials_path"),
    "put credentials into the Secret that key names",
)
_NO_CREDENTIALS: Final = {"key": "a claim is mounted without credentials"}
RESULTS: Final = StorageUse(
    "spec.outputLocation",
    {"key": BUCKETS, **dict.fromkeys(("nodeSelector", "nodeAffinity"), _WRITTEN)},
    {
        "endpoint": BUCKETS,
        **dict.fromkeys(("region", "aws_region", "addressingStyle"), _S3),
        "azure_account_name": frozenset({"az"}),
        **{name: _S3 if name.startswith("aws") else frozenset({"az"}) for name in SECRETS},
    },
    _NO_CREDENTIALS,
    _CREDENTIALS_IN_SECRET,
)
DATASET: Final = StorageUse(
    "spec.dataset",
    {"key": _READ - {"pvc"}, **dict.fromkeys(("nodeSelector", "nodeAffinity"), _READ)},
    {
        **dict.fromkeys(COLUMNS, _READ),
        **dict.fromkeys(("split", "subset"), frozenset({"hf"})),
        **dict.fromkeys(("secretKey", "token", "revision"), frozenset({"hf", "github"})),
        **dict.fromkeys(("endpoint", "include", "exclude"), _FETCHED),
        **dict.fromkeys(("region", "addressingStyle"), _S3),
    },
    _NO_CREDENTIALS,
    _CREDENTIALS_IN_SECRET,
)
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")
_SECRET_KEY = re.compile(r"(?!\.\.)[A-Za-z0-9._-]{1,253}\Z")


@dataclass(frozen=True, slots=True)
class ResultPlace:
    """Destination of results: the output of the process, the claim to mount, and the Secret and variables of the pod.

    ``hub`` is the address of the hub that the cluster uses in place of the public one; empty for that.
    """

    output: Output
    claim: str = ""
    folder: str = ""
    secret: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    hub: str = ""


@dataclass(frozen=True, slots=True)
class DatasetPlace:
    """Source of prompts or images: a hub's id, a folder in the pod, or a URI that the process fetches.

    An empty ``address`` stands for prompts that the program makes up. ``secret`` is mounted at ``DATASET_CREDENTIALS``.
    """

    address: str = ""
    access: DatasetAccess = field(default_factory=DatasetAccess)
    claim: ClaimFolder | None = None
    secret: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


def results(spec: BenchmarkJobSpec, key: Key, began: str, delivery: DeliverySettings, world: World) -> ResultPlace:
    """Return the place of the results. Raises ``Refusal`` and ``Waits``."""
    storage, where = spec.output_location, "spec.outputLocation.storageUri"
    folder = spec.result_folder_name or f"{key.name}-{began}"
    if not _FOLDER.match(folder):
        remedy = "write letters, digits, '.', '_' and '-', at most 200"
        raise Refusal("InvalidSpec", "spec.resultFolderName", f"{folder[:100]!r} is no name of a folder", remedy)
    parameters = storage.parameters or {}
    uri = check_output(storage.storage_uri, parameters, where, namespace=key.namespace, folder=folder)
    hub = delivery.hub_endpoint or ""
    plain = {name: parameters[name] for name in RESULTS.parameters if name in parameters and name not in SECRETS}
    public = _checked_endpoint(plain, "spec.outputLocation", delivery)
    output = Output(uri=storage.storage_uri, folder=folder, parameters=plain, public=public)
    if isinstance(uri, ClaimFolder):
        claim = _claim(uri, key, where, world, written=True)
        mounted = output.model_copy(update={"path": RESULTS_FOLDER, "public": False})
        return ResultPlace(mounted, claim, uri.path.strip("/"), variables=delivery.proxy_environment, hub=hub)
    secrets = {SECRETS[name]: value for name, value in parameters.items() if name in SECRETS}
    return ResultPlace(output, secret=storage.key or "", variables=secrets | delivery.proxy_environment, hub=hub)


def dataset(spec: BenchmarkJobSpec, key: Key, delivery: DeliverySettings, world: World) -> DatasetPlace:
    """Return the source of prompts or images. Raises ``Refusal`` and ``Waits``."""
    storage, where = spec.dataset, "spec.dataset.storageUri"
    if storage is None:
        if spec.task in OF_IMAGES:
            remedy = "name one of a hub (hf://OWNER/NAME), or a folder of images in a claim (pvc://) or a bucket"
            raise Refusal("InvalidSpec", "spec.dataset", f"{spec.task} needs a data set of images", remedy)
        return DatasetPlace()
    uri, parameters = _parsed(storage, where), storage.parameters or {}
    if isinstance(uri, ClaimFolder):
        _claim(uri, key, where, world)
        return DatasetPlace(DATASET_FOLDER, claim=uri)
    if not isinstance(uri, HubModel | Bucket | GitHubRelease):
        remedy = "write hf://, pvc://, github:// or a bucket (s3://, oci://, gs://, az://)"
        raise Refusal("InvalidSpec", where, f"a dataset is not read from {uri.kind}://", remedy)
    if (name := parameters.get("secretKey")) is not None and not _SECRET_KEY.match(name):
        remedy = "write letters, digits, '.', '_' and '-'"
        where = "spec.dataset.parameters.secretKey"
        raise Refusal("InvalidSpec", where, f"{name[:100]!r} is no key of a Secret", remedy)
    token = parameters.get("token", "") if not storage.key and uri.kind in DATASET.parameters["token"] else ""
    revision = uri.revision if isinstance(uri, HubModel) and uri.revision != "main" else None
    access = DatasetAccess(
        revision=revision,
        parameters={name: value for name, value in parameters.items() if name in _PASSED and uri.kind in _PASSED[name]},
        credentials=DATASET_CREDENTIALS if storage.key else None,
        public=_checked_endpoint(parameters, "spec.dataset", delivery) if uri.kind in _FETCHED else False,
    )
    address = uri.repository if isinstance(uri, HubModel) else str(uri)
    variables = {DATASET_TOKEN: token} if token else {}
    return DatasetPlace(address, access, secret=storage.key or "", variables=variables)


_PASSED: Final = {
    name: kinds
    for name, kinds in DATASET.parameters.items()
    if name not in (*COLUMNS, "token", "revision")  # columns are fields of their own, a token is a variable
}


def warnings(spec: BenchmarkJobSpec) -> Iterator[str]:
    """Warn of fields and parameters of a storage without effect."""
    for storage, use in _storages(spec):
        try:
            uri = source_uri(storage.storage_uri, storage.parameters)
        except FetchError:
            uri = None  # The object is refused, with this as the reason.
        yield from storage_warnings(uri, storage, use)


def visible_credentials(spec: BenchmarkJobSpec) -> Iterator[str]:
    """Warn of credentials in parameters, which everyone who may read the object can read."""
    for storage, use in _storages(spec):
        given = sorted(storage.parameters or {})
        secrets = [name for name in given if name in use.parameters and (name in SECRETS or name == "token")]
        if named := ", ".join(secrets)[:200]:
            yield f"whoever reads it reads {named} of {use.place}.parameters: put it into a Secret and name that in key"


def _storages(spec: BenchmarkJobSpec) -> Iterator[tuple[StorageSpec, StorageUse]]:
    if spec.dataset is not None:
        yield spec.dataset, DATASET
    yield spec.output_location, RESULTS


def _checked_endpoint(parameters: Mapping[str, str], where: str, delivery: DeliverySettings) -> bool:
    """Return whether an endpoint may only lead to the internet. Raises ``Refusal`` for one that is not allowed."""
    endpoint = parameters.get("endpoint", "")
    if endpoint and (why := delivery.hosts.refusal(endpoint, "fetched from")) is not None:
        raise Refusal("EndpointNotAllowed", f"{where}.parameters.endpoint", why, "or leave it out")
    return bool(endpoint) and not delivery.hosts.names(endpoint)


def _parsed(storage: StorageSpec, where: str) -> StorageURI:
    try:
        uri = source_uri(storage.storage_uri, storage.parameters)
        if isinstance(uri, Bucket):
            check_bucket(uri, storage.parameters or {})
    except FetchError as error:
        raise Refusal(error.reason, where, str(error), "correct it") from None
    return uri


def _claim(uri: ClaimFolder, key: Key, where: str, world: World, *, written: bool = False) -> str:
    check_claim(uri, key.namespace, where)
    claim: ModelClaim | None = world[PERSISTENT_VOLUME_CLAIMS].get(Key(key.namespace, uri.claim))
    if claim is None:
        raise Waits("ClaimNotFound", f"{where}: PVC {uri.claim} not found in namespace {key.namespace}: create it")
    if written and claim.read_only:
        problem = f"PVC {uri.claim} can only be read (accessModes: ReadOnlyMany)"
        raise Refusal("InvalidSpec", where, problem, "name one with ReadWriteMany or ReadWriteOnce")
    return uri.claim
