"""Kubernetes Events: shown, counted, and never in the way."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from cluster_manifests import WIDGETS, widget
from tcp_proxy import TcpProxy

from modelyard.cluster import Cluster, ClusterSettings
from modelyard.cluster.objects import Object
from modelyard.local.stack import LocalStack
from modelyard.objects.kinds import EVENTS

pytestmark = pytest.mark.integration


async def events_about(cluster: Cluster, namespace: str, name: str) -> list[Object]:
    listed = await cluster.list(EVENTS, namespace, field_selector=f"involvedObject.name={name}")
    return sorted(listed.items, key=lambda event: event["message"])


async def test_what_describe_shows(cluster: Cluster, place: str) -> None:
    made = await cluster.create(WIDGETS, widget("w", place, color="red"))
    await cluster.record_event(made, "Scaled", "from 1 to 2", kind="Warning", component="tester")
    (event,) = await events_about(cluster, place, "w")
    assert event["involvedObject"] == {
        "apiVersion": "test.modelyard.dev/v1",
        "kind": "Widget",
        "namespace": place,
        "name": "w",
        "uid": made["metadata"]["uid"],
        "resourceVersion": made["metadata"]["resourceVersion"],
    }
    assert (event["reason"], event["message"], event["type"]) == ("Scaled", "from 1 to 2", "Warning")
    assert (event["count"], event["source"]) == (1, {"component": "tester"})
    assert event["firstTimestamp"] == event["lastTimestamp"]


async def test_a_repetition_raises_the_count(cluster: Cluster, place: str) -> None:
    made = await cluster.create(WIDGETS, widget("w", place, color="red"))
    for _ in range(3):
        await cluster.record_event(made, "Limited", "no GPUs")
    await cluster.record_event(made, "Limited", "one GPU")
    await cluster.record_event(made, "Scaled", "one GPU")
    found = await events_about(cluster, place, "w")
    assert sorted((event["reason"], event["message"], event["count"]) for event in found) == [
        ("Limited", "no GPUs", 3),
        ("Limited", "one GPU", 1),
        ("Scaled", "one GPU", 1),
    ]


async def test_the_next_process_goes_on_counting(api_server: LocalStack, cluster: Cluster, place: str) -> None:
    made = await cluster.create(WIDGETS, widget("w", place, color="red"))
    settings = ClusterSettings(kubeconfig=api_server.kubeconfig, event_window=10**9)  # no window ends during the test
    for _ in range(3):
        async with Cluster.connect(settings) as process:
            await process.record_event(made, "Limited", "no GPUs")
    (event,) = await events_about(cluster, place, "w")
    assert event["count"] == 3


async def test_after_the_window_it_is_a_new_event(api_server: LocalStack, cluster: Cluster, place: str) -> None:
    made = await cluster.create(WIDGETS, widget("w", place, color="red"))
    settings = ClusterSettings(kubeconfig=api_server.kubeconfig, event_window=1e-6)
    async with Cluster.connect(settings) as process:
        begun = process.now()
        await process.record_event(made, "Limited", "no GPUs")
        while process.now() < begun + 1:  # an answer may correct the estimate of the server's time backwards
            await asyncio.sleep(0.1)
        await process.record_event(made, "Limited", "no GPUs")
    assert [event["count"] for event in await events_about(cluster, place, "w")] == [1, 1]


async def test_an_event_that_the_server_dropped_is_made_anew(cluster: Cluster, place: str) -> None:
    made = await cluster.create(WIDGETS, widget("w", place, color="red"))
    await cluster.record_event(made, "Limited", "no GPUs")
    (event,) = await events_about(cluster, place, "w")
    await cluster.delete(EVENTS, event["metadata"]["name"], place)
    await cluster.record_event(made, "Limited", "no GPUs")
    (event,) = await events_about(cluster, place, "w")
    assert event["count"] == 1


async def test_references_cluster_wide_objects_and_long_messages(cluster: Cluster) -> None:
    reference = {"apiVersion": "v1", "kind": "Node", "name": "n-events", "uid": "u"}
    await cluster.record_event(reference, "Long", "x" * 5000)
    (event,) = await events_about(cluster, "default", "n-events")
    assert event["involvedObject"]["kind"] == "Node"
    assert len(event["message"]) == 1024


async def test_an_event_that_cannot_be_recorded_is_logged_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "no-such-namespace"}
    with caplog.at_level(logging.WARNING, "modelyard.cluster"):
        for number in range(3):
            await cluster.record_event(nowhere, "Lost", f"number {number}")
    lost = [record.message for record in caplog.records if "is lost" in record.message]
    assert len(lost) == 1
    assert "Event Lost about p is lost: create Event no-such-namespace/p." in lost[0]


async def test_an_unreachable_server_is_no_error(
    api_server: LocalStack, proxy: TcpProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.refuse = True
    async with Cluster.connect(ClusterSettings(kubeconfig=proxy.kubeconfig(api_server.kubeconfig, tmp_path))) as away:
        await away.record_event({"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "default"}, "Lost", "x")
    assert "Event Lost about p is lost" in caplog.text
