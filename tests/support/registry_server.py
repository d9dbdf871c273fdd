"""A container registry by the OCI distribution API: manifests, tokens, redirects, and trouble on demand."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

DIGEST = "sha256:" + "ab" * 32
TOKEN = "a-token"


class Registry:
    """``images`` are REPOSITORY:VERSION. ``secured`` wants a token; ``login`` (user:password) is needed to get one."""

    def __init__(self, *images: str) -> None:
        self.images = set(images)
        self.secured = False
        self.basic = False
        self.login = ""
        self.status = 0
        self.refuses_head = False
        self.moved_to = ""
        self.realm = ""
        self.token_answer = b""
        self.requests: list[tuple[str, str, str]] = []
        self.address = ""

    def answer(self, method: str, target: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        self.requests.append((method, target, authorization))
        path = urlsplit(target).path
        login = f"Basic {base64.b64encode(self.login.encode()).decode()}" if self.login else ""
        if path == "/token":
            if self.login and authorization != login:
                return 401, {}, b""
            if self.token_answer:
                return 200, {}, self.token_answer
            scope = parse_qs(urlsplit(target).query)["scope"][0]
            return 200, {}, json.dumps({"token": f"{TOKEN} {scope}".replace(" ", "-")}).encode()
        repository, _, version = path.removeprefix("/v2/").rpartition("/manifests/")
        if self.moved_to:
            return 307, {"Location": f"{self.moved_to}{path}"}, b""
        if self.status:
            return self.status, {"Retry-After": "30"}, b""
        if method == "HEAD" and self.refuses_head:
            return 405, {}, b""
        if self.secured and authorization != f"Bearer {TOKEN}-repository:{repository}:pull":
            realm = self.realm or f"http://{self.address}/token"
            return 401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="stub",scope="repository:x:pull"'}, b""
        if self.basic and authorization != login:
            return 401, {"WWW-Authenticate": 'Basic realm="stub"'}, b""
        if f"{repository}:{version}" not in self.images:
            return 404, {}, b""
        return 200, {"Docker-Content-Digest": DIGEST}, b"{}"


@contextmanager
def serving(registry: Registry) -> Iterator[Registry]:
    """The registry on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            status, headers, body = registry.answer(self.command, self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = _handle

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.address = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
