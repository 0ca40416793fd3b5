# SPDX-License-Identifier: GPL-2.0-only
"""The shortest scenario that still shows something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from btrfs_model.experiments.scenario.load import Scenario


def shrunk(
    scenario: Scenario, shows: Callable[[Scenario], bool], kept: int = 2, most: int = 400
) -> Scenario:
    """Leave out operations as long as a scenario shows something.

    Runs of half of them first, then ever shorter ones, to single ones (Zeller's ddmin).

    Parameters
    ----------
    scenario : Scenario
        One that shows it.
    shows : callable
        Whether a scenario does.
    kept : int
        So many operations at the beginning stay.
    most : int
        How often to try.
    """
    steps, run = list(scenario.steps), len(scenario.steps) - kept
    while run := run // 2 if run > 1 else 0:
        at, found = kept, True
        while at < len(steps) and most:
            shorter = steps[:at] + steps[at + run :]
            most -= 1
            found = shows(replace(scenario, steps=shorter))
            if found:
                steps = shorter
            else:
                at += run
    return replace(scenario, steps=steps)
