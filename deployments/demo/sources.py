"""``modelyard demo sources``: a model hub and an S3 bucket on this machine, to try out models and onboarding.

They serve two small models with the shape of real ones and random weights, under their own names and under those that
``config/samples`` names, and take benchmark results. They implement what clients of a hub and of S3 use: commits,
listings, byte ranges, checksums. ``--allow`` permits the cluster in KUBECONFIG to fetch from them, as an administrator
would.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import random
import signal
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, Self
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

import yaml
from aiohttp import web

from deployments.demo.scenario import CONTROLLER_NAMESPACE
from modelyard.cluster import AlreadyExists, Cluster, ClusterSettings, is_loopback
from modelyard.models.storage import CONFIG_MAP, KEY
from modelyard.objects import NAMESPACES
from modelyard.ports import describe_listen_error

LLAMA, MISTRAL = "tiny-llama", "tiny-mistral"
"""The two small models: the first in the hub, as ``demo/tiny-llama``, the second in the bucket ``models``."""
SAMPLE_MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct")
SAMPLE_ADAPTER, SAMPLE_FOLDER = "example/support-tone", "house-model"
"""Names in ``config/samples``: repositories of a hub, and a folder of the bucket ``models``."""
RESULTS = "benchmarks"
"""The only bucket that takes files: results of benchmarks, some kilobytes each."""
LARGE = 1 << 20
"""Bytes from which a hub keeps a file as a large one, with its SHA-256 in the listing."""

Files = Mapping[str, bytes]


class SourcesError(RuntimeError):
    """The hub and the bucket cannot be served or allowed; the message says what to do."""


def tokenizer() -> dict[str, bytes]:
    """Return a tokenizer that counts as the simulated engine does: every word is one token."""
    rules: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {"tok": 0}, "unk_token": "tok"},
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder")),
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "tok", "model_max_length": 8192}
    return {"tokenizer.json": json.dumps(rules).encode(), "tokenizer_config.json": json.dumps(config).encode()}


def small_model(kind: str, architecture: str, seed: int) -> dict[str, bytes]:
    """Return a decoder with ten million random parameters in BF16 (20 MB) and its tokenizer."""
    layers, hidden, inner, heads, shared, words = 8, 256, 704, 8, 4, 8192
    config = {
        "architectures": [architecture],
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "vocab_size": words,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0",
    }
    layer: dict[str, tuple[int, ...]] = {
        **{f"self_attn.{name}_proj": (hidden, hidden) for name in "qo"},
        **{f"self_attn.{name}_proj": (hidden * shared // heads, hidden) for name in "kv"},
        **{f"mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")},
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (words, hidden), "lm_head": (words, hidden)}
    shapes |= {f"model.layers.{index}.{name}": shape for index in range(layers) for name, shape in layer.items()}
    weights = safetensors({**shapes, "model.norm": (hidden,)}, random.Random(seed).randbytes)
    return {"config.json": json.dumps(config, indent=2).encode(), "model.safetensors": weights, **tokenizer()}


def small_adapter(base: str) -> dict[str, bytes]:
    """Return the files of a LoRA adapter of rank 1 for ``base``, a hub's name of a ``small_model``."""
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": 1,
        "lora_alpha": 2,
        "target_modules": ["q_proj"],
    }
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora"
    weights = safetensors({f"{name}_A": (1, 256), f"{name}_B": (256, 1)}, bytes)
    return {"adapter_config.json": json.dumps(config).encode(), "adapter_model.safetensors": weights}


def safetensors(shapes: Mapping[str, tuple[int, ...]], fill: Callable[[int], bytes]) -> bytes:
    """Return a file of BF16 weights of these shapes; ``fill`` returns so many bytes."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + fill(end)


class Sources:
    """Repositories of the hub, ``OWNER/NAME``, and buckets, on one port of 127.0.0.1 (0: any free one) while entered.

    Raises ``SourcesError`` when the port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        self.url = ""
        self._port = port
        self.llama = small_model("llama", "LlamaForCausalLM", 1)
        self.mistral = small_model("mistral", "MistralForCausalLM", 2)
        self.repositories: Mapping[str, Files] = {
            **dict.fromkeys((f"demo/{LLAMA}", *SAMPLE_MODELS), self.llama),
            SAMPLE_ADAPTER: small_adapter(SAMPLE_MODELS[0]),
        }
        models = {
            f"{folder}/{name}": body for folder in (MISTRAL, SAMPLE_FOLDER) for name, body in self.mistral.items()
        }
        self._results: dict[str, bytes] = {}
        self.buckets: Mapping[str, Files] = {"models": models, RESULTS: self._results}
        app = web.Application(client_max_size=16 << 20)
        app.router.add_get("/api/models/{owner}/{name}/revision/{revision}", self._commit)
        app.router.add_get("/api/models/{owner}/{name}/tree/{revision}", self._tree)
        app.router.add_get("/{owner}/{name}/resolve/{revision}/{file:.+}", self._hub_file)
        app.router.add_get("/{bucket}", self._listing)
        app.router.add_get("/{bucket}/{file:.+}", self._object)
        app.router.add_put(f"/{RESULTS}/{{file:.+}}", self._store)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        except BaseException as error:
            await self._runner.cleanup()
            if isinstance(error, OSError):
                raise SourcesError(describe_listen_error("127.0.0.1", self._port, error)) from None
            raise
        self.url = "http://{}:{}".format(*self._runner.addresses[0][:2])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _commit(self, request: web.Request) -> web.Response:
        commit, _ = self._repository(request)
        return web.json_response({"id": "{owner}/{name}".format(**request.match_info), "sha": commit, "siblings": []})

    async def _tree(self, request: web.Request) -> web.Response:
        entries: list[dict[str, Any]] = []
        for name, body in self._repository(request)[1].items():
            blob = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(body), "oid": blob}
            if len(body) >= LARGE:
                entry["lfs"] = {"oid": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}
            entries.append(entry)
        return web.json_response(entries)

    async def _hub_file(self, request: web.Request) -> web.Response:
        commit, files = self._repository(request)
        return _send(request, files, {"X-Repo-Commit": commit})

    def _repository(self, request: web.Request) -> tuple[str, Files]:
        files = self.repositories.get("{owner}/{name}".format(**request.match_info))
        if files is None:
            raise web.HTTPNotFound(headers={"X-Error-Code": "RepoNotFound"})
        commit = hashlib.sha1("".join(map(_etag, files.values())).encode()).hexdigest()
        if request.match_info["revision"] not in ("main", commit):
            raise web.HTTPNotFound(headers={"X-Error-Code": "RevisionNotFound"})
        return commit, files

    async def _listing(self, request: web.Request) -> web.Response:
        found = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(_etag(body))}</ETag><Size>{len(body)}</Size></Contents>"
            for name, body in sorted(self._bucket(request).items())
            if name.startswith(request.query.get("prefix", ""))
        )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
        return web.Response(text=text, content_type="application/xml")

    async def _object(self, request: web.Request) -> web.Response:
        return _send(request, self._bucket(request), {})

    async def _store(self, request: web.Request) -> web.Response:
        self._results[request.match_info["file"]] = body = await request.read()
        return web.Response(headers={"ETag": _etag(body)})

    def _bucket(self, request: web.Request) -> Files:
        if (files := self.buckets.get(request.match_info["bucket"])) is None:
            text = "<Error><Code>NoSuchBucket</Code><Message>There is no such bucket</Message></Error>"
            raise web.HTTPNotFound(text=text, content_type="application/xml")
        return files


def _send(request: web.Request, files: Files, headers: Mapping[str, str]) -> web.Response:
    body = files.get(request.match_info["file"])
    if body is None:
        raise web.HTTPNotFound
    if request.headers.get("If-Match", _etag(body)) != _etag(body):
        raise web.HTTPPreconditionFailed
    headers = {**headers, "ETag": _etag(body)}
    if "Range" not in request.headers:
        return web.Response(body=BytesIO(body), headers=headers)
    start, stop, _ = request.http_range.indices(len(body))
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
    return web.Response(status=206, body=BytesIO(body[start:stop]), headers=headers)


@lru_cache
def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def allowed(sources: Sources) -> dict[str, Any]:
    """Return the ConfigMap of an administrator: the hub that hf:// means, and the endpoint that s3:// may read."""
    data = {"hubEndpoint": sources.url, "endpoints": [sources.url.removeprefix("http://")]}
    text = yaml.safe_dump({**data, "cpu": "100m", "memory": "256Mi"}, sort_keys=False)
    metadata = {"name": CONFIG_MAP, "namespace": CONTROLLER_NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}}


async def allow(sources: Sources) -> None:
    """Permit a cluster on this machine to fetch models from these sources. Raises ``SourcesError`` for any other."""
    async with Cluster.connect(ClusterSettings()) as cluster:
        server = cluster.transport.server
        if not is_loopback(urlsplit(server).hostname or ""):
            raise SourcesError(
                f"--allow: the cluster at {server} is not on this machine, its nodes cannot reach 127.0.0.1; set "
                "KUBECONFIG to that of `modelyard local up`"
            )
        with contextlib.suppress(AlreadyExists):
            await cluster.create(NAMESPACES, {"metadata": {"name": CONTROLLER_NAMESPACE}})
        await cluster.apply(allowed(sources))


async def serve(port: int, permit: bool, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or an interrupt. Raises ``SourcesError``."""
    task = asyncio.current_task()
    assert task is not None
    for stop in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(stop, task.cancel)
    async with Sources(port) as sources:
        if permit:
            await allow(sources)
            say(f"ConfigMap {CONTROLLER_NAMESPACE}/{CONFIG_MAP} allows them")
        say(f"hub and bucket: {sources.url}")
        say(f"modelyard models add hf://demo/{LLAMA}")
        say(f"modelyard models add s3://models/{MISTRAL} --parameter endpoint={sources.url}")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
