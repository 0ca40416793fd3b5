# SPDX-License-Identifier: GPL-2.0-only
"""What the walks over a log tree have in common (``struct walk_control``)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.behaviour import Behaviour
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.replay.logged import LogItem, LogTree
from btrfs_model.mount.mount import Mount
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.ondisk.layout import PayloadError


class WalkStage(Enum):
    """``LOG_WALK_*``: what a walk is for."""

    REPLAY_INODES = "inodes"
    REPLAY_DIR_INDEX = "index"
    REPLAY_ALL = "all"


@dataclass(slots=True, eq=False)
class WalkControl:
    """State of a walk over the log of one subvolume (``struct walk_control``).

    `fs`: what is replayed into.
    `log`: what is replayed.
    `behaviour`: the kernel that does it.
    `stage`: which walk this is.
    `excluded`: data extents that only the log knows so far: address, length.
    `inodes`: those that the item at hand has to do with.
    `ignored`: inodes that had no names when they were logged: nobody could reach them.
    `broken_off`: whether an item ended the walk.
    """

    fs: Mount
    log: LogTree
    behaviour: Behaviour
    stage: WalkStage
    excluded: set[tuple[int, int]]
    inodes: dict[int, LiveInode] = field(default_factory=dict)
    ignored: set[int] = field(default_factory=set)
    broken_off: bool = False

    @property
    def root(self) -> int:
        """The subvolume that is replayed into (``replay_dest``)."""
        return self.log.subvolume

    def run(self, function: Callable[..., None], item: LogItem | None, *arguments: Any) -> None:
        """Call ``function(self, *arguments)``; what goes wrong is put down to an item of the log.

        Raises CorruptImageError: with the leaf and slot of the item.
        Raises OSError: ENOSPC, where the filesystem is full.
        """
        self.inodes.clear()
        block, slot = (item.block, item.slot) if item is not None else (0, 0)
        tree = int(ObjectId.TREE_LOG)
        try:
            function(self, *arguments)
        except PayloadError as error:
            raise error.at(self.fs.path, tree=tree, block=block, slot=slot) from None
        except CorruptImageError:
            raise
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            fault = Fault(Code.ERRNO, tree, block, slot, found=error.errno or 0)
            raise CorruptImageError(self.fs.path, fault) from error
