"""The engine's command line: profiles, overrides, errors."""

import pytest

from modelyard.engine.__main__ import build_parser, engine_config, group_settings, main, server_settings
from modelyard.engine.config import PROFILES
from modelyard.engine.group import GroupSettings
from modelyard.engine.options import dashed


def options(*arguments):
    return build_parser().parse_args(["--model", "m", *arguments])


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_profile_alone_is_that_profile(name):
    assert engine_config(options("--profile", name)) == PROFILES[name]


def test_options_override_the_profile():
    config = engine_config(options("--profile", "l40s", "--alpha", "5.5", "--max-num-seqs", "8"))
    assert (config.alpha, config.max_num_seqs, config.beta) == (5.5, 8, PROFILES["l40s"].beta)


def test_a_small_cache_lowers_the_profiles_context_limit():
    config = engine_config(options("--kv-cache-tokens", "1000", "--block-size", "16"))
    assert config.max_model_len == config.kv_capacity == 992


def test_served_names_default_to_the_model():
    assert server_settings(options()).models == ("m",)
    assert server_settings(options("--served-model-name", "a", "b")).models == ("a", "b")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kv-cache-tokens", "1000", "--max-model-len", "2000"], "max_model_len (2000)"),
        (["--max-num-seqs", "0"], "max_num_seqs must be >= 1"),
        (["--time-compression", "0"], "time_compression must be > 0"),
        (["--failure-rate", "2"], "failure_rate"),
        (["--startup-delay", "-1"], "startup_delay"),
        (["--mean-output-tokens", "0"], "mean_output_tokens"),
        (["--flush-interval", "0"], "flush_interval"),
        (["--served-model-name", ""], "model name"),
    ],
)
def test_wrong_values_end_with_status_2_and_name_the_option(arguments, words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--model", "m", *arguments])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def parsed(*arguments):
    return build_parser().parse_args(dashed(arguments))


def test_the_words_of_sglang_mean_the_same():
    found = parsed(
        *(
            "--model-path",
            "m",
            "--host",
            "0.0.0.0",
            "--enable-metrics",
            "--port",
            "30000",
            "--served-model-name",
            "chat",
        ),
        *("--tp-size", "16", "--mem-fraction-static=0.8", "--context-length", "8192", "--max-running-requests", "32"),
        *("--enable-mixed-chunk", "--trust-remote-code", "--disaggregation-mode=prefill"),
    )
    assert (engine_config(found).max_model_len, engine_config(found).max_num_seqs) == (8192, 32)
    settings = server_settings(found)
    assert (settings.models, settings.metrics) == (("chat",), "sglang")


def test_the_options_of_vllm_are_taken_also_with_underscores():
    found = parsed(
        *("--model", "m", "--tensor_parallel_size", "2", "--gpu-memory-utilization", "0.9", "--enable-prefix-caching"),
        *("--no-enable-chunked-prefill", "--kv-transfer-config", '{"kv_role": "kv_both"}', "--max_model_len=8192"),
        *("--compilation-config", "{}", "--dtype", "bfloat16", "--cuda-graph-sizes", "1", "2"),
    )
    assert engine_config(found).max_model_len == 8192
    assert server_settings(found).metrics == "vllm"


@pytest.mark.parametrize("wrong", [["--no-such-option"], ["--tensor-paralel-size", "2"], ["--model-path", "n"]])
def test_what_no_engine_has_ends_it(wrong, capsys):
    with pytest.raises(SystemExit) as caught:
        parsed("--model", "m", *wrong)
    assert caught.value.code == 2


def test_adapters_are_named_in_either_form():
    given = ["--enable-lora", "--lora-modules", "tone=/a/tone", '{"name": "legal", "path": "/a/legal"}']
    assert server_settings(options(*given)).adapters == {"tone": "/a/tone", "legal": "/a/legal"}
    assert server_settings(parsed("--model-path", "m", "--lora-paths", "t=/a")).adapters == {"t": "/a"}
    with pytest.raises(ValueError, match="--enable-lora"):
        server_settings(options("--lora-modules", "tone=/a"))
    with pytest.raises(ValueError, match="NAME=PATH"):
        server_settings(options("--enable-lora", "--lora-modules", "=x"))


@pytest.mark.parametrize(
    ("arguments", "environment", "group"),
    [
        ([], {}, (1, 0, "", 20000)),
        (["--nnodes=2", "--node-rank=1", "--dist-init-addr=a.b.c:5000"], {}, (2, 1, "a.b.c", 5000)),
        (["--nnodes=2", "--node-rank=0", "--master-addr=a"], {}, (2, 0, "a", 29501)),
        (
            ["--distributed-executor-backend=ray"],
            {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "l.g.n"},
            (2, 1, "l.g.n", 20000),
        ),
        (["--distributed-executor-backend=mp"], {"LWS_GROUP_SIZE": "2"}, (1, 0, "", 20000)),
    ],
)
def test_a_group_is_what_options_or_on_ray_variables_say(arguments, environment, group, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert group_settings(options(*arguments)) == GroupSettings(*group)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--nnodes=2", "--node-rank=2", "--dist-init-addr=a:1"],
        ["--nnodes=2"],
        ["--nnodes=2", "--dist-init-addr=a:b"],
    ],
)
def test_a_group_that_cannot_be(wrong):
    with pytest.raises(ValueError, match=r"node_rank|dist_init_addr"):
        group_settings(options(*wrong))
