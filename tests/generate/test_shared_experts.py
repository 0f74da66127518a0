"""Generation by ranks that share a model's experts: what transformers says of the merged model, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from hf_runs import base_of, trained
from transformers import AutoModelForCausalLM

from windtunnel.convert import Choice, convert_folder
from windtunnel.generate import GenerationJob, export_model, load_source, team
from windtunnel.recipe import UserError

PROMPTS = [tuple(range(5, 5 + n)) for n in (3, 9, 1, 4, 9, 17, 2)]


@pytest.fixture(autouse=True)
def _small(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run beside DeepSeek-V3's experts in fp8."""
    folder = tmp_path_factory.mktemp("run")
    convert_folder(base_of(folder / "base", "deepseek_v3"), folder / "fp8", Choice(to="fp8"))
    sets = ("model.adapter={rank: 4, targets: attention, alpha: 64}", "model.weights=fp8-experts", "serve.slots=4")
    return trained(folder, folder / "fp8", *sets)


def greedy(model: AutoModelForCausalLM, prompt: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    """transformers' own greedy answer."""
    out = model.generate(  # type: ignore[attr-defined]
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=tokens, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return tuple(out[0, len(prompt) :].tolist())


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_say_what_transformers_does(run: Path, tmp_path: Path, ranks: int) -> None:
    merged = AutoModelForCausalLM.from_pretrained(export_model(run, tmp_path / "out", dtype="fp32").folder, dtype=torch.float32)
    with closing(load_source(run, device="cpu", ranks=ranks).generator) as generator:
        jobs = [GenerationJob(prompt, 12, temperature=0, logprobs=1, score_prompt=i == 1) for i, prompt in enumerate(PROMPTS)]
        answers = generator.generate(jobs)  # more than there are slots
        again = generator.generate(jobs[:2])
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        wanted = greedy(merged, prompt, 12)
        assert answer.tokens == wanted[: len(answer.tokens)]
        assert len(answer.tokens) == 12 or answer.finish == "stop"
    assert [answer.tokens for answer in again] == [answer.tokens for answer in answers[:2]]
    with torch.no_grad():
        logits = merged(torch.tensor([PROMPTS[1]])).logits.log_softmax(-1)[0]
    scored = [info.log_probability for info in answers[1].prompt_infos][1:]
    own = logits[:-1].gather(1, torch.tensor(PROMPTS[1][1:])[:, None])[:, 0]
    assert scored == pytest.approx(own.tolist(), abs=1e-4)


def test_a_rank_that_cannot_load_its_part_is_told(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"3 does not divide the 4 experts"):
        load_source(run, device="cpu", ranks=3)
    with closing(load_source(run, device="cpu").generator) as generator:  # nothing is left of the others
        assert len(generator.generate([GenerationJob(PROMPTS[0], 2, temperature=0)])[0].tokens) <= 2
    export_model(run, tmp_path / "out")
    with pytest.raises(UserError, match="no experts in fp8"):
        load_source(tmp_path / "out", ranks=2)


def test_a_folder_in_fp8_generates_as_it_is(run: Path, tmp_path: Path) -> None:
    coded = run.parents[1] / "fp8"
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert name == "chat_template.jinja" or (coded / name).is_file()
    convert_folder(coded, tmp_path / "bf16")
    said = []
    for folder in (coded, tmp_path / "bf16"):
        with closing(load_source(folder, device="cpu").generator) as generator:
            said.append(
                [one.tokens for one in generator.generate([GenerationJob(prompt, 8, temperature=0) for prompt in PROMPTS])]
            )
    assert said[0] == said[1]


@pytest.mark.slow
def test_a_rank_that_is_gone_ends_the_generation(run: Path) -> None:
    from windtunnel.generate import GenerationFailed

    with closing(load_source(run, device="cpu", ranks=2).generator) as generator:
        (follower,) = generator._leader._followers  # type: ignore[attr-defined]
        follower.kill()
        with pytest.raises(GenerationFailed):
            generator.generate([GenerationJob(PROMPTS[0], 8, temperature=0)])


def test_each_rank_has_a_gpu_of_its_own_whose_number_is_named() -> None:
    assert [team._device("cuda", rank).index for rank in range(3)] == [0, 1, 2]
    assert team._device("cpu", 1) == torch.device("cpu")


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of DeepSeek-V3's shape in fp8."""
    folder = tmp_path_factory.mktemp("coded")
    convert_folder(base_of(folder / "base", "deepseek_v3"), folder / "fp8", Choice(to="fp8"))
    return folder / "fp8"


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_say_what_one_does(coded: Path) -> None:
    said = []
    for ranks in (1, 2):
        with closing(load_source(coded, ranks=ranks).generator) as generator:
            said.append([one.tokens for one in generator.generate([GenerationJob(p, 3, temperature=0) for p in PROMPTS])])
    assert said[0] == said[1]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_gpu_that_is_gone_ends_the_generation(coded: Path) -> None:
    from windtunnel.generate import GenerationFailed

    with closing(load_source(coded, ranks=2).generator) as generator:
        generator.generate([GenerationJob(PROMPTS[0], 2, temperature=0)])
        (follower,) = generator._leader._followers  # type: ignore[attr-defined]
        follower.kill()
        with pytest.raises(GenerationFailed):
            generator.generate([GenerationJob(PROMPTS[0], 8, temperature=0)])
