"""Choice of one set of weights where a repository holds the same model several times. Pure.

Publishers put copies of one model next to each other: the shards that engines load, the maker's own form
(``consolidated.safetensors``, ``original/``), other formats, other precisions, many GGUF quantizations. An engine loads
one of them. Parts of a model are never left out: folders of a pipeline and modules of an embedding model are no copies.
Where it is unclear which of two sets is the copy, both stay.

Preferences follow the engines: safetensors before other formats; the set without a precision in its name before
``fp16`` and the like; of GGUF files Q4_K_M, which llama.cpp takes where no quantization is named.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from modelyard.objects import amount, counted, few, printable

FORMATS = (
    *("safetensors", "pytorch", "consolidated", "gguf", "flax", "tensorflow", "checkpoint", "nemo", "rust", "mlx"),
    *("onnx", "openvino", "coreml", "ggml"),
)
"""Formats, the preferred one first."""
ALL = "all"
"""Value of ``weights`` that leaves nothing out."""
QUANTIZATIONS = (
    *("Q4_K_M", "Q5_K_M", "Q4_K_S", "Q4_K_L", "Q4_K_XL", "UD-Q4_K_XL", "Q5_K_S", "Q4_K", "Q4_1", "Q4_0", "IQ4_NL"),
    *("IQ4_XS", "MXFP4", "MXFP4_MOE", "Q4", "Q5_K", "Q5_1", "Q5_0", "Q5", "Q6_K", "Q6", "Q8_0", "Q8", "BF16", "F16"),
    *("FP16", "F32"),
)
"""GGUF quantizations, the preferred one first; others follow by name."""
PROJECTOR_QUANTIZATIONS = ("F16", "FP16", "BF16", "F32", "Q8_0")
"""The same for ``mmproj``, the image encoder of a GGUF model, which loses most by quantization."""
PRECISIONS = ("", "bf16", "fp16", "f16", "fp32", "f32", "fp8", "int8", "int4")
"""Precisions in the names of files and folders, the preferred one first."""
AUXILIARY = 0.1
"""Share of the largest set below which a file of another name is a part of the model (speakers, adapters), no copy."""
_SHOWN = 2
_LONGEST_NAME = 40

_SUFFIXES = {
    "safetensors": "safetensors",
    "bin": "pytorch",
    "pt": "pytorch",
    "pth": "pytorch",
    "ckpt": "checkpoint",
    "gguf": "gguf",
    "msgpack": "flax",
    "h5": "tensorflow",
    "tflite": "tensorflow",
    "pb": "tensorflow",
    "ot": "rust",
    "onnx": "onnx",
    "nemo": "nemo",
    "npz": "mlx",
    "mlmodel": "coreml",
}
ALIASES = {
    **_SUFFIXES,
    "torch": "pytorch",
    "jax": "flax",
    "tf": "tensorflow",
    "ov": "openvino",
    "mistral": "consolidated",
}
"""Other words for a format in the parameter ``weights``."""
_SHARD = re.compile(r"[-_.]\d{1,6}[-_]of[-_](\d{1,6})(?=[-_.]|$)")
_PRECISION = r"fp32|fp16|fp8|fp4|bf16|f32|f16|int8|int4|uint8|non_ema|ema|4bit|8bit|nf4"
_NAMED_PRECISION = re.compile(
    rf"\.(?P<inside>{_PRECISION})(?=\.|$)|[-_](?P<last>{_PRECISION})(?:_e[0-9]m[0-9]\w*)?$", re.IGNORECASE
)
_PIECE = re.compile(r"\.part\d{1,4}of(\d{1,4})$")
"""A file that its publisher has cut, as in ``m.Q8_0.gguf.part1of2``."""
_ONNX_PRECISION = re.compile(
    rf"_({_PRECISION}|q4f16|q4|q8|bnb4|quantized|optimized|O[1-4]|q?u?int8\w*)$", re.IGNORECASE
)
_ONNX_DATA = re.compile(r"(?P<stem>.+)\.onnx[._]data(_\d+)?")
_INDEX = re.compile(r"(?P<stem>.+)\.(?P<suffix>safetensors|bin)\.index(?:\.(?P<precision>\w+))?\.json")
_QUANTIZATION = re.compile(
    r"(?:^|(?<=[-._/ ]))((?:UD-)?(?:IQ[1-4]_(?:XXS|XS|S|M|NL)|Q[1-8]_K(?:_(?:XXS|XS|S|M|L|XL))?"
    r"|Q[1-8]_[01](?:_\d+){0,2}|Q[2-8]|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|FP16|F16|FP32|F32))(?=[-._/ ]|$)",
    re.IGNORECASE,
)
_COPY_FOLDER = re.compile(
    rf"(?:original|native|consolidated|metal|onnx|openvino|ov|coreml|gguf|ggml|flax|jax|tf|tensorflow|tflite|pytorch"
    rf"|torch|safetensors|mlx|exl2|awq|gptq|bnb|hf|{_PRECISION}|checkpoint[-_]?\d+|global_step\d+"
    rf"|(?:onnx|mlx|openvino|gguf)[-_].+|.+[-_](?:onnx|mlx|openvino|gguf)|\d{{1,2}}[-_]?bits?)",
    re.IGNORECASE,
)
"""Folders that hold a copy of the model above them, or one of several copies next to each other."""
_MODULE_FOLDER = re.compile(r"\d+_\w+")
"""Folder of a sentence-transformers module, such as 2_Dense."""
_TRAINING_STATE = re.compile(
    r"(?:optimizer|scheduler|scaler|rng_state\w*|training_args|trainer_state)\.(?:pt|pth|bin|pkl)"
)
_MODEL_STEM = re.compile(
    r"(?:model|pytorch_model|consolidated|diffusion_pytorch_model|tf_model|flax_model|rust_model|open_clip\w*|weights)"
    r"(?:[-_.].*)?"
)
_PACKAGE = re.compile(r"(?:(?P<place>.*?)/)?(?P<name>[^/]+\.(?:mlpackage|mlmodelc))/.*")
_PIPELINE = "model_index.json"


class WeightChoice(NamedTuple):
    """Paths that are not needed, and the choice in words (empty where there was nothing to choose)."""

    left_out: frozenset[str]
    message: str


class NoSuchWeights(ValueError):
    """No set has the name that ``weights`` gives. The message lists the existing ones."""


class _Label(NamedTuple):
    folder: str
    format: str
    stem: str
    variant: str
    shards: int


@dataclass(frozen=True, slots=True)
class _Set:
    label: _Label
    files: tuple[str, ...]
    size: int
    indexed: bool

    @property
    def count(self) -> int:
        return len(self.files) - self.indexed

    @property
    def is_named(self) -> bool:
        """Its name is one that weights of a whole model have; those of GGUF files are free."""
        return self.label.format in ("gguf", "ggml") or _MODEL_STEM.fullmatch(self.label.stem) is not None

    def is_called(self, wanted: str) -> bool:
        folder = self.label.folder.lower()
        return wanted in {self.label.format, self.label.variant.lower(), folder, *folder.split("/")} - {""}

    @property
    def title(self) -> str:
        first = next((path for path in self.files if not path.endswith(".json")), self.files[0])
        name = _SHARD.sub(r"-*-of-\1", first) if self.label.shards else first
        return printable(name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}")


def choose_weights(sizes: Mapping[str, int], wanted: str = "") -> WeightChoice:
    """Choose one set of weights among files given by path and size in bytes.

    ``wanted`` names a format, a GGUF quantization, a precision or a folder, in any case. Raises ``NoSuchWeights``.
    """
    wanted = wanted.strip().lower()
    wanted = ALIASES.get(wanted, wanted)
    if wanted == ALL:
        return WeightChoice(frozenset(), "")
    sets = _sets(sizes)
    if wanted and not any(entry.is_called(wanted) for entry in sets):
        existing = [f"{_words(entry)} ({entry.title}, {amount(entry.size)})" for entry in _by_size(sets)]
        raise NoSuchWeights(
            f"weights: there is no set {wanted[:40]!r}, only {', '.join(few(existing, 4 * _SHOWN)) or 'no weights'}"
        )
    kept = _kept(sets, sizes, wanted)
    labels = {entry.label for entry in kept}
    copies = [entry for entry in sets if entry.label not in labels]
    left_out = {path for entry in copies for path in entry.files}
    if sets:
        left_out |= {path for path in sizes if _TRAINING_STATE.fullmatch(path.rpartition("/")[2])}
    return WeightChoice(frozenset(left_out), _message(kept, copies) if copies else "")


def _message(kept: Sequence[_Set], copies: Sequence[_Set]) -> str:
    main = _by_size(kept)[0]
    size, files = sum(entry.size for entry in kept), sum(entry.count for entry in kept)
    copied = few([f"{entry.title} ({amount(entry.size)})" for entry in _by_size(copies)], _SHOWN)
    return (
        f"weights: {_words(main)}, {main.title} ({counted(files, 'file')}, {amount(size)}); left out as copies:"
        f" {', '.join(copied)}; storage.parameters.weights chooses another set"
    )


def _words(entry: _Set) -> str:
    return f"{entry.label.format} {entry.label.variant}".strip()


def _by_size(sets: Iterable[_Set]) -> list[_Set]:
    return sorted(sets, key=lambda entry: (-entry.size, entry.files))


def _sets(sizes: Mapping[str, int]) -> list[_Set]:
    pairs = {path.removesuffix(".xml") for path in sizes if path.endswith(".xml")}
    files: dict[_Label, list[str]] = defaultdict(list)
    indexes = []
    for path in sizes:
        folder, _, name = path.rpartition("/")
        if (index := _INDEX.fullmatch(name)) is not None:
            indexes.append((path, folder, index))
        elif (label := _label(folder, name, pairs)) is not None:
            files[label].append(path)
    indexed = set()
    series: dict[_Label, list[_Label]] = defaultdict(list)
    for label in files:
        if label.shards:
            series[label._replace(shards=0)].append(label)
    for path, folder, index in indexes:
        # An index goes where its shards go. With shards of two series it cannot be told whose it is: it stays.
        meant = _label(folder, f"{index['stem']}.{index['suffix']}", pairs)
        precision = index["precision"] or (meant.variant if meant else "")
        candidates = series.get(meant._replace(variant=precision), []) if meant else []
        if len(candidates) == 1:
            indexed.add(candidates[0])
            files[candidates[0]].append(path)
    return [
        _Set(label, tuple(sorted(paths)), sum(sizes[path] for path in paths), label in indexed)
        for label, paths in files.items()
    ]


def _label(folder: str, name: str, pairs: set[str]) -> _Label | None:
    path = f"{folder}/{name}" if folder else name
    if (package := _PACKAGE.fullmatch(path)) is not None:
        return _Label(package["place"] or "", "coreml", package["name"], "", 0)
    if name in ("variables.index", "saved_model.pb") or name.startswith("variables.data-"):
        return _Label(folder, "tensorflow", "saved_model", "", 0)
    shards, variant = 0, ""
    if (piece := _PIECE.search(name)) is not None:
        shards, name = int(piece[1]), name[: piece.start()]
    stem, _, suffix = name.rpartition(".")
    suffix = suffix.lower()
    if path.rpartition(".")[0] in pairs and suffix in ("xml", "bin"):
        return _Label(folder, "openvino", stem, "", 0)
    if (data := _ONNX_DATA.fullmatch(name)) is not None:
        stem, suffix = data["stem"], "onnx"
    if not stem or suffix not in _SUFFIXES or _TRAINING_STATE.fullmatch(name):
        return None
    form = _SUFFIXES[suffix]
    if (shard := _SHARD.search(stem)) is not None:
        shards, stem = int(shard[1]), stem[: shard.start()] + stem[shard.end() :]
    if form == "gguf":
        return _gguf(folder, stem, shards)
    if (match := _NAMED_PRECISION.search(stem)) is not None:
        variant = (match["inside"] or match["last"]).lower()
        stem = stem[: match.start()] + stem[match.end() :]
    elif form == "onnx" and (match := _ONNX_PRECISION.search(stem)) is not None:
        variant, stem = match[1].lower(), stem[: match.start()]
    if form == "pytorch" and stem.startswith("ggml-"):
        return _Label(folder, "ggml", "ggml", stem.removeprefix("ggml-"), shards)
    if form in ("safetensors", "pytorch") and re.fullmatch(r"consolidated(\.\d+)?", stem):
        # Consecutive numbers (consolidated.00.pth) are parts of one checkpoint.
        return _Label(folder, "consolidated", "consolidated", variant if form == "safetensors" else "pth", shards)
    return _Label(folder, form, stem.removesuffix(f".{suffix}"), variant, shards)


def _gguf(folder: str, stem: str, shards: int) -> _Label:
    """A GGUF file: its variant is the quantization, out of its name or its folder's, which is no place of its own."""
    place = [part for part in folder.split("/") if part and not _QUANTIZATION.fullmatch(part)]
    named = list(_QUANTIZATION.finditer(stem))
    if named:
        last = named[-1]
        stem = (stem[: last.start()] + stem[last.end() :]).strip("-._ ")
        stem = re.sub(r"[-._](?:i1|imat|imatrix)$", "", stem)  # how it was quantized, too
    else:
        named = list(_QUANTIZATION.finditer(folder))
    return _Label("/".join(place), "gguf", stem, named[-1][1].upper() if named else "", shards)


def _kept(sets: Sequence[_Set], sizes: Mapping[str, int], wanted: str) -> list[_Set]:
    folders: dict[str, list[_Set]] = defaultdict(list)
    for entry in sets:
        folders[entry.label.folder].append(entry)
    chosen = {folder: _of_folder(inside, wanted) for folder, inside in folders.items()}
    pipelines = {path.rpartition("/")[0] for path in sizes if path.rpartition("/")[2] == _PIPELINE}
    parents = {above for folder in chosen for above in _above(folder)}
    dropped: set[str] = set()
    copies: dict[str, list[str]] = defaultdict(list)
    for folder in sorted(chosen, key=lambda entry: (entry.count("/") + bool(entry), entry)):
        if folder in pipelines:
            if folder in parents and not _matches(chosen[folder], wanted):
                dropped.add(folder)  # a whole pipeline in one file
            continue
        above = next((entry for entry in _above(folder) if entry in chosen), None)
        if above is None or above in pipelines:
            if _COPY_FOLDER.fullmatch(folder.rpartition("/")[2]) and above is None:
                copies[folder.rpartition("/")[0]].append(folder)
        elif _is_copy(folder, above, chosen):
            instead = _matches(chosen[folder], wanted) and not _matches(chosen[above], wanted)
            dropped.add(above if instead else folder)
    for candidates in copies.values():
        best = min(candidates, key=lambda folder: _folder_rank(folder, chosen[folder], wanted))
        dropped |= set(candidates) - {best}
    return [entry for folder, inside in chosen.items() if folder not in dropped for entry in inside]


def _of_folder(sets: Sequence[_Set], wanted: str) -> list[_Set]:
    def by_preference(entry: _Set) -> tuple[bool, int]:
        return not entry.is_called(wanted), FORMATS.index(entry.label.format)

    named = [entry for entry in sets if entry.is_named]
    form = min(named or sets, key=by_preference).label.format
    size = min(entry.size for entry in named or sets if entry.label.format == form)
    kept: list[_Set] = []
    whole: list[_Set] = []
    for entry in sets:
        (whole if entry.is_named or entry.size >= AUXILIARY * size else kept).append(entry)
    form = min(whole, key=by_preference).label.format
    candidates: dict[str, list[_Set]] = defaultdict(list)
    for entry in whole:
        if entry.label.format == form:
            candidates[entry.label.stem].append(entry)
    for same in candidates.values():
        best = min(_rank(entry, wanted) for entry in same)
        kept += [entry for entry in same if _rank(entry, wanted) == best]
    return kept


def _rank(entry: _Set, wanted: str) -> tuple[object, ...]:
    """Order of sets of one format and name; the least is kept, or both where two are alike."""
    label = entry.label
    if label.format == "gguf":
        preferred: Sequence[str] = PROJECTOR_QUANTIZATIONS if "mmproj" in label.stem.lower() else QUANTIZATIONS
    else:
        preferred = PRECISIONS
    place = preferred.index(label.variant) if label.variant in preferred else len(preferred)
    series = 1 if not label.shards else 0 if entry.indexed else 2
    return not entry.is_called(wanted), place, label.variant, entry.count < label.shards, series


def _folder_rank(folder: str, sets: Sequence[_Set], wanted: str) -> tuple[object, ...]:
    name = folder.rpartition("/")[2].lower()
    number = re.search(r"\d+$", name) if name.startswith(("checkpoint", "global_step")) else None
    precision = PRECISIONS.index(name) if name in PRECISIONS else len(PRECISIONS)
    form = min(FORMATS.index(entry.label.format) for entry in sets)
    return not _matches(sets, wanted), form, precision, -int(number[0]) if number else 0, name


def _is_copy(folder: str, above: str, chosen: Mapping[str, Sequence[_Set]]) -> bool:
    """A folder repeats the weights above it: by its name, or by another format of about their size."""
    size, size_above = (sum(entry.size for entry in chosen[place]) for place in (folder, above))
    if size_above < AUXILIARY * size:
        return False
    inside = folder[len(above) :].strip("/").split("/")
    if any(_COPY_FOLDER.fullmatch(part) for part in inside):
        return True
    if any(_MODULE_FOLDER.fullmatch(part) for part in inside):
        return False
    forms = {entry.label.format for entry in chosen[folder]}
    if "safetensors" in forms or forms & {entry.label.format for entry in chosen[above]}:
        return False
    return size >= AUXILIARY * size_above


def _matches(sets: Iterable[_Set], wanted: str) -> bool:
    return bool(wanted) and any(entry.is_called(wanted) for entry in sets)


def _above(folder: str) -> Iterable[str]:
    while folder:
        folder = folder.rpartition("/")[0]
        yield folder
