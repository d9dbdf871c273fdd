"""The flow ``autoscale``: collect, decide, actuate, report, over and over for one shift.

Deployed by ``prefect.yaml``; in the foreground by ``modelyard autoscale``, which runs ``python -m flows.autoscale``.
"""

from __future__ import annotations

import sys
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.parameters import AutoscaleParameters
from flows.shift_run import run_shift
from modelyard.autoscaling.live.tick import Loop, Tick


@flow(name="autoscale", persist_result=False, retries=0)
async def autoscale(parameters: AutoscaleParameters) -> State[Any]:
    """Keep every variant at the size its traffic needs, for one shift.

    Ends as *Completed*; as *Skipped* when its moment had passed, as *Standby* when another run was the writer
    throughout, as *Failed* only when not one tick worked.
    """
    return await run_shift(parameters, Loop, Tick)


if __name__ == "__main__":
    from flows.foreground import main

    sys.exit(main())
