"""What tenants and sources could make a Job on a node do: ask where nobody may, show what is another's, never end."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from model_hub import Fault, Hub, serve
from node_jobs import Node, patterns

from modelyard.models.delivery.running import JobOutcome
from modelyard.models.sources import check_host, source
from modelyard.models.sources.http import Http
from modelyard.models.storage.errors import FetchError

FILES = {"config.json": b"{}", "w.safetensors": bytes(range(256)) * 100}
DEEP = b"[" * 200_000


@pytest.fixture
def other() -> Iterator[Hub]:
    """A server that nobody has allowed."""
    with serve() as served:
        served.add("o/m", FILES)
        yield served


@pytest.fixture
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a tenant has in a Secret."""
    return tmp_path_factory.mktemp("secret")


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("hf://o/m", "HF_ENDPOINT"),
        ("s3://bucket/m", "AWS_ENDPOINT_URL_S3"),
        ("s3://bucket/m", "AWS_ENDPOINT_URL"),
        ("s3://bucket/m", "ENDPOINT"),
        ("az://account/bucket/m", "AZURE_STORAGE_ENDPOINT"),
    ],
)
def test_a_secret_does_not_say_where_files_come_from(
    hub: Hub, other: Hub, node: Node, secret: Path, uri: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("o/m", FILES)
    (secret / name).write_text(other.address)
    monkeypatch.setenv(name, hub.address)
    report = node.fetch(uri, endpoint=None, credentials=secret)
    assert report.outcome == "Fetched" if uri.startswith("hf") else report.reason == "NotFound"
    assert hub.requests
    assert other.requests == []


@pytest.mark.parametrize("region", ["x.example.com/#", "x@127.0.0.1:{port}/", "a/../b", "a" * 64, "EU", "x\ny"])
@pytest.mark.parametrize("uri", ["s3://bucket/m", "oci://n/ns/b/bkt/o/m"])
def test_a_region_is_no_way_to_another_host(other: Hub, node: Node, secret: Path, region: str, uri: str) -> None:
    region = region.format(port=urlsplit(other.address).port)
    assert node.fetch(uri, endpoint=None, region=region).reason == "InvalidURI"
    (secret / "AWS_REGION").write_text(region)
    assert node.fetch(uri, endpoint=None, credentials=secret).reason == "InvalidURI"
    assert other.requests == []


METADATA = [
    "http://169.254.169.254/latest",
    "http://[::ffff:169.254.169.254]/latest",
    "http://[::ffff:a9fe:a9fe]",
    "http://[64:ff9b::a9fe:a9fe]",
    "http://[fd00:ec2::254]",
    "http://100.100.100.200",
    "http://168.63.129.16/?comp=versions",
    "http://2852039166/",
    "http://0xa9.0xfe.0xa9.0xfe/",
]
NO_ADDRESS = ["file:///etc/passwd", "ftp://example.com", "http://", "//x", "http://[::1", "http://a:b:c", "gopher://x"]


@pytest.mark.parametrize("url", [*METADATA, *NO_ADDRESS])
@pytest.mark.parametrize("place", ["/resolve/", "/tree/", "/revision/"])
def test_no_redirect_leads_to_a_metadata_service(hub: Hub, node: Node, url: str, place: str) -> None:
    hub.add("o/m", FILES)
    hub.faults.append(Fault(place, 1000, status=302, headers={"Location": url}))
    failed = node.fetch("hf://o/m")
    assert failed.outcome == "Failed"
    if url in METADATA:
        assert (failed.reason, failed.retryable) == ("UnsupportedSource", False)


@pytest.mark.parametrize("uri", ["s3://bucket/m", "az://account/bucket/m"])
@pytest.mark.parametrize("url", METADATA)
def test_no_bucket_leads_there_either(hub: Hub, node: Node, url: str, uri: str) -> None:
    hub.faults.append(Fault("/bucket", 1000, status=307, headers={"Location": url}))
    refused = node.fetch(uri)
    assert (refused.reason, refused.retryable) == ("UnsupportedSource", False)
    assert "metadata service" in refused.message


def test_a_bucket_s_name_that_stands_for_another_address_by_then(
    hub: Hub, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, answers = socket.getaddrinfo, ["93.184.216.34"] * 2

    def lookup(host: Any, *more: Any, **named: Any) -> Any:
        if host == "rebound.example":
            host = answers.pop() if answers else "127.0.0.1"
        return real(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    url = f"http://rebound.example:{urlsplit(hub.address).port}"
    refused = node.fetch("s3://bucket/m", endpoint=url, public=True)
    assert "no address of the internet" in refused.message
    assert hub.requests == []


def test_a_public_endpoint_leads_nowhere_inside(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    for uri in ("hf://o/m", "s3://bucket/m", "az://account/bucket/m", "github://o/r"):
        refused = node.fetch(uri, public=True)
        assert (refused.reason, refused.retryable) == ("UnsupportedSource", False)
        assert "an administrator allows it by its exact name" in refused.message
    assert hub.requests == []


@pytest.mark.parametrize("looks", [1, 2])
def test_a_name_that_stands_for_another_address_once_it_was_looked_at(
    hub: Hub, node: Node, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver gives an address of the internet first, and one inside when it is connected to."""
    hub.add("o/m", FILES)
    real, answers = socket.getaddrinfo, ["93.184.216.34"] * looks

    def lookup(host: Any, *more: Any, **named: Any) -> Any:
        if host in ("rebound.example", b"rebound.example"):
            host = answers.pop() if answers else "127.0.0.1"
        return real(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    url = f"http://rebound.example:{urlsplit(hub.address).port}"
    if looks == 1:
        assert check_host(url, public=True) == "rebound.example"
        with pytest.raises(FetchError, match="no address of the internet"):
            Http(url, {}, 1, public=True).page("/api/models/o/m/revision/main")
        assert hub.requests == []
    else:
        assert node.fetch("hf://o/m", endpoint=url, public=True).reason == "UnsupportedSource"
        assert not any("/resolve/" in request for request in hub.requests)


def test_a_copy_is_not_shown_to_whoever_may_only_see_its_list(hub: Hub, node: Node, secret: Path) -> None:
    """Another choice of files of a repository that anybody may list: every file is there, and none is shown."""
    (secret / "token").write_text("right")
    hub.add("o/m", {**FILES, "tokenizer.model": b"t" * 5000}, token="right")
    hub.repositories["o/m"].listed = True
    assert node.fetch("hf://o/m", credentials=secret).outcome == "Fetched"
    for rules in (patterns("*.safetensors"), patterns("tokenizer.model"), patterns(exclude=("config.json",))):
        refused = node.fetch("hf://o/m", "team-b.basemodel.n", "team-b/n", rules=rules)
        assert (refused.outcome, refused.reason) == ("Failed", "Unauthorized")
        assert not (node.root / "team-b" / "n").exists()
    shared = node.fetch("hf://o/m", "team-b.basemodel.n", "team-b/n", rules=patterns("*.model"), credentials=secret)
    assert (shared.outcome, shared.fromStore) == ("Fetched", True)


def test_a_list_without_end(hub: Hub, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MOST_FILES", 50)
    hub.page = 9
    hub.add("o/m", {f"{number}.json": b"{}" for number in range(60)})
    refused = node.fetch("hf://o/m")
    assert (refused.reason, refused.retryable) == ("UnsupportedSource", False)
    assert "more than 50 files" in refused.message
    assert len([request for request in hub.requests if "/tree/" in request]) < 7
    monkeypatch.setattr(source, "MOST_FILES", 60)
    assert node.fetch("hf://o/m").outcome == "Fetched"


@pytest.mark.parametrize("place", ["/tree/", "/revision/", "/releases/"])
def test_answers_that_are_nested_too_deeply(hub: Hub, node: Node, place: str) -> None:
    hub.add("o/m", FILES)
    hub.release("v1", FILES)
    hub.faults.append(Fault(place, 1000, body=DEEP))
    failed = node.fetch("github://o/r" if "releases" in place else "hf://o/m")
    assert (failed.reason, failed.retryable) == ("SourceUnavailable", True)


def test_what_a_source_says_is_bounded_and_moves_no_cursor(hub: Hub, node: Node) -> None:
    hub.add("o/m", FILES)
    headers = {"Retry-After": "999999999", "X-Error-Code": "\x1b[2J\x1b]0;owned\x07" + "x" * 1000}
    hub.faults.append(Fault("/resolve/", 1000, status=429, headers=headers))
    failed = node.fetch("hf://o/m")
    assert (failed.reason, failed.retryAfter) == ("RateLimited", 86_400.0)
    assert failed.message.isprintable()
    said = JobOutcome.read(failed.dump())
    assert said is not None
    assert said.retry_after == 86_400.0


# Google's storage, with the key of a service account


class Storage:
    """A bucket that shows its objects to whoever signs with the right key: lists by token, reads by signed address."""

    EMAIL = "reader@project.iam.gserviceaccount.com"

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.requests: list[str] = []
        self.address = ""

    def account(self, **more: str) -> str:
        """The file that Google gives."""
        pem = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        body = {"type": "service_account", "client_email": self.EMAIL, "private_key": pem, "private_key_id": "k1"}
        return json.dumps({**body, "token_uri": "http://127.0.0.1:1/token", **more})

    def holds(self, signed: bytes, signature: bytes) -> bool:
        try:
            self.key.public_key().verify(signature, signed, padding.PKCS1v15(), SHA256())
        except Exception:
            return False
        return True

    def knows_token(self, header: str) -> bool:
        head, _, signature = header.removeprefix("Bearer ").rpartition(".")
        return bool(head) and self.holds(head.encode(), base64.urlsafe_b64decode(signature + "=="))

    def knows_address(self, target: str, host: str) -> bool:
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        signature = query.pop("X-Goog-Signature", "")
        if query.get("X-Goog-Credential", "").split("/")[0] != self.EMAIL:
            return False
        canonical = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in sorted(query.items()))
        request = f"GET\n{url.path}\n{canonical}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
        scope = query["X-Goog-Credential"].split("/", 1)[1]
        digest = hashlib.sha256(request.encode()).hexdigest()
        return self.holds(
            f"GOOG4-RSA-SHA256\n{query['X-Goog-Date']}\n{scope}\n{digest}".encode(), bytes.fromhex(signature)
        )


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    storage: Storage

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        storage, url = self.storage, urlsplit(self.path)
        storage.requests.append(self.path)
        name = unquote(url.path).removeprefix("/models/")
        body, status = b"", 200
        if "list-type" in parse_qs(url.query):
            if not storage.knows_token(self.headers.get("Authorization", "")):
                status = 401
            rows = (
                f"<Contents><Key>{key}</Key><Size>{len(value)}</Size><ETag>e</ETag>"
                "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
                for key, value in storage.objects.items()
            )
            body = f"<ListBucketResult>{''.join(rows)}</ListBucketResult>".encode()
        elif not storage.knows_address(self.path, self.headers["Host"]):
            status = 403
        else:
            body = storage.objects[name]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def storage() -> Iterator[Storage]:
    found = Storage({f"m/{name}": body for name, body in FILES.items()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"storage": found}))
    found.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("name", ["GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"])
def test_googles_storage_with_a_key_from_a_secret(storage: Storage, node: Node, secret: Path, name: str) -> None:
    assert node.fetch("gs://models/m", endpoint=storage.address).reason == "Unauthorized"
    (secret / name).write_text(storage.account())
    done = node.fetch("gs://models/m", endpoint=storage.address, credentials=secret)
    assert done.outcome == "Fetched", done.message
    assert node.files() == FILES
    assert "PRIVATE KEY" not in done.dump()
    (secret / name).write_text(Storage({}).account())
    assert node.fetch("gs://models/m", "m2", "m2", endpoint=storage.address, credentials=secret).outcome == "Failed"


@pytest.mark.parametrize("text", ["/etc/passwd", "{}", "[" * 100_000, '{"client_email": 1}', '{"private_key": []}'])
def test_what_is_no_key_of_a_service_account(storage: Storage, node: Node, secret: Path, text: str) -> None:
    for name in ("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"):
        (secret / name).write_text(text)
        refused = node.fetch("gs://models/m", endpoint=storage.address, credentials=secret)
        assert (refused.reason, refused.retryable) == ("Unauthorized", False)
        assert "root:" not in refused.message
        (secret / name).unlink()


def test_a_key_does_not_say_where_to_go_with_it(storage: Storage, other: Hub, node: Node, secret: Path) -> None:
    key = storage.account(gcs_base_url=other.address, universe_domain="127.0.0.1")
    (secret / "GOOGLE_SERVICE_ACCOUNT_KEY").write_text(key)
    assert node.fetch("gs://models/m", endpoint=storage.address, credentials=secret).outcome == "Fetched"
    assert other.requests == []
