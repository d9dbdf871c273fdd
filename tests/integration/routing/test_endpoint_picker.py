"""The router as the endpoint picker of a gateway: a real Envoy asks it, and goes where it says."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import orjson
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages, external_processor_pb2_grpc as service
from envoy_server import BUFFERED, DUPLEX, REQUESTS_ONLY, gateway
from grpc_health.v1 import health_pb2, health_pb2_grpc
from own_authority import vouched
from router_world import (
    RESPONSES_AND_MESSAGES,
    USAGE,
    RouterWorld,
    abort,
    an_address,
    chat,
    engine_process,
    eventually,
    hang,
    logged,
    running,
    status,
    streaming,
)
from yarl import URL

from modelyard.objects import Key
from modelyard.router.process.ext_proc import SPARE
from modelyard.router.process.service import RouterError

pytestmark = pytest.mark.integration

CONTENT = '{"choices":[{"delta":{"content":"tok"}}]}'
TOLD = orjson.dumps({"choices": [], "usage": USAGE}).decode()
BOTH = pytest.mark.parametrize("mode", [BUFFERED, DUPLEX], ids=["buffered", "duplex"])


@pytest.fixture
async def world() -> AsyncIterator[RouterWorld]:
    async with running(ext_proc_port=0) as found:
        found.server()
        found.route()
        yield found


class Gateway:
    """Envoy before the picker of a world, with all its pods."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self.session = url, session

    async def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> tuple[int, Any, Any]:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        async with self.session.post(URL(self.url + path, encoded=True), data=data, headers=headers) as answer:
            raw = await answer.read()
            return (
                answer.status,
                answer.headers,
                orjson.loads(raw) if answer.content_type == "application/json" else raw,
            )


@contextlib.asynccontextmanager
async def before(world: RouterWorld, mode: Mapping[str, str], **more: list[tuple[str, int]]) -> AsyncIterator[Gateway]:
    pods = [(pod.ip, world.engine_port) for pod in world.pods]
    with gateway(world.router.ext_proc_port, {"shop/server": pods, **more}, mode) as url:
        async with aiohttp.ClientSession() as session:
            yield Gateway(url, session)


def outstanding(world: RouterWorld) -> int:
    return sum(pod.outstanding for one in world.router.decider.fleet.backends.values() for pod in one.pods)


@BOTH
async def test_requests_reach_real_engines_and_streams_come_back(world: RouterWorld, mode: Mapping[str, str]) -> None:
    addresses = [an_address(), an_address()]
    with contextlib.ExitStack() as engines:
        for name, address in zip("ab", addresses, strict=True):
            engines.enter_context(engine_process(address, world.engine_port))
            world.pod(name, address)
        async with before(world, mode) as envoy:
            for _ in range(6):
                code, headers, told = await envoy.post(chat())
                assert (code, told["usage"]["completion_tokens"]) == (200, 4)
                assert headers["x-request-id"]
            code, _, raw = await envoy.post(chat(stream=True))
            assert (code, raw.count(b"data: "), b'"usage":{' in raw) == (200, raw.count(b"\n\n"), False)
            assert raw.endswith(b"data: [DONE]\n\n")
    lines = await logged(world, 7)
    assert {one["selected_pod"] for one in lines} <= {"a", "b"}
    assert [one["output_tokens"] for one in lines] == [4] * 7
    assert {one["status_code"] for one in lines} == {200}
    await eventually(lambda: outstanding(world) == 0, "nothing under way")


@BOTH
async def test_bytes_pass_untouched_but_for_the_name_of_the_model(world: RouterWorld, mode: Mapping[str, str]) -> None:
    engine = await world.recording("a")
    async with before(world, mode) as envoy:
        plain = b'{ "model":"m",  "seed": 123456789012345678901234567890, "messages":[] }'
        large = chat(pad="x" * 3_000_000)
        assert (await envoy.post(plain, "/v1/chat/completions?a=%2F&b=c+d"))[0] == 200
        assert (await envoy.post(large))[0] == 200
        world.server(model="real/name")
        assert (await envoy.post(plain))[0] == 200
    assert engine.asked[0][0] == "/v1/chat/completions?a=%2F&b=c+d"
    assert engine.asked[0][2] == plain
    assert engine.asked[1][2] == orjson.dumps(large)
    assert engine.asked[2][2] == b'{"model":"real/name","seed":123456789012345678901234567890,"messages":[]}'


@BOTH
async def test_usage_that_only_the_router_asked_for_is_kept_back(world: RouterWorld, mode: Mapping[str, str]) -> None:
    engine = await world.recording("a", streaming(CONTENT, TOLD, "[DONE]"))
    async with before(world, mode) as envoy:
        raw = (await envoy.post(chat(stream=True)))[2]
        assert raw == f"data: {CONTENT}\n\n\ndata: [DONE]\n\n".encode()
        assert engine.bodies[0]["stream_options"] == {"include_usage": True}
    (line,) = await logged(world)
    assert (line["input_tokens"], line["output_tokens"]) == (7, 3)


async def test_no_usage_is_asked_for_where_it_could_not_be_kept_back(world: RouterWorld) -> None:
    engine = await world.recording("a", streaming(CONTENT, TOLD, "[DONE]"))
    async with before(world, REQUESTS_ONLY) as envoy:
        assert (await envoy.post(chat(stream=True)))[0] == 200
    assert "stream_options" not in engine.bodies[0]
    (line,) = await logged(world)
    assert (line["status_code"], line["selected_pod"]) == (200, "a")
    world.gone("a")
    await world.recording("a")
    async with before(world, REQUESTS_ONLY) as envoy:
        code, headers, _ = await envoy.post(chat())
    line = (await logged(world, 2))[1]
    # No count is seen either.
    assert (code, line["output_tokens"]) == (200, -(-int(headers["Content-Length"]) // 4))
    await eventually(lambda: outstanding(world) == 0, "nothing under way")


@BOTH
async def test_a_pod_that_refuses_dies_or_is_overloaded_costs_nobody_anything(
    world: RouterWorld, mode: Mapping[str, str]
) -> None:
    world.pod("refuses", an_address())
    dying = await world.recording("dies", abort)
    overloaded = await world.recording("overloaded", status(503))
    await world.recording("good")
    async with before(world, mode) as envoy:
        sent = 0
        while sent < 12 or not (dying.asked and overloaded.asked):
            other = [{"role": "user", "content": f"{sent} is a prompt that no pod has seen"}]
            assert (await envoy.post(chat(messages=other)))[0] == 200
            sent += 1
    lines = await logged(world, sent)
    assert {one["selected_pod"] for one in lines} == {"good"}
    assert max(one["upstream_attempts"] for one in lines) > 1
    await eventually(lambda: outstanding(world) == 0, "nothing under way")


@BOTH
async def test_a_busy_pod_is_left_alone_and_no_client_chooses_one(world: RouterWorld, mode: Mapping[str, str]) -> None:
    for name in "ab":
        await world.recording(name)
    busy = next(pod for one in world.router.decider.fleet.backends.values() for pod in one.pods if pod.key.name == "a")
    async with before(world, mode) as envoy:
        busy.outstanding += 5
        for chosen in [busy.address, "127.0.0.1:9"] * 5:
            assert (await envoy.post(chat(), **{"x-gateway-destination-endpoint": chosen}))[0] == 200
        busy.outstanding -= 5
    assert [len(world.engine(name).asked) for name in "ab"] == [0, 10]


@BOTH
async def test_a_request_waits_for_the_first_pod_of_a_server_at_zero(mode: Mapping[str, str]) -> None:
    async with running(ext_proc_port=0, wait_seconds=60.0) as world:
        world.server()
        world.route()
        engine = await world.recording("a")
        async with before(world, mode) as envoy:
            (pod,) = world.pods
            world.gone("a")
            asked = asyncio.create_task(envoy.post(chat()))
            await eventually(lambda: world.router.wake_queue.waiting, "one that waits")
            world.pod("a", pod.ip)
            assert (await asked)[0] == 200
        assert len(engine.asked) == 1


@BOTH
async def test_without_a_pod_nobody_else_s_is_taken(world: RouterWorld, mode: Mapping[str, str]) -> None:
    engine = await world.recording("a", server="other")
    async with before(world, mode) as envoy:
        code, headers, told = await envoy.post(chat())
        assert (code, told["error"]["type"], headers["Retry-After"]) == (503, "service_unavailable_error", "5")
        assert headers["Content-Type"] == "application/json"
        # One that the gateway does not know yet.
        new = await world.recording("new")
        code, _, _ = await envoy.post(chat())
        assert code == 503
    assert not engine.asked
    assert not new.asked


async def test_each_server_has_its_own_cluster(world: RouterWorld) -> None:
    world.server("second")
    world.route("more", "n", "second")
    one = await world.recording("a")
    two = await world.recording("b", server="second")
    async with before(world, DUPLEX, **{"shop/second": [(world.pods[1].ip, world.engine_port)]}) as envoy:
        for model in "nmn":
            assert (await envoy.post(chat(model)))[0] == 200
    assert (len(one.asked), len(two.asked)) == (1, 2)


@BOTH
async def test_what_is_beyond_a_limit_is_refused_and_what_is_left_is_told(
    world: RouterWorld, mode: Mapping[str, str]
) -> None:
    await world.recording("a")
    world.route(rateLimit={"inputTokensPerUnit": 30, "outputTokensPerUnit": 1000, "unit": "hour"})
    async with before(world, mode) as envoy:
        code, headers, _ = await envoy.post(chat())
        assert (code, headers["x-ratelimit-limit-tokens"]) == (200, "30")
        assert "x-ratelimit-remaining-output-tokens" in headers
        for _ in range(8):
            code, headers, told = await envoy.post(chat())
            if code != 200:
                break
        assert (code, told["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(headers["Retry-After"]) >= 1


@BOTH
async def test_responses_and_messages_are_charged_as_the_engine_counted(
    world: RouterWorld, mode: Mapping[str, str]
) -> None:
    world.route(rateLimit={"outputTokensPerUnit": 1000, "unit": "month"})
    answers = iter(RESPONSES_AND_MESSAGES)
    engine = await world.recording("a", lambda request, body: next(answers)[2](request, body))
    spent = 0
    async with before(world, mode) as envoy:
        for number, (path, body, _, raw, tokens) in enumerate(RESPONSES_AND_MESSAGES):
            code, headers, answer = await envoy.post({"model": "m", **body}, path, **{"Accept-Encoding": "gzip"})
            assert (code, answer) == (200, raw if "stream" in body else orjson.loads(raw))
            assert int(headers["x-ratelimit-remaining-output-tokens"]) == 1000 - spent
            line = (await logged(world, number + 1))[-1]
            assert (line["input_tokens"], line["output_tokens"]) == tokens
            spent += tokens[1]
    assert not any("Accept-Encoding" in headers for _, headers, _ in engine.asked), "compressed, none could be read"


async def test_a_prefill_call_for_responses_generates_one_token(world: RouterWorld) -> None:
    groups = {"groupKey": "group", "prefillLabels": {"role": "prefill"}, "decodeLabels": {"role": "decode"}}
    world.server(workloadSelector={"matchLabels": {"app": "server"}, "pdGroup": groups})
    first = await world.recording("prefill", group="1", role="prefill")
    second = await world.recording("decode", group="1", role="decode")
    body = {"model": "m", "input": "x" * 300_000, "max_output_tokens": 300, "stream": True}
    async with before(world, BUFFERED) as envoy:
        assert (await envoy.post(body, "/v1/responses"))[0] == 200
    assert first.bodies == [{"model": "m", "input": body["input"], "max_output_tokens": 1, "store": False}]
    assert second.bodies == [body]


@BOTH
async def test_what_cannot_be_understood_is_answered_as_everywhere(world: RouterWorld, mode: Mapping[str, str]) -> None:
    await world.recording("a", status(400, '{"message":"too long"}'))
    async with before(world, mode) as envoy:
        for body, path, expected in (
            (b"{", "/v1/chat/completions", (400, None)),
            (chat("other"), "/v1/chat/completions", (404, "model_not_found")),
            (chat(), "/shutdown", (404, "unknown_url")),
        ):
            code, _, told = await envoy.post(body, path)
            assert (code, told["error"]["code"]) == expected
        async with envoy.session.get(f"{envoy.url}/v1/models") as answer:
            assert [one["id"] for one in (await answer.json())["data"]] == ["m"]
        code, _, told = await envoy.post(chat())
        assert (code, told) == (400, {"message": "too long"})


async def test_a_body_beyond_the_limit_is_refused() -> None:
    async with running(ext_proc_port=0, max_body=100_000) as world:
        world.server()
        world.route()
        engine = await world.recording("a")
        for mode in (BUFFERED, DUPLEX):
            async with before(world, mode) as envoy:
                code, _, told = await envoy.post(chat(pad="x" * 200_000))
                assert (code, told["error"]["code"]) == (413, "request_too_large")
        assert not engine.asked


@BOTH
async def test_a_client_that_leaves_frees_its_pod(world: RouterWorld, mode: Mapping[str, str]) -> None:
    world.route(rateLimit={"inputTokensPerUnit": 1000, "outputTokensPerUnit": 1000, "unit": "month"})
    silent = await world.recording("silent", hang)
    async with before(world, mode) as envoy:
        asked = asyncio.create_task(envoy.post(chat()))
        await asyncio.wait_for(silent.began.wait(), 120)
        asked.cancel()
        await asyncio.wait_for(silent.cancelled.wait(), 120)
        await eventually(lambda: outstanding(world) == 0, "nothing under way")
    world.gone("silent")
    engine = await world.recording("a", streaming(CONTENT, after=hang))
    async with before(world, mode) as envoy:
        async with envoy.session.post(f"{envoy.url}/v1/chat/completions", json=chat(stream=True)) as answer:
            assert await answer.content.readany()
            assert outstanding(world) == 1
        await asyncio.wait_for(engine.cancelled.wait(), 120)
        await eventually(lambda: outstanding(world) == 0, "nothing under way")
    assert {line["error"]["type"] for line in await logged(world, 2)} <= {"client_gone", "proxy"}
    # Two prompts of 9 tokens, and a token of the second answer.
    left = await world.router.limits.admit(Key("shop", "route"), 0)
    assert left == pytest.approx((982, 999), abs=0.9)


async def test_a_prompt_is_computed_apart_before_the_gateway_is_told(world: RouterWorld) -> None:
    groups = {"groupKey": "group", "prefillLabels": {"role": "prefill"}, "decodeLabels": {"role": "decode"}}
    world.server(workloadSelector={"matchLabels": {"app": "server"}, "pdGroup": groups}, kvConnector={"type": "nixl"})

    async def parameters(_: Any, __: bytes) -> Any:
        return aiohttp.web.json_response({"kv_transfer_params": {"remote_engine_id": "e1"}})

    first = await world.recording("prefill", parameters, group="1", role="prefill")
    second = await world.recording("decode", group="1", role="decode")
    for mode in (BUFFERED, DUPLEX):
        async with before(world, mode) as envoy:
            assert (await envoy.post(chat()))[0] == 200
    assert first.bodies[0]["max_tokens"] == 1
    assert second.bodies[0]["kv_transfer_params"] == {"remote_engine_id": "e1"}
    assert second.bodies[0]["max_tokens"] == 4
    assert [one["prefill_pod"] for one in await logged(world, 2)] == ["prefill"] * 2


async def test_health_by_grpc(world: RouterWorld) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{world.router.ext_proc_port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name, expected in (("liveness", 1), ("readiness", 2)):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == expected
        world.router.follower.synced.set()
        for name in ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == 1
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health.Check(health_pb2.HealthCheckRequest(service="other"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_only_pods_that_the_gateway_hints_at_are_picked(world: RouterWorld) -> None:
    for name in "abc":
        world.pod(name, an_address())
    allowed = f"{world.pods[1].ip}:{world.engine_port}"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{world.router.ext_proc_port}") as channel:
        for hint, expected in ((allowed, allowed), ("192.0.2.1:1", "")):
            first, body = messages.ProcessingRequest(), messages.ProcessingRequest()
            head = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
            for key, value in head.items():
                first.request_headers.headers.headers.add(key=key, raw_value=value.encode())
            first.metadata_context.filter_metadata["envoy.lb.subset_hint"].update(
                {"x-gateway-destination-endpoint-subset": [hint]}
            )
            first.protocol_config.request_body_mode = 4
            body.request_body.body, body.request_body.end_of_stream = orjson.dumps(chat()), True
            call = service.ExternalProcessorStub(channel).Process()
            await call.write(first)
            await call.write(body)
            told = await call.read()
            if expected:
                namespace = told.dynamic_metadata.fields["envoy.lb"].struct_value
                assert namespace.fields["x-gateway-destination-endpoint"].string_value == expected
            else:
                assert told.immediate_response.status.code == 503
            call.cancel()
    await eventually(lambda: outstanding(world) == 0, "nothing under way")


async def test_streams_that_ask_nothing_have_a_bound_in_number_and_in_time() -> None:
    async with (
        running(ext_proc_port=0, max_requests=1, idle_seconds=3.0) as world,
        grpc.aio.insecure_channel(f"127.0.0.1:{world.router.ext_proc_port}") as channel,
    ):
        liveness = health_pb2.HealthCheckRequest(service="liveness")
        silent = [service.ExternalProcessorStub(channel).Process() for _ in range(1 + SPARE)]
        async with asyncio.timeout(120):
            for one in silent:
                await one.wait_for_connection()
            refused = grpc.StatusCode.OK
            while refused is grpc.StatusCode.OK:  # until they have all arrived
                await asyncio.sleep(0.05)
                refused = await health_pb2_grpc.HealthStub(channel).Check(liveness).code()
            assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with asyncio.timeout(120):
            assert {await one.code() for one in silent} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        assert (await health_pb2_grpc.HealthStub(channel).Check(liveness)).status == 1


@pytest.mark.parametrize("told", ["²", "9" * 5000, "2000"])
async def test_a_status_that_is_none_breaks_nothing(world: RouterWorld, told: str) -> None:
    world.pod("a", an_address())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{world.router.ext_proc_port}") as channel:
        call = service.ExternalProcessorStub(channel).Process()
        first, body, answer = (messages.ProcessingRequest() for _ in range(3))
        for key, value in {":method": "POST", ":path": "/v1/chat/completions"}.items():
            first.request_headers.headers.headers.add(key=key, raw_value=value.encode())
        first.protocol_config.request_body_mode = 4
        body.request_body.body, body.request_body.end_of_stream = orjson.dumps(chat()), True
        answer.response_headers.headers.headers.add(key=":status", raw_value=told.encode())
        answer.response_headers.end_of_stream = True
        for one in (first, body):
            await call.write(one)
        while not (await call.read()).HasField("request_body"):
            pass
        await call.write(answer)
        assert (await call.read()).HasField("response_headers")
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
    await eventually(lambda: outstanding(world) == 0, "nothing under way")


async def test_a_router_that_leaves_answers_what_it_has_begun(world: RouterWorld) -> None:
    gate = asyncio.Event()

    async def wait(_: Any) -> None:
        await gate.wait()

    engine = await world.recording("a", streaming(CONTENT, after=wait))
    async with before(world, BUFFERED) as envoy:
        answer = await envoy.session.post(f"{envoy.url}/v1/chat/completions", json=chat(stream=True))
        await asyncio.wait_for(engine.began.wait(), 120)
        world.router.stop()
        await eventually(lambda: world.router.front.leaving, "leaving")
        gate.set()
        assert await answer.read() == f"data: {CONTENT}\n\n".encode()
    (line,) = await logged(world)
    assert line["status_code"] == 200


async def test_the_port_speaks_tls_where_the_router_does(tmp_path: Path) -> None:
    authority, certificate, key = vouched(tmp_path)
    async with running(ext_proc_port=0, tls_cert=str(certificate), tls_key=str(key)) as world:
        trusted = grpc.ssl_channel_credentials(authority.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{world.router.ext_proc_port}", trusted) as channel:
            told = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="liveness"))
            assert told.status == 1


async def test_a_port_that_is_taken_and_packages_that_are_missing_are_told(
    world: RouterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RouterError, match="choose another --ext-proc-port"):
        async with running(ext_proc_port=world.router.ext_proc_port):
            pass
    monkeypatch.setitem(sys.modules, "modelyard.router.process.ext_proc", None)
    with pytest.raises(RouterError, match=r"install modelyard\[gateway\]"):
        async with running(ext_proc_port=0):
            pass
