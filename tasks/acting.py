"""Runs of lifecycles whose work goes on in the cluster: how long one stays for it, and how one that lost it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from modelyard.cluster import Cluster
from modelyard.objects import Key
from modelyard.reconcile.acting import Acted, act
from modelyard.reconcile.dispatch import PATIENCE
from modelyard.reconcile.plan import Lifecycle

AGAIN = 5.0
"""Seconds after which an object that waits for something else is looked at again."""


async def stay(
    cluster: Cluster,
    lifecycle: Lifecycle,
    keys: Sequence[Key],
    run: str,
    until: float | None,
    left: Callable[[Acted], Awaitable[bool]],
) -> Acted:
    """Have the objects' plans carried out; until then (a monotonic clock's reading) again, while something is left."""
    while True:
        patience = PATIENCE if until is None else max(0.0, until - time.monotonic())
        acted = await act(cluster, lifecycle, keys, run, patience)
        if until is None or time.monotonic() + AGAIN >= until or not await left(acted):
            return acted
        await asyncio.sleep(AGAIN)


def cut_short(acted: Acted) -> State[Any] | None:
    """How a run ends that could not do its work; ``None``: it did."""
    if acted.lost:
        return Completed(name="Superseded", message="another run has taken over: " + ", ".join(map(_name, acted.lost)))
    if acted.failed:
        return Failed(message="; ".join(f"{_name(key)}: {why}" for key, why in acted.failed.items()))
    return None


def _name(key: Key) -> str:
    return str(key) if key.namespace else key.name
