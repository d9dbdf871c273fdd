"""Objects of a bucket on a node: S3 as a real server speaks it, and Google's storage by the same protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from model_hub import Fault, Hub
from node_jobs import QUICK, Node
from s3_server import object_store

from modelyard.models.download import node as jobs
from modelyard.models.download.store import ModelRecord, NodeStore
from modelyard.models.sources import Chunk, Credentials, Listing, ModelSource, SourceFile, open_source
from modelyard.models.storage.errors import FetchError
from modelyard.models.storage.uri import parse

WEIGHTS = bytes(range(256)) * 1000
FILES = {"config.json": b"{}", "w.safetensors": WEIGHTS, "a/b/c.txt": b"c" * 2000, "none": b""}


class Buckets:
    """What the server has; it is found by the variables that lead there."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def put(self, bucket: str, files: dict[str, bytes], **more: Any) -> None:
        self.client.create_bucket(Bucket=bucket)
        for name, body in files.items():
            self.client.put_object(Bucket=bucket, Key=name, Body=body, **more)


@pytest.fixture(scope="module")
def buckets() -> Iterator[Buckets]:
    with object_store() as client:
        yield Buckets(client)


@pytest.fixture
def at_s3(buckets: Buckets, tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_lies_below_a_prefix_and_nothing_beside_it(buckets: Buckets, at_s3: Node) -> None:
    others = {"m2/x": b"x", "m/a/": b""}
    buckets.put("below", {**{f"m/{name}": body for name, body in FILES.items()}, **others})
    report = at_s3.fetch("s3://below/m")
    assert (report.outcome, report.fetchedBytes) == ("Fetched", sum(map(len, FILES.values())))
    assert at_s3.files() == FILES
    assert at_s3.fetch("s3://below/m/", "clusterbasemodel.n", "n").fetchedBytes == 0
    assert len(at_s3.entries()) == 1
    single = at_s3.fetch("s3://below@us-east-1/m/config.json", "clusterbasemodel.o", "o")
    assert (single.outcome, at_s3.files("o")) == ("Fetched", {"config.json": b"{}"})


def test_names_that_mean_something_to_urls(buckets: Buckets, at_s3: Node) -> None:
    names = ["a b", "ü", "a%20b", "a#b", "a+b", "~x", "[x]", "x?y", "a:b", "q=1&r", "star*"]
    buckets.put("names", {name: name.encode() * 100 for name in names})
    assert at_s3.fetch("s3://names").outcome == "Fetched"
    assert at_s3.files() == {name: name.encode() * 100 for name in names}


def test_an_object_that_changed_is_another_revision(buckets: Buckets, at_s3: Node) -> None:
    buckets.put("revisions", FILES)
    first = at_s3.fetch("s3://revisions")
    assert at_s3.fetch("s3://revisions").fromStore
    buckets.put("revisions", {"config.json": b"[]"})
    second = at_s3.fetch("s3://revisions")
    assert second.revision != first.revision
    assert at_s3.files()["config.json"] == b"[]"
    assert len(at_s3.entries()) == 1


@dataclass
class Meddled:
    """A real source; after each listing somebody writes another object, so many times."""

    source: ModelSource
    buckets: Buckets
    bucket: str
    times: int

    def list(self) -> Listing:
        listing = self.source.list()
        if self.times > 0:
            self.times -= 1
            self.buckets.put(self.bucket, {"w.safetensors": bytes([self.times]) * len(WEIGHTS)})
        return listing

    def read(self, file: SourceFile, start: int, length: int) -> Iterator[Chunk]:
        return self.source.read(file, start, length)


@pytest.mark.parametrize(("times", "reason"), [(2, None), (3, "SourceChanged")])
def test_a_file_that_changes_between_list_and_read_is_never_half_of_each(
    buckets: Buckets, at_s3: Node, times: int, reason: str | None
) -> None:
    bucket = f"meddled-{times}"
    buckets.put(bucket, FILES)
    uri, report = f"s3://{bucket}", jobs.Report()
    request = jobs.FetchRequest(uri, at_s3.root, str(at_s3.root / "m"), "m", limits=QUICK)
    source = Meddled(open_source(parse(uri), Credentials()), buckets, bucket, times)
    try:
        with NodeStore(at_s3.root) as store:
            jobs.bring_settled(
                store, source, ModelRecord("m", "m", uri), request, report, jobs.Progress(lambda _: None)
            )
    except FetchError as error:
        report.fail(error)
    assert (report.reason, report.retryable) == (reason, reason is not None)
    if reason is None:
        assert at_s3.files() == {**FILES, "w.safetensors": bytes(len(WEIGHTS))}
    else:
        assert not (at_s3.root / "m").exists()


def test_credentials_are_files_of_a_secret_or_variables_and_are_told_nowhere(
    buckets: Buckets, at_s3: Node, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets.put("secrets", FILES)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    missing = at_s3.fetch("s3://secrets")
    assert (missing.reason, missing.retryable) == ("Unauthorized", False)
    assert "no AWS_SECRET_ACCESS_KEY" in missing.message
    secret = tmp_path_factory.mktemp("secret")
    (secret / "AWS_ACCESS_KEY_ID").write_text("key\n")
    (secret / "AWS_SECRET_ACCESS_KEY").write_text("verysecret\n")
    done = at_s3.fetch("s3://secrets", credentials=secret)
    assert done.outcome == "Fetched"
    assert "verysecret" not in done.dump()
    assert not any(b"verysecret" in file.read_bytes() for file in at_s3.root.rglob("*") if file.is_file())


def test_without_credentials_what_is_public_can_be_read_and_nothing_else(
    buckets: Buckets, at_s3: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    buckets.put("public", FILES, ACL="public-read")
    for kind in ("s3", "gs"):
        path = f"{kind}-m"
        endpoint = buckets.client.meta.endpoint_url
        assert at_s3.fetch(f"{kind}://public", f"clusterbasemodel.{kind}", path, endpoint=endpoint).outcome == "Fetched"
        assert at_s3.files(path) == FILES
    buckets.put("private", FILES)
    refused = at_s3.fetch("s3://private", path="p")
    assert (refused.reason, refused.retryable) == ("Forbidden", False)


def test_what_is_not_there(buckets: Buckets, at_s3: Node) -> None:
    buckets.put("there", FILES)
    assert at_s3.fetch("s3://not-there/m").reason == "NotFound"
    assert at_s3.fetch("s3://there/nothing").reason == "NothingToFetch"
    assert at_s3.fetch("oci://n/ns/b/bkt/o/x", endpoint=None).reason == "InvalidURI"


@pytest.mark.parametrize(
    ("status", "code", "reason", "retryable"),
    [
        (403, "ExpiredToken", "Unauthorized", False),
        (403, "InvalidAccessKeyId", "Unauthorized", False),
        (403, "AccessDenied", "Forbidden", False),
        (503, "SlowDown", "RateLimited", True),
        (500, "InternalError", "SourceUnavailable", True),
        (429, "", "RateLimited", True),
    ],
)
def test_what_an_object_store_refuses_with(
    hub: Hub, node: Node, status: int, code: str, reason: str, retryable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    hub.faults.append(Fault("", 100, status=status, body=f"<Error><Code>{code}</Code></Error>".encode()))
    refused = node.fetch("s3://any/m", limits=jobs.Limits(patience=0.2))
    assert (refused.reason, refused.retryable) == (reason, retryable)
    assert code in refused.message
    assert "secret" not in refused.message
