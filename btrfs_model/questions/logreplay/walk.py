# SPDX-License-Identifier: GPL-2.0-only
"""The walks over a log tree, and what is done with each item in them."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.mount.files.file_item import align, drop_extents
from btrfs_model.mount.live_inode import InodeFields
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.patches import Patch
from btrfs_model.questions.logreplay import deletes, extents, inodes, names, refs

if TYPE_CHECKING:
    from btrfs_model.behaviour import Behaviour
    from btrfs_model.mount.live_inode import LiveInode
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.questions.logreplay.logged import LogItem, LogTree

_MAX = 2**64 - 1
# how many items are replayed between two looks at the room for metadata
_ITEMS_BETWEEN = 128


class WalkStage(Enum):
    """``LOG_WALK_*``: what a walk is for."""

    REPLAY_INODES = "inodes"
    REPLAY_DIR_INDEX = "index"
    REPLAY_ALL = "all"


@dataclass(slots=True, eq=False)
class WalkControl:
    """State of a walk over the log of one subvolume (``struct walk_control``).

    Attributes
    ----------
    fs : WritableFilesystem
        What is replayed into.
    log : LogTree
        What is replayed.
    behaviour : Behaviour
        The kernel that does it.
    stage : WalkStage
        Which walk this is.
    excluded : set of (int, int)
        Data extents that only the log knows so far: address, length.
    inodes : dict of int to LiveInode
        Those that the item at hand has to do with.
    ignored : set of int
        Inodes that had no names when they were logged: nobody could reach them.
    """

    fs: WritableFilesystem
    log: LogTree
    behaviour: Behaviour
    stage: WalkStage
    excluded: set[tuple[int, int]]
    inodes: dict[int, LiveInode] = field(default_factory=dict)
    ignored: set[int] = field(default_factory=set)

    @property
    def root(self) -> int:
        """The subvolume that is replayed into (``replay_dest``)."""
        return self.log.subvolume

    def run(self, function: Callable[..., None], item: LogItem | None, *arguments: Any) -> None:
        """Call ``function(self, *arguments)``; what goes wrong is put down to an item of the log.

        Raises
        ------
        CorruptImageError
            With the leaf and slot of the item.
        OSError
            ENOSPC, where the filesystem is full.
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


def walk_log_tree(control: WalkControl) -> None:
    """Go through a log in key order (``walk_log_tree()``)."""
    for item in control.log.items:
        if item.key[1] == ItemType.INODE_ITEM:
            control.run(_ignore_without_names, item, item)
    for number, item in enumerate(control.log.items):
        if number % _ITEMS_BETWEEN == 0:
            control.fs.ensure_metadata()
        if item.key[0] not in control.ignored:
            control.run(replay_one_buffer, item, item)


def _ignore_without_names(control: WalkControl, item: LogItem) -> None:
    if not InodeFields.unpack(item.data).nlink:
        control.ignored.add(item.key[0])


def replay_one_buffer(control: WalkControl, item: LogItem) -> None:
    """Replay an item where it is due in this walk (``replay_one_buffer()``)."""
    kind = item.key[1]
    if control.stage is WalkStage.REPLAY_INODES:
        if kind == ItemType.INODE_ITEM:
            _replay_inode(control, item)
    elif control.stage is WalkStage.REPLAY_DIR_INDEX:
        if kind == ItemType.DIR_INDEX:
            names.replay_one_dir_item(control, item)
    elif kind == ItemType.XATTR_ITEM:
        inodes.overwrite_item(control, item.key, item.data)
    elif kind in (ItemType.INODE_REF, ItemType.INODE_EXTREF):
        refs.add_inode_ref(control, item)
    elif kind == ItemType.EXTENT_DATA:
        extents.replay_one_extent(control, item)
    elif kind == ItemType.DIR_ITEM and Patch.LOG_DIR_INDEX_ONLY not in control.behaviour:
        names.replay_one_dir_item(control, item)


def _replay_inode(control: WalkControl, item: LogItem) -> None:
    """Replay an inode item; before it goes what the log says has gone from the inode."""
    ino = item.key[0]
    mode = InodeFields.unpack(item.data).mode
    deletes.replay_xattr_deletes(control, ino)
    if stat.S_ISDIR(mode):
        deletes.replay_dir_deletes(control, ino)
    inodes.overwrite_item(control, item.key, item.data)
    if stat.S_ISREG(mode):
        # before extents come in, since some may have been allocated beyond the end on purpose
        inode = inodes.must_read_inode(control, ino)
        start = align(inode.item.size, control.fs.sectorsize)
        inode.item.nbytes -= drop_extents(control.fs, inode, start, _MAX)
        inodes.update_inode(control, inode)
    inodes.link_to_fixup_dir(control, ino)
