"""A real Prometheus for tests, that can be killed and started again."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from deployments.profile import free_port as free_port
from modelyard.local.binaries.obtain import ensure

CONFIG = """
global: {{scrape_interval: {interval}, scrape_timeout: {interval}}}
scrape_configs:
"""
HONEST = """
  - job_name: engines
    honor_labels: true
    static_configs: [{{targets: ["{target}"]}}]
"""
"""One target that may say of which namespace and pod a series is."""


@dataclass
class PrometheusServer:
    """A Prometheus that can be stopped and started. ``jobs`` are its scrape configs, with ``{target}`` in them."""

    folder: Path
    port: int
    target: str
    interval: str = "500ms"
    jobs: str = HONEST
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        binary = ensure(["prometheus"], print)["prometheus"]
        config = self.folder / "prometheus.yml"
        config.write_text(CONFIG.format(interval=self.interval) + self.jobs.format(target=self.target))
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(binary),
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self.folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1):
                    return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
