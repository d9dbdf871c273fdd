"""Requests to pods over kept connections: what a pod says without having been asked is no answer."""

from __future__ import annotations

import asyncio
import math

import aiohttp
import pytest

from modelyard.router.pod_client import PodClient

HEAD = ("POST /v1/completions HTTP/1.1", "Host: pod")


def _answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


async def test_what_comes_on_a_kept_connection_before_a_request_is_no_answer_to_it() -> None:
    unasked = asyncio.Event()

    async def pod(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(_answer(b"asked"))
        await unasked.wait()
        writer.write(_answer(b"unasked"))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(pod, "127.0.0.1")
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connector = aiohttp.TCPConnector()
    async with server, connector:
        client = PodClient(connector, 10)
        first = await client.post(url, HEAD, b"{}", math.inf)
        protocol = first._connection.protocol
        assert await first.content.read() == b"asked"
        first.close()
        assert not protocol.should_close
        unasked.set()
        async with asyncio.timeout(30):
            while not protocol.should_close:
                await asyncio.sleep(0.01)
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await client.post(url, HEAD, b"{}", math.inf)
        second = await client.post(url, HEAD, b"{}", math.inf)
        assert await second.content.read() == b"asked"
        second.close()
