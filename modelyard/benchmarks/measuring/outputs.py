"""Where results are kept: a folder (a mounted claim), or below a prefix of a bucket; written and read by our own code.

The program's own upload would take its files as they are, with every credential in them. Credentials and private
authorities are found as those of models are (``modelyard.models.sources``), and the same addresses are refused.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from modelyard.benchmarks.records import LARGEST_FILE, MeasureError, Output
from modelyard.models.storage import Bucket, ClaimFolder, FetchError, GitHubRelease, LocalFolder, is_account, parse

MOST = 20_000
"""Files that are looked at below one name."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_ROOM = re.compile(r"\b507\b|StorageFull|QuotaExceeded|InsufficientStorage|EntityTooLarge", re.IGNORECASE)


def checked_name(name: str) -> str:
    """A name that leads nowhere else. Raises ``MeasureError``."""
    if len(name) > 800 or not all(_NAME.fullmatch(part) and ".." not in part for part in name.split("/")):
        raise MeasureError("MeasurementInvalid", f"{name[:100]!r} is no name of a folder; use letters, digits, . _ -")
    return name


def open_output(output: Output, environ: Mapping[str, str] = os.environ) -> ResultStore:
    """The store of an output. Raises ``MeasureError`` where nothing can be written to such a place."""
    if output.path is not None:
        return FolderStore(Path(output.path), output.uri)
    try:
        uri = parse(output.uri)
    except FetchError as error:
        raise MeasureError("OutputUnsupported", f"outputLocation: {error}") from None
    if isinstance(uri, LocalFolder):
        return FolderStore(Path(uri.path), output.uri)
    if isinstance(uri, Bucket):
        return BucketStore(_as_given(uri, output.parameters), output, environ)
    if isinstance(uri, ClaimFolder):
        raise MeasureError("OutputUnsupported", f"outputLocation {uri}: the claim is not mounted in this pod")
    why = "nothing can be written there"
    if isinstance(uri, GitHubRelease):
        why = "the benchmark's program never could upload to releases, and a release is no place for many small files"
    raise MeasureError(
        "OutputUnsupported", f"outputLocation {uri}: {why}; write s3://, oci://, gs://, az:// or pvc:// instead"
    )


def _as_given(uri: Bucket, parameters: Mapping[str, str]) -> Bucket:
    """The bucket with what parameters say before the URI: a region of S3, an account of Azure."""
    if uri.kind in ("s3", "obs") and (region := parameters.get("aws_region")):
        return replace(uri, region=region)
    if uri.kind == "az" and (account := parameters.get("azure_account_name")):
        if not is_account(account):
            raise MeasureError(
                "OutputUnsupported",
                f"outputLocation.parameters: azure_account_name {account[:50]!r} is none; write 3 to 24 of a-z, 0-9",
            )
        return replace(uri, namespace=account)
    return uri


class FolderStore:
    """Files below a folder; ``uri`` is what people call it."""

    def __init__(self, folder: Path, uri: str = "") -> None:
        self._folder, self._uri = folder, uri

    def _called(self, name: str) -> str:
        return f"{self._uri}, {name}" if self._uri else str(self._folder / name)

    def write(self, name: str, body: bytes) -> None:
        """Through a new file beside it."""
        target = self._folder / checked_name(name)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
        with _disk(self._called(name)):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with temporary.open("xb") as opened:
                    opened.write(body)
                    opened.flush()
                    os.fsync(opened.fileno())
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)

    def read(self, name: str) -> bytes:
        """A file of bounded size."""
        path = self._folder / checked_name(name)
        with _disk(self._called(name)):
            if path.stat().st_size > LARGEST_FILE:
                raise MeasureError("ResultTooLarge", f"{self._called(name)}: more than {LARGEST_FILE} bytes")
            return path.read_bytes()

    def names(self, below: str) -> list[str]:
        """Hidden ones are none."""
        top = self._folder / checked_name(below)
        with _disk(self._called(below)):
            found = (path for path in top.rglob("*") if path.is_file() and not path.name.startswith("."))
            return sorted(path.relative_to(self._folder).as_posix() for path in islice(found, MOST))


@contextmanager
def _disk(what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise MeasureError("OutputNotFound", f"output {what}: there is no such file or folder") from None
    except OSError as error:
        why = f"output {what}: {error.strerror or error}"
        if error.errno in _FULL:
            raise MeasureError("OutputFull", f"{why}; make room there, or name another outputLocation") from None
        if error.errno in _DENIED:
            raise MeasureError("OutputForbidden", f"{why}; let user {os.getuid()} write there") from None
        raise MeasureError("OutputUnavailable", why, retryable=True) from None


class BucketStore:
    """Objects below a prefix."""

    def __init__(self, uri: Bucket, output: Output, environ: Mapping[str, str]) -> None:
        from modelyard.models.sources import Credentials, open_store

        self._uri, given = uri, output.parameters
        try:
            self._store = open_store(
                uri,
                Credentials(None, environ),
                given.get("endpoint"),
                given.get("aws_region") or given.get("region"),
                given.get("addressingStyle"),
                output.public,
            )
        except FetchError as error:
            raise self._error(error) from None

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self._uri.prefix.strip("/"), checked_name(name)) if part)

    def write(self, name: str, body: bytes) -> None:
        """One object; a store has it whole or not at all."""
        with self._explained(name):
            self._store.put(self._key(name), body)

    def read(self, name: str) -> bytes:
        """An object of bounded size."""
        with self._explained(name):
            return self._store.get(self._key(name), LARGEST_FILE)

    def names(self, below: str) -> list[str]:
        """Their names below the place of results, not the bucket's keys."""
        skip = len(self._key("x")) - 1
        with self._explained(below):
            return sorted(key[skip:] for key in islice(self._store.keys(f"{self._key(below)}/"), MOST))

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except FetchError as error:
            raise self._error(error, name) from None

    def _error(self, error: FetchError, name: str = "") -> MeasureError:
        message = f"output {self._uri}{f', {name}' if name else ''}: {str(error)[:600]}"
        what = message.partition("; ")[0][:400]  # Its remedy is for models.
        if _NO_ROOM.search(str(error)):
            return MeasureError("OutputFull", f"{what}; make room there, or name another outputLocation")
        if error.reason in ("Unauthorized", "Forbidden"):
            remedy = "give credentials that may write, list and read there in the Secret that outputLocation.key names"
            return MeasureError("OutputForbidden", f"{what}; {remedy}")
        if error.reason == "NotFound":
            return MeasureError("OutputNotFound", f"{what}; create the bucket, or correct outputLocation")
        reason = "OutputUnavailable" if error.retryable else "OutputUnsupported"
        return MeasureError(reason, message, retryable=error.retryable)


ResultStore: TypeAlias = FolderStore | BucketStore
"""Files by name (parts with ``/`` between) below one place. All raise ``MeasureError``."""
