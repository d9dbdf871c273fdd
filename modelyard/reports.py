"""Where reports go: a folder of this machine, or a prefix of a bucket (``s3://bucket/prefix``).

A folder appears whole or not at all. A bucket knows no such thing: there the index of a report goes before its first
file is replaced and comes after the last, so that whoever finds an index finds the report that belongs to it. Address,
region and credentials are boto3's own business (``AWS_ENDPOINT_URL``, ``AWS_REGION``, its chain of credentials).
"""

from __future__ import annotations

import mimetypes
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

S3 = "s3://"
_PLACE = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>.*))?", re.ASCII)
MAX_PREFIX = 900
"""Characters of a prefix; a key may have 1,024 bytes."""
_ABSENT = {"404", "NoSuchBucket"}
_REFUSED = {"401", "403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
_ELSEWHERE = {"301", "307", "400", "PermanentRedirect", "AuthorizationHeaderMalformed"}


class OutputError(ValueError):
    """A report cannot be put there; the message says why and what to do."""


def place(text: str) -> str:
    """The text, where a report can be put there. Raises ``ValueError``."""
    if "://" in text:
        _bucket(text)
    return text


def within(out: str, name: str) -> str:
    """The place of this name in a place."""
    return f"{out.rstrip('/')}/{name}"


def link(out: str) -> str:
    """A URI for people."""
    return out if out.startswith(S3) else Path(out).resolve().as_uri()


def check(out: str, index: str) -> None:
    """Raises ``OutputError`` when a report cannot be put there, as far as that can be known without writing.

    A folder must be new, empty, or hold an older report (``index`` is there); a bucket must be there to be asked.
    """
    if out.startswith(S3):
        bucket, _ = _bucket(out)
        with _explained(out):
            client = _client()
        with _explained(out, lenient=True):
            client.head_bucket(Bucket=bucket)
        return
    folder = Path(out)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise OutputError(f"--out {folder}: is a file; give a folder")
    if any(folder.iterdir()) and not (folder / index).exists():
        raise OutputError(f"--out {folder}: holds something else than a report; give an empty or a new folder")


@contextmanager
def written(out: str, index: str) -> Iterator[Path]:
    """Yield a folder that replaces the report at ``out`` at the end; ``index`` is its file. Raises ``OutputError``."""
    if out.startswith(S3):
        with tempfile.TemporaryDirectory(prefix="modelyard-report-") as name:
            yield Path(name)
            _upload(Path(name), out, index)
        return
    check(out, index)
    target = Path(out).resolve()
    temporary = _beside(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        _put(temporary, target)
    except OSError as error:
        raise OutputError(f"--out {out}: {error.strerror or error}; give a folder that can be written") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put(temporary: Path, target: Path) -> None:
    """Move the new folder to its place; what was there goes only after."""
    if not target.exists():
        temporary.rename(target)
        return
    old = _beside(target)
    try:
        target.rename(old)
        temporary.rename(target)
    finally:
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(target)


def _beside(target: Path) -> Path:
    """A name that nothing has yet. Known before there is anything under it, whatever comes in between."""
    return target.with_name(f".{target.name}.{secrets.token_hex(6)}")


def _bucket(out: str) -> tuple[str, str]:
    found = _PLACE.fullmatch(out)
    prefix = (found["prefix"] or "").strip("/") if found else ""
    parts = prefix.split("/") if prefix else []
    if found is None or len(prefix) > MAX_PREFIX or not prefix.isprintable() or {"", ".", ".."} & set(parts):
        raise OutputError(f"{out[:200]!r}: give a folder, or s3://BUCKET/PREFIX")
    return found["bucket"], f"{prefix}/" if prefix else ""


def _client() -> Any:
    import boto3
    from botocore.config import Config

    return boto3.Session().client(
        "s3", config=Config(connect_timeout=5, read_timeout=60, retries={"total_max_attempts": 3})
    )


def _upload(folder: Path, out: str, index: str) -> None:
    bucket, prefix = _bucket(out)
    with _explained(out):
        client = _client()
        client.delete_object(Bucket=bucket, Key=prefix + index)
        for path in sorted(folder.iterdir(), key=lambda path: (path.name == index, path.name)):
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            with path.open("rb") as body:
                client.put_object(Bucket=bucket, Key=prefix + path.name, Body=body, ContentType=kind)


@contextmanager
def _explained(out: str, lenient: bool = False) -> Iterator[None]:
    """Errors of boto3 as ours. ``lenient``: who may write need not be allowed to ask for the bucket."""
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectionError,
        CredentialRetrievalError,
        HTTPClientError,
        NoCredentialsError,
        NoRegionError,
        PartialCredentialsError,
        ProfileNotFound,
    )

    bucket = _bucket(out)[0]
    try:
        yield
    except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, ProfileNotFound) as error:
        remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or give the pod's account a role"
        raise OutputError(f"--out {out}: no credentials for bucket {bucket} ({error}); {remedy}") from error
    except (ConnectionError, HTTPClientError) as error:
        remedy = "correct AWS_ENDPOINT_URL (unset: Amazon's own) or the way there"
        raise OutputError(f"--out {out}: bucket {bucket} cannot be reached ({error}); {remedy}") from error
    except NoRegionError as error:
        raise OutputError(f"--out {out}: which region is bucket {bucket} in? Set AWS_REGION") from error
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _REFUSED and lenient:
            return
        if code in _ABSENT:
            why, remedy = "does not exist", "create it, or correct the name or AWS_ENDPOINT_URL"
        elif code in _REFUSED:
            why = f"refuses to be written ({code})"
            remedy = "allow these credentials s3:PutObject and s3:DeleteObject there, or use others"
        elif code in _ELSEWHERE:
            why, remedy = f"answers {code}", "set AWS_REGION to the region it is in"
        else:
            why, remedy = f"answers: {error}", "try again, or another place"
        raise OutputError(f"--out {out}: bucket {bucket} {why}; {remedy}") from error
    except (BotoCoreError, ValueError) as error:  # the last: an address that is none
        raise OutputError(f"--out {out}: bucket {bucket}: {error}") from error
