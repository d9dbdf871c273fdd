"""The table of an engine that nobody has: other labels and units than ours, and older names."""

from modelyard.metrics.vocabulary.vocabulary import Engine, Family, Kind, Signal, Unit

MADE_UP = Engine(
    "made-up",
    (
        Family(Signal.RUNNING, "made:busy"),
        Family(Signal.WAITING, "made:queued", former=("made:pending",)),
        Family(Signal.KV_USE, "made:cache_percent", unit=Unit.PERCENT),
        Family(Signal.KV_CONFIG, "made:cache", factors=("pages", "page"), model=False),
        Family(Signal.FINISHED, "made:answers_total", Kind.COUNTER, split="why"),
        Family(Signal.PROMPT_TOKENS, "made:read_tokens_total", Kind.COUNTER),
        Family(Signal.OUTPUT_TOKENS, "made:written_tokens_total", Kind.COUNTER),
        Family(Signal.PREFIX_HITS, "made:known_tokens_total", Kind.COUNTER),
        Family(Signal.TTFT, "made:first_ms", Kind.HISTOGRAM, Unit.MILLISECONDS, buckets=(100.0, 1000.0, 10000.0)),
        Family(Signal.ITL, "made:next_ms", Kind.HISTOGRAM, Unit.MILLISECONDS, buckets=(10.0, 100.0)),
    ),
    model="model",
    rank="shard",
    labels={"shard": "0"},
)
