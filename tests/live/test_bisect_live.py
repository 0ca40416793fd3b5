# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model kernel bisect`` with User-Mode Linux of several suites."""

import json
from pathlib import Path

import pytest

from btrfs_model.behaviour import version
from btrfs_model.experiments.radar.bisect import bisected, kernels_between, told
from btrfs_model.experiments.scenario.load import load_scenario
from btrfs_model.kernels import debian

SUITES = [one for one in debian.unpacked() if version(one.release) >= (6, 6)]
OLD, NEW = ([one.name for one in SUITES if (version(one.release) >= (7, 1)) == new]
            for new in (False, True))  # fmt: skip


@pytest.mark.skipif(not (OLD and NEW), reason="no two suites (btrfs-model kernel get trixie, sid)")
@pytest.mark.claim(
    "Between kernels of 6.12 and 7.2 `kernel bisect` finds where a small file is stored otherwise, "
    "and the one toggle with which the model stores it otherwise."
)
def test_where_a_file_is_stored_otherwise(tmp_path: Path) -> None:
    ops = [["mkfs", []], ["mount", "noatime,nodatacow"], ["create", "f"],
           ["write", "f", 0, 100, ["text", "a"]]]  # fmt: skip
    (tmp_path / "s.json").write_text(json.dumps({"ops": ops}))
    kernels = kernels_between([OLD[0], NEW[0]], "", "")
    found = told(bisected(load_scenario(tmp_path / "s.json"), kernels, lambda text: None))
    assert found["where"] == "files; /f; nbytes"
    assert [one["toggle"] for one in found["toggles"] if one["model"]] == ["+ inline-first"]
