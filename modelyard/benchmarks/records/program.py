"""genai-bench as a process of its own: its command line, its environment, and what its versions call things. Pure.

One invocation measures one scenario at one concurrency. The program checks its options in the order in which they are
given, asks questions where it finds a terminal, and writes every option into its files: so the order here is that which
it wants, nothing is left for it to ask, and no secret is an option.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from modelyard.benchmarks.records.values import Measurement

VERSION = "0.0.5"
"""Of genai-bench: what the image and the local cluster have."""
KEY = "MODEL_API_KEY"
"""The variable with the endpoint's key, ours and the program's."""
NO_KEY = "modelyard"
"""What an endpoint is shown that wants no key: the program wants one."""
OPENAI = frozenset({"openai", "vllm", "sglang"})
"""Back ends that are the same client of OpenAI's API; the latter two are told when to ignore the end of a text."""
BATCHED = frozenset({"text-to-embeddings"})
"""Tasks that are measured by batch size: one request at a time, of so many texts."""
OF_IMAGES = frozenset({"image-to-text", "image-to-embeddings"})
"""Tasks whose images come from a data set: the program makes up none."""
FOLDER = "experiment"
"""Where the program writes, in the folder that it is given."""
_NOTHING: Mapping[str, str | None] = MappingProxyType({})
_LENGTH = "the scenario says how many tokens are generated; leave it out"
_ITSELF = "the benchmark sets it itself; leave it out"
_FIXED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("model", "messages", "prompt", "input", "stream", "stream_options"), _ITSELF),
        **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens"), _LENGTH),
        **dict.fromkeys(("n", "best_of", "use_beam_search"), "one answer to each request is measured; leave it out"),
        "prompt_logprobs": "engines refuse it in a stream; leave it out",
    }
)
"""Fields of a request that no further parameter may set, and why."""
NOT_SENT = frozenset({"ignore_eos", "system_message"})
"""Further parameters that mean something to the program: it sends the first one as the back end has it."""
_OCI_COHERE = frozenset(
    {"temperature", "topP", "topK", "frequencyPenalty", "presencePenalty", "chatHistory", "documents", "truncate"}
    | {"compartmentId", "topN", "servingType", "endpointId"}
)
"""Further parameters that genai-bench's client of ``oci-cohere`` reads; those of the other APIs send every one."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_INHERITED = (
    *("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
    *(name for one in ("http_proxy", "https_proxy", "no_proxy") for name in (one, one.upper())),
)
_SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|CONNECTION_STRING")
_SHORTEST = 6
"""Characters of a secret that is told from any other text."""


class MeasureError(Exception):
    """A measurement has failed: the ``reason`` is one word for a condition, the message names the remedy.

    ``retryable``: trying again may help without anybody changing anything.
    """

    def __init__(self, reason: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.reason, self.retryable = reason, retryable


class InvalidMeasurement(MeasureError):
    """A field of a measurement that cannot be used."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field, self.problem, self.remedy = field, f"{str(value)[:100]!r} cannot be used", remedy
        super().__init__("MeasurementInvalid", f"{field}: {self.problem}; {remedy}")


@dataclass(frozen=True, slots=True)
class Words:
    """What one version of the program understands: tasks by their published name, back ends, engines, GPUs by ours."""

    tasks: Mapping[str, str]
    backends: frozenset[str]
    engines: frozenset[str]
    gpus: Mapping[str, str]


_TEXT = {"text-to-text": "text-to-text", "text-to-embeddings": "text-to-embeddings"}
_FIRST_GPUS = {"H100": "H100", "A100": "A100-80G", "A100-80G": "A100-80G", "A100-40G": "A100-40G", "A10": "A10"}
_FIRST = Words(
    {**_TEXT, "image-to-text": "image-to-text", "image-to-embeddings": "image-to-embeddings"},
    frozenset({"openai", "oci-cohere", "cohere"}),
    frozenset({"vLLM", "SGLang", "TGI"}),
    {**_FIRST_GPUS, "MI300": "MI300"},
)
_SECOND = Words(
    {**_TEXT, "image-to-text": "image-text-to-text", "image-to-embeddings": "image-to-embeddings"},
    OPENAI
    | {"oci-openai", "oci-cohere", "oci-cohere-v2", "oci-genai", "cohere"}
    | {"aws-bedrock", "azure-openai", "gcp-vertex", "together"},
    _FIRST.engines | {"cohere-TensorRT", "cohere-vLLM", "LlamaCPP"},
    {**_FIRST.gpus, "H200": "H200", "B200": "B200", "RTX-PRO-6000": "RTX-PRO-6000"},
)
WORDS: Mapping[tuple[int, ...], Words] = MappingProxyType({(0, 0, 1): _FIRST, (0, 0, 2): _SECOND})
"""By the first version that has them."""


def words(version: str) -> Words:
    """What a version understands. Raises ``MeasureError`` for one that is none, or older than the first."""
    numbers = tuple(int(part) for part in re.findall(r"\d{1,6}", version)[:3])
    fitting = [since for since in WORDS if since <= numbers]
    if not fitting:
        raise MeasureError(
            "ProgramMissing", f"genai-bench {version[:40]!r}: no version that is known; use {VERSION} or another of 0.0"
        )
    return WORDS[max(fitting)]


def command(asked: Measurement, version: str, folder: Path, dataset: Mapping[str, str | None] = _NOTHING) -> list[str]:
    """The program's arguments, to measure into ``folder``. ``dataset``: the options that say where prompts come from.

    Raises ``MeasureError`` for what the version does not understand.
    """
    known, parameters = words(version), request_parameters(asked.request_parameters)
    if asked.task not in known.tasks:
        raise InvalidMeasurement("task", asked.task, f"genai-bench {version} has {', '.join(known.tasks)}")
    backend = _backend(asked.backend.lower(), parameters, known)
    batched = asked.task in BATCHED
    given: list[tuple[str, str | None]] = [
        ("--api-backend", backend),
        ("--api-base", base(asked.url)),
        ("--api-key", NO_KEY if backend in OPENAI else None),
        ("--api-model-name", asked.model),
        ("--task", known.tasks[asked.task]),
        ("--iteration-type", "batch_size" if batched else "num_concurrency"),
        ("--max-time-per-run", str(asked.minutes)),
        ("--max-requests-per-run", str(asked.requests)),
        ("--model-tokenizer", asked.tokenizer),
        ("--traffic-scenario", asked.scenario),
        ("--batch-size" if batched else "--num-concurrency", str(asked.concurrency)),
        ("--additional-request-params", json.dumps(parameters) if parameters else None),
        *dataset.items(),
        ("--server-engine", asked.server.engine if asked.server.engine in known.engines else None),
        ("--server-gpu-type", known.gpus.get(asked.server.gpu_type or "")),
        ("--server-version", asked.server.version or None),
        ("--server-gpu-count", str(asked.server.gpu_count) if asked.server.gpu_count else None),
        ("--metrics-time-unit", "s"),
        ("--experiment-base-dir", str(folder)),
        ("--experiment-folder-name", FOLDER),
        ("--log-dir", str(folder / "logs")),
    ]
    return ["benchmark", *(part for name, value in given if value is not None for part in (name, value))]


def _backend(asked: str, parameters: dict[str, Any], known: Words) -> str:
    """Of OpenAI's three, that which does as ``ignore_eos`` says: the program asks about it, or leaves it out."""
    if asked in OPENAI:
        if (ignore := parameters.pop("ignore_eos", None)) is not None:
            asked = "vllm" if ignore and asked == "openai" else asked if ignore else "openai"
        return asked if asked in known.backends else "openai"
    if asked not in known.backends:
        raise InvalidMeasurement("apiFormat", asked, f"write one of {', '.join(sorted(known.backends))}")
    return asked


def request_parameters(given: Mapping[str, str]) -> dict[str, Any]:
    """Further fields of a request, which are given as text: numbers, booleans and JSON as such, all else as text."""
    found: dict[str, Any] = {}
    for name, text in given.items():
        if (remedy := _FIXED.get(name)) is not None:
            raise InvalidMeasurement(f"additionalRequestParams.{name}", text, remedy)
        try:
            value = json.loads(text, parse_constant=refuse_constant)
            json.dumps(value, allow_nan=False)
        except (ValueError, RecursionError):
            value = text
        found[name] = value
    if not isinstance(found.get("ignore_eos", True), bool):
        raise InvalidMeasurement("additionalRequestParams.ignore_eos", found["ignore_eos"], "write true or false")
    temperature = found.get("temperature", 0)
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not math.isfinite(temperature):
        raise InvalidMeasurement("additionalRequestParams.temperature", temperature, "write a number, such as 0.7")
    return found


def unsent_parameters(backend: str, given: Mapping[str, str]) -> list[str]:
    """Return the further parameters that the program's client of an API does not send."""
    return sorted(given.keys() - _OCI_COHERE) if backend == "oci-cohere" else []


def refuse_constant(text: str) -> None:
    """Refuse a constant of JSON that is no number, such as ``NaN``. Raises ``ValueError``."""
    raise ValueError(f"{text} is no measurement")


def base(url: str) -> str:
    """An endpoint's address as the program wants it: it appends ``/v1`` itself."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def of_hub(name: str) -> bool:
    """Whether a tokenizer or data set is a hub's; else it is a path. Raises ``MeasureError`` for what is neither."""
    if name.startswith("/"):
        return False
    if not _HUB_ID.fullmatch(name):
        raise MeasureError(
            "MeasurementInvalid", f"{name[:100]!r} is neither an absolute path nor a hub's id; write OWNER/NAME"
        )
    return True


def is_hub_dataset(measurement: Measurement) -> bool:
    """Return True where the program itself reads the data set from a hub."""
    return measurement.dataset is not None and "://" not in measurement.dataset and of_hub(measurement.dataset)


def environment(
    asked: Mapping[str, str], measurement: Measurement, home: Path, dataset_token: str = ""
) -> dict[str, str]:
    """The variables of the program: what every program needs, and of the secrets in ``asked`` those that are its own.

    Where tokenizer and data set are files, it does not so much as look for a hub. It has one token for both: that of a
    hub's data set, if there is one.
    """
    hub = of_hub(measurement.tokenizer) or is_hub_dataset(measurement)
    found = {name: asked[name] for name in _INHERITED if name in asked}
    if "SSL_CERT_FILE" in found:
        found.setdefault("REQUESTS_CA_BUNDLE", found["SSL_CERT_FILE"])
    found |= {"HOME": str(home), "TMPDIR": str(home), "HF_HOME": str(home / "hub"), "MPLCONFIGDIR": str(home)}
    found |= {"ENABLE_UI": "false", "PYTHONUNBUFFERED": "1", "DO_NOT_TRACK": "1", "COLUMNS": "200"}
    if hub:
        token = (dataset_token if is_hub_dataset(measurement) else "") or asked.get("HF_TOKEN")
        token = token or asked.get("HUGGINGFACE_API_KEY")
        found |= {"HF_TOKEN": token} if token else {}
        found |= {name: asked[name] for name in ("HF_ENDPOINT",) if name in asked}
    else:
        found |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    if measurement.backend.lower() in OPENAI | {"together", "azure-openai"}:
        found |= {KEY: asked[KEY]} if asked.get(KEY) else {}
    else:  # Those of clouds know their own variables and the folder of who runs them.
        wanted = ("HOME", KEY, "OCI_", "AWS_", "GCP_", "GOOGLE_")
        found |= {name: value for name, value in asked.items() if name.startswith(wanted)}
    return found


def secrets(environ: Mapping[str, str], more: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the secrets of an environment and ``more``, the longest first: one may contain another."""
    values = {value.strip() for name, value in environ.items() if _SECRET.search(name.upper())} | set(more)
    return tuple(sorted((value for value in values if len(value) >= _SHORTEST), key=len, reverse=True))


def without(text: str, hidden: tuple[str, ...]) -> str:
    """A text in which nobody reads these."""
    for secret in hidden:
        text = text.replace(secret, "***")
    return text
