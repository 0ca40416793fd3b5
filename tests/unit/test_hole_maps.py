# SPDX-License-Identifier: GPL-2.0-only
"""Holes are punched as far as a kernel's extent maps go; what is there then is that of 6.18.44."""

from pathlib import Path
from typing import Any

import pytest
from corpus import PROJECT

from btrfs_model.experiments.scenario.load import Scenario, load_scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.sides import in_the_model
from btrfs_model.ondisk.items import file_extent
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.volume.filesystem import Filesystem

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


LOGGED = {
    257: [(8192, 4096), (12288, 4096), (16384, 4096)],
    258: [(0, 4096), (4096, 4096), (8192, 4096)],
    259: [(0, 4096), (8192, 4096), (12288, 4096), (16384, 4096), (20480, 4096)],
}
"""By file: one with a hole behind its end that grows, one that was preallocated, one punched."""


@pytest.mark.claim(
    "Extent maps that wait for an fsync are logged one by one: holes and written parts of a "
    "preallocation that lie side by side stay apart, as on 6.1.176, 6.12.113, 6.18.44 and 7.2.7.",
    judge="recorded",
)
@pytest.mark.parametrize("name", ["maps_apart", "maps_apart_nh"])
def test_maps_that_wait_are_logged_one_by_one(name: str, tmp_path: Path) -> None:
    scenario = load_scenario(PROJECT / f"data/verify/log-{name}.json")
    with in_the_model(scenario, "v7.2.7", tmp_path / "crash", size=1 << 30) as (_, ran):
        assert not any(ran.ended)
    logged: dict[int, list[tuple[int, int]]] = {}
    with Filesystem.open(tmp_path / "crash") as fs:
        for item in fs.log_trees[5].items():
            if item.key.type == ItemType.EXTENT_DATA:
                extent = file_extent(bytes(item.data))
                place = item.key.offset, extent.num_bytes
                logged.setdefault(item.key.objectid, []).append(place)
    assert logged == LOGGED
