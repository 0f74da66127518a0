"""The adapter of vLLM, against something that has AsyncLLM's form, and against vLLM itself where there is one."""

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tiny import TOKENIZER
from tiny_hf import tiny_llama
from waiting import HANG, until

from windtunnel.generate import GenerationFailed, GenerationJob, OwnText, QueueFull, export_model, load_source
from windtunnel.generate.vllm_adapter import VLLMGenerator, sampling_keywords
from windtunnel.recipe import UserError

TEXT = OwnText(TOKENIZER)


class Counting:
    """Says 1, 2, 3, ... in steps of one or two tokens, as AsyncLLM does with output_kind DELTA, and notes who went away."""

    def __init__(self, end_after: int = 10**9, die_at: int = 10**9) -> None:
        self.errored, self.shut, self.aborted = False, False, list[str]()
        self.end_after, self.die_at = end_after, die_at

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str) -> AsyncGenerator[Any, None]:
        made, step = 0, 0
        try:
            while True:
                await asyncio.sleep(0.001)
                if made >= self.die_at:
                    self.errored = True
                    raise RuntimeError("EngineCore died")
                step += 1
                most = sampling_params.max_tokens - made
                tokens = [int(t) for t in TOKENIZER.encode("".join(str((made + i) % 10) for i in range(min(1 + step % 2, most))))]
                if made + len(tokens) > self.end_after:
                    tokens = [*tokens[: self.end_after - made], TOKENIZER.bos]
                made += len(tokens)
                reason = "stop" if tokens[-1] == TOKENIZER.bos else "length" if made >= sampling_params.max_tokens else None
                scores = None
                if sampling_params.logprobs:
                    scores = [{t: Namespace(logprob=-0.5), 15: Namespace(logprob=-1.5)} for t in tokens]
                scored = [None, *[{t: Namespace(logprob=-2.0)} for t in prompt["prompt_token_ids"][1:]]]
                yield Namespace(
                    outputs=[Namespace(token_ids=tokens, logprobs=scores, finish_reason=reason)],
                    prompt_logprobs=scored if step == 1 and sampling_params.prompt_logprobs else None,
                    finished=reason is not None,
                )
                if reason:
                    return
        except GeneratorExit:
            self.aborted.append(request_id)
            raise

    def shutdown(self) -> None:
        self.shut = True


def around(*engines: Counting, queue: int = 8) -> VLLMGenerator:
    left = iter(engines)
    return VLLMGenerator(lambda: next(left), lambda **k: Namespace(**k), TEXT, context=128, slots=4, queue=queue)


def ids(text: str) -> tuple[int, ...]:
    return tuple(TEXT.encode(text))


def test_tokens_become_text_and_ends_are_told() -> None:
    engine = Counting()
    generator = around(engine)
    done, scored, none = generator.generate(
        [
            GenerationJob(ids("H"), 12),
            GenerationJob(ids("H1"), 3, logprobs=2, score_prompt=True),
            GenerationJob(ids("H1"), 0, logprobs=0, score_prompt=True),
        ]
    )
    assert (done.text, done.finish, len(done.tokens)) == ("012345678901", "length", 12)
    assert [i.log_probability for i in scored.infos] == [-0.5] * 3
    assert [i.log_probability for i in scored.prompt_infos][1:] == [-2.0, -2.0]
    assert (none.text, none.finish, len(none.prompt_infos)) == ("", "length", 3)
    (stopped,) = generator.generate([GenerationJob(ids("H"), 100, stop=("56",))])
    assert (stopped.text, stopped.finish) == ("01234", "stop")
    assert sampling_keywords(GenerationJob((1,), 5), frozenset({2}))["stop_token_ids"] == [2]
    endless = sampling_keywords(GenerationJob((1,), 5, ignore_ends=True), frozenset({2}))
    assert (endless["stop_token_ids"], endless["ignore_eos"]) == ([], True)
    generator.close()
    assert engine.shut
    assert len(engine.aborted) == 1  # what a stop string ended is not gone on with
    with pytest.raises(GenerationFailed):
        generator.submit([GenerationJob(ids("H"), 1)])
    (ended,) = (other := around(Counting(end_after=5))).generate([GenerationJob(ids("H"), 100)])
    assert (ended.text, ended.finish, len(ended.tokens)) == ("01234", "stop", 5)
    other.close()


def test_cancelled_ones_are_aborted_and_the_queue_is_bounded() -> None:
    engine = Counting()
    generator = around(engine, queue=0)
    tickets = generator.submit([GenerationJob(ids("H"), 10**6)] * 4)
    with pytest.raises(QueueFull):
        generator.submit([GenerationJob(ids("H"), 1)])
    for ticket in tickets:
        ticket.cancel()
    until(lambda: len(engine.aborted) == 4 and generator.running == 0)
    generator.close()


def test_an_engine_that_died_is_built_again() -> None:
    dying, sound = Counting(die_at=4), Counting()
    generator = around(dying, sound)
    lost = generator.submit([GenerationJob(ids("H"), 10)])[0]
    with pytest.raises(GenerationFailed):
        lost.result(HANG)
    assert not generator.alive
    assert generator.generate([GenerationJob(ids("H"), 10)])[0].text == "0123456789"
    assert generator.alive
    assert dying.shut
    generator.close()


def test_sampling_keywords() -> None:
    keywords = sampling_keywords(GenerationJob(ids("H"), 5, temperature=0.7, top_p=0.9, seed=-3, logprobs=0), frozenset({2, 0}))
    assert keywords["top_k"] == -1
    assert keywords["seed"] >= 0
    assert (keywords["stop_token_ids"], keywords["logprobs"], keywords["prompt_logprobs"]) == ([0, 2], 1, None)


def test_without_vllm_it_says_what_to_do(tmp_path: Path) -> None:
    try:
        import vllm  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match="vLLM is not installed") as refused:
            load_source(tiny_llama(tmp_path / "tiny"), backend="vllm")
        assert "--backend transformers" in (refused.value.fix or "")


def test_a_real_vllm_says_what_transformers_says_of_an_exported_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WINDTUNNEL_VLLM_PYTHON may name the interpreter of another environment, with vLLM for a GPU or for CPUs."""
    python = os.environ.get("WINDTUNNEL_VLLM_PYTHON") or (sys.executable if importlib.util.find_spec("vllm") else None)
    if python is None:
        pytest.skip("vLLM is not here; WINDTUNNEL_VLLM_PYTHON can name an interpreter that has it")
    from hf_runs import base_of, trained

    monkeypatch.setenv("WINDTUNNEL_CACHE", str(tmp_path / "cache"))
    run = trained(tmp_path, base_of(tmp_path / "base", "llama", hidden_size=256), "model.adapter={rank: 4}")
    folder = export_model(run, tmp_path / "export", dtype="fp32").folder
    script = Path(__file__).parents[2] / "benchmarks" / "vllm_export.py"
    command = [python, str(script), str(folder), "--dtype=float32", "--tokens=12", "--context=64", f"--out={tmp_path / 'found'}"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (tmp_path / "found").exists(), ended.stderr[-3000:]
    found = json.loads((tmp_path / "found").read_text())
    assert found["agrees"], found
    assert found["answers_alike"] == found["prompts"]
    assert found["largest_difference_of_log_probabilities"] < 1e-3
