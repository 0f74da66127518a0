"""The recipe's reward as a process that can be asked, and the examples it is judged by."""

from __future__ import annotations

from pathlib import Path

from .context import Context
from .reward_examples import Example, made_examples, read_examples
from .reward_process import CALL_SECONDS, RewardFailed, RewardProcess
from .types import CheckFailed


def is_rl(context: Context) -> bool:
    """Whether the recipe does reinforcement learning."""
    return context.recipe.rl is not None


def has_reward(context: Context) -> bool:
    """Whether the recipe names a reward."""
    return context.recipe.rl is not None and context.recipe.rl.reward is not None


def plugin(context: Context) -> tuple[Path, str]:
    """(file, function) of the reward."""
    rl = context.recipe.rl
    assert rl is not None
    assert rl.reward is not None
    file, _, function = rl.reward.rpartition(":")
    return Path(file).expanduser(), function


def open_reward(context: Context, call_seconds: float = CALL_SECONDS) -> RewardProcess:
    """The reward, loaded. Raises CheckFailed when it cannot be."""
    file, function = plugin(context)
    if not file.is_file():
        raise CheckFailed(
            f"stages.rl.reward: {file} " + ("is a directory" if file.is_dir() else f"does not exist (looked in {Path.cwd()})"),
            "give the file's path from the recipe's folder, and ship it with the job",
        )
    try:
        return RewardProcess(file, function, context.folder, call_seconds=call_seconds)
    except RewardFailed as error:
        raise CheckFailed(f"stages.rl.reward {file}: {error}") from None


def examples(context: Context) -> list[Example]:
    """The user's, or made ones. Raises CheckFailed for a file that holds none."""
    rl = context.recipe.rl
    given = rl.reward_examples if rl is not None else None
    return read_examples(Path(given).expanduser()) if given else list(made_examples(context.recipe))
