"""A certificate for this machine, of an authority that nobody knows."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Vouched(NamedTuple):
    """Files: the authority's certificate, and that of the server with its key."""

    authority: Path
    certificate: Path
    key: Path


def vouched(folder: Path, hosts: tuple[str, ...] = ()) -> Vouched:
    """Made in a folder; the certificate is also valid for these hosts."""
    ca, key, request, cert = (folder / name for name in ("ca.crt", "ca.key", "server.csr", "server.crt"))
    own, names = folder / "server.key", folder / "names"
    entries = ("DNS:localhost", "IP:127.0.0.1", *(f"DNS:{host}" for host in hosts))
    names.write_text(f"subjectAltName={','.join(entries)}\n")
    subject = ("-subj", "/CN=company")
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", ca, "-days", 2, *subject)
    _openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", own, "-out", request, "-subj", "/CN=localhost")
    given = ("-CA", ca, "-CAkey", key, "-CAcreateserial", "-days", 2, "-extfile", names)
    _openssl("x509", "-req", "-in", request, "-out", cert, *given)
    return Vouched(ca, cert, own)


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
