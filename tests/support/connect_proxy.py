"""An HTTPS proxy that leads names of the internet to servers of this machine, with certificates of its own authority.

So a client that knows the proxy and the authority reaches ``bucket.s3.eu-west-1.amazonaws.com`` as it would outside.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any
from urllib.parse import urlsplit

from own_authority import Vouched


class ConnectProxy:
    """Where CONNECT leads: an address by host, or by a domain that begins with a dot."""

    def __init__(self, routes: Mapping[str, str], certificate: Vouched) -> None:
        self.routes, self.address = dict(routes), ""
        self.tunnels: list[str] = []
        """Targets that were asked for."""
        self.authorizations: list[str | None] = []
        self.refusal: str | None = None
        """Status line with which every tunnel is refused."""
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate.certificate, certificate.key)

    def hosts(self) -> set[str]:
        return {target.rpartition(":")[0] for target in self.tunnels}

    def route(self, host: str) -> tuple[str, int] | None:
        for name, address in self.routes.items():
            if host == name or (name.startswith(".") and host.endswith(name)):
                parts = urlsplit(address)
                return str(parts.hostname), int(parts.port or 80)
        return None


class _Tunnel(StreamRequestHandler):
    proxy: ConnectProxy

    def handle(self) -> None:
        proxy, lines = self.proxy, []
        while line := self.rfile.readline(65536).strip():
            lines.append(line.decode("latin-1"))
        if not lines:
            return
        target = lines[0].split()[1]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        proxy.tunnels.append(target)
        proxy.authorizations.append(headers.get("proxy-authorization"))
        route = proxy.route(target.rpartition(":")[0])
        if proxy.refusal is not None or route is None:
            self.wfile.write(f"HTTP/1.1 {proxy.refusal or '502 no such host'}\r\nContent-Length: 0\r\n\r\n".encode())
            return
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with (
            suppress(OSError),
            proxy.tls.wrap_socket(self.connection, server_side=True) as client,
            socket.create_connection(route) as server,
        ):
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()


def _pump(source: Any, sink: Any) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def connect_proxy(routes: Mapping[str, str], certificate: Vouched) -> Iterator[ConnectProxy]:
    """A proxy on a free port of loopback."""
    proxy = ConnectProxy(routes, certificate)

    class Server(ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), type("Tunnel", (_Tunnel,), {"proxy": proxy}))
    proxy.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
