# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, operator, misc"
"""Fine-tuning on the GPU: its kernels against PyTorch, no waiting in a step, memory on one stream."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from windtunnel.recipe import LoRA
from windtunnel.train import HFJob, build_hf, linear_cross_entropy
from windtunnel.train.ranks import Ranks

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

VOCAB, SEQUENCE, ROWS = 32_000, 1024, 4
CONFIG: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": VOCAB, "max_position_embeddings": 4096, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = CONFIG | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}


@contextmanager
def job_of(config: dict[str, Any], **chosen: Any) -> Iterator[HFJob]:
    plain: dict[str, Any] = {
        "lora": None, "weights": "bf16", "master": True, "states": "fp32", "recompute": "none", "compile": True,
        "shard": "full", "sequence": SEQUENCE, "seed": 1,
    }  # fmt: skip
    device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.empty_cache()
    yield build_hf(config, ranks=Ranks(0, 1, device, None), **(plain | chosen))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, VOCAB, (ROWS, SEQUENCE + 1), generator=torch.Generator().manual_seed(0)).cuda()
    return tokens[:, :-1], tokens[:, 1:]


def losses_of(job: HFJob, steps: int) -> list[float]:
    x, y = batch()
    sums = [job.step([(x, y)], y.numel(), 1e-4) for _ in range(steps)]
    return [float(s[0] / s[1]) for s in sums]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [300, 32_000, 151_936])
def test_loss_kernel(dtype: torch.dtype, vocab: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 320, 128, device="cuda", dtype=dtype, requires_grad=True)
    head = (torch.randn(vocab, 128, device="cuda") * 0.2).to(dtype).requires_grad_()
    y = torch.randint(0, vocab, (2, 320), device="cuda")
    y[0, :50] = -1
    losses, total = linear_cross_entropy(x, head, y, 256)
    gradients = torch.autograd.grad(total, (x, head))
    logits = (x @ head.T).double()
    reference = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1, reduction="none")
    wanted = torch.autograd.grad(reference.sum(), (x, head))
    torch.testing.assert_close(losses.flatten().double(), reference, rtol=1e-5, atol=1e-4)
    for ours, theirs in zip(gradients, wanted, strict=True):
        assert (ours.double() - theirs.double()).norm() / theirs.double().norm() < (1e-3 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize(
    "chosen",
    [{}, {"recompute": "block"}, {"lora": LoRA(rank=16)}, {"lora": LoRA(rank=16), "weights": "fp8"}, {"master": False}],
    ids=["full", "recompute", "lora", "fp8", "bf16"],
)
@pytest.mark.parametrize("config", [CONFIG, EXPERTS], ids=["dense", "experts"])
def test_compiled_steps_are_those_of_eager_mode(config: dict[str, Any], chosen: dict[str, Any]) -> None:
    with job_of(config, compile=False, **chosen) as job:
        eager = losses_of(job, 4)
    torch._dynamo.reset()
    with job_of(config, **chosen) as job:
        assert losses_of(job, 4) == pytest.approx(eager, rel=5e-3)
    assert eager[-1] < eager[0]


def test_a_step_waits_for_nothing() -> None:
    x, y = batch()
    for chosen in ({}, {"lora": LoRA(), "recompute": "block"}, {"master": False}):
        with job_of(CONFIG, **chosen) as job:
            for _ in range(2):
                job.step([(x, y)], y.numel(), 1e-4)
            torch.cuda.set_sync_debug_mode("error")
            try:
                for _ in range(2):
                    job.step([(x, y), (x, y)], 2 * y.numel(), 1e-4)
            finally:
                torch.cuda.set_sync_debug_mode("default")


def peaks_of_a_job(peaks: Any, recompute: str) -> None:
    with job_of(CONFIG, recompute=recompute) as job:
        losses_of(job, 2)  # what compiling them takes is no part of later steps
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        losses_of(job, 3)
        here = torch.cuda.current_stream().cuda_stream
        elsewhere = sum(s["total_size"] for s in torch.cuda.memory_snapshot() if s["stream"] != here)
        gradients = 4 * job.parameters.trained
        peaks.put((torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated(), elsewhere, gradients))


@pytest.mark.parametrize("recompute", ["block", "none"])
def test_gradients_leave_no_memory_behind_on_another_stream(monkeypatch: pytest.MonkeyPatch, recompute: str) -> None:
    # In a process of its own, as every run is: what other tests left half used stays reserved in this one.
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    context = multiprocessing.get_context("spawn")
    peaks = context.Queue()
    process = context.Process(target=peaks_of_a_job, args=(peaks, recompute))
    process.start()
    reserved, allocated, elsewhere, gradients = peaks.get(timeout=100)
    process.join()
    # Gradients reduced on a stream of their own would all lie there, and nothing else could use their memory.
    assert elsewhere < 0.1 * gradients
    # Their memory is free when most is held: in the forward pass where all is kept, beside the root's reduction else.
    assert reserved < 1.12 * allocated


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="cuDNN's first on Hopper")
def test_attention_is_cudnns() -> None:
    x, y = batch()
    with job_of(CONFIG) as job:
        job.step([(x, y)], y.numel(), 1e-4)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            job.step([(x, y)], y.numel(), 1e-4)
            torch.cuda.synchronize()
    counts = {event.key.lower(): event.count for event in profile.key_averages()}
    for direction in ("fprop", "bprop"):
        ran = sum(count for name, count in counts.items() if "cudnn" in name and "sdpa" in name and direction in name)
        assert ran == CONFIG["num_hidden_layers"]
