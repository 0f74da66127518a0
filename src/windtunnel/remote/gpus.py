"""Whether a machine shows the GPUs that a job needs: asked of its shell, before anything is installed there."""

from __future__ import annotations

import shlex
from pathlib import Path

_SCRIPT = """
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


def require_gpus(count: int, devices: Path = Path("/sys/bus/pci/devices")) -> str:
    """Return a script of the shell that fails, saying why and what to do, where fewer GPUs can be used.

    Args:
        count: how many there must be.
        devices: what is on the PCI bus there.
    """
    return _SCRIPT.format(count=count, devices=shlex.quote(str(devices)))
