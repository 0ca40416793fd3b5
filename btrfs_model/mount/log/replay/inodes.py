# SPDX-License-Identifier: GPL-2.0-only
"""Inodes during a replay: their items, and the count of their names.

While a log is replayed no inode stays in memory and nothing is delayed: each step reads items from
the subvolume and writes them back.
"""

from __future__ import annotations

import errno
import os
import stat

from btrfs_model.mount.live_inode import InodeFields, LiveInode
from btrfs_model.mount.log.replay.control import WalkControl
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.patches import Patch
from btrfs_model.volume.tree import RawKey

# Old kernels did not initialize the time of creation in a log: whatever is there stays as it is,
# even where it is no time.
_OTIME = 148


def fixup_key(ino: int) -> RawKey:
    """Key of the note that the names of an inode are to be counted again."""
    return (int(ObjectId.TREE_LOG_FIXUP), int(ItemType.ORPHAN_ITEM), ino)


def read_one_inode(control: WalkControl, ino: int) -> LiveInode | None:
    """Return an inode of the subvolume, None where there is none (``read_one_inode()``)."""
    inode = control.inodes.get(ino)
    if inode is None:
        payload = control.fs.writer.get(control.root, (ino, int(ItemType.INODE_ITEM), 0))
        if payload is None:
            return None
        inode = control.inodes[ino] = LiveInode(control.root, ino, InodeFields.unpack(payload))
    return inode


def must_read_inode(control: WalkControl, ino: int) -> LiveInode:
    """Return an inode that the log relies on.

    Raises OSError: ENOENT (before log-replay-errno: EIO), with which kernels refuse to mount, where
    it is in neither tree.
    """
    inode = read_one_inode(control, ino)
    if inode is None:
        number = errno.ENOENT if Patch.LOG_REPLAY_ERRNO in control.behaviour else errno.EIO
        raise OSError(number, os.strerror(number), control.fs.path)
    return inode


def update_inode(control: WalkControl, inode: LiveInode) -> None:
    """Write the item of an inode at once (``btrfs_update_inode_item()``)."""
    inode.item.transid = control.fs.transid
    control.fs.writer.update(control.root, inode.key, 0, inode.item.pack()[:_OTIME])


# ------------------------------------------------------------------------------------- the items --


def overwrite_item(control: WalkControl, key: RawKey, payload: bytes) -> None:
    """Put an item of the log in the place of what the subvolume has (``overwrite_item()``)."""
    writer, root = control.fs.writer, control.root
    there = writer.get(root, key)
    if there == payload:
        return
    if key[1] == ItemType.INODE_ITEM:
        control.inodes.pop(key[0], None)
        payload = _merge_inode_item(control, payload, there)
    if there is None:
        writer.insert(root, key, payload)
    elif payload != there:
        writer.replace(root, key, payload)


def _merge_inode_item(control: WalkControl, payload: bytes, there: bytes | None) -> bytes:
    """Return what an inode item becomes: sizes follow from what is replayed after it.

    Generation 0 in the log means that the inode was logged only so that it exists.
    """
    new = InodeFields.unpack(payload)
    old = None if there is None else InodeFields.unpack(there)
    if old is not None and there is not None and new.generation == 0:
        if stat.S_ISREG(new.mode) and stat.S_ISREG(old.mode) and new.size:
            old.size = new.size
        return _pack(old, there)
    new.nbytes = 0 if old is None else old.nbytes
    if stat.S_ISDIR(new.mode):
        new.size = old.size if old is not None and stat.S_ISDIR(old.mode) else 0
    new.generation = new.generation or control.fs.transid
    return _pack(new, payload)


def _pack(item: InodeFields, payload: bytes) -> bytes:
    """Return the bytes of an item, with those from the time of creation on of `payload`."""
    return item.pack()[:_OTIME] + payload[_OTIME:]


# ---------------------------------------------------------------------------------- link counts --


def link_to_fixup_dir(control: WalkControl, ino: int) -> None:
    """Note that the names of an inode are to be counted again (``link_to_fixup_dir()``).

    It has one link more until then, so that it does not go away.
    """
    inode = must_read_inode(control, ino)
    if control.fs.writer.get(control.root, fixup_key(ino)) is not None:
        return
    control.fs.writer.insert(control.root, fixup_key(ino), b"")
    inode.item.nlink += 1
    update_inode(control, inode)
