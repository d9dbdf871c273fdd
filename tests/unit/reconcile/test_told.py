"""What people are told of a plan and its outcome, and how often."""

from __future__ import annotations

from modelyard.objects import Key, Notice, ResourceType, WorkloadId
from modelyard.reconcile.kernel.carry_out import Outcome
from modelyard.reconcile.kernel.tell import MOST_AT_ONCE, MOST_SAID, REPEAT_AFTER, Said, notices, row
from modelyard.reconcile.plans.plan import Plan, Ref, Scale, Subject
from modelyard.reconcile.plans.report import MOST_ROWS, table

KIND = ResourceType("example.com", "v1", "Widget", "widgets", True)
WEB = WorkloadId("n", "apps", "Deployment", "web")
REF = Ref("Widget", Key("n", "w"))
NEWS = Notice("ScaleUpWanted", "2 → 5: 30 waiting each")
STANDING = Notice("MetricsUnavailable", "two pods hang", "Warning")
PLAN = Plan(
    Subject(KIND, REF.key, "u", 1),
    reason="Busy",
    message="30 waiting each",
    scales=(Scale(WEB, 2, 5, "Busy", "30 waiting each"),),
    news=(NEWS,),
    notices=(STANDING, STANDING),
)


def test_a_scale_that_was_written_is_the_news() -> None:
    assert notices(PLAN, Outcome()) == ([NEWS], [STANDING])
    happened, standing = notices(PLAN, Outcome(scaled={(REF, WEB): (2, 5)}))
    assert happened == [Notice("ScaledUp", f"{WEB} 2 → 5: 30 waiting each")]
    assert standing == [STANDING]
    (down,), _ = notices(PLAN, Outcome(scaled={(REF, WEB): (9, 5)}))
    assert down.reason == "ScaledDown"


def test_what_could_not_be_done_is_told_as_well() -> None:
    outcome = Outcome(skipped={REF: "moved"}, errors={REF: "forbidden"})
    assert [(one.reason, one.message) for one in notices(PLAN, outcome)[1]][1:] == [
        ("ActuationDelayed", "moved"),
        ("ActuationDelayed", "forbidden"),
    ]
    told = row(PLAN, outcome)
    assert (told["object"], told["reason"], told["trouble"]) == ("Widget n/w", "Busy", "moved; forbidden")


def test_a_long_table_has_rows_of_every_namespace_and_says_what_it_lacks() -> None:
    things = [*(f"many/{number}" for number in range(3 * MOST_ROWS)), "one/a", "two/b", "two/c"]
    rows = table(things, lambda thing: thing.partition("/")[0], lambda thing: {"object": thing, "why": "so"})
    assert len(rows) == MOST_ROWS + 1
    assert [one["object"] for one in rows[-4:]] == ["one/a", "two/b", "two/c", f"and {2 * MOST_ROWS + 3} more"]
    assert [one["object"] for one in rows[:2]] == things[:2]
    assert table(things[-3:], str, lambda thing: {"object": thing}) == [{"object": thing} for thing in things[-3:]]


def test_a_standing_notice_is_repeated_rarely_and_for_each_object() -> None:
    said = Said()
    assert said.is_new(REF, STANDING, 0)
    assert not said.is_new(REF, STANDING, REPEAT_AFTER - 1)
    assert said.is_new(REF, NEWS, 1)
    assert said.is_new(Ref("Widget", Key("n", "x")), STANDING, 1)
    assert said.is_new(REF, STANDING, REPEAT_AFTER)


def test_one_namespace_tells_its_share_at_a_time_and_takes_nobody_elses_place() -> None:
    said = Said()
    many = [Notice("Odd", f"mistake {number}", "Warning") for number in range(MOST_SAID + MOST_AT_ONCE)]
    hostile = Ref("ConfigMap", Key("hostile", "c"))
    said.begin(0)
    told = [notice for notice in many if said.is_new(hostile, notice, 0)]
    assert told == many[:MOST_AT_ONCE]
    assert said.is_new(REF, STANDING, 0)
    while len(told) < len(many):
        said.begin(1)
        told += [notice for notice in many[len(told) :] if said.is_new(hostile, notice, 1)]
    assert told == many
    said.begin(2)
    assert said.is_new(hostile, many[0], 2), "it remembers no more than its share either"
    assert not said.is_new(hostile, many[-1], 2)
    assert not said.is_new(REF, STANDING, 2)
