"""The one place of detection that reads: a model's folder as parsed configurations and sums over weight headers.

Every file is hostile: only regular files are opened, none is read beyond its limit, and links lead nowhere else.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from modelyard.models.detection.gguf import MAX_ELEMENTS, GgufError, as_config, quantization_label, read_gguf
from modelyard.models.storage import choose_weights
from modelyard.objects import shown

MAX_CONFIG = 4 * 2**20
"""Bytes of a configuration; the largest of known models have a few hundred kilobytes."""
MAX_INDEX = 32 * 2**20
MAX_HEADER = 10 * 2**20
MAX_HEADERS = 256 * 2**20
MAX_SHARDS = 2000
MAX_FILES = 20_000
MAX_DEPTH = 6
_MAX_KINDS = 2000
"""Tensors are summed by the last part of their name and their type; a model has a few dozen of these."""
_CHUNK = 2**20

PIPELINE_INDEX, CONFIG, WEIGHT_INDEX = "model_index.json", "config.json", "model.safetensors.index.json"
_CONFIG_FOLDERS = ("", "safetensors", "pytorch_model", "model")
SENTENCE_FILES = ("config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json")
MODULES = "modules.json"
QUANTIZATION_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
TOKENIZER = "tokenizer_config.json"
ADAPTER = "adapter_config.json"
"""Configuration of a PEFT adapter, whose folder has none of a model."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_NO_WEIGHTS = frozenset({"training_args.bin", "optimizer.pt", "scheduler.pt", "optimizer.bin", "tokenizer.bin"})

Kind = tuple[str, str]
"""Last part of a tensor's name, and its type."""


class Unreadable(Exception):
    """A file that cannot be used. The message says why, and is about that file."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What a folder has of weights: elements by kind of tensor where every header could be read, and bytes."""

    elements: Mapping[Kind, int] = field(default_factory=dict)
    size: int = 0
    gguf: str = ""
    """Quantization of GGUF files (``Q4_K_M``); empty for other formats."""
    has_encoder: bool = False
    """An image encoder (``mmproj``) lies next to GGUF files."""


@dataclass(frozen=True, slots=True)
class Files:
    """What was read of a model, by the path of each file from its folder."""

    config_path: str | None = None
    documents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    weights: Mapping[str, Weights] = field(default_factory=dict)
    """By folder: that of the configuration, and of a pipeline those of its components."""
    problems: tuple[str, ...] = ()


def read(folder: Path) -> Files:
    """Everything that ``interpret`` wants to see of the folder. Never raises for what is in it."""
    return _Reader(folder).read()


class _Reader:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = os.path.realpath(folder)
        self.problems: list[str] = []
        self.sizes: dict[str, int] = {}
        self.documents: dict[str, Mapping[str, Any]] = {}
        self.headers = 0
        self.gguf_config: Mapping[str, Any] = {}

    def read(self) -> Files:
        for path, size in self._walk():
            if len(self.sizes) == MAX_FILES:
                self.problems.append(f"more than {MAX_FILES} files; the rest were not looked at")
                break
            self.sizes[path] = size
        for path in choose_weights(self.sizes).left_out:  # copies would count twice
            del self.sizes[path]
        config = self._config()
        if config is None:
            return self._without_config()
        place = _parent(config)
        index = self._document(config, MAX_CONFIG)
        weights: dict[str, Weights] = {}
        if PurePosixPath(config).name == PIPELINE_INDEX:
            for component in [name for name in index or {} if not name.startswith("_")][:64]:
                where = _join(place, component)
                if "/" not in component and component not in ("", ".", "..") and _join(where, CONFIG) in self.sizes:
                    self._document(_join(where, CONFIG), MAX_CONFIG)
                    weights[component] = self._weights(where)
        else:
            for other in (*SENTENCE_FILES, *QUANTIZATION_FILES, ADAPTER):
                self._document(_join(place, other), MAX_CONFIG)
            self._document(_join(place, MODULES), MAX_CONFIG, is_list=True)
            if (index or {}).get("position_embedding_type") == "absolute":
                self._document(_join(place, TOKENIZER), MAX_CONFIG)
            weights[""] = self._weights(place)
        return Files(config, self.documents, weights, tuple(self.problems))

    def _without_config(self) -> Files:
        if any(path.endswith(".gguf") for path in self.sizes):
            weights = self._weights("")
            if self.gguf_config:
                return Files(CONFIG, {CONFIG: self.gguf_config}, {"": weights}, tuple(self.problems))
        if self._document(ADAPTER, MAX_CONFIG) is not None:
            return Files(ADAPTER, self.documents, problems=tuple(self.problems))
        self.problems.append(f"no {CONFIG} and no {PIPELINE_INDEX} in {self.folder}")
        return Files(problems=tuple(self.problems))

    def _walk(self) -> Iterator[tuple[str, int]]:
        """(path, size) of every file, folder by folder and by name; links only where they lead to something allowed."""
        level = [("", 0)]
        while level:
            place, depth = level.pop(0)
            try:
                with os.scandir(self.folder / place) as scan:
                    entries = sorted(scan, key=lambda entry: entry.name)
            except OSError as error:
                self.problems.append(f"{place or self.folder}: {error.strerror}")
                continue
            for entry in entries:
                path = _join(place, entry.name)
                try:
                    if entry.is_symlink() and not self._inside(entry.path):
                        self.problems.append(f"{shown(path)} is a link that leads out of the folder")
                    elif entry.is_dir(follow_symlinks=False):
                        if depth < MAX_DEPTH and not entry.name.startswith("."):
                            level.append((path, depth + 1))
                    elif entry.is_file():
                        yield path, entry.stat().st_size
                except OSError as error:
                    self.problems.append(f"{shown(path)}: {error.strerror}")

    def _inside(self, path: str) -> bool:
        return os.path.commonpath((self.root, os.path.realpath(path))) == self.root

    def _config(self) -> str | None:
        indexes, configs = (
            [path for path in self.sizes if PurePosixPath(path).name == name] for name in (PIPELINE_INDEX, CONFIG)
        )
        preferred = [path for place in _CONFIG_FOLDERS if (path := _join(place, CONFIG)) in self.sizes]
        return next(iter((*indexes, *preferred, *configs)), None)

    def _document(self, path: str, most: int, *, is_list: bool = False) -> Mapping[str, Any] | None:
        if path not in self.sizes:
            return None
        try:
            found = _json(self._bytes(path, most))
            if is_list:  # the modules of a sentence-transformers model
                found = {"modules": found[:64] if isinstance(found, list) else []}
            if not isinstance(found, dict):
                raise Unreadable("is no JSON object")
        except Unreadable as error:
            self.problems.append(f"{shown(path)} {error}")
            return None
        self.documents[path] = found
        return found

    def _open(self, path: str) -> int:
        full = self.folder / path
        try:
            # A pipe would let nobody go on; and between the look and now it may have become something else.
            handle = os.open(full, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Unreadable(f"cannot be opened: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(handle).st_mode) or not self._inside(str(full)):
            os.close(handle)
            raise Unreadable("is no regular file of this folder")
        return handle

    def _bytes(self, path: str, most: int) -> bytes:
        handle = self._open(path)
        with os.fdopen(handle, "rb") as file:
            if os.fstat(handle).st_size > most:
                raise Unreadable(f"is larger than {most} bytes and was not read")
            return _exactly(file, most, at_most=True)

    def _weights(self, place: str) -> Weights:
        paths = [path for path in self.sizes if _parent(path) == place and _is_weight(path)]
        if all(path.endswith(".gguf") for path in paths):
            # Large quantizations have folders of their own, next to the image encoder.
            below = [p for p in self.sizes if _is_weight(p) and (not place or p.startswith(place + "/"))]
            if paths or (below and below[0].endswith(".gguf")):
                paths = [path for path in below if path.endswith(".gguf")]
            else:
                paths = [path for path in below if _parent(path) == _parent(below[0])]
        where = _parent(paths[0]) if paths else place
        tensors = [path for path in paths if path.endswith(".safetensors")]
        if not tensors and any(path.endswith(".gguf") for path in paths):
            return self._gguf([path for path in paths if path.endswith(".gguf")])
        try:
            if _join(where, WEIGHT_INDEX) in self.sizes:
                tensors = self._indexed(where)
            if len(tensors) > MAX_SHARDS:
                raise Unreadable(f"{len(tensors)} files of weights are more than {MAX_SHARDS}")
            size = sum(self.sizes[path] for path in tensors or paths)
        except Unreadable as error:
            self.problems.append(f"parameters are not counted: {error}")
            return Weights(size=sum(self.sizes[path] for path in tensors or paths))
        elements: Counter[Kind] = Counter()
        for path in tensors:
            try:
                self._count(path, elements)
            except Unreadable as error:
                self.problems.append(f"parameters are not counted: {shown(path)} {error}")
                return Weights(size=size)
        return Weights(elements, size)

    def _gguf(self, paths: list[str]) -> Weights:
        """Read the headers of one quantization; the image encoder next to it counts in bytes alone."""
        size = sum(self.sizes[path] for path in paths)
        main = [path for path in paths if "mmproj" not in path.lower()]
        has_encoder = len(main) < len(paths)
        by_type: Counter[str] = Counter()
        for path in main[:MAX_SHARDS]:
            try:
                with os.fdopen(self._open(path), "rb") as file:
                    header = read_gguf(file)
                self._charge(header.size)
            except (GgufError, Unreadable) as error:
                self.problems.append(f"parameters are not counted: {shown(path)} {error}")
                return Weights({}, size, quantization_label(path, {}) or "unknown", has_encoder)
            self.gguf_config = self.gguf_config or as_config(header.metadata)
            by_type.update(header.elements)
        elements = {("weight", kind): count for kind, count in by_type.items()}
        label = quantization_label(main[0] if main else paths[0], by_type) or "unknown"
        return Weights(elements, size, label, has_encoder)

    def _indexed(self, where: str) -> list[str]:
        index = self._document(_join(where, WEIGHT_INDEX), MAX_INDEX)
        self.documents.pop(_join(where, WEIGHT_INDEX), None)
        files = (index or {}).get("weight_map")
        if not isinstance(files, dict) or not files:
            raise Unreadable(f"{WEIGHT_INDEX} names no files")
        named = {_join(where, name) if isinstance(name, str) else "" for name in files.values()}
        if missing := sorted(named - self.sizes.keys()):
            raise Unreadable(f"{shown(missing[0])} of {WEIGHT_INDEX} is not there")
        return sorted(named)

    def _charge(self, length: int) -> None:
        self.headers += length
        if self.headers > MAX_HEADERS:
            raise Unreadable(f"brings the headers to more than {MAX_HEADERS} bytes")

    def _count(self, path: str, elements: Counter[Kind]) -> None:
        """Add the tensors of one file. Source: the safetensors format, a length of 8 bytes and then JSON."""
        with os.fdopen(self._open(path), "rb") as file:
            length = int.from_bytes(_exactly(file, 8), "little")
            if not 0 < length <= MAX_HEADER:
                raise Unreadable(f"has a header of {length} bytes, not of 1 to {MAX_HEADER}")
            self._charge(length)
            header = _json(_exactly(file, length))
        if not isinstance(header, dict):
            raise Unreadable("has a header that is no JSON object")
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            shape = tensor.get("shape") if isinstance(tensor, dict) else None
            if not isinstance(shape, list):
                raise Unreadable(f"has a tensor without a shape: {shown(name)}")
            count = 1 if shape else 0
            for one in shape:
                if type(one) is not int or not 0 <= one < MAX_ELEMENTS or (count := count * one) > MAX_ELEMENTS:
                    raise Unreadable(f"has a tensor of an impossible shape: {shown(name)}")
            elements[name.rpartition(".")[2][:64], str(tensor.get("dtype"))[:16]] += count
            if len(elements) > _MAX_KINDS:
                raise Unreadable("has tensors of too many kinds")


_CONSTANTS = {"NaN": None, "Infinity": 1e308, "-Infinity": -1e308}


def _json(text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_CONSTANTS.__getitem__)
    except RecursionError:
        raise Unreadable("is nested too deeply") from None
    except (ValueError, UnicodeError) as error:
        raise Unreadable(f"is not valid JSON: {shown(str(error))}") from None


def _exactly(file: Any, count: int, at_most: bool = False) -> bytes:
    """That many bytes, taken piece by piece, so that a wrong length takes no memory of its own."""
    pieces, left = [], count
    while left and (piece := file.read(min(left, _CHUNK))):
        pieces.append(piece)
        left -= len(piece)
    if left and not at_most:
        raise Unreadable(f"ends {left} bytes too early")
    return b"".join(pieces)


def _is_weight(path: str) -> bool:
    return path.endswith(_WEIGHTS) and PurePosixPath(path).name not in _NO_WEIGHTS


def _join(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
