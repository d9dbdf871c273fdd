"""Copies of a model in modelStatus, and updates of groups of pods, which are one copy each."""

from __future__ import annotations

import pytest
from service_world import ENGINE, SERVED, Fleet
from test_model_status import LATEST, READY, canary, engine_pod, read, settled, up_canary

from modelyard.reconcile.plans.plan import ServedKind
from modelyard.workloads.roll_out.returning import UNOBSERVED

EXIT = {"terminated": {"exitCode": 3, "reason": "Error"}}
SETS = frozenset((*SERVED, ServedKind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")))


def grouped(served: frozenset[ServedKind], image: str = "engine:1") -> Fleet:
    """Two groups of three pods each."""
    fleet = Fleet(served=served)
    fleet.model()
    fleet.runtime()
    part = {"runner": {**ENGINE, "image": image}}
    fleet.service(engine={"minReplicas": 2, "leader": part, "worker": {"size": 2, **part}})
    fleet.settle()
    return fleet


def group_pods(fleet: Fleet, label: str, ready: dict[tuple[int, int], bool]) -> None:
    for (group, index), is_ready in ready.items():
        name = f"chat-engine-{group}-{index}"
        if is_ready:
            fleet.pod(name, phase="Running", conditions=READY)
        else:
            engine_pod(fleet, name, EXIT)
        labels = {label: str(group), "leaderworkerset.sigs.k8s.io/worker-index": str(index)}
        fleet.objects["Pod", "shop", name]["metadata"]["labels"] |= labels


@pytest.mark.parametrize(
    ("served", "label"),
    [(SERVED, "modelyard.dev/group"), (SETS, "leaderworkerset.sigs.k8s.io/group-index")],
)
def test_a_group_of_pods_is_one_copy(served: frozenset[ServedKind], label: str) -> None:
    fleet = grouped(served)
    every = {(group, index): True for group in range(2) for index in range(3)}
    group_pods(fleet, label, every)
    settled(fleet)
    assert fleet.status()["modelStatus"]["modelCopies"] == {"totalCopies": 2, "failedCopies": 0}
    group_pods(fleet, label, {**every, (1, 1): False, (1, 2): False})
    settled(fleet)
    assert fleet.status()["modelStatus"]["modelCopies"] == {"totalCopies": 1, "failedCopies": 1}
    del fleet.objects["Pod", "shop", "chat-engine-0-2"]
    settled(fleet)
    assert fleet.status()["modelStatus"]["modelCopies"]["totalCopies"] == 0, "a group without a pod holds no copy"


def test_copies_of_engine_decoder_and_canary_count_and_those_of_the_router_do_not() -> None:
    fleet = Fleet()
    fleet.model()
    part = {"runner": ENGINE}
    fleet.runtime(decoderConfig=part, routerConfig=part)
    fleet.service(decoder={}, router={})
    fleet.settle()
    for component in ("engine", "decoder", "router"):
        fleet.up(f"chat-{component}")
        fleet.pod(component, component, phase="Running", conditions=READY)
    settled(fleet)
    assert fleet.status()["modelStatus"]["modelCopies"] == {"totalCopies": 2, "failedCopies": 0}
    fleet = canary()
    for name in ("old", "canary"):
        fleet.pod(name, phase="Running", conditions=READY)
    up_canary(fleet)
    assert fleet.status()["modelStatus"]["modelCopies"] == {"totalCopies": 2, "failedCopies": 0}


def test_an_update_of_a_leader_worker_set_is_not_up_to_date_by_what_it_said_of_the_one_before() -> None:
    fleet = grouped(SETS)
    fleet.up("lws-chat-engine", kind="LeaderWorkerSet", ready=2)
    settled(fleet)
    settled(fleet, UNOBSERVED)
    assert read(fleet)[0] == "UpToDate"
    part = {"runner": {**ENGINE, "image": "engine:2"}}
    fleet.service(engine={"minReplicas": 2, "leader": part, "worker": {"size": 2, **part}})
    settled(fleet, 100)  # its status is still that of the former spec
    assert read(fleet)[0] == "InProgress"
    assert fleet.condition(LATEST)[:2] == ("False", "RollingOut")
    settled(fleet, 100 + UNOBSERVED)
    assert read(fleet)[0] == "UpToDate"
    assert fleet.condition(LATEST)[:2] == ("True", "RolledOut")
