# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model radar`` on a kernel that the model is asked to be older than."""

import json
from pathlib import Path

import corpus
import pytest

from btrfs_model.behaviour import version
from btrfs_model.experiments.radar.look import look
from btrfs_model.experiments.report.radar import page
from btrfs_model.kernels import debian

NEW = [one.name for one in debian.unpacked() if version(one.release) >= (7, 1)]
INLINE = [["mkfs", []], ["mount", "noatime,nodatacow"], ["create", "f"],
          ["write", "f", 0, 100, ["text", "a"]]]  # fmt: skip
NEW_NAME = [["mkfs", []], ["mount", "noatime"], ["mkdir", "a"], ["mkdir", "d"],
            ["create", "d/h", 420], ["remount"], ["write", "d/h", 32768, 2000, 7], ["fsync", "d/h"],
            ["mkdir", "a/o"], ["rename", "d/h", "a/o/g"], ["fsync", "a/o"], ["fdatasync", "d"],
            ["crash"]]  # fmt: skip


@pytest.mark.skipif(not NEW, reason="no kernel since 7.1 (btrfs-model kernel get sid)")
@pytest.mark.claim(
    "Asked as 6.18 without one of its commits, `radar` finds this commit and another one of 7.1 "
    "on a kernel of 7.2, each by its toggle and title."
)
@pytest.mark.parametrize(
    ("kind", "lines", "change", "commit"),
    [
        ("data", INLINE, "+ inline-first", "3eaf5f082c4c"),
        pytest.param("log", NEW_NAME, "+ log-new-name-unsynced", "bfe3d755ef7c",
                     marks=pytest.mark.skipif(not corpus.LONG, reason="takes a minute")),
    ],
)  # fmt: skip
def test_commits_that_the_model_was_asked_to_lack(
    kind: str, lines: list[object], change: str, commit: str, tmp_path: Path
) -> None:
    (tmp_path / f"{kind}-1.json").write_text(json.dumps({"hex_values": True, "ops": lines}))
    found = look(NEW[:1], [kind], None, None, "v6.18.44 - log-new-name-unsynced",
                 tmp_path, lambda text: None, lambda one: None)  # fmt: skip
    assert [(one.change, one.titles[0][0].commit) for one in found.groups] == [(change, commit)]
    assert not any(differs for one in found.groups for differs in one.asked.values())
    assert found.groups[0].titles[0][0].title in page(found, "0")
