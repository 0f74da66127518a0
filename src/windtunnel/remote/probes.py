"""Scripts of the shell that ask a machine for what a job needs, before anything is installed there, and say what is missing."""

from __future__ import annotations

import shlex
from pathlib import Path

# Versions that have wheels for all of ours, rather than whatever python3 is.
PYTHONS = "python3.12 python3.11 python3.13 python3"
WANTED = "Python 3.11 to 3.13 with venv"
# Whatever Python reads this, also one of twenty years ago. Debian has venv without what puts pip there: another pip can do it,
# if it knows how to install elsewhere (22.3).
_TEST = """
import sys
version = "%d.%d" % sys.version_info[:2]
def has(name):
    try:
        return __import__(name)
    except ImportError:
        return None
pip = getattr(has("pip"), "__version__", "0").split(".")
if not (3, 11) <= sys.version_info[:2] < (3, 14):
    print("is Python " + version)
elif not has("venv"):
    print("is Python " + version + " without venv")
elif not has("ensurepip") and [int(part) for part in pip[:2] if part.isdigit()] < [22, 3]:
    print("is Python " + version + " with neither ensurepip nor a pip of 22.3 or newer")
else:
    print("yes")
"""
_FIND = """
found=
for p in {names}; do
  path=$(command -v "$p") || continue
  why=$("$path" -c {test} 2>/dev/null) || why="does not run"
  if [ "$why" = yes ]; then echo "$path"; exit 0; fi
  case $found in *"$path "*) ;; *) found="$found; $path $why" ;; esac
done
if [ -z "$found" ]; then found={absent}; fi
echo "error: no {wanted} there: ${{found#; }}" >&2
echo "  fix: there: sudo apt install python3 python3-venv, or without root: uv python install 3.12; then --python PATH" >&2
exit 1
"""
_GPUS = """
seen=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
if [ "$seen" -lt {count} ]; then
  cards=0
  for card in {devices}/*; do
    if [ "$(cat "$card/vendor" 2>/dev/null)" = 0x10de ]; then
      case $(cat "$card/class" 2>/dev/null) in 0x03*) cards=$((cards + 1)) ;; esac
    fi
  done
  if [ "$cards" -gt "$seen" ]; then
    echo "error: NVIDIA GPUs there: $cards, of which the driver shows $seen: the image has no driver that knows them" >&2
    echo "  fix: take an image with NVIDIA's driver; nvidia-smi must list all {count}" >&2
  else
    echo "error: GPUs there: $seen; --on asked for {count}" >&2
    echo "  fix: take a machine that has them, or name with --on what this one has" >&2
  fi
  exit 1
fi
"""


def find_python(python: str | None = None) -> str:
    """Return a script of the shell that prints the interpreter to use, or fails, saying what is wrong with each and what to do.

    Args:
        python: the only one to look at; None: those that have usual names.
    """
    names = shlex.quote(python) if python else PYTHONS
    absent = shlex.quote(f"{python} is not there" if python else f"none of {PYTHONS}")
    return _FIND.format(names=names, test=shlex.quote(_TEST), wanted=WANTED, absent=absent)


def require_gpus(count: int, devices: Path = Path("/sys/bus/pci/devices")) -> str:
    """Return a script of the shell that fails, saying why and what to do, where fewer GPUs can be used.

    Args:
        count: how many there must be.
        devices: what is on the PCI bus there.
    """
    return _GPUS.format(count=count, devices=shlex.quote(str(devices)))
