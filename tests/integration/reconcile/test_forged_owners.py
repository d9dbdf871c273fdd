"""A tenant with every right in its own namespace forges the owners of objects, against what the worker writes there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleet_fixture import eventually
from install_manifests import tenant
from test_carry_out import POLICIES, Objects

from modelyard.cluster import Cluster, ClusterSettings, NotFound, Object
from modelyard.local.stack import LocalStack
from modelyard.objects import Key
from modelyard.objects.kinds import CONFIG_MAPS
from modelyard.objects.parse import controller_of
from modelyard.reconcile.plans.plan import OWNER, Child, Plan, Subject

pytestmark = pytest.mark.integration


@pytest.fixture
def objects(control_plane_cluster: Cluster, namespace: str) -> Objects:
    return Objects(control_plane_cluster, namespace)


@pytest.fixture
async def evil(control_plane: LocalStack, objects: Objects, tmp_path: Path) -> AsyncIterator[Cluster]:
    own = await tenant(objects.cluster, objects.namespace, control_plane.kubeconfig, tmp_path / "tenant")
    async with Cluster.connect(ClusterSettings(kubeconfig=own)) as cluster:
        yield cluster


def reference(subject: Subject, **more: Any) -> dict[str, Any]:
    about = {"apiVersion": POLICIES.api_version, "kind": POLICIES.kind, "name": subject.key.name, "uid": subject.uid}
    return {**about, **more}


async def test_an_object_that_a_subject_owns_without_controlling_it_is_left_alone(
    objects: Objects, evil: Cluster
) -> None:
    """Such a reference says that it is to be deleted with the subject, and nothing of who writes it."""
    subject = await objects.subject()
    theirs = objects.child(theirs="1")
    theirs["metadata"]["ownerReferences"] = [reference(subject)]
    stored = await evil.create(CONFIG_MAPS, theirs, objects.namespace)
    outcome = await objects.carry_out(Plan(subject, apply=(objects.child(ours="1"),)))
    assert "does not belong to it" in outcome.errors[subject.ref]
    seen = Child(CONFIG_MAPS, Key(objects.namespace, "child"), stored["metadata"]["uid"])
    outcome = await objects.carry_out(Plan(subject, delete=(seen,)))
    assert "does not belong to it" in outcome.errors[subject.ref]
    child = await objects.find()
    assert child is not None
    assert child["data"] == {"theirs": "1"}


async def test_a_child_that_is_given_to_another_subject_is_written_by_that_alone(
    objects: Objects, evil: Cluster
) -> None:
    first, second = await objects.subject("first"), await objects.subject("second")
    await objects.carry_out(Plan(first, apply=(objects.child(of="first"),)))
    given = {"metadata": {"ownerReferences": [reference(second, controller=True)]}}
    await evil.merge_patch(CONFIG_MAPS, "child", given, objects.namespace)
    outcome = await objects.carry_out(Plan(first, apply=(objects.child(of="first again"),)))
    assert f"it is of {POLICIES.kind} second" in outcome.errors[first.ref]
    child = await objects.find()
    assert child is not None
    assert child["data"] == {"of": "first"}


async def test_a_child_whose_owner_never_existed_is_collected_and_made_again(objects: Objects, evil: Cluster) -> None:
    """The forged reference has the subject's uid under another kind and name."""
    subject = await objects.subject()
    await objects.carry_out(Plan(subject, apply=(objects.child(a="1"),)))
    forged = {"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": subject.uid, "controller": True}
    await evil.merge_patch(CONFIG_MAPS, "child", {"metadata": {"ownerReferences": [forged]}}, objects.namespace)

    async def is_own() -> Object | None:
        assert not (await objects.carry_out(Plan(subject, apply=(objects.child(a="2"),)))).errors
        child = await objects.find()
        owner = controller_of(child) if child is not None else None
        return child if owner is not None and (owner.kind, owner.name) == (POLICIES.kind, "one") else None

    child = await eventually(is_own, "a child of the subject")
    assert child["data"] == {"a": "2"}


async def test_what_an_object_that_was_removed_by_force_left_elsewhere_is_deleted_and_not_written(
    objects: Objects, other_namespace: str
) -> None:
    """Garbage collection does nothing about owners in another namespace. Only the controller writes there."""
    subject, home = await objects.subject(), other_namespace
    left = {"metadata": {"name": "left", "labels": {OWNER: "earlier"}}, "data": {"a": "1"}}
    stored = await objects.cluster.create(CONFIG_MAPS, left, home)
    child = Child(CONFIG_MAPS, Key(home, "left"), stored["metadata"]["uid"], earlier="earlier")
    plan = Plan(subject, homes=frozenset({home}))
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "left", "namespace": home}, "data": {}}
    for wrong in (
        replace(plan, apply=(body,)),
        replace(plan, delete=(replace(child, earlier=""),)),
        replace(plan, delete=(replace(child, earlier="another"),)),
    ):
        outcome = await objects.carry_out(wrong)
        assert "does not belong to it" in outcome.errors[subject.ref]
    assert not (await objects.carry_out(replace(plan, delete=(child,)))).errors

    async def is_gone() -> bool:
        try:
            await objects.cluster.get(CONFIG_MAPS, "left", home)
        except NotFound:
            return True
        return False

    await eventually(is_gone, "it is deleted")
    labelled = {"metadata": {"name": "mine", "labels": {OWNER: "earlier"}}}
    own = await objects.cluster.create(CONFIG_MAPS, labelled, objects.namespace)
    inside = Child(CONFIG_MAPS, Key(objects.namespace, "mine"), own["metadata"]["uid"], earlier="earlier")
    assert (await objects.carry_out(Plan(subject, delete=(inside,)))).errors, "a label of the tenant's is no owner"
