"""Task files: KernelBench's form, declared fields, sizes written into the source, and what is said about bad ones."""

from pathlib import Path

import pytest
from warm import kernel_box

from windtunnel.literals import numbers
from windtunnel.recipe import UserError
from windtunnel.verify.kernel.guess import guessed_sizes, related_sizes
from windtunnel.verify.kernel.prepared import settled
from windtunnel.verify.kernel.task import load_task, task_from_source, with_numbers
from windtunnel.verify.sandbox.types import Outcome, Runner, SandboxJob, Status

SOURCE = """\
import torch
import torch.nn as nn

batch_size = 128
dim = 1024 * 4
half = dim // 2
scale = 0.5


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()

    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(batch_size, dim)]


def get_init_inputs():
    return [dim]
"""


def test_numbers_follow_those_that_they_are_made_of() -> None:
    assert numbers(SOURCE) == {"batch_size": 128, "dim": 4096, "half": 2048, "scale": 0.5}
    assert numbers(with_numbers(SOURCE, {"dim": 12}))["half"] == 6


@pytest.mark.parametrize(
    "lines",
    [
        "height, width = 128, 128",
        "height = width = 128",
        "(height, width) = [128, 64 * 2]",
        "height: int = 128\nwidth: int = height",
        "heads = 8\nheight, width = heads * 16, int(256 / 2)",
    ],
)
def test_numbers_in_each_form_of_assignment_are_read_and_made_small(lines: str) -> None:
    source = SOURCE.replace("scale = 0.5", lines)
    found = numbers(source)
    assert (found["height"], found["width"]) == (128, 128)
    small = with_numbers(source, {"height": 17, "width": 16})
    space: dict[str, object] = {}
    exec(small.split("class Model")[0].replace("import torch", "").replace(".nn as nn", ""), space)
    assert (space["height"], space["width"], space["dim"]) == (17, 16, 4096)
    assert next(guessed_sizes(task_from_source(source, name="t"), "here"))[1][0]["tiny"]["width"] == 16


def test_entries_of_a_shape_are_numbers_too() -> None:
    source = SOURCE.replace("scale = 0.5", "shape = (dim, 256, 3)\nrows = shape[1] * 2\nitems = [dim]")
    assert numbers(source) | {"shape[0]": 4096, "shape[1]": 256, "shape[2]": 3, "rows": 512, "items[0]": 4096} == numbers(source)
    small = with_numbers(source, {"dim": 16, "shape[1]": 9})
    space: dict[str, object] = {}
    exec(small.split("class Model")[0].replace("import torch", "").replace(".nn as nn", ""), space)
    assert (space["shape"], space["rows"], space["items"]) == ((16, 9, 3), 18, [16])


def test_what_is_not_written_out_is_no_number() -> None:
    assert numbers("a, b = f()\n*c, d = 1, 2\ne = int('3')\ng = 5\ng = f()\nh = 7 % 4\nshape = (1, 2)\n") == {
        "h": 3,
        "shape[0]": 1,
        "shape[1]": 2,
    }


def test_a_kernelbench_file_gets_a_tiny_size_by_rule() -> None:
    task = task_from_source(SOURCE, name="relu")
    assert task.guessed
    _, (first, next_to, smaller) = next(guessed_sizes(task, "here"))
    assert first["tiny"]["dim"] == 16
    assert first["tiny"]["batch_size"] < 16
    assert next_to["tiny_ragged"]["dim"] == 17
    assert smaller["tiny_ragged"]["dim"] == 15
    assert "scale" not in first["tiny"]


@pytest.mark.parametrize(
    ("lines", "tiny", "ragged"),
    [
        # Long ones of different length stay apart where they are ragged, and equal ones equal.
        ("M = 1024\nK = 2048\nN = 4096\nO = 1024", (16, 16, 16, 16), (17, 19, 21, 17)),
        ("channels = 512\nnum_groups = 32", (16, 8), (24, 8)),
        ("channels = 64\ngroups = 8", (16, 8), (24, 8)),
        ("embed_dim = 768\nnum_heads = 12\nseq = 197", (16, 8, 16), (24, 8, 19)),
        ("batch_size = 128\ndim = 4096", (2, 16), (3, 19)),
        # A batch or a height that groups could divide neither makes them as many as channels nor is longer by a group.
        ("batch_size = 128\nchannels = 64\nheight = 128\nnum_groups = 16", (2, 16, 16, 8), (3, 24, 21, 8)),
        ("batch_size = 128\nchannels = 64\nD = 32\nH = 64\nW = 64\ngroups = 8", (2, 16, 16, 16, 16, 8), (3, 24, 17, 19, 19, 8)),
    ],
)
def test_sizes_that_differ_are_kept_apart(lines: str, tiny: tuple[int, ...], ragged: tuple[int, ...]) -> None:
    task = task_from_source(SOURCE.replace("batch_size = 128\ndim = 1024 * 4\nhalf = dim // 2\nscale = 0.5", lines), name="t")
    sizes = next(guessed_sizes(task, "here"))[1][0]
    names = [line.partition(" ")[0] for line in lines.splitlines()]
    full = numbers(task.source)
    assert tuple(sizes["tiny"].get(name, full[name]) for name in names) == tiny
    assert tuple(sizes["tiny_ragged"].get(name, full[name]) for name in names) == ragged


def test_where_no_cap_suits_numbers_keep_their_relations() -> None:
    lines = "batch_size = 4096\ndim = 4096\nwidth = 1024"
    task = task_from_source(SOURCE.replace("batch_size = 128\ndim = 1024 * 4\nhalf = dim // 2\nscale = 0.5", lines), name="t")
    (_, (equal, *_)), *_, (_, (factor, *_)) = related_sizes(task)
    assert equal["tiny"] == {"batch_size": 16, "dim": 16, "width": 16}
    assert factor["tiny"] == {"batch_size": 8, "dim": 8, "width": 2}


@pytest.mark.parametrize(
    ("inputs", "dtype"),
    [
        ("[torch.randn(batch_size, dim)]", "float32"),
        ("[torch.randn(batch_size, dim, dtype=torch.bfloat16)]", "bfloat16"),
        ("[torch.randn(batch_size, dim).half()]", "float16"),
        ("[torch.randn(batch_size, dim, dtype=KIND)]", "bfloat16"),
    ],
)
def test_a_kernelbench_file_is_judged_in_its_own_dtype_with_pytorch_beside(inputs: str, dtype: str) -> None:
    source = SOURCE.replace("scale = 0.5", "scale = 0.5\nKIND = torch.bfloat16")
    body = source[source.index("def get_inputs") :].split("\n\n")[0]
    task = task_from_source(source.replace(body, f"def get_inputs():\n    return {inputs}\n"), name="t")
    assert (task.dtypes, task.operations) == ((dtype,), "any")
    assert {"large", "shifted"} <= set(task.variations)


def test_declared_fields_are_read_without_running_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "raise SystemExit\n" + SOURCE + "\nTASK = {'level': 2, 'sizes': {'tiny': {'dim': 8}}, 'variations': ['plain']}\n"
    )
    task = load_task(file)
    assert (task.name, task.level, task.variations, task.guessed) == ("mine", 2, ("plain",), False)
    assert numbers(task.at("tiny"))["dim"] == 8


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = (", "not Python"),
        ("x = 1", "no Model, get_inputs, get_init_inputs"),
        (SOURCE + "TASK = {'levels': 2}", "'levels'"),
        (SOURCE + "TASK = {'sizes': {'tiny': {'dims': 8}}}", "'dims'"),
        (SOURCE + "TASK = {'sizes': {'small': {}}}", "'small'"),
        (SOURCE + "TASK = {'dtypes': ['float8']}", "'float8'"),
        (SOURCE + "TASK = {'variations': ['scaled']}", "'plain'"),
        (SOURCE + "TASK = {'level': dim}", "not a literal"),
        (SOURCE + "TASK = [1]", "not a dictionary"),
        (SOURCE + "TASK = {'sizes': 5}", "TASK['sizes'] is 5"),
        (SOURCE + "TASK = {'sizes': {'tiny': 5}}", "TASK['sizes'] is"),
        (SOURCE + "TASK = {'sizes': {'tiny': {'dim': 'x'}}}", "TASK['sizes'] is"),
        (SOURCE + "TASK = {'dtypes': 'float32'}", "TASK['dtypes'] is 'float32'"),
        (SOURCE + "TASK = {'variations': [[1]]}", "TASK['variations'] is"),
        (SOURCE + "TASK = {'tolerance': -1}", "TASK['tolerance'] is -1"),
        (SOURCE + "TASK = {'tolerance': {'float32': 1e999}}", "TASK['tolerance'] is"),
        (SOURCE + "TASK = {'fixed': 5}", "TASK['fixed'] is 5"),
        (SOURCE + "TASK = {'inplace': ['0']}", "TASK['inplace'] is"),
        (SOURCE + "TASK = {'mismatched': 2}", "TASK['mismatched'] is 2"),
        (SOURCE + "TASK = {'tf32': 'no'}", "TASK['tf32'] is 'no'"),
        (SOURCE + "TASK = {'level': 'x'}", "TASK['level'] is 'x'"),
        (SOURCE + "TASK = {'guessed': True}", "'guessed'"),
        (SOURCE + "TASK = {'tolerance': {'float23': 0.1}}", "'float23'"),
        (SOURCE + "x = " + "+".join(["1"] * 20_000), ""),
        (SOURCE + "TASK = " + "-" * 3000 + "1", ""),
    ],
)
def test_a_bad_task_file_is_named_with_its_fix(source: str, words: str) -> None:
    with pytest.raises(UserError) as raised:
        task_from_source(source, name="t", where="t.py")
    assert words in raised.value.message
    assert "t.py" in raised.value.message
    assert raised.value.fix


def test_a_missing_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        load_task(tmp_path / "none.py")


class Late:
    """Runs nothing: says how each job ended."""

    def __init__(self, status: Status, detail: str) -> None:
        self.outcome, self.runs = Outcome(status, detail), 0

    def run(self, job: SandboxJob) -> Outcome:
        self.runs += 1
        return self.outcome


def test_a_reference_that_does_not_end_is_said_so_after_one_trial() -> None:
    runner = Late("timeout", "used more than 30 s of CPU time")
    with pytest.raises(UserError) as raised:
        settled(task_from_source(SOURCE, name="gate"), runner)
    assert "does not end at tiny sizes (used more than 30 s of CPU time)" in raised.value.message
    assert raised.value.fix
    assert runner.runs == 1


@pytest.mark.parametrize(
    ("before", "after", "words", "runs"),
    [
        ("import torch\n", "import torch\nimport not_there\n", "cannot be imported: ModuleNotFoundError: No module named", 1),
        ("return torch.relu(x)", "import not_there", "cannot be imported: ModuleNotFoundError: No module named", 1),
        ("torch.relu(x)", "torch.relu(not_there)", "fails at size tiny in float32: NameError: name 'not_there'", None),
    ],
)
def test_what_no_size_helps_is_said_without_a_word_of_sizes(before: str, after: str, words: str, runs: int | None) -> None:
    with kernel_box() as box:
        runner = Counted(box)
        with pytest.raises(UserError) as raised:
            settled(task_from_source(SOURCE.replace(before, after, 1), name="gate"), runner)
    assert words in raised.value.message
    assert "size was found" not in raised.value.message
    assert "TASK" not in (raised.value.fix or "")
    assert runs in (None, runner.runs)


class Counted:
    """Counts what another runs."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.runs = runner, 0

    def run(self, job: SandboxJob) -> Outcome:
        self.runs += 1
        return self.runner.run(job)


def test_where_answers_are_too_large_only_smaller_sizes_are_tried() -> None:
    runner = Late("output", "the reply has 9 bytes, at most 8")
    with pytest.raises(UserError, match="no tiny size was found"):
        settled(task_from_source(SOURCE, name="large"), runner)
    assert runner.runs == 4  # 16, 8, 6 and 4, not 32 and 64


CONVOLUTION = """
import torch
import torch.nn as nn

batch_size = 64
channels = 32
size = 128


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, WIDTH)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(batch_size, channels, size, size)]


def get_init_inputs():
    return [channels]
"""


@pytest.mark.parametrize(("width", "tiny"), [(3, 8), (12, 16)])
def test_convolutions_are_guessed_smaller_where_they_run_so(width: int, tiny: int) -> None:
    """Each of their elements takes an honest kernel many steps of the interpreter."""
    with kernel_box() as box:
        task = settled(task_from_source(CONVOLUTION.replace("WIDTH", str(width)), name="conv"), box)
    assert task.sizes["tiny"]["size"] == tiny
    assert "tiny_ragged" in task.sizes


def test_convolutions_are_guessed_smaller_where_only_their_mean_is_returned() -> None:
    """The output is small at any size, the work is not."""
    source = CONVOLUTION.replace("WIDTH", "3").replace("return self.conv(x)", "return self.conv(x).mean((2, 3))")
    with kernel_box() as box:
        task = settled(task_from_source(source, name="conv"), box)
    assert task.sizes["tiny"]["size"] == 8


def test_a_whole_number_and_the_same_one_as_a_fraction_are_written_apart() -> None:
    texts = {with_numbers("n = 8\n", {"n": value}) for value in (2, 2.0, 2)}
    assert {text.splitlines()[-1] for text in texts} == {"n = 2", "n = 2.0"}
