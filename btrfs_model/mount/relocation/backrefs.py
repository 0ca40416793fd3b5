# SPDX-License-Identifier: GPL-2.0-only
"""Who refers to what, in the last commit (``build_backref_tree()``, ``btrfs_find_all_leafs()``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from btrfs_model.mount.mount import Mount
from btrfs_model.mount.relocation.control import Control, Node
from btrfs_model.mount.roots.reloc_root import RelocRoot
from btrfs_model.ondisk.items import (
    ExtentItem,
    ExtentRef,
    InlineExtent,
    extent_item,
    file_extent,
    keyed_ref,
)
from btrfs_model.ondisk.keys import U64_MAX, ItemType, Key, ObjectId
from btrfs_model.ondisk.structs import HEADER
from btrfs_model.volume.ctree import block_key, node_ptr, nritems
from btrfs_model.volume.tree import Tree

_EXTENT_TREE: Final = int(ObjectId.EXTENT_TREE)
_EXTENTS: Final = (ItemType.EXTENT_ITEM, ItemType.METADATA_ITEM)


def extent_of(fs: Mount, bytenr: int) -> tuple[Key, ExtentItem, list[ExtentRef]]:
    """Return an extent item of the last commit, and all references, in their order."""
    tree = fs.tree(_EXTENT_TREE)
    found: tuple[Key, ExtentItem] | None = None
    refs: list[ExtentRef] = []
    for item in tree.items((bytenr, ItemType.EXTENT_ITEM, 0), (bytenr, 255, U64_MAX)):
        if item.key.type in _EXTENTS:
            extent = extent_item(item.key, item.data)
            found = item.key, extent
            refs += extent.inline_refs
        elif item.key.type in _KEYED:
            refs.append(keyed_ref(item.key, item.data))
    assert found is not None
    return *found, refs


_KEYED: Final = (ItemType.TREE_BLOCK_REF, ItemType.SHARED_BLOCK_REF, ItemType.EXTENT_DATA_REF,
                 ItemType.SHARED_DATA_REF)  # fmt: skip


def path_to(tree: Tree, key: tuple[int, int, int], level: int) -> list[tuple[int, int]]:
    """Return the blocks from the root down to a level on the way to a key: address, slot."""
    bytenr, path = tree.bytenr, []
    for at in range(tree.level, level - 1, -1):
        block = tree.image.block(bytenr, level=at)
        slot = slot_of(block, key)
        path.append((bytenr, slot))
        if at > level:
            bytenr = node_ptr(block, slot)[0]
    return path


def slot_of(block: memoryview, key: tuple[int, int, int]) -> int:
    """Return the slot of the last key that is not greater, 0 where there is none."""
    low, high = 0, nritems(block)
    while high - low > 1:
        middle = (low + high) // 2
        if block_key(block, middle) <= key:
            low = middle
        else:
            high = middle
    return low


def build(fs: Mount, control: Control, bytenr: int, level: int) -> Node | None:
    """Find all that point at a block, and at those, up to the roots; None: no tree has it.

    What is known of another block of the same transaction is not looked up again.
    """
    known = control.nodes.get(bytenr)
    if known is not None:
        return known
    node = control.nodes[bytenr] = Node(bytenr, level)
    queue = [node]
    for one in queue:
        _add_parents(fs, control, one, queue)
    for one in sorted(queue, key=lambda one: -one.level):
        # of trees that have another copy by now, which others point at
        one.upper = [upper for upper in one.upper if upper.upper or upper.root is not None]
        if not one.upper and one.root is None:
            control.mark_processed(one)
    return node if node.upper or node.root is not None else None


def _add_parents(fs: Mount, control: Control, node: Node, queue: list[Node]) -> None:
    """``btrfs_backref_add_tree_node()``."""
    _, _, refs = extent_of(fs, node.bytenr)
    for ref in refs:
        if ref.type == ItemType.SHARED_BLOCK_REF and ref.parent is not None:
            if ref.parent == node.bytenr:
                node.root = _reloc_root(fs, node.bytenr)
            else:
                _link(control, node, ref.parent, queue)
        elif ref.type == ItemType.TREE_BLOCK_REF and ref.root is not None:
            _add_path(fs, control, node, ref.root, queue)


def _reloc_root(fs: Mount, bytenr: int) -> RelocRoot | None:
    """``find_reloc_root()``: the tree of relocation whose root was there in the last commit."""
    roots = fs.reloc_roots.by_root.values()
    return next((one for one in roots if fs.committed_roots.get(one.id, (0,))[0] == bytenr), None)


def _link(control: Control, node: Node, parent: int, queue: list[Node]) -> Node:
    upper = control.nodes.get(parent)
    if upper is None:
        upper = control.nodes[parent] = Node(parent, node.level + 1)
        queue.append(upper)
    if upper not in node.upper:
        node.upper.append(upper)
    return upper


def _add_path(fs: Mount, control: Control, node: Node, root: int, queue: list[Node]) -> None:
    """Add the nodes above a block that a tree refers to by its id (``handle_indirect...()``)."""
    tree = fs.forest().trees[root]
    if tree.level > node.level:
        key = block_key(fs.image.block(node.bytenr, level=node.level), 0)
        for bytenr, _ in reversed(path_to(tree, key, node.level + 1)):
            known = bytenr in control.nodes
            node = _link(control, node, bytenr, queue)
            if known:
                return
    reloc = fs.reloc_roots.by_root.get(root)
    # one of an earlier transaction is found itself (btrfs_should_ignore_reloc_root())
    if reloc is None or (not reloc.dead and reloc.made == fs.transid):
        node.root = root


def leaves_of(fs: Mount, bytenr: int) -> list[int]:
    """Return the leaves whose file extent items refer to a data extent.

    In the order in which ``btrfs_find_all_leafs()`` finds them.
    """
    key, _, refs = extent_of(fs, bytenr)
    found = dict.fromkeys(sorted(ref.parent for ref in refs if ref.parent is not None))
    shared = set(found)
    own = [ref for ref in refs if ref.type == ItemType.EXTENT_DATA_REF]
    for ref in sorted(own, key=lambda ref: (ref.root, ref.objectid, ref.offset)):
        leaves = _leaves_of_ref(fs, key, ref)
        found |= dict.fromkeys(leaf for leaf in sorted(leaves) if leaf not in shared)
    # the tree of references has the greater ones on its left (prelim_ref_insert())
    return list(found)[::-1]


def _leaves_of_ref(fs: Mount, key: Key, ref: ExtentRef) -> Iterator[int]:
    """Return the leaves that belong to the tree: others have references of their own.

    (``add_all_parents()``.)
    """
    assert ref.root is not None and ref.objectid is not None and ref.offset is not None
    start = 0 if ref.offset >> 63 else ref.offset
    first = (ref.objectid, int(ItemType.EXTENT_DATA), start)
    for item in fs.forest().trees[ref.root].items(first, (*first[:2], U64_MAX)):
        extent = file_extent(item.data)
        if isinstance(extent, InlineExtent) or extent.disk_bytenr != key.objectid:
            continue
        if (item.key.offset - extent.offset) % 2**64 != ref.offset:
            continue
        leaf = fs.image.block(item.block, level=0)
        if HEADER.unpack(leaf[: HEADER.size]).owner == ref.root:
            yield item.block
