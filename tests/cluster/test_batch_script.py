"""Batch scripts as sbatch reads them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.cluster import BatchScript, parse_time, read_batch_script
from windtunnel.recipe import UserError


def script(folder: Path, *lines: str, head: str = "#!/bin/bash") -> BatchScript:
    path = folder / "job.sh"
    path.write_text("\n".join([head, *lines, "srun windtunnel train charlm"]))
    return read_batch_script(path)


def test_long_short_and_joined_options(tmp_path: Path) -> None:
    made = script(
        tmp_path, "#SBATCH -N2 -t 1-00:00:00 --gpus-per-node h100:8  # a remark", "#SBATCH -p gpu --exclusive", '#SBATCH -J "a b"'
    )
    assert not made.problems
    assert made.options == {
        "nodes": "2", "time": "1-00:00:00", "gpus-per-node": "h100:8", "partition": "gpu", "exclusive": "", "job-name": "a b",
    }  # fmt: skip
    assert (made.nodes, made.gpus_per_node, made.gpu_kind, made.seconds) == (2, 8, "h100", 86400.0)
    assert made.lines["partition"] == 3


@pytest.mark.parametrize(
    ("line", "count", "kind"),
    [
        ("--gres=gpu:4", 4, None),
        ("--gres=shard:2,gpu:h100:4", 4, "h100"),
        ("--gres=gpu", 1, None),
        ("--gpus=16 --nodes=2", 8, None),
        ("--gpus-per-node=a100:2", 2, "a100"),
        ("--gpus-per-task=1 --ntasks-per-node=8", 8, None),
        ("--mem=0", None, None),
    ],
)
def test_gpus_of_a_node(line: str, count: int | None, kind: str | None, tmp_path: Path) -> None:
    made = script(tmp_path, f"#SBATCH {line}")
    assert not made.problems
    assert (made.gpus_per_node, made.gpu_kind) == (count, kind)


@pytest.mark.parametrize(
    ("line", "words", "fix"),
    [
        ("#SBATCH --gpu-per-node=8", "no option --gpu-per-node", "--gpus-per-node"),
        ("#SBATCH --nodes = 2", "'= 2' is not what --nodes takes", "--nodes=2"),
        ("#SBATCH --nodes=two", "'two' is not what --nodes takes", "--nodes=2"),
        ("#SBATCH --nodes", "--nodes needs a value", "--nodes=2"),
        ("#SBATCH --time=2 hours", "'hours' is no option", "blanks"),
        ("#SBATCH --time=2h", "'2h' is not what --time takes", "--time=02:00:00"),
        ("#SBATCH --mem=64 GB", "'GB' is no option", "blanks"),
        ("#SBATCH --output=$HOME/log", "not expanded", "%j"),
        ("#SBATCH", "names no option", "--nodes"),
        ('#SBATCH --job-name="x', "No closing quotation", "quotation"),
        ("# SBATCH --mem=3G", "is a comment for sbatch", "#SBATCH --mem=3G"),
        ("#SBTACH --mem=3G", "is a comment for sbatch", "#SBATCH --mem=3G"),
        ("export A=1\n#SBATCH --mem=3G", "after the first command", "top"),
    ],
)
def test_what_sbatch_refuses_or_ignores(line: str, words: str, fix: str, tmp_path: Path) -> None:
    problems = script(tmp_path, line).problems
    assert len(problems) == 1
    assert words in problems[0][0]
    assert f"{tmp_path}/job.sh:" in problems[0][0]
    assert fix in problems[0][1]


def test_ordinary_comments_are_comments(tmp_path: Path) -> None:
    assert not script(tmp_path, "# start the job - on gpus", "##SBATCH --off=1", "#  basic set-up").problems


def test_an_option_given_twice(tmp_path: Path) -> None:
    made = script(tmp_path, "#SBATCH --nodes=1", "#SBATCH --nodes=2")
    assert made.nodes == 2
    assert "replaces 1 of line 2" in made.warnings[0]


def test_heads_and_line_ends(tmp_path: Path) -> None:
    assert "#!/bin/bash" in script(tmp_path, head="echo").problems[0][1]
    (tmp_path / "dos.sh").write_bytes(b"#!/bin/bash\r\n#SBATCH --nodes=1\r\nsrun x\r\n")
    assert "carriage return" in read_batch_script(tmp_path / "dos.sh").problems[0][0]
    (tmp_path / "binary.sh").write_bytes(b"\x7fELF\xff\xfe")
    for name in ("binary.sh", "gone.sh"):
        with pytest.raises(UserError, match=name):
            read_batch_script(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800), ("30:15", 1815), ("2:00:00", 7200), ("1-12", 129600), ("1-12:30", 131400), ("1-0:0:1", 86401),
        ("UNLIMITED", None), ("2h", None), ("", None), ("-1", None), ("1-", None),
    ],
)  # fmt: skip
def test_times(text: str, seconds: float | None) -> None:
    assert parse_time(text) == seconds


@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.sh"
    path.write_bytes(("#!/bin/bash\n#SBATCH " + text).encode("utf-8", "replace"))
    made = read_batch_script(path)
    assert made.gpus_per_node is None or made.gpus_per_node >= 0
    assert made.seconds is None or made.seconds >= 0
