"""Effects of every field of the custom resources, and the fields of an object that have none.

``<kind, lower case>.toml`` lists the fields of a kind: acted on, converted, or without effect and why. The tables
produce the reference page of all fields and, at run time, the warning of an object that sets a field without effect.
"""

from modelyard.resources.field_effects.conditional import DEFAULT_EXPANSION
from modelyard.resources.field_effects.ineffective import Ineffective, ineffective, warning, warning_of
from modelyard.resources.field_effects.tables import (
    Effect,
    FieldEffect,
    FieldNode,
    effect_of,
    field_effects,
    field_tree,
)
