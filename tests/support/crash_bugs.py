# SPDX-License-Identifier: GPL-2.0-only
"""What logs a mount does not survive, as scenarios; docs/findings.md has them as shell scripts."""

from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step

_TREE = [["mkdir", "A"], ["mkdir", "B"], ["mkdir", "B/D"], ["mkdir", "F"], ["sync"]]
_WORKER = [["create", f"F/{number}"] for number in range(700)]
"""So many names wait that a worker brings all of them into the tree."""
_EXCHANGE = ["exchange", "A", "B"]
SECOND = {"exchange": _EXCHANGE, "rename": ["rename", "A", "B/D"]}
"""What follows the fsync of A, by name."""


def scenario(second: str) -> Scenario:
    """Exchange two directories, let the names come into the tree, fsync one; go on, fsync all."""
    lines = [["mkfs", ["-b", str(1 << 30)]], ["mount", "noatime"], *_TREE, _EXCHANGE, *_WORKER,
             ["fsync", "A"], SECOND[second], ["fsync", "."], ["crash"]]  # fmt: skip
    steps = [parse_step(second, number, line) for number, line in enumerate(lines, 1)]
    return Scenario(second, steps, hex_values=True)
