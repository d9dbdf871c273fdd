"""What a model can do, from its type, its architecture and its files. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from modelyard.models.detection.config import Config, mapping, text

CURRENT = {
    "TEXT_GENERATION": "TEXT_TO_TEXT",
    "TEXT_SUMMARIZATION": "TEXT_TO_TEXT",
    "CHAT": "TEXT_TO_TEXT",
    "TEXT_EMBEDDINGS": "EMBEDDING",
    "VISION": "IMAGE_TEXT_TO_TEXT",
}
"""Former names of capabilities, which were tasks, and what they are called now. Rerankers keep theirs."""
CAPABILITIES = frozenset((*CURRENT, *CURRENT.values())) | {
    "TEXT_RERANK",
    "TEXT_TO_IMAGE",
    "IMAGE_TEXT_TO_IMAGE",
    "TEXT_TO_VIDEO",
    "IMAGE_TEXT_TO_VIDEO",
    "TEXT_TO_AUDIO",
    "IMAGE_TEXT_TO_AUDIO",
    "VIDEO_TEXT_TO_AUDIO",
    "AUDIO_TO_TEXT",
    "AUDIO_TO_AUDIO",
}
"""Every known one, under all of its names."""

_PIPELINES = (
    (("imagetovideo", "i2v", "img2vid", "videotovideo"), "IMAGE_TEXT_TO_VIDEO"),
    (("imageedit", "pix2pix", "img2img", "inpaint", "kontext", "controlnet"), "IMAGE_TEXT_TO_IMAGE"),
    (("texttovideo", "t2v", "cogvideo", "hunyuanvideo", "wan", "ltx", "mochi", "allegro", "latte"), "TEXT_TO_VIDEO"),
    (("video",), "IMAGE_TEXT_TO_VIDEO"),
    (("image", "pix", "stablediffusion", "flux", "sana", "kandinsky", "lumina", "hunyuandit"), "TEXT_TO_IMAGE"),
)
_LOOKS = ("mllama", "llava", "gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "deepseek_vl", "mllama")
_EYES = ("vision_config", "vision_tower", "mm_vision_tower", "visual", "img_processor")
_OMNI = ("TEXT_TO_AUDIO", "IMAGE_TEXT_TO_AUDIO", "VIDEO_TEXT_TO_AUDIO", "AUDIO_TO_TEXT", "AUDIO_TO_AUDIO")
_HEARS = ("whisper", "wav2vec2", "hubert", "forctc", "forspeechtotext", "forspeechseq2seq")


def current(names: Iterable[str]) -> list[str]:
    """The capabilities under the names of today, each once."""
    return list(dict.fromkeys(CURRENT.get(name, name) for name in names))


def has_vision(config: Config) -> bool:
    """Whether it looks at pictures. A head for text alone, of a family that can, does not."""
    if any(config.raw.get(name) for name in _EYES):
        return True
    kind = config.type
    return kind in _LOOKS and not config.architecture.endswith("ForCausalLM")


def is_embedding(config: Config, sentence: object) -> bool:
    """Whether it makes embeddings. ``sentence`` is the configuration for sentence-transformers beside its own."""
    kind, architecture = config.type.lower(), config.architecture.lower()
    return (
        "embedding" in architecture
        or "sentence" in architecture
        or ("bert" in kind and not _reranks(config))
        or architecture == "mistralmodel"
        or (bool(text(mapping(sentence).get("similarity_fn_name"))) and not _reranks(config))
    )


def _reranks(config: Config) -> bool:
    return config.architecture.endswith("ForSequenceClassification")


def of_model(config: Config, vision: bool, embedding: bool) -> tuple[str, ...]:
    """By the first rule that applies."""
    kind, architecture = config.type.lower(), config.architecture.lower()
    if "nemotronh_nano" in kind:
        return ("IMAGE_TEXT_TO_TEXT", "TEXT_TO_TEXT", "AUDIO_TO_TEXT")
    if "omni" in architecture:
        return (*(("IMAGE_TEXT_TO_TEXT",) if vision else ()), *_OMNI)
    if vision:
        return ("EMBEDDING",) if embedding else ("IMAGE_TEXT_TO_TEXT",)
    if any(word in architecture for word in _HEARS):
        return ("AUDIO_TO_TEXT",)
    if _reranks(config):
        return ("TEXT_RERANK",)
    return ("EMBEDDING",) if embedding else ("TEXT_TO_TEXT",)


def of_pipeline(cls: str) -> tuple[str, ...]:
    """By the class of the pipeline; nothing for one that says nothing."""
    name = cls.lower()
    return next(((found,) for words, found in _PIPELINES if any(word in name for word in words)), ())
