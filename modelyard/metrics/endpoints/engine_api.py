"""Requests to an engine's own HTTP API: whether it serves, which models it lists, and its metrics page.

An engine runs in a tenant's pod, so nothing that it sends is trusted: what is read is bounded, and redirects, which may
lead to what only the caller reaches, are not followed. All functions raise ``aiohttp.ClientError``, ``OSError``,
``TimeoutError``, and ``ValueError`` for an answer that cannot be used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import aiohttp
from yarl import URL

from modelyard.metrics.endpoints.bounded_connection import read_body
from modelyard.metrics.vocabulary import MODELS_PATH
from modelyard.objects import LONGEST_MODEL_NAME

MODELS_BYTES = 1 << 18
"""Bytes of a list of models: vLLM needs 600 for each."""
_MOST_MODELS = 1000


async def request_status(
    session: aiohttp.ClientSession, url: str, paths: Sequence[str], seconds: float
) -> tuple[int, str]:
    """Return status and reason at the first of the paths that is not 404. Each answer may take ``seconds``."""
    status, reason = 404, "Not Found"
    for path in paths:
        async with asyncio.timeout(seconds), session.get(url + path, allow_redirects=False) as answer:
            status, reason = answer.status, answer.reason or ""
        if status != 404:
            break
    return status, reason


async def request_models(session: aiohttp.ClientSession, url: str, seconds: float) -> bytes:
    """Return the engine's list of models as it sends it; ``model_names`` reads it once it is parsed."""
    async with asyncio.timeout(seconds), session.get(url + MODELS_PATH, allow_redirects=False) as answer:
        if answer.status != 200:
            raise ValueError(f"HTTP {answer.status}")
        return await read_body(answer, MODELS_BYTES)


def model_names(listed: object) -> list[str]:
    """Return the names in a list of models. Raises ``ValueError`` where it is none."""
    models = listed.get("data") if isinstance(listed, Mapping) else None
    if not isinstance(models, list):
        raise ValueError("the answer is no list of models")
    names = (model.get("id") for model in models[:_MOST_MODELS] if isinstance(model, Mapping))
    return [name for name in names if isinstance(name, str) and len(name) <= LONGEST_MODEL_NAME]


async def request_page(
    session: aiohttp.ClientSession, url: str, most: int, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return a metrics page of at most so many bytes. The caller limits the time."""
    asked = {"Accept": "text/plain;version=0.0.4, */*;q=0.1", "Accept-Encoding": "identity", **(headers or {})}
    async with session.get(URL(url), headers=asked, allow_redirects=False) as answer:
        if not 200 <= answer.status < 300:
            target = answer.headers.get("Location")
            hint = f" to {target[:200]!r}; redirects are not followed" if target else ""
            raise ValueError(f"HTTP status {answer.status}{hint}")
        if (encoding := answer.headers.get("Content-Encoding", "identity")) != "identity":
            raise ValueError(f"the page is encoded as {encoding!r}, which was not asked for")
        return await read_body(answer, most)
