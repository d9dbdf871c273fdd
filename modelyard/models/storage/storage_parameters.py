"""Fields and parameters of a storage: which exist, for which kinds of source, and what a misspelt one may mean. Pure.

A model, the data set of a benchmark and the place of its results are all written as a ``StorageSpec``. Each use acts on
other fields and parameters of it; a ``StorageUse`` names them, and what else a spec has is reported as without effect.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from modelyard.models.storage.errors import FetchError
from modelyard.models.storage.uri import GitHubRelease, HubModel, StorageURI, parse
from modelyard.objects import few, mapping, shown
from modelyard.resources.ome import StorageSpec

BUCKETS: Final = frozenset({"s3", "obs", "oci", "gs", "az"})
FETCHED: Final = BUCKETS | {"hf", "github"}
"""Kinds of source that files are fetched from."""
ON_NODES: Final = FETCHED | {"local", "vendor"}
"""Kinds of source whose files are on nodes; those of a claim are in its volume."""
PARAMETERS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("endpoint", "include", "exclude", "allFormats", "weights"), FETCHED),
    **dict.fromkeys(("secretKey", "token", "revision"), frozenset({"hf", "github"})),
    **dict.fromkeys(("region", "addressingStyle"), frozenset({"s3", "obs", "oci"})),
    "auth": frozenset({"oci"}),
}
"""Each parameter of a model with the kinds of source that it has an effect for."""
_ELSEWHERE = {
    "cache_dir": "the folder is spec.storage.path",
    "storageKey": "the Secret is named in spec.storage.key",
    "auth_type": "did you mean 'auth'?",
}
"""Names that documentation of others has, with the field to use here."""
_MOST = 10
FIELD = "spec.storage.parameters"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class StorageUse:
    """One use of a storage: its ``place`` in an object, and the kinds of source for which each part has an effect.

    ``fields`` leaves out those that never have one. ``reasons`` says why the others have none for other kinds.
    ``elsewhere`` has remedies for names that do not exist.
    """

    place: str
    fields: Mapping[str, frozenset[str]]
    parameters: Mapping[str, frozenset[str]]
    reasons: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)


MODEL: Final = StorageUse(
    "spec.storage",
    {
        **dict.fromkeys(("path", "nodeSelector", "nodeAffinity"), ON_NODES),
        **dict.fromkeys(("key", "downloadPolicy"), FETCHED),
    },
    PARAMETERS,
    {
        "path": "the files stay in the claim",
        "nodeSelector": "the claim's volume determines its nodes",
        "nodeAffinity": "the claim's volume determines its nodes",
        "key": "nothing is fetched",
        "downloadPolicy": "nothing is fetched",
        _PREFERRED: "a model goes to every node that matches, so only the required part counts",
    },
    _ELSEWHERE,
)
"""The files of a model or of fine-tuned weights."""


def warnings(uri: StorageURI | None, parameters: Mapping[str, str] | None, use: StorageUse = MODEL) -> list[str]:
    """Return a sentence for each parameter without effect."""
    return few([*_parameters(uri, parameters or {}, use)], _MOST)


def storage_warnings(uri: StorageURI | None, storage: StorageSpec, use: StorageUse = MODEL) -> list[str]:
    """Return a sentence for each field and parameter of a storage without effect."""
    texts = [*_fields(uri, storage, use), *_token(storage, use), *_parameters(uri, storage.parameters or {}, use)]
    return few(texts, _MOST)


def _fields(uri: StorageURI | None, storage: StorageSpec, use: StorageUse) -> Iterator[str]:
    for name, value in storage.model_dump(by_alias=True, exclude_none=True).items():
        if name not in use.fields or value in ("", {}):
            continue
        if uri is not None and uri.kind not in use.fields[name]:
            yield f"{use.place}.{name} has no effect for {uri.kind}://: {use.reasons[name]}; remove it"
        elif name == "nodeAffinity" and _PREFERRED in use.reasons and mapping(value).get(_PREFERRED):
            yield f"{use.place}.{name}.{_PREFERRED} has no effect: {use.reasons[_PREFERRED]}; remove it"


def _token(storage: StorageSpec, use: StorageUse) -> Iterator[str]:
    parameters = storage.parameters or {}
    if "secretKey" in parameters and "secretKey" in use.parameters and not storage.key:
        yield f"{use.place}.parameters: secretKey has no effect without {use.place}.key; name the Secret there"
    if "token" in parameters and "token" in use.parameters and storage.key:
        yield f"{use.place}.parameters: token has no effect next to {use.place}.key; remove one of them"


def _parameters(uri: StorageURI | None, parameters: Mapping[str, str], use: StorageUse) -> Iterator[str]:
    known = {name for name, kinds in use.parameters.items() if uri is None or uri.kind in kinds}
    for number, name in enumerate(sorted(parameters.keys() - known)):
        # A suggestion takes longer than all else, and only the first few are shown.
        yield _warning(uri, name, use) if number < _MOST else name


def _warning(uri: StorageURI | None, name: str, use: StorageUse) -> str:
    field = f"{use.place}.parameters"
    if uri is None or name not in use.parameters:
        return f"{field}: unknown key {shown(name)} has no effect; {_suggestion(name, use)}"
    kinds = ", ".join(f"{kind}://" for kind in sorted(use.parameters[name]))
    return f"{field}: {name} has no effect for {uri.kind}://, only for {kinds}; remove it"


def _suggestion(name: str, use: StorageUse) -> str:
    if name in use.elsewhere:
        return use.elsewhere[name]
    plain = {key.lower(): key for key in use.parameters}
    written = "".join(filter(str.isalnum, name[:64])).lower()
    close = difflib.get_close_matches(written, plain, n=1)
    return f"did you mean {plain[close[0]]!r}?" if close else f"known are {', '.join(sorted(use.parameters))}"


def source_uri(storage_uri: str, parameters: Mapping[str, str] | None) -> StorageURI:
    """Return the source that a URI names, at the revision of the parameter ``revision``. Raises ``FetchError``."""
    uri, revision = parse(storage_uri), (parameters or {}).get("revision", "")
    if not revision or not isinstance(uri, HubModel | GitHubRelease):
        return uri
    if "@" not in storage_uri:
        return parse(f"{storage_uri}@{revision}")
    named = uri.revision if isinstance(uri, HubModel) else uri.tag
    if named != revision:
        raise FetchError(
            "InvalidSpec",
            f"{FIELD}: revision is {shown(revision)}, but storageUri names {shown(named)}; write one of them",
        )
    return uri
