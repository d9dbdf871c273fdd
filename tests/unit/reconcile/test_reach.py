"""Who may refer to what is in another namespace: nobody, unless that namespace names them."""

from __future__ import annotations

import pytest

from modelyard.objects import Namespace
from modelyard.reconcile.plans.reach import ALLOW_FROM, refusal


@pytest.mark.parametrize(
    ("home", "allowed", "may"),
    [
        ("shop", None, False),
        ("shop", "", False),
        ("shop", "shop", True),
        ("shop", "chat,shop", True),
        ("shop", " chat ,\n shop ", True),
        ("shop", "chat", False),
        ("shop", "shopping", False),
        ("shop", "my-shop,shop-b", False),
        ("shop", "*", False),
        ("shop", "chat shop", False),
        ("", "", False),
        ("", "chat,,shop", False),
    ],
)
def test_a_namespace_lets_in_whom_it_names(home: str, allowed: str | None, may: bool) -> None:
    annotations = {} if allowed is None else {ALLOW_FROM: allowed}
    known = {"victim": Namespace("victim", annotations=annotations), "chat": Namespace("chat")}
    assert (refusal(home, "victim", known) is None) is may
    assert refusal("victim", "victim", known) is None, "one's own is always within reach"


def test_the_word_of_the_one_that_refers_does_not_count() -> None:
    known = {"shop": Namespace("shop", annotations={ALLOW_FROM: "victim,shop"}), "victim": Namespace("victim")}
    assert refusal("shop", "victim", known) is not None


def test_a_label_is_no_consent() -> None:
    assert refusal("shop", "victim", {"victim": Namespace("victim", {ALLOW_FROM: "shop"})}) is not None


def test_namespaces_that_are_not_known_let_nobody_in() -> None:
    text = refusal("shop", "victim", {})
    assert text is not None
    assert "may not be listed" in text
    assert refusal("shop", "shop", {}) is None


def test_a_refusal_names_the_remedy() -> None:
    text = refusal("shop", "victim", {"victim": Namespace("victim")})
    assert text is not None
    assert "modelyard.dev/allow-from: shop on Namespace victim" in text
    assert "may not be listed" not in text
