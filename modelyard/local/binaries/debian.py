"""Programs from Debian 12: etcd and Prometheus from its packages, Kubernetes compiled from its source; see `obtain`.

Works as root or not, installs nothing, and needs nothing beyond what every Debian has (APT and dpkg-deb).
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from modelyard.local.binaries import kubernetes_build, store
from modelyard.local.binaries.apt import Apt
from modelyard.local.binaries.store import Stages
from modelyard.local.paths import BinaryNotFound

_PACKAGED = {"etcd": ("etcd-server", "usr/bin/etcd"), "prometheus": ("prometheus", "usr/bin/prometheus")}
_GO_PACKAGES = ("golang-1.19-go", "golang-1.19-src")
_REFLECT2_PACKAGE = "golang-github-modern-go-reflect2-dev"
_REFLECT2 = "usr/share/gocode/src/github.com/modern-go/reflect2"
_SPACE_BUILD = 3 * 1024**3
_SPACE_PACKAGES = 500 * 1024**2


def obtain(names: Iterable[str], progress: Callable[[str], None]) -> None:
    """Put programs into the cache. The caller holds the cache's lock.

    Raises `BinaryNotFound`: this is no Debian 12, or a step failed; the message says which.
    """
    wanted = list(names)
    packaged = [name for name in wanted if name in _PACKAGED]
    compiled = [name for name in kubernetes_build.PROGRAMS if name in wanted]
    unknown = set(wanted) - set(packaged) - set(compiled)
    if unknown:
        raise BinaryNotFound(f"Debian has no source for {', '.join(sorted(unknown))}")
    with store.scratch() as scratch:
        _check_space(scratch, _SPACE_BUILD if compiled else _SPACE_PACKAGES)
        total = 1 + len(packaged) + (1 + kubernetes_build.stage_count(compiled) if compiled else 0)
        stages = Stages(progress, total)
        apt = Apt(scratch / "apt")
        with stages.stage("reading Debian's package lists"):
            apt.update()
        for name in packaged:
            package, path = _PACKAGED[name]
            with stages.stage(f"fetching {package}"):
                unpacked = apt.unpack([package], scratch / package)
                store.install(name, unpacked / path, f"Debian package {package}, {platform.machine()}")
        if compiled:
            _compile(compiled, apt, scratch, stages)


def _compile(programs: list[str], apt: Apt, scratch: Path, stages: Stages) -> None:
    with stages.stage("fetching Kubernetes' source and the Go compiler"):
        version = apt.source_version("kubernetes", kubernetes_build.SOURCE_PREFIX)
        files = apt.download_source("kubernetes", version, scratch / "source")
        go = apt.unpack(_GO_PACKAGES, scratch / "go")
        reflect2 = apt.unpack([_REFLECT2_PACKAGE], scratch / "reflect2")
    build = kubernetes_build.KubernetesBuild(scratch / "build", go / "usr/lib/go-1.19")
    build.tree.parent.parent.mkdir(parents=True)
    # Kept one by one: who interrupts a build does not lose what is finished.
    for name, program in kubernetes_build.compile_programs(build, programs, files, reflect2 / _REFLECT2, stages):
        store.install(name, program, f"Debian source package kubernetes {version}")


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BinaryNotFound(
            f"obtaining the programs needs {needed / 1e9:.1f} GB below {folder.parent}, {free / 1e9:.1f} GB are free; "
            "make room or set MODELYARD_CACHE to a larger disk"
        )
