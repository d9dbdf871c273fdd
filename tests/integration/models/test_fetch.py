"""A model's files on a node: complete, verified, shared between models, repaired, removed when nobody needs them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from command_line import modelyard
from huggingface_hub import snapshot_download
from model_hub import Fault, Hub
from node_jobs import Node, patterns

from modelyard.models.delivery.legs import told
from modelyard.models.download import node as jobs
from modelyard.models.download.filters import FileRules
from modelyard.models.download.pace import Limits
from modelyard.models.execution.transfers import progress_of

WEIGHTS = bytes(range(256)) * 2000
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": WEIGHTS[::-1],
    "tokenizer/merges and more.txt": b"a b\n" * 300,
    "empty": b"",
}


def test_what_is_on_the_node_is_what_the_source_has(hub: Hub, node: Node) -> None:
    commit = hub.add("o/m", {**FILES, "pytorch_model.bin": WEIGHTS})
    report = node.fetch("hf://o/m")
    assert (report.outcome, report.revision, report.files) == ("Fetched", commit, len(FILES))
    assert report.bytes == report.fetchedBytes == sum(map(len, FILES.values()))
    assert not report.fromStore
    assert node.files() == FILES
    assert str((node.root / "m").readlink()) == f".modelyard/entries/{node.entries()[0]}/files"
    assert not Path(node.root / "m" / "journal").exists()


def test_our_small_hub_is_a_hub_to_the_library_too(hub: Hub, node: Node, tmp_path: Path) -> None:
    """What the library's own download gives is what ours gives: the hub of these tests speaks what is really asked."""
    hub.add("o/m", FILES)
    theirs = snapshot_download("o/m", endpoint=hub.address, cache_dir=tmp_path / "cache", token=False)
    node.fetch("hf://o/m")
    assert {str(f.relative_to(theirs)): f.read_bytes() for f in Path(theirs).rglob("*") if f.is_file()} == node.files()


def test_a_second_run_asks_for_the_list_and_fetches_nothing(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    first = node.fetch("hf://o/m")
    hub.forget()
    again = node.fetch("hf://o/m")
    assert (again.outcome, again.fetchedBytes, again.fromStore) == ("Fetched", 0, True)
    assert again.manifestSha256 == first.manifestSha256
    assert all("/api/" in request for request in hub.requests)
    hub.forget()
    assert node.fetch("hf://o/m", reuse=True).outcome == "Fetched"
    assert hub.requests == []


def test_a_tree_of_many_pages_and_folders(hub: Hub, node: Node) -> None:
    files = {f"part{number % 7}/{number}.json": b"%d" % number for number in range(60)}
    hub.page = 9
    hub.add("o/m", files)
    assert node.fetch("hf://o/m").files == 60
    assert node.files() == files


def test_two_models_of_one_revision_share_a_copy_and_the_last_one_takes_it_along(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    node.fetch("hf://o/m")
    hub.forget()
    second = node.fetch("hf://o/m@main", "team-a.basemodel.n", "team-a/n")
    assert (second.fetchedBytes, second.fromStore, len(node.entries())) == (0, True, 1)
    assert hub.bytes_served == len([body for body in FILES.values() if body]), "one byte of every file was asked for"
    assert node.remove().outcome == "Removed"
    assert node.files("team-a/n") == FILES
    assert not (node.root / "m").is_symlink()
    assert node.remove("team-a.basemodel.n").outcome == "Removed"
    assert (node.entries(), node.leftovers()) == ([], [])
    assert "is not on this node" in node.remove("team-a.basemodel.n").message


def test_a_copy_is_not_for_whoever_may_not_read_the_source(
    hub: Hub, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("o/m", FILES, token="secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert node.fetch("hf://o/m").outcome == "Fetched"
    monkeypatch.setenv("HF_TOKEN", "other")
    refused = node.fetch("hf://o/m", "team-a.basemodel.n", "team-a/n")
    assert (refused.outcome, refused.reason) == ("Failed", "Forbidden")
    assert not (node.root / "team-a" / "n").exists()


def test_a_new_revision_replaces_the_link_and_pods_that_are_older_keep_the_old_files(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    node.fetch("hf://o/m")
    old = node.entries()
    before = time.time()
    hub.add("o/m", {**FILES, "config.json": b"{}"})
    path = str(node.root / "m")
    assert node.fetch("hf://o/m", in_use={path: before}).outcome == "Fetched"
    assert node.files()["config.json"] == b"{}"
    assert len(node.entries()) == 2
    assert node.remove(m=before).reason == "InUse"
    assert node.fetch("hf://o/m", in_use={path: None}).outcome == "Fetched"
    assert len(node.entries()) == 2, "nobody knows how old these pods are"
    assert node.fetch("hf://o/m", in_use={path: time.time() + 1}).outcome == "Fetched"
    assert len(node.entries()) == 1
    assert node.entries() != old


def test_a_new_revision_costs_what_is_new_in_it(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    node.fetch("hf://o/m")
    (node.root / "m" / "model-00002-of-00002.safetensors").write_bytes(WEIGHTS)
    changed = {**FILES, "config.json": b"{}", "more.safetensors": WEIGHTS[:2000]}
    hub.add("o/m", changed)
    second = node.fetch("hf://o/m")
    assert node.files() == changed, "also where a file that could have been used again was changed on the disk"
    assert second.fetchedBytes < second.bytes - len(WEIGHTS) / 2
    assert node.check().outcome == "Verified"
    assert len(node.entries()) == 1
    hub.add("o/another", FILES)
    assert node.fetch("hf://o/another", "clusterbasemodel.n", "n").fetchedBytes == sum(map(len, FILES.values()))


def test_a_model_that_moves_leaves_nothing_behind(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    node.fetch("hf://o/m")
    node.fetch("hf://o/m", path="elsewhere/m")
    assert node.files("elsewhere/m") == FILES
    assert not (node.root / "m").is_symlink()
    assert node.leftovers() == []


def test_files_that_vanish_or_change_are_found_and_only_these_fetched_anew(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    node.fetch("hf://o/m")
    assert node.check().outcome == "Verified"
    (node.root / "m" / "config.json").write_bytes(b"x" * len(FILES["config.json"]))
    (node.root / "m" / "model-00001-of-00002.safetensors").unlink()
    assert "1 of 5 files are gone, 0 are changed" in node.check(quick=True).message
    damaged = node.check()
    assert (damaged.reason, damaged.retryable) == ("Damaged", True)
    assert "1 of 5 files are gone, 1 are changed: config.json, model-00001" in damaged.message
    repaired = node.fetch("hf://o/m")
    assert repaired.fetchedBytes == len(WEIGHTS) + len(FILES["config.json"])
    assert node.files() == FILES
    assert node.check().outcome == "Verified"


def test_a_link_that_is_gone_is_found_and_made_again(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    node.fetch("hf://o/m")
    (node.root / "m").unlink()
    assert "the link" in node.check().message
    assert node.fetch("hf://o/m").fetchedBytes == 0
    assert node.files() == FILES


def test_a_file_that_became_a_link_is_damaged(hub: Hub, node: Node, tmp_path: Path) -> None:
    hub.add("o/m", FILES)
    node.fetch("hf://o/m")
    (tmp_path / "outside").write_bytes(FILES["config.json"])
    file = (node.root / "m").resolve() / "config.json"
    file.unlink()
    file.symlink_to(tmp_path / "outside")
    assert node.check().reason == "Damaged"
    assert node.fetch("hf://o/m").outcome == "Fetched"
    assert not file.is_symlink()
    assert (tmp_path / "outside").read_bytes() == FILES["config.json"]


def test_filters_choose_what_is_fetched(hub: Hub, node: Node) -> None:
    hub.add("o/m", {**FILES, "engines/H100/rank0.engine": b"h", "engines/A100/rank0.engine": b"a"})
    node.fetch("hf://o/m", rules=patterns("*.json", "*.engine", exclude=("engines/A100/*",)))
    assert set(node.files()) == {"config.json", "engines/H100/rank0.engine"}
    node.fetch("hf://o/m", rules=patterns(accelerator="A100"))
    assert set(node.files()) == {"engines/A100/rank0.engine"}


def test_the_command_tells_its_progress_and_leaves_a_report(hub: Hub, tmp_path: Path) -> None:
    hub.add("o/m", FILES)
    root, report = tmp_path / "models", tmp_path / "termination-log"
    root.mkdir()
    base = ("--root", root, "--model", "clusterbasemodel.m", "--report", report)
    uri = ("--uri", "hf://o/m", "--path", root / "m", "--endpoint", hub.address)
    done = modelyard("node", "fetch", *uri, *base)
    assert done.code == 0
    last = json.loads(done.out.splitlines()[-1])
    assert last == json.loads(report.read_text())
    assert (last["outcome"], last["retryable"], last["reason"]) == ("Fetched", False, None)
    assert last["facts"]["modelType"] == "llama"
    assert modelyard("node", "check", *base).code == 0
    (root / "m" / "config.json").unlink()
    failed = modelyard("node", "check", *base)
    assert (failed.code, json.loads(report.read_text())["reason"]) == (75, "Damaged")
    assert modelyard("node", "remove", *base, "--in-use", f"{root / 'm'}@2026-01-01T00:00:00Z").code == 75
    assert modelyard("node", "remove", *base).code == 0
    assert modelyard("node", "fetch", "--uri", "nonsense", "--path", root / "m", *base).code == 1
    assert json.loads(report.read_text())["reason"] == "InvalidURI"
    assert modelyard("node", "remove", "--root", root, "--model", "../x").code == 2


def test_progress_grows_no_faster_than_the_bandwidth_allows(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    lines: list[str] = []
    progress, report = jobs.Progress(lines.append, every=0.05), jobs.Report()
    limits = Limits(parallel=2, part_size=65536, bandwidth=800_000)
    path = str(node.root / "m")
    request = jobs.FetchRequest("hf://o/m", node.root, path, "m", endpoint=hub.address, limits=limits)
    begin = time.monotonic()
    with progress.running():
        jobs.fetch(request, report, progress)
    total = sum(map(len, FILES.values()))
    assert time.monotonic() - begin > (total - 4 * limits.part_size) / 800_000
    said = [json.loads(line) for line in lines]
    assert [line["bytes"] for line in said] == sorted(line["bytes"] for line in said)
    assert {line["phase"] for line in said} <= {"Listing", "Downloading", "Finalizing"}
    halfway = [line for line in said if line["phase"] == "Downloading" and 0 < line["bytes"] < total]
    assert halfway
    assert {(line["bytesTotal"], line["filesTotal"]) for line in halfway} == {(total, len(FILES))}
    assert any(line["bytesPerSecond"] > 0 for line in halfway)


def test_what_is_tried_again_is_told_meanwhile_and_not_for_longer(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    hub.faults.append(Fault("/api/models/o/m", times=2, status=503))
    lines: list[str] = []
    progress, report = jobs.Progress(lines.append, every=0.02), jobs.Report()
    limits = Limits(parallel=2, part_size=65536, bandwidth=800_000)
    request = jobs.FetchRequest("hf://o/m", node.root, str(node.root / "m"), "m", endpoint=hub.address, limits=limits)
    with progress.running():
        jobs.fetch(request, report, progress)
    words = [told(found) for line in lines if (found := progress_of(line, 0.0)) is not None]
    first = next(text for text in words if "tried again" in text)
    assert first.startswith("the source is asked what there is; tried again: hf://o/m@main")
    assert "503" in first
    assert "tried again" not in words[-1]
    assert " of " in words[-1]


def test_folders_that_are_there_already_are_looked_at_and_left_alone(node: Node) -> None:
    folder = node.root / "given"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for uri in (f"local://{folder}", "pvc://claim/given"):
        assert node.fetch(uri, path="given").outcome == "Fetched"
    assert node.fetch("vendor://acme/model/x").outcome == "Fetched"
    missing = node.fetch(f"local://{node.root}/nope", path="nope")
    assert (missing.reason, missing.retryable) == ("LocalPathNotFound", False)
    (node.root / "link").symlink_to("/etc")
    assert node.fetch("local:///etc", path="link").reason == "PathRefused"
    assert node.fetch("local:///etc", path="../../etc").reason == "PathRefused"
    assert [file.name for file in folder.iterdir()] == ["config.json"]


def test_of_weights_that_are_there_twice_one_set_is_fetched_counted_and_explained(hub: Hub, node: Node) -> None:
    copies = {"consolidated.safetensors": WEIGHTS * 2, "params.json": b"{}", "original/consolidated.00.pth": WEIGHTS}
    hub.add("o/m", {**FILES, **copies})
    report = node.fetch("hf://o/m")
    assert node.files() == {**FILES, "params.json": b"{}"}
    assert report.bytes == report.fetchedBytes == sum(map(len, FILES.values())) + 2
    assert report.weights.startswith("weights: safetensors, model-*-of-00002.safetensors (2 files, 1000.0 KiB)")
    assert "consolidated.safetensors (1000.0 KiB)" in report.weights
    assert node.check().outcome == "Verified"
    again = node.fetch("hf://o/m", reuse=True)
    assert (again.fromStore, again.weights) == (True, report.weights)
    other = node.fetch("hf://o/m", reuse=True, rules=FileRules(weights="consolidated"))
    assert other.outcome == "Fetched"
    assert other.fetchedBytes >= 2 * len(WEIGHTS), "a copy that was made by other rules is not reused"
    assert not any(name.startswith("model-") for name in node.files())
    wrong = node.fetch("hf://o/m", rules=FileRules(weights="gguf"))
    assert (wrong.reason, wrong.retryable) == ("NoSuchWeights", False)
