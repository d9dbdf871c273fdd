"""An asynchronous view of ``prometheus-api-client``: bounded time, explicit retries, errors that say what to do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar
from urllib.parse import unquote, urlsplit

import orjson
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from modelyard.backoff import Backoff
from modelyard.objects import bare, describe_url_problem

if TYPE_CHECKING:
    import requests

_T = TypeVar("_T")

THREADS = 16
MAX_ANSWER = 2**28


class PrometheusSettings(BaseSettings):
    """Where Prometheus is and how to authenticate, from ``PROMETHEUS_*`` in the environment (WVA's names)."""

    model_config = SettingsConfigDict(env_prefix="PROMETHEUS_", extra="ignore")

    base_url: str = Field("", repr=False, description="base URL; http or https, with or without user:password@")
    bearer_token: str = Field("", repr=False, description="bearer token, with or without the word Bearer")
    token_path: Path | None = Field(
        None, description="file with the token, if there is none above; read again for every tick, tokens expire"
    )
    allow_plain_token: bool = Field(
        False, description="send the token or password over http, where anybody may read it"
    )
    tls_insecure_skip_verify: bool = False
    ca_cert_path: Path | None = None
    client_cert_path: Path | None = None
    client_key_path: Path | None = None
    timeout: float = Field(10, gt=0, description="seconds one query may take, retries included")
    attempts: int = Field(3, ge=1, description="tries per query within the timeout")
    backoff: float = Field(0.5, gt=0, description="seconds before the second try; doubles")

    def at(self, url: str | None) -> PrometheusSettings:
        """The same for a server at ``url``, if one is given.

        Credentials of the environment go to the server they were set for, and not to one that somebody else names.
        """
        if not url or bare(url) == bare(self.base_url):
            return self
        without = dict.fromkeys(("token_path", "client_cert_path", "client_key_path"))
        return self.model_copy(update={"base_url": url, "bearer_token": "", **without})


class PrometheusError(Exception):
    """A query that gave no answer. The message names the server, the query's purpose and the cause."""


class PrometheusTimeout(PrometheusError):
    """It took too long."""


class Sample(NamedTuple):
    """One element of an instant vector. ``value`` is ``None`` for NaN and infinities: no information, never zero."""

    labels: Mapping[str, str]
    value: float | None


@dataclass(frozen=True, slots=True)
class Series:
    """One element of a range query: (epoch seconds, value), oldest first, without NaN and infinities."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


class Prometheus:
    """One server. Use as ``async with Prometheus(settings) as prometheus``. Safe for concurrent queries."""

    def __init__(self, settings: PrometheusSettings, *, threads: int = THREADS, max_answer: int = MAX_ANSWER) -> None:
        """``threads``: queries at a time; ``max_answer``: bytes of an answer beyond which it is an error."""
        # Not before there is something to ask: with the modules it needs, this is slower to load than a plan to make.
        import requests
        from prometheus_api_client import PrometheusConnect

        if not settings.base_url:
            raise PrometheusError(
                "no Prometheus address: set PROMETHEUS_BASE_URL, --prometheus or the parameter prometheus_url, "
                "for example http://prometheus.monitoring:9090"
            )
        self.settings = settings
        self.queries = 0
        session = requests.Session()
        self.url = bare(settings.base_url)
        """Where it is, without credentials."""
        try:
            address = urlsplit(settings.base_url)
        except ValueError:
            address = urlsplit("")
        # What stands before an @ anywhere may be of a password, and went from the address without it.
        if "@" in address._replace(netloc="").geturl() or ("@" in settings.base_url and not address.netloc):
            raise PrometheusError(
                f"PROMETHEUS_BASE_URL {self.url!r} is no http or https address; in a password, write a slash as %2F "
                "and so on"
            )
        if problem := describe_url_problem(settings.base_url):
            raise PrometheusError(f"PROMETHEUS_BASE_URL {problem}")
        if address.username is not None:
            session.auth = unquote(address.username), unquote(address.password or "")
        self._check(address.scheme, bool(session.auth))
        session.verify = False if settings.tls_insecure_skip_verify else str(settings.ca_cert_path or "") or True
        if settings.client_cert_path:
            session.cert = (str(settings.client_cert_path), str(settings.client_key_path or settings.client_cert_path))
        session.trust_env = False
        session.stream = True
        session.hooks["response"].append(partial(_take, max_answer))
        self._threads = ThreadPoolExecutor(threads, "prometheus")
        self._connect = PrometheusConnect(url=self.url, session=session, headers={}, method="GET")
        session.mount(self.url, requests.adapters.HTTPAdapter(pool_maxsize=threads))  # one that does not retry

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connect.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, scheme: str, password: bool) -> None:
        """Refuse what could never work, or would tell everybody on the way the token."""
        settings = self.settings
        secret = settings.bearer_token or settings.token_path or password
        if scheme == "http" and secret and not settings.allow_plain_token:
            raise PrometheusError(
                f"Prometheus {self.url}: a token or password would go over plain http, where anybody may read it; use "
                "https, or set PROMETHEUS_ALLOW_PLAIN_TOKEN=true if the network is trusted"
            )
        for name in ("ca_cert_path", "client_cert_path", "client_key_path"):
            path: Path | None = getattr(settings, name)
            if path is not None and not path.is_file():
                raise PrometheusError(f"PROMETHEUS_{name.upper()} {path}: there is no such file; check the mount")

    def _authorize(self) -> None:
        token = self.settings.bearer_token
        if not token and self.settings.token_path:
            try:
                token = self.settings.token_path.read_text().strip()
            except OSError as error:
                raise PrometheusError(
                    f"Prometheus token file {self.settings.token_path} unreadable: {error.strerror}; "
                    "check PROMETHEUS_TOKEN_PATH and the mount"
                ) from error
        if token:
            bare = token.removeprefix("Bearer ").removeprefix("bearer ").strip()
            self._connect.headers["Authorization"] = f"Bearer {bare}"

    async def query(self, promql: str, purpose: str) -> list[Sample]:
        """An instant vector; a scalar is a vector of one without labels.

        Raises ``PrometheusError`` when no attempt succeeded in time.
        """

        def read(left: float) -> list[Sample]:
            raw = self._connect.custom_query(promql, None, left)
            if len(raw) == 2 and not isinstance(raw[0], dict):
                return [Sample({}, _number(raw[1]))]
            return [Sample(item["metric"], _number(item["value"][1])) for item in raw]

        return await self._ask(read, purpose)

    async def query_range(self, promql: str, purpose: str, start: float, end: float, step: float) -> list[Series]:
        """A range vector from ``start`` to ``end`` (epoch seconds), one point every ``step`` seconds.

        Raises ``PrometheusError`` when no attempt succeeded in time.
        """
        # The library rounds to whole seconds, which short windows cannot afford: the exact times override its own.
        exact = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        begin, finish = datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC)

        def read(left: float) -> list[Series]:
            raw = self._connect.custom_query_range(promql, begin, finish, exact["step"], exact, left)
            return [
                Series(
                    item["metric"],
                    tuple((float(at), value) for at, text in item["values"] if (value := _number(text)) is not None),
                )
                for item in raw
            ]

        return await self._ask(read, purpose)

    async def _ask(self, read: Callable[[float], _T], purpose: str) -> _T:
        import requests
        from prometheus_api_client import PrometheusApiClientException

        settings = self.settings
        self._authorize()
        deadline = asyncio.get_running_loop().time() + settings.timeout
        backoff = Backoff(settings.backoff)
        late = cause = f"no answer within {settings.timeout:g} s"
        for attempt in range(1, settings.attempts + 1):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            self.queries += 1
            try:
                async with asyncio.timeout(left):
                    return await asyncio.get_running_loop().run_in_executor(self._threads, read, left)
            except (TimeoutError, requests.exceptions.Timeout):
                cause = late
            except requests.exceptions.ConnectionError as error:
                cause = f"connection failed ({_root(error)})"
            except (OSError, PrometheusApiClientException) as error:
                cause = str(error)[:300]
                if cause.startswith(("HTTP Status Code 401", "HTTP Status Code 403")):
                    cause += "; the credentials of PROMETHEUS_* are sent to PROMETHEUS_BASE_URL only"
                if "HTTP Status Code 4" in cause:
                    break
            except (KeyError, ValueError, TypeError) as error:
                cause = f"the answer is not a Prometheus vector ({type(error).__name__}: {error})"
                break
            left = deadline - asyncio.get_running_loop().time()
            if attempt < settings.attempts and left > (wait := backoff.delay(attempt)):
                await asyncio.sleep(wait)
        sort = PrometheusTimeout if cause == late else PrometheusError
        raise sort(f"Prometheus {self.url}: query for {purpose} failed: {cause}")


def _take(most: int, response: requests.Response, **_: Any) -> None:
    body = bytearray()
    for chunk in response.iter_content(2**16):
        body += chunk
        if len(body) > most:
            response.close()
            raise ValueError(f"it is larger than {most} bytes; ask for less, for example with sum()")
    response._content = bytes(body)
    # What Prometheus says of thousands of pods is megabytes; the library decodes it with what the response offers.
    vars(response)["json"] = lambda **_: orjson.loads(response.content)


def _number(text: Any) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _root(error: BaseException) -> str:
    while cause := error.__cause__ or error.__context__:
        error = cause
    return str(error) or type(error).__name__
