"""Status patches while others write the same object."""

from __future__ import annotations

import pytest
from cluster_manifests import WIDGETS, widget

from modelyard.cluster import Cluster, Conflict, NotFound
from modelyard.cluster.objects import Object

pytestmark = pytest.mark.integration


def log_of(obj: Object) -> list[str]:
    return list((obj.get("status") or {}).get("log") or [])


class Rivals:
    """Makes another write to the object after each of the first ``rounds`` reads, through its own connection."""

    def __init__(self, cluster: Cluster, place: str, rounds: int) -> None:
        self.cluster = cluster
        self.place = place
        self.rounds = rounds
        self.calls = 0
        self._get = cluster.get

    async def get(self, *args: object, **kwargs: object) -> Object:
        current = await self._get(*args, **kwargs)  # type: ignore[arg-type]
        self.calls += 1
        if self.calls <= self.rounds:
            patch = {"status": {"log": [*log_of(current), f"rival {self.calls}"]}}
            await self.cluster.merge_patch(WIDGETS, "w", patch, self.place, "status")
        return current


def add_ours(current: Object) -> Object | None:
    return None if "ours" in log_of(current) else {"log": [*log_of(current), "ours"]}


@pytest.mark.parametrize("rounds", [0, 1, 3])
async def test_nobody_s_change_is_lost(
    cluster: Cluster, place: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create(WIDGETS, widget("w", place, color="red"))
    rivals = Rivals(cluster, place, rounds)
    with monkeypatch.context() as patched:
        patched.setattr(cluster, "get", rivals.get)
        written = await cluster.update_status(WIDGETS, "w", place, add_ours)
    assert written is not None
    assert log_of(written) == [f"rival {number + 1}" for number in range(rounds)] + ["ours"]
    assert rivals.calls == rounds + 1
    assert await cluster.update_status(WIDGETS, "w", place, add_ours) is None
    assert log_of(await cluster.get(WIDGETS, "w", place)) == log_of(written)


async def test_a_writer_that_always_comes_first_wins(
    cluster: Cluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create(WIDGETS, widget("w", place, color="red"))
    rivals = Rivals(cluster, place, rounds=100)
    with monkeypatch.context() as patched:
        patched.setattr(cluster, "get", rivals.get)
        with pytest.raises(Conflict, match="5 attempts: another writer keeps changing this object"):
            await cluster.update_status(WIDGETS, "w", place, add_ours)
    assert rivals.calls == 5
    assert "ours" not in log_of(await cluster.get(WIDGETS, "w", place))


async def test_a_known_object_saves_the_read_but_not_the_check(
    cluster: Cluster, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await cluster.create(WIDGETS, widget("w", place, color="red"))
    reads = Rivals(cluster, place, rounds=0)
    with monkeypatch.context() as patched:
        patched.setattr(cluster, "get", reads.get)
        await cluster.update_status(WIDGETS, "w", place, lambda _: {"log": ["first"]}, current=made)
        assert reads.calls == 0
        written = await cluster.update_status(WIDGETS, "w", place, add_ours, current=made)
    assert reads.calls == 1
    assert written is not None
    assert log_of(written) == ["first", "ours"]


async def test_the_status_of_a_missing_object(cluster: Cluster, place: str) -> None:
    with pytest.raises(NotFound, match=f"Widget {place}/w"):
        await cluster.update_status(WIDGETS, "w", place, add_ours)
