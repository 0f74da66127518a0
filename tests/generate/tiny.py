"""A tiny random model with its character tokenizer, and a real server around it, for tests of generating and serving."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import torch
from waiting import HANG

from windtunnel.data import Characters
from windtunnel.generate import BatchedGenerator, Generator, gpt_generator
from windtunnel.model import GPT, build_model, gpt_shape
from windtunnel.recipe import ARITHMETIC_ALPHABET, GPTModel, Serve
from windtunnel.serve import create_app

TOKENIZER = Characters(ARITHMETIC_ALPHABET)
LIMITS = Serve(slots=4, queue=8, max_tokens=200, max_prompt_bytes=50_000)
NAME = "tiny-run"


def tiny_model(sequence: int = 128, avoid_bos: bool = True) -> GPT:
    """Random weights everywhere: greedy text then depends on the prompt and does not loop at once."""
    shape = gpt_shape(GPTModel(depth=2, aspect=16, head_dim=16, sequence=sequence, kv_heads=1), TOKENIZER.vocab)
    model = build_model(shape, seed=1).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0, 1.2 * shape.dim**-0.5, generator=generator)
        model.embedding.weight.normal_(0, 1, generator=generator)
        model.head.weight.normal_(0, 0.4, generator=generator)
        if avoid_bos:
            # Its logit is always 0, hardly ever the largest: texts then run to their limits.
            model.head.weight[TOKENIZER.bos] = 0
    return model


@contextlib.contextmanager
def tiny_engine(slots: int = 4, queue: int = 8, **model: object) -> Iterator[BatchedGenerator]:
    engine = gpt_generator(tiny_model(**model), TOKENIZER, slots=slots, queue=queue)  # type: ignore[arg-type]
    try:
        yield engine
    finally:
        engine.close()


@contextlib.contextmanager
def running_server(
    token: str | None = None, local_only: bool = True, limits: Serve = LIMITS
) -> Iterator[tuple[str, BatchedGenerator]]:
    """A real uvicorn server of the tiny model in a thread: its URL and its engine."""
    with tiny_engine(limits.slots, limits.queue) as engine, serving(engine, NAME, limits, token, local_only) as url:
        yield url, engine


@contextlib.contextmanager
def serving(
    generator: Generator, name: str, limits: Serve = LIMITS, token: str | None = None, local_only: bool = True
) -> Iterator[str]:
    """A real uvicorn server of any generator in a thread: its URL."""
    from windtunnel.web import Access, Server, listening

    with contextlib.closing(listening("127.0.0.1", 0)) as listener:
        app = create_app(generator, model=name, limits=limits, access=Access(token, local_only))
        server = Server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + HANG
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(HANG)
