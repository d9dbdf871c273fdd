"""docs/security.md: every claim names tests that exist, and its limits are those of the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from modelyard.cluster.nesting import MAX_DEPTH
from modelyard.metrics.endpoints.bounded_connection import MOST_HEAD, MOST_INTERIM, SLICE as POD_SLICE
from modelyard.metrics.endpoints.scrape import MOST_PAGES
from modelyard.models.delivery.legs import STARTING
from modelyard.models.delivery.lifecycle import MOST_REMOVALS
from modelyard.objects.documents import MAX_TEXT
from modelyard.reconcile.kernel.reconciler import MOST_CARRIED_OUT
from modelyard.reconcile.plans.plan import LARGEST
from modelyard.reconcile.plans.run_limits import PLACES, RunLimits
from modelyard.router.process.processor_shares import PASS_SECONDS
from modelyard.routing import usage
from modelyard.routing.model_names import MOST_NAMES
from tasks.children import MOST_CHILDREN

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
CLAIMS = PAGE[PAGE.index("\n## The border") : PAGE.index("\n## What cannot be secured")]
ITEMS = [item.partition("\n\n")[0] for item in re.split(r"^- ", CLAIMS, flags=re.MULTILINE)[1:]]
TEST = re.compile(r"`([\w/]+\.py)::([\w:]+)`")


@cache
def defined(path: str) -> set[str]:
    """Functions of a test module, those of a class as ``Class::function``."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    file = ROOT / "tests" / path
    body = ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
    methods = {
        f"{group.name}::{item.name}"
        for group in body
        if isinstance(group, ast.ClassDef)
        for item in group.body
        if isinstance(item, functions)
    }
    return methods | {item.name for item in body if isinstance(item, functions)}


def test_there_are_claims() -> None:
    assert len(ITEMS) > 100


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item[:40])
def test_a_claim_names_tests_that_exist(item: str) -> None:
    tests = TEST.findall(item)
    assert tests
    assert [f"{file}::{name}" for file, name in tests if name not in defined(file)] == []


@pytest.mark.parametrize(
    "text",
    [
        f"size ({MAX_TEXT >> 10} KiB)",
        f"more than {LARGEST >> 10} KiB are not parsed",
        f"more than {MAX_DEPTH} levels deep",
        f"a limit of {PLACES}.",
        f"at most {RunLimits(places=PLACES).per_namespace} unfinished runs while there are {PLACES} places",
        f"longer than {'a minute' if STARTING == 60 else STARTING}",
        f"at most {MOST_CHILDREN} child runs for one object",
        f"at most {MOST_CARRIED_OUT} objects of a namespace",
        f"at most {MOST_REMOVALS} removal Jobs",
        f"At most {MOST_PAGES} pages of one pod",
        f"at most {MOST_NAMES:,} names",
        f"After {MOST_INTERIM} interim answers (1xx), or {MOST_HEAD >> 10} KiB",
        f"parsed {POD_SLICE >> 10} KiB at a time",
        f"at most {usage._MOST_LINES} lines and {usage._MOST_COUNTS} token counts",
        f"At most {usage._LONGEST_LINE >> 10} KiB of a line",
        f"({PASS_SECONDS * 1000:g} ms of work)",
        f"up to 10^{len(str(usage._MOST_TOKENS)) - 1} for an answer",
    ],
)
def test_its_limits_are_those_of_the_code(text: str) -> None:
    assert text in " ".join(PAGE.split())
