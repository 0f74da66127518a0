"""Recorded steps of a Hugging Face model give what launched ones do, whoever joins and leaves."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recordings import Again

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "model"))
from interpreter import passes_interpreted
from tiny_hf import tiny_llama

from windtunnel.generate import BatchedGenerator, GenerationJob, HFDecoder, NoText, RecordedDecoder, hf_decoder, load_hf
from windtunnel.model import Recording

CPU = torch.device("cpu")


class Recorder:
    """Makes stand-ins, and counts them."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> Callable[[Callable[[], None]], Recording]:
        def record(work: Callable[[], None]) -> Again:
            self.made += 1
            return Again(work)

        return record


def decoders(folder: Path, recorder: Recorder) -> tuple[HFDecoder, RecordedDecoder]:
    return HFDecoder(load_hf(folder, CPU, torch.float32)), RecordedDecoder(load_hf(folder, CPU, torch.float32), None, recorder)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@torch.inference_mode()
def test_logits_are_those_of_launched_steps_whoever_joins_and_leaves(tmp_path: Path, kind: str) -> None:
    recorder = Recorder()
    changes = {"head_dim": 16} if kind == "qwen3" else {}
    plain, recorded = decoders(tiny_llama(tmp_path / "tiny", kind=kind, max_position_embeddings=600, **changes), recorder)
    draw, running = random.Random(3), dict[int, int]()
    for _ in range(280):
        for slot in list(running):
            if draw.random() < 0.02:
                for decoder in (plain, recorded):
                    decoder.free(slot)
                del running[slot]
        if len(running) < 6 and (draw.random() < 0.1 or not running):
            slot = next(n for n in range(8) if n not in running)
            prompt = [draw.randrange(3, 290) for _ in range(draw.choice((1, 5, 40)))]
            cut = draw.randrange(len(prompt) + 1)
            for part in filter(None, (prompt[:cut], prompt[cut:])):
                one, other = (decoder.feed([slot], [part]) for decoder in (plain, recorded))
                torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
            running[slot] = draw.randrange(3, 290)
        # Some wait while others go on.
        some = sorted(draw.sample(sorted(running), max(1, len(running) - 1))) if draw.random() < 0.05 else sorted(running)
        one, other = (decoder.step(some, [running[slot] for slot in some]) for decoder in (plain, recorded))
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
        running |= {slot: draw.randrange(3, 290) for slot in some}
    assert recorder.made > 1


def test_a_crowd_is_answered_as_each_alone_and_few_recordings_are_made(tmp_path: Path) -> None:
    recorder = Recorder()
    plain, recorded = decoders(tiny_llama(tmp_path / "tiny"), recorder)
    draw = random.Random(5)
    jobs = [
        GenerationJob(tuple(draw.randrange(3, 290) for _ in range(9)), draw.choice((8, 20, 60)), temperature=0) for _ in range(12)
    ]
    found = []
    for decoder in (plain, recorded):
        engine = BatchedGenerator(decoder, NoText(300, ()), slots=12)
        try:
            found.append([done.tokens for done in engine.generate(jobs)])
        finally:
            engine.close()
    assert found[0] == found[1]
    # Of 12 rows that are 16, and of the 4 and fewer that are left in the end: not one for everybody who leaves.
    assert 1 <= recorder.made <= 3


def test_after_a_failure_it_begins_anew(tmp_path: Path) -> None:
    _, recorded = decoders(tiny_llama(tmp_path / "tiny"), Recorder())
    with torch.inference_mode():
        first = recorded.feed([0], [[5, 6, 7]])
        one = [recorded.step([0], [9]) for _ in range(5)]
        recorded.reset()
        assert torch.equal(recorded.feed([0], [[5, 6, 7]]), first)
        assert all(torch.equal(a, b) for a, b in zip(one, [recorded.step([0], [9]) for _ in range(5)], strict=True))


def test_on_a_cpu_and_for_models_whose_steps_differ_nothing_is_recorded(tmp_path: Path) -> None:
    assert type(hf_decoder(load_hf(tiny_llama(tmp_path / "tiny"), CPU, torch.float32))) is HFDecoder


SPANS = """
import sys
import torch
sys.path[:0] = {paths!r}
from pathlib import Path
from recordings import Again
from tiny_hf import tiny_llama
from windtunnel.generate import HFDecoder, RecordedDecoder, load_hf

with torch.inference_mode():
    for kind, changes in {kinds!r}.items():
        folder = tiny_llama(Path({folder!r}) / kind, kind=kind, **changes)
        models = [load_hf(folder, torch.device("cpu"), torch.float32) for _ in range(2)]
        plain, recorded = HFDecoder(models[0]), RecordedDecoder(models[1], None, lambda: Again, kernel=True)
        for slot, length in enumerate((3, 30, 7)):
            for decoder in (plain, recorded):
                decoder.feed([slot], [list(range(5, 5 + length))])
        for number in range(6):
            slots = [0, 1, 2] if number < 3 else [0, 2]
            tokens = [3 + 7 * number + slot for slot in slots]
            one, other = (decoder.step(slots, tokens) for decoder in (plain, recorded))
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
        assert models[1].config._attn_implementation == "sdpa"
print("all equal")
"""


def test_the_kernel_that_attends_gives_the_same_in_every_kind_of_model(tmp_path: Path) -> None:
    here = Path(__file__).parent
    kinds = {"llama": {}, "qwen2": {}, "qwen3": {"head_dim": 16}, "mistral": {}, "olmo2": {}, "granite": {}, "phi3": {}}
    passes_interpreted(SPANS.format(paths=[str(here), str(here.parent)], kinds=kinds, folder=str(tmp_path)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.inference_mode()
def test_on_a_gpu_recorded_steps_are_launched_ones(tmp_path: Path) -> None:
    folder, cuda = tiny_llama(tmp_path / "tiny"), torch.device("cuda", 0)
    plain, recorded = HFDecoder(load_hf(folder, cuda, torch.float32)), hf_decoder(load_hf(folder, cuda, torch.float32))
    assert isinstance(recorded, RecordedDecoder)
    for slot, length in enumerate((3, 30, 7)):
        for decoder in (plain, recorded):
            decoder.feed([slot], [list(range(5, 5 + length))])
    slots = [0, 1, 2]
    for number in range(60):
        if number == 40:
            slots = [0, 2]
            for decoder in (plain, recorded):
                decoder.free(1)
        tokens = [3 + (7 * number + slot) % 280 for slot in slots]
        one, other = (decoder.step(slots, tokens) for decoder in (plain, recorded))
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
