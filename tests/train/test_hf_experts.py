"""Experts frozen in fp8 blocks and shared out over ranks: losses, gradients and resumed steps are those of one rank."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from hf_models import MODELS, batch, drawn, engine_on, full, job_of, losses_of, packed
from test_hf_state import load, save, steps
from transformers import AutoConfig, AutoModelForCausalLM

from windtunnel.convert import Choice, convert_folder, encode_blocks
from windtunnel.model import ExpertGroup, fp8_experts
from windtunnel.model.expert_parallel import expert_group, through_experts
from windtunnel.model.fp8_experts import BlockFP8
from windtunnel.recipe import LoRA, UserError
from windtunnel.train import HFJob
from windtunnel.train.ranks import Ranks, join_ranks

pytestmark = pytest.mark.end_to_end

HELD: dict[str, Any] = {"lora": LoRA(rank=3, targets="attention"), "weights": "fp8-experts", "recompute": "block"}
CASES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"config": "deepseek_v3", "shard": "full"},
    "in bf16": {"config": "deepseek_v3", "shard": "full", "compute": torch.bfloat16},
    "replicated": {"config": "mixtral", "shard": "none", "recompute": "none"},
    "packed": {"config": "qwen3_moe", "shard": "optimizer"},
}
LENGTHS = ((9, 14, 5), (30,), (2, 2), (1, 1, 20))
"""Of packed documents, row by row: ranks have different numbers of targets."""


def outcome(name: str, ranks: Ranks, expert: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Sums of three steps of four rows, each rank with its share, and the first step's gradients."""
    chosen = dict(CASES[name])
    gradients: dict[str, torch.Tensor] = {}

    def keep(job: HFJob) -> None:
        for key, parameter in job.trained.items():
            assert parameter.grad is not None
            gradients.setdefault(key, full(parameter.grad))

    with job_of(chosen.pop("config"), ranks=ranks, **(HELD | chosen), expert=expert) as job:
        x, y = batch(4)
        rows = range(ranks.rank, 4, ranks.world)
        parts: list[Any] = [(x[i : i + 1], y[i : i + 1]) for i in rows]
        if name == "packed":
            parts = [packed([drawn(LENGTHS[i], seed=i)], 32) for i in rows]
        sums = [job.step(parts, y.numel(), 3e-3, before_update=lambda: keep(job)) for _ in range(3)]
    return torch.stack(sums), gradients


def routed(group: ExpertGroup, first: bool) -> list[torch.Tensor]:
    """Results and gradients where the first rank's tokens all choose expert 2, and the others have no token at all."""
    x = torch.randn(6 if first else 0, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    shares = torch.rand(len(x), 2, generator=torch.Generator().manual_seed(2)).requires_grad_()
    chosen = torch.tensor([[2, 3]] * len(x), dtype=torch.int64).view(-1, 2)
    own = group.own(4)

    def local(rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        factors = torch.tensor([10.0**expert for expert in own]).repeat_interleave(torch.tensor(counts))
        return rows * factors[:, None]

    out = through_experts(x, chosen, shares, count=4, group=group, local=local)
    return [out, *torch.autograd.grad(out.square().sum(), (x, shares))]


def resumed(ranks: Ranks, folder: Path) -> bool:
    """Whether a checkpoint's engine makes the steps, bit for bit, of one that was never left."""
    given = HELD | {"ranks": ranks, "expert": ranks.world, "compute": torch.bfloat16}
    with job_of("deepseek_v3", **given) as job:
        engine = engine_on(job)
        steps(engine, 0, 2)
        if ranks.first:
            save(engine, folder, 2)
        else:
            make_saver_of_others(engine, folder)
        wanted, weights = steps(engine, 2, 4), {name: full(p) for name, p in job.trained.items()}
    with job_of("deepseek_v3", **given) as job:
        same = steps(load(job, folder, 2), 2, 4) == wanted
        return same and all(torch.equal(weights[name], full(p)) for name, p in job.trained.items())


def make_saver_of_others(engine: Any, folder: Path) -> None:
    from windtunnel.checkpoint import CheckpointStore, Facts
    from windtunnel.train.checkpoints import make_saver

    saver = make_saver(engine, CheckpointStore(folder), engine.job.ranks)
    saver.save(Facts(2, engine.state_dict().facts))
    saver.wait()


def child(rank: int, world: int, port: int, out: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with join_ranks("cpu") as ranks:
        results: dict[str, Any] = {name: outcome(name, ranks, world) for name in CASES}
        group = expert_group(rank, world, world)
        results["routed"] = routed(group, ranks.first)
        if world == 2:
            results["resumed"] = resumed(ranks, Path(out) / "checkpoints")
        else:
            results["two groups"] = outcome("deepseek_v3", ranks, 2)
        try:
            expert_group(rank, world, 3)
        except UserError as error:
            results["uneven"] = error.message
    torch.save(results, Path(out) / f"{world}-{rank}.pt")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What each of two and of four processes got."""
    out = tmp_path_factory.mktemp("ranks")
    sys.path.insert(0, str(Path(__file__).parent))
    multiprocessing.set_forkserver_preload(["windtunnel.train.hf", "torch.distributed.fsdp", "transformers"])
    for world in (2, 4):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        mp.start_processes(child, (world, port, str(out)), nprocs=world, start_method="forkserver")
    return {world: [torch.load(out / f"{world}-{rank}.pt") for rank in range(world)] for world in (2, 4)}


@pytest.mark.parametrize("name", CASES)
def test_ranks_that_share_experts_make_the_steps_of_one(name: str, together: dict[int, list[dict[str, Any]]]) -> None:
    alone = Ranks(0, 1, torch.device("cpu"), None)
    sums, gradients = outcome(name, alone, 1)
    tight = CASES[name].get("compute") is None
    theirs = [rank[name] for world in together.values() for rank in world]
    theirs += [rank["two groups"] for rank in together[4]] if name == "deepseek_v3" else []
    for found, slopes in theirs:
        # Sums, targets and losses; the squared norm of the gradient is the third.
        torch.testing.assert_close(found, sums, rtol=1e-5 if tight else 2e-2, atol=1e-6)
        for key, slope in gradients.items():
            loose = (slopes[key] - slope).norm() / slope.norm().clamp(min=1e-12)
            assert loose < (1e-4 if tight else 0.1), (key, float(loose))


def test_all_tokens_may_choose_one_expert_and_a_rank_have_none(together: dict[int, list[dict[str, Any]]]) -> None:
    wanted = routed(ExpertGroup(), True)
    for ranks in together.values():
        for found, alone in zip(ranks[0]["routed"], wanted, strict=True):
            assert torch.equal(found, alone)
        assert all(len(tensor) == 0 for rank in ranks[1:] for tensor in rank["routed"])


def test_resumed_ranks_go_on_bit_for_bit(together: dict[int, list[dict[str, Any]]]) -> None:
    assert all(rank["resumed"] for rank in together[2])


def test_experts_that_cannot_be_shared_out_are_refused(together: dict[int, list[dict[str, Any]]]) -> None:
    with pytest.raises(UserError, match=r"layout\.expert: 3 does not divide the 4 experts"):
        ExpertGroup(0, 3).own(4)
    assert all("3 does not divide the" in rank["uneven"] for ranks in together.values() for rank in ranks)
    for given, word in (
        ({"weights": "fp8-experts", "lora": LoRA(rank=3)}, "no routed experts"),
        ({"weights": "fp8-experts"}, "adapter"),
        ({"weights": "fp8", "lora": LoRA(rank=3), "expert": 2}, "fp8-experts"),
    ):
        with pytest.raises(UserError) as error, job_of("llama", **given):  # type: ignore[arg-type]
            pass
        assert word in f"{error.value.message} {error.value.fix}"


YARN = {
    "rope_type": "yarn", "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
"""As DeepSeek-V3 has it."""


@pytest.fixture(params=["deepseek_v3", "qwen3_moe", "mixtral"])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, Any], Path, Path]:
    """A model's config, a folder of it in fp8, and that folder converted to bf16."""
    config = MODELS[request.param]
    if request.param == "deepseek_v3":
        config = config | {"rope_scaling": YARN, "rope_theta": 10000.0, "max_position_embeddings": 163840}
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16)
    for parameter in model.parameters():
        parameter.data.mul_(3.0)  # far enough from uniform that experts matter
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(std=0.1)
    model.save_pretrained(tmp_path / "random")
    if request.param == "mixtral":  # whose matrices do not end in proj: blocks are made while they are loaded
        return config, tmp_path / "random", tmp_path / "random"
    convert_folder(tmp_path / "random", tmp_path / "fp8", Choice(to="fp8"))
    convert_folder(tmp_path / "fp8", tmp_path / "bf16")
    return config, tmp_path / "fp8", tmp_path / "bf16"


def test_losses_are_those_of_the_dequantised_weights(folders: tuple[dict[str, Any], Path, Path]) -> None:
    config, coded, plain = folders
    in_fp8 = coded != plain
    x, y = batch()
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    logits = model(x).logits
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(y)
    with job_of(config, **HELD, folder=coded) as job:
        losses = job.network(x, y)[0]
        if not in_fp8:
            assert float((losses - wanted).detach().abs().mean()) < 0.02 * float(wanted.mean())  # of fp8 itself
        else:
            torch.testing.assert_close(losses, wanted.detach(), rtol=1e-5, atol=1e-5)  # another order of sums alone
    with job_of(config, **HELD, folder=coded, compute=torch.bfloat16) as job:
        assert float((job.network(x, y)[0] - wanted).detach().abs().mean()) < 0.02 * float(wanted.mean())
        first, *_, last = losses_of(job, 8, rate=1e-2)
        assert last < first


def test_gradients_are_those_of_transformers(folders: tuple[dict[str, Any], Path, Path]) -> None:
    """Of the loss with respect to what goes into the first block, through attention, router, and experts."""
    config, coded, plain = folders
    in_fp8 = coded != plain
    if not in_fp8:
        pytest.skip("its folder is not in fp8")
    x, _ = batch()
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    with job_of(config, **HELD, folder=coded) as job:
        found = []
        for one in (model, job.network.model):
            embedded = one.get_input_embeddings()(x).detach().requires_grad_()
            hidden = one.base_model(inputs_embeds=embedded, use_cache=False).last_hidden_state
            (gradient,) = torch.autograd.grad((hidden * torch.arange(hidden.size(-1))).sum(), embedded)
            found.append(gradient)
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3 * float(found[0].abs().max()))


@pytest.mark.parametrize(("rows", "columns", "block"), [(256, 384, (128, 128)), (96, 200, (128, 128)), (30, 70, (16, 32))])
def test_decoded_experts_have_the_bits_of_the_formula(rows: int, columns: int, block: tuple[int, int]) -> None:
    from windtunnel.convert.decode import CODINGS, reference

    torch.manual_seed(0)
    parts = [encode_blocks(torch.randn(rows, columns), block) for _ in range(6)]
    codes = torch.stack([part for part, _ in parts]).view(3, 2, rows, columns).view(torch.float8_e4m3fn)
    scale = torch.stack([part for _, part in parts])
    made = BlockFP8(codes, scale.view(3, 2, *scale.shape[1:]), block).decode(1, 3, torch.float32)
    wanted = torch.cat([reference(*one, block=block) for one in [(c, CODINGS["e4m3"], s) for c, s in parts[2:]]])
    assert torch.equal(made.flatten(0, 1), wanted.float())


def test_few_experts_are_in_bf16_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_experts, "DECODED_BYTES", 2 * 2 * 16 * 32)
    codes = torch.zeros(5, 1, 16, 32).to(torch.float8_e4m3fn)
    weights = BlockFP8(codes, torch.ones(5, 1, 1, 1), (128, 128))
    found = [(weight.shape[0], start, end) for weight, start, end, _ in weights.some([3, 1, 0, 0, 4], torch.bfloat16)]
    assert found == [(2, 0, 4), (1, 4, 8)], "two at a time, and none that has no rows"
