"""docs/ci.md: the gates on files are run as its pipelines run them; what needs a server is at least what flows take."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.bootstrap import closed, read
from flows.benchmark import re_run_benchmarks
from flows.onboard import onboard
from flows.parameters import BenchmarkParameters, OnboardParameters, ReplayParameters
from flows.replay import replay

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
SAMPLES = ROOT / "config" / "samples" / "ci"
GITHUB, GITLAB = (yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
(CRONTAB,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
STEPS = {
    step.get("name", step["run"]): step["run"]
    for job in GITHUB["jobs"].values()
    for step in job["steps"]
    if "run" in step
}
SCRIPTS = {**STEPS, **{name: "\n".join(GITLAB[name]["script"]) for name in ("plan", "replay", "record", "benchmark")}}
ON_FILES = [name for name, script in SCRIPTS.items() if "run replay" not in script and "run benchmark" not in script]


def shell(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """As a runner does: a shell that ends at the first command that fails, in the checkout."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    known = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **env}
    script = script.replace("modelyard ", f"{sys.executable} -m deployments.command ")
    return subprocess.run(["sh", "-e", "-c", script], cwd=ROOT, env=known, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize("name", ON_FILES)
def test_the_gates_on_files_end_as_the_page_says(name: str) -> None:
    done = shell(SCRIPTS[name])
    expected = GITLAB["plan"]["allow_failure"]["exit_codes"] if name == "plan" else 0
    assert done.returncode == expected, done.stderr
    assert ("::notice" in done.stdout) == ("::notice" in SCRIPTS[name])


def test_the_gates_close() -> None:
    broken = {
        "What would be decided": ("metrics.yaml", "none.yaml"),
        "plan": ("--exit-code", "--exit-cod"),
        "Would it have held its targets": ("--max-cost 30", "--max-cost 1"),
        "replay": ("attainment>=0.95", "attainment>=1"),
    }
    assert set(broken) == set(ON_FILES)
    for name, (before, after) in broken.items():
        assert before in SCRIPTS[name]
        done = shell(SCRIPTS[name].replace(before, after))
        assert done.returncode == 1, (name, done.stdout)
        assert done.stderr


def test_actions_run_as_root_in_an_image_that_has_another_user() -> None:
    """Else checkout, the first step, cannot write into the workspace."""
    assert re.search(r"^USER \d+$", (ROOT / "deployments/kubernetes/Containerfile").read_text(), re.MULTILINE)
    assert {job["container"]["options"] for job in GITHUB["jobs"].values()} == {"--user root"}


def files(given: dict[str, Any]) -> list[Path]:
    return [ROOT / path for path in (*given["manifests"], given["trace"])]


def test_the_replays_of_the_samples_are_what_the_flow_and_its_form_take() -> None:
    import jsonschema
    from prefect.utilities.callables import parameter_schema

    (nightly,) = read(SAMPLES / "nightly.yaml")["deployments"]
    by_file = json.loads((SAMPLES / "replay.json").read_text())
    assert "config/samples/ci/replay.json" in CRONTAB
    assert all("config/samples/ci/replay.json" in script for script in SCRIPTS.values() if "run replay" in script)
    for given in (by_file, nightly["parameters"]):
        jsonschema.Draft202012Validator(closed(parameter_schema(replay).model_dump())).validate(given)
        ReplayParameters.model_validate(given)
        assert all(path.is_file() for path in files(given))
    assert nightly["entrypoint"] == "flows.replay.replay"
    assert nightly["schedules"][0]["cron"] == " ".join(CRONTAB.splitlines()[-1].split()[:5])
    assert "%" not in CRONTAB


def test_the_benchmarks_are_what_the_flow_takes() -> None:
    scripts = [script for script in SCRIPTS.values() if "run benchmark" in script]
    assert len(scripts) == 2
    for script in scripts:
        words = shlex.split(script)
        given = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--param")
        given["fail_if"] = json.loads(given["fail_if"])
        assert BenchmarkParameters.model_validate(given).re_run
        assert "--watch" in words


def test_the_onboarding_of_the_samples_is_what_the_flow_and_its_form_take() -> None:
    import jsonschema
    from prefect.utilities.callables import parameter_schema

    given = json.loads((SAMPLES / "onboard.json").read_text())
    jsonschema.Draft202012Validator(closed(parameter_schema(onboard).model_dump())).validate(given)
    assert OnboardParameters.model_validate(given).uri
    assert "config/samples/ci/onboard.json" in (ROOT / "docs" / "onboarding.md").read_text(encoding="utf-8")


def test_the_benchmarks_of_every_night_are_what_the_flow_and_its_form_take() -> None:
    import jsonschema
    from prefect.utilities.callables import parameter_schema

    (nightly,) = read(SAMPLES / "benchmarks.yaml")["deployments"]
    schema = closed(parameter_schema(re_run_benchmarks).model_dump())
    jsonschema.Draft202012Validator(schema).validate(nightly["parameters"])
    assert nightly["entrypoint"] == "flows.benchmark.re_run_benchmarks"
    assert "config/samples/ci/benchmarks.yaml" in PAGE
