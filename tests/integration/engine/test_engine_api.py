"""The engine process through its OpenAI API."""

import asyncio
import json
import signal

import aiohttp
import pytest

pytestmark = pytest.mark.integration

FAST = ("--time-compression", "20")
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def request_body(chat, prompt, output, **more):
    body = {"model": "m", "max_tokens": output, "ignore_eos": True} | more
    if chat:
        return body | {"messages": [{"role": "user", "content": "tok " * prompt}]}
    return body | {"prompt": list(range(prompt))}


def path(chat):
    return "/v1/chat/completions" if chat else "/v1/completions"


async def read_stream(response):
    """(chunks as JSON, whether [DONE] ended the stream)."""
    assert response.status == 200
    assert response.content_type == "text/event-stream"
    events = (await response.read()).decode().split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    return [json.loads(event[6:]) for event in events[:-1]]


@pytest.mark.parametrize("chat", [True, False])
async def test_a_streamed_answer(shared_engine, session, chat):
    async with session.post(shared_engine.url + path(chat), json=request_body(chat, 70, 33, **STREAM)) as response:
        *content, end, usage = await read_stream(response)
    texts = [c["choices"][0]["delta"]["content"] if chat else c["choices"][0]["text"] for c in content]
    assert all(texts)
    assert len("".join(texts).split()) == 33
    assert end["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 70, "completion_tokens": 33, "total_tokens": 103}
    assert {c["object"] for c in [*content, end, usage]} == {"chat.completion.chunk" if chat else "text_completion"}
    assert len({c["id"] for c in [*content, end, usage]}) == 1


async def test_without_the_option_no_usage_is_streamed(shared_engine, session):
    async with session.post(shared_engine.url + path(True), json=request_body(True, 5, 3, stream=True)) as response:
        chunks = await read_stream(response)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("chat", [True, False])
async def test_an_answer_in_one_piece(shared_engine, session, chat):
    async with session.post(shared_engine.url + path(chat), json=request_body(chat, 7, 12)) as response:
        body = await response.json()
    choice = body["choices"][0]
    text = choice["message"]["content"] if chat else choice["text"]
    assert len(text.split()) == body["usage"]["completion_tokens"] == 12
    assert body["usage"]["prompt_tokens"] == 7
    assert choice["finish_reason"] == "length"
    assert body["object"] == ("chat.completion" if chat else "text_completion")


async def test_answers_of_free_length_end_by_themselves(start_engine, session):
    engine = start_engine(*FAST, "--mean-output-tokens", "20", "--seed", "1")
    body = request_body(True, 5, 1000) | {"ignore_eos": False, "min_tokens": 4}

    async def ask():
        async with session.post(engine.url + path(True), json=body) as response:
            answer = await response.json()
            return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

    answers = await asyncio.gather(*(ask() for _ in range(60)))
    assert all(4 <= tokens < 1000 and reason == "stop" for tokens, reason in answers)
    assert 10 < sum(tokens for tokens, _ in answers) / 60 < 40
    scrape = await engine.metrics()
    assert scrape("vllm:request_success_total", finished_reason="stop") == 60


async def test_models_and_health(start_engine, session):
    engine = start_engine("--served-model-name", "first", "second", "--max-model-len", "4096")
    async with session.get(engine.url + "/v1/models") as response:
        cards = (await response.json())["data"]
    assert [(card["id"], card["max_model_len"]) for card in cards] == [("first", 4096), ("second", 4096)]
    async with session.get(engine.url + "/health") as response:
        assert response.status == 200
    for name in ("first", "second"):
        async with session.post(engine.url + path(True), json=request_body(True, 1, 1, model=name)) as response:
            assert (await response.json())["model"] == name
    assert (await engine.metrics())("vllm:request_success_total", model_name="first", finished_reason="length") == 2


@pytest.mark.parametrize(
    ("body", "status", "kind", "param"),
    [
        (b"{oops", 400, "BadRequestError", None),
        (b'{"model": "m"}', 400, "BadRequestError", "messages"),
        (json.dumps(request_body(True, 1, 1, model="other")).encode(), 404, "NotFoundError", "model"),
        (json.dumps(request_body(True, 4000, 97)).encode(), 400, "BadRequestError", "max_tokens"),
    ],
)
async def test_errors_have_openai_form(shared_engine, session, body, status, kind, param):
    async with session.post(shared_engine.url + path(True), data=body) as response:
        assert response.status == status
        error = (await response.json())["error"]
    assert (error["code"], error["type"], error["param"]) == (status, kind, param)
    assert error["message"]


async def test_a_full_queue_answers_429(start_engine, session):
    engine = start_engine("--max-num-seqs", "1", "--max-waiting", "2", "--gamma", "0")

    async def ask(output):
        async with session.post(engine.url + path(True), json=request_body(True, 1, output, **STREAM)) as response:
            if response.status != 200:
                return response.status, (await response.json())["error"]["type"]
            await response.read()
            return 200, None

    long = asyncio.create_task(ask(20_000))
    await engine.eventually(lambda m: m("vllm:num_requests_running") == 1, "running")
    waiting = [asyncio.create_task(ask(10)) for _ in range(2)]
    await engine.eventually(lambda m: m("vllm:num_requests_waiting") == 2, "two waiting")
    assert await ask(10) == (429, "RateLimitError")
    for task in (long, *waiting):
        task.cancel()
    await asyncio.gather(long, *waiting, return_exceptions=True)


async def test_injected_failures(start_engine, session):
    engine = start_engine(*FAST, "--failure-rate", "0.5", "--seed", "2")

    async def ask():
        async with session.post(engine.url + path(True), json=request_body(True, 1, 2)) as response:
            return response.status

    statuses = await asyncio.gather(*(ask() for _ in range(100)))
    failures = statuses.count(500)
    assert 25 < failures < 75
    assert statuses.count(200) == 100 - failures
    assert (await engine.metrics())("vllm:request_success_total", finished_reason="error") == failures


async def test_hundreds_of_concurrent_streams(start_engine, session):
    engine = start_engine(*FAST, "--max-num-seqs", "500", "--kv-cache-tokens", "1000000")
    lengths = [(3 + i % 50, 50 + i % 150) for i in range(400)]

    async def ask(prompt, output):
        async with session.post(engine.url + path(True), json=request_body(True, prompt, output, **STREAM)) as response:
            *content, _, usage = await read_stream(response)
        words = sum(len(chunk["choices"][0]["delta"]["content"].split()) for chunk in content)
        return usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"], words

    answers = await asyncio.gather(*(ask(*pair) for pair in lengths))
    assert answers == [(prompt, output, output) for prompt, output in lengths]
    scrape = await engine.metrics()
    assert scrape("vllm:generation_tokens_total") == sum(output for _, output in lengths)
    assert scrape("vllm:prompt_tokens_total") == sum(prompt for prompt, _ in lengths)
    assert scrape("vllm:request_success_total", finished_reason="length") == 400
    assert scrape("vllm:kv_cache_usage_perc") == scrape("vllm:num_requests_running") == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_aborts_its_request(start_engine, session, stream):
    engine = start_engine()
    body = request_body(True, 100, 20_000, **(STREAM if stream else {}))
    # A connection of its own, so that ending the request closes it.
    async with aiohttp.ClientSession() as own:
        task = asyncio.create_task(_read(own, engine.url + path(True), body))
        await engine.eventually(lambda m: m("vllm:num_requests_running") == 1, "running")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    scrape = await engine.eventually(
        lambda m: m("vllm:request_success_total", finished_reason="abort") == 1, "counted as aborted"
    )
    assert scrape("vllm:num_requests_running") == scrape("vllm:kv_cache_usage_perc") == 0
    async with session.post(engine.url + path(True), json=request_body(True, 1, 1)) as response:
        assert response.status == 200


async def _read(session, url, body):
    async with session.post(url, json=body) as response:
        await response.read()


async def test_sigterm_lets_requests_finish_and_refuses_new_ones(start_engine, session):
    engine = start_engine()
    stream = asyncio.create_task(_collect(session, engine.url + path(True), request_body(True, 10, 1500, **STREAM)))
    await engine.eventually(lambda m: m("vllm:num_requests_running") == 1, "running")
    engine.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(120):
        while True:
            async with session.get(engine.url + "/health") as response:
                if response.status == 503:
                    break
    async with session.post(engine.url + path(True), json=request_body(True, 1, 1)) as response:
        assert response.status == 503
        assert "shutting down" in (await response.json())["error"]["message"]
    *_, usage = await stream
    assert usage["usage"]["completion_tokens"] == 1500
    assert await engine.stopped() == 0


async def _collect(session, url, body):
    async with session.post(url, json=body) as response:
        return await read_stream(response)


async def test_sigterm_ends_an_idle_engine(start_engine):
    engine = start_engine()
    engine.process.send_signal(signal.SIGTERM)
    assert await engine.stopped() == 0


async def test_a_second_sigterm_does_not_wait(start_engine, session):
    engine = start_engine()
    task = asyncio.create_task(_read(session, engine.url + path(True), request_body(True, 1, 30_000, **STREAM)))
    await engine.eventually(lambda m: m("vllm:num_requests_running") == 1, "running")
    engine.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(120):
        while True:
            async with session.get(engine.url + "/health") as response:
                if response.status == 503:
                    break
    engine.process.send_signal(signal.SIGTERM)
    assert await engine.stopped() == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_while_the_model_loads_only_metrics_answer(start_engine, session):
    engine = start_engine("--startup-delay", "500", "--time-compression", "50")
    async with session.get(engine.url + "/health") as response:
        assert response.status == 503
        assert "loaded" in await response.text()
    async with session.post(engine.url + path(True), json=request_body(True, 1, 1)) as response:
        assert response.status == 503
    async with session.get(engine.url + "/v1/models") as response:
        assert response.status == 503
    assert (await engine.metrics())("vllm:num_requests_running") == 0
    async with asyncio.timeout(120):
        while True:
            async with session.get(engine.url + "/health") as response:
                if response.status == 200:
                    break
    async with session.post(engine.url + path(True), json=request_body(True, 1, 1)) as response:
        assert response.status == 200


async def test_a_taken_port_is_an_error_with_its_address(start_engine):
    engine = start_engine()
    port = engine.url.rsplit(":", 1)[1]
    process = await asyncio.create_subprocess_exec(
        *engine.process.args[:-1], port, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    _, stderr = await process.communicate()
    assert process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in stderr.decode()
