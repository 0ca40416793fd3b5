# SPDX-License-Identifier: GPL-2.0-only
"""Quotas are switched on and off, and counted from scratch: what takes transactions of its own.

Kernels rescan in the background, leaf by leaf of the extent tree as the last commit has it, while
other calls go on. Here a rescan is over when the call that wants it returns.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space.qgroup import (
    add_qgroup_item,
    insert_status,
    need_quotas_first,
    read_qgroup_config,
    run_rescan,
    set_mode,
    update_status,
)
from btrfs_model.native.space import QuotaMode
from btrfs_model.ondisk.items import root_item
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.structs import ROOT_ITEM
from btrfs_model.patches import Patch
from btrfs_model.volume.quotas import Qgroup, Quotas, StatusFlag

_FS_TREE: Final = int(ObjectId.FS_TREE)
_QUOTA_TREE: Final = int(ObjectId.QUOTA_TREE)
_SIMPLE_QUOTA: Final = 1 << 16


def quota_enable(fs: Mount, *, simple: bool) -> None:
    """Make a quota tree with a group for each subvolume, and count (``btrfs_quota_enable()``).

    `simple`: quotas that count what was allocated since, by who did.
    Raises OSError: EINVAL where the kernel does not know these.
    """
    knows_simple = Patch.SIMPLE_QUOTAS in fs.behaviour
    if simple and not knows_simple:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if fs.quotas.has_tree:
        return
    fs.join_transaction()
    quotas = fs.quotas = Quotas(drop_subtree_threshold=fs.quotas.drop_subtree_threshold)
    quotas.flags = StatusFlag.ON | (StatusFlag.SIMPLE_MODE if simple else StatusFlag.INCONSISTENT)
    quotas.enable_gen = fs.transid + 1 if simple else 0
    if simple:
        fs.add_incompat(_SIMPLE_QUOTA)
    _create_tree(fs)
    insert_status(fs, quotas.flags, quotas.enable_gen if knows_simple else None)
    refs = fs.writer.tree(ObjectId.ROOT_TREE).items()
    subvolumes = [item.key.offset for item in refs if item.key.type == ItemType.ROOT_REF]
    for subvolume in [*subvolumes, _FS_TREE]:
        add_qgroup_item(fs, subvolume)
        quotas.by_id[subvolume] = Qgroup(subvolume)
    fs.hooks.commit(fs)
    quotas.has_tree = quotas.enabled = True
    set_mode(fs)
    if not simple:
        _start_rescan(fs)
        _zero_and_scan(fs)


def _create_tree(fs: Mount) -> None:
    """``btrfs_create_tree()``."""
    fs.writer.new_tree(_QUOTA_TREE)
    state = fs.writer.tree_state(_QUOTA_TREE)
    item = root_item(bytes(ROOT_ITEM.size))
    item = item._replace(bytenr=state.bytenr, generation=fs.transid, refs=1,
                         bytes_used=fs.nodesize)  # fmt: skip
    fs.add_root(_QUOTA_TREE, item)


def quota_disable(fs: Mount) -> None:
    """Give the quota tree up (``btrfs_quota_disable()``)."""
    quotas = fs.quotas
    if not quotas.has_tree:
        return
    quotas.enabled = False
    set_mode(fs)
    fs.hooks.flush_delalloc(fs)
    fs.hooks.commit(fs)
    fs.join_transaction()
    fs.quotas = Quotas()
    fs.writer.delete_range(_QUOTA_TREE, (0, 0, 0), (U64_MAX, 255, U64_MAX))
    fs.forget_root(_QUOTA_TREE)
    fs.writer.drop_tree(_QUOTA_TREE)
    read_qgroup_config(fs)
    fs.hooks.commit(fs)


def _start_rescan(fs: Mount) -> None:
    """``qgroup_rescan_init()``."""
    quotas = fs.quotas
    if quotas.mode is QuotaMode.SIMPLE:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if not quotas.flags & StatusFlag.ON:
        number = errno.ENOTCONN if Patch.QGROUP_ENABLED_FIRST in fs.behaviour else errno.EINVAL
        raise OSError(number, os.strerror(number))
    quotas.flags |= StatusFlag.RESCAN
    quotas.no_accounting = False
    quotas.rescan = 0


def _zero_and_scan(fs: Mount) -> None:
    for group in fs.quotas.by_id.values():
        group.rfer = group.rfer_cmpr = group.excl = group.excl_cmpr = 0
        fs.quotas.touch(group)
    rescan_worker(fs)


def quota_rescan(fs: Mount) -> None:
    """Count all groups from scratch (``btrfs_qgroup_rescan()``).

    Raises OSError: ENOTCONN without quotas (EINVAL before 6.11), EINVAL with simple ones.
    """
    need_quotas_first(fs)
    _start_rescan(fs)
    if Patch.QGROUP_RESCAN_NO_EMPTY_COMMIT not in fs.behaviour:
        fs.join_transaction()
    if fs.in_transaction:
        fs.hooks.commit(fs)
    _zero_and_scan(fs)


def rescan_worker(fs: Mount) -> None:
    """Go on with a rescan to its end (``btrfs_qgroup_rescan_worker()``)."""
    quotas = fs.quotas
    fs.join_transaction()
    run_rescan(fs)
    quotas.rescan = U64_MAX
    fs.hooks.commit(fs)
    fs.join_transaction()
    quotas.flags &= ~(StatusFlag.INCONSISTENT | StatusFlag.RESCAN)
    update_status(fs)
