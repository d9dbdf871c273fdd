"""Work queues of the pool: declared once, and each deployment in the right one."""

from __future__ import annotations

from collections import defaultdict

from deployments.bootstrap import read
from deployments.command import LIMIT
from deployments.pool import STANDING
from deployments.queues import QUEUES
from flows.reconcile import lifecycles
from modelyard.reconcile.run_limits import PLACES, RUNS

DECLARED = {queue.name: queue for queue in QUEUES}


def deployments_by_queue() -> dict[str, set[str]]:
    queues = defaultdict(set)
    for deployment in read()["deployments"]:
        queues[deployment["work_pool"]["work_queue_name"]].add(deployment["name"])
    return queues


def test_every_deployment_is_in_a_declared_queue_and_runs_that_tenants_cause_in_one_of_their_own() -> None:
    queues = deployments_by_queue()
    assert set(queues) == set(DECLARED) - {RUNS}, "that is for the runs that the reconcile shift creates"
    assert queues["shifts"] == {"autoscale", "autoscale-once", "reconcile"}
    assert queues["parents"] == {"onboard"}, "it waits for runs of the others"
    acting = {item.acting.deployment.partition("/")[2] for item in lifecycles("home") if item.acting}
    assert acting <= queues["manual"], "started by hand they take no place of those"
    assert acting == {"deliver", "roll-out", "benchmark"}


def test_shifts_come_first_without_a_limit_and_the_others_leave_them_room_at_a_worker() -> None:
    assert [(queue.name, queue.priority) for queue in QUEUES] == [
        ("shifts", 1), (RUNS, 2), ("manual", 3), ("parents", 4),
    ]  # fmt: skip
    assert DECLARED["shifts"].limit is None
    assert DECLARED[RUNS].limit == PLACES
    bounded = sum(queue.limit for queue in QUEUES if queue.limit is not None)
    scheduled = [item for item in read()["deployments"] if item["parameters"].get("shift_seconds")]
    at_a_hand_over = STANDING + 1
    assert len(scheduled) == 2
    assert bounded + len(scheduled) * at_a_hand_over <= LIMIT
