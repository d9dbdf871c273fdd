"""Finding and obtaining programs, with real files and a real (local) publisher's site."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from modelyard.local import paths
from modelyard.local.binaries import releases, store
from modelyard.local.binaries.apt import with_sources_deb822, with_sources_list
from modelyard.local.binaries.debian import link_flags, openapi_packages
from modelyard.local.binaries.obtain import ensure, locate
from modelyard.local.binaries.releases import Release, Unreachable
from modelyard.local.components.spec import contains, knows_flag, parse_version, version
from modelyard.local.paths import BinaryNotFound


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("assets", "path", "cache"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("MODELYARD_CACHE", str(tmp_path / "cache"))


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_programs_are_looked_for_in_order(tmp_path: Path) -> None:
    assert locate("some-server") is None
    cached = program(tmp_path / "cache/bin/some-server")
    assert locate("some-server") == cached
    on_path = program(tmp_path / "path/some-server")
    assert locate("some-server") == on_path
    asset = program(tmp_path / "assets/some-server")
    assert locate("some-server") == asset
    asset.chmod(0o644)
    assert locate("some-server") == on_path


def test_nothing_is_obtained_that_is_there(tmp_path: Path) -> None:
    expected = program(tmp_path / "assets/etcd")
    assert ensure(["etcd"], pytest.fail) == {"etcd": expected}


def test_the_error_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELYARD_BINARIES", "none")
    with pytest.raises(BinaryNotFound, match=r"no-such-server: not in KUBEBUILDER_ASSETS.*MODELYARD_BINARIES=none"):
        ensure(["no-such-server"], lambda line: None)


def test_an_unknown_choice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELYARD_BINARIES", "magic")
    with pytest.raises(BinaryNotFound, match=r"'magic'.*release"):
        ensure(["no-such-server"], lambda line: None)


def test_the_cache_holds_whole_files_and_their_source(tmp_path: Path) -> None:
    source = tmp_path / "built"
    source.write_bytes(b"x" * 1000)
    target = store.install("tool", source, "a test")
    assert target.read_bytes() == source.read_bytes()
    assert os.access(target, os.X_OK)
    entry = store.read_manifest()["tool"]
    assert entry["source"] == "a test"
    assert entry["sha256"] == hashlib.sha256(b"x" * 1000).hexdigest()
    assert sorted(path.name for path in paths.binaries_dir().iterdir()) == [store.MANIFEST, "tool"]


def test_scratch_goes_whatever_happens(tmp_path: Path) -> None:
    left = tmp_path / "cache" / "obtain-killed"
    left.mkdir()
    with contextlib.suppress(RuntimeError), store.scratch() as folder:
        assert not left.exists()
        (folder / "half").write_text("")
        raise RuntimeError
    assert list((tmp_path / "cache").iterdir()) == []


def test_one_process_obtains_while_others_wait() -> None:
    order: list[str] = []
    inside = threading.Event()
    waiting = threading.Event()

    def second() -> None:
        with store.exclusively(waiting.set):
            order.append("second")

    with store.exclusively(lambda: None):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(60)
        order.append("first")
        inside.set()
    thread.join(60)
    assert order == ["first", "second"]


# Releases, from a site on loopback


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    folder = tmp_path / "site"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *arguments: object) -> None:
            del arguments

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def archive(folder: Path, name: str) -> str:
    """Put an archive with bin/tool into the site; returns its SHA-256."""
    content = b"#!/bin/sh\necho tool\n"
    with tarfile.open(folder / name, "w:gz") as opened:
        member = tarfile.TarInfo("bin/tool")
        member.size = len(content)
        opened.addfile(member, io.BytesIO(content))
    return hashlib.sha256((folder / name).read_bytes()).hexdigest()


def release(base: str, checksum: str | None) -> Release:
    return Release(
        name="Tool",
        version="1",
        url=f"{base}/tool.tar.gz",
        members={"tool": "bin/tool"},
        algorithm="sha256",
        checksums={} if checksum is None else {"amd64": checksum, "arm64": checksum},
        checksum_file=f"{base}/sums.txt",
    )


def test_a_release_with_the_pinned_checksum_is_installed(site: tuple[Path, str]) -> None:
    folder, base = site
    checksum = archive(folder, "tool.tar.gz")
    lines: list[str] = []
    releases.obtain(["tool"], lines.append, (release(base, checksum),))
    assert (paths.binaries_dir() / "tool").read_text().endswith("echo tool\n")
    assert store.read_manifest()["tool"]["source"] == f"{base}/tool.tar.gz"
    assert lines[0] == "[1/1] downloading Tool 1"


def test_a_release_with_another_checksum_is_not_used(site: tuple[Path, str]) -> None:
    folder, base = site
    archive(folder, "tool.tar.gz")
    with pytest.raises(BinaryNotFound, match="nothing of it was used"):
        releases.obtain(["tool"], lambda line: None, (release(base, "0" * 64),))
    assert not paths.binaries_dir().exists()


def test_the_publishers_checksum_file_is_read(site: tuple[Path, str]) -> None:
    folder, base = site
    checksum = archive(folder, "tool.tar.gz")
    (folder / "sums.txt").write_text(f"{'1' * 64}  other.tar.gz\n{checksum}  tool.tar.gz\n")
    releases.obtain(["tool"], lambda line: None, (release(base, None),))
    (folder / "sums.txt").write_text(f"{'1' * 64}  other.tar.gz\n")
    with pytest.raises(BinaryNotFound, match=r"no checksum of tool\.tar\.gz"):
        releases.obtain(["tool"], lambda line: None, (release(base, None),))


def test_a_site_that_does_not_answer_is_out_of_reach(site: tuple[Path, str]) -> None:
    _, base = site
    with pytest.raises(Unreachable):
        releases.obtain(["tool"], lambda line: None, (replace(release(base, None), url=f"{base}/missing"),))


def test_every_pinned_checksum_has_its_length() -> None:
    for entry in releases.RELEASES:
        for checksum in entry.checksums.values():
            assert len(bytes.fromhex(checksum)) == hashlib.new(entry.algorithm).digest_size
        assert entry.checksums or entry.checksum_file.startswith("https://")
        assert entry.url.startswith("https://")


# Debian


def test_source_packages_are_switched_on_in_both_formats() -> None:
    assert with_sources_deb822("Types: deb\nURIs: http://mirror\n\nTypes: deb deb-src\nURIs: http://other\n") == (
        "Types: deb deb-src\nURIs: http://mirror\n\nTypes: deb deb-src\nURIs: http://other\n"
    )
    assert with_sources_list(
        "# comment\ndeb [signed-by=/k] http://mirror bookworm main\n\ndeb-src http://o b main\n"
    ) == (
        "deb [signed-by=/k] http://mirror bookworm main\n"
        "deb-src [signed-by=/k] http://mirror bookworm main\n"
        "deb http://o b main\n"
        "deb-src http://o b main\n"
    )


def test_packages_tagged_for_openapi_are_found(tmp_path: Path) -> None:
    for path, text in {
        "pkg/apis/a/doc.go": "// +k8s:openapi-gen=true\n\npackage a\n",
        "pkg/apis/b/types.go": "package b\n",
        "staging/src/k8s.io/api/core/v1/doc.go": "// +k8s:openapi-gen=true\npackage v1\n",
        "staging/src/k8s.io/code-generator/doc.go": "// +k8s:openapi-gen=true\npackage x\n",
        "vendor/k8s.io/utils/doc.go": "//+k8s:openapi-gen=true\npackage u\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert openapi_packages(tmp_path) == [
        "k8s.io/kubernetes/pkg/apis/a",
        "k8s.io/kubernetes/vendor/k8s.io/api/core/v1",
        "k8s.io/kubernetes/vendor/k8s.io/utils",
    ]


def test_the_version_is_linked_in_by_vendored_paths() -> None:
    assert "-X k8s.io/kubernetes/vendor/k8s.io/component-base/version.gitVersion=v1.20.2 " in link_flags()


# What a program says of itself


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Kubernetes v1.20.2", (1, 20, 2)),
        ("etcd Version: 3.4.23\nGit SHA: x", (3, 4, 23)),
        ("prometheus, version 2.42.0+ds (branch", (2, 42, 0)),
        ("Kubernetes v1.36", (1, 36, 0)),
        ("none", None),
    ],
)
def test_versions_are_read(text: str, expected: tuple[int, int, int] | None) -> None:
    assert parse_version(text) == expected


def test_programs_are_asked(tmp_path: Path) -> None:
    script = program(
        tmp_path / "server", '#!/bin/sh\n[ "$1" = --version ] && echo v9.8.7 || echo "  --new-flag  text"\n'
    )
    assert version(str(script)) == (9, 8, 7)
    assert knows_flag(str(script), "--new-flag")
    assert not knows_flag(str(script), "--old-flag")
    assert contains(str(script), b"new-flag")
    assert not contains(str(script), b"absent-text")
    assert json.dumps(store.read_manifest()) == "{}"
