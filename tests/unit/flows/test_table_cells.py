"""What tenants write stands in the tables of Prefect, which render Markdown: it shows as what it is, and no more."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st
from markdown_it import MarkdownIt

from modelyard.objects.documents import cut, printable
from modelyard.objects.markdown import MOST_SHOWN, cells

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
AUTOLINK = re.compile(r"(?:https?|ftp)://|www\.|[\w.+-]@", re.IGNORECASE)
"""How a link begins that is one without any markup, in the Markdown of GitHub."""
FORGED = [
    "[Re-login](https://evil.example/)![](https://evil.example/p.png)",
    "<img src=https://evil.example/p.png>",
    "<https://evil.example>",
    "https://evil.example",
    "WWW.evil.example",
    "me@evil.example",
    "x | y\n- | -\n1 | 2",
    "[a]: https://evil.example",
    "# all is lost",
    "12. twelfth",
    "- all is lost",
    "    indented",
    "***",
    "---",
    "&lt;b&gt;",
    "`a` **b** ~~c~~ _d_ \\",
    "chat/meta-llama_3.1:8b at 0.5 (12 of 13) + 1",
]


def cell(text: str) -> str:
    found = cells({"model": text})["model"]
    assert isinstance(found, str)
    return found


def shown(text: str) -> str:
    """What a reader sees of a cell; it must be nothing but text."""
    tokens = MARKDOWN.parse(cell(text))
    assert [token.type for token in tokens] in ([], ["paragraph_open", "inline", "paragraph_close"])
    children = [child for token in tokens for child in token.children or ()]
    assert {child.type for child in children} <= {"text"}
    return "".join(child.content for child in children)


@pytest.mark.parametrize("text", FORGED)
def test_what_a_tenant_writes_is_neither_a_link_nor_an_image(text: str) -> None:
    assert shown(text) == printable(text).strip()
    assert not AUTOLINK.search(cell(text))


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("[]()!<>|*_`~#&\\-+=:/.@w \n\t0123456789"), max_size=40))
def test_any_text_is_shown_as_it_is(text: str) -> None:
    assert shown(text) == printable(text).strip()


def test_no_text_makes_a_table_too_large_to_be_written() -> None:
    assert shown("x" * 2**20) == cut("x" * 2**20, MOST_SHOWN)
    assert cells({"replicas": 3, "cost": None}) == {"replicas": 3, "cost": None}
