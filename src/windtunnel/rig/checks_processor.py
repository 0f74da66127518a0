"""Check that what is needed exists for the processor of the rig: GH200's is an aarch64, for which wheels are other files."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from windtunnel.check import Check, Context, Evidence, Findings, Say

from .types import processor_of

PACKAGES = ("torch", "tokenizers", "safetensors", "numpy", "pyarrow")
"""Packages of ours that have compiled parts; their versions are those that are installed here."""
# The tags that wheels for aarch64 have, from new to old glibc.
WHEELS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
ASK_SECONDS = 150.0
IMAGE = "nvcr.io/nvidia/pytorch"


def _processor(context: Context, say: Say) -> Evidence:
    wanted = wanted_packages(context)
    rigs = ", ".join(rig.name for rig in context.rigs if processor_of(rig) == "aarch64")
    if platform.machine() == "aarch64":
        return Evidence(f"{rigs}: this machine is aarch64 too; the checks `packages` and `torch` are of its wheels")
    say(f"asking pip for {len(wanted)} wheels for aarch64")
    files, problem = ask_pip(wanted)
    if files is None:
        return Evidence(f"{rigs} has aarch64 hosts; {problem}", absent="the same with a network, or on a node of the rig")
    found = Findings()
    for name in wanted:
        if not any(file.lower().startswith(f"{name.partition('==')[0]}-") for file in files):
            what = f"{rigs} has aarch64 hosts, for which there is no wheel of {name}"
            found.problem(what, f"an image that has it, such as {IMAGE}")
    found.warn(f"{rigs} has aarch64 hosts: an environment or image of this machine ({platform.machine()}) does not run there")
    named = ", ".join(" ".join(file.split("-")[:2]) for file in sorted(files))
    text = f"{rigs}: pip finds wheels for aarch64 and Python {_python()} of {named}"
    return found.evidence(text, {"wheels": sorted(files)})


def wanted_packages(context: Context) -> list[str]:
    """Return what must exist for the processor, as pip takes it: the versions of here, and engines by what is declared."""
    found = []
    for name in PACKAGES:
        try:
            # Without '+cu128' and the like, which only pytorch.org's own index has.
            found.append(f"{name}=={metadata.version(name).partition('+')[0]}")
        except metadata.PackageNotFoundError:
            continue
    stage = context.recipe.rl
    if stage is not None and stage.engine == "vllm":
        found.append("vllm")
    if stage is not None and any(rig.nodes > 1 for rig in context.rigs):
        found.append("ray")
    return found


def ask_pip(wanted: list[str]) -> tuple[set[str] | None, str]:
    """Return the wheels for aarch64 that pip would install, without their dependencies, or None and why it does not tell."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        base = [
            sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed",
            "--only-binary=:all:", "--disable-pip-version-check", "--implementation=cp", f"--python-version={_python()}",
            f"--target={place}/none", f"--report={report}", *(f"--platform={wheel}" for wheel in WHEELS),
        ]  # fmt: skip
        left, limit = list(wanted), time.monotonic() + ASK_SECONDS
        while left:
            try:
                done = subprocess.run(
                    [*base, *left], capture_output=True, text=True, timeout=max(1.0, limit - time.monotonic()), check=False
                )
            except (OSError, subprocess.TimeoutExpired):
                return None, f"pip did not answer within {ASK_SECONDS:.0f} s"
            if done.returncode == 0:
                items = json.loads(report.read_text(encoding="utf-8"))["install"]
                return {item["download_info"]["url"].rpartition("/")[2] for item in items}, ""
            # pip names one at a time: that one is noted, and the rest is asked for again.
            lacking = re.search(r"No matching distribution found for ([^\s;]+)", done.stderr)
            if lacking is None or lacking[1] not in left:
                return None, f"pip: {(done.stderr.strip().splitlines() or ['it failed'])[-1][:200]}"
            left.remove(lacking[1])
        return set(), ""


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _elsewhere(context: Context) -> bool:
    return any(processor_of(rig) == "aarch64" for rig in context.rigs)


CHECKS = (
    Check(
        "processor",
        "compiled packages exist for the processor of the rig's hosts",
        f"an image for that processor, such as {IMAGE}",
        _processor,
        needs=("recipe", "rig"),
        applies=_elsewhere,
        limit=180.0,
    ),
)
