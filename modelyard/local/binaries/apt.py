"""Debian packages and sources without installing anything and without touching the machine's APT.

An APT configuration of our own: the machine's own package sources, read and written down again with source packages
switched on, and lists and cache in a scratch folder. Keys and proxy settings stay the machine's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from modelyard.local.paths import BinaryNotFound

_TIMEOUT = 900


def with_sources_deb822(text: str) -> str:
    """A deb822 file (`*.sources`) in which every stanza gives source packages as well."""
    return re.sub(r"(?mi)^Types:.*$", "Types: deb deb-src", text)


def with_sources_list(text: str) -> str:
    """A one-line file (`*.list`) in which every `deb` line has its `deb-src` twin."""
    lines: list[str] = []
    for line in text.splitlines():
        found = re.match(r"\s*deb(-src)?\s+(.*)", line)
        if found is not None:
            lines += [f"deb {found[2]}", f"deb-src {found[2]}"]
    return "\n".join(dict.fromkeys(lines)) + "\n"


class Apt:
    """APT with lists of its own in `folder`."""

    def __init__(self, folder: Path) -> None:
        """Write the configuration. Raises `BinaryNotFound`: this machine has no APT or no package sources."""
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise BinaryNotFound("this is no Debian: apt-get and dpkg-deb are not on PATH")
        self._folder = folder
        parts = folder / "sources.list.d"
        for path in (parts, folder / "lists" / "partial", folder / "archives" / "partial"):
            path.mkdir(parents=True, exist_ok=True)
        found = False
        for source in _source_files():
            text = source.read_text(encoding="utf-8", errors="replace")
            text = with_sources_deb822(text) if source.suffix == ".sources" else with_sources_list(text)
            (parts / source.name).write_text(text, encoding="utf-8")
            found = found or bool(text.strip())
        if not found:
            raise BinaryNotFound(
                "APT on this machine has no package sources (/etc/apt/sources.list and sources.list.d)"
            )
        options = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": str(parts),
            "Dir::State::lists": str(folder / "lists"),
            "Dir::Cache::archives": str(folder / "archives"),
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            # The files are fetched into a folder of ours, which the _apt user may not enter.
            "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
            "APT::Get::List-Cleanup": "false",
            "Acquire::Retries": "3",
            "Acquire::Languages": "none",
        }
        self._options = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]

    def update(self) -> None:
        self._run("apt-get", "update", "--error-on=any")

    def source_version(self, package: str, prefix: str) -> str:
        """Newest version of a source package that begins with `prefix`. Raises `BinaryNotFound`: there is none."""
        shown = self._run("apt-cache", "showsrc", package)
        versions: list[str] = re.findall(rf"(?m)^Package: {re.escape(package)}$(?:\n.+)*?\nVersion: (\S+)$", shown)
        matching = sorted(version for version in versions if version.startswith(prefix))
        if not matching:
            raise BinaryNotFound(
                f"the package sources of this machine have no source package {package} {prefix}* (Debian 12 has it), "
                f"only {', '.join(sorted(set(versions))) or 'none'}"
            )
        return matching[-1]

    def download_source(self, package: str, version: str, folder: Path) -> list[Path]:
        """Fetch the files of a source package, verified by APT against the signed lists."""
        folder.mkdir(parents=True, exist_ok=True)
        self._run("apt-get", "source", "--download-only", f"{package}={version}", cwd=folder)
        return sorted(folder.iterdir())

    def unpack(self, packages: Iterable[str], folder: Path) -> Path:
        """Fetch binary packages and unpack them into `folder`; nothing is installed and no script of theirs is run."""
        names = list(packages)
        cache = self._folder / "debs" / "-".join(names)[:100]
        cache.mkdir(parents=True, exist_ok=True)
        self._run("apt-get", "download", *names, cwd=cache)
        folder.mkdir(parents=True, exist_ok=True)
        for package in sorted(cache.glob("*.deb")):
            self._run("dpkg-deb", "-x", str(package), str(folder))
        return folder

    def _run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        options = self._options if program.startswith("apt") else []
        try:
            done = subprocess.run(
                [program, *options, *arguments],
                cwd=cwd,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
            )
        except subprocess.TimeoutExpired as error:
            raise BinaryNotFound(f"{program} {' '.join(arguments)} took longer than {_TIMEOUT} s") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[-1500:]
            raise BinaryNotFound(f"{program} {' '.join(arguments)} failed with {done.returncode}: {said}")
        return done.stdout


def _source_files() -> list[Path]:
    shown = subprocess.run(
        ["apt-config", "shell", "LIST", "Dir::Etc::sourcelist/f", "PARTS", "Dir::Etc::sourceparts/d"],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
    ).stdout
    values = dict(re.findall(r"(\w+)='([^']*)'", shown))
    main = Path(values.get("LIST", "/etc/apt/sources.list"))
    parts = Path(values.get("PARTS", "/etc/apt/sources.list.d/"))
    files = [main] if main.is_file() else []
    if parts.is_dir():
        files += sorted(path for path in parts.iterdir() if path.suffix in (".list", ".sources"))
    return files
