"""How long the selection of runtimes takes: 500 runtimes for each of 1,000 models, every verdict with every reason.

    python benchmarks/runtimes.py [--runtimes 500] [--models 1000]

Runtimes have one to six entries, half of them a range of sizes; models are of 40 architectures and 30 versions. The
reference is the least that a choice can do, in the same run: each entry as one text compared with the model's, the
first that is equal wins; no sizes, no order, no reasons. Prints seconds of CPU, microseconds for a verdict, and the
ratio; and of the catalogue in config/runtimes how long reading a manifest takes.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import yaml

from modelyard.models.detection import parse_size
from modelyard.runtimes import ModelView, Runtime, parse_runtime, select
from modelyard.runtimes.matching import label
from modelyard.runtimes.values import Library, ModelKind, SupportedFormat

ARCHITECTURES = tuple(f"Architecture{i}ForCausalLM" for i in range(40))
VERSIONS = tuple(f"4.{i}.0" for i in range(30, 60))
SIZES = ("1B", "7B", "8B", "14B", "32B", "70B", "235B", "405B")
CATALOGUE = Path(__file__).resolve().parents[1] / "config" / "runtimes"


def kind(rng: random.Random) -> ModelKind:
    return ModelKind(
        Library("safetensors", "1.0.0"),
        Library("transformers", rng.choice(VERSIONS)),
        rng.choice(ARCHITECTURES),
        rng.choice(("", "", "fp8", "int4")),
    )


def entry(rng: random.Random) -> SupportedFormat:
    made = kind(rng)
    assert made.format is not None
    assert made.framework is not None
    framework = made.framework._replace(operator=rng.choice(("Equal", "GreaterThanOrEqual")))
    return SupportedFormat(
        made.format,
        framework,
        made.architecture,
        made.quantization,
        auto_select=True,
        priority=rng.choice((None, 1, 2)),
    )


def runtime(index: int, rng: random.Random) -> Runtime:
    low, high = sorted(map(parse_size, rng.sample(SIZES, 2)))
    ranged = rng.random() < 0.5
    return Runtime(
        f"runtime-{index}",
        rng.choice(("", "", "shop")),
        tuple(entry(rng) for _ in range(rng.randint(1, 6))),
        low if ranged else None,
        high if ranged else None,
        ranged=ranged,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtimes", type=int, default=500)
    parser.add_argument("--models", type=int, default=1000)
    arguments = parser.parse_args()
    rng = random.Random(0)
    runtimes = [runtime(index, rng) for index in range(arguments.runtimes)]
    models = [
        ModelView(f"model-{i}", "shop", kind(rng), parse_size(size := rng.choice(SIZES)), size)
        for i in range(arguments.models)
    ]
    verdicts = arguments.runtimes * arguments.models

    started = time.process_time()
    chosen = sum(select(model, runtimes).chosen is not None for model in models)
    took = time.process_time() - started

    rankings = [select(model, runtimes) for model in models[:10]]
    started = time.process_time()
    said = sum(len(verdict.why) >= 0 for ranking in rankings for verdict in ranking.verdicts)
    told = time.process_time() - started

    def as_text(one: SupportedFormat) -> str:
        return label(ModelKind(one.format, one.framework, one.architecture, one.quantization))

    started = time.process_time()
    texts = [[as_text(one) for one in runtime.formats] for runtime in runtimes]
    found = 0
    for model in models:
        wanted = label(model.kind)
        found += sum(wanted in formats for formats in texts) > 0
    least = time.process_time() - started

    print(f"{arguments.models} models x {arguments.runtimes} runtimes, chosen for {chosen} models: {took:.2f} s")
    print(f"a verdict: {took / verdicts * 1e6:.1f} µs; with its reasons as text {told / said * 1e6:.1f} µs")
    print(f"reference (a text per entry, no reasons), found {found}: {least:.2f} s; ratio {took / least:.0f}")

    paths = sorted(CATALOGUE.glob("*.yaml"))
    objects = [yaml.load(path.read_text("utf-8"), yaml.CSafeLoader) for path in paths]
    started = time.process_time()
    for _ in range(20):
        for obj in objects:
            parse_runtime(obj)
    each = (time.process_time() - started) / 20 / len(objects)
    print(f"reading a runtime of the catalogue: {each * 1000:.1f} ms")


if __name__ == "__main__":
    main()
