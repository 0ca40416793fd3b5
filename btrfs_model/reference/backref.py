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

The twin of ``native/backref/backref.c`` and ``native/backref/refs.c``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from btrfs_model.base.codes import Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.ondisk.constants import BTRFS_MAX_LEVEL, ExtentFlag
from btrfs_model.ondisk.items import InlineExtent, file_extent
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


class Walker:
    """One walk: its methods are the functions of ``backref.c``, under their names.

    Parameters
    ----------
    ask : BackrefWalk
        What is asked.
    share : ShareCheck, optional
        Who only wants to know whether a data extent is shared.
    want_roots : bool
        Whether :meth:`find_parent_nodes` gathers roots.

    Attributes
    ----------
    refs : Ulist
        Parents found, leaves with the file extent items in them.
    roots : Ulist
        Ids of the trees of which a root node was found.
    """

    def __init__(
        self, ask: BackrefWalk, share: ShareCheck | None = None, *, want_roots: bool = False
    ) -> None:
        self.ask = ask
        self._share = share
        self.forest = ask.forest
        self.image = ask.forest.image
        self.refs = Ulist()
        self.roots = Ulist()
        self._bytenr = ask.bytenr
        self._level = -1  # of the tree block at _bytenr; -1 for a data extent
        self._want_inodes = False
        self._want_roots = want_roots

    @property
    def bytenr(self) -> int:
        """Address of the extent whose references are sought."""
        return self._bytenr

    def step_to(self, parent: UlistNode) -> None:
        """Go on with a parent that was found."""
        self._bytenr, self._level = parent.val, parent.level

    # ----------------------------------------------------------------------- the walks ------

    def iterate_extent_inodes(self) -> None:
        """Report each file extent item that refers to the data extent (``ask.iterate``).

        Raises
        ------
        CorruptImageError
            When the trees contradict each other.
        OSError
            With the errno that a callback returned.
        """
        current().count("iterate_extent_inodes")
        self._want_inodes = True
        with suppress(_StopWalkError):
            self.find_all_leafs()
            for leaf in self.refs:
                for root in self._roots_of_leaf(leaf.val):
                    for elem in leaf.elems:
                        self._iterate(elem, root)

    def find_all_leafs(self) -> list[int]:
        """Return the leaves that refer to the data extent (``btrfs_find_all_leafs()``)."""
        current().count("btrfs_find_all_leafs")
        with suppress(FileNotFoundError):
            self.find_parent_nodes()
        return self.refs.values()

    def find_all_roots(self, bytenr: int, level: int = -1) -> list[int]:
        """Return the trees that reach a block or extent (``btrfs_find_all_roots_safe()``).

        Parameters
        ----------
        bytenr : int
            Its address.
        level : int
            Level of a tree block; -1 when it is not known, or for a data extent.
        """
        current().count("btrfs_find_all_roots_safe")
        above = Walker(self.ask, want_roots=True)
        above._bytenr, above._level = bytenr, level
        parents = iter(above.refs)
        while True:
            with suppress(FileNotFoundError):
                above.find_parent_nodes()
            parent = next(parents, None)
            if parent is None:
                return above.roots.values()
            above.step_to(parent)

    def _roots_of_leaf(self, leaf: int) -> Sequence[int]:
        if self.ask.cache_lookup is not None:
            known = self.ask.cache_lookup(leaf)
            if known is not None:
                return known
        roots = self.find_all_roots(leaf, level=0)
        if self.ask.cache_store is not None:
            self.ask.cache_store(leaf, roots)
        return roots

    def _iterate(self, elem: InodeElem, root: int) -> None:
        if self.ask.iterate is not None:
            self._check(self.ask.iterate(elem.inum, elem.offset, elem.num_bytes, root))

    def _check(self, ret: int) -> None:
        """Act on what a callback returned."""
        if ret > 0:
            raise _StopWalkError
        if ret < 0:
            raise OSError(-ret, "a callback of the walk failed", self.image.path)

    # ---------------------------------------------------------------- one step upwards ------

    def find_parent_nodes(self) -> None:
        """Add the parents of the present extent to :attr:`refs`, its root to :attr:`roots`."""
        current().count("find_parent_nodes")
        self._direct, self._indirect, self._missing_keys = PrefTree(), PrefTree(), PrefTree()
        self._collect_refs()
        if self._share is not None:
            self._share.before_resolving(self._bytenr)
        self._add_missing_keys()
        self._resolve_indirect_refs()
        for ref in self._direct:
            if not ref.count:
                continue
            if ref.parent:
                self._add_parent_node(ref)
            elif self._want_roots and ref.root_id:
                self._check_root(ref.root_id)
                self.roots.add(ref.root_id)

    def _check_root(self, root_id: int) -> None:
        """Take a reference by another tree than the file's own for an answer."""
        if self._share is not None and root_id != self._share.context.root_id:
            raise SharedAnswerError(True)

    def _add_parent_node(self, ref: PrelimRef) -> None:
        if self._want_inodes and not ref.elems and ref.level == 0:
            leaf = read_tree_block(self.image, ref.parent, level=0, tree=ref.root_id)
            ref.elems = self._find_extent_in_eb(leaf)
        # the root of a relocation tree is its own parent
        own = self._level >= 0 and ref.parent == self._bytenr
        level = self._level if own else ref.level
        node, new = self.refs.add_merge(ref.parent)
        if new:
            node.level = level
        elif node.level != level:
            fault = Fault(Code.LOOP, ObjectId.EXTENT_TREE, self._bytenr, found=ref.parent)
            raise CorruptImageError(self.image.path, fault)
        node.elems += ref.elems

    # ------------------------------------------------------- what the extent tree says ------

    def _collect_refs(self) -> None:
        path = Path(restart=self.ask.restart)
        key = (self._bytenr, int(ItemType.METADATA_ITEM), _MAX)
        if search_slot(self.forest.extent_tree, key, path):
            raise self._fault_at(Code.BAD_VALUE, path.leaf, path.slots[0], _MAX)
        found = None
        if path.slots[0]:
            path.slots[0] -= 1
            found = key_at(path.leaf, path.slots[0])
        if found is None or found[0] != self._bytenr or found[1] not in _EXTENT_KEYS:
            if self._level >= 0:
                raise CorruptImageError(
                    self.image.path,
                    Fault(
                        Code.NOT_FOUND,
                        ObjectId.EXTENT_TREE,
                        found=self._bytenr,
                        wanted=ItemType.METADATA_ITEM,
                    ),
                )
            return
        self._at(path, self._add_inline_refs)
        while self._next_item(self.forest.extent_tree, path):
            objectid, kind, _ = key_at(path.leaf, path.slots[0])
            if objectid != self._bytenr or kind > ItemType.SHARED_DATA_REF:
                return
            if kind >= ItemType.TREE_BLOCK_REF:
                self._at(path, self._add_keyed_ref)

    def _at(self, path: Path, add: Callable[[memoryview, int], None]) -> None:
        """Run a decoder of the item of a path; its errors are told where the item is."""
        leaf, slot = path.leaf, path.slots[0]
        try:
            add(leaf, slot)
        except PayloadError as error:
            raise self._fault_at(error.code, leaf, slot, error.found, error.wanted) from None

    def _add_inline_refs(self, leaf: memoryview, slot: int) -> None:
        payload = payload_at(leaf, slot)
        at = self._extent_head(leaf, slot, payload)
        while at < len(payload):
            kind, value = EXTENT_INLINE_REF.flat(payload, at)
            if kind == ItemType.EXTENT_OWNER_REF and self._level < 0:
                at += EXTENT_INLINE_REF.size
                continue
            # the other fields of a data reference take the place of the offset
            at += 1 if kind == ItemType.EXTENT_DATA_REF else EXTENT_INLINE_REF.size
            at += self._add_ref(kind, value, payload, at)

    def _add_keyed_ref(self, leaf: memoryview, slot: int) -> None:
        _, kind, value = key_at(leaf, slot)
        self._add_ref(kind, value, payload_at(leaf, slot), 0)

    def _extent_head(self, leaf: memoryview, slot: int, payload: memoryview) -> int:
        """See what kind of extent an item is for; return where its inline references begin."""
        item = EXTENT_ITEM.unpack(payload)
        if self.ask.check_extent_item is not None:
            self._check(self.ask.check_extent_item(self._bytenr, item))
        _, kind, offset = key_at(leaf, slot)
        match kind, item.flags & _KINDS:
            case ItemType.METADATA_ITEM, ExtentFlag.TREE_BLOCK:
                self._check_level(leaf, slot, offset)
            case ItemType.EXTENT_ITEM, ExtentFlag.TREE_BLOCK:
                self._check_level(leaf, slot, TREE_BLOCK_INFO.flat(payload, EXTENT_ITEM.size)[-1])
                return EXTENT_ITEM.size + TREE_BLOCK_INFO.size
            # a walk that came here from a tree block does not come to data
            case ItemType.EXTENT_ITEM, ExtentFlag.DATA if self._level < 0:
                pass
            case _:
                raise PayloadError.bad_value(item.flags)
        return EXTENT_ITEM.size

    def _check_level(self, leaf: memoryview, slot: int, level: int) -> None:
        """Take the level of a tree block, which must be the one that led here."""
        highest = BTRFS_MAX_LEVEL - 1
        if level > highest:
            raise self._fault_at(Code.BAD_LEVEL, leaf, slot, level, highest)
        if self._level >= 0 and level != self._level:
            raise self._fault_at(Code.BAD_LEVEL, leaf, slot, level, self._level)
        self._level = level

    def _add_ref(self, kind: int, value: int, payload: memoryview, at: int) -> int:
        """Add one reference of either form; return the bytes that it takes of the payload."""
        if kind not in (_TREE_BLOCK_REFS if self._level >= 0 else _DATA_REFS):
            raise PayloadError.bad_value(kind)
        if kind == ItemType.TREE_BLOCK_REF:
            ref = PrelimRef(self._level + 1, self._bytenr, root_id=value)
            self._add_prelim_ref(self._missing_keys, ref)
            return 0
        if kind == ItemType.EXTENT_DATA_REF:
            root, objectid, offset, count = EXTENT_DATA_REF.flat(payload, at)
            if self._share is not None and objectid != self._share.context.inum:
                raise SharedAnswerError(True)
            if not (self.ask.skip_data_ref and self.ask.skip_data_ref(root, objectid, offset)):
                key = (objectid, int(ItemType.EXTENT_DATA), offset)
                self._add_prelim_ref(
                    self._indirect, PrelimRef(0, self._bytenr, count, root_id=root, key=key)
                )
            return EXTENT_DATA_REF.size
        count, size = 1, 0
        if kind == ItemType.SHARED_DATA_REF:
            (count,) = SHARED_DATA_REF.flat(payload, at)
            size = SHARED_DATA_REF.size
        if not value or value % self.image.sectorsize:
            raise PayloadError.bad_value(value)
        self._add_prelim_ref(
            self._direct, PrelimRef(self._level + 1, self._bytenr, count, parent=value)
        )
        return size

    def _add_prelim_ref(self, tree: PrefTree, ref: PrelimRef) -> None:
        if ref.root_id != _DATA_RELOC_TREE:
            current().count("add_prelim_ref")
            held = tree.insert(ref)
            # references of tree blocks do not count: sharing of those shows when resolved
            if self._share is not None and self._level < 0:
                self._share.count_ref(0 if held is ref else held.count - ref.count, ref)

    # -------------------------------------------------------------- indirect references -----

    def _add_missing_keys(self) -> None:
        """Read each tree block that is sought without a key: its first key will do."""
        for ref in self._missing_keys:
            block = read_tree_block(self.image, ref.wanted, level=ref.level - 1, tree=ref.root_id)
            # only an empty tree has no first key, and its root is found without one
            if nritems(block):
                ref.key = key_at(block, 0)
            self._indirect.insert(ref)

    def _resolve_indirect_refs(self) -> None:
        for ref in self._indirect:
            if not ref.count:
                continue
            self._check_root(ref.root_id)
            parents = Ulist()
            self._resolve_indirect_ref(ref, parents)
            found = list(parents)
            # the first parent is added last
            for parent in (*found[1:], found[0] if found else None):
                self._direct.insert(ref.resolved(parent))

    def _resolve_indirect_ref(self, ref: PrelimRef, parents: Ulist) -> None:
        """Find the parents; there are none where the block is a root node, or its root is gone."""
        restart = self.ask.restart
        tree = self.forest.get_fs_root_commit_root(ref.root_id, restart=restart)
        if tree is None or tree.level + 1 == ref.level:
            return
        if ref.level >= BTRFS_MAX_LEVEL:
            raise CorruptImageError(
                self.image.path,
                Fault(
                    Code.BAD_LEVEL,
                    ref.root_id,
                    ref.wanted,
                    found=ref.level - 1,
                    wanted=tree.level,
                ),
            )
        objectid, kind, offset = ref.key
        # an offset below 0, which cloning parts of extents leaves behind: search from the start
        if kind == ItemType.EXTENT_DATA and offset >= _LLONG_MAX:
            offset = 0
        path = Path(lowest_level=ref.level, restart=restart)
        self._search_old_slot(tree, (objectid, kind, offset), path)
        level = max(at for at, node in enumerate(path.nodes[: ref.level + 1]) if node is not None)
        if level:
            node = path.nodes[level]
            assert node is not None
            parents.add(_bytenr(node), level)
        else:
            self._add_all_leafs(tree, path, ref, parents)

    def _search_old_slot(self, tree: Tree, key: tuple[int, int, int], path: Path) -> None:
        current().count("btrfs_search_old_slot")
        search_slot(tree, key, path)
        if self.ask.transaction:
            current().count("btrfs_search_slot", -1)

    def _next_old_leaf(self, tree: Tree, path: Path) -> bool:
        """Go to the next leaf; through a transaction, the searches in it are of old slots."""
        before = current()["btrfs_search_slot"]
        more = next_leaf(tree, path)
        if self.ask.transaction:
            searches = current()["btrfs_search_slot"] - before
            current().count("btrfs_search_slot", -searches)
            current().count("btrfs_search_old_slot", searches)
        return more

    def _next_old_item(self, tree: Tree, path: Path) -> bool:
        current().count("btrfs_next_old_item")
        path.slots[0] += 1
        return path.slots[0] < nritems(path.leaf) or self._next_old_leaf(tree, path)

    def _add_all_leafs(self, tree: Tree, path: Path, ref: PrelimRef, parents: Ulist) -> None:
        """Go through the inode's file extents until all that the reference counts are found.

        ``add_all_parents()`` for a data extent. A leaf that belongs to another tree has references
        of its own and is passed over.
        """
        more = True
        if path.slots[0] >= nritems(path.leaf) or self._skip_leaf(path.leaf, ref):
            more = self._next_old_leaf(tree, path)
        count = 0
        while more and count < ref.count:
            leaf, slot = path.leaf, path.slots[0]
            objectid, kind, offset = key_at(leaf, slot)
            if objectid != ref.key[0] or kind != ItemType.EXTENT_DATA:
                return
            if slot == 0 and self._skip_leaf(leaf, ref):
                more = self._next_old_leaf(tree, path)
                continue
            item = self._file_extent(leaf, slot, ref.wanted)
            if item is not None and (offset - item.offset) % 2**64 == ref.key[2]:
                count += 1
                self._add_leaf(leaf, (objectid, offset), item, parents)
            more = self._next_old_item(tree, path)

    def _add_leaf(
        self, leaf: memoryview, place: tuple[int, int], item: RawFileExtent, parents: Ulist
    ) -> None:
        elem = None
        if self._want_inodes:
            elem = self._check_extent_in_eb(leaf, *place, item)
            if elem is None:
                return
        node, _ = parents.add_merge(_bytenr(leaf))
        if elem is not None:
            node.elems.append(elem)

    def _skip_leaf(self, leaf: memoryview, ref: PrelimRef) -> bool:
        shared = self._direct.has_shared_data_ref(_bytenr(leaf))
        return shared or ref.root_id != _owner(leaf)

    # ------------------------------------------------------------- from leaves to inodes ----

    def _find_extent_in_eb(self, leaf: memoryview) -> list[InodeElem]:
        """All file extent items of a leaf that refer to the extent, the last one first."""
        elems: list[InodeElem] = []
        for slot in range(nritems(leaf)):
            objectid, kind, offset = key_at(leaf, slot)
            if kind != ItemType.EXTENT_DATA:
                continue
            item = self._file_extent(leaf, slot, self._bytenr)
            if item is not None:
                elem = self._check_extent_in_eb(leaf, objectid, offset, item)
                if elem is not None:
                    elems.insert(0, elem)
        return elems

    def _file_extent(self, leaf: memoryview, slot: int, bytenr: int) -> RawFileExtent | None:
        """Return a file extent item if it refers to the extent at `bytenr`."""
        try:
            item = file_extent(payload_at(leaf, slot))
        except PayloadError as error:
            raise self._fault_at(error.code, leaf, slot, error.found, error.wanted) from None
        return None if isinstance(item, InlineExtent) or item.disk_bytenr != bytenr else item

    def _check_extent_in_eb(
        self, leaf: memoryview, objectid: int, offset: int, item: RawFileExtent
    ) -> InodeElem | None:
        """Return the element for a file extent item; None when it shows another part."""
        ask = self.ask
        current().count("check_extent_in_eb")
        encoded = item.compression or item.encryption or item.other_encoding
        if not ask.ignore_extent_item_pos and not encoded:
            end = (item.offset + item.num_bytes) % 2**64
            if not item.offset <= ask.extent_item_pos < end:
                return None
            offset = (offset + ask.extent_item_pos - item.offset) % 2**64
        elem = InodeElem(objectid, offset, item.num_bytes)
        if ask.iterate_cached and ask.cache_lookup is not None and ask.iterate is not None:
            for root in ask.cache_lookup(_bytenr(leaf)) or ():
                self._iterate(elem, root)
        return elem

    # ---------------------------------------------------------------------- small things ----

    @staticmethod
    def _next_item(tree: Tree, path: Path) -> bool:
        current().count("btrfs_next_old_item")
        path.slots[0] += 1
        return path.slots[0] < nritems(path.leaf) or next_leaf(tree, path)

    def _fault_at(
        self, code: int, leaf: memoryview, slot: int, found: int, wanted: int = 0
    ) -> CorruptImageError:
        fault = Fault(code, _owner(leaf), _bytenr(leaf), slot, 0, found, wanted)
        return CorruptImageError(self.image.path, fault)


def _bytenr(block: memoryview) -> int:
    return int(HEADER.unpack_from(block)[2])


def _owner(block: memoryview) -> int:
    return int(HEADER.unpack_from(block)[6])
