"""Writes the tables of docs/*.md that come from the code: parameters, environment variables, state, gauges.

``python docs/generate_tables.py`` rewrites what stands between ``<!-- table: NAME -->`` and ``<!-- end -->``;
``--check`` only says what is stale. Called by hand after a change of a model, and by tests/unit/docs.
"""

from __future__ import annotations

import argparse
import enum
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, cast, get_args, get_origin

import annotated_types
import yaml
from prometheus_client.metrics_core import Metric
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from flows.forms import field_names
from flows.parameters import AutoscaleParameters, DeliverParameters, ReconcileParameters, VerifyParameters
from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.fleet import Variant
from modelyard.autoscaling.live.controller_gauges import ControllerCollector, LeaseState, Told
from modelyard.autoscaling.live.exporter import GaugeCollector
from modelyard.autoscaling.live.fleetwatch import Fleetwatch
from modelyard.autoscaling.memory.bindings import BindingMemory
from modelyard.autoscaling.memory.variants import AUTOSCALING_STATE as STATE, SLOMemory, VariantMemory
from modelyard.autoscaling.reading import observe
from modelyard.autoscaling.reading.prediction import ANNOTATION as PREDICTION
from modelyard.metrics.prometheus.client import PrometheusSettings
from modelyard.models.storage.settings import DeliverySettings
from modelyard.objects import Condition, Key
from modelyard.objects.accelerators import FAMILIES
from modelyard.resources import KINDS, Resource
from modelyard.resources.field_effects import Effect, FieldNode, effect_of, field_tree

FOLDER = Path(__file__).resolve().parent
SAMPLE = FOLDER.parent / "config" / "samples" / "variantautoscaling-slo.yaml"
BLOCK = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WORDS: Mapping[type, str] = {bool: "true or false", int: "whole number", float: "number", str: "text", dict: "mapping"}
LIMITS: Mapping[type, str] = {
    annotated_types.Ge: "at least {ge}",
    annotated_types.Gt: "above {gt}",
    annotated_types.Le: "at most {le}",
    annotated_types.Lt: "below {lt}",
}


UNDESCRIBED: Mapping[str, str] = {
    "tls_insecure_skip_verify": "do not verify the server's certificate",
    "ca_cert_path": "file with the certificate authority to trust",
    "client_cert_path": "file with a client certificate",
    "client_key_path": "file with its key; unset: the certificate's own file",
    "prompt_tokens": "mean prompt tokens of a request, when they were last measured",
    "output_tokens": "mean output tokens of a request, likewise",
}
"""Fields whose model says nothing about them."""


def kind_of(annotation: Any) -> str:
    """A field's type in a word or two."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return kind_of(inner[0])
    if origin is list:
        return f"list of {kind_of(inner[0])}"
    if NoneType in inner:
        return " or ".join(kind_of(part) for part in inner if part is not NoneType)
    if isinstance(origin, type):
        return WORDS.get(origin, origin.__name__)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    return WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)).lower())


def limits_of(field: FieldInfo) -> str:
    """The bounds a value must keep, in words."""
    parts = []
    for constraint in field.metadata:
        text = LIMITS.get(type(constraint))
        if text is not None:
            value = next(v for v in vars_of(constraint) if v is not None)
            parts.append(re.sub(r"\{\w+\}", f"{value:g}", text))
    return ", ".join(parts)


def vars_of(constraint: Any) -> Iterable[Any]:
    """The values of a constraint object."""
    return [getattr(constraint, name) for name in constraint.__dataclass_fields__]


def default_of(field: FieldInfo) -> str:
    """A field's default as it would be written in YAML."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, enum.Enum):
        return f"`{value.value}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    if isinstance(value, BaseModel):
        return "see below"
    return f"`{value}`" if value not in ("", [], {}) else "empty"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def settings_table(model: type[BaseModel]) -> str:
    """One row per field of a settings model."""
    return table(("Field", "Type", "Default", "Meaning"), settings_rows(model))


def settings_rows(model: type[BaseModel]) -> Iterator[Sequence[str]]:
    """Name, type with bounds, default, description."""
    for name in field_names(model):
        field = model.model_fields[name]
        annotation = field.annotation
        nested = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        limits = limits_of(field)
        kind = "object" if nested else kind_of(annotation) + (f", {limits}" if limits else "")
        yield f"`{field.alias or name}`", kind, default_of(field), field.description or ""


def environment_table() -> str:
    """One row per environment variable of the Prometheus connection."""
    prefix = PrometheusSettings.model_config["env_prefix"]
    rows = [
        (f"`{prefix}{name.upper()}`", default_of(field), field.description or UNDESCRIBED[name])
        for name, field in PrometheusSettings.model_fields.items()
    ]
    return table(("Variable", "Default", "Meaning"), rows)


def memory_table(model: type[BaseModel]) -> str:
    """One row per field of the state that is kept with a resource."""
    rows = [(f"`{name}`", field.description or UNDESCRIBED[name]) for name, field in model.model_fields.items()]
    return table(("Field", "Meaning"), rows)


class OneVariant:
    """A fleet of the sample in SLO form, of which the exporter renders every family there is."""

    instance: str | None = None

    def published(self) -> Iterator[tuple[Variant, int | None]]:
        """The sample, as if it had been scaled once."""
        body = yaml.safe_load(SAMPLE.read_text("utf-8"))
        told = {
            PREDICTION: '{"ttft": 1, "itl": 1, "ttft_target": 1}',
            STATE: '{"scalings": {"up/LoadAboveCapacity": 1}}',
        }
        body["metadata"] |= {"uid": "", "resourceVersion": "", "annotations": told}
        body["status"] = {"desiredOptimizedAlloc": {"lastRunTime": "2026-01-01T00:00:00Z", "accelerator": "H100"}}
        yield observe.variant(body), 0

    def told(self) -> Iterator[Told]:
        """A condition."""
        yield Told("VariantAutoscaling", Key("", ""), [Condition("CapacityLimited", "False", "", "")])

    def leases(self) -> Iterator[LeaseState]:
        """A Lease."""
        yield LeaseState(Key("", ""), True, 1.0)


def gauges_table() -> str:
    """One row per metric of the exporter."""
    every = OneVariant()
    metrics = [*GaugeCollector(cast(Fleetwatch, every)).collect(), *ControllerCollector(every).collect()]
    return table(("Metric", "Type", "Labels", "Value"), map(metric_row, metrics))


def metric_row(metric: Metric) -> Sequence[str]:
    """Name as scraped, type, labels, documentation."""
    labels = ", ".join(f"`{name}`" for name in getattr(metric, "_labelnames", ()))
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return f"`{name}`", metric.type, labels, metric.documentation


def accelerators_table() -> str:
    """Return the resources of device plugins that count as accelerators."""
    rows = []
    for family in FAMILIES:
        names = (f"`{domain}/{name}`" for domain in family.domains for name in family.names)
        labels = (f"`{label}`" for label in family.labels)
        rows.append((family.vendor or "any other", ", ".join(names), ", ".join(labels)))
    return table(("Vendor", "Resources", "Node labels with the product"), rows)


EFFECTS: Mapping[Effect, str] = {
    Effect.ACTED: "Acted on.",
    Effect.CONVERTED: "Converted.",
    Effect.INFORMATIVE: "Informative.",
    Effect.NONE: "Without effect:",
}


def fields_table(kind: type[Resource]) -> str:
    """Return the fields of a custom resource, spec first, then status; those that differ in their place share a row."""
    rows: dict[Sequence[str], list[str]] = {}
    for node in field_tree(kind).walk():
        if node.fields is None:
            rows.setdefault((node.path.rpartition(".")[2], *field_row(kind, node)), []).append(f"`{node.path}`")
    cells = ((", ".join(paths), *row) for (_, *row), paths in rows.items())
    return table(("Field", "Meaning", "Default", "Effect"), cells)


def field_row(kind: type[Resource], node: FieldNode) -> Sequence[str]:
    """Return description, default and effect of a field."""
    meaning, _, words = (node.info.description or "").partition(" Default: ")
    entry = effect_of(kind.kind, node.path)
    assert entry is not None, f"{kind.kind} {node.path} has no entry in modelyard/resources/field_effects"
    is_status = node.path.startswith("status.")
    label = "Written." if is_status and entry.effect is Effect.ACTED else EFFECTS[entry.effect]
    default = "–" if is_status else default_of(node.info)
    if words and default == "unset":
        default = words.removesuffix(".")
    return meaning, default, f"{label} {entry.text}"


FIELD_TABLES: Mapping[str, Callable[[], str]] = {
    f"fields-{kind.kind.lower()}": partial(fields_table, kind) for kind in KINDS.values()
}


TABLES: Mapping[str, Callable[[], str]] = {
    **FIELD_TABLES,
    "accelerators": accelerators_table,
    "autoscale-parameters": lambda: settings_table(AutoscaleParameters),
    "fleet-settings": lambda: settings_table(FleetSettings),
    "reconcile-parameters": lambda: settings_table(ReconcileParameters),
    "deliver-parameters": lambda: settings_table(DeliverParameters),
    "delivery-settings": lambda: settings_table(DeliverySettings),
    "verify-parameters": lambda: settings_table(VerifyParameters),
    "prometheus-environment": environment_table,
    "variant-memory": lambda: memory_table(VariantMemory),
    "slo-memory": lambda: memory_table(SLOMemory),
    "binding-memory": lambda: memory_table(BindingMemory),
    "gauges": gauges_table,
}


def rendered(text: str) -> str:
    """The document with every table as the code has it now. Raises ``KeyError`` for a table nobody knows."""
    return BLOCK.sub(lambda found: found[1] + TABLES[found["name"]]() + found[3], text)


def stale(folder: Path = FOLDER) -> list[Path]:
    """The documents whose tables differ from the code."""
    texts = {path: path.read_text("utf-8") for path in sorted(folder.glob("*.md"))}
    return [path for path, text in texts.items() if rendered(text) != text]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check; 0 when all is well, 1 when ``--check`` found stale tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a table is stale")
    check = parser.parse_args(arguments).check
    found = stale()
    for path in found:
        if check:
            print(f"{path.name} is stale - run: python docs/generate_tables.py", file=sys.stderr)
        else:
            path.write_text(rendered(path.read_text("utf-8")), "utf-8")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main())
