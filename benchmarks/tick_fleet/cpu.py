"""CPU time of the servers beside the measured process: unlike wall time it hardly depends on who else is busy."""

from __future__ import annotations

import os
from pathlib import Path

NAMES = {"kube-apiserver": "API server", "etcd": "etcd", "prometheus": "Prometheus", "python": "pages"}


def server_seconds(folder: str) -> dict[str, float]:
    """CPU seconds so far of each server that has ``folder`` in its command line."""
    found = dict.fromkeys(NAMES.values(), 0.0)
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            times = (process / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended
            continue
        name = Path(words[0]).name.rstrip("0123456789.")
        if name in NAMES and any(folder in word for word in words[1:]) and "--measure" not in words:
            found[NAMES[name]] += (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
    return found
