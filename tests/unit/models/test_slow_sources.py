"""Rates, deadlines and shares that keep a slow or endless source from holding a node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st
from model_world import Cluster, model

from modelyard.models.delivery.jobs import time_allowed
from modelyard.models.delivery.legs import outcome_of
from modelyard.models.delivery.running import ModelJob, Task
from modelyard.models.download.disk_space import HORIZON, DiskUse, disk_use, namespace_of, reserved_bytes
from modelyard.models.download.filters import MOST_FOLDERS, FileRules, choose
from modelyard.models.download.pace import Limits, Pace, WatchedThreads
from modelyard.models.sources import ListingBudget, SourceFile
from modelyard.models.storage.errors import FetchError
from modelyard.models.storage.settings import DeliverySettings
from modelyard.models.storage.transfer_rate import REQUEST_BYTES, TransferWindow, time_limit
from modelyard.objects import Key

MIB = 1 << 20


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def arrivals(clock: Clock, gap: float, size: int, count: int) -> Iterator[bytes]:
    """Chunks that arrive with a gap before each."""
    for _ in range(count):
        clock.now += gap
        yield bytes(size)


@given(
    gaps=st.lists(st.tuples(st.floats(0.01, 40), st.integers(0, MIB)), min_size=1, max_size=200),
    length=st.floats(10, 600),
)
def test_a_window_holds_what_arrived_in_it(gaps: list[tuple[float, int]], length: float) -> None:
    """Compared with the sum over all arrivals, whose precision is that of the samples."""
    window, now = TransferWindow(length), 0.0
    events: list[tuple[float, int]] = []
    for gap, count in gaps:
        now += gap
        window.add(now, count)
        events.append((now, count))
    rate = window.rate(now)
    if now < length:
        assert rate is None
        return
    assert rate is not None
    inner = sum(count for at, count in events if at > now - length * (1 - 1 / 30))
    outer = sum(count for at, count in events if at >= now - length)
    assert inner <= rate * length * (1 + 1e-9) + 1e-6
    assert rate * length <= outer * (1 + 1e-9) + 1e-6


@pytest.mark.parametrize(
    ("gap", "size", "slow"),
    [(10.0, 1, True), (59.0, 4096, True), (1.0, 100 << 10, True), (1.0, 200 << 10, False), (30.0, 8 * MIB, False)],
)
def test_a_byte_every_ten_seconds_renews_no_patience(gap: float, size: int, slow: bool) -> None:
    clock = Clock()
    pace = Pace(Limits(), clock)
    failures: list[FetchError] = []
    for chunk in pace.watch(arrivals(clock, gap, size, int(900 / gap))):
        pace.took(len(chunk))
        try:
            pace.check()
        except FetchError as error:
            failures.append(error)
    assert bool(failures) == slow
    if slow:
        assert (failures[0].reason, failures[0].retryable) == ("SourceTooSlow", True)
        assert "minimumRate" in str(failures[0])
        assert pace.fetched < 900 * Limits().minimum_rate


def test_waiting_as_the_source_asks_counts_and_the_own_limits_and_disk_do_not() -> None:
    clock = Clock()
    pace = Pace(Limits(bandwidth=1000.0), clock)
    for chunk in pace.watch(arrivals(clock, 0.1, 1000, 900)):
        pace.took(len(chunk))
        clock.now += 0.9  # what the disk and the own limit of bandwidth take
        pace.check()
    assert pace.waited() == pytest.approx(90)
    with pace.waiting():
        clock.now += 300
        with pytest.raises(FetchError, match="500 B are required"):
            pace.check()


@pytest.mark.parametrize(
    ("gap", "length", "slow"), [(0.1, 10, False), (0.1, REQUEST_BYTES, False), (5.0, 10, True), (5.0, MIB, False)]
)
def test_small_files_count_as_requests(gap: float, length: int, slow: bool) -> None:
    """Ten round trips a second are no slow source, however small the files."""
    clock = Clock()
    pace = Pace(Limits(), clock)
    failures = 0
    for _ in range(int(400 / gap)):
        for chunk in pace.watch(arrivals(clock, gap, length, 1)):
            pace.took(len(chunk))
        pace.answered(length)
        try:
            pace.check()
        except FetchError:
            failures += 1
    assert bool(failures) == slow


def test_a_deadline_counts_from_the_beginning_of_all_attempts() -> None:
    clock = Clock()
    pace = Pace(Limits(deadline=100.0), clock, started=clock.now - 90)
    clock.now += 9
    pace.check()
    clock.now += 2
    with pytest.raises(FetchError, match="continues with what has arrived") as failed:
        pace.check()
    assert (failed.value.reason, failed.value.retryable) == ("DeadlineExceeded", True)
    pace = Pace(Limits(), clock)
    with pace.within(60):
        clock.now += 61
        with pytest.raises(FetchError, match="within its time limit"):
            pace.check()
    pace.check()


def test_what_watches_threads_ends_them_all() -> None:
    clock = Clock()
    pace = Pace(Limits(deadline=10.0), clock)

    def work() -> None:
        clock.now += 11
        pace.pause(600)

    threads = WatchedThreads(pace, 3, work)
    with pytest.raises(FetchError, match="not delivered within 10 s"):
        threads.run()
    assert threads.ended


@pytest.mark.parametrize(
    ("size", "expected"),
    [(None, 86_400), (0, 3600), (128 << 20, 3600 + 2048), (1 << 40, 86_400)],
)
def test_a_job_has_the_time_of_the_minimum_rate(size: int | None, expected: int) -> None:
    assert time_allowed(DeliverySettings(), size) == expected
    assert time_allowed(DeliverySettings(minimum_rate=0), size) == 86_400
    assert time_allowed(DeliverySettings(bandwidth=1000), 500_000) == 3600 + 1000
    assert time_limit(1000, 2, 1000, 60) == 61 + 2 * REQUEST_BYTES / 1000


def test_jobs_carry_deadlines_and_limits() -> None:
    cluster = Cluster("a", settings="minimumRate: 1000\nfreeDiskPercent: 20\nbytesPerNamespace: 5000")
    own = model("own", "chat")
    own["metadata"]["uid"] = "uid-own"
    shared, own = cluster.put("ClusterBaseModel", model("shared")), cluster.put("BaseModel", own)
    for obj in (shared, own):
        cluster.settle(obj)
    for job in cluster.all("Job"):
        arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
        options = dict(itertools.pairwise(arguments))
        assert job["spec"]["activeDeadlineSeconds"] == 86_400
        assert (options["--minimum-rate"], options["--deadline"]) == ("1000", "86340")
        assert options["--free-disk-percent"] == "20"
        is_own = cluster.task(job).get("namespace") == "chat"
        assert options.get("--bytes-per-namespace") == ("5000" if is_own else None)
        assert options.get("--namespace-disk-percent") == ("50" if is_own else None)


def test_a_job_that_kubernetes_ended_says_why() -> None:
    task = Task(purpose="fetch", node="a", uid="u")
    job = ModelJob(Key("n", "j"), "u", "m", task, "Failed", "DeadlineExceeded", "", 0.0, 9.0, False, "")
    outcome = outcome_of(job, None)
    assert (outcome.reason, outcome.retryable) == ("DeadlineExceeded", True)
    assert "deliveryDeadline" in (outcome.message or "")


@pytest.mark.parametrize(
    ("remaining", "rate", "expected"),
    [
        (1 << 40, None, 1 << 40),
        (1 << 40, 0.0, 0),
        (1 << 40, 0.1, int(HORIZON * 0.1)),
        (5, 1e9, 5),
        (0, None, 0),
    ],
)
def test_a_reservation_belongs_to_progress(remaining: int, rate: float | None, expected: int) -> None:
    assert reserved_bytes(remaining, rate) == expected


def test_files_take_blocks_and_folders_inodes() -> None:
    files = [("a/b/c", 1), ("a/b/d", 4096), ("a/e", 0), ("f", 5000)]
    assert disk_use(files, 4096) == DiskUse(4096 + 4096 + 8192, 4 + 2)
    assert disk_use([], 4096) == DiskUse()


@pytest.mark.parametrize(
    ("key", "namespace"),
    [
        ("team-a.basemodel.llama", "team-a"),
        ("team-a.basemodel.llama.basemodel.x", "team-a"),
        ("clusterbasemodel.llama", ""),
        ("clusterbasemodel.a.basemodel.b", ""),
        ("finetunedweight.x", ""),
        ("dataset", ""),
    ],
)
def test_the_namespace_of_a_model_on_a_node(key: str, namespace: str) -> None:
    assert namespace_of(key) == namespace


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["Config.json", "config.JSON"], "are one name on some disks"),
        (["caf\u00e9", "cafe\u0301"], "are one name on some disks"),
        (["stra\u00dfe", "STRASSE"], "are one name on some disks"),
        (["/".join(["d"] * (MOST_FOLDERS + 1) + ["x"])], "more than 32 folders"),
        (["a/b", "a/b"], "listed twice"),
        (["x", "x/y/z"], "a file and a folder"),
    ],
)
def test_names_that_one_disk_cannot_hold_are_refused(names: list[str], problem: str) -> None:
    files = [SourceFile(name, 1, name) for name in names]
    with pytest.raises(FetchError, match=problem) as failed:
        choose(files, FileRules())
    assert failed.value.reason == "HostileName"


def test_one_of_two_names_can_be_left_out() -> None:
    files = [SourceFile(name, 1, name) for name in ("LICENSE", "license", "w.safetensors")]
    assert [f.name for f in choose(files, FileRules(exclude=("license",))).files] == ["LICENSE", "w.safetensors"]


def test_a_listing_has_a_budget_of_pages_and_bytes_and_no_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.models.sources.source.MOST_PAGES", 3)
    monkeypatch.setattr("modelyard.models.sources.source.LISTING_BYTES", 100)
    budget = ListingBudget()
    budget.ask("u")  # not counted outside of a listing
    budget.begin()
    for number in range(3):
        budget.ask(f"u{number}")
        budget.answered(f"u{number}")
    with pytest.raises(FetchError, match="more than 3 pages"):
        budget.ask("u3")
    budget.begin()
    budget.ask("u1")
    budget.ask("u1")  # it was not answered: tried again
    budget.answered("u1")
    with pytest.raises(FetchError, match="leads back to u1"):
        budget.ask("u1")
    budget.take(100)
    with pytest.raises(FetchError, match="larger than 100 bytes"):
        budget.take(1)
    budget.end()
    budget.take(1000)
