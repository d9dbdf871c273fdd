"""What nobody has expected in a Job's program: a report with a reason and the remedy, and no blind repetition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import modelyard
from model_world import Cluster, Object, condition, model, rfc

from modelyard.models.storage.errors import FetchError, unexpected


@pytest.mark.parametrize("uri", ["local:///models/x", "pvc://claim/x"])
def test_an_exception_leaves_a_report_with_a_reason(tmp_path: Path, uri: str) -> None:
    """No path has a byte of zeros, and nothing here looks for one."""
    report = tmp_path / "report.json"
    where = ("--root", tmp_path, "--path", f"{tmp_path}/a\0b", "--model", "m", "--report", report)
    done = modelyard("node", "fetch", "--uri", uri, *where)
    assert done.code == 1, "not 75: the same again would fail in the same way"
    told = json.loads(report.read_text())
    assert (told["outcome"], told["reason"], told["retryable"]) == ("Failed", "InternalError", False)
    assert "unexpected ValueError at " in told["message"]
    assert "; this is a fault of Modelyard: report it" in told["message"]
    assert "Traceback" in done.err
    assert json.loads(done.out.splitlines()[-1]) == told


def test_options_that_cannot_be_read_are_no_fault_of_ours(tmp_path: Path) -> None:
    for wrong in (("--model", "NO KEY"), ("--model", "m", "--no-such-option")):
        done = modelyard("node", "remove", "--root", tmp_path, *wrong, "--report", tmp_path / "report")
        assert done.code == 2
        assert "Traceback" not in done.err


def test_a_report_shows_no_secret_of_what_failed() -> None:
    try:
        raise TypeError("key 'AKIA-very-secret' of short 'k'\nand more")
    except TypeError as error:
        said = str(unexpected(error, ["AKIA-very", "AKIA-very-secret", "k"]))
    assert "unexpected TypeError at test_unexpected_faults.py:" in said
    assert "key '***' of short 'k' and more; this is a fault of Modelyard" in said
    assert unexpected(expected := FetchError("Throttled", "slow down")) is expected


def ended(cluster: Cluster, obj: Object, code: int, log: str) -> None:
    """The Job's program ends without a report; what is left is the end of its log."""
    (job,) = cluster.jobs("fetch").values()
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": rfc(cluster.now)}]}
    terminated = {"exitCode": code, "reason": "OOMKilled" if code == 137 else "Error", "message": log}
    pod = cluster.get("Pod", job["metadata"]["name"], job["metadata"]["namespace"])
    pod["status"] = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": terminated}}]}
    cluster.settle(obj)


@pytest.mark.parametrize(
    ("code", "log", "broken"),
    [
        (1, "Traceback (most recent call last):\n...\nModuleNotFoundError: No module named 'obstore'", True),
        (2, "Usage: modelyard node fetch\nError: No such option: --addressing-style", True),
        (137, "", False),
        (143, "", False),
    ],
)
def test_a_program_that_cannot_report_is_not_started_again_and_again(code: int, log: str, broken: bool) -> None:
    cluster = Cluster("a")
    obj = cluster.put("ClusterBaseModel", model())
    cluster.settle(obj)
    ended(cluster, obj, code, log)
    starts = 0
    for _ in range(60):  # a minute
        cluster.now += 1
        cluster.settle(obj)
        if cluster.jobs("fetch"):
            starts += 1
            ended(cluster, obj, code, log)
    assert (starts <= 1) is broken
    why = str(obj["status"])
    assert ("check image in ConfigMap modelyard-models" in why) is broken
    assert log.rpartition(":")[2] in why
    assert (condition(obj, "Ready")[1] == "ProgramFailed") is broken
