"""Making sure that programs are there.

What is not on this machine comes from the publishers' releases where the network reaches them (a current Kubernetes),
else from Debian (Kubernetes 1.20, compiled once, about four minutes on two cores). `MODELYARD_BINARIES=release` or
`debian` allows one of the two only, `none` neither.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from modelyard.local import paths
from modelyard.local.binaries import debian, releases, store
from modelyard.local.paths import BinaryNotFound

SERVERS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "prometheus", "promtool")
"""Every program that Modelyard knows how to obtain."""
_CHOICES = ("auto", "release", "debian", "none")


def ensure(names: Iterable[str], progress: Callable[[str], None]) -> dict[str, Path]:
    """Return the paths of programs of `SERVERS`, obtaining missing ones. Raises `BinaryNotFound`: what was tried."""
    wanted = list(names)
    found, missing = _search(wanted)
    if not missing:
        return found
    with store.exclusively(lambda: progress("another process is obtaining programs; waiting for it")):
        found, missing = _search(wanted)
        if missing:
            if "kube-apiserver" in missing and locate("kubectl") is None:
                # Not asked for, but who lacks the servers will want to look at them, and it comes from the same place.
                missing.append("kubectl")
            progress(f"not on this machine: {', '.join(missing)}; obtaining them once, into {paths.binaries_dir()}")
            _obtain(missing, progress)
            found, missing = _search(wanted)
    if missing:
        raise BinaryNotFound(f"{', '.join(missing)} were obtained but are not in {paths.binaries_dir()}")
    return found


def _search(names: list[str]) -> tuple[dict[str, Path], list[str]]:
    found = {name: path for name in names if (path := locate(name)) is not None}
    return found, [name for name in names if name not in found]


def _obtain(missing: list[str], progress: Callable[[str], None]) -> None:
    choice = os.environ.get("MODELYARD_BINARIES", "auto")
    if choice not in _CHOICES:
        raise BinaryNotFound(f"MODELYARD_BINARIES is {choice!r}; it may be {', '.join(_CHOICES)}")
    tried: list[str] = []
    for name, source in (("release", releases.obtain), ("debian", debian.obtain)):
        if choice not in ("auto", name):
            continue
        try:
            source(missing, progress)
            return
        except releases.Unreachable as error:
            tried.append(f"releases: {error}")
            progress(f"the publishers' releases are out of reach ({error})")
        except BinaryNotFound as error:
            tried.append(f"{name}: {error}")
            if choice == "auto":
                progress(f"{name}: {error}")
    raise BinaryNotFound(
        f"{', '.join(missing)}: not in KUBEBUILDER_ASSETS, on PATH or in {paths.binaries_dir()}, and not to be had ("
        + ("; ".join(tried) or "MODELYARD_BINARIES=none")
        + "). Put the programs into a folder and set KUBEBUILDER_ASSETS to it"
    )


def locate(name: str) -> Path | None:
    """Where a program is: in `KUBEBUILDER_ASSETS`, on PATH, or in our cache; None when it is nowhere."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        candidate = Path(assets).expanduser() / name
        if _executable(candidate):
            return candidate.absolute()
    found = shutil.which(name)
    if found is not None:
        return Path(found).absolute()
    cached = paths.binaries_dir() / name
    return cached if _executable(cached) else None


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
