"""Roll-outs on the real control plane whose writer is killed, whose API server goes, of which there are many at once.

There are no nodes: pods stay unscheduled, and what is compared is what was written.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import forked
import pytest
from cluster_faults import restarted
from conftest import Fleets, reason
from fleet_fixture import eventually
from in_process_runs import Shift
from killed_writers import roll_out, rolling_out
from kthena_models import a_backend

from modelyard.cluster import Unavailable
from modelyard.cluster.transport import ApiRequest, Transport
from modelyard.local.stack import LocalStack
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES

pytestmark = pytest.mark.integration

MANY = 30
_DEEP: dict[str, Any] = {}
for _ in range(200):
    _DEEP = {"more": _DEEP}
HOSTILE: dict[str, dict[str, Any]] = {
    "nameless": {"runner": {"name": "ome-container", "env": [{"value": "x"}]}},
    "texts": {"containers": [{"name": "other", "image": "i", "args": [{"no": "text"}]}]},
    "wild": {"runner": {"name": "ome-container", "volumeMounts": [{"mountPath": {}}]}},
    "both": {"minAvailable": 1, "maxUnavailable": 1},
    "deep": {"runner": {"name": "ome-container", "env": [{"name": "a", "valueFrom": _DEEP}]}},
    "control": {"runner": {"name": "ome-container", "env": [{"name": "a\x00b", "value": "\x1b[2J" * 100}]}},
}
"""What a schema lets pass and no pod can be."""
FEWEST = {"InferenceService": 7, "Model": 4}
"""Objects of one service, itself included."""
OTHERWISE: dict[str, dict[str, Any]] = {
    "InferenceService": {"metadata": {"annotations": {"ome.io/deploymentMode": "VirtualDeployment"}}},
    "Model": {"spec": {"backends": [a_backend(name="other")]}},
}
"""By which all that was made goes; of a Model for another backend."""


class Writes:
    """Writes on their way out: of a child how often it is written, of a service what its status says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.children: Counter[str] = Counter()
        self.told: defaultdict[str, list[Any]] = defaultdict(list)
        self.before: Callable[[], Awaitable[None]] | None = None
        send = Transport.send

        async def noted(transport: Transport, request: ApiRequest) -> bytes:
            _, _, place = request.path.partition("/namespaces/")
            if request.method == "GET" or not place or "/events" in place:
                pass
            elif "/inferenceservices/" not in place:
                self.children[request.path] += 1
                if self.before is not None:
                    await self.before()
            elif place.endswith("/status"):
                answer = await send(transport, request)  # a conflict writes nothing
                self.told[request.path].append(request.body["status"])
                return answer
            return await send(transport, request)

        monkeypatch.setattr(Transport, "send", noted)


async def ended(process: Any) -> int:
    await asyncio.to_thread(process.join, 120)
    assert process.exitcode is not None, "it neither ended nor was killed"
    return int(process.exitcode)


async def killed_everywhere(fleets: Fleets, spaces: list[str]) -> int:
    """A writer in each namespace, killed before its first write, its second and so on; how many were."""
    gate = asyncio.Semaphore(2)

    async def one(at: int, space: str) -> int:
        async with gate:
            return await ended(forked.start(roll_out, fleets.home, fleets.kinds.about.kind, space, at))

    codes = await asyncio.gather(*(one(at, space) for at, space in enumerate(spaces, 1)))
    return sum(code == -signal.SIGKILL for code in codes)


async def follow(fleets: Fleets, spaces: list[str]) -> dict[str, Any]:
    """A writer that is not killed takes over in all namespaces; what is in each in the end."""
    first, *others = spaces
    async with Shift([rolling_out(fleets.home, fleets.kinds.about.kind)], fleets.home, namespaces=spaces):
        made = await fleets.end(first)
        until = time.monotonic() + 240
        for space in others:
            while (found := await fleets.there(space)) != made and time.monotonic() < until:
                await asyncio.sleep(0.2)
            assert found == made, space
    return made


@pytest.mark.parametrize("kind", ["InferenceService", pytest.param("Model", marks=pytest.mark.long)])
async def test_whoever_is_killed_at_any_write_is_followed_to_the_same_end(fleets: Fleets, kind: str) -> None:
    if kind == "Model":
        fleets.of_models()
    first = await fleets.space()
    await fleets.make(first)
    writes = await ended(forked.start(roll_out, fleets.home, kind, first, 0))
    spaces = [await fleets.space() for _ in range(writes)]
    for space in spaces:
        await fleets.make(space)
    killed = await killed_everywhere(fleets, spaces)
    made = await follow(fleets, fleets.spaces)
    assert killed >= len(made) >= FEWEST[kind], f"{killed} of {writes}: a claim, and each child once"
    # The same where all of it goes.
    for space in fleets.spaces:
        await fleets.cluster.merge_patch(fleets.kinds.about, "chat", OTHERWISE[kind], space)
    writes = await ended(forked.start(roll_out, fleets.home, kind, first, 0))
    killed = await killed_everywhere(fleets, spaces[: writes - 1])
    left = await follow(fleets, fleets.spaces)
    assert left.keys() & made.keys() <= {f"{kind} chat", "ModelRoute chat"}
    assert len(left) == (1 if kind == "InferenceService" else len(made))
    assert killed >= len(made), f"{killed} of {writes}: a claim, and each child once"


async def test_an_api_server_that_goes_between_two_children_is_waited_for(
    fleets: Fleets, control_plane: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, writes = await fleets.space(), Writes(monkeypatch)
    going: list[asyncio.Task[None]] = []

    async def away() -> None:
        async with restarted(control_plane):
            pass

    async def third_child() -> None:
        if sum(writes.children.values()) == 3 and not going:
            going.append(asyncio.create_task(away()))
            await asyncio.sleep(0.2)

    writes.before = third_child
    async with Shift([rolling_out(fleets.home)], fleets.home, namespaces=[space]):
        await fleets.make(space)
        with suppress(Unavailable):
            while not going:
                await asyncio.sleep(0.05)
        await going[0]
        made = await fleets.end(space)
    assert len(made) >= 7
    assert reason(made["InferenceService chat"], "LatestDeploymentReady") == "NoNodeHasModel"


async def test_many_at_once_cost_no_more_writes_than_there_are_children_and_hostile_ones_stop_nobody(
    fleets: Fleets, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, hostile = await fleets.space(), await fleets.space()
    for name, engine in HOSTILE.items():
        await fleets.make(hostile, name, engine=engine)
    for number in range(MANY):
        await fleets.make(space, f"chat-{number}")
    writes = Writes(monkeypatch)
    async with Shift([rolling_out(fleets.home)], fleets.home, namespaces=fleets.spaces):
        made = await fleets.end(space)

        async def told() -> bool:
            found = await fleets.cluster.list(INFERENCE_SERVICES, hostile)
            return {reason(one, "LatestDeploymentReady") for one in found} == {"InvalidSpec", "ApplyFailed"}

        await eventually(told, "what is wrong with the others is told", seconds=120)
    children = len(made) - MANY
    assert children >= 6 * MANY
    written = [count for path, count in writes.children.items() if f"/{space}/" in path]
    kept = MANY  # a ControllerRevision each
    assert (len(written), set(written)) == (children + kept, {1}), "each once, and no more"
    assert len(writes.told) >= MANY
    for path, told in writes.told.items():
        assert all(one != other for one, other in pairwise(told)), f"{path}: nothing is told twice"
