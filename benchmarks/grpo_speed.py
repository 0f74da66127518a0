"""Rounds of GRPO beside TRL's GRPOTrainer on one GPU, in one run: seconds by part, memory, and how long the GPU was idle.

    grpo_speed.py --out benchmarks/results/grpo-speed-h200.json      SmolLM2-135M's shape: TRL, ours with vLLM, ours in turn
    grpo_speed.py --case qwen2.5-7b --out FILE                       Qwen2.5-7B's shape with LoRA: the same
    grpo_speed.py --cpu --peer-python /tmp/trl/bin/python --out /tmp/trial.json      a tiny model without vLLM, to try the script
    grpo_speed.py side trl|vllm|in-turn CASE FOLDER ROUNDS CPU       one side; the others start these

Each side is a process of its own and has the GPU to itself. Both have random weights, AdamW, one update a round, and vLLM on
the learner's GPU; they ask the same prompts of the same length, and no answer may end before its last token. TRL has
`vllm_mode="colocate"`, fp32 weights under bf16 autocast where we have fp32 master weights, and no gradient checkpointing where
we recompute nothing. vLLM begins with weights that mean nothing on both sides: each sends its own before the first answer.

A round's seconds lie between the ends of two rounds, so that all is in them; what is none of its parts is the rest. Our parts
are of the run's metrics; TRL's are timed around its methods, from an idle GPU to an idle GPU. `learning` of TRL is what
generation, weights and rewards leave. Idle is the share of the time in which NVML saw no kernel. The result is
written after every round, and all ends by itself after --seconds.

Beside PyTorch, transformers, peft and vLLM 0.25.1 with what it asks for, TRL needs the wheels trl 1.16.0, datasets
4.8.5 (5.x asks for a newer huggingface_hub than transformers 5.17 takes), dill 0.4.1, multiprocess 0.70.19, pandas 3.1.1, pyarrow
26.0.1, xxhash, python-dateutil and six; NVML needs nvidia-ml-py, or vLLM's own copy. PYTHONPATH names where they are, or
--peer-python an interpreter. OUR_SETS (a JSON list) changes our recipe, PEER_VLLM_MEMORY (0.3) is the share of TRL's vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import ROUND_PARTS, VLLM, Bench, Meter, Side, leave_this_folder, machine, medians, round_parts

SMOLLM2: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e5, "rope_type": "default"},
    "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "dtype": "bfloat16",  # None: vLLM would end answers by it
}  # fmt: skip
QWEN: dict[str, Any] = SMOLLM2 | {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768, "tie_word_embeddings": False,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
}  # fmt: skip
TINY: dict[str, Any] = SMOLLM2 | {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 512,
}  # fmt: skip
RATE, WARM, SEED = 1e-6, 2, 7
OURS = [name for names in ROUND_PARTS.values() for name in names]
METRICS = [*OURS, "step_seconds", "answer_length", "reward_deviation", "mismatch"]
REWARD = '''
def share(prompt, answer, truth):
    """Return the share of an answer's words whose number ends with 7: it differs within a group, and costs nothing."""
    return sum(word.endswith("7") for word in answer.split()) / {most}
'''


@dataclass(frozen=True)
class Case:
    """What all sides train.

    Attributes:
        config: a config.json. lora: rank of the adapters on all linear layers, None: all weights.
        peer_batch: answers of TRL's forward pass. recompute: TRL's gradient checkpointing; ours is the plan's.
        packed: samples of a packed sequence of ours; of 4 the plan counts 67 sequences, which only micro-batches of 1 divide.
        sides: in their order, each with its share of the time.
    """

    config: dict[str, Any]
    prompts: int = 32
    samples: int = 8
    prompt_tokens: int = 128
    answer_tokens: int = 512
    lora: int | None = None
    peer_batch: int = 32
    recompute: bool = False
    packed: int = 3
    sides: dict[str, float] = field(default_factory=lambda: {"trl": 0.32, "vllm": 0.34, "in-turn": 0.34})


CASES = {
    "smollm2-135m": Case(SMOLLM2),
    "qwen2.5-7b": Case(QWEN, prompts=8, lora=16, peer_batch=8, recompute=True),
    "tiny": Case(TINY, 4, 4, 16, 32, peer_batch=8),
}


# What both sides read


def write_case(case: Case, folder: Path, rounds: int) -> None:
    """Write prompts, a tokenizer whose tokens are words, a config and the reward."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    draw, model = random.Random(SEED), folder / "model"
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    words = [f"w{i}" for i in range(case.config["vocab_size"] - len(special))]
    inner = Tokenizer(
        models.WordLevel({token: i for i, token in enumerate([*special.values(), *words])}, unk_token=special["unk_token"])
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(list(special.values()))
    model.mkdir(parents=True, exist_ok=True)
    inner.save(str(model / "tokenizer.json"))
    (model / "config.json").write_text(json.dumps(case.config))
    (model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special}))
    with (folder / "prompts.jsonl").open("w", encoding="utf-8") as out:
        for _ in range(int(1.2 * case.prompts * (rounds + 1)) + 40):
            out.write(json.dumps({"prompt": " ".join(draw.choices(words, k=case.prompt_tokens)), "answer": "w7"}) + "\n")
    (folder / "rewards.py").write_text(REWARD.format(most=case.answer_tokens))


def our_sets(case: Case, engine: str, rounds: int, folder: Path, cpu: bool) -> list[str]:
    """Return what a case changes in the recipe `rl`."""
    stage = {
        "init_from": "random", "engine": engine, "prompts": case.prompts, "samples": case.samples,
        "prompt_tokens": case.prompt_tokens, "answer_tokens": case.answer_tokens, "mean_answer": 1.0, "temperature": 1.0,
        "mask_truncated": "false", "equal_rewards": "keep", "answers": "null", "learning_rate": RATE,
        "schedule": "{warmup_steps: 0, warmdown: 0.0, final: 1.0}", "reward": f"{folder / 'rewards.py'}:share",
        "compile": str(not cpu).lower(),
    }  # fmt: skip
    return [
        f"model.config={folder / 'model'}", f"model.sequence={case.packed * (case.prompt_tokens + case.answer_tokens)}",
        f"model.adapter={'null' if case.lora is None else f'{{rank: {case.lora}, alpha: {2 * case.lora}}}'}",
        f"data.corpus={{kind: prompts, files: [{folder / 'prompts.jsonl'}], template: plain}}", "data.validation=0.05",
        f"data.tokenizer={{kind: folder, path: {folder / 'model'}}}",
        "checkpoints.keep_hourly=false", "checkpoints.every=100000 steps", f"budget={{steps: {rounds}}}",
        *(f"stages.rl.{key}={value}" for key, value in stage.items()), *json.loads(os.environ.get("OUR_SETS", "[]")),
    ]  # fmt: skip


# The sides


def ours(case: Case, engine: str, folder: Path, rounds: int, cpu: bool) -> None:
    """Train as `windtunnel train` does on one GPU, but that no token ends an answer."""
    from windtunnel.launch import Options, train_run
    from windtunnel.recipe import load_recipe
    from windtunnel.rl import method
    from windtunnel.rl.learner import Learner

    class Told:
        def update(self, snapshot: Any) -> None:
            """Show nothing: metrics are read from the run's folder."""

        def say(self, text: str) -> None:
            print(text, flush=True)

        def close(self) -> None:
            """There is nothing to give back."""

    def never(recipe: Any, data: Any) -> frozenset[int]:
        return frozenset()

    method.answer_ends = never
    ended, inner = [0.0], Learner.step

    def timed(learner: Any, step: int, *given: Any) -> Any:
        began = ended[0] or time.time()
        found = inner(learner, step, *given)
        _wait()
        ended[0] = time.time()
        _append(folder / f"{engine}.jsonl", {"step": step, "began": began, "ended": ended[0], "seconds": ended[0] - began})
        return found

    Learner.step = timed  # type: ignore[assignment, method-assign]
    recipe = load_recipe("rl", our_sets(case, engine, rounds, folder, cpu))
    code, _ = train_run(recipe, Options(root=folder / engine, yes=True, price=1.0), Told())
    assert code == 0, f"windtunnel ended with {code}"


def trl(case: Case, folder: Path, rounds: int, cpu: bool) -> None:
    """Train with TRL's GRPOTrainer; a line of JSON for each round."""
    import torch
    import trl as package  # type: ignore[import-not-found]
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    settings = {key: value for key, value in case.config.items() if key not in ("architectures", "dtype")}
    dtype = torch.float32 if case.lora is None else torch.bfloat16
    torch.manual_seed(SEED)
    with torch.device("cpu" if cpu else "cuda"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=dtype)
    model.name_or_path = model.config._name_or_path = str(folder / "model")
    peft = None
    if case.lora is not None:
        from peft import LoraConfig

        peft = LoraConfig(r=case.lora, lora_alpha=2 * case.lora, target_modules="all-linear", task_type="CAUSAL_LM")
    longest = case.prompt_tokens + case.answer_tokens
    passes = case.prompts * case.samples // case.peer_batch
    if not cpu:
        _let_vllm_begin_empty()
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"), max_steps=rounds, learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0,
        per_device_train_batch_size=case.peer_batch, gradient_accumulation_steps=passes, steps_per_generation=passes,
        num_generations=case.samples, max_completion_length=case.answer_tokens, temperature=1.0, top_p=1.0, top_k=0,
        loss_type="dapo", beta=0.0, num_iterations=1, scale_rewards="group", mask_truncated_completions=False,
        vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=2.0,
        gradient_checkpointing=case.recompute, bf16=not cpu, use_cpu=cpu, optim="adamw_torch_fused", max_grad_norm=1.0,
        logging_steps=1, report_to="none", save_strategy="no", seed=SEED, use_vllm=not cpu, vllm_mode="colocate",
        vllm_max_model_length=longest, vllm_gpu_memory_utilization=float(os.environ.get("PEER_VLLM_MEMORY", "0.3")),
        generation_kwargs={"min_new_tokens": case.answer_tokens} if cpu else {"ignore_eos": True},
        dataloader_pin_memory=not cpu,
    )  # fmt: skip

    def share(completions: list[str], **_: Any) -> list[float]:
        return [sum(word.endswith("7") for word in answer.split()) / case.answer_tokens for answer in completions]

    parts: dict[str, float] = {}
    ended = [0.0]

    class Told(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            ended[0] = time.time()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "completions/mean_length" not in logs:
                return
            _wait()
            now = time.time()
            taken = now - ended[0]
            made = dict(parts)
            made["generating"] -= made.get("weights", 0.0)
            made["learning"] = taken - sum(made.values())
            _append(
                folder / "trl.jsonl",
                {"step": state.global_step, "began": ended[0], "ended": now, "seconds": taken, "parts": made,
                 "answer_tokens": logs["completions/mean_length"], "reward_deviation": logs.get("reward_std")},
            )  # fmt: skip
            ended[0] = now
            parts.clear()
            if state.global_step == 1:
                _write_holds(trainer, folder, package.__version__)

    trainer = GRPOTrainer(
        model=model, args=arguments, reward_funcs=share, peft_config=peft, callbacks=[Told()],
        train_dataset=Dataset.from_list([json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]),
        # Not AutoTokenizer, which would make a byte-level one of these words where the model is of Qwen's.
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder / "model", padding_side="left"),
    )  # fmt: skip
    _time(trainer, "_generate", "generating", parts)
    _time(trainer, "_calculate_rewards", "judging", parts)
    if not cpu:
        _time(trainer.vllm_generation, "sync_weights", "weights", parts)
    trainer.train()


def _let_vllm_begin_empty() -> None:
    """Have TRL's vLLM begin in bf16 without reading weights: TRL sends them before it asks."""
    from functools import partial

    from trl.generation import vllm_generation  # type: ignore[import-not-found]

    vllm_generation.LLM = partial(vllm_generation.LLM, load_format="dummy", dtype="bfloat16")


def _append(file: Path, line: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def _wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _time(owner: Any, name: str, part: str, parts: dict[str, float]) -> None:
    """Add the seconds of a method's calls to a part."""
    inner = getattr(owner, name)

    def timed(*given: Any, **named: Any) -> Any:
        _wait()
        began = time.perf_counter()
        found = inner(*given, **named)
        _wait()
        parts[part] = parts.get(part, 0.0) + time.perf_counter() - began
        return found

    setattr(owner, name, timed)


def _write_holds(trainer: Any, folder: Path, version: str) -> None:
    """Write the precision of what TRL holds, and its version."""
    every = list(trainer.model.parameters())
    moments = {str(v.dtype) for state in trainer.optimizer.state.values() for k, v in state.items() if k.startswith("exp_avg")}
    learned, frozen = ({str(p.dtype) for p in every if p.requires_grad is which} for which in (True, False))
    holds = {"learned": sorted(learned), "frozen": sorted(frozen), "moments": sorted(moments)}
    (folder / "trl.json").write_text(json.dumps({"holds": holds, "trl": version}))


# The comparison


def rounds_of(side: str, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rounds of a side so far, and what it holds."""
    file, told = folder / f"{side}.jsonl", folder / "trl.json"
    rounds = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if side == "trl":
        return rounds, json.loads(told.read_text()) if told.exists() else {}
    from windtunnel.recipe import UserError
    from windtunnel.run import MetricsReader, RunFolder, newest_run

    try:
        run = RunFolder.open(newest_run(folder / side))
        with MetricsReader(run.metrics_path) as reader:
            series = {name: {point.step: point.value for point in reader.series(name)} for name in METRICS}
    except (UserError, OSError):
        return [], {}
    found = []
    for one in rounds:
        value = {name: points[one["step"]] for name, points in series.items() if one["step"] in points}
        if "learning_seconds" not in value:  # metrics are written a little later
            break
        parts = round_parts(value, one["seconds"])
        found.append(one | {"parts": parts, "answer_tokens": value["answer_length"]} | value)
    plan, stage = run.manifest["plan"], run.recipe.rl
    assert stage is not None
    learned = "fp32 master weights" if stage.master else "bf16 weights"
    holds = {"learned": learned, "moments": stage.states, "layout": plan["layout"], "roles": plan.get("roles")}
    return found, {"holds": holds}


def summary(rounds: list[dict[str, Any]], meter: Meter, since: float) -> dict[str, Any]:
    """Return medians over the rounds behind the warm-up, the peak since the side began, and the idle share of each round."""
    for one in rounds:
        one["idle"] = meter.idle(one["began"], one["ended"])
    counted = rounds[WARM:]
    found: dict[str, Any] = {"rounds": len(rounds), "counted": len(counted), "peak_gb": meter.peak(since)}
    if counted:
        idle = [one["idle"] for one in counted if one["idle"] is not None]
        found |= {
            "seconds": statistics.median(one["seconds"] for one in counted),
            "parts": medians(counted),
            "first_round_after": rounds[0]["ended"] - since,
            "idle": statistics.fmean(idle) if idle else None,
        }  # fmt: skip
    return found


class Comparison:
    """Runs the sides of cases one after the other, each for its share of the time, and writes what is known so far."""

    def __init__(self, given: argparse.Namespace, folder: Path, bench: Bench) -> None:
        self._given, self._folder, self._bench = given, folder, bench

    def run(self, name: str) -> None:
        """Run the sides of a case."""
        case, given = CASES[name], self._given
        if given.peer_batch:
            case = replace(case, peer_batch=given.peer_batch)
        folder = self._folder / name
        write_case(case, folder, given.rounds)
        result = self._bench.found["results"][name] = {"case": asdict(case)}
        wanted = given.side or (["trl", "in-turn"] if given.cpu else list(case.sides))
        for side, seconds in self._bench.turns({side: share for side, share in case.sides.items() if side in wanted}):
            self._side(name, side, case, folder, seconds, result)

    def _side(self, name: str, side: str, case: Case, folder: Path, seconds: float, result: dict[str, Any]) -> None:
        """Run one side until it ends or its time is over."""
        given, bench = self._given, self._bench
        python = given.peer_python if side == "trl" else sys.executable
        words = [python, str(Path(__file__).resolve()), "side", side, name, str(folder), str(given.rounds), str(int(given.cpu))]
        before, log = bench.meter.now(), folder / f"{side}.log"

        def look(since: float) -> None:
            rounds, told = rounds_of(side, folder)
            if len(rounds) != result.get(side, {}).get("rounds"):
                result[side] = summary(rounds, bench.meter, since) | told | {"before_gb": before, "each": rounds}
                bench.write()

        ended = bench.run(Side(words, log, {"PEER_BATCH": str(case.peer_batch)}), seconds, look)
        state = result[side] = result[side] | {"took": ended.seconds, "ended": ended.how}
        if ended.code != 0:
            engines = sorted((folder / side).glob("*/logs/engine-*.log"))
            state["last_words"] = [ended.words, *(path.read_text(errors="replace")[-2000:] for path in engines)]
        bench.write()
        print(_line(name, side, state), flush=True)
        if ended.code not in (0, None):
            print("\n".join(state["last_words"])[-5000:], flush=True)


def _line(case: str, side: str, state: dict[str, Any]) -> str:
    if "seconds" not in state:
        return f"{case} {side}: {state['rounds']} rounds, none counted; {state['ended']}"
    parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in state["parts"].items())
    idle = "unknown" if state["idle"] is None else f"{state['idle']:.0%}"
    return (
        f"{case} {side}: {state['seconds']:.2f} s a round ({parts}), median of {state['counted']}; "
        f"peak {state['peak_gb']:.1f} GB, idle {idle}, first round after {state['first_round_after']:.0f} s; {state['ended']}"
    )


def main() -> None:
    """Compare, or be one side."""
    if sys.argv[1:2] == ["side"]:
        side, name, folder, rounds, cpu = sys.argv[2:7]
        leave_this_folder()
        for key, value in VLLM.items():
            os.environ.setdefault(key, value)
        more = Path(folder), int(rounds), cpu == "1"
        if side != "trl":
            return ours(CASES[name], side, *more)
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
        os.environ.update({} if cpu == "1" else alone)
        return trl(replace(CASES[name], peer_batch=int(os.environ["PEER_BATCH"])), *more)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--side", action="append", choices=["trl", "vllm", "in-turn"])
    parser.add_argument("--rounds", type=int, default=8 + WARM, help="of each side, with those of its warm-up")
    parser.add_argument("--seconds", type=float, default=460.0, help="that all may take")
    parser.add_argument("--peer-batch", type=int, help="answers of TRL's forward pass; the default is the case's")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--folder", type=Path, help="of prompts, runs and logs; the default is a temporary one")
    parser.add_argument("--cpu", action="store_true", help="a tiny model without vLLM")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="grpo-speed-") as temporary:
        found = {"command": " ".join(sys.argv), "machine": machine(gpu=not given.cpu) | {"weights": "random"}, "results": {}}
        with Bench(given.out, found, given.seconds, gpu=not given.cpu) as bench:
            comparison = Comparison(given, (given.folder or Path(temporary)).resolve(), bench)
            for name in given.case or ["tiny" if given.cpu else "smollm2-135m"]:
                comparison.run(name)
    return None


if __name__ == "__main__":
    main()
