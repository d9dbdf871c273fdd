"""The objects of a lifecycle's run, from its parameters: one that a person names, or those that reconcile claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from prefect.context import FlowRunContext
from prefect.runtime import flow_run

from flows.parameters import LifecycleParameters, RunParameters
from modelyard.objects import Key
from modelyard.reconcile.kernel import Acted
from modelyard.reconcile.plans import UNATTENDED_SECONDS
from tasks.claims import claim
from tasks.reconcile import BY_ID
from tasks.steps import RunRef, run_lifecycle


class RunOrder(NamedTuple):
    """A run's reference and objects. ``by_hand``: a person or a pipeline started it, and it claims the object itself.

    ``stays``: it waits for the end, ``seconds`` at most; otherwise ``seconds`` where there is nothing to write.
    ``attempt`` counts the times that the flow run has begun: from the second on, what failed is tried again at once.
    """

    ref: RunRef
    keys: Sequence[Key]
    by_hand: bool
    stays: bool
    seconds: float
    attempt: int = 1

    @property
    def claims(self) -> bool:
        return self.by_hand or self.attempt > 1

    @classmethod
    def of(cls, parameters: LifecycleParameters, lifecycle: str) -> RunOrder:
        run = parameters.run if not _is_copy(parameters.run) else ""
        ref = RunRef(lifecycle, parameters.controller_namespace, run or f"{BY_ID}{flow_run.id}")
        named = not parameters.run
        keys = [Key(parameters.namespace, parameters.name)] if named else list(map(key_named, parameters.objects))
        stays = not run and parameters.wait
        seconds = parameters.timeout_seconds if stays or _has_parent() else UNATTENDED_SECONDS
        return cls(ref, keys, not run, stays, seconds, flow_run.run_count or 1)

    @classmethod
    def scheduled(cls, lifecycle: str, parameters: RunParameters) -> RunOrder:
        """Return the order of the current flow run, which chooses its objects itself."""
        ref = RunRef(lifecycle, parameters.controller_namespace, f"{BY_ID}{flow_run.id}")
        seconds = parameters.timeout_seconds if parameters.wait else 0.0
        return cls(ref, (), False, parameters.wait, seconds, flow_run.run_count or 1)


async def carry_out(order: RunOrder, marks: Mapping[str, str | None] | None = None) -> Acted:
    """Claim the order's objects, with these annotations, where the run has to; then run all their steps."""
    for key in order.keys if order.claims else ():
        await claim(order.ref, key, order.attempt, marks)
    return await run_lifecycle(order.ref, order.keys, order.seconds, order.stays)


def _is_copy(run: str) -> bool:
    """Return whether the flow run has the parameters of another run, as one that the UI copied to a new run."""
    context = FlowRunContext.get()
    current = context.flow_run if context is not None else None
    return bool(run and current and current.deployment_id is not None and current.idempotency_key != run)


def _has_parent() -> bool:
    context = FlowRunContext.get()
    return context is not None and context.flow_run is not None and context.flow_run.parent_task_run_id is not None


def key_named(text: str) -> Key:
    """Return the key that ``NAMESPACE/NAME`` stands for."""
    return Key(*text.split("/", 1))
