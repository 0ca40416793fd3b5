# SPDX-License-Identifier: GPL-2.0-only
r"""Backref walking in plain Python: ``backref.c`` of the kernel (6.12), through commit roots.

The extent item of a tree block or data extent lists who refers to it, in one of two ways. A
*direct* reference names the tree block that holds the pointer. An *indirect* one names a tree and a
key; the block that holds the pointer is found by searching that key in that tree::

    find_parent_nodes      extent -> the tree blocks (or, for a root node, the tree) above it
    find_all_leafs         data extent -> the leaves with its file extent items
    find_all_roots         block -> all trees that reach it, by find_parent_nodes level by level
    iterate_extent_inodes  data extent -> (inode, offset, root) of each file extent item

After a snapshot both trees share all blocks below their root nodes, and a shared block has a
reference for each tree; so what is shared shows only when the walk has come up to the roots::

      root of 5     root of 256          leaf:   TREE_BLOCK_REF 5, TREE_BLOCK_REF 256
            \       /                     extent: EXTENT_DATA_REF 5 (alone: the leaf is one)
             [ leaf ]
                 |
            data extent

Beside ``native/backref/backref.c``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from btrfs_model.backref.walk import BackrefWalk
from btrfs_model.base.codes import Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk import items
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.structs import RawFileExtent
from btrfs_model.reference.backref_prelim import InodeElem, PrefTree, PrelimRef, Ulist
from btrfs_model.reference.backref_refs import (
    SharedAnswerError,
    StopWalkError,
    Walk,
    _owner,
    collect_refs,
    fail_at,
    stopped,
)
from btrfs_model.volume import ctree
from btrfs_model.volume.forest import read_tree_block

if TYPE_CHECKING:
    from btrfs_model.reference.backref_prelim import UlistNode
    from btrfs_model.volume.tree import Tree

_LLONG_MAX = 2**63 - 1


# ------------------------------------------------------------------ from leaves to inodes ----


def file_extent(walk: Walk, leaf: memoryview, slot: int, bytenr: int) -> RawFileExtent | None:
    """Return a file extent item if it refers to the extent at `bytenr`."""
    try:
        item = items.file_extent(ctree.item_data(leaf, slot))
    except PayloadError as error:
        raise fail_at(walk, error.code, leaf, slot, error.found, error.wanted) from None
    return None if isinstance(item, items.InlineExtent) or item.disk_bytenr != bytenr else item


def iterate_cached_roots(walk: Walk, leaf: int, elem: InodeElem) -> None:
    """Report the element at once for each root of the leaf, where those are known already."""
    ask = walk.ask
    if ask.iterate_cached and ask.cache_lookup is not None and ask.iterate is not None:
        for root in ask.cache_lookup(leaf) or ():
            iterate_leaf_refs(walk, [elem], root)


def check_extent_in_eb(
    walk: Walk, leaf: memoryview, objectid: int, offset: int, item: RawFileExtent
) -> InodeElem | None:
    """Return the element for a file extent item; None when it shows another part."""
    ask = walk.ask
    current().count("check_extent_in_eb")
    encoded = item.compression or item.encryption or item.other_encoding
    if not ask.ignore_extent_item_pos and not encoded:
        end = (item.offset + item.num_bytes) % 2**64
        if not item.offset <= ask.extent_item_pos < end:
            return None
        offset = (offset + ask.extent_item_pos - item.offset) % 2**64
    elem = InodeElem(objectid, offset, item.num_bytes)
    iterate_cached_roots(walk, ctree.bytenr_of(leaf), elem)
    return elem


def find_extent_in_eb(walk: Walk, leaf: memoryview) -> list[InodeElem]:
    """All file extent items of a leaf that refer to the extent, the last one first."""
    elems: list[InodeElem] = []
    for slot in range(ctree.nritems(leaf)):
        objectid, kind, offset = ctree.block_key(leaf, slot)
        if kind != ItemType.EXTENT_DATA:
            continue
        item = file_extent(walk, leaf, slot, walk.bytenr)
        if item is not None:
            elem = check_extent_in_eb(walk, leaf, objectid, offset, item)
            if elem is not None:
                elems.insert(0, elem)
    return elems


# --------------------------------------------------------------------- resolve references ----


def add_missing_keys(walk: Walk) -> None:
    """Read each tree block that is sought without a key: its first key will do."""
    image = walk.ask.forest.image
    for ref in walk.missing_keys:
        block = read_tree_block(image, ref.wanted, level=ref.level - 1, tree=ref.root_id)
        # only an empty tree has no first key, and its root is found without one
        if ctree.nritems(block):
            ref.key = ctree.block_key(block, 0)
        walk.indirect.prelim_ref_insert(ref)


def search_old_slot(walk: Walk, tree: Tree, key: tuple[int, int, int], path: ctree.Path) -> None:
    """Search in a commit root; through a transaction this is no ``btrfs_search_slot()``."""
    current().count("btrfs_search_old_slot")
    ctree.search_slot(tree, key, path)
    if walk.ask.transaction:
        current().count("btrfs_search_slot", -1)


def next_old_leaf(walk: Walk, tree: Tree, path: ctree.Path) -> bool:
    """Go to the next leaf; through a transaction, the searches in it are of old slots."""
    before = current()["btrfs_search_slot"]
    more = ctree.next_leaf(tree, path)
    if walk.ask.transaction:
        searches = current()["btrfs_search_slot"] - before
        current().count("btrfs_search_slot", -searches)
        current().count("btrfs_search_old_slot", searches)
    return more


def next_old_item(walk: Walk, tree: Tree, path: ctree.Path) -> bool:
    """Go to the next item; False when there is none."""
    current().count("btrfs_next_old_item")
    path.slots[0] += 1
    return path.slots[0] < ctree.nritems(path.leaf) or next_old_leaf(walk, tree, path)


def skip_leaf(walk: Walk, leaf: memoryview, ref: PrelimRef) -> bool:
    """Whether a leaf has a direct reference of its own, or belongs to another tree."""
    return walk.direct.is_shared_data_backref(ctree.bytenr_of(leaf)) or ref.root_id != _owner(leaf)


def add_parent(walk: Walk, leaf: memoryview, slot: int, ref: PrelimRef, parents: Ulist) -> bool:
    """Add the leaf if an item of it is one of the reference; False when it is not."""
    objectid, _, offset = ctree.block_key(leaf, slot)
    item = file_extent(walk, leaf, slot, ref.wanted)
    if item is None or (offset - item.offset) % 2**64 != ref.key[2]:
        return False
    elems = []
    if walk.want_inodes:
        elem = check_extent_in_eb(walk, leaf, objectid, offset, item)
        if elem is None:
            return True
        elems.append(elem)
    node, _ = parents.add_merge(ctree.bytenr_of(leaf))
    node.elems += elems
    return True


def add_all_leafs(walk: Walk, tree: Tree, path: ctree.Path, ref: PrelimRef, parents: Ulist) -> None:
    """Go through the inode's file extents until all that the reference counts are found.

    ``add_all_parents()`` for a data extent. A leaf that belongs to another tree has references of
    its own and is passed over.
    """
    more = True
    if path.slots[0] >= ctree.nritems(path.leaf) or skip_leaf(walk, path.leaf, ref):
        more = next_old_leaf(walk, tree, path)
    count = 0
    while more and count < ref.count:
        leaf, slot = path.leaf, path.slots[0]
        objectid, kind, _ = ctree.block_key(leaf, slot)
        if objectid != ref.key[0] or kind != ItemType.EXTENT_DATA:
            return
        if slot == 0 and skip_leaf(walk, leaf, ref):
            more = next_old_leaf(walk, tree, path)
            continue
        count += add_parent(walk, leaf, slot, ref, parents)
        more = next_old_item(walk, tree, path)


def resolve_indirect_ref(walk: Walk, ref: PrelimRef, parents: Ulist) -> None:
    """Find the parents; there are none where the block is a root node, or its root is gone."""
    forest, restart = walk.ask.forest, walk.ask.restart
    tree = forest.get_fs_root_commit_root(ref.root_id, restart=restart)
    if tree is None or tree.level + 1 == ref.level:
        return
    if ref.level >= BTRFS_MAX_LEVEL:
        raise CorruptImageError(
            forest.image.path,
            Fault(Code.BAD_LEVEL, ref.root_id, ref.wanted, found=ref.level - 1, wanted=tree.level),
        )
    objectid, kind, offset = ref.key
    # an offset below 0, which cloning parts of extents leaves behind: search from the start
    if kind == ItemType.EXTENT_DATA and offset >= _LLONG_MAX:
        offset = 0
    path = ctree.Path(lowest_level=ref.level, restart=restart)
    search_old_slot(walk, tree, (objectid, kind, offset), path)
    level = max(at for at, node in enumerate(path.nodes[: ref.level + 1]) if node is not None)
    if level:
        node = path.nodes[level]
        assert node is not None
        parents.add(ctree.bytenr_of(node), level)
    else:
        add_all_leafs(walk, tree, path, ref, parents)


def add_resolved(walk: Walk, ref: PrelimRef, parent: UlistNode | None) -> None:
    """Add the direct reference by a parent; without one, by the root itself."""
    if parent is None:
        direct = replace(ref, elems=[])
    else:
        direct = replace(ref, parent=parent.val, elems=parent.elems)
    walk.direct.prelim_ref_insert(direct)


def resolve_indirect_refs(walk: Walk) -> None:
    """Find the tree blocks that indirect references come from."""
    for ref in walk.indirect:
        if not ref.count:
            continue
        _check_root(walk, ref.root_id)
        parents = Ulist()
        resolve_indirect_ref(walk, ref, parents)
        found = list(parents)
        # the first parent is added last
        for parent in (*found[1:], found[0] if found else None):
            add_resolved(walk, ref, parent)


# ------------------------------------------------------------------------------ the walks ----


def add_parent_node(walk: Walk, ref: PrelimRef) -> None:
    """Put the parent of a direct reference, with its inodes, on the list of parents."""
    image = walk.ask.forest.image
    if walk.want_inodes and not ref.elems and ref.level == 0:
        leaf = read_tree_block(image, ref.parent, level=0, tree=ref.root_id)
        ref.elems = find_extent_in_eb(walk, leaf)
    # the root of a relocation tree is its own parent
    own = walk.level >= 0 and ref.parent == walk.bytenr
    level = walk.level if own else ref.level
    node, new = walk.refs.add_merge(ref.parent)
    if new:
        node.level = level
    elif node.level != level:
        fault = Fault(Code.LOOP, ObjectId.EXTENT_TREE, walk.bytenr, found=ref.parent)
        raise CorruptImageError(image.path, fault)
    node.elems += ref.elems


def _check_root(walk: Walk, root_id: int) -> None:
    """Take a reference by another tree than the file's own for an answer."""
    if walk.share is not None and root_id != walk.share.context.root_id:
        raise SharedAnswerError(True)


def add_root(walk: Walk, root_id: int) -> None:
    """Remember the tree of a root node."""
    _check_root(walk, root_id)
    walk.roots.add(root_id)


def find_parent_nodes(walk: Walk) -> None:
    """Add the parents of the present extent to ``walk.refs``, its root to ``walk.roots``."""
    current().count("find_parent_nodes")
    walk.direct, walk.indirect, walk.missing_keys = PrefTree(), PrefTree(), PrefTree()
    collect_refs(walk)
    if walk.share is not None:
        walk.share.before_resolving(walk.bytenr)
    add_missing_keys(walk)
    resolve_indirect_refs(walk)
    for ref in walk.direct:
        if not ref.count:
            continue
        if ref.parent:
            add_parent_node(walk, ref)
        elif walk.want_roots and ref.root_id:
            add_root(walk, ref.root_id)


def find_all_leafs(walk: Walk) -> list[int]:
    """Return the leaves that refer to the data extent (``btrfs_find_all_leafs()``)."""
    current().count("btrfs_find_all_leafs")
    with suppress(FileNotFoundError):
        find_parent_nodes(walk)
    return walk.refs.values()


def find_all_roots(ask: BackrefWalk, bytenr: int, level: int = -1) -> list[int]:
    """Return the trees that reach a block or extent (``btrfs_find_all_roots_safe()``).

    `ask`: the trees.
    `bytenr`: its address.
    `level`: level of a tree block; -1 when it is not known, or for a data extent.
    """
    current().count("btrfs_find_all_roots_safe")
    walk = Walk(ask=ask, bytenr=bytenr, level=level, want_roots=True)
    parents = iter(walk.refs)
    while True:
        with suppress(FileNotFoundError):
            find_parent_nodes(walk)
        parent = next(parents, None)
        if parent is None:
            return walk.roots.values()
        walk.bytenr, walk.level = parent.val, parent.level


def iterate_leaf_refs(walk: Walk, elems: Sequence[InodeElem], root: int) -> None:
    """Report file extent items of a leaf for one of its roots."""
    if walk.ask.iterate is not None:
        for elem in elems:
            stopped(walk, walk.ask.iterate(elem.inum, elem.offset, elem.num_bytes, root))


def find_roots_of_leaf(walk: Walk, leaf: int) -> Sequence[int]:
    """Return the roots of a leaf, from the caller's cache or by walking."""
    ask = walk.ask
    known = ask.cache_lookup(leaf) if ask.cache_lookup is not None else None
    if known is not None:
        return known
    roots = find_all_roots(ask, leaf, level=0)
    if ask.cache_store is not None:
        ask.cache_store(leaf, roots)
    return roots


def iterate_extent_inodes(ask: BackrefWalk) -> None:
    """Report each file extent item that refers to the data extent (``ask.iterate``).

    Raises CorruptImageError: when the trees contradict each other.
    Raises OSError: with the errno that a callback returned.
    """
    current().count("iterate_extent_inodes")
    walk = Walk(ask=ask, bytenr=ask.bytenr, want_inodes=True)
    with suppress(StopWalkError):
        find_all_leafs(walk)
        for leaf in walk.refs:
            for root in find_roots_of_leaf(walk, leaf.val):
                iterate_leaf_refs(walk, leaf.elems, root)
