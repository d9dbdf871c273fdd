"""Containers of Azure's blob storage on a node, from Azurite: keys, shared access, identities, and what is refused."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import azure_server
import model_hub
import obstore
import pytest
from azure_server import ACCOUNT, KEY, Azure, shared_access
from command_line import modelyard
from model_hub import Fault, Hub
from node_jobs import Node
from obstore.exceptions import BaseError
from own_authority import vouched

from modelyard.models.sources import Credentials, azure, open_source
from modelyard.models.storage.errors import FetchError
from modelyard.models.storage.uri import Bucket, parse

FILES = {"config.json": b"{}", "w.safetensors": bytes(range(256)) * 1000, "a/b/c.txt": b"c" * 2000, "none": b""}
ODD = {name: name.encode() * 100 for name in ("a b", "ü", "a%20b", "a#b", "a+b", "[x]", "x?y", "q=1&r")}


@pytest.fixture(scope="module")
def blobs() -> Iterator[Azure]:
    with azure_server.serve() as served:
        served.put("models", {f"m/{name}": body for name, body in FILES.items()} | {"m2/x": b"x"})
        served.put("odd", ODD)
        served.put("public", FILES, public=True)
        yield served


@pytest.fixture
def at_azure(blobs: Azure, tmp_path: Path) -> Node:
    return Node(tmp_path, blobs.address)


@pytest.fixture
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secret")


@pytest.mark.parametrize(
    ("name", "value"), [("AZURE_STORAGE_ACCOUNT_KEY", KEY), ("AZURE_STORAGE_SAS_TOKEN", f"?{shared_access()}")]
)
def test_what_lies_below_a_path_and_nothing_beside_it(at_azure: Node, secret: Path, name: str, value: str) -> None:
    (secret / name).write_text(f"{value}\n")
    report = at_azure.fetch(f"az://{ACCOUNT}/models/m", credentials=secret)
    assert (report.outcome, report.fetchedBytes) == ("Fetched", sum(map(len, FILES.values()))), report.message
    assert at_azure.files() == FILES
    assert at_azure.fetch(f"az://{ACCOUNT}/models/m/", "clusterbasemodel.n", "n", credentials=secret).fetchedBytes == 0
    single = at_azure.fetch(f"az://{ACCOUNT}/models/m/config.json", "clusterbasemodel.o", "o", credentials=secret)
    assert (single.outcome, at_azure.files("o")) == ("Fetched", {"config.json": b"{}"})
    told = report.dump() + "".join(str(file.read_bytes()) for file in at_azure.root.rglob("*.json"))
    assert value[-20:] not in told


def test_names_that_mean_something_to_urls(at_azure: Node, secret: Path) -> None:
    (secret / "AZURE_STORAGE_SAS_TOKEN").write_text(shared_access())
    assert at_azure.fetch(f"az://{ACCOUNT}/odd", credentials=secret).outcome == "Fetched"
    assert at_azure.files() == ODD
    (secret / "AZURE_STORAGE_ACCOUNT_KEY").write_text(KEY)
    refused = at_azure.fetch(f"az://{ACCOUNT}/odd", "clusterbasemodel.k", "k", credentials=secret)
    assert (refused.reason, refused.retryable) == ("UnsupportedSource", False)
    assert "AZURE_STORAGE_SAS_TOKEN" in refused.message


def test_without_credentials_what_is_public_can_be_read_and_nothing_else(at_azure: Node) -> None:
    assert at_azure.fetch(f"az://{ACCOUNT}/public").outcome == "Fetched"
    assert at_azure.files() == FILES
    refused = at_azure.fetch(f"az://{ACCOUNT}/models/m", path="p")
    assert (refused.reason, refused.retryable) == ("Forbidden", False)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"AZURE_STORAGE_ACCOUNT_KEY": "no base64!"}, "Unauthorized"),
        ({"AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(b"another's").decode()}, "Forbidden"),
        ({"AZURE_STORAGE_SAS_TOKEN": shared_access(until="2020-01-01T00:00:00Z")}, "Forbidden"),
        ({"AZURE_STORAGE_SAS_TOKEN": shared_access("l")}, "Forbidden"),
        ({"AZURE_STORAGE_SAS_TOKEN": "nothing of that kind"}, "Unauthorized"),
        ({"AZURE_CLIENT_SECRET": "verysecret"}, "Unauthorized"),
        ({"AZURE_CLIENT_SECRET": "verysecret", "AZURE_CLIENT_ID": "app", "AZURE_TENANT_ID": "../x"}, "Unauthorized"),
        ({"AZURE_CLIENT_SECRET": "verysecret", "AZURE_CLIENT_ID": "app", "AZURE_TENANT_ID": "x@y/"}, "Unauthorized"),
    ],
)
def test_credentials_that_are_none(at_azure: Node, secret: Path, given: dict[str, str], reason: str) -> None:
    for name, text in given.items():
        (secret / name).write_text(text)
    refused = at_azure.fetch(f"az://{ACCOUNT}/models/m", credentials=secret)
    assert (refused.reason, refused.retryable) == (reason, False), refused.message
    assert not any(text in refused.dump() for text in given.values() if len(text) > 4)


def test_what_is_not_there(at_azure: Node, secret: Path) -> None:
    (secret / "AZURE_STORAGE_ACCOUNT_KEY").write_text(KEY)
    assert at_azure.fetch(f"az://{ACCOUNT}/not-there", credentials=secret).reason == "NotFound"
    assert at_azure.fetch(f"az://{ACCOUNT}/models/nothing", credentials=secret).reason == "NothingToFetch"
    assert at_azure.fetch("az://another/models/m", credentials=secret).outcome == "Failed"


def test_a_blob_that_changed_since_it_was_listed(blobs: Azure, at_azure: Node, secret: Path) -> None:
    blobs.put("changes", FILES)
    (secret / "AZURE_STORAGE_ACCOUNT_KEY").write_text(KEY)
    source = open_source(parse(f"az://{ACCOUNT}/changes"), Credentials(secret), endpoint=blobs.address)
    listing = source.list()
    first = next(file for file in listing.files if file.name == "w.safetensors")
    assert b"".join(map(bytes, source.read(first, 1000, 3000))) == FILES["w.safetensors"][1000:4000]
    blobs.put("changes", {"w.safetensors": bytes(first.size)})
    with pytest.raises(FetchError) as changed:
        list(source.read(first, 0, 1000))
    assert (changed.value.reason, changed.value.retryable) == ("SourceChanged", True)
    assert source.list().revision != listing.revision


@pytest.mark.parametrize(
    ("status", "code", "reason", "retryable"),
    [
        (403, "AuthenticationFailed", "Unauthorized", False),
        (403, "AuthorizationPermissionMismatch", "Forbidden", False),
        (409, "PublicAccessNotPermitted", "Forbidden", False),
        (404, "ResourceNotFound", "NotFound", False),
        (503, "ServerBusy", "RateLimited", True),
        (500, "InternalError", "SourceUnavailable", True),
    ],
)
def test_what_azure_refuses_with(hub: Hub, node: Node, status: int, code: str, reason: str, retryable: bool) -> None:
    hub.faults.append(Fault("", 100, status=status, body=f"<Error><Code>{code}</Code></Error>".encode()))
    refused = node.fetch("az://account/container")
    assert (refused.reason, refused.retryable) == (reason, retryable), refused.message
    assert code in refused.message


def test_an_account_that_is_in_the_endpoint_s_host_is_not_in_the_path() -> None:
    uri = parse("az://account/container")
    assert isinstance(uri, Bucket)
    for endpoint, address in {
        None: "https://account.blob.core.windows.net/container",
        "https://account.blob.core.chinacloudapi.cn/": "https://account.blob.core.chinacloudapi.cn/container",
        "https://blobs.example.com": "https://blobs.example.com/account/container",
        "https://accounts.example.com": "https://accounts.example.com/account/container",
    }.items():
        assert azure.open_container(uri, Credentials(None, {}), endpoint)[1] == address


def identity(hub: Hub) -> dict[str, str]:
    """What leads to this server as the one that knows who is who."""
    now = int(time.time())
    claims = {"aud": "https://storage.azure.com", "iss": "https://sts.windows.net/tenant/", "nbf": now, "iat": now}
    parts = ({"alg": "none", "typ": "JWT"}, {**claims, "exp": now + 3600, "oid": "o", "tid": "tenant"}, 0)
    token = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    hub.pages["/tenant/oauth2/v2.0/token"] = json.dumps({"access_token": token, "expires_in": 3600}).encode()
    return {"AZURE_AUTHORITY_HOST": hub.address, "AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "app"}


def test_an_application_s_secret_is_shown_to_whom_the_environment_names(
    tmp_path: Path, secret: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = vouched(tmp_path_factory.mktemp("authority"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    with azure_server.serve(made) as storage, model_hub.serve(context) as hub:
        storage.put("models", FILES)
        for name, value in {**identity(hub), "AZURE_CLIENT_SECRET": "verysecret"}.items():
            (secret / name).write_text(value)
        monkeypatch.setenv("SSL_CERT_FILE", str(made.authority))
        where = ("--root", tmp_path, "--path", tmp_path / "m", "--model", "m", "--endpoint", storage.address)
        more = ("--uri", f"az://{ACCOUNT}/models", "--credentials", secret, "--patience", "0.1")
        for host, outcome in (("https://localhost:1", "Failed"), (hub.address, "Fetched")):
            assert hub.said == []
            monkeypatch.setenv("AZURE_AUTHORITY_HOST", host)
            done = modelyard("node", "fetch", *where, *more)
            report = json.loads(done.out.splitlines()[-1])
            assert report["outcome"] == outcome, report["message"]
            assert "verysecret" not in done.out + done.err
        assert parse_qs(hub.said[0])["client_secret"] == ["verysecret"]
    assert (tmp_path / "m" / "w.safetensors").read_bytes() == FILES["w.safetensors"]


def test_a_workload_s_identity_is_for_azure_itself_and_of_the_environment_alone(
    hub: Hub, blobs: Azure, secret: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("federated")
    here = {**identity(hub), "AZURE_FEDERATED_TOKEN_FILE": str(token)}
    for name, value in here.items():
        (secret / name).write_text(value)
    uri = parse(f"az://{ACCOUNT}/models/m")
    assert isinstance(uri, Bucket)
    assert azure.open_container(uri, Credentials(secret, {}), None)[2] is None
    assert azure.open_container(uri, Credentials(None, here), blobs.address)[2] is None
    hub.faults.append(Fault("token", 100, status=401))
    options = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
    store, _, sign = azure.open_container(uri, Credentials(None, here), None, **options)
    assert sign is not None
    with pytest.raises(BaseError):
        obstore.list(store).collect()
    assert parse_qs(hub.said[0])["client_assertion"] == ["federated"]
