"""One HTTP request to the API server: credentials, timeouts, repetition, errors.

Connections, TLS and credentials are those of the ``kubernetes`` package's asyncio client. Bodies are read raw and
parsed with orjson into plain dictionaries, because its generated models cost several times more than the request.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import orjson

from modelyard.backoff import Backoff
from modelyard.cluster.clock import ServerClock
from modelyard.cluster.connection import ClusterSettings, load_configuration
from modelyard.cluster.errors import ClusterError, NotConfigured, TooLarge, Unauthorized, Unavailable, from_answer
from modelyard.cluster.holder import Holder
from modelyard.cluster.nesting import parse

JSON = "application/json"
METADATA = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Media type of an answer without the object's contents."""
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_T = TypeVar("_T")

_PLACE = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[^/]+)(?:/|$)"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request. ``verb`` and ``object`` are for messages. ``idempotent`` requests are repeated when unanswered.

    ``timeout`` bounds the call with all repetitions, ``try_timeout`` each single try. Both are seconds, ``None`` means
    as in the settings. An answer of more than ``most`` bytes is a ``TooLarge`` (``None``: no limit).
    ``accept`` is the media type of the answer.
    """

    method: str
    path: str
    verb: str
    object: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = JSON
    idempotent: bool = True
    timeout: float | None = None
    try_timeout: float | None = None
    most: int | None = None
    accept: str = JSON

    def unavailable(self, detail: str, *, untouched: bool = False, permanent: bool = False) -> Unavailable:
        error = Unavailable(detail, verb=self.verb, object=self.object)
        error.untouched = untouched
        error.permanent = permanent
        return error


class Transport:
    """A pool of keep-alive connections to one API server."""

    def __init__(self, settings: ClusterSettings, configuration: Any, source: str) -> None:
        self.settings = settings
        self.source = source
        from kubernetes.aio.client.api_client import ApiClient  # large: only loaded where a cluster is needed

        self._client = ApiClient(configuration)
        # The package's own connector forgets idle connections after 15 s, which is just the length of a tick.
        self._connector = aiohttp.TCPConnector(
            limit=settings.max_connections,
            ssl=self._client.rest_client.ssl_context,
            keepalive_timeout=settings.idle_timeout,
        )
        configuration.client_session_kwargs["connector"] = self._connector
        self._name = str(Holder.here())
        self.clock = ServerClock()
        self._retired: list[Transport] = []
        self._warned: set[str] = set()
        self.written: dict[tuple[str, str, str], int] = {}
        """The newest resource version of ours by API group, namespace and resource: who mirrors them waits for it."""
        self._reload_lock = asyncio.Lock()
        self._reloaded_at = float("-inf")

    @classmethod
    async def open(cls, settings: ClusterSettings) -> Transport:
        """Find the cluster's configuration. Does not contact the server. Raises ``NotConfigured``."""
        configuration, source = await load_configuration(settings)
        try:
            return cls(settings, configuration, source)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise NotConfigured(f"{source}: certificates are not usable: {error}", verb="connect") from error

    async def close(self) -> None:
        """Close all connections; requests under way fail."""
        await self._client.close()
        await self._connector.close()
        for retired in self._retired:
            await retired.close()

    @property
    def server(self) -> str:
        return str(self._client.configuration.host)

    async def json(self, request: ApiRequest) -> dict[str, Any]:
        """Send and return the parsed answer. Raises a ``ClusterError``."""
        try:
            parsed: dict[str, Any] = parse(await self.send(request))
        except orjson.JSONDecodeError as error:
            raise request.unavailable(f"the answer cannot be parsed: {error}") from error
        if request.method != "GET" and (place := _PLACE.match(request.path)):
            version = str((parsed.get("metadata") or {}).get("resourceVersion") or "")
            if version.isdecimal():
                of = place["group"] or "", place["namespace"] or "", place["resource"]
                self.written[of] = max(int(version), self.written.get(of, 0))
        return parsed

    async def send(self, request: ApiRequest) -> bytes:
        """Send and return the body; repeat in time what is idempotent or surely not done. Raises a ``ClusterError``."""
        settings = self.settings
        deadline = time.monotonic() + (settings.call_timeout if request.timeout is None else request.timeout)
        backoff, attempt, reloaded = Backoff(settings.retry_delay), 0, False
        while True:
            attempt += 1
            used = self._client
            try:
                return await self._try(used, request, deadline)
            except Unauthorized:
                if reloaded or not await self._reload(used):
                    raise
                reloaded = True
            except Unavailable as error:
                error.attempts = attempt
                wait = max(backoff.delay(attempt, random.uniform(1, 1.1)), error.retry_after or 0)
                repeatable = (request.idempotent or error.untouched) and not error.permanent
                if not repeatable or attempt >= settings.retry_steps or time.monotonic() + wait >= deadline:
                    raise
                logger.debug("%s; next try in %.2f s", error, wait)
                await asyncio.sleep(wait)

    async def _try(self, client: Any, request: ApiRequest, deadline: float) -> bytes:
        limit = self.settings.request_timeout if request.try_timeout is None else request.try_timeout
        limit = max(0.001, min(limit, deadline - time.monotonic()))
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=min(self.settings.connect_timeout, limit))
        response = await self._begin(client, request, timeout)
        try:
            body = await _answer(request, _body(request, response))
        finally:
            response.release()
        if response.status >= 300:
            raise _refusal(request, response, body)
        for warning in response.headers.getall("Warning", ()):
            if warning not in self._warned:
                self._warned.add(warning)
                logger.warning("%s %s: the API server warns: %s", request.verb, request.object, warning)
        return body

    @asynccontextmanager
    async def stream(self, request: ApiRequest, silence: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open an endless answer and give its lines. ``silence`` is the longest time without a byte, in seconds.

        Raises ``Unavailable`` when the connection is cut; ends quietly when the server ends it.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.settings.connect_timeout, sock_read=silence)
        used = self._client
        try:
            async with asyncio.timeout(self.settings.request_timeout):
                response = await self._begin(used, request, timeout)
        except TimeoutError as error:
            raise request.unavailable("the API server did not answer in time") from error
        try:
            if response.status >= 300:
                refusal = _refusal(request, response, await _answer(request, response.read()))
                if isinstance(refusal, Unauthorized):
                    await self._reload(used)  # the caller opens streams again by itself
                raise refusal
            async with aclosing(_lines(request, response)) as lines:
                yield lines
        finally:
            response.close()

    async def _begin(self, client: Any, request: ApiRequest, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        headers = {
            "Accept": request.accept,
            "Content-Type": request.content_type,
            # Tells the audit log which of the contenders for a Lease this is.
            "User-Agent": f"{self.settings.field_manager} ({self._name})",
            "Accept-Encoding": "gzip" if self.settings.compression else "identity",
        }
        from kubernetes.aio.config.config_exception import ConfigException

        url = client.configuration.host + request.path
        if request.query:
            url += "?" + urlencode(request.query, quote_via=quote)
        try:
            await client.update_params_for_auth(headers, [], ["BearerToken"], request.path, request.method, None)
        except (ConfigException, OSError) as error:
            raise NotConfigured(
                f"credentials of the {self.source} cannot be read: {error}", verb=request.verb, object=request.object
            ) from error
        sent = time.monotonic()
        answer = await _answer(
            request,
            client.rest_client.request(
                request.method, url, headers=headers, body=request.body, _request_timeout=timeout
            ),
        )
        response: aiohttp.ClientResponse = answer.response
        self.clock.note(response.headers.get("Date"), sent)
        return response

    async def _reload(self, refused: Any) -> bool:
        """Read the credentials anew (rotated tokens and certificates). False: nothing newer to try."""
        async with self._reload_lock:
            if self._client is not refused:
                return True
            if time.monotonic() - self._reloaded_at < self.settings.credentials_interval:
                return False
            self._reloaded_at = time.monotonic()
            try:
                fresh = await Transport.open(self.settings)
            except NotConfigured as error:
                logger.warning("The server refuses the credentials, and reading them anew failed: %s", error)
                return False
            # Streams may still use the old connections; they are closed with the transport.
            fresh._client, self._client = self._client, fresh._client
            fresh._connector, self._connector = self._connector, fresh._connector
            self._retired.append(fresh)
            return True


async def _answer(request: ApiRequest, waiting: Awaitable[_T]) -> _T:
    """Await part of an exchange; whatever the connection does wrong becomes ``Unavailable``."""
    try:
        return await waiting
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
        raise request.unavailable(
            f"TLS with the API server failed: {error}; check certificate-authority and the client certificate",
            untouched=True,
            permanent=True,
        ) from error
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise request.unavailable(f"cannot reach the API server: {error}", untouched=True) from error
    except TimeoutError as error:
        raise request.unavailable("the API server did not answer in time") from error
    except (aiohttp.ClientError, OSError) as error:
        raise request.unavailable(f"the connection to the API server broke: {error or type(error).__name__}") from error


def _refusal(request: ApiRequest, response: aiohttp.ClientResponse, body: bytes) -> ClusterError:
    return from_answer(request.verb, request.object, response.status, body, response.headers.get("Retry-After"))


async def _body(request: ApiRequest, response: aiohttp.ClientResponse) -> bytes:
    if request.most is None:
        return await response.read()
    body = bytearray()
    while chunk := await response.content.readany():
        body += chunk
        if len(body) > request.most:
            response.close()
            raise TooLarge(f"more than {request.most} bytes", verb=request.verb, object=request.object)
    return bytes(body)


async def _lines(request: ApiRequest, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Split the body at line ends; a line may be of any length (an object may be megabytes)."""
    pending: list[bytes] = []
    while chunk := await _answer(request, response.content.readany()):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            pending.append(line)
            whole = b"".join(pending)
            pending.clear()
            if whole:
                yield whole
        if rest:
            pending.append(rest)


def is_transient(error: ClusterError) -> bool:
    """Whether the same request may succeed a little later."""
    return isinstance(error, Unavailable) and not error.permanent
