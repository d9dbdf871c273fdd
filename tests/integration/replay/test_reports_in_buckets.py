"""Reports that go to ``s3://bucket/prefix``, on a real S3 server."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from command_line import Done, modelyard
from prometheus_server import free_port
from s3_server import BUCKET, keys, object_store

from modelyard import reports
from modelyard.reports import OutputError

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
WHOLE = ["replay.png", "report.csv", "report.json", "timeline.csv"]


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    with object_store() as client:
        yield client


def replayed(out: str, *more: str) -> Done:
    manifests = ROOT / "config/samples/plan/manifests.yaml"
    trace = ROOT / "benchmarks/data/azure-llm-inference-2023-conversation.csv"
    what = ("-f", manifests, "--trace", trace, "--minutes", "2", "--policy", "fixed:1", "--out", out)
    return modelyard("replay", *what, *more)


def text(store: Any, key: str) -> str:
    return str(store.get_object(Bucket=BUCKET, Key=key)["Body"].read(), "utf-8")


def test_reports_of_replay_go_to_a_bucket(store: Any) -> None:
    done = replayed(f"s3://{BUCKET}/of-replays/a", "--rate", "1,2")
    assert done.code == 0, done.err
    assert keys(store, "of-replays/a/") == [f"rate-{rate}/{name}" for rate in (1, 2) for name in WHOLE]
    assert json.loads(text(store, "of-replays/a/rate-2/report.json"))["policies"][0]["policy"] == "fixed:1"
    assert store.head_object(Bucket=BUCKET, Key="of-replays/a/rate-1/replay.png")["ContentType"] == "image/png"


def test_reports_of_replay_replace_an_older_one_and_nothing_else(store: Any) -> None:
    store.put_object(Bucket=BUCKET, Key="again/report.json", Body=b"old")
    store.put_object(Bucket=BUCKET, Key="again/notes.txt", Body=b"mine")
    assert replayed(f"s3://{BUCKET}/again/").code == 0
    assert keys(store, "again/") == sorted([*WHOLE, "notes.txt"])
    assert json.loads(text(store, "again/report.json"))["policies"]


def test_reports_have_their_index_last_and_none_while_they_are_half_written(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []
    real = reports._client

    def noting() -> Any:
        client = real()
        put = client.put_object

        def noted(**what: Any) -> Any:
            seen.append((what["Key"], "index.json" in keys(store, "half/")))
            if what["Key"].endswith("broken.csv"):
                raise ClientError({"Error": {"Code": "SlowDown", "Message": "later"}}, "PutObject")
            return put(**what)

        client.put_object = noted
        return client

    monkeypatch.setattr(reports, "_client", noting)

    def write(*names: str) -> None:
        with reports.written(f"s3://{BUCKET}/half", "index.json") as folder:
            for name in names:
                (folder / name).write_text("{}")

    write("a.csv", "index.json", "z.csv")
    assert keys(store, "half/") == ["a.csv", "index.json", "z.csv"]
    with pytest.raises(OutputError, match="SlowDown"):
        write("a.csv", "broken.csv", "index.json")
    assert keys(store, "half/") == ["a.csv", "z.csv"], "nobody takes it for whole"
    order = ["a.csv", "z.csv", "index.json", "a.csv", "broken.csv"]
    assert seen == [(f"half/{name}", False) for name in order], "no index while anything is replaced"


def test_reports_of_benchmarks_go_to_a_bucket(store: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tool = importlib.import_module("quality.__main__")
    about = {"cell": tool.GRID[0].name, "workload": "conv", "rate": 1, "cards": "l40s", "seed": 1, "startup": 120}
    about |= {"held_out": True, "policy": "reference", "moves": 1.0, "bound_hours": 0.5, "schedule_hours": 1.0}
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/one.json").write_text(json.dumps(about))
    tool.main(["--only", "^$", "--out", str(tmp_path), "--report", f"s3://{BUCKET}/bench"])
    assert keys(store, "bench/") == ["grid.md", "grid.parquet", "grid.png"]
    assert "| conv | 1 | l40s |" in text(store, "bench/grid.md")


@pytest.mark.parametrize(
    ("bucket", "environment", "says"),
    [
        ("missing-one", {}, ["bucket missing-one does not exist", "create it"]),
        (BUCKET, {"AWS_ENDPOINT_URL": "http://127.0.0.1:{port}"}, ["cannot be reached", "correct AWS_ENDPOINT_URL"]),
        (BUCKET, {"AWS_PROFILE": "nobody"}, [f"no credentials for bucket {BUCKET}", "AWS_ACCESS_KEY_ID"]),
        (BUCKET, {"AWS_ENDPOINT_URL": "nonsense"}, ["Invalid endpoint: nonsense"]),
    ],
)
def test_reports_that_cannot_be_put_there_are_refused_before_the_replay(
    store: Any, monkeypatch: pytest.MonkeyPatch, bucket: str, environment: dict[str, str], says: list[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(port=free_port()))
    done = replayed(f"s3://{bucket}/a")
    assert done.code == 1
    assert done.out == ""
    (line,) = [one for one in done.err.splitlines() if one.startswith("error: ")]  # servers of this process speak, too
    assert all(part in line for part in [f"--out s3://{bucket}/a", *says]), line


@pytest.mark.parametrize(
    "out", ["s3://", "s3://B/x", "s3://ab/x", f"s3://{BUCKET}/../x", "gs://bucket/x", "http://x/y"]
)
def test_reports_go_to_no_place_that_is_none(out: str) -> None:
    done = replayed(out)
    assert done.code == 2
    assert "give a folder, or s3://BUCKET/PREFIX" in done.err
    assert out in done.err
