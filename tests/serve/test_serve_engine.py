"""The engine: sequences beside each other do not disturb each other, limits hold, failures are told."""

import queue
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from tiny import TOKENIZER, tiny_engine, tiny_model
from waiting import HANG

from windtunnel.model import build_gpt
from windtunnel.serve import Engine, EngineDown, Job, QueueFull
from windtunnel.serve.text import Piece, TextStream


def ids(text: str) -> tuple[int, ...]:
    return tuple(int(i) for i in TOKENIZER.encode(text, bos=True))


class Client:
    """Collects one job's pieces."""

    def __init__(self, engine: Engine, job: Job) -> None:
        self.pieces: queue.Queue[Piece | EngineDown] = queue.Queue()
        (self.generation,) = engine.submit([job], [self.pieces.put])

    def result(self) -> tuple[str, str, list]:
        text, infos = "", []
        while True:
            piece = self.pieces.get(timeout=HANG)
            if isinstance(piece, EngineDown):
                raise piece
            text, infos = text + piece.text, infos + list(piece.tokens)
            if piece.finish:
                return text, piece.finish, infos


def run(engine: Engine, job: Job) -> tuple[str, str]:
    text, finish, _ = Client(engine, job).result()
    return text, finish


def naive(prompt: str, count: int, sequence: int = 128) -> str:
    """Greedy decoding by whole forward passes, without a cache."""
    model, tokens = tiny_model(sequence), list(ids(prompt))
    for _ in range(count):
        with torch.inference_mode():
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return TOKENIZER.decode(tokens[len(ids(prompt)) :])


def test_greedy_equals_decoding_without_a_cache() -> None:
    with tiny_engine() as engine:
        for prompt in ("", "H12+34B", "H1-2B-1L\nH7+"):
            assert run(engine, Job(ids(prompt), 30, temperature=0)) == (naive(prompt, 30), "length")


def test_long_prompts_are_fed_in_chunks() -> None:
    prompt = "H12+34B46L\n" * 60
    with tiny_engine(sequence=1024) as engine:
        assert run(engine, Job(ids(prompt), 10, temperature=0))[0] == naive(prompt, 10, 1024)


def test_text_does_not_depend_on_what_runs_beside() -> None:
    jobs = [
        Job(ids(f"H{i}+{i * 7}B"), 20 + i, temperature=t, top_p=p, top_k=k, seed=i)
        for i, (t, p, k) in enumerate(
            [(0, 1, 0), (1, 1, 0), (0.7, 0.9, 0), (1.5, 1, 5), (1, 0.5, 3), (0, 1, 0), (2, 1, 0), (1, 1, 1)]
        )
    ]
    with tiny_engine() as engine:
        alone = [run(engine, job) for job in jobs]
        for order in (jobs, jobs[::-1]):
            clients = []
            for job in order:
                clients.append((job, Client(engine, job)))
                time.sleep(0.003)  # they join while others run
            for job, client in clients:
                text, finish, _ = client.result()
                assert (text, finish) == alone[jobs.index(job)]
    assert len({text for text, _ in alone}) > 5


def test_seeds_and_temperature() -> None:
    with tiny_engine() as engine:
        job = {"prompt": ids("H1"), "max_tokens": 40}
        a, b, c = (run(engine, Job(**job, seed=s)) for s in (1, 1, 2))
        assert a == b != c
        greedy = run(engine, Job(**job, temperature=0))
        assert run(engine, Job(**job, temperature=0, seed=9)) == greedy
        assert run(engine, Job(**job, top_k=1)) == greedy
        assert run(engine, Job(**job, top_p=1e-9)) == greedy


def test_stop_strings_end_the_text_before_them() -> None:
    with tiny_engine() as engine:
        whole, _ = run(engine, Job(ids("H5+"), 40, temperature=0))
        stop = whole[11:14]
        text, finish, infos = Client(engine, Job(ids("H5+"), 40, temperature=0, stop=("never", stop), logprobs=0)).result()
        assert (text, finish) == (whole[: whole.index(stop)], "stop")
        assert "".join(i.text for i in infos) == text


def test_held_back_text_comes_out_when_it_is_no_stop() -> None:
    stream = TextStream(TOKENIZER, ("12L",))
    pieces = [stream.push(int(t))[0].text for t in TOKENIZER.encode("H1212+12")]
    assert pieces == ["H", "", "", "12", "", "12+", "", ""]
    assert stream.finish("length").text == "12"


def test_bos_ends_the_text() -> None:
    with tiny_engine() as engine:
        with torch.no_grad():
            engine._model.head.weight.zero_()
        # All logits are equal: greedy takes the first token, which is BOS.
        assert run(engine, Job(ids("H5+"), 40, temperature=0)) == ("", "stop")


def test_the_context_is_a_limit() -> None:
    with tiny_engine(sequence=32) as engine:
        prompt = ids("H12+34B46L\nH12+34B46L\n")
        text, finish = run(engine, Job(prompt, 200, temperature=0))
        assert finish == "length"
        assert len(text) == 32 - len(prompt) + 1


def test_log_probabilities_of_prompt_and_completion() -> None:
    model = tiny_model()
    with tiny_engine() as engine:
        _, _, infos = Client(engine, Job(ids("H1+2"), 5, temperature=0, logprobs=3, score_prompt=True)).result()
        text, _ = run(engine, Job(ids("H1+2"), 5, temperature=0))
    tokens = torch.tensor([list(ids("H1+2" + text))])
    with torch.inference_mode():
        expected = torch.log_softmax(model(tokens)[0], -1)
    assert len(infos) == 5 + 5
    for t in range(1, 10):
        assert infos[t].log_probability == pytest.approx(float(expected[t - 1, tokens[0, t]]), abs=1e-4)
        assert len(infos[t].top) == 3
    assert max(infos[7].top.values()) == pytest.approx(infos[7].log_probability)


def test_the_queue_is_bounded_and_all_or_nothing() -> None:
    with tiny_engine(slots=2, queue=3) as engine:
        clients = [Client(engine, Job(ids("H"), 120)) for _ in range(4)]
        with pytest.raises(QueueFull) as full:
            engine.submit([Job(ids("H"), 5)] * 2, [lambda _: None] * 2)
        assert 1 <= full.value.retry_after <= 60
        clients.append(Client(engine, Job(ids("H"), 5)))
        for client in clients:
            client.result()
        assert engine.running == engine.waiting == 0


def test_cancelled_sequences_free_their_places() -> None:
    with tiny_engine(slots=2, queue=2, sequence=4096) as engine:
        clients = [Client(engine, Job(ids("H"), 4000)) for _ in range(4)]
        clients[0].pieces.get(timeout=HANG)
        for client in clients:
            client.generation.cancel()
        assert run(engine, Job(ids("H5+"), 5, temperature=0))[1] == "length"
        deadline = time.monotonic() + HANG
        while engine.stats.cancelled < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.stats.cancelled == 4
        assert engine.running == engine.waiting == 0


def test_a_dead_worker_is_told_to_everybody() -> None:
    with tiny_engine(slots=1, queue=4, sequence=4096) as engine:
        clients = [Client(engine, Job(ids("H"), 4000)) for _ in range(3)]
        clients[0].pieces.get(timeout=HANG)
        engine._model.blocks[0].mlp = None  # breaks the next step
        for client in clients:
            with pytest.raises(EngineDown):
                client.result()
        assert not engine.alive
        with pytest.raises(EngineDown):
            engine.submit([Job(ids("H"), 1)], [lambda _: None])


def test_many_threads_submit_at_once() -> None:
    with tiny_engine(slots=4, queue=100) as engine:
        expected = run(engine, Job(ids("H5+"), 10, temperature=0))
        results: list[object] = []
        threads = [
            threading.Thread(target=lambda: results.append(run(engine, Job(ids("H5+"), 10, temperature=0)))) for _ in range(40)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG)
        assert results == [expected] * 40


@pytest.mark.gpu
def test_text_does_not_depend_on_what_runs_beside_on_a_gpu() -> None:
    shape = tiny_model(sequence=256).shape
    model = build_gpt(shape, device="cuda", compute=torch.bfloat16)
    model.load_state_dict(tiny_model(sequence=256).state_dict())
    engine = Engine(model, TOKENIZER, slots=8, queue=32)
    try:
        jobs = [Job(ids(f"H{i}+{i * 7}B" * (1 + i % 3)), 60 + i, temperature=float(i % 2), seed=i) for i in range(24)]
        alone = [run(engine, job) for job in jobs]
        clients = [Client(engine, job) for job in jobs]
        assert [client.result()[:2] for client in clients] == alone
    finally:
        engine.close()
