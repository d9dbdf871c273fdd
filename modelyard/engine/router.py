"""A simulated router before prefill and decode engines (``python -m modelyard.engine.router``).

Each request is first computed up to its first token by prefill, then answered by decode, as with the real ones; which
of the engines behind an address that is, is the Service's business.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import aiohttp
import orjson
from aiohttp import web

from modelyard.engine.config import MAX_BODY
from modelyard.hosts import HostsFile, ServiceResolver
from modelyard.objects import describe_url_problem
from modelyard.ports import describe_listen_error

_TRIES: Final = 5
_PAUSE: Final = 0.2


class PrefillDecodeRouter:
    """The application; ``prefill`` and ``decode`` are base URLs."""

    def __init__(self, prefill: str, decode: str) -> None:
        self._prefill, self._decode = prefill.rstrip("/"), decode.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self.app = web.Application(client_max_size=MAX_BODY)
        self.app.add_routes(
            [
                web.post("/v1/chat/completions", self._generate),
                web.post("/v1/completions", self._generate),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
            ]
        )
        self.app.cleanup_ctx.append(self._connected)

    async def _connected(self, _: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0, resolver=ServiceResolver(HostsFile.found()), use_dns_cache=False)
        timeout = aiohttp.ClientTimeout(total=None, connect=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as self._session:
            yield

    async def _ask(self, method: str, url: str, **request: Any) -> aiohttp.ClientResponse:
        """Begin a request; one that nobody took is repeated. Raises ``aiohttp.ClientError``."""
        assert self._session is not None
        for left in reversed(range(_TRIES)):
            try:
                return await self._session.request(method, url, **request)
            except aiohttp.ClientConnectionError:
                if not left:
                    raise
                await asyncio.sleep(_PAUSE)
        raise AssertionError

    async def _health(self, _: web.Request) -> web.Response:
        for url in (self._prefill, self._decode):
            try:
                async with await self._ask("GET", f"{url}/health") as answer:
                    if answer.status != 200:
                        return web.Response(status=503, text=f"{url}: {answer.status}")
            except aiohttp.ClientError as error:
                return web.Response(status=503, text=f"{url}: {error}")
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        try:
            async with await self._ask("GET", f"{self._decode}/v1/models") as answer:
                return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")
        except aiohttp.ClientError as error:
            return _unavailable(str(error))

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            first = orjson.loads(body)
        except orjson.JSONDecodeError:
            first = None
        headers = {"Content-Type": "application/json"}
        response = None
        try:
            if isinstance(first, dict):  # otherwise decode says what is wrong
                first |= {"max_tokens": 1, "min_tokens": 0, "stream": False}
                for name in ("max_completion_tokens", "stream_options"):
                    first.pop(name, None)
                url = self._prefill + request.path
                async with await self._ask("POST", url, data=orjson.dumps(first), headers=headers) as answer:
                    if answer.status != 200:
                        return web.Response(
                            status=answer.status, body=await answer.read(), content_type="application/json"
                        )
            async with await self._ask("POST", self._decode + request.path, data=body, headers=headers) as answer:
                kind = answer.headers.get("Content-Type", "application/json")
                response = web.StreamResponse(status=answer.status, headers={"Content-Type": kind})
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except aiohttp.ClientError as error:
            if response is None:
                return _unavailable(str(error))
            # It broke off in the middle, which must not look like the end.
            assert request.transport is not None
            request.transport.abort()
            return response


def _unavailable(message: str) -> web.Response:
    body = {"error": {"message": message, "type": "ServiceUnavailableError", "code": 503}}
    return web.Response(status=503, body=orjson.dumps(body), content_type="application/json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status. SIGTERM lets requests in flight end."""
    parser = argparse.ArgumentParser(prog="python -m modelyard.engine.router", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
    parser.add_argument("--prefill", required=True, help="URL of the engines that compute the first token")
    parser.add_argument("--decode", required=True, help="URL of the engines that answer")
    options = parser.parse_args(arguments)
    for option in ("prefill", "decode"):
        if problem := describe_url_problem(getattr(options, option)):
            parser.error(f"--{option} {problem}")
    router = PrefillDecodeRouter(options.prefill, options.decode)
    print(f"routing on http://{options.host}:{options.port}", flush=True)
    try:
        web.run_app(
            router.app,
            host=options.host,
            port=options.port,
            print=None,
            access_log=None,
            shutdown_timeout=600,
            handler_cancellation=True,
        )
    except OSError as error:
        print(describe_listen_error(options.host, options.port, error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
