"""Recorded steps on a GPU say what transformers' own steps say, and a decoder that is kept says it again with new weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from windtunnel.generate import BatchedGenerator, GenerationJob, HFDecoder, NoText, RecordedDecoder, hf_decoder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

VOCAB = 2_000
CONFIG: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "vocab_size": VOCAB, "max_position_embeddings": 512, "tie_word_embeddings": True, "head_dim": 32,
    "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip


def model(kind: str, seed: int, dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = CONFIG | ({"sliding_window": None} if kind == "mistral" else {})
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config), dtype=dtype)
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return made.to("cuda").eval()


def said(decoder: HFDecoder, **more: Any) -> list[tuple[tuple[int, ...], list[float]]]:
    jobs = [
        GenerationJob(tuple(range(3 + i, 10 + 3 * i)), 30 + i, seed=i, draws=True, **({"temperature": 1.0} | more))
        for i in range(12)
    ]
    engine = BatchedGenerator(decoder, NoText(VOCAB, ()), slots=12)
    found = [(one.tokens, [log for _, log in one.drawn]) for one in engine.generate(jobs)]
    engine.close()
    return found


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "granite", "olmo2"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_recorded_is_as_launched(kind: str, temperature: float) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    recorded = hf_decoder(model(kind, 1))
    assert isinstance(recorded, RecordedDecoder)
    one, other = said(recorded, temperature=temperature), said(HFDecoder(model(kind, 1)), temperature=temperature)
    # Sums in another order decide one token in many otherwise; what follows it is another text.
    same = sum(a == b for (a, _), (b, _) in zip(one, other, strict=True))
    assert same >= len(one) - 1
    for (a, p), (b, q) in zip(one, other, strict=True):
        if a == b:
            assert p == pytest.approx(q, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_decoder_that_stays_speaks_by_the_weights_that_are_written_into_it(dtype: torch.dtype) -> None:
    kept = hf_decoder(model("qwen3", 1, dtype))
    first = said(kept)
    new = model("qwen3", 2, dtype)
    own = dict(kept.model.named_parameters())
    with torch.no_grad():
        for name, parameter in new.named_parameters():
            own[name].copy_(parameter)
    again, fresh = said(kept), said(hf_decoder(new))
    assert again == fresh
    assert again != first
