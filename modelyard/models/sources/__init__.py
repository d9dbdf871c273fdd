"""Where files come from: every source lists them, pinned to an immutable revision, and reads a range of one."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from modelyard.models.errors import FetchError
from modelyard.models.uri import Bucket, GitHubRelease, HubModel, StorageURI

Chunk = bytes | memoryview
"""Some bytes of a file, as they arrived."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as its source lists it. ``name`` is that within the model and is not to be trusted; ``key`` the source's.

    ``sha256`` and ``git_sha1`` (a git blob's id) are true checksums where the source has one. ``etag`` only tells one
    state of an object from another.
    """

    name: str
    size: int
    key: str
    etag: str | None = None
    sha256: str | None = None
    git_sha1: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a model at one revision. ``source`` names repository or prefix, and the endpoint it was read at."""

    source: str
    revision: str
    files: tuple[SourceFile, ...]


class RangesIgnored(FetchError):
    """The server answers with the whole file where a part of it was asked for."""

    def __init__(self, where: str) -> None:
        super().__init__("SourceUnavailable", f"{where} ignores byte ranges", retryable=True)


class ModelSource(Protocol):
    """One model at its source. Both raise ``FetchError``; ``read`` is called from many threads."""

    def list(self) -> Listing:
        """What there is, now."""

    def read(self, file: SourceFile, start: int, length: int) -> Iterator[Chunk]:
        """These bytes of a file, as it was when it was listed. What ends early is an error."""


_ENDPOINTS = {
    "hf": ("HF_ENDPOINT",),
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "ENDPOINT"),
}
"""Where a source is, by kind, where no option says so."""


class Credentials:
    """Secrets by name: from a folder (a mounted Secret, one file per name), else from the environment."""

    def __init__(self, folder: Path | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self.folder, self.environ = folder, environ

    def get(self, *names: str) -> str | None:
        """The first of these that is there and not empty."""
        for name in names:
            if "/" in name:
                continue  # Names of a model's parameters: they lead nowhere else.
            file = self.folder / name if self.folder else None
            if file is not None and file.is_file():
                with file.open(encoding="utf-8", errors="replace") as opened:
                    text = opened.read(65536).strip()
            else:
                text = self.environ.get(name, "").strip()
            if text:
                return text
        return None


def open_source(
    uri: StorageURI,
    credentials: Credentials,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    token_key: str = "token",
    parallel: int = 8,
) -> ModelSource:
    """The source of a URI whose files are fetched over the network."""
    endpoint = endpoint or credentials.get(*_ENDPOINTS.get(uri.kind, ()))
    if endpoint is not None:
        check_host(endpoint)
    if isinstance(uri, HubModel):
        from modelyard.models.sources.hub import Hub

        return Hub(uri, endpoint, credentials.get(token_key, "HF_TOKEN", "HF_AUTH_TOKEN"), parallel)
    if isinstance(uri, Bucket):
        from modelyard.models.sources.buckets import open_bucket

        return open_bucket(uri, credentials, endpoint, region, parallel)
    if isinstance(uri, GitHubRelease):
        from modelyard.models.sources.github import GitHub

        return GitHub(uri, endpoint, credentials.get("GITHUB_TOKEN", token_key), parallel)
    raise FetchError(
        "UnsupportedSource",
        f"{uri}: this kind is not fetched; copy the model to a bucket (s3://, gs://) or a hub (hf://)",
    )


def check_host(url: str) -> str:
    """The host of an HTTP address; FetchError where it is none, or one of the node itself (metadata services)."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise FetchError("UnsupportedSource", f"{url[:200]!r} is no address; write http://host or https://host")
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except OSError:
        return parts.hostname  # The client says better what is wrong with a name.
    for *_, address in found:
        if ipaddress.ip_address(str(address[0]).partition("%")[0]).is_link_local:
            raise FetchError(
                "UnsupportedSource",
                f"{parts.hostname} is a link-local address (metadata services are); name another host",
            )
    return parts.hostname
