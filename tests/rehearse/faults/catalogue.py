"""Every fault."""

from __future__ import annotations

import faults_data
import faults_environment
import faults_later
import faults_recipe
import faults_records
import faults_recursion
import faults_reward
import faults_rig
import faults_weights
from planting import Fault

PLANTED: tuple[Fault, ...] = (
    *faults_recipe.FAULTS,
    *faults_data.FAULTS,
    *faults_records.FAULTS,
    *faults_reward.FAULTS,
    *faults_environment.FAULTS,
    *faults_rig.FAULTS,
    *faults_recursion.FAULTS,
    *faults_weights.FAULTS,
)
LATER: tuple[Fault, ...] = faults_later.FAULTS
ALL = (*PLANTED, *LATER)
BAR = 0.95
"""Share of all faults that is to be caught without a GPU."""
