# SPDX-License-Identifier: GPL-2.0-only
"""What releases of Linux made of scenarios that show their toggles."""

import json

import pytest
import releases

from btrfs_model.behaviour import preset_of
from btrfs_model.patches import Patch

RECORDED = {path.stem.removeprefix("linux-"): json.loads(path.read_text())
            for path in sorted(releases.HERE.glob("linux-*.json"))}  # fmt: skip
SHOWN = [Patch.SNAPSHOT_NO_COW, Patch.SOCKET_XATTRS, Patch.COMPRESS_WHOLE_BLOCKS,
         Patch.INLINE_FIRST, Patch.MERGE_HOLES, Patch.CHATTR_KEEPS_NODATASUM]  # fmt: skip


@pytest.mark.claim("Linux 6.18 and 7.2 make the files, inline extents, holes and roots of "
                   "snapshots that the model says.", judge="recorded")  # fmt: skip
@pytest.mark.parametrize("name", releases.SCENARIOS)
@pytest.mark.parametrize("release", RECORDED)
def test_a_kernel_leaves_what_the_model_does(release: str, name: str) -> None:
    assert releases.in_model(name, preset_of(release)) == RECORDED[release][name]


@pytest.mark.parametrize("patch", SHOWN)
def test_a_kernel_differs_without_a_toggle(patch: Patch) -> None:
    recorded = RECORDED["7.2.7"]
    assert any(releases.in_model(name, f"v7.2.7 - {patch}") != recorded[name] for name in recorded)
