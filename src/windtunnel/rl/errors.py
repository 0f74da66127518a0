"""What can go wrong between learners and engines. Each is an error of its own, so that a loop can act on it."""

from __future__ import annotations

from windtunnel.recipe import UserError


class BrokenSnapshot(Exception):
    """Published weights are not whole, not those that were published, or not those of the engine's model. Nothing was loaded."""


class DifferentScores(BrokenSnapshot):
    """An engine took all of the weights and computes something else with them."""


class StaleWeights(Exception):
    """An engine has other weights than were asked for, or older ones than are allowed."""


class EngineFailed(Exception):
    """An engine's process ended, or did not answer in time."""


class EngineSilent(EngineFailed):
    """An engine's process did not answer in time."""


class DifferentSampler(UserError):
    """What samples computes another model than the learner: nothing is wrong with the recipe's form."""

    exit_code = 1
