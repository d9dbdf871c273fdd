"""PromQL of tenants reads its own namespace only, whatever is tried."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from modelyard.metrics.vocabulary.scope import MAX_TEXT, scoped

OWN = 'namespace="shop"'


@pytest.mark.parametrize(
    ("text", "narrowed"),
    [
        ("queue", f"queue {{{OWN}}}"),
        ("queue{}", f"queue {{ {OWN} }}"),
        ('queue{model="m",}', f'queue {{ {OWN} , model = "m" }}'),
        (f"queue{{{OWN}}}", f'queue {{ {OWN} , namespace = "shop" }}'),
        ("{__name__=~'q.*', a!=``}", f"{{ {OWN} , __name__ =~ 'q.*' , a != `` }}"),
        ('{"a metric", "a label"="b"}', f'{{ {OWN} , "a metric" , "a label" = "b" }}'),
        ("sum by (model) (x)", f"sum by ( model ) ( x {{{OWN}}} )"),
        ("sum(x) without (a, b)", f"sum ( x {{{OWN}}} ) without ( a , b )"),
        ("rate(x[5m] offset -1h)", f"rate ( x {{{OWN}}} [5m] offset - 1h )"),
        ("max_over_time((x > 1)[10m:1m] @ end())", f"max_over_time ( ( x {{{OWN}}} > 1 ) [10m:1m] @ end ( ) )"),
        ("x @ -1.5e3 ^ 2", f"x {{{OWN}}} @ - 1.5e3 ^ 2"),
        (
            "a/on(pod)group_left(node)b and ignoring(x) c",
            f"a {{{OWN}}} / on ( pod ) group_left ( node ) b {{{OWN}}} and ignoring ( x ) c {{{OWN}}}",
        ),
        ("a == bool on () group_right b", f"a {{{OWN}}} == bool on ( ) group_right b {{{OWN}}}"),
        ("a AND b Or c", f"a {{{OWN}}} AND b {{{OWN}}} Or c {{{OWN}}}"),
        (
            'label_replace(x, "namespace", "$1", "pod", "(.*)")',
            f'label_replace ( x {{{OWN}}} , "namespace" , "$1" , "pod" , "(.*)" )',
        ),
        ("-x # {not: this}\n+ +y", f"- x {{{OWN}}} + + y {{{OWN}}}"),
        # Words that mean something elsewhere name a metric where a value stands.
        ("sum + by * offset", f"sum {{{OWN}}} + by {{{OWN}}} * offset {{{OWN}}}"),
        ("and and or or unless", f"and {{{OWN}}} and or {{{OWN}}} or unless {{{OWN}}}"),
        ("(start)", f"( start {{{OWN}}} )"),
        ("job:rate:5m", f"job:rate:5m {{{OWN}}}"),
        ("0xe+foo", f"0xe + foo {{{OWN}}}"),
        ("2 ^ -Inf + NaN", "2 ^ - Inf + NaN"),
        ("vector(time()) > 1h30m", "vector ( time ( ) ) > 1h30m"),
    ],
)
def test_every_selector_is_narrowed(text: str, narrowed: str) -> None:
    assert scoped(text, "shop") == narrowed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('queue{namespace="victim"}', "reads beyond its namespace"),
        ('queue{namespace=~"shop|victim"}', "reads beyond its namespace"),
        ('queue{namespace=~"shop"}', "reads beyond its namespace"),
        ('queue{namespace!=""}', "reads beyond its namespace"),
        ('queue{"namespace"="victim"}', "reads beyond its namespace"),
        (f'queue{{{OWN}, namespace!="x"}}', "reads beyond its namespace"),
        ('queue{a="b" or namespace="victim"}', "has 'or' where it cannot be understood"),
        ('sum(a) + sum(b{namespace="victim"})', "reads beyond its namespace"),
        ("info(queue)", "reads more"),
        ("WITH (x = a) x", "has '=' where"),
        ("a b", "has 'b' where"),
        ("a # here\r b", "has 'b' where"),
        ("a{b", "ends where"),
        ("a{b=}", "has '}' where"),
        ("sum by (a", "ends where"),
        ("a[5m", r"cannot be read from '\[5m'"),
        ("a[step()]", "cannot be read"),
        ("5foo", "cannot be read"),
        ("a.b", "cannot be read"),
        ('a{b="c}', "cannot be read"),
        ("a{b='c\nd'}", "cannot be read"),
        ("größe", "cannot be read"),
        ("", "is empty"),
        ("# nothing", "is empty"),
        ("queue" + " " * MAX_TEXT, "longer than"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        scoped(text, "shop")


@given(st.text(alphabet="ab{}()[]=~!\"'`, \\\n\r#+-*/015mex.@:_<>", max_size=60) | st.text(max_size=60))
def test_whatever_is_written_is_narrowed_once_and_for_all_or_refused(text: str) -> None:
    try:
        narrowed = scoped(text, "shop")
    except ValueError:
        return
    assert scoped(narrowed, "shop").count(OWN) == narrowed.count(OWN)


@pytest.mark.parametrize("sign", ["-", "1^", "1 + ", "(", "sum(", "x or ", "x[5m]-", "x{a='b'}*"])
def test_a_chain_of_any_length_is_read_in_one_pass(sign: str) -> None:
    count = (MAX_TEXT - 1) // len(sign)
    assert scoped(sign * count + "x", "shop").count(OWN) == count * ("x" in sign) + 1
