# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""Recorded passes on a GPU: the same results, the memory that a plan counts, and a word where work cannot be recorded."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_hf_attention_gpu import batch_of
from test_hf_gpu import VOCAB, job_of

from windtunnel.launch import try_steps
from windtunnel.model import CudaRecorder, Objective, RecursiveGPT, Replay, Supervision, build_model, deterministic, recipe_shape
from windtunnel.plan import make_plan, resolve
from windtunnel.recipe import LoRA, load_recipe
from windtunnel.rig import detect_rig
from windtunnel.train.hf.documents import document_kernels

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"), pytest.mark.timeout(300),
]  # fmt: skip
SMALL = ["model.depth=2", "model.aspect=128", "model.sequence=256", "model.value_embeddings=false", "model.mlp=swiglu"]
KEYS = [
    "model.depth=4", "model.sequence=512", "model.value_embeddings=false", "model.mlp=swiglu", "trm.preset=aggressive",
    "data.corpus.documents=20000", "budget.hours=null", "budget.steps=12", "stages.pretrain.micro_batch=16",
    "stages.pretrain.batch_tokens=16384", "stages.pretrain.precision=bf16", "stages.pretrain.validate_every=5 steps",
    "stages.pretrain.validation_tokens=16384",
]  # fmt: skip


@pytest.mark.parametrize("scheme", ["layerwise", "two_latent", "looped"])
@pytest.mark.parametrize("updates", ["once", "each"])
def test_recorded_gradients_are_those_that_are_launched_bit_for_bit(scheme: str, updates: str) -> None:
    recipe = load_recipe("charlm", [*SMALL, f"trm.scheme={scheme}"])
    shape = recipe_shape(recipe, 100)
    tokens = torch.randint(100, (6, 4, 257), device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    objective = Objective((0.2, 0.3, 0.2, 0.3), 0.5 if updates == "once" else 0.0, 1, updates)
    found = []
    before = torch.are_deterministic_algorithms_enabled()
    deterministic(True)
    try:
        for record in (None, CudaRecorder()):
            model = build_model(shape, device="cuda", compute=torch.bfloat16, seed=1)
            assert isinstance(model, RecursiveGPT)
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)

            def update(_: int = 0, model: RecursiveGPT = model) -> None:
                with torch.no_grad():
                    for parameter in model.parameters():
                        assert parameter.grad is not None
                        parameter -= 0.05 * parameter.grad
                        parameter.grad.zero_()

            work, losses = Supervision(model, objective, 1 / (4 * 256), Replay(record)), []
            for batch in tokens:
                sums = work.step([(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())], update if updates == "each" else None)
                losses.append(sums.losses.clone())
                if updates == "once":
                    update()
            found.append((torch.stack(losses), [parameter.detach().clone() for parameter in model.parameters()]))
    finally:
        deterministic(before)
    (one, weights), (other, recorded) = found
    assert torch.equal(one, other)
    assert all(torch.equal(a, b) for a, b in zip(weights, recorded, strict=True))


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_recorded_steps_of_a_plain_model_are_those_that_are_launched_bit_for_bit(precision: str, tmp_path: Path) -> None:
    from windtunnel.recipe import Layout
    from windtunnel.train.gpt import build_gpt_engine
    from windtunnel.train.ranks import join_ranks
    from windtunnel.train.trial import EngineSteps, random_feed

    found = []
    for recorded in (False, True):
        with join_ranks("cuda") as ranks:
            recipe = load_recipe("charlm", ["model.depth=4", "model.sequence=512"])
            layout = Layout(1, 8, 2, 512, precision, True, "cuda", recorded=recorded, fused=True)
            feed = random_feed(layout, ranks, 300, tmp_path, recipe.seed)
            steps = EngineSteps(build_gpt_engine(recipe, layout, ranks, feed))
            pending = [steps.step() for _ in range(8)]
            found.append([(one.result().loss, one.result().gradient_norm) for one in pending])
            steps.close()
    assert found[0] == found[1]


LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 3, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": VOCAB, "max_position_embeddings": 4096, "tie_word_embeddings": True,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
PACKS = [[[900, 100], [1024]], [[60] * 17, [30] * 30], [[500], [700, 200]], [[9] * 100, [5] * 90], [[1024], [1000]]]


@pytest.mark.parametrize(
    "chosen",
    [
        {}, {"attention": "flash4"}, {"recompute": "block"}, {"lora": LoRA(rank=8)},
        {"lora": LoRA(rank=8), "weights": "fp8"}, {"compile": False},
    ],
    ids=["full", "flash4", "recompute", "lora", "fp8", "eager"],
)  # fmt: skip
def test_recorded_steps_of_packed_documents_are_those_that_are_launched_bit_for_bit(
    chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from windtunnel.train.hf import engine

    made, found = [], []
    chosen = {"attention": "varlen", **chosen}
    if chosen["attention"] == "flash4" and document_kernels() is None:
        pytest.skip("FlashAttention-4 is not installed")

    class Counted(CudaRecorder):
        def __call__(self, work: Any) -> Any:
            made.append(super().__call__(work))
            return made[-1]

    monkeypatch.setattr(engine, "CudaRecorder", Counted)
    for most in (0, 16):
        monkeypatch.setattr(engine, "MOST_RECORDINGS", most)
        torch._dynamo.reset()
        with job_of(LLAMA, recorded=True, exact=True, **chosen) as job:
            sums = []
            for step in range(4 * len(PACKS)):
                # Waiting for the device would show here in a launched step, and fail the recording of one that is recorded.
                batches = [batch_of(PACKS[(step + i) % len(PACKS)], 1024, seed=step + i) for i in range(2)]
                sums.append(job.step(batches, 4096, 1e-3))
            found.append((torch.stack(sums).cpu(), {name: p.detach().cpu() for name, p in job.trained.items()}))
            job.step([batches[0]], 2048, 1e-3, mark=lambda phase: None)  # drops what is recorded
        del job
    assert 3 <= len(made) <= len(PACKS)
    (one, weights), (other, recorded) = found
    assert torch.equal(one, other)
    assert all(torch.equal(tensor, recorded[name]) for name, tensor in weights.items())
    assert torch.isfinite(one).all()
    assert (one[:, 2] > 0).all()


def test_what_is_launched_beside_recordings_takes_no_memory_of_its_own() -> None:
    held = {}
    for recorded in (False, True):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        with job_of(LLAMA, recorded=recorded, attention="varlen", exact=True) as job:
            for step in range(4 * len(PACKS)):
                job.step([batch_of([[1024] * 8, *PACKS[step % len(PACKS)]], 8192, seed=step)], 2 * 8192, 1e-3)
            held[recorded] = torch.cuda.max_memory_reserved() - before
        del job
    assert held[True] < 1.25 * held[False]


def test_a_replayed_step_is_started_without_waiting() -> None:
    with job_of(LLAMA, recorded=True, attention="varlen", exact=True) as job:
        given = batch_of(PACKS[0], 1024)
        for _ in range(4):
            job.step([given], 2048, 1e-4)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(2):
                job.step([given, given], 2048, 1e-4)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        with torch.profiler.profile() as profile:
            job.step([given], 2048, 1e-4)
        calls = {event.key: event.count for event in profile.key_averages()}
        assert calls["cudaGraphLaunch"] == 1


WAITS = """
import torch
from windtunnel.model import Replay, CudaRecorder
from windtunnel.recipe import UserError

run, seen, x = Replay(CudaRecorder()), torch.zeros(1, device="cuda"), torch.ones(3, device="cuda")
for _ in range(3):
    try:
        run("waits", lambda x: seen.add_(x.sum().item()), x)
    except UserError as error:
        print(error.message, error.fix, sep="|")
"""


def test_work_that_waits_for_the_device_is_refused_in_words() -> None:
    # In a process of its own: no other recording can be made after one that failed.
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    message, fix = done.stdout.strip().split("|")
    assert message.startswith("stages.pretrain.graphs: the passes cannot be recorded as a CUDA graph here: ")
    assert fix == "--set stages.pretrain.graphs=false"


def test_a_recorded_trial_reserves_the_memory_that_a_recorded_run_does_and_that_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from windtunnel.run import MetricsReader, RunFolder

    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WINDTUNNEL_CALIBRATION", "none")
    command = [sys.executable, "-m", "windtunnel", "train", "charlm", "--root", str(tmp_path / "runs"), "--yes", "--gpus", "1"]
    for key in KEYS:
        command += ["--set", key]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    run = RunFolder.open(folder)
    assert run.manifest["plan"]["layout"]["recorded"]
    with MetricsReader(run.metrics_path) as reader:
        held = max(point.value for point in reader.series("memory_gib"))
    rig = detect_rig(measure_cpu=False)
    vocab = run.manifest["plan"]["vocab"]
    recipe = resolve(load_recipe("charlm", KEYS), rig, vocab)
    plan = make_plan(recipe, rig, vocab)
    trial = try_steps(recipe, plan.layout, vocab=vocab)
    assert trial.failure is None
    assert plan.layout.recorded
    assert trial.reserved_gib == pytest.approx(held, rel=0.05, abs=0.1)
    assert plan.reserved_gib == pytest.approx(held, rel=0.1, abs=0.3)
    assert {"forward", "backward", "optimizer"} <= set(trial.phases)
