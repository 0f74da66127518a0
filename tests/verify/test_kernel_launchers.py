"""One launcher for kernels of nearly all signatures, where Triton would have a C compiler make one for each."""

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from windtunnel.verify.kernel.child.launchers import one_for_all

BASE = (1, 2, 3, "stream", "function", False, False, "scratch", "profile", "metadata", None, None, None)


class Driver(SimpleNamespace):
    """Triton 3.6's module of the driver, as far as launchers are made there. made: texts. launched: what a launcher was given."""

    def __init__(self, **more: Any) -> None:
        self.made: list[str] = []
        self.launched: list[tuple[Any, ...]] = []
        super().__init__(include_dirs=[], libraries=[], library_dirs=list, compile_module_from_src=self._compile, **more)

    def _compile(self, src: str, name: str, **_: object) -> Any:
        self.made.append(src)
        return SimpleNamespace(launch=lambda *given: self.launched.append(given))

    def launcher(self, signature: dict[int, Any]) -> Callable[..., None]:
        """Return a launcher as Triton makes it."""
        module = self.compile_module_from_src(src=self.make_launcher({}, signature, None), name="__triton_launcher")
        launch: Callable[..., None] = self.wrap_handle_tensordesc(module.launch, signature, None)
        return launch


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> Driver:
    made = Driver(
        _BASE_ARGS_FORMAT="iiiKKppOOOOOO",
        make_launcher=lambda _, signature, __: f"{request.node.name}: {list(signature.values())}",
        wrap_handle_tensordesc=lambda launch, _, __: launch,
    )
    one_for_all(made)
    return made


@pytest.mark.parametrize(
    ("kind", "value", "form"),
    [
        ("i8", -3, "<b"),
        ("i16", -30_000, "<h"),
        ("i32", -1, "<i"),
        ("i32", (1 << 31) - 1, "<i"),
        ("i64", -(1 << 63), "<q"),
        ("u1", True, "<?"),
        ("u32", 1 << 31, "<I"),
        ("u64", (1 << 64) - 1, "<Q"),
        ("fp16", -1.5, "<e"),
        ("fp32", 0.1, "<f"),
        ("fp32", 3, "<f"),
        ("fp64", 0.1, "<d"),
    ],
)
def test_a_number_begins_its_eight_bytes(driver: Driver, kind: str, value: float, form: str) -> None:
    driver.launcher({0: kind})(*BASE, value)
    (given,) = driver.launched
    right = struct.pack(form, value)
    assert given[13].to_bytes(8, "little")[: len(right)] == right


@pytest.mark.parametrize(("value", "bits"), [(1.0, 0x3F80), (1e300, 0x7F80), (-1e-3, 0xBA83)])
def test_bfloat16_is_cut_and_what_is_too_large_infinite(driver: Driver, value: float, bits: int) -> None:
    driver.launcher({0: "bf16"})(*BASE, value)
    assert driver.launched[0][13] == bits


def test_arguments_come_without_constants_before_the_scratch_memory(driver: Driver) -> None:
    x, y = object(), object()
    signature = {0: "*fp32", 1: "constexpr", 2: ("i32", ("constexpr", "*ki8"), "u1"), 3: "i64"}
    driver.launcher(signature)(*BASE, x, 128, (5, (None, y), False), 7)
    (given,) = driver.launched
    assert given[:13] == BASE
    assert given[13:20] == (x, 5, y, 0, 7, "scratch", "profile")
    assert set(given[20:]) == {None}
    assert len(given) == 13 + 64


def test_no_other_module_is_made(driver: Driver) -> None:
    for signature in ({}, {0: "*fp32", 1: "i32"}, {0: "constexpr", 1: "fp32"}, dict.fromkeys(range(62), "*i8")):
        driver.launcher(signature)
    assert len(driver.made) == 1


@pytest.mark.parametrize(
    "signature",
    [dict.fromkeys(range(63), "*i8"), {0: "tensordesc<fp32[16, 16]>"}, {0: ("nvTmaDesc",)}, {0: "fp8e5"}],
    ids=["many", "descriptor", "inside", "unknown"],
)
def test_what_does_not_fit_has_its_own_made_once(driver: Driver, signature: dict[int, Any]) -> None:
    for _ in range(2):
        driver.launcher(signature)(*BASE, "as", "it", "is")
    assert len(driver.made) == 2
    assert driver.launched == [(*BASE, "as", "it", "is")] * 2


def test_a_number_that_its_type_has_no_room_for_is_refused(driver: Driver) -> None:
    with pytest.raises(OverflowError, match="32 bits"):
        driver.launcher({0: "i32"})(*BASE, 1 << 31)
    assert driver.launched == []


@pytest.mark.parametrize("form", [None, "iiiKKppOOOOO"])
def test_another_triton_is_left_as_it_is(form: str | None, request: pytest.FixtureRequest) -> None:
    driver = Driver(**({} if form is None else {"_BASE_ARGS_FORMAT": form, "make_launcher": len}))
    one_for_all(driver)
    assert driver.made == []
    for text in ("one", "other", "one"):
        driver.compile_module_from_src(src=f"{request.node.name} {text}", name="empty")
    assert len(driver.made) == 2
    one_for_all(SimpleNamespace())
