# SPDX-License-Identifier: GPL-2.0-only
"""What releases of Linux made of scenarios that show their toggles."""

import json
from pathlib import Path

import pytest
import releases
from corpus import PROJECT

from btrfs_model.behaviour import preset_of
from btrfs_model.experiments.scenario.load import load_scenario
from btrfs_model.experiments.verify.logs import replayed
from btrfs_model.experiments.verify.sides import in_the_model
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.patches import Patch

RECORDED = {path.stem.removeprefix("linux-"): json.loads(path.read_text())
            for path in sorted(releases.HERE.glob("linux-*.json"))}  # fmt: skip
ELSEWHERE = {Patch.LOG_CONFLICT_DENTRIES, Patch.LOG_EXISTS_SIZE, Patch.NOCOMPRESS_NOT_ONE_BLOCK}
"""The first is shown by a log, below, the second by ``test_toggles_shown.py``. The third changes
nothing where `inline-first` is."""
SHOWN = [patch for patch in Patch if patch.release.startswith("7.") and patch not in ELSEWHERE]


@pytest.mark.claim("Linux 6.18 and 7.2 make the files, inline extents, holes and roots of "
                   "snapshots that the model says.", judge="recorded")  # fmt: skip
@pytest.mark.parametrize("name", releases.SCENARIOS)
@pytest.mark.parametrize("release", RECORDED)
def test_a_kernel_leaves_what_the_model_does(release: str, name: str) -> None:
    assert releases.in_model(name, preset_of(release)) == RECORDED[release][name]


@pytest.mark.claim(
    "Without any toggle of 7.0 to 7.3 the model is no longer that of Linux 7.2.7: eight by "
    "records, two by logs; `nocompress-not-one-block` changes nothing there."
)
@pytest.mark.parametrize("patch", SHOWN)
def test_a_kernel_differs_without_a_toggle(patch: Patch) -> None:
    recorded = RECORDED["7.2.7"]
    assert any(releases.in_model(name, f"v7.2.7 - {patch}") != recorded[name] for name in recorded)


@pytest.mark.parametrize("without", ["", f" - {Patch.LOG_CONFLICT_DENTRIES}"])
def test_what_is_new_beside_a_removed_name_is_logged(without: str, tmp_path: Path) -> None:
    """As 6.18.44, 7.2.7 and 7.2.13 log it, which have the commit; 6.1.176 does not."""
    scenario, crash = load_scenario(PROJECT / "data/verify/log-conflict_gone.json"), tmp_path / "x"
    with in_the_model(scenario, f"v7.2.7{without}", crash, size=1 << 30) as (_, ran):
        assert ran.synced == ["log"]
    fs = replayed(crash, "v7.2.7")
    assert isinstance(fs, WritableFilesystem)
    with fs:
        assert ("A/d/e" in fs.listing("")["path"].tolist()) == (not without)
