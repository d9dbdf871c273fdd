"""A real Redis for tests: Debian's, unpacked once; it can be stopped, made to hang, killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deployments.profile import free_port
from modelyard.local import paths
from modelyard.local.binaries import store
from modelyard.local.binaries.apt import Apt

_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "liblua5.1-0", "lua-cjson", "libhiredis0.14")
_PROGRAM = Path("usr/bin/redis-server")


def _obtained() -> Path:
    """The folder with the program and its libraries; put whole into the cache, once on a machine."""
    folder = paths.cache_dir() / "redis-debian"
    with store.exclusively(lambda: None):
        if not (folder / _PROGRAM).exists():
            with tempfile.TemporaryDirectory(dir=paths.cache_dir()) as scratch:
                apt = Apt(Path(scratch) / "apt")
                apt.update()
                apt.unpack(_PACKAGES, Path(scratch) / "made").rename(folder)
    return folder


@dataclass
class RedisServer:
    """A server on loopback that keeps nothing on disk, so that a restart forgets everything."""

    port: int = field(default_factory=free_port)
    password: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and return once it answers."""
        folder = _obtained()
        libraries = sorted({str(path.parent) for path in (folder / "usr/lib").rglob("*.so*")})
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(
            [folder / _PROGRAM, *options, *(("--requirepass", self.password) if self.password else ())],
            env={**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)},
            stdout=subprocess.DEVNULL,
            cwd="/",
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(64)[:5] in (b"+PONG", b"-NOAU"):
                        return
            except OSError:
                pass
            assert self.process.poll() is None, "redis-server ended"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.02)

    def freeze(self) -> None:
        """From now on connections are taken and nothing is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(120)


@contextmanager
def serve(password: str = "") -> Iterator[RedisServer]:
    """A server while the block runs."""
    server = RedisServer(password=password)
    server.start()
    try:
        yield server
    finally:
        server.kill()
