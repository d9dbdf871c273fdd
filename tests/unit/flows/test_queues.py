"""Work queues of the pool: declared once, and each deployment in the right one."""

from __future__ import annotations

from collections import defaultdict

from deployments.bootstrap import read
from deployments.queues import QUEUES
from flows.reconcile import lifecycles
from modelyard.reconcile.plans.run_limits import PLACES, RUNS

DECLARED = {queue.name: queue for queue in QUEUES}


def deployments_by_queue() -> dict[str, set[str]]:
    queues = defaultdict(set)
    for deployment in read()["deployments"]:
        queues[deployment["work_pool"]["work_queue_name"]].add(deployment["name"])
    return queues


def test_every_deployment_is_in_a_declared_queue() -> None:
    queues = deployments_by_queue()
    assert set(queues) == set(DECLARED)
    assert queues["shifts"] == {"autoscale", "autoscale-once", "reconcile"}
    assert queues["parents"] == {"onboard"}, "it waits for runs of the others"
    acting = {item.acting.deployment.partition("/")[2] for item in lifecycles("home") if item.acting}
    assert acting == {"deliver", "roll-out", "benchmark"}
    assert acting <= queues[RUNS]


def test_shifts_come_first_without_a_limit() -> None:
    assert [(queue.name, queue.priority) for queue in QUEUES] == [("shifts", 1), (RUNS, 2), ("parents", 3)]
    assert DECLARED["shifts"].limit is None
    assert DECLARED[RUNS].limit == PLACES
    assert DECLARED["parents"].limit, "waiting parents cannot fill a worker"
