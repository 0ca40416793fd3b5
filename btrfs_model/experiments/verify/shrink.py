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

    Runs of half of them first, then ever shorter ones, to single ones (Zeller's ddmin). A crash at
    the end stays: what it leaves is looked at.

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
    steps = list(scenario.steps)
    end = [steps.pop()] if steps[kept:] and steps[-1].name == "crash" else []
    run = len(steps) - kept
    while run := run // 2 if run > 1 else 0:
        at, found = kept, True
        while at < len(steps) and most:
            shorter = steps[:at] + steps[at + run :]
            most -= 1
            found = shows(replace(scenario, steps=shorter + end))
            if found:
                steps = shorter
            else:
                at += run
    return replace(scenario, steps=steps + end)
