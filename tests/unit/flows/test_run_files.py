"""Files and buckets that parameters of a deployment's run may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.run_files import BUCKETS, FOLDERS, RunFiles, RunFilesError, check_run_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    allowed = tmp_path / "allowed"
    (allowed / "below").mkdir(parents=True)
    (tmp_path / "allowed-too").mkdir()
    (tmp_path / "secret.csv").write_text("token")
    (allowed / "link.csv").symlink_to(tmp_path / "secret.csv")
    (allowed / "way-out").symlink_to(tmp_path)
    return allowed


@pytest.mark.parametrize("name", ["trace.csv", "below/trace.csv", "below/../trace.csv", "."])
def test_files_of_the_working_folder(folder: Path, name: str) -> None:
    RunFiles.of_environment({}, folder).check_file("trace", folder / name)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.csv",
        "link.csv",
        "way-out/secret.csv",
        "../allowed-too/trace.csv",
        "/etc/passwd",
        "/proc/self/environ",
    ],
)
def test_files_that_runs_of_a_deployment_may_not_name(folder: Path, name: str) -> None:
    allowed = RunFiles.of_environment({}, folder)
    with pytest.raises(RunFilesError, match=f"^trace: .*{FOLDERS}"):
        allowed.check_file("trace", folder / name)
    with pytest.raises(RunFilesError, match=r"^out: "):
        allowed.check_output("out", str(folder / name))


def test_folders_of_the_environment_replace_the_working_folder(folder: Path) -> None:
    allowed = RunFiles.of_environment({FOLDERS: f"{folder / 'below'}:{folder.parent / 'allowed-too'}"}, folder)
    allowed.check_file("trace", folder / "below" / "trace.csv")
    allowed.check_file("trace", folder.parent / "allowed-too" / "trace.csv")
    with pytest.raises(RunFilesError):
        allowed.check_file("trace", folder / "trace.csv")


@pytest.mark.parametrize(
    ("buckets", "out", "permitted"),
    [
        ("", "s3://reports/nightly", False),
        ("reports", "s3://reports/nightly", True),
        ("reports", "s3://reports", True),
        ("s3://reports/, other", "s3://other/a/b", True),
        ("reports", "s3://reports-of-others/nightly", False),
        ("reports/nightly", "s3://reports/nightly/2026", True),
        ("reports/nightly", "s3://reports/nightly", True),
        ("reports/nightly", "s3://reports/nightly-of-others", False),
        ("reports/nightly", "s3://reports", False),
    ],
)
def test_buckets_of_the_environment(tmp_path: Path, buckets: str, out: str, permitted: bool) -> None:
    allowed = RunFiles.of_environment({BUCKETS: buckets}, tmp_path)
    if permitted:
        allowed.check_output("out", out)
    else:
        with pytest.raises(RunFilesError, match=f"^out: .*{BUCKETS}"):
            allowed.check_output("out", out)


def test_a_run_without_a_deployment_may_name_any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    check_run_files([("trace", Path("/etc/passwd"))], [("out", "s3://reports")])
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "a-deployment")
    with pytest.raises(RunFilesError):
        check_run_files([("trace", Path("/etc/passwd"))])
