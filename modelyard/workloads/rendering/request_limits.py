"""Time-outs and concurrency of a component's requests, in the places that can enforce them. Pure.

A time-out takes effect in what stands in front of the pods: the router's ModelServer, an HTTPRoute, an Ingress whose
controller reads it from an annotation, Knative. Concurrency takes effect in Knative, else in the engine, which lets
further requests wait: ``--max-num-seqs`` of vLLM, ``--max-running-requests`` of SGLang. What has no effect is a note.

Sources: vLLM's and SGLang's engine arguments, Gateway API GEP-2257 (durations), and the annotations of ingress-nginx,
of HAProxy's ingress controllers and of Contour.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from modelyard.workloads.rendering.command_line import words
from modelyard.workloads.rendering.components import ServiceComponent
from modelyard.workloads.rendering.engines import SGLANG, VLLM
from modelyard.workloads.rendering.lora import started_engine, with_arguments
from modelyard.workloads.rendering.values import Body, Note, Refusal

TIMEOUT, CONCURRENCY = "TimeoutWithoutEffect", "ConcurrencyWithoutEffect"
LONGEST: Final = 99_999 * 3600
"""Seconds: the longest duration of the Gateway API is 99999h."""
_DIGITS: Final = 99_999
"""The largest number of a unit in it."""
_INGRESS_ANNOTATIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "nginx": {
        "nginx.ingress.kubernetes.io/proxy-read-timeout": "{0}",
        "nginx.ingress.kubernetes.io/proxy-send-timeout": "{0}",
    },
    "haproxy": {"haproxy.org/timeout-server": "{0}s", "haproxy-ingress.github.io/timeout-server": "{0}s"},
    "contour": {"projectcontour.io/response-timeout": "{0}s"},
}
"""By a part of the ingress class's name."""


class _Limit(NamedTuple):
    """Options that limit an engine's concurrent requests. ``default`` is its limit without them."""

    flag: str
    default: int
    ranks: tuple[str, ...]
    """Flags for data-parallel ranks, each of which has the limit for itself."""
    shared: str = ""
    """The switch under which the ranks share it instead."""
    at_most: str = ""
    """A flag whose value the limit must not exceed."""


_LIMITS: Final[Mapping[str, _Limit]] = {
    SGLANG.name: _Limit(
        "max-running-requests", 4096, ("dp-size", "data-parallel-size", "dp"), shared="enable-dp-attention"
    ),
    VLLM.name: _Limit(
        "max-num-seqs", 1024, ("data-parallel-size-local", "data-parallel-size", "dp"), at_most="max-num-batched-tokens"
    ),
}


def check_limits(component: ServiceComponent) -> None:
    """Raise ``Refusal`` for a time-out or a concurrency below 0."""
    for field in ("timeoutSeconds", "containerConcurrency"):
        value = component.spec.get(field)
        if isinstance(value, int) and value < 0:
            raise Refusal("InvalidSpec", f"{component.path}.{field}", f"{value} is below 0", "write 0 or more")


def duration(seconds: int) -> str:
    """Return seconds as a duration that both Go and the Gateway API read, at most ``LONGEST``."""
    seconds = min(seconds, LONGEST)
    if seconds <= _DIGITS:
        return f"{seconds}s"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return "".join(f"{count}{unit}" for count, unit in ((hours, "h"), (minutes, "m"), (rest, "s")) if count)


def ingress_annotations(ingress_class: str, seconds: int | None) -> dict[str, str]:
    """Return the annotations by which an Ingress of this class limits requests; none for a class that has no such."""
    if not seconds:
        return {}
    templates = next((entry for name, entry in _INGRESS_ANNOTATIONS.items() if name in ingress_class), {})
    return {name: template.format(min(seconds, LONGEST)) for name, template in templates.items()}


def timeout_notes(
    timeouts: Mapping[str, int | None],
    entry: str,
    serverless: Collection[str],
    kinds: Collection[str],
    ingress_class: str,
) -> Iterator[Note]:
    """Note each component's time-out that neither Knative (``serverless``) nor an object of ``kinds`` enforces."""
    enforced = set(serverless)
    if "HTTPRoute" in kinds:
        enforced |= timeouts.keys()
    if "ModelServer" in kinds:
        enforced.add(entry)
    if "Ingress" in kinds and ingress_annotations(ingress_class, 1):
        enforced |= {component for component, seconds in timeouts.items() if seconds == timeouts[entry]}
    for component, seconds in timeouts.items():
        if not seconds or component in enforced:
            continue
        if "Ingress" not in kinds:
            why = "requests reach its pods without a proxy that limits them"
        elif component == entry:
            named = f"class {ingress_class}" if ingress_class else "the cluster's default class"
            why = f"an Ingress of {named} has no annotation for it that is known here"
        else:
            why = f"an Ingress has one time-out, that of {entry}"
        remedy = 'set modelyard.dev/routed: "true" or enableGatewayAPI'
        if component != entry:
            remedy = "set enableGatewayAPI, which has a route for each component"
        message = f"{component}: timeoutSeconds {seconds} has no effect: {why}; {remedy}"
        yield Note(TIMEOUT, message, component)


def with_concurrency(container: Body, most: int | None) -> tuple[Body, str]:
    """Return a container whose engine takes ``most`` requests at a time, or why not; its own argument stays."""
    if not most:
        return container, ""
    engine = started_engine(container)
    if engine is None:
        return container, "its container runs neither vLLM nor SGLang, whose argument would limit it"
    limit, flags = _LIMITS[engine.name], _flags(words(container))
    own = _number(flags.get(limit.flag))
    ranks = next((count for name in limit.ranks if (count := _number(flags.get(name)))), 1)
    shared = bool(limit.shared) and limit.shared in flags
    if limit.flag in flags:
        total = None if own is None else own if shared else own * ranks
        if total is not None and total <= most:
            return container, ""
        return container, f"the container sets --{limit.flag} {flags[limit.flag]} itself; remove that argument"
    count = max(most, ranks) if shared else max(1, most // ranks)
    if count >= limit.default:
        return container, ""
    if (highest := _number(flags.get(limit.at_most))) is not None:
        count = min(count, highest)
    argument = f"--{limit.flag}={count}"
    if not container.get("command") and not container.get("args"):
        return container, f"the image's own arguments would be lost; write args with {argument}"
    return with_arguments(container, [argument]), ""


def _flags(line: Sequence[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    for word, following in zip(line, [*line[1:], ""], strict=False):
        if word.startswith("-") and word.strip("-"):
            name, equals, value = word.lstrip("-").partition("=")
            flags[name.replace("_", "-")] = value if equals else "" if following.startswith("-") else following
    return flags


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 9 and int(text) else None
