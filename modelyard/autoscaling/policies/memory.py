"""What a binding must remember from one tick to the next; kept as JSON in an annotation of the binding."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

ANNOTATION = "modelyard.dev/policy-state"


class BindingMemory(BaseModel):
    """State of a binding's windows and modes. All times are epoch seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")
