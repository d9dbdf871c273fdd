"""The engine's command line: profiles, overrides, errors."""

import pytest

from modelyard.engine.__main__ import build_parser, engine_config, main, server_settings
from modelyard.engine.config import PROFILES


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
