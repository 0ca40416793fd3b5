# SPDX-License-Identifier: GPL-2.0-only
"""The same calls and fsyncs in the running kernel and in the model, and logs of both."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scenarios import operations

from btrfs_model.behaviour import PRESETS
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify import sides

KERNEL = "v" + platform.release().split("-")[0]
KNOWN = KERNEL in PRESETS
"""Whether it is known what the running kernel took over."""

Operation = list[Any]


@dataclass
class Beside:
    """Operations, and the filesystem that they are carried out on."""

    operations: list[Operation]
    mkfs: list[str] = field(default_factory=list)
    mount: str = "noatime"
    size: int = sides.SIZE

    @property
    def scenario(self) -> Scenario:
        mkfs = ["-m", "single", "-d", "single", *self.mkfs]
        lines = [["mkfs", mkfs], ["mount", self.mount], *self.operations]
        steps = [parse_step("case", number, one) for number, one in enumerate(lines, 1)]
        return Scenario("case", steps, hex_values=True)


def in_the_kernel(
    scenario: Scenario, image: Path, crash: Path, size: int = sides.SIZE
) -> sides.Ran:
    """Carry operations out on a new filesystem, which is copied at the end, still mounted."""
    sides.made_by_mkfs(scenario, image, size)
    with operations(image, sides.mount_options(scenario)) as running:
        running.sync()
        steps = [step for step in sides.operations_of(scenario) if step[0] != "crash"]
        ended = running.take(steps)
        subprocess.run(["cp", "--sparse=always", str(image), str(crash)], check=True)
        return sides.Ran(ended, running.synced)


def in_the_model(
    scenario: Scenario, crash: Path, behaviour: str = KERNEL, size: int = sides.SIZE
) -> sides.Ran:
    """Carry operations out as the running kernel does, or another one."""
    with sides.in_the_model(scenario, behaviour, crash, size) as (_, ran):
        return ran
