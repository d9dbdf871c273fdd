"""What sources and disks do wrong: told with a reason and a remedy, retried where it helps, never half a file."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import pytest
import small_disk
from model_hub import Fault, Hub
from node_jobs import QUICK, Node

from modelyard.models.download.node import Report
from modelyard.models.download.pace import Limits
from modelyard.models.sources.http import CHUNK

WEIGHTS = bytes(range(256)) * 4000
FILES = {"config.json": b"{}", "w.safetensors": WEIGHTS, "big.json": b"[]" * 3000}
CDN, RESOLVE, TREE, REVISION = "^/cdn/", "/resolve/", "/tree/", "/revision/"


@pytest.mark.parametrize(
    ("path", "status", "reason", "retryable", "said"),
    [
        (REVISION, 401, "Unauthorized", False, "Secret"),
        (REVISION, 403, "Forbidden", False, "ask its owner"),
        (TREE, 404, "NotFound", False, "check name, revision"),
        (CDN, 401, "Unauthorized", False, "Secret"),
        (RESOLVE, 403, "Forbidden", False, "ask its owner"),
        (CDN, 410, "NotFound", False, "check name"),
        (CDN, 400, "SourceRefused", False, "does not understand"),
        (CDN, 416, "SourceChanged", True, "has changed"),
        (CDN, 429, "RateLimited", True, "asks to wait"),
        (CDN, 500, "SourceUnavailable", True, "in trouble"),
        (RESOLVE, 503, "SourceUnavailable", True, "in trouble"),
    ],
)
def test_what_a_hub_refuses_with(
    hub: Hub, node: Node, path: str, status: int, reason: str, retryable: bool, said: str
) -> None:
    hub.add("o/m", FILES)
    hub.faults.append(Fault(path, 1000, status=status))
    failed = node.fetch("hf://o/m", limits=Limits(patience=0.3))
    assert (failed.outcome, failed.reason, failed.retryable) == ("Failed", reason, retryable)
    assert said in failed.message
    assert not (node.root / "m").exists()
    hub.faults.clear()
    assert node.fetch("hf://o/m").outcome == "Fetched"
    assert node.files() == FILES


def test_repositories_that_are_not_there_or_not_for_everybody(
    hub: Hub, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("o/m", FILES, token="right")
    assert node.fetch("hf://o/m").reason == "Unauthorized"
    monkeypatch.setenv("HF_TOKEN", "wrong")
    refused = node.fetch("hf://o/m")
    assert refused.reason == "Forbidden"
    assert "GatedRepo" in refused.message
    assert "wrong" not in refused.message
    assert node.fetch("hf://o/none").reason == "NotFound"
    monkeypatch.setenv("HF_TOKEN", "right")
    assert node.fetch("hf://o/m@v9").reason == "NotFound"
    assert node.fetch("hf://o/m").outcome == "Fetched"


def test_a_token_is_sent_to_the_hub_and_to_nobody_that_it_sends_to(
    hub: Hub, node: Node, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hub.add("o/m", FILES, token="secret")
    folder = tmp_path_factory.mktemp("secret")
    (folder / "mine").write_text("secret\n")
    for elsewhere in (f"../{folder.name}/mine", str(folder / "mine")):
        assert node.fetch("hf://o/m", credentials=folder, token_key=elsewhere).reason == "Unauthorized"
    hub.forget()
    assert node.fetch("hf://o/m", credentials=folder, token_key="mine").outcome == "Fetched"
    sent = dict(hub.secrets)
    assert {value for path, value in sent.items() if "/cdn/" in path} == {None}
    assert {value for path, value in sent.items() if "/cdn/" not in path} == {"Bearer secret"}
    assert not any(b"secret" in file.read_bytes() for file in node.root.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    "fault",
    [
        Fault(CDN, 3, reset_after=30_000),
        Fault(CDN, 3, reset_after=0),
        Fault(CDN, 3, end_after=50_000),
        Fault(RESOLVE, 2, status=500),
        Fault(CDN, 2, status=502),
        Fault(CDN, 2, status=429),
        Fault(TREE, 1, status=503),
        Fault(REVISION, 1, status=500),
        Fault(CDN, 1, flip=True),
        Fault(RESOLVE, 1, flip=True),
        Fault(TREE, 1, body=b"<html>"),
        Fault(REVISION, 1, body=b'{"sha": 7}'),
        Fault(CDN, 1000, ignore_ranges=True),
        Fault(CDN, 2, ignore_ranges=True),
        Fault(CDN, 3, ignore_ranges=True, reset_after=200_000),
    ],
    ids=lambda fault: "-".join(f"{k}={v}" for k, v in vars(fault).items() if v not in (None, False, {})),
)
def test_what_passes_is_overcome(hub: Hub, node: Node, fault: Fault) -> None:
    hub.add("o/m", FILES)
    hub.faults.append(fault)
    report = node.fetch("hf://o/m", limits=Limits(parallel=4, part_size=65536, patience=60))
    assert report.outcome == "Fetched", report.message
    assert node.files() == FILES
    assert node.check().outcome == "Verified"


def test_an_answer_that_ends_early_costs_a_piece_and_not_the_part(hub: Hub, node: Node) -> None:
    weights = WEIGHTS * 8
    hub.add("o/m", {"w.safetensors": weights})
    hub.faults.append(Fault(CDN, 1, end_after=len(weights) // 2))
    assert node.fetch("hf://o/m", limits=Limits(parallel=1)).outcome == "Fetched"
    assert hub.bytes_served <= len(weights) + CHUNK


@pytest.mark.parametrize("where", [CDN, TREE])
@pytest.mark.parametrize("date", [False, True])
def test_a_source_that_asks_to_wait_is_left_alone_so_long(hub: Hub, node: Node, where: str, date: bool) -> None:
    hub.add("o/m", FILES)
    begin = time.monotonic()
    wait = formatdate(time.time() + 2.5, usegmt=True) if date else "1"
    hub.faults.append(Fault(where, 1, status=429, headers={"Retry-After": wait}))
    assert node.fetch("hf://o/m", limits=Limits(patience=60)).outcome == "Fetched"
    assert time.monotonic() - begin >= 1.0


def test_a_source_that_asks_for_more_patience_than_there_is(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    hub.faults.append(Fault(CDN, 1000, status=429, headers={"Retry-After": "600"}))
    failed = node.fetch("hf://o/m")
    assert (failed.reason, failed.retryable, failed.retryAfter) == ("RateLimited", True, 600.0)


def test_a_copy_that_is_damaged_at_the_source_is_never_linked(hub: Hub, node: Node) -> None:
    hub.add("o/m", {"w.safetensors": WEIGHTS})
    hub.faults.append(Fault(CDN, 1000, flip=True))
    failed = node.fetch("hf://o/m")
    assert (failed.reason, failed.retryable) == ("Corrupt", True)
    assert "w.safetensors" in failed.message
    assert not (node.root / "m").exists()


@pytest.mark.parametrize("body", [WEIGHTS[:-1], WEIGHTS + b"x", b""])
def test_files_of_another_size_than_listed(hub: Hub, node: Node, body: bytes) -> None:
    hub.add("o/m", FILES)
    hub.faults.append(Fault(CDN, 1000, body=body))
    failed = node.fetch("hf://o/m")
    assert (failed.outcome, failed.reason) == ("Failed", "SourceChanged")
    assert failed.retryable
    assert not (node.root / "m").exists()


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../../x", "a//b", ".", "a/./b", "a\\b", "a\nb", "n" * 300, "\ud800"]
)
def test_names_that_would_lead_out_or_cannot_be(hub: Hub, node: Node, name: str) -> None:
    hub.add("o/m", {**FILES, name: b"evil"})
    failed = node.fetch("hf://o/m")
    assert (failed.reason, failed.retryable) == ("HostileName", False)
    assert {file.name for file in node.root.iterdir()} <= {".modelyard"}


def test_a_name_that_is_a_file_and_a_folder(hub: Hub, node: Node) -> None:
    hub.add("o/m", {"a": b"1", "a/b": b"2"})
    assert node.fetch("hf://o/m").reason == "HostileName"


def test_paths_stay_below_their_root(hub: Hub, node: Node, tmp_path: Path) -> None:
    hub.add("o/m", FILES)
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (node.root / "team-a").mkdir()
    (node.root / "team-a" / "out").symlink_to(outside)
    (node.root / "full").mkdir()
    (node.root / "full" / "mine").write_text("mine")
    (node.root / "empty").mkdir()
    below = str(node.root / "team-a")
    for path, more, reason in (
        ("../x", {}, "PathRefused"),
        ("x/../../y", {}, "PathRefused"),
        ("/etc/x", {}, "PathRefused"),
        ("", {}, "PathRefused"),
        (".modelyard/entries/x", {}, "PathRefused"),
        ("team-b/m", {"below": below}, "PathRefused"),
        ("team-a/out/m", {}, "PathRefused"),
        ("team-a/out", {}, "PathOccupied"),
        ("full", {}, "PathOccupied"),
        ("full/mine/m", {}, "PathRefused"),
    ):
        failed = node.fetch("hf://o/m", path=path, **more)
        assert (failed.reason, failed.retryable) == (reason, False), path
    assert list(outside.iterdir()) == []
    assert (node.root / "full" / "mine").read_text() == "mine"
    assert node.fetch("hf://o/m", path="empty").outcome == "Fetched"
    assert node.fetch("hf://o/m", "team-a.basemodel.n", "empty/n").reason in ("PathRefused", "PathOccupied")
    hub.add("o/other", {"config.json": b"{}"})
    assert node.fetch("hf://o/other", "team-a.basemodel.n", "empty").reason == "PathOccupied"
    assert node.files("empty") == FILES


def test_a_link_that_was_made_to_lead_out_is_not_followed_when_a_model_goes(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    outside = node.root.parent / f"{node.root.name}-outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    node.fetch("hf://o/m")
    (node.root / "m").unlink()
    (node.root / "m").symlink_to(outside)
    entry = node.root / ".modelyard" / "entries" / node.entries()[0]
    (entry / "files" / "lead-out").symlink_to(outside)
    assert node.remove().outcome == "Removed"
    assert (outside / "mine").read_text() == "mine"
    assert (node.root / "m").is_symlink(), "it is not ours any more"
    assert node.leftovers() == []


def test_an_address_of_a_metadata_service_is_not_asked(node: Node, hub: Hub) -> None:
    refused = node.fetch("hf://o/m", endpoint="http://169.254.169.254")
    assert (refused.reason, refused.retryable) == ("UnsupportedSource", False)
    hub.add("o/m", FILES)
    hub.faults.append(Fault(RESOLVE, 1000, status=302, headers={"Location": "http://169.254.169.254/latest/"}))
    assert node.fetch("hf://o/m").reason == "UnsupportedSource"


def test_too_small_a_disk_is_told_before_the_first_byte(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    petabyte = [{"type": "file", "path": "w.safetensors", "size": 1 << 50, "oid": "0" * 40}]
    hub.faults.append(Fault(TREE, 1, body=json.dumps(petabyte).encode()))
    failed = node.fetch("hf://o/m")
    assert (failed.reason, failed.retryable, failed.fetchedBytes) == ("DiskPressure", True, 0)
    assert "1126.4 TiB are needed (1024.0 TiB to come and a tenth of all)" in failed.message
    assert hub.bytes_served == 0
    assert node.fetch("hf://o/m").outcome == "Fetched"


@dataclass
class Disk:
    """A small one for whoever may mount; else files of this process have a limit, which is as real an end."""

    folder: Path

    def fill(self) -> None:
        if os.geteuid() != 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
            return
        small_disk.fill(self.folder)

    def free(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        small_disk.free(self.folder)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        yield Disk(folder)
        return
    with small_disk.mounted(folder):
        yield Disk(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted for it")
def test_two_jobs_do_not_fill_together_what_has_room_for_one(hub: Hub, disk: Disk) -> None:
    node, begun, go_on = Node(disk.folder, hub.address), threading.Event(), threading.Event()
    hub.add("o/m", {"w.safetensors": WEIGHTS})
    hub.add("o/n", {"w.safetensors": WEIGHTS[::-1]})

    def hold(served: int) -> None:
        if served > len(WEIGHTS) // 4:
            begun.set()
            go_on.wait(60)

    hub.hear = hold
    reports: list[Report] = []
    first = threading.Thread(target=lambda: reports.append(node.fetch("hf://o/m", limits=Limits(patience=60))))
    first.start()
    assert begun.wait(60)
    refused = node.fetch("hf://o/n", "clusterbasemodel.n", "n")
    assert (refused.reason, refused.retryable, refused.fetchedBytes) == ("DiskPressure", True, 0)
    assert "of which other downloads will take" in refused.message
    go_on.set()
    first.join()
    assert [report.outcome for report in reports] == ["Fetched"]
    node.remove()
    assert node.fetch("hf://o/n", "clusterbasemodel.n", "n").outcome == "Fetched"
    assert node.leftovers() == []


def test_a_disk_that_fills_up_meanwhile(hub: Hub, disk: Disk) -> None:
    """Somebody else writes as well; when there is space again, what was fetched is not fetched again."""
    node = Node(disk.folder, hub.address)
    hub.add("o/m", {"w.safetensors": WEIGHTS})
    filled: list[int] = []

    def fill(served: int) -> None:
        if served > len(WEIGHTS) // 2 and not filled:
            filled.append(served)
            disk.fill()

    hub.hear = fill
    failed = node.fetch("hf://o/m")
    disk.free()
    assert (failed.reason, failed.retryable) == ("DiskPressure", True)
    assert not (disk.folder / "m").exists()
    assert node.fetch("hf://o/m").outcome == "Fetched"
    assert node.files() == {"w.safetensors": WEIGHTS}
    assert hub.bytes_served <= len(WEIGHTS) + 2 * QUICK.parallel * QUICK.part_size
