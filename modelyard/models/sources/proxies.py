"""The HTTPS proxy of the environment, which an administrator sets: the requests that use it, and its tunnels.

``HTTPS_PROXY`` names it, ``NO_PROXY`` the hosts that are reached directly; the lower-case names win, as with curl.
Requests to ``http://`` addresses never use it. A proxy resolves the target's name itself, so only the name and the
addresses that this machine resolves it to can be checked here.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

from modelyard.models.storage import FetchError, unavailable

_VARIABLES = ("https_proxy", "HTTPS_PROXY")
_EXCEPTIONS = ("no_proxy", "NO_PROXY")
_STATUS = re.compile(r"\b([45]\d\d)\b")
_ANSWER_LIMIT = 65536
"""Bytes that a proxy's answer to CONNECT may have."""


@dataclass(frozen=True, slots=True)
class HttpsProxy:
    """One HTTP proxy that opens tunnels by CONNECT. ``authorization`` is secret and part of no message."""

    host: str
    port: int
    exceptions: tuple[str, ...] = ()
    authorization: str | None = None

    @property
    def url(self) -> str:
        """Its address without credentials."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Proxy-Authorization": self.authorization} if self.authorization else {}

    def serves(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port or 443
        except ValueError:
            return False
        return parts.scheme == "https" and not any(_matches(entry, host, port) for entry in self.exceptions)

    def open_tunnel(self, host: str, port: int, timeout: float) -> socket.socket:
        """Connect to a host through the proxy. Raises FetchError and OSError."""
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", "User-Agent: modelyard"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        tunnel = socket.create_connection((self.host, self.port), timeout=timeout)
        try:
            tunnel.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
            answer = bytearray()
            # Byte by byte: the bytes after the empty line belong to the tunnel.
            while not answer.endswith(b"\r\n\r\n"):
                piece = tunnel.recv(1)
                if not piece or len(answer) > _ANSWER_LIMIT:
                    raise self.refusal(host, "closed the connection")
                answer += piece
            status = answer.partition(b"\r\n")[0].decode("latin-1")
            if not re.match(r"HTTP/1\.[01] 2\d\d\b", status):
                raise self.refusal(host, status)
        except BaseException:
            tunnel.close()
            raise
        return tunnel

    def refusal(self, host: str, answer: str) -> FetchError:
        shown = "".join(character for character in answer if character.isprintable())[:200]
        match = _STATUS.search(answer)
        status = int(match[1]) if match else 502
        problem = f"proxy {self.url} opens no connection to {host}: {shown}"
        if status == 407:
            return FetchError("ProxyRefused", f"{problem}; put its user and password into HTTPS_PROXY")
        if status < 500 and status not in (408, 425, 429):
            return FetchError("ProxyRefused", f"{problem}; have {host} allowed there, or add it to NO_PROXY")
        return unavailable(f"{problem}; check the proxy, and that {host} exists")


def read_proxy(environ: Mapping[str, str] | None = None) -> HttpsProxy | None:
    """The proxy of this environment, if any. Raises FetchError for a value that names none."""
    environ = os.environ if environ is None else environ
    name, text = next(((name, environ[name].strip()) for name in _VARIABLES if environ.get(name, "").strip()), ("", ""))
    if not text:
        return None
    exceptions = next((environ[variable] for variable in _EXCEPTIONS if environ.get(variable)), "")
    return parse_proxy(text, tuple(re.split(r"[\s,]+", exceptions.strip(", \t\n"))) if exceptions.strip() else (), name)


def parse_proxy(text: str, exceptions: tuple[str, ...] = (), name: str = "HTTPS_PROXY") -> HttpsProxy:
    """The proxy at an address such as ``http://proxy.example.com:3128``. Raises FetchError."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname or "", parts.port or 80
        plain = parts.scheme == "http" and parts.path in ("", "/") and not (parts.query or parts.fragment)
    except ValueError:
        parts, host, port, plain = urlsplit(""), "", 0, False
    if not plain or not re.fullmatch(r"[A-Za-z0-9._:-]{1,255}", host):
        shown = re.sub(r"//.*@", "//…@", text)[:200]
        raise FetchError("ProxyInvalid", f"{name} {shown!r} is no address of an HTTP proxy; write http://HOST:PORT")
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return HttpsProxy(host, port, exceptions, authorization)


def _matches(entry: str, host: str, port: int) -> bool:
    """Match an entry of NO_PROXY: ``*``, a name with all names below it, an address, a network, each with ``:PORT``."""
    entry = entry.strip().lower()
    if not entry:
        return False
    if entry == "*":
        return True
    with contextlib.suppress(ValueError):
        return ip_address(host) in ip_network(entry.strip("[]"), strict=False)
    name, colon, number = entry.rpartition(":")
    if colon and number.isdigit():
        if int(number) != port:
            return False
        entry = name
    entry = entry.strip("[]").removeprefix("*").strip(".")
    return bool(entry) and (host.lower() == entry or host.lower().endswith(f".{entry}"))
