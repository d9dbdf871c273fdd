"""Where buckets are: every documented form, with and without its parameters, and the stores that people have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from modelyard.models.sources import Credentials, open_source
from modelyard.models.sources.amazon import BucketAddress, locate
from modelyard.models.sources.buckets import BucketSource
from modelyard.models.storage.errors import FetchError
from modelyard.models.storage.uri import Bucket, parse

ROOT = Path(__file__).parents[3]
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "GCE_METADATA_HOST": "metadata.invalid"}


def at(uri: str, region_of: str = "us-east-2", environment: str | None = None, **given: str) -> BucketAddress:
    bucket = parse(uri)
    assert isinstance(bucket, Bucket)
    environ = {"AWS_REGION": environment} if environment else {}
    options = [given.get(name) for name in ("endpoint", "region", "style")]
    return locate(bucket, Credentials(None, environ), *options, lambda _, around: around or region_of)


@pytest.mark.parametrize(
    ("uri", "given", "url", "region"),
    [
        ("s3://b-1/p", {}, "https://b-1.s3.us-east-2.amazonaws.com", "us-east-2"),
        ("s3://b-1/p", {"environment": "eu-west-3"}, "https://b-1.s3.eu-west-3.amazonaws.com", "eu-west-3"),
        (
            "s3://b-1/p",
            {"region": "eu-west-1", "environment": "x-1"},
            "https://b-1.s3.eu-west-1.amazonaws.com",
            "eu-west-1",
        ),
        ("s3://b-1@eu-west-1/p", {"region": "eu-west-2"}, "https://b-1.s3.eu-west-1.amazonaws.com", "eu-west-1"),
        ("s3://b-1@cn-north-1", {}, "https://b-1.s3.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("s3://b-1@us-gov-west-1", {}, "https://b-1.s3.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("s3://b.1@eu-west-1", {}, "https://s3.eu-west-1.amazonaws.com/b.1", "eu-west-1"),
        ("s3://Old_Name@us-east-1", {}, "https://s3.us-east-1.amazonaws.com/Old_Name", "us-east-1"),
        ("s3://b-1@eu-west-1", {"style": "path"}, "https://s3.eu-west-1.amazonaws.com/b-1", "eu-west-1"),
        ("s3://b.1@eu-west-1", {"style": "virtual"}, "https://b.1.s3.eu-west-1.amazonaws.com", "eu-west-1"),
    ],
)
def test_amazon_itself(uri: str, given: dict[str, str], url: str, region: str) -> None:
    address = at(uri, **given)
    assert (address.url, address.region, address.own) == (url, region, True)
    assert address.endpoint == (url if address.virtual else url.rpartition("/")[0])


@pytest.mark.parametrize(
    ("endpoint", "given", "url", "region", "own"),
    [
        ("http://minio.store:9000/", {}, "http://minio.store:9000/b-1", "us-east-1", False),
        ("http://minio.store:9000", {"environment": "eu-1"}, "http://minio.store:9000/b-1", "eu-1", False),
        ("http://minio.store:9000", {"style": "virtual"}, "http://b-1.minio.store:9000", "us-east-1", False),
        ("https://gateway.example.com/s3", {}, "https://gateway.example.com/s3/b-1", "us-east-1", False),
        ("https://s3.eu-west-1.amazonaws.com", {}, "https://s3.eu-west-1.amazonaws.com/b-1", "eu-west-1", True),
        (
            "https://s3.dualstack.eu-west-1.amazonaws.com",
            {},
            "https://s3.dualstack.eu-west-1.amazonaws.com/b-1",
            "eu-west-1",
            True,
        ),
        ("http://s3.eu-west-1.amazonaws.com", {}, "http://s3.eu-west-1.amazonaws.com/b-1", "eu-west-1", False),
        ("https://b-1.s3.eu-west-1.amazonaws.com", {}, "https://b-1.s3.eu-west-1.amazonaws.com", "eu-west-1", True),
        (
            "https://bucket.vpce-1-2.s3.eu-west-1.vpce.amazonaws.com",
            {},
            "https://bucket.vpce-1-2.s3.eu-west-1.vpce.amazonaws.com/b-1",
            "eu-west-1",
            True,
        ),
        ("https://s3.amazonaws.com", {}, "https://s3.amazonaws.com/b-1", "us-east-1", True),
        (
            "https://x.execute-api.us-east-1.amazonaws.com",
            {},
            "https://x.execute-api.us-east-1.amazonaws.com/b-1",
            "us-east-1",
            False,
        ),
        ("https://xs3.us-east-1.amazonaws.com", {}, "https://xs3.us-east-1.amazonaws.com/b-1", "us-east-1", False),
        ("https://s3.amazonaws.com.example.com", {}, "https://s3.amazonaws.com.example.com/b-1", "us-east-1", False),
        (
            "https://s3.us-west-004.backblazeb2.com",
            {"environment": "eu-1"},
            "https://s3.us-west-004.backblazeb2.com/b-1",
            "us-west-004",
            False,
        ),
        (
            "https://s3.eu-central-1.wasabisys.com",
            {"region": "eu-central-2"},
            "https://s3.eu-central-1.wasabisys.com/b-1",
            "eu-central-2",
            False,
        ),
        ("https://oss-cn-hangzhou.aliyuncs.com", {}, "https://b-1.oss-cn-hangzhou.aliyuncs.com", "cn-hangzhou", False),
        (
            "https://cos.ap-guangzhou.myqcloud.com",
            {},
            "https://b-1.cos.ap-guangzhou.myqcloud.com",
            "ap-guangzhou",
            False,
        ),
        (
            "https://obs.cn-north-4.myhuaweicloud.com",
            {},
            "https://b-1.obs.cn-north-4.myhuaweicloud.com",
            "cn-north-4",
            False,
        ),
        (
            "https://account.r2.cloudflarestorage.com",
            {"region": "auto"},
            "https://account.r2.cloudflarestorage.com/b-1",
            "auto",
            False,
        ),
        ("http://[fd00::5]:9000", {}, "http://[fd00::5]:9000/b-1", "us-east-1", False),
    ],
)
def test_other_stores(endpoint: str, given: dict[str, str], url: str, region: str, own: bool) -> None:
    address = at("s3://b-1/p", endpoint=endpoint, **given)
    assert (address.url, address.region, address.own) == (url, region, own)


def test_stores_of_regions() -> None:
    assert at("oci://n/ns/b/bkt/o/p", region="eu-frankfurt-1").url == (
        "https://ns.compat.objectstorage.eu-frankfurt-1.oraclecloud.com/bkt"
    )
    assert at("obs://b-1/p", region="cn-north-4").url == "https://b-1.obs.cn-north-4.myhuaweicloud.com"
    for uri in ("oci://n/ns/b/bkt/o/p", "obs://b-1/p"):
        assert not at(uri, endpoint="https://s3.example.com").own
        with pytest.raises(FetchError, match="names no region"):
            at(uri, environment="eu-frankfurt-1")  # that of the machine, which is not there


def shipped() -> list[tuple[str, dict[str, str]]]:
    found: list[tuple[str, dict[str, str]]] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            uri = value.get("storageUri") or value.get("modelURI")
            if isinstance(uri, str):
                found.append((uri, dict(value.get("parameters") or {})))
            for part in value.values():
                collect(part)
        elif isinstance(value, list):
            for part in value:
                collect(part)

    for file in sorted((ROOT / "config" / "samples").rglob("*.yaml")):
        collect(list(yaml.safe_load_all(file.read_text("utf-8"))))
    return found


def test_every_sample_and_documented_form_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys, so that no machine is asked who it is; a hub, a release and a bucket are then only opened."""
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    samples = shipped()
    assert {uri.partition("://")[0] for uri, _ in samples} >= {"hf", "s3", "pvc"}
    documented: list[tuple[str, dict[str, str]]] = [
        ("s3://bucket@eu-west-1", {}),
        ("s3://bucket/prefix", {"region": "eu-west-1"}),
        ("s3://bucket/prefix", {"endpoint": "http://127.0.0.1:9000"}),
        ("s3://bucket/prefix", {"endpoint": "http://127.0.0.1:9000", "addressingStyle": "virtual"}),
        ("obs://bucket@cn-north-4/prefix", {}),
        ("oci://n/ns@eu-frankfurt-1/b/bkt/o/p", {}),
        ("oci://ns@eu-frankfurt-1/bkt/p", {}),
        ("gs://bucket", {}),
        ("gs://bucket/prefix", {"endpoint": "http://127.0.0.1:9000"}),
        ("az://account/container", {}),
        ("az://account.blob.core.windows.net/container/path", {}),
        ("github://owner/repository@v1", {}),
        ("hf://owner/name@revision", {}),
    ]
    for uri, parameters in [*samples, *documented]:
        place = parse(uri)
        if place.kind in ("pvc", "local", "vendor"):
            continue
        given = {name: parameters.get(name) for name in ("endpoint", "region")}
        style = parameters.get("addressingStyle")
        source = open_source(
            place, Credentials(None, KEYS), endpoint=given["endpoint"], region=given["region"], style=style
        )
        assert isinstance(source, BucketSource) is isinstance(place, Bucket)


@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:9000"])
@pytest.mark.parametrize("token", [None, "of-this-key"])
def test_keys_of_a_secret_go_without_a_token_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str | None, token: str | None
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-key")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another-key")
    for name, value in {**KEYS, "AWS_SESSION_TOKEN": token}.items():
        if value is not None:
            (tmp_path / name).write_text(value)
    source = open_source(parse("s3://bucket@eu-west-1/m"), Credentials(tmp_path), endpoint=endpoint)
    assert isinstance(source, BucketSource)
    assert source._sign is not None
    address = source._sign("m/file")
    assert "X-Amz-Credential=key%2F" in address
    assert "another-key" not in address
    assert ("X-Amz-Security-Token=of-this-key" in address) is (token is not None)
