"""A Kubernetes Lease as the guarantee that there is one writer.

The holder renews the record; whoever finds that it has not changed for its whole duration may take it, and for half of
it where the holder is known to be dead. Two rules make that safe without comparing clocks of different machines:

* The holder counts from before it *sent* its last successful renewal and stops a safety margin early.
* A contender counts from when it *saw* the record change last, by its own monotonic clock. The process of a holder on
  this machine it can see end; what that sent last arrives within ``settle_after`` seconds.

So the holder always stops before anybody else can begin, as long as the clocks run equally fast to within the margin.
Where the object is deleted under it, its holder does not know until it renews, and creates it again then. Who saw it
held waits as if it were there; who never saw it cannot know.

A request already under way when the lease ends may still arrive: bound its timeout by ``remaining``, write with a
resource version, or check ``generation``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime

from modelyard.cluster.client import Cluster
from modelyard.cluster.errors import WRITE_ATTEMPTS, AlreadyExists, ClusterError, Conflict, NotFound, Unavailable
from modelyard.cluster.holder import Holder
from modelyard.cluster.objects import Object
from modelyard.objects import LEASES, PODS

logger = logging.getLogger(__name__)

_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
SETTLE_AFTER = 2.0
"""Seconds after the end of a holder's process until the server has carried out, or refused, what that had sent."""
STANDBY_RETRY = 2.0
"""Seconds from one try to become the standby to the next."""


class Lease:
    """One contender for one Lease object. Use one instance per process and purpose.

    ``holder`` names the contender (the text of a ``Holder``: others may look whether it lives). ``token`` (hexadecimal
    digits, by default random ones) is what it holds the lease for: it makes the identity unique, so that a restarted
    process never takes its predecessor's lease for its own. The lease is renewed every third of the duration, overdue
    after half, and the safety margin is a fifth of it (in seconds).
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        namespace: str,
        holder: str,
        duration_seconds: int = 15,
        retry_every: float = 1.0,
        token: str = "",
    ) -> None:
        self._cluster = cluster
        self.name = name
        self.namespace = namespace
        self.identity = f"{holder}_{token or uuid.uuid4().hex[:8]}"
        self.duration = duration_seconds
        self.margin = duration_seconds / 5
        self.renew_every = duration_seconds / 3
        self.overdue_after = duration_seconds / 2
        self.settle_after = min(SETTLE_AFTER, self.overdue_after)
        self._retry_every = min(retry_every, duration_seconds / 3)
        self._renewed_at = float("-inf")
        self._generation = 0
        self._reached_out = False
        self._observed: Object = {}
        self._observed_at = float("-inf")
        self._seen_alive = ""
        self._seen_dead, self._seen_dead_at = "", float("inf")
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._lost = True

    @property
    def held(self) -> bool:
        """Whether this process may write now. Ask again before each write."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds for which the lease is certainly ours if no renewal succeeds; 0 when it is not ours."""
        return max(0.0, self._renewed_at + self.duration - self.margin - time.monotonic())

    @property
    def generation(self) -> int:
        """Fencing number: grows with every change of holder (``leaseTransitions``). 0: never held."""
        return self._generation

    @property
    def observed_holder(self) -> str:
        return str(self._observed.get("holderIdentity") or "")

    @property
    def rival(self) -> str:
        """Who else holds it and was seen to renew it in time; ``""`` for nobody, and for one that may be dead."""
        alive = self.observed_holder == self._seen_alive != self.identity
        return self._seen_alive if alive and self._silence() < self.overdue_after else ""

    def standby(self) -> Lease:
        """Return the same contender's lease to be the standby, for as long as it waits for this one."""
        holder, _, token = self.identity.rpartition("_")
        return Lease(
            self._cluster, standby_name(self.name), self.namespace, holder, self.duration, STANDBY_RETRY, token
        )

    async def acquire(self, timeout: float | None = None) -> bool:
        """Take the lease and keep it renewed in the background. ``False``: ``timeout`` seconds passed first.

        ``timeout`` 0 tries once, ``None`` waits for ever. If the server could not be asked to the end, ``Unavailable``
        is raised instead of ``False``; ``Forbidden`` and the like are raised at once.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            outage: Unavailable | None = None
            try:
                async with self._turn:
                    taken = await self._try_take()
            except Unavailable as error:
                taken, outage = False, error
            if taken:
                self._lost = False
                if self._task is None or self._task.done():
                    self._task = asyncio.create_task(self._keep(), name=f"lease {self.namespace}/{self.name}")
                return True
            pause = self._retry_every * random.uniform(0.5, 1.0)
            if time.monotonic() + pause >= deadline:
                # Use the time that is left: the last try counts.
                pause = max(0.0, deadline - time.monotonic())
                if pause == 0.0:
                    if outage is not None:
                        raise outage
                    return False
            await asyncio.sleep(pause)

    async def renew(self) -> bool:
        """Renew now; the background task does so by itself. ``False``: lost to another. Raises ``Unavailable``."""
        async with self._turn:
            if self._lost:
                return False
            attempt = 0
            while True:
                attempt += 1
                lease = await self._read()
                if self._observed.get("holderIdentity") != self.identity:
                    self._give_up()
                    return False
                sent_at = time.monotonic()
                try:
                    if lease is None:
                        await self._create(self._generation)
                    else:
                        await self._write(lease, {"renewTime": _micro_time(), "leaseDurationSeconds": self.duration})
                except (Conflict, NotFound, AlreadyExists):  # somebody else touched the object, perhaps only a label
                    if attempt == WRITE_ATTEMPTS:
                        raise
                else:
                    self._renewed_at = sent_at
                    return True

    async def release(self) -> None:
        """Stop being the writer and let the next contender in at once. Never raises for a server that is away."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        async with self._turn:
            self._give_up()
            if not self._reached_out:
                return
            # Not only when we hold it: after an acquire() that was cancelled the record may bear our name as well.
            self._reached_out = False
            try:
                for _ in range(WRITE_ATTEMPTS):
                    lease = await self._read()
                    if lease is None or self._observed.get("holderIdentity") != self.identity:
                        return
                    with suppress(Conflict):
                        await self._write(lease, {"holderIdentity": "", "leaseDurationSeconds": 1})
                        return
            except ClusterError as error:
                logger.warning("%s; the lease will run out in %s s instead", error, self.duration)

    async def _keep(self) -> None:
        pause = self.renew_every
        while True:
            await asyncio.sleep(pause)
            was_held = self.held
            try:
                if not await self.renew():
                    logger.warning(
                        "Lease %s/%s is lost to %s", self.namespace, self.name, self.observed_holder or "nobody"
                    )
                    return
                pause = self.renew_every
            except ClusterError as error:
                pause = self._retry_every * random.uniform(0.5, 1.0)
                logger.log(
                    logging.WARNING if was_held else logging.DEBUG,
                    "Lease %s/%s not renewed, %.1f s left: %s",
                    self.namespace,
                    self.name,
                    self.remaining,
                    error,
                )

    async def _try_take(self) -> bool:
        lease = await self._read()
        spec = self._observed
        holder = spec.get("holderIdentity") or ""
        if holder and holder != self.identity and not self._expired() and not await self._is_dead(holder):
            return False
        generation = int(spec.get("leaseTransitions") or 0)
        wanted = self._record()
        if holder == self.identity:
            # Ours already, by a request whose answer was lost or as long as we have held it.
            wanted["acquireTime"] = spec.get("acquireTime") or wanted["acquireTime"]
        else:
            generation += 1
        wanted["leaseTransitions"] = generation
        self._reached_out = True
        sent_at = time.monotonic()
        try:
            if lease is None:
                await self._create(generation)
            else:
                await self._write(lease, wanted)
        except (Conflict, NotFound, AlreadyExists):
            return False
        if holder and holder != self.identity:
            logger.info("Lease %s/%s taken over from %s, which went silent or died", self.namespace, self.name, holder)
        self._renewed_at, self._generation = sent_at, generation
        return True

    def _give_up(self) -> None:
        self._renewed_at = float("-inf")
        self._lost = True

    def _expired(self) -> bool:
        return self._silence() >= float(self._observed.get("leaseDurationSeconds") or self.duration)

    def _silence(self) -> float:
        return time.monotonic() - self._observed_at

    async def _is_dead(self, identity: str) -> bool:
        """Known to be dead, its last requests arrived. Whoever deletes a pod by force answers for that."""
        holder = Holder.read(identity)
        if holder is None:
            return False
        if holder.has_ended():
            if self._seen_dead != identity:
                self._seen_dead, self._seen_dead_at = identity, time.monotonic()
            if time.monotonic() - self._seen_dead_at >= self.settle_after:
                return True
            # On this machine its clock is ours, so that who has just begun to look need not wait to see it silent.
            return max(self._silence(), seconds_since(self._observed.get("renewTime"))) >= self.overdue_after
        if self._silence() < self.overdue_after:
            return False
        namespace, _, name = holder.name.rpartition("/")
        if not holder.pod_uid or not namespace:
            return False
        try:
            found = await self._cluster.list(
                PODS, namespace, field_selector=f"metadata.name={name}", timeout=self._limit()
            )
        except ClusterError:
            return False
        ended = ("Succeeded", "Failed")
        return not any(
            pod["metadata"]["uid"] == holder.pod_uid and (pod.get("status") or {}).get("phase") not in ended
            for pod in found.items
        )

    def _record(self) -> Object:
        now = _micro_time()
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.duration,
            "acquireTime": now,
            "renewTime": now,
        }

    async def _read(self) -> Object | None:
        try:
            lease = await self._cluster.get(LEASES, self.name, self.namespace, timeout=self._limit())
        except NotFound:
            return None
        spec = lease.setdefault("spec", {})
        if spec != self._observed:
            if self._observed:
                self._seen_alive = spec.get("holderIdentity") or ""
            self._observed, self._observed_at = spec, time.monotonic()
        return lease

    async def _write(self, lease: Object, spec: Object) -> None:
        # The resource version in the metadata makes the server refuse if anybody else wrote since it was read.
        await self._cluster.replace(LEASES, {**lease, "spec": {**lease["spec"], **spec}}, timeout=self._limit())

    async def _create(self, generation: int) -> None:
        body = {
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {**self._record(), "leaseTransitions": generation},
        }
        await self._cluster.create(LEASES, body, self.namespace, timeout=self._limit())

    def _limit(self) -> float:
        """Timeout of one request: a hanging server must leave time for another try."""
        return max(0.5, self.duration / 5)


def standby_name(name: str) -> str:
    """Return the name of the standby's lease. Names of leases in parameters have no dots, so it is no shard's."""
    return f"{name}.standby"


def seconds_since(moment: object) -> float:
    """Return the seconds from a moment of this machine's clock until now; 0 for what is none."""
    with suppress(ValueError):
        return (datetime.now(UTC) - datetime.strptime(str(moment), _MICRO_TIME).replace(tzinfo=UTC)).total_seconds()
    return 0.0


def _micro_time() -> str:
    return datetime.now(UTC).strftime(_MICRO_TIME)
