"""Access to Google's buckets.

A key of a service account signs addresses. Without a key, this machine's identity is used, but only at Google itself.
"""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import urllib3

from modelyard.models.sources.http import TOKEN_LIMIT
from modelyard.models.sources.source import Credentials
from modelyard.models.storage import FetchError, unavailable

HOST = "storage.googleapis.com"
_METADATA_HOST = "metadata.google.internal"
_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"
_MARGIN = 120.0
"""Seconds before its end from which a token is not used any more."""


@dataclass(frozen=True, slots=True)
class GoogleAccess:
    """Options of a store, and how objects are read: by signed address, with this machine's token, or anonymously."""

    options: dict[str, Any]
    signs: bool = False
    identity: MachineIdentity | None = None


class MachineIdentity:
    """Tokens of the service account that an instance, or a pod with workload identity, has at Google."""

    def __init__(self, host: str) -> None:
        self._url = f"http://{host}{_TOKEN}"
        self._lock = threading.Lock()
        self._token, self._until = "", -math.inf

    def token(self) -> tuple[str, float]:
        """A token and the moment (monotonic seconds) until which it is used. Raises FetchError."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._token, self._until = self._ask()
            return self._token, self._until

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token()[0]}"}

    def credential(self) -> dict[str, Any]:
        token, until = self.token()
        left = until - time.monotonic() + _MARGIN / 2
        return {"token": token, "expires_at": datetime.now(UTC) + timedelta(seconds=left)}

    def _ask(self) -> tuple[str, float]:
        """Ask the metadata service, which is not one of the hosts that a source may name."""
        try:
            answer = urllib3.request(
                "GET",
                self._url,
                headers={"Metadata-Flavor": "Google"},
                timeout=urllib3.Timeout(connect=2, read=5),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            body = json.loads(answer.read(TOKEN_LIMIT)) if answer.status == 200 else {}
            token, seconds = str(body["access_token"]), float(body["expires_in"])
        except (urllib3.exceptions.HTTPError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise unavailable(f"cannot get a token of this machine's Google identity: {str(error)[:200]}") from error
        seconds = min(max(seconds, 0.0), 86_400.0)
        return token, time.monotonic() + max(seconds / 2, seconds - _MARGIN)


def sign_in(credentials: Credentials, endpoint: str | None) -> GoogleAccess:
    """Access with the key as given; else at Google itself with this machine's identity, where it has one; else none."""
    config: dict[str, Any] = {"base_url": endpoint} if endpoint else {}
    key = credentials.get("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS")
    if key is None:
        identity = MachineIdentity(credentials.environ.get("GCE_METADATA_HOST") or _METADATA_HOST)
        try:
            if endpoint is None and identity.token():
                return GoogleAccess({"config": config, "credential_provider": identity.credential}, identity=identity)
        except FetchError:
            pass  # not a machine at Google, or one without an identity
        return GoogleAccess({"config": {**config, "skip_signature": True}})
    if key == credentials.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return GoogleAccess({"config": {**config, "application_credentials": key}}, signs=True)
    try:
        account = json.loads(key)
        given = {name: str(account[name]) for name in ("client_email", "private_key", "private_key_id")}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FetchError(
            "Unauthorized",
            "GOOGLE_SERVICE_ACCOUNT_KEY is no key of a service account; put the JSON file as Google gives it"
            " in the Secret",
        ) from None
    # Only the account of a key is used, not the addresses in it.
    config |= {"service_account_key": json.dumps({"type": "service_account", **given})}
    return GoogleAccess({"config": config}, signs=True)
