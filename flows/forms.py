"""How a model of parameters becomes the form of a flow: its fields as the flow's keywords, and back as one model.

A flow takes the fields as keywords (``flat``) and is given the model, so that what fits together is checked in one
place. What is seldom set is a closed group: fields that are models themselves, and where a model names fields to come
``first``, all the others (``advanced``). The models are in ``flows.parameters``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, TypeVar

from prefect import Flow
from prefect.context import FlowRunContext
from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Unseen:
    """Marks a parameter that only ``reconcile`` sets: no form shows it (``deployments.bootstrap.closed``)."""

    mark = "x-unseen"

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), self.mark: True}


M = TypeVar("M", bound=BaseModel)
R = TypeVar("R")

ADVANCED = "advanced"


def form(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of the form, in order. Groups are optional: a form shows one that is unset as a single line."""
    fields = {name: _closed(model.model_fields[name]) for name in field_names(model)}
    first: tuple[str, ...] = getattr(model, "first", ())
    if not first:
        return fields
    rest: dict[str, Any] = {name: (field.annotation, field) for name, field in fields.items() if name not in first}
    group = create_model("Advanced", __config__=ConfigDict(frozen=True, extra="forbid"), **rest)
    others = Field(default_factory=group, description="everything else that can be set; unset: the defaults")
    shown = {name: fields[name] for name in first}
    return {**shown, ADVANCED: _closed(FieldInfo.from_annotated_attribute(group, others))}


def field_names(model: type[BaseModel]) -> list[str]:
    """Return the names of the model's fields in the order of its form, those in ``last`` at the end."""
    last: tuple[str, ...] = getattr(model, "last", ())
    return sorted(model.model_fields, key=lambda name: last.index(name) if name in last else -1)


def _closed(field: FieldInfo) -> FieldInfo:
    if not _is_group(field):
        return field
    optional: Any = field.annotation | None  # type: ignore[operator]
    return FieldInfo.from_annotated_attribute(optional, Field(None, description=field.description))


def _is_group(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def arguments(parameters: BaseModel) -> dict[str, Any]:
    """The keywords that a flow takes (``flat``) to be given ``parameters``."""
    shown, values = form(type(parameters)), dict(parameters)
    rest = {name: value for name, value in values.items() if name not in shown}
    return {name: value for name, value in values.items() if name in shown} | ({ADVANCED: rest} if rest else {})


def _fields(model: type[BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    flattened = {**given, **dict(given.get(ADVANCED) or {})}
    fields = model.model_fields
    return {n: v for n, v in flattened.items() if n in fields and not (v is None and _is_group(fields[n]))}


def flat(
    model: type[M],
) -> Callable[[Callable[[M], Coroutine[Any, Any, R]]], Callable[..., Coroutine[Any, Any, R]]]:
    """Make a flow's function take the fields of ``form(model)`` as keywords: shown, checked and stored by themselves.

    Prefect reads types, limits and defaults from the signature, and the descriptions from the docstring.
    """
    fields = form(model)
    signature = inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation,
                default=inspect.Parameter.empty
                if field.is_required()
                else field.get_default(call_default_factory=True),
            )
            for name, field in fields.items()
        ]
    )
    explained = "\n".join(["", "", "Args:", *(f"    {name}: {field.description}" for name, field in fields.items())])

    def decorate(function: Callable[[M], Coroutine[Any, Any, R]]) -> Callable[..., Coroutine[Any, Any, R]]:
        @functools.wraps(function)
        async def spread(**given: Any) -> R:
            return await function(model(**_fields(model, given)))

        spread.__doc__ = f"{inspect.getdoc(function)}{explained}"
        vars(spread).update(__signature__=signature, model=model)
        return spread

    return decorate


def model_of(flow: Flow[Any, Any]) -> type[BaseModel]:
    """Return the model of the flow's parameters."""
    model: type[BaseModel] = vars(flow.fn)["model"]
    return model


def run_parameters(model: type[M]) -> M:
    """The parameters of the current flow run, for its name: of the right types, but not checked together."""
    context = FlowRunContext.get()
    missing = {name: "" for name, field in model.model_fields.items() if field.is_required()}
    return model.model_construct(**missing | _fields(model, (context and context.parameters) or {}))
