"""Budgets and requests under way that several replicas share, against a real Redis that goes away and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial

import pytest
import redis
import redis_server
from hypothesis import HealthCheck, given, settings, strategies as st
from redis_server import RedisServer

from modelyard.objects import Key
from modelyard.router.process.limits import LocalLimits
from modelyard.router.process.redis_sharing import OnFailure, RedisLimits, RedisLink, SharedLoad
from modelyard.routing import sharing
from modelyard.routing.limits import Budget, OverBudget, TokenLimits
from modelyard.routing.objects import Route, route
from modelyard.routing.seams import Left

pytestmark = pytest.mark.integration
KEY = Key("shop", "route")
PATIENT = 20.0


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server.serve() as served:
        yield served


@pytest.fixture(autouse=True)
def empty(server: RedisServer) -> None:
    with redis.Redis(port=server.port) as client:
        client.flushall()


def limited(server: RedisServer, input_: int | None = None, output: int | None = None, unit: str = "day") -> Route:
    limit = {"inputTokensPerUnit": input_, "outputTokensPerUnit": output, "unit": unit}
    told = {name: value for name, value in limit.items() if value is not None}
    rules = [{"targetModels": [{"modelServerName": "server"}]}]
    spec = {"modelName": "m", "rules": rules, "rateLimit": {**told, "global": {"redis": {"address": server.address}}}}
    return route({"metadata": {"name": KEY.name, "namespace": KEY.namespace, "uid": "u"}, "spec": spec})


@pytest.fixture
async def replicas(server: RedisServer) -> AsyncIterator[Callable[..., RedisLimits]]:
    made: list[RedisLimits] = []

    def make(on_failure: OnFailure = "local", time_limit: float = PATIENT) -> RedisLimits:
        made.append(RedisLimits({server.address: f"redis://{server.address}"}, LocalLimits(), on_failure, time_limit))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.02)


async def healed(ours: RedisLimits) -> None:
    async with asyncio.timeout(120):
        while ours.away:
            await ours.admit(KEY, 0)
            await asyncio.sleep(0.05)


async def test_replicas_give_no_more_than_one_budget(server: RedisServer, replicas: Callable[..., RedisLimits]) -> None:
    three = [replicas() for _ in range(3)]
    for one in three:
        one.configure(KEY, limited(server, 1000, unit="month"))
    found = await asyncio.gather(*(three[index % 3].admit(KEY, 7) for index in range(300)))
    assert sum(isinstance(one, Left) for one in found) == 1000 // 7
    refused = next(one for one in found if isinstance(one, OverBudget))
    assert refused.kind == "input"
    assert refused.retry_after == pytest.approx((7 - 1000 % 7) * 2592, rel=0.01)
    await three[0].settle(KEY, 7, 0, 0)
    assert isinstance(await three[1].admit(KEY, 7), Left)
    assert not three[0].away


async def test_what_one_answer_cost_the_others_owe(server: RedisServer, replicas: Callable[..., RedisLimits]) -> None:
    first, second = replicas(), replicas()
    for one in (first, second):
        one.configure(KEY, limited(server, 100, 100))
    left = await first.admit(KEY, 10)
    assert isinstance(left, Left)
    assert left == pytest.approx((90, 100), abs=0.1)
    await first.settle(KEY, 10, 30, 250)
    refused = await second.admit(KEY, 1)
    assert isinstance(refused, OverBudget)
    assert refused.kind == "output"
    assert refused.retry_after == pytest.approx(151 * 864, rel=0.01)
    for one in (first, second):  # a changed limit keeps what is filled in proportion
        one.configure(KEY, limited(server, 1000))
    left = await second.admit(KEY, 0)
    assert isinstance(left, Left)
    assert left.input == pytest.approx(700, abs=1)
    assert left.output is None
    second.configure(KEY, None)
    assert await second.admit(KEY, 10**9) == Left()


@pytest.mark.parametrize("on_failure", ["local", "allow", "deny"])
async def test_redis_down_and_back(
    server: RedisServer, replicas: Callable[..., RedisLimits], on_failure: OnFailure
) -> None:
    ours, other = replicas(on_failure), replicas()
    for one in (ours, other):
        one.configure(KEY, limited(server, 100))
    assert isinstance(await ours.admit(KEY, 60), Left)
    server.kill()
    try:
        found = [await ours.admit(KEY, 30) for _ in range(3)]
        kinds = {"local": [Left, OverBudget, OverBudget], "allow": [Left] * 3, "deny": [OverBudget] * 3}
        assert [type(one) for one in found] == kinds[on_failure]
        assert ours.away == [server.address]
    finally:
        server.start()

    await healed(ours)
    # The new Redis knows nothing: what was spent here is not forgiven there, and the other replica sees it.
    there = 40 if on_failure == "deny" else 10
    left = await other.admit(KEY, 0)
    assert isinstance(left, Left)
    assert left.input is not None
    assert left.input == pytest.approx(there, abs=0.5)


async def test_a_redis_that_hangs_holds_up_no_more_than_one_request(
    server: RedisServer, replicas: Callable[..., RedisLimits]
) -> None:
    ours = replicas(time_limit=1.0)
    ours.configure(KEY, limited(server, 10**6))
    await ours.admit(KEY, 1)
    server.freeze()
    try:
        await ours.admit(KEY, 1)
        assert ours.away == [server.address]
        async with asyncio.timeout(100):  # each would wait for a second
            for _ in range(1000):
                assert isinstance(await ours.admit(KEY, 1), Left)
    finally:
        server.thaw()

    await healed(ours)


async def test_only_redis_servers_of_the_namespace_or_of_the_configuration_are_used(server: RedisServer) -> None:
    ours = RedisLimits({}, LocalLimits(), time_limit=PATIENT)
    ours.configure(KEY, limited(server, 100))
    assert isinstance(await ours.admit(KEY, 60), Left)
    with redis.Redis(port=server.port) as client:
        assert client.keys() == []
    await ours.close()


actions = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 120), st.just(0)),
    st.tuples(st.just("settle"), st.integers(-50, 150), st.integers(0, 300)),
)
budgets = st.builds(
    Budget, st.none() | st.integers(1, 100), st.none() | st.integers(1, 100), st.sampled_from([1, 60, 3600])
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(budgets, actions, st.floats(0, 500)), max_size=12))
def test_the_script_counts_as_the_buckets_in_this_process_do(
    server: RedisServer, steps: list[tuple[Budget, tuple[str, int, int], float]]
) -> None:
    local, now = TokenLimits(), 1000.0
    with redis.Redis(port=server.port) as client:
        client.delete(sharing.key(KEY))
        for budget, (kind, tokens, output), passed in steps:
            now += passed
            local.configure(KEY, budget, now)
            if budget.input is None and budget.output is None:
                client.delete(sharing.key(KEY))
                continue
            first = local.left(KEY, now)
            told = sharing.arguments(budget, first, tokens, output, check=kind == "take", now=now)
            refused, left = sharing.answer(client.eval(sharing.SCRIPT, 1, sharing.key(KEY), *told), budget, tokens)
            if kind == "take":
                expected = local.admit(KEY, tokens, now)
                assert (refused and refused.kind) == (expected and expected.kind)
                if refused and expected and expected.retry_after is not None:
                    assert refused.retry_after == pytest.approx(expected.retry_after)
            else:
                local.settle(KEY, 0, tokens, output, now)
            assert left == pytest.approx(local.left(KEY, now), nan_ok=True)
        if steps and client.exists(sharing.key(KEY)):
            assert 0 < client.ttl(sharing.key(KEY)) <= sharing.lifetime(steps[-1][0].seconds)


async def test_replicas_know_what_the_others_have_under_way(server: RedisServer) -> None:
    pod, other = Key("shop", "a"), Key("shop", "b")
    mine = [{pod: 3}, {pod: 2, other: 1}, dict[Key, int]()]
    heard = [dict[Key, int](), dict[Key, int](), dict[Key, int]()]

    def hear(index: int, told: Mapping[Key, int]) -> None:
        heard[index] = dict(told)

    links = [RedisLink(server.address, f"redis://{server.address}", PATIENT) for _ in mine]
    loads = [
        SharedLoad(link, lambda index=index: mine[index], partial(hear, index), 0.02)
        for index, link in enumerate(links)
    ]
    async with loads[0].running(), loads[2].running():
        async with loads[1].running():
            await until(lambda: heard[2] == {pod: 5, other: 1})
            await until(lambda: heard[0] == {pod: 2, other: 1})
            mine[1] = {pod: 4, other: 1}
            await until(lambda: heard[2] == {pod: 7, other: 1})
        # One that leaves takes its requests with it.
        await until(lambda: heard[2] == {pod: 3})
        server.kill()
        server.start()
        mine[0] = {pod: 9}
        await until(lambda: heard[2] == {pod: 9})
    for link in links:
        await link.close()


@pytest.mark.parametrize(
    "reply",
    [
        b":5\r\n",
        b"*1\r\n:1\r\n",
        b"*3\r\n:0\r\n$3\r\nabc\r\n$0\r\n\r\n",
        b"*3\r\n:0\r\n$3\r\nnan\r\n$3\r\nnan\r\n",
        b"*3\r\n:1\r\n$4\r\n-inf\r\n$0\r\n\r\n",
        b"*1\r\n" * 5000,
        b"*4\r\n:0\r\n$2\r\n99\r\n$0\r\n\r\n$9\r\nanother-0\r\n",
        b":1" + b"0" * 400 + b"\r\n",
        b"*-5\r\n",
        b"$99999999999\r\nx",
        b"\xff\xfe\r\n\r\n",
        b"+OK\r\n",
    ],
    ids=[
        "number",
        "short",
        "text",
        "nan",
        "infinite",
        "deep",
        "of another",
        "huge",
        "negative",
        "endless",
        "noise",
        "ok",
    ],
)
async def test_a_tenant_s_redis_that_answers_anything_is_one_that_is_away(reply: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            writer.write(reply)
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    ours = RedisLimits({address: f"redis://{address}"}, LocalLimits(), "local", 1.0)
    limit = {"inputTokensPerUnit": 100, "unit": "day", "global": {"redis": {"address": address}}}
    rules = [{"targetModels": [{"modelServerName": "server"}]}]
    spec = {"modelName": "m", "rules": rules, "rateLimit": limit}
    ours.configure(KEY, route({"metadata": {"name": "route", "namespace": "shop", "uid": "u"}, "spec": spec}))
    try:
        first = await ours.admit(KEY, 60)
        assert isinstance(first, Left)
        assert round(first.input or 0) == 40
        assert isinstance(await ours.admit(KEY, 60), OverBudget), "this replica counts alone"
        assert ours.away == [address]
    finally:
        await ours.close()
        listening.close()


async def test_a_redis_that_always_has_plenty_gives_no_replica_more_than_its_own_budget() -> None:
    """It answers as the script would with a full budget: after a leap of its clock, or because it lies."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                words.append(await reader.readexactly(int((await reader.readline())[1:])))
                await reader.readexactly(2)
            if words[0].upper().startswith(b"EVAL"):
                parts = [b"$%d\r\n%b\r\n" % (len(part), part) for part in (b"100", b"50", words[-1])]
                writer.write(b"*4\r\n:0\r\n" + b"".join(parts))
            else:
                writer.write(b"+OK\r\n")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    ours = RedisLimits({address: f"redis://{address}"}, LocalLimits(), "local", PATIENT)
    limit = {"inputTokensPerUnit": 100, "outputTokensPerUnit": 50, "unit": "month"}
    spec = {
        "modelName": "m",
        "rules": [{"targetModels": [{"modelServerName": "server"}]}],
        "rateLimit": {**limit, "global": {"redis": {"address": address}}},
    }
    ours.configure(KEY, route({"metadata": {"name": "route", "namespace": "shop", "uid": "u"}, "spec": spec}))
    try:
        answers = await asyncio.gather(*(ours.admit(KEY, 9) for _ in range(30)))
        assert sum(isinstance(each, Left) for each in answers) == 100 // 9
        left = await ours.admit(KEY, 0)
        assert left == pytest.approx((1, 50), abs=0.1)
        await ours.settle(KEY, 0, None, 60)
        refused = await ours.admit(KEY, 0)
        assert isinstance(refused, OverBudget)
        assert refused.kind == "output"
        assert not ours.away
    finally:
        await ours.close()
        listening.close()


@pytest.mark.parametrize(
    ("kept", "left"),
    [
        ({"at": "1e300", "unit": 60, "input": 5, "input_limit": 100}, 5),
        ({"at": "5000", "unit": 60, "input": 5, "input_limit": 100}, 5),
        ({"at": "-1e300", "unit": 60, "input": 5, "input_limit": 100}, 5),
        ({"at": "nan", "unit": 60, "input": 5, "input_limit": 100}, 5),
        ({"at": "1000", "unit": 0, "input": 5, "input_limit": 100}, 5),
        ({"at": "1000", "unit": 60, "input": "inf", "input_limit": 100}, 70),
        ({"at": "1000", "unit": 60, "input": "nan", "input_limit": 100}, 70),
        ({"at": "1000", "unit": 60, "input": "-1e300", "input_limit": 100}, 70),
        ({"at": "1000", "unit": 60, "input": 5, "input_limit": 0}, 70),
        ({"at": "1000", "unit": 60, "input": 5, "input_limit": "x"}, 70),
        ({"at": "1000", "unit": 60, "input": "9" * 400, "input_limit": 100}, 70),
    ],
)
def test_a_budget_that_somebody_wrote_into_redis_is_mended(
    server: RedisServer, kept: dict[str, str | int], left: int
) -> None:
    """70 tokens are left by the count of the replica that asks."""
    budget = Budget(100, None, 60)
    with redis.Redis(port=server.port) as client:
        client.hset(sharing.key(KEY), mapping=kept)
        for now, taken, expected in ((1000.0, 5, left - 5), (1006.0, 0, left + 5)):
            script_arguments = sharing.arguments(budget, (70.0, None), taken, check=True, now=now, mark="m")
            reply = client.eval(sharing.SCRIPT, 1, sharing.key(KEY), *script_arguments)
            assert sharing.answer(reply, budget, taken, check=True, mark="m") == (None, (pytest.approx(expected), None))


def test_leaps_of_the_clock_of_redis_fill_a_budget_once_and_never_freeze_it(server: RedisServer) -> None:
    budget, levels = Budget(60, None, 60), []
    with redis.Redis(port=server.port) as client:
        for now in (1e9, 1e9 + 1, 2e9, 2e9 + 1, 1e9 + 2, 1e9 + 12, 1e9 + 22, 0.0, 10.0):
            script_arguments = sharing.arguments(budget, (60.0, None), 20, now=now)
            levels.append(
                sharing.answer(client.eval(sharing.SCRIPT, 1, sharing.key(KEY), *script_arguments), budget, 20)[1][0]
            )
    assert levels == pytest.approx([40, 21, 40, 21, 1, -9, -19, -39, -49])
