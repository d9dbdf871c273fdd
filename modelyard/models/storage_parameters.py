"""Parameters of a model's storage: which exist, for which kinds of source, and what a misspelt one may mean. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from modelyard.models.errors import FetchError
from modelyard.models.uri import GitHubRelease, HubModel, StorageURI, parse
from modelyard.objects.documents import few, shown

FETCHED = frozenset({"hf", "s3", "obs", "oci", "gs", "az", "github"})
"""Kinds of source that files are fetched from."""
PARAMETERS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("endpoint", "include", "exclude", "allFormats", "weights"), FETCHED),
    **dict.fromkeys(("secretKey", "token", "revision"), frozenset({"hf", "github"})),
    **dict.fromkeys(("region", "addressingStyle"), frozenset({"s3", "obs", "oci"})),
    "auth": frozenset({"oci"}),
}
"""Each parameter with the kinds of source that it has an effect for."""
_ELSEWHERE = {
    "cache_dir": "the folder is spec.storage.path",
    "storageKey": "the Secret is named in spec.storage.key",
    "auth_type": "did you mean 'auth'?",
}
"""Names that documentation of others has, with the field to use here."""
_MOST = 10
FIELD = "spec.storage.parameters"


def warnings(uri: StorageURI | None, parameters: Mapping[str, str] | None) -> list[str]:
    """Parameters without effect, a sentence each."""
    ineffective = [name for name in sorted(parameters or {}) if not _has_effect(uri, name)]
    texts = [_warning(uri, name) for name in ineffective[:_MOST]]
    return few([*texts, *ineffective[_MOST:]], _MOST)


def _has_effect(uri: StorageURI | None, name: str) -> bool:
    return name in PARAMETERS and (uri is None or uri.kind in PARAMETERS[name])


def _warning(uri: StorageURI | None, name: str) -> str:
    if uri is None or name not in PARAMETERS:
        return f"{FIELD}: unknown key {shown(name)} has no effect; {_suggestion(name)}"
    kinds = ", ".join(f"{kind}://" for kind in sorted(PARAMETERS[name]))
    return f"{FIELD}: {name} has no effect for {uri.kind}://, only for {kinds}; remove it"


def _suggestion(name: str) -> str:
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    plain = {key.lower(): key for key in PARAMETERS}
    written = "".join(filter(str.isalnum, name[:64])).lower()
    close = difflib.get_close_matches(written, plain, n=1)
    return f"did you mean {plain[close[0]]!r}?" if close else f"known are {', '.join(sorted(PARAMETERS))}"


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
