"""Finding programs that are on this machine already."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from modelyard.local import paths

SERVERS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "prometheus")
"""Every program that Modelyard knows how to obtain."""


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
