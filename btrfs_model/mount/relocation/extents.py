# SPDX-License-Identifier: GPL-2.0-only
"""Data that move: extents side by side are copied into an inode of its own, then files are told.

The inode is in the tree of data relocation, and as large as the block group: what lies there at
some byte of it is found at that byte of the inode.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.mount.files.bytes import punch, store_bytes
from btrfs_model.mount.files.file_item import PREALLOC, REGULAR, pack_regular
from btrfs_model.mount.inode import orphan_key
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.relocation.control import Control
from btrfs_model.mount.space.data import ensure_data, reserve_data
from btrfs_model.mount.transaction import start_transaction
from btrfs_model.ondisk.constants import FileExtentType, InodeFlag
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.structs import (
    FILE_EXTENT_ITEM,
    HEADER,
    INODE_ITEM,
    ITEM,
    InodeItem,
    Timespec,
)
from btrfs_model.volume.ctree import block_key, item_data, nritems

_TREE: Final = int(ObjectId.DATA_RELOC_TREE)
_EXTENT_DATA: Final = int(ItemType.EXTENT_DATA)
_CREATE_ITEMS: Final = 6
MAX_EXTENTS: Final = 128
"""So many extents are copied at once."""


def create_reloc_inode(fs: Mount) -> int:
    """Make the inode that data move into (``create_reloc_inode()``); returns its number."""
    start_transaction(fs, _CREATE_ITEMS)
    ino = max(fs.highest_objectid(_TREE), fs.reloc_roots.last_ino) + 1
    fs.reloc_roots.last_ino = ino
    no_time = Timespec(0, 0)
    item = InodeItem(
        generation=1, transid=0, size=0, nbytes=0, block_group=0, nlink=0, uid=0, gid=0,
        mode=stat.S_IFREG | 0o600, rdev=0, flags=int(InodeFlag.NOCOMPRESS | InodeFlag.PREALLOC),
        sequence=0, reserved=(0,) * 4, atime=no_time, ctime=no_time, mtime=no_time, otime=no_time,
    )  # fmt: skip
    fs.writer.insert(_TREE, _inode_key(ino), INODE_ITEM.pack(item))
    fs.writer.insert(_TREE, orphan_key(ino), b"")
    return ino


def _inode_key(ino: int) -> tuple[int, int, int]:
    return (ino, int(ItemType.INODE_ITEM), 0)


def _update_inode(fs: Mount, ino: int, size: int, nbytes: int) -> None:
    stored = fs.writer.get(_TREE, _inode_key(ino))
    assert stored is not None
    item = INODE_ITEM.unpack(stored)
    item = item._replace(size=max(size, item.size), nbytes=nbytes, transid=fs.transid)
    fs.writer.update(_TREE, _inode_key(ino), 0, INODE_ITEM.pack(item))


def delete_reloc_inode(fs: Mount, ino: int) -> None:
    """Give up its extents, which files have now (``btrfs_evict_inode()``)."""
    start_transaction(fs, from_reserve=True)
    writer = fs.writer
    first, last = (ino, _EXTENT_DATA, 0), (ino, _EXTENT_DATA, U64_MAX)
    for item in list(writer.tree(_TREE).items(first, last, reverse=True)):
        extent = FILE_EXTENT_ITEM.unpack(item.data)
        if extent.disk_bytenr:
            row = (extent.disk_bytenr, extent.disk_num_bytes, 0, _TREE, ino, item.key.offset)
            writer.drop_data_ref([row])
    writer.delete_range(_TREE, (ino, 0, 0), (ino, 255, U64_MAX), backward=True)
    writer.delete(_TREE, orphan_key(ino))


def relocate_cluster(fs: Mount, control: Control, extents: list[tuple[int, int]]) -> None:
    """Give extents that lie side by side new places (``prealloc_file_extent_cluster()``).

    `extents`: address and size of each.
    Raises OSError: ENOSPC.
    """
    ensure_data(fs, sum(size for _, size in extents))
    hint = 0
    for bytenr, size in extents:
        at = bytenr - control.group.start
        new, _ = reserve_data(fs, size, size, hint)
        start_transaction(fs)
        payload = pack_regular(fs.transid, PREALLOC, new, size, size)
        fs.writer.insert(_TREE, (control.ino, _EXTENT_DATA, at), payload)
        fs.writer.alloc_data_ref([(new, size, 0, _TREE, control.ino, at)])
        control.moved[bytenr] = new, size
        _update_inode(fs, control.ino, at + size, sum(size for _, size in extents))
        hint = new + size


def copy_extents(fs: Mount, control: Control) -> None:
    """Copy the bytes with their checksums (``relocate_file_extent_cluster()``, ordered extents).

    Raises OSError: EIO for data that differ from their checksum.
    """
    for bytenr, (new, size) in control.moved.items():
        _copy(fs, bytenr, new, size)
        fs.join_transaction()
        key = (control.ino, _EXTENT_DATA, bytenr - control.group.start)
        fs.writer.update(_TREE, key, 0, pack_regular(fs.transid, REGULAR, new, size, size))
        sums, present = fs.checksums.stored(bytenr, size)
        start = 0
        while start < len(present):
            end = start + 1
            while end < len(present) and present[end] == present[start]:
                end += 1
            if present[start]:
                at = new + start * fs.sectorsize
                fs.writer.insert_csums(at, sums[start:end].tobytes(), end - start)
            start = end


def _copy(fs: Mount, old: int, new: int, size: int) -> None:
    """Copy an extent; runs of zeros are not stored."""
    try:
        data = fs.checksums.read(old, size, fault=Fault(0))
    except CorruptImageError as error:
        raise OSError(errno.EIO, os.strerror(errno.EIO), fs.path) from error
    step = 1 << 16
    for at in range(0, size, step):
        part = bytes(data[at : at + step])
        if part.count(0) == len(part):
            punch(fs, new + at, len(part))
        else:
            store_bytes(fs, new + at, part)


def replace_file_extents(fs: Mount, control: Control, bytenr: int, parent: int) -> None:
    """Tell a leaf that was copied where data are now (``replace_file_extents()``).

    `bytenr`: the copy.
    `parent`: the same where it refers by its address, in a tree of relocation; else 0.
    """
    if not control.updating:
        return
    leaf = fs.image.block(bytenr, level=0)
    owner = HEADER.unpack(leaf[: HEADER.size]).owner
    physical = fs.image.map(bytenr)[0]
    for slot in range(nritems(leaf)):
        ino, kind, offset = block_key(leaf, slot)
        data = item_data(leaf, slot)
        if kind != _EXTENT_DATA or data[_TYPE_AT] == FileExtentType.INLINE:
            continue
        extent = FILE_EXTENT_ITEM.unpack(data)
        if extent.disk_bytenr not in control.moved:
            continue
        new, _ = control.moved[extent.disk_bytenr]
        at = ITEM.flat(leaf, HEADER.size + slot * ITEM.size)[3]
        start = physical + HEADER.size + at
        payload = FILE_EXTENT_ITEM.pack(extent._replace(disk_bytenr=new))
        fs.image.view[start : start + len(payload)] = payload
        ref = (extent.disk_num_bytes, parent, owner, ino, (offset - extent.offset) % 2**64)
        fs.writer.inc_data_ref([(new, *ref)])
        fs.writer.drop_data_ref([(extent.disk_bytenr, *ref)])


_TYPE_AT: Final = 20
