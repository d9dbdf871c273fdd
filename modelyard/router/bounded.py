"""Answers of what the router asks for itself, read whole and bounded."""

from __future__ import annotations

import aiohttp


async def body_of(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """The body. Raises ``ValueError`` where it is more than so many bytes."""
    found = bytearray()
    async for chunk in answer.content.iter_any():
        found += chunk
        if len(found) > most:
            raise ValueError(f"the answer is larger than {most} bytes")
    return bytes(found)


def count_values(raw: bytes) -> int:
    """Return about as many as the values of a JSON text: reading takes time for each of them."""
    return raw.count(b",") + raw.count(b"{") + raw.count(b"[")
