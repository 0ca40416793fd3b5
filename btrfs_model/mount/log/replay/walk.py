# SPDX-License-Identifier: GPL-2.0-only
"""The walks over a log tree, and what is done with each item in them."""

from __future__ import annotations

import errno
import stat

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import Fault, ReplayBugError
from btrfs_model.mount.files.file_item import align, drop_extents
from btrfs_model.mount.live_inode import InodeFields
from btrfs_model.mount.log.replay import deletes, extents, inodes, names, refs
from btrfs_model.mount.log.replay.control import WalkControl, WalkStage
from btrfs_model.mount.log.replay.logged import LogItem
from btrfs_model.mount.space.block_group import ensure_metadata
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.patches import Patch

# how many items are replayed between two looks at the room for metadata
_ITEMS_BETWEEN = 128


def walk_log_tree(control: WalkControl) -> None:
    """Go through a log in key order (``walk_log_tree()``).

    An entry that brings a name of a directory breaks the walk off. Of a log with nodes the rest is
    left out of this walk. A log of one leaf is gone through once more, from its begin.

    Raises ReplayBugError: when that breaks off, too. The 1 that it returns is no error to a mount,
    which goes on without a root (``vfs_get_tree()``, Linux 6.12; 6.1 follows the 1 as a pointer,
    ``legacy_get_tree()``).
    """
    for item in control.log.items:
        if item.key[1] == ItemType.INODE_ITEM:
            control.run(_ignore_without_names, item, item)
    last = _walk(control)
    if last is not None and len(control.log.blocks) == 1:
        last = _walk(control)
        if last is not None:
            fault = Fault(
                Code.ERRNO, int(ObjectId.TREE_LOG), last.block, last.slot, found=errno.EPERM
            )
            what = (
                f"the log of subvolume {control.root} brings names of two directories that it does "
                "not have with their inodes; kernels since 5.17 end in a BUG on that"
            )
            raise ReplayBugError(control.fs.path, fault, what)


def _walk(control: WalkControl) -> LogItem | None:
    """Replay items until one breaks off; that one."""
    control.broken_off = False
    for number, item in enumerate(control.log.items):
        if number % _ITEMS_BETWEEN == 0:
            ensure_metadata(control.fs)
        if item.key[0] not in control.ignored:
            control.run(replay_one_buffer, item, item)
            if control.broken_off:
                return item
    return None


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
        inode.item.nbytes -= drop_extents(control.fs, inode, start, U64_MAX)
        inodes.update_inode(control, inode)
    inodes.link_to_fixup_dir(control, ino)
