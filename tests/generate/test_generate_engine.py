"""The engine: sequences beside each other do not disturb each other, limits hold, failures are told."""

import sys
import threading
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from tiny import TOKENIZER, tiny_engine, tiny_model
from waiting import HANG

from windtunnel.data.bpe import train_bpe
from windtunnel.generate import BatchedGenerator, GenerationFailed, GenerationJob, OwnText, QueueFull, TextStream, gpt_generator
from windtunnel.model import build_model

TEXT = OwnText(TOKENIZER)


def ids(text: str) -> tuple[int, ...]:
    return tuple(TEXT.encode(text))


def run(engine: BatchedGenerator, job: GenerationJob) -> tuple[str, str]:
    (done,) = engine.generate([job])
    return done.text, done.finish


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
            assert run(engine, GenerationJob(ids(prompt), 30, temperature=0)) == (naive(prompt, 30), "length")


def test_long_prompts_are_fed_in_chunks() -> None:
    prompt = "H12+34B46L\n" * 60
    with tiny_engine(sequence=1024) as engine:
        assert run(engine, GenerationJob(ids(prompt), 10, temperature=0))[0] == naive(prompt, 10, 1024)


def test_text_does_not_depend_on_what_runs_beside() -> None:
    jobs = [
        GenerationJob(ids(f"H{i}+{i * 7}B"), 20 + i, temperature=t, top_p=p, top_k=k, seed=i)
        for i, (t, p, k) in enumerate(
            [(0, 1, 0), (1, 1, 0), (0.7, 0.9, 0), (1.5, 1, 5), (1, 0.5, 3), (0, 1, 0), (2, 1, 0), (1, 1, 1)]
        )
    ]
    with tiny_engine() as engine:
        alone = [run(engine, job) for job in jobs]
        for order in (jobs, jobs[::-1]):
            clients = []
            for job in order:
                clients.append((job, *engine.submit([job])))
                time.sleep(0.003)  # they join while others run
            for job, ticket in clients:
                done = ticket.result(HANG)
                assert (done.text, done.finish) == alone[jobs.index(job)]
        assert [(done.text, done.finish) for done in engine.generate(jobs)] == alone  # all at once
    assert len({text for text, _ in alone}) > 5


def test_seeds_and_temperature() -> None:
    with tiny_engine() as engine:
        job = {"prompt": ids("H1"), "max_tokens": 40}
        a, b, c = (run(engine, GenerationJob(**job, seed=s)) for s in (1, 1, 2))
        assert a == b != c
        greedy = run(engine, GenerationJob(**job, temperature=0))
        assert run(engine, GenerationJob(**job, temperature=0, seed=9)) == greedy
        assert run(engine, GenerationJob(**job, top_k=1)) == greedy
        assert run(engine, GenerationJob(**job, top_p=1e-9)) == greedy


def test_stop_strings_end_the_text_before_them() -> None:
    with tiny_engine() as engine:
        whole, _ = run(engine, GenerationJob(ids("H5+"), 40, temperature=0))
        stop = whole[11:14]
        (done,) = engine.generate([GenerationJob(ids("H5+"), 40, temperature=0, stop=("never", stop), logprobs=0)])
        assert (done.text, done.finish) == (whole[: whole.index(stop)], "stop")
        assert "".join(TEXT.name(i.token) for i in done.infos) == done.text
        (done,) = engine.generate([GenerationJob(ids("H5+"), 40, temperature=0, stop=(stop,), include_stop=True)])
        assert (done.text, done.finish) == (whole[: whole.index(stop)] + stop, "stop")


def test_held_back_text_comes_out_when_it_is_no_stop() -> None:
    stream = TextStream(TEXT, ("12L",))
    pieces = [stream.push(int(t))[0].text for t in TOKENIZER.encode("H1212+12")]
    assert pieces == ["H", "", "", "12", "", "12+", "", ""]
    assert stream.finish("length").text == "12"


@pytest.mark.parametrize("at", range(9))
def test_tokens_taken_together_are_the_same_text(at: int) -> None:
    tokenizer = train_bpe(["plain"], 260)
    ids = [int(i) for i in tokenizer.encode("a\u00fc\u20ac\U0001f600")]
    stream, one_by_one = (TextStream(OwnText(tokenizer)) for _ in range(2))
    text = [stream.push_all(ids[:at]), stream.push_all(ids[at:-1]), stream.finish("length").text]
    assert "".join(text) == "".join(one_by_one.push(i)[0].text for i in ids[:-1]) + one_by_one.finish("length").text
    assert text[-1] == "\ufffd"  # three bytes of four


def test_bos_ends_the_text() -> None:
    with tiny_engine() as engine:
        with torch.no_grad():
            engine._decoder._model.head.weight.zero_()
        # All logits are equal: greedy takes the first token, which is BOS.
        assert run(engine, GenerationJob(ids("H5+"), 40, temperature=0)) == ("", "stop")
        (on,) = engine.generate([GenerationJob(ids("H5+"), 12, temperature=0, ignore_ends=True)])
        assert (on.text, on.finish, on.tokens) == ("", "length", (0,) * 12)


def test_the_context_is_a_limit() -> None:
    with tiny_engine(sequence=32) as engine:
        prompt = ids("H12+34B46L\nH12+34B46L\n")
        text, finish = run(engine, GenerationJob(prompt, 200, temperature=0))
        assert finish == "length"
        assert len(text) == 32 - len(prompt) + 1


def test_log_probabilities_of_prompt_and_completion() -> None:
    model = tiny_model()
    with tiny_engine() as engine:
        (done,) = engine.generate([GenerationJob(ids("H1+2"), 5, temperature=0, logprobs=3, score_prompt=True)])
        infos = done.prompt_infos + done.infos
        text, _ = run(engine, GenerationJob(ids("H1+2"), 5, temperature=0))
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
        tickets = [engine.submit([GenerationJob(ids("H"), 120)])[0] for _ in range(4)]
        with pytest.raises(QueueFull) as full:
            engine.submit([GenerationJob(ids("H"), 5)] * 2)
        assert 1 <= full.value.retry_after <= 60
        tickets += engine.submit([GenerationJob(ids("H"), 5)])
        tickets += engine.submit([GenerationJob(ids("H"), 5)] * 20, bounded=False)
        for ticket in tickets:
            ticket.result(HANG)
        assert engine.running == engine.waiting == 0


def test_cancelled_sequences_free_their_places() -> None:
    with tiny_engine(slots=2, queue=2, sequence=4096) as engine:
        begun = threading.Event()
        tickets = [engine.submit([GenerationJob(ids("H"), 4000)], lambda _: begun.set())[0] for _ in range(4)]
        assert begun.wait(HANG)
        for ticket in tickets:
            ticket.cancel()
        assert run(engine, GenerationJob(ids("H5+"), 5, temperature=0))[1] == "length"
        deadline = time.monotonic() + HANG
        while engine.stats.cancelled < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.stats.cancelled == 4
        assert engine.running == engine.waiting == 0


@pytest.mark.parametrize("exact", [True, False])
def test_a_sequence_that_fills_its_context_leaves_the_others_alone(exact: bool) -> None:
    """An idle slot that is full must not take part in the others' steps: there is no place for its next token."""
    engine = gpt_generator(tiny_model(sequence=32), TOKENIZER, slots=2, queue=8, exact=exact)
    try:
        short = GenerationJob(ids("H5+"), 25, temperature=0)
        alone = run(engine, short)
        for prompt in ("H12+34B46L\nH12+34B46L\n", "1" * 31):  # it fills up on the way, or with its first token
            full, beside = engine.submit([GenerationJob(ids(prompt), 200, temperature=0), short])
            assert full.result(HANG).finish == "length"
            done = beside.result(HANG)
            assert (done.text, done.finish) == alone
        assert engine.stats.failed == 0
    finally:
        engine.close()


def test_a_step_that_fails_costs_only_the_sequence_whose_fault_it_is() -> None:
    with tiny_engine(slots=4) as engine:
        good = [GenerationJob(ids(f"H{i}+"), 40, temperature=0) for i in range(3)]
        alone = [run(engine, job) for job in good]
        step = engine._decoder.step

        def faulty(slots: list[int], tokens: list[int]) -> torch.Tensor:
            if len(bad.tokens) > 4 and any(s.ticket is bad and s.slot in slots for s in engine._running.values()):
                raise RuntimeError("broken")
            return step(slots, tokens)

        engine._decoder.step = faulty  # type: ignore[method-assign]
        with engine._wake:  # it does not begin before `bad` is known
            tickets = engine.submit([*good[:2], GenerationJob(ids("H7"), 40), good[2]])
            bad = tickets.pop(2)
        assert [(done.text, done.finish) for done in (ticket.result(HANG) for ticket in tickets)] == alone
        with pytest.raises(GenerationFailed):
            bad.result(HANG)
        assert engine.alive
        assert engine.stats.failed == 1
        assert [run(engine, job) for job in good] == alone


def test_an_engine_that_dies_starts_again() -> None:
    with tiny_engine(slots=1, queue=4) as engine:
        expected = run(engine, GenerationJob(ids("H5+"), 10, temperature=0))
        broken = engine._decoder._model.blocks[0].mlp
        engine._decoder._model.blocks[0].mlp = None  # breaks every step
        for ticket in engine.submit([GenerationJob(ids("H"), 100)] * 4):
            with pytest.raises(GenerationFailed):
                ticket.result(HANG)
        assert not engine.alive  # nothing has worked lately
        engine._decoder._model.blocks[0].mlp = broken
        assert run(engine, GenerationJob(ids("H5+"), 10, temperature=0)) == expected
        assert engine.alive
        prefill = engine._prefill

        def once() -> None:
            engine._prefill = prefill  # type: ignore[method-assign]
            raise SystemError("not in a step at all")

        engine._prefill = once  # type: ignore[method-assign]
        (lost,) = engine.submit([GenerationJob(ids("H5+"), 10, temperature=0)])
        with pytest.raises(GenerationFailed):
            lost.result(HANG)
        assert run(engine, GenerationJob(ids("H5+"), 10, temperature=0)) == expected
    with pytest.raises(GenerationFailed):
        engine.submit([GenerationJob(ids("H"), 1)])


def test_many_threads_submit_at_once() -> None:
    with tiny_engine(slots=4, queue=100) as engine:
        expected = run(engine, GenerationJob(ids("H5+"), 10, temperature=0))
        results: list[object] = []
        threads = [
            threading.Thread(target=lambda: results.append(run(engine, GenerationJob(ids("H5+"), 10, temperature=0))))
            for _ in range(40)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG)
        assert results == [expected] * 40


@pytest.mark.gpu
def test_text_does_not_depend_on_what_runs_beside_on_a_gpu() -> None:
    shape = tiny_model(sequence=256).shape
    model = build_model(shape, device="cuda", compute=torch.bfloat16)
    model.load_state_dict(tiny_model(sequence=256).state_dict())
    engine = gpt_generator(model, TOKENIZER, slots=8, queue=32)
    try:
        jobs = [GenerationJob(ids(f"H{i}+{i * 7}B" * (1 + i % 3)), 60 + i, temperature=float(i % 2), seed=i) for i in range(24)]
        alone = [run(engine, job) for job in jobs]
        assert [(done.text, done.finish) for done in engine.generate(jobs)] == alone
    finally:
        engine.close()
