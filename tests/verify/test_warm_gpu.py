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
sys.setdlopenflags(os.RTLD_LAZY)
from windtunnel.verify.kernel.child import warm_gpu
warm_gpu._driver()
warm_gpu._arguments()
known = set(sys.modules)
os.environ["TRITON_CACHE_DIR"], os.environ["CC"] = sys.argv[1], "/bin/false"
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime.jit import mangle_type
import torch
assert CudaDriver().utils.load_binary is CudaDriver().utils.load_binary
assert mangle_type(torch.ones(3)) == "*fp32"
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


LAUNCHES = """
import os, sys
from triton import knobs
from windtunnel.verify.kernel.child import warm_gpu
built = []
knobs.build.impl = lambda name, src, *rest: built.append(src) or sys.argv[2]
warm_gpu._launchers()
from triton.backends.nvidia import driver
import shutil
if not hasattr(driver, "compile_module_from_src"):  # Triton 3.8: no launcher is compiled
    sys.exit(print(2))
for text in ("one", "one", "other", "one"):
    os.environ["TRITON_CACHE_DIR"] = sys.argv[1]
    driver.compile_module_from_src(src=text, name="empty", library_dirs=[], include_dirs=[], libraries=[])
    shutil.rmtree(sys.argv[1], ignore_errors=True)
print(len(built))
"""


@pytest.mark.skipif(
    shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="needs a C compiler and Python's headers",
)
def test_a_launcher_is_made_once_though_tritons_files_are_removed(tmp_path: Path) -> None:
    text = '#include <Python.h>\nstatic struct PyModuleDef d = {PyModuleDef_HEAD_INIT, "empty"};\n'
    (tmp_path / "empty.c").write_text(text + "PyMODINIT_FUNC PyInit_empty(void) { return PyModule_Create(&d); }\n")
    include = sysconfig.get_path("include")
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{include}", "-o", tmp_path / "m.so", tmp_path / "empty.c"], check=True)
    command = [sys.executable, "-c", LAUNCHES, str(tmp_path / "cache"), str(tmp_path / "m.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "2"
