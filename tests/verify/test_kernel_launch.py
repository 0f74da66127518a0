"""Launches without Triton's own launcher: what reaches the driver, seen by a driver that only writes it down."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from types import ModuleType, SimpleNamespace

import pytest

from windtunnel.verify.kernel.child.launch import QuickLauncher, install_quick_launcher, makers_of

DRIVER = """
#include <string.h>
typedef unsigned u;
u numbers[7]; unsigned long long seen[3]; unsigned char bytes[16][8]; int answer;
int cuLaunchKernel(void *f, u a, u b, u c, u d, u e, u g, u shared, void *stream, void **params, void **extra) {
    u all[7] = {a, b, c, d, e, g, shared};
    memcpy(numbers, all, sizeof all);
    seen[0] = (unsigned long long)f; seen[1] = (unsigned long long)stream; seen[2] = (unsigned long long)extra;
    for (int i = 0; i < 8; i++) memcpy(bytes[i], params[i], i == 2 ? 4 : i == 3 ? 4 : i == 4 ? 2 : i == 5 ? 1 : 8);
    return answer;
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "driver.so", folder / "driver.c"], check=True)
    return ctypes.CDLL(str(folder / "driver.so"))


def test_arguments_reach_the_driver_as_the_kernel_expects_them(driver: ctypes.CDLL) -> None:
    makers = makers_of(["*fp32", "constexpr", "*i64", "i32", "fp32", "fp16", "i1", "constexpr"])
    assert makers is not None
    tensor = SimpleNamespace(data_ptr=lambda: 0xABCDEF0123456789, device=SimpleNamespace(type="cuda"))
    QuickLauncher(makers, driver)(
        7, 5, 3, 0x77, 0xFF00FF00FF, (4, 1, 1234), None, None, None, tensor, 64, None, -2, 1.5, -0.5, 1, 9
    )
    numbers = list((ctypes.c_uint * 7).in_dll(driver, "numbers"))
    assert numbers == [7, 5, 3, 128, 1, 1, 1234]
    assert list((ctypes.c_ulonglong * 3).in_dll(driver, "seen")) == [0xFF00FF00FF, 0x77, 0]
    rows = [bytes(row) for row in ((ctypes.c_ubyte * 8) * 16).in_dll(driver, "bytes")]
    assert int.from_bytes(rows[0], "little") == 0xABCDEF0123456789
    assert int.from_bytes(rows[1], "little") == 0
    assert int.from_bytes(rows[2][:4], "little", signed=True) == -2
    assert ctypes.c_float.from_buffer_copy(rows[3]).value == 1.5
    assert rows[4][:2] == b"\x00\xb8"
    assert rows[5][:1] == b"\x01"
    assert rows[6] == rows[7] == bytes(8)


def test_an_empty_grid_launches_nothing_and_an_error_is_raised(driver: ctypes.CDLL) -> None:
    launch = QuickLauncher(makers_of(["*fp32"] + ["i64"] * 7) or [], driver)
    answer = ctypes.c_int.in_dll(driver, "answer")
    answer.value = 700
    try:
        launch(0, 1, 1, 0, 1, (4, 1, 0), None, None, None, 5, *range(7))
        with pytest.raises(RuntimeError, match="700"):
            launch(1, 1, 1, 0, 1, (4, 1, 0), None, None, None, 5, *range(7))
    finally:
        answer.value = 0
    with pytest.raises(ValueError, match="cpu tensor"):
        launch(1, 1, 1, 0, 1, (4, 1, 0), None, None, None, SimpleNamespace(device=SimpleNamespace(type="cpu")), *range(7))


@pytest.mark.parametrize("kind", [("*fp32", "i32"), "nvTmaDesc", "tensordesc<fp16[64, 64]>", "bf16"])
def test_what_is_not_plain_is_left_to_triton(kind: object) -> None:
    assert makers_of(["*fp32", kind]) is None


def test_only_plain_kernels_of_an_old_triton_get_it(driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    old, new = ModuleType("old"), ModuleType("new")
    for module in (old, new):
        module.CudaLauncher = lambda source, metadata: "theirs"  # type: ignore[attr-defined]
    old.make_launcher = None  # type: ignore[attr-defined]
    usual = {"num_ctas": 1, "launch_pdl": False, "global_scratch_size": 0}
    source = SimpleNamespace(signature={0: "*fp32", 1: "i32"})
    for module in (old, new):
        install_quick_launcher(module)
    assert isinstance(old.CudaLauncher(source, SimpleNamespace(**usual)), QuickLauncher)
    assert old.CudaLauncher(source, SimpleNamespace(**(usual | {"num_ctas": 2}))) == "theirs"
    assert old.CudaLauncher(source, SimpleNamespace(**(usual | {"global_scratch_size": 128}))) == "theirs"
    assert new.CudaLauncher(source, SimpleNamespace(**usual)) == "theirs"
