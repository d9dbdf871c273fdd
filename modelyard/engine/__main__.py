"""The command line of one simulated engine process (``python -m modelyard.engine``).

Kept light (argparse, few imports): a demo starts dozens of these processes.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import os
import signal
import sys
from collections.abc import Awaitable, Sequence

from aiohttp import web

from modelyard.engine.config import PROFILES, EngineConfig, profiled
from modelyard.engine.group import GroupBroken, GroupSettings, Ranks, join
from modelyard.engine.options import add_unused, dashed
from modelyard.engine.server import EngineServer, ServerSettings
from modelyard.metrics.vocabulary import ENGINES
from modelyard.ports import describe_listen_error

LIVE_ADAPTERS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
"""Variable that lets adapters come and go while the engine runs."""
ALONE = GroupSettings(1, 0, "", 0)


def build_parser() -> argparse.ArgumentParser:
    """The parser; engine options default to those of ``--profile``."""
    parser = argparse.ArgumentParser(
        prog="python -m modelyard.engine",
        allow_abbrev=False,
        description="A simulated LLM inference engine: OpenAI API and vLLM (or SGLang) metrics, without a GPU.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 picks one (default: %(default)s)")
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", help="model name or path")
    model.add_argument("--model-path", dest="sglang_model", metavar="MODEL", help="the same in SGLang's words")
    parser.add_argument(
        "--served-model-name", nargs="+", metavar="NAME", help="names to serve it by (default: --model)"
    )
    parser.add_argument(
        "--metrics", choices=tuple(ENGINES), help="whose metric names to expose (default: of the words)"
    )
    parser.add_argument("--time-compression", type=float, default=1.0, help="virtual seconds per second of wall time")
    parser.add_argument("--startup-delay", type=float, default=0.0, help="virtual seconds until the model is loaded")
    parser.add_argument("--mean-output-tokens", type=float, default=200.0, help="mean length of answers of free length")
    parser.add_argument("--failure-rate", type=float, default=0.0, help="share of requests to answer with 500")
    parser.add_argument(
        "--flush-interval", type=float, help="least ms between chunks of a stream (default: 4; compressed: 100)"
    )
    parser.add_argument("--seed", "--random-seed", type=int, default=0, help="seed of everything random")
    engine = parser.add_argument_group("hardware and scheduler", "Each option overrides the profile's value.")
    engine.add_argument("--profile", choices=sorted(PROFILES), default="h100", help="an 8B model on one card")
    engine.add_argument("--alpha", type=float, help="decode: ms per step")
    engine.add_argument("--beta", type=float, help="decode: ms per step and sequence")
    engine.add_argument("--gamma", type=float, help="prefill: ms per request")
    engine.add_argument("--delta", type=float, help="prefill: ms per prompt token")
    engine.add_argument("--max-num-seqs", "--max-running-requests", type=int, help="most sequences in the batch")
    engine.add_argument("--max-num-batched-tokens", type=int, help="most tokens in one step")
    engine.add_argument(
        "--max-model-len", "--context-length", type=int, help="most tokens of prompt and output together"
    )
    engine.add_argument("--kv-cache-tokens", "--max-total-tokens", type=int, help="capacity of the KV cache")
    engine.add_argument("--block-size", "--page-size", type=int, help="tokens per KV cache block")
    engine.add_argument("--max-waiting", type=int, help="longest queue; beyond it requests get 429 (default: no limit)")
    engine.add_argument("--prefix-hit-ratio", type=float, help="share of each prompt found in the prefix cache")
    engine.add_argument(
        "--prefix-segment", type=int, help="a real prefix cache, by segments of so many tokens (default: none)"
    )
    engine.add_argument("--jitter", type=float, help="relative standard deviation of step times")
    adapters = parser.add_argument_group("LoRA adapters")
    adapters.add_argument("--enable-lora", action=argparse.BooleanOptionalAction, help="serve adapters")
    adapters.add_argument("--lora-modules", "--lora-paths", nargs="*", default=[], metavar="NAME=PATH", help="these")
    group = parser.add_argument_group("several nodes", "One engine of several processes, which find each other.")
    group.add_argument("--nnodes", type=int, help="how many (default: 1)")
    group.add_argument("--node-rank", type=int, help="which of them this is, from 0; rank 0 takes requests")
    group.add_argument("--dist-init-addr", "--nccl-init-addr", metavar="HOST:PORT", help="where rank 0 is joined")
    group.add_argument("--master-addr", help="the same in vLLM's words")
    group.add_argument("--master-port", type=int, default=29501, help="(default: %(default)s)")
    group.add_argument("--distributed-executor-backend", help="ray: the group is what the pod's variables say")
    add_unused(parser)
    return parser


def engine_config(options: argparse.Namespace) -> EngineConfig:
    """The profile's configuration with the given options in place. Raises ``ValueError``."""
    names = [field.name for field in dataclasses.fields(EngineConfig)]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    return profiled(options.profile, given)


def server_settings(options: argparse.Namespace) -> ServerSettings:
    """How to serve it. Raises ``ValueError``."""
    return ServerSettings(
        models=tuple(options.served_model_name or (options.model or options.sglang_model,)),
        adapters=_adapters(options),
        live_adapters=bool(options.enable_lora) and os.environ.get(LIVE_ADAPTERS, "").lower() in ("1", "true"),
        time_compression=options.time_compression,
        startup_delay=options.startup_delay,
        mean_output_tokens=options.mean_output_tokens,
        failure_rate=options.failure_rate,
        flush_interval=None if options.flush_interval is None else options.flush_interval / 1000,
        metrics=options.metrics or ("vllm" if options.sglang_model is None else "sglang"),
        seed=options.seed,
    )


def _adapters(options: argparse.Namespace) -> dict[str, str]:
    """Paths of the adapters by name, given as NAME=PATH or as JSON. Raises ``ValueError``."""
    found = {}
    for text in options.lora_modules:
        if text.startswith("{"):
            given = json.loads(text)
            name, path = (str(given.get(key) or given.get(f"lora_{key}") or "") for key in ("name", "path"))
        else:
            name, equals, path = text.partition("=")
            path = path if equals else name
        if not name or not path:
            raise ValueError(f"an adapter must be NAME=PATH, not {text!r}")
        found[name] = path
    if found and not (options.enable_lora or options.sglang_model):
        raise ValueError("lora_modules need --enable-lora")
    return found


def group_settings(options: argparse.Namespace) -> GroupSettings:
    """Of which group it is. Raises ``ValueError``."""
    address = options.dist_init_addr
    if address is None and options.master_addr is not None:
        address = f"{options.master_addr}:{options.master_port}"
    ray = options.distributed_executor_backend == "ray"
    return GroupSettings.of(options.nnodes, options.node_rank, address, ray, os.environ)


async def serve(
    config: EngineConfig, settings: ServerSettings, host: str, port: int, group: GroupSettings = ALONE
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends at once. Raises ``GroupBroken``."""
    stops: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stops.put_nowait, number)
    if group.rank:
        await _any_of(stops.get(), join(group))
        return
    members = Ranks(group)
    server = EngineServer(config, settings, members.missing)
    runner = web.AppRunner(server.app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
        address = runner.addresses[0]
        print(f"serving {settings.models[0]} on http://{address[0]}:{address[1]}", flush=True)
        # What exists by now lives as long as the process: keep the collector from walking over it.
        gc.collect()
        gc.freeze()
        async with members.open(host):
            await _until_told_to_stop(server, members, stops)
    finally:
        await runner.cleanup()


async def _until_told_to_stop(server: EngineServer, members: Ranks, stops: asyncio.Queue[int]) -> None:
    failures = [asyncio.create_task(server.driver_failure()), asyncio.create_task(members.broken())]
    try:
        await _any_of(stops.get(), *failures)
        drain = asyncio.create_task(server.drain())
        await _any_of(stops.get(), drain, *failures)
        drain.cancel()
    finally:
        for failure in failures:
            failure.cancel()


async def _any_of(*waits: Awaitable[object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    parser = build_parser()
    options = parser.parse_args(dashed(sys.argv[1:] if arguments is None else arguments))
    try:
        config, settings, group = engine_config(options), server_settings(options), group_settings(options)
    except ValueError as error:
        parser.error(str(error))
    try:
        asyncio.run(serve(config, settings, options.host, options.port, group))
    except GroupBroken as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(describe_listen_error(options.host, options.port, error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
