"""`modelyard router`: the data plane of ModelRoutes and ModelServers, as one process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

import typer

from modelyard.cli.model_options import options_from, parse_options
from modelyard.cli.options import Context, UsageError
from modelyard.router import RouterSettings

app = typer.Typer(add_completion=False)


@app.command()
@options_from(RouterSettings, leave_out=("connect_seconds",))
def router(given: dict[str, Any], context: Context = None) -> None:
    """Send requests for a model name to the best pod, as ModelRoutes and ModelServers say, until stopped."""
    import uvloop

    from modelyard.cluster import Cluster, ClusterSettings
    from modelyard.router.process import ConfigurationFile, RouterProcess, serve, supervise

    settings = parse_options(RouterSettings, given)
    if settings.configuration:
        try:
            ConfigurationFile(Path(settings.configuration))
        except (OSError, ValueError) as error:
            raise UsageError(f"--config {settings.configuration}: {error}") from None

    async def run() -> None:
        if settings.workers > 1:
            await supervise(settings)
        else:
            async with Cluster.connect(ClusterSettings()) as cluster:
                await serve(RouterProcess(settings), cluster)

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
