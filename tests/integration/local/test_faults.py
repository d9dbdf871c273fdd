"""Components killed by hand: noticed, reported, back again, and the workloads with them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster_faults import kill, own, wait_for_restart
from cluster_helpers import Namespace, engine, is_ready, process_of, shell

from modelyard.cluster import Cluster, ClusterSettings
from modelyard.local import processes
from modelyard.local.processes import ProcessIdentity
from modelyard.local.settings import Component, NodeGroup, StackSettings
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import DEPLOYMENTS, PODS

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("component", list(Component))
async def test_a_killed_component_is_reported_and_comes_back(local_stack: LocalStack, component: Component) -> None:
    before = own(local_stack, component).restarts
    killed = kill(local_stack, component)
    await asyncio.to_thread(wait_for_restart, local_stack, component, before)

    state = local_stack.state
    assert state is not None
    after = state.components[component]
    assert after.restarts == before + 1
    assert after.last_exit.startswith("SIGKILL at ")
    assert after.process is not None
    assert after.process.alive()
    assert after.process.pid != killed
    assert any(event.component == component and "SIGKILL" in event.message for event in state.events)


async def test_the_cluster_still_works_after_all_that(space: Namespace) -> None:
    await space.deploy("after", engine("--startup-delay", "0"), 2)
    await space.until(lambda pods: len(pods) == 2 and all(map(is_ready, pods.values())))


async def test_engines_outlive_the_agent_and_are_adopted(local_stack: LocalStack, space: Namespace) -> None:
    await space.deploy("kept", engine("--startup-delay", "0"), 2)
    before = await space.until(lambda pods: len(pods) == 2 and all(map(is_ready, pods.values())))
    restarts = own(local_stack, Component.AGENT).restarts
    kill(local_stack, Component.AGENT)
    await asyncio.to_thread(wait_for_restart, local_stack, Component.AGENT, restarts)

    # The new agent notices what happens to a process that it did not start.
    first, second = before
    os.kill(process_of(before[first]).pid, signal.SIGKILL)
    after = await space.until(
        lambda pods: (
            all(map(is_ready, pods.values())) and pods[first]["status"]["containerStatuses"][0]["restartCount"] == 1
        )
    )
    assert process_of(after[second]) == process_of(before[second])
    assert after[second]["status"]["containerStatuses"][0]["restartCount"] == 0
    assert len(after) == 2

    await space.cluster.write_scale(DEPLOYMENTS, "kept", space.name, 0)
    left = process_of(after[second])
    await space.until(lambda pods: not pods)
    assert not left.alive()


async def test_what_happens_while_the_agent_is_away_is_made_up_for(local_stack: LocalStack, space: Namespace) -> None:
    for name in ("dies", "deleted", "forced"):
        await space.run(name, [shell("exec sleep 1000")])
    pods = await space.until(lambda pods: len(pods) == 3 and all(map(is_ready, pods.values())))
    held = {name: process_of(pod) for name, pod in pods.items()}
    agent = own(local_stack, Component.AGENT).process
    assert agent is not None
    restarts = own(local_stack, Component.AGENT).restarts
    assert agent.send(signal.SIGSTOP)
    held["dies"].send(signal.SIGKILL)
    await space.cluster.delete(PODS, "deleted", space.name)
    await space.cluster.delete(PODS, "forced", space.name, grace_seconds=0)
    agent.send(signal.SIGKILL)
    await asyncio.to_thread(wait_for_restart, local_stack, Component.AGENT, restarts)

    after = await space.until(
        lambda pods: (
            set(pods) == {"dies"}
            and is_ready(pods["dies"])
            and pods["dies"]["status"]["containerStatuses"][0]["restartCount"] == 1
        )
    )
    assert process_of(after["dies"]).alive()
    for name in ("deleted", "forced"):
        assert await asyncio.to_thread(processes.wait_all_gone, [held[name]], 120), name


def until_not_running(stack: LocalStack) -> None:
    """A killed process's threads let go of its lock a moment after it is seen dead."""
    for _ in range(1200):
        if not stack.running:
            return
        time.sleep(0.05)
    raise AssertionError("a killed supervisor still holds its lock")


def small(directory: Path) -> LocalStack:
    """A cluster of one node, of its own."""
    settings = StackSettings(
        components=[
            Component.ETCD,
            Component.APISERVER,
            Component.CONTROLLER_MANAGER,
            Component.SCHEDULER,
            Component.AGENT,
        ],
        nodes=[NodeGroup(name="one", count=1, product="NVIDIA-L40S-48GB", gpus=2)],
    )
    return LocalStack(settings, name="faults", directory=directory)


async def engine_process(stack: LocalStack) -> ProcessIdentity:
    async with Cluster.connect(ClusterSettings(kubeconfig=stack.kubeconfig)) as cluster:
        space = Namespace(cluster, "default")
        await space.run("one", [shell("exec sleep 1000")])
        pods = await space.until(lambda pods: "one" in pods and is_ready(pods["one"]))
    return process_of(pods["one"])


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """A killed supervisor's children go at the next start; its data and pods stay; `stop` leaves nothing."""
    stack = small(tmp_path / "cluster")
    try:
        await nothing_left_behind(stack)
    finally:
        await asyncio.to_thread(stack.stop)


async def nothing_left_behind(stack: LocalStack) -> None:
    await asyncio.to_thread(stack.start)
    engine = await engine_process(stack)
    state = stack.state
    assert state is not None
    first = state.processes()
    assert len(first) == 5

    state.supervisor.send(signal.SIGKILL)
    await asyncio.to_thread(until_not_running, stack)
    assert all(process.alive() for process in [*first, engine])

    await asyncio.to_thread(stack.start)
    assert not any(process.alive() for process in [*first, engine])
    again = stack.state
    assert again is not None
    assert again.slot == state.slot
    async with Cluster.connect(ClusterSettings(kubeconfig=stack.kubeconfig)) as cluster:
        space = Namespace(cluster, "default")
        pods = await space.until(
            lambda pods: is_ready(pods["one"]) and pods["one"]["status"]["containerStatuses"][0]["restartCount"] == 1
        )
    engine = process_of(pods["one"])

    await asyncio.to_thread(stack.stop)
    assert not any(process.alive() for process in [*again.processes(), again.supervisor, engine])
    assert not stack.paths.root.exists()


async def test_a_cluster_ends_with_the_process_it_was_made_for(tmp_path: Path) -> None:
    """Even when that process is killed and cannot clean up."""
    directory = tmp_path / "cluster"
    script = (
        "import sys, pathlib\n"
        "from modelyard.local.settings import Component, StackSettings\n"
        "from modelyard.local.stack import LocalStack\n"
        "settings = StackSettings(components=[Component.ETCD])\n"
        "LocalStack(settings, directory=pathlib.Path(sys.argv[1])).start()\n"
        "print('up', flush=True)\n"
        "sys.stdin.read()\n"
    )
    child = await asyncio.to_thread(
        subprocess.Popen,
        [sys.executable, "-c", script, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **processes.python_path_environment()},
    )
    assert child.stdout is not None
    assert await asyncio.to_thread(child.stdout.readline) == b"up\n"
    stack = LocalStack(directory=directory)
    state = stack.state
    assert state is not None
    running = [*state.processes(), state.supervisor]
    assert all(process.alive() for process in running)
    child.kill()
    child.wait()
    assert await asyncio.to_thread(processes.wait_all_gone, running, 120)
    stack.stop()
