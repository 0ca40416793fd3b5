# SPDX-License-Identifier: GPL-2.0-only
"""Quota groups: what they say beside what there is (``btrfs check --qgroup-report``)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from btrfs_model.ondisk.items import extent_item
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.questions.check.report import Report
from btrfs_model.questions.check.walk import Forest
from btrfs_model.volume.quotas import Quotas, StatusFlag, counted_quotas, group_name, quotas_of

if TYPE_CHECKING:
    from btrfs_model.volume.filesystem import Filesystem

_QUOTA_TREE = int(ObjectId.QUOTA_TREE)
_WAITS = StatusFlag.INCONSISTENT | StatusFlag.RESCAN


def check_quotas(fs: Filesystem, forest: Forest, report: Report) -> None:
    """Compare the numbers of quota groups, unless they say themselves that they are not right."""
    quotas = quotas_of(fs.trees, fs.image)
    if not quotas.enabled or quotas.flags & _WAITS:
        return
    simple = bool(quotas.flags & StatusFlag.SIMPLE_MODE)
    counted = _by_owner(fs, forest, quotas) if simple else _by_reach(fs)
    for number, group in sorted(quotas.by_id.items()):
        found = (group.rfer, group.excl)
        if found != counted[number]:
            report.add(
                "the quota group {group} has {found}, but there is {there} (referenced, exclusive)",
                tree=_QUOTA_TREE, key=Key(0, ItemType.QGROUP_INFO, number),
                group=group_name(number), found=found, there=counted[number],
            )  # fmt: skip


def _by_reach(fs: Filesystem) -> dict[int, tuple[int, int]]:
    counted = counted_quotas(fs.trees, fs.image, fs.forest())
    return {number: (group.rfer, group.excl) for number, group in counted.by_id.items()}


def _by_owner(fs: Filesystem, forest: Forest, quotas: Quotas) -> dict[int, tuple[int, int]]:
    """Count extents for the subvolume that allocated them, since simple quotas were switched on."""
    own: Counter[int] = Counter()
    blocks = forest.blocks[~forest.is_log]  # those of subvolumes that are being deleted too
    blocks = blocks[blocks["generation"] >= quotas.enable_gen]
    ids, counts = np.unique(blocks["owner"], return_counts=True)
    for owner, number in zip(ids.tolist(), counts.tolist(), strict=True):
        own[owner] += number * fs.image.nodesize
    columns = fs.tree(ObjectId.EXTENT_TREE).scan()
    for row in np.flatnonzero(columns["type"] == ItemType.EXTENT_ITEM).tolist():
        at, size = int(columns["position"][row]), int(columns["size"][row])
        key = Key(int(columns["objectid"][row]), ItemType.EXTENT_ITEM, 0)
        item = extent_item(key, fs.image.block_bytes[at : at + size])
        owners = [ref.root for ref in item.inline_refs if ref.type == ItemType.EXTENT_OWNER_REF]
        if owners and item.generation >= quotas.enable_gen:
            own[owners[0] or 0] += int(columns["offset"][row])
    total: Counter[int] = Counter()
    for number, size in own.items():
        group = quotas.by_id.get(number)
        for above in group.upwards() if group else ():
            total[above.id] += size
    return {number: (total[number], total[number]) for number in quotas.by_id}
