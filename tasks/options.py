"""How every stage of a tick runs as a Prefect task: never cached, stored or retried (the next tick is the retry).

The loop and the tick are opaque objects to Prefect: not walked, hashed or serialised. A stage's return value stays in
memory for the whole shift, so it is a handful of counts.
"""

from __future__ import annotations

from typing import Any, TypedDict

from prefect.cache_policies import NO_CACHE


class StageOptions(TypedDict):
    """Keyword arguments of ``prefect.task`` shared by the stages."""

    cache_policy: Any
    persist_result: bool
    retries: int


STAGE = StageOptions(cache_policy=NO_CACHE, persist_result=False, retries=0)
