"""Containers of Azure's blob storage: where they are, and as whom they are read."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore

from modelyard.models.sources.source import Credentials
from modelyard.models.storage import Bucket, FetchError

HEADERS = {"x-ms-version": "2023-11-03"}
"""Of Azure's protocol; who asks without a version is answered as by the first there was."""
_SIGNED_FOR = timedelta(hours=1)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}\Z")


def open_container(
    uri: Bucket, credentials: Credentials, endpoint: str | None, **options: Any
) -> tuple[AzureStore, str, Callable[[str], str] | None]:
    """The store, the container's address, and what gives the signed address of a blob (``None``: all are public).

    An endpoint whose host does not begin with the account's name has the account in its path.
    """
    base = (endpoint or f"https://{uri.namespace}.blob.core.windows.net").rstrip("/")
    if not (urlsplit(base).hostname or "").startswith(f"{uri.namespace}."):
        base = f"{base}/{uri.namespace}"
    given = _credentials(credentials, ambient=endpoint is None)
    where = f"{base}/{uri.bucket}"
    try:
        store = AzureStore(uri.bucket, account_name=uri.namespace or "", endpoint=base, **given, **options)
    except (BaseError, ValueError):  # What it says shows what it was given.
        raise FetchError(
            "Unauthorized",
            f"{uri}: the credential ({given.get('credential_type')}) cannot be read; copy it to the Secret anew",
        ) from None
    if shared := given.get("sas_key"):  # This signs for a container; no address can be signed with it.
        return store, where, lambda key: f"{where}/{quote(key)}?{shared}"
    return store, where, None if given.get("skip_signature") else _Signer(store)


def _credentials(credentials: Credentials, *, ambient: bool) -> dict[str, Any]:
    """A key, a shared access signature or an application's secret; else, at Azure only, this workload's identity."""
    if key := credentials.get("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"):
        return {"credential_type": "access_key", "account_key": key}
    if shared := credentials.get("AZURE_STORAGE_SAS_TOKEN"):
        return {"credential_type": "sas_token", "sas_key": shared.removeprefix("?")}
    if text := credentials.get("AZURE_STORAGE_CONNECTION_STRING"):  # Of all that it says, the credential alone.
        parts = {name.strip(): value for name, _, value in (part.partition("=") for part in text.split(";"))}
        if key := parts.get("AccountKey"):
            return {"credential_type": "access_key", "account_key": key}
        if shared := parts.get("SharedAccessSignature"):
            return {"credential_type": "sas_token", "sas_key": shared.removeprefix("?")}
    here = Credentials(None, credentials.environ)
    hosts = {"authority_host": host} if (host := here.get("AZURE_AUTHORITY_HOST")) else {}
    if secret := credentials.get("AZURE_CLIENT_SECRET"):
        return {"credential_type": "client_secret", "client_secret": secret, **_application(credentials), **hosts}
    if ambient and (file := here.get("AZURE_FEDERATED_TOKEN_FILE")):
        return {"credential_type": "workload_identity", "federated_token_file": file, **_application(here), **hosts}
    return {"skip_signature": True}


def _application(credentials: Credentials) -> dict[str, str]:
    found = {"tenant_id": credentials.get("AZURE_TENANT_ID"), "client_id": credentials.get("AZURE_CLIENT_ID")}
    for name, value in found.items():
        if value is None or not _NAME.match(value):  # The tenant is part of an address.
            raise FetchError(
                "Unauthorized",
                f"the credentials have no AZURE_{name.upper()} that can be one; put it in the Secret beside"
                " AZURE_CLIENT_SECRET",
            )
    return {name: value for name, value in found.items() if value}


class _Signer:
    """Addresses of blobs, each signed once in a while: with an application's identity Azure is asked for each."""

    def __init__(self, store: AzureStore) -> None:
        self._store = store
        self._signed: dict[str, tuple[float, str]] = {}

    def __call__(self, key: str) -> str:
        if quote(key) != key:  # obstore signs them as they are in an address, Azure reads them as they are.
            raise FetchError(
                "UnsupportedSource",
                f"{key[:200]!r}: names with such characters are read with AZURE_STORAGE_SAS_TOKEN only; put one in the"
                " Secret",
            )
        until, address = self._signed.get(key, (0.0, ""))
        if time.monotonic() >= until:
            address = obstore.sign(self._store, "GET", key, _SIGNED_FOR)
            self._signed[key] = time.monotonic() + _SIGNED_FOR.total_seconds() / 2, address
        return address
