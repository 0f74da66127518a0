"""Plans for GRPO: learners and engines, what fits, what a round takes, and what is refused."""

import json
from dataclasses import replace

import pytest

from windtunnel.launch.trainable import require_policy
from windtunnel.model import hf_shape
from windtunnel.plan import Plan, lines, make_plan
from windtunnel.plan.constants import HFConstants, load_hf_constants
from windtunnel.plan.judging import CORE_SECONDS, JUDGE_GIB, MOST_WORKERS, REPLAYED_KERNELS, judge_answers
from windtunnel.plan.rollout import plan_engines, sync_seconds
from windtunnel.plan.sharing import grpo_workload
from windtunnel.recipe import MEGATRON, OWN_ENGINE, Recipe, UserError, load_recipe, stage_recipe
from windtunnel.rig import parse_rig
from windtunnel.rl.engine_share import engines_of


def rl(*overrides: str) -> Recipe:
    return load_recipe("rl", overrides)


def plan(rig: str, *overrides: str) -> Plan:
    return make_plan(rl(*overrides), parse_rig(rig))


def apart(learners: int, *more: str) -> tuple[str, ...]:
    return (f"stages.rl.learners={learners}", *more)


@pytest.mark.parametrize("rig", ["H200", "8xH100", "2x(8xH100)", "8x(4xGH200)"])
def test_plans_are_whole(rig: str) -> None:
    made = plan(rig)
    assert made.fits, made.reasons
    assert made.method == "grpo"
    json.dumps(made.to_json(), allow_nan=False)
    learner, engine = made.roles["learner"], made.roles["engine"]
    assert learner.components == made.components
    assert made.layout.ranks == learner.gpus
    assert engine.gpus % engine.layout.tensor == 0
    assert engine.peak_gib == pytest.approx(engine.limit_gib)
    assert engine.facts["sequences_at_once"] >= engine.facts["longest_sequences_at_once"] >= 1
    assert made.step_seconds == pytest.approx(sum(made.step_terms.values()) - made.hidden_seconds)
    assert made.steps == 200
    assert all(value >= 0 for value in [*made.step_terms.values(), *made.startup.values()])
    assert all(label and value for label, value, _ in lines(made))


def test_seven_billion_need_two_learners_of_95_gb_and_32_billion_need_eight() -> None:
    assert not plan("2x(4xGH200)", *apart(1)).fits
    two = plan("2x(4xGH200)", *apart(2))
    assert two.fits
    assert two.roles["engine"].layout.tensor == 1
    large = ("model.config=qwen2.5-32b", "stages.rl.engine_memory=0.55")
    assert not plan("8x(4xGH200)", *apart(4), *large).fits
    eight = plan("8x(4xGH200)", *apart(8), *large)
    assert eight.fits
    assert eight.roles["engine"].layout.tensor in (2, 4), "61 GiB of weights do not fit 52 GiB of one GPU"


def test_refusals_say_who_lacks_what_and_what_works() -> None:
    made = plan("2x(4xGH200)", *apart(1))
    assert made.reasons[0].startswith("learners: ")
    assert "91.4 GB" in made.reasons[0]
    for alternative in made.alternatives:
        words = alternative.change.replace("'", "").split()
        sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        rig = next((words[i + 1] for i, word in enumerate(words) if word == "--rig"), "2x(4xGH200)")
        assert plan(rig, *apart(1), *sets).fits, alternative
    engines = plan(
        "8x(4xGH200)", *apart(8), "model.config=qwen2.5-32b", "stages.rl.engine_memory=0.55", "stages.rl.engine_tensor=1"
    )
    assert not engines.fits
    assert "engines: 65.5 GB" in engines.reasons[0]


@pytest.mark.parametrize(
    ("rig", "overrides", "says"),
    [
        ("8xH100", apart(6, "stages.rl.engines=4"), ("8 GPUs", "learners=6", "engines=4")),
        ("H100", apart(1, "stages.rl.engines=1"), ("1 GPUs", "null")),
        ("H100", ("stages.rl.overlap=true",), ("overlap", "overlap=0")),
        ("8xH100", ("stages.rl.answer_tokens=16384",), ("model.sequence", "16,896")),
        ("8xH100", apart(4, "stages.rl.engine_tensor=3"), ("engine_tensor: 3", "28")),
        ("8xH100", ("stages.rl.engine_tensor=8",), ("engine_tensor: 8", "28 heads")),
        ("2x(4xH100)", apart(5, "stages.rl.prompts=65"), ("5 GPUs", "nodes of 4")),
        ("8xH100", apart(3), ("learners: 3", "64 prompts", "learners=2", "prompts=66")),
    ],
)
def test_contradictions_are_refused(rig: str, overrides: tuple[str, ...], says: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        plan(rig, *overrides)
    for word in says:
        assert word in str(error.value), error.value


def test_without_a_choice_all_gpus_take_turns_or_are_split() -> None:
    made = plan("8xH100")
    assert any("take turns on all 8 GPUs" in note or "GPUs learn" in note for note in made.notes)
    assert made.step_seconds <= min(plan("8xH100", *apart(n)).step_seconds for n in (2, 4))


def test_a_prime_number_of_sequences_is_not_taken_one_by_one() -> None:
    small = ("model.config=smollm2-135m-instruct", "model.sequence=2048", "stages.rl.answer_tokens=1024", "stages.rl.samples=8")

    def sequences(prompts: int) -> int:
        work = grpo_workload(rl(*small, f"stages.rl.prompts={prompts}"), HFConstants())
        return work.batch_tokens // work.sequence

    prompts = next(n for n in range(1, 200) if sequences(n) == 67)
    made = plan("H100", *small, f"stages.rl.prompts={prompts}")
    layout = made.layout
    assert layout.micro_batch > 4
    assert 67 <= layout.micro_batch * layout.accumulation < 67 + layout.micro_batch
    assert layout.recompute == "none"
    assert any("about 67 sequences an update" in note for note in made.notes)
    given = plan("H100", *small, f"stages.rl.prompts={prompts}", "stages.rl.micro_batch=4").layout
    assert (given.micro_batch, given.accumulation) == (4, 17)
    # Fine-tuning takes whole micro-batches of its data: there the batch would be another one.
    tuning = ("model.config=smollm2-135m-instruct", "model.sequence=2048", f"stages.sft.batch_tokens={67 * 2048}")
    with pytest.raises(UserError, match="does not divide the 67 sequences"):
        make_plan(load_recipe("sft", [*tuning, "stages.sft.micro_batch=4"]), parse_rig("H100"))


def test_learners_share_the_prompts_of_a_round_evenly() -> None:
    for rig, prompts in (("6xH100", 32), ("3x(4xH100)", 32), ("7xH100", 15)):
        made = plan(rig, f"stages.rl.prompts={prompts}")
        assert prompts % made.layout.ranks == 0, rig


def test_on_one_gpu_vllm_keeps_a_part_of_its_memory_beside_the_learner() -> None:
    small = ("model.config=smollm2-135m-instruct", "stages.rl.prompts=32", "stages.rl.samples=8")
    made = plan("H100", "stages.rl.engine=vllm", *small)
    learner, engine = made.roles["learner"], made.roles["engine"]
    assert made.fits
    assert any("share the GPU" in note for note in made.notes)
    assert engine.components["learner"] == pytest.approx(learner.peak_gib)
    kept = sum(gib for name, gib in engine.components.items() if name not in ("learner", "context"))
    assert engine.facts["memory_share"] == pytest.approx(kept / 79.1, rel=0.01)
    assert learner.peak_gib + kept + engine.components["context"] < engine.limit_gib
    # As much cache as a round's answers can fill, and no more: 256 of them here.
    assert 256 <= engine.facts["longest_sequences_at_once"] < 300


@pytest.mark.parametrize("more", [("stages.rl.engine=vllm", "stages.rl.overlap=1"), ("stages.rl.engine=transformers",)])
def test_other_engines_are_refused_on_one_gpu(more: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="needs GPUs for engines beside those of learners"):
        plan("H100", "model.config=smollm2-135m-instruct", *more)


def test_overlap_hides_the_shorter_part_and_is_one_round_stale() -> None:
    one_after_the_other, beside = plan("8xH100", *apart(4)), plan("8xH100", *apart(4), "stages.rl.overlap=true")
    assert beside.step_seconds < 0.9 * one_after_the_other.step_seconds
    assert beside.step_seconds >= beside.step_terms["generation"]
    assert beside.roles["engine"].facts["stale_rounds"] == 1
    assert one_after_the_other.roles["engine"].facts["stale_rounds"] == 0


def test_longer_answers_take_longer_and_fewer_fit() -> None:
    rounds = [plan("8xH100", *apart(4), f"stages.rl.answer_tokens={n}") for n in (1024, 2048, 4096)]
    seconds = [made.step_terms["generation"] for made in rounds]
    at_once = [made.roles["engine"].facts["sequences_at_once"] for made in rounds]
    assert seconds == sorted(seconds)
    assert at_once == sorted(at_once, reverse=True)


def test_a_reference_policy_takes_memory_and_a_pass() -> None:
    without, beside = plan("8xH200", *apart(4)), plan("8xH200", *apart(4), "stages.rl.reference=true")
    assert "reference" in beside.components
    assert beside.step_terms["log-probabilities"] > 0
    assert "log-probabilities" not in without.step_terms


def test_an_engine_is_as_fast_and_starts_as_slowly_as_vllm_did() -> None:
    """vLLM 0.25.1 on one H200, a random 7 B model: 512 sequences at 29,000 tokens/s, start 80 s."""
    stage = rl("stages.rl.prompts=512", "stages.rl.samples=2", "stages.rl.prompt_tokens=128", "stages.rl.answer_tokens=256",
               "stages.rl.mean_answer=1.0").rl  # fmt: skip
    assert stage is not None
    stage = stage.model_copy(update={"prompts": 256})
    engine = plan_engines(hf_shape("qwen2.5-7b"), stage, parse_rig("H200"), 1, load_hf_constants("H200"))
    assert 512 * 256 / engine.decode == pytest.approx(29_000, rel=0.15)
    made = plan("H200")
    beside = sum(seconds for name, seconds in made.startup.items() if "held-out" in name)
    start = sum(made.startup.values()) - made.startup["last checkpoint"] - beside
    assert start == pytest.approx(80, rel=0.25)


PUBLISHED = [
    ("qwen2.5-32b", "bf16", "4x(8xH200)", (1.0, 18.0)),
    ("qwen3-30b-a3b", "bf16", "4x(8xH200)", (0.7, 12.0)),
    ("deepseek-v3", "fp8", "32x(8xH200)", (8.0, 40.0)),
]


@pytest.mark.parametrize(("model", "weights", "rig", "published"), PUBLISHED)
def test_weight_sync_lies_among_published_times(model: str, weights: str, rig: str, published: tuple[float, float]) -> None:
    stage = rl(f"stages.rl.engine_weights={weights}").rl
    assert stage is not None
    seconds = sync_seconds(hf_shape(model), stage, parse_rig(rig), True, HFConstants())
    assert published[0] <= seconds <= published[1]


LONG = ["budget.steps=1000"]


def test_what_is_offered_fits_the_disk_too() -> None:
    made = make_plan(load_recipe("rl", LONG), parse_rig("g5.12xlarge"))
    assert len(made.reasons) > 1
    assert "disk" in made.reasons[-1]
    offered = [a.change for a in made.alternatives if not a.elsewhere]
    assert offered
    for change in offered:
        assert make_plan(load_recipe("rl", [*LONG, *change.replace("--set ", "").split()]), parse_rig("g5.12xlarge")).fits, change


def test_a_round_on_this_machines_cpu_takes_turns_and_says_what_does_nothing() -> None:
    """On a machine without a GPU; 'here' may have one."""
    here = replace(parse_rig("H200"), name="here", gpu=None, gpus_per_node=0, ram_gib=128.0, cpu_gflops=100.0)
    small = ("model.config=qwen3-0.6b", "model.sequence=1024", "stages.rl.answer_tokens=256")
    made = make_plan(rl(*small, "stages.rl.clip_higher=0.28"), here)
    assert (made.method, made.roles, made.fits) == ("grpo", {}, True)
    assert 0 < made.step_terms["generation"] < made.step_seconds
    assert any("clip_higher=0.28 does nothing" in warning for warning in made.warnings)
    two = make_plan(rl(*small, "stages.rl.clip_higher=0.28", "stages.rl.updates=2"), here)
    assert two.warnings == ()
    assert two.step_terms["log-probabilities"] > 0
    whole = make_plan(rl(*small, "stages.rl.loss=gspo", "stages.rl.updates=2"), here)
    assert whole.step_terms["log-probabilities"] == pytest.approx(1.5 * two.step_terms["log-probabilities"])
    assert any("gspo is grpo" in warning for warning in make_plan(rl(*small, "stages.rl.loss=gspo"), here).warnings)
    json.dumps(made.to_json(), allow_nan=False)


def test_judging_is_counted_and_hidden_only_where_no_gpu_is_shared() -> None:
    kernels = ("stages.rl.rewards=[{kind: kernel, key: task}]", "stages.rl.cross_check=0")
    twice = "[{kind: kernel, key: task, tokens: code}, {kind: kernel, key: task, speed: true, tokens: plan}]"
    timed, free = plan("8xH100", *kernels), plan("8xH100", "stages.rl.rewards=[{kind: exact}]")
    assert "judging" not in free.step_terms
    assert plan("8xH100", f"stages.rl.rewards={twice}", kernels[1]).step_terms["judging"] == timed.step_terms["judging"]
    assert timed.step_terms["judging"] == pytest.approx(512 / REPLAYED_KERNELS.per_second)
    assert judge_answers(rl(*kernels).rl, parse_rig("8xH100"), 1).hidden == 0
    assert timed.step_seconds == pytest.approx(sum(timed.step_terms.values()) - timed.hidden_seconds)
    assert plan("2x(8xH100)", *kernels).step_terms["judging"] == pytest.approx(256 / REPLAYED_KERNELS.per_second)
    code = plan("8xH100", "stages.rl.rewards=[{kind: code}]")
    assert code.hidden_seconds > free.hidden_seconds
    assert code.step_seconds == pytest.approx(free.step_seconds)
    assert any("exact is not counted" in note for note in free.notes)


def test_judges_of_kernels_keep_memory_of_the_learners_gpu() -> None:
    small = (
        "model.config=smollm2-135m-instruct",
        "model.sequence=2048",
        "stages.rl.answer_tokens=1024",
        "stages.rl.engine=in-turn",
    )
    free, judged = (plan("H100", *small, f"stages.rl.rewards=[{{kind: {kind}}}]") for kind in ("exact", "kernel, key: task"))
    assert judged.limit_gib == pytest.approx(free.limit_gib - 8 * JUDGE_GIB)
    assert judged.peak_gib <= judged.limit_gib
    metrics = (f"stages.sft.answers.metric={name}" for name in ("exact", "kernel"))
    few, many = (make_plan(load_recipe("finetune", [metric]), parse_rig("H100")) for metric in metrics)
    assert many.limit_gib == pytest.approx(few.limit_gib - 2 * JUDGE_GIB)


def test_cross_checks_are_judgements_of_the_first_judge_and_at_least_one_of_each_learner() -> None:
    rig = parse_rig("8xH100")

    def judging(*sets: str, learners: int = 1, answers: int | None = None) -> float:
        stage = rl("stages.rl.rewards=[{kind: kernel, key: task}, {kind: code}]", *sets).rl
        assert stage is not None
        return judge_answers(stage, rig, learners, answers).seconds

    each = 1 / REPLAYED_KERNELS.per_second
    without = judging("stages.rl.cross_check=0")
    assert without == pytest.approx(512 * each)
    # Each is asked another way, and for another prompt.
    assert judging("stages.rl.cross_check=0.5") - without == pytest.approx(2 * 256 * each)
    assert judging("stages.rl.cross_check=0.001", learners=4) - without == pytest.approx(2 * 4 * each)
    assert judging("stages.rl.cross_check=0.5", answers=64) == pytest.approx(64 * each), "held-out answers are judged once"
    assert any("stages.rl.cross_check=0.02" in note for note in plan("8xH100", "stages.rl.rewards=[{kind: math}]").notes)


@pytest.mark.parametrize("rig", ["8xH100", "here"])
def test_held_out_prompts_take_their_time_before_the_first_round_between_rounds_and_at_the_end(rig: str) -> None:
    small = ("model.config=smollm2-135m-instruct", "model.sequence=2048", "stages.rl.answer_tokens=256", "budget.steps=100")
    rewards = "stages.rl.rewards=[{kind: math}]"
    without = plan(rig, *small, rewards, "stages.rl.answers=null")
    asked = plan(rig, *small, rewards, "stages.rl.answers={every: 10 steps, prompts: 256}")
    once = asked.startup["held-out answers at the end"]
    assert asked.startup["held-out answers before the first round"] == once
    assert once > 256 * CORE_SECONDS["math"] / MOST_WORKERS, "their judging alone"
    assert asked.steps == without.steps == 100
    assert asked.step_seconds == without.step_seconds
    assert 3600 * (asked.hours - without.hours) == pytest.approx(once * (2 + 100 / 10))
    assert "every 10 steps" in asked.sources["hours"]
    assert not any("held-out" in name for name in without.startup)


LARGE = "model.config=qwen2.5-32b"
INT8 = "stages.rl.states=int8"


def test_without_engines_a_copy_that_answers_is_counted_of_every_learner() -> None:
    """Rounds are answered by it too: without held-out prompts it is there all the same."""
    for more in ((), ("stages.rl.answers=null",)):
        made = plan("8xH200", LARGE, "layout.shard=full", "stages.rl.prompts=32", *more)
        learner = made.roles["learner"]
        assert learner.gpus == 8
        assert learner.peak_gib == pytest.approx(sum(learner.components.values()))
        copy = 2 * hf_shape("qwen2.5-32b").parameters / 2**30
        assert copy < learner.components["answers"] < 1.2 * copy
        assert any("a copy of all weights on every learner" in note for note in made.notes)
    assert not any("engine=vllm" in note for note in plan("8xH100", "model.config=qwen2.5-1.5b").notes)


@pytest.mark.parametrize("more", [(), ("stages.rl.overlap=1",), ("stages.rl.engine=transformers",)])
def test_engines_answer_held_out_prompts_and_no_learner_holds_a_copy(more: tuple[str, ...]) -> None:
    sets = ("model.config=qwen2.5-7b", "stages.rl.engine=vllm", *more)
    asked, without = plan("8xH100", *sets), plan("8xH100", *sets, "stages.rl.answers=null")
    assert asked.components == without.components
    assert asked.step_seconds == without.step_seconds
    once = asked.startup["held-out answers at the end"]
    assert once > asked.step_terms["weight sync"]
    many = plan("8xH100", *sets, "stages.rl.answers.prompts=1024")
    assert many.startup["held-out answers at the end"] > once


@pytest.mark.parametrize(
    ("rig", "learners", "more"),
    [("4x(4xH100)", 8, (INT8,)), ("8xH200", 4, (INT8,)), ("4x(8xH100)", 16, ()), ("2x(8xH200)", 8, ())],
)
def test_thirty_two_billion_get_a_layout_that_train_runs(rig: str, learners: int, more: tuple[str, ...]) -> None:
    """FSDP2 beside vLLM; each learner has an engine of its own."""
    sets = ("stages.sft=null", LARGE, "stages.rl.engine=vllm", *more)
    recipe = load_recipe("grpo", sets)
    made = make_plan(stage_recipe(recipe, "rl"), parse_rig(rig))
    assert made.fits, made.reasons
    assert made.layout.engine == OWN_ENGINE
    assert (made.layout.ranks, made.layout.shard) == (learners, "full")
    assert "answers" not in made.components
    assert not any("cannot run this plan" in note for note in made.notes)
    assert recipe.rl is not None
    share = engines_of(recipe.rl, made.to_json(), made.layout.ranks)
    assert share.count >= learners
    assert learners + share.count * share.tensor <= parse_rig(rig).gpus
    require_policy(stage_recipe(recipe, "rl").rl)  # type: ignore[arg-type]


@pytest.mark.parametrize("rig", ["4x(4xH100)", "8xH100"])
def test_what_does_not_fit_in_turn_is_offered_with_engines(rig: str) -> None:
    made = plan(rig, LARGE, "stages.rl.prompts=32")
    assert not made.fits
    assert made.layout.engine == OWN_ENGINE
    assert not any("answers=null" in option.change or "offload" in option.change for option in made.alternatives)
    if rig == "4x(4xH100)":
        assert any("engine=vllm" in option.change for option in made.alternatives), made.alternatives


def test_engines_that_are_fewer_than_learners_are_refused_as_train_refuses_them() -> None:
    with pytest.raises(UserError, match=r"2 GPU.s. for the engines of 4 learners"):
        plan("8xH100", "stages.rl.engine=vllm", *apart(4, "stages.rl.engines=2"))
    with pytest.raises(UserError, match="engine_tensor: 2 GPUs for each engine, and 4"):
        plan("8xH100", "stages.rl.engine=vllm", *apart(4, "stages.rl.engine_tensor=2"))


def test_a_split_layout_is_planned_where_the_recipe_asks_for_it_and_is_said_not_to_run() -> None:
    made = plan("2x(8xH200)", LARGE, "stages.rl.engine=vllm", "layout.tensor=8")
    assert made.layout.engine == MEGATRON
    assert any("cannot run this plan" in note and "launch" not in note for note in made.notes)
