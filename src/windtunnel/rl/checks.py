"""Check the way of the weights from learner to inference engine: another process computes what the learner does."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.check import Check, CheckFailed, Context, Evidence, Say, one_thread
from windtunnel.recipe import HuggingFaceModel, PromptCorpus

from .checks_versions import (
    compare_tensors,
    damaged_are_refused,
    half_written_is_passed_over,
    stale_is_noticed,
    unmoved,
    watched_publisher,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from windtunnel.rl import EngineProcess, Mismatch, Publisher, Receipt
    from windtunnel.train import HFJob


# A learner of the scale model and an engine in another process.

NOISE = 0.02
"""Added to every weight, so that none is silent: biases and fresh adapters begin at zero, norms at one."""
RATE, LEAST_STEPS, MOST_STEPS = 3e-3, 3, 30
"""A small adapter needs more steps than a few until its learner stands apart from the engine."""
STALE = 3.0
"""Before a sync learner and engine must differ by so many times what they may differ by after it."""
ANSWERS, PROMPT, NEW = 3, 8, 24
LIMIT = 200.0


@dataclass(frozen=True)
class Bench:
    """What a round of the check works with.

    Attributes:
        canary: (4, 64) random tokens. allowed: nats by which learner and engine may differ on average over it.
        cut_off: the publisher leaves here what is on the disk in the middle of a snapshot.
    """

    job: HFJob
    engine: EngineProcess
    publisher: Publisher
    dtype: torch.dtype
    folder: Path
    canary: Tensor
    allowed: float
    seed: int
    say: Say

    @property
    def cut_off(self) -> Path:
        """Return where the watched publisher leaves its photographs."""
        return self.folder / "cut-off"

    def publish(self, version: int) -> Path:
        """Return the learner's weights as they are now. Raises CheckFailed."""
        from windtunnel.rl import publish_weights

        self.say(f"version {version} of the weights, {self.dtype}")
        try:
            path = publish_weights(self.job, self.publisher, version, dtype=self.dtype, canary=self.canary)
        except RuntimeError as error:
            raise CheckFailed(str(error)) from None
        assert path is not None
        return path

    def load(self, path: Path, version: int) -> Receipt:
        """Load a version into the engine. Raises CheckFailed where it refuses."""
        from windtunnel.rl import BrokenSnapshot, StaleWeights

        try:
            return self.engine.load(path, version)
        except (BrokenSnapshot, StaleWeights) as error:
            raise CheckFailed(f"the engine refuses what the learner published: {error}") from None

    def train_away(self) -> float:
        """Step until the learner stands apart from the engine; return by how many nats on average. Raises CheckFailed."""
        from windtunnel.rl import measure_mismatch, score
        from windtunnel.train import random_batch, vocabulary_of

        engine, apart = self.engine.score(self.canary).log_probabilities, 0.0
        x, y = random_batch(vocabulary_of(self.job), self.seed)
        for step in range(1, MOST_STEPS + 1):
            self.say(f"step {step}, {self.dtype}")
            self.job.step([(x, y)], y.numel(), RATE)
            # Scoring is a pass of its own: the first steps move too little to ask for one.
            if step >= LEAST_STEPS:
                apart = measure_mismatch(score(self.job, self.canary), engine).mean
                if apart >= STALE * self.allowed:
                    return apart
        raise CheckFailed(
            f"after {MOST_STEPS} steps without a sync learner and engine differ by only {apart:.2g} on average, "
            f"{STALE * self.allowed:.2g} or more is expected"
        )

    def sampled(self, version: int) -> Mismatch:
        """Compare both on answers that the engine samples with its cache. Raises CheckFailed."""
        import torch

        from windtunnel.rl import measure_mismatch, score

        self.say(f"{ANSWERS} answers sampled by the engine, {self.dtype}")
        prompts = self.canary[:ANSWERS, :PROMPT]
        answers = self.engine.generate(prompts, NEW, seed=self.seed)
        if answers.version != version:
            raise CheckFailed(f"answers carry version {answers.version} of the weights, the engine loaded version {version}")
        # The engine went through the answers token by token with its cache; in one pass the learner must find the same.
        whole = torch.cat([prompts, answers.tokens], dim=1)
        found = measure_mismatch(score(self.job, whole)[:, PROMPT - 1 :], answers.log_probabilities)
        if found.mean > self.allowed:
            raise CheckFailed(
                f"the engine's log-probabilities of its own answers differ from the learner's by {found.mean:.2g} on average, "
                f"{self.allowed:.2g} is allowed"
            )
        return found


def is_rl(context: Context) -> bool:
    """Return whether the recipe does reinforcement learning."""
    return context.recipe.rl is not None


def make_bench(context: Context, dtype: torch.dtype, engine: EngineProcess, say: Say) -> Bench:
    """Return a learner that computes in `dtype`, with noise in its weights, beside an engine that holds that dtype."""
    import torch

    from windtunnel.rl import TOLERANCE
    from windtunnel.train import small_job, vocabulary_of

    folder = context.folder / "weight-sync" / str(dtype).removeprefix("torch.")
    # Versions of an earlier check would stand among those that are to be told apart.
    shutil.rmtree(folder, ignore_errors=True)
    job = small_job(context, dtype)
    _stir(job, context.seed)
    draw = torch.Generator().manual_seed(context.seed + 1)
    canary = torch.randint(0, vocabulary_of(job), (4, 64), generator=draw)
    publisher = watched_publisher(folder / "published", folder / "cut-off")
    return Bench(job, engine, publisher, dtype, folder, canary, TOLERANCE[dtype][0], context.seed, say)


def _stir(job: HFJob, seed: int) -> None:
    import torch

    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in job.network.named_parameters():
            # Norms of ones and biases of zeros would hide that they were exchanged or left out.
            if not name.endswith(("_fp8", "_scale")):  # packed bytes are no numbers
                own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                own += (NOISE * torch.randn(own.shape, generator=draw)).to(own.dtype)


# The check: publish, load, train on, publish again, compare.


@dataclass(frozen=True)
class Round:
    """What one precision showed: how learner and engine agree on the canary after a sync and before it, and on answers."""

    tensors: int
    trained: int
    after: Mismatch
    before: float
    sampled: Mismatch


@one_thread()
def weight_sync(context: Context, say: Say) -> Evidence:
    """Send weights in fp32, where next to nothing may differ, and in bf16, as learners and engines compute."""
    import torch

    from windtunnel.rl import EngineFailed, EngineProcess

    model = context.recipe.model
    assert isinstance(model, HuggingFaceModel)
    # Weights packed in fp8 are only held beside bf16.
    precisions = (torch.bfloat16,) if model.weights == "fp8" else (torch.float32, torch.bfloat16)
    rounds = {}
    try:
        with ExitStack() as stack:
            # Before there is a learner they start quickest.
            engines = [stack.enter_context(EngineProcess(dtype, limit=LIMIT, threads=1)) for dtype in precisions]
            for dtype, engine in zip(precisions, engines, strict=True):
                rounds[str(dtype).removeprefix("torch.")] = _round(make_bench(context, dtype, engine, say))
    except EngineFailed as error:
        raise CheckFailed(str(error), "look at free memory; the engine here is transformers on the CPU") from None
    # All precisions have the same tensors: the first one's numbers are those of any.
    first = next(iter(rounds.values()))
    agreed = ", ".join(f"{r.after.largest:.0e} in {name} ({r.before:.2g} on average before it)" for name, r in rounds.items())
    text = (
        f"{first.tensors} tensors reach another process{', the adapter merged' if model.adapter else ''}, the {first.trained} "
        f"trained ones anew after more steps; after a sync log-probabilities differ by at most {agreed}, of {ANSWERS} sampled "
        f"answers by {max(r.sampled.largest for r in rounds.values()):.0e}; half-written, damaged and stale versions are refused"
    )
    return Evidence(text, {name: asdict(r) for name, r in rounds.items()}, _warnings(context))


def _round(bench: Bench) -> Round:
    """Publish, load, train, see that the engine is stale, publish, load, agree again."""
    import torch

    files = bench.folder / "first.safetensors", bench.folder / "second.safetensors"
    first = bench.publish(1)
    bench.load(first, 1)
    tensors = compare_tensors(bench.job, bench.engine, files[0], 1, bench.dtype)
    old = bench.engine.score(bench.canary)
    before = bench.train_away()
    second = bench.publish(2)
    bench.say("versions that must be refused")
    # Before the second version is loaded: the engine must go on with the first through all that it refuses.
    half_written_is_passed_over(bench.engine, bench.cut_off, 1)
    damaged_are_refused(bench.engine, second, bench.folder / "damaged", 2)
    stale_is_noticed(bench.engine, first, old.version, 2)
    if not torch.equal(bench.engine.score(bench.canary).log_probabilities, old.log_probabilities):
        raise CheckFailed("an engine that refused a snapshot no longer answers as before")
    receipt = bench.load(second, 2)
    compare_tensors(bench.job, bench.engine, files[1], 2, bench.dtype)
    trained, still = unmoved(bench.job, *files)
    if still:
        raise CheckFailed(f"{', '.join(still[:3])} did not change in the engine though the learner trained it")
    if receipt.canary is None:
        raise CheckFailed("the engine scored no canary: it would not notice that it computes something else")
    return Round(tensors, trained, receipt.canary, before, bench.sampled(2))


def _warnings(context: Context) -> list[str]:
    from transformers import AutoConfig

    rl = context.recipe.rl
    assert rl is not None
    warnings = []
    config = AutoConfig.for_model(**json.loads(context.small_config.read_text(encoding="utf-8"))).get_text_config().to_dict()
    drops = {key: value for key, value in config.items() if "dropout" in key and isinstance(value, float) and value > 0}
    if drops:
        named = " and ".join(f"{key} is {value:g}" for key, value in sorted(drops.items()))
        warnings.append(
            f"{named}: learners drop activations where engines do not, so that their probabilities differ at every step; "
            f"set it to 0 in the model's config.json"
        )
    if rl.engine_weights == "fp8":
        warnings.append("stages.rl.engine_weights is fp8: how far that takes the engine from the learner shows on the GPU only")
    return warnings


# The model in other programs: transformers loads what was trained, vLLM knows the architecture.

SECONDS = 90.0
PROGRAM = (
    "import json, vllm; from vllm import ModelRegistry; "
    "print(json.dumps([getattr(vllm, '__version__', '?'), sorted(ModelRegistry.get_supported_archs())]))"
)


@one_thread()
def tuning_export(context: Context, say: Say) -> Evidence:
    """Write the checkpoint's model as a Hugging Face folder, load it with transformers alone, compare log-probabilities."""
    import torch

    from windtunnel.checkpoint import CheckpointStore
    from windtunnel.rl import BrokenSnapshot, InferenceEngine, Publisher, publish_weights
    from windtunnel.train import random_batch, restore_engine, small_engine, vocabulary_of

    saved = context.facts["tuning-checkpoint"]
    path, step = Path(saved["path"]), saved["resumed_from"]
    model = context.recipe.model
    assert isinstance(model, HuggingFaceModel)
    # In bf16 a small adapter could be lost unseen; weights packed in fp8 are only held beside bf16.
    dtype = torch.bfloat16 if model.weights == "fp8" else torch.float32
    store = CheckpointStore(path.parent)
    # From the checkpoint, not from the job that wrote it: what is not saved would not be exported either.
    with closing(small_engine(context, dtype)) as engine:
        restore_engine(engine, store.at(step))
        job = engine.job
        tokens, _ = random_batch(vocabulary_of(job), context.seed + 2)
        say("writing a Hugging Face folder")
        folder = publish_weights(job, Publisher(path.parent / "exported"), step, dtype=dtype, canary=tokens)
    assert folder is not None
    say("transformers loads it")
    try:
        receipt = InferenceEngine(dtype).load(folder, step)
    except BrokenSnapshot as error:
        raise CheckFailed(f"transformers does not get the model that was trained: {error}") from None
    assert receipt.canary is not None
    text = (
        f"{receipt.tensors} tensors, {receipt.bytes / 2**20:.1f} MiB, loaded by transformers alone: log-probabilities of "
        f"{receipt.canary.tokens} tokens differ by {receipt.canary.mean:.1g} on average, in {str(dtype).removeprefix('torch.')}"
    )
    return Evidence(text, {"tensors": receipt.tensors, "bytes": receipt.bytes, "mean": receipt.canary.mean})


def _is_tuned(context: Context) -> bool:
    """Return whether a recipe has no engines: where there are some, weight-sync shows more."""
    return not context.is_gpt and context.recipe.rl is None


def engine(context: Context, say: Say) -> Evidence:
    """Look the architecture up."""
    say("transformers names the architecture")
    from windtunnel.generate import VLLM_VERSIONS, known_vllm

    from .vllm_python import has_vllm

    name = _architecture(context)
    if not has_vllm():
        text = f"vLLM is not installed here: whether it knows {name} cannot be told"
        return Evidence(text, {"architecture": name}, absent="a machine with vLLM, or: pip install vllm")
    say("importing vLLM")
    found = _registry()
    if isinstance(found, str):
        if context.here.gpu:
            raise CheckFailed(f"vLLM cannot be imported: {found}", "install the vLLM that belongs to this torch")
        return Evidence(f"vLLM cannot be imported here: {found}", {"architecture": name}, absent="a machine with a GPU")
    version, known = found
    stage = context.recipe.rl
    if stage is not None and stage.engine == "vllm" and not known_vllm(version):
        raise CheckFailed(f"vLLM {version} is installed, and this package works with vllm{VLLM_VERSIONS}", "install one of those")
    facts = {"architecture": name, "vllm": version, "known": name in known}
    if name not in known:
        warning = (
            f"vLLM {version} has no {name} of its own: it may run it through transformers, more slowly, or not at all; "
            f"choose another model.config, or a vLLM that has it"
        )
        return Evidence(f"vLLM {version} knows {len(known)} architectures", facts, warnings=[warning])
    return Evidence(f"vLLM {version} knows {name}", facts)


def _architecture(context: Context) -> str:
    """Return the class that transformers and vLLM name alike."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from windtunnel.model import hf_shape

    model = context.recipe.model
    assert isinstance(model, HuggingFaceModel)
    name: str = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[hf_shape(model.config).family]
    return name


def _registry() -> tuple[str, list[str]] | str:
    """Return vLLM's version and the architectures that it knows, or why it cannot be asked.

    It is asked in a process of its own: vLLM is large.
    """
    from .vllm_python import vllm_python

    try:
        done = subprocess.run([vllm_python(), "-c", PROGRAM], capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS:.0f} s"
    except OSError as error:
        return str(error)
    # vLLM logs on standard output too; the answer is its last line.
    lines = [line for line in (done.stdout if done.returncode == 0 else done.stderr).splitlines() if line.strip()]
    if done.returncode:
        return f"{lines[-1][:200] if lines else 'no word'} (exit code {done.returncode})"
    try:
        version, known = json.loads(lines[-1])
    except (ValueError, IndexError, TypeError):
        return "its registry answered something else than names"
    return str(version), list(known)


# The data, as the recipe's own judges see them.


def judges(context: Context, say: Say) -> Evidence:
    """Judge answers to prompts of the data; see `checks_judges`."""
    from .checks_judges import judge_data

    return judge_data(context, say)


def asks_prompts(context: Context) -> bool:
    """Return whether the last stage asks prompts of data and something judges the answers."""
    rl = context.recipe.rl
    return rl is not None and isinstance(context.recipe.data.corpus, PromptCorpus) and bool(rl.sources)


CHECKS = (
    Check(
        "weight-sync", "every weight reaches the engine, which computes what the learner does; no stale or broken version does",
        "report this with the model's config.json: the package or transformers is at fault", weight_sync,
        shows="first steps", needs=("recipe", "torch", "model"), applies=is_rl, limit=300.0,
    ),
    Check(
        "judges", "right answers of the data are accepted and worthless ones refused, by the judges of the run", "try one: "
        "windtunnel verify; then look at stages.rl.rewards", judges,
        shows="first steps", needs=("recipe", "packages", "data"), applies=asks_prompts, limit=300.0,
    ),
    Check(
        "engine", "vLLM knows the model's architecture", "look at model.config", engine,
        shows="start", needs=("recipe", "torch", "model"), applies=is_rl,
    ),
    Check(
        "tuning-export", "transformers alone loads what was trained, the adapter merged, and computes the same",
        "report this with the model's config.json: the package or transformers is at fault", tuning_export,
        shows="end", needs=("tuning-checkpoint",), applies=_is_tuned,
    ),
)  # fmt: skip
