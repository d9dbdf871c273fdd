"""Grafana dashboards: fleet, one model, decisions and reasons, costs. ``python -m modelyard.monitoring`` writes them.

Expressions are put together from the exporter's names and the engines' vocabulary; tests compare both. A dashboard has
a variable for the Prometheus and one for namespaces; that of a model one more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, dashboard as grafana, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, StackingMode
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    GridPos,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from modelyard.metrics.vocabulary import ENGINES, Signal

JOB = 'job="modelyard-exporter"'
"""Whose series count: any pod may show some of the same names, but not under this job."""
HERE = 'namespace=~"$namespace"'
MODEL = f'{HERE}, model_name="$model"'
SOURCE = DataSourceRef("prometheus", "${datasource}")
WIDTH, HEIGHT = 24, 8
VARIANT = "variant_name, namespace"


class Chart(NamedTuple):
    """A panel: expressions of its lines by legend. ``kind``: lines over time, the number now, or a table of labels."""

    title: str
    about: str
    lines: Mapping[str, str]
    unit: str = "short"
    kind: str = "lines"
    stacked: bool = False


def exported(name: str, more: str = HERE) -> str:
    """Selector of a series of the exporter."""
    return f"{name}{{{', '.join(filter(None, (JOB, more)))}}}"


CURRENT, DESIRED = exported("wva_current_replicas"), exported("wva_desired_replicas")
AGE = f"time() - {exported('modelyard_variant_decided_timestamp_seconds')}"


def names(signal: Signal) -> dict[str, tuple[str, ...]]:
    """What each engine that names its model calls a signal, newest name first."""
    found = {name: engine.of.get(signal) for name, engine in ENGINES.items() if engine.model}
    return {name: (family.name, *family.former) for name, family in found.items() if family is not None}


def engines(signal: Signal, where: str) -> str:
    """Selector of a gauge or a counter, whatever the engine."""
    every = "|".join(one for group in names(signal).values() for one in group)
    return f'{{__name__=~"{every}", {where}}}'


def total(signal: Signal, where: str, by: str = "") -> str:
    """Growth per second of a counter, whatever the engine."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({engines(signal, where)}[$__rate_interval]))"


def quantile(share: float, signal: Signal, where: str) -> dict[str, str]:
    """Return a quantile of a histogram for each engine, over the whole model: buckets differ."""
    queries = {}
    for engine, group in names(signal).items():
        rates = (f"sum by (le) (rate({name}_bucket{{{where}}}[$__rate_interval]))" for name in group)
        queries[f"p{100 * share:g} {engine}"] = f"histogram_quantile({share}, {' or '.join(rates)})"
    return queries


def cost(replicas: str, by: str, more: str = HERE) -> str:
    """Return the query for the cost of replicas, in units of prices per unit of time."""
    return f"sum by ({by}) ({exported('modelyard_variant_cost', more)} * on ({VARIANT}) group_left () {replicas})"


def latency(name: str, text: str, signal: Signal) -> Chart:
    """Return a chart of a latency's percentiles with its target and prediction."""
    target = exported("modelyard_slo_target_seconds", f'{MODEL}, latency="{name}"')
    return Chart(
        text,
        "Percentiles over all replicas, per engine; the target of the service class, and the mean that the performance "
        "model predicts for the decided size (SLO form only).",
        {
            **quantile(0.5, signal, MODEL),
            **quantile(0.95, signal, MODEL),
            "target": f"min({target})",
            "predicted {{namespace}}/{{variant_name}}": exported(f"inferno_predicted_{name}_seconds", MODEL),
        },
        "s",
    )


def fleet() -> list[Chart]:
    """Return the charts of the fleet's health."""
    state = exported("modelyard_condition", f'{HERE}, type="OptimizationReady", status!="True"')
    limited = exported("modelyard_condition", f'{HERE}, type="CapacityLimited", status="True"')
    waiting = f"sum by (namespace, model_name) ({engines(Signal.WAITING, HERE)})"
    return [
        Chart("Oldest decision", "Age of the decision that was written longest ago.", {"": f"max({AGE})"}, "s", "now"),
        Chart(
            "Lease renewed",
            "Since the writer renewed its Lease; more than 15 s: nobody holds it.",
            {"{{lease_name}}": f"time() - {exported('modelyard_lease_renewed_timestamp_seconds', '')}"},
            "s",
            "now",
        ),
        Chart(
            "Variants not decided", "OptimizationReady is not True.", {"": f"count({state}) or vector(0)"}, kind="now"
        ),
        Chart("Short of accelerators", "CapacityLimited is True.", {"": f"count({limited}) or vector(0)"}, kind="now"),
        Chart(
            "Replicas",
            "Of all variants: what there is and what was decided.",
            {"current": f"sum({CURRENT})", "desired": f"sum({DESIRED})"},
        ),
        Chart(
            "Replicas by accelerator",
            "What there is.",
            {"{{accelerator_type}}": f"sum by (accelerator_type) ({CURRENT})"},
            stacked=True,
        ),
        Chart(
            "Replicas still to come, or to go",
            "Desired less current; what stays away from zero for long has no accelerators or does not start.",
            {"{{namespace}}/{{variant_name}}": f"sum by ({VARIANT}) ({DESIRED} - {CURRENT}) != 0"},
        ),
        Chart(
            "Policy bindings: desired replicas",
            "Of every target.",
            {"{{namespace}}/{{target}}": exported("modelyard_policy_desired_replicas")},
        ),
        Chart(
            "Requests finished per second",
            "By namespace.",
            {"{{namespace}}": total(Signal.FINISHED, HERE, "namespace")},
            "reqps",
            stacked=True,
        ),
        Chart(
            "Requests waiting",
            "In the engines' queues, by model.",
            {"{{namespace}} {{model_name}}": waiting},
            stacked=True,
        ),
    ]


def model() -> list[Chart]:
    """Return the charts of one model, of one namespace or of several."""
    of_model = f"and on ({VARIANT}) {exported('modelyard_variant_cost', MODEL)}"
    return [
        Chart(
            "Requests finished per second", "Over all replicas.", {"finished": total(Signal.FINISHED, MODEL)}, "reqps"
        ),
        Chart(
            "Requests in the engines",
            "Running and waiting.",
            {name.lower(): f"sum({engines(Signal[name], MODEL)})" for name in ("RUNNING", "WAITING")},
        ),
        Chart(
            "Replicas",
            "Of each variant: what there is and what was decided.",
            {
                "{{namespace}}/{{variant_name}}": f"{CURRENT} {of_model}",
                "{{namespace}}/{{variant_name}} desired": f"{DESIRED} {of_model}",
            },
        ),
        Chart(
            "KV cache in use",
            "Mean and highest of the replicas.",
            {"mean": f"avg({engines(Signal.KV_USE, MODEL)})", "highest": f"max({engines(Signal.KV_USE, MODEL)})"},
            "percentunit",
        ),
        latency("ttft", "Time to first token", Signal.TTFT),
        latency("itl", "Inter-token latency", Signal.ITL),
        Chart(
            "Requests beyond their target",
            "Share over five minutes of requests (TTFT) and tokens (ITL), from the recording rules.",
            {"{{namespace}} {{latency}}": f"modelyard:slo_misses:ratio_rate5m{{{MODEL}}}"},
            "percentunit",
        ),
        Chart(
            "Tokens per second",
            "Prompt tokens processed and tokens generated.",
            {"prompt": total(Signal.PROMPT_TOKENS, MODEL), "generated": total(Signal.OUTPUT_TOKENS, MODEL)},
        ),
    ]


def decisions() -> list[Chart]:
    """Return the charts of decisions and their reasons."""
    scaled = exported("wva_replica_scaling_total")
    # Not increase(): it does not see the step with which a series begins, and most begin with the step to be seen.
    steps = f"clamp_min({scaled} - ({scaled} offset 1h or 0 * {scaled}), 0)"
    wrong = exported("modelyard_condition", f'{HERE}, status!="True", type!~"CapacityLimited|ScaleFromZero"')
    limited = exported("modelyard_condition", f'{HERE}, status="True", type="CapacityLimited"')
    conditions = f"count by (type, status, reason) ({exported('modelyard_condition')})"
    panics = f"max by (namespace, binding_name) ({exported('modelyard_policy_panic')})"
    return [
        Chart(
            "Scaling decisions of the last hour, by reason",
            "Decisions that change a variant's replicas.",
            {"{{direction}}: {{reason}}": f"sum by (direction, reason) ({steps})"},
            stacked=True,
        ),
        Chart(
            "Scaling decisions of the last hour, by variant",
            "Many in both directions: the load is at the edge between two sizes, or delays are too short.",
            {"{{namespace}}/{{variant_name}} {{direction}}": f"sum by ({VARIANT}, direction) ({steps})"},
        ),
        Chart(
            "Conditions that are not as they should be",
            "Reasons and remedies: configuration.md, Conditions.",
            {"": f"{wrong} or {limited}"},
            kind="table",
        ),
        Chart("Objects by condition and reason", "Of all kinds.", {"{{type}} {{status}}: {{reason}}": conditions}),
        Chart(
            "Age of decisions",
            "An unchanged decision is written again every five minutes (status_refresh).",
            {"{{namespace}}/{{variant_name}}": AGE},
            "s",
        ),
        Chart("Bindings in panic", "Nothing is taken away before it ends.", {"{{namespace}}/{{binding_name}}": panics}),
    ]


def costs() -> list[Chart]:
    """Return the charts of the fleet's cost, in the unit of ``variantCost`` and the price list."""
    per_model, legend = "namespace, model_name", "{{namespace}} {{model_name}}"
    everything, by_accelerator = cost(CURRENT, per_model), cost(CURRENT, "accelerator_type")

    def per(count: str, signal: Signal) -> str:
        return f"{count} * {everything} / on ({per_model}) (3600 * ({total(signal, HERE, per_model)}) > 0)"

    return [
        Chart("Cost now", "Of all variants, for the replicas there are.", {"": f"sum({everything})"}, kind="now"),
        Chart("Cost as decided", "For the replicas desired.", {"": f"sum({cost(DESIRED, per_model)})"}, kind="now"),
        Chart("Cost by model", "Stacked.", {legend: everything}, stacked=True),
        Chart("Cost by accelerator", "Stacked.", {"{{accelerator_type}}": by_accelerator}, stacked=True),
        Chart(
            "Cost of 1,000 requests",
            "Where prices are per hour; of the requests that finish.",
            {legend: per("1000", Signal.FINISHED)},
        ),
        Chart(
            "Cost of a million generated tokens",
            "Where prices are per hour.",
            {legend: per("1e6", Signal.OUTPUT_TOKENS)},
        ),
    ]


DASHBOARDS = {
    "fleet": ("Fleet", fleet),
    "model": ("One model", model),
    "decisions": ("Decisions and reasons", decisions),
    "costs": ("Costs", costs),
}


def render(name: str) -> str:
    """A dashboard's JSON."""
    title, charts = DASHBOARDS[name]
    board = (
        grafana.Dashboard(f"Modelyard: {title}")
        .uid(f"modelyard-{name}")
        .tags(["modelyard"])
        .readonly()
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(grafana.DatasourceVariable("datasource").type("prometheus").label("Prometheus"))
        .with_variable(_variable("namespace", exported("wva_desired_replicas", ""), several=True))
    )
    if name == "model":
        board.with_variable(_variable("model", exported("modelyard_variant_cost"), label="model_name"))
    for panel in _placed(charts()):
        board.with_panel(panel)
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def _variable(name: str, series: str, several: bool = False, label: str = "") -> grafana.QueryVariable:
    variable = (
        grafana.QueryVariable(name)
        .datasource(SOURCE)
        .query(f"label_values({series}, {label or name})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(several)
        .include_all(several)
    )
    if several:
        # "All" stands for any namespace, also one that shows up later.
        variable.all_value(".*").current(VariableOption(text="All", value="$__all", selected=True))
    return variable


_Panel = timeseries.Panel | stat.Panel | table.Panel
_PANELS: Mapping[str, type[_Panel]] = {"lines": timeseries.Panel, "now": stat.Panel, "table": table.Panel}


def _placed(charts: Sequence[Chart]) -> Iterable[_Panel]:
    x = y = 0
    numbers = sum(chart.kind == "now" for chart in charts)
    for number, chart in enumerate(charts, 1):
        width = WIDTH // numbers if chart.kind == "now" else WIDTH // 2
        height = HEIGHT // 2 if chart.kind == "now" else HEIGHT
        if x + width > WIDTH:
            x, y = 0, y + HEIGHT
        panel = _PANELS[chart.kind]().id(number).title(chart.title).description(chart.about).unit(chart.unit)
        panel.datasource(SOURCE).grid_pos(GridPos(height, width, x, y))
        if isinstance(panel, timeseries.Panel):
            panel.min(0).fill_opacity(20 if chart.stacked else 0).legend(
                common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).show_legend(True)
            )
            if chart.stacked:
                panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
        for letter, (legend, expression) in zip("ABCDEFGHIJKLMNOP", chart.lines.items(), strict=False):
            query = prometheus.Dataquery().ref_id(letter).datasource(SOURCE).expr(expression).legend_format(legend)
            if chart.kind != "lines":
                query.instant()
            if chart.kind == "table":
                query.format(PromQueryFormat.TABLE)
            panel.with_target(query)
        yield panel
        x += width
        if x >= WIDTH:
            x, y = 0, y + height
