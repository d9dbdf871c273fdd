"""Fetching onto a folder that stands for a node's models root, as a Job does it, and looking at what is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from modelyard.models.download import node
from modelyard.models.download.filters import FileRules
from modelyard.models.download.pace import Limits
from modelyard.models.download.store import NodeStore
from modelyard.models.storage.errors import FetchError

QUICK = Limits(parallel=4, part_size=65536, patience=3.0)


class Node:
    """A models root with its jobs. Every job gives its report, also where it fails."""

    def __init__(self, root: Path, endpoint: str | None = None) -> None:
        self.root, self.endpoint = root, endpoint

    def fetch(self, uri: str, model: str = "clusterbasemodel.m", path: str = "m", **more: Any) -> node.Report:
        given = {"endpoint": self.endpoint, "limits": QUICK, **more}
        request = node.FetchRequest(uri, self.root, str(self.root / path), model, **given)
        return self._report(lambda report: node.fetch(request, report, node.Progress(lambda _: None)))

    def check(self, model: str = "clusterbasemodel.m", *, quick: bool = False) -> node.Report:
        return self._report(lambda report: node.check(self.root, model, report, quick=quick))

    def remove(self, model: str = "clusterbasemodel.m", **in_use: float | None) -> node.Report:
        used = {str(self.root / path): start for path, start in in_use.items()}
        return self._report(lambda report: node.remove(self.root, model, used, report))

    def files(self, path: str = "m") -> dict[str, bytes]:
        """What a pod sees that mounts the model's path."""
        folder = self.root / path
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    def entries(self) -> list[str]:
        return sorted(os.listdir(self.root / ".modelyard" / "entries"))  # noqa: PTH208

    def leftovers(self) -> list[str]:
        """What nobody refers to and is still there."""
        with NodeStore(self.root) as store:
            kept = {record.entry for record in store.records()} | {h.entry for r in store.records() for h in r.held}
            found = [name for kind in ("entries", "partial", "trash", "locks") for name in store.home.names(kind)]
        return [name for name in found if name not in kept]

    @staticmethod
    def _report(work: Any) -> node.Report:
        report = node.Report()
        try:
            work(report)
        except FetchError as error:
            report.fail(error)
        return report


def patterns(*names: str, **more: Any) -> FileRules:
    return FileRules(include=names, **more)
