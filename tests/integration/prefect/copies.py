"""The flow whose runs carry out the lifecycle ``Copies``, and are killed or halted on the way if a parent asks for it.

A parent says in the annotation ``trouble`` what shall happen to its runs: ``die`` (SIGKILL of the run's process right
after each of its writes) or ``halt`` (SIGSTOP in the first run, with a plan made and nothing written). Every write of a
run is a line in the file ``COPIES_RECORD``.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from copying import Copies, Map, parse
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from modelyard.cluster import Cluster, ClusterSettings
from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.reconcile.kernel.run_view import act
from modelyard.reconcile.plans.claims import Claim
from modelyard.reconcile.plans.plan import Plan, World


class Troubled(Copies):
    """What a run sees: it may be halted when it has planned, for the first time that a parent is worked on."""

    halted = False

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        plan = super().plan(key, world, now)
        parent: Map | None = world[CONFIG_MAPS].get(key)
        claim = Claim.read(parent.subject.claim) if parent else None
        if parent and parent.trouble == "halt" and claim and claim.attempt == 1 and not self.halted:
            self.halted = True
            note("halt", key.name, claim.run)
            os.kill(os.getpid(), signal.SIGSTOP)
        return plan


def note(what: str, name: str, run: str) -> None:
    with Path(os.environ["COPIES_RECORD"]).open("a") as file:
        file.write(json.dumps({"write": what, "name": name, "run": run, "pid": os.getpid()}) + "\n")


def arm(cluster: Cluster, run: str, deadly: bool) -> None:
    """Note every write, and die of it if told so."""

    def watched(what: str, write: Any) -> Any:
        async def noting(*args: Any, **kwargs: Any) -> Any:
            result = await write(*args, **kwargs)
            name = args[0]["metadata"]["name"] if isinstance(args[0], dict) else args[1]
            note(what, name, run)
            if deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return noting

    for what in ("apply", "delete", "merge_patch"):
        setattr(cluster, what, watched(what, getattr(cluster, what)))


@flow(name="copies", persist_result=False, retries=0)
async def copies(run: str, objects: list[str], name: str = "") -> State[Any]:
    """Carry out the plans of these parents."""
    keys = [Key(*name.split("/")) for name in objects]
    async with Cluster.connect(ClusterSettings()) as cluster:
        parents = [parse(await cluster.get(CONFIG_MAPS, key.name, key.namespace)) for key in keys]
        arm(cluster, run, deadly=any(parent.trouble == "die" for parent in parents))
        acted = await act(cluster, Troubled(), keys, run)
    told = f"{len(acted.settled)} settled, {len(acted.lost)} lost, {len(acted.failed)} failed"
    return Failed(message=told) if acted.failed else Completed(message=told)
