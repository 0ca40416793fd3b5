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

Beside ``native/backref/backref.c`` and ``native/backref/refs.c``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from btrfs_model.base.codes import Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk import items
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL, ExtentFlag
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.structs import (
    EXTENT_DATA_REF,
    EXTENT_INLINE_REF,
    EXTENT_ITEM,
    SHARED_DATA_REF,
    TREE_BLOCK_INFO,
    RawExtentItem,
    RawFileExtent,
)
from btrfs_model.reference.backref_prelim import InodeElem, PrefTree, PrelimRef, Ulist
from btrfs_model.reference.ctree import (
    Path,
    bytenr_of,
    key_at,
    next_leaf,
    nritems,
    payload_at,
    search_slot,
)
from btrfs_model.volume.blocks import HEADER
from btrfs_model.volume.forest import Forest, read_tree_block

if TYPE_CHECKING:
    from btrfs_model.reference.backref_prelim import UlistNode
    from btrfs_model.reference.share import ShareCheck
    from btrfs_model.volume.tree import Tree

_MAX = 2**64 - 1
_LLONG_MAX = 2**63 - 1
_DATA_RELOC_TREE = 2**64 - 9
_EXTENT_KEYS = (ItemType.EXTENT_ITEM, ItemType.METADATA_ITEM)
_TREE_BLOCK_REFS = (ItemType.TREE_BLOCK_REF, ItemType.SHARED_BLOCK_REF)
_DATA_REFS = (ItemType.EXTENT_DATA_REF, ItemType.SHARED_DATA_REF)
_KINDS = ExtentFlag.DATA | ExtentFlag.TREE_BLOCK


class _StopWalkError(Exception):
    """A callback wants no more (``BTRFS_ITERATE_EXTENT_INODES_STOP``)."""


class SharedAnswerError(Exception):
    """A walk that asks whether an extent is shared knows it (``BACKREF_FOUND_SHARED``).

    Attributes
    ----------
    shared : bool
        The answer.
    """

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.shared = shared


@dataclass(slots=True, kw_only=True)
class BackrefWalk:
    """What is asked of a walk: ``struct btrfs_backref_walk_ctx`` and its callbacks (6.12).

    Attributes
    ----------
    forest : Forest
        The trees.
    bytenr : int
        Logical address of the extent.
    extent_item_pos : int
        Only file extents that show this byte of the extent are reported; compressed ones always.
    ignore_extent_item_pos : bool
        Report all of them.
    restart : bool
        Whether a search starts again after it had to read a block: always before 5.19.
    transaction : bool
        Whether the walk goes through a running transaction; then ``btrfs_search_old_slot()``
        searches by itself, without ``btrfs_search_slot()``.
    iterate_cached : bool
        Report a reference as soon as it is found in a leaf whose roots ``cache_lookup`` knows
        (``send-backref-skip``).
    check_extent_item : callable, optional
        (bytenr, extent item) of each extent item on the way -> 0, or a negative errno; after
        -ENOENT the walk goes on as if nothing referred to this extent.
    skip_data_ref : callable, optional
        (root, inode, offset) of a reference -> whether it is left out.
    cache_lookup : callable, optional
        Leaf -> the ids of the trees that reach it, or None when they are not known.
    cache_store : callable, optional
        (leaf, ids) once they have been found.
    iterate : callable, optional
        (inode, offset, num_bytes, root) -> 0, or anything greater to end the walk, or a negative
        errno.
    """

    forest: Forest
    bytenr: int
    extent_item_pos: int = 0
    ignore_extent_item_pos: bool = False
    restart: bool = False
    transaction: bool = False
    iterate_cached: bool = False
    check_extent_item: Callable[[int, RawExtentItem], int] | None = None
    skip_data_ref: Callable[[int, int, int], bool] | None = None
    cache_lookup: Callable[[int], Sequence[int] | None] | None = None
    cache_store: Callable[[int, list[int]], None] | None = None
    iterate: Callable[[int, int, int, int], int] | None = None


@dataclass(slots=True, kw_only=True)
class Walk:
    """One walk (``struct walk`` of ``native/backref/backref.h``).

    Attributes
    ----------
    ask : BackrefWalk
        What is asked.
    bytenr : int
        Address of the extent whose references are sought.
    level : int
        Of the tree block there; -1 for a data extent.
    share : ShareCheck, optional
        Who only wants to know whether a data extent is shared.
    want_roots, want_inodes : bool
        Whether roots, and the file extent items in leaves, are gathered.
    refs : Ulist
        Parents found, leaves with the file extent items in them.
    roots : Ulist
        Ids of the trees of which a root node was found.
    direct, indirect, missing_keys : PrefTree
        The references of the present extent.
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
    fault = Fault(code, _owner(leaf), bytenr_of(leaf), slot, 0, found, wanted)
    return CorruptImageError(walk.ask.forest.image.path, fault)


def _owner(block: memoryview) -> int:
    return int(HEADER.unpack_from(block)[6])


def stopped(walk: Walk, ret: int) -> None:
    """Act on what a callback returned."""
    if ret > 0:
        raise _StopWalkError
    if ret < 0:
        raise OSError(-ret, "a callback of the walk failed", walk.ask.forest.image.path)


def next_item(tree: Tree, path: Path) -> bool:
    """Go to the next item (``btrfs_next_old_item()``); False when there is none."""
    current().count("btrfs_next_old_item")
    path.slots[0] += 1
    return path.slots[0] < nritems(path.leaf) or next_leaf(tree, path)


# ------------------------------------------------------------------ from leaves to inodes ----


def file_extent(walk: Walk, leaf: memoryview, slot: int, bytenr: int) -> RawFileExtent | None:
    """Return a file extent item if it refers to the extent at `bytenr`."""
    try:
        item = items.file_extent(payload_at(leaf, slot))
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
    iterate_cached_roots(walk, bytenr_of(leaf), elem)
    return elem


def find_extent_in_eb(walk: Walk, leaf: memoryview) -> list[InodeElem]:
    """All file extent items of a leaf that refer to the extent, the last one first."""
    elems: list[InodeElem] = []
    for slot in range(nritems(leaf)):
        objectid, kind, offset = key_at(leaf, slot)
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
        if nritems(block):
            ref.key = key_at(block, 0)
        walk.indirect.prelim_ref_insert(ref)


def search_old_slot(walk: Walk, tree: Tree, key: tuple[int, int, int], path: Path) -> None:
    """Search in a commit root; through a transaction this is no ``btrfs_search_slot()``."""
    current().count("btrfs_search_old_slot")
    search_slot(tree, key, path)
    if walk.ask.transaction:
        current().count("btrfs_search_slot", -1)


def next_old_leaf(walk: Walk, tree: Tree, path: Path) -> bool:
    """Go to the next leaf; through a transaction, the searches in it are of old slots."""
    before = current()["btrfs_search_slot"]
    more = next_leaf(tree, path)
    if walk.ask.transaction:
        searches = current()["btrfs_search_slot"] - before
        current().count("btrfs_search_slot", -searches)
        current().count("btrfs_search_old_slot", searches)
    return more


def next_old_item(walk: Walk, tree: Tree, path: Path) -> bool:
    """Go to the next item; False when there is none."""
    current().count("btrfs_next_old_item")
    path.slots[0] += 1
    return path.slots[0] < nritems(path.leaf) or next_old_leaf(walk, tree, path)


def skip_leaf(walk: Walk, leaf: memoryview, ref: PrelimRef) -> bool:
    """Whether a leaf has a direct reference of its own, or belongs to another tree."""
    return walk.direct.is_shared_data_backref(bytenr_of(leaf)) or ref.root_id != _owner(leaf)


def add_parent(walk: Walk, leaf: memoryview, slot: int, ref: PrelimRef, parents: Ulist) -> bool:
    """Add the leaf if an item of it is one of the reference; False when it is not."""
    objectid, _, offset = key_at(leaf, slot)
    item = file_extent(walk, leaf, slot, ref.wanted)
    if item is None or (offset - item.offset) % 2**64 != ref.key[2]:
        return False
    elems = []
    if walk.want_inodes:
        elem = check_extent_in_eb(walk, leaf, objectid, offset, item)
        if elem is None:
            return True
        elems.append(elem)
    node, _ = parents.add_merge(bytenr_of(leaf))
    node.elems += elems
    return True


def add_all_leafs(walk: Walk, tree: Tree, path: Path, ref: PrelimRef, parents: Ulist) -> None:
    """Go through the inode's file extents until all that the reference counts are found.

    ``add_all_parents()`` for a data extent. A leaf that belongs to another tree has references of
    its own and is passed over.
    """
    more = True
    if path.slots[0] >= nritems(path.leaf) or skip_leaf(walk, path.leaf, ref):
        more = next_old_leaf(walk, tree, path)
    count = 0
    while more and count < ref.count:
        leaf, slot = path.leaf, path.slots[0]
        objectid, kind, _ = key_at(leaf, slot)
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
    path = Path(lowest_level=ref.level, restart=restart)
    search_old_slot(walk, tree, (objectid, kind, offset), path)
    level = max(at for at, node in enumerate(path.nodes[: ref.level + 1]) if node is not None)
    if level:
        node = path.nodes[level]
        assert node is not None
        parents.add(bytenr_of(node), level)
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


# ------------------------------------------------------------ what the extent tree says ------


def add_prelim_ref(walk: Walk, tree: PrefTree, ref: PrelimRef) -> None:
    """Add a reference to one of the trees."""
    if ref.root_id != _DATA_RELOC_TREE:
        current().count("add_prelim_ref")
        held = tree.prelim_ref_insert(ref)
        # references of tree blocks do not count: sharing of those shows when resolved
        if walk.share is not None and walk.level < 0:
            walk.share.update_share_count(0 if held is ref else held.count - ref.count, ref)


def add_direct_ref(walk: Walk, parent: int, count: int) -> None:
    """Add a reference by the tree block at `parent`."""
    if not parent or parent % walk.ask.forest.image.sectorsize:
        raise PayloadError.bad_value(parent)
    add_prelim_ref(walk, walk.direct, PrelimRef(walk.level + 1, walk.bytenr, count, parent=parent))


def add_tree_block_ref(walk: Walk, root_id: int) -> None:
    """Add a reference to a tree block by a tree."""
    ref = PrelimRef(walk.level + 1, walk.bytenr, root_id=root_id)
    add_prelim_ref(walk, walk.missing_keys, ref)


def add_extent_data_ref(walk: Walk, root: int, objectid: int, offset: int, count: int) -> None:
    """Add a reference to data by file extent items of an inode."""
    if walk.share is not None and objectid != walk.share.context.inum:
        raise SharedAnswerError(True)
    if walk.ask.skip_data_ref and walk.ask.skip_data_ref(root, objectid, offset):
        return
    key = (objectid, int(ItemType.EXTENT_DATA), offset)
    ref = PrelimRef(0, walk.bytenr, count, root_id=root, key=key)
    add_prelim_ref(walk, walk.indirect, ref)


def add_ref(walk: Walk, kind: int, value: int, payload: memoryview, at: int) -> int:
    """Add one reference of either form; return the bytes that it takes of the payload."""
    if kind not in (_TREE_BLOCK_REFS if walk.level >= 0 else _DATA_REFS):
        raise PayloadError.bad_value(kind)
    if kind == ItemType.TREE_BLOCK_REF:
        add_tree_block_ref(walk, value)
    elif kind == ItemType.SHARED_BLOCK_REF:
        add_direct_ref(walk, value, 1)
    elif kind == ItemType.SHARED_DATA_REF:
        add_direct_ref(walk, value, *SHARED_DATA_REF.flat(payload, at))
        return SHARED_DATA_REF.size
    else:
        add_extent_data_ref(walk, *EXTENT_DATA_REF.flat(payload, at))
        return EXTENT_DATA_REF.size
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
    item = EXTENT_ITEM.unpack(payload)
    if walk.ask.check_extent_item is not None:
        stopped(walk, walk.ask.check_extent_item(walk.bytenr, item))
    _, kind, offset = key_at(leaf, slot)
    match kind, item.flags & _KINDS:
        case ItemType.METADATA_ITEM, ExtentFlag.TREE_BLOCK:
            check_level(walk, leaf, slot, offset)
        case ItemType.EXTENT_ITEM, ExtentFlag.TREE_BLOCK:
            check_level(walk, leaf, slot, TREE_BLOCK_INFO.flat(payload, EXTENT_ITEM.size)[-1])
            return EXTENT_ITEM.size + TREE_BLOCK_INFO.size
        # a walk that came here from a tree block does not come to data
        case ItemType.EXTENT_ITEM, ExtentFlag.DATA if walk.level < 0:
            pass
        case _:
            raise PayloadError.bad_value(item.flags)
    return EXTENT_ITEM.size


def add_inline_refs(walk: Walk, leaf: memoryview, slot: int) -> None:
    """Add the references inside of an extent item."""
    payload = payload_at(leaf, slot)
    at = extent_head(walk, leaf, slot, payload)
    while at < len(payload):
        kind, value = EXTENT_INLINE_REF.flat(payload, at)
        if kind == ItemType.EXTENT_OWNER_REF and walk.level < 0:
            at += EXTENT_INLINE_REF.size
            continue
        # the other fields of a data reference take the place of the offset
        at += 1 if kind == ItemType.EXTENT_DATA_REF else EXTENT_INLINE_REF.size
        at += add_ref(walk, kind, value, payload, at)


def add_keyed_refs(walk: Walk, path: Path) -> None:
    """Add the references that follow as items of their own."""
    while next_item(walk.ask.forest.extent_tree, path):
        objectid, kind, value = key_at(path.leaf, path.slots[0])
        if objectid != walk.bytenr or kind > ItemType.SHARED_DATA_REF:
            return
        if kind >= ItemType.TREE_BLOCK_REF:
            add_ref(walk, kind, value, payload_at(path.leaf, path.slots[0]), 0)


def collect_refs(walk: Walk) -> None:
    """Add all references that the extent tree has for the present extent."""
    forest = walk.ask.forest
    path = Path(restart=walk.ask.restart)
    if search_slot(forest.extent_tree, (walk.bytenr, int(ItemType.METADATA_ITEM), _MAX), path):
        raise fail_at(walk, Code.BAD_VALUE, path.leaf, path.slots[0], _MAX)
    found = None
    if path.slots[0]:
        path.slots[0] -= 1
        found = key_at(path.leaf, path.slots[0])
    if found is None or found[0] != walk.bytenr or found[1] not in _EXTENT_KEYS:
        if walk.level < 0:
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

    Parameters
    ----------
    ask : BackrefWalk
        The trees.
    bytenr : int
        Its address.
    level : int
        Level of a tree block; -1 when it is not known, or for a data extent.
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

    Raises
    ------
    CorruptImageError
        When the trees contradict each other.
    OSError
        With the errno that a callback returned.
    """
    current().count("iterate_extent_inodes")
    walk = Walk(ask=ask, bytenr=ask.bytenr, want_inodes=True)
    with suppress(_StopWalkError):
        find_all_leafs(walk)
        for leaf in walk.refs:
            for root in find_roots_of_leaf(walk, leaf.val):
                iterate_leaf_refs(walk, leaf.elems, root)
