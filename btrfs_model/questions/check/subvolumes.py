# SPDX-License-Identifier: GPL-2.0-only
"""Subvolumes: root items, their names in both directions, the UUID tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.items import RootRef, dir_items, root_ref
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId, item_type_name
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.questions.check.inodes import Rows
from btrfs_model.questions.check.report import Report
from btrfs_model.volume.roots import is_subvolume_id

if TYPE_CHECKING:
    from btrfs_model.volume.filesystem import Filesystem

_ROOT_TREE = int(ObjectId.ROOT_TREE)
_UUID_TREE = int(ObjectId.UUID_TREE)
_FS_TREE = int(ObjectId.FS_TREE)
_NO_UUID = bytes(16)


def check_subvolumes(fs: Filesystem, entries: dict[int, Rows], report: Report) -> None:
    """Check how subvolumes are named; `entries` of each are those that lead to others."""
    _check_refs(fs, entries, report)
    _check_dead(fs, report)
    sb = fs.image.superblock
    # a kernel without the UUID tree wrote last: the next mount brings it up to date
    if _UUID_TREE in fs.trees and sb.uuid_tree_generation == sb.generation:
        _check_uuids(fs, report)


def _refs(fs: Filesystem, kind: ItemType, report: Report) -> dict[tuple[int, int], RootRef]:
    """Return the ROOT_REF or ROOT_BACKREF items by (parent, child)."""
    refs = {}
    for item in fs.root_tree.items():
        if item.key.type != kind:
            continue
        pair = (item.key.objectid, item.key.offset)
        try:
            ref = root_ref(item.data)
        except PayloadError:
            # the check of single items has reported it
            continue
        refs[pair if kind == ItemType.ROOT_REF else (pair[1], pair[0])] = ref
    return refs


def _check_refs(fs: Filesystem, entries: dict[int, Rows], report: Report) -> None:
    """Check that ROOT_REF, ROOT_BACKREF and directory entries name the same."""
    forward = _refs(fs, ItemType.ROOT_REF, report)
    backward = _refs(fs, ItemType.ROOT_BACKREF, report)
    for pair in sorted(forward.keys() | backward.keys()):
        parent, child = pair
        place: dict[str, Any] = {
            "tree": _ROOT_TREE,
            "key": Key(parent, int(ItemType.ROOT_REF), child),
        }
        if forward.get(pair) != backward.get(pair):
            report.add("ROOT_REF and ROOT_BACKREF differ", **place)
            continue
        if child not in fs.roots:
            report.add("ROOT_REF to subvolume {child}, which does not exist", **place, child=child)
        if parent in entries and not _has_entry(entries[parent], fs, pair, forward[pair]):
            report.add("ROOT_REF has no directory entry", **place)
    children = {child for _, child in backward}
    for objectid in fs.subvolume_ids:
        if objectid != _FS_TREE and objectid not in children:
            report.add("subvolume {id} has no name", tree=_ROOT_TREE, id=objectid)


def _has_entry(rows: Rows, fs: Filesystem, pair: tuple[int, int], ref: RootRef) -> bool:
    """Whether the directory has the entry, with this index, in DIR_INDEX and DIR_ITEM."""
    parent, child = pair
    found = (rows["parent"] == ref.dirid) & (rows["child"] == child)
    if not (found & (rows["index"] == ref.sequence)).any():
        return False
    item = fs.tree(parent).get((ref.dirid, ItemType.DIR_ITEM, name_hash(ref.name)))
    if item is None:
        return False
    try:
        return any(entry.name == ref.name for entry in dir_items(item.data))
    except PayloadError:
        return False


def _check_dead(fs: Filesystem, report: Report) -> None:
    """Check that a deleted subvolume waits as an orphan, and no other one does."""
    orphans = {
        item.key.offset
        for item in fs.root_tree.items((ObjectId.ORPHAN, ItemType.ORPHAN_ITEM, 0),
                                       (ObjectId.ORPHAN, ItemType.ORPHAN_ITEM, 2**64 - 1))
    }  # fmt: skip
    for root in fs.root_items:
        if root.is_dead and is_subvolume_id(root.id) and root.id not in orphans:
            report.add("deleted subvolume {id} has no orphan item", tree=_ROOT_TREE, id=root.id)


_OF_UUIDS = (ItemType.UUID_KEY_SUBVOL, ItemType.UUID_KEY_RECEIVED_SUBVOL)


def _check_uuids(fs: Filesystem, report: Report) -> None:
    """Check that the UUID tree has the subvolumes by both of their UUIDs, and no others."""
    found = set()
    for item in fs.tree(_UUID_TREE).items():
        if item.key.type not in _OF_UUIDS:
            continue
        size = len(item.data) // 8 * 8
        uuid = item.key.objectid.to_bytes(8, "little") + item.key.offset.to_bytes(8, "little")
        for objectid in np.frombuffer(item.data[:size], "<u8").tolist():
            found.add((item.key.type, uuid, objectid))
    wanted = set()
    for objectid in fs.subvolume_ids:
        root = fs.roots[objectid]
        uuids = {
            ItemType.UUID_KEY_SUBVOL: root.item.uuid,
            ItemType.UUID_KEY_RECEIVED_SUBVOL: root.item.received_uuid,
        }
        wanted |= {(int(kind), uuid, root.id) for kind, uuid in uuids.items() if uuid != _NO_UUID}
    for kind, uuid, objectid in sorted(found ^ wanted):
        which = (
            "only in the UUID tree" if (kind, uuid, objectid) in found else "not in the UUID tree"
        )
        report.add(
            "{which_uuid} {uuid} of subvolume {id} is {which}",
            tree=_UUID_TREE,
            which_uuid=item_type_name(kind),
            uuid=uuid.hex(),
            id=objectid,
            which=which,
        )
