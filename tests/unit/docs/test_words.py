"""The words of the code: one name means one thing, and a docstring says what something is, not who calls it."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("modelyard", "flows", "tasks")
PUBLISHED = "modelyard/resources/"
"""Named by the references that they implement; two API groups may well have a ModelSpec each."""
TWICE: Mapping[str, str] = {
    "Store": "what a plan may ask of a store, and the mirror's stores, which can be asked that",
    "Output": "the forms in which a command prints, not every command has all of them; where a benchmark's results go",
}
CALLERS = re.compile(r"\b(?:called|used|needed|imported)\s+(?:only\s+|also\s+)?by\b", re.IGNORECASE)


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the product, by its path."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text("utf-8"))


TREES = dict(trees())


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Strings that stand for themselves: of modules, classes, functions, fields and constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


@pytest.mark.parametrize("package", PACKAGES)
def test_no_docstring_says_who_calls(package: str) -> None:
    """Such a sentence is true on the day it is written; ``git grep`` is true every day."""
    said = [
        (path, found[0])
        for path, tree in TREES.items()
        if path.startswith(f"{package}/")
        for text in docstrings(tree)
        if (found := CALLERS.search(text))
    ]
    assert said == []


def test_a_class_name_stands_for_one_thing() -> None:
    """Over all rooms; those of the references and private ones apart."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not path.startswith(PUBLISHED):
                places[node.name].append(path)
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in TWICE} == {}
    assert twice.keys() == TWICE.keys(), "the list of exceptions names what is defined once"


def only_for_types(tree: ast.Module) -> Iterator[str]:
    """Modules that are imported for the type checker alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for inner in ast.walk(node):
                if isinstance(inner, ast.ImportFrom) and inner.module:
                    yield inner.module
                elif isinstance(inner, ast.Import):
                    yield from (name.name for name in inner.names)


def test_no_import_for_types_hides_a_circle() -> None:
    """One may only save the time that loading takes: what it names must not lead back, by whatever imports."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    hidden = []
    for path, tree in TREES.items():
        importer = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for imported in only_for_types(tree):
            if imported.split(".")[0] in PACKAGES and graph.chain_exists(importer=imported, imported=importer):
                hidden.append((importer, imported))
    assert hidden == []


def test_no_two_test_modules_have_one_name() -> None:
    """The tests are no packages: pytest cannot collect the second of two modules of one name."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
