"""Fields by which a service could run code of its own in pods to which its runtime gives rights. Pure.

Only an administrator gives pods rights, by a ClusterServingRuntime. The service may then size and place such pods, and
no more: images, commands, files and most variables (``LD_PRELOAD``, ``PYTHONPATH``) decide which code runs, and so do
many options of engines (``--worker-cls``, ``--trust-remote-code``). New fields and options appear with every release of
an engine, so what is not listed here is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from modelyard.objects import mapping
from modelyard.workloads.rendering.components import SCALING_FIELDS
from modelyard.workloads.rendering.engine_options import flag
from modelyard.workloads.rendering.values import Body

_PARTS: Final = frozenset(
    (
        *SCALING_FIELDS,
        *("runner", "leader", "worker", "config", "size", "nodeSelector", "nodeName", "tolerations", "affinity"),
        *("priorityClassName", "priority", "preemptionPolicy", "schedulerName", "topologySpreadConstraints"),
        *("terminationGracePeriodSeconds", "activeDeadlineSeconds", "imagePullSecrets", "restartPolicy"),
        *("automountServiceAccountToken", "enableServiceLinks", "acceleratorOverride", "acceleratorConstraints"),
        # Rights of their own, which ``reach.check`` has looked at.
        *("hostNetwork", "hostPID", "hostIPC", "serviceAccountName", "serviceAccount"),
    )
)
_RUNNER: Final = frozenset(("name", "resources", "ports", "args", "env", "imagePullPolicy", "terminationMessagePolicy"))
_FLAGS: Final = frozenset(
    (
        *("max-model-len", "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization", "dtype", "seed"),
        *("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "enable-expert-parallel"),
        *("kv-cache-dtype", "block-size", "swap-space", "cpu-offload-gb", "enforce-eager", "served-model-name"),
        *("enable-prefix-caching", "no-enable-prefix-caching", "enable-chunked-prefill", "no-enable-chunked-prefill"),
        *("disable-log-requests", "disable-log-stats", "uvicorn-log-level", "log-level", "port", "host"),
        *("enable-lora", "max-loras", "max-lora-rank", "max-cpu-loras", "enable-auto-tool-choice"),
        *("tool-call-parser", "reasoning-parser", "quantization", "max-seq-len-to-capture", "max-logprobs"),
        *("tp", "tp-size", "pp-size", "dp-size", "ep-size", "context-length", "mem-fraction-static"),
        *("chunked-prefill-size", "max-running-requests", "max-total-tokens", "max-prefill-tokens"),
        *("schedule-policy", "disable-radix-cache", "max-loras-per-batch"),
    )
)
"""Options of vLLM and SGLang that choose sizes, names and number formats."""
_VARIABLES: Final = frozenset(
    (
        *("OMP_NUM_THREADS", "TZ", "LANG", "LOG_LEVEL", "VLLM_LOGGING_LEVEL", "SGLANG_LOG_LEVEL"),
        *("HF_TOKEN", "HF_HUB_OFFLINE"),
        *("NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_DISABLE"),
        *("GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "SERVED_MODEL_NAME"),
        *("MAX_MODEL_LEN", "PARALLELISM_SIZE"),
    )
)
PLAIN: Final = re.compile(r"(?:-?[0-9][0-9.]{0,31}|(?!-)[A-Za-z0-9._:/@,+=-]{0,256})\Z")
"""Values that are one word to a shell and no option, should a runtime start its engine by ``sh -c``."""
_CODE_OF_MODEL: Final = re.compile(r"--?trust[-_]remote[-_]code(?!=(?:false|0)\b)", re.IGNORECASE)


def own_code(part: Mapping[str, Any]) -> str:
    """Return the field of a service's part of a pod that could bring code into it; empty if there is none."""
    return next(_fields(part), "")


def runs_code_of_model(container: Body) -> bool:
    """Return whether an engine runs Python code that it finds among the files of its model."""
    words = (*(container.get("command") or ()), *(container.get("args") or ()))
    return any(_CODE_OF_MODEL.search(word) for word in words)


def _fields(part: Mapping[str, Any]) -> Iterator[str]:
    yield from sorted(name for name in part.keys() - _PARTS if _is_set(part[name]))
    yield from (f"config[{name}]" for name, value in mapping(part.get("config")).items() if not _harmless(name, value))
    runner = mapping(part.get("runner"))
    yield from sorted(f"runner.{name}" for name in runner.keys() - _RUNNER if _is_set(runner[name]))
    for variable in runner.get("env") or ():
        name, is_secret = variable.get("name"), "valueFrom" in variable and variable.get("name") == "HF_TOKEN"
        if not is_secret and not _harmless(name, variable.get("value")):
            yield f"runner.env[{name}]"
    yield from _arguments(runner.get("args") or ())


def _is_set(value: Any) -> bool:
    return value not in (None, "", [], {}, False)


def _harmless(name: Any, value: Any) -> bool:
    return name in _VARIABLES and isinstance(value, str) and PLAIN.match(value) is not None


def _arguments(words: Sequence[str]) -> Iterator[str]:
    takes_value = False
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word.startswith("--") and flag(name) in _FLAGS and PLAIN.match(value):
            takes_value = not equals
        elif takes_value and not word.startswith("-") and PLAIN.match(word):
            takes_value = False
        else:
            yield f"runner.args[{index}]"
