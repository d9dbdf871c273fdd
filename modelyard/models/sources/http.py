"""Ranges of files over plain HTTP: redirects, statuses and what servers say about waiting, as ``FetchError``."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any
from urllib.parse import urljoin, urlsplit

import urllib3

from modelyard.models.sources.proxies import read_proxy
from modelyard.models.sources.source import RangesIgnored, check_address, check_host
from modelyard.models.storage import FetchError, unavailable

CHUNK = 1 << 20
TOKEN_LIMIT = 1 << 20
"""Bytes of an answer with a token."""
_FIRST_READ = 64 << 10
"""Bytes that are read at once in the beginning."""
_SLOW_READ = 1.0
"""Seconds after which less is read at once."""
_REDIRECT_LIMIT = 8192
"""Bytes of a redirect's body that are read, so that its connection can be used again."""
PAGE_LIMIT = 64 << 20
"""Bytes of an answer that is read as a whole."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)\Z")
ERROR_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
"""What has gone wrong, as object stores say it."""
_REFUSED_KEYS = (
    *("ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"),
    *("AuthenticationFailed", "InvalidAuthenticationInfo"),
)
_CLOCK_DIFFERS = "RequestTimeTooSkewed"
_STATUSES = {"SlowDown": 429, "ServerBusy": 429, "PublicAccessNotPermitted": 403}
_RESET = re.compile(r"[;,]\s*t\s*=\s*(\d+)")


class HttpPool:
    """Our synchronous HTTP client: connections check the address they have reached before anything is sent.

    Requests go through the HTTPS proxy of the environment, if any, whose own address may be internal.
    """

    def __init__(self, public: bool, *, parallel: int = 1, connect: float = 10, read: float = 60) -> None:
        options: dict[str, Any] = {
            "maxsize": parallel,
            "timeout": urllib3.Timeout(connect=connect, read=read),
            "retries": False,
        }
        self._proxy = read_proxy()
        self._direct = urllib3.PoolManager(**options)
        self._direct.pool_classes_by_scheme = checked(public)
        self._proxied = (
            urllib3.ProxyManager(self._proxy.url, proxy_headers=self._proxy.headers, **options)
            if self._proxy is not None
            else None
        )

    def request(self, method: str, url: str, **options: Any) -> urllib3.BaseHTTPResponse:
        """Send a request and return its answer. Raises FetchError where the proxy refuses it, and urllib3's errors."""
        if self._proxy is None or self._proxied is None or not self._proxy.serves(url):
            return self._direct.request(method, url, **options)
        try:
            return self._proxied.request(method, url, **options)
        except urllib3.exceptions.ProxyError as error:
            raise self._proxy.refusal(urlsplit(url).hostname or "", str(error.original_error)) from error


def checked(public: bool) -> dict[str, Any]:
    """Pools, by scheme, whose connections say where they have led before anything is sent."""

    class WatchedConnection:
        host: str

        def _new_conn(self) -> socket.socket:
            found: socket.socket = super()._new_conn()  # type: ignore[misc]
            try:
                check_address(found.getpeername()[0], self.host, public)
            except BaseException:
                found.close()
                raise
            return found

    pools: dict[str, Any] = {"http": urllib3.HTTPConnectionPool, "https": urllib3.HTTPSConnectionPool}
    return {
        scheme: type(
            pool.__name__, (pool,), {"ConnectionCls": type("Connection", (WatchedConnection, pool.ConnectionCls), {})}
        )
        for scheme, pool in pools.items()
    }


Secret = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""Headers with a credential, or what gives those of the moment (raises FetchError)."""


class Http:
    """Requests to one service. ``secret`` are headers that only its own host is sent."""

    def __init__(self, base: str, secret: Secret, parallel: int, public: bool = False) -> None:
        self.base, self._public = base.rstrip("/"), public
        self.host = urlsplit(self.base).netloc
        self.secret = secret
        self._pool = HttpPool(public, parallel=parallel + 1)
        self._moved: dict[str, str] = {}
        self._lock = threading.Lock()

    def page(self, path: str) -> bytes:
        """An answer as a whole, of bounded size."""
        response = self._follow(f"{self.base}{path}", {"Accept": "application/json"}, remember=False)
        body = bytearray()
        try:
            for piece in response.stream(CHUNK, decode_content=False):  # a compressed page may have any size
                body += piece
                if len(body) > PAGE_LIMIT:
                    what = f"{self.host}{path}: the answer is larger than {PAGE_LIMIT} bytes"
                    raise FetchError("SourceUnavailable", what)
        except urllib3.exceptions.HTTPError as error:
            raise self._broken(error) from error
        finally:
            response.close()
        return bytes(body)

    def read(
        self, url: str, size: int, start: int, length: int, headers: Mapping[str, str] = {}, etag: str | None = None
    ) -> Iterator[memoryview]:
        """These bytes of the file of ``size`` bytes at ``url``; one of another size, or another ETag, has changed."""
        whole = start == 0 and length == size
        wanted = {**headers, "Accept-Encoding": "identity"}
        if not whole:
            wanted["Range"] = f"bytes={start}-{start + length - 1}"
        response = self._follow(url, wanted, remember=not whole)
        try:
            sent = response.headers.get("ETag")
            if etag and sent and _plain_etag(sent) != _plain_etag(etag):
                raise FetchError(
                    "SourceChanged",
                    f"{url.partition('?')[0]}: has the ETag {sent[:100]}, not the {etag[:100]} it was listed with",
                    retryable=True,
                )
            if response.status == 200 and not whole and _length(response, size) == size:
                raise RangesIgnored(self.host)
            found = _CONTENT_RANGE.match(response.headers.get("Content-Range", "")) if response.status == 206 else None
            if found and found[3] != "*":
                total = int(found[3])
            else:
                total = _length(response, size) if whole or response.status == 200 else size
            if total != size or (found and (int(found[1]), int(found[2])) != (start, start + length - 1)):
                raise FetchError(
                    "SourceChanged",
                    f"{url.partition('?')[0]}: has {total} bytes, not the {size} it was listed with",
                    retryable=True,
                )
            # One buffer for all of it, filled from the socket: urllib3 makes one for each piece. A read ends when its
            # part of the buffer is full, so it grows while the source is fast: bytes are counted as they arrive.
            body: Any = response
            view = memoryview(bytearray(min(CHUNK, length)))
            step = min(_FIRST_READ, len(view))
            while True:
                asked = time.monotonic()
                if not (got := body._fp.readinto(view[:step])):
                    break
                slow = time.monotonic() - asked > _SLOW_READ
                step = max(1, min(len(view), step // 2 if slow else step * 2))
                length -= got
                yield view[:got]
            if length > 0:
                raise unavailable(f"{self.host}: ended early")
        except (HTTPException, OSError) as error:
            raise self._broken(error) from error
        finally:
            # What was not read to the end cannot serve another request.
            if response.closed or not _length(response):
                response.release_conn()
            else:
                response.close()

    def _follow(self, url: str, headers: Mapping[str, str], *, remember: bool) -> urllib3.BaseHTTPResponse:
        """The answer behind up to five redirects. Where a file was found is asked first for its next part."""
        with self._lock:
            here = self._moved.get(url, url)
        for _ in range(6):
            own = urlsplit(here)[:2] == urlsplit(self.base)[:2]
            secret = self.secret() if callable(self.secret) else self.secret
            sent = {"User-Agent": "modelyard", **headers, **(secret if own else {})}
            try:
                response = self._pool.request("GET", here, headers=sent, redirect=False, preload_content=False)
            except urllib3.exceptions.HTTPError as error:
                raise self._broken(error) from error
            if response.status in (301, 302, 303, 307, 308) and (target := response.headers.get("Location")):
                if 0 <= _length(response, -1) <= _REDIRECT_LIMIT:
                    response.drain_conn()
                    response.release_conn()
                else:  # a body without end, maybe
                    response.close()
                try:
                    here = urljoin(here, target)
                except ValueError:
                    here = target
                check_host(here, self._public)
                continue
            if response.status in (200, 206):
                if remember and here != url:
                    with self._lock:
                        self._moved[url] = here
                return response
            with self._lock:
                was_moved = self._moved.pop(url, None) is not None
            refused = self._refused(response, url)
            if was_moved and response.status in (400, 401, 403, 404, 410):
                here = url  # A signed address that has run out.
                continue
            raise refused
        raise unavailable(f"{self.host}: more than five redirects")

    def _refused(self, response: urllib3.BaseHTTPResponse, url: str) -> FetchError:
        status, wait = response.status, retry_after(response.headers)
        code = response.headers.get("X-Error-Code") or response.headers.get("X-Error-Message") or ""
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            if found := ERROR_CODE.search(response.read(4096, decode_content=True).decode("utf-8", "replace")):
                code = found[1]
        response.close()
        return of_status(status, url.partition("?")[0], code[:200], wait)

    def _broken(self, error: Exception) -> FetchError:
        shown = (str(error).splitlines() or [type(error).__name__])[0][:300]
        return unavailable(f"{self.host}: {shown}")


def of_status(status: int, what: str, code: str = "", wait: float | None = None) -> FetchError:
    """What an HTTP status means to whoever fetches ``what``."""
    said = f"{what}: HTTP {status}" + (f" ({code})" if code else "")
    if code == _CLOCK_DIFFERS:  # no key is wrong: it is fetched once the clock is right
        remedy = "the clock of this node differs too much from the source's; set it"
        return unavailable(f"{said}; {remedy}")
    status = 401 if code in _REFUSED_KEYS else _STATUSES.get(code, status)
    match status:
        case 401:
            remedy = "give a valid token or key in the Secret that spec.storage.key names, and check the name"
            return FetchError("Unauthorized", f"{said}; {remedy}")
        case 403:
            remedy = "the token or key may not read this; ask its owner for access, or name another Secret"
            return FetchError("Forbidden", f"{said}; {remedy}")
        case 404 | 410:
            return FetchError("NotFound", f"{said}; check name, revision and access in storageUri")
        case 412 | 416:
            return FetchError("SourceChanged", f"{said}; the file has changed since it was listed", retryable=True)
        case 429:
            return FetchError("RateLimited", f"{said}; the source asks to wait", retryable=True, retry_after=wait)
    if status in (501, 505):
        remedy = "the server does not know this protocol; check endpoint"
        return FetchError("SourceRefused", f"{said}; {remedy}")
    if status in (408, 409, 425) or status >= 500:
        return unavailable(f"{said}; the source is in trouble", wait)
    return FetchError("SourceRefused", f"{said}; the source does not understand; check storageUri and endpoint")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, of Retry-After (seconds or a date) or of a rate limit that is used up (``t=``)."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    if text:
        try:
            # From the answer's own date, whatever this machine takes the time to be.
            now = parsedate_to_datetime(headers["Date"]).timestamp() if headers.get("Date") else time.time()
            return max(0.0, parsedate_to_datetime(text).timestamp() - now)
        except (ValueError, OverflowError, OSError):
            return None
    found = _RESET.search(headers.get("RateLimit", ""))
    return float(found[1][:9]) if found else None


def _length(response: urllib3.BaseHTTPResponse, unknown: int = 0) -> int:
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else unknown


def _plain_etag(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')
