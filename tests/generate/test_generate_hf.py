"""Hugging Face folders: what transformers itself generates, token for token, alone and in a crowd."""

import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from tiny_hf import tiny_llama
from waiting import HANG

from windtunnel.generate import BatchedGenerator, GenerationJob, load_hf, load_source
from windtunnel.recipe import UserError

PROMPTS = ("The cat", "one two three four", "x", "hello world " * 12, "数字", "user assistant system hello the mat")


@pytest.fixture(scope="module", params=["llama", "mistral", "qwen3", "gpt2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {"sliding_window": 8} if request.param == "mistral" else {"head_dim": 16} if request.param == "qwen3" else {}
    return tiny_llama(tmp_path_factory.mktemp(request.param) / "tiny", kind=request.param, **changes)


def engine_of(folder: Path) -> BatchedGenerator:
    generator = load_source(folder, device="cpu").generator
    assert isinstance(generator, BatchedGenerator)
    return generator


def reference(folder: Path, prompt: str, count: int) -> list[int]:
    """What transformers' own generate continues with, greedily; an end token is not part of it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0)
    tokens = made[0, ids.size(1) :].tolist()
    return tokens[: tokens.index(2)] if 2 in tokens else tokens


def test_greedy_is_what_transformers_generates_alone_and_in_a_crowd(folder: Path) -> None:
    expected = [reference(folder, prompt, 24) for prompt in PROMPTS]
    engine = engine_of(folder)
    try:
        jobs = [GenerationJob(tuple(engine.text.encode(prompt)), 24, temperature=0) for prompt in PROMPTS]
        alone = [engine.generate([job])[0] for job in jobs]
        assert [list(done.tokens) for done in alone] == expected
        assert engine.generate(jobs) == alone
        tickets = []
        for job in [*jobs, *reversed(jobs)]:  # they join and leave at any time
            tickets += engine.submit([job])
            time.sleep(0.004)
        assert [ticket.result(HANG) for ticket in tickets] == [*alone, *reversed(alone)]
        assert [done.text for done in alone] == [engine.text.decode(tokens) for tokens in expected]
    finally:
        engine.close()


def test_sampling_stops_and_log_probabilities(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny_llama(tmp_path / "tiny")
    engine = engine_of(folder)
    try:
        prompt = tuple(engine.text.encode("The cat"))
        jobs = [GenerationJob(prompt, 20, temperature=1.0, top_p=0.9, seed=seed) for seed in (1, 1, 2)]
        one, same, other = engine.generate(jobs)
        assert one == same != other
        (done,) = engine.generate([GenerationJob(prompt, 12, temperature=0, logprobs=2, score_prompt=True)])
        whole = torch.tensor([[*prompt, *done.tokens]])
        with torch.inference_mode():
            log_p = torch.log_softmax(AutoModelForCausalLM.from_pretrained(folder).eval()(whole).logits[0].float(), -1)
        infos = done.prompt_infos + done.infos
        for t in range(1, len(whole[0])):
            assert infos[t].log_probability == pytest.approx(float(log_p[t - 1, whole[0, t]]), abs=1e-4)
        stop = done.text[5:8]
        (cut,) = engine.generate([GenerationJob(prompt, 12, temperature=0, stop=(stop,))])
        assert (cut.text, cut.finish) == (done.text[: done.text.index(stop)], "stop")
    finally:
        engine.close()


def test_a_step_that_fails_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    engine = engine_of(tiny_llama(tmp_path / "tiny"))
    try:
        jobs = [GenerationJob(tuple(engine.text.encode(prompt)), 30, temperature=0) for prompt in PROMPTS[:4]]
        alone = [engine.generate([job])[0] for job in jobs]
        layer = engine._decoder.model.model.layers[1]  # type: ignore[attr-defined]
        calls = 0

        def sometimes(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
            nonlocal calls
            calls += len(inputs[0]) > 1
            if len(inputs[0]) > 1 and calls in (3, 9):  # after the first layer's cache has grown; each alone works
                raise RuntimeError("broken")

        hook = layer.register_forward_pre_hook(sometimes)
        tickets = engine.submit(jobs)
        assert [ticket.result(HANG) for ticket in tickets] == alone
        hook.remove()
        assert calls > 9
        assert engine.stats.failed == 0
    finally:
        engine.close()


def test_where_memory_runs_out_half_as_many_go_on_and_say_the_same(tmp_path: Path) -> None:
    """Those that lose their slots on the way go on from the token they were at, with the draws that they would have had."""
    engine = engine_of(tiny_llama(tmp_path / "tiny"))
    try:
        jobs = [
            GenerationJob(tuple(engine.text.encode(prompt)), 30, temperature=1.0, seed=seed, draws=True)
            for seed, prompt in enumerate(PROMPTS[:4])
        ]
        alone = [engine.generate([job])[0].tokens for job in jobs]
        most, steps = 4, 0

        def short(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
            nonlocal steps, most
            steps += 1
            most = 4 if steps < 6 else 2 if steps < 20 else 1
            if len(inputs[0]) > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

        hook = engine._decoder.model.model.layers[1].register_forward_pre_hook(short)  # type: ignore[attr-defined]
        tickets = engine.submit(jobs)
        assert [ticket.result(HANG).tokens for ticket in tickets] == alone
        hook.remove()
        assert [len(ticket.drawn) for ticket in tickets] == [len(tokens) for tokens in alone]
        assert (engine.stats.halvings, engine.together, engine.stats.failed) == (2, 1, 0)
    finally:
        engine.close()


def test_loading_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tiny_llama(tmp_path / "tiny")
    capfd.readouterr()
    load_hf(folder, torch.device("cpu"), torch.float32)
    assert capfd.readouterr() == ("", "")


def test_folders_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="not a causal language model"):
        load_source(tmp_path / "empty")
    folder = tiny_llama(tmp_path / "plain", template=False)
    source = load_source(folder)
    source.generator.close()
    with pytest.raises(UserError, match="no chat template"):
        source.generator.text.chat([{"role": "user", "content": "hi"}])
    with pytest.raises(UserError, match="no steps"):
        load_source(folder, step=3)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match="tokenizer"):
        load_source(folder)


@pytest.mark.parametrize("kind", ["llama", "deepseek_v3", "mixtral"])
def test_files_in_fp8_are_what_their_conversion_to_bf16_is(kind: str, tmp_path: Path) -> None:
    """Of widths that are not whole blocks of 128, which transformers' own decoding gets wrong."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    from windtunnel.check import one_thread
    from windtunnel.convert import Choice, convert_folder
    from windtunnel.generate import load_hf

    sizes = {"hidden_size": 192, "intermediate_size": 320, "vocab_size": 300, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
    latent = {"q_lora_rank": 40, "kv_lora_rank": 72, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    experts = {"n_routed_experts": 4, "moe_intermediate_size": 48, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
    mixture = {"num_local_experts": 4, "num_experts_per_tok": 2}
    more = {"deepseek_v3": latent | experts | {"first_k_dense_replace": 1}, "mixtral": mixture}.get(kind, {})
    config = AutoConfig.for_model(kind, **sizes, **heads, **more)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path / "first")
    convert_folder(tmp_path / "first", tmp_path / "fp8", Choice(to="fp8"))
    stored = load_file(tmp_path / "fp8" / "model.safetensors")
    experts = {tensor.dtype for name, tensor in stored.items() if ".experts." in name and name.endswith(".weight")}
    assert experts == (set() if kind == "llama" else {torch.float8_e4m3fn})
    convert_folder(tmp_path / "fp8", tmp_path / "bf16")
    ids = torch.arange(24)[None]
    # Several threads share out a product by what else the machine does: the last bits differ.
    with torch.inference_mode(), one_thread():
        one, other = (load_hf(tmp_path / name, torch.device("cpu"), torch.float32)(ids).logits for name in ("fp8", "bf16"))
    assert torch.equal(one, other)
    assert float(one.abs().max()) > 0.1
