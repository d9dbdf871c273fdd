"""prefect.yaml, the automations and the profiles, checked without a server: what deploying would find out later."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from command_line import modelyard
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import build_error_obj, is_valid, validate
from pydantic import ValidationError

from deployments import automations, server
from deployments.bootstrap import closed, deployment_names, read, write_with_parameters
from deployments.checks import CAPS, installed, package_problems
from deployments.demo.scenario import Scenario
from deployments.profile import ROOT, SERVER_PROFILE, WORKER_PROFILE, environment, free_port, read_profile
from deployments.stack import write_prefect_file
from deployments.work_pool import TEMPLATES
from deployments.worker import POOL
from flows.parameters import AutoscaleParameters, ReconcileParameters

DECLARED = read()
DEPLOYMENTS = {deployment["name"]: deployment for deployment in DECLARED["deployments"]}
KEYS = {
    "name", "entrypoint", "description", "version", "version_type", "tags", "parameters", "schedules", "triggers",
    "concurrency_limit", "work_pool", "enforce_parameter_schema", "build", "push", "pull", "paused", "sla", "flow_name",
}  # fmt: skip
"""What Prefect reads of a deployment; it ignores any other key without a word."""


EXAMPLES: dict[str, dict[str, Any]] = {
    **{name: {"name": "chat"} for name in ("deliver", "roll-out", "benchmark")},
    "carry-out": {"name": "chat", "lifecycle": "benchmark"},
    "re-run-benchmarks": {"jobs": ["shop/chat"]},
    "onboard": {
        "uri": "hf://owner/name", "name": "chat", "results": "s3://bucket", "ttft": 500, "rate": 3,
        "prompt_tokens": 100, "output_tokens": 20, "prices": {"H100": 4},
    },
}  # fmt: skip
"""The least that a run of a deployment needs."""
MORE = ("ttft", "rate", "prompt_tokens", "output_tokens", "prices")
"""Which other fields may stand for."""


def load(entrypoint: str) -> Any:
    module, _, name = entrypoint.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
def test_a_deployment_is_complete_and_its_parameters_fit_its_flow(deployment: dict[str, Any]) -> None:
    assert set(deployment) <= KEYS
    assert deployment["description"]
    assert "modelyard" in deployment["tags"], "the zombie automation watches this tag"
    flow = load(deployment["entrypoint"])
    assert flow.isasync, "a synchronous flow takes at least a second"
    schema = closed(parameter_schema(flow).model_dump())
    given = {**EXAMPLES.get(deployment["name"], {}), **deployment["parameters"]}
    jsonschema.Draft202012Validator(schema).validate(given)
    flow.validate_parameters(given)
    assert deployment["enforce_parameter_schema"] is True


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
def test_a_form_without_what_a_run_needs_is_refused_by_the_server(deployment: dict[str, Any]) -> None:
    """By the function with which the API and the UI check what is submitted."""
    schema = closed(parameter_schema(load(deployment["entrypoint"])).model_dump())
    needed = EXAMPLES.get(deployment["name"], {})
    assert sorted(schema.get("required", [])) == sorted(set(needed) - set(MORE))
    validate(given := {**deployment["parameters"], **needed}, schema, raise_on_error=True)
    for name in schema.get("required", []):
        without = {key: value for key, value in given.items() if key != name}
        errors = build_error_obj(validate(without, schema))
        assert errors == {
            "errors": [{"property": name, "errors": [f"'{name}' is a required property"]}],
            "valid": False,
        }
        assert not is_valid({**given, name: type(given[name])()}, schema), "empty is none"
        assert not is_valid({**given, name: None}, schema)


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
def test_a_deployment_runs_in_our_pool_with_one_interpreter_start(deployment: dict[str, Any]) -> None:
    assert deployment["work_pool"]["name"] == POOL
    assert set(deployment["work_pool"]) == {"name", "work_queue_name"}
    assert TEMPLATES["process"]["job_configuration"]["command"].endswith(" prefect.engine")
    assert "concurrency_limit" not in deployment, (
        "a server restart could kill a healthy run; the Lease keeps writers apart"
    )


def test_a_wrong_parameter_would_be_noticed() -> None:
    schema = closed(parameter_schema(load(DEPLOYMENTS["autoscale"]["entrypoint"])).model_dump())
    for wrong in ({"shift_seconds": -1}, {"shift_secconds": 1}, {"fleet": {"max_step": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema).validate(wrong)


@pytest.mark.parametrize("name", ["benchmark", "deliver", "roll-out"])
def test_what_only_reconcile_sets_may_be_given_and_is_in_no_form(name: str) -> None:
    schema = closed(parameter_schema(load(DEPLOYMENTS[name]["entrypoint"])).model_dump())
    assert {"name", "namespace", "wait"} <= schema["properties"].keys()
    assert not {"run", "objects"} & schema["properties"].keys()
    form = jsonschema.Draft202012Validator(schema)
    given = {"name": "chat", "run": "InferenceService/shop/chat/0/1", "objects": ["shop/chat"]}
    form.validate(given)
    for wrong in ({"objects": "shop/chat"}, {"run": 1}, {"runs": "x"}):
        assert not form.is_valid(given | wrong)


def test_schedules_have_a_stable_name_and_two_shifts_overlap_at_any_time() -> None:
    for deployment in DEPLOYMENTS.values():
        for schedule in deployment.get("schedules", []):
            assert schedule["slug"]
            assert schedule["timezone"]
    for name, model in (("autoscale", AutoscaleParameters), ("reconcile", ReconcileParameters)):
        parameters = model.model_validate(DEPLOYMENTS[name]["parameters"])
        (schedule,) = DEPLOYMENTS[name]["schedules"]
        assert schedule["interval"] * 2 == parameters.schedule_seconds * 2 == parameters.shift_seconds
        assert schedule["interval"] % parameters.interval_seconds == 0, "successive shifts share one grid"
        assert model().shift_seconds == parameters.shift_seconds, "the form's default is what is deployed"
    assert DEPLOYMENTS["autoscale-once"]["parameters"]["shift_seconds"] == 0


def test_deployment_names() -> None:
    others = {
        "benchmark",
        "carry-out",
        "deliver",
        "onboard",
        "re-run-benchmarks",
        "refit-profiles",
        "reconcile",
        "replay",
        "roll-out",
        "verify-models",
    }
    assert deployment_names() == {"autoscale", "autoscale-once", *others}


def test_a_copy_with_other_parameters_keeps_schedule_and_shift_together(tmp_path: Path) -> None:
    file = tmp_path / "prefect.yaml"
    write_with_parameters({"shift_seconds": 60, "namespaces": ["a"]}, file)
    autoscale, once, *others = read(file)["deployments"]
    assert autoscale["schedules"][0]["interval"] == 30
    assert autoscale["parameters"] == {
        "interval_seconds": 15,
        "shift_seconds": 60,
        "namespaces": ["a"],
    }
    assert once["parameters"] == {"shift_seconds": 0, "namespaces": ["a"]}
    names = ("reconcile", "carry-out", "deliver", "verify-models", "roll-out", "benchmark", "re-run-benchmarks")
    names += ("onboard", "refit-profiles", "replay")
    assert others == [DEPLOYMENTS[name] for name in names], "they have no such parameters"
    write_with_parameters({}, file, pool="gpu")
    copied = {name["name"]: name["work_pool"] for name in read(file)["deployments"]}
    assert copied == {name: {**each["work_pool"], "name": "gpu"} for name, each in DEPLOYMENTS.items()}
    with pytest.raises(ValidationError, match="interval_secconds"):
        write_with_parameters({"interval_secconds": 1}, file)


def test_every_deployment_is_in_the_demo_and_only_its_autoscaler_is_scheduled(tmp_path: Path) -> None:
    file = tmp_path / "prefect.yaml"
    given = Scenario(shift_seconds=60).flow_parameters("http://127.0.0.1:9090", "chat")
    write_prefect_file(file, "autoscale", given, every=30, after=1)
    there = {deployment["name"]: deployment for deployment in read(file)["deployments"]}
    assert there.keys() == DEPLOYMENTS.keys()
    for name, deployment in there.items():
        load(deployment["entrypoint"]).validate_parameters({**EXAMPLES.get(name, {}), **deployment["parameters"]})
        assert [s["active"] for s in deployment["schedules"]] == [
            name == "autoscale" for _ in DEPLOYMENTS[name].get("schedules", ())
        ]
    assert there["autoscale"]["schedules"][0]["interval"] == 30
    assert there["autoscale-once"]["parameters"] == {**there["autoscale"]["parameters"], "shift_seconds": 0}
    assert there["replay"]["parameters"] == DEPLOYMENTS["replay"]["parameters"]
    write_prefect_file(file, "reconcile", {"shift_seconds": 60}, every=30, after=1)
    assert [one["name"] for one in read(file)["deployments"] if any(s["active"] for s in one.get("schedules", ()))] == [
        "reconcile"
    ]


def test_zombies_are_runs_that_miss_ten_heartbeats_so_that_a_starved_machine_has_none() -> None:
    (zombies,) = automations.load()
    trigger: Any = zombies.trigger
    beat = int(read_profile(WORKER_PROFILE)["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"])
    assert trigger.within.total_seconds() == 10 * beat
    assert f"PREFECT_FLOWS_HEARTBEAT_FREQUENCY={beat} " in TEMPLATES["process"]["job_configuration"]["command"]
    assert zombies.actions[0].state.value == "CRASHED"  # type: ignore[union-attr]


PRINT_SETTINGS = """
from prefect.settings import get_current_settings
from prefect.server.concurrency.lease_storage import get_concurrency_lease_storage
s = get_current_settings()
v = s.server.services
print(v.task_run_recorder.batch_size, v.task_run_recorder.read_batch_size, v.event_persister.batch_size,
      v.event_persister.read_batch_size, v.triggers.read_batch_size)
print(s.server.events.retention_period.days, v.db_vacuum.retention_period.days, v.db_vacuum.batch_size,
      sorted(v.db_vacuum.enabled_vacuum_types))
print(type(get_concurrency_lease_storage()).__module__, s.server.concurrency.initial_deployment_lease_duration)
print(s.server.analytics_enabled, s.server.ephemeral.enabled)
print(s.server.ui.api_url)
print(s.worker.query_seconds, s.worker.prefetch_seconds, s.runner.poll_frequency, s.flows.heartbeat_frequency)
"""


def settings_under(profile: Path) -> list[str]:
    """Prefect's own reading of a profile, in a process that has nothing else set."""
    env = {k: v for k, v in environment(profile).items() if not k.startswith("PREFECT_") or k in read_profile(profile)}
    done = subprocess.run(
        [sys.executable, "-c", PRINT_SETTINGS], env=env, capture_output=True, text=True, timeout=200, check=True
    )
    return done.stdout.splitlines()


def test_prefect_understands_the_server_profile() -> None:
    batching, retention, leases, quiet, address, _ = settings_under(SERVER_PROFILE)
    assert batching == "100 100 200 100 100"
    assert retention == "2 14 1000 ['events', 'flow_runs', 'orphans']"
    assert leases == "prefect.server.concurrency.lease_storage.filesystem 60.0"
    assert quiet == "False False"
    assert address == "/api", "the UI works under whatever address the browser found it at"


def test_prefect_understands_the_worker_profile() -> None:
    *_, quiet, _, polling = settings_under(WORKER_PROFILE)
    assert quiet.endswith("False")
    assert polling == "2.0 10.0 2 30"


@pytest.mark.parametrize("profile", [SERVER_PROFILE, WORKER_PROFILE])
def test_the_environment_wins_over_a_profile_and_the_caller_over_both(
    profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    assert environment(profile)["DO_NOT_TRACK"] == "0"
    assert environment(profile, {"DO_NOT_TRACK": "2"})["DO_NOT_TRACK"] == "2"


def test_a_child_finds_our_interpreter_and_our_code() -> None:
    env = environment(WORKER_PROFILE)
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert env["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert env["PYTHONSAFEPATH"] == "1", "nothing is imported from the working directory"


def test_a_missing_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.env is missing"):
        read_profile(tmp_path / "nothing.env")


def test_the_installed_packages_are_within_the_caps() -> None:
    assert package_problems(installed()) == []


def test_packages_out_of_bounds_are_named_with_the_reason() -> None:
    good = {"prefect": "3.8.8", "fastapi": "0.150.0", "sqlalchemy": "2.0.58", "pulp": "3.3.2"}
    assert set(good) == set(CAPS)
    assert package_problems(good) == []
    assert package_problems({**good, "sqlalchemy": "2.1.9"}) == [
        "sqlalchemy 2.1.9 is installed, sqlalchemy<2.1 is needed: "
        "the Prefect 3.8 scheduler silently creates no runs with newer ones"
    ]
    assert package_problems({**good, "fastapi": "0.155.0"})[0].startswith("fastapi 0.155.0")
    del good["pulp"]
    assert package_problems(good) == ["pulp is not installed; install pulp>=3.3,<4"]


def environment_of_server(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, str]:
    """What `modelyard server` hands to Prefect."""
    started: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execve", lambda path, argv, env: started.append(env))
    said = modelyard("server", *arguments)
    assert said.code == 0, said.err
    print(said.out)
    print(said.err, file=sys.stderr)
    return started[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_has_a_password_of_its_own(
    host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(server.AUTHENTICATION, raising=False)
    given = ("--home", str(tmp_path), "--host", host, "--port", str(free_port()))
    password = environment_of_server(monkeypatch, *given)[server.AUTHENTICATION]
    file = tmp_path / "api-auth"
    assert file.read_text() == password
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(password.removeprefix("modelyard:")) >= 32
    said = capsys.readouterr()
    assert password not in said.out + said.err
    assert f'export PREFECT_API_AUTH_STRING="$(cat {file})"\n' in said.out
    assert f"The UI asks for a password once: `cat {file}` prints it" in said.err, "`eval` takes standard output alone"
    again = environment_of_server(monkeypatch, *given)
    assert again[server.AUTHENTICATION] == password
    open_to_all = environment_of_server(monkeypatch, *given, "--without-authentication")
    assert server.AUTHENTICATION not in open_to_all
    assert "asks for" not in capsys.readouterr().err.rpartition("Starting Prefect")[2]


@pytest.mark.parametrize(
    ("host", "address"),
    [
        *(("127.0.0.1", "127.0.0.1"), ("127.0.0.7", "127.0.0.7"), ("localhost", "localhost")),
        *(("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]")),
    ],
)
def test_the_printed_address_is_one_that_a_client_can_use(
    host: str, address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = str(free_port())
    environment_of_server(monkeypatch, "--home", str(tmp_path), "--host", host, "--port", port)
    assert f"export PREFECT_API_URL=http://{address}:{port}/api " in capsys.readouterr().out


@pytest.mark.parametrize(("host", "address"), [("10.0.0.7", "10.0.0.7"), ("prefect.example", "prefect.example")])
def test_a_server_of_another_machine_is_reached_by_its_own_name(host: str, address: str) -> None:
    assert server.reachable(host) == address


def test_a_servers_password_may_come_from_a_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(server.AUTHENTICATION, "somebody:else")
    port = ("--port", str(free_port()))
    assert environment_of_server(monkeypatch, "--home", str(tmp_path), *port)[server.AUTHENTICATION] == "somebody:else"
    assert not (tmp_path / "api-auth").exists()
    assert server.AUTHENTICATION not in server.PrefectServer(tmp_path).environment, "a local one has none"
