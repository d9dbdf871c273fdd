"""Sources of files: each lists them, pinned to an immutable revision, and reads a range of one."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from modelyard.models.storage import Bucket, FetchError, GitHubRelease, HubModel, StorageURI, unavailable
from modelyard.objects import describe_url_problem

Chunk = bytes | memoryview
"""Some bytes of a file, as they arrived; they hold until the next are asked for."""

MOST_FILES = 200_000
"""Files of one model: they are all in memory for a moment."""


MOST_PAGES = 1000
"""Requests of one listing: a thousand entries each are usual."""
LISTING_BYTES = 128 << 20
"""Bytes of all answers of one listing: they are all in memory for a moment."""


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


class ListingBudget:
    """Limits of one listing, from ``begin`` to ``end``: its pages may be empty, lead to each other, and have no end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counting = False
        self._pages = self._bytes = 0
        self._read: set[str] = set()

    def begin(self) -> None:
        with self._lock:
            self._counting, self._pages, self._bytes = True, 0, 0
            self._read.clear()

    def end(self) -> None:
        with self._lock:
            self._counting = False

    def ask(self, url: str = "") -> None:
        """Count a request; FetchError for one too many, or for a page that was read before."""
        with self._lock:
            if not self._counting:
                return
            self._pages += 1
            if self._pages > MOST_PAGES:
                problem = f"the listing has more than {MOST_PAGES} pages; name a part of it in storageUri"
                raise FetchError("UnsupportedSource", problem)
            if url in self._read:
                problem = f"the listing leads back to {url.partition('?')[0][:200]}, which was read before"
                raise unavailable(f"{problem}; report it to whoever runs the source")

    def answered(self, url: str) -> None:
        with self._lock:
            if self._counting and url:
                self._read.add(url)

    def take(self, size: int) -> None:
        """Count bytes of answers. FetchError for too many."""
        with self._lock:
            self._bytes += size if self._counting else 0
            if self._counting and self._bytes > LISTING_BYTES:
                problem = f"the listing is larger than {LISTING_BYTES} bytes; name a part of it in storageUri"
                raise FetchError("UnsupportedSource", problem)


class ModelSource(Protocol):
    """One model at its source. Both raise ``FetchError``; ``read`` is called from many threads."""

    def list(self) -> Listing: ...

    def read(self, file: SourceFile, start: int, length: int) -> Iterator[Chunk]:
        """These bytes of a file, as it was when it was listed. What ends early is an error."""


_ENDPOINTS = {
    "hf": ("HF_ENDPOINT",),
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "ENDPOINT"),
    "obs": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT",),
}
"""Addresses of sources, by kind: variables of this process, because an administrator decides, not a tenant's Secret."""


class Credentials:
    """Secrets by name: from a folder (a mounted Secret, one file per name), else from the environment."""

    def __init__(self, folder: Path | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self.folder, self.environ = folder, environ

    def values(self) -> list[str]:
        """All secrets of the folder, to keep them out of messages."""
        files = sorted(self.folder.iterdir()) if self.folder is not None and self.folder.is_dir() else []
        return [text for file in files if (text := Credentials(self.folder, {}).get(file.name)) is not None]

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
    style: str | None = None,
    token_key: str = "token",
    parallel: int = 8,
    public: bool = False,
) -> ModelSource:
    """The source of a URI whose files are fetched over the network; with ``public``, over the internet only."""
    endpoint = checked_endpoint(uri, credentials, endpoint, public)
    if isinstance(uri, HubModel):
        from modelyard.models.sources.hub import Hub

        return Hub(uri, endpoint, credentials.get(token_key, "HF_TOKEN", "HF_AUTH_TOKEN"), parallel, public)
    if isinstance(uri, Bucket):
        from modelyard.models.sources.buckets import open_bucket

        return open_bucket(uri, credentials, endpoint, region, style, parallel, public)
    if isinstance(uri, GitHubRelease):
        from modelyard.models.sources.github import GitHub

        return GitHub(uri, endpoint, credentials.get("GITHUB_TOKEN", token_key), parallel, public)
    raise FetchError(
        "UnsupportedSource",
        f"{uri}: this kind is not fetched; copy the model to a bucket (s3://, gs://, az://) or a hub (hf://)",
    )


def checked_endpoint(uri: StorageURI, credentials: Credentials, endpoint: str | None, public: bool) -> str | None:
    """The address that is given, else the one that the environment names for this kind; ``check_host`` refuses some."""
    endpoint = endpoint or Credentials(None, credentials.environ).get(*_ENDPOINTS.get(uri.kind, ()))
    if endpoint is not None:
        check_host(endpoint, public)
    return endpoint


_T = TypeVar("_T")


def bounded(files: Iterable[_T], what: object) -> list[_T]:
    """All of these, of which a source may have any number."""
    found = list(islice(files, MOST_FILES + 1))
    if len(found) > MOST_FILES:
        raise FetchError("UnsupportedSource", f"{what}: more than {MOST_FILES} files; name a part of it in storageUri")
    return found


def check_host(url: str, public: bool = False) -> str:
    """The host of an HTTP address; FetchError where it is none, or where ``check_address`` refuses what it stands for.

    A name can stand for something else a moment later: who connects looks at the address once more. Where a proxy
    connects instead, a name is also refused for what it says, because this machine may not be able to resolve it.
    """
    from modelyard.models.sources.proxies import read_proxy

    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if (problem := describe_url_problem(url)) or not host:
        raise FetchError("UnsupportedSource", f"the address {problem}")
    proxy = read_proxy()
    if proxy is not None and proxy.serves(url):
        _check_name(host, public)
    try:
        found = socket.getaddrinfo(host, port or 443, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return host  # The client says better what is wrong with a name.
    for *_, address in found:
        check_address(str(address[0]), host, public)
    return host


_METADATA = frozenset(map(ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")))
"""Addresses of AWS, Alibaba, Oracle and Azure; the others are link-local."""
_METADATA_NAMES = frozenset(
    ("metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal")
)
"""Names of Google's and of Amazon's."""
_TRANSLATED = IPv6Network("64:ff9b::/96")


def _check_name(host: str, public: bool) -> None:
    from modelyard.models.storage import internal

    name = host.lower().rstrip(".")
    if name in _METADATA_NAMES:
        raise FetchError("UnsupportedSource", f"{host} is a metadata service; name another host")
    try:
        ip_address(name)
    except ValueError:
        if public and internal(name):
            raise FetchError(
                "UnsupportedSource",
                f"{host} is not a public host name; have an administrator allow it by its exact name",
            ) from None


def check_address(text: str, host: str, public: bool) -> None:
    """FetchError for an address of a metadata service, and with ``public`` for one that is not on the internet."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        inner = IPv4Address(int(address) & 0xFFFFFFFF) if address in _TRANSLATED else address.ipv4_mapped
        address = inner or address
    if address.is_link_local or address in _METADATA:
        raise FetchError(
            "UnsupportedSource", f"{host} is a link-local address or a metadata service ({text}); name another host"
        )
    if public and not address.is_global:
        raise FetchError(
            "UnsupportedSource",
            f"{host} is {text}, which is no address of the internet; an administrator allows it by its exact name",
        )
