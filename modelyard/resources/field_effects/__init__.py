"""Effects of every field of the custom resources, and the fields of an object that have none.

``<kind, lower case>.toml`` lists the fields of a kind: acted on, converted, or without effect and why. The tables
produce the reference page of all fields and, at run time, the warning of an object that sets a field without effect.
"""

from modelyard.resources.field_effects.ineffective import (
    Ineffective as Ineffective,
)
from modelyard.resources.field_effects.ineffective import (
    ineffective as ineffective,
)
from modelyard.resources.field_effects.ineffective import (
    warning as warning,
)
from modelyard.resources.field_effects.ineffective import (
    warning_of as warning_of,
)
from modelyard.resources.field_effects.tables import (
    Effect as Effect,
)
from modelyard.resources.field_effects.tables import (
    FieldEffect as FieldEffect,
)
from modelyard.resources.field_effects.tables import (
    FieldNode as FieldNode,
)
from modelyard.resources.field_effects.tables import (
    effect_of as effect_of,
)
from modelyard.resources.field_effects.tables import (
    field_effects as field_effects,
)
from modelyard.resources.field_effects.tables import (
    field_tree as field_tree,
)
