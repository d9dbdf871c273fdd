"""The rights that an account's requests need, noted on their way out: also where code goes on without the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from modelyard.cluster import Forbidden
from modelyard.cluster.transport import APPLY_PATCH, ApiRequest, Transport

Right = tuple[str, str, str]
"""API group, resource (with subresource), verb."""


class Notes:
    """The rights that one account's requests needed, and what the server refused to it."""

    def __init__(self) -> None:
        self.account = ""
        self.needed: set[Right] = set()
        self.forbidden: list[tuple[Right | None, str]] = []

    def take(self, transport: Transport, request: ApiRequest) -> None:
        if self.account and self.account in transport.source and (right := right_of(request)):
            self.needed.add(right)
            if request.content_type == APPLY_PATCH:  # which makes what is not there
                self.needed.add((*right[:2], "create"))


def right_of(request: ApiRequest) -> Right | None:
    """As the API server reads a request; ``None`` for discovery, which everybody may do."""
    parts = [part for part in request.path.split("?")[0].split("/") if part]
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1] if len(parts) > 1 else "", parts[3:])
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    if not rest:
        return None
    resource, *named = rest
    if len(named) > 1:
        resource += f"/{named[1]}"
    verbs = {"GET": "get" if named else "list", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    verb = verbs[request.method]
    return group, resource, "watch" if request.query.get("watch") else verb


def noted(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """Notes that are taken from now on."""
    taken = Notes()
    send, stream = Transport.send, Transport.stream

    async def noted_send(self: Transport, request: ApiRequest) -> bytes:
        taken.take(self, request)
        try:
            return await send(self, request)
        except Forbidden as error:
            taken.forbidden.append((right_of(request), str(error)))
            raise

    @asynccontextmanager
    async def noted_stream(self: Transport, request: ApiRequest, silence: float) -> AsyncIterator[AsyncIterator[bytes]]:
        taken.take(self, request)
        try:
            async with stream(self, request, silence) as lines:
                yield lines
        except Forbidden as error:
            taken.forbidden.append((right_of(request), str(error)))
            raise

    monkeypatch.setattr(Transport, "send", noted_send)
    monkeypatch.setattr(Transport, "stream", noted_stream)
    return taken
