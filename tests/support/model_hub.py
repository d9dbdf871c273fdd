"""A small model hub that speaks what ``huggingface_hub`` asks: commits, tree pages, redirects, ranges; with faults."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PIECE = 16384
LFS_FROM = 1024
"""Files of so many bytes and more are kept as large ones: with a SHA-256, and behind a redirect."""


@dataclass
class Fault:
    """What happens to the next ``times`` requests whose path matches; after that many bytes for a reset or an end."""

    path: str
    times: int = 1
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    reset_after: int | None = None
    end_after: int | None = None
    ignore_ranges: bool = False
    flip: bool = False
    body: bytes | None = None


@dataclass
class Repository:
    """Commits by name; each is a dictionary of files."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    token: str | None = None
    listed: bool = False
    """Whether anybody may see its list, as with models that are given on request."""


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub:
    """Repositories, faults to come, and what was served."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.releases: dict[str, Any] = {}
        """Of GitHub: answers by path, and for an asset where it is."""
        self.pages: dict[str, bytes] = {}
        """Of whatever else: bodies by path."""
        self.faults: list[Fault] = []
        self.page = 1000
        self.endless = ""
        """Empty pages of trees without end: each leads to a ``new`` one, or all to the ``same``."""
        self.lock = threading.Lock()
        self.requests: list[str] = []
        self.secrets: list[tuple[str, str | None]] = []
        self.said: list[str] = []
        """Bodies of requests."""
        self.served: dict[str, int] = {}
        self.address = ""
        self.hear: Callable[[int], None] = lambda _: None
        """Told of every piece that goes out, with the bytes of files since ``forget``."""

    def add(self, name: str, files: Mapping[str, bytes], ref: str = "main", token: str | None = None) -> str:
        """A commit, which the ref then names."""
        states = json.dumps(sorted((name, hashlib.sha256(body).hexdigest()) for name, body in files.items()))
        commit = hashlib.sha1(states.encode()).hexdigest()
        repository = self.repositories.setdefault(name, Repository())
        repository.commits[commit] = dict(files)
        repository.refs[ref] = commit
        repository.token = token
        return commit

    def release(self, tag: str, files: Mapping[str, bytes], digests: bool = True) -> None:
        """A release of o/r on GitHub, which is the latest one from now on."""
        commit, assets = self.add("o/r", files), []
        for number, (name, body) in enumerate(files.items()):
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}" if digests else None
            assets.append({"id": number, "name": name, "size": len(body), "digest": digest, "updated_at": commit})
            self.releases[f"/repos/o/r/releases/assets/{number}"] = f"/cdn/o/r@{commit}/{name}"
        for path in ("latest", f"tags/{tag}"):
            self.releases[f"/repos/o/r/releases/{path}"] = {"tag_name": tag, "assets": assets}

    def forget(self) -> None:
        """What was asked and served."""
        with self.lock:
            self.requests.clear()
            self.secrets.clear()
            self.served.clear()

    @property
    def bytes_served(self) -> int:
        with self.lock:
            return sum(self.served.values())

    def fault(self, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # Else a small file's bytes wait for its headers to be acknowledged: 40 ms.
    hub: Hub
    another: str

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        said = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        with self.hub.lock:
            self.hub.said.append(said.decode())
        self._answer()

    do_PUT = do_POST

    def _answer(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        with self.hub.lock:
            self.hub.requests.append(f"{self.command} {path}")
            self.hub.secrets.append((path, self.headers.get("Authorization")))
        fault = self.hub.fault(path)
        if fault is not None and fault.status is not None:
            self._send(fault.status, fault.body or b"", dict(fault.headers))
            return
        if found := re.fullmatch(r"/api/models/(.+?)/(revision|tree)/([^/]+)/?", path):
            self._api(found[1], found[2], found[3], parse_qs(url.query), fault)
        elif found := re.fullmatch(r"/cdn/(.+?)@([0-9a-f]{40})/(.+)", path):
            self._file(self.hub.repositories[found[1]].commits[found[2]][found[3]], path, {}, fault)
        elif found := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
            self._resolve(found[1], found[2], found[3], fault)
        elif path in self.hub.pages:
            self._file(self.hub.pages[path], path, {"ETag": '"e"'}, fault)
        elif path in self.hub.releases:
            found_at = self.hub.releases[path]
            if isinstance(found_at, str):
                self._send(302, b"", {"Location": f"{self.another}{found_at}?signature=s"})
            else:
                self._json(found_at, fault)
        else:
            self._send(404, b"")

    def _repository(self, name: str) -> Repository | None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
            return None
        if repository.token and self.headers.get("Authorization") != f"Bearer {repository.token}":
            code = "GatedRepo" if self.headers.get("Authorization") else "RepoNotFound"
            self._send(403 if self.headers.get("Authorization") else 401, b"", {"X-Error-Code": code})
            return None
        return repository

    def _api(self, name: str, kind: str, revision: str, query: dict[str, list[str]], fault: Fault | None) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None or not repository.listed:
            repository = self._repository(name)
        if repository is None:
            return
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif kind == "revision":
            self._json({"id": name, "sha": commit, "siblings": []}, fault)
        else:
            entries: list[dict[str, Any]] = []
            for file, body in sorted(repository.commits[commit].items()):
                entry: dict[str, Any] = {"type": "file", "path": file, "size": len(body), "oid": git_sha1(body)}
                if len(body) >= LFS_FROM:
                    digest = hashlib.sha256(body).hexdigest()
                    entry["lfs"] = {"oid": digest, "size": len(body), "pointerSize": 134}
                entries.append(entry)
            if self.hub.endless:
                cursor = "again" if self.hub.endless == "same" else str(len(self.hub.requests))
                link = f"{self.hub.address}{urlsplit(self.path).path}?recursive=true&cursor={cursor}"
                self._json([], fault, {"Link": f'<{link}>; rel="next"'})
                return
            begin = int(query.get("cursor", ["0"])[0])
            end = begin + self.hub.page
            more = {}
            if end < len(entries):
                here = f"{self.hub.address}{urlsplit(self.path).path}?recursive=true&cursor={end}"
                more["Link"] = f'<{here}>; rel="next"'
            self._json(entries[begin:end], fault, more)

    def _resolve(self, name: str, revision: str, file: str, fault: Fault | None) -> None:
        repository = self._repository(name)
        if repository is None:
            return
        commit = repository.refs.get(revision, revision)
        body = repository.commits.get(commit, {}).get(file)
        if body is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        told = {"X-Repo-Commit": commit, "ETag": f'"{git_sha1(body)}"'}
        if len(body) < LFS_FROM:
            self._file(body, self.path, told, fault)
            return
        told |= {"X-Linked-Size": str(len(body)), "X-Linked-ETag": f'"{hashlib.sha256(body).hexdigest()}"'}
        self._send(302, b"", {**told, "Location": f"{self.another}/cdn/{name}@{commit}/{file}?signature=s"})

    def _file(self, body: bytes, path: str, headers: dict[str, str], fault: Fault | None) -> None:
        if fault is not None and fault.body is not None:
            body = fault.body
        start, end, status = 0, len(body), 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and not (fault and fault.ignore_ranges):
            start, end, status = int(wanted[1]), min(len(body), int(wanted[2] or len(body)) + 1), 206
            if start >= len(body):
                self._send(416, b"", {"Content-Range": f"bytes */{len(body)}"})
                return
            headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(body)}"}
        part = body[start:end]
        if fault is not None and fault.flip and part:
            part = bytes([part[0] ^ 1]) + part[1:]
        self._send(status, part, headers, fault)

    def _json(self, value: Any, fault: Fault | None, headers: Mapping[str, str] = {}) -> None:
        body = fault.body if fault is not None and fault.body is not None else json.dumps(value).encode()
        self._send(200, body, {"Content-Type": "application/json", **headers})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] = {}, fault: Fault | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = fault and (fault.reset_after if fault.reset_after is not None else fault.end_after)
        if cut is not None:
            body = body[:cut]
        where = unquote(urlsplit(self.path).path)
        of_file = status in (200, 206) and ("/resolve/" in where or where.startswith("/cdn/"))
        for piece in (body[at : at + PIECE] for at in range(0, len(body), PIECE)):
            try:
                self.wfile.write(piece)
            except OSError:
                self.close_connection = True
                return
            if of_file:
                with self.hub.lock:
                    self.hub.served[where] = self.hub.served.get(where, 0) + len(piece)
                self.hub.hear(self.hub.bytes_served)
        if cut is not None:
            self.wfile.flush()
            if fault and fault.reset_after is not None:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True


@contextmanager
def serve(tls: ssl.SSLContext | None = None, files_at: str | None = None) -> Iterator[Hub]:
    """A hub on a free port; its large files are on another host name, as with a content network."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), handler)
    port = server.server_address[1]
    scheme = "https" if tls is not None else "http"
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    hub.address = f"{scheme}://127.0.0.1:{port}"
    handler.another = files_at or f"{scheme}://localhost:{port}"  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
