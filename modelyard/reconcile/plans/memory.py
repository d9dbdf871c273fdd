"""What a lifecycle must remember of an object from one look to the next: a JSON document in one of its annotations.

Kept with the object, so that any process carries on where another died. Pure.
"""

from __future__ import annotations

import logging
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError

from modelyard.objects import first_fault

log = logging.getLogger(__name__)

Memory = TypeVar("Memory", bound=BaseModel)

Seconds = Annotated[float, Field(ge=-6e10, le=6e10, allow_inf_nan=False)]
"""A time (epoch seconds, one that has a date) or a duration. Anybody may write annotations: what would break whoever
reckons with it is damage."""
Count = Annotated[int, Field(ge=-(2**53), le=2**53)]
"""A whole number that is one as a float, too."""
LIMIT = 128 * 1024
"""Characters of one memory. An object may have 256 KiB of annotations in all, and others keep theirs there too."""


def parse_memory(model: type[Memory], annotation: str, text: str | None) -> tuple[Memory, str | None]:
    """Read the annotation; a damaged one gives a fresh memory and says why, it never stops a decision."""
    if not text:
        return model(), None
    if len(text) > LIMIT:
        return model(), f"annotation {annotation} unreadable: longer than {LIMIT} characters; starting afresh"
    try:
        return model.model_validate_json(text), None
    except ValidationError as error:
        return model(), f"annotation {annotation} unreadable at {first_fault(error)}; starting afresh"


def render_memory(memory: BaseModel) -> str | None:
    """The annotation's text: only what differs from empty, keys in fixed order. ``None``: there is nothing to keep.

    What could not be stored is not kept either: a decision must never fail for its memory.
    """
    text = memory.model_dump_json(exclude_defaults=True)
    if len(text) > LIMIT:
        log.warning("a memory of %d characters is not kept: an annotation of ours holds %d", len(text), LIMIT)
        return None
    return None if text == "{}" else text
