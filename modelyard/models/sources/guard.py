"""A proxy on loopback, through which a library that follows whatever it is told gets to no address that is refused."""

from __future__ import annotations

import contextlib
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from select import select
from threading import Thread
from typing import Any

import urllib3

from modelyard.models.sources.http import CHUNK, HttpPool
from modelyard.models.sources.proxies import read_proxy
from modelyard.models.sources.source import ListingBudget, check_address, check_host
from modelyard.models.storage import FetchError

_HOP = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "te", "upgrade"})
_SILENCE = 60.0


def guarded(public: bool, refused: list[FetchError], budget: ListingBudget | None = None) -> str:
    """The address of such a proxy, which is there as long as this process; ``refused`` is told what it has refused.

    ``budget`` counts what a listing asks for. In a tunnel each change from answer to request counts as a request.
    """
    given = {"pool": HttpPool(public), "public": public, "refused": refused, "budget": budget or ListingBudget()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Guard", (_Guard,), given))
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


class _Guard(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    pool: HttpPool
    public: bool
    refused: list[FetchError]
    budget: ListingBudget

    def log_message(self, *_: Any) -> None: ...

    def do_CONNECT(self) -> None:
        self.close_connection = True
        try:
            target = self._connected()
        except (OSError, ValueError, FetchError) as error:
            self._refuse(error)
            return
        with target:
            self.send_response(200)
            self.end_headers()
            ends = {target: self.connection, self.connection: target}
            answering = True
            try:
                while ready := select(list(ends), (), (), _SILENCE)[0]:
                    for end in ready:
                        piece = end.recv(CHUNK)
                        if not piece:
                            return
                        if end is target:
                            self.budget.take(len(piece))
                        elif answering:
                            self.budget.ask()
                        answering = end is target
                        ends[end].sendall(piece)
            except FetchError as error:
                self.refused.append(error)
            except OSError:
                return

    def _connected(self) -> socket.socket:
        host, _, port = self.path.rpartition(":")
        url, host = f"https://{self.path}", host.strip("[]")
        check_host(url, self.public)
        proxy = read_proxy()
        if proxy is not None and proxy.serves(url):
            return proxy.open_tunnel(host, int(port), timeout=10)
        connection = socket.create_connection((host, int(port)), timeout=10)
        try:
            check_address(connection.getpeername()[0], host, self.public)
        except BaseException:
            connection.close()
            raise
        return connection

    def do_GET(self) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        try:
            check_host(self.path, self.public)
            self.budget.ask(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"])) if "Content-Length" in self.headers else None
            answer = self.pool.request(
                self.command,
                self.path,
                body=body,
                headers=headers,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
        except (FetchError, ValueError, urllib3.exceptions.HTTPError) as error:
            self._refuse(error)
            return
        self.close_connection = True
        if answer.status == 200:
            self.budget.answered(self.path)
        with contextlib.suppress(OSError, urllib3.exceptions.HTTPError):
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                for piece in answer.stream(CHUNK, decode_content=False):
                    self.budget.take(len(piece))
                    self.wfile.write(piece)
            except FetchError as error:
                self.refused.append(error)
        answer.close()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _refuse(self, error: Exception) -> None:
        if isinstance(error, FetchError):
            self.refused.append(error)
        self.send_response(502)
        self.send_header("Content-Length", "0")
        self.end_headers()
