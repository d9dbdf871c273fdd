"""Startup, readiness and liveness probes of a container; run by `containers` while its process runs.

Probes behave as the kubelet's: `initialDelaySeconds` after the start, every `periodSeconds`, at most `timeoutSeconds`
each, and a change of mind only after `successThreshold` or `failureThreshold` equal results in a row.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import aiohttp

from modelyard.cluster import Object

_BODY = 10 * 1024


@dataclass(frozen=True)
class ProbeTiming:
    """When a probe runs and how many equal results count; seconds, defaults of the Kubernetes API."""

    initial_delay: float
    period: float
    timeout: float
    success_threshold: int
    failure_threshold: int

    @classmethod
    def of(cls, probe: Object) -> ProbeTiming:
        return cls(
            initial_delay=float(probe.get("initialDelaySeconds") or 0),
            period=float(probe.get("periodSeconds") or 10),
            timeout=float(probe.get("timeoutSeconds") or 1),
            success_threshold=int(probe.get("successThreshold") or 1),
            failure_threshold=int(probe.get("failureThreshold") or 3),
        )


@dataclass(frozen=True)
class ProbeTarget:
    """The container a probe looks at."""

    address: str
    ports: Mapping[str, int]
    env: Mapping[str, str]
    inside: Callable[[str], str] = str
    """What a text of the container means on this machine."""

    def port(self, value: object) -> int:
        """A port by number or by the name of a container port. Raises `ProbeFailure`: there is no port of that name."""
        text = str(value)
        if text.isdecimal():
            return int(text)
        if text in self.ports:
            return self.ports[text]
        raise ProbeFailure(f"the container has no port named {text!r}")


class ProbeFailure(Exception):
    """A probe did not succeed; the message says why."""


async def probe_once(probe: Object, target: ProbeTarget, session: aiohttp.ClientSession, timeout: float) -> None:
    """Run a probe or lifecycle handler. Raises `ProbeFailure`: it failed or took longer than `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            if "httpGet" in probe:
                await _http_get(probe["httpGet"], target, session)
            elif "tcpSocket" in probe:
                await _tcp(probe["tcpSocket"], target)
            elif "exec" in probe:
                await _execute(probe["exec"], target)
            else:
                raise ProbeFailure(
                    f"only httpGet, tcpSocket and exec are known to the local cluster, not {sorted(probe)}"
                )
    except TimeoutError as error:
        raise ProbeFailure(f"no answer within {timeout:g} s") from error
    except (OSError, aiohttp.ClientError) as error:
        raise ProbeFailure(str(error) or type(error).__name__) from error


async def _http_get(action: Object, target: ProbeTarget, session: aiohttp.ClientSession) -> None:
    host = action.get("host") or target.address
    scheme = str(action.get("scheme") or "HTTP").lower()
    path = str(action.get("path") or "/")
    url = f"{scheme}://{host}:{target.port(action['port'])}{path if path.startswith('/') else '/' + path}"
    headers = {str(entry["name"]): str(entry.get("value", "")) for entry in action.get("httpHeaders") or []}
    # As the kubelet: certificates are not verified, and any answer from 200 to 399 is success.
    async with session.get(url, headers=headers, ssl=False, allow_redirects=False) as response:
        body = await response.content.read(_BODY)
        if not 200 <= response.status < 400:
            text = body.decode("utf-8", "replace").strip()[:200]
            raise ProbeFailure(f"HTTP probe failed with statuscode: {response.status} {text}".rstrip())


async def _tcp(action: Object, target: ProbeTarget) -> None:
    _, writer = await asyncio.open_connection(action.get("host") or target.address, target.port(action["port"]))
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _execute(action: Object, target: ProbeTarget) -> None:
    process = await asyncio.create_subprocess_exec(
        *(target.inside(str(part)) for part in action.get("command") or []),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(target.env),
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    if process.returncode != 0:
        raise ProbeFailure(f"exit code {process.returncode}: {output[-200:].decode('utf-8', 'replace').strip()}")


async def watch(
    attempt: Callable[[], Awaitable[None]],
    timing: ProbeTiming,
    *,
    elapsed: float,
    changed: Callable[[bool], None],
    failed: Callable[[str], None],
) -> None:
    """Probe without end with `attempt`, which raises `ProbeFailure`; `elapsed` seconds after the container's start.

    `changed` is told the first verdict and every new one, `failed` each single failure.
    """
    await asyncio.sleep(max(0.0, timing.initial_delay - elapsed))
    loop = asyncio.get_running_loop()
    verdict: bool | None = None
    row = 0
    last: bool | None = None
    while True:
        begun = loop.time()
        try:
            await attempt()
        except ProbeFailure as error:
            result = False
            failed(str(error))
        else:
            result = True
        row = row + 1 if result == last else 1
        last = result
        threshold = timing.success_threshold if result else timing.failure_threshold
        if row >= threshold and verdict != result:
            verdict = result
            changed(result)
        await asyncio.sleep(max(0.0, timing.period - (loop.time() - begun)))
