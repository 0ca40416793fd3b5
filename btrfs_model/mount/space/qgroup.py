# SPDX-License-Identifier: GPL-2.0-only
"""Quota groups: what subvolumes use, counted at each commit (``qgroup.c``).

While a transaction runs, the writer remembers each extent to which a subvolume takes or drops a
reference. Its end asks which subvolumes reached each of them after the last commit and which do
now; that tells what every group has more and less. A snapshot is counted in the middle of a commit:
its source is, up to then, and it has the same after it.

Simple quotas look at no references: who allocated an extent has it until it is free.

Sources: ``fs/btrfs/qgroup.c`` of Linux 6.12 and 6.1, compared with a running 6.18.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Final

from btrfs_model.base.counters import uncounted
from btrfs_model.mount.mount import Mount
from btrfs_model.native import backref
from btrfs_model.native.backref import Forest
from btrfs_model.native.space import QuotaMode
from btrfs_model.native.tree import Root
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.ondisk.structs import (
    QGROUP_INFO_ITEM,
    QGROUP_LIMIT_ITEM,
    QGROUP_STATUS_ITEM,
    QgroupInfoItem,
    QgroupLimitItem,
    QgroupStatusItem,
)
from btrfs_model.patches import Patch
from btrfs_model.volume.quotas import (
    LEVEL_SHIFT,
    Inherit,
    LimitFlag,
    Limits,
    Qgroup,
    Quotas,
    StatusFlag,
    count_extents,
    group_name,
    read_quotas,
)
from btrfs_model.volume.roots import is_subvolume_id
from btrfs_model.volume.tree import RawKey

_QUOTA_TREE: Final = int(ObjectId.QUOTA_TREE)
_STATUS_KEY: Final = (0, int(ItemType.QGROUP_STATUS), 0)
_RELATION: Final = int(ItemType.QGROUP_RELATION)
_VERSION: Final = 1
# of the limits of a group: take this one away
_CLEAR: Final = U64_MAX
_DROP_SUBTREE: Final = 3


def fail(number: int, group: int) -> OSError:
    """Return an error that names a group."""
    return OSError(number, os.strerror(number), group_name(group))


def need_quotas(fs: Mount) -> None:
    """See that there are quotas.

    Raises OSError: ENOTCONN when there are none.
    """
    if not fs.quotas.has_tree:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), fs.path)


def need_quotas_first(fs: Mount) -> None:
    """See that there are quotas before anything else is looked at (``qgroup_enabled()``).

    Raises OSError: ENOTCONN when there are none and the kernel is one that does so.
    """
    if Patch.QGROUP_ENABLED_FIRST in fs.behaviour:
        need_quotas(fs)


def set_mode(fs: Mount) -> None:
    """Tell the writer what it has to remember."""
    quotas = fs.quotas
    fs.writer.set_quota(quotas.mode, quotas.enable_gen, quotas.drop_subtree_threshold)


# ---------------------------------------------------------------------------------- items --


def _info_key(group: int) -> RawKey:
    return (0, int(ItemType.QGROUP_INFO), group)


def _limit_key(group: int) -> RawKey:
    return (0, int(ItemType.QGROUP_LIMIT), group)


def _put(fs: Mount, key: RawKey, payload: bytes) -> None:
    """Insert an item, or write over the one that is there."""
    if fs.writer.get(_QUOTA_TREE, key) is None:
        fs.writer.insert(_QUOTA_TREE, key, payload)
    else:
        fs.writer.update(_QUOTA_TREE, key, 0, payload)


def _update(fs: Mount, key: RawKey, payload: bytes) -> None:
    """Write over an item; without it quotas are inconsistent."""
    if fs.writer.get(_QUOTA_TREE, key) is None:
        fs.quotas.mark_inconsistent()
    else:
        fs.writer.update(_QUOTA_TREE, key, 0, payload)


def _delete(fs: Mount, key: RawKey) -> bool:
    """Delete an item; whether it was there."""
    there = fs.writer.get(_QUOTA_TREE, key) is not None
    if there:
        fs.writer.delete(_QUOTA_TREE, key)
    return there


def add_qgroup_item(fs: Mount, group: int) -> None:
    """Make the items of a group, or set them to zero (``add_qgroup_item()``)."""
    info = QgroupInfoItem(fs.transid, 0, 0, 0, 0)
    _put(fs, _info_key(group), QGROUP_INFO_ITEM.pack(info))
    _put(fs, _limit_key(group), bytes(QGROUP_LIMIT_ITEM.size))


def _add_relation_item(fs: Mount, left: int, right: int) -> None:
    if fs.writer.get(_QUOTA_TREE, (left, _RELATION, right)) is None:
        fs.writer.insert(_QUOTA_TREE, (left, _RELATION, right), b"")


def _update_info(fs: Mount, group: Qgroup) -> None:
    info = QgroupInfoItem(fs.transid, group.rfer, group.rfer_cmpr, group.excl, group.excl_cmpr)
    _update(fs, _info_key(group.id), QGROUP_INFO_ITEM.pack(info))


def _update_limit(fs: Mount, group: Qgroup) -> None:
    own = group.limits
    item = QgroupLimitItem(own.flags, own.max_rfer, own.max_excl, own.rsv_rfer, own.rsv_excl)
    _update(fs, _limit_key(group.id), QGROUP_LIMIT_ITEM.pack(item))


def update_status(fs: Mount) -> None:
    """Write the state of quotas (``update_qgroup_status_item()``)."""
    quotas = fs.quotas
    item = QgroupStatusItem(_VERSION, fs.transid, int(quotas.flags), quotas.rescan)
    _update(fs, _STATUS_KEY, QGROUP_STATUS_ITEM.pack(item))


def insert_status(fs: Mount, flags: StatusFlag, enable_gen: int | None) -> None:
    """Insert the status item; `enable_gen`: what follows it, of kernels that know simple quotas."""
    item = QGROUP_STATUS_ITEM.pack(QgroupStatusItem(_VERSION, fs.transid, int(flags), 0))
    tail = b"" if enable_gen is None else enable_gen.to_bytes(8, "little")
    fs.writer.insert(_QUOTA_TREE, _STATUS_KEY, item + tail)


# ------------------------------------------------------------------------------ at mount --


def read_qgroup_config(fs: Mount) -> None:
    """Read the quota tree (``btrfs_read_qgroup_config()``)."""
    quotas = Quotas()
    if fs.writer.has_tree(_QUOTA_TREE):
        items = fs.writer.tree(_QUOTA_TREE).items()
        quotas = read_quotas(items, fs.raw_super.generation)
        if Patch.QGROUP_ID_COLLISION in fs.behaviour:
            for group in filter(is_subvolume_id, quotas.by_id):
                fs.skip_root_id(group)
    high = Patch.QGROUP_DROP_THRESHOLD in fs.behaviour
    quotas.drop_subtree_threshold = _DROP_SUBTREE if high else BTRFS_MAX_LEVEL
    fs.quotas = quotas
    set_mode(fs)


# ----------------------------------------------------------------------------- at commit --


def _forest(fs: Mount, places: Iterable[tuple[int, tuple[int, int, int]]]) -> Forest:
    """Return the subvolumes and the extent tree by id, address, generation and level."""
    store = fs.image.store
    roots = [Root(store, tree, *place) for tree, place in places
             if is_subvolume_id(tree) or tree == ObjectId.EXTENT_TREE]  # fmt: skip
    return Forest(store, roots, ())


def _committed(fs: Mount) -> Forest:
    return _forest(fs, fs.committed_roots.items())


def account_extents(fs: Mount, skip: int = 0) -> None:
    """Count the extents whose references changed (``btrfs_qgroup_account_extents()``).

    All references must have been run.

    `skip`: a subvolume that counts for nobody.
    """
    bytenr, num_bytes = fs.writer.take_traced()
    quotas = fs.quotas
    quotas.reserved.clear()
    if quotas.mode is not QuotaMode.FULL or quotas.no_accounting:
        return
    if quotas.flags & StatusFlag.RESCAN:
        seen = bytenr < quotas.rescan
        bytenr, num_bytes = bytenr[seen], num_bytes[seen]
    if not len(bytenr):
        return
    with uncounted():
        now = _forest(fs, ((tree, fs.root_place(tree)) for tree in fs.writer.tree_ids()))
        rows = backref.account_extents(_committed(fs), now, bytenr, num_bytes)
    for before, after, size in rows:
        was, new = ([root for root in roots if root != skip] for roots in (before, after))
        quotas.count(was, new, size)


def run_rescan(fs: Mount) -> None:
    """Count what a rescan has not seen of the last commit."""
    tree = fs.tree(ObjectId.EXTENT_TREE)
    with uncounted():
        count_extents(fs.quotas, tree, _committed(fs), fs.nodesize, fs.quotas.rescan)


def _record_deltas(fs: Mount) -> None:
    """Count what was allocated and freed under simple quotas (``btrfs_record_squota_delta()``)."""
    for root, size in fs.writer.take_deltas():
        own = fs.quotas.by_id.get(root)
        for group in own.upwards() if own else ():
            group.add(size, size, 0, 0)
            fs.quotas.touch(group)


def run_qgroups(fs: Mount) -> None:
    """Write the items of groups that changed, and the state (``btrfs_run_qgroups()``)."""
    quotas = fs.quotas
    if not quotas.has_tree:
        return
    _record_deltas(fs)
    for group in reversed(quotas.dirty.values()):
        _update_info(fs, group)
        _update_limit(fs, group)
    quotas.dirty.clear()
    on = StatusFlag.ON
    quotas.flags = quotas.flags | on if quotas.enabled else quotas.flags & ~on
    update_status(fs)


# ---------------------------------------------------------------------------------- groups --


def create_qgroup(fs: Mount, group: int) -> None:
    """Make a group (``btrfs_create_qgroup()``).

    Raises OSError: EEXIST, ENOTCONN.
    """
    need_quotas(fs)
    if group in fs.quotas.by_id:
        raise fail(errno.EEXIST, group)
    add_qgroup_item(fs, group)
    fs.quotas.by_id[group] = Qgroup(group)


def _can_delete(fs: Mount, group: Qgroup) -> bool:
    """``can_delete_qgroup()``, and ``qgroup_has_usage()`` in kernels before 6.11."""
    if Patch.QGROUP_REMOVE_GONE not in fs.behaviour:
        used = group.rfer or group.excl or fs.quotas.reserved.get(group.id)
        return bool(group.level or not used)
    if fs.quotas.mode is QuotaMode.SIMPLE and (group.rfer or group.excl):
        return False
    if group.level:
        return not group.members
    key = (group.id, ItemType.ROOT_ITEM, U64_MAX)
    item = fs.writer.tree(ObjectId.ROOT_TREE).last(key)
    return item is None or item.key[:2] != key[:2]


def remove_qgroup(fs: Mount, group_id: int) -> None:
    """Delete a group (``btrfs_remove_qgroup()``).

    Raises OSError: ENOENT, ENOTCONN; EBUSY when it has members, or its subvolume is there.
    """
    need_quotas(fs)
    _record_deltas(fs)
    quotas = fs.quotas
    group = quotas.by_id.get(group_id)
    if group is None:
        raise fail(errno.ENOENT, group_id)
    if not _can_delete(fs, group) or group.members:
        raise fail(errno.EBUSY, group_id)
    if _delete(fs, _info_key(group_id)):
        _delete(fs, _limit_key(group_id))
    for parent in list(group.groups):
        _unrelate(fs, group_id, parent.id)
    warns = Patch.QGROUP_REMOVE_GONE in fs.behaviour and quotas.mode is QuotaMode.FULL
    is_exact = not quotas.flags & StatusFlag.INCONSISTENT
    if warns and is_exact and (group.rfer or group.excl):
        quotas.mark_inconsistent()
    del quotas.by_id[group_id]
    quotas.dirty.pop(group_id, None)


def _update_quickly(fs: Mount, member: int, group: int, sign: int) -> bool:
    """Count a member into a group, or out of it, if it has all alone (``quick_update_accounting``).

    Returns whether that was possible; where not, quotas are inconsistent.
    """
    quotas = fs.quotas
    own = quotas.by_id.get(member)
    if own is None or own.excl != own.rfer:
        quotas.flags |= StatusFlag.INCONSISTENT
        return False
    size, cmpr = sign * own.excl, sign * own.excl_cmpr
    for each in quotas.by_id[group].upwards():
        each.add(size, size, cmpr, cmpr)
        quotas.touch(each)
    return True


def add_relation(fs: Mount, member: int, group: int) -> bool:
    """Put a group into another (``btrfs_add_qgroup_relation()``).

    Returns whether a rescan is needed.
    Raises OSError: EINVAL, EEXIST, ENOTCONN.
    """
    if member >> LEVEL_SHIFT >= group >> LEVEL_SHIFT:
        raise fail(errno.EINVAL, member)
    need_quotas(fs)
    _record_deltas(fs)
    quotas = fs.quotas
    if member not in quotas.by_id or group not in quotas.by_id:
        raise fail(errno.EINVAL, member)
    own, parent = quotas.by_id[member], quotas.by_id[group]
    if parent in own.groups:
        raise fail(errno.EEXIST, member)
    _add_relation_item(fs, member, group)
    _add_relation_item(fs, group, member)
    quotas.relate(own, parent)
    return not _update_quickly(fs, member, group, 1)


def _unrelate(fs: Mount, member: int, group: int) -> bool:
    """``__del_qgroup_relation()``; returns whether a rescan is needed."""
    quotas = fs.quotas
    own, parent = quotas.by_id.get(member), quotas.by_id.get(group)
    found = own is not None and parent is not None and parent in own.groups
    there = [_delete(fs, (member, _RELATION, group)), _delete(fs, (group, _RELATION, member))]
    if own is None or parent is None or not found:
        if not any(there):
            raise fail(errno.ENOENT, member)
        return False
    own.groups.remove(parent)
    parent.members.remove(own)
    return not _update_quickly(fs, member, group, -1)


def delete_relation(fs: Mount, member: int, group: int) -> bool:
    """Take a group out of another (``btrfs_del_qgroup_relation()``).

    Returns whether a rescan is needed.
    Raises OSError: ENOENT, ENOTCONN.
    """
    need_quotas(fs)
    _record_deltas(fs)
    return _unrelate(fs, member, group)


def limit_qgroup(fs: Mount, group: int, limits: Limits) -> None:
    """Set the limits that there are flags for; -1 takes one away (``btrfs_limit_qgroup()``).

    Raises OSError: ENOENT, ENOTCONN.
    """
    need_quotas(fs)
    own = fs.quotas.by_id.get(group)
    if own is None:
        raise fail(errno.ENOENT, group)
    flags = limits.flags
    for flag in LimitFlag:
        name = str(flag.name).lower()
        value = getattr(limits, name)
        if not flags & flag:
            continue
        setattr(own.limits, name, 0 if value == _CLEAR else value)
        if value == _CLEAR:
            own.limits.flags &= ~flag
            flags &= ~flag
    own.limits.flags |= flags
    _update_limit(fs, own)


# ----------------------------------------------------------------------------- subvolumes --


def inherit_qgroups(
    fs: Mount, source: int, objectid: int, parent: int, inherit: Inherit | None
) -> None:
    """Make the group of a new subvolume or snapshot (``btrfs_qgroup_inherit()``).

    `source`: of a snapshot its source, 0 of a subvolume.
    `parent`: the subvolume that it lies in.
    `inherit`: what the call said, None for nothing.
    """
    quotas = fs.quotas
    if not quotas.enabled:
        return
    _record_deltas(fs)
    if quotas.mode is QuotaMode.SIMPLE and inherit is None:
        above = quotas.by_id.get(parent)
        if above is None:
            raise fail(errno.ENOENT, parent)
        inherit = Inherit(tuple(group.id for group in above.groups)) if above.groups else None
    wanted = [group for group in inherit.groups if group in quotas.by_id and group >> LEVEL_SHIFT
              ] if inherit else []  # fmt: skip
    add_qgroup_item(fs, objectid)
    for group in wanted:
        _add_relation_item(fs, objectid, group)
        _add_relation_item(fs, group, objectid)
    own = quotas.by_id.setdefault(objectid, Qgroup(objectid))
    if inherit and inherit.limits:
        own.limits = inherit.limits
        quotas.touch(own)
    src = quotas.by_id.get(source) if quotas.mode is QuotaMode.FULL else None
    if source and quotas.mode is QuotaMode.FULL and src is None:
        return
    knows_quick = Patch.QGROUP_QUICK_INHERIT in fs.behaviour
    needs_rescan = bool(source and inherit and inherit.groups and not knows_quick)
    if src is not None:
        # but for the root node the two are the same
        own.rfer, own.rfer_cmpr = src.rfer, src.rfer_cmpr
        own.excl = own.excl_cmpr = src.excl = src.excl_cmpr = fs.nodesize
        own.limits = Limits(src.limits.flags, src.limits.max_rfer, src.limits.max_excl,
                            src.limits.rsv_rfer, src.limits.rsv_excl)  # fmt: skip
        quotas.touch(own)
        quotas.touch(src)
        needs_rescan |= inherit is None and knows_quick and bool(src.groups)
    for group in wanted:
        quotas.relate(own, quotas.by_id[group])
        if source and knows_quick and not _inherit_quickly(fs, source, group):
            needs_rescan = True
    if needs_rescan:
        quotas.mark_inconsistent()


def _inherit_quickly(fs: Mount, source: int, group: int) -> bool:
    """Whether a snapshot could be counted into its source's group (``..._quick_inherit()``)."""
    quotas = fs.quotas
    if quotas.mode is not QuotaMode.FULL:
        return True
    parent = quotas.by_id[group]
    if quotas.by_id[source].groups != [parent] or parent.excl != parent.rfer:
        return False
    for each in parent.upwards():
        each.add(*[fs.nodesize] * 4)
        quotas.touch(each)
    return True
