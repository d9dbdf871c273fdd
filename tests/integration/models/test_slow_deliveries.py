"""Sources without end or speed, and disks without space: a delivery ends and takes nothing from its neighbours."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import small_disk
from model_hub import Hub
from node_jobs import QUICK, Node
from plain_bucket import Bucket, serve

from modelyard.models.download.node import Report
from modelyard.models.download.pace import DiskLimits, Limits
from modelyard.models.download.store import EXPECTED, NodeStore
from modelyard.models.sources.http import Http

WEIGHTS = bytes(range(256)) * 4000
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted for it")


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with serve() as served:
        served.objects = {"m/w.safetensors": WEIGHTS}
        yield served


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk.mounted(folder):
        yield folder


def test_a_source_that_sends_byte_by_byte_is_left(bucket: Bucket, node: Node) -> None:
    """Finding 7: each byte renewed the patience, for ever."""
    bucket.drip = 50
    limits = replace(QUICK, parallel=1, window=0.5, minimum_rate=10_000.0, patience=600.0)
    failed = node.fetch("s3://models/m", endpoint=bucket.address, limits=limits)
    assert (failed.outcome, failed.reason, failed.retryable) == ("Failed", "SourceTooSlow", True)
    assert "minimumRate" in failed.message
    assert bucket.sent <= bucket.drip
    bucket.drip = 0
    patient = replace(limits, window=60.0)  # half a second may be one in which a busy machine does not come to it
    assert node.fetch("s3://models/m", endpoint=bucket.address, limits=patient).outcome == "Fetched"


@pytest.mark.parametrize("endless", ["new", "same"])
def test_empty_pages_without_end_end(bucket: Bucket, node: Node, endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding 7: nothing counted pages that list nothing."""
    monkeypatch.setattr("modelyard.models.sources.source.MOST_PAGES", 20)
    bucket.endless = endless
    failed = node.fetch("s3://models/m", endpoint=bucket.address, limits=replace(QUICK, patience=0.1))
    assert failed.outcome == "Failed"
    if endless == "new":
        assert (failed.reason, failed.retryable) == ("UnsupportedSource", False)
        assert "more than 20 pages" in failed.message
        assert len(bucket.lists) == 20
    else:
        assert "which was read before" in failed.message
        assert len(bucket.lists) == 2


@pytest.mark.parametrize("same", [True, False])
def test_pages_of_a_hub_without_end_end(hub: Hub, node: Node, same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.models.sources.source.MOST_PAGES", 20)
    hub.add("o/m", {"config.json": b"{}"})
    hub.endless = "same" if same else "new"
    failed = node.fetch("hf://o/m", limits=replace(QUICK, patience=0.1))
    assert failed.outcome == "Failed"
    assert ("which was read before" if same else "more than 20 pages") in failed.message
    assert len([request for request in hub.requests if "/tree/" in request]) <= 20


def test_a_page_without_end_ends(hub: Hub, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.models.sources.source.LISTING_BYTES", 5000)
    hub.add("o/m", {f"{number}.json": b"{}" for number in range(100)})
    failed = node.fetch("hf://o/m")
    assert (failed.reason, failed.retryable) == ("UnsupportedSource", False)
    assert "larger than 5000 bytes" in failed.message


@pytest.mark.parametrize("listed", [len(WEIGHTS) * 10, 1, 0])
def test_sizes_that_lie_bring_no_file(bucket: Bucket, node: Node, listed: int) -> None:
    bucket.objects["m/config.json"] = b"{}"
    bucket.listed["m/w.safetensors"] = listed
    failed = node.fetch("s3://models/m", endpoint=bucket.address, limits=replace(QUICK, patience=0.1))
    assert failed.outcome == "Failed" or (node.root / "m" / "w.safetensors").stat().st_size == listed
    assert bucket.sent <= 20 * len(WEIGHTS)


def test_a_namespace_has_its_share_of_bytes_and_files(bucket: Bucket, node: Node) -> None:
    bucket.objects = {f"{name}/w{n}.bin": bytes([n]) * 4096 for name in ("m", "n") for n in range(10)}
    bucket.objects |= {f"deep/{'d/' * 20}{n}": b"x" for n in range(2)}

    def fetch(name: str, namespace: str, **limits: int) -> tuple[str | None, str]:
        report = node.fetch(
            f"s3://models/{name}",
            f"{namespace}.basemodel.{name}",
            f"{namespace}/{name}",
            endpoint=bucket.address,
            limits=replace(QUICK, disk=DiskLimits(**{f"namespace_{key}": value for key, value in limits.items()})),
        )
        return report.reason, report.message

    assert fetch("m", "a", bytes=50_000)[0] is None
    reason, message = fetch("n", "a", bytes=50_000)
    assert reason == "NamespaceLimit"
    assert "models of namespace a have 40.0 KiB on this node and may have 48.8 KiB (bytesPerNamespace)" in message
    assert fetch("n", "b", bytes=50_000)[0] is None, "another namespace has its own share, also of a common copy"
    assert "(filesPerNamespace)" in fetch("deep", "a", files=25)[1], "folders are files, too"
    assert fetch("deep", "a", files=40)[0] is None
    assert fetch("n", "a", bytes=100_000)[0] is None, "a limit that is raised is enough"


@ROOT
def test_a_delivery_leaves_the_floor_free(bucket: Bucket, disk: Path) -> None:
    node = Node(disk, bucket.address)
    limits = replace(QUICK, disk=DiskLimits(free_percent=60))
    refused = node.fetch("s3://models/m", limits=limits)
    assert (refused.reason, refused.retryable, refused.fetchedBytes) == ("DiskPressure", True, 0)
    assert "1.2 MiB must stay free (freeDiskPercent)" in refused.message
    assert node.fetch("s3://models/m", limits=QUICK).outcome == "Fetched"


@ROOT
def test_a_stalled_delivery_gives_its_reservation_back(hub: Hub, disk: Path) -> None:
    """Finding 7: the neighbour got DiskPressure while one byte arrived every ten seconds."""
    node, begun, go_on = Node(disk, hub.address), threading.Event(), threading.Event()
    weights = WEIGHTS + WEIGHTS[: len(WEIGHTS) // 2]
    hub.add("o/m", {"w.safetensors": weights})
    hub.add("o/n", {"w.safetensors": weights[::-1]})

    def hold(served: int) -> None:
        begun.set()
        go_on.wait(60)

    hub.hear = hold
    reports: list[Report] = []
    stalled = threading.Thread(target=lambda: reports.append(node.fetch("hf://o/m", limits=Limits(patience=0.1))))
    stalled.start()
    assert begun.wait(60)
    assert node.fetch("hf://o/n", "a.basemodel.n", "a/n").reason == "DiskPressure"
    hub.hear = lambda _: None
    with NodeStore(disk) as store:
        (digest,) = store.home.names("partial")
        assert store.promise_of(digest)[0] >= len(WEIGHTS) - 20 * 65536
        # As after a minute in which nothing was renewed.
        old = time.time() - 120
        os.utime(disk / ".modelyard" / "partial" / digest / EXPECTED, (old, old))
        assert store.promise_of(digest) == (0, 0)
    assert node.fetch("hf://o/n", "a.basemodel.n", "a/n").outcome == "Fetched"
    go_on.set()
    stalled.join()
    assert reports[0].reason == "DiskPressure", "its own space is gone, and it says so"
    assert node.files("a/n") == {"w.safetensors": weights[::-1]}
    node.remove("a.basemodel.n")
    again = node.fetch("hf://o/m")
    assert again.outcome == "Fetched", again.message


def test_what_failed_of_an_earlier_state_is_removed(bucket: Bucket, node: Node) -> None:
    """A source that changes with every attempt leaves no more than one partial entry behind."""
    for number in range(4):
        bucket.objects["m/config.json"] = b"%d" % number
        bucket.objects["m/z.bin"] = WEIGHTS
        bucket.denied = set()
        bucket.drip = 10
        limits = replace(QUICK, patience=0.0)
        assert node.fetch("s3://models/m", endpoint=bucket.address, limits=limits).outcome == "Failed"
        with NodeStore(node.root) as store:
            assert len(store.home.names("partial")) == 1


def test_the_body_of_a_redirect_is_not_read_to_its_end(bucket: Bucket) -> None:
    bucket.objects["big"], bucket.moved["old"] = bytes(1 << 20), "big"
    http = Http(bucket.address, {}, 1)
    assert b"".join(http.read(f"{bucket.address}/models/old", 1 << 20, 0, 10)) == bytes(10)
    assert bucket.sent < 64 << 20
