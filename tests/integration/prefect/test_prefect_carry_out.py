"""A new lifecycle is an entry in the registry: ``reconcile`` and the flow ``carry_out_objects`` need nothing else."""

from __future__ import annotations

import pytest
from copying import DONE, Copies
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterFlowRunId
from prefect_support import until

from deployments.bootstrap import deployment_names
from flows.carry_out import carry_out_objects
from flows.reconcile import lifecycles
from modelyard.cluster import Cluster
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import CONFIG_MAPS
from tasks.registry import REGISTRY, LifecycleEntry, StepKind

pytestmark = pytest.mark.integration


async def test_an_entry_in_the_registry_is_enough_for_a_lifecycle(
    control_plane: LocalStack,
    control_plane_cluster: Cluster,
    namespace: str,
    client: PrefectClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    entry = LifecycleEntry(lambda home: Copies(), {"": StepKind("copy {object}")}, batch=5)
    monkeypatch.setitem(REGISTRY, "copies", entry)  # type: ignore[arg-type]
    acting = {found.lifecycle.name: found.acting for found in lifecycles("home")}["copies"]
    assert acting is not None
    assert acting.deployment.partition("/")[2] in deployment_names()
    metadata = {"name": "a", "labels": {"copies": "parent"}, "annotations": {"copies": "2"}}
    await control_plane_cluster.create(CONFIG_MAPS, {"metadata": metadata}, namespace)

    given = {**acting.parameters, "controller_namespace": namespace}
    state = await carry_out_objects(name="a", namespace=namespace, **given, return_state=True)
    assert (state.name, state.message) == ("Completed", "1 step carried out")
    parent = await control_plane_cluster.get(CONFIG_MAPS, "a", namespace)
    assert parent["metadata"]["annotations"][DONE] == "2"
    assert state.state_details.flow_run_id is not None
    chosen = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[state.state_details.flow_run_id]))

    async def recorded() -> bool:
        names = {run.name for run in await client.read_task_runs(task_run_filter=chosen)}
        return names == {f"claim {namespace}/a", f"copy {namespace}/a"}

    await until(recorded, "its task runs are on record")
    unknown = await carry_out_objects(name="a", namespace=namespace, lifecycle="none", return_state=True)
    assert unknown.name == "Failed"
    assert "write one of" in (unknown.message or "")
