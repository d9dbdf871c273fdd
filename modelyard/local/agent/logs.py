"""The logs of containers, at each Node's address, where the API server asks a kubelet for them (`kubectl logs`)."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from modelyard.local import certificates
from modelyard.local.agent.records import ContainerRecord

_CHUNK = 64 * 1024
_POLL = 0.3

Find = Callable[[str, str, str], ContainerRecord | None]
"""Namespace, pod and container to what is known of the container."""


@asynccontextmanager
async def serving(addresses: Iterable[str], port: int, pki: Path, find: Find) -> AsyncIterator[None]:
    """Serve for the length of the `with`, to clients of the cluster's authority. Raises `OSError`: port is taken."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.certificate(pki, "ca"))
    context.verify_mode = ssl.CERT_REQUIRED
    server = certificates.SERVER
    context.load_cert_chain(certificates.certificate(pki, server), certificates.private_key(pki, server))

    async def answer(request: web.Request) -> web.StreamResponse:
        record = find(*(request.match_info[name] for name in ("namespace", "pod", "container")))
        if record is None or not record.log:
            return web.Response(status=404, text="this container has not been started here")
        return await _send(request, record)

    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        for address in addresses:
            await web.TCPSite(runner, address, port, ssl_context=context, reuse_address=True).start()
        yield
    finally:
        await runner.cleanup()


async def _send(request: web.Request, record: ContainerRecord) -> web.StreamResponse:
    """The output of the current run (`previous`: of those before), from `tailLines` before its end."""
    query, path = request.query, Path(record.log)
    begin, end = (0, record.log_start) if query.get("previous") == "true" else (record.log_start, None)
    if query.get("tailLines", "").isdecimal():
        begin = await asyncio.to_thread(_before_last, path, begin, end, int(query["tailLines"]))
    left = int(query["limitBytes"]) if query.get("limitBytes", "").isdecimal() else None
    follow = query.get("follow") == "true" and end is None
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    await response.prepare(request)
    with path.open("rb") as stream:
        stream.seek(begin)
        while left is None or left > 0:
            running = record.process is not None
            size = min(
                _CHUNK, *(n for n in (left, None if end is None else end - stream.tell()) if n is not None), _CHUNK
            )
            if chunk := stream.read(size):
                await response.write(chunk)
                left = left if left is None else left - len(chunk)
            elif not (follow and running):
                break
            else:
                await asyncio.sleep(_POLL)
    await response.write_eof()
    return response


def _before_last(path: Path, begin: int, end: int | None, lines: int) -> int:
    """Where the last so many lines begin, found from the end on: a log may be larger than memory."""
    with path.open("rb") as stream:
        at = stream.seek(0, os.SEEK_END) if end is None else end
        stream.seek(max(begin, at - 1))
        left = lines + (stream.read(1) == b"\n")  # a last line need not have ended
        while at > begin and left:
            start = max(begin, at - _CHUNK)
            stream.seek(start)
            found, piece = at - start, stream.read(at - start)
            while left and (found := piece.rfind(b"\n", 0, found)) >= 0:
                left -= 1
            at = start if left else start + found + 1
    return at
