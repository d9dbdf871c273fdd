"""Sources that a company's own authority vouches for: believed where the administrator's bundle says so, else not."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import modelyard
from model_hub import Hub, serve
from own_authority import vouched

WEIGHTS = bytes(range(256)) * 100
FILES = {"config.json": b"{}", "w.safetensors": WEIGHTS}
LISTED = """<ListBucketResult><Contents><Key>m/w.safetensors</Key><Size>{size}</Size><ETag>"e"</ETag>
<LastModified>2026-01-01T00:00:00Z</LastModified></Contents></ListBucketResult>"""


@dataclass
class Company:
    """A hub behind a certificate that nobody else knows, and the bundle that knows it."""

    hub: Hub
    address: str
    bundle: Path


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    made = vouched(tmp_path_factory.mktemp("authority"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    with serve(context) as hub:
        yield Company(hub, hub.address, made.authority)


@pytest.mark.parametrize("uri", ["hf://o/m", "github://o/r", "s3://bucket/m", "gs://bucket/m"])
def test_who_is_vouched_for_by_a_private_authority(
    company: Company, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    company.hub.add("o/m", FILES)
    company.hub.release("v1", FILES)
    company.hub.pages = {
        "/bucket": LISTED.format(size=len(WEIGHTS)).encode(),
        "/bucket/m/w.safetensors": WEIGHTS,
    }
    where = ("--root", tmp_path, "--path", tmp_path / "m", "--model", "m", "--endpoint", company.address)
    for name in ("SSL_CERT_FILE", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for known in (False, True):
        if known:
            monkeypatch.setenv("SSL_CERT_FILE", str(company.bundle))
        done = modelyard("node", "fetch", "--uri", uri, *where, "--patience", "0.1")
        report = json.loads(done.out.splitlines()[-1])
        assert report["outcome"] == ("Fetched" if known else "Failed"), report["message"]
    assert (tmp_path / "m" / "w.safetensors").read_bytes() == WEIGHTS
