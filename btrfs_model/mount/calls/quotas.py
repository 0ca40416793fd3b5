# SPDX-License-Identifier: GPL-2.0-only
"""Calls on quota groups, as methods of a filesystem that is being changed (the kernel's ioctls).

A group is named by its number, or as ``level/id``: ``0/257`` is that of subvolume 257.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final

from btrfs_model.mount.calls.call_errors import about
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space import qgroup, quota_ctl
from btrfs_model.mount.transaction import start_transaction
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL
from btrfs_model.ondisk.keys import U64_MAX, ObjectId
from btrfs_model.patches import Patch
from btrfs_model.volume.quotas import LEVEL_SHIFT, Inherit, LimitFlag, Limits
from btrfs_model.volume.roots import is_subvolume_id

# who calls does so by the top directory
_TOP: Final = int(ObjectId.FS_TREE)

Group = int | str
"""Number of a quota group, or ``level/id``."""


def group_id(group: Group) -> int:
    """Return the number of a quota group.

    Raises ValueError: when it is none.
    """
    if isinstance(group, int):
        return group
    level, slash, number = group.partition("/")
    if not slash:
        level, number = "0", group
    try:
        found = int(level) << LEVEL_SHIFT | int(number)
    except ValueError:
        found = -1
    if not 0 <= found <= U64_MAX or int(number) >> LEVEL_SHIFT:
        raise ValueError(f"{group!r} is no quota group: it is called level/id")
    return found


def new_inherit(fs: Mount, groups: Sequence[Group] | None) -> Inherit | None:
    """Return what a new subvolume is told of quota groups (``btrfs_qgroup_check_inherit()``).

    Raises OSError: EINVAL, ENOENT.
    """
    if groups is None:
        return None
    numbers = tuple(group_id(group) for group in groups)
    if fs.quotas.enabled and Patch.QGROUP_INHERIT_CHECKED in fs.behaviour:
        for number in numbers:
            if not number >> LEVEL_SHIFT:
                raise qgroup.fail(errno.EINVAL, number)
            if number not in fs.quotas.by_id:
                raise qgroup.fail(errno.ENOENT, number)
    return Inherit(numbers)


def _start(fs: Mount, items: int) -> None:
    """Start a transaction that changes items of the quota tree.

    Raises OSError: EDQUOT, ENOSPC.
    """
    if Patch.QGROUP_CALL_RESERVES in fs.behaviour:
        start_transaction(fs, items, root=_TOP)
    else:
        fs.join_transaction()


class QuotaCalls(Mount):
    """Calls on quota groups.

    Errors are :exc:`OSError` with the errno of the kernel: ENOTCONN without quotas.
    """

    @exclusive
    def quota_enable(self, simple: bool = False) -> None:
        """Switch quotas on and count (BTRFS_IOC_QUOTA_CTL); commits.

        Parameters
        ----------
        simple : bool
            Simple quotas (Linux 6.7): an extent counts for the subvolume that allocated it, until
            it is free; what is there already does not count.
        """
        quota_ctl.quota_enable(self, simple=simple)

    @exclusive
    def quota_disable(self) -> None:
        """Switch quotas off and give the quota tree up; commits."""
        quota_ctl.quota_disable(self)

    @exclusive
    def quota_rescan(self) -> None:
        """Count all groups from scratch (BTRFS_IOC_QUOTA_RESCAN), to the end; commits."""
        quota_ctl.quota_rescan(self)

    @exclusive
    def set_drop_subtree_threshold(self, level: int) -> None:
        """Say which shared subtrees are too high to be looked at when a tree of them is dropped.

        (``qgroups/drop_subtree_threshold`` in sysfs.) Quotas are inconsistent then.

        Parameters
        ----------
        level : int
            Of the root block of the lowest of them; 3 at mount, 8 for none.

        Raises
        ------
        OSError
            EINVAL.
        """
        if not 0 <= level <= BTRFS_MAX_LEVEL:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        self.quotas.drop_subtree_threshold = level
        qgroup.set_mode(self)

    @about("group")
    def qgroup_create(self, group: Group) -> None:
        """Make a quota group of level 1 or above."""
        number = group_id(group)
        qgroup.need_quotas_first(self)
        if not number or is_subvolume_id(number):
            raise qgroup.fail(errno.EINVAL, number)
        _start(self, 2)
        qgroup.create_qgroup(self, number)

    @about("group")
    def qgroup_destroy(self, group: Group) -> None:
        """Delete a quota group without members, and without a subvolume."""
        number = group_id(group)
        qgroup.need_quotas_first(self)
        if not number:
            raise qgroup.fail(errno.EINVAL, number)
        _start(self, 2)
        qgroup.remove_qgroup(self, number)

    @about("member")
    def qgroup_assign(self, member: Group, group: Group) -> bool:
        """Put a quota group into one of a higher level.

        Returns
        -------
        bool
            Whether the numbers are inconsistent now, until a rescan.
        """
        qgroup.need_quotas_first(self)
        _start(self, 2)
        try:
            return qgroup.add_relation(self, group_id(member), group_id(group))
        finally:
            qgroup.run_qgroups(self)

    @about("member")
    def qgroup_remove(self, member: Group, group: Group) -> bool:
        """Take a quota group out of another; returns as :meth:`qgroup_assign`."""
        qgroup.need_quotas_first(self)
        _start(self, 2)
        try:
            return qgroup.delete_relation(self, group_id(member), group_id(group))
        finally:
            qgroup.run_qgroups(self)

    @about("group")
    def qgroup_limit(
        self, group: Group, max_rfer: int | None = None, max_excl: int | None = None
    ) -> None:
        """Limit what a quota group may use.

        Parameters
        ----------
        group : int or str
            The group.
        max_rfer, max_excl : int, optional
            Bytes that it may refer to, and have alone; -1 takes the limit away, None leaves it.
        """
        qgroup.need_quotas_first(self)
        limits = Limits()
        if max_rfer is not None:
            limits.flags |= LimitFlag.MAX_RFER
            limits.max_rfer = max_rfer % 2**64
        if max_excl is not None:
            limits.flags |= LimitFlag.MAX_EXCL
            limits.max_excl = max_excl % 2**64
        _start(self, 1)
        qgroup.limit_qgroup(self, group_id(group), limits)
