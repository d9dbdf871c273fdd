"""Fit a drifted profile again, and write it to the VariantAutoscaling and to the profile library."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from modelyard.autoscaling.fleet import VARIANTS
from modelyard.benchmarks.jobs import BENCHMARK_JOBS
from modelyard.benchmarks.measuring import LIBRARY, library_patch, read_library
from modelyard.cluster import Cluster, Forbidden, NotFound
from modelyard.objects import CONFIG_MAPS, NAMESPACES, Key, namespace
from modelyard.profiles.refitting.refit import ProfileDrift, RefitFailed, kept_as, refit, same_profile


async def refit_variant(cluster: Cluster, drift: ProfileDrift, tokens: int, home: str) -> list[str]:
    """Return what was done, a sentence each. Repeated, it fits the same measurements, and changes nothing.

    ``tokens`` are those that engines compute in a step, ``home`` the namespace of the library. Raises ``RefitFailed``.
    """
    if drift.benchmark is None:
        raise RefitFailed("its profile was fitted to no BenchmarkJob of its namespace")
    key = drift.variant
    variant = await cluster.get(VARIANTS, key.name, key.namespace)
    job = await cluster.get(BENCHMARK_JOBS, drift.benchmark.name, drift.benchmark.namespace)
    fitted = await asyncio.to_thread(refit, variant, job, drift.since, tokens)
    if fitted.patch is None:
        return [fitted.message]
    current = await cluster.get(VARIANTS, key.name, key.namespace)
    if not same_profile(variant, current):
        raise RefitFailed("was given another profile while one was fitted")
    # First: while the variant has the old profile, whoever goes on after a kill comes back to both.
    kept = await _keep(cluster, variant, fitted.patch, home)
    version = {"resourceVersion": current["metadata"]["resourceVersion"]}
    body = {**fitted.patch, "metadata": fitted.patch["metadata"] | version}
    await cluster.merge_patch(VARIANTS, key.name, body, key.namespace)
    return [*kept, fitted.message]


async def _keep(cluster: Cluster, variant: Mapping[str, Any], body: Mapping[str, Any], home: str) -> list[str]:
    library = Key(home, LIBRARY)
    try:
        stored = await cluster.get(CONFIG_MAPS, LIBRARY, home)
    except NotFound:
        return []
    except Forbidden:
        return [f"ConfigMap {library} may not be read: whether its profile is kept there is not known"]
    spaces = {
        space["metadata"]["name"]: namespace(space)
        for space in await cluster.list(NAMESPACES, field_selector=f"metadata.name={home}")
    }
    entries = read_library(library, stored.get("data") or {})[0]
    kept = kept_as(variant, entries, home, spaces)
    for name in kept.keys:
        version = {"metadata": {"resourceVersion": stored["metadata"]["resourceVersion"]}}
        stored = await cluster.merge_patch(CONFIG_MAPS, LIBRARY, library_patch(name, body) | version, home)
    done = [f"updated {name.name} in ConfigMap {library}, which had the same profile" for name in kept.keys]
    return [*done, *([f"ConfigMap {library} is unchanged: {kept.refused}"] if kept.refused else [])]
