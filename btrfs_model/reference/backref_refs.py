# SPDX-License-Identifier: GPL-2.0-only
"""The references of an extent, as its items say them: ``native/backref/refs.c``.

Inline references of the extent item, the keyed ones behind it, and those that wait; and the state
of a walk that gathers them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from btrfs_model.backref.walk import BackrefWalk
from btrfs_model.base.codes import Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL, ExtentFlag
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.reference.backref_prelim import PrefTree, PrelimRef, Ulist
from btrfs_model.volume import ctree
from btrfs_model.volume.blocks import HEADER
from btrfs_model.volume.forest import WaitingRef

if TYPE_CHECKING:
    from btrfs_model.reference.share import ShareCheck
    from btrfs_model.volume.tree import Tree

_MAX = 2**64 - 1
_DATA_RELOC_TREE = 2**64 - 9
_EXTENT_KEYS = (ItemType.EXTENT_ITEM, ItemType.METADATA_ITEM)
_TREE_BLOCK_REFS = (ItemType.TREE_BLOCK_REF, ItemType.SHARED_BLOCK_REF)
_DATA_REFS = (ItemType.EXTENT_DATA_REF, ItemType.SHARED_DATA_REF)
_KINDS = ExtentFlag.DATA | ExtentFlag.TREE_BLOCK


class StopWalkError(Exception):
    """A callback wants no more (``BTRFS_ITERATE_EXTENT_INODES_STOP``)."""


class SharedAnswerError(Exception):
    """A walk that asks whether an extent is shared knows it (``BACKREF_FOUND_SHARED``).

    `shared` (bool): the answer.
    """

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.shared = shared


@dataclass(slots=True, kw_only=True)
class Walk:
    """One walk (``struct walk`` of ``native/backref/backref.h``).

    `ask`: what is asked.
    `bytenr`: address of the extent whose references are sought.
    `level`: of the tree block there; -1 for a data extent.
    `share`: who only wants to know whether a data extent is shared.
    `want_roots`, `want_inodes`: whether roots, and the file extent items in leaves, are gathered.
    `refs`: parents found, leaves with the file extent items in them.
    `roots`: ids of the trees of which a root node was found.
    `direct`, `indirect`, `missing_keys`: the references of the present extent.
    """

    ask: BackrefWalk
    bytenr: int
    level: int = -1
    share: ShareCheck | None = None
    want_roots: bool = False
    want_inodes: bool = False
    refs: Ulist = field(default_factory=Ulist)
    roots: Ulist = field(default_factory=Ulist)
    direct: PrefTree = field(default_factory=PrefTree)
    indirect: PrefTree = field(default_factory=PrefTree)
    missing_keys: PrefTree = field(default_factory=PrefTree)


def fail_at(
    walk: Walk, code: int, leaf: memoryview, slot: int, found: int, wanted: int = 0
) -> CorruptImageError:
    """Return the error for an item of a leaf of the extent tree, or of a file's tree."""
    fault = Fault(code, _owner(leaf), ctree.bytenr_of(leaf), slot, 0, found, wanted)
    return CorruptImageError(walk.ask.forest.image.path, fault)


def _owner(block: memoryview) -> int:
    return int(HEADER.unpack_from(block)[6])


def stopped(walk: Walk, ret: int) -> None:
    """Act on what a callback returned."""
    if ret > 0:
        raise StopWalkError
    if ret < 0:
        raise OSError(-ret, "a callback of the walk failed", walk.ask.forest.image.path)


def next_item(tree: Tree, path: ctree.Path) -> bool:
    """Go to the next item (``btrfs_next_old_item()``); False when there is none."""
    current().count("btrfs_next_old_item")
    path.slots[0] += 1
    return path.slots[0] < ctree.nritems(path.leaf) or ctree.next_leaf(tree, path)


def add_prelim_ref(walk: Walk, tree: PrefTree, ref: PrelimRef, *, counts: bool) -> None:
    """Add a reference to one of the trees; `counts`: where it is asked whether it is shared."""
    if ref.root_id != _DATA_RELOC_TREE:
        current().count("add_prelim_ref")
        held = tree.prelim_ref_insert(ref)
        if walk.share is not None and counts:
            walk.share.update_share_count(0 if held is ref else held.count - ref.count, ref)


def add_direct_ref(walk: Walk, parent: int, count: int) -> None:
    """Add a reference by the tree block at `parent`."""
    if not parent or parent % walk.ask.forest.image.sectorsize:
        raise PayloadError.bad_value(parent)
    ref = PrelimRef(walk.level + 1, walk.bytenr, count, parent=parent)
    add_prelim_ref(walk, walk.direct, ref, counts=walk.level < 0)


def add_tree_block_ref(walk: Walk, root_id: int) -> None:
    """Add a reference to a tree block by a tree."""
    ref = PrelimRef(walk.level + 1, walk.bytenr, root_id=root_id)
    # does not count: that a tree block is shared shows when its references are resolved
    add_prelim_ref(walk, walk.missing_keys, ref, counts=False)


def add_extent_data_ref(walk: Walk, root: int, objectid: int, offset: int, count: int) -> None:
    """Add a reference to data by file extent items of an inode."""
    share = walk.share
    if share is not None and objectid != share.context.inum and not share.drops_wait:
        raise SharedAnswerError(True)
    if walk.ask.skip_data_ref and walk.ask.skip_data_ref(root, objectid, offset):
        return
    key = (objectid, int(ItemType.EXTENT_DATA), offset)
    ref = PrelimRef(0, walk.bytenr, count, root_id=root, key=key)
    add_prelim_ref(walk, walk.indirect, ref, counts=True)


def add_ref(walk: Walk, kind: int, value: int, payload: memoryview, at: int) -> int:
    """Add one reference of either form; return the bytes that it takes of the payload."""
    if kind not in (_TREE_BLOCK_REFS if walk.level >= 0 else _DATA_REFS):
        raise PayloadError.bad_value(kind)
    if kind == ItemType.TREE_BLOCK_REF:
        add_tree_block_ref(walk, value)
    elif kind == ItemType.SHARED_BLOCK_REF:
        add_direct_ref(walk, value, 1)
    elif kind == ItemType.SHARED_DATA_REF:
        add_direct_ref(walk, value, *structs.SHARED_DATA_REF.flat(payload, at))
        return structs.SHARED_DATA_REF.size
    else:
        add_extent_data_ref(walk, *structs.EXTENT_DATA_REF.flat(payload, at))
        return structs.EXTENT_DATA_REF.size
    return 0


def check_level(walk: Walk, leaf: memoryview, slot: int, level: int) -> None:
    """Take the level of a tree block, which must be the one that led here."""
    highest = BTRFS_MAX_LEVEL - 1
    if level > highest:
        raise fail_at(walk, Code.BAD_LEVEL, leaf, slot, level, highest)
    if walk.level >= 0 and level != walk.level:
        raise fail_at(walk, Code.BAD_LEVEL, leaf, slot, level, walk.level)
    walk.level = level


def extent_head(walk: Walk, leaf: memoryview, slot: int, payload: memoryview) -> int:
    """See what kind of extent an item is for; return where its inline references begin."""
    item = structs.EXTENT_ITEM.unpack(payload)
    if walk.ask.check_extent_item is not None:
        stopped(walk, walk.ask.check_extent_item(walk.bytenr, item))
    _, kind, offset = ctree.block_key(leaf, slot)
    match kind, item.flags & _KINDS:
        case ItemType.METADATA_ITEM, ExtentFlag.TREE_BLOCK:
            check_level(walk, leaf, slot, offset)
        case ItemType.EXTENT_ITEM, ExtentFlag.TREE_BLOCK:
            check_level(
                walk,
                leaf,
                slot,
                structs.TREE_BLOCK_INFO.flat(payload, structs.EXTENT_ITEM.size)[-1],
            )
            return structs.EXTENT_ITEM.size + structs.TREE_BLOCK_INFO.size
        # a walk that came here from a tree block does not come to data
        case ItemType.EXTENT_ITEM, ExtentFlag.DATA if walk.level < 0:
            pass
        case _:
            raise PayloadError.bad_value(item.flags)
    return structs.EXTENT_ITEM.size


def add_inline_refs(walk: Walk, leaf: memoryview, slot: int) -> None:
    """Add the references inside of an extent item."""
    payload = ctree.item_data(leaf, slot)
    at = extent_head(walk, leaf, slot, payload)
    while at < len(payload):
        kind, value = structs.EXTENT_INLINE_REF.flat(payload, at)
        if kind == ItemType.EXTENT_OWNER_REF and walk.level < 0:
            at += structs.EXTENT_INLINE_REF.size
            continue
        # the other fields of a data reference take the place of the offset
        at += 1 if kind == ItemType.EXTENT_DATA_REF else structs.EXTENT_INLINE_REF.size
        at += add_ref(walk, kind, value, payload, at)


def add_keyed_refs(walk: Walk, path: ctree.Path) -> None:
    """Add the references that follow as items of their own."""
    while next_item(walk.ask.forest.extent_tree, path):
        objectid, kind, value = ctree.block_key(path.leaf, path.slots[0])
        if objectid != walk.bytenr or kind > ItemType.SHARED_DATA_REF:
            return
        if kind >= ItemType.TREE_BLOCK_REF:
            add_ref(walk, kind, value, ctree.item_data(path.leaf, path.slots[0]), 0)


def add_waiting_ref(walk: Walk, one: WaitingRef) -> None:
    """Add a reference that waits."""
    ref = PrelimRef(one.level + 1, walk.bytenr, one.change)
    tree = walk.direct
    if one.type in (ItemType.SHARED_BLOCK_REF, ItemType.SHARED_DATA_REF):
        ref.parent = one.value
    elif one.type == ItemType.TREE_BLOCK_REF:
        ref.root_id, tree = one.value, walk.missing_keys
    else:
        ref.root_id, tree = one.value, walk.indirect
        ref.key = (one.ino, int(ItemType.EXTENT_DATA), one.offset)
        if walk.share is not None and one.change < 0:
            walk.share.drops_wait = True
    add_prelim_ref(walk, tree, ref, counts=True)


def add_waiting_refs(walk: Walk) -> bool:
    """Add the references that wait (``add_delayed_refs()``); False when none does.

    Also those of tree blocks count here. One may take another away, so there is no answer before
    all were seen.
    """
    waiting = walk.ask.forest.waiting.get(walk.bytenr, [])
    if walk.share is not None:
        walk.share.drops_wait = False
    for one in waiting:
        if walk.level < 0:
            walk.level = one.level
        with suppress(SharedAnswerError):
            add_waiting_ref(walk, one)
    if walk.share is not None:
        walk.share.look_at_count()
    return bool(waiting)


def collect_refs(walk: Walk) -> None:
    """Add all references that wait, or that the extent tree has, for the present extent."""
    forest = walk.ask.forest
    path = ctree.Path(restart=walk.ask.restart)
    if ctree.search_slot(
        forest.extent_tree, (walk.bytenr, int(ItemType.METADATA_ITEM), _MAX), path
    ):
        raise fail_at(walk, Code.BAD_VALUE, path.leaf, path.slots[0], _MAX)
    waits = add_waiting_refs(walk)
    found = None
    if path.slots[0]:
        path.slots[0] -= 1
        found = ctree.block_key(path.leaf, path.slots[0])
    if found is None or found[0] != walk.bytenr or found[1] not in _EXTENT_KEYS:
        if walk.level < 0 or waits:
            return
        fault = Fault(
            Code.NOT_FOUND, ObjectId.EXTENT_TREE, found=walk.bytenr, wanted=ItemType.METADATA_ITEM
        )
        raise CorruptImageError(forest.image.path, fault)
    try:
        add_inline_refs(walk, path.leaf, path.slots[0])
        add_keyed_refs(walk, path)
    except PayloadError as error:
        leaf, slot = path.leaf, path.slots[0]
        raise fail_at(walk, error.code, leaf, slot, error.found, error.wanted) from None
