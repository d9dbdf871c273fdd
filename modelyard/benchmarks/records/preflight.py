"""Checks before a benchmark starts: its scenarios, its request parameters, and the place of its results. Pure.

A run costs minutes of a pod and of an accelerator, so invalid benchmarks are refused first. The same code runs in the
status of a BenchmarkJob, in ``modelyard benchmarks measure``, and before an onboarding creates its first object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from modelyard.benchmarks.records.program import InvalidMeasurement, request_parameters
from modelyard.benchmarks.records.token_limits import FEWEST_OUTPUT_TOKENS, MOST_TOKENS
from modelyard.benchmarks.records.values import Measurement
from modelyard.models.storage import (
    Bucket,
    ClaimFolder,
    FetchError,
    GitHubRelease,
    LocalFolder,
    StorageURI,
    check_bucket,
    is_account,
    parse,
)
from modelyard.resources.ome import SCENARIO_PATTERN, SCENARIOS_OF_TASK
from modelyard.workloads.rendering import Refusal, check_claim

LONGEST_KEY: Final = 1024
"""Bytes of an object's key in S3, Google and Oracle storage."""
_BELOW_FOLDER: Final = 160
"""Bytes that the longest file name below the folder of results needs."""
_SCENARIO: Final = re.compile(r"([NUDEI])\((\d{1,20})(?:,(\d{1,20}))?(?:,(\d{1,20}))?\)(?:/\((\d{1,20}),(\d{1,20})\))?")
_WRITABLE: Final = "write s3://, oci://, gs://, az:// or pvc:// instead"


class ScenarioTokens(NamedTuple):
    """Tokens that a text scenario asks for: the longest prompt (of a normal distribution, its mean), the shortest
    answer of one request, and the longest (likewise)."""

    prompt: int
    fewest_output: int
    most_output: int


def scenario_tokens(scenario: str) -> ScenarioTokens | None:
    """Return what a text scenario (``D``, ``N``, ``U``) asks for; ``None`` for any other."""
    match = _SCENARIO.fullmatch(scenario)
    if match is None or match[1] not in "DNU":
        return None
    first, second, third, fourth = (int(match[part] or 0) for part in (2, 3, 5, 6))
    if match[1] == "D":
        return ScenarioTokens(first, second, second)
    # genai-bench samples these two, and takes two tokens for any smaller sample.
    if match[1] == "N":
        return ScenarioTokens(first, third if fourth == 0 else min(third, FEWEST_OUTPUT_TOKENS), third)
    if match[5] is None:
        return ScenarioTokens(first, min(second, FEWEST_OUTPUT_TOKENS), second)
    return ScenarioTokens(second, min(max(third, FEWEST_OUTPUT_TOKENS), fourth), fourth)


def check_scenario(scenario: str, field: str) -> None:
    """Refuse a scenario that cannot yield a measurement. Raises ``Refusal``."""
    match = _SCENARIO.fullmatch(scenario)
    if match is None or re.fullmatch(SCENARIO_PATTERN, scenario) is None:
        problem = f"{scenario[:64]!r} is no traffic scenario"
        raise Refusal(
            "InvalidSpec", field, problem, "write D(in,out), N(mean,dev)/(mean,dev), U(min,max)/(min,max), ..."
        )
    kind, numbers = match[1], [int(number) for number in match.groups()[1:] if number is not None]
    if max(numbers) > MOST_TOKENS:
        raise Refusal("InvalidSpec", field, f"{scenario}: {max(numbers)} is too large", f"write at most {MOST_TOKENS}")
    if kind in "EI":
        if min(numbers) < 1:
            problem = "a document without tokens" if kind == "E" else "an image without pixels, or no image"
            raise Refusal("InvalidSpec", field, f"{scenario} asks for {problem}", "write 1 or more")
        return
    tokens = scenario_tokens(scenario)
    assert tokens is not None
    if kind == "U" and match[5] is not None and (numbers[0] > numbers[1] or numbers[2] > numbers[3]):
        raise Refusal("InvalidSpec", field, f"{scenario} has a minimum above its maximum", "write U(min,max)/(min,max)")
    if tokens.prompt < 1:
        raise Refusal("InvalidSpec", field, f"{scenario} asks for prompts without tokens", "write 1 or more")
    if tokens.most_output < FEWEST_OUTPUT_TOKENS:
        problem = f"{scenario} asks for {tokens.most_output} output token{'s' * (tokens.most_output != 1)}"
        remedy = f"write {FEWEST_OUTPUT_TOKENS} or more output tokens: the time between tokens is measured"
        raise Refusal("InvalidSpec", field, problem, remedy)


def check_request_parameters(parameters: Mapping[str, str], scenarios: Iterable[str], prefix: str = "") -> None:
    """Refuse request parameters that the benchmark sets, or that spoil what it measures. Raises ``Refusal``."""
    try:
        values = request_parameters(parameters)
    except InvalidMeasurement as error:
        raise Refusal("InvalidSpec", f"{prefix}{error.field}", error.problem, error.remedy) from None
    least = values.get("min_tokens")
    if least is None:
        return
    field = f"{prefix}additionalRequestParams.min_tokens"
    if isinstance(least, bool) or not isinstance(least, int) or least < 0:
        raise Refusal("InvalidSpec", field, f"{str(least)[:100]!r} is no number of tokens", "write a whole number")
    for scenario in scenarios:
        tokens = scenario_tokens(scenario)
        if tokens is not None and least > tokens.fewest_output:
            problem = f"{least} is more than the {tokens.fewest_output} output tokens that {scenario} may ask for"
            raise Refusal("InvalidSpec", field, problem, "write no more than that, or ask for more in the scenario")


def check_output(
    uri: str, parameters: Mapping[str, str], field: str, *, namespace: str | None = None, folder: str = ""
) -> StorageURI:
    """Return the place of results. Raises ``Refusal`` for a place that cannot store them.

    ``namespace`` is that of the measuring pods, which can only mount claims of their own namespace. ``None``: no pod
    measures, so that results may go to a local folder.
    """
    try:
        place = parse(uri)
    except FetchError as error:
        raise _refusal(error.reason, field, error) from None
    where = field.rpartition(".")[0]
    if isinstance(place, LocalFolder):
        if namespace is not None:
            problem = "a folder of the measuring pod is lost with the pod"
            raise Refusal("InvalidSpec", field, problem, _WRITABLE)
    elif isinstance(place, ClaimFolder):
        if namespace is not None:
            check_claim(place, namespace, field)
    elif isinstance(place, GitHubRelease):
        problem = "results cannot be stored in github://: a release is no place for many small files"
        raise Refusal("InvalidSpec", field, problem, _WRITABLE)
    elif isinstance(place, Bucket):
        _check_bucket(place, parameters, field, f"{where}.parameters" if where else "parameters", folder)
    else:
        raise Refusal("InvalidSpec", field, f"results cannot be stored in {place.kind}://", _WRITABLE)
    return place


def _check_bucket(place: Bucket, parameters: Mapping[str, str], field: str, given: str, folder: str) -> None:
    try:
        check_bucket(place, parameters)
    except FetchError as error:
        raise _refusal("InvalidSpec", field, error) from None
    account = parameters.get("azure_account_name")
    if place.kind == "az" and account and not is_account(account):
        problem = f"azure_account_name {account[:50]!r} is no name of an account"
        raise Refusal("InvalidSpec", given, problem, "write 3 to 24 lower-case letters and digits")
    if len(f"{place.prefix}/{folder}".encode()) + _BELOW_FOLDER > LONGEST_KEY:
        problem = f"its path leaves no room for the names of files: a key has at most {LONGEST_KEY} bytes"
        raise Refusal("InvalidSpec", field, problem, "write a shorter path")


def _refusal(reason: str, field: str, error: FetchError) -> Refusal:
    problem, _, remedy = str(error).partition("; ")
    return Refusal(reason, field, problem, remedy or "correct it")


def check_measurement(asked: Measurement) -> None:
    """Refuse a measurement that cannot yield a result, before any request is sent. Raises ``Refusal``."""
    check_scenario(asked.scenario, "scenario")
    kinds = SCENARIOS_OF_TASK.get(asked.task, ())
    if kinds and not asked.scenario.startswith(kinds):
        problem = f"{asked.scenario} does not fit the task {asked.task}"
        raise Refusal("InvalidSpec", "scenario", problem, f"{asked.task} takes {', '.join(kinds)}")
    check_request_parameters(asked.request_parameters, [asked.scenario])
    if asked.output.path is None:
        output = asked.output
        check_output(output.uri, output.parameters, "output.uri", folder=output.folder)
