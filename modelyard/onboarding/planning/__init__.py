"""The onboarding of a model: candidates to measure, the choice among them, the objects to create. Pure."""

from modelyard.onboarding.planning import objects
from modelyard.onboarding.planning.choose import CandidateChoice, choose
from modelyard.onboarding.planning.expected import class_targets, expected
from modelyard.onboarding.planning.levels import certainty
from modelyard.onboarding.planning.lifecycle import MEMORY, Onboarding
from modelyard.onboarding.planning.objects import base_model, chosen, order_key, probe
from modelyard.onboarding.planning.plan import benchmarks, name_of, ready
from modelyard.onboarding.planning.progress import OnboardMemory, OnboardStanding, object_of, objects_of_steps, outcome
from modelyard.onboarding.planning.report import (
    COLUMNS,
    LoadCheck,
    load_check,
    markdown,
    onboarding_result,
    row,
    spent,
    table,
)
