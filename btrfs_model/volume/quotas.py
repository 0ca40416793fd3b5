# SPDX-License-Identifier: GPL-2.0-only
"""Quota groups: what subvolumes, and groups of them, use and may use.

The quota tree has what a kernel counted; :func:`count_extents` counts it from scratch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import TYPE_CHECKING, Final

import numpy as np

from btrfs_model.native import backref
from btrfs_model.native.space import QuotaMode
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import QGROUP_INFO_ITEM, QGROUP_LIMIT_ITEM, QGROUP_STATUS_ITEM
from btrfs_model.volume.tree import Item, Tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from btrfs_model.volume.forest import Forest
    from btrfs_model.volume.image import Image

LEVEL_SHIFT: Final = 48
"""Above it an id has the level of a quota group."""

_VERSION: Final = 1
_COLUMNS: Final = {
    "qgroup": "object", "path": "object", "rfer": "uint64", "excl": "uint64", "reached": "uint64",
    "alone": "uint64", "max_rfer": "UInt64", "max_excl": "UInt64", "groups": "object",
}  # fmt: skip


def group_name(group: int) -> str:
    """Return level/id of a quota group."""
    return f"{group >> LEVEL_SHIFT}/{group & (1 << LEVEL_SHIFT) - 1}"


class StatusFlag(IntFlag):
    """``BTRFS_QGROUP_STATUS_FLAG_*``."""

    ON = 1
    RESCAN = 2
    INCONSISTENT = 4
    SIMPLE_MODE = 8


class LimitFlag(IntFlag):
    """Which limits of a quota group there are (``BTRFS_QGROUP_LIMIT_*``)."""

    MAX_RFER = 1
    MAX_EXCL = 2
    RSV_RFER = 4
    RSV_EXCL = 8


@dataclass(slots=True)
class Limits:
    """What a quota group may use, bytes (``struct btrfs_qgroup_limit``)."""

    flags: int = 0
    max_rfer: int = 0
    max_excl: int = 0
    rsv_rfer: int = 0
    rsv_excl: int = 0


@dataclass(slots=True, eq=False)
class Qgroup:
    """A quota group (``struct btrfs_qgroup``).

    `id`: the level in the upper 16 bits; on level 0 a subvolume.
    `rfer`, `excl`: bytes that its subvolumes reach, and that nobody else does.
    `rfer_cmpr`, `excl_cmpr`: the same; kernels do not tell compressed data apart. Simple quotas
    leave them out.
    `groups`, `members`: those that it is in, those that are in it.
    """

    id: int
    rfer: int = 0
    rfer_cmpr: int = 0
    excl: int = 0
    excl_cmpr: int = 0
    limits: Limits = field(default_factory=Limits)
    groups: list[Qgroup] = field(default_factory=list)
    members: list[Qgroup] = field(default_factory=list)

    @property
    def level(self) -> int:
        """0: of a subvolume."""
        return self.id >> LEVEL_SHIFT

    def add(self, rfer: int, excl: int, rfer_cmpr: int, excl_cmpr: int) -> None:
        """Count bytes; all numbers are of 64 bits."""
        self.rfer, self.rfer_cmpr = (self.rfer + rfer) % 2**64, (self.rfer_cmpr + rfer_cmpr) % 2**64
        self.excl, self.excl_cmpr = (self.excl + excl) % 2**64, (self.excl_cmpr + excl_cmpr) % 2**64

    def upwards(self) -> Iterator[Qgroup]:
        """Yield it and all groups that it is in, each once."""
        found = {self.id: self}
        queue = [self]
        for group in queue:
            yield group
            for parent in group.groups:
                if parent.id not in found:
                    found[parent.id] = parent
                    queue.append(parent)


@dataclass(frozen=True, slots=True)
class Inherit:
    """What a new subvolume is told of quota groups (``struct btrfs_qgroup_inherit``).

    `groups`: those that it is put into.
    `limits`: its own.
    """

    groups: Sequence[int] = ()
    limits: Limits | None = None


@dataclass(slots=True)
class Quotas:
    """Quotas of a filesystem (the ``qgroup_*`` of ``struct btrfs_fs_info``).

    `has_tree`: whether there is a quota tree that is in use.
    `enabled`: whether they are kept.
    `flags`: what the status item says (:class:`StatusFlag`).
    `rescan`: the extent that a rescan has come to.
    `enable_gen`: of simple quotas, the transaction from which on extents count.
    `no_accounting`: they are inconsistent, and nothing is counted until a rescan.
    `drop_subtree_threshold`: how high a shared subtree must be for its deletion to make them so.
    `by_id`: the groups.
    `reserved`: what calls reserved of limits since the last commit, by subvolume, bytes.
    `dirty`: those whose items are out of date, by id, the one that changed last at the end.
    """

    has_tree: bool = False
    enabled: bool = False
    flags: StatusFlag = field(default_factory=lambda: StatusFlag(0))
    rescan: int = 0
    enable_gen: int = 0
    no_accounting: bool = False
    drop_subtree_threshold: int = 0
    by_id: dict[int, Qgroup] = field(default_factory=dict)
    reserved: dict[int, int] = field(default_factory=dict)
    dirty: dict[int, Qgroup] = field(default_factory=dict)

    @property
    def mode(self) -> QuotaMode:
        """``btrfs_qgroup_mode()``."""
        if not self.enabled:
            return QuotaMode.OFF
        return QuotaMode.SIMPLE if self.flags & StatusFlag.SIMPLE_MODE else QuotaMode.FULL

    def touch(self, group: Qgroup) -> None:
        """Say that the items of a group are out of date (``qgroup_dirty()``)."""
        self.dirty.setdefault(group.id, group)

    def mark_inconsistent(self) -> None:
        """Give up until a rescan (``qgroup_mark_inconsistent()``)."""
        if self.mode is not QuotaMode.SIMPLE:
            self.flags |= StatusFlag.INCONSISTENT
            self.no_accounting = True

    def relate(self, member: Qgroup, group: Qgroup) -> None:
        """Put a group into another (``add_relation_rb()``)."""
        member.groups.append(group)
        group.members.append(member)

    def count(self, before: Sequence[int], now: Sequence[int], num_bytes: int) -> None:
        """Count extents that some subvolumes reached and some reach (``qgroup_update_counters()``).

        `before`, `now`: ids of subvolumes.
        `num_bytes`: of all these extents together.
        """
        was, counts = self._reach(before), self._reach(now)
        for group_id in {**was, **counts}:
            group = self.by_id[group_id]
            old, new = was.get(group_id, 0), counts.get(group_id, 0)
            rfer = ((new > 0) - (old > 0)) * num_bytes
            # who has all of the subvolumes has it alone
            excl = ((0 < new == len(now)) - (0 < old == len(before))) * num_bytes
            if rfer or excl:
                group.add(rfer, excl, rfer, excl)
                self.touch(group)

    def _reach(self, subvolumes: Sequence[int]) -> dict[int, int]:
        """How many of the subvolumes are in each group (``qgroup_update_refcnt()``)."""
        counts: dict[int, int] = {}
        for subvolume in subvolumes:
            own = self.by_id.get(subvolume)
            for group in own.upwards() if own else ():
                counts[group.id] = counts.get(group.id, 0) + 1
        return counts


def read_quotas(items: Iterable[Item], generation: int) -> Quotas:
    """Read the items of a quota tree (``btrfs_read_qgroup_config()``).

    `generation`: of the filesystem; groups of another one are inconsistent.
    """
    quotas = Quotas(has_tree=True)
    relations = []
    for item in items:
        kind, group = item.key.type, item.key.offset
        if kind == ItemType.QGROUP_STATUS:
            status = QGROUP_STATUS_ITEM.unpack(item.data[: QGROUP_STATUS_ITEM.size])
            if status.version != _VERSION:
                return quotas
            quotas.flags = StatusFlag(status.flags)
            quotas.rescan = status.rescan if quotas.flags & StatusFlag.RESCAN else 0
            if quotas.flags & StatusFlag.SIMPLE_MODE:
                tail = item.data[QGROUP_STATUS_ITEM.size :]
                quotas.enable_gen = int.from_bytes(tail, "little")
            elif status.generation != generation:
                quotas.mark_inconsistent()
        elif kind == ItemType.QGROUP_INFO:
            quotas.by_id[group] = Qgroup(group, *QGROUP_INFO_ITEM.unpack(item.data)[1:])
        elif kind == ItemType.QGROUP_LIMIT:
            if group not in quotas.by_id:
                quotas.mark_inconsistent()
            own = quotas.by_id.setdefault(group, Qgroup(group))
            own.limits = Limits(*QGROUP_LIMIT_ITEM.unpack(item.data))
        elif kind == ItemType.QGROUP_RELATION and item.key.objectid <= group:
            relations.append((item.key.objectid, group))
    for member, group in relations:
        if member in quotas.by_id and group in quotas.by_id:
            quotas.relate(quotas.by_id[member], quotas.by_id[group])
    quotas.enabled = bool(quotas.flags & StatusFlag.ON)
    return quotas


def count_extents(
    quotas: Quotas, extent_tree: Tree, forest: backref.Forest, nodesize: int, start: int = 0
) -> None:
    """Count all extents from an address on, by who reaches them (``qgroup_rescan_leaf()``)."""
    columns = extent_tree.scan()
    kinds, starts = columns["type"], columns["objectid"]
    rows = np.isin(kinds, [ItemType.EXTENT_ITEM, ItemType.METADATA_ITEM]) & (starts >= start)
    sized = kinds[rows] == ItemType.EXTENT_ITEM
    sizes = np.where(sized, columns["offset"][rows], nodesize).astype(np.uint64)
    counted = backref.account_extents(None, forest, np.ascontiguousarray(starts[rows]), sizes)
    for before, now, size in counted:
        quotas.count(before, now, size)


def quotas_of(trees: Mapping[int, Tree], image: Image) -> Quotas:
    """Return the quota groups of a filesystem as its last commit has them."""
    tree = trees.get(ObjectId.QUOTA_TREE)
    return Quotas() if tree is None else read_quotas(tree.items(), image.superblock.generation)


def counted_quotas(trees: Mapping[int, Tree], image: Image, forest: Forest) -> Quotas:
    """Return the same groups, counted from scratch by who reaches what."""
    quotas = quotas_of(trees, image)
    for group in quotas.by_id.values():
        group.rfer = group.rfer_cmpr = group.excl = group.excl_cmpr = 0
    if quotas.by_id:
        count_extents(quotas, trees[ObjectId.EXTENT_TREE], forest.native, image.nodesize)
    return quotas


def qgroup_table(quotas: Quotas, counted: Quotas, paths: Mapping[int, str]) -> pd.DataFrame:
    """Return the groups beside what there is, see :meth:`.Filesystem.qgroups`.

    `quotas`, `counted`: as the tree has them, and from scratch.
    `paths`: of subvolumes that there are, by id.
    """
    import pandas as pd

    rows = []
    for number, group in sorted(quotas.by_id.items()):
        limits, there = group.limits, counted.by_id[number]
        rows.append((
            group_name(number), paths.get(number, ""), group.rfer, group.excl, there.rfer,
            there.excl,
            limits.max_rfer if limits.flags & LimitFlag.MAX_RFER else None,
            limits.max_excl if limits.flags & LimitFlag.MAX_EXCL else None,
            " ".join(group_name(parent.id) for parent in group.groups),
        ))  # fmt: skip
    columns = zip(*rows, strict=True) if rows else [()] * len(_COLUMNS)
    pairs = zip(_COLUMNS.items(), columns, strict=True)
    return pd.DataFrame({name: pd.Series(list(values), dtype=kind)
                         for (name, kind), values in pairs})  # fmt: skip
