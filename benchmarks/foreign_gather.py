"""Gathers kernels that nobody here wrote, with their tasks, into one file that can be carried to another machine.

    python benchmarks/foreign_gather.py --out foreign.jsonl.gz llmkernel=FOLDER artifacts=FOLDER liger=FOLDER ...

Each line: source, name, task (a module in KernelBench's form), answer, their checksum, and what its own evaluation on a GPU said.
The file is other people's code: it is carried and judged, never committed. FOLDER is a git folder of

    llmkernel     github.com/Alisehen/LLMKernel: answers of language models to KernelBench; of each task the last that its own
                  evaluation found right, with --wrong the last too that it found wrong
    artifacts     github.com/Laurawly/kernelagent-artifacts: an agent's kernels for KernelBench, levels 1 and 2
    optimized     github.com/kaiming-cheng/kernelagent-optimization-artifacts: of an agent's search for
                  faster ones its beginning, one round and its end
    liger         github.com/linkedin/Liger-Kernel            tritonbench   github.com/thunlp/TritonBench
    unsloth       github.com/unslothai/unsloth                attorch       github.com/BobMcDear/attorch
    mamba         github.com/state-spaces/mamba               flaggems      github.com/FlagOpen/FlagGems

Answers of the first three are whole files. A library's kernel is made one by rule: `foreign_flatten` takes what its function
needs, and a line of `foreign_table` says what it computes; ModelNew calls it.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gzip
import hashlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import foreign_table
from foreign_flatten import NotFlat, Replaced, flattened
from foreign_table import Row, names_of, rows, task_of

from windtunnel.verify.kernel.task import Task, task_from_source


@dataclass(frozen=True)
class Foreign:
    """One answer. right: what its own evaluation on a GPU said, None where there was none. commit: of the checkout. dtype: what
    the answer was written for."""

    source: str
    name: str
    task: str
    answer: str
    right: bool | None
    commit: str
    dtype: str = "float32"

    def judged_task(self) -> Task:
        """Return the task in the dtype that the answer was written for; a file that states another of its own keeps that.

        Raises:
            UserError: the task's file cannot be used.
        """
        task = task_from_source(self.task, name=self.name)
        return task if self.dtype == Foreign.dtype else replace(task, dtypes=(self.dtype,))

    @property
    def sha256(self) -> str:
        """Of the answer's text."""
        return hashlib.sha256(self.answer.encode()).hexdigest()


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help=f"NAME=FOLDER; {', '.join(SOURCES)}")
    parser.add_argument("--wrong", action="store_true", help="answers too that their own evaluation refused")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = []
    for source in given.sources:
        name, _, folder = source.partition("=")
        some = list(SOURCES[name](Path(folder)))
        found += [one for one in some if given.wrong or one.right is not False]
        print(f"{name}: {len(some)}")
    write(found, given.out)
    print(f"{len(found)} answers, {given.out.stat().st_size:,} bytes")


def write(answers: list[Foreign], path: Path) -> None:
    """Write one line of JSON for each."""
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for answer in answers:
            file.write(json.dumps(asdict(answer)) + "\n")


def read(path: Path) -> list[Foreign]:
    """Return what `write` wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [Foreign(**json.loads(line)) for line in file]


def git(checkout: Path, *words: str) -> str:
    """Return what git says of a checkout."""
    return subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=True).stdout


class Checkout:
    """A git folder's newest commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commit = git(folder, "rev-parse", "HEAD").strip()
        self.paths = git(folder, "ls-tree", "-r", "--name-only", "HEAD").splitlines()
        self._known = set(self.paths)
        self.read = functools.cache(self._read)

    def _read(self, path: str) -> str:
        return git(self.folder, "show", f"HEAD:{path}")

    def module(self, root: str, dotted: str) -> str | None:
        """The text of a module below a folder, or None."""
        at = "/".join([*([root] if root else []), *dotted.split(".")])
        for path in (f"{at}.py", f"{at}/__init__.py"):
            if path in self._known:
                return str(self.read(path))
        return None


def of_llmkernel(folder: Path) -> Iterator[Foreign]:
    """Yield one answer of each task that has one found right, and one of each that has one found wrong."""
    checkout = Checkout(folder)
    last: dict[tuple[str, bool], str] = {}
    for path in sorted(checkout.paths):
        parts = path.split("/")
        if parts[0] != "results" or len(parts) != 5 or parts[3] != "evaluation" or not path.endswith(".json"):
            continue
        said = json.loads(checkout.read(path))
        name = "/".join(parts[1:3])
        code = f"results/{name}/code/{Path(said.get('candidate_file', '')).name}"
        if code in checkout.paths:
            last[name, bool(said.get("runnable"))] = code
    for (name, right), code in sorted(last.items()):
        task = f"KernelBench/{name}.py"
        if task in checkout.paths:
            yield Foreign("Alisehen/LLMKernel", name, checkout.read(task), checkout.read(code), right, checkout.commit)


ARTIFACTS = "Laurawly/kernelagent-artifacts"
OPTIMIZED = "kaiming-cheng/kernelagent-optimization-artifacts"


def of_artifacts(folder: Path) -> Iterator[Foreign]:
    """Yield an agent's kernels: each was run against its problem before it was published."""
    checkout = Checkout(folder)
    for path in checkout.paths:
        parts = path.split("/")
        if parts[0] in ("L1", "L2") and parts[-1] == "kernel_code.py":
            problem = checkout.read("/".join([*parts[:-1], "original.py"]))
            kernel = checkout.read(path)
            made, name = called(problem, kernel), "/".join(parts[:2])
            if made is not None and name not in NOT_BY_RULE:
                yield Foreign(ARTIFACTS, name, problem, made, True, checkout.commit, written_for(kernel))


def of_optimized(folder: Path) -> Iterator[Foreign]:
    """Yield what the search began with, one of its rounds and what it found, in bfloat16 as they were run."""
    checkout = Checkout(folder)
    for path in checkout.paths:
        parts = path.split("/")
        ends = parts[-1] in ("input_kernel.py", "optimized_kernel_beam_search.py")
        if not ends and parts[-2:] != ["round_4", "kernel.py"]:
            continue
        problem = checkout.read(f"{parts[0]}/problem.py")
        made = called(problem, checkout.read(path))
        if made is not None:
            name = "/".join([parts[0], *parts[2:-1], parts[-1].removesuffix(".py")])
            yield Foreign(OPTIMIZED, name, problem, made, True, checkout.commit, "bfloat16")


NOT_BY_RULE = ("L2/97_Matmul_BatchNorm_BiasAdd_Divide_Swish",)  # its `bias` is another one than the problem's


def called(problem: str, kernel: str) -> str | None:
    """The answer whose ModelNew has the problem's parameters and gives kernel_function what its arguments' names ask for: inputs
    by place, then weights, biases and the numbers of get_init_inputs. None where there is no such function."""
    found = [node for node in ast.parse(kernel).body if isinstance(node, ast.FunctionDef) and node.name == "kernel_function"]
    model = next(node for node in ast.parse(problem).body if isinstance(node, ast.ClassDef) and node.name == "Model")
    methods = {node.name: node for node in model.body if isinstance(node, ast.FunctionDef)}
    if not found:
        return None
    inputs = [argument.arg for argument in methods["forward"].args.args[1:]]
    init = [argument.arg for argument in methods["__init__"].args.args[1:]] if "__init__" in methods else []
    asked = found[0].args
    names = [argument.arg for argument in asked.args]
    needed = names[: len(names) - len(asked.defaults)]
    attributes = ["*self._everything()"] if asked.vararg and not names else []
    if asked.kwarg:
        names += dict.fromkeys(re.findall(rf"['\"](\w+)['\"] in {asked.kwarg.arg}\b", kernel))
    for name in names[len(inputs) :]:
        if _is_parameter(name):
            attributes.append(f"{name}=self._named({name!r})")
        elif name in init:
            attributes.append(f"{name}=self._given[{name!r}]")
        elif name in needed:
            attributes.append(f"{name}=self._named({name!r})")
    given, asked_for = ", ".join(inputs), ", ".join([*inputs, *attributes])
    return f"{kernel}\n\n{problem}\n\n{CALLER.format(given=given, asked=asked_for)}"


CALLER = """
class ModelNew(Model):
    def __init__(self, *init):
        super().__init__(*init)
        import inspect

        bound = inspect.signature(Model).bind(*init)
        bound.apply_defaults()
        self._given = dict(bound.arguments)

    def _everything(self):
        return [*self.parameters(), *(value for value in self._given.values() if isinstance(value, float))]

    def _named(self, name):
        state, low = dict(self.named_parameters()) | dict(self.named_buffers()), name.lower()
        for key, value in state.items():
            own = key.replace(".", "_").lower()
            if own == low or own.endswith("_" + low) or own == low.replace("_param", ""):
                return value
        kind = ".weight" if low in ("w", "weight") else ".bias"
        return next((value for key, value in state.items() if f".{{key}}".endswith(kind)), None)

    def forward(self, {given}):
        return kernel_function({asked})
"""


def _is_parameter(name: str) -> bool:
    return name.lower().rpartition("_")[2] in ("weight", "bias", "w", "b")


def written_for(kernel: str) -> str:
    """The dtype that an agent's kernel is for: float32, unless it says that it must be another."""
    must = [line for line in kernel.splitlines() if ("raise" in line or "assert" in line or "must" in line) and "16" in line]
    return (
        "bfloat16"
        if any(re.search("bfloat16|bf16", line.lower()) and not re.search("float32|fp32", line.lower()) for line in must)
        else "float32"
    )


def of_table(
    source: str, library: str, root: str, package: str, replaced: Replaced | None = None, *, cut: str = "", edit: Any = None
) -> Callable[[Path], Iterator[Foreign]]:
    """What yields the kernels of a library. root, package: where its modules lie. cut: what ends the code in each file."""

    def gather(folder: Path) -> Iterator[Foreign]:
        checkout = Checkout(folder)
        stand_ins = edit(checkout) if edit is not None else replaced

        def module(dotted: str) -> str | None:
            text = checkout.module(root, dotted)
            return text.partition(cut)[0] if cut and text is not None else text

        for number, row in enumerate(rows(library)):
            try:
                kernels = flattened(module, f"{package}.{row.file}", [row.function], stand_ins)
            except NotFlat as error:
                print(f"{source} {row.file} {row.function}: not flat: {error}", file=sys.stderr)
                continue
            name = f"{row.file}/{row.function}/{number}"
            yield Foreign(source, name, task_of(row), answer_of(row, kernels), None, checkout.commit, row.dtype)

    return gather


def answer_of(row: Row, kernels: str) -> str:
    """The library's own code with a ModelNew that calls it."""
    call = row.call
    for size in foreign_table.SIZES:  # what a call names of sizes it takes from the task
        if f":{size}]" in call:
            call = call.replace(f":{size}]", ":i.shape[0]]")
    return (
        f"import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n{kernels}\n\n"
        f"class ModelNew(nn.Module):\n    def forward(self, {', '.join(names_of(row))}):\n        return {call}\n"
    )


UNSLOTH = Replaced(
    {
        "torch_gpu_device": "import contextlib\n\ndef torch_gpu_device(device):\n    return contextlib.nullcontext()",
        "triton_tanh": "from triton.language.extra import libdevice\n\ntriton_tanh = libdevice.tanh",
        "triton_cast": "import triton.language as tl\n\ntriton_cast = tl.cast",
        "HAS_CUDA_STREAM": "HAS_CUDA_STREAM = False",
        "is_cdna": "def is_cdna():\n    return False",
        "DEVICE_TYPE": "DEVICE_TYPE = 'cuda'",
        "Version": "from packaging.version import Version",
    }
)


def flaggems(checkout: Checkout) -> Replaced:
    """FlagGems' run time: its caches of launches stand aside, its tables of configurations are written out."""
    import yaml

    backend = "src/flag_gems/runtime/backend/_nvidia"
    tables = yaml.safe_load(checkout.read(f"{backend}/tune_configs.yaml"))
    heuristics = checkout.read(f"{backend}/heuristics_config_utils.py")

    class Edit(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            called = ast.unparse(node.func)
            if called == "runtime.get_tuned_config":
                return ast.parse(configurations(tables[ast.literal_eval(node.args[0])]), mode="eval").body
            if called == "runtime.get_heuristic_config":
                return ast.parse(f"HEURISTICS_CONFIGS[{ast.unparse(node.args[0])}]", mode="eval").body
            return node

        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.value, ast.Name) and node.value.id == "tle" and node.attr in ("program_id", "num_programs"):
                node.value.id = "tl"
            return node

    return Replaced(
        {
            "libentry": "def libentry():\n    return lambda kernel: kernel",
            "libtuner": "import triton\n\ndef libtuner(configs, key, **more):\n    return triton.autotune(configs, key)",
            "tle": "import triton.language as tle",
            "torch_device_fn": "import torch\n\ntorch_device_fn = torch.cuda",
            "tl_extra_shim": "from triton.language.extra import libdevice as tl_extra_shim",
            "HEURISTICS_CONFIGS": heuristics,
            "logger": "import logging\n\nlogger = logging.getLogger('flag_gems')",
            "device": "class device:\n    name = 'cuda'",
            "get_device_properties": "import torch\n\nget_device_properties = torch.cuda.get_device_properties",
        },
        lambda tree: ast.fix_missing_locations(Edit().visit(tree)),
    )


def configurations(entries: list[dict[str, Any]], most: int = 12) -> str:
    """The text of a list of triton.Config, as the library's loader makes them; of more than so many the first ones."""
    made: list[str] = []
    for entry in entries:
        if not entry.get("gen"):
            made.append(_config(entry.get("META", {}), entry))
            continue
        names = entry["param_map"]
        meta = names.get("META", {})
        keys = sorted({*meta.values(), *(value for key, value in names.items() if key != "META")} & set(entry))
        for values in itertools.product(*(entry[key] for key in keys)):
            chosen = dict(zip(keys, values, strict=True))
            inner = {name: chosen.get(key, key) for name, key in meta.items()}
            made.append(_config(inner, {name: chosen.get(key, key) for name, key in names.items() if name != "META"}))
    return f"[{', '.join(made[:most])}]"


def _config(meta: dict[str, Any], entry: dict[str, Any]) -> str:
    return f"triton.Config({meta!r}, num_warps={entry.get('num_warps', 4)}, num_stages={entry.get('num_stages', 2)})"


SOURCES: dict[str, Callable[[Path], Iterator[Foreign]]] = {
    "llmkernel": of_llmkernel,
    "artifacts": of_artifacts,
    "optimized": of_optimized,
    "tritonbench": of_table("thunlp/TritonBench", "tritonbench", "data", "TritonBench_G_v1", cut="####################"),
    "liger": of_table("linkedin/Liger-Kernel", "liger", "src", "liger_kernel.ops"),
    "unsloth": of_table("unslothai/unsloth", "unsloth", "", "unsloth.kernels", UNSLOTH),
    "attorch": of_table("BobMcDear/attorch", "attorch", "", "attorch"),
    "mamba": of_table("state-spaces/mamba", "mamba", "", "mamba_ssm.ops.triton"),
    "flaggems": of_table("FlagOpen/FlagGems", "flaggems", "src", "flag_gems", edit=flaggems),
}

if __name__ == "__main__":
    main()
