"""A round answered by engines in other processes is the round that is answered in turn; what dies is asked again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from learners import learner, publish, train
from runs import new_run, require_same, series

from windtunnel.generate import Completion, GenerationJob, NoText, Ticket
from windtunnel.launch.ranks import run_ranks
from windtunnel.recipe import UserError
from windtunnel.rl import EngineProcess, Engines, Publisher, Serving, train_policy
from windtunnel.rl import sampler as sampler_module
from windtunnel.run import RunFolder

pytestmark = pytest.mark.end_to_end

BESIDE = "stages.rl.engine=transformers"
DIRECT = "stages.rl.sync=direct"
ADAPTER = (
    "model.adapter={rank: 4}",
    "stages.rl.updates=2",
    "stages.rl.reference=true",
    "stages.rl.kl=0.1",
    "stages.rl.temperature=0.7",
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("sets", "way"),
    [((), BESIDE), (ADAPTER, BESIDE), ((), DIRECT), (ADAPTER, DIRECT), (ADAPTER, "stages.rl.engine_adapter=apart")],
    ids=[
        "one update",
        "adapter, two updates, reference, temperature",
        "one update, directly",
        "adapter, two updates, reference, temperature, directly",
        "adapter, two updates, reference, temperature, apart",
    ],
)
def test_an_engine_beside_gives_the_run_that_is_sampled_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: tuple[str, ...], way: str
) -> None:
    """Although it is killed as it is given the second round's prompts; held-out ones are asked before the first."""
    in_turn, beside = new_run(tmp_path, *sets), new_run(tmp_path, *sets, BESIDE, way)
    assert train_policy(in_turn) == 0
    true, asked = EngineProcess.submit, []

    def submit(self: EngineProcess, jobs: Sequence[tuple[int, GenerationJob]]) -> None:
        asked.append(len(jobs))
        if len(asked) == 3:
            os.kill(self.pid, signal.SIGKILL)
        true(self, jobs)

    monkeypatch.setattr(EngineProcess, "submit", submit)
    assert train_policy(beside) == 0
    require_same(in_turn, beside)
    assert max(series(beside, "canary").values()) < 1e-5
    assert sum(series(beside, "engine_restarts").values()) == 1
    assert not (beside / "weights").exists()


@pytest.mark.parametrize(("way", "staleness"), [("stages.rl.overlap=1", {1: 0.0, 2: 1.0}), (DIRECT, {1: 0.0, 2: 0.0})])
def test_two_learners_have_an_engine_each(tmp_path: Path, way: str, staleness: dict[int, float]) -> None:
    """Each engine takes what both publish together, and answers a round ahead; or what both gather and its own learner sends."""
    folder = new_run(tmp_path, "budget.steps=2", BESIDE, "stages.rl.engines=2", way, "stages.rl.answers=null")
    with RunFolder.open(folder) as run:
        run.lock()
        plan = run.manifest["plan"]
        plan["layout"] |= {"ranks": 2}
        run.update(plan=plan)
    with (tmp_path / "output").open("w") as output:
        run_ranks(folder, 2, as_json=False, output=output)
    assert RunFolder.open(folder).manifest["exit_code"] == 0
    assert series(folder, "staleness") == staleness
    assert series(folder, "mismatch_largest")[1] < 1e-3
    assert set(series(folder, "learned").values()) == {16.0}
    assert max(series(folder, "canary").values()) < 1e-5


def test_weights_that_came_damaged_end_the_run_and_what_was_learned_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, true = new_run(tmp_path, BESIDE), sampler_module.publish_weights

    def publish_damaged(job: Any, publisher: Any, version: int, **more: Any) -> Path | None:
        path = true(job, publisher, version, **more)
        if version == 3:
            assert path is not None
            file = next(path.glob("*.safetensors"))
            content = bytearray(file.read_bytes())
            content[-2] ^= 0x40
            file.write_bytes(bytes(content))
        return path

    monkeypatch.setattr(sampler_module, "publish_weights", publish_damaged)
    with pytest.raises(UserError, match=r"engine 0 refuses version 3 .*its content is not what was published") as error:
        train_policy(run)
    assert any("the state after step 3 is saved" in note for note in error.value.__notes__)
    monkeypatch.undo()
    assert train_policy(run) == 0
    assert sorted(series(run, "loss")) == list(range(1, 7))


# Engines by themselves

LONG = GenerationJob((5, 6, 7), 1200, seed=3, draws=True)
SHORT = GenerationJob((8, 9), 2, seed=4, draws=True)


@contextmanager
def engines(
    count: int, limit: float = 300.0, stopped: bool = False, said: list[str] | None = None, in_flight: bool = False,
    dead: bool = False,
) -> Iterator[Engines]:  # fmt: skip
    """Engines for texts of up to 1,300 tokens, without weights; `stopped`: their processes do nothing; `dead`: they die."""

    def start(number: int, answered: Any, ended: Any) -> EngineProcess:
        serving = Serving(8, 1300, ())
        process = EngineProcess(torch.float32, limit=limit, threads=1, serving=serving, answered=answered, ended=ended)
        if stopped or dead:
            os.kill(process.pid, signal.SIGSTOP if stopped else signal.SIGKILL)
        return process

    told = said.append if said is not None else lambda text: None
    how: dict[str, Any] = {"tokens": 1300, "slots": 8, "exact": not in_flight, "in_flight": in_flight, "say": told}
    with closing(Engines(count, start, NoText(128, ()), **how)) as made:
        yield made


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 of a learner whose texts may be long."""
    with learner(max_position_embeddings=2048) as job:
        return publish(job, Publisher(tmp_path_factory.mktemp("published")), 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 2 of that learner."""
    with learner(max_position_embeddings=2048) as job:
        train(job, 4)
        return publish(job, Publisher(tmp_path_factory.mktemp("trained")), 2)


def answers(made: Engines, jobs: Sequence[GenerationJob], first: Any = None) -> list[Completion]:
    """Return the answers; `first` is called when one is there."""
    told: list[Ticket] = []

    def tell(ticket: Ticket) -> None:
        told.append(ticket)
        if first is not None and len(told) == 1:
            first()

    return [ticket.result(300) for ticket in made.submit(jobs, tell)]


def test_a_killed_engines_answers_are_asked_again_and_none_twice(published: Path) -> None:
    jobs, said = [SHORT, LONG, SHORT, LONG], list[str]()
    with engines(2, said=said) as made:
        assert [receipt.version for receipt in made.take(published, 1)] == [1, 1]
        whole = answers(made, jobs)
        again = answers(made, jobs, lambda: [os.kill(place.process.pid, signal.SIGKILL) for place in made._places])
        assert again == whole
        assert made.restarts == 2
        assert {text.partition(":")[0] for text in said} == {"engine 0", "engine 1"}
        assert all("exit code -9; it is started again" in text for text in said)
        for place in made._places:  # idle: the next who needs it starts another
            os.kill(place.process.pid, signal.SIGKILL)
        assert [receipt.version for receipt in made.take(published, 1)] == [1, 1]
        assert answers(made, [SHORT] * 4) == [whole[0]] * 4


def test_an_engine_that_hangs_is_ended_and_asked_again(published: Path) -> None:
    with engines(1) as made:
        made.take(published, 1)
        whole = answers(made, [SHORT, LONG])

        def hang() -> None:
            process = made._places[0].process
            process._limit = 0.5
            os.kill(process.pid, signal.SIGSTOP)

        assert answers(made, [SHORT, LONG], hang) == whole
        assert made.restarts == 1


def test_an_engine_that_never_starts_is_named_and_not_waited_for_again(published: Path) -> None:
    with engines(1, limit=0.3, stopped=True) as made:
        with pytest.raises(UserError, match=r"engine 0 never started: the engine did not answer 'load' within 0\.3 s"):
            made.take(published, 1)
        assert made.restarts == 0


def test_an_engine_that_dies_again_and_again_is_named(published: Path) -> None:
    with engines(1, dead=True) as made:
        with pytest.raises(UserError, match=r"engine 0 died 4 times in a row: .*exit code -9 when asked to load"):
            made.take(published, 1)


def test_weights_are_taken_in_the_middle_of_an_answer_and_each_token_says_by_which_it_is(published: Path, trained: Path) -> None:
    with engines(1) as other:
        other.take(trained, 2)
        by_trained = answers(other, [SHORT, LONG])
    with engines(1, in_flight=True) as made:
        made.take(published, 1)
        whole = answers(made, [LONG])[0]
        short, long = made.submit([SHORT, LONG])
        short.result(300)
        assert [receipt.version for receipt in made.take(trained, 2)] == [2]
        mixed = long.result(300)
        changed = long.versions.index(2)
        assert long.versions == [1] * changed + [2] * (len(mixed.drawn) - changed)
        assert 0 < changed < len(mixed.drawn) == 1200
        assert mixed.tokens[:changed] == whole.tokens[:changed]
        assert mixed.tokens[changed:] not in (whole.tokens[changed:], by_trained[1].tokens[changed:])
        again = answers(made, [SHORT, LONG])
        assert [one.tokens for one in again] == [one.tokens for one in by_trained], "the new weights are whole"


def test_an_engine_that_is_killed_in_flight_starts_again_with_the_newest_weights(published: Path, trained: Path) -> None:
    with engines(1, in_flight=True) as made:
        made.take(published, 1)
        short, long = made.submit([SHORT, LONG])
        short.result(300)
        made.take(trained, 2)
        os.kill(made._places[0].process.pid, signal.SIGKILL)
        assert len(long.result(300).drawn) == 1200
        assert set(long.versions) == {2}
        assert made.restarts == 1
