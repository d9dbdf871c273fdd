"""Order and amount of the work that a busy router does for clients and namespaces."""

from __future__ import annotations

import asyncio

from modelyard.fairness import OLDEST_EVERY
from modelyard.router.process.processor_shares import PASS_SECONDS, SLICE_OVERHEAD, ProcessorShares

SLICE = 0.001
ATTACKER, NEIGHBOUR = ("namespace", "attacker"), ("namespace", "neighbour")


class Work:
    """Slices of known length, done by accounts of one loop; ``done`` names them in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.shares = ProcessorShares(lambda: self.now)
        self.done: list[str] = []

    async def do(self, name: str, owner: tuple[str, str], slices: int, seconds: float = SLICE) -> None:
        account = self.shares.open(owner)
        for _ in range(slices):
            async with account:
                self.now += seconds
                self.done.append(name)
        account.close()


async def test_a_request_waits_for_one_pass_and_not_for_the_work_before_it() -> None:
    work = Work()
    heavy = [asyncio.create_task(work.do("heavy", ATTACKER, 100)) for _ in range(20)]
    while len(work.done) < 200:
        await asyncio.sleep(0)
    before = len(work.done)
    await work.do("light", NEIGHBOUR, 4)
    assert work.done[before:].index("light") <= 2 * PASS_SECONDS / SLICE, "it began within the pass after it came"
    assert work.done[before:].count("heavy") <= 5 * (PASS_SECONDS / SLICE + 1), "each of its slices waited for a pass"
    await asyncio.gather(*heavy)
    assert work.done.count("heavy") == 2000, "nothing is lost"
    assert (len(work.shares.queue.accounts), len(work.shares.queue)) == (0, 0), "nothing is kept"


async def test_a_request_that_used_least_goes_on_within_the_pass() -> None:
    work = Work()
    heavy = [asyncio.create_task(work.do("heavy", ATTACKER, 100)) for _ in range(20)]
    while len(work.done) < 200:
        await asyncio.sleep(0)
    before = len(work.done)
    await work.do("light", NEIGHBOUR, 10, PASS_SECONDS / 100)
    assert work.done[before:].count("heavy") <= 2 * (PASS_SECONDS / SLICE + 1), "its steps do not wait for a pass each"
    for task in heavy:
        task.cancel()
    await asyncio.gather(*heavy, return_exceptions=True)


async def test_namespaces_share_the_time_however_many_requests_each_has() -> None:
    work = Work()
    tasks = [asyncio.create_task(work.do("attacker", ATTACKER, 50)) for _ in range(30)]
    tasks += [asyncio.create_task(work.do("neighbour", NEIGHBOUR, 100)) for _ in range(2)]
    while work.done.count("neighbour") < 200:
        await asyncio.sleep(0)
    # The first slices of all were started before any was known to be long.
    assert work.done.count("attacker") <= 200 + 32 + PASS_SECONDS / SLICE
    await asyncio.gather(*tasks)


async def test_of_one_client_a_new_request_goes_before_long_ones_which_go_on_too() -> None:
    work, client = Work(), ("client", "10.0.0.7")
    heavy = [asyncio.create_task(work.do("heavy", client, 40)) for _ in range(8)]
    while len(work.done) < 80:
        await asyncio.sleep(0)
    before = len(work.done)
    await asyncio.gather(*(work.do("light", client, 1) for _ in range(40)))
    until = work.done[before:]
    last = len(until) - until[::-1].index("light")
    heavies = until[:last].count("heavy")
    assert 40 // OLDEST_EVERY <= heavies <= 40 // OLDEST_EVERY + 2 * PASS_SECONDS / SLICE + 2
    await asyncio.gather(*heavy)


async def test_slices_that_take_longer_than_expected_are_not_started_together() -> None:
    work = Work()
    passes: list[int] = []

    async def count() -> None:
        while True:
            before = len(work.done)
            await asyncio.sleep(0)
            passes.append(len(work.done) - before)

    counting = asyncio.create_task(count())
    await asyncio.gather(*(work.do("long", ATTACKER, 3, 5 * PASS_SECONDS) for _ in range(50)))
    counting.cancel()
    assert max(passes) == 1
    assert len(work.done) == 150


async def test_a_router_that_is_not_busy_starts_work_at_once() -> None:
    work = Work()
    accounts = [work.shares.open(ATTACKER) for _ in range(10)]
    for account in accounts:
        async with account:
            work.now += PASS_SECONDS / 100
        account.close()
    assert len(work.shares.queue) == 0
    assert work.now == PASS_SECONDS / 10


async def test_a_client_that_leaves_while_it_waits_takes_no_turn() -> None:
    work = Work()
    first = asyncio.create_task(work.do("first", ATTACKER, 1, 2 * PASS_SECONDS))
    gone = [asyncio.create_task(work.do("gone", ATTACKER, 1)) for _ in range(5)]
    stays = asyncio.create_task(work.do("stays", ATTACKER, 1))
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    await asyncio.gather(first, stays)
    assert work.done == ["first", "stays"]


async def test_work_is_charged_to_the_namespace_once_it_is_known() -> None:
    work = Work()
    account = work.shares.open(("client", "10.0.0.7"))
    async with account:
        work.now += SLICE
    account.charge_to(NEIGHBOUR)
    assert len(work.shares.queue.accounts) == 1
    account.charge(0.5)
    assert account.used == 0.5 + SLICE + SLICE_OVERHEAD
    account.close()
    assert len(work.shares.queue.accounts) == 0
