"""What evaluating and predicting take: with the package's own decoder, which is what those commands use."""

from __future__ import annotations

import pytest

from windtunnel.model import hf_shape
from windtunnel.plan import Step, load_hf_constants, make_plan, plan_job
from windtunnel.plan.answering import SHARED_LAYER_SECONDS, Answering, plan_answering
from windtunnel.plan.job import Questions
from windtunnel.recipe import load_recipe
from windtunnel.rig import Rig, parse_rig


def answering(rig: str, model: str = "deepseek-v3", *, prompts: int = 1000, scored: bool = True) -> Answering:
    on = parse_rig(rig)
    questions = Questions(prompts, 320, "bf16", prompt_tokens=240)
    shared = model == "deepseek-v3"
    return plan_answering(
        hf_shape(model), questions, on, load_hf_constants(on.gpu.name if on.gpu else ""), shared=shared, scored=scored
    )


def predictions(rig: str, *sets: str, name: str = "thesis") -> list[Step]:
    recipe, on = load_recipe(name, sets), parse_rig(rig)
    job = plan_job(recipe, on, [("sft", make_plan(recipe, on))])
    assert job is not None
    return [step for step in job.steps if step.name == "predict"]


def test_passes_are_those_of_prompts_steps_and_probabilities() -> None:
    made = answering("8xH200")
    assert (made.ranks, made.at_once) == (8, 32)
    # Seven groups of 128 and one of 104: 32 begin, others follow as some end after 160 steps, the last take 320.
    steps = 7 * (96 / 32 * 160 + 320) + (72 / 32 * 160 + 320)
    assert (made.prompts, made.steps) == (3000, pytest.approx(steps))
    assert made.seconds == pytest.approx(made.prompts * made.prompt_seconds + made.steps * made.step_seconds)
    plain = answering("8xH200", scored=False)
    assert (plain.prompts, plain.steps) == (1000, pytest.approx(968 / 32 * 160 + 320))
    assert answering("8xH200", prompts=4).at_once == 4


def test_experts_lie_on_all_gpus_of_a_node_and_the_rest_on_each() -> None:
    shape = hf_shape("deepseek-v3")
    made = answering("8xH200")
    held = 2 * (shape.parameters - shape.expert_parameters) + shape.expert_parameters / 8
    assert made.weights_gib == pytest.approx(held / 2**30, rel=1e-3)
    # A pass reads all that is not experts, and of these those that some token chose: nearly two thirds where 32 choose 8 of 256.
    experts = shape.expert_parameters / 8
    assert made.step_seconds > (held - 0.37 * experts) / 4.8e12
    # Rows of each layer's experts travel between GPUs, as measured on two; one GPU has none to wait for.
    exchange = shape.layers * SHARED_LAYER_SECONDS
    assert made.prompt_seconds > made.step_seconds - exchange > 0


def test_many_tokens_a_pass_have_the_weights_written_in_bf16_first() -> None:
    on, constants = parse_rig("8xH200"), load_hf_constants("H200")

    def plan(prompt_tokens: int, on: Rig = on) -> Answering:
        questions = Questions(100, 320, "bf16", prompt_tokens=prompt_tokens)
        return plan_answering(hf_shape("deepseek-v3"), questions, on, constants, shared=True, scored=False)

    experts = hf_shape("deepseek-v3").expert_parameters / 8
    assert plan(900).prompt_seconds + 5 * experts / 4.8e12 < plan(1100).prompt_seconds
    # So has every pass on a GPU that knows no e4m3.
    assert plan(900, parse_rig("8xA100")).step_seconds > 7 * experts / 2.04e12
    assert not answering("8xH100").fits
    assert not answering("2x(8xH100)").fits  # the ranks that answer are of one node


def test_a_model_that_a_gpu_holds_is_read_there_once_a_token() -> None:
    made = answering("8xH200", "qwen2.5-7b")
    assert (made.ranks, made.at_once) == (1, 32)
    assert made.weights_gib == pytest.approx(2 * hf_shape("qwen2.5-7b").parameters / 2**30)
    # 7.0 ms were measured of a step of 64 sequences on an H100 (benchmarks/results/generating-7b-h100.json).
    assert 1 <= answering("H100", "qwen2.5-7b").step_seconds / 7.0e-3 < 1.6


def test_a_job_is_priced_at_what_its_commands_reach() -> None:
    few, many = predictions("8xH200@$40/h")
    assert few.hours is not None
    assert many.hours is not None
    own = answering("8xH200", prompts=10_000)
    assert many.hours * 3600 == pytest.approx(own.seconds, rel=0.05)
    assert few.hours < many.hours < 10 * few.hours
    assert many.dollars == pytest.approx(40 * many.hours)
    assert "8 GPUs that share the experts" in few.source


def test_what_the_commands_cannot_hold_is_said_to_need_an_engine() -> None:
    few, _ = predictions("8xH100", "model.config=llama-3.1-70b", name="finetune")
    assert few.fits
    assert "`windtunnel evaluate` itself cannot hold the model" in few.source
    assert "vLLM" in few.source
