"""What becomes of a request: the bytes that reach the engine, the bytes that come back, and what is told of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest
from router_world import (
    RESPONSES_AND_MESSAGES,
    USAGE,
    RecordingEngine,
    RouterWorld,
    abort,
    an_address,
    chat,
    engine_process,
    eventually,
    everything_of,
    hang,
    logged,
    replaying,
    running,
    status,
    streaming,
)

from modelyard.objects import Key

pytestmark = pytest.mark.integration

CONTENT = '{"choices":[{"delta":{"content":"tok"}}]}'
TOLD = orjson.dumps({"choices": [], "usage": USAGE}).decode()


@pytest.fixture
async def world() -> AsyncIterator[RouterWorld]:
    async with running() as found:
        found.server()
        found.route()
        yield found


async def test_nothing_to_change_goes_through_byte_for_byte(world: RouterWorld) -> None:
    engine = await world.recording("a")
    body = b'{ "model":"m",  "seed": 123456789012345678901234567890, "x":1.10, "messages":[] }'
    code, headers, answer = await world.post(
        body, "/v1/chat/completions?a=%2F&b=c+d", Authorization="Bearer k", Connection="x-mine", **{"x-mine": "1"}
    )
    assert (code, answer["usage"]) == (200, USAGE)
    ((path, sent, raw),) = engine.asked
    assert (path, raw) == ("/v1/chat/completions?a=%2F&b=c+d", body)
    assert sent["Authorization"] == "Bearer k"
    assert "x-mine" not in sent
    assert sent["x-request-id"] == headers["x-request-id"]
    (line,) = await logged(world)
    assert (line["selected_pod"], line["input_tokens"], line["output_tokens"]) == ("a", 7, 3)
    assert (line["model_route"], line["model_server"]) == ("shop/route", "shop/server")


async def test_the_name_that_the_engine_knows_is_put_in_and_an_adapters_is_not(world: RouterWorld) -> None:
    world.server(model="real/name")
    world.route(loraAdapters=["sql"])
    engine = await world.recording("a")
    await world.post(b'{"seed": 123456789012345678901234567890, "model":"m","messages":[]}')
    await world.post(chat("sql"))
    assert engine.asked[0][2] == b'{"seed":123456789012345678901234567890,"model":"real/name","messages":[]}'
    assert engine.bodies[1]["model"] == "sql"


async def test_a_stream_comes_as_it_is_and_usage_that_only_the_router_asked_for_is_kept_back(
    world: RouterWorld,
) -> None:
    engine = await world.recording("a", streaming(CONTENT, TOLD, "[DONE]"))
    code, headers, raw = await world.post(chat(stream=True, stream_options={"other": 1}))
    assert code == 200
    assert headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert raw == f"data: {CONTENT}\n\n\ndata: [DONE]\n\n".encode()
    assert engine.bodies[0]["stream_options"] == {"other": 1, "include_usage": True}
    asked = chat(stream=True, stream_options={"include_usage": True})
    code, _, raw = await world.post(asked)
    assert raw == f"data: {CONTENT}\n\ndata: {TOLD}\n\ndata: [DONE]\n\n".encode()
    assert [(one["input_tokens"], one["output_tokens"]) for one in await logged(world, 2)] == [(7, 3), (7, 3)]


async def test_a_form_goes_to_the_model_that_it_names(world: RouterWorld) -> None:
    world.server(model="real/name")
    engine = await world.recording("a")
    form = aiohttp.FormData()
    form.add_field("file", b"\x00\xff" * 5000, filename="a.wav", content_type="audio/wav")
    form.add_field("model", "m")
    form.add_field("language", "en")
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{world.url}/v1/audio/transcriptions", data=form) as answer,
    ):
        assert answer.status == 200
    ((_, headers, raw),) = engine.asked
    assert headers["Content-Type"].startswith("multipart/form-data")
    assert b"real/name" in raw
    assert b"\x00\xff" * 5000 in raw


async def test_models_and_what_is_not_served(world: RouterWorld) -> None:
    world.route(loraAdapters=["a/b"])
    engine = await world.recording("a")
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{world.url}/v1/models") as answer:
            assert [one["id"] for one in (await answer.json())["data"]] == ["a/b", "m"]
        async with session.get(f"{world.url}/v1/models/a%2Fb") as answer:
            assert (await answer.json())["id"] == "a/b"
        async with session.get(f"{world.url}/v1/chat/completions") as answer:
            assert answer.status == 405
    for path in ("/v1/load_lora_adapter", "/v1/../v1/chat/completions", "//v1/chat/completions", "/shutdown"):
        code, _, error = await world.post(chat(), path)
        assert (code, error["error"]["code"]) == (404, "unknown_url"), path
    code, _, error = await world.post(chat("other"))
    assert (code, error["error"]["code"], error["error"]["param"]) == (404, "model_not_found", "model")
    assert not engine.asked


async def test_what_the_engine_says_of_a_request_reaches_the_client(world: RouterWorld) -> None:
    engine = await world.recording("a", status(400, '{"message":"too long"}'))
    await world.recording("b", status(400, '{"message":"too long"}'))
    code, _, told = await world.post(chat())
    assert (code, told) == (400, {"message": "too long"})
    assert len(engine.asked) <= 1
    (line,) = await logged(world)
    assert line["upstream_attempts"] == 1


async def test_a_pod_that_refuses_or_dies_before_its_answer_costs_nobody_anything(world: RouterWorld) -> None:
    world.pod("refuses", an_address())
    dying = await world.recording("dies", abort)
    await world.recording("overloaded", status(503))
    good = await world.recording("good")
    for _ in range(12):
        assert (await world.post(chat()))[0] == 200
    assert len(good.asked) == 12
    assert len(dying.asked) <= 12
    assert {line["selected_pod"] for line in await logged(world, 12)} == {"good"}


async def test_every_pod_is_asked_once_and_the_last_word_is_the_engines(world: RouterWorld) -> None:
    engines = [await world.recording(name, status(503, '{"message":"busy"}')) for name in "abc"]
    code, _, told = await world.post(chat())
    assert (code, told) == (503, {"message": "busy"})
    assert [len(one.asked) for one in engines] == [1, 1, 1]
    world.gone("a", "b", "c")
    world.pod("refuses", an_address())
    code, _, told = await world.post(chat())
    assert code == 502
    assert "request to all pods failed" in told["error"]["message"]


async def test_a_retry_policy_says_how_often(world: RouterWorld) -> None:
    policy = {"retry": {"attempts": 4, "retryInterval": "1ms"}}
    world.server(trafficPolicy=policy)
    engines = [await world.recording(name, status(502)) for name in "ab"]
    assert (await world.post(chat()))[0] == 502
    assert sum(len(one.asked) for one in engines) == 5
    world.server(trafficPolicy={"retry": {"attempts": 0}})
    assert (await world.post(chat()))[0] == 502
    assert sum(len(one.asked) for one in engines) == 6
    world.server(trafficPolicy={"retry": {"attempts": 2**31 - 1, "retryInterval": "0s"}})
    assert (await asyncio.wait_for(world.post(chat()), 120))[0] == 502
    assert sum(len(one.asked) for one in engines) == 27, "a tenant's policy holds nobody else's router up"


async def test_no_answer_in_time_is_504_after_all_pods(world: RouterWorld) -> None:
    world.server(trafficPolicy={"timeout": "2s"})
    engines = [await world.recording(name, hang) for name in "ab"]
    code, _, told = await world.post(chat())
    assert (code, told["error"]["type"]) == (504, "timeout_error")
    for one in engines:
        await asyncio.wait_for(one.cancelled.wait(), 120)


async def test_a_stream_that_breaks_off_cannot_be_taken_for_whole(world: RouterWorld) -> None:
    await world.recording("dies", streaming(CONTENT, after=abort))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{world.url}/v1/chat/completions", json=chat(stream=True)) as answer,
    ):
        seen = await everything_of(answer)
    events = [json.loads(event[6:]) for event in seen.decode().split("\n\n") if event.strip()]
    assert events[0] == json.loads(CONTENT)
    assert events[-1]["error"]["type"] == "api_error"
    (line,) = await logged(world)
    assert (line["error"]["type"], line["upstream_attempts"]) == ("proxy", 1)


@pytest.mark.parametrize("answer", [hang, streaming(CONTENT, after=hang)], ids=["before the first byte", "midway"])
async def test_a_client_that_leaves_frees_the_engine(world: RouterWorld, answer: Any) -> None:
    engine = await world.recording("a", answer)

    async def ask() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{world.url}/v1/chat/completions", json=chat(stream=True)) as response,
        ):
            await response.read()

    task = asyncio.create_task(ask())
    await asyncio.wait_for(engine.began.wait(), 120)
    await asyncio.sleep(0.1)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await asyncio.wait_for(engine.cancelled.wait(), 120)
    (line,) = await logged(world)
    assert (line["status_code"], line["error"]["type"]) == (499, "client_gone")
    pods = [one for b in world.router.decider.fleet.backends.values() for one in b.pods]
    await eventually(lambda: not any(one.outstanding or one.queued_tokens for one in pods), "nothing under way")


async def test_a_pod_that_leaves_gets_no_new_request_and_ends_those_it_has(world: RouterWorld) -> None:
    go_on = asyncio.Event()

    async def wait(_: Any) -> None:
        await go_on.wait()

    old = await world.recording("old", streaming(CONTENT, after=wait))
    begun = asyncio.create_task(world.post(chat(stream=True)))
    await asyncio.wait_for(old.began.wait(), 120)
    world.leaves("old")
    new = await world.recording("new")
    for _ in range(5):
        assert (await world.post(chat()))[0] == 200
    assert (len(old.asked), len(new.asked)) == (1, 5)
    world.gone("old")
    go_on.set()
    code, _, raw = await begun
    assert (code, raw) == (200, f"data: {CONTENT}\n\n".encode())


async def test_a_budget_is_taken_refused_with_429_and_given_back(world: RouterWorld) -> None:
    world.route(rateLimit={"inputTokensPerUnit": 20, "unit": "hour"})
    world.pod("refuses", an_address())
    for _ in range(2):  # what reached no engine costs nothing
        assert (await world.post(chat()))[0] == 502
    world.gone("refuses")
    await world.recording("a")
    code, headers, _ = await world.post(chat())
    assert (code, headers["x-ratelimit-limit-tokens"], headers["x-ratelimit-remaining-tokens"]) == (200, "20", "11")
    assert (await world.post(chat()))[0] == 200  # 7 + 9 of 20: the engine counted 7 where 9 were estimated
    code, headers, told = await world.post(chat())
    assert (code, told["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(headers["Retry-After"]) > 100
    world.route()  # the limit is lifted
    assert (await world.post(chat()))[0] == 200


async def test_output_is_charged_from_streams_too(world: RouterWorld) -> None:
    world.route(rateLimit={"outputTokensPerUnit": 3, "unit": "hour"})
    await world.recording("a", streaming(CONTENT, TOLD, "[DONE]"))
    assert (await world.post(chat(stream=True)))[0] == 200
    code, _, told = await world.post(chat(stream=True))
    assert code == 429
    assert "output token rate limit" in told["error"]["message"]


async def test_responses_and_messages_are_charged_as_the_engine_counted(world: RouterWorld) -> None:
    world.route(rateLimit={"inputTokensPerUnit": 1000, "outputTokensPerUnit": 1000, "unit": "month"})
    spent = [0, 0]
    for number, (path, body, replay, raw, tokens) in enumerate(RESPONSES_AND_MESSAGES):
        await world.recording("a", replay)
        code, headers, answer = await world.post({"model": "m", **body}, path)
        assert (code, answer) == (200, raw if "stream" in body else orjson.loads(raw))
        assert int(headers["x-ratelimit-remaining-output-tokens"]) == 1000 - spent[1]
        line = (await logged(world, number + 1))[-1]
        assert (line["input_tokens"], line["output_tokens"]) == tokens
        spent = [spent[0] + tokens[0], spent[1] + tokens[1]]
        world.gone("a")
    await world.recording("a")
    _, headers, _ = await world.post({"model": "m", "prompt": ""}, "/v1/completions")
    left = headers["x-ratelimit-remaining-tokens"], headers["x-ratelimit-remaining-output-tokens"]
    assert left == (str(1000 - spent[0]), str(1000 - spent[1]))


async def test_work_of_a_pod_is_charged_however_the_request_ends(world: RouterWorld) -> None:
    limit = {"inputTokensPerUnit": 1000, "outputTokensPerUnit": 400_000, "unit": "month"}
    world.route(rateLimit=limit)

    async def is_spent(prompt: int, output: int) -> None:
        left: Any = None
        for _ in range(1500):  # a client that has left does not wait for it
            left = await world.router.limits.admit(Key("shop", "route"), 0)
            if left == pytest.approx((1000 - prompt, 400_000 - output), abs=4):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{left} is left")

    async def leave(engine: RecordingEngine, events: int) -> None:
        task = asyncio.create_task(asyncio.wait_for(session.post(url, json=chat(stream=True)), 120))
        if events:
            content = (await task).content
            for _ in range(events):
                await content.readuntil(b"\n\n")
        await asyncio.wait_for(engine.began.wait(), 120)
        task.cancel()
        await session.close()
        await asyncio.wait_for(engine.cancelled.wait(), 120)

    url, session = f"{world.url}/v1/chat/completions", aiohttp.ClientSession()
    await leave(await world.recording("a", hang), 0)
    await is_spent(9, 0)
    world.gone("a")
    session = aiohttp.ClientSession()
    await leave(await world.recording("a", streaming(*[CONTENT] * 5, after=hang)), 5)
    await is_spent(18, 5)
    world.gone("a")
    # No count in megabytes of JSON.
    await world.recording("a", replaying(b'"%b"' % (b"x" * 1_199_998), "application/json", 1 << 16))
    assert (await world.post(chat()))[0] == 200
    await is_spent(27, 300_005)
    # Refusals are no work; nor is what the router itself refuses.
    world.gone("a")
    await world.recording("a", status(503))
    assert (await world.post(chat()))[0] == 503
    for refused in ({"stream": 1}, {"background": True}):
        assert (await world.post({"model": "m", "input": "hi", **refused}, "/v1/responses"))[0] == 400
    await is_spent(27, 300_005)
    # A pod that takes a request and dies has worked on it, once for all attempts.
    world.gone("a")
    await world.recording("a", abort)
    assert (await world.post(chat()))[0] == 502
    await is_spent(36, 300_005)


async def test_both_ends_of_a_real_engine() -> None:
    from openai import AsyncOpenAI, BadRequestError, NotFoundError

    async with running() as world:
        address = an_address()
        with engine_process(address, world.engine_port, "--time-compression", "20", "--max-model-len", "4096"):
            world.server()
            world.route()
            world.pod("a", address)
            async with AsyncOpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=0) as client:
                assert [one.id async for one in client.models.list()] == ["m"]
                messages: Any = [{"role": "user", "content": "hello"}]
                answer = await client.chat.completions.create(model="m", messages=messages, max_tokens=5)
                assert answer.usage is not None
                assert answer.usage.completion_tokens == 5
                texts = []
                async for event in await client.chat.completions.create(
                    model="m", messages=messages, max_tokens=5, stream=True
                ):
                    assert event.choices, "usage that was not asked for"
                    texts.append(event.choices[0].delta.content or "")
                assert len("".join(texts).split()) == 5
                with pytest.raises(NotFoundError):
                    await client.chat.completions.create(model="other", messages=messages)
                long: Any = [{"role": "user", "content": "tok " * 5000}]
                with pytest.raises(BadRequestError):
                    await client.chat.completions.create(model="m", messages=long)
                vectors = {"object": "list", "model": "e", "data": [{"object": "embedding", "index": 0}]}
                vectors["data"][0]["embedding"] = [0.5, 0.25]  # type: ignore[index]
                world.server("embeddings")
                world.route("embeddings", "e", "embeddings")
                await world.recording("e", status(200, json.dumps(vectors)), "embeddings")
                told = await client.embeddings.create(model="e", input="hello", encoding_format="float")
                assert told.data[0].embedding == [0.5, 0.25]
            await world.router.front.idle(10)
            pod = world.router.decider.fleet.backends[next(iter(world.router.decider.fleet.backends))].pods[0]
            await eventually(lambda: pod.gauges is not None and pod.models == {"m"}, "metrics and models were read")
