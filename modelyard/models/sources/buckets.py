"""Buckets: S3 and what speaks its protocol (oci, obs, MinIO), Google's, and Azure's containers.

obstore lists them, signs addresses, and writes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import quote

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from modelyard.models.sources import amazon, azure, google
from modelyard.models.sources.guard import guarded
from modelyard.models.sources.http import ERROR_CODE, Http, Secret, of_status
from modelyard.models.sources.source import (
    Chunk,
    Credentials,
    Listing,
    ListingBudget,
    SourceFile,
    bounded,
    checked_endpoint,
)
from modelyard.models.storage import Bucket, FetchError, folders_above, unavailable

_STATUS = re.compile(r"status(?: code)?:? (\d{3})")
SIGNED_FOR = timedelta(hours=1)
_KEYS = "name a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in spec.storage.key"
_CREDENTIALS = {
    "s3": f"{_KEYS}, or at Amazon itself give the machine a role",
    "obs": _KEYS,
    "oci": _KEYS,
    "gs": "name a Secret with GOOGLE_SERVICE_ACCOUNT_KEY in spec.storage.key, or at Google itself give the machine an"
    " identity",
    "az": "name a Secret with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN in spec.storage.key",
}
"""By kind of bucket, what to do where one that is not public was asked by nobody."""


class _Opened(NamedTuple):
    """A store; where it is over HTTP, how an address there is signed, and what is sent along; what was refused."""

    store: S3Store | GCSStore | AzureStore
    where: str
    sign: Callable[[str], str] | None
    headers: dict[str, str]
    secret: Secret
    refused: list[FetchError]
    budget: ListingBudget


def open_bucket(
    uri: Bucket,
    credentials: Credentials,
    endpoint: str | None,
    region: str | None,
    style: str | None,
    parallel: int,
    public: bool,
) -> BucketSource:
    """The source that this URI is."""
    opened = _open(uri, credentials, endpoint, region, style, public)
    return BucketSource(uri, opened, Http(opened.where, opened.secret, parallel, public))


def open_store(
    uri: Bucket, credentials: Credentials, endpoint: str | None, region: str | None, style: str | None, public: bool
) -> BucketObjects:
    """The objects of this URI's bucket, to be written, too; endpoints as those of sources are found and refused."""
    endpoint = checked_endpoint(uri, credentials, endpoint, public)
    opened = _open(uri, credentials, endpoint, region, style, public)
    return BucketObjects(uri, opened.store, opened.refused)


def _open(
    uri: Bucket, credentials: Credentials, endpoint: str | None, region: str | None, style: str | None, public: bool
) -> _Opened:
    try:
        options: Any = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "1h", "user_agent": "modelyard"}
        refused: list[FetchError] = []
        budget = ListingBudget()
        # obstore goes wherever it is sent, and knows nothing of proxies that others have allowed.
        options |= {"proxy_url": guarded(public, refused, budget), "allow_http": (endpoint or "").startswith("http://")}
        retries: Any = {"max_retries": 0}  # Retried by whoever fetches, who knows how patient to be.
        store: S3Store | GCSStore | AzureStore
        sign: Callable[[str], str] | None
        headers: dict[str, str] = {}
        secret: Secret = {}
        if uri.kind == "az":
            store, where, sign = azure.open_container(
                uri, credentials, endpoint, client_options=options, retry_config=retries
            )
            return _Opened(store, where, sign, azure.HEADERS, secret, refused, budget)
        if uri.kind == "gs":
            access = google.sign_in(credentials, endpoint)
            store = GCSStore(uri.bucket, client_options=options, retry_config=retries, **access.options)
            where = f"{(endpoint or f'https://{google.HOST}').rstrip('/')}/{uri.bucket}"
            signs, secret = access.signs, access.identity.headers if access.identity is not None else {}
            if signs and endpoint is not None:
                headers["Host"] = google.HOST  # What obstore signs for, wherever that is.
        else:
            address = amazon.locate(uri, credentials, endpoint, region, style, amazon.ask_region)
            signing = amazon.sign_in(credentials, address)
            signs, where = "skip_signature" not in signing, address.url
            store = S3Store(
                uri.bucket,
                endpoint=address.endpoint,
                region=address.region,
                client_options=options,
                retry_config=retries,
                virtual_hosted_style_request=address.virtual,
                **signing,
            )
        sign = (lambda key: obstore.sign(store, "GET", key, SIGNED_FOR)) if signs else None
        return _Opened(store, where, sign, headers, secret, refused, budget)
    except (BaseError, ValueError, TypeError):  # What it says shows what it was given.
        raise FetchError(
            "Unauthorized",
            f"{uri}: the credentials or parameters cannot be read; copy the credentials to the Secret again, and check"
            " endpoint and region",
        ) from None


class BucketSource:
    """What lies below a prefix. A bucket has no revisions: that of a listing is the state of all its objects."""

    def __init__(self, uri: Bucket, opened: _Opened, http: Http) -> None:
        self.uri, self._http, self._budget, self._store = uri, http, opened.budget, opened.store
        self._sign, self._refused, self._headers = opened.sign, opened.refused, opened.headers

    def list(self) -> Listing:
        """Every object below the prefix, or the one object of that name."""
        prefix = self.uri.prefix.strip("/")
        self._refused.clear()
        self._budget.begin()
        try:
            pages = obstore.list(self._store, prefix=prefix or None, chunk_size=1000)
            found = bounded((one for page in pages for one in page), self.uri)
            if not found and prefix:
                found = [obstore.head(self._store, prefix)]
                prefix = prefix.rpartition("/")[0]
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                raise FetchError("NotFound", f"{self.uri}: there is no such bucket; check storageUri") from error
            found = []
        except (BaseError, OSError, ValueError) as error:
            raise self._explained(_failed(error, str(self.uri), self._refused, self.uri)) from error
        finally:
            self._budget.end()
        skip = len(prefix) + 1 if prefix else 0
        files = tuple(
            SourceFile(one["path"][skip:], one["size"], one["path"], etag=_quoted(one["e_tag"]))
            for one in sorted(found, key=lambda one: one["path"])
        )
        # Consoles make objects of no bytes that stand for folders.
        folders = folders_above(file.name for file in files)
        files = tuple(file for file in files if file.size or file.name not in folders)
        if not files:
            raise FetchError("NothingToFetch", f"{self.uri}: there is no object below this prefix; check storageUri")
        states = json.dumps([(file.name, file.size, file.etag) for file in files])
        # The prefix is no part of what is stored; the bucket and where it was read are.
        source = f"{self.uri.kind} {self._http.base} {prefix}"
        return Listing(source, hashlib.sha256(states.encode()).hexdigest(), files)

    def read(self, file: SourceFile, start: int, length: int) -> Iterator[Chunk]:
        """Read over a signed address, as from other sources, and only while the object is still the one listed."""
        try:
            url = self._sign(file.key) if self._sign else f"{self._http.base}/{quote(file.key)}"
        except (BaseError, OSError, ValueError) as error:
            raise _failed(error, file.key, self._refused, self.uri) from error
        headers = {**self._headers, **({"If-Match": file.etag} if file.etag else {})}
        try:
            yield from self._http.read(url, file.size, start, length, headers, file.etag)
        except FetchError as error:
            if error.reason == "NotFound":
                raise FetchError(
                    "SourceChanged", f"{error}; it was there when it was listed", retryable=True
                ) from error
            raise self._explained(error) from error

    def _explained(self, error: FetchError) -> FetchError:
        if self._http.secret or self._sign or error.reason not in ("Unauthorized", "Forbidden"):
            return error
        problem = str(error).partition("; ")[0]
        return FetchError(error.reason, f"{problem}, and there are no credentials; {_CREDENTIALS[self.uri.kind]}")


class BucketObjects:
    """Objects of a bucket by their key. All raise ``FetchError``."""

    def __init__(self, uri: Bucket, store: S3Store | GCSStore | AzureStore, refused: list[FetchError]) -> None:
        self._uri, self._store, self._refused = uri, store, refused

    def put(self, key: str, body: bytes) -> None:
        with self._explained(key):
            obstore.put(self._store, key, body, use_multipart=False)

    def get(self, key: str, largest: int) -> bytes:
        """What it holds, of so many bytes at most."""
        with self._explained(key):
            found = obstore.get(self._store, key)
            if found.meta["size"] > largest:
                raise FetchError("SourceRefused", f"{self._uri}, {key}: more than {largest} bytes")
            return bytes(found.bytes())

    def keys(self, prefix: str) -> Iterator[str]:
        with self._explained(prefix):
            for page in obstore.list(self._store, prefix=prefix, chunk_size=1000):
                yield from (one["path"] for one in page)

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise FetchError("NotFound", f"{self._uri}: there is no such bucket or object: {key}") from error
        except (BaseError, OSError, ValueError) as error:
            raise _failed(error, f"{self._uri}, {key}", self._refused, self._uri) from error


def _failed(error: Exception, subject: str, refused: list[FetchError], uri: Bucket) -> FetchError:
    """What obstore has met. Its types are few; status and code are in its text."""
    if refused:  # by the guard, which can say no more to obstore than that there is no answer
        last = refused[-1]
        refused.clear()
        return last
    text = str(error)
    if uri.kind == "s3" and amazon.OTHER_REGION.search(text):
        return amazon.other_region(subject, uri, text)
    status = _STATUS.search(text)
    code = found[1] if (found := ERROR_CODE.search(text)) else ""
    if isinstance(error, UnauthenticatedError):
        return of_status(401, subject, code)
    if isinstance(error, PermissionDeniedError):
        return of_status(403, subject, code)
    if status is not None:
        return of_status(int(status[1]), subject, code)
    shown = text.splitlines()[0][:300] if text else type(error).__name__
    return unavailable(f"{subject}: {shown}")


def _quoted(etag: str | None) -> str | None:
    """As a condition has it: Azure's lists have it bare."""
    return etag if etag is None or etag.startswith(('"', "W/")) else f'"{etag}"'
