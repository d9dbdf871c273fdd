"""What a model can do, from its type, its architecture and its files. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from modelyard.models.detection.config import Config, mapping, text

CURRENT = {
    "TEXT_GENERATION": "TEXT_TO_TEXT",
    "TEXT_SUMMARIZATION": "TEXT_TO_TEXT",
    "CHAT": "TEXT_TO_TEXT",
    "TEXT_EMBEDDINGS": "EMBEDDING",
    "VISION": "IMAGE_TEXT_TO_TEXT",
}
"""Former names of capabilities, which were tasks, and what they are called now. Rerankers keep theirs."""
_OMNI = ("TEXT_TO_AUDIO", "IMAGE_TEXT_TO_AUDIO", "VIDEO_TEXT_TO_AUDIO", "AUDIO_TO_TEXT", "AUDIO_TO_AUDIO")
CAPABILITIES = frozenset((*CURRENT, *CURRENT.values(), *_OMNI)) | (
    {"TEXT_RERANK", "TEXT_TO_IMAGE", "IMAGE_TEXT_TO_IMAGE", "TEXT_TO_VIDEO", "IMAGE_TEXT_TO_VIDEO"}
)

_PIPELINES = (
    (("imagetovideo", "i2v", "img2vid", "videotovideo"), "IMAGE_TEXT_TO_VIDEO"),
    (("imageedit", "pix2pix", "img2img", "inpaint", "kontext", "controlnet"), "IMAGE_TEXT_TO_IMAGE"),
    (("texttovideo", "t2v", "cogvideo", "hunyuanvideo", "wan", "ltx", "mochi", "allegro", "latte"), "TEXT_TO_VIDEO"),
    (("video",), "IMAGE_TEXT_TO_VIDEO"),
    (("image", "pix", "stablediffusion", "flux", "sana", "kandinsky", "lumina", "hunyuandit"), "TEXT_TO_IMAGE"),
)
_LOOKS = ("mllama", "llava", "gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "deepseek_vl")
_EYES = ("vision_config", "vision_tower", "mm_vision_tower", "visual", "img_processor", "embd_layer")
_HEARS = ("whisper", "wav2vec2", "hubert", "forctc", "forspeechtotext", "forspeechseq2seq")
_EARS = ("audio_config", "audio_tower", "audio_encoder_config", "speech_config")
_RERANKS = ("ForSequenceClassification", "CrossEncoder", "ForRanking", "ForReranking")
_POOLS = ("model", "modelwithprojection")
"""Ends of the names of classes without a head, which engines run as pooling models."""
_ANSWERS = ("lmheadmodel", "chatmodel", "rewardmodel", "omnimodel")
_BASE_ANSWERS = frozenset({"chatglm", "bart", "mbart", "gpt2", "t5", "mt5", "bloom", "internvl_chat"})


def current(names: Iterable[str]) -> list[str]:
    """The capabilities under the names of today, each once."""
    return list(dict.fromkeys(CURRENT.get(name, name) for name in names))


def has_vision(config: Config) -> bool:
    """Whether it looks at pictures. A head for text alone, of a family that can, does not."""
    if any(level.get(name) for level in config.levels for name in _EYES):
        return True
    return config.type in _LOOKS and not config.architecture.endswith("ForCausalLM")


def is_reranker(config: Config, sentence: Mapping[str, Mapping[str, Any]]) -> bool:
    """Report whether it scores pairs of texts. ``sentence``: the files of sentence-transformers, by name."""
    kind = text(sentence.get("config_sentence_transformers.json", {}).get("model_type"))
    scores = any("logitscore" in module or "crossencoder" in module for module in _modules(sentence))
    return config.architecture.endswith(_RERANKS) or kind == "CrossEncoder" or scores


def is_embedding(config: Config, sentence: Mapping[str, Mapping[str, Any]]) -> bool:
    """Report whether it makes embeddings: by its architecture, or by files of sentence-transformers next to it."""
    kind, architecture = config.type.lower(), config.architecture.lower()
    stated = sentence.get("config_sentence_transformers.json", {})
    return (
        any(word in architecture for word in ("embedding", "sentence", "forretrieval", "textencoding"))
        or "bert" in kind
        or (architecture.endswith(_POOLS) and not _generates(kind, architecture))
        or bool(text(stated.get("similarity_fn_name")))
        or text(stated.get("model_type")) in ("SentenceTransformer", "SparseEncoder")
        or "1_Pooling/config.json" in sentence
        or any(module.rpartition(".")[2].endswith(("pooling", "wordweights")) for module in _modules(sentence))
    )


def _generates(kind: str, architecture: str) -> bool:
    """Base classes that answer all the same, or that hear: the rule about ``Model`` at the end is not for them."""
    if architecture.endswith(_ANSWERS) or any(word in architecture for word in _HEARS):
        return True
    return kind in _BASE_ANSWERS and "encoder" not in architecture


def _modules(sentence: Mapping[str, Mapping[str, Any]]) -> list[str]:
    listed = sentence.get("modules.json", {}).get("modules")
    return [text(mapping(module).get("type")).lower() for module in listed] if isinstance(listed, list) else []


def of_model(config: Config, vision: bool, embedding: bool, reranker: bool) -> tuple[str, ...]:
    """By the first rule that applies."""
    kind, architecture = config.type.lower(), config.architecture.lower()
    if "nemotronh_nano" in kind:
        return ("IMAGE_TEXT_TO_TEXT", "TEXT_TO_TEXT", "AUDIO_TO_TEXT")
    if reranker:
        return ("TEXT_RERANK",)
    if "omni" in architecture and not embedding:
        return (*(("IMAGE_TEXT_TO_TEXT",) if vision else ()), *_OMNI)
    if embedding:
        return ("EMBEDDING",)
    if vision:
        return ("IMAGE_TEXT_TO_TEXT",)
    if any(word in architecture for word in _HEARS):
        return ("AUDIO_TO_TEXT",)
    if any(config.part(name) for name in _EARS):
        return ("TEXT_TO_TEXT", "AUDIO_TO_TEXT")
    return ("TEXT_TO_TEXT",)


def of_pipeline(cls: str) -> tuple[str, ...]:
    """By the class of the pipeline; nothing for one that says nothing."""
    name = cls.lower()
    return next(((found,) for words, found in _PIPELINES if any(word in name for word in words)), ())
