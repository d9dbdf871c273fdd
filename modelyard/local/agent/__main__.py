"""`python -m modelyard.local.agent SETTINGS.json`: one of the cluster's components."""

from __future__ import annotations

import argparse
import asyncio
import logging
import resource
import signal
from contextlib import suppress
from pathlib import Path

from modelyard.local.agent.agent import Agent
from modelyard.local.settings import AgentSettings


async def serve(settings: AgentSettings) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    # A connection to a Service takes two descriptors here.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    task = asyncio.create_task(Agent(settings).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Node agent of a Modelyard local cluster.")
    parser.add_argument("settings", type=Path)
    path = parser.parse_args().settings
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(serve(AgentSettings.model_validate_json(path.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
