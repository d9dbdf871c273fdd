"""What a stage after the proposals is: it looks at what was proposed and returns what it changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from modelyard.autoscaling.decisions import TickContext
from modelyard.autoscaling.variants.demand import ModelDemand
from modelyard.autoscaling.variants.proposal import Changes, Proposal, Variants


class ProposedModel(NamedTuple):
    """A model with what was proposed for it."""

    demand: ModelDemand
    proposal: Proposal


class StageResult(NamedTuple):
    """The changes of a stage, and the error that it reports."""

    changes: Changes = ()
    problem: str | None = None


class PipelineStage(NamedTuple):
    """A stage. Of one for the fleet, ``on_failure`` says in the errors of the tick what is missing without it."""

    run: Callable[[Sequence[ProposedModel], Variants, TickContext], StageResult]
    on_failure: str = "deciding failed"
