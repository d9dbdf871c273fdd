"""Space of a node's disk: reservations of deliveries, the floor that all leave free, and shares of namespaces.

A delivery reserves all that is still to come when it begins, and from then on only what it will bring within the next
hour at its present speed. So a source that has become slow gives the disk back to other deliveries, and its own ends
with ``DiskPressure`` if they have taken it. Bytes and inodes are limited alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from modelyard.models.download.pace import DiskLimits, Pace
from modelyard.models.download.store import NodeStore
from modelyard.models.sources import SourceFile
from modelyard.models.storage import FetchError, folders_above
from modelyard.objects import amount

SPARE = 0.10
"""Bytes that must be free beyond those still to come, as a share of all."""
HORIZON = 3600.0
"""Seconds of its present speed that a delivery reserves."""
RENEWAL = 5.0
"""Seconds between two updates of a reservation. The store ignores one that was not updated for much longer."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Disk space of files: bytes in whole blocks, and inodes with those of their folders."""

    bytes: int = 0
    inodes: int = 0


def disk_use(files: Iterable[tuple[str, int]], block: int) -> DiskUse:
    """Return what files, as (name, bytes to come), take of a disk with blocks of this size."""
    sizes = dict(files)
    size = sum(-(-length // block) * block for length in sizes.values())
    return DiskUse(size, len(sizes) + len(folders_above(sizes)))


def reserved_bytes(remaining: int, rate: float | None) -> int:
    """Return what a delivery reserves that has so many bytes still to come at so many a second (None: not measured)."""
    return remaining if rate is None else min(remaining, int(rate * HORIZON))


def namespace_of(model: str) -> str:
    """Return the namespace of a model, by its key in node reports; empty for cluster-scoped ones."""
    parts = model.split(".", 2)
    return parts[0] if len(parts) == 3 and parts[1] == "basemodel" else ""


class DiskReservation:
    """The space of one entry that is being fetched for a model. The caller has the entry's lock."""

    def __init__(self, store: NodeStore, digest: str, model: str, pace: Pace) -> None:
        self._store, self._digest, self._pace = store, digest, pace
        self._model, self._namespace = model, namespace_of(model)
        self._limits: DiskLimits = pace.limits.disk
        self._held = self._inodes = 0
        self._next = 0.0

    def claim(self, to_come: Sequence[tuple[SourceFile, int]], files: Sequence[SourceFile]) -> None:
        """Reserve what is still to come of all files. FetchError: DiskPressure or NamespaceLimit."""
        total = sum(file.size for file, _ in to_come)
        with self._store.locked():
            disk = os.statvfs(self._store.root)
            self._check_share(files, disk)
            use = disk_use(((file.name, length) for file, length in to_come), disk.f_frsize)
            promised, promised_inodes = self._store.promised(self._digest)
            floor = int(disk.f_blocks * disk.f_frsize * self._limits.free_percent / 100)
            free, need = disk.f_bavail * disk.f_frsize, use.bytes + int(SPARE * total)
            if need + promised > free - floor:
                raise self._lack(
                    f"{amount(need)} are needed ({amount(use.bytes)} to come and a tenth of all), "
                    f"{amount(free)} are free",
                    [f"{amount(floor)} must stay free (freeDiskPercent)"] * bool(floor)
                    + [f"other downloads will take {amount(promised)}"] * bool(promised),
                )
            spare = disk.f_favail - int(disk.f_files * self._limits.free_percent / 100)
            if disk.f_files and use.inodes + promised_inodes > spare:
                raise self._lack(
                    f"{use.inodes} files and folders are to come, {disk.f_favail} inodes are free",
                    [f"{disk.f_favail - spare} must stay free (freeDiskPercent)"] * (spare < disk.f_favail),
                )
            self._held, self._inodes = use.bytes, use.inodes
            self._store.promise(self._digest, self._held, self._inodes)
        self._next = self._pace.now + RENEWAL

    def renew(self, remaining: Callable[[], int]) -> None:
        """Every few seconds: reserve what the present speed will bring. FetchError (DiskPressure) without the space."""
        if self._pace.now < self._next:
            return
        self._next = self._pace.now + RENEWAL
        wanted = reserved_bytes(max(0, remaining()), self._pace.recent_rate())
        with self._store.locked():
            disk = os.statvfs(self._store.root)
            floor = int(disk.f_blocks * disk.f_frsize * self._limits.free_percent / 100)
            free = disk.f_bavail * disk.f_frsize - floor
            promised = self._store.promised(self._digest)[0] if wanted > self._held else 0
            if free < 0 or (wanted > self._held and wanted + promised > free):
                raise self._lack(
                    f"{amount(wanted)} are to come soon, {amount(max(0, free))} may be taken",
                    [f"other downloads will take {amount(promised)}"] * bool(promised),
                )
            self._held = wanted
            self._store.promise(self._digest, self._held, self._inodes)

    def check_share(self, files: Sequence[SourceFile]) -> None:
        """Raise FetchError (NamespaceLimit) where a copy that is complete would be too much for the namespace."""
        with self._store.locked():
            self._check_share(files, os.statvfs(self._store.root))

    def _check_share(self, files: Sequence[SourceFile], disk: os.statvfs_result) -> None:
        if not self._namespace:
            return
        limits, used = self._limits, self._namespace_use(disk.f_frsize)
        whole = disk_use(((file.name, file.size) for file in files), disk.f_frsize)
        share = limits.namespace_percent / 100
        of_disk, inodes_of_disk = int(disk.f_blocks * disk.f_frsize * share), int(disk.f_files * share)
        for unit, have, need, most, name, shown in (
            ("", used.bytes, whole.bytes, limits.namespace_bytes, "bytesPerNamespace", amount),
            ("", used.bytes, whole.bytes, of_disk, "namespaceDiskPercent", amount),
            (" files and folders", used.inodes, whole.inodes, limits.namespace_files, "filesPerNamespace", str),
            (" inodes", used.inodes, whole.inodes, inodes_of_disk or None, "namespaceDiskPercent", str),
        ):
            if most is not None and have + need > most:
                raise FetchError(
                    "NamespaceLimit",
                    f"{self._store.root}: models of namespace {self._namespace} have {shown(have)}{unit} on this node"
                    f" and may have {shown(most)} ({name}), this one needs {shown(need)}; delete models of the"
                    f" namespace, or have an administrator raise {name}",
                )

    def _namespace_use(self, block: int) -> DiskUse:
        """The entry that this one replaces does not count: else no model of more than half a share could be updated."""
        digests = {
            digest
            for record in self._store.records()
            if namespace_of(record.model) == self._namespace
            for digest in (
                None if record.model == self._model else record.entry,
                record.wanted,
                *(held.entry for held in record.held),
            )
            if digest is not None and digest != self._digest
        }
        size = inodes = 0
        for digest in digests:
            manifest = self._store.manifest(digest)
            if manifest is not None:
                use = disk_use(((file.name, file.size) for file in manifest.files), block)
            else:
                reserved, expected = self._store.promise_of(digest)
                use = DiskUse(self._store.home.used(f"partial/{digest}/files") + reserved, expected)
            size, inodes = size + use.bytes, inodes + use.inodes
        return DiskUse(size, inodes)

    def _lack(self, problem: str, reasons: Sequence[str]) -> FetchError:
        suffix = f", of which {' and '.join(reasons)}" if reasons else ""
        return FetchError(
            "DiskPressure", f"{self._store.root}: {problem}{suffix}; free space on the node or add some", retryable=True
        )
