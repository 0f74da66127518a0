"""What is said while data is prepared: enough to see that it moves, on a pipe too."""

from windtunnel.launch.prepare import LINE_SECONDS, data_lines


def test_a_long_preparation_is_a_line_a_task_and_one_every_few_seconds() -> None:
    said: list[str] = []
    clock = [0.0]
    report = data_lines(said.append, clock=lambda: clock[0])
    for number in range(1000):
        clock[0] += 4.5 * LINE_SECONDS / 1000
        report(0.3 + 0.6 * number / 1000, f"tokenizing: {number} M tokens")
    report(1.0, "ready")
    assert said[0] == "data: tokenizing: 0 M tokens (30%)"
    assert len(said) == 1 + 4 + 1
    assert said[-1] == "data: ready"
