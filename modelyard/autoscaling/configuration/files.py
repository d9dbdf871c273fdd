"""Reading the files ``modelyard plan`` is given: YAML and JSON as Kubernetes reads it, errors that name the place."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeVar

import orjson
import yaml
from pydantic import BaseModel, ValidationError

from modelyard.objects import PlainLoader, check_aliases, printable
from modelyard.resources import explain

_M = TypeVar("_M", bound=BaseModel)
MAX_DEPTH = 100
"""Levels of a file: a pod template has a dozen."""
MAX_VALUES = 1_000_000
"""Values of one object; a large one has some thousands."""


class PlanInputError(ValueError):
    """A file that cannot be used. The message names the file, the place in it and the remedy."""


def documents(path: Path, remedy: str) -> list[Any]:
    """Every document of a YAML or JSON file; ``-`` is standard input. Raises ``PlanInputError``."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlanInputError(f"{path}: {error.strerror or error}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise PlanInputError(f"{path}: not a text file in UTF-8; {remedy}") from error
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [orjson.loads(text)]
        except orjson.JSONDecodeError:
            pass  # several documents, or YAML that merely looks like JSON
    try:
        check_aliases(text, MAX_DEPTH, MAX_VALUES)
        return list(yaml.load_all(text, PlainLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        what = getattr(error, "problem", None) or " ".join(str(error).split())
        raise PlanInputError(f"{path}{line}: not YAML: {printable(what)}; correct it, or {remedy}") from error
    except ValueError as error:  # too deep or too large, or what looks like a number and is none
        raise PlanInputError(f"{path}: not YAML: {printable(str(error))}; correct it, or {remedy}") from error


def one_document(path: Path, model: type[_M], remedy: str) -> _M:
    """A file of one document, as ``model``; an empty file is an empty object. Raises ``PlanInputError``."""
    found = [document for document in documents(path, remedy) if document is not None]
    if len(found) > 1:
        raise PlanInputError(f"{path}: holds {len(found)} documents, one is expected; {remedy}")
    try:
        return model.model_validate(found[0] if found else {})
    except ValidationError as error:
        faults = "; ".join(f"{place}: {text}" for place, text in explain(model, error))
        raise PlanInputError(f"{path}: {faults}") from error
