"""References and conditions as Kubernetes itself defines them, where our kinds use them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from modelyard.resources.base import Part, StatusPart
from modelyard.resources.fields import Int64, Time, optional, unique


class LocalObjectReference(Part):
    """The name of an object in the same namespace."""

    name: str = Field(min_length=1, description="Name of the object, in the namespace of this one.")


class ObjectReference(Part):
    """A reference to any object (core/v1 ObjectReference)."""

    api_version: str | None = optional("API group and version of the object, such as apps/v1.")
    kind: str | None = optional("Kind of the object.")
    namespace: str | None = optional("Namespace of the object. Default: the namespace of this one.")
    name: str = Field(min_length=1, description="Name of the object.")
    uid: str | None = optional("UID of the object, to tell it from a later one of the same name.")
    resource_version: str | None = optional("The version of the object the reference was made to.")
    field_path: str | None = optional("A part of the object, as a JSON path.")


class CrossVersionObjectReference(Part):
    """A reference to something with a scale subresource (autoscaling/v1)."""

    api_version: str | None = optional("API group and version of the target. Default: apps/v1.")
    kind: str = Field(min_length=1, description="Kind of the target, such as Deployment or LeaderWorkerSet.")
    name: str = Field(min_length=1, description="Name of the target, in the namespace of this object.")


class Condition(StatusPart):
    """One aspect of an object's state (meta/v1 Condition)."""

    type: str = Field(
        max_length=316,
        pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        description="Which aspect, in CamelCase.",
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    observed_generation: Int64 | None = optional(
        "The metadata.generation this was found at; older than the object's means out of date.", ge=0
    )
    last_transition_time: Time = Field(description="When the status last changed.")
    reason: str = Field(
        min_length=1,
        max_length=1024,
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        description="Why, as one CamelCase word for programs.",
    )
    message: str = Field(max_length=32768, description="Why, as a sentence for people.")


CONDITIONS = unique("map", "type")
"""Schema extras of a list of conditions: one entry per type, so that several writers can share it."""


class ConditionedStatus(StatusPart):
    """A status that explains itself with conditions."""

    observed_generation: Int64 | None = optional(
        "The metadata.generation this status was computed from. Written by Modelyard.", ge=0
    )
    conditions: list[Condition] | None = optional(
        "The state of the object, one entry per aspect.", json_schema_extra=CONDITIONS
    )
