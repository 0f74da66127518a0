"""What the GPU's warm worker sets up once is not set up again in a child."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

# Undefined functions of the driver's library are looked up when they are called, which none is.
SETS_UP = """
import os, sys
from types import SimpleNamespace
sys.setdlopenflags(os.RTLD_LAZY)
from windtunnel.verify.kernel.child import warm_gpu
warm_gpu._driver()
warm_gpu._launchers()
warm_gpu._arguments()
known = set(sys.modules)
os.environ["TRITON_CACHE_DIR"], os.environ["CC"] = sys.argv[1], "/bin/false"
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime.jit import mangle_type
import torch
assert CudaDriver().utils.load_binary is CudaDriver().utils.load_binary
assert mangle_type(torch.ones(3)) == "*fp32"
from triton.backends.nvidia import driver
if hasattr(driver, "make_launcher"):  # Triton 3.6
    names = ("global_scratch_size", "global_scratch_align", "profile_scratch_size", "profile_scratch_align")
    metadata = SimpleNamespace(**dict.fromkeys(names, 0), launch_cooperative_grid=False, launch_pdl=False)
    for signature in ({}, {0: "*fp32", 1: "constexpr", 2: "fp16"}, {0: ("i32", ("u1", "constexpr")), 1: "*bf16"}):
        driver.CudaLauncher(SimpleNamespace(signature=signature, constants={}), metadata)
print(sorted(set(sys.modules) - known))
"""


@pytest.mark.skipif(
    shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="needs a C compiler and Python's headers",
)
def test_a_child_compiles_and_imports_nothing_for_its_driver(tmp_path: Path) -> None:
    (tmp_path / "empty.c").write_text("")
    subprocess.run(
        ["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", tmp_path / "libcuda.so.1", tmp_path / "empty.c"], check=True
    )
    own = {"TRITON_LIBCUDA_PATH": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "worker")}
    command = [sys.executable, "-c", SETS_UP, str(tmp_path / "child")]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
