"""What README.md and docs/*.md state is what the code has: tables, links, keys, reasons, files, examples."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from flows.parameters import AutoscaleParameters
from modelyard.autoscaling.configuration.settings import FleetSettings
from modelyard.autoscaling.fleet.fleet import SLOSpec
from modelyard.autoscaling.variants import saturation_config, zero_config
from modelyard.autoscaling.variants.classes import ServiceClasses
from modelyard.autoscaling.variants.costs import UnitCosts
from modelyard.autoscaling.variants.saturation_config import SaturationConfigs
from modelyard.autoscaling.variants.zero_config import ZeroConfigs
from modelyard.objects import Key
from modelyard.objects.durations import parse_go_duration
from modelyard.routing.model_names import BINDINGS, read_bindings

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
CODE = ("modelyard", "flows", "tasks", "deployments")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CAMEL = re.compile(r"[A-Z][a-z]+(?:[A-Z]+[a-z]*)+|[A-Z]{2,}[A-Z][a-z]\w+")

OWN_DOMAINS = ("modelyard.dev", "wva.llmd.ai", "llm-d.ai", "inference.optimization", "leaderworkerset.sigs.k8s.io")
KEY = re.compile(rf"(?<![\w./-])((?:{'|'.join(map(re.escape, OWN_DOMAINS))})/[A-Za-z][\w.-]*\w)")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def prose(path: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for path in PAGES:
        for found in FENCE.finditer(path.read_text(encoding="utf-8")):
            if found[1] == language:
                yield path.name, found[2]


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders or CODE:
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def texts_in(path: Path) -> frozenset[str]:
    """The string literals of a module, docstrings aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(value=None)
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return frozenset(value for value in constants if isinstance(value, str))


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_tables", DOCS / "generate_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_checked_in_tables_are_current(generator: ModuleType) -> None:
    assert generator.stale() == [], "run: python docs/generate_tables.py"


def test_every_table_is_used_and_a_changed_one_is_noticed(generator: ModuleType) -> None:
    used = {found["name"] for path in DOCS.glob("*.md") for found in generator.BLOCK.finditer(path.read_text())}
    assert used == set(generator.TABLES)
    text = page("configuration.md")
    broken = text.replace("| `interval_seconds` |", "| `interval` |")
    assert broken != text
    assert generator.rendered(broken) == text


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_relative_links_resolve(path: Path) -> None:
    broken = []
    for target in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_annotations_and_labels_exist_in_the_code(path: Path) -> None:
    # The apiVersion of other people's kinds in examples is no key.
    mentioned = {key for key in KEY.findall(path.read_text(encoding="utf-8")) if not re.search(r"/v\d", key)}
    texts = {text for source in sources("modelyard", "deployments") for text in texts_in(source)}
    assert mentioned <= texts | {text.partition(":")[0] for text in texts}, "names, and images without their tags"


def test_every_annotation_and_label_of_the_decision_is_documented() -> None:
    used = {
        text
        for source in sources("modelyard/autoscaling")
        for text in texts_in(source)
        if KEY.fullmatch(text) and not re.search(r"/v\d", text)
    }
    assert used
    assert used <= set(KEY.findall(page("configuration.md")))


KINDS = {
    *("ConfigMap", "StatefulSet", "ReplicaSet", "LeaderWorkerSet", "HorizontalPodAutoscaler", "ScaledObject"),
    *("VariantAutoscaling", "VariantAutoscalings", "PodScheduled", "InferencePool", "ModelInfer", "ModelServing"),
    *("AutoscalingPolicy", "AutoscalingPolicyBinding"),
}
INTERNAL = {
    "ScaleUp",
    "ScaleDown",
    "SGLang",
    "TTFTTPOTWeightFactor",
    *("PriorityExhaustive", "PriorityRoundRobin", "RoundRobin"),
    *("HTTPRoute", "InferencePool", "InferenceModelRewrite", "FailClose", "PathPrefix", "RegularExpression"),
    "EdDSA",
}
"""Names of engines, arguments, an algorithm; kinds and values of the Gateway API; reasons that are translated before
anybody sees them, or that only tests ask for."""
ONE_WORD = {"Accepted", "Deleting", "Optimized", "Panicking", "Reconciled", "Serving", "Shared", "Stabilizing"}
"""Reasons of one word, which look like any other text of the code."""


def reasons_in_code() -> set[str]:
    found: set[str] = set()
    for source in sources("modelyard/autoscaling", "modelyard/reconcile", "modelyard/routing"):
        tree = ast.parse(source.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            exported = isinstance(node, ast.Assign) and any(
                getattr(name, "id", "") == "__all__" for name in node.targets
            )
            if exported or isinstance(node, ast.JoinedStr):
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant):
                        part.value = None
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {text for text in (node.value,) if CAMEL.fullmatch(text) or text in ONE_WORD}
    return found - KINDS - INTERNAL


def reasons_in_tables() -> set[str]:
    """The code words in the first four columns of the tables of conditions, decisions and Events."""
    text = page("configuration.md")
    section = text[text.index("## Conditions") : text.index("## Gauges")]
    cells = [cell for line in section.splitlines() if line.startswith("|") for cell in line.split("|")[1:4]]
    words = {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}
    return {word for word in words if CAMEL.fullmatch(word) or word in ONE_WORD}


def test_every_reason_is_documented_and_every_documented_reason_exists() -> None:
    found = reasons_in_code()
    assert {"SaturationOnlyMode", "LoadAboveCapacity", "MetricsAboveTarget", "Stabilizing"} <= found
    assert reasons_in_tables() == found


def threshold_rows(title: str) -> dict[str, list[str]]:
    text = page("configuration.md")
    start = text.index(f"### {title}")
    lines = text[start : text.index("\n#", start + 4)].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {name.strip("` "): row for row in rows for name in row[0].split(",")}


def test_the_threshold_table_has_the_fields_and_defaults_of_the_code() -> None:
    rows = threshold_rows("Thresholds")
    assert set(rows) == {*saturation_config.BUILT_IN, *saturation_config._SUBJECT}
    for name, value in saturation_config.BUILT_IN.items():
        written = rows[name][2]
        assert written == "empty" if value == "" else yaml.safe_load(written.strip("`")) == value, name


def test_the_scale_to_zero_table_has_the_fields_of_the_code() -> None:
    rows = threshold_rows("Scale to zero")
    assert set(rows) == {*zero_config._FIELDS, *zero_config._ALIASES}
    assert parse_go_duration(rows["retention_period"][2].strip("`")) == zero_config.DEFAULT_RETENTION


def config_maps() -> list[dict[str, Any]]:
    return [
        document
        for _, text in blocks("yaml")
        for document in yaml.safe_load_all(text)
        if document and document.get("kind") == "ConfigMap"
    ]


def test_the_example_config_maps_are_read_as_they_say() -> None:
    examples = {Key(m["metadata"]["namespace"], m["metadata"]["name"]): m["data"] for m in config_maps()}
    bindings = examples.pop(Key(FleetSettings().controller_namespace, BINDINGS))
    read = read_bindings({"metadata": {"name": BINDINGS}, "data": bindings})
    assert not read.problems
    assert [read.namespaces(name) for name in ("acme/sql", "chat", "chats", "x-base")] == [
        {"acme"}, {"acme"}, None, {"infra"}
    ]  # fmt: skip
    assert len(examples) == 4
    settings = FleetSettings()
    saturation, zero = SaturationConfigs(examples, settings), ZeroConfigs(examples, settings)
    assert saturation.limiter
    assert saturation.resolve("chat", "meta/llama-3.1-8b").thresholds == (0.7, 5, 0.1, 3)
    assert saturation.resolve("other", "meta/llama-3.1-8b").thresholds == (0.8, 5, 0.1, 3)
    assert zero.resolve("chat", "meta/llama-3.1-8b") == (True, 1800)
    assert not zero.resolve("other", "meta/llama-3.1-8b").enabled
    costs, classes = UnitCosts(examples, settings), ServiceClasses(examples, settings)
    assert (costs.price("chat", "NVIDIA-H100-80GB-HBM3"), costs.price("chat", "L40S")) == (100, 32)
    assert costs.price("chat", "A100") is None
    found = {}
    for name, key, model in (
        ("service-classes-config", "premium.yaml", "meta/llama-3.1-8b"),
        ("service-classes-config", "Freemium", "meta/llama-3.1-8b"),
        ("elsewhere", "premium.yaml", "meta/llama-3.1-8b"),
        ("elsewhere", "premium.yaml", "some/other"),
    ):
        service, note = classes.resolve("chat", SLOSpec("x-H100-1", "H100", 1, name, key, {}, {}, 96), model)
        found[name, key, model] = service and (service.name, service.priority, service.ttft, service.itl, bool(note))
    assert list(found.values()) == [
        ("Premium", 1, 500, 30, False),
        ("Freemium", 10, 2000, 60, False),
        ("Premium", 1, 500, 30, True),
        ("Freemium", 10, 2000, 60, True),
    ]
    assert all(not source.notices for source in (saturation, zero, costs, classes))


@pytest.mark.parametrize(("name", "text"), list(blocks("json")))
def test_the_example_parameters_are_valid(name: str, text: str) -> None:
    AutoscaleParameters.model_validate(json.loads(text))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_and_folders_named_exist(path: Path) -> None:
    everything = [
        file.relative_to(ROOT).as_posix()
        for top in (*CODE, "config", "tests", "docs", "benchmarks")
        for file in (ROOT / top).rglob("*")
    ] + [file.name for file in ROOT.iterdir()]
    named = re.findall(r"`([\w./-]+\.(?:py|yaml|toml|txt|env|md)|[\w-]+(?:/[\w-]+)*/)`", prose(path))
    named = [name for name in named if not name.startswith(("spec.", "status."))]  # fields, such as spec.env
    missing = [name for name in named if not any(f"/{file}".endswith(f"/{name.rstrip('/')}") for file in everything)]
    assert missing == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_modules_run_by_name_exist(path: Path) -> None:
    for module in re.findall(r"python3?(?:\.\d+)? -m ((?:modelyard|flows|deployments)[\w.]*)", path.read_text()):
        assert importlib.util.find_spec(module) is not None, module


def test_the_version_caps_are_those_of_the_project() -> None:
    caps = re.findall(r"^\| `(\w+)(<[\d.]+)` \|", page("architecture.md"), re.MULTILINE)
    assert {name for name, _ in caps} == {"fastapi", "sqlalchemy", "pulp"}
    dependencies = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, cap in caps:
        assert re.search(rf'"{name}[^"]*{re.escape(cap)}"', dependencies), (name, cap)
    assert "kubernetes==37.0.1" in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
