"""Expected time under interruptions, against a simulation that knows nothing of the formula."""

import json
from pathlib import Path

import numpy as np
import pytest

from windtunnel.cli import main
from windtunnel.plan import best_interval, under_interruptions


def simulate(
    hours: float, per_hour: float, interval: float, save: float, restart: float, jobs: int, late: float = 0.0
) -> tuple[float, float]:
    """The mean hours of jobs that are interrupted at random, and the standard error of it: one event after the other.

    late: hours of training after a checkpoint until another machine would find it.
    """
    random, took = np.random.default_rng(7), []
    for _ in range(jobs):
        clock = done = kept = at = 0.0  # kept: what the newest checkpoint that has arrived holds; at: when the next one does
        fails = random.exponential(1.0 / per_hour)
        while done < hours - 1e-12:
            stretch = min(interval, hours - done)
            needed = stretch + (save if stretch == interval else 0.0)
            if clock + needed <= fails:
                clock += needed
                kept, done, at = done if clock >= at else kept, done + stretch, clock + late
                continue
            done = done if fails >= at else kept
            kept, at = done, 0.0
            while True:  # taken away, perhaps also while it starts up
                clock = fails
                fails = clock + random.exponential(1.0 / per_hour)
                if clock + restart <= fails:
                    clock += restart
                    break
        took.append(clock)
    return float(np.mean(took)), float(np.std(took) / np.sqrt(jobs))


@pytest.mark.parametrize(
    ("hours", "per_hour", "interval", "save", "restart"),
    [(10.0, 0.2, 0.5, 0.02, 0.1), (24.0, 0.05, 1.0, 0.01, 0.2), (3.0, 1.0, 0.25, 0.01, 0.1), (8.3, 0.3, 2.0, 0.1, 0.3)],
)
def test_the_expected_time_is_that_of_simulated_jobs(
    hours: float, per_hour: float, interval: float, save: float, restart: float
) -> None:
    mean, error = simulate(hours, per_hour, interval, save, restart, jobs=4000)
    found = under_interruptions(hours, per_hour=per_hour, interval=interval, save=save, restart=restart)
    assert abs(found.hours - mean) < 4 * error, (found.hours, mean, error)


def test_a_checkpoint_that_arrives_late_costs_that_much_work_more() -> None:
    mean, error = simulate(20.0, 0.2, 0.5, 0.01, 0.1, jobs=4000, late=0.1)
    found = under_interruptions(20.0, per_hour=0.2, interval=0.5, save=0.01, restart=0.1, late=0.1)
    prompt = under_interruptions(20.0, per_hour=0.2, interval=0.5, save=0.01, restart=0.1)
    assert abs(found.hours - mean) < 4 * error + 0.005 * mean  # a longer restart is nearly the same
    assert found.hours > prompt.hours


@pytest.mark.parametrize(("per_hour", "save"), [(0.05, 0.01), (0.5, 0.02), (2.0, 0.05)])
def test_no_other_interval_takes_less_time(per_hour: float, save: float) -> None:
    def takes(interval: float) -> float:
        # Of very much work, so that it is no matter how the last stretch falls.
        return under_interruptions(10_000.0, per_hour=per_hour, interval=interval, save=save, restart=0.1).hours

    best = best_interval(per_hour, save)
    assert min(takes(best * factor) for factor in (0.5, 0.7, 1.5, 2.0)) > takes(best)
    assert takes(best) < 1.001 * min(takes(best * factor) for factor in np.linspace(0.5, 2.0, 200))


def test_a_machine_that_stays_takes_what_was_planned() -> None:
    found = under_interruptions(10.0, per_hour=0.0, interval=1.0, save=0.0, restart=1.0)
    assert (found.hours, found.interruptions) == (10.0, 0.0)


def test_the_verb_tells_hours_dollars_and_how_often_to_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "charlm", "--on", "8xH100@spot", "--root", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--interruptions", "0.5", "--json"])
    assert ended.value.code == 0
    planned = json.loads(capsys.readouterr().out)[-1]
    found = planned["interruptions"]
    assert found["hours"] > planned["hours"]
    assert found["dollars"] == pytest.approx(found["hours"] * planned["dollars_per_hour"])
    assert 0 < found["best_interval_hours"] < planned["hours"]
    with pytest.raises(SystemExit):
        main([*arguments, "--interruptions", "0.5"])
    assert "costs least (Young 1974, Daly 2006)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("on", "more", "told"),
    [
        (["8xH100@spot"], [], True),
        (["H100@spot", "8xH100"], [], True),
        (["8xH100"], [], False),
        (["8xH100@spot"], ["--interruptions", "0.1"], False),
    ],
)
def test_a_spot_price_of_which_no_rate_is_known_is_told(
    on: list[str],
    more: list[str],
    told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    rigs = [part for name in on for part in ("--on", name)]
    with pytest.raises(SystemExit) as ended:
        main(["plan", "charlm", *rigs, "--root", str(tmp_path), "--json", *more])
    assert ended.value.code == 0
    notes = json.loads(capsys.readouterr().out)[-1]["notes"]
    assert ("no interruption is counted: --interruptions 0.1 (an hour)" in notes) is told
