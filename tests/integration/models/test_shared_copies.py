"""Copies on nodes that several models share: each model reads what the source lets it read, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from model_hub import Fault, Hub
from node_jobs import QUICK, Node
from plain_bucket import Bucket, serve

from modelyard.models.download.store import NodeStore

WEIGHTS = bytes(range(256)) * 400
FILES = {"a.json": b"{}", "config.json": b'{"a": 1}', "empty": b"", "w.safetensors": WEIGHTS}
THEIRS = "team-b.basemodel.n"


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with serve() as served:
        served.objects = {f"m/{name}": body for name, body in FILES.items()}
        yield served


@pytest.fixture
def bucket_node(bucket: Bucket, node: Node) -> Node:
    node.endpoint = bucket.address
    return node


@pytest.mark.parametrize("denied", ["a.json", "config.json", "w.safetensors"])
def test_a_copy_needs_a_proof_of_every_file(bucket: Bucket, bucket_node: Node, denied: str) -> None:
    """Finding 6: rights are per object, and one byte of the largest file proves nothing of the others."""
    node = bucket_node
    assert node.fetch("s3://models/m").outcome == "Fetched"
    bucket.denied = {f"m/{denied}"}
    refused = node.fetch("s3://models/m", THEIRS, "team-b/n")
    assert (refused.outcome, refused.reason) == ("Failed", "Forbidden")
    assert denied in refused.message
    assert not (node.root / "team-b" / "n").exists()
    bucket.denied = set()
    bucket.reads.clear()
    shared = node.fetch("s3://models/m", THEIRS, "team-b/n")
    assert (shared.outcome, shared.fromStore) == ("Fetched", True)
    assert sorted(bucket.reads) == sorted(f"m/{name}" for name, body in FILES.items() if body), "once each"
    assert node.files("team-b/n") == FILES


@pytest.mark.parametrize("denied", ["config.json", "w.safetensors"])
def test_a_hub_that_refuses_one_file_of_a_gated_repository(hub: Hub, node: Node, denied: str) -> None:
    hub.add("o/m", FILES)
    assert node.fetch("hf://o/m").outcome == "Fetched"
    hub.faults.append(Fault(f"/resolve/.*/{denied}", 1000, status=403, headers={"X-Error-Code": "GatedRepo"}))
    assert node.fetch("hf://o/m", THEIRS, "team-b/n").reason == "Forbidden"
    assert not (node.root / "team-b" / "n").exists()


def test_a_file_borrowed_from_another_revision_is_proved_too(bucket: Bucket, bucket_node: Node) -> None:
    node = bucket_node
    node.fetch("s3://models/m")
    bucket.objects["m/new.json"] = b"[]"
    bucket.denied = {"m/w.safetensors"}
    refused = node.fetch("s3://models/m", THEIRS, "team-b/n")
    assert (refused.reason, (node.root / "team-b" / "n").exists()) == ("Forbidden", False)


def test_parts_that_another_model_has_left_are_proved_too(bucket: Bucket, bucket_node: Node) -> None:
    """All parts of a file are there but its end: nothing of it would be read again."""
    node = bucket_node
    bucket.denied = {"m/config.json"}
    assert node.fetch("s3://models/m", limits=replace(QUICK, parallel=1)).reason == "Forbidden"
    bucket.denied = {"m/a.json", "m/w.safetensors"}
    refused = node.fetch("s3://models/m", THEIRS, "team-b/n")
    assert (refused.outcome, (node.root / "team-b" / "n").exists()) == ("Failed", False)


@pytest.mark.parametrize("body", [WEIGHTS[::-1], WEIGHTS + b"x"])
def test_another_file_of_the_same_name_is_no_proof(bucket: Bucket, bucket_node: Node, body: bytes) -> None:
    """The source lists the state that is here, sends another one, and looks at no condition."""
    node = bucket_node
    node.fetch("s3://models/m")
    bucket.changed["m/w.safetensors"] = body
    refused = node.fetch("s3://models/m", THEIRS, "team-b/n")
    assert (refused.outcome, refused.reason) == ("Failed", "SourceChanged")
    assert not (node.root / "team-b" / "n").exists()


def test_files_that_nothing_identifies_are_not_shared(bucket: Bucket, bucket_node: Node) -> None:
    node = bucket_node
    bucket.has_etags = False
    for model, path in (("clusterbasemodel.m", "m"), (THEIRS, "team-b/n")):
        done = node.fetch("s3://models/m", model, path)
        assert (done.outcome, done.fromStore) == ("Fetched", False)
        assert done.fetchedBytes == sum(map(len, FILES.values()))
    assert len(node.entries()) == 2
    assert node.fetch("s3://models/m").fromStore, "a model's own copy is used again"


def test_who_is_refused_keeps_no_copy_on_the_disk(bucket: Bucket, bucket_node: Node) -> None:
    node = bucket_node
    node.fetch("s3://models/m")
    bucket.denied = {"m/config.json"}
    assert node.fetch("s3://models/m", THEIRS, "team-b/n").reason == "Forbidden"
    with NodeStore(node.root) as store:
        assert [record.model for record in store.records()] == ["clusterbasemodel.m"]
    assert node.remove().outcome == "Removed"
    assert (node.entries(), node.leftovers()) == ([], [])


def test_a_right_that_ends_before_the_proof_does(bucket: Bucket, bucket_node: Node) -> None:
    """The model had the state before; the new one is refused, and its own files stay as they were."""
    node = bucket_node
    node.fetch("s3://models/m", THEIRS, "team-b/n")
    bucket.objects["m/config.json"] = b'{"a": 2}'
    node.fetch("s3://models/m")
    bucket.denied = {"m/config.json"}
    assert node.fetch("s3://models/m", THEIRS, "team-b/n").reason == "Forbidden"
    assert node.files("team-b/n") == FILES
    assert node.files()["config.json"] == b'{"a": 2}'


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("etags", [True, False])
def test_a_later_object_of_the_same_name_proves_its_access_again(
    bucket: Bucket, bucket_node: Node, reuse: bool, etags: bool
) -> None:
    """A namespace that was removed by force and made again by another tenant: its models have no old copy."""
    node = bucket_node
    bucket.has_etags = etags
    assert node.fetch("s3://models/m", THEIRS, "team-b/n", uid="1").outcome == "Fetched"
    assert node.fetch("s3://models/m", THEIRS, "team-b/n", uid="1", reuse=reuse).fromStore
    bucket.denied = {f"m/{name}" for name in FILES}
    refused = node.fetch("s3://models/m", THEIRS, "team-b/n", uid="2", reuse=reuse)
    assert (refused.outcome, refused.reason) == ("Failed", "Forbidden")
    assert not (node.root / "team-b" / "n").is_symlink()
    assert (node.entries(), node.leftovers()) == ([], [])
    bucket.denied = set()
    assert node.fetch("s3://models/m", THEIRS, "team-b/n", uid="2", reuse=reuse).outcome == "Fetched"
    assert node.files("team-b/n") == FILES


def test_a_retained_copy_is_proved_by_a_later_object_and_not_fetched_again(bucket: Bucket, bucket_node: Node) -> None:
    node = bucket_node
    node.fetch("s3://models/m", THEIRS, "team-b/n", uid="1")
    bucket.reads.clear()
    again = node.fetch("s3://models/m", THEIRS, "team-b/n", uid="2")
    assert (again.outcome, again.fromStore) == ("Fetched", True)
    assert sorted(bucket.reads) == sorted(f"m/{name}" for name, body in FILES.items() if body), "once each"
    assert node.files("team-b/n") == FILES


def test_a_copy_that_a_pod_has_mounted_stays_though_its_object_was_replaced(bucket: Bucket, bucket_node: Node) -> None:
    node = bucket_node
    node.fetch("s3://models/m", THEIRS, "team-b/n", uid="1")
    (entry,) = node.entries()
    bucket.objects["m/config.json"] = b'{"a": 2}'
    path = node.root / "team-b" / "n"
    node.fetch("s3://models/m", THEIRS, "team-b/n", uid="2", in_use={str(path): None})
    assert node.files("team-b/n")["config.json"] == b'{"a": 2}'
    assert entry in node.entries()
    node.fetch("s3://models/m", THEIRS, "team-b/n", uid="2")
    assert entry not in node.entries()


def test_a_record_without_an_object_is_no_proof(bucket: Bucket, bucket_node: Node) -> None:
    """As earlier releases wrote it: the model goes on serving, and its next fetch proves what it has."""
    node = bucket_node
    node.fetch("s3://models/m", THEIRS, "team-b/n")
    bucket.denied = {"m/config.json"}
    assert node.fetch("s3://models/m", THEIRS, "team-b/n", uid="1").reason == "Forbidden"
    assert node.files("team-b/n") == FILES
    bucket.denied = set()
    assert node.fetch("s3://models/m", THEIRS, "team-b/n", uid="1").fromStore
