"""Options of real engines that the simulated one takes and has no use for.

So that the arguments of a service for vLLM or SGLang start the simulated engine as well, and a misspelt one ends it as
it would end the real one. Source: the engines' documentation of their server arguments.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from typing import Any, Final

_VALUES: Final = """
attention-backend chat-template config-format cpu-offload-gb distributed-executor-backend data-parallel-size
data-parallel-size-local data-parallel-address data-parallel-rank data-parallel-rpc-port data-parallel-start-rank
data-parallel-backend decode-context-parallel-size download-dir dtype expert-parallel-size generation-config
gpu-memory-utilization guided-decoding-backend hf-config-path hf-overrides kv-cache-dtype kv-transfer-config
kv-events-config limit-mm-per-prompt load-format log-level logits-processor-pattern lora-dtype lora-extra-vocab-size
max-cpu-loras max-logprobs max-lora-rank max-loras max-num-partial-prefills max-parallel-loading-workers
max-seq-len-to-capture mm-processor-kwargs model-impl model-loader-extra-config num-gpu-blocks-override
num-speculative-tokens override-generation-config pipeline-parallel-size quantization reasoning-parser response-role
revision root-path rope-scaling rope-theta scheduling-policy speculative-config
speculative-model ssl-ca-certs ssl-certfile ssl-keyfile structured-outputs-config swap-space task runner
tensor-parallel-size tokenizer tokenizer-mode tokenizer-pool-size tokenizer-revision tool-call-parser uvicorn-log-level
compilation-config api-key
base-gpu-id chunked-prefill-size cuda-graph-max-bs decode-log-interval device disaggregation-bootstrap-port
disaggregation-ib-device disaggregation-mode disaggregation-transfer-backend dist-timeout ep-size grammar-backend
hicache-ratio hicache-size json-model-override-args load-balance-method lora-backend max-loaded-loras
max-loras-per-batch max-prefill-tokens mem-fraction-static moe-a2a-backend moe-runner-backend pp-size
prefill-attention-backend decode-attention-backend sampling-backend schedule-conservativeness schedule-policy
speculative-algorithm speculative-draft-model-path speculative-eagle-topk speculative-num-draft-tokens
speculative-num-steps stream-interval tp dp-size dp ep pp tp-size tokenizer-path tokenizer-worker-num
torch-compile-max-bs watchdog-timeout
"""
_SWITCHES: Final = """
async-scheduling calculate-kv-scales disable-cascade-attn disable-custom-all-reduce
disable-fastapi-docs disable-frontend-multiprocessing disable-hybrid-kv-cache-manager disable-log-requests
disable-log-stats disable-mm-preprocessor-cache disable-sliding-window disable-uvicorn-access-log
enable-auto-tool-choice enable-chunked-prefill enable-eplb enable-expert-parallel enable-force-include-usage
enable-log-outputs enable-log-requests enable-lora-bias enable-prefix-caching enable-prompt-embeds
enable-prompt-tokens-details enable-reasoning enable-request-id-headers enable-server-load-tracking enable-sleep-mode
enable-ssl-refresh enforce-eager enable-dbo fully-sharded-loras headless kv-sharing-fast-prefill
return-tokens-as-token-ids skip-tokenizer-init trust-remote-code use-v2-block-manager
allow-auto-truncate disable-chunked-prefix-cache disable-cuda-graph disable-cuda-graph-padding disable-overlap-schedule
disable-radix-cache disable-shared-experts-fusion enable-cache-report enable-deepep-moe enable-dp-attention
enable-ep-moe enable-hierarchical-cache enable-metrics enable-mixed-chunk enable-multimodal enable-p2p-check
enable-request-time-stats-logging enable-torch-compile enable-two-batch-overlap is-embedding log-requests show-time-cost
skip-server-warmup
"""
_LISTS: Final = (
    "allowed-headers allowed-methods allowed-origins cuda-graph-bs cuda-graph-sizes lora-target-modules middleware"
)


def add_unused(parser: argparse.ArgumentParser) -> None:
    """Take every option of a real engine that the parser does not know yet."""
    group = parser.add_argument_group("options of real engines", "Taken, and without effect.")
    how: dict[str, Any]
    for names, how in (
        (_VALUES, {"nargs": "?"}),
        (_LISTS, {"nargs": "*"}),
        (_SWITCHES, {"action": argparse.BooleanOptionalAction}),
    ):
        for name in names.split():
            with contextlib.suppress(argparse.ArgumentError):
                group.add_argument(f"--{name}", help=argparse.SUPPRESS, default=None, dest=f"unused {name}", **how)


def dashed(arguments: Sequence[str]) -> list[str]:
    """With dashes in the names of options, which real engines take with underscores as well."""

    def one(text: str) -> str:
        name, equals, value = text.partition("=")
        return name.replace("_", "-") + equals + value if text.startswith("--") else text

    return [one(argument) for argument in arguments]
