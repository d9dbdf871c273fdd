"""A repository of a model hub that speaks Hugging Face's API.

``huggingface_hub`` finds the commit and lists its files. The bytes are read by range over HTTP, which every hub serves,
chunked storage (xet) included: a part that was interrupted is carried on with, which a snapshot download is not.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, hf_hub_url, set_client_factory
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoFile

from modelyard.models.sources.http import Http, of_status, retry_after
from modelyard.models.sources.proxies import HttpsProxy, read_proxy
from modelyard.models.sources.source import (
    Chunk,
    Listing,
    ListingBudget,
    SourceFile,
    bounded,
    check_address,
    check_host,
)
from modelyard.models.storage import HubModel, unavailable

ENDPOINT = "https://huggingface.co"


class _CountedStream(httpx2.SyncByteStream):
    """The bytes of an answer, counted before anything makes a value of them."""

    def __init__(self, response: httpx2.Response, stream: httpx2.SyncByteStream, budget: ListingBudget) -> None:
        self._stream, self._budget = stream, budget
        self._page = str(response.url) if response.status_code == 200 else ""

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            self._budget.take(len(piece))
            yield piece
        self._budget.answered(self._page)

    def close(self) -> None:
        self._stream.close()


def _client(public: bool, budget: ListingBudget) -> httpx2.Client:
    """What the library asks with: wherever it is sent to, and whatever a name stands for by then, is looked at."""

    proxy, verify = read_proxy(), ssl.create_default_context()

    def asked(request: httpx2.Request) -> None:
        budget.ask(str(request.url))
        check_host(str(request.url), public)

    def answered(response: httpx2.Response) -> None:
        if response.headers.get("Content-Encoding", "identity") != "identity":  # it may unpack to any size
            raise unavailable(f"{response.url.host}: sends compressed answers")
        if isinstance(response.stream, httpx2.SyncByteStream):
            response.stream = _CountedStream(response, response.stream, budget)
        if proxy is not None and proxy.serves(str(response.url)):
            return  # the address is that of the proxy
        stream = response.extensions.get("network_stream")
        try:
            peer = stream.get_extra_info("server_addr") if stream is not None else None
        except OSError as error:  # closed by now: whose answer it is cannot be told, so it is asked for again
            raise httpx2.ReadError("the connection was closed", request=response.request) from error
        if peer:
            check_address(str(peer[0]), response.url.host, public)

    return httpx2.Client(
        event_hooks={"request": [asked], "response": [answered]},
        verify=verify,
        transport=_Routes(proxy, verify) if proxy is not None else None,
        headers={"Accept-Encoding": "identity"},
        follow_redirects=True,
        timeout=30,
        trust_env=False,
    )


class _Routes(httpx2.BaseTransport):
    def __init__(self, proxy: HttpsProxy, verify: ssl.SSLContext) -> None:
        self._proxy = proxy
        self._direct = httpx2.HTTPTransport(verify=verify)
        self._proxied = httpx2.HTTPTransport(verify=verify, proxy=httpx2.Proxy(proxy.url, headers=proxy.headers))

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if not self._proxy.serves(str(request.url)):
            return self._direct.handle_request(request)
        try:
            return self._proxied.handle_request(request)
        except httpx2.ProxyError as error:
            raise self._proxy.refusal(request.url.host, str(error)) from error

    def close(self) -> None:
        self._direct.close()
        self._proxied.close()


class Hub:
    """One repository at one revision."""

    def __init__(self, uri: HubModel, endpoint: str | None, token: str | None, parallel: int, public: bool) -> None:
        self.uri, self.endpoint = uri, (endpoint or ENDPOINT).rstrip("/")
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        # Without a token nothing is sent: one that somebody has left in a cache on this machine is not ours to use.
        self._api = HfApi(endpoint=self.endpoint, token=token or False, library_name="modelyard")
        self._http = Http(self.endpoint, {"Authorization": f"Bearer {token}"} if token else {}, parallel, public)
        self._budget = ListingBudget()
        set_client_factory(lambda: _client(public, self._budget))
        self._revision = ""

    def list(self) -> Listing:
        what = f"hf://{self.uri.repository}@{self.uri.revision}"
        self._budget.begin()
        try:
            self._revision = self._api.model_info(self.uri.repository, revision=self.uri.revision, timeout=30).sha or ""
            if not self._revision:
                raise unavailable(f"{what}: the hub does not tell the commit")
            tree = self._api.list_repo_tree(self.uri.repository, recursive=True, revision=self._revision)
            files = tuple(self._file(entry) for entry in bounded(tree, what) if isinstance(entry, RepoFile))
        except HfHubHTTPError as error:
            code = error.response.headers.get("X-Error-Code", "")
            raise of_status(
                error.response.status_code, what, code[:200], retry_after(error.response.headers)
            ) from error
        except httpx2.HTTPError as error:
            message = f"{urlsplit(self.endpoint).netloc}: {str(error)[:300] or type(error).__name__}"
            raise unavailable(message) from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise unavailable(f"{what}: the hub's answer cannot be read: {str(error)[:200]}") from error
        finally:
            self._budget.end()
        return Listing(f"hf {self.endpoint} {self.uri.repository}", self._revision, files)

    def read(self, file: SourceFile, start: int, length: int) -> Iterator[Chunk]:
        url = hf_hub_url(self.uri.repository, file.key, revision=self._revision, endpoint=self.endpoint)
        return self._http.read(url, file.size, start, length)

    def _file(self, entry: RepoFile) -> SourceFile:
        if entry.lfs is not None:
            return SourceFile(entry.path, int(entry.lfs.size), entry.path, sha256=entry.lfs.sha256)
        return SourceFile(entry.path, int(entry.size), entry.path, git_sha1=entry.blob_id)
