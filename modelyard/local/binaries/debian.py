"""Programs from Debian 12: etcd and Prometheus from its packages, Kubernetes compiled from its source; see `obtain`.

Kubernetes 1.20.2 is compiled. What is special about it:

- The tree is older than the compiler, and module mode refuses it ("updates to go.mod needed"), so it is built in
  GOPATH mode from its vendored dependencies, as Debian's own rules do. There the version variables live under the
  vendored import path.
- Its vendored modern-go/reflect2 1.0.1 does not fit Go 1.18 and later: the server would start and die at the first
  custom resource. Debian packages the compatible 1.0.2, which takes its place.
- The OpenAPI definitions are generated; the source package does not hold them.

Works as root or not, installs nothing, and needs nothing beyond what every Debian has (APT and dpkg-deb).
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

from modelyard.local.binaries import store
from modelyard.local.binaries.apt import Apt
from modelyard.local.binaries.store import Stages
from modelyard.local.paths import BinaryNotFound

VERSION = "1.20.2"
SOURCE_PREFIX = "1.20.5+really1.20.2"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
_COMMIT = "faecb196815e248d3ecfb03c680a4507229c2a56"
_BUILD_DATE = "2021-01-13T13:20:00Z"
_PACKAGE = "k8s.io/kubernetes"
_OPENAPI = Path("pkg/generated/openapi/zz_generated.openapi.go")
_OPENAPI_TAG = re.compile(rb"^// *\+k8s:openapi-gen=", re.M)
_TIMEOUT = 3600
_PACKAGED = {
    "etcd": ("etcd-server", "usr/bin/etcd"),
    "prometheus": ("prometheus", "usr/bin/prometheus"),
    "promtool": ("prometheus", "usr/bin/promtool"),
}
_GO_PACKAGES = ("golang-1.19-go", "golang-1.19-src")
_REFLECT2_PACKAGE = "golang-github-modern-go-reflect2-dev"
_REFLECT2 = "usr/share/gocode/src/github.com/modern-go/reflect2"
_SPACE_BUILD = 3 * 1024**3
_SPACE_PACKAGES = 500 * 1024**2


def obtain(names: Iterable[str], progress: Callable[[str], None]) -> None:
    """Put programs into the cache, whose lock the caller holds. Raises `BinaryNotFound`, naming what failed."""
    wanted = list(names)
    packaged = [name for name in wanted if name in _PACKAGED]
    compiled = [name for name in PROGRAMS if name in wanted]
    unknown = set(wanted) - set(packaged) - set(compiled)
    if unknown:
        raise BinaryNotFound(f"Debian has no source for {', '.join(sorted(unknown))}")
    with store.scratch() as scratch:
        needed, free = _SPACE_BUILD if compiled else _SPACE_PACKAGES, shutil.disk_usage(scratch).free
        if free < needed:
            raise BinaryNotFound(
                f"obtaining the programs needs {needed / 1e9:.1f} GB below {scratch.parent}, {free / 1e9:.1f} GB are "
                "free; make room or set MODELYARD_CACHE to a larger disk"
            )
        # Kubernetes is fetched, unpacked and generated from, then compiled program by program.
        stages = Stages(progress, 1 + len(packaged) + (3 + len(compiled) if compiled else 0))
        apt = Apt(scratch / "apt")
        with stages.stage("reading Debian's package lists"):
            apt.update()
        for name in packaged:
            package, path = _PACKAGED[name]
            with stages.stage(f"fetching {package}"):
                unpacked = apt.unpack([package], scratch / package)
                store.install(name, unpacked / path, f"Debian package {package}, {platform.machine()}")
        if compiled:
            _compile(compiled, apt, scratch, stages)


def _compile(programs: list[str], apt: Apt, scratch: Path, stages: Stages) -> None:
    with stages.stage("fetching Kubernetes' source and the Go compiler"):
        version = apt.source_version("kubernetes", SOURCE_PREFIX)
        files = apt.download_source("kubernetes", version, scratch / "source")
        go = apt.unpack(_GO_PACKAGES, scratch / "go")
        reflect2 = apt.unpack([_REFLECT2_PACKAGE], scratch / "reflect2")
    build = KubernetesBuild(scratch / "build", go / "usr/lib/go-1.19")
    build.tree.parent.parent.mkdir(parents=True)
    with stages.stage("unpacking the source"):
        build.unpack(files, reflect2 / _REFLECT2)
    with stages.stage("generating the OpenAPI definitions"):
        build.generate_openapi()
    for name in programs:  # one after the other: together they would need several times the memory
        with stages.stage(f"compiling {name}"):
            program = build.build(name)
        # Kept one by one: who interrupts a build does not lose what is finished.
        store.install(name, program, f"Debian source package kubernetes {version}")


class KubernetesBuild:
    """One build in a scratch folder."""

    def __init__(self, scratch: Path, go_root: Path) -> None:
        """`scratch` takes the source tree and the compiler's cache (1.6 GB); `go_root` is Go 1.19's GOROOT."""
        self._scratch = scratch
        self._go = go_root / "bin" / "go"
        self._gopath = scratch / "gopath"
        self.tree = self._gopath / "src" / _PACKAGE
        self._env = {
            "PATH": f"{go_root / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "GOROOT": str(go_root),
            "GOPATH": str(self._gopath),
            "GOCACHE": str(scratch / "gocache"),
            "GO111MODULE": "off",
            "GOFLAGS": "",
            "GOPROXY": "off",
            "GOSUMDB": "off",
            "CGO_ENABLED": "0",
            "LC_ALL": "C",
        }

    def unpack(self, files: list[Path], reflect2: Path) -> None:
        """Lay out the tree from the source package's `files`, with the Go sources of reflect2 1.0.2 in `reflect2`."""
        original = next(path for path in files if ".orig.tar." in path.name)
        debian = next(path for path in files if ".debian.tar." in path.name)
        unpacked = self._scratch / "unpacked"
        with tarfile.open(original) as archive:
            archive.extractall(unpacked, filter="data")
        self.tree.parent.mkdir(parents=True)
        next(path for path in unpacked.iterdir() if path.is_dir()).rename(self.tree)
        with tarfile.open(debian) as archive:
            archive.extractall(self.tree, filter="data")
        self._apply_patches()
        vendored = self.tree / "vendor/github.com/modern-go/reflect2"
        shutil.rmtree(vendored)
        shutil.copytree(reflect2, vendored)

    def _apply_patches(self) -> None:
        """Debian's patches. They concern kubectl's output alone, so a machine without patch(1) builds without them."""
        patches = self.tree / "debian/patches"
        program = shutil.which("patch")
        if program is None or not (patches / "series").is_file():
            return
        for name in (patches / "series").read_text(encoding="utf-8").split():
            self._run([program, "-p1", "--batch", "-i", str(patches / name)], f"applying Debian's {name}")

    def generate_openapi(self) -> None:
        generator = self._scratch / "openapi-gen"
        self._run(
            [str(self._go), "build", "-trimpath", "-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"],
            "building openapi-gen",
        )
        self._run(
            [
                *(str(generator), "--logtostderr"),
                *("-i", ",".join(openapi_packages(self.tree))),
                *("-p", f"{_PACKAGE}/{_OPENAPI.parent}"),
                *("-O", _OPENAPI.name.removesuffix(".go")),
                *("-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"),
                *("-r", str(self._scratch / "openapi-violations.txt")),
            ],
            "generating the OpenAPI definitions",
        )
        if not (self.tree / _OPENAPI).is_file():
            raise BinaryNotFound(f"building Kubernetes: openapi-gen ended well but wrote no {_OPENAPI}")

    def build(self, program: str) -> Path:
        """Compile one program, static and stripped."""
        output = self._scratch / program
        self._run(
            [
                *(str(self._go), "build", "-trimpath", "-tags", "netgo osusergo providerless dockerless"),
                *("-ldflags", link_flags(), "-o", str(output), f"./cmd/{program}"),
            ],
            f"building {program}",
        )
        return output

    def _run(self, argv: list[str], what: str) -> None:
        log = self._scratch / "build.log"
        with log.open("wb") as stream:
            # In our own process group: Ctrl-C ends the compiler as well.
            done = subprocess.run(
                argv,
                cwd=self.tree,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                timeout=_TIMEOUT,
                check=False,
            )
        if done.returncode != 0:
            said = log.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
            raise BinaryNotFound(f"{what} (Kubernetes {VERSION} from Debian's source) failed: {said}")


def openapi_packages(tree: Path) -> list[str]:
    """Import paths of the packages tagged for OpenAPI, staging ones by their vendored names; sorted."""
    found: set[str] = set()
    for top in ("pkg", "staging/src/k8s.io", "vendor/k8s.io/kube-openapi", "vendor/k8s.io/utils"):
        for path in (tree / top).rglob("*.go"):
            folder = path.parent.relative_to(tree)
            if {"code-generator", "sample-apiserver"} & set(folder.parts):
                continue
            name = str(folder).replace("staging/src/", "vendor/", 1)
            if f"{_PACKAGE}/{name}" not in found and _OPENAPI_TAG.search(path.read_bytes()):
                found.add(f"{_PACKAGE}/{name}")
    return sorted(found)


def link_flags() -> str:
    """Linker flags: stripped, and the version that the release of that number carries."""
    major, minor, _ = VERSION.split(".")
    values = {
        "gitVersion": f"v{VERSION}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": _COMMIT,
        "buildDate": _BUILD_DATE,
    }
    packages = [f"{_PACKAGE}/vendor/k8s.io/{name}" for name in ("component-base/version", "client-go/pkg/version")]
    return " ".join(["-s -w", *(f"-X {p}.{key}={value}" for p in packages for key, value in values.items())])
