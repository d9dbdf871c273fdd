"""What a model is, by its configuration: the families, the counts, the tables."""

from __future__ import annotations

from typing import Any

import pytest

from modelyard.models.detection import Facts, parse_size, size_text
from modelyard.models.detection.capabilities import current, of_pipeline
from modelyard.models.detection.files import Files, Weights
from modelyard.models.detection.interpret import interpret
from modelyard.models.detection.sizes import bytes_text

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0",
    "tie_word_embeddings": False,
}
QWEN3 = {"model_type": "qwen3", "head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151936}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "vocab_size": 129280,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "vocab_size": 201088,
    "attention_bias": True,
    "quantization_config": {"quant_method": "mxfp4"},
}


def facts(config: dict[str, Any], elements: dict[tuple[str, str], int] | None = None, **others: Any) -> Facts:
    documents = {"config.json": config, **{f"{name}.json": found for name, found in others.items()}}
    return interpret(Files("config.json", documents, {"": Weights(elements or {}, 0)}))


def test_a_llama_is_known_in_full() -> None:
    found = facts(LLAMA)
    assert found == Facts(
        model_type="llama",
        architecture="LlamaForCausalLM",
        format="safetensors",
        format_version="1.0.0",
        framework="transformers",
        framework_version="4.43.0.dev0",
        parameters=8_030_261_248,
        parameters_from="formula",
        context_length=131072,
        dtype="bfloat16",
        capabilities=("TEXT_TO_TEXT",),
        weight_bytes=16_060_522_496,
        kv_bytes_per_token=131072,
        layers=32,
        heads=32,
        kv_heads=8,
        head_size=128,
        hidden_size=4096,
        vocabulary=128256,
    )
    assert found.size == "8.03B"
    assert found.digest == {
        "model_type": "llama",
        "architecture": "LlamaForCausalLM",
        "context_length": 131072,
        "parameter_count": "8.03B",
        "has_vision": False,
        "is_embedding": False,
        "transformers_version": "4.43.0.dev0",
        "torch_dtype": "bfloat16",
        "model_size_bytes": "14.96 GB",
    }


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA, 8_030_261_248),
        (
            {
                **LLAMA,
                "hidden_size": 16384,
                "num_hidden_layers": 126,
                "num_attention_heads": 128,
                "intermediate_size": 53248,
            },
            405_853_388_800,
        ),
        ({**LLAMA, "model_type": "mistral", "vocab_size": 32000}, 7_241_732_096),
        ({**LLAMA, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8}, 46_702_792_704),
        (
            {
                **LLAMA,
                "model_type": "qwen2",
                "hidden_size": 8192,
                "num_hidden_layers": 80,
                "num_attention_heads": 64,
                "intermediate_size": 29568,
                "vocab_size": 152064,
            },
            72_706_203_648,
        ),
        (
            {
                **QWEN3,
                "hidden_size": 5120,
                "num_hidden_layers": 64,
                "num_attention_heads": 64,
                "intermediate_size": 25600,
            },
            32_762_123_264,
        ),
        (
            {
                **QWEN3,
                "model_type": "qwen3_moe",
                "hidden_size": 2048,
                "num_hidden_layers": 48,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "intermediate_size": 6144,
                "moe_intermediate_size": 768,
                "num_experts": 128,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
            },
            30_532_122_624,
        ),
        (DEEPSEEK, 671_026_419_200),
        # With the layer that predicts one more token, as its weights have it.
        ({**DEEPSEEK, "num_nextn_predict_layers": 1}, 684_489_845_504),
        (GPT_OSS, 20_914_757_184),
        (
            {
                "model_type": "gemma2",
                "hidden_size": 3584,
                "num_hidden_layers": 42,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 256,
                "intermediate_size": 14336,
                "vocab_size": 256000,
            },
            9_241_705_984,
        ),
        (
            {
                "model_type": "phi3",
                "hidden_size": 3072,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 32,
                "intermediate_size": 8192,
                "vocab_size": 32064,
            },
            3_821_079_552,
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_the_formula_counts_what_the_layers_hold(config: dict[str, Any], parameters: int) -> None:
    found = facts(config)
    assert (found.parameters, found.parameters_from) == (parameters, "formula")


LLAMA4 = {
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "vocab_size": 202048,
}


@pytest.mark.parametrize(("experts", "step", "size"), [(16, 1, "108.58B"), (128, 2, "401.52B")])
def test_models_that_look_at_pictures_are_counted_with_what_looks(experts: int, step: int, size: str) -> None:
    text = {**LLAMA4, "num_local_experts": experts, "interleave_moe_layer_step": step}
    vision = {"hidden_size": 1408, "num_hidden_layers": 34, "intermediate_size": 5632}
    assert facts({"model_type": "llama4", "text_config": text, "vision_config": vision}).size == size


def test_a_mixture_that_the_peer_takes_for_16b_has_its_real_size() -> None:
    config = {**LLAMA, "model_type": "phimoe", "intermediate_size": 6400, "num_local_experts": 16, "vocab_size": 32064}
    assert facts(config).size == "41.87B"
    assert facts({"model_type": "phimoe", "hidden_size": 4096, "num_hidden_layers": 32, "num_experts": 16}).size == (
        "41.9B"
    )


@pytest.mark.parametrize(
    ("kind", "hidden", "layers", "size"),
    [
        ("llama", 8192, 80, "70B"),
        ("llama", 8192, 82, "70B"),
        ("llama", 16384, 126, "405B"),
        ("llama", 3072, 28, "3B"),
        ("llama", 2048, 16, "1B"),
        ("mllama", 4096, 40, "11B"),
        ("mllama", 8192, 100, "90B"),
        ("mistral", 4096, 32, "7B"),
        ("mistral", 5120, 40, None),
        ("mixtral", 4096, 32, "46.7B"),
        ("deepseek_v3", 7168, 61, "685B"),
        # 1.5T in the published table; its configuration gives 1.03T.
        ("kimi_k2", 7168, 61, "1.03T"),
        ("qwen", 4096, 32, "7B"),
        ("qwen", 5120, 40, "14B"),
        ("qwen", 8192, 80, "72B"),
        ("qwen2", 3584, 28, "7B"),
        ("qwen2", 8192, 40, "34B"),
        ("qwen2", 7680, 64, "72B"),
        ("qwen2_vl", 1536, 28, "2B"),
        ("qwen2_vl", 3584, 28, "7B"),
        ("qwen2_vl", 8192, 80, "72B"),
        ("qwen3", 2560, 36, "4B"),
        ("qwen3", 4096, 36, "8B"),
        ("qwen3_moe", 2048, 48, "30B"),
        ("qwen3_moe", 4096, 94, "235B"),
        ("gemma", 2048, 18, "2B"),
        ("gemma2", 2304, 26, "2.6B"),
        ("gemma", 3072, 28, "7B"),
        ("gemma2", 3584, 42, "9B"),
        ("gemma3", 5376, 62, "32B"),
        ("phi", 2560, 32, None),
        ("phi3", 3072, 32, "3.8B"),
        ("phi3_v", 3072, 32, "3.8B"),
        ("phi3small", 3072, 32, "14B"),
        ("phi3small", 4096, 32, "7B"),
        ("bert", 768, 12, "110M"),
        ("bert", 1024, 24, "340M"),
        ("chatglm", 4096, 28, "6B"),
        ("chatglm", 4096, 40, "9B"),
        ("baichuan", 4096, 32, "7B"),
        ("baichuan", 5120, 40, "13B"),
        ("cohere", 8192, 40, "35B"),
        ("command-r", 12288, 64, "104B"),
        ("dbrx", 6144, 48, "132B"),
        ("exaone", 4096, 32, "7.8B"),
        ("exaone", 2560, 42, "2.8B"),
        ("internlm", 4096, 32, "7B"),
        ("internlm2", 6144, 48, "20B"),
        ("internlm", 2048, 24, "1.8B"),
        ("xverse", 4096, 32, "7B"),
        ("xverse", 5120, 40, "13B"),
        ("xverse", 6144, 80, "65B"),
        ("minicpm", 2560, 62, "4B"),
        ("minicpm", 2304, 40, "2.4B"),
        ("minicpm3", 1536, 52, "1.2B"),
        ("stablelm", 2560, 32, "3B"),
        ("stablelm", 2048, 24, "1.6B"),
        ("deepseek_vl_v2", 1280, 12, "1B"),
        ("deepseek_vl_v2", 2048, 24, "1.3B"),
    ],
)
def test_sizes_of_well_known_models_where_the_configuration_says_little(
    kind: str, hidden: int, layers: int, size: str | None
) -> None:
    found = facts({"model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers})
    assert found.size == size
    assert found.parameters_from == ("table" if size else None)
    assert bool(found.problems) is (size is None)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"model_type": "llama4", "text_config": {"num_local_experts": 128}}, "402B"),
        # 17B in the published table, which is what is active of it.
        ({"model_type": "llama4", "text_config": {"num_local_experts": 16}}, "109B"),
        ({"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "num_local_experts": 32}, "20.9B"),
        ({"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36, "num_local_experts": 128}, "116.8B"),
        ({"model_type": "llava", "vocab_size": 32000, "vision_config": {"num_hidden_layers": 24}}, "7.5B"),
    ],
)
def test_tables_that_ask_for_more(config: dict[str, Any], size: str) -> None:
    if config["model_type"] == "llama4":
        config["text_config"] |= {"hidden_size": 5120, "num_hidden_layers": 48}
    assert facts(config).size == size


@pytest.mark.parametrize(
    ("elements", "quantization", "parameters"),
    [
        ({("weight", "BF16"): 1000, ("bias", "F32"): 10, ("inv_freq", "F32"): 64, ("mask", "BOOL"): 99}, None, 1010),
        # Eight weights of four bits in one of 32, with their scales and zero points.
        (
            {("qweight", "I32"): 100, ("qzeros", "I32"): 5, ("scales", "F16"): 20, ("g_idx", "I32"): 9},
            {"quant_method": "gptq", "bits": 4},
            800,
        ),
        ({("qweight", "I32"): 100, ("scales", "F16"): 20}, {"quant_method": "gptq", "bits": 8}, 400),
        ({("qweight", "I32"): 100, ("weight", "F16"): 7}, {"quant_method": "awq"}, 807),
        (
            {("weight_packed", "I32"): 100, ("weight_scale", "BF16"): 10, ("weight_shape", "I64"): 2},
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
            800,
        ),
        # Layers of eight bits and packed ones of four.
        (
            {("weight", "F8_E4M3"): 100, ("weight", "U8"): 50, ("weight_scale", "F8_E4M3"): 10},
            {"quant_method": "modelopt", "config_groups": {n: {"weights": {"num_bits": n}} for n in (8, 4)}},
            200,
        ),
        # Two in a byte.
        ({("gate_up_proj_blocks", "U8"): 100, ("gate_up_proj_scales", "U8"): 6}, {"quant_method": "mxfp4"}, 200),
        ({("weight", "U8"): 100, ("absmax", "U8"): 3, ("quant_map", "F32"): 16}, {"quant_method": "bitsandbytes"}, 200),
        ({("weight", "F8_E4M3"): 100, ("weight_scale_inv", "F32"): 4}, {"quant_method": "fp8"}, 100),
        ({("weight", "I8"): 100, ("weight_scale", "F32"): 4}, {"quant_method": "compressed-tensors"}, 100),
        # A scale is a weight like any other where nothing is quantized.
        ({("scale", "F32"): 100}, None, 100),
    ],
)
def test_headers_are_counted_in_parameters(
    elements: dict[tuple[str, str], int], quantization: dict[str, Any] | None, parameters: int
) -> None:
    found = facts({**LLAMA, "quantization_config": quantization}, elements)
    assert (found.parameters, found.parameters_from) == (parameters, "weights")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999, "999"),
        (500_000_000, "500M"),
        (8_030_261_248, "8.03B"),
        (7_000_000_000, "7B"),
        (1_250_000_000, "1.25B"),
        (1_950_000_000, "1.95B"),
        (2_699_200_000, "2.7B"),
        (999_999_999_999, "1T"),
        (999_994_999_999, "999.99B"),
        (1_100_000_000_000, "1.1T"),
        (1_500, "1.5K"),
        (12_000_000_000_000_000, "12000T"),
    ],
)
def test_sizes_as_text(count: int, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize(("text", "count"), [("7B", 7 * 10**9), ("1.1T", 11 * 10**11), ("500M", 5 * 10**8), ("42", 42)])
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "7b", "500K", "B", "-7B", "7 B", "1e9", "NaN", "9" * 16, "٧B", "7B\n"])
def test_what_is_no_size_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="such as 7B"):
        parse_size(text)


@pytest.mark.parametrize(
    ("count", "text"), [(1023, "1023 B"), (1536, "1.50 KB"), (16_060_522_496, "14.96 GB"), (2**50, "1024.00 TB")]
)
def test_bytes_as_text(count: int, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({"model_type": "llama", "max_position_embeddings": 8192}, 8192),
        *(
            ({"model_type": kind, "seq_length": 2048, "max_position_embeddings": 8192}, 2048)
            for kind in ("qwen", "qwen2", "qwen3", "qwen3_moe", "chatglm")
        ),
        ({"model_type": "qwen2", "seq_length": 0, "max_position_embeddings": 8192}, 8192),
        ({"model_type": "baichuan", "model_max_length": 4096, "max_position_embeddings": 8192}, 4096),
        ({"model_type": "dbrx", "max_seq_len": 32768}, 32768),
        ({"model_type": "llama4", "vision_config": {}, "text_config": {"max_position_embeddings": 10**7}}, 10**7),
        # The architecture's default is final: RoPE scaling does not multiply it.
        ({"model_type": "gemma3", "text_config": {"sliding_window": 1024, "rope_scaling": {"factor": 8.0}}}, 131072),
        ({"model_type": "gemma3", "text_config": {"sliding_window": 512}}, 131072),
        ({"model_type": "gemma3"}, 131072),
        ({"model_type": "gemma3_text", "max_position_embeddings": 32768, "sliding_window": 512}, 32768),
        ({"model_type": "deepseek_vl_v2"}, 4096),
        ({"model_type": "new_type", "max_sequence_length": 1000}, 1000),
        ({"model_type": "new_type", "language_config": {"max_position_embeddings": 77}}, 77),
        ({"model_type": "new_type", "max_position_embeddings": 0}, None),
    ],
)
def test_context_length(config: dict[str, Any], context: int | None) -> None:
    assert facts(config).context_length == context


@pytest.mark.parametrize(
    ("quantization", "word", "method"),
    [
        ({"quant_method": "fp8"}, "fp8", "fp8"),
        ({"quant_method": "FBGEMM_FP8"}, "fp8", "FBGEMM_FP8"),
        ({"quant_method": "int4-awq"}, "int4", "int4-awq"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8", "compressed-tensors"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", "modelopt"),
        ({"quant_method": "awq"}, None, "awq"),
        ({"quant_method": "gptq"}, None, "gptq"),
        ({"quant_method": "mxfp4"}, None, "mxfp4"),
        ({"quant_method": 8}, None, None),
        ("fp8", None, None),
        (None, None, None),
    ],
)
def test_quantization(quantization: object, word: str | None, method: str | None) -> None:
    found = facts({**LLAMA, "quantization_config": quantization})
    assert (found.quantization, found.quantization_method) == (word, method)


@pytest.mark.parametrize(
    ("config", "able"),
    [
        ({"model_type": "nemotronh_nano_vl"}, ("IMAGE_TEXT_TO_TEXT", "TEXT_TO_TEXT", "AUDIO_TO_TEXT")),
        *(
            ({"model_type": kind}, ("IMAGE_TEXT_TO_TEXT",))
            for kind in ("mllama", "llava", "gemma3", "qwen2_vl", "qwen3_vl", "deepseek_vl")
        ),
        ({"model_type": "llama4", "vision_config": {"hidden_size": 1}}, ("IMAGE_TEXT_TO_TEXT",)),
        ({"model_type": "llama4"}, ("TEXT_TO_TEXT",)),
        ({"model_type": "phi3_v", "img_processor": {"name": "clip"}}, ("IMAGE_TEXT_TO_TEXT",)),
        ({"model_type": "phi4mm", "img_processor": None, "embd_layer": {"image": {}}}, ("IMAGE_TEXT_TO_TEXT",)),
        ({"model_type": "qwen2_audio", "audio_config": {"d_model": 1280}}, ("TEXT_TO_TEXT", "AUDIO_TO_TEXT")),
        ({"model_type": "new", "vision_config": {"hidden_size": 1}}, ("IMAGE_TEXT_TO_TEXT",)),
        # A head for text alone, of a family that looks at pictures.
        ({"model_type": "mllama", "architectures": ["MllamaForCausalLM"]}, ("TEXT_TO_TEXT",)),
        ({"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}, ("AUDIO_TO_TEXT",)),
        ({"model_type": "x", "architectures": ["XForCTC"]}, ("AUDIO_TO_TEXT",)),
        ({"model_type": "x", "architectures": ["XForSpeechToText"]}, ("AUDIO_TO_TEXT",)),
        ({"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"]}, ("EMBEDDING",)),
        ({"model_type": "bert", "architectures": ["BertForSequenceClassification"]}, ("TEXT_RERANK",)),
        ({"model_type": "x", "architectures": ["XSentenceModel"]}, ("EMBEDDING",)),
        ({"model_type": "mistral", "architectures": ["MistralModel"]}, ("EMBEDDING",)),
        ({"model_type": "mistral", "architectures": ["MistralForCausalLM"]}, ("TEXT_TO_TEXT",)),
        ({"model_type": "mistral"}, ("TEXT_TO_TEXT",)),
        ({"model_type": "llama"}, ("TEXT_TO_TEXT",)),
        (
            {"model_type": "qwen_omni", "architectures": ["QwenOmniModel"]},
            ("TEXT_TO_AUDIO", "IMAGE_TEXT_TO_AUDIO", "VIDEO_TEXT_TO_AUDIO", "AUDIO_TO_TEXT", "AUDIO_TO_AUDIO"),
        ),
    ],
)
def test_capabilities(config: dict[str, Any], able: tuple[str, ...]) -> None:
    assert facts(config).capabilities == able


def test_an_embedding_model_of_a_family_for_text_is_told_by_what_stands_beside_its_configuration() -> None:
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    assert not facts(config, config_sentence_transformers={"similarity_fn_name": None}).embedding
    found = facts(config, config_sentence_transformers={"similarity_fn_name": "cosine"})
    assert (found.embedding, found.capabilities) == (True, ("EMBEDDING",))


@pytest.mark.parametrize(
    ("cls", "able"),
    [
        ("QwenImageEditPipeline", "IMAGE_TEXT_TO_IMAGE"),
        ("StableDiffusionInstructPix2PixPipeline", "IMAGE_TEXT_TO_IMAGE"),
        ("StableDiffusionXLImg2ImgPipeline", "IMAGE_TEXT_TO_IMAGE"),
        ("StableDiffusionInpaintPipeline", "IMAGE_TEXT_TO_IMAGE"),
        ("QwenImagePipeline", "TEXT_TO_IMAGE"),
        ("PixArtAlphaPipeline", "TEXT_TO_IMAGE"),
        ("StableDiffusionXLPipeline", "TEXT_TO_IMAGE"),
        ("FluxPipeline", "TEXT_TO_IMAGE"),
        ("TextToVideoSDPipeline", "TEXT_TO_VIDEO"),
        ("WanPipeline", "TEXT_TO_VIDEO"),
        ("CogVideoXPipeline", "TEXT_TO_VIDEO"),
        ("CogVideoXImageToVideoPipeline", "IMAGE_TEXT_TO_VIDEO"),
        ("StableVideoDiffusionPipeline", "IMAGE_TEXT_TO_VIDEO"),
        ("SomethingElse", None),
    ],
)
def test_what_pipelines_can_do(cls: str, able: str | None) -> None:
    assert of_pipeline(cls) == ((able,) if able else ())


def test_former_names_of_capabilities() -> None:
    former = ["TEXT_GENERATION", "CHAT", "TEXT_SUMMARIZATION", "VISION", "TEXT_EMBEDDINGS", "TEXT_RERANK", "MINE"]
    assert current(former) == ["TEXT_TO_TEXT", "IMAGE_TEXT_TO_TEXT", "EMBEDDING", "TEXT_RERANK", "MINE"]


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("llama", "LlamaForCausalLM"),
        ("llama4", "Llama4ForConditionalGeneration"),
        ("mllama", "MllamaForConditionalGeneration"),
        ("mistral", "MistralModel"),
        ("mixtral", "MixtralForCausalLM"),
        ("gpt_oss", "GptOssForCausalLM"),
        ("dbrx", "DbrxForCausalLM"),
        ("janus", "JanusMultiModalityCausalLM"),
        ("deepseek_vl_v2", "DeepseekVLV2ForCausalLM"),
        ("qwen2", None),
    ],
)
def test_the_architecture_of_a_type_that_states_none(kind: str, architecture: str | None) -> None:
    assert facts({"model_type": kind}).architecture == architecture
    assert facts({"model_type": kind, "architectures": ["Mine", "Other"]}).architecture == "Mine"


def test_a_cache_is_as_large_as_what_keeps_one() -> None:
    assert facts(DEEPSEEK).kv_bytes_per_token == 61 * (512 + 64) * 2
    hybrid = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 8
    assert facts({**LLAMA, "layer_types": hybrid}).kv_bytes_per_token == 131072 // 4
    small = {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert facts({**LLAMA, "quantization_config": small}).kv_bytes_per_token == 131072 // 2


def test_files_with_no_type_still_say_what_every_type_says() -> None:
    found = facts({key: value for key, value in LLAMA.items() if key != "model_type"})
    assert (found.architecture, found.context_length, found.layers) == ("LlamaForCausalLM", 131072, 32)
    assert "model_type is missing" in found.problems[0]
