"""Runs other checkers' own correctness functions on a CPU, through Triton's interpreter, one forked process for each file.

    python benchmarks/verify_peers_child.py PEER CHECKOUT       PEER: kernelbench, robust-kbench or backendbench

or on a GPU, KernelBench's whole evaluation and robust-kbench's function: PEER kernelbench-gpu or robust-kbench-gpu.

Reads JSON lines {"number", "reference", "source"} and answers each with {"number", "said"}: true, false, or null where the
process ended or hung without a verdict. The checkouts are used as they are. What a CPU lacks is made up for around them: waiting
for a GPU is a no-op, moving to one leaves a tensor where it is, the interpreter gets what it lacks (autotuning, libdevice), as
ours has it, and the candidate starts with the reference's parameters.
Candidates run unprotected in such checkers, and so they do here.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import logging
import os
import select
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

TRIALS = 5  # the default of the first two; the third takes as many tests as it is given
SECONDS = 60.0
WARM_UP = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * 2)


class Model(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y, BLOCK=16)
        return y


ModelNew = Model


def get_inputs():
    return [torch.randn(16)]


def get_init_inputs():
    return []
"""
# What KernelBench's modules import beside, and the names that they take from it: clients of services, used in no evaluation.
CLIENTS = {
    "requests": (),
    "datasets": (),
    "dotenv": ("load_dotenv",),
    "openai": ("OpenAI",),
    "litellm": ("completion",),
    "tqdm": ("tqdm",),
}
Check = Callable[[str, str], bool]
T = TypeVar("T")


def main() -> None:
    """Answer until the input ends."""
    name, checkout = sys.argv[1], Path(sys.argv[2])
    on_gpu = name.endswith("-gpu")
    if not on_gpu:
        os.environ["TRITON_INTERPRET"] = "1"
    answers, errors = os.fdopen(os.dup(1), "w"), os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    import torch

    torch.set_num_threads(1)
    if on_gpu:  # what does not start CUDA is imported once, not in every fork
        for module in ("numpy", "pydantic", "triton", "triton.language"):
            importlib.import_module(module)
    checks = {
        "kernelbench": kernelbench,
        "kernelbench-gpu": kernelbench_gpu,
        "robust-kbench": robust_kbench,
        "robust-kbench-gpu": robust_kbench_gpu,
        "backendbench": backendbench,
    }
    check = checks[name](checkout)
    if not on_gpu:
        make_up_for_the_gpu()
        check(WARM_UP, WARM_UP)  # what is imported on first use is imported once, not in every fork
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        order = json.loads(line)
        said = in_a_process(check, order["reference"], order["source"], errors, closed=(0, answers.fileno()))
        answers.write(json.dumps({"number": order["number"], "said": said}) + "\n")
        answers.flush()


def in_a_process(check: Check, reference: str, source: str, errors: int, closed: tuple[int, ...]) -> bool | None:
    """The checker's verdict on one file, from a fork. errors: where it is said that the checker itself raised. closed: files that
    the fork must not have, since some candidates write answers to all that are open."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        for fd in closed:
            os.dup2(1, fd)  # nothing
        os.chdir(tempfile.mkdtemp(dir=os.getcwd()))
        try:
            os.write(send, b"1" if check(reference, source) else b"0")
        except BaseException as error:  # a candidate may end its process by raising anything
            os.write(errors, f"no verdict: {type(error).__name__}: {error}\n"[:500].encode())
        os._exit(0)
    os.close(send)
    ready, _, _ = select.select([receive], [], [], SECONDS)
    said = os.read(receive, 1) if ready else b""
    os.close(receive)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {b"1": True, b"0": False}.get(said)


def make_up_for_the_gpu() -> None:
    """Autotuning, libdevice and questions about the device have answers, as where ours records and replays; no check is made."""
    import random

    import torch
    from triton.runtime import autotuner, interpreter

    from windtunnel.verify.kernel.child.libdevice import own_libdevice
    from windtunnel.verify.kernel.child.pretend import pretend_cuda
    from windtunnel.verify.kernel.child.replay import Misfit
    from windtunnel.verify.kernel.child.triton_compat import patch_interpreter

    dice = random.Random(0)

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        """Take any configuration that the kernel has room for: on a GPU the fastest runs, whatever it computes."""
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        left = list(tuner.prune_configs(kwargs) if len(tuner.configs) > 1 else tuner.configs)
        while True:
            config = left.pop(dice.randrange(len(left)))
            if config.pre_hook is not None:
                config.pre_hook({**tuner.nargs, **kwargs, **config.all_kwargs()})
            try:
                return tuner.fn.run(*args, **kwargs, **config.all_kwargs())
            except Exception as error:  # the interpreter wraps what a kernel raises
                if not left or not isinstance(error.__cause__ or error, Misfit):
                    raise

    autotuner.Autotuner.run = run
    own_libdevice(interpreter.interpreter_builder)
    patch_interpreter(interpreter.interpreter_builder)
    pretend_cuda()
    torch.cuda.reset_peak_memory_stats = lambda device=None: None


def kernelbench(checkout: Path) -> Check:
    """Its loaders and its run_and_check_correctness, in the order of its eval_kernel_against_ref, which insists on CUDA."""
    evaluation = kernelbench_module(checkout)

    def check(reference: str, source: str) -> bool:
        import torch

        made, init, inputs = evaluation.load_original_model_and_inputs(reference, {})
        evaluation.set_seed(42)
        arguments = init()
        evaluation.set_seed(42)
        original = made(*arguments)

        def load_candidate() -> Any:
            new, _ = evaluation.load_custom_model_with_tempfile(source, entry_point="ModelNew")
            evaluation.set_seed(42)
            return with_parameters(new(*arguments), original)

        candidate = unless_it_raises(load_candidate)
        if candidate is None:
            return False
        with torch.no_grad():
            result = evaluation.run_and_check_correctness(
                original, candidate, inputs, {}, TRIALS, device=torch.device("cpu"), backend="triton"
            )
        return bool(result.correctness)

    return check


def kernelbench_gpu(checkout: Path) -> Check:
    """Its whole evaluation but the clock, imported in each fork: the import starts CUDA, which does not survive a fork."""

    def check(reference: str, source: str) -> bool:
        import torch

        evaluation = kernelbench_module(checkout)
        compare = evaluation.run_and_check_correctness
        evaluation.run_and_check_correctness = lambda original, candidate, *rest, **named: compare(
            original, with_parameters(candidate, original), *rest, **named
        )
        result = evaluation.eval_kernel_against_ref(
            reference,
            source,
            num_correct_trials=TRIALS,
            measure_performance=False,
            backend="triton",
            device=torch.device("cuda:0"),
        )
        return bool(result and result.compiled and result.correctness)

    return check


def kernelbench_module(checkout: Path) -> Any:
    """kernelbench.eval. Clients of services that it imports and does not need here may be absent."""
    package("kernelbench", checkout / "src" / "kernelbench")
    for absent, names in CLIENTS.items():
        if absent not in sys.modules and importlib.util.find_spec(absent) is None:
            sys.modules[absent] = module = ModuleType(absent)
            vars(module).update(dict.fromkeys(names, lambda *_, **__: None))
    return importlib.import_module("kernelbench.eval")


def robust_kbench(checkout: Path) -> Check:
    """Its check_forward_correctness with the tolerances of its run_kernel.py (1e-3). It calls one model with two functions."""
    module = robust_kbench_module(checkout)
    module.easy_to_device = lambda values, device: values
    return lambda reference, source: robust_kbench_check(module, reference, source, moves=False)


def robust_kbench_gpu(checkout: Path) -> Check:
    """The same on a GPU as it is, imported in each fork in case the import starts CUDA."""
    return lambda reference, source: robust_kbench_check(robust_kbench_module(checkout), reference, source, moves=True)


def robust_kbench_module(checkout: Path) -> Any:
    """Its module of the correctness function."""
    package("robust_kbench", checkout / "robust_kbench")
    package("robust_kbench.sandbox", checkout / "robust_kbench" / "sandbox")
    return importlib.import_module("robust_kbench.sandbox.correct_forward_fn")


def robust_kbench_check(module: Any, reference: str, source: str, *, moves: bool) -> bool:
    """One file. moves: whether models go to the device that it names."""
    import torch

    theirs, ours = load(reference, "reference"), unless_it_raises(lambda: load(source, "candidate"))
    if ours is None:
        return False

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            state = torch.get_rng_state()
            self.reference = theirs.Model(*theirs.get_init_inputs())
            torch.set_rng_state(state)
            self.candidate = with_parameters(ours.ModelNew(*theirs.get_init_inputs()), self.reference)

        def to(self, *args: Any, **kwargs: Any) -> Any:
            return super().to(*args, **kwargs) if moves else self

        def forward(self, *inputs: Any, fn: Callable[..., Any]) -> Any:
            return fn(self, *inputs)

    functions = (lambda both, *inputs: both.reference(*inputs), lambda both, *inputs: both.candidate(*inputs))
    result = unless_it_raises(
        lambda: module.check_forward_correctness(
            Both, *functions, theirs.get_inputs, {}, {}, num_correct_trials=TRIALS, rtol=1e-3, atol=1e-3
        )
    )
    return result is not None and bool(result.correct)


def backendbench(checkout: Path) -> Check:
    """Its search for streams and its eval_correctness, with fresh inputs of the task as the tests of the operator."""
    package("BackendBench", checkout / "BackendBench")
    evaluation = importlib.import_module("BackendBench.eval")
    logging.disable(logging.CRITICAL)

    def check(reference: str, source: str) -> bool:
        import torch

        theirs = load(reference, "reference")
        torch.manual_seed(0)
        model = theirs.Model(*theirs.get_init_inputs())
        torch.manual_seed(0)
        candidate = unless_it_raises(
            lambda: with_parameters(load(source, "candidate").ModelNew(*theirs.get_init_inputs()), model)
        )
        if candidate is None or evaluation.uses_cuda_stream(type(candidate)):
            return False
        tests = [SimpleNamespace(args=tuple(theirs.get_inputs()), kwargs={}) for _ in range(TRIALS)]

        def operator(*inputs: Any) -> Any:
            return model(*inputs)

        with torch.no_grad():
            share, _ = evaluation.eval_correctness(operator, candidate, tests)
        return bool(share == 1.0)

    return check


def unless_it_raises(action: Callable[[], T]) -> T | None:
    """What the action gives; None where it raises.

    A candidate's own code runs in it and may raise anything, and each of these checkers records whatever is raised there
    (what cannot be loaded, does not compile or has no such operator) as not correct. Hence no narrower exception.
    """
    try:
        return action()
    except Exception:
        return None


def with_parameters(candidate: Any, reference: Any) -> Any:
    """The candidate with the reference's parameters where shapes agree: ours does so, and honest files need not initialise."""
    mine, theirs = candidate.state_dict(), reference.state_dict()
    if [tuple(value.shape) for value in mine.values()] == [tuple(value.shape) for value in theirs.values()]:
        by_order = dict(zip(mine, theirs.values(), strict=True))
        candidate.load_state_dict({name: theirs.get(name, by_order[name]) for name in mine}, strict=False)
    return candidate


def package(name: str, folder: Path) -> None:
    """The package without what its __init__ imports: command lines and clients of other services."""
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def load(text: str, name: str) -> Any:
    """A text as a module, from a file, since Triton reads kernels from files."""
    path = Path.cwd() / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
