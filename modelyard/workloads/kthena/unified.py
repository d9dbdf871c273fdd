"""Kthena's unified names of engine metrics, and the engines' own. Pure.

Kthena's sidecar shows each engine's metrics under names that are alike for all engines. Policies may use them, and
``with_unified`` adds them to an engine's page. Source: Kthena Model controller reference, "The sidecar".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

UNIFIED: Final = "kthena:"
"""Prefix of the unified names."""
OWN: Final[Mapping[str, Mapping[str, str]]] = {
    "vLLM": {
        name: name
        for name in (
            "generation_tokens_total",
            "num_requests_waiting",
            "time_to_first_token_seconds",
            "time_per_output_token_seconds",
            "e2e_request_latency_seconds",
        )
    },
    "SGLang": {
        "generation_tokens_total": "generation_tokens_total",
        "num_requests_waiting": "num_queue_reqs",
        "time_to_first_token_seconds": "time_to_first_token_seconds",
        "time_per_output_token_seconds": "inter_token_latency_seconds",
        "e2e_request_latency_seconds": "e2e_request_latency_seconds",
    },
}
"""Own names by unified name, each without its prefix, by engine as a ModelServer calls it."""
_NAME: Final = re.compile(r"(?P<comment># (?:HELP|TYPE) )?(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?=[ {])")
_SUFFIX: Final = re.compile(r"_(?:bucket|sum|count|total|created)\Z")


def with_unified(page: str, engine: str) -> str:
    """Return a Prometheus text page with unified copies of an engine's metrics, if any, family by family at its end."""
    prefix = f"{engine.lower()}:"
    families = {_family(f"{prefix}{own}"): _family(f"{UNIFIED}{name}") for name, own in OWN.get(engine, {}).items()}
    copies = []
    for line in page.splitlines():
        match = _NAME.match(line)
        if match is None or not match["name"].startswith(prefix):
            continue
        if (unified := families.get(_family(match["name"]))) is not None:
            suffix = match["name"][len(_family(match["name"])) :]
            copies.append(f"{match['comment'] or ''}{unified}{suffix}{line[match.end() :]}")
    return page if not copies else "\n".join((page.rstrip("\n"), *copies, ""))


def _family(name: str) -> str:
    """Return a name without the suffix of a sample: parsers differ on whether a counter's family has ``_total``."""
    return _SUFFIX.sub("", name)
