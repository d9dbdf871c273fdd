"""Many files, many jobs: a hundred thousand small files, jobs side by side on one node, one that is told to end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_hub import Hub
from node_jobs import Node

from modelyard.models.download import node as jobs
from modelyard.models.download.pace import Limits
from modelyard.models.download.store import ModelRecord, NodeStore
from modelyard.models.sources import Listing, SourceFile

FILES = {"config.json": b"{}", "w.safetensors": bytes(range(256)) * 4000}


class Numbers:
    """A source of so many files, each with its number in it. No server: what is shown is how much the node can take."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.reads = 0

    def list(self) -> Listing:
        names = (f"{number % 100}/{number}.txt" for number in range(self.count))
        return Listing("numbers", "1", tuple(SourceFile(name, len(name), name) for name in names))

    def read(self, file: SourceFile, start: int, length: int) -> Iterator[bytes]:
        self.reads += 1
        yield file.name.encode()[start : start + length]


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_many_small_files(count: int) -> None:
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=fast) as folder, NodeStore(Path(folder)) as store:
        source, root = Numbers(count), Path(folder)
        request = jobs.FetchRequest("s3://numbers", root, f"{folder}/m", "m", limits=Limits(parallel=4))
        for expected in (count, count):
            report = jobs.Report()
            record = ModelRecord("m", "m", request.uri)
            jobs.bring(store, source, record, request, report, jobs.Progress(lambda _: None))
            assert (report.outcome, report.files, source.reads) == ("Fetched", count, expected)
        assert (root / "m" / "99" / f"{count - 1}.txt").read_text() == f"99/{count - 1}.txt"
        assert sum(1 for _ in root.rglob("*.txt")) == count
        store.remove("m", {})
        store.collect()
        assert not (root / "m").exists()


def test_jobs_side_by_side_fetch_one_copy(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    reports: list[jobs.Report] = []

    def fetch(number: int) -> None:
        reports.append(node.fetch("hf://o/m", f"clusterbasemodel.m{number}", f"m{number}"))

    threads = [threading.Thread(target=fetch, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.outcome for report in reports] == ["Fetched"] * 4
    assert sum(not report.fromStore for report in reports) == 1
    assert hub.bytes_served == sum(map(len, FILES.values())) + 3 * len(FILES), "three prove each file with one byte"
    assert len(node.entries()) == 1
    for number in range(4):
        assert node.files(f"m{number}") == FILES
        node.remove(f"clusterbasemodel.m{number}")
    assert node.leftovers() == node.entries() == []


def test_a_job_that_is_told_to_end_says_so_and_the_next_one_carries_on(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    command = [sys.executable, "-m", "modelyard.cli.main", "node", "fetch", "--uri", "hf://o/m"]
    command += ["--endpoint", hub.address]
    command += ["--root", str(node.root), "--path", str(node.root / "m"), "--model", "clusterbasemodel.m"]
    command += ["--part-size", "65536", "--bandwidth", "200000"]
    halfway = threading.Event()
    hub.hear = lambda served: halfway.set() if served > 300_000 else None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert halfway.wait(60)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate()
    assert process.returncode == 75
    report = json.loads(out.splitlines()[-1])
    assert (report["outcome"], report["reason"], report["retryable"]) == ("Failed", "Interrupted", True)
    assert not (node.root / "m").exists()
    hub.hear = lambda _: None
    done = node.fetch("hf://o/m")
    assert done.outcome == "Fetched"
    assert node.files() == FILES
    assert done.fetchedBytes < len(FILES["w.safetensors"])
