"""Monitors: signs that a reward is gamed, or that the policy learns something else than what is asked, with what to do.

They are cheap, and none proves anything: each says what to read. What they are computed from is in `signs` and `drift`.
"""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.recipe import GRPO
from windtunnel.run import Finding

MONITORS: dict[str, str] = {
    "reward_by_length": "correlation of an answer's reward with its tokens among the answers to the same prompt, -1 to 1",
    "accepted_repeats": "share of accepted answers of some length that nearly repeat another one to the same prompt, 0 to 1",
    "accepted_elsewhere": "share of accepted answers of some length that nearly repeat one to another prompt, 0 to 1",
    "self_repeating": "share of long answers that say the same over and over: they shrink to a fifth when packed, 0 to 1",
    "form_alone": "share of what judges gave that answers got for their form (kind: format) and for nothing else, 0 to 1",
    "judges_apart": "one judge's reward rises while the share of right answers falls, over the last 16 rounds: the smaller of "
    "the two changes, in standard errors; 0 where they do not part",
    "held_out_apart": "training reward rises while the held-out share of right answers is below its best: the smaller of the "
    "two changes, in standard errors; 0 where they do not part",
    "kernel_share": "mean share of the task's work that accepted kernels do themselves, 0 to 1",
    "kernels_little": "share of accepted kernels that leave more than half of the task's work to PyTorch, 0 to 1",
    "cross_checked": "accepted answers that were judged once more, in another way",
    "cross_check_disagrees": "answers among them that were refused then; they are not learned from",
    "cross_check_fragile": "kernels among them that are wrong with inputs far beyond the task's own; they are learned from",
    "swapped_accepted": "share of answers that are accepted for another prompt, with another right answer, too, 0 to 1",
}
"""Metrics and what they mean. One that says nothing of a round, as too few answers do, is not there."""

BY_LENGTH, REPEATS, ELSEWHERE, REPEATING, FORM, LITTLE, SWAPPED = 0.7, 0.5, 0.2, 0.1, 0.8, 0.2, 0.5
JUDGES_APART, HELD_OUT_APART = 3.0, 2.0
PATIENCE, LONG_PATIENCE = 3, 10
"""Rounds; the longer one is for what an honest run does at first: it learns the form before the answer."""
READ = "read RUN/rollouts"


def monitor_findings(metrics: Mapping[str, float], stage: GRPO) -> list[Finding]:
    """Judge the monitors of a round; one that is not there is not judged.

    Args:
        metrics: by name.
        stage: whose keys the advice names.
    """
    key = f"stages.{stage.name or 'rl'}"
    held = "training reward rises while fewer held-out answers are right than at best, by {value:.1f} standard errors"
    found = [
        _above(metrics, "reward_by_length", BY_LENGTH, "reward goes with length: their correlation is {value:.2f}", PATIENCE,
               f"{READ}, the longest answers first: judges that pay for length need a limit, or a penalty beside them (kind: "
               f"function, weight below 0); {key}.answer_tokens bounds it"),
        _above(metrics, "accepted_repeats", REPEATS, "{value:.0%} of the accepted answers repeat another one to the same prompt",
               PATIENCE, f"the policy has settled on one answer: look at `entropy`; then harder prompts, a higher "
               f"{key}.temperature, or {key}.clip_higher"),
        _above(metrics, "accepted_elsewhere", ELSEWHERE, "{value:.0%} of the accepted answers repeat one to another prompt",
               PATIENCE, f"{READ}: one text that is right of different prompts is a hole in the judge, or the prompts are the "
               "same; windtunnel verify tries a judge on one answer"),
        _above(metrics, "self_repeating", REPEATING, "{value:.0%} of the long answers say the same over and over", PATIENCE,
               f"{READ}: a policy that loops was pushed too far; lower {key}.learning_rate, go back to a checkpoint before, or "
               f"leave cut answers out ({key}.mask_truncated=true)"),
        _above(metrics, "form_alone", FORM, "{value:.0%} of the reward is for form alone", LONG_PATIENCE,
               f"the policy learns how answers look and not what is right: a smaller weight of kind: format in {key}.rewards, "
               "easier prompts, or fine-tuning first"),
        _above(metrics, "judges_apart", JUDGES_APART, "a judge's reward rises while fewer answers are right, by {value:.1f} "
               "standard errors", 1, f"compare `right` with `reward_math`, `reward_format` … in windtunnel watch: what rises is "
               f"gamed or weighs too much; lower its weight in {key}.rewards"),
        _above(metrics, "held_out_apart", HELD_OUT_APART, held, 2, f"{READ} against the held-out answers: the reward is gamed "
               "or the prompts are learned by heart; take the best checkpoint, more prompts, or mend the judge"),
        _above(metrics, "kernels_little", LITTLE, "{value:.0%} of the accepted kernels leave most of the work to PyTorch",
               PATIENCE, f"{READ}: such kernels are right and worth little; tasks that do not say `operations: any` refuse them, "
               "and a reward for speed (speed: true) tells them apart"),
        _above(metrics, "cross_check_disagrees", 0, "{value:.0f} accepted answer(s) were refused when they were judged once more",
               1, "read RUN/rollouts/disagreed-*.jsonl, which say why: one of the two judgements is wrong; until it is mended "
               f"learn from none such ({key}.cross_check=1)"),
        _above(metrics, "swapped_accepted", SWAPPED, "{value:.0%} of the answers tried are accepted for another prompt too",
               PATIENCE, f"the first judge accepts whatever was asked: {READ}, and see {key}.rewards (its `key`, and `where` it "
               "looks in an answer); of a judge that is not meant to compare with the right answer this says nothing"),
    ]  # fmt: skip
    return [one for one in found if one is not None]


def _above(metrics: Mapping[str, float], name: str, limit: float, words: str, patience: int, advice: str) -> Finding | None:
    value = metrics.get(name)
    if value is None:
        return None
    message = words.format(value=value) if value > limit else None
    # `early`: a run has few rounds, and a gamed reward shows in the first ones.
    return Finding(BANDS.get(name, name), "warn", message, patience, advice=advice, early=True)


BANDS: dict[str, str] = {"cross_check_disagrees": "cross_check"}
"""A band's name where it is not its metric's."""
