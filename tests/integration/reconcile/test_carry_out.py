"""Plans carried out on a real API server: the order of the writes, their preconditions, and what stops them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from modelyard.cluster import Cluster, Conflict, NotFound, Object
from modelyard.objects import Condition, Key, Notice, ResourceType, WorkloadId
from modelyard.objects.kinds import CONFIG_MAPS, DEPLOYMENTS, EVENTS
from modelyard.reconcile.kernel.carry_out import Outcome, carry_out
from modelyard.reconcile.kernel.fence import Fence, NotTheWriter
from modelyard.reconcile.kernel.tell import Said, tell
from modelyard.reconcile.plans.plan import FINALIZER, Child, Plan, Ref, Scale, Status, Subject
from modelyard.reconcile.plans.write_rules import WriteRules
from modelyard.resources import AutoscalingPolicy

pytestmark = pytest.mark.integration

POLICIES = ResourceType.of_resource(AutoscalingPolicy)
MEMORY = {"example.com/memory": "{}"}
READY = Condition("Ready", "True", "Accepted", "all is well", 1, 1_760_000_000.0)
STATUS = Status({"observedGeneration": 1}, (READY,))


class Objects:
    """The objects of one namespace: subjects, what they own, and what they scale."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    async def subject(self, name: str = "one") -> Subject:
        spec = {"metrics": [{"metricName": "m", "targetValue": "1"}]}
        body = {"metadata": {"name": name, "namespace": self.namespace}, "spec": spec}
        return self.as_seen(await self.cluster.create(POLICIES, body, self.namespace))

    def as_seen(self, obj: Object) -> Subject:
        metadata = obj["metadata"]
        deleting = "deletionTimestamp" in metadata
        key = Key(self.namespace, metadata["name"])
        return Subject(POLICIES, key, metadata["uid"], metadata["generation"], deleting=deleting)

    async def stored(self, name: str = "one") -> Object:
        return await self.cluster.get(POLICIES, name, self.namespace)

    async def edit(self, name: str = "one") -> None:
        await self.cluster.merge_patch(POLICIES, name, {"spec": {"tolerancePercent": 7}}, self.namespace)

    async def deploy(self, name: str, replicas: int = 1) -> WorkloadId:
        labels = {"app": name}
        pods = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "example.invalid/x"}]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pods}
        body = {"metadata": {"name": name, "namespace": self.namespace}, "spec": spec}
        await self.cluster.create(DEPLOYMENTS, body, self.namespace)
        return WorkloadId(self.namespace, "apps", "Deployment", name)

    async def replicas(self, name: str) -> int:
        return (await self.cluster.read_scale(DEPLOYMENTS, name, self.namespace)).replicas

    def child(self, name: str = "child", **data: str) -> Object:
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    async def find(self, name: str = "child") -> Object | None:
        """What is there, and not on its way out: a child is there until what it owns is gone."""
        try:
            found = await self.cluster.get(CONFIG_MAPS, name, self.namespace)
        except NotFound:
            return None
        return None if "deletionTimestamp" in found["metadata"] else found

    async def carry_out(self, *plans: Plan, fence: Fence | None = None) -> Outcome:
        rules = WriteRules.of((CONFIG_MAPS,))
        return await carry_out(self.cluster, [replace(plan, rules=rules) for plan in plans], fence or Fence())


@pytest.fixture
def objects(control_plane_cluster: Cluster, namespace: str) -> Objects:
    return Objects(control_plane_cluster, namespace)


def expiring(writes: int) -> Fence:
    """A fence that is lost after so many questions."""
    left = writes

    def remaining() -> float:
        nonlocal left
        left -= 1
        return 10.0 if left >= 0 else -1.0

    return Fence(remaining)


async def whole(objects: Objects) -> Plan:
    """A plan with something of everything."""
    subject = await objects.subject()
    web = await objects.deploy("web")
    return Plan(
        subject,
        annotations=MEMORY,
        status=STATUS,
        apply=(objects.child(a="1"),),
        scales=(Scale(web, 1, 3, "Busy", "much to do"),),
    )


def annotations(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


async def test_a_whole_plan_is_carried_out_told_and_settled(objects: Objects) -> None:
    plan = await whole(objects)
    outcome = await objects.carry_out(plan)
    ref = plan.subject.ref
    assert (outcome.written, outcome.skipped, outcome.errors) == ({ref}, {}, {})
    assert outcome.scaled == {(ref, plan.scales[0].workload): (1, 3)}
    stored = await objects.stored()
    assert annotations(stored) == MEMORY
    assert [condition["reason"] for condition in stored["status"]["conditions"]] == ["Accepted"]
    assert await objects.replicas("web") == 3
    child = await objects.find()
    assert child is not None
    assert child["data"] == {"a": "1"}
    (owner,) = child["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["kind"], owner["controller"]) == (plan.subject.uid, "AutoscalingPolicy", True)
    managers = {entry["manager"] for entry in child["metadata"]["managedFields"]}
    assert managers == {objects.cluster.settings.field_manager}

    again = await objects.carry_out(replace(plan, status=None))
    assert (again.scaled, again.skipped, again.errors) == ({}, {}, {})

    await tell(objects.cluster, [replace(plan, notices=(Notice("Odd", "look"),))], outcome, Said(), 0.0)
    events = await objects.cluster.list(ResourceType("", "v1", "Event", "events", True), objects.namespace)
    ours = {e["reason"]: e["message"] for e in events if e["involvedObject"]["kind"] == "AutoscalingPolicy"}
    assert ours == {"ScaledUp": f"{plan.scales[0].workload} 1 → 3: much to do", "Odd": "look"}


@pytest.mark.parametrize("writes", range(1, 8))
async def test_a_fence_lost_half_way_stops_in_the_fixed_order(objects: Objects, writes: int) -> None:
    """What is written is always a beginning of: memory, status, child, scale; a successor finishes it."""
    plan = await whole(objects)
    with pytest.raises(NotTheWriter):
        await objects.carry_out(plan, fence=expiring(writes))
    stored = await objects.stored()
    done = [
        annotations(stored) == MEMORY,
        "status" in stored,
        await objects.find() is not None,
        await objects.replicas("web") == 3,
    ]
    assert done == sorted(done, reverse=True)
    assert not all(done)
    assert not (await objects.carry_out(plan)).errors
    assert await objects.replicas("web") == 3


@pytest.mark.parametrize("writes", range(1, 5))
async def test_with_the_status_first_no_memory_is_newer_than_it(objects: Objects, writes: int) -> None:
    plan = replace(await whole(objects), status_first=True)
    with pytest.raises(NotTheWriter):
        await objects.carry_out(plan, fence=expiring(writes))
    stored = await objects.stored()
    assert annotations(stored) != MEMORY or "status" in stored


@pytest.mark.parametrize("with_memory", [True, False])
@pytest.mark.parametrize("with_status", [True, False])
@pytest.mark.parametrize(
    ("change", "said"), [("edited", "edited"), ("deleted", "deleted"), ("replaced", "replaced"), ("leaving", "deleted")]
)
async def test_a_plan_for_what_has_changed_meanwhile_is_dropped(
    objects: Objects, change: str, said: str, with_memory: bool, with_status: bool
) -> None:
    plan = await whole(objects)
    plan = replace(plan, annotations=MEMORY if with_memory else {}, status=STATUS if with_status else None)
    if change == "edited":
        await objects.edit()
    else:
        if change == "leaving":
            body = {"metadata": {"finalizers": ["example.com/wait"]}}
            await objects.cluster.merge_patch(POLICIES, "one", body, objects.namespace)
        await objects.cluster.delete(POLICIES, "one", objects.namespace)
        if change == "replaced":
            await objects.subject()
    outcome = await objects.carry_out(plan)
    assert said in outcome.skipped[plan.subject.ref]
    assert (outcome.errors, outcome.scaled, outcome.written) == ({}, {}, set())
    assert await objects.find() is None
    assert await objects.replicas("web") == 1
    if change == "replaced":
        stored = await objects.stored()
        assert ("status" in stored, annotations(stored)) == (False, {})
    if change == "leaving":
        await objects.cluster.merge_patch(POLICIES, "one", {"metadata": {"finalizers": []}}, objects.namespace)


async def test_a_claim_is_made_only_on_the_object_as_it_was_seen(objects: Objects) -> None:
    subject = await objects.subject()
    seen = (await objects.stored())["metadata"]["resourceVersion"]
    claim = Plan(subject._replace(resource_version=seen), annotations={"example.com/run": "mine"}, exact=True)
    theirs = replace(claim, annotations={"example.com/run": "theirs"})
    outcomes = [await objects.carry_out(plan) for plan in (claim, theirs)]
    assert [len(outcome.skipped) for outcome in outcomes] == [0, 1]
    assert annotations(await objects.stored()) == {"example.com/run": "mine"}


@pytest.mark.parametrize(("alone", "written"), [({"observedGeneration": 1}, True), ({}, False)])
async def test_a_status_that_others_keep_rewriting_does_not_hold_up_the_rest(
    objects: Objects, alone: dict[str, Any], written: bool
) -> None:
    plan = replace(await whole(objects), status=replace(STATUS, alone=alone))
    stop = asyncio.Event()

    async def scribble(writer: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            patch = {"metadata": {"annotations": {f"scribble-{writer}": str(number)}}}
            with suppress(Conflict):  # the server gives up after some tries
                await objects.cluster.merge_patch(POLICIES, "one", patch, objects.namespace)

    tasks = [asyncio.create_task(scribble(writer)) for writer in range(4)]
    try:
        outcome = await objects.carry_out(plan)
    finally:
        stop.set()
        await asyncio.gather(*tasks)
    assert not outcome.errors
    assert not outcome.skipped
    assert await objects.replicas("web") == 3
    conditions = ((await objects.stored()).get("status") or {}).get("conditions")
    if not conditions:  # every attempt met a newer object
        assert bool(outcome.written) is written


@pytest.mark.parametrize("rules", [WriteRules(), WriteRules.of((CONFIG_MAPS,), lambda body: f"data is {body['data']}")])
async def test_a_child_that_its_rules_refuse_is_not_written(objects: Objects, rules: WriteRules) -> None:
    plan = replace(await whole(objects), rules=rules)
    outcome = await carry_out(objects.cluster, [plan], Fence())
    assert outcome.errors[plan.subject.ref].startswith("ConfigMap child is not written: ")
    assert await objects.find() is None
    assert await objects.replicas("web") == 1, "nothing that comes after it"


async def test_children_are_the_subject_s_own_or_left_alone(objects: Objects) -> None:
    cluster = objects.cluster
    await cluster.create(CONFIG_MAPS, objects.child(theirs="1"), objects.namespace)
    plan = await whole(objects)
    outcome = await objects.carry_out(plan)
    assert "does not belong to it" in outcome.errors[plan.subject.ref]
    child = await objects.find()
    assert child is not None
    assert child["data"] == {"theirs": "1"}
    assert await objects.replicas("web") == 1, "nothing that comes after it"
    foreign = Child(CONFIG_MAPS, Key(objects.namespace, "child"), child["metadata"]["uid"])
    outcome = await objects.carry_out(Plan(plan.subject, delete=(foreign,)))
    assert "does not belong to it" in outcome.errors[plan.subject.ref]
    assert await objects.find() is not None
    elsewhere = {**objects.child(ours="1"), "apiVersion": "v1", "kind": "ConfigMap"}
    elsewhere["metadata"] = {"name": "child", "namespace": "default"}
    for beyond in (
        Plan(plan.subject, apply=(elsewhere,)),
        Plan(plan.subject, delete=(replace(foreign, key=Key("default", "child")),)),
    ):
        outcome = await objects.carry_out(beyond)
        assert "outside its namespace" in outcome.errors[plan.subject.ref]
    with pytest.raises(NotFound):
        await cluster.get(CONFIG_MAPS, "child", "default")


async def test_a_child_is_changed_and_deleted_only_while_it_is_the_one_that_was_seen(objects: Objects) -> None:
    subject = await objects.subject()
    await objects.carry_out(Plan(subject, apply=(objects.child(a="1", b="2"),)))
    await objects.carry_out(Plan(subject, apply=(objects.child(a="3"),)))
    child = await objects.find()
    assert child is not None
    assert child["data"] == {"a": "3"}
    seen = Child(CONFIG_MAPS, Key(objects.namespace, "child"), child["metadata"]["uid"])
    await objects.carry_out(Plan(subject, delete=(replace(seen, uid="another"),)))
    assert await objects.find() is not None
    assert not (await objects.carry_out(Plan(subject, delete=(seen, seen)))).errors
    assert await objects.find() is None


async def test_workloads_are_scaled_each_on_its_own(objects: Objects) -> None:
    """One is gone, one of a kind that does not exist, one moved by somebody else; the last still gets its share."""
    subject = await objects.subject()
    web, moved = await objects.deploy("web"), await objects.deploy("moved", 5)
    gone = web._replace(name="gone")
    odd = WorkloadId(objects.namespace, "example.com", "Oddity", "odd")
    plan = Plan(subject, scales=tuple(Scale(id_, 1, 4) for id_ in (gone, odd, moved, web)))
    outcome = await objects.carry_out(plan)
    assert outcome.scaled == {(subject.ref, web): (1, 4)}
    assert "Oddity" in outcome.errors[subject.ref]
    skipped = outcome.skipped[subject.ref]
    assert f"{gone} was deleted meanwhile; {moved} went from 1 to 5 replicas meanwhile" in skipped
    assert (await objects.replicas("web"), await objects.replicas("moved")) == (4, 5)


async def test_what_one_object_does_wrong_is_not_another_s_failure(objects: Objects) -> None:
    bad, good = await objects.subject("bad"), await objects.subject("good")
    unacceptable = Plan(bad, status=Status({"observedGeneration": "many"}))
    impossible = Plan(bad._replace(key=Key(objects.namespace, "nowhere")), apply=({"kind": "Nothing"},), status=STATUS)
    broken = Plan(bad, apply=({"kind": "Nothing"},))
    outcome = await objects.carry_out(unacceptable, impossible, broken, Plan(good, status=STATUS))
    assert outcome.written == {good.ref}
    assert "observedGeneration" in outcome.errors[bad.ref]
    assert "KeyError" in outcome.errors[bad.ref]
    assert set(outcome.skipped) == {Ref("AutoscalingPolicy", Key(objects.namespace, "nowhere"))}


async def test_our_finalizer_is_set_first_and_taken_off_last(objects: Objects) -> None:
    subject = await objects.subject()
    patch = {"metadata": {"finalizers": ["example.com/theirs"]}}
    await objects.cluster.merge_patch(POLICIES, "one", patch, objects.namespace)
    await objects.carry_out(Plan(subject, finalizer=True, apply=(objects.child(),)))
    assert (await objects.stored())["metadata"]["finalizers"] == ["example.com/theirs", FINALIZER]
    await objects.cluster.delete(POLICIES, "one", objects.namespace)
    leaving, child = objects.as_seen(await objects.stored()), await objects.find()
    assert child is not None
    assert leaving.deleting
    seen = Child(CONFIG_MAPS, Key(objects.namespace, "child"), child["metadata"]["uid"])
    assert not (await objects.carry_out(Plan(leaving, delete=(seen,), finalizer=False))).errors
    assert await objects.find() is None
    assert (await objects.stored())["metadata"]["finalizers"] == ["example.com/theirs"]
    await objects.cluster.merge_patch(POLICIES, "one", {"metadata": {"finalizers": []}}, objects.namespace)


async def test_who_has_much_to_write_keeps_nobody_waiting(
    objects: Objects, other_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("modelyard.reconcile.kernel.carry_out"), "CONCURRENCY", 1)
    monkeypatch.setattr(import_module("modelyard.reconcile.kernel.carry_out"), "MOST_PLANS", 3)
    neighbour, names = Objects(objects.cluster, other_namespace), [f"n{number}" for number in range(5)]
    plans = [Plan(await objects.subject(name), annotations=MEMORY) for name in names]
    plans.append(Plan(await neighbour.subject("only"), annotations=MEMORY))

    async def written() -> list[str]:
        return [name for name in names if annotations(await objects.stored(name)) == MEMORY]

    with pytest.raises(NotTheWriter):  # killed after two of them
        await objects.carry_out(*plans, fence=expiring(4))
    assert annotations(await neighbour.stored("only")) == MEMORY
    assert await written() == ["n0"]
    await objects.carry_out(*plans)
    assert await written() == ["n0", "n1", "n2"]
    await objects.carry_out(*plans[3:])
    assert await written() == names


async def test_what_scales_is_written_before_what_only_tells(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("modelyard.reconcile.kernel.carry_out"), "MOST_PLANS", 1)
    web = await objects.deploy("web")
    scale = Plan(await objects.subject("last"), scales=(Scale(web, 1, 2, "Busy", "much to do"),))
    await objects.carry_out(Plan(await objects.subject("first"), annotations=MEMORY), scale)
    assert (annotations(await objects.stored("first")), await objects.replicas("web")) == ({}, 2)


async def test_who_has_much_to_tell_keeps_nobody_waiting(
    objects: Objects, other_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("modelyard.reconcile.kernel.tell"), "MOST_EVENTS", 2)
    neighbour = Objects(objects.cluster, other_namespace)
    news = tuple(Notice(f"News{number}", "something") for number in range(4))
    plans = [Plan(await one.subject("one"), news=news[:count]) for one, count in ((objects, 4), (neighbour, 1))]
    await tell(objects.cluster, plans, Outcome(), Said(), 0.0)
    told = {
        one.namespace: sorted(event["reason"] for event in await objects.cluster.list(EVENTS, one.namespace))
        for one in (objects, neighbour)
    }
    assert told == {objects.namespace: ["News0", "News1"], other_namespace: ["News0"]}


async def test_what_a_child_owns_goes_through_that_child_and_nobody_elses_does(objects: Objects) -> None:
    subject = await objects.subject()
    await objects.carry_out(Plan(subject, apply=(objects.child("between"),)))
    between = await objects.find("between")
    assert between is not None
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "between", "uid": between["metadata"]["uid"]}
    owner["controller"] = True
    found = {}
    for name, owners in (("below", [owner]), ("stranger", [])):
        body = {"metadata": {"name": name, "ownerReferences": owners}}
        found[name] = (await objects.cluster.create(CONFIG_MAPS, body, objects.namespace))["metadata"]["uid"]
    through = (CONFIG_MAPS, Key(objects.namespace, "between"))
    for name, uid in found.items():
        child = Child(CONFIG_MAPS, Key(objects.namespace, name), uid, through)
        outcome = await objects.carry_out(Plan(subject, delete=(child,)))
        assert bool(outcome.errors) == (name == "stranger")
    assert await objects.find("below") is None
    assert await objects.find("stranger") is not None
    # Nor by way of what is not the subject's itself.
    body = {
        "metadata": {"name": "theirs", "ownerReferences": [{**owner, "name": "stranger", "uid": found["stranger"]}]}
    }
    theirs = await objects.cluster.create(CONFIG_MAPS, body, objects.namespace)
    way = (CONFIG_MAPS, Key(objects.namespace, "stranger"))
    child = Child(CONFIG_MAPS, Key(objects.namespace, "theirs"), theirs["metadata"]["uid"], way)
    outcome = await objects.carry_out(Plan(subject, delete=(child,)))
    assert "ConfigMap" in outcome.errors[subject.ref]
    assert await objects.find("theirs") is not None
