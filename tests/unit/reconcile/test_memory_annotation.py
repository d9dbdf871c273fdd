"""The memory in an annotation: small, canonical, and never a reason to fail."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field

from modelyard.reconcile.plans.memory import LIMIT, parse_memory, render_memory


class Past(BaseModel):
    since: float = 0.0
    counts: dict[str, int] = Field(default_factory=dict)


def test_only_what_is_not_empty_is_kept_and_read_back() -> None:
    assert render_memory(Past()) is None
    text = render_memory(Past(since=1.5, counts={"a": 2}))
    assert text == '{"since":1.5,"counts":{"a":2}}'
    assert parse_memory(Past, "x/past", text) == (Past(since=1.5, counts={"a": 2}), None)
    assert parse_memory(Past, "x/past", None) == (Past(), None)


@pytest.mark.parametrize(
    ("text", "where"), [("{", "document"), ("[]", "document"), ('{"since":"x"}', "since"), ('{"counts":{"a":[]}}', "a")]
)
def test_a_damaged_one_starts_afresh_and_says_where(text: str, where: str) -> None:
    memory, damage = parse_memory(Past, "x/past", text)
    assert memory == Past()
    assert damage is not None
    assert "annotation x/past unreadable at" in damage
    assert where in damage


def test_neither_reads_nor_keeps_more_than_an_annotation_of_ours_holds(caplog: pytest.LogCaptureFixture) -> None:
    big = Past(counts={f"pod-{number:06}": number for number in range(10_000)})
    assert render_memory(big) is None
    assert "not kept" in caplog.text
    memory, damage = parse_memory(Past, "x/past", big.model_dump_json())
    assert memory == Past()
    assert f"longer than {LIMIT}" in str(damage)
