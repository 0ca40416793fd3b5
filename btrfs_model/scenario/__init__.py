# SPDX-License-Identifier: GPL-2.0-only
"""Scenarios: filesystems as lists of operations.

A scenario is data: a JSON object with ``ops``, or a file of JSON lines with an operation each, such
as a log of the system calls of a run on a real kernel. :mod:`~btrfs_model.scenario.operations`
says which operations there are, :mod:`~btrfs_model.scenario.load` reads and validates a file,
:mod:`~btrfs_model.scenario.run` carries one out.
"""

from btrfs_model.scenario.load import Scenario, load_scenario
from btrfs_model.scenario.operations import OPERATIONS, ScenarioError, Step
from btrfs_model.scenario.run import run_scenario

__all__ = ["OPERATIONS", "Scenario", "ScenarioError", "Step", "load_scenario", "run_scenario"]
