"""How often streams are told, what is sent together, and that the event loop's share of the time stays small."""

import asyncio
import json
from collections.abc import Callable, Coroutine

import pytest

from windtunnel.generate import GenerationFailed, GenerationJob, NoText, Piece, Ticket
from windtunnel.serve.answers import GAP_SECONDS, MOST_SECONDS, SHARE, Answer, ChatAnswer, Hub, Run
from windtunnel.serve.schema import ChatRequest, CompletionRequest, Prepared

JOB = GenerationJob((1, 2), 20)


class Generator:
    """Hands out tickets, to which the test adds."""

    text = NoText(4, ())

    def submit(
        self, jobs: list[GenerationJob], notify: Callable[[Ticket], None], *, stream: bool = True, bounded: bool = True
    ) -> list[Ticket]:
        self.tickets = [Ticket(job, notify, stream) for job in jobs]
        return self.tickets


class Clock:
    """An event loop's time, which goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def run(self, test: Coroutine[None, None, None]) -> None:
        loop = asyncio.new_event_loop()
        loop.time = lambda: self.now  # type: ignore[method-assign]
        try:
            loop.run_until_complete(test)
        finally:
            loop.close()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


def say(ticket: Ticket, text: str, finish: str | None = None) -> None:
    ticket.add(Piece(text, (), finish))
    ticket.tell()


def test_a_reader_is_told_once_until_it_has_taken_and_always_of_the_end() -> None:
    told: list[Ticket] = []
    ticket = Ticket(JOB, told.append)
    for letter in "abc":
        say(ticket, letter)
    assert len(told) == 1
    assert ticket.take().text == "abc"
    say(ticket, "d")
    say(ticket, "e")
    say(ticket, "", "stop")
    assert len(told) == 3
    assert ticket.take() == Piece("de", (), "stop")


def test_the_first_text_and_the_end_wait_for_nobody_and_rounds_of_text_have_their_share() -> None:
    clock = Clock()

    async def check() -> None:
        generator, sent = Generator(), list[str]()
        run = Run(generator, Hub(), [JOB], stream=True)  # type: ignore[arg-type]
        (ticket,) = generator.tickets

        async def read() -> None:
            async for found in run.events():
                sent.extend(piece.text for _, piece in found)
                clock.now += 0.004  # what sending to all streams takes

        reader = asyncio.create_task(read())
        say(ticket, "first")
        await clock.settle()
        assert sent == ["first"]
        clock.now += GAP_SECONDS
        say(ticket, "a")
        await clock.settle()
        assert sent == ["first", "a"]
        began = clock.now - 0.004
        say(ticket, "b")
        clock.now = began + 0.004 / SHARE - 0.001  # the round before took 4 ms: they are its twentyfold apart
        await clock.settle()
        assert sent == ["first", "a"]
        say(ticket, "c")
        clock.now = began + 0.004 / SHARE + 0.001
        await clock.settle()
        assert sent == ["first", "a", "bc"]
        say(ticket, "d", "stop")
        await clock.settle()
        assert sent == ["first", "a", "bc", "d"]
        await reader

    clock.run(check())


def test_however_long_a_round_takes_the_next_is_not_far() -> None:
    clock = Clock()

    async def check() -> None:
        hub, slow, late = Hub(), asyncio.Event(), asyncio.Event()

        async def send() -> None:
            await slow.wait()
            clock.now += 5

        sender = asyncio.create_task(send())
        await clock.settle()
        hub.notify(slow, soon=False)
        await clock.settle()
        clock.now += MOST_SECONDS
        hub.notify(late, soon=False)
        await clock.settle()
        assert late.is_set()
        await sender

    clock.run(check())


async def _stream(answer: Answer) -> list[str]:
    return [text async for text in answer.stream()]


def _events(text: str) -> list[dict]:
    assert text.endswith("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line and line != "data: [DONE]"]


@pytest.mark.parametrize("usage", [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}])
def test_what_has_come_for_all_choices_is_sent_together(usage: dict | None) -> None:
    async def check() -> None:
        generator = Generator()
        request = CompletionRequest.model_validate({"model": "é", "prompt": "x", "n": 3, "stream": True, "stream_options": usage})
        run = Run(generator, Hub(), [JOB] * 3, stream=True)  # type: ignore[arg-type]
        for ticket in generator.tickets:
            say(ticket, 'say "ü"\n')
            say(ticket, "\u2028", "stop")
        (text,) = await _stream(Answer(Prepared(request, [JOB] * 3, ["x"] * 3, 2), run, "é"))
        events = _events(text)
        own = events[:3]
        assert [e["choices"] for e in own] == [
            [{"text": 'say "ü"\n\u2028', "index": i, "logprobs": None, "finish_reason": "stop"}] for i in range(3)
        ]
        assert {(e["id"], e["object"], e["model"]) for e in events} == {(own[0]["id"], "text_completion", "é")}
        none = {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2}
        assert [e.get("usage") for e in own] == [none if usage and len(usage) == 2 else None] * 3
        assert [(e["choices"], e["usage"]) for e in events[3:]] == ([([], none)] if usage else [])
        assert text.endswith("data: [DONE]\n\n")

    asyncio.run(check())


def test_a_chat_of_one_piece_is_one_send_of_three_events() -> None:
    async def check() -> None:
        generator = Generator()
        request = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True})
        run = Run(generator, Hub(), [JOB], stream=True)  # type: ignore[arg-type]
        say(generator.tickets[0], "hello", "length")
        (text,) = await _stream(ChatAnswer(Prepared(request, [JOB], [""], 2), run, "m"))
        choices = [e["choices"][0] for e in _events(text)]
        assert [c["delta"] for c in choices] == [{"role": "assistant", "content": ""}, {"content": "hello"}, {}]
        assert [c["finish_reason"] for c in choices] == [None, None, "length"]

    asyncio.run(check())


def test_what_others_said_before_a_choice_failed_is_still_sent() -> None:
    async def check() -> None:
        generator, got = Generator(), list[tuple[int, Piece]]()
        run = Run(generator, Hub(), [JOB] * 2, stream=True)  # type: ignore[arg-type]
        say(generator.tickets[0], "one")
        generator.tickets[1].add(GenerationFailed("its step failed"))
        generator.tickets[1].tell()

        async def read() -> None:
            async for found in run.events():
                got.extend(found)

        with pytest.raises(GenerationFailed):
            await read()
        assert got == [(0, Piece("one"))]
        assert all(ticket.cancelled for ticket in generator.tickets)

    asyncio.run(check())
