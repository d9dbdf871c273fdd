"""One grammar for storage URIs: the spec's rules per kind as tables, and nothing but FetchError comes out."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from modelyard.models.storage.errors import FetchError
from modelyard.models.storage.uri import (
    Bucket,
    ClaimFolder,
    GitHubRelease,
    HubModel,
    LocalFolder,
    StorageURI,
    VendorModel,
    cache_path,
    kthena_model_path,
    parse,
)

GOOD: dict[str, StorageURI] = {
    "hf://Qwen/Qwen2.5-0.5B-Instruct": HubModel("Qwen/Qwen2.5-0.5B-Instruct"),
    "hf://gpt2": HubModel("gpt2"),
    "hf://meta-llama/Llama-3@v1.0": HubModel("meta-llama/Llama-3", "v1.0"),
    "hf://a/b@refs/pr/1": HubModel("a/b", "refs/pr/1"),
    "hf://a/b@branch@x": HubModel("a/b", "branch@x"),
    "hf://a/b@user/fix@2": HubModel("a/b", "user/fix@2"),
    "hf://gpt2@_old": HubModel("gpt2", "_old"),
    "oci://n/ns/b/bkt/o/models/llama": Bucket("oci", "bkt", "models/llama", None, "ns"),
    "oci://n/ns/b/bkt/o/": Bucket("oci", "bkt", "", None, "ns"),
    "oci://n/ns@eu-frankfurt-1/b/bkt/o/m": Bucket("oci", "bkt", "m", "eu-frankfurt-1", "ns"),
    "oci://ns@eu-frankfurt-1/bkt/m/x": Bucket("oci", "bkt", "m/x", "eu-frankfurt-1", "ns"),
    "oci://ns@eu-frankfurt-1/bkt": Bucket("oci", "bkt", "", "eu-frankfurt-1", "ns"),
    "pvc://claim/models/llama": ClaimFolder("claim", "models/llama"),
    "pvc://team-a:claim/llama": ClaimFolder("claim", "llama", "team-a"),
    "pvc://claim/a:b": ClaimFolder("claim", "a:b"),
    "vendor://acme/model/a/b/c": VendorModel("acme", "model", "a/b/c"),
    "local:///data/models/x": LocalFolder("/data/models/x"),
    "s3://bkt": Bucket("s3", "bkt"),
    "s3://bkt/p/q": Bucket("s3", "bkt", "p/q"),
    "s3://bkt@eu-west-1/p": Bucket("s3", "bkt", "p", "eu-west-1"),
    "s3://bkt@eu-west-1": Bucket("s3", "bkt", "", "eu-west-1"),
    "s3://bkt/p@v2": Bucket("s3", "bkt", "p@v2"),
    "obs://bkt/p/q": Bucket("obs", "bkt", "p/q"),
    "az://account/container": Bucket("az", "container", namespace="account"),
    "az://account.blob.core.windows.net/container/p/q": Bucket("az", "container", "p/q", namespace="account"),
    "gs://bkt/models/x": Bucket("gs", "bkt", "models/x"),
    "gs://bkt": Bucket("gs", "bkt"),
    "github://owner/repo": GitHubRelease("owner", "repo"),
    "github://owner/repo@v1.2": GitHubRelease("owner", "repo", "v1.2"),
    "github://owner/repo@pkg@1.0.0": GitHubRelease("owner", "repo", "pkg@1.0.0"),
    "github://owner/repo@@scope/pkg@2.1.0": GitHubRelease("owner", "repo", "@scope/pkg@2.1.0"),
    "github://owner/repo@models=8b,v1": GitHubRelease("owner", "repo", "models=8b,v1"),
}

BAD = {
    "": "unknown storage type",
    "http://x/y": "unknown storage type",
    "gcs://bkt/x": "unknown storage type",
    "ms://owner/name": "ModelScope is not read",
    "S3://bkt/x": "lower case: s3://",
    "HF://a/b": "lower case: hf://",
    "hf:/a/b": "unknown storage type",
    "hf://": "missing model id",
    "hf://@main": "missing model id",
    "hf://a/b@": "empty revision",
    "hf://a/b/c": "no model id",
    "hf://a/../b": "no model id",
    "hf://a/b@../x": "no revision",
    "hf://a/b@@": "no revision",
    "github://owner/repo@@": "no tag",
    "github://owner/repo@v1:x": "no tag",
    "hf://a/b ": "white space",
    "hf://a/b\x00": "control characters",
    "oci://n/ns/b/bkt/o": "n, b and o",
    "oci://n/ns/o/bkt/b/x": "n, b and o",
    "oci://b/mybucket/n/ns/o/x": "n, b and o",
    "oci://ns@region": "missing bucket name",
    "oci://ns@/bkt/x": "empty region",
    "oci://n//b/bkt/o/x": "missing namespace",
    "oci://n/ns/b//o/x": "missing bucket name",
    "oci://n/ns/b/bkt/o/../x": "'..'",
    "pvc://": "names no claim",
    "pvc://claim": "missing path in the claim",
    "pvc://claim/": "missing path in the claim",
    "pvc://:claim/x": "empty namespace before ':'",
    "pvc://ns:/x": "empty claim after ':'",
    "pvc://a:b:c/x": "more than one ':'",
    "pvc://Team/x": "no name of a PersistentVolumeClaim",
    "pvc://team.a:claim/x": "no namespace",
    "pvc:///x": "empty claim",
    "pvc://claim/../../etc": "'..'",
    "vendor://acme": "three parts",
    "vendor://acme//x": "three parts",
    "vendor://acme/model/": "three parts",
    "local://": "missing path",
    "local://models/x": "not absolute",
    "local:///a/../etc": "'..'",
    "s3://": "missing bucket name",
    "s3:///p": "missing bucket name",
    "s3://bkt@/p": "empty region",
    "s3://bkt@EU/p": "no region",
    "s3://b kt/p": "white space",
    "s3://bkt/a//b": "empty part",
    "s3://bkt/../other": "'..'",
    "az://": "missing account name",
    "az://account": "missing container name",
    "az://account/": "missing container name",
    "az://evil.example.com/c": "no account name",
    "gs://": "missing bucket name",
    "github://": "missing owner",
    "github:///repo": "missing owner",
    "github://owner": "missing repository",
    "github://owner/": "missing repository",
    "github://owner/repo/sub": "more than owner and repository",
    "github://owner/repo@": "empty tag",
    "hf://" + "a" * 3000: "longer than 2048",
}


@pytest.mark.parametrize("uri", GOOD)
def test_a_uri_says_where_the_files_are(uri: str) -> None:
    assert parse(uri) == GOOD[uri]
    assert parse(str(GOOD[uri])) == GOOD[uri]


@pytest.mark.parametrize("uri", BAD)
def test_a_wrong_uri_is_told_with_what_is_wrong_and_what_to_write(uri: str) -> None:
    with pytest.raises(FetchError, match=BAD[uri]) as caught:
        parse(uri)
    assert caught.value.reason == "InvalidURI"
    assert not caught.value.retryable
    assert "; " in str(caught.value)
    assert len(str(caught.value)) < 600


@given(st.sampled_from(["hf", "s3", "oci", "gs", "az", "github", "pvc", "local", "vendor"]), st.text())
def test_whatever_is_written_is_a_value_or_an_error_and_no_path_leads_up(kind: str, rest: str) -> None:
    try:
        value = parse(f"{kind}://{rest}")
    except FetchError:
        return
    assert parse(str(value)) == value
    assert ".." not in str(value).split("://")[1].split("/")


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("hostpath:///mnt/x", "/mnt/x"),
        ("hostpath://mnt/x", "/mnt/x"),
        ("pvc://claim", "/claim"),
        ("pvc:///claim", "/claim"),
        ("pvc:////claim///", "/claim"),
        ("no-scheme", ""),
        ("", ""),
    ],
)
def test_where_a_cache_is_mounted(uri: str, path: str) -> None:
    assert cache_path(uri) == path


def test_where_a_backend_expects_its_model() -> None:
    expected = "/mnt/x/18488ba95d6e1baca4a2755a6748053e"
    assert kthena_model_path("hostpath:///mnt/x", "hf://Qwen/Qwen2.5-0.5B-Instruct") == expected
    assert kthena_model_path("pvc://claim", "") == "/claim/d41d8cd98f00b204e9800998ecf8427e"
