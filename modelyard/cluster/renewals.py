"""Renewals of Leases as a third party sees them, who neither holds a Lease nor wants one.

The observer counts from when it saw a record change last, by its own clock. Only a record that it sees for the first
time is judged by the moment written in it, and never after an outage, in which nobody could renew.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Collection, Mapping

from modelyard.cluster.client import Cluster
from modelyard.cluster.errors import ClusterError, Forbidden, NotFound
from modelyard.cluster.holder import Holder
from modelyard.cluster.lease import seconds_since
from modelyard.cluster.objects import Object
from modelyard.objects import LEASES, Key

LOOKS = 3
"""Times that a record must have been seen unchanged: an observer that stood still has missed its renewals."""
READ_TIMEOUT = 3.0
"""Seconds that one reading of a Lease may take."""


class Renewal(enum.Enum):
    """State of a holder's renewals."""

    FRESH = "fresh"
    OVERDUE = "overdue"
    """The moment in the record has passed long ago, by a clock that may differ from the holder's."""
    ENDED = "ended"
    """The record did not change for its duration, or the holder's process has ended."""


class _Record:
    """One record and its age in seconds: as written in it, and as observed."""

    def __init__(self, spec: Object, now: float, age: float) -> None:
        self.spec, self.since, self.age, self.looks = spec, now, age, 0

    @property
    def token(self) -> str:
        return str(self.spec["holderIdentity"]).rpartition("_")[2]

    def judge(self, now: float) -> Renewal:
        self.looks += 1
        duration = float(self.spec.get("leaseDurationSeconds") or 15)
        holder = Holder.read(str(self.spec.get("holderIdentity") or ""))
        if (holder is not None and holder.has_ended()) or (self.looks > LOOKS and now - self.since >= duration):
            return Renewal.ENDED
        return Renewal.FRESH if self.age + now - self.since < duration else Renewal.OVERDUE


class RenewalMonitor:
    """Observe who renews certain Leases."""

    def __init__(self) -> None:
        self._records: dict[Key, _Record] = {}
        self._blind = False
        self.refused: dict[Key, Forbidden] = {}
        """Leases that the last look may not read."""

    async def look(self, cluster: Cluster, names: Collection[Key]) -> dict[Key, tuple[str, Renewal]]:
        """Return the token and renewals of each Lease's holder, except those ``refused``. Raises ``ClusterError``."""
        try:
            results = await asyncio.gather(*(_read(cluster, name) for name in names))
        except ClusterError:
            self.forget()
            raise
        read = dict(zip(names, results, strict=True))
        self.refused = {name: result for name, result in read.items() if isinstance(result, Forbidden)}
        return self.judge({name: spec for name, spec in read.items() if isinstance(spec, dict)}, time.monotonic())

    def forget(self) -> None:
        """Forget all records after an outage, in which nobody could renew."""
        self._records, self._blind = {}, True

    def judge(self, specs: Mapping[Key, Object], now: float) -> dict[Key, tuple[str, Renewal]]:
        """Return the same from the Leases' specs, read at ``now`` (seconds of a monotonic clock)."""
        records = {}
        for name, spec in specs.items():
            if not spec.get("holderIdentity"):
                continue
            record = self._records.get(name)
            if record is not None and record.spec == spec:
                records[name] = record
            else:
                trusted = record is None and not self._blind
                records[name] = _Record(spec, now, max(0.0, seconds_since(spec.get("renewTime"))) if trusted else 0.0)
        self._records, self._blind = records, False
        return {name: (record.token, record.judge(now)) for name, record in records.items()}


async def _read(cluster: Cluster, name: Key) -> Object | Forbidden:
    try:
        lease = await cluster.get(LEASES, name.name, name.namespace, timeout=READ_TIMEOUT)
    except NotFound:
        return {}
    except Forbidden as error:
        return error
    return lease.get("spec") or {}
