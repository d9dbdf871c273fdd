"""Onboardings on the real control plane of which a candidate never becomes ready, or none can be measured.

What carries out the objects is played, and the clock is put forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import Fleets
from fleet_fixture import eventually
from onboarded import FollowedOnboarding, request
from test_onboarding_kills import proceed, site, there

from modelyard.benchmarks.jobs.world import BENCHMARK_JOBS
from modelyard.cluster import Cluster, NotFound
from modelyard.objects import Key
from modelyard.objects.kinds import ResourceType
from modelyard.onboarding.execution.start import take_over
from modelyard.onboarding.planning.lifecycle import Onboarding
from modelyard.onboarding.request import OnboardRequest
from modelyard.reconcile.kernel.run_view import act
from modelyard.reconcile.plans.plan import Plan, World
from modelyard.workloads.roll_out.world import INFERENCE_SERVICES

pytestmark = pytest.mark.integration

RUN = "test/one"
LATE = "Unschedulable", "no node has an L40S that is free"
NOT_READY = {"conditions": [{"type": "Ready", "status": "False", "reason": LATE[0], "message": LATE[1]}]}
FAILED = {"state": "Failed", "failureMessage": "D(100,50) × 8 failed: OutputFull: there is no room"}
GIVEN_UP = f"not ready within 30 minutes: {': '.join(LATE)}"
LATER = 60 * 30 + 1.0
"""Seconds: a little more than an onboarding waits for a service."""

Told = Mapping[tuple[ResourceType, str], dict[str, Any]]


@dataclass(eq=False)
class Later(Onboarding):
    """An onboarding where it is later, by so many seconds."""

    ahead: float = 0.0

    def plan(self, key: Key, world: World, now: float) -> Plan | None:
        return super().plan(key, world, now + self.ahead)


@dataclass(eq=False)
class LaterRun(FollowedOnboarding):
    """Follows it."""

    lifecycle: Later = field(default_factory=Later)


async def begin(cluster: Cluster, asked: OnboardRequest, run: str = RUN) -> LaterRun:
    """Whoever follows it from now on."""
    on = LaterRun(cluster, asked)
    await take_over(cluster, asked, run)
    return on


async def go_on(on: LaterRun, told: Told, run: str = RUN) -> None:
    """As far as it goes where this is told of some objects, and of all others that they are as they should be."""

    async def rests() -> bool:
        acted = await act(on.cluster, on.lifecycle, [on.key], run, patience=0)
        assert not acted.failed, acted
        assert on.here is not None
        moved = False
        for (kind, name), status in told.items():
            if await untold(on.cluster, kind, name, on.asked.namespace):
                patch = {"status": status}
                await on.cluster.merge_patch(kind, name, patch, on.asked.namespace, subresource="status")
                moved = True
        moved = await proceed(on.cluster, on.asked.namespace) or moved
        return not (moved or on.here.steps.apply or on.here.steps.remove)

    await eventually(rests, "all is done that can be", 120)  # what is removed goes when the server comes to it


async def untold(cluster: Cluster, kind: ResourceType, name: str, space: str) -> bool:
    """Whether it is there, and nobody has said anything of it."""
    try:
        return not (await cluster.get(kind, name, space)).get("status")
    except NotFound:
        return False


async def test_a_candidate_that_never_becomes_ready_is_given_up_for_the_other_one(fleets: Fleets) -> None:
    cluster = fleets.cluster
    usual = await begin(cluster, request(namespace=await site(fleets)))
    await go_on(usual, {})
    assert usual.here is not None
    assert usual.here.steps.verdict is not None
    assert usual.here.steps.verdict.chosen is not None
    assert usual.here.steps.verdict.chosen.candidate.runtime == "slow", "the cheaper one"

    asked = request(namespace=await site(fleets))
    on = await begin(cluster, asked)
    never: Told = {(INFERENCE_SERVICES, "chat-probe-slow"): NOT_READY}
    await go_on(on, never)
    assert on.here is not None
    assert on.here.steps.awaits == ("InferenceService chat-probe-slow: ready",)
    assert "InferenceService chat-probe-fast" not in await there(cluster, asked.namespace), "it has been measured"
    on.lifecycle.ahead = LATER
    await go_on(on, never)
    assert on.here.steps.done, on.here.steps
    assert on.here.steps.problem == ""
    assert on.here.memory.given_up == {"slow": GIVEN_UP}
    verdict = on.here.steps.verdict
    assert verdict is not None
    assert {one.candidate.runtime: one.problem for one in verdict.assessed} == {"fast": "", "slow": GIVEN_UP}
    end = await there(cluster, asked.namespace)
    assert end["InferenceService chat"]["spec"]["runtime"]["name"] == "fast"
    assert "VariantAutoscaling chat" in end
    assert not [name for name in end if name.startswith("InferenceService chat-probe")], "no probe is left"
    assert "BenchmarkJob chat-probe-slow" not in end, "nothing was measured of it"

    # Whoever goes on, with a clock that is right, finds it given up.
    other = await begin(cluster, asked, "test/two")
    await go_on(other, never, "test/two")
    assert other.here is not None
    assert other.here.steps.done
    assert other.here.memory.given_up == {"slow": GIVEN_UP}
    assert await there(cluster, asked.namespace) == end


async def test_where_all_candidates_are_given_up_each_says_why_and_nothing_is_written(fleets: Fleets) -> None:
    asked = request(namespace=await site(fleets))
    on = await begin(fleets.cluster, asked)
    told: Told = {
        (INFERENCE_SERVICES, "chat-probe-slow"): NOT_READY,
        (BENCHMARK_JOBS, "chat-probe-fast"): FAILED,
    }
    await go_on(on, told)
    assert on.here is not None
    assert on.here.steps.problem == "", "it still waits"
    on.lifecycle.ahead = LATER
    await go_on(on, told)
    assert on.here.steps.done, on.here.steps
    assert on.here.steps.problem == (
        f"no candidate can serve the model: fast: benchmark failed: {FAILED['failureMessage']}; slow: {GIVEN_UP}"
    )
    left = await there(fleets.cluster, asked.namespace)
    assert not [name for name in left if name.startswith(("InferenceService", "VariantAutoscaling"))], left
