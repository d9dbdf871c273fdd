"""Clouds by their own names, without the parameter ``endpoint``, reached by the one way out that there is: a proxy.

``amazonaws.com`` is moto here, ``blob.core.windows.net`` Azurite; the names, TLS and signatures are those of outside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import azure_server
import boto3
import pytest
from azure_server import ACCOUNT, KEY, Azure, shared_access
from command_line import modelyard
from connect_proxy import ConnectProxy, connect_proxy
from model_hub import Fault, Hub, serve
from node_jobs import Node
from own_authority import Vouched, vouched
from s3_server import object_store

from modelyard.benchmarks.measuring.outputs import open_output
from modelyard.benchmarks.records.program import MeasureError
from modelyard.benchmarks.records.values import Output
from modelyard.models.sources import amazon

WEIGHTS = bytes(range(256)) * 1000
FILES = {"config.json": b"{}", "w.safetensors": WEIGHTS}
LISTED = """<ListBucketResult><Contents><Key>m/w.safetensors</Key><Size>{size}</Size><ETag>"e"</ETag>
<LastModified>2026-01-01T00:00:00Z</LastModified></Contents></ListBucketResult>"""
HOSTS = (
    *(
        "*.amazonaws.com",
        "*.s3.eu-west-1.amazonaws.com",
        "*.s3.us-east-1.amazonaws.com",
        "*.s3.eu-north-1.amazonaws.com",
    ),
    *("*.eu-west-1.amazonaws.com", "*.us-east-1.amazonaws.com", "*.eu-north-1.amazonaws.com"),
    *("storage.googleapis.com", "*.blob.core.windows.net", "huggingface.co", "cdn.example.com", "api.github.com"),
    *("*.compat.objectstorage.eu-frankfurt-1.oraclecloud.com", "*.obs.cn-north-4.myhuaweicloud.com"),
)
SET_BY_US = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@dataclass
class Outside:
    """The internet as these tests know it."""

    proxy: ConnectProxy
    s3: Any
    hub: Hub
    authority: Vouched
    address: str

    def put(self, bucket: str, region: str = "us-east-1", **more: Any) -> None:
        client = boto3.client("s3", region_name=region, endpoint_url=self.address)
        where = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        client.create_bucket(Bucket=bucket, **where)
        for name, body in FILES.items():
            client.put_object(Bucket=bucket, Key=f"m/{name}", Body=body, **more)


@pytest.fixture(scope="module")
def blobs() -> Iterator[Azure]:
    with azure_server.serve() as served:
        served.put("models", {f"m/{name}": body for name, body in FILES.items()})
        yield served


@pytest.fixture(scope="module")
def internet(tmp_path_factory: pytest.TempPathFactory, blobs: Azure) -> Iterator[Outside]:
    authority = vouched(tmp_path_factory.mktemp("authority"), HOSTS)
    with serve(files_at="https://cdn.example.com") as hub, object_store() as client:
        hub.add("o/m", FILES)
        hub.release("v1", FILES)
        for bucket in ("", "/open", "/oracle"):  # moto takes the first label of an unknown host for a bucket
            hub.pages |= {
                f"{bucket}/m/w.safetensors": WEIGHTS,
                bucket or "/": LISTED.format(size=len(WEIGHTS)).encode(),
            }
        moto = client.meta.endpoint_url
        routes = {
            ".amazonaws.com": moto,
            "storage.googleapis.com": hub.address,
            ".oraclecloud.com": hub.address,
            ".myhuaweicloud.com": hub.address,
            "huggingface.co": hub.address,
            "cdn.example.com": hub.address,
            "api.github.com": hub.address,
            ".blob.core.windows.net": blobs.address,
        }
        with connect_proxy(routes, authority) as proxy:
            yield Outside(proxy, client, hub, authority, moto)


@pytest.fixture
def outside(internet: Outside, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Outside:
    """The same, with an environment that has a proxy and an authority, and nothing else that leads anywhere."""
    for name in SET_BY_US:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", internet.proxy.address)
    monkeypatch.setenv("SSL_CERT_FILE", str(internet.authority.authority))
    monkeypatch.setenv("AWS_CA_BUNDLE", str(internet.authority.authority))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    internet.proxy.tunnels.clear()
    internet.proxy.authorizations.clear()
    internet.proxy.refusal = None
    return internet


@pytest.fixture
def node(tmp_path: Path) -> Node:
    root = tmp_path / "models"
    root.mkdir()
    return Node(root)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "AWS_ACCESS_KEY_ID").write_text("tester")
    (folder / "AWS_SECRET_ACCESS_KEY").write_text("secret-key")
    return folder


@pytest.mark.parametrize(
    ("bucket", "uri", "region", "environment", "style", "hosts"),
    [
        ("by-uri", "s3://by-uri@eu-west-1/m", None, None, None, {"by-uri.s3.eu-west-1.amazonaws.com"}),
        (
            "by-parameter",
            "s3://by-parameter/m",
            "eu-west-1",
            "us-east-1",
            None,
            {"by-parameter.s3.eu-west-1.amazonaws.com"},
        ),
        (
            "by-environment",
            "s3://by-environment/m",
            None,
            "eu-west-1",
            None,
            {"s3.eu-west-1.amazonaws.com", "by-environment.s3.eu-west-1.amazonaws.com"},
        ),
        (
            "by-bucket",
            "s3://by-bucket/m",
            None,
            None,
            None,
            {"s3.us-east-1.amazonaws.com", "by-bucket.s3.eu-west-1.amazonaws.com"},
        ),
        ("in.path", "s3://in.path@eu-west-1/m", None, None, None, {"s3.eu-west-1.amazonaws.com"}),
        ("as-path", "s3://as-path@eu-west-1/m", None, None, "path", {"s3.eu-west-1.amazonaws.com"}),
        ("as-host", "s3://as-host@eu-west-1/m", None, None, "virtual", {"as-host.s3.eu-west-1.amazonaws.com"}),
        ("whole", "s3://whole@eu-west-1", None, None, None, {"whole.s3.eu-west-1.amazonaws.com"}),
    ],
)
def test_a_bucket_of_amazon_itself_needs_no_endpoint(
    outside: Outside,
    node: Node,
    keys: Path,
    bucket: str,
    uri: str,
    region: str | None,
    environment: str | None,
    style: str | None,
    hosts: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside.put(bucket, "eu-west-1")
    if environment is not None:
        monkeypatch.setenv("AWS_REGION", environment)
    report = node.fetch(uri, region=region, style=style, credentials=keys)
    assert report.outcome == "Fetched", report.message
    assert set(node.files().values()) == set(FILES.values())
    assert outside.proxy.hosts() == hosts


def test_the_region_of_the_environment_gives_way_to_what_the_bucket_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """EKS puts the cluster's region into every pod; a bucket of another one answers 301 with its own."""
    answers: list[tuple[str, int, str]] = []

    class Pool:
        def __init__(self, **_: Any) -> None: ...

        def request(self, _method: str, url: str, **_: Any) -> Any:
            status, told = (301, "eu-north-1") if "eu-west-1" in url else (200, "ap-south-1")
            answers.append((url, status, told))
            return type("Answer", (), {"status": status, "headers": {"x-amz-bucket-region": told}})()

    monkeypatch.setattr(amazon, "HttpPool", Pool)
    assert amazon.ask_region("b", "eu-west-1") == "eu-north-1"
    assert amazon.ask_region("b", "us-west-2") == "us-west-2"
    assert amazon.ask_region("b", None) == "ap-south-1"
    assert [url for url, *_ in answers] == [
        f"https://s3.{region}.amazonaws.com/b" for region in ("eu-west-1", "us-west-2", "us-east-1")
    ]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (301, "<Error><Code>PermanentRedirect</Code></Error>"),
        (307, ""),
        (400, "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"),
    ],
)
def test_a_bucket_in_another_region_is_told_with_its_region(
    outside: Outside, node: Node, keys: Path, status: int, body: str
) -> None:
    bucket = f"elsewhere-{status}"
    outside.put(bucket, "eu-west-1")
    before = outside.proxy.routes
    outside.proxy.routes = {".s3.eu-north-1.amazonaws.com": outside.hub.address, **before}
    outside.hub.faults.append(Fault("", 1000, status=status, body=body.encode()))
    try:
        refused = node.fetch(f"s3://{bucket}@eu-north-1/m", credentials=keys)
        environ = {name.name: name.read_text() for name in keys.iterdir()}
        store = open_output(Output(uri=f"s3://{bucket}@eu-north-1", folder="f"), environ)
        with pytest.raises(MeasureError) as failure:
            store.write("f/x", b"")
    finally:
        outside.hub.faults.clear()
        outside.proxy.routes = before
    assert (refused.reason, refused.retryable) == ("SourceRefused", False)
    assert (failure.value.reason, failure.value.retryable) == ("OutputUnsupported", False)
    for message in (refused.message, str(failure.value)):
        assert (
            f"the bucket is in region eu-west-1, not in the one that it was asked in; write s3://{bucket}@eu-west-1"
            in message
        )


def test_a_public_bucket_is_read_by_nobody_in_particular(outside: Outside, node: Node) -> None:
    outside.put("everyones", "eu-west-1", ACL="public-read")
    assert node.fetch("s3://everyones@eu-west-1/m").outcome == "Fetched"
    assert node.files() == FILES
    assert node.fetch("gs://open/m", "clusterbasemodel.g", "g").outcome == "Fetched"
    assert "storage.googleapis.com" in outside.proxy.hosts()
    outside.put("closed", "eu-west-1")
    refused = node.fetch("s3://closed@eu-west-1/m", path="p")
    assert (refused.reason, refused.retryable) == ("Forbidden", False)
    assert "there are no credentials; name a Secret with AWS_ACCESS_KEY_ID" in refused.message
    container = node.fetch(f"az://{ACCOUNT}/models/m", "team.basemodel.a", "a")
    assert (container.reason, container.retryable) == ("Forbidden", False)
    assert "there are no credentials; name a Secret with AZURE_STORAGE_ACCOUNT_KEY" in container.message


def test_this_machine_s_identity_is_used_at_google(
    outside: Outside, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "/computeMetadata/v1/instance/service-accounts/default/token"
    outside.hub.pages[place] = json.dumps({"access_token": "of-this-machine", "expires_in": 3600}).encode()
    for number, (host, sent) in enumerate(
        (
            (outside.hub.address, "Bearer of-this-machine"),
            ("http://127.0.0.1:1", None),
            ("http://metadata.invalid", None),
        )
    ):
        monkeypatch.setenv("GCE_METADATA_HOST", host.removeprefix("http://"))
        outside.hub.forget()
        assert node.fetch("gs://open/m", f"clusterbasemodel.m{number}", f"m{number}").outcome == "Fetched"
        shown = {secret for path, secret in outside.hub.secrets if path.startswith("/open")}
        assert shown == {sent}
    # It is for Google alone.
    monkeypatch.setenv("GCE_METADATA_HOST", outside.hub.address.removeprefix("http://"))
    outside.hub.forget()
    assert node.fetch("gs://open/m", "clusterbasemodel.e", "e", endpoint=outside.hub.address).outcome == "Fetched"
    assert {secret for _, secret in outside.hub.secrets} == {None}


def test_a_server_without_the_protocol_is_not_asked_again(outside: Outside, node: Node) -> None:
    outside.hub.faults.append(Fault("^/open", 1000, status=501))
    try:
        refused = node.fetch("gs://open/m")
    finally:
        outside.hub.faults.clear()
    assert (refused.reason, refused.retryable) == ("SourceRefused", False)
    assert "check endpoint" in refused.message


def test_results_go_to_amazon_itself(outside: Outside, keys: Path) -> None:
    outside.put("results", "eu-west-1")
    environ = {name.name: name.read_text() for name in keys.iterdir()}
    for uri, parameters in (
        ("s3://results@eu-west-1/team", {}),
        ("s3://results/team", {"aws_region": "eu-west-1"}),
        ("s3://results/team", {"region": "eu-west-1", "addressingStyle": "path"}),
        ("s3://results", {}),
    ):
        store = open_output(Output(uri=uri, folder="f", parameters=parameters), environ)
        store.write("f/summary.csv", b"a,b\n")
        assert store.names("f") == ["f/summary.csv"]
        assert store.read("f/summary.csv") == b"a,b\n"
    with pytest.raises(MeasureError, match="addressingStyle 'virtuell' is none; write virtual or path"):
        open_output(Output(uri="s3://results", folder="f", parameters={"addressingStyle": "virtuell"}), environ)


@pytest.mark.parametrize(
    ("uri", "region", "host"),
    [
        ("oci://n/ns/b/oracle/o/m", "eu-frankfurt-1", "ns.compat.objectstorage.eu-frankfurt-1.oraclecloud.com"),
        ("oci://ns@eu-frankfurt-1/oracle/m", None, "ns.compat.objectstorage.eu-frankfurt-1.oraclecloud.com"),
        ("obs://huawei/m", "cn-north-4", "huawei.obs.cn-north-4.myhuaweicloud.com"),
        ("obs://huawei@cn-north-4/m", None, "huawei.obs.cn-north-4.myhuaweicloud.com"),
    ],
)
def test_stores_with_an_address_for_each_region(
    outside: Outside, node: Node, keys: Path, uri: str, region: str | None, host: str
) -> None:
    report = node.fetch(uri, region=region, credentials=keys)
    assert report.outcome == "Fetched", report.message
    assert outside.proxy.hosts() == {host}
    missing = node.fetch(uri.replace("@eu-frankfurt-1/oracle", "/b/oracle/o").replace("@cn-north-4", ""))
    assert missing.reason == "InvalidURI"
    assert "region" in missing.message or "parts n, b and o" in missing.message


@pytest.mark.parametrize("uri", ["hf://o/m", "github://o/r", "github://o/r@v1"])
def test_hubs_and_releases_are_fetched_through_the_proxy(outside: Outside, node: Node, uri: str) -> None:
    report = node.fetch(uri)
    assert report.outcome == "Fetched", report.message
    assert node.files() == FILES
    first = "huggingface.co" if uri.startswith("hf") else "api.github.com"
    assert outside.proxy.hosts() == {first, "cdn.example.com"}


@pytest.mark.parametrize("name", ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"])
def test_a_container_of_azure_itself_needs_no_endpoint(outside: Outside, node: Node, keys: Path, name: str) -> None:
    (keys / name).write_text(KEY if name.endswith("KEY") else shared_access())
    report = node.fetch(f"az://{ACCOUNT}/models/m", credentials=keys)
    assert report.outcome == "Fetched", report.message
    assert node.files() == FILES
    assert outside.proxy.hosts() == {f"{ACCOUNT}.blob.core.windows.net"}
    full = node.fetch(f"az://{ACCOUNT}.blob.core.windows.net/models/m", "clusterbasemodel.f", "f", credentials=keys)
    assert (full.outcome, full.fetchedBytes) == ("Fetched", 0)


def test_identities_of_the_machine_are_used_at_amazon(
    outside: Outside, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.put("roles", "eu-west-1")
    token = tmp_path / "token"
    token.write_text("a-service-account-s-token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/models")
    report = node.fetch("s3://roles@eu-west-1/m")
    assert report.outcome == "Fetched", report.message
    assert outside.proxy.hosts() == {"sts.eu-west-1.amazonaws.com", "roles.s3.eu-west-1.amazonaws.com"}
    # A tenant's Job has no identity: the variable is there, and empty.
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "")
    assert node.fetch("s3://roles@eu-west-1/m", "team.basemodel.m", "p").reason == "Forbidden"
    # One that cannot be used is told as such, before anything is asked.
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "none"))
    refused = node.fetch("s3://roles@eu-west-1/m", "team.basemodel.m", "p")
    assert (refused.reason, refused.retryable) == ("Unauthorized", False)
    assert "the identity of this machine" in refused.message


def test_an_instance_s_role_is_used_at_amazon(outside: Outside, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    outside.put("instances", "eu-west-1")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", outside.address)
    report = node.fetch("s3://instances@eu-west-1/m")
    assert report.outcome == "Fetched", report.message


# The proxy itself


@pytest.mark.parametrize(
    "uri", ["hf://o/m", "github://o/r", "s3://any@eu-west-1/m", "gs://any/m", f"az://{ACCOUNT}/models"]
)
def test_a_proxy_that_refuses_is_named_with_the_remedy(outside: Outside, node: Node, keys: Path, uri: str) -> None:
    outside.proxy.refusal = "403 Forbidden"
    refused = node.fetch(uri, credentials=keys)
    assert (refused.reason, refused.retryable) == ("ProxyRefused", False), refused.message
    assert f"proxy {outside.proxy.address} opens no connection to" in refused.message
    assert "have" in refused.message.rpartition("; ")[2]


@pytest.mark.parametrize("uri", ["hf://o/m", "github://o/r", "s3://any@eu-west-1/m"])
def test_hosts_in_no_proxy_are_reached_directly(
    outside: Outside, node: Node, keys: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "huggingface.co,github.com,.amazonaws.com")
    failed = node.fetch(uri, credentials=keys, limits=jobs_limits())
    assert (failed.reason, failed.retryable) == ("SourceUnavailable", True)
    assert outside.proxy.tunnels == []


def jobs_limits() -> Any:
    from modelyard.models.download.pace import Limits

    return Limits(patience=0.1)


def test_its_credentials_are_sent_to_the_proxy_alone(
    outside: Outside, node: Node, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = outside.proxy.address.removeprefix("http://")
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:password@{host}")
    outside.put("guarded", "eu-west-1")
    for number, uri in enumerate(("hf://o/m", "github://o/r", "s3://guarded@eu-west-1/m")):
        assert node.fetch(uri, f"clusterbasemodel.m{number}", f"m{number}", credentials=keys).outcome == "Fetched"
    assert set(outside.proxy.authorizations) == {"Basic dXNlcjpwYXNzd29yZA=="}
    outside.proxy.refusal = "407 Proxy Authentication Required"
    refused = node.fetch("hf://o/m", path="p")
    assert refused.reason == "ProxyRefused"
    assert "password" not in refused.message.replace("its user and password", "")


@pytest.mark.parametrize(
    "url", ["https://169.254.169.254/latest", "https://metadata.google.internal/x", "https://[fd00:ec2::254]/"]
)
@pytest.mark.parametrize("uri", ["hf://o/m", "github://o/r"])
def test_no_redirect_sends_the_proxy_to_a_metadata_service(outside: Outside, node: Node, uri: str, url: str) -> None:
    outside.hub.faults.append(Fault("/(resolve|assets|revision)/", 1000, status=302, headers={"Location": url}))
    try:
        refused = node.fetch(uri)
    finally:
        outside.hub.faults.clear()
    assert (refused.reason, refused.retryable) == ("UnsupportedSource", False)
    assert "metadata service" in refused.message
    assert outside.proxy.hosts() <= {"huggingface.co", "api.github.com"}


@pytest.mark.parametrize("endpoint", ["https://10.0.0.1", "https://minio.storage.svc", "https://files.corp.internal"])
@pytest.mark.parametrize("uri", ["hf://o/m", "s3://bucket/m", f"az://{ACCOUNT}/models"])
def test_a_public_endpoint_leads_nowhere_inside_by_the_proxy_either(
    outside: Outside, node: Node, keys: Path, uri: str, endpoint: str
) -> None:
    refused = node.fetch(uri, endpoint=endpoint, public=True, credentials=keys)
    assert (refused.reason, refused.retryable) == ("UnsupportedSource", False)
    assert outside.proxy.tunnels == []


def test_the_command_of_a_job_reports_through_the_proxy(outside: Outside, keys: Path, tmp_path: Path) -> None:
    outside.put("command", "eu-west-1")
    report = tmp_path / "report.json"
    (root := tmp_path / "root").mkdir()
    where = ("--root", root, "--path", root / "m", "--model", "m", "--report", report)
    done = modelyard("node", "fetch", "--uri", "s3://command/m", *where, "--credentials", keys)
    assert done.code == 0, done.err
    assert json.loads(report.read_text())["outcome"] == "Fetched"
