"""The figures and pictures of good runs, into README.md and docs/images: ``make demo RUNS=3 DEMO_ARGS=--write``."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from deployments.demo import story
from deployments.demo.scenario import Scenario
from deployments.demo.story import Played
from deployments.profile import ROOT

PAGE = ROOT / "README.md"
BEGIN, END = "<!-- demo -->\n", "<!-- end of demo -->\n"


def publish(runs: Sequence[Sequence[Played]], scenario: Scenario, folder: Path) -> None:
    """Write the block of the page; the pictures are those of the run in ``folder``."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    lines = [
        f"Median of {len(runs)} runs on the 2-core machine of [Performance](docs/performance.md), and their spread:\n",
        story.markdown(story.comparison(runs, scenario)),
    ]
    for act in sorted({one.copy.act for one in runs[0]}):
        image = f"docs/images/demo-act-{act}.png"
        shutil.copyfile(folder / f"act-{act}.png", ROOT / image)
        lines.append(f"![Act {act}: load, replicas, latency against its targets, and cost]({image})\n")
    PAGE.write_text(before + BEGIN + "\n".join(lines) + END + after, encoding="utf-8")
