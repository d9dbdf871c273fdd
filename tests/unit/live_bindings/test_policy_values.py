"""From pages to values per instance and to the demand: what is missing is never zero."""

from __future__ import annotations

from modelyard.autoscaling.fleet.binding_view import BindingView
from modelyard.autoscaling.reading.bindings.objects import BindingSpec, TargetSpec
from modelyard.autoscaling.reading.bindings.pods import Instance, TargetPods
from modelyard.autoscaling.reading.bindings.values import Histories, Measured, Reading, demand_metrics
from modelyard.autoscaling.reading.bindings.views import TargetPlan, give_way, scrapes
from modelyard.metrics.vocabulary.pages import MetricsEndpoint, Page, Scrape, parse
from modelyard.objects import Key, Workload, WorkloadId

WANTED = ("queue", "served_total", *demand_metrics())


def endpoint(name: str, start: str = "s") -> MetricsEndpoint:
    return MetricsEndpoint(f"uid-{name}", start, name, "10.0.0.1")


def scrape(pod: MetricsEndpoint) -> Scrape:
    return Scrape(pod, 8100, "/metrics")


def shown(text: str, at: float = 1000.0) -> Page:
    return parse(text.encode(), WANTED, at)


def measure(histories: Histories, pages: dict[MetricsEndpoint, Page | str]) -> Measured:
    by_scrape = {scrape(pod): page for pod, page in pages.items()}
    return histories.measure(dict.fromkeys(by_scrape, WANTED), by_scrape, ())


def read(pages: dict[MetricsEndpoint, Page | str], *metrics: str, histories: Histories | None = None) -> Reading:
    measured = measure(histories or Histories(), pages)
    return measured.read([Instance(pod.name, (pod,)) for pod in pages], 8100, "/metrics", metrics)


def test_one_map_per_instance_and_nothing_for_what_could_not_be_read() -> None:
    a, b, c, d = (endpoint(name) for name in "abcd")
    reading = read(
        {a: shown("queue 4\n"), b: "GET ...: refused", c: shown("other 1\n"), d: shown("queue NaN\n")}, "queue"
    )
    assert reading.instances == ({"queue": 4.0}, {}, {}, {})
    assert len(reading.errors) == 3
    assert "pod b: GET ...: refused" in reading.errors
    assert any("is not among the pod's metrics (pod c)" in error for error in reading.errors)
    assert any("shows nan (pod d)" in error for error in reading.errors)


def test_only_the_metrics_asked_for_reach_the_instances() -> None:
    reading = read({endpoint("a"): shown("queue 4\nvllm:num_requests_running 2\n")}, "queue")
    assert reading.instances == ({"queue": 4.0},)


def test_a_group_lacks_what_one_of_its_pods_lacks() -> None:
    a, b = endpoint("a"), endpoint("b")
    measured = measure(Histories(), {a: shown("queue 4\n"), b: shown("queue 6\n")})
    assert measured.read([Instance("g", (a, b))], 8100, "/metrics", ["queue"]).instances == ({"queue": 10.0},)
    measured = measure(Histories(), {a: shown("queue 4\n"), b: "gone"})
    assert measured.read([Instance("g", (a, b))], 8100, "/metrics", ["queue"]).instances == ({},)


RUNNING, WAITING = "vllm:num_requests_running 2\n", "vllm:num_requests_waiting 3\n"


def test_demand_is_what_runs_and_waits() -> None:
    a, b = endpoint("a"), endpoint("b")
    assert read({a: shown(RUNNING + WAITING), b: shown("sglang:num_queue_reqs 4\n")}).demand == 9.0
    assert read({a: shown("vllm:num_requests_running 0\n")}).demand == 0.0


def test_demand_that_could_not_be_read_everywhere_is_not_zero() -> None:
    a, b = endpoint("a"), endpoint("b")
    idle = shown("vllm:num_requests_running 0\n")
    assert read({a: idle, b: "refused"}).demand is None
    assert read({a: idle, b: shown("vllm:num_requests_running NaN\n")}).demand is None
    assert read({a: idle, b: shown("vllm:num_requests_running{ 0\n")}).demand is None
    assert read({a: shown(RUNNING), b: "refused"}).demand == 2.0
    assert read({}).demand is None


def test_engines_that_say_nothing_about_demand_are_told_from_those_that_cannot_be_read() -> None:
    a = endpoint("a")
    silent, unread = read({a: shown("queue 1\n")}), read({a: "refused"})
    assert (silent.demand, silent.tells_demand) == (None, False)
    assert (unread.demand, unread.tells_demand) == (None, True)


def test_rates_need_a_second_look_and_a_restart_begins_anew() -> None:
    histories = Histories()

    def look(count: float, at: float, start: str = "s") -> list[float | None]:
        page = shown(f"# TYPE served_total counter\nserved_total {count}\n", at)
        reading = read({endpoint("a", start): page}, "served_total", histories=histories)
        return [values.get("served_total") for values in reading.instances]

    assert look(100, 0) == [None]
    assert look(130, 15) == [2.0]
    assert look(160, 30) == [2.0]
    assert look(5, 45) == [None]
    assert look(20, 60) == [1.0]
    assert look(50, 75, start="again") == [None]


def test_a_pod_that_could_not_be_read_once_keeps_its_history_and_one_that_is_gone_loses_it() -> None:
    histories = Histories()
    a, b = endpoint("a"), endpoint("b")

    def page(count: float, at: float) -> Page:
        return shown(f"# TYPE served_total counter\nserved_total {count}\n", at)

    measure(histories, {a: page(0, 0), b: page(0, 0)})
    measure(histories, {a: "hangs", b: page(15, 15)})
    assert read({a: page(30, 30)}, "served_total", histories=histories).instances == ({"served_total": 1.0},)
    assert read({b: page(60, 45)}, "served_total", histories=histories).instances == ({},)


def test_what_is_there_and_cannot_be_read_is_told_from_what_is_not_there() -> None:
    one, two = endpoint("one"), endpoint("two")
    assert read({one: shown("queue NaN\n"), two: shown("queue 3\n")}, "queue", "other").unknown == {"queue"}
    counter = "# TYPE served_total counter\nserved_total 3\n"
    assert read({one: shown(counter)}, "served_total", "other").unknown == {"served_total"}
    assert read({one: shown("queue oops\n")}, "queue").unknown == {"queue"}
    assert read({one: "hangs", two: shown("queue 3\n")}, "queue", "other").unknown == {"queue", "other"}


def test_bindings_that_conflict_have_no_pages_read() -> None:
    """Four hundred bindings of one workload that differ in their path: the oldest alone is decided on."""
    web = WorkloadId("n", "apps", "Deployment", "web")
    workload = Workload(web, "u", 1, 1, 1, 0.0)
    pods = TargetPods((Instance("a", (endpoint("a"),)),))
    specs, plans = [], {}
    for number in range(400):
        view = BindingView(Key("n", f"b{number}"), "u", 1, "1", "p", False, (), None, created=1000.0 - number)
        target = TargetSpec("web", web, "", {}, f"/{number}", 8100, 1, 5, 0.0)
        specs.append(BindingSpec(view, (target,)))
        plans[view.key] = [TargetPlan(target, workload, None, pods, ("queue",), active=True)]
    assert len(scrapes(plans.values())) == 400
    give_way(specs, plans)
    assert scrapes(plans.values()) == {Scrape(endpoint("a"), 8100, "/399"): {"queue"}}
