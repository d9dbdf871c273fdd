"""Simulated engines as real processes."""

import asyncio
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families


@dataclass
class Engine:
    """A running engine process."""

    process: subprocess.Popen
    url: str

    async def metrics(self):
        """Sample values by (name, label value of interest); labels common to all samples are left out."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as response:
            assert response.status == 200
            text = await response.text()
        return Scrape(list(text_string_to_metric_families(text)))

    async def eventually(self, condition, what):
        """Wait until ``condition(metrics)`` holds and return those metrics."""
        for _ in range(1200):
            scrape = await self.metrics()
            if condition(scrape):
                return scrape
            await asyncio.sleep(0.05)
        shown = {
            f"{name}{dict(labels)}": value
            for (name, labels), value in scrape.values.items()
            if "le" not in dict(labels)
        }
        raise AssertionError(f"never: {what}; last {shown}")

    async def stopped(self):
        """The exit status, waiting for it."""
        return await asyncio.to_thread(self.process.wait, 120)


class Scrape:
    """One exposition."""

    def __init__(self, families):
        self.families = {family.name: family for family in families}
        self.values = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    def __call__(self, name, **labels):
        """The one sample of that name with at least those labels."""
        found = [
            value for (sample, pairs), value in self.values.items() if sample == name and labels.items() <= set(pairs)
        ]
        assert len(found) == 1, f"{len(found)} samples {name} {labels}"
        return found[0]


@contextmanager
def engine_starter():
    """A function that starts engine processes; they end with the block."""
    processes = []

    def start(*options):
        process = subprocess.Popen(
            [sys.executable, "-m", "modelyard.engine", "--model", "m", "--port", "0", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        line = process.stdout.readline()
        assert line.startswith("serving "), f"the engine did not start: {line!r}"
        return Engine(process, line.split()[-1])

    try:
        yield start
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture
def start_engine():
    """Start engines with options: ``start_engine("--alpha", "5") -> Engine``. They end with the test."""
    with engine_starter() as start:
        yield start


@pytest.fixture(scope="module")
def shared_engine():
    """A fast engine for tests that look at answers only."""
    with engine_starter() as start:
        yield start("--time-compression", "20", "--max-model-len", "4096")


@pytest.fixture
async def session():
    """A client without limits."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120)
    ) as session:
        yield session
