"""Storage of a benchmark on real servers: results to every kind of output and its refusals, prompts from buckets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import azure_server
import pytest
from azure_server import ACCOUNT, KEY, shared_access
from model_hub import Fault, Hub, serve
from s3_server import BUCKET, google_account, keys, object_store

from modelyard.benchmarks.measuring.datasets import options
from modelyard.benchmarks.measuring.outputs import FolderStore, ResultStore, open_output
from modelyard.benchmarks.records.program import MeasureError
from modelyard.benchmarks.records.values import Measurement, Output

FILES = {"f/runs/a-1/run.json": b"{}", "f/summary.csv": b"a,b\n", "history/x.parquet": bytes(range(256)) * 100}


def used(store: ResultStore) -> None:
    """What a measurement does with an output."""
    for name, body in FILES.items():
        store.write(name, b"old")
        store.write(name, body)
    assert store.names("f") == ["f/runs/a-1/run.json", "f/summary.csv"]
    assert store.names("none") == []
    assert {name: store.read(name) for name in FILES} == FILES
    with pytest.raises(MeasureError) as missing:
        store.read("f/none.json")
    assert missing.value.reason == "OutputNotFound"
    for name in ("../x", "a//b", "/x", ".hidden", "a/../b", "x" * 300, "a\nb"):
        with pytest.raises(MeasureError):
            store.write(name, b"")


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    with object_store() as client:
        yield client


def test_results_go_to_s3(s3: Any) -> None:
    used(open_output(Output(uri=f"s3://{BUCKET}@us-east-1/team/a", folder="f")))
    assert sorted(keys(s3, "team/a/")) == sorted(FILES)


def test_results_go_to_oci_by_its_s3_protocol(s3: Any) -> None:
    given = {"endpoint": s3.meta.endpoint_url, "region": "eu-frankfurt-1"}
    used(open_output(Output(uri=f"oci://n/ns/b/{BUCKET}/o/team/o", folder="f", parameters=given)))
    assert sorted(keys(s3, "team/o/")) == sorted(FILES)


def test_results_go_to_googles_storage_by_its_xml_protocol(s3: Any) -> None:
    output = Output(uri=f"gs://{BUCKET}/team/g", folder="f", parameters={"endpoint": s3.meta.endpoint_url})
    used(open_output(output, {"GOOGLE_SERVICE_ACCOUNT_KEY": google_account()}))
    assert sorted(keys(s3, "team/g/")) == sorted(FILES)


def test_a_region_is_that_of_the_parameter_before_that_of_the_uri(s3: Any) -> None:
    output = Output(uri=f"s3://{BUCKET}@us-east-1", folder="f", parameters={"aws_region": "no region"})
    with pytest.raises(MeasureError, match="'no region' is no region"):
        open_output(output)


def test_results_go_to_azure() -> None:
    with azure_server.serve() as azure:
        azure.put("bench", {})
        output = Output(uri=f"az://{ACCOUNT}/bench/team", folder="f", parameters={"endpoint": azure.address})
        used(open_output(output, {"AZURE_STORAGE_ACCOUNT_KEY": KEY}))
        used(open_output(output, {"AZURE_STORAGE_SAS_TOKEN": shared_access("rlcw")}))
        # A connection string may say where to go as well; its credential is all that counts.
        elsewhere = "BlobEndpoint=http://127.0.0.1:1/x"
        for credential in (f"AccountKey={KEY}", f"SharedAccessSignature={shared_access('rlcw')}"):
            given = output.model_copy(
                update={
                    "uri": "az://other/bench/team",
                    "parameters": {**output.parameters, "azure_account_name": ACCOUNT},
                }
            )
            used(open_output(given, {"AZURE_STORAGE_CONNECTION_STRING": f"{elsewhere};{credential}"}))
        with pytest.raises(MeasureError, match="azure_account_name 'a/b' is none"):
            open_output(output.model_copy(update={"parameters": {"azure_account_name": "a/b"}}), {})
        with pytest.raises(MeasureError) as refused:
            open_output(output, {"AZURE_STORAGE_SAS_TOKEN": shared_access("rl")}).write("f/x", b"")
        assert refused.value.reason == "OutputForbidden"
        other = output.model_copy(update={"uri": f"az://{ACCOUNT}/other/team"})
        with pytest.raises(MeasureError) as refused:
            open_output(other, {"AZURE_STORAGE_ACCOUNT_KEY": KEY}).write("f/x", b"")
        assert (refused.value.reason, refused.value.retryable) == ("OutputNotFound", False)


def test_credentials_that_are_none_are_told_without_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "account.json").write_text('{"private_key": "verysecret"}')
    environ = {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "account.json")}
    with pytest.raises(MeasureError) as refused:
        open_output(Output(uri="gs://bench", folder="f"), environ)
    assert refused.value.reason == "OutputForbidden"
    assert "verysecret" not in str(refused.value)


def test_results_go_to_a_mounted_claim(tmp_path: Path) -> None:
    used(open_output(Output(uri="pvc://claim/team", folder="f", path=str(tmp_path))))
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == set(FILES), "nothing half-written is left"


def test_what_a_store_has_not_or_will_not_take_is_told(s3: Any) -> None:
    with pytest.raises(MeasureError) as refused:
        open_output(Output(uri="s3://missing-one@us-east-1", folder="f")).write("f/x", b"")
    assert (refused.value.reason, refused.value.retryable) == ("OutputNotFound", False), refused.value
    for uri in ("s3://", "ftp://x", "s3://b/../c", "x" * 5000):
        with pytest.raises(MeasureError) as refused:
            open_output(Output(uri=uri, folder="f"))
        assert refused.value.reason == "OutputUnsupported"
        assert len(str(refused.value)) < 600


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as served:
        yield served


@pytest.mark.parametrize(
    ("status", "code", "reason", "retryable"),
    [
        (403, "AccessDenied", "OutputForbidden", False),
        (403, "InvalidAccessKeyId", "OutputForbidden", False),
        (507, "XMinioStorageFull", "OutputFull", False),
        (403, "QuotaExceeded", "OutputFull", False),
        (503, "SlowDown", "OutputUnavailable", True),
        (500, "InternalError", "OutputUnavailable", True),
    ],
)
def test_what_a_store_refuses_with(hub: Hub, status: int, code: str, reason: str, retryable: bool) -> None:
    hub.faults.append(Fault("", 100, status=status, body=f"<Error><Code>{code}</Code></Error>".encode()))
    environ = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "verysecret"}
    output = Output(uri="s3://bench", folder="f", parameters={"endpoint": hub.address})
    with pytest.raises(MeasureError) as refused:
        open_output(output, environ).write("f/x", b"body")
    assert (refused.value.reason, refused.value.retryable) == (reason, retryable), refused.value
    assert "verysecret" not in str(refused.value)


def test_no_output_is_at_an_address_that_is_refused() -> None:
    for endpoint, public in (("http://169.254.169.254", False), ("http://127.0.0.1:1", True)):
        output = Output(uri="s3://bench", folder="f", parameters={"endpoint": endpoint}, public=public)
        with pytest.raises(MeasureError, match=r"metadata service|no address of the internet") as refused:
            open_output(output, {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"})
        assert not refused.value.retryable


def test_a_folder_that_is_none_or_not_ours_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MeasureError) as refused:
        FolderStore(tmp_path / "file").write("f/x", b"")
    assert refused.value.reason == "OutputUnavailable"
    with pytest.raises(MeasureError) as refused:
        FolderStore(Path("/sys")).write("f/x", b"")
    assert refused.value.reason in ("OutputForbidden", "OutputNotFound")


# Prompts


def prompts(folder: Path, uri: str, parameters: dict[str, str], secret: dict[str, str]) -> bytes:
    """Fetch a data set of prompts with a mounted Secret; its file."""
    (folder / "secret").mkdir()
    for name, text in secret.items():
        (folder / "secret" / name).write_text(text)
    access = {"parameters": parameters, "credentials": str(folder / "secret")}
    asked = Measurement.model_validate(
        {"reference": "a/b", "service": "a/s", "backend": "vllm", "url": "http://127.0.0.1:1", "model": "m"}
        | {"tokenizer": "/t", "task": "text-to-text", "scenario": "D(9,9)", "concurrency": 1, "minutes": 1}
        | {"requests": 1, "output": {"uri": "local:///r", "folder": "f"}, "dataset": uri, "access": access}
    )
    found = options(asked, folder, {})
    assert found.keys() <= {"--dataset-path", "--dataset-prompt-column"}
    return Path(str(found["--dataset-path"])).read_bytes()


def test_prompts_are_fetched_from_a_bucket(s3: Any, tmp_path: Path) -> None:
    for key in ("words/new.txt", "words/old.txt", "words/readme.md"):
        s3.put_object(Bucket=BUCKET, Key=key, Body=f"of {key}\n".encode())
    secret = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret"}
    parameters = {"endpoint": s3.meta.endpoint_url, "region": "us-east-1"}
    (tmp_path / "a").mkdir()
    with pytest.raises(MeasureError, match="has 2 files of prompts"):
        prompts(tmp_path / "a", f"s3://{BUCKET}/words", parameters, secret)
    for folder, choice in (("b", {"include": "new*, *.md"}), ("c", {"exclude": "old*"})):
        (tmp_path / folder).mkdir()
        assert (
            prompts(tmp_path / folder, f"s3://{BUCKET}/words", {**parameters, **choice}, secret)
            == b"of words/new.txt\n"
        )


def test_prompts_are_fetched_from_azure_with_the_secret_of_the_data_set(tmp_path: Path) -> None:
    with azure_server.serve() as azure:
        azure.put("data", {"words/a.csv": b"question\nwhy?\n"})
        uri, parameters = f"az://{ACCOUNT}/data/words", {"endpoint": azure.address}
        for name, secret in (("a", {}), ("b", {"AZURE_STORAGE_SAS_TOKEN": shared_access("rl")})):
            (tmp_path / name).mkdir()
            if secret:
                assert prompts(tmp_path / name, uri, parameters, secret) == b"question\nwhy?\n"
            else:
                with pytest.raises(MeasureError, match=r"dataset az://.*words: ") as refused:
                    prompts(tmp_path / name, uri, parameters, secret)
                assert refused.value.reason == "DatasetMissing"
