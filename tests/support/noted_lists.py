"""The lists that are asked of an API server, noted on their way out."""

from __future__ import annotations

import pytest

from modelyard.cluster.transport import ApiRequest, Transport


class Lists:
    """Paths of the lists so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        send = Transport.send

        async def noted(transport: Transport, request: ApiRequest) -> bytes:
            if request.verb == "list":
                self.paths.append(request.path)
            return await send(transport, request)

        monkeypatch.setattr(Transport, "send", noted)

    def take(self) -> list[str]:
        """Those since the last time."""
        taken, self.paths = self.paths, []
        return taken
