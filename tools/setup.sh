#!/bin/sh
# Creates .venv with Python 3.11 to 3.13 and installs the package with its development tools, pinned.
# Usage: tools/setup.sh [PYTHON]
set -eu
cd "$(dirname "$0")/.."

suitable() { # prints nothing; succeeds when $1 is a Python that the package supports
  "$1" -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] < (3, 14)))' >/dev/null 2>&1
}

find_python() {
  for candidate in python3.11 python3.12 python3.13 python3; do
    if suitable "$candidate"; then echo "$candidate"; return; fi
  done
}

if [ -n "${1:-}" ]; then
  python=$1
  suitable "$python" || { echo "error: PYTHON=$python is not a Python 3.11, 3.12 or 3.13" >&2; exit 2; }
else
  python=$(find_python)
  if [ -z "$python" ]; then
    echo "error: no Python 3.11, 3.12 or 3.13 found (python3: $(python3 --version 2>/dev/null || echo missing))" >&2
    echo "  fix: install one (Debian and Ubuntu: apt install python3 python3-venv), or make setup PYTHON=/path/to/python3.11" >&2
    exit 2
  fi
fi

if ! suitable .venv/bin/python || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || {
    echo "error: $python lacks the venv module" >&2
    echo "  fix: apt install python3-venv (or your system's package of that name)" >&2
    exit 2
  }
  echo "creating .venv with $("$python" --version)"
  rm -rf .venv
  "$python" -m venv .venv
fi

echo "installing the package and its tools into .venv (a first time takes minutes)"
# Alone and exact first: a looser requirement lets pip fetch gigabytes of CUDA where a CPU build is at hand.
.venv/bin/python -m pip install "$(grep '^torch==' constraints.txt)"
.venv/bin/python -m pip install -c constraints.txt -e '.[dev]'
# The first command should be as quick as the second.
.venv/bin/python -m compileall -q src/windtunnel
