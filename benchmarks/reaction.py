"""From a custom resource's change to the run that acts on it, on the deployed flow at its default tick of 15 s.

    python benchmarks/reaction.py

A real cluster, Prefect server, worker and scheduled flow. In each round the annotation
``modelyard.dev/min-replicas`` of a VariantAutoscaling is changed at a random moment of the tick; measured is the time
until the workload's replica count has been written. Reference: the mean wait of a loop that only ticks (half of 15 s).
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from deployments.demo.scenario import Scenario
from modelyard.autoscaling.fleet.kinds import VARIANTS as KIND
from modelyard.objects.kinds import DEPLOYMENTS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from scaled_fleet import NAMESPACE, running

INTERVAL = 15.0
ROUNDS = [("llama-l40s", 2), ("llama-l40s", 3), ("llama-h100", 2), ("llama-h100", 3), ("llama-h100", 4)]


async def measure(out: Path) -> list[float]:
    """Seconds from each change to the scale write."""
    # Time is compressed tenfold in the scenario, so that engines start quickly; the tick itself is 15 s of wall time.
    scenario = Scenario(tick_seconds=INTERVAL * 10, shift_seconds=600)
    taken = []
    async with running(scenario, out) as (_, _, cluster):
        for variant, wanted in ROUNDS:
            await asyncio.sleep(INTERVAL + random.uniform(0, INTERVAL))
            body = {"metadata": {"annotations": {"modelyard.dev/min-replicas": str(wanted)}}}
            begun = time.monotonic()
            await cluster.merge_patch(KIND, variant, body, NAMESPACE)
            while (await cluster.get(DEPLOYMENTS, variant, NAMESPACE))["spec"]["replicas"] < wanted:
                await asyncio.sleep(0.02)
                if time.monotonic() - begun > 4 * INTERVAL:
                    raise SystemExit(f"{variant} to {wanted}: nothing happened within {4 * INTERVAL} s")
            taken.append(time.monotonic() - begun)
            print(f"{variant} to {wanted}: {taken[-1]:.2f} s", flush=True)
    return taken


def main() -> None:
    """Print the distribution and the ratio to the reference."""
    with tempfile.TemporaryDirectory() as folder:
        taken = asyncio.run(measure(Path(folder)))
    middle = statistics.median(taken)
    print(
        f"from change to action: median {middle:.2f} s, worst {max(taken):.2f} s over {len(taken)} rounds; "
        f"ticking alone waits {INTERVAL / 2:.1f} s on average: ratio {middle / (INTERVAL / 2):.2f}"
    )


if __name__ == "__main__":
    main()
