#!/usr/bin/env bash
# Create the virtual environment and install the project with every dependency at the pinned versions.
# Called by the Makefile with PYTHON and VENV set. Needs only Debian, Python 3.11 to 3.13 and the package registries.
set -euo pipefail

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }

if [ -z "${PYTHON:-}" ] || ! "$PYTHON" -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info < (3, 14)))'; then
    echo "error: Python 3.11 to 3.13 is needed, found '${PYTHON:-none}'. Install python3.11 or set PYTHON=..." >&2
    exit 1
fi

say "virtual environment ($("$PYTHON" --version))"
rm -rf "$VENV"
if ! "$PYTHON" -m venv "$VENV" 2>/dev/null; then
    # Debian ships venv apart from Python.
    package="$(basename "$(readlink -f "$PYTHON")")-venv"
    if [ "$(id -u)" != 0 ]; then
        echo "error: 'python -m venv' does not work; install the package $package" >&2
        exit 1
    fi
    say "installing Debian package $package"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null
    rm -rf "$VENV"
    "$PYTHON" -m venv "$VENV"
fi

pins="constraints.txt"
say "dependencies ($(grep -c == "$pins") pinned packages)"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check uv -c "$pins" 2>/dev/null || true
if ! { [ -x "$VENV/bin/uv" ] && "$VENV/bin/uv" pip install --python "$VENV/bin/python" -c "$pins" -e '.[dev]'; }; then
    say "the fast installer did not succeed; using pip (a few minutes)"
    "$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off -c "$pins" -e '.[dev]'
fi
"$VENV/bin/modelyard" --version >/dev/null
say "installed"
