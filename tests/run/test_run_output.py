"""Logs and streams: rotated, moved, full, closed; a training that prints neither fails nor waits."""

import os
import resource
import subprocess
import threading
from pathlib import Path

import pytest

from windtunnel.run import BackgroundWriter, LineDecoder, RunLog, SafeStream, log_files


def test_a_log_is_rotated_and_read_in_order(tmp_path: Path) -> None:
    log = RunLog(tmp_path, most_bytes=400, kept=3)
    for number in range(60):
        log.write(f"line {number}\n")
    log.close()
    files = log_files(tmp_path)
    assert [path.name for path in files] == ["output.log.3", "output.log.2", "output.log.1", "output.log"]
    assert all(path.stat().st_size <= 400 for path in files)
    lines = [line.partition("  ")[2] for path in files for line in path.read_text().splitlines()]
    assert lines == [f"line {number}" for number in range(60 - len(lines), 60)]


def test_a_log_takes_no_more_than_a_few_percent_of_a_small_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        log = RunLog(disk)
        for number in range(5000):
            log.write(f"line {number}")
        log.close()
        assert sum(path.stat().st_size for path in log_files(disk)) <= 0.05 * (1 << 20)
        assert log_files(disk)[-1].read_text().endswith("line 4999\n")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_log_that_cannot_be_rotated_keeps_what_it_has_and_writes_nowhere_else(tmp_path: Path) -> None:
    log = RunLog(tmp_path, most_bytes=400, kept=2)
    for number in range(30):
        log.write(f"line {number}")
    before = [path.read_text() for path in log_files(tmp_path)]
    (tmp_path / ".output.log.next").mkdir()  # as on a disk that takes no other file
    for number in range(30, 50):
        log.write(f"line {number}")
    with open(tmp_path / "another", "w") as another:
        log.write("line 50")
        another.write("its own")
    assert (tmp_path / "another").read_text() == "its own"
    files = log_files(tmp_path)
    assert [path.read_text() for path in files[:-1]] == before[:-1]
    assert files[-1].read_text().startswith(before[-1])
    (tmp_path / ".output.log.next").rmdir()
    log.write("line 51")
    assert (tmp_path / "output.log").read_text().endswith("  line 51\n")
    log.close()


def test_a_line_after_one_that_was_cut_off_begins_anew(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = RunLog(tmp_path)
    log.write("first")
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
    try:
        log.write("second, cut off")
        log.write("third, lost")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.write("fourth")
    log.close()
    lines = (tmp_path / "output.log").read_text().splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("  first")
    assert lines[2].endswith("  fourth")


def test_a_log_follows_its_folder_and_keeps_the_last_state_of_a_progress_bar(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    log = RunLog(tmp_path / "run", most_bytes=100, kept=1)
    (tmp_path / "run").rename(tmp_path / "moved")
    for number in range(10):
        log.write(f"  1 %\r 50 %\r100 % of {number}")
    assert log.tail == [f"100 % of {number}" for number in range(10)]
    assert (tmp_path / "moved" / "output.log").read_text().endswith("100 % of 9\n")


def test_a_stream_that_takes_nothing_costs_output_only(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    broken = open(writer, "w")  # noqa: SIM115 - closed by what it is given to
    closed = open(tmp_path / "closed", "w")  # noqa: SIM115
    closed.close()
    latin = open(tmp_path / "latin", "w", encoding="latin-1")  # noqa: SIM115
    for stream in (SafeStream(broken), SafeStream(closed), SafeStream(None), SafeStream(latin)):
        for _ in range(3):
            print("loss \u2192 1.5", file=stream, flush=True)  # type: ignore[call-overload]
    assert (tmp_path / "latin").read_text() == "loss ? 1.5\n" * 3


def test_a_terminal_that_stands_still_holds_nobody_up() -> None:
    reader, writer = os.pipe()
    stream = BackgroundWriter(writer)
    text = "x" * 4096 + "\n"
    written = threading.Thread(target=lambda: [stream.write(text) for _ in range(10_000)])
    written.start()
    written.join(60)
    assert not written.is_alive()  # a pipe holds 64 kB; the rest was queued or left out
    assert os.read(reader, 4096) == b"x" * 4096
    os.close(reader)
    stream.close(5)
    assert stream.failed


def test_lines_come_whole_out_of_any_chunks() -> None:
    data = "eins \u2192\nzwei\r\ndrei".encode()
    for size in range(1, len(data)):
        decoder, lines, text = LineDecoder(), [], ""
        for start in range(0, len(data), size):
            more, whole = decoder.feed(data[start : start + size])
            lines += whole
            text += more
        lines += decoder.feed(b"", last=True)[1]
        assert lines == ["eins \u2192", "zwei\r", "drei"]
        assert text == data.decode()
