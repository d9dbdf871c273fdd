"""Repetition and its limits, against a real HTTP server that answers by script."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from modelyard.cluster import Cluster, ClusterError, ClusterSettings, Unavailable
from modelyard.cluster.crd_install import install_crds
from modelyard.objects.kinds import CONFIG_MAPS, PODS
from modelyard.resources import ModelRoute, ModelServer, VariantAutoscaling
from modelyard.resources.crd import crd

POD = {"metadata": {"name": "p", "namespace": "ns"}}
Answer = tuple[int, dict[str, Any], dict[str, str]]


def status(code: int, reason: str = "", **headers: str) -> Answer:
    return code, {"kind": "Status", "reason": reason, "message": "scripted", "details": {"name": "p"}}, headers


class Script:
    """Answers with each entry in turn, and with the last one from then on."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[web.Request] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        code, body, headers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return web.json_response(body, status=code, headers=headers)


@pytest.fixture
def serving(tmp_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def serve(script: Script, **settings: Any) -> AsyncIterator[Cluster]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", script.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        config = {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        quick = {"retry_delay": 0.001, **settings}
        async with Cluster.connect(ClusterSettings(kubeconfig=path, **quick)) as cluster:
            yield cluster
        await runner.cleanup()

    return serve


OK: Answer = (200, POD, {})


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
async def test_a_passing_failure_is_not_noticed(serving: Callable[..., Any], code: int) -> None:
    script = Script(status(code), status(code), OK)
    async with serving(script) as cluster:
        assert await cluster.get(PODS, "p", "ns") == POD
    assert len(script.requests) == 3
    assert script.requests[0].headers["Authorization"] == "Bearer secret"
    assert script.requests[0].headers["Accept-Encoding"] == "identity"


async def test_a_lasting_failure_ends_after_the_steps(serving: Callable[..., Any]) -> None:
    script = Script(status(503))
    async with serving(script, retry_steps=4) as cluster:
        with pytest.raises(Unavailable, match=r"get Pod ns/p: 503: scripted, tried 4 times"):
            await cluster.get(PODS, "p", "ns")
    assert len(script.requests) == 4


@pytest.mark.parametrize("code", [400, 403, 404, 409, 410, 422])
async def test_a_refusal_is_final(serving: Callable[..., Any], code: int) -> None:
    script = Script(status(code))
    async with serving(script) as cluster:
        with pytest.raises(ClusterError):
            await cluster.get(PODS, "p", "ns")
    assert len(script.requests) == 1


Call = Callable[[Cluster], Any]

WRITES: list[tuple[str, Call, bool]] = [
    ("create", lambda c: c.create(PODS, POD), False),
    ("merge patch", lambda c: c.merge_patch(PODS, "p", {}, "ns"), True),
    ("replace", lambda c: c.replace(PODS, POD), True),
    ("delete", lambda c: c.delete(PODS, "p", "ns"), True),
    ("scale", lambda c: c.write_scale(PODS, "p", "ns", 1), True),
]


@pytest.mark.parametrize(("call", "repeated"), [write[1:] for write in WRITES], ids=[write[0] for write in WRITES])
async def test_only_idempotent_writes_are_repeated_after_a_failure(
    serving: Callable[..., Any], call: Call, repeated: bool
) -> None:
    script = Script(status(500), OK)
    async with serving(script) as cluster:
        if repeated:
            await call(cluster)
        else:
            with pytest.raises(Unavailable):
                await call(cluster)
    assert len(script.requests) == (2 if repeated else 1)


@pytest.mark.parametrize("call", [write[1] for write in WRITES], ids=[write[0] for write in WRITES])
async def test_every_write_is_repeated_when_the_server_put_it_off(serving: Callable[..., Any], call: Call) -> None:
    script = Script(status(429, **{"Retry-After": "0"}), OK)
    async with serving(script) as cluster:
        await call(cluster)
    assert len(script.requests) == 2


async def test_the_asked_pause_is_kept_or_the_call_given_up(serving: Callable[..., Any]) -> None:
    script = Script(status(429, **{"Retry-After": "3600"}), OK)
    async with serving(script) as cluster:
        with pytest.raises(Unavailable) as caught:
            await cluster.get(PODS, "p", "ns")
    assert caught.value.retry_after == 3600
    assert len(script.requests) == 1, "an hour does not fit into the call's time limit"


async def test_the_call_s_time_limit_stops_repetition(serving: Callable[..., Any]) -> None:
    script = Script(status(503))
    async with serving(script, retry_delay=0.2) as cluster:
        with pytest.raises(Unavailable):
            await cluster.get(PODS, "p", "ns", timeout=0.3)
    # Of five tries; a busy machine comes to fewer than two.
    assert len(script.requests) <= 2


async def test_a_delete_whose_answer_was_lost(serving: Callable[..., Any]) -> None:
    script = Script(status(504), status(404, "NotFound"))
    async with serving(script) as cluster:
        await cluster.delete(PODS, "p", "ns")
        assert len(script.requests) == 2


async def test_gzip_on_request(serving: Callable[..., Any]) -> None:
    script = Script((200, {"metadata": {"resourceVersion": "7"}, "items": [POD]}, {}))
    async with serving(script, compression=True) as cluster:
        listed = await cluster.list(CONFIG_MAPS, "ns", "a=b,c in (d,e)", cached=True)
    assert (len(listed), listed.resource_version) == (1, "7")
    (request,) = script.requests
    assert request.headers["Accept-Encoding"] == "gzip"
    assert dict(request.query) == {"labelSelector": "a=b,c in (d,e)", "resourceVersion": "0"}


async def test_a_proxy_for_the_world_is_not_used_for_this_machine(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    async with serving(Script(OK)) as cluster:
        assert await cluster.get(PODS, "p", "ns") == POD


async def test_a_definition_is_not_refused_by_a_server_that_does_not_know_all_of_it(
    serving: Callable[..., Any],
) -> None:
    """Servers from 1.25 to 1.27 refuse the path of a rule where they are asked to be strict."""
    made = {**crd(ModelServer), "status": {"conditions": [{"type": "Established", "status": "True"}]}}
    script = Script(status(404), status(404), (201, made, {}), (200, made, {}))
    async with serving(script) as cluster:
        assert await install_crds(cluster, [crd(ModelServer)]) == [made["metadata"]["name"]]
    (written,) = [request for request in script.requests if request.method == "POST"]
    assert written.query["fieldValidation"] == "Warn"


async def test_fields_that_an_old_server_drops_are_one_line_about_all_definitions(
    serving: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    def of_old_server(node: Any) -> Any:
        if isinstance(node, list):
            return [of_old_server(item) for item in node]
        if not isinstance(node, dict):
            return node
        return {key: of_old_server(item) for key, item in node.items() if key != "pattern"}

    sent = [crd(VariantAutoscaling), crd(ModelRoute)]
    made = [
        {**of_old_server(one), "status": {"conditions": [{"type": "Established", "status": "True"}]}} for one in sent
    ]
    created = [answer for one in made for answer in (status(404), (201, one, {}))]
    script = Script(status(404), status(404), *created, *((200, one, {}) for one in made))
    async with serving(script) as cluster:
        await install_crds(cluster, sent)
    (told,) = [one.getMessage() for one in caplog.records if "dropped" in one.getMessage()]
    assert re.search(r"^2 definitions: .+ does not know: pattern \(\d+ times\)$", told)
