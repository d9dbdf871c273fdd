"""Model hub and S3 bucket of the demonstrations on a loopback address, with small models.

They implement what clients of a hub and of S3 use: commits, listings, byte ranges, checksums. The models have the shape
of real ones and random weights.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Self
from xml.sax.saxutils import escape

from aiohttp import web

PIECE = 1 << 16
LARGE = 1 << 20
"""Bytes from which a hub keeps a file as a large one, with its SHA-256 in the listing."""
LARGEST = 16 << 20
"""Bytes of a file that a bucket takes: results of benchmarks have some kilobytes, pictures included."""

Files = Mapping[str, bytes]


def tokenizer() -> dict[str, bytes]:
    """Return a tokenizer that counts as the simulated engine does: every word is one token."""
    model = {"type": "WordLevel", "vocab": {"tok": 0}, "unk_token": "tok"}
    rest = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    rules: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": model,
        **rest,
    }
    known = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "tok", "model_max_length": 8192}
    return {"tokenizer.json": json.dumps(rules).encode(), "tokenizer_config.json": json.dumps(known).encode()}


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
    few = hidden * shared // heads
    one = {
        **{f"self_attn.{name}_proj": (hidden, hidden) for name in "qo"},
        **{f"self_attn.{name}_proj": (few, hidden) for name in "kv"},
        **{f"mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")},
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (words, hidden), "lm_head": (words, hidden)}
    shapes |= {f"model.layers.{layer}.{name}": shape for layer in range(layers) for name, shape in one.items()}
    header, end = {}, 0
    for name, shape in {**shapes, "model.norm": (hidden,)}.items():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    told = json.dumps(header).encode()
    weights = struct.pack("<Q", len(told)) + told + random.Random(seed).randbytes(end)
    return {"config.json": json.dumps(config, indent=2).encode(), "model.safetensors": weights, **tokenizer()}


def small_adapter(base: str) -> dict[str, bytes]:
    """Return the files of a LoRA adapter of rank 1 for ``base``, a hub's name of a ``small_model``."""
    about = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": 1,
        "lora_alpha": 2,
        "target_modules": ["q_proj"],
    }
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    header = {
        f"{name}.lora_{part}.weight": {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [512 * part_number, 512 * (part_number + 1)],
        }
        for part_number, (part, shape) in enumerate((("A", (1, 256)), ("B", (256, 1))))
    }
    text = json.dumps(header).encode()
    weights = struct.pack("<Q", len(text)) + text + bytes(1024)
    return {"adapter_config.json": json.dumps(about).encode(), "adapter_model.safetensors": weights}


class Sources:
    """Repositories of the hub, ``OWNER/NAME``, and buckets, on one port while it is entered.

    A bucket that is a dictionary takes new files, of at most ``LARGEST`` bytes.
    """

    def __init__(self, repositories: Mapping[str, Files], buckets: Mapping[str, Files], port: int = 0) -> None:
        """``port`` of 127.0.0.1; 0: any free one."""
        self.url = ""
        self._port = port
        self.repositories, self.buckets = repositories, buckets
        app = web.Application(client_max_size=LARGEST)
        app.router.add_get("/api/models/{owner}/{name}/revision/{revision}", self._commit)
        app.router.add_get("/api/models/{owner}/{name}/tree/{revision}", self._tree)
        app.router.add_get("/{owner}/{name}/resolve/{revision}/{file:.+}", self._hub_file)
        app.router.add_get("/{bucket}", self._listing)
        app.router.add_get("/{bucket}/{file:.+}", self._object)
        app.router.add_put("/{bucket}/{file:.+}", self._store)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        except BaseException:
            await self._runner.cleanup()
            raise
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def in_bucket(self, bucket: str, prefix: str) -> Files:
        """Return the files below a prefix."""
        found = self.buckets[bucket].items()
        return {name.removeprefix(f"{prefix}/"): body for name, body in found if name.startswith(f"{prefix}/")}

    # Hub

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

    async def _hub_file(self, request: web.Request) -> web.StreamResponse:
        commit, files = self._repository(request)
        return await self._send(request, files, {"X-Repo-Commit": commit})

    def _repository(self, request: web.Request) -> tuple[str, Files]:
        files = self.repositories.get("{owner}/{name}".format(**request.match_info))
        if files is None:
            raise web.HTTPNotFound(headers={"X-Error-Code": "RepoNotFound"})
        commit = hashlib.sha1("".join(map(_etag, files.values())).encode()).hexdigest()
        if request.match_info["revision"] not in ("main", commit):
            raise web.HTTPNotFound(headers={"X-Error-Code": "RevisionNotFound"})
        return commit, files

    # Bucket

    async def _listing(self, request: web.Request) -> web.Response:
        files, prefix = self._bucket(request), request.query.get("prefix", "")
        found = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(_etag(body))}</ETag><Size>{len(body)}</Size></Contents>"
            for name, body in sorted(files.items())
            if name.startswith(prefix)
        )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
        return web.Response(text=text, content_type="application/xml")

    async def _object(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, self._bucket(request), {})

    async def _store(self, request: web.Request) -> web.Response:
        files, body = self._bucket(request), await request.read()
        if not isinstance(files, dict):
            raise web.HTTPForbidden
        files[request.match_info["file"]] = body
        return web.Response(headers={"ETag": _etag(body)})

    def _bucket(self, request: web.Request) -> Files:
        files = self.buckets.get(request.match_info["bucket"])
        if files is None:
            text = "<Error><Code>NoSuchBucket</Code><Message>There is no such bucket</Message></Error>"
            raise web.HTTPNotFound(text=text, content_type="application/xml")
        return files

    # Both

    async def _send(self, request: web.Request, files: Files, headers: Mapping[str, str]) -> web.StreamResponse:
        """Send a file or the requested range of it."""
        body = files.get(request.match_info["file"])
        if body is None:
            raise web.HTTPNotFound
        if request.headers.get("If-Match", _etag(body)) != _etag(body):
            raise web.HTTPPreconditionFailed
        start, stop, _ = request.http_range.indices(len(body))
        part = "Range" in request.headers
        response = web.StreamResponse(status=206 if part else 200, headers={**headers, "ETag": _etag(body)})
        if part:
            response.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
        response.content_length = stop - start
        await response.prepare(request)
        for at in range(start, stop, PIECE) if request.method == "GET" else ():
            await response.write(body[at : min(stop, at + PIECE)])
        return response


@lru_cache
def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
