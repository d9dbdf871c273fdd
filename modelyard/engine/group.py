"""Engines of several pods: the ranks find each other, serve together, and end together.

As with the real ones: rank 0 takes requests, and only when all others have joined; when one of them goes, the whole
group is of no use and ends, to be started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from modelyard.hosts import HostsFile
from modelyard.ports import describe_listen_error

PORT: Final = 20000
"""Where rank 0 is joined unless an option says so."""
_RETRY: Final = 0.5
_GREETING: Final = 30.0


class GroupBroken(Exception):
    """The group has lost a member; the message says which."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """``size`` engines, of which this one has ``rank``; ``host`` and ``port`` are where rank 0 is joined."""

    size: int
    rank: int
    host: str
    port: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"node_rank must be at least 0 and less than nnodes ({self.size}), not {self.rank}")
        if self.size > 1 and not self.host:
            raise ValueError("dist_init_addr is needed by an engine of several nodes: where rank 0 is")

    @classmethod
    def of(
        cls, size: int | None, rank: int | None, address: str | None, ray: bool, env: Mapping[str, str]
    ) -> GroupSettings:
        """From the options. An engine that runs on Ray has no options for it: the script that makes the Ray cluster
        goes by the variables of its pod. Raises ``ValueError``."""
        if ray and size is None:
            size, rank = _number(env, "LWS_GROUP_SIZE", 1), _number(env, "LWS_WORKER_INDEX", 0)
            address = env.get("LWS_LEADER_ADDRESS", "")
        host, colon, port = (address or "").rpartition(":")
        if not colon:
            host, port = address or "", str(PORT)
        if not port.isdecimal():
            raise ValueError(f"dist_init_addr must be HOST:PORT, not {address!r}")
        return cls(1 if size is None else size, rank or 0, host, int(port))


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if not text.isdecimal():
        raise ValueError(f"{name} must be a number, not {text!r}")
    return int(text)


@dataclass(slots=True)
class Ranks:
    """What rank 0 knows of the others."""

    settings: GroupSettings
    joined: set[int] = field(default_factory=set)
    _broken: asyncio.Future[None] | None = None

    def missing(self) -> str | None:
        """Why the group does not serve yet."""
        absent = sorted(set(range(1, self.settings.size)) - self.joined)
        return f"waiting for rank {', '.join(map(str, absent))} of the group" if absent else None

    async def broken(self) -> None:
        """Returns only by raising ``GroupBroken``."""
        if self._broken is None:
            self._broken = asyncio.get_running_loop().create_future()
        await self._broken

    @contextlib.asynccontextmanager
    async def open(self, address: str) -> AsyncIterator[None]:
        """Let the others join while the block runs. Raises ``GroupBroken``: the port is taken."""
        if self.settings.size == 1:
            yield
            return
        try:
            server = await asyncio.start_server(self._welcome, address, self.settings.port)
        except OSError as error:
            remedy = "choose another port in --dist-init-addr or --master-port"
            raise GroupBroken(describe_listen_error(address, self.settings.port, error, remedy)) from None
        try:
            yield
        finally:
            server.close()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = 0
        try:
            async with asyncio.timeout(_GREETING):
                line = await reader.readline()
            rank = int(line) if line.strip().isdigit() else 0
            if not 0 < rank < self.settings.size or rank in self.joined:
                print(f"refused to join: rank {line[:20]!r}", file=sys.stderr, flush=True)
                rank = 0
                return
            self.joined.add(rank)
            print(f"rank {rank} has joined the group", flush=True)
            while await reader.read(1024):
                pass
        except (OSError, TimeoutError, ValueError):
            pass
        finally:
            writer.close()
            if rank in self.joined:
                self.joined.discard(rank)
                if self._broken is not None and not self._broken.done():
                    self._broken.set_exception(GroupBroken(f"rank {rank} of the group has gone"))


async def join(settings: GroupSettings) -> None:
    """Be one of the others for as long as rank 0 lives. Raises ``GroupBroken`` when it has gone."""
    hosts, said = HostsFile.found(), ""
    while True:
        try:
            address = next(iter(hosts.addresses(settings.host) if hosts is not None else []), settings.host)
            reader, writer = await asyncio.open_connection(address, settings.port)
            break
        except OSError as error:
            text = f"{settings.host}:{settings.port} cannot be joined yet: {error}"
            if text != said:
                print(text, file=sys.stderr, flush=True)
            said = text
            await asyncio.sleep(_RETRY)
    try:
        writer.write(f"{settings.rank}\n".encode())
        print(f"joined {settings.host}:{settings.port} as rank {settings.rank}", flush=True)
        with contextlib.suppress(OSError):
            while await reader.read(1024):
                pass
    finally:
        writer.close()
    raise GroupBroken(f"rank 0 of the group at {settings.host}:{settings.port} has gone")
