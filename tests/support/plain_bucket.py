"""A bucket that anyone may list and whose objects some may not read, with pages and answers that have no end."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "models"


@dataclass
class Bucket:
    """Objects by key, and what goes wrong. ``listed`` are sizes that the list shows in place of the true ones."""

    objects: dict[str, bytes] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    listed: dict[str, int] = field(default_factory=dict)
    changed: dict[str, bytes] = field(default_factory=dict)
    """Bodies that are sent in place of the listed ones, with their own ETag and whatever condition is sent along."""
    has_etags: bool = True
    endless: str = ""
    """Empty pages without end: with a ``new`` token each, or the ``same``."""
    drip: int = 0
    """Bytes of a body that are sent one by one before the connection is closed; 0: all at once."""
    pause: threading.Event = field(default_factory=threading.Event)
    """Waited for 20 ms before each of these bytes."""
    moved: dict[str, str] = field(default_factory=dict)
    """Keys that lead to others, by an answer whose body has no end."""
    address: str = ""
    lists: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    sent: int = 0
    """Bytes of bodies, lists aside."""


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        bucket, url = self.bucket, urlsplit(self.path)
        query = parse_qs(url.query)
        key = unquote(url.path).removeprefix(f"/{BUCKET}").strip("/")
        if "list-type" in query:
            bucket.lists.append(self.path)
            self._send(200, self._page(query).encode())
            return
        bucket.reads.append(key)
        if key in bucket.moved:
            self._move(bucket.moved[key])
            return
        body = bucket.changed.get(key, bucket.objects.get(key))
        if body is None or key in bucket.denied:
            self._send(404 if body is None else 403, b"<Error><Code>AccessDenied</Code></Error>")
            return
        headers = {"ETag": _etag(body)} if bucket.has_etags else {}
        start, size = 0, len(body)
        wanted = self.headers.get("Range", "").removeprefix("bytes=").split("-")
        if len(wanted) == 2:
            start, end = int(wanted[0]), int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{min(end, size - 1)}/{bucket.listed.get(key, size)}"
            body = body[start : end + 1]
        self._send(206 if len(wanted) == 2 else 200, body, headers)

    def _move(self, target: str) -> None:
        self.close_connection = True
        self.send_response(302)
        self.send_header("Location", f"{self.bucket.address}/{BUCKET}/{target}")
        self.send_header("Content-Length", str(1 << 40))
        self.end_headers()
        try:
            while self.bucket.sent < 256 << 20:
                self.wfile.write(bytes(65536))
                self.bucket.sent += 65536
        except OSError:
            return

    def _page(self, query: dict[str, list[str]]) -> str:
        bucket = self.bucket
        if bucket.endless:
            token = "same" if bucket.endless == "same" else f"t{len(bucket.lists)}"
            more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
            return f"<ListBucketResult>{more}</ListBucketResult>"
        prefix = query.get("prefix", [""])[0]
        rows = (
            f"<Contents><Key>{escape(key)}</Key><Size>{bucket.listed.get(key, len(body))}</Size>"
            + (f"<ETag>{escape(_etag(body))}</ETag>" if bucket.has_etags else "")
            + "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
            for key, body in sorted(bucket.objects.items())
            if key.startswith(prefix)
        )
        return f"<ListBucketResult>{''.join(rows)}</ListBucketResult>"

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        is_list = "list-type" in self.path
        if not self.bucket.drip or status not in (200, 206) or is_list:
            self.bucket.sent += 0 if is_list else len(body)
            self.wfile.write(body)
            return
        self.close_connection = True
        for at in range(min(self.bucket.drip, len(body))):
            self.bucket.pause.wait(0.02)
            try:
                self.wfile.write(body[at : at + 1])
            except OSError:
                return
            self.bucket.sent += 1


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


@contextmanager
def serve() -> Iterator[Bucket]:
    """Such a bucket on a free port."""
    bucket = Bucket()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"bucket": bucket}))
    server.daemon_threads = True
    bucket.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield bucket
    finally:
        bucket.pause.set()
        server.shutdown()
        server.server_close()
        thread.join()
