"""Buckets: S3 and what speaks its protocol (oci, OBS, MinIO), and Google's. obstore lists them and signs addresses."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import obstore
import urllib3
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import GCSStore, S3Store

from modelyard.models.errors import FetchError
from modelyard.models.sources import Chunk, Credentials, Listing, SourceFile, bounded
from modelyard.models.sources.guard import guarded
from modelyard.models.sources.http import ERROR_CODE, Http, of_status
from modelyard.models.uri import Bucket, is_region

_STATUS = re.compile(r"status(?: code)?:? (\d{3})")
SIGNED_FOR = timedelta(hours=1)


def open_bucket(
    uri: Bucket, credentials: Credentials, endpoint: str | None, region: str | None, parallel: int, public: bool
) -> BucketSource:
    """The store of this URI, with the credentials there are, else anonymous."""
    options: Any = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "1h", "user_agent": "modelyard"}
    refused: list[FetchError] = []
    if endpoint is not None:  # obstore goes wherever it is sent.
        options |= {"proxy_url": guarded(public, refused), "allow_http": endpoint.startswith("http://")}
    retries: Any = {"max_retries": 0}  # Retried by whoever fetches, who knows how patient to be.
    store: S3Store | GCSStore
    if uri.kind == "gs":
        config = _google(credentials, endpoint)
        store = GCSStore(uri.bucket, config=config, client_options=options, retry_config=retries)
        where = f"{(endpoint or 'https://storage.googleapis.com').rstrip('/')}/{uri.bucket}"
        signs = "skip_signature" not in config
    else:
        region = uri.region or region
        if uri.kind == "s3" or endpoint is not None:
            region = region or credentials.get("AWS_REGION", "AWS_DEFAULT_REGION")
        if region is not None and not is_region(region):  # It is part of the host's name.
            raise FetchError("InvalidURI", f"{uri}: {region[:100]!r} is no region; write one such as eu-west-1")
        if uri.kind == "oci" and endpoint is None:
            if region is None:
                raise FetchError(
                    "InvalidURI", f"{uri}: no region; write oci://n/NAMESPACE@REGION/b/…, or give the parameter region"
                )
            endpoint = f"https://{uri.namespace}.compat.objectstorage.{region}.oraclecloud.com"
        signing = _amazon(credentials, ambient=endpoint is None)
        signs = "skip_signature" not in signing
        region = region or (_region_of(uri.bucket) if endpoint is None else "us-east-1")
        where = f"{(endpoint or f'https://s3.{region}.amazonaws.com').rstrip('/')}/{uri.bucket}"
        store = S3Store(
            uri.bucket,
            endpoint=endpoint,
            region=region,
            client_options=options,
            retry_config=retries,
            virtual_hosted_style_request=endpoint is None and "." not in uri.bucket,
            **signing,
        )
    return BucketSource(uri, store, Http(where, {}, parallel, public), signs, refused)


def _amazon(credentials: Credentials, *, ambient: bool) -> dict[str, Any]:
    """Keys as given; else, at AWS only, roles and identities of this machine (others must not be shown its tokens)."""
    key = credentials.get("AWS_ACCESS_KEY_ID", "ACCESS_KEY")
    secret = credentials.get("AWS_SECRET_ACCESS_KEY", "SECRET_KEY")
    if (key is None) != (secret is None):
        missing = "AWS_ACCESS_KEY_ID" if key is None else "AWS_SECRET_ACCESS_KEY"
        raise FetchError("Unauthorized", f"the credentials have no {missing}; put both keys in the Secret, or neither")
    if key is not None and secret is not None:
        token = credentials.get("AWS_SESSION_TOKEN")
        return {"access_key_id": key, "secret_access_key": secret, **({"session_token": token} if token else {})}
    if ambient and credentials.environ.get("AWS_EC2_METADATA_DISABLED") != "true":
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider

        session = boto3.Session()
        if session.get_credentials() is not None:
            return {"credential_provider": Boto3CredentialProvider(session)}
    return {"skip_signature": True}


def _google(credentials: Credentials, endpoint: str | None) -> Any:
    config: dict[str, Any] = {"base_url": endpoint} if endpoint else {}
    key = credentials.get("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS")
    if key is None:
        return {**config, "skip_signature": True}
    if key == credentials.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return {**config, "application_credentials": key}
    try:
        account = json.loads(key)
        given = {name: str(account[name]) for name in ("client_email", "private_key", "private_key_id")}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FetchError(
            "Unauthorized",
            "GOOGLE_SERVICE_ACCOUNT_KEY is no key of a service account; put the JSON file as Google gives it"
            " in the Secret",
        ) from None
    # Of all that a key may say, who it is: not where to go with it.
    return {**config, "service_account_key": json.dumps({"type": "service_account", **given})}


def _region_of(bucket: str) -> str:
    """The region of a bucket at AWS, which tells it to anybody; us-east-1 where it does not."""
    try:
        answer = urllib3.request(
            "HEAD", f"https://s3.amazonaws.com/{bucket}", timeout=10, retries=False, redirect=False
        )
    except urllib3.exceptions.HTTPError:
        return "us-east-1"
    return answer.headers.get("x-amz-bucket-region", "us-east-1")


class BucketSource:
    """What lies below a prefix. A bucket has no revisions: that of a listing is the state of all its objects."""

    def __init__(
        self, uri: Bucket, store: S3Store | GCSStore, http: Http, signs: bool, refused: list[FetchError]
    ) -> None:
        self.uri, self._store, self._http, self._signs, self._refused = uri, store, http, signs, refused

    def list(self) -> Listing:
        """Every object below the prefix, or the one object of that name."""
        prefix = self.uri.prefix.strip("/")
        try:
            pages = obstore.list(self._store, prefix=prefix or None, chunk_size=1000)
            found = bounded((one for page in pages for one in page), self.uri)
            if not found and prefix:
                found = [obstore.head(self._store, prefix)]
                prefix = prefix.rpartition("/")[0]
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise FetchError("NotFound", f"{self.uri}: there is no such bucket; check storageUri") from error
            found = []
        except (BaseError, OSError, ValueError) as error:
            raise self._error(error, str(self.uri)) from error
        skip = len(prefix) + 1 if prefix else 0
        files = tuple(
            SourceFile(one["path"][skip:], one["size"], one["path"], etag=one["e_tag"])
            for one in sorted(found, key=lambda one: one["path"])
        )
        # Consoles make objects of no bytes that stand for folders.
        folders = {
            "/".join(parts[:n]) for file in files for parts in [file.name.split("/")] for n in range(1, len(parts))
        }
        files = tuple(file for file in files if file.size or file.name not in folders)
        if not files:
            raise FetchError("NothingToFetch", f"{self.uri}: there is no object below this prefix; check storageUri")
        states = json.dumps([(file.name, file.size, file.etag) for file in files])
        # The prefix is no part of what is stored; the bucket and where it was read are.
        source = f"{self.uri.kind} {self._http.base} {prefix}"
        return Listing(source, hashlib.sha256(states.encode()).hexdigest(), files)

    def read(self, file: SourceFile, start: int, length: int) -> Iterator[Chunk]:
        """By range, and only while the object is still the one that was listed.

        Over an address that is signed here: statuses, waits and interruptions are then those of every other source.
        """
        try:
            url = f"{self._http.base}/{quote(file.key)}"
            if self._signs:
                url = obstore.sign(self._store, "GET", file.key, SIGNED_FOR)
        except (BaseError, OSError, ValueError) as error:
            raise self._error(error, file.key) from error
        try:
            yield from self._http.read(url, file.size, start, length, {"If-Match": file.etag} if file.etag else {})
        except FetchError as error:
            if error.reason == "NotFound":
                raise FetchError(
                    "SourceChanged", f"{error}; it was there when it was listed", retryable=True
                ) from error
            raise

    def _error(self, error: Exception, what: str) -> FetchError:
        """What obstore has met. Its types are few; status and code are in its text."""
        if self._refused:
            return self._refused[0]
        text = str(error)
        status = _STATUS.search(text)
        code = found[1] if (found := ERROR_CODE.search(text)) else ""
        if isinstance(error, UnauthenticatedError):
            return of_status(401, what, code)
        if isinstance(error, PermissionDeniedError):
            return of_status(403, what, code)
        if status is not None:
            return of_status(int(status[1]), what, code)
        shown = text.splitlines()[0][:300] if text else type(error).__name__
        return FetchError("SourceUnavailable", f"{what}: {shown}", retryable=True)
