# SPDX-License-Identifier: GPL-2.0-only
"""The extent at an address; and what :mod:`btrfs_model.backref.api` asks of a walk.

Beside ``native/backref/forest.c`` and ``native/backref/backref.c``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from btrfs_model.backref.walk import BackrefWalk, Extent
from btrfs_model.base.codes import Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk.constants import ExtentFlag
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.structs import EXTENT_ITEM
from btrfs_model.reference import backref
from btrfs_model.reference.backref_refs import Walk
from btrfs_model.volume.ctree import Path, block_key, item_data, prev_leaf, search_slot

if TYPE_CHECKING:
    from btrfs_model.volume.forest import Forest

_MAX = 2**64 - 1


def iterate_extent_inodes(ask: BackrefWalk) -> list[tuple[int, int, int, int]]:
    """Return inode, offset, length and root of each reference to a data extent."""
    found: list[tuple[int, int, int, int]] = []

    def iterate(inum: int, offset: int, num_bytes: int, root: int) -> int:
        found.append((inum, offset, num_bytes, root))
        return 0

    ask.iterate = iterate
    backref.iterate_extent_inodes(ask)
    return found


def find_all_leafs(ask: BackrefWalk) -> list[int]:
    """Return the leaves with file extent items of a data extent."""
    return backref.find_all_leafs(Walk(ask=ask, bytenr=ask.bytenr))


def find_all_roots(ask: BackrefWalk) -> list[int]:
    """Return the trees that reach an extent or tree block."""
    return backref.find_all_roots(ask, ask.bytenr)


def extent_from_logical(forest: Forest, logical: int, restart: bool = False) -> Extent | None:
    """Return the extent that holds an address, or None (``extent_from_logical()``, 6.12)."""
    current().count("extent_from_logical")
    path, tree = Path(restart=restart), forest.extent_tree
    search_slot(tree, (logical, int(ItemType.METADATA_ITEM), _MAX), path)
    if not _previous_extent_item(forest, path):
        return None
    leaf, slot = path.leaf, path.slots[0]
    key = Key(*block_key(leaf, slot))
    length = forest.image.nodesize if key.type == ItemType.METADATA_ITEM else key.offset
    if not key.objectid <= logical < key.objectid + length:
        return None
    block = int.from_bytes(leaf[48:56], "little")
    try:
        refs, _, flags = EXTENT_ITEM.flat(item_data(leaf, slot))
    except PayloadError as error:
        raise error.at(forest.image.path, tree=tree.objectid, block=block, slot=slot) from None
    for kind in (ExtentFlag.TREE_BLOCK, ExtentFlag.DATA):
        if flags & kind:
            return Extent(key, kind, refs)
    fault = Fault(Code.BAD_VALUE, tree.objectid, block, slot, found=flags)
    raise CorruptImageError(forest.image.path, fault)


def _previous_extent_item(forest: Forest, path: Path) -> bool:
    """Go back to the extent item before the path (``btrfs_previous_extent_item()``)."""
    current().count("btrfs_previous_extent_item")
    while True:
        if path.slots[0] > 0:
            path.slots[0] -= 1
        elif not prev_leaf(forest.extent_tree, path):
            return False
        if block_key(path.leaf, path.slots[0])[1] in (ItemType.EXTENT_ITEM, ItemType.METADATA_ITEM):
            return True
