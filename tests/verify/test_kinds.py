"""Kernels through the pool and the service: the same funnel and the same verdict as on the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner
from waiting import HANG

from windtunnel.cli.verify import build
from windtunnel.recipe import UserError
from windtunnel.verify import Pool, Verdict, Verifiers
from windtunnel.verify.sandbox import Layers
from windtunnel.verify.service_app import create_app
from windtunnel.web import Access

pytestmark = pytest.mark.end_to_end

FLAT = """
import torch

ROWS = 16


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 0


def get_inputs():
    return [torch.randn(ROWS, ROWS + 1)]


def get_init_inputs():
    return []
"""
RIGHT = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.maximum(tl.load(x + at, mask=at < n), 0.0), mask=at < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
"""
# The interpreter runs a block of any length; the compiler knows that it must be a power of two.
ONLY_COMPILED = RIGHT.replace("BLOCK=256", "BLOCK=192").replace(", 256)", ", 192)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "flat.py").write_text(FLAT)
    (folder / "mine.py").write_text(FLAT.replace("x * 0", "torch.relu(x)"))
    return folder


@pytest.fixture(scope="module")
def verifiers(folder: Path) -> Iterator[Verifiers]:
    with Verifiers(1, folder, gpu=False) as made:
        yield made


def ask(verifiers: Verifiers, task: str, answer: str) -> httpx.Response:
    async def post() -> httpx.Response:
        with Pool(1, 4) as pool:
            app = create_app(verifiers, pool, Layers({}), access=Access(None, local_only=True), max_body=1 << 20)
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.post("/verify", json={"kind": "kernel", "task": task, "answer": answer}, timeout=HANG)

    return asyncio.run(post())


def on_the_command_line(folder: Path, task: str, answer: str) -> dict[str, Any]:
    file = folder / "candidate.txt"
    file.write_text(answer)
    done = CliRunner().invoke(build(), ["kernel", "--task", task, "--candidate", str(file), "--no-gpu", "--json"])
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("answer", "stage", "reason"),
    [
        (RIGHT, "tiny", "accepted"),
        (ONLY_COMPILED, "compile", "compile-error"),
        (RIGHT + "import nothing\n", "record", "import-failed"),
    ],
)
def test_service_and_command_line_say_the_same(verifiers: Verifiers, folder: Path, answer: str, stage: str, reason: str) -> None:
    served = ask(verifiers, "relu", answer)
    assert served.status_code == 200
    said = served.json()
    assert (said["stage"], said["reason"]) == (stage, reason)
    printed = on_the_command_line(folder, "relu", answer)
    for own in ("task", "hardened"):
        printed.pop(own)
    assert set(printed.pop("times")) == set(said.pop("times"))
    assert printed == said


def test_a_file_in_the_folder_is_a_kernel_task(verifiers: Verifiers) -> None:
    assert ask(verifiers, "mine", RIGHT).json()["accepted"] is True
    with pytest.raises(UserError, match="given by its name"):
        verifiers.make("kernel", {})


def test_a_flat_task_is_told_to_who_names_it_and_breaks_nothing(verifiers: Verifiers) -> None:
    for _ in range(2):
        told = ask(verifiers, "flat", RIGHT)
        assert told.status_code == 422
        assert "constant" in told.json()["error"]["message"]
    assert ask(verifiers, "relu", RIGHT).json()["accepted"] is True


class Unusable:
    def verify(self, answer: str) -> Verdict:
        raise UserError("the task is flat", "another task")


def test_a_task_that_cannot_be_used_costs_a_pool_only_that_answer() -> None:
    with Pool(1, 4) as pool:
        verdict = pool.submit(Unusable(), "").result()
        assert pool.submit(Unusable(), "").result().infrastructure
    assert (verdict.reward, verdict.stage, verdict.infrastructure) == (None, "task", True)
    assert "another task" in verdict.message


def test_a_task_file_that_names_a_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "self.json").write_text(json.dumps({"kind": "exact", "task": "self"}))
    with Verifiers(1, tmp_path) as made, pytest.raises(UserError, match=r"self\.json names another task"):
        made.make("exact", "self")


def test_who_is_still_judged_when_the_service_ends_is_told_that_nothing_is_known(tmp_path: Path) -> None:
    async def post() -> httpx.Response:
        with Pool(1, 4) as pool:
            app = create_app(made, pool, Layers({}), access=Access(None, local_only=True), max_body=1 << 20)
            transport = httpx.ASGITransport(app)
            body = {"kind": "code", "task": {"asserts": "assert f() == 1"}, "answer": "def f():\n while True: pass"}
            body["task"]["seconds"] = 3  # type: ignore[index]
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                asked = asyncio.create_task(client.post("/verify", json=body))
                while not pool.busy:
                    await asyncio.sleep(0.01)
                asked.cancel()
                return await asked

    with Verifiers(1) as made:
        answer = asyncio.run(post())
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "stopping"
