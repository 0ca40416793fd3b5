# SPDX-License-Identifier: GPL-2.0-only
"""A block group that is emptied, and its chunk that goes (``btrfs_relocate_chunk()``).

As Linux 6.18 does it.
"""

from __future__ import annotations

import errno
import os

from btrfs_model.base.errors import UnsupportedError
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.relocation import extents
from btrfs_model.mount.relocation.backrefs import leaves_of
from btrfs_model.mount.relocation.blocks import relocate_tree_blocks
from btrfs_model.mount.relocation.control import Control
from btrfs_model.mount.relocation.merge import (
    clean_dirty_subvols,
    merge_reloc_roots,
    prepare_to_merge,
)
from btrfs_model.mount.relocation.rbtree import postorder
from btrfs_model.mount.space.block_group import (
    alloc_profile,
    allocate_chunk,
    ensure_system,
    remove_chunk,
    room_for_chunks,
)
from btrfs_model.mount.space.level import level_of, may_use, overcommit
from btrfs_model.mount.space.qgroup import set_mode
from btrfs_model.mount.transaction import commit, start_transaction
from btrfs_model.native.space import GroupState, QuotaMode
from btrfs_model.ondisk.chunks import TYPES, Chunk
from btrfs_model.ondisk.constants import (
    BTRFS_BLOCK_GROUP_DATA,
    BTRFS_BLOCK_GROUP_METADATA,
    BTRFS_BLOCK_GROUP_SYSTEM,
    ExtentFlag,
)
from btrfs_model.ondisk.items import extent_item
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId

# of tree blocks that move, until a commit frees what was copied on the way
_COPIES = 3
# of unallocated space, what a reservation that does not wait may count on
_HALF = 2


def group_at(fs: Mount, start: int) -> GroupState:
    """Return a block group."""
    return next(group for group in fs.writer.groups() if group.start == start)


def relocate_chunk(fs: Mount, start: int) -> None:
    """Move all that is in a chunk, and remove it.

    `start`: its logical address.
    Raises OSError: ENOSPC, and then it is as it was; EIO for data that differ from their checksum.
    """
    if fs.quotas.mode is QuotaMode.SIMPLE:
        raise UnsupportedError(f"{fs.path}: a balance with simple quotas is not modelled")
    cache = fs.tree(ObjectId.ROOT_TREE).first((ObjectId.FREE_SPACE, 0, 0))
    if cache is not None and cache.key.objectid == ObjectId.FREE_SPACE:
        raise UnsupportedError(f"{fs.path}: a balance with a v1 space cache is not modelled")
    _relocate_block_group(fs, start)
    start_transaction(fs, from_reserve=True)
    chunk = next(chunk for chunk in fs.image.chunks if chunk.logical == start)
    remove_chunk(fs, chunk)


def may_alloc_data_chunk(fs: Mount, chunk: Chunk) -> bool:
    """Make a chunk for data where the one to be moved is empty, and may be the last.

    (``btrfsmay_alloc_data_chunk()``.)
    """
    if not chunk.type & BTRFS_BLOCK_GROUP_DATA:
        return False
    if fs.writer.space_info(BTRFS_BLOCK_GROUP_DATA).used:
        return False
    fs.join_transaction()
    allocate_chunk(fs, BTRFS_BLOCK_GROUP_DATA)
    return True


def _relocate_block_group(fs: Mount, start: int) -> None:
    """``btrfs_relocate_block_group()``."""
    _set_read_only(fs, group_at(fs, start))
    ino = extents.create_reloc_inode(fs)
    control = Control(group_at(fs, start), ino)
    try:
        while _pass(fs, control):
            if control.moved and not control.updating:
                extents.copy_extents(fs, control)
                control.updating = True
    except OSError:
        fs.reloc_roots.merging = False
        if not fs.aborted:
            clean_dirty_subvols(fs, list(fs.reloc_roots.by_root.values()))
            extents.delete_reloc_inode(fs, ino)
            fs.writer.set_read_only(start, False)
        raise
    finally:
        set_mode(fs)
    extents.delete_reloc_inode(fs, ino)


def _set_read_only(fs: Mount, group: GroupState) -> None:
    """Allocate nothing in a block group any more (``btrfs_inc_block_group_ro()``).

    Where the others have less room than it has free, a chunk is made first.
    Raises OSError: ENOSPC.
    """
    fs.join_transaction()
    kind = group.flags & TYPES
    kind = kind & BTRFS_BLOCK_GROUP_DATA or kind
    if alloc_profile(fs, kind) != group.flags:
        _may_allocate(fs, kind)
    if kind != BTRFS_BLOCK_GROUP_DATA and not _would_fit(fs, group, kind):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), fs.path)
    if not _has_room_without(fs, group):
        allocate_chunk(fs, kind)
        if not _has_room_without(fs, group):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), fs.path)
    fs.writer.set_read_only(group.start, True)
    if group.flags & BTRFS_BLOCK_GROUP_SYSTEM:
        ensure_system(fs)


def _may_allocate(fs: Mount, kind: int) -> None:
    try:
        allocate_chunk(fs, kind)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def _would_fit(fs: Mount, group: GroupState, kind: int) -> bool:
    """Whether blocks surely have room elsewhere: an abort half-way would be the end of a mount."""
    flags = alloc_profile(fs, kind)
    free = sum(one.free for one in fs.writer.groups()
               if one.flags & kind and one.start != group.start)  # fmt: skip
    return free + room_for_chunks(fs, flags) >= _COPIES * group.used


def _has_room_without(fs: Mount, group: GroupState) -> bool:
    """``inc_block_group_ro()``."""
    if group.flags & BTRFS_BLOCK_GROUP_DATA:
        info = fs.writer.space_info(BTRFS_BLOCK_GROUP_DATA)
        reserved = fs.dirty_bytes.count
        more = 0
    else:
        kind = group.flags & TYPES
        info = fs.writer.space_info(kind)
        metadata = kind == BTRFS_BLOCK_GROUP_METADATA
        reserved = may_use(fs, level_of(fs, info)) if metadata else 0
        more = overcommit(fs, info.flags, _HALF)
    return info.total - info.free + reserved + group.free <= info.total + more


def _pass(fs: Mount, control: Control) -> bool:
    """Move what is found; whether there was anything (``relocate_block_group()``)."""
    # prepare_to_relocate()
    fs.join_transaction()
    commit(fs)
    # what moves is counted as it was
    if fs.quotas.mode is QuotaMode.FULL:
        fs.writer.set_quota(QuotaMode.OFF, 0, 0)
    control.at = control.group.start
    control.nodes.clear()
    control.pending.clear()
    control.done.clear()
    found = _move(fs, control)
    control.nodes.clear()
    prepare_to_merge(fs)
    dead = merge_reloc_roots(fs, control)
    fs.reloc_roots.merging = False
    # get rid of pinned extents
    fs.join_transaction()
    commit(fs)
    clean_dirty_subvols(fs, dead)
    return found


def _move(fs: Mount, control: Control) -> bool:
    """Go through the extents of the block group, as the last commit has them."""
    cluster: list[tuple[int, int]] = []
    found = False
    while True:
        start_transaction(fs)
        if control.transid != fs.transid:
            control.nodes.clear()
        control.transid = fs.transid
        extent = _find_next_extent(fs, control)
        if extent is None:
            break
        found = True
        key, flags = extent
        if flags & ExtentFlag.TREE_BLOCK:
            relocate_tree_blocks(fs, control, [key.objectid])
        elif control.updating:
            leaves = leaves_of(fs, key.objectid)
            leaves = postorder(leaf for leaf in leaves if leaf not in control.done)
            relocate_tree_blocks(fs, control, leaves)
        else:
            place = (key.objectid, key.offset)
            if cluster and (
                sum(cluster[-1]) != key.objectid or len(cluster) == extents.MAX_EXTENTS
            ):
                extents.relocate_cluster(fs, control, cluster)
                cluster = []
            cluster.append(place)
    if cluster:
        extents.relocate_cluster(fs, control, cluster)
    return found


def _find_next_extent(fs: Mount, control: Control) -> tuple[Key, int] | None:
    """Return the next extent that is not dealt with: key, flags (``find_next_extent()``)."""
    end = control.group.start + control.group.length
    tree = fs.tree(ObjectId.EXTENT_TREE)
    for item in tree.items((control.at, ItemType.EXTENT_ITEM, 0), (end - 1, 255, 2**64 - 1)):
        key = item.key
        if key.type not in (ItemType.EXTENT_ITEM, ItemType.METADATA_ITEM):
            continue
        size = key.offset if key.type == ItemType.EXTENT_ITEM else fs.nodesize
        if key.objectid in control.done:
            continue
        control.at = key.objectid + size
        return key, extent_item(key, item.data).flags
    return None
