"""Programs from their publishers' own releases, pinned; see `obtain`.

Checksums: Kubernetes' are those of its change log (CHANGELOG/CHANGELOG-1.35.md, "Downloads for v1.35.4"), etcd's those
of the release's SHA256SUMS. Prometheus's archive is checked against the `sha256sums.txt` that its publisher puts
beside it, fetched over HTTPS in the same run: that finds a damaged download, but trusts the publisher's site.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from urllib3 import BaseHTTPResponse, Retry
from urllib3.exceptions import HTTPError

from modelyard.local.binaries import store
from modelyard.local.binaries.store import Stages
from modelyard.local.paths import BinaryNotFound
from modelyard.models.sources import CHUNK, HttpPool
from modelyard.models.storage import FetchError

_PROBE_TIMEOUT = 3.0
_READ_TIMEOUT = 60.0
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Unreachable(Exception):
    """A publisher's site does not answer from this machine."""


@dataclass(frozen=True)
class Release:
    """One archive of one publisher. `{arch}` stands for amd64 or arm64."""

    name: str
    version: str
    url: str
    members: dict[str, str]
    """Path inside the archive of each program."""
    algorithm: str
    checksums: dict[str, str]
    """By architecture; empty: to be read from `checksum_file`."""
    checksum_file: str = ""


_KUBERNETES = "1.35.4"
_ETCD = "3.6.5"
_PROMETHEUS = "3.5.0"

RELEASES = (
    Release(
        "Kubernetes",
        _KUBERNETES,
        f"https://dl.k8s.io/v{_KUBERNETES}/kubernetes-server-linux-{{arch}}.tar.gz",
        {
            name: f"kubernetes/server/bin/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
        },
        "sha512",
        {
            "amd64": "7454c2d9023de3230972e965e1e2a587a291e2a1abee703bb0737057e1646b23"
            "ebac538b93dd778e93579e3c293dc1fa8d002e6848ad5ebc01598bc47358fe44",
            "arm64": "67187a2fe780be7816f9d10e082ed02cbba306bab379980280d00ba4c4017ff5"
            "3c50cd2ff81d248c91ddcc064276b8760e17c73a1a7da1d35067a6fc0ffbdc88",
        },
    ),
    Release(
        "etcd",
        _ETCD,
        f"https://github.com/etcd-io/etcd/releases/download/v{_ETCD}/etcd-v{_ETCD}-linux-{{arch}}.tar.gz",
        {"etcd": f"etcd-v{_ETCD}-linux-{{arch}}/etcd"},
        "sha256",
        {
            "amd64": "66bad39ed920f6fc15fd74adcb8bfd38ba9a6412f8c7852d09eb11670e88cac3",
            "arm64": "7010161787077b07de29b15b76825ceacbbcedcb77fe2e6832f509be102cab6b",
        },
    ),
    Release(
        "Prometheus",
        _PROMETHEUS,
        f"https://github.com/prometheus/prometheus/releases/download/v{_PROMETHEUS}/"
        f"prometheus-{_PROMETHEUS}.linux-{{arch}}.tar.gz",
        {name: f"prometheus-{_PROMETHEUS}.linux-{{arch}}/{name}" for name in ("prometheus", "promtool")},
        "sha256",
        {},
        f"https://github.com/prometheus/prometheus/releases/download/v{_PROMETHEUS}/sha256sums.txt",
    ),
)


def obtain(names: Iterable[str], progress: Callable[[str], None], releases: tuple[Release, ...] = RELEASES) -> None:
    """Put programs into the cache. The caller holds the cache's lock.

    Raises `Unreachable`: a site does not answer within 3 s, or breaks off; `BinaryNotFound`: no release for this
    architecture, or an archive has another checksum than published.
    """
    wanted = set(names)
    architecture = _ARCHITECTURES.get(platform.machine())
    if architecture is None:
        raise BinaryNotFound(f"no releases are pinned for the architecture {platform.machine()}")
    needed = [release for release in releases if wanted & set(release.members)]
    for release in needed:
        # Asked quickly first: a machine without internet shall not wait.
        with _opened(release.url.format(arch=architecture), method="HEAD", timeout=_PROBE_TIMEOUT):
            pass
    stages = Stages(progress, len(needed))
    with store.scratch() as scratch:
        for release in needed:
            url = release.url.format(arch=architecture)
            archive = scratch / url.rpartition("/")[2]
            with stages.stage(f"downloading {release.name} {release.version}"):
                _download(url, archive, _checksum(release, architecture), release.algorithm)
            for name in sorted(wanted & set(release.members)):
                program = scratch / name
                _extract(archive, release.members[name].format(arch=architecture), program)
                store.install(name, program, url)


@contextmanager
def _opened(url: str, *, method: str = "GET", timeout: float = _READ_TIMEOUT) -> Iterator[BaseHTTPResponse]:
    """What a site answers. Raises `Unreachable`, also when it breaks off."""
    try:
        pool = HttpPool(public=False, connect=timeout, read=timeout)
        with pool.request(method, url, retries=Retry(5, connect=0, read=0), preload_content=False) as answer:
            if answer.status != 200:
                raise Unreachable(f"{url}: HTTP {answer.status}")
            yield answer
    except (HTTPError, FetchError, OSError) as error:
        raise Unreachable(f"{url}: {error}") from error


def _checksum(release: Release, architecture: str) -> str:
    if release.checksums:
        return release.checksums[architecture]
    name = release.url.format(arch=architecture).rpartition("/")[2]
    with _opened(release.checksum_file) as answer:
        text = answer.read(CHUNK).decode("utf-8", "replace")
    found = re.search(rf"(?m)^([0-9a-f]{{64}})\s+\*?{re.escape(name)}$", text)
    if found is None:
        raise BinaryNotFound(f"{release.checksum_file} has no checksum of {name}")
    return found[1]


def _download(url: str, target: Path, checksum: str, algorithm: str) -> None:
    digest = hashlib.new(algorithm)
    with _opened(url) as answer, target.open("wb") as stream:
        while chunk := answer.read(CHUNK):
            digest.update(chunk)
            stream.write(chunk)
    if digest.hexdigest() != checksum:
        raise BinaryNotFound(
            f"{url} has the {algorithm} {digest.hexdigest()}, not the published {checksum}: the download is damaged or "
            "not what its publisher released; nothing of it was used"
        )


def _extract(archive: Path, member: str, target: Path) -> None:
    with tarfile.open(archive) as opened:
        try:
            source = opened.extractfile(member)
        except KeyError:
            source = None
        if source is None:
            raise BinaryNotFound(f"{archive.name} holds no {member}")
        with source, target.open("wb") as stream:
            shutil.copyfileobj(source, stream, CHUNK)
