"""Reinforcement learning: how learners publish their weights and engines take them. torch is imported on use."""

from typing import TYPE_CHECKING

from windtunnel import lazy

from .errors import BrokenSnapshot, EngineFailed, StaleWeights

if TYPE_CHECKING:
    from .batches import micro_batches, pack
    from .canary import TOLERANCE, Canary, score
    from .cross_check import Checked
    from .curriculum import Levels
    from .engine import Answers, InferenceEngine, Receipt, Scores, Serving
    from .engine_process import EngineProcess
    from .engine_share import EngineShare, engines_of
    from .engines import Engines
    from .evaluation import evaluate_trained
    from .judges import Reward, first_judge
    from .learner import Learner
    from .link import Link
    from .loss import LossSettings, PolicyLoss, Tokens, answer_means, token_losses
    from .method import Reinforcement, train_policy
    from .mismatch import Mismatch, measure_mismatch
    from .placed_rewards import start_judges
    from .rewards import Rewards
    from .rewards import combine as combine_verdicts
    from .rollouts import Collector, Round, Sample, all_equal, group_advantages
    from .send import Held, WeightSender
    from .snapshot import Publisher, newest_snapshot, open_snapshot
    from .sync import Offer, offer_weights, publish_base, publish_weights, require_fresh, send_weights
    from .trial import made_up_samples, run_learner_trial
    from .vllm_python import VLLM_VERSIONS, has_vllm, known_vllm, require_vllm, vllm_version

__all__ = [
    "TOLERANCE",
    "VLLM_VERSIONS",
    "Answers",
    "BrokenSnapshot",
    "Canary",
    "Checked",
    "Collector",
    "EngineFailed",
    "EngineProcess",
    "EngineShare",
    "Engines",
    "Held",
    "InferenceEngine",
    "Learner",
    "Levels",
    "Link",
    "LossSettings",
    "Mismatch",
    "Offer",
    "PolicyLoss",
    "Publisher",
    "Receipt",
    "Reinforcement",
    "Reward",
    "Rewards",
    "Round",
    "Sample",
    "Scores",
    "Serving",
    "StaleWeights",
    "Tokens",
    "WeightSender",
    "all_equal",
    "answer_means",
    "combine_verdicts",
    "engines_of",
    "evaluate_trained",
    "first_judge",
    "group_advantages",
    "has_vllm",
    "known_vllm",
    "made_up_samples",
    "measure_mismatch",
    "micro_batches",
    "newest_snapshot",
    "offer_weights",
    "open_snapshot",
    "pack",
    "publish_base",
    "publish_weights",
    "require_fresh",
    "require_vllm",
    "run_learner_trial",
    "score",
    "send_weights",
    "start_judges",
    "token_losses",
    "train_policy",
    "vllm_version",
]

__getattr__ = lazy(__name__)
