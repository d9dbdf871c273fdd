"""A pod of one tenant shows whatever costs most to read, beside its healthy siblings and beside other tenants' pods."""

from __future__ import annotations

import pytest
from metric_endpoints import Handler, dripping, endless, page
from policy_world import PolicyWorld

from modelyard.autoscaling.live.policy_state import PolicyState
from modelyard.metrics.endpoints.scrape import Scraper

pytestmark = pytest.mark.integration

T0 = 1_800_000_000.0
METRIC = "vllm:num_requests_waiting"


def shows(*lines: str) -> Handler:
    return page("\n".join((f"# TYPE {METRIC} gauge", *lines)) + "\n")


def labels(count: int) -> str:
    return ",".join(f'a{n}="b"' for n in range(count))


def hostile() -> dict[str, tuple[Handler, str]]:
    """What a pod may show, and what is said of it."""
    return {
        "a line of 400 kB": (shows(f"{METRIC}{{{labels(45_000)}}} 1"), "has a line of"),
        "a label of 400 kB of escapes": (shows(f'{METRIC}{{a="' + '\\"' * 200_000 + '"} 1'), "has a line of"),
        "a page of 3 MB": (shows("other 1\n" * 400_000), "larger than 2097152 bytes"),
        "a page without end": (endless, "larger than 2097152 bytes"),
        "a byte now and then": (dripping, "no complete answer within"),
        "a million series": (
            page("".join(f'{METRIC}{{s="{n}"}} 1\n' for n in range(1_000_000))),
            "larger than 2097152 bytes",
        ),
        "forty thousand series": (shows(*(f'{METRIC}{{s="{n}"}} 1' for n in range(40_000))), "has too many lines"),
        "empty lines": (page("\n" * 500_000), "more than 100000 lines"),
        "no UTF-8": (shows(f'{METRIC}{{a="\udcff"}} 1', f'{METRIC}{{a="\udcfe"}} 1'), "more than once"),
        "half of a surrogate pair": (
            shows(f'{METRIC}{{a="\udced\udca0\udc80"}} \udced\udca0\udc80'),
            "not in the exposition",
        ),
        "no number": (shows(f"{METRIC} NaN"), "shows nan"),
        "an infinite number": (shows(f"{METRIC} 1e400"), "shows inf"),
        "numbers whose sum is beyond any": (
            shows(f'{METRIC}{{a="1"}} 1.7e308', f'{METRIC}{{a="2"}} 1.7e308'),
            "shows 1.7e+308",
        ),
        "numbers whose sum is none": (
            shows(f'{METRIC}{{a="1"}} 1.7e308', f'{METRIC}{{a="2"}} -1.7e308'),
            "shows 1.7e+308",
        ),
        "a number of 2,000 digits": (shows(f"{METRIC} {'9' * 1_990}"), "not in the exposition format"),
    }


async def test_a_hostile_page_is_the_affair_of_its_own_pod(world: PolicyWorld) -> None:
    await world.deploy("hostile", 3, load=11)
    await world.deploy("good", 1, load=30)
    await world.policy()
    for name in ("hostile", "good"):
        await world.bind(name)
    (first, *_) = [world.addresses[pod["metadata"]["name"]] for pod in await world.pods("hostile")]
    now = T0
    scraper = Scraper(total=60.0)
    async with PolicyState(scraper) as state:
        for what, (handler, why) in hostile().items():
            # However busy the machine is, a page that has an end must arrive.
            scraper.seconds = 4.0 if handler is dripping else 30.0
            world.endpoints[first] = handler
            now += 15
            ticked = await world.tick(state, now)
            (target,) = ticked.view("hostile").targets
            assert sorted(map(len, target.instances)) == [0, 1, 1], what
            (error,) = target.scrape_errors
            assert why in error, what
            assert len(error) < 1000, what
            assert ticked.decision("hostile").records[0].target.replicas == 3, what
            assert ticked.view("good").targets[0].scrape_errors == (), what
            assert ticked.decision("good").records[0].target.replicas == 3, what
    assert await world.replicas("good") == 3
    assert await world.replicas("hostile") == 3
