"""HTTP health checks of components."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import cache
from pathlib import Path

_TIMEOUT = 3.0


class NotReady(Exception):
    """The component answered that it is not ready."""


@cache
def _context(ca: Path, client: tuple[Path, Path] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca))
    if client is not None:
        context.load_cert_chain(*client)
    return context


# Loopback is never reached through a proxy, whatever the environment says.
_DIRECT = urllib.request.ProxyHandler({})


def http_ok(
    url: str, ca: Path | None = None, *, client: tuple[Path, Path] | None = None, contains: str = ""
) -> Callable[[], None]:
    """A check that `url` answers 200.

    Args:
        url: what to ask for.
        ca: authority to verify an HTTPS server by.
        client: certificate and key to show.
        contains: text the answer must hold.
    """

    def check() -> None:
        handlers: list[urllib.request.BaseHandler] = [_DIRECT]
        if ca is not None:
            handlers.append(urllib.request.HTTPSHandler(context=_context(ca, client)))
        try:
            with urllib.request.build_opener(*handlers).open(url, timeout=_TIMEOUT) as response:
                body = response.read(64 * 1024).decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            detail = error.read(2000).decode("utf-8", "replace").strip().splitlines()
            raise NotReady(f"{url}: HTTP {error.code} {detail[-1] if detail else ''}".rstrip()) from error
        except urllib.error.URLError as error:
            raise NotReady(f"{url}: {error.reason}") from error
        if contains not in body:
            raise NotReady(f"{url}: answered without {contains!r}: {body[:200]}")

    return check


def both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    """A check that passes when two checks do."""

    def check() -> None:
        first()
        second()

    return check
