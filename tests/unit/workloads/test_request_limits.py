"""``timeoutSeconds`` and ``containerConcurrency`` take effect where they can, and are told where they cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from modelyard.objects import Namespace
from modelyard.objects.deployment_modes import MODE
from modelyard.resources import ClusterServingRuntime, InferenceService, ModelServer
from modelyard.resources.duration import Duration
from modelyard.workloads.rendering.components import INITIAL_REPLICAS
from modelyard.workloads.rendering.model_routes import ROUTED
from modelyard.workloads.rendering.render import render
from modelyard.workloads.rendering.request_limits import CONCURRENCY, LONGEST, TIMEOUT, duration, with_concurrency
from modelyard.workloads.rendering.settings import ServingSettings
from modelyard.workloads.rendering.values import Abilities, Refused, Rendered

CATALOGUE = Path(__file__).parents[3] / "config" / "runtimes"
NETWORKING = ("networking.volcano.sh/v1alpha1/ModelServer", "networking.volcano.sh/v1alpha1/ModelRoute")
SERVED = frozenset(
    (
        "autoscaling/v2/HorizontalPodAutoscaler",
        "gateway.networking.k8s.io/v1/HTTPRoute",
        "leaderworkerset.x-k8s.io/v1/LeaderWorkerSet",
        "serving.knative.dev/v1/Service",
        *NETWORKING,
    )
)
INGRESS: dict[str, Any] = {"disable_ingress_creation": False, "ingress_domain": "example.com"}
GATEWAY = {**INGRESS, "enable_gateway_api": True, "ome_ingress_gateway": "gateways/public"}


def runner(image: str = "vllm/vllm-openai:v0.11.0", *args: str, command: list[str] | None = None) -> dict[str, Any]:
    given = {"args": list(args) or ["--model=/m", "--port=8080"], **({"command": command} if command else {})}
    return {"name": "ome-container", "image": image, **given}


def outcome(
    spec: Mapping[str, Any],
    ingress: Mapping[str, Any] | None = None,
    elsewhere: frozenset[str] = frozenset(),
    runtime: ClusterServingRuntime | None = None,
    **annotations: str,
) -> Rendered | Refused:
    metadata = {"name": "chat", "namespace": "shop", "annotations": annotations}
    parsed = InferenceService.parse(
        {"apiVersion": "ome.io/v1beta1", "kind": "InferenceService", "metadata": metadata, "spec": dict(spec)}
    )
    settings = ServingSettings()
    changed = settings.ingress.model_copy(update=dict(ingress or {}))
    abilities = Abilities(SERVED, settings.model_copy(update={"ingress": changed}), {"shop": Namespace("shop")})
    return render(parsed, None, runtime, abilities, elsewhere=elsewhere)


def rendered(spec: Mapping[str, Any], ingress: Mapping[str, Any] | None = None, **more: Any) -> Rendered:
    result = outcome(spec, ingress, **more)
    assert isinstance(result, Rendered), result
    return result


def bodies(result: Rendered, kind: str) -> list[dict[str, Any]]:
    return [child.body for child in result.children if child.kind == kind]


def notes(result: Rendered, reason: str) -> list[str]:
    return [note.message for note in result.notes if note.reason == reason]


def engine(**more: Any) -> dict[str, Any]:
    return {"engine": {"runner": runner(), **more}}


# Time-outs


def test_a_routed_service_has_its_time_out_on_the_model_server() -> None:
    result = rendered(engine(timeoutSeconds=45), **{ROUTED: "true"})
    (server,) = bodies(result, "ModelServer")
    policy = ModelServer.parse(server).spec.traffic_policy
    assert policy is not None
    assert policy.timeout == Duration("45s")
    assert notes(result, TIMEOUT) == []
    (free,) = bodies(rendered(engine(), **{ROUTED: "true"}), "ModelServer")
    assert "trafficPolicy" not in free["spec"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "60s"), (0, "60s"), (600, "600s"), (100_000, "27h46m40s"), (10**15, "99999h")],
)
def test_routes_have_the_time_out_of_each_component(seconds: int | None, expected: str) -> None:
    given = {} if seconds is None else {"timeoutSeconds": seconds}
    spec = {**engine(**given), "decoder": {"runner": runner(), "timeoutSeconds": 7}}
    result = rendered(spec, GATEWAY)
    timeouts = {
        route["spec"]["rules"][0]["backendRefs"][0]["name"]: route["spec"]["rules"][0]["timeouts"]["request"]
        for route in bodies(result, "HTTPRoute")
    }
    assert timeouts == {"chat-engine": expected, "chat-decoder": "7s"}
    assert notes(result, TIMEOUT) == []


@pytest.mark.parametrize(
    ("ingress_class", "expected"),
    [
        (
            "nginx",
            {
                "nginx.ingress.kubernetes.io/proxy-read-timeout": "45",
                "nginx.ingress.kubernetes.io/proxy-send-timeout": "45",
            },
        ),
        ("internal-nginx", {"nginx.ingress.kubernetes.io/proxy-read-timeout": "45"}),
        ("haproxy", {"haproxy.org/timeout-server": "45s", "haproxy-ingress.github.io/timeout-server": "45s"}),
        ("contour", {"projectcontour.io/response-timeout": "45s"}),
        ("traefik", {}),
        ("", {}),
    ],
)
def test_an_ingress_has_the_time_out_where_its_class_takes_one(ingress_class: str, expected: dict[str, str]) -> None:
    result = rendered(engine(timeoutSeconds=45), {**INGRESS, "ingress_class_name": ingress_class})
    (ingress,) = bodies(result, "Ingress")
    annotations = ingress["metadata"].get("annotations") or {}
    assert expected.items() <= annotations.items()
    told = notes(result, TIMEOUT)
    if expected:
        assert told == []
    else:
        named = f"class {ingress_class}" if ingress_class else "the cluster's default class"
        assert told == [
            f"engine: timeoutSeconds 45 has no effect: an Ingress of {named} has no annotation for it that is known "
            'here; set modelyard.dev/routed: "true" or enableGatewayAPI'
        ]


def test_the_annotation_of_a_service_wins() -> None:
    own = {"nginx.ingress.kubernetes.io/proxy-read-timeout": "600"}
    result = rendered(engine(timeoutSeconds=45), {**INGRESS, "ingress_class_name": "nginx"}, **own)
    (ingress,) = bodies(result, "Ingress")
    assert own.items() <= ingress["metadata"]["annotations"].items()


def test_a_time_out_that_nothing_enforces_is_told() -> None:
    result = rendered(engine(timeoutSeconds=45))
    assert notes(result, TIMEOUT) == [
        "engine: timeoutSeconds 45 has no effect: requests reach its pods without a proxy that limits them; "
        'set modelyard.dev/routed: "true" or enableGatewayAPI'
    ]
    split = {**engine(), "decoder": {"runner": runner(), "timeoutSeconds": 7}}
    for ingress, more in (({}, {ROUTED: "true"}), ({**INGRESS, "ingress_class_name": "nginx"}, {})):
        (told,) = notes(rendered(split, ingress, **more), TIMEOUT)
        assert told.startswith("decoder: timeoutSeconds 7 has no effect: ")
        assert told.endswith("set enableGatewayAPI, which has a route for each component")


def test_knative_enforces_both() -> None:
    result = rendered(engine(timeoutSeconds=45, containerConcurrency=3), **{MODE: "Serverless"})
    (service,) = (body for body in bodies(result, "Service") if body["apiVersion"].startswith("serving.knative.dev"))
    spec = service["spec"]["template"]["spec"]
    assert (spec["timeoutSeconds"], spec["responseStartTimeoutSeconds"], spec["containerConcurrency"]) == (45, 45, 3)
    assert not any("max-num-seqs" in argument for argument in spec["containers"][0]["args"])
    assert notes(result, TIMEOUT) == notes(result, CONCURRENCY) == []


@pytest.mark.parametrize("field", ["timeoutSeconds", "containerConcurrency"])
def test_a_limit_below_zero_is_refused(field: str) -> None:
    result = outcome(engine(**{field: -1}))
    assert isinstance(result, Refused)
    assert str(result) == f"spec.engine.{field}: -1 is below 0 - write 0 or more"


@given(st.integers(1, 2**63 - 1))
def test_any_time_out_is_a_duration_of_both_go_and_the_gateway(seconds: int) -> None:
    text = duration(seconds)
    assert re.fullmatch(r"([0-9]{1,5}(h|m|s|ms)){1,4}", text)
    assert Duration(text).seconds == min(seconds, LONGEST)


# Concurrency


VLLM, SGLANG = "vllm/vllm-openai:v0.11.0", "lmsysorg/sglang:v0.5.9"
LAUNCH = ["python3", "-m", "sglang.launch_server"]


@pytest.mark.parametrize(
    ("image", "command", "args", "most", "added"),
    [
        (VLLM, None, ["--model=/m"], 8, "--max-num-seqs=8"),
        (VLLM, ["vllm"], ["serve", "/m"], 8, "--max-num-seqs=8"),
        ("mine:1", ["python3", "-m", "vllm.entrypoints.openai.api_server"], ["--model", "/m"], 8, "--max-num-seqs=8"),
        ("modelyard.dev/simulated-engine:latest", None, ["--model=/m"], 8, "--max-num-seqs=8"),
        (SGLANG, LAUNCH, ["--model-path=/m"], 8, "--max-running-requests=8"),
        ("mine:1", ["/opt/venv/bin/sglang", "serve"], ["--model-path=/m"], 8, "--max-running-requests=8"),
        # The name of a model is not the engine's.
        (VLLM, ["vllm", "serve"], ["/models/sglang.launch"], 8, "--max-num-seqs=8"),
        # Each rank has the limit for itself.
        (VLLM, None, ["--model=/m", "--data-parallel-size=4"], 10, "--max-num-seqs=2"),
        (VLLM, None, ["--model=/m", "--data-parallel-size", "4"], 3, "--max-num-seqs=1"),
        (SGLANG, LAUNCH, ["--model-path=/m", "--dp", "2"], 8, "--max-running-requests=4"),
        (SGLANG, LAUNCH, ["--model-path=/m", "--dp-size=2", "--enable-dp-attention"], 8, "--max-running-requests=8"),
        # vLLM does not start with more requests than tokens in a step.
        (VLLM, None, ["--model=/m", "--max-num-batched-tokens=16"], 32, "--max-num-seqs=16"),
    ],
)
def test_the_engine_takes_so_many_requests(
    image: str, command: list[str] | None, args: list[str], most: int, added: str
) -> None:
    (deployment,) = bodies(
        rendered({"engine": {"runner": runner(image, *args, command=command), "containerConcurrency": most}}),
        "Deployment",
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [*args, added]
    assert container.get("command") == command


@pytest.mark.parametrize(
    ("args", "most"),
    [
        (["--model=/m"], 0),
        (["--model=/m"], None),
        (["--model=/m", "--max-num-seqs=8"], 8),
        (["--model=/m", "--max_num_seqs", "8"], 20),
        (["--model=/m", "--max-num-seqs=4", "--data-parallel-size=2"], 8),
        # No engine takes more than that anyway.
        (["--model=/m"], 1024),
    ],
)
def test_an_engine_within_the_limit_stays_as_it_is(args: list[str], most: int | None) -> None:
    container = {"name": "engine", "image": VLLM, "args": args}
    assert with_concurrency(container, most) == (container, "")


@pytest.mark.parametrize(
    ("container", "message"),
    [
        (runner(VLLM, "--max-num-seqs=64"), "the container sets --max-num-seqs 64 itself; remove that argument"),
        (runner(VLLM, "--max-num-seqs=8", "--data-parallel-size=2"), "the container sets --max-num-seqs 8 itself"),
        (runner(VLLM, "--max-num-seqs=$(SEQS)"), "the container sets --max-num-seqs $(SEQS) itself"),
        (runner("mine:1", "--model=/m"), "its container runs neither vLLM nor SGLang"),
        (runner(VLLM, "--model=/m", command=["/start.sh"]), "its container runs neither vLLM nor SGLang"),
        ({"name": "ome-container", "image": VLLM}, "the image's own arguments would be lost; write args with"),
        (runner(VLLM, "exec /start.sh # vllm serve", command=["sh", "-c"]), "its container runs neither vLLM nor"),
        (runner(VLLM, "vllm serve '/m", command=["sh", "-c"]), "its container runs neither vLLM nor"),
    ],
)
def test_a_concurrency_that_the_engine_does_not_take_is_told(container: dict[str, Any], message: str) -> None:
    result = rendered({"engine": {"runner": container, "containerConcurrency": 8}})
    (told,) = notes(result, CONCURRENCY)
    assert told.startswith(f"engine: containerConcurrency 8 has no effect: {message}")
    (deployment,) = bodies(result, "Deployment")
    (made,) = deployment["spec"]["template"]["spec"]["containers"]
    assert (made.get("command"), made.get("args")) == (container.get("command"), container.get("args"))


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        (["sh", "-c"], ["exec vllm serve /m --port=8080"], (["sh", "-c"], ["exec vllm serve /m --port=8080 {}"])),
        (
            ["bash", "-lc", "ulimit -n 65536; vllm serve /m"],
            None,
            (["bash", "-lc", "ulimit -n 65536; vllm serve /m {}"], None),
        ),
        (
            ["/bin/sh", "-c"],
            ["vllm serve /m \\\n  --port 8080\n"],
            (["/bin/sh", "-c"], ["vllm serve /m \\\n  --port 8080 {}\n"]),
        ),
        (["sh", "-c"], ["vllm serve /m | tee log"], (["sh", "-c"], ["vllm serve /m {} | tee log"])),
    ],
)
def test_the_engine_of_a_script_gets_the_argument(
    command: list[str], args: list[str] | None, expected: tuple[list[str], list[str] | None]
) -> None:
    container = {"name": "engine", "image": VLLM, "command": command, **({"args": args} if args else {})}
    limited, problem = with_concurrency(container, 8)
    assert problem == ""
    filled = [
        None if words is None else [word.replace("{}", "--max-num-seqs=8") for word in words] for words in expected
    ]
    assert [limited["command"], limited.get("args")] == filled


def test_decoder_and_router_have_their_own() -> None:
    spec = {
        **engine(containerConcurrency=4),
        "decoder": {"runner": runner(), "containerConcurrency": 6},
        "router": {"runner": runner("mine:1"), "containerConcurrency": 9},
    }
    result = rendered(spec)
    made = {
        body["metadata"]["name"]: body["spec"]["template"]["spec"]["containers"][0]["args"][-1]
        for body in bodies(result, "Deployment")
    }
    assert made["chat-engine"] == "--max-num-seqs=4"
    assert made["chat-decoder"] == "--max-num-seqs=6"
    (told,) = notes(result, CONCURRENCY)
    assert told.startswith("router: containerConcurrency 9 has no effect: its container runs neither")


def runtimes() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(CATALOGUE.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text("utf-8")):
            if document and document["kind"] == "ClusterServingRuntime":
                yield path.stem, document


@pytest.mark.parametrize(("name", "document"), list(runtimes()))
def test_every_runtime_of_the_catalogue_takes_the_limit(name: str, document: dict[str, Any]) -> None:
    """Also in groups, where every pod that runs the engine has the same arguments."""
    parts = [part for part in ("engine", "decoder") if f"{part}Config" in document["spec"]]
    spec = {part: {"containerConcurrency": 8} for part in parts}
    result = rendered(spec, runtime=ClusterServingRuntime.parse(document))
    assert notes(result, CONCURRENCY) == []
    launches = [container for container in containers(result) if "engine" in container["image"] or runs(container)]
    assert launches
    for container in launches:
        line = " ".join((*container.get("command", ()), *container["args"]))
        assert re.search(r"--max-(num-seqs|running-requests)=8\b", line), line


def runs(container: Mapping[str, Any]) -> bool:
    line = " ".join((*container.get("command", ()), *container["args"]))
    return "sglang.launch_server" in line or "vllm serve" in line or "--model=" in line


def containers(result: Rendered) -> Iterator[dict[str, Any]]:
    for body in bodies(result, "Deployment"):
        yield from body["spec"]["template"]["spec"]["containers"]
    for body in bodies(result, "LeaderWorkerSet"):
        for part in ("leaderTemplate", "workerTemplate"):
            yield from body["spec"]["leaderWorkerTemplate"][part]["spec"]["containers"]


# Replicas to begin with


@pytest.mark.parametrize(
    ("text", "scaling", "expected"),
    [
        (None, {"minReplicas": 0}, 1),
        ("3", {"minReplicas": 0, "maxReplicas": 6}, 3),
        ("9", {"minReplicas": 0, "maxReplicas": 6}, 6),
        ("2", {"minReplicas": 4}, 4),
        ("7", {}, 7),
    ],
)
def test_a_scaled_component_begins_with_its_initial_replicas(
    text: str | None, scaling: dict[str, int], expected: int
) -> None:
    annotations = {} if text is None else {INITIAL_REPLICAS: text}
    result = rendered(engine(**scaling), elsewhere=frozenset(("chat-engine",)), **annotations)
    (child,) = (child for child in result.children if child.kind == "Deployment")
    assert (child.seed, child.body["spec"].get("replicas")) == (expected, None)


@pytest.mark.parametrize("text", ["0", "-1", "two", "1e3", "\u0663"])
def test_initial_replicas_are_a_number(text: str) -> None:
    result = outcome(engine(), elsewhere=frozenset(("chat-engine",)), **{INITIAL_REPLICAS: text})
    assert isinstance(result, Refused)
    assert INITIAL_REPLICAS in str(result)
