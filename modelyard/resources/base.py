"""What every custom resource has in common: identity, metadata, parsing with good errors, printing.

The kinds (``registry``, ``networking``, ``llmd``, ``ome``) derive from ``Resource`` and ``Part``; ``crd`` turns their
class attributes into manifests; the loop and the flows call ``parse`` and ``to_manifest``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import CoreSchema

from modelyard.resources.fields import Int64
from modelyard.resources.rules import (
    ResourceInvalid,
    Rule,
    RulesBroken,
    distinct_lists,
    explain,
    repeats,
    repeats_within,
)

__all__ = ["Column", "ObjectMeta", "Part", "Resource", "ResourceInvalid", "StatusPart"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of ``kubectl get``. ``priority`` above 0 shows only with ``-o wide``."""

    name: str
    path: str
    type: Literal["string", "integer", "boolean", "date"] = "string"
    priority: int = 0


RENAMED_GROUPS = {
    "workload.serving.volcano.sh": "registry.volcano.sh",
    "networking.serving.volcano.sh": "networking.volcano.sh",
}
"""What newer peers call a group, and what its published name is."""

AGE = Column("Age", ".metadata.creationTimestamp", "date")


class Part(BaseModel):
    """An object inside a spec. Unknown fields are errors; ``invariants`` and distinct lists come after the fields."""

    model_config = ConfigDict(
        extra="forbid", populate_by_name=True, alias_generator=to_camel, use_attribute_docstrings=False
    )

    invariants: ClassVar[tuple[Rule, ...]] = ()
    schema_extras: ClassVar[Mapping[str, Any]] = {}
    """Further keywords of the CRD schema of this object (``oneOf``, ``maxProperties`` ...)."""
    newer: ClassVar[Mapping[str, str]] = {}
    """Names that newer peers give to fields, and what to write in their place."""
    _distinct: ClassVar[tuple[tuple[str, str, tuple[str, ...]], ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls._distinct = tuple(
            (name, cls.model_fields[name].alias or name, tuple(map(to_snake, keys)))
            for name, keys in distinct_lists(cls).items()
        )

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        breaches = [(r.field, r.text) for r in self.invariants if r.holds is not None and not r.holds(self)]
        for name, alias, keys in self._distinct:
            items = getattr(self, name) or ()
            breaches += repeats(alias, (tuple(getattr(one, key) for key in keys) if keys else one for one in items))
        if breaches:
            raise RulesBroken(breaches)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        produced = handler(schema)
        target = handler.resolve_ref_schema(produced)
        rules = [rule.validation for rule in cls.invariants if rule.cel is not None]
        if rules:
            target["x-kubernetes-validations"] = rules
        target.update(cls.schema_extras)
        return produced


class StatusPart(Part):
    """An object inside a status. Unknown fields are ignored, so that objects written by other versions can be read."""

    model_config = ConfigDict(extra="ignore")


class ObjectMeta(BaseModel):
    """The part of ``metadata`` that Modelyard reads. Everything else is kept as it came."""

    model_config = ConfigDict(extra="allow")

    name: str = Field("", max_length=253)
    namespace: str = ""
    generation: Int64 = 0


class Resource(BaseModel):
    """A custom resource. Subclasses set the class attributes and add ``spec`` and ``status``."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, alias_generator=to_camel)

    api_version: ClassVar[str]
    plural: ClassVar[str]
    namespaced: ClassVar[bool] = True
    short_names: ClassVar[tuple[str, ...]] = ()
    categories: ClassVar[tuple[str, ...]] = ("modelyard",)
    columns: ClassVar[tuple[Column, ...]] = ()
    name_pattern: ClassVar[str | None] = None
    """A pattern for ``metadata.name`` beyond what Kubernetes demands of names."""
    invariants: ClassVar[tuple[Rule, ...]] = ()
    """Rules that need both metadata and spec."""
    kind: ClassVar[str]
    group: ClassVar[str]
    version: ClassVar[str]

    metadata: ObjectMeta = Field(default_factory=ObjectMeta)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.kind = cls.__name__
        cls.group, cls.version = cls.api_version.split("/")

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """``metadata.namespace``; empty for cluster-scoped objects."""
        return self.metadata.namespace

    @classmethod
    def parse(cls, obj: Mapping[str, Any], *, unknown: Literal["forbid", "accept"] = "forbid") -> Self:
        """Read a manifest or an object from the API server.

        A missing ``apiVersion`` or ``kind`` is accepted (lists leave them out), a different one is not. An unreadable
        ``status`` counts as not reported. Accept ``unknown`` fields of stored objects: a newer peer may have written
        them, and ``field_effects.warning`` names them. Raises ``ResourceInvalid``, which names every wrong field and
        repeated list item; rules between fields are checked when the fields are right.
        """
        problems = []
        for field, expected in (("apiVersion", cls.api_version), ("kind", cls.kind)):
            found = obj.get(field)
            if found not in (None, expected):
                problems.append((field, f"is {found!r}, not {expected!r} - {_other_kind(field, found)}"))
        if problems:
            raise ResourceInvalid(cls.kind, obj.get("metadata"), problems)
        try:
            body = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
            return cls.model_validate(body, extra=None if unknown == "forbid" else "allow")
        except ValidationError as error:
            problems = explain(cls, error)
            twice = repeats_within(cls.model_fields["spec"].annotation, obj.get("spec"), "spec")
            problems += [problem for problem in twice if problem not in problems]
            raise ResourceInvalid(cls.kind, obj.get("metadata"), problems) from None

    def to_manifest(self) -> dict[str, Any]:
        """The object as the API server takes it: aliases, no nulls, metadata without empty fields."""
        body = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        body["metadata"] = {key: value for key, value in body["metadata"].items() if value not in ("", 0, {}, [])}
        return {"apiVersion": self.api_version, "kind": self.kind, **body}

    @field_validator("status", mode="wrap", check_fields=False)
    @classmethod
    def _read_what_can_be_read(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, Mapping):
            return handler(value)
        try:
            return handler(value)
        except ValidationError as error:
            broken = {item["loc"][0] for item in error.errors(include_url=False) if item["loc"]}
        try:
            return handler({key: part for key, part in value.items() if key not in broken})
        except ValidationError:
            return None

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        breaches = [(r.field, r.text) for r in self.invariants if r.holds is not None and not r.holds(self)]
        if self.name and self.name_pattern is not None and re.search(self.name_pattern, self.name) is None:
            breaches.append(("metadata.name", f"{self.name!r} does not match {self.name_pattern} - rename it"))
        if breaches:
            raise RulesBroken(breaches)
        return self


def _other_kind(field: str, found: object) -> str:
    if field == "apiVersion" and str(found).partition("/")[0] in RENAMED_GROUPS:
        return "a newer peer's name of the group: 'modelyard convert -f' rewrites such manifests"
    return "pass the object to the matching kind"
