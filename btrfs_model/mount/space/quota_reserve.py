# SPDX-License-Identifier: GPL-2.0-only
"""What calls reserve of the limits of quota groups, and EDQUOT (``qgroup_reserve()``).

Data that become dirty reserve their bytes, each extent of them and each item that a call changes a
tree block. What a call reserved stays so until the commit that counts what came of it. Where a
limit would be exceeded, the data of the subvolume are written back and committed; if that makes no
room either, the call fails.

A commit gives everything back, so a call fails for what groups have, not for what was reserved
before: what is booked decides only whether there is a commit.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL
from btrfs_model.patches import Patch
from btrfs_model.volume.quotas import LimitFlag, Qgroup

_LIMITS = LimitFlag.MAX_RFER | LimitFlag.MAX_EXCL


def is_limited(fs: Mount, root: int) -> bool:
    """Whether a limit counts for a subvolume."""
    own = fs.quotas.by_id.get(root) if fs.quotas.enabled else None
    return own is not None and any(group.limits.flags & _LIMITS for group in own.upwards())


def _reserved(fs: Mount, root: int) -> int:
    """Return what is reserved for a subvolume (``qgroup_rsv_total()``), bytes."""
    delalloc, extents = fs.dirty_bytes.of_root.get(root, (0, 0))
    return fs.quotas.reserved.get(root, 0) + delalloc + extents * fs.nodesize


def _subvolumes(group: Qgroup) -> Iterator[int]:
    """Ids of all groups below a group, once each, and its own."""
    found = {group.id}
    queue = [group]
    for each in queue:
        yield each.id
        more = [member for member in each.members if member.id not in found]
        found.update(member.id for member in more)
        queue += more


def _fits(fs: Mount, root: int, num_bytes: int) -> bool:
    """``qgroup_check_limits()`` of all groups that a subvolume is in."""
    for group in fs.quotas.by_id[root].upwards():
        limits = group.limits
        if not limits.flags & _LIMITS:
            continue
        wanted = num_bytes + sum(_reserved(fs, below) for below in _subvolumes(group))
        if limits.flags & LimitFlag.MAX_RFER and wanted + group.rfer > limits.max_rfer:
            return False
        if limits.flags & LimitFlag.MAX_EXCL and wanted + group.excl > limits.max_excl:
            return False
    return True


def reserve(fs: Mount, root: int, num_bytes: int) -> None:
    """See that bytes are within the limits, after making room (``btrfs_qgroup_reserve_data()``).

    Raises OSError: EDQUOT.
    """
    if not num_bytes or not is_limited(fs, root) or _fits(fs, root, num_bytes):
        return
    fs.hooks.flush_delalloc(fs, root)
    if Patch.QGROUP_FLUSH_NO_EMPTY_COMMIT not in fs.behaviour:
        fs.join_transaction()
    fs.hooks.commit(fs)
    if not _fits(fs, root, num_bytes):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), fs.path)


def book(fs: Mount, root: int, num_bytes: int) -> None:
    """Keep bytes reserved until the next commit."""
    quotas = fs.quotas
    if quotas.enabled:
        quotas.reserved[root] = quotas.reserved.get(root, 0) + num_bytes


def reserve_items(fs: Mount, root: int, items: int, *, enforce: bool = True) -> None:
    """Reserve a tree block for each item that a call changes, and keep it.

    `enforce`: not of a call that frees something.
    Raises OSError: EDQUOT.
    """
    if not fs.quotas.enabled:
        return
    if enforce:
        reserve(fs, root, items * fs.nodesize)
    book(fs, root, items * fs.nodesize)


def reserve_inode(fs: Mount, inode: LiveInode) -> None:
    """Reserve for an inode item that a call without a reservation of its own changes.

    ``btrfs_dirty_inode()``: what a path may take, if the item does not wait already; where that is
    too much, one tree block.
    Raises OSError: EDQUOT.
    """
    node = fs.delayed.node(inode.root, inode.ino)
    if (node is not None and node.inode_item is not None) or not is_limited(fs, inode.root):
        return
    fs.join_transaction()
    path = BTRFS_MAX_LEVEL * fs.nodesize
    if _fits(fs, inode.root, path):
        book(fs, inode.root, path)
    else:
        reserve_items(fs, inode.root, 1)


def reserve_blocks(fs: Mount, inode: LiveInode, start: int, end: int) -> int:
    """Reserve for blocks [start, end) as far as they become dirty.

    Returns how many bytes those are.
    Raises OSError: EDQUOT.
    """
    if not is_limited(fs, inode.root):
        return 0
    new = end - start - sum(r.end - r.start for r in inode.pages.ranges(start, end))
    reserve(fs, inode.root, new)
    return new


def reserve_extent(fs: Mount, inode: LiveInode, num_bytes: int) -> None:
    """Reserve for the extent that blocks become, for which `num_bytes` are reserved.

    Raises OSError: EDQUOT.
    """
    if is_limited(fs, inode.root):
        reserve(fs, inode.root, num_bytes + fs.nodesize)
