# SPDX-License-Identifier: GPL-2.0-only
"""Crashes of the model's filesystems, replayed by kernels: they find what the model's replay does.

Sequences of calls with fsyncs in between end in a crash. A kernel mounts the image, which replays
the logs, and says what is there; the model replays the same image as that kernel does. Listings
and all items of the subvolumes must be the same; times that the replay itself takes are those of
the clock on both sides.

Each kernel is asked in a process with a time limit: a mount that hangs is a failure, no more.
"""

import time
from typing import Any

import pytest
from corpus import LONG
from crash_sequences import BLOCK, Call, Crash, formats, sequences
from hypothesis import assume, example, given, settings
from judges import ask
from progs import btrfs_check

import btrfs_model as bm
from btrfs_model.experiments.verify.listing import model_listing
from btrfs_model.experiments.verify.logs import (
    BUG,
    checksums_by_sector,
    clock_of_replays,
    items_after_replays,
    replayed,
)
from btrfs_model.kernels.native import Native
from btrfs_model.kernels.session import Kernel
from btrfs_model.mount.inode import live_subvolume
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.volume.filesystem import Filesystem

LOGGED_BY = ("v5.10.46", "v6.1.176", "v6.12.101", "v6.18.44")
"""Kernels whose logs the model writes."""


def may_hang(fs: Filesystem) -> bool:
    """Whether an image is kept from the machine's own kernel.

    6.18.44 once hung in the mount of such an image, which nothing but a boot ends: leaves of 4 KiB
    and an inode with so many names that it has INODE_EXTREF items. Guests get them all the same;
    none has hung, so that what it was is not known.
    """
    if fs.image.nodesize > BLOCK:
        return False
    trees = [fs.tree(tree) for tree in fs.subvolume_ids] + list(fs.log_trees.values())
    return any(item.key.type == ItemType.INODE_EXTREF for tree in trees for item in tree.items())


def judge(crash: Crash, kernel: Kernel) -> None:
    """Let a kernel replay the logs of a crash, and compare."""
    image = kernel.new_file()
    crash.fs.save_crash(image)
    if isinstance(kernel, Native):
        with bm.open(image) as crashed:
            assume(not may_hang(crashed))
        assume(replayed(image, kernel.preset) != BUG)
    since = time.time_ns() - 60 * 10**9  # the clock of a guest may lag
    answer = ask(kernel, image, subvolumes=list(crash.fs.subvolumes()["path"]))
    assert not answer.failed
    assert not answer.alarms
    with clock_of_replays():
        made = bm.replay_log(crash.fs, behaviour=kernel.preset)
    with made as ours, bm.open(image) as theirs:
        assert model_listing(theirs) == answer.listing
        for tree in ours.subvolume_ids:  # the kernel looked into each, which deletes orphans
            live_subvolume(ours, tree)
        ours.sync()
        for tree in theirs.subvolume_ids:
            its, mine = items_after_replays(theirs, ours, tree, since)
            assert mine == its
        assert checksums_by_sector(ours) == checksums_by_sector(theirs)
    assert btrfs_check(image) == ""
    image.unlink()


# What was found once: a name goes from a directory that is not in the log; a hole that is logged
# although nothing was, just before; subvolumes that were committed at once before 6.5; a file that
# was deleted while it was open, and no log.
_DEFAULTS = {"nodesize": 16384, "no_holes": True}
_OTHER_NAME = [("rename", "f", "a/h"), ("create", "f"), ("fsync", "f")]
_HOLE = [("fsync", "f"), ("truncate", "f", 16389), ("fsync", "f")]
_ORPHAN = [("hold", "f"), ("unlink", "f"), ("unlinks", "", 2, 60), ("sync",)]
_SUBVOLUMES = [("snapshot", "", "d/e", True), ("create_subvolume", "e"), ("fsync", "")]


@pytest.mark.claim(
    "The running kernel and that of User-Mode Linux mount crashes after random calls and "
    "fsyncs, replay logs in the way of four kernels, and are left with every item that the "
    "model's own replay gives: 64 sequences by default, 800 in long runs."
)
@pytest.mark.parametrize("behaviour", LOGGED_BY)
@example(options=_DEFAULTS, calls=_OTHER_NAME)
@example(options={**_DEFAULTS, "no_holes": False}, calls=_HOLE)
@example(options={**_DEFAULTS, "nodesize": BLOCK}, calls=_SUBVOLUMES)
@example(options=_DEFAULTS, calls=_ORPHAN)
@settings(max_examples=100 if LONG else 4)
@given(options=formats, calls=sequences)
def test_kernels_replay_to_the_same_state(
    behaviour: str, kernel: Kernel, options: dict[str, Any], calls: list[Call]
) -> None:
    crash = Crash(options, behaviour, calls)
    with crash.fs:
        judge(crash, kernel)
