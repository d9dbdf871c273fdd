"""Reading a whole collection, in pages or from the server's watch cache."""

from __future__ import annotations

import logging
import time
from typing import Any

from modelyard.cluster.errors import TooOld
from modelyard.cluster.objects import Object, ObjectList
from modelyard.cluster.transport import Request, Transport
from modelyard.objects.kinds import ResourceType

logger = logging.getLogger(__name__)


async def list_objects(
    transport: Transport,
    type: ResourceType,
    namespace: str | None = None,
    label_selector: str = "",
    field_selector: str = "",
    *,
    cached: bool = False,
    timeout: float | None = None,
) -> ObjectList:
    """All objects of a served type; see ``Cluster.list``. ``timeout`` bounds all pages together."""
    settings = transport.settings
    deadline = time.monotonic() + (settings.list_timeout if timeout is None else timeout)
    selectors = selector_query(label_selector, field_selector)
    shown = type.describe(namespace) + "".join(f", {key}={value}" for key, value in selectors.items())

    async def page(query: dict[str, str]) -> dict[str, Any]:
        return await transport.json(
            Request(
                "GET",
                type.path(namespace),
                "list",
                shown,
                {**selectors, **query},
                timeout=max(0.001, deadline - time.monotonic()),
                try_timeout=settings.page_timeout,
            )
        )

    if cached:
        return _join(type, [await page({"resourceVersion": "0"})])
    size = {"limit": str(settings.page_size)} if settings.page_size else {}
    pages = [await page(size)]
    while token := (pages[-1].get("metadata") or {}).get("continue"):
        try:
            pages.append(await page({**size, "continue": token}))
        except TooOld:
            # The history was compacted between two pages: pages of two moments must not be mixed.
            logger.info("list %s: the server dropped its history between pages; reading all in one page", shown)
            pages = [await page({})]
    return _join(type, pages)


def selector_query(label_selector: str, field_selector: str) -> dict[str, str]:
    """The query parameters of the selectors that are set."""
    pairs = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in pairs.items() if value}


def _join(type: ResourceType, pages: list[dict[str, Any]]) -> ObjectList:
    items: list[Object] = [item for page in pages for item in page.get("items") or ()]
    for item in items:
        # The API leaves these out of the items of built-in kinds.
        item.setdefault("apiVersion", type.api_version)
        item.setdefault("kind", type.kind)
    return ObjectList(items, str((pages[0].get("metadata") or {}).get("resourceVersion") or ""))
