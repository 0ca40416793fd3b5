# SPDX-License-Identifier: GPL-2.0-only
"""Logs that kernels do not survive: old names of directories that were copied into a log."""

import errno
from pathlib import Path

import crash_bugs
import pytest

import btrfs_model as bm
from btrfs_model.base.errors import CorruptImageError, ReplayBugError
from btrfs_model.experiments.verify.bench import Bench
from btrfs_model.experiments.verify.logs import BUG, NOT_MOUNTED, both_replayed, replayed
from btrfs_model.experiments.verify.sides import in_the_model
from btrfs_model.kernels.native import Native
from btrfs_model.mount.writable import WritableFilesystem

KERNELS = ("v6.1.176", "v6.12.101", "v7.2.7")


def _crashed(second: str, kernel: str, folder: Path) -> Path:
    image = folder / "image"
    with in_the_model(crash_bugs.scenario(second), kernel, image) as (_, ran):
        assert ran.synced == ["log", "log"]
    return image


@pytest.mark.one_of(3)
@pytest.mark.parametrize("kernel", KERNELS)
def test_two_old_names_of_directories_end_in_a_bug(kernel: str, tmp_path: Path) -> None:
    """Seen on 6.1.176, 6.12.113, 7.2.7: `btrfs_recover_log_trees()` returns 1 to the mount."""
    image = _crashed("exchange", kernel, tmp_path)
    assert replayed(image, kernel) == BUG
    with pytest.raises(ReplayBugError, match=r"the log of subvolume 5 .* BUG"):
        WritableFilesystem.load(image, replay_behaviour=kernel)
    (told,) = bm.explain_log(image, behaviours=[kernel]).replays["outcome"]
    assert told.endswith("end in a BUG on that")
    own = Bench(object.__new__(Native), chosen=kernel)  # nothing of it can be called
    assert both_replayed(own, image) == (NOT_MOUNTED, BUG)


def test_kernels_with_several_names_in_an_item_do_not_mind(tmp_path: Path) -> None:
    """5.15 returns 0 for a name that it brought."""
    image = _crashed("exchange", "v6.1.176", tmp_path)
    assert replayed(image, "v5.15") != BUG


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_directory_with_two_names_is_not_written(kernel: str, tmp_path: Path) -> None:
    """Seen on 6.1.176, 6.12.113, 6.18.15, 7.2.7: "invalid nlink: has 2", and EIO."""
    image = _crashed("rename", kernel, tmp_path)
    assert replayed(image, kernel) == errno.EIO
    with pytest.raises(CorruptImageError, match="2 names of the directory 258"):
        WritableFilesystem.load(image, replay_behaviour=kernel)
