"""Fixtures of the whole suite: a real control plane, and a real local cluster with nodes, engines and Prometheus.

Both are started once per test session, on ports and in folders of their own, and end with the session even if it is
killed. Tests keep apart by using namespaces of their own (fixture `namespace`).
"""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from crds import apply_crds
from examples import register_profiles
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from modelyard.cluster import Cluster, ClusterSettings, Forbidden, Unavailable
from modelyard.local.settings import CONTROL_PLANE, EVERYTHING, StackSettings
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import NAMESPACES, PODS

register_profiles()
# Started in the background, as continuous integration may be, all that we start would not hear an interrupt either.
signal.signal(signal.SIGINT, signal.default_int_handler)

_ROOT = "tests/integration/"
ONE_WORKER = (
    # Flow runs on a cluster: Prefect, the control plane and the local cluster.
    tuple(
        f"{_ROOT}prefect/test_{name}"
        for name in (
            *("onboarding_children", "prefect_benchmark", "prefect_deliver", "prefect_onboard", "prefect_refit"),
            *("prefect_roll_out", "prefect_route_roll_out", "prefect_kubernetes"),
        )
    ),
    # It expects no deployments, pools and automations but its own.
    (f"{_ROOT}prefect/test_prefect_deployments",),
    # Flow runs on the control plane, or on no cluster at all.
    (f"{_ROOT}prefect/",),
    (f"{_ROOT}local/", f"{_ROOT}deliveries/"),
    (f"{_ROOT}services/",),
    (f"{_ROOT}live/", f"{_ROOT}workloads/"),
    tuple(f"{_ROOT}{folder}/" for folder in ("bindings", "crds", "routing", "cluster", "reconcile")),
)
"""Tests that share servers; each group runs on one worker, which starts them once. The longest group comes first.

A control plane costs some eight seconds of CPU to start and 4% of a core while it idles.
"""

LONGEST_FIRST = (*(folder for folders in ONE_WORKER for folder in folders), "tests/e2e/", _ROOT)
"""Order of the tests side by side; those of no such folder come last."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Side by side, the files that take longest start first, so that short ones fill the gaps at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: [not item.nodeid.startswith(folder) for folder in LONGEST_FIRST])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """How `pytest -n` deals out the tests."""
    config.option.loadscopereorder = False
    return ByServer(config, log)


class ByServer(LoadScopeScheduling):
    """Files are dealt out whole; files that share costly servers go to one worker, which starts them once."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return next((folders[0] for folders in ONE_WORKER if file.startswith(folders)), file)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A verdict that depends on the machine carries the reason with it."""
    for mark in item.iter_markers("timing_sensitive"):
        item.user_properties.append(("timing_sensitive", mark.args[0]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many verdicts depended on how busy the machine was, and of those that are bad, why."""
    ran = {"passed": 0, "failed": 0}
    for outcome in ran:
        for report in terminalreporter.getreports(outcome):
            for why in (value for name, value in report.user_properties if name == "timing_sensitive"):
                if report.when == "call":
                    ran[outcome] += 1
                if outcome == "failed":
                    terminalreporter.write_line(f"timing sensitive: {report.nodeid}: {why}")
    if sum(ran.values()):
        terminalreporter.write_line(f"{sum(ran.values())} timing-sensitive tests ran, {ran['failed']} of them failed")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """etcd, API server, controller-manager and scheduler, with our CRDs; `.kubeconfig` is what a test needs."""
    settings = StackSettings(components=list(CONTROL_PLANE))
    with LocalStack(settings, name="control-plane", directory=tmp_path_factory.mktemp("control-plane")) as stack:
        asyncio.run(apply_crds(stack.kubeconfig))
        yield stack


@pytest.fixture(scope="session")
def local_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Everything: the control plane with our CRDs, Nodes with GPUs, the agent, Prometheus scraping every second."""
    settings = StackSettings(components=list(EVERYTHING), scrape_interval="1s", backoff_scale=0.05)
    with LocalStack(settings, name="local-stack", directory=tmp_path_factory.mktemp("local-stack")) as stack:
        asyncio.run(apply_crds(stack.kubeconfig))
        yield stack


@pytest.fixture(scope="session")
async def control_plane_cluster(control_plane: LocalStack) -> AsyncIterator[Cluster]:
    """A connection to `control_plane`."""
    async with Cluster.connect(ClusterSettings(kubeconfig=control_plane.kubeconfig)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
async def local_cluster(local_stack: LocalStack) -> AsyncIterator[Cluster]:
    """A connection to `local_stack`."""
    async with Cluster.connect(ClusterSettings(kubeconfig=local_stack.kubeconfig)) as cluster:
        yield cluster


async def _namespace(cluster: Cluster) -> AsyncIterator[str]:
    name = f"test-{uuid.uuid4().hex[:10]}"
    await cluster.create(NAMESPACES, {"metadata": {"name": name}})
    # Pods are refused until the controller-manager has made the namespace's service account (and, long ago, its token).
    pod = {"metadata": {"name": "try"}, "spec": {"containers": [{"name": "try", "image": "modelyard.dev/none"}]}}
    async with asyncio.timeout(120):
        while True:
            try:
                await cluster.create(PODS, pod, name, dry_run=True)
                break
            except (Forbidden, Unavailable):
                await asyncio.sleep(0.05)
    yield name
    await cluster.delete(NAMESPACES, name)


@pytest.fixture
async def namespace(control_plane_cluster: Cluster) -> AsyncIterator[str]:
    """A fresh namespace in `control_plane`, deleted after the test."""
    async for name in _namespace(control_plane_cluster):
        yield name


@pytest.fixture
async def other_namespace(control_plane_cluster: Cluster) -> AsyncIterator[str]:
    """Another one, somebody else's."""
    async for name in _namespace(control_plane_cluster):
        yield name


@pytest.fixture
async def local_namespace(local_cluster: Cluster) -> AsyncIterator[str]:
    """A fresh namespace in `local_stack`, deleted after the test."""
    async for name in _namespace(local_cluster):
        yield name
