# SPDX-License-Identifier: GPL-2.0-only
"""Holes are punched as far as a kernel's extent maps go; what is there then is that of 6.18.44."""

from typing import Any

import pytest

from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.sides import in_the_model

GROWN: list[Any] = [["write", "f", 0, 1, 1], ["truncate", "f", 8192],
                    ["write", "f", 122881, 4096, 2]]  # fmt: skip
PUNCHED: list[Any] = [["write", "f", 0, 40960, 1], ["sync"], ["fallocate", "f", 3, 4096, 4096],
                      ["fallocate", "f", 3, 8192, 8192]]  # fmt: skip
LAST: list[Any] = ["fallocate", "f", 3, 4096, 5000]
FIRST = (0, 4096)
ZEROED = (8192, 4096)
"""A block that is zeroed in part, since the hole before it ends there."""
END = (122880, 8192)
REST = (16384, 24576)
CASES: dict[str, tuple[list[Any], list[tuple[int, int]]]] = {
    "a hole of two calls": ([*GROWN, ["sync"], LAST], [FIRST, ZEROED, END]),
    "logged as a whole before": ([*GROWN, ["fsync", "f"], LAST], [FIRST, ZEROED, END]),
    "logged before": ([GROWN[0], ["sync"], ["write", "f", 0, 1, 2], ["fsync", "f"], *GROWN[1:],
                       ["fsync", "f"], LAST], [FIRST, END]),
    "holes that were punched": ([*PUNCHED, LAST], [FIRST, ZEROED, REST]),
    "one that was punched": ([["write", "f", 0, 40960, 1], ["sync"],
                              ["fallocate", "f", 3, 4096, 8192], LAST],
                             [FIRST, (12288, 28672)]),
}  # fmt: skip


@pytest.mark.claim(
    "A hole ends where the call ended that made it, until it is logged: a later punch sees so far.",
    judge="recorded",
)
@pytest.mark.parametrize("features", [[], ["-O", "^no-holes"]])
@pytest.mark.parametrize("case", CASES)
def test_a_hole_is_as_large_as_its_map(case: str, features: list[str]) -> None:
    operations, wanted = CASES[case]
    lines: list[Any] = [["mkfs", features], ["mount", "noatime"], ["create", "f"], *operations]
    steps = [parse_step(case, number, line) for number, line in enumerate(lines, 1)]
    with in_the_model(Scenario(case, steps), "v6.18.44") as (fs, ran):
        assert not any(ran.ended)
        extents = [(one.start, one.length) for one in fs.subvolume(5).extents(257)
                   if one.disk_bytenr]  # fmt: skip
    assert extents == wanted
