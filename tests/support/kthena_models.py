"""Models of every backend type, and what they are rendered to: the files in ``tests/data/kthena``.

``python tests/support/kthena_models.py`` writes the rendered files anew; what has changed is to be read before it is
kept.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from modelyard.resources.registry import Model
from modelyard.workloads.kthena.render import rendered
from modelyard.workloads.rendering.values import Abilities, Refused, Rendered, read_resource

DATA = Path(__file__).parents[1] / "data" / "kthena"
LWS = Abilities(frozenset({"leaderworkerset.x-k8s.io/v1/LeaderWorkerSet"}))
PLAIN = Abilities()
UID = "3f1c9c1e-0000-4000-8000-000000000001"
ABILITIES = {"vllm-several-pods-lws": LWS}
"""Of the files that are rendered for a cluster that serves more than every cluster does."""


def names() -> list[str]:
    """The Models there are."""
    return sorted(path.stem for path in DATA.glob("*.yaml") if not path.name.endswith(".rendered.yaml"))


def model_named(name: str) -> dict[str, Any]:
    """One of them, as the API sends it."""
    found: dict[str, Any] = yaml.safe_load((DATA / f"{name}.yaml").read_text("utf-8"))
    found["metadata"] |= {"uid": UID, "generation": 1}
    return found


def rendered_named(name: str) -> Rendered:
    """What it is rendered to."""
    return children(model_named(name), ABILITIES.get(name, PLAIN))


def render_model(obj: dict[str, Any], abilities: Abilities, **more: Any) -> Rendered | Refused:
    """Read a Model as the API sends it, and render it."""
    model = read_resource(Model, obj)
    return model if isinstance(model, Refused) else rendered(model, abilities, **more)


def children(model: dict[str, Any], abilities: Abilities = PLAIN, **more: Any) -> Rendered:
    """The children of a Model that can be rendered."""
    found = render_model(model, abilities, **more)
    assert isinstance(found, Rendered), str(found)
    return found


def refused(model: dict[str, Any], abilities: Abilities = PLAIN) -> Refused:
    """Why a Model cannot be rendered."""
    found = render_model(model, abilities)
    assert isinstance(found, Refused), found
    return found


def a_model(*backends: dict[str, Any], name: str = "chat", client_name: str = "", **spec: Any) -> dict[str, Any]:
    """A Model with these backends."""
    if client_name:
        spec["name"] = client_name
    return {
        "apiVersion": "registry.volcano.sh/v1alpha1",
        "kind": "Model",
        "metadata": {"name": name, "namespace": "shop", "uid": UID, "generation": 1},
        "spec": {"backends": list(backends) or [a_backend()], **spec},
    }


def served_here(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The object; of a kind that no server of these tests has, the pods it would make."""
    if body["kind"] != "LeaderWorkerSet":
        return [copy.deepcopy(body)]
    template = body["spec"]["leaderWorkerTemplate"]
    pods = []
    for part in template.keys() & {"leaderTemplate", "workerTemplate"}:
        one = copy.deepcopy(template[part])
        one["metadata"]["name"] = f"{body['metadata']['name']}-{part.lower()}"
        pods.append({"apiVersion": "v1", "kind": "Pod", **one})
    return pods


def a_backend(type: str = "vLLM", name: str = "main", workers: Any = None, **more: Any) -> dict[str, Any]:
    """A backend of one replica."""
    apart = type.endswith("Disaggregated")
    given = workers or [a_worker(one) for one in (("prefill", "decode") if apart else ("server",))]
    fixed = {"name": name, "type": type, "modelURI": "hf://Qwen/Qwen2.5-0.5B-Instruct", "minReplicas": 1}
    return copy.deepcopy({**fixed, "maxReplicas": 1, "workers": given, **more})


def a_worker(type: str = "server", **more: Any) -> dict[str, Any]:
    """A worker with an image."""
    return {"type": type, "image": "vllm/vllm-openai:v0.11.0", **more}


def of_kind(rendered: Rendered, kind: str) -> list[dict[str, Any]]:
    """The children of a kind."""
    return [child.body for child in rendered.children if child.kind == kind]


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    """The spec of a Deployment's or StatefulSet's pods."""
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def engine_of(workload: dict[str, Any]) -> dict[str, Any]:
    """The container of the engine."""
    return next(one for one in pod_of(workload)["containers"] if one["name"] == "engine")


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def written(rendered: Rendered) -> str:
    """The children as a file has them."""
    bodies = [child.body for child in rendered.children]
    return yaml.dump_all(bodies, Dumper=_Dumper, sort_keys=True, width=120)


if __name__ == "__main__":
    for one in names():
        (DATA / f"{one}.rendered.yaml").write_text(written(rendered_named(one)), "utf-8")
