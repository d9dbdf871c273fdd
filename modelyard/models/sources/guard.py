"""A proxy on loopback, through which a library that follows whatever it is told gets to no address that is refused."""

from __future__ import annotations

import contextlib
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from select import select
from threading import Thread
from typing import Any

import urllib3

from modelyard.models.errors import FetchError
from modelyard.models.sources import check_address, check_host
from modelyard.models.sources.http import CHUNK, checked

_HOP = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "te", "upgrade"})
_PATIENCE = 60.0


def guarded(public: bool, refused: list[FetchError]) -> str:
    """The address of such a proxy, which is there as long as this process; ``refused`` is told what it has refused."""
    pool = urllib3.PoolManager(timeout=urllib3.Timeout(connect=10, read=_PATIENCE), retries=False)
    pool.pool_classes_by_scheme = checked(public)
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Guard", (_Guard,), {"pool": pool, "public": public, "refused": refused})
    )
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


class _Guard(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    pool: urllib3.PoolManager
    public: bool
    refused: list[FetchError]

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_CONNECT(self) -> None:
        """TLS goes through as it is."""
        host, _, port = self.path.rpartition(":")
        self.close_connection = True
        try:
            check_host(f"https://{self.path}", self.public)
            there = socket.create_connection((host.strip("[]"), int(port)), timeout=10)
            check_address(there.getpeername()[0], host, self.public)
        except (OSError, ValueError, FetchError) as error:
            self._refuse(error)
            return
        with there:
            self.send_response(200)
            self.end_headers()
            ends = {there: self.connection, self.connection: there}
            with contextlib.suppress(OSError):
                while ready := select(list(ends), (), (), _PATIENCE)[0]:
                    for end in ready:
                        piece = end.recv(CHUNK)
                        if not piece:
                            return
                        ends[end].sendall(piece)

    def do_GET(self) -> None:
        """What is not encrypted is asked here."""
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        try:
            check_host(self.path, self.public)
            body = self.rfile.read(int(self.headers["Content-Length"])) if "Content-Length" in self.headers else None
            answer = self.pool.request(
                self.command,
                self.path,
                body,
                headers=headers,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
        except (FetchError, ValueError, urllib3.exceptions.HTTPError) as error:
            self._refuse(error)
            return
        self.close_connection = True
        with contextlib.suppress(OSError, urllib3.exceptions.HTTPError):
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            for piece in answer.stream(CHUNK, decode_content=False):
                self.wfile.write(piece)
        answer.close()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _refuse(self, error: Exception) -> None:
        if isinstance(error, FetchError):
            self.refused.append(error)
        self.send_response(502)
        self.send_header("Content-Length", "0")
        self.end_headers()
