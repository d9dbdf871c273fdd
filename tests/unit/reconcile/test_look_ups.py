"""Look-ups of Secrets: which are asked for, when again, and a share of each namespace; over real HTTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from secret_server import SecretServer, secret_server

from modelyard.cluster import Cluster
from modelyard.objects import Key
from modelyard.reconcile.kernel.look_ups import MOST_LOOK_UPS, RETRY, TRUST, SecretLookUps
from modelyard.reconcile.plans.plan import Presence

ONE = Key("shop", "token")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[SecretServer, Cluster]]:
    async with secret_server(tmp_path) as pair:
        yield pair


async def test_one_that_is_missing_is_asked_for_again_until_it_is_there(served: tuple[SecretServer, Cluster]) -> None:
    server, cluster = served
    clock = Clock()
    secrets = SecretLookUps(cluster, clock)
    assert secrets.get(ONE) is Presence.UNKNOWN
    assert await secrets.refresh([ONE]) == {ONE}
    assert secrets.get(ONE) is Presence.ABSENT
    server.there.add(ONE)
    assert await secrets.refresh([ONE]) == set(), "an answer holds for a while"
    clock.now += RETRY
    assert await secrets.refresh([ONE]) == {ONE}
    assert secrets.get(ONE) is Presence.PRESENT
    assert len(server.asked) == 2
    clock.now += TRUST - 1
    await secrets.refresh([ONE])
    assert len(server.asked) == 2
    assert all("PartialObjectMetadata" in accept for accept in server.accepted), "its contents are not asked for"
    await secrets.refresh([])
    assert secrets.all() == (), "what nobody needs is forgotten"


@pytest.mark.parametrize("name", ["A b", "x" * 300, "?watch", "x#y"])
async def test_a_name_that_no_secret_can_have_is_missing(served: tuple[SecretServer, Cluster], name: str) -> None:
    server, cluster = served
    server.there.update({Key("shop", "x"), Key("shop", "a")})
    secrets = SecretLookUps(cluster, Clock())
    await secrets.refresh([Key("shop", name)])
    assert secrets.get(Key("shop", name)) is Presence.ABSENT
    assert not server.there.intersection(server.asked), "nothing else is asked for in its place"


async def test_what_may_not_be_read_or_cannot_be_asked_is_not_missing(served: tuple[SecretServer, Cluster]) -> None:
    server, cluster = served
    clock = Clock()
    secrets = SecretLookUps(cluster, clock)
    server.status = 403
    assert await secrets.refresh([ONE]) == {ONE}
    assert secrets.get(ONE) is Presence.FORBIDDEN
    clock.now += RETRY
    server.status = 410
    assert await secrets.refresh([ONE]) == set()
    assert secrets.get(ONE) is Presence.FORBIDDEN, "the answer of before holds"


@pytest.mark.parametrize("names", [61, 2000])
async def test_a_namespace_with_many_names_has_its_share_of_the_look_ups(
    served: tuple[SecretServer, Cluster], names: int
) -> None:
    server, cluster = served
    clock = Clock()
    secrets = SecretLookUps(cluster, clock)
    many = [Key("many", f"s{number}") for number in range(names)]
    await secrets.refresh([*many, ONE])
    assert Counter(key.namespace for key in server.asked) == {"many": MOST_LOOK_UPS // 5, "shop": 1}
    for _ in range(2):
        await secrets.refresh([*many, ONE])
    assert len(set(server.asked)) == len(server.asked), "those that were not asked for come first"
