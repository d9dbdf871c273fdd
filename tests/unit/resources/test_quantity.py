"""Quantities parse, print, compare and add up as Kubernetes' ``resource.Quantity`` does."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from modelyard.resources.quantity import PATTERN, Format, Quantity

# text, value, canonical text: worked by hand from the canonical form's definition
CASES = [
    ("0", "0", "0"),
    ("-0", "0", "0"),
    ("0Ki", "0", "0"),
    ("0.0", "0", "0"),
    ("100m", "0.1", "100m"),
    ("0.1", "0.1", "100m"),
    ("1000m", "1", "1"),
    ("1500m", "1.5", "1500m"),
    ("+5", "5", "5"),
    ("05", "5", "5"),
    ("-5", "-5", "-5"),
    (".5", "0.5", "500m"),
    ("5.", "5", "5"),
    ("1k", "1000", "1k"),
    ("1000", "1000", "1k"),
    ("12300", "12300", "12300"),
    ("123000", "123000", "123k"),
    ("1234567M", "1234567000000", "1234567M"),
    ("0.5E", "500000000000000000", "500P"),
    ("1E", "1000000000000000000", "1E"),
    ("1000E", "1000000000000000000000", "1000E"),
    ("1Ki", "1024", "1Ki"),
    ("1024Ki", "1048576", "1Mi"),
    ("1.5Gi", "1610612736", "1536Mi"),
    ("1025Ki", "1049600", "1025Ki"),
    ("0.5Ki", "512", "512"),
    ("1.1Ki", "1126.4", "1126400m"),
    ("0.0001Ki", "0.1024", "102400u"),
    ("-2Mi", "-2097152", "-2Mi"),
    ("16Ei", "9223372036854775807", "9223372036854775807"),
    ("1e3", "1000", "1e3"),
    ("12E6", "12000000", "12e6"),
    ("1.5e3", "1500", "1500"),
    ("15e-1", "1.5", "1500e-3"),
    ("1e-3", "0.001", "1e-3"),
    ("1n", "0.000000001", "1n"),
    ("0.1n", "0.000000001", "1n"),
    ("-0.1n", "-0.000000001", "-1n"),
    ("1.0000000001", "1.000000001", "1000000001n"),
]


@pytest.mark.parametrize(("text", "value", "canonical"), CASES)
def test_text_value_and_canonical_form(text: str, value: str, canonical: str) -> None:
    quantity = Quantity(text)
    assert quantity == Decimal(value)
    assert str(quantity) == canonical
    assert re.search(PATTERN, text), "the CRD's pattern refuses what the parser takes"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 ",
        "1 Gi",
        "Ki",
        ".",
        "+",
        "1KI",
        "1ki",
        "1mi",
        "1K",
        "--1",
        "1e",
        "1e1.5",
        "0x1",
        "1,5",
        "١",
        "1e99999",
    ],
)
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text)[:20])):
        Quantity(text)


def test_order_and_equality_are_by_value() -> None:
    assert Quantity("1Ki") == Quantity("1024") == 1024
    assert hash(Quantity("1Ki")) == hash(Quantity("1024"))
    assert Quantity("999m") < 1 < Quantity("1001m")
    assert sorted(map(Quantity, ["1Gi", "1G", "500m", "2"])) == [Quantity(t) for t in ("500m", "2", "1G", "1Gi")]
    assert Quantity("1") != "1"


NUMBERS = st.decimals(min_value=-(10**15), max_value=10**15, places=9, allow_nan=False)


@given(NUMBERS, st.sampled_from(Format))
def test_printing_loses_nothing(number: Decimal, format: Format) -> None:
    printed = str(Quantity(number, format))
    again = Quantity(printed)
    assert again == number
    assert str(again) == printed
    assert "." not in printed
    assert re.search(PATTERN, printed)


@given(st.from_regex(PATTERN.replace("{1,3}", "{1,2}"), fullmatch=True).filter(lambda t: len(t) < 60 and t.isascii()))
def test_whatever_the_pattern_takes_the_parser_takes(text: str) -> None:
    canonical = str(Quantity(text))
    assert str(Quantity(canonical)) == canonical


@given(NUMBERS, NUMBERS)
def test_order_agrees_with_numbers(one: Decimal, two: Decimal) -> None:
    assert (Quantity(one) < Quantity(two)) == (one < two)
