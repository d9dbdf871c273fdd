"""What a server drops of our definitions: a warning, except of rules that Modelyard evaluates itself."""

from __future__ import annotations

from typing import Any

import pytest

from modelyard.objects.old_servers import warn_of_dropped_schemas
from modelyard.resources import KINDS
from modelyard.resources.crd import crd

RULES = "x-kubernetes-validations"


def without(value: Any, *names: str, below: str = "") -> Any:
    """The same without these keys, at any depth or ``below`` a key: what a server stores that does not know them."""
    if isinstance(value, dict):
        return {
            key: without(inner, *names, below="" if key == below else below)
            for key, inner in value.items()
            if below or key not in names
        }
    return [without(inner, *names, below=below) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("dropped", [(RULES,), ("fieldPath",), ("fieldPath", "message"), ()])
def test_rules_that_an_older_server_drops_are_no_warning(
    dropped: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """1.20 drops all rules, 1.25 what it does not know of a rule, a current server nothing."""
    ours = [crd(kind) for kind in KINDS.values()]
    theirs = without(ours, *dropped, below="" if dropped == (RULES,) else RULES)
    assert (theirs == ours) == (not dropped)
    warn_of_dropped_schemas(ours, theirs)
    assert not caplog.records


@pytest.mark.parametrize("dropped", ["maximum", "pattern", "additionalPrinterColumns"])
def test_anything_else_that_is_dropped_is_a_warning(dropped: str, caplog: pytest.LogCaptureFixture) -> None:
    ours = [crd(kind) for kind in KINDS.values()]
    assert f"'{dropped}'" in str(ours)
    warn_of_dropped_schemas(ours, without(ours, dropped, RULES))
    (record,) = caplog.records
    assert f"the server dropped fields that it does not know: {dropped} (" in record.getMessage()
    assert RULES not in record.getMessage()
