"""The demonstration tells the truth: void runs are red, gaps are gaps, several runs have a spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.demo import picture, publish, run, story
from deployments.demo.scenario import COPIES, SHOWN, SLO_TTFT, Scenario
from deployments.demo.story import Played
from deployments.demo.truth import FAR_TOO_LATE, LATE, Truth, spans
from deployments.demo.watch import Gap, Moment, Sample
from modelyard.traffic.latency import Ending
from modelyard.traffic.replay import RequestResult
from modelyard.traffic.trace import from_rates

SCENARIO = Scenario()
LOOK = 0.2
"""Minutes of the trace from one look to the next."""


def look(number: int, l40s: int = 1, h100: int = 1, why: str = "") -> Sample:
    counts = {"llama-l40s": l40s, "llama-h100": h100}
    return Sample(number * LOOK, 5.0, counts, counts, counts, 0.5, 0.0, {"llama-l40s": why})


LOOKS: list[Moment] = [look(number, 1 + (20 <= number < 60)) for number in range(100)]
"""One replica more for a while: up, and down again."""


def answered(count: int = 2000, late: float = 0.01, **more: Any) -> list[RequestResult]:
    fields: dict[str, Any] = {"variant": "llama-l40s", "attempts": 1, "ttft": 0.3, "itl": 0.05, "e2e": 5.0, **more}
    return [
        RequestResult(number, number / 2, Ending.OK, "pod", late=late, output_tokens=100, **fields)
        for number in range(count)
    ]


def failed(count: int, ending: Ending = Ending.TIMEOUT) -> list[RequestResult]:
    return [RequestResult(number, number / 2, ending) for number in range(count)]


def truth(results: Sequence[RequestResult], moments: Sequence[Moment] = LOOKS, due: int | None = None) -> Truth:
    return Truth.of(len(results) if due is None else due, results, moments, SCENARIO.longest_look)


def played(results: list[RequestResult], moments: list[Moment] | None = None, copy: int = 0) -> Played:
    seen = LOOKS if moments is None else moments
    return Played(COPIES[copy], seen, results, truth(results, seen))


def gaps(start: int, end: int) -> list[Moment]:
    return [Gap(one.minute, one.load) if start <= number < end else one for number, one in enumerate(LOOKS)]


@pytest.mark.parametrize(
    ("found", "void", "said"),
    [
        (truth(answered()), False, []),
        (truth([*answered(800), *failed(1200)]), True, ["1200 of 2000 requests failed (1200 timeout)"]),
        (truth([*answered(1999), *failed(1, Ending.BROKEN)]), False, ["1 of 2000 requests failed (1 broken)"]),
        (truth(answered(2000, late=LATE * 1.1)), False, ["too busy for honest latencies"]),
        (truth(answered(2000, late=FAR_TOO_LATE * 1.1)), True, ["did not keep to the trace"]),
        (truth([*answered(1900), *answered(100, late=30.0)]), True, ["did not keep to the trace: sent 0.01, "]),
        (truth(answered(1500), due=2000), True, ["500 of the 2000 requests of the trace were not sent"]),
        (truth([], due=2000), True, ["2000 of the 2000 requests of the trace were not sent", "failed"]),
        (truth(answered(), gaps(10, 12)), False, []),
        (truth(answered(), gaps(10, 40)), True, ["the cluster was not seen during 6.2 of 19.8 minutes"]),
        (truth(answered(), [look(0), look(99)]), True, ["not seen during 19.8 of 19.8 minutes"]),
        (truth(answered(), []), True, ["not seen"]),
    ],
)
def test_a_starved_machine_makes_the_run_void(found: Truth, void: bool, said: list[str]) -> None:
    assert found.void is void
    assert len(found.findings) == len(said)
    for finding, text in zip(found.findings, said, strict=True):
        assert text in finding.text


def test_a_void_run_is_not_good_although_it_scaled_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    void = played([*answered(800), *failed(1200)])
    assert story.verdict(void.samples).good
    assert not void.good
    run.conclude(SCENARIO, void)
    told = capsys.readouterr().out
    assert "Void:" in told
    assert "This run shows nothing" in told
    assert "Scaled both ways" not in told
    good = played(answered())
    assert good.good
    run.conclude(SCENARIO, good)
    assert "Scaled both ways" in capsys.readouterr().out


def test_a_service_begins_with_enough_and_a_pair_must_be_scaled_up() -> None:
    down: list[Moment] = [look(number, 7 if number < 60 else 3) for number in range(100)]
    results = answered()
    service, pair = (Played(one, down, results, truth(results, down)) for one in (SHOWN[0], SHOWN[1]))
    assert (service.good, service.verdict.words) == (True, "Began with what its load needs, and was scaled down")
    assert (pair.good, pair.verdict.words) == (False, "Did not scale both ways")
    still: list[Moment] = [look(number, 7) for number in range(100)]
    assert not Played(SHOWN[0], still, results, truth(results, still)).good
    least: list[Moment] = [look(number, 3, 0) for number in range(100)]
    floor = Played(SHOWN[0], least, results, truth(results, least))
    assert floor.good, "nothing can be made smaller"
    assert "as few as it always keeps" in floor.verdict.words
    assert not Played(SHOWN[1], least, results, truth(results, least)).good
    assert Played(SHOWN[0], LOOKS, results, truth(results)).verdict.words == "Scaled both ways"


def test_a_gap_is_not_the_previous_value() -> None:
    """What was not seen costs nothing, is no change, and breaks the line of the picture."""
    moments = gaps(30, 32)
    counted = story.replica_minutes(moments, SCENARIO)
    # From look 29 to look 32 nobody looked: three steps during which there were two replicas.
    assert counted["llama-l40s"] == pytest.approx(story.replica_minutes(LOOKS, SCENARIO)["llama-l40s"] - 3 * 2 * LOOK)
    assert [one.minute for one, _ in spans(moments, SCENARIO.longest_look)][28:31] == pytest.approx(
        [28 * LOOK, 32 * LOOK, 33 * LOOK]
    )
    assert story.verdict(played(answered(), moments).samples) == story.verdict(played(answered()).samples)
    one = run.Playing(SCENARIO, COPIES[0], from_rates([0.0, 60.0], [1.0], 10.0, 10.0), 0.0)
    one.moments += [look(0), Gap(1.0, 5.0)]
    assert run._state(one, SCENARIO) == "saturation 5.0/s not seen"


def test_several_runs_have_a_median_and_a_spread() -> None:
    runs = [[played(answered(ttft=ttft)), played(answered(ttft=ttft), copy=1)] for ttft in (0.3, 0.5, 0.2)]
    heading, saturation, slo = story.comparison(runs, SCENARIO)
    assert (saturation[0], slo[0]) == ("saturation", "slo")
    by_title = dict(zip(heading, saturation, strict=True))
    assert by_title["TTFT p50, s"] == "0.300 (0.200 to 0.500)"
    assert by_title["requests"] == "2,000"
    text = story.markdown([heading, saturation, slo])
    assert [line.count("|") for line in text.splitlines()] == [len(heading) + 1] * 4


def test_latencies_of_each_minute_are_those_of_what_was_due_in_it() -> None:
    results = [*answered(240, ttft=0.2, late=0.0), *failed(10)]
    results[200:] = [RequestResult(one.index, one.at, Ending.TIMEOUT) for one in results[200:]]
    minutes, ttft, itl = picture.by_minute(played(results))
    assert list(minutes) == [0, 1]
    assert ttft == pytest.approx([0.2, 0.2])
    assert itl == pytest.approx([4.8 / 99, 4.8 / 99])
    _, none, _ = picture.by_minute(played(failed(10)))
    assert math.isnan(none[0]), "nobody was answered: no latency"
    assert np.array_equal(picture.by_minute(played([]))[0], [])


def test_one_figure_per_act_with_its_legend_outside_the_data(tmp_path: Path) -> None:
    from matplotlib import pyplot

    act = [played(answered(), gaps(30, 32), copy=1), played(answered(), copy=2)]
    picture.draw(act, SCENARIO, tmp_path / "act-2.png")
    assert (tmp_path / "act-2.png").read_bytes().startswith(b"\x89PNG")
    figure, axes = pyplot.subplots(len(picture.PANELS), 1)
    picture._column(act[0], SCENARIO, axes)
    drawn = axes[1].lines[0].get_ydata()
    assert np.isnan(drawn[30:32]).all()
    assert not np.isnan(drawn[29])
    targets = [
        line.get_ydata()[0] for axis in axes[2:4] for line in axis.lines if line.get_label().startswith("target")
    ]
    assert targets == [SLO_TTFT / 1000, 75]
    pyplot.close(figure)


def test_figures_and_pictures_of_good_runs_are_written_into_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = publish.PAGE.read_text(encoding="utf-8")
    (tmp_path / "docs/images").mkdir(parents=True)
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    monkeypatch.setattr(publish, "PAGE", tmp_path / "README.md")
    publish.PAGE.write_text(page, encoding="utf-8")
    (tmp_path / "act-1.png").write_bytes(b"picture")
    publish.publish([[played(answered())], [played(answered(ttft=0.5))]], SCENARIO, tmp_path)
    text = publish.PAGE.read_text(encoding="utf-8")
    assert (tmp_path / "docs/images/demo-act-1.png").read_bytes() == b"picture"
    assert "Median of 2 runs" in text
    assert "| 0.400 (0.300 to 0.500) |" in text
    assert "(docs/images/demo-act-1.png)\n<!-- end of demo -->" in text
    assert text.split(publish.END)[1] == page.split(publish.END)[1]
