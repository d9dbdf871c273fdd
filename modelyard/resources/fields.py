"""Field types shared by all resource models. Each validates as the Kubernetes API server does and carries its schema.

Numbers and booleans are strict: ``"3"`` is not an integer and ``"true"`` not a boolean, as in a stored manifest.
"""

from __future__ import annotations

from datetime import UTC
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, Field, PlainSerializer, WithJsonSchema

from modelyard.objects import PATTERN
from modelyard.resources.duration import Duration

Bool = Annotated[bool, Field(strict=True)]
Int32 = Annotated[int, Field(strict=True, json_schema_extra={"format": "int32"})]
Int64 = Annotated[int, Field(strict=True, json_schema_extra={"format": "int64"})]
StringMap = dict[str, str]

RawObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
"""An object that is kept as it is: a fragment of a pod, or free JSON. Its inside is checked where it is used."""

IntOrString = Annotated[
    Annotated[int, Field(strict=True)] | str,
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}),
]
"""A number, or a share in percent as text, such as ``25%``."""

Time = Annotated[
    AwareDatetime,
    Field(strict=False),
    PlainSerializer(lambda moment: moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""``metav1.Time``: RFC 3339, printed in UTC and whole seconds."""


def _not_negative(duration: Duration) -> Duration:
    if duration < Duration("0"):
        raise ValueError(f"{duration} is negative; write zero or a positive duration such as 30s")
    return duration


NonNegativeDuration = Annotated[
    Duration,
    AfterValidator(_not_negative),
    WithJsonSchema({"type": "string", "pattern": PATTERN.replace("[+-]?", r"\+?", 1), "maxLength": 256}),
]


def optional(description: str, **rules: Any) -> Any:
    """A field that may be absent, which is ``None``. ``rules`` are those of Pydantic's ``Field``."""
    return Field(None, description=description, **rules)


def unique(kind: str = "set", *keys: str) -> dict[str, Any]:
    """Schema extras for a list whose items are distinct: a ``set`` of scalars or a ``map`` keyed by some fields."""
    extras: dict[str, Any] = {"x-kubernetes-list-type": kind}
    if keys:
        extras["x-kubernetes-list-map-keys"] = list(keys)
    return extras
