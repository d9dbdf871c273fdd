"""The agent's pure rules: images, variables, back-off, probes, addresses."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, strategies as st

from modelyard.cluster import Object
from modelyard.local.agent import logs
from modelyard.local.agent.containers import restart_delay
from modelyard.local.agent.launch import CannotRun, Inside, expand, plan, repository
from modelyard.local.agent.nodes import Addresses
from modelyard.local.agent.probes import ProbeFailure, ProbeTarget, ProbeTiming, watch
from modelyard.local.agent.volumes import CannotMount, PodVolumes, relocated
from modelyard.local.paths import LocalClusterError


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 0), (1, 0), (2, 10), (3, 20), (4, 40), (5, 80), (6, 160), (7, 300), (8, 300), (5000, 300)],
)
def test_back_off_as_on_a_cluster(failures: int, seconds: float) -> None:
    assert restart_delay(failures) == seconds
    assert restart_delay(failures, 0.1) == pytest.approx(seconds / 10)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("modelyard.dev/simulated-engine", "modelyard.dev/simulated-engine"),
        ("modelyard.dev/simulated-engine:1.2", "modelyard.dev/simulated-engine"),
        ("modelyard.dev/simulated-engine:1@sha256:abc", "modelyard.dev/simulated-engine"),
        ("registry:5000/a/b", "registry:5000/a/b"),
        ("alpine:3", "alpine"),
    ],
)
def test_an_image_without_tag_and_digest(image: str, name: str) -> None:
    assert repository(image) == name


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
        ("$()$(A)$", "$()1$"),
        ("$(X$(A))", "$(X$(A))"),
        ("$(a.b-c)", "3"),
        ("$( A)", "$( A)"),
    ],
)
def test_variables_expand_as_in_kubernetes(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2", "a.b-c": "3"}) == expanded


@pytest.mark.parametrize(
    ("text", "real"),
    [
        ("/mnt/m", "/n0/mnt"),
        ("/mnt/m/x/y", "/n0/mnt/x/y"),
        ("--root=/mnt/m", "--root=/n0/mnt"),
        ("cat '/mnt/m/x' > /dev/termination-log; ls /mnt/m/sub/z", "cat '/n0/mnt/x' > /t; ls /c/z"),
        ("local:///mnt/m/x", "local:///n0/mnt/x"),
        ("/mnt/models /mnt/m.old /mnt/m-2", "/mnt/models /mnt/m.old /mnt/m-2"),
        ("/data/mnt/m and s3://bucket/mnt/m and ./mnt/m", "/data/mnt/m and s3://bucket/mnt/m and ./mnt/m"),
    ],
)
def test_paths_below_a_mount_are_found_where_they_are(text: str, real: str) -> None:
    paths = {"/mnt/m": Path("/n0/mnt"), "/mnt/m/sub": Path("/c"), "/dev/termination-log": Path("/t")}
    assert relocated(text, paths) == real


ROOT = Path(__file__).parents[3]
ENGINE = {"name": "e", "image": "modelyard.dev/simulated-engine:v1", "args": ["--model", "$(MODEL)"]}


def test_the_engine_gets_the_pods_address_and_the_containers_port() -> None:
    launch = plan({**ENGINE, "ports": [{"containerPort": 8080}]}, {"MODEL": "m"}, Inside("127.20.1.1"), "pod-0")
    assert launch.argv == [
        *(sys.executable, "-m", "modelyard.engine"),
        *("--host", "127.20.1.1", "--port", "8080", "--model", "m"),
    ]
    assert launch.env["MODEL"] == "m"
    assert launch.env["HOSTNAME"] == "pod-0"


def test_the_containers_own_port_argument_wins() -> None:
    launch = plan({**ENGINE, "args": ["--port=9000"]}, {}, Inside("127.20.1.1"), "p")
    assert launch.argv[3:] == ["--host", "127.20.1.1", "--port=9000"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"command": ["modelyard"], "args": ["router"]}, ["-m", "deployments.command", "router"]),
        ({"args": ["prefect", "flow-run", "execute"]}, ["-m", "prefect", "flow-run", "execute"]),
        ({"command": ["python", "-m", "this"]}, ["-m", "this"]),
    ],
)
def test_programs_of_our_image_are_those_of_this_installation(given: dict[str, list[str]], wanted: list[str]) -> None:
    inside = Inside("127.20.1.1", {str(ROOT.parent): Path("/nowhere")})
    launch = plan({"name": "c", "image": "modelyard:0.1.0", **given}, {}, inside, "p")
    assert launch.argv == [sys.executable, *wanted]
    assert launch.cwd == ROOT, "also where a volume is mounted over a part of its path"


def test_the_users_environment_stays_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "private")
    assert "HF_TOKEN" not in plan(ENGINE, {}, Inside("127.20.1.1"), "p").env


def test_what_was_obtained_once_is_there_for_a_pod_with_another_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("MODELYARD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    found = plan(ENGINE, {"HOME": "/tmp"}, Inside("127.20.1.1"), "p").env
    assert (found["HOME"], found["MODELYARD_CACHE"]) == ("/tmp", str(tmp_path / ".cache" / "modelyard"))


@pytest.mark.parametrize(
    "container",
    [
        {"name": "c", "image": "vllm/vllm-openai", "command": ["vllm"]},
        {"name": "c", "image": "modelyard.dev.evil.example/x", "command": ["rm"]},
        {"name": "c", "image": "docker.io/modelyard.dev/x", "command": ["rm"]},
        {"name": "c", "image": "evil.example/modelyard:0.1.0", "command": ["rm"]},
        {"name": "c", "image": "modelyard@sha256:0"},
        {"name": "c", "image": "modelyard.dev/other"},
        {"name": "c"},
    ],
)
def test_nothing_else_is_executed(container: dict[str, object]) -> None:
    with pytest.raises(CannotRun) as caught:
        plan(container, {}, Inside("127.20.1.1"), "p")
    assert caught.value.permanent
    assert caught.value.reason == "ImageNotRunnable"


@given(st.lists(st.sampled_from(["take", "free"]), max_size=60))
def test_no_address_is_given_twice(steps: list[str]) -> None:
    addresses = Addresses("127.20")
    held: list[str] = []
    for step in steps:
        if step == "take":
            held.append(addresses.take())
        elif held:
            addresses.free(held.pop(0))
        assert len(set(held)) == len(held)
    assert not {addresses.node(index) for index in range(5)} & set(held)


def test_claimed_addresses_are_kept_and_foreign_ones_refused() -> None:
    addresses = Addresses("127.20")
    assert addresses.claim("127.20.1.1")
    assert not addresses.claim("127.20.1.1")
    assert not addresses.claim("127.21.1.1")
    assert addresses.take() == "127.20.1.2"
    with pytest.raises(LocalClusterError):
        addresses.node(254)


@pytest.mark.parametrize(
    ("results", "success", "failure", "verdicts"),
    [
        ([True], 1, 3, [True]),
        ([False, False, True], 1, 3, [True]),
        ([False, False, False], 1, 3, [False]),
        ([True, False, False, True, False], 1, 3, [True]),
        ([True, False, False, False, True], 1, 3, [True, False, True]),
        ([False, True, False, True, True], 2, 1, [False, True]),
    ],
)
async def test_a_probe_changes_its_mind_after_enough_equal_results(
    results: list[bool], success: int, failure: int, verdicts: list[bool]
) -> None:
    coming = iter(results)
    told: list[bool] = []
    over = asyncio.Event()

    async def attempt() -> None:
        try:
            result = next(coming)
        except StopIteration:
            over.set()
            await asyncio.Event().wait()
        if not result:
            raise ProbeFailure("no")

    timing = ProbeTiming(initial_delay=0, period=0, timeout=1, success_threshold=success, failure_threshold=failure)
    task = asyncio.create_task(watch(attempt, timing, elapsed=0, changed=told.append, failed=lambda why: None))
    await over.wait()
    task.cancel()
    assert told == verdicts


def test_probe_ports_by_number_and_name() -> None:
    target = ProbeTarget("127.20.1.1", {"http": 8000}, {})
    assert target.port(9) == 9
    assert target.port("9") == 9
    assert target.port("http") == 8000
    with pytest.raises(ProbeFailure, match="no port named 'grpc'"):
        target.port("grpc")


def hostile(root: Path, *volumes: Object, cluster: Any = None) -> PodVolumes:
    """A pod's volumes; no server is asked for any of these."""
    spec = {"nodeName": "node", "volumes": [{"name": "it", **volume} for volume in volumes]}
    pod = {"metadata": {"namespace": "tenant", "uid": "uid"}, "spec": spec}
    return PodVolumes(cluster, root, root / "kubeconfig", pod, str)


def container(**mount: str) -> Object:
    return {"name": "main", "volumeMounts": [{"name": "it", "mountPath": "/it", **mount}] if mount else []}


@pytest.mark.parametrize(
    ("volume", "sub"),
    [
        ({"persistentVolumeClaim": {"claimName": "../other/claim"}}, ""),
        ({"persistentVolumeClaim": {"claimName": "link"}}, ""),
        ({"hostPath": {"path": "/../other/disk"}}, ""),
        ({"hostPath": {"path": "/link"}}, ""),
        ({"hostPath": {"path": "/link/new", "type": "FileOrCreate"}}, ""),
        ({"hostPath": {"path": "/"}}, "link/new"),
        ({"hostPath": {"path": "/"}}, "../other"),
        ({"emptyDir": {}}, "../../../other"),
        ({"downwardAPI": {"items": [{"path": "../x", "fieldRef": {"fieldPath": "metadata.name"}}]}}, ""),
        ({"downwardAPI": {"items": [{"path": "x", "resourceFieldRef": {"resource": "limits.cpu"}}]}}, ""),
    ],
)
async def test_no_volume_leads_out_of_its_folder(tmp_path: Path, volume: Object, sub: str) -> None:
    """Neither by a name that the API server lets through nor by a link that an earlier pod left there."""
    other = tmp_path / "claims" / "other" / "claim"
    other.mkdir(parents=True)
    for folder in (tmp_path / "claims" / "tenant", tmp_path / "nodes" / "node"):
        folder.mkdir(parents=True)
        (folder / "link").symlink_to(other)
    with pytest.raises(CannotMount):
        await hostile(tmp_path, volume).mount(container(subPath=sub))
    assert not list(other.iterdir())


async def test_what_a_process_leaves_as_its_last_words_does_not_hold_the_agent_up(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("theirs")
    for leave in (os.mkfifo, lambda log: log.symlink_to(secret), lambda log: log.symlink_to("/dev/zero")):
        volumes = hostile(tmp_path)
        log = (await volumes.mount(container()))["/dev/termination-log"]
        log.unlink()
        leave(log)
        assert volumes.last_words(container(), 0, log, 0) == ""
        assert (await volumes.mount(container()))["/dev/termination-log"].read_bytes() == b""
    assert secret.read_text() == "theirs"
    log.write_text("x" * 5000)
    assert volumes.last_words(container(), 0, log, 0) == "x" * 4096


@given(st.text("ab\n", max_size=40), st.integers(0, 12), st.integers(0, 40), st.integers(1, 5))
def test_the_last_lines_of_a_log_are_found_from_its_end(text: str, lines: int, begin: int, chunk: int) -> None:
    begin = min(begin, len(text))
    with tempfile.NamedTemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_CHUNK", chunk)
        Path(file.name).write_text(text)
        for end in (None, len(text)):
            at = logs._before_last(Path(file.name), begin, end, lines)
            kept = text[begin:].splitlines(keepends=True)
            assert text[at:] == "".join(kept[max(0, len(kept) - lines) :])


@pytest.mark.parametrize(
    ("text", "real"),
    [
        ("--host=0.0.0.0", "--host=127.20.1.1"),
        ("http://127.0.0.1:8000/metrics", "http://127.20.1.1:8000/metrics"),
        ("localhost:8000", "127.20.1.1:8000"),
        ("http://127.0.0.1:4000", "http://127.0.0.1:4000"),
        ("http://127.0.0.1:80001 127.0.0.1 1.127.0.0.1:8000", "http://127.0.0.1:80001 127.0.0.1 1.127.0.0.1:8000"),
        ("my-localhost:8000 10.0.0.0 0.0.0.0.example", "my-localhost:8000 10.0.0.0 0.0.0.0.example"),
        ("/models/x on 0.0.0.0:8000", "/n0/x on 127.20.1.1:8000"),
    ],
)
def test_a_pods_own_address_is_what_it_calls_itself(text: str, real: str) -> None:
    assert Inside("127.20.1.1", {"/models": Path("/n0")}, frozenset({8000}))(text) == real


async def test_what_is_made_of_a_config_map_is_replaced_in_one_step_and_names_real_paths(tmp_path: Path) -> None:
    class Server:
        data: ClassVar = {"list": '[{"path": "/it/x"}]', "old": "1"}

        async def get(self, *_: Any) -> Object:
            return {"data": self.data}

    server = Server()
    volumes = hostile(tmp_path, {"configMap": {"name": "adapters"}}, cluster=server)
    folder = (await volumes.mount(container(mountPath="/it")))["/it"]
    assert (folder / "list").read_text() == f'[{{"path": "{folder}/x"}}]'
    held = (folder / "list").open()
    Server.data = {"list": "[]"}
    await volumes.mount(container(mountPath="/it"), anew=False)
    assert held.read() == f'[{{"path": "{folder}/x"}}]'
    assert [path.name for path in folder.iterdir()] == ["list"]
    assert (folder / "list").read_text() == "[]"
    assert volumes.mounts("configMap", "adapters")
    assert not volumes.mounts("configMap", "other")
