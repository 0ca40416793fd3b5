# SPDX-License-Identifier: GPL-2.0-only
"""One b-tree of an image: search it, iterate over it, scan it into columns, walk its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from btrfs_model.base.tables import html_table
from btrfs_model.native.choice import twin
from btrfs_model.native.tree import Root
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.items import DirItem, dir_items
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.ondisk.layout import Payload, PayloadError
from btrfs_model.volume import ctree
from btrfs_model.volume.blocks import HEADER, ITEM

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.volume.image import Image

MIN_KEY = (0, 0, 0)
MAX_KEY = (2**64 - 1, 255, 2**64 - 1)
RawKey = tuple[int, int, int]
T = TypeVar("T")


class Item(NamedTuple):
    """An item of a leaf.

    Attributes
    ----------
    key : Key
        objectid, type, offset.
    data : memoryview
        The payload, in the image itself.
    block : int
        Logical address of the leaf.
    slot : int
        Place in the leaf.
    """

    key: Key
    data: memoryview
    block: int
    slot: int

    def decode(self, decode: Callable[[Payload], T], path: str, tree: int) -> T:
        """Take the payload apart; what is wrong with it is named with its place in an image."""
        try:
            return decode(self.data)
        except PayloadError as error:
            raise error.at(path, tree=tree, block=self.block, slot=self.slot) from None

    def __reduce__(self) -> tuple[object, ...]:
        # a view of the image stays with the image
        return _apart, (self.key, bytes(self.data), self.block, self.slot)


def _apart(key: Key, data: bytes, block: int, slot: int) -> Item:
    return Item(key, memoryview(data), block, slot)


class Block(NamedTuple):
    """A tree block as an in-order walk meets it.

    Attributes
    ----------
    logical, generation, owner, flags, level, nritems
        As in its header.
    parent, parent_slot : int
        Address of the node that points at it (0: the root) and the slot there.
    first : Key
        Its first key; zeros in an empty root.
    used : int
        Bytes used after the header.
    """

    logical: int
    generation: int
    owner: int
    flags: int
    level: int
    nritems: int
    parent: int
    parent_slot: int
    first: Key
    used: int


class Tree:
    """A b-tree, given by its root.

    Parameters
    ----------
    image : Image
        Where the blocks are.
    objectid : int
        The tree's id, for errors and readers; blocks shared with a snapshot may have another owner.
    bytenr, generation, level : int
        Of the root block, from the root item (or the superblock).
    """

    def __init__(
        self, image: Image, objectid: int, bytenr: int, generation: int, level: int
    ) -> None:
        self.image = image
        self.objectid = objectid
        self.bytenr = bytenr
        self.generation = generation
        self.level = level
        self._root: Root | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.image, self.objectid, self.bytenr, self.generation, self.level)

    @classmethod
    def of(cls, image: Image, root: Root) -> Tree:
        """Return the tree that C knows as `root`."""
        tree = cls(image, *root.place)
        tree._root = root
        return tree

    @classmethod
    def pointed_at(cls, image: Image, objectid: int) -> Tree:
        """Return a tree that the superblock points at: that of roots, of chunks, of log roots."""
        sb = image.superblock
        place = {
            ObjectId.ROOT_TREE: (sb.root, sb.generation, sb.root_level),
            ObjectId.CHUNK_TREE: (sb.chunk_root, sb.chunk_root_generation, sb.chunk_root_level),
            # logs are of the transaction after the last commit
            ObjectId.TREE_LOG: (sb.log_root, sb.generation + 1, sb.log_root_level),
        }
        return cls(image, objectid, *place[ObjectId(objectid)])

    def __repr__(self) -> str:
        return f"Tree({self.objectid}, bytenr={self.bytenr}, level={self.level})"

    def _repr_html_(self) -> str:
        names = ("bytenr", "generation", "level")
        return html_table(f"tree {self.objectid}", [], [(n, getattr(self, n)) for n in names])

    @property
    def root(self) -> Root:
        """The tree for the C kernels."""
        if self._root is None:
            place = (self.objectid, self.bytenr, self.generation, self.level)
            self._root = Root(self.image.store, *place)
        return self._root

    # --------------------------------------------------------------------- one item ---------

    def get(self, key: RawKey) -> Item | None:
        """Return the item with exactly this key, or None."""
        item = self.first(key)
        return item if item is not None and item.key == key else None

    def first(self, key: RawKey = MIN_KEY) -> Item | None:
        """Return the first item whose key is not less than `key`, or None."""
        return self._find(key, True)

    def last(self, key: RawKey = MAX_KEY) -> Item | None:
        """Return the last item whose key is not greater than `key`, or None."""
        return self._find(key, False)

    @twin("reference.tree:find")
    def _find(self, key: RawKey, find_higher: bool) -> Item | None:
        found = self.root.find(key, find_higher)
        return None if found is None else self.item(self.image.block_view(found[0]), found[1])

    def lookup(self, directory: int, name: bytes) -> DirItem | None:
        """Return the entry of a directory by its name (``btrfs_lookup_dir_item()``), or None."""
        item = self.get((directory, ItemType.DIR_ITEM, name_hash(name)))
        if item is None:
            return None
        entries = item.decode(dir_items, self.image.path, self.objectid)
        return next((entry for entry in entries if entry.name == name), None)

    @twin("reference.tree:lookup_path")
    def lookup_path(self, directory: RawKey, path: bytes) -> RawKey | None:
        """Return the key of what a path leads to; None where there is nothing.

        Parameters
        ----------
        directory : key
            Of the inode item from which the path starts.
        path : bytes
            Names; one that leads into another subvolume can only be the last.

        Raises
        ------
        CorruptImageError
            When the tree is broken there.
        """
        return self.root.lookup_path(directory, path)

    def has_keys(self, keys: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Tell for each of many keys whether there is an item, as :meth:`get` does one by one.

        Parameters
        ----------
        keys : numpy.ndarray
            Rows of :data:`~btrfs_model.native.tree.KEY`.
        """
        return self.root.has_keys(keys)

    @twin("reference.tree:child_at")
    def child_at(self, key: RawKey, level: int) -> int | None:
        """Return the address of the block of a level, below the root, whose first key is `key`.

        None when no node points at one.
        """
        found = self.root.search(key, level + 1)
        if found is None:
            return None
        return ctree.node_ptr(self.image.block_view(found[0]), found[1])[0]

    @twin("reference.tree:visit_leaves")
    def visit_leaves(self, first: RawKey, last: RawKey, reada: ctree.Reada) -> None:
        """Go through the leaves that may hold keys of [first, last], for the reads that it takes.

        Parameters
        ----------
        first, last : key
            Where to start; the walk ends in the first leaf that has a key beyond `last`.
        reada : Reada
            What is read ahead.

        Raises
        ------
        CorruptImageError
            When the tree is broken there.
        """
        self.root.visit_leaves(first, last, reada)

    @staticmethod
    def item(leaf: memoryview, slot: int) -> Item:
        """Return the item in a slot of a leaf."""
        objectid, kind, offset, at, size = ITEM.unpack_from(leaf, HEADER.size + slot * ITEM.size)
        start = HEADER.size + at
        bytenr = int.from_bytes(leaf[48:56], "little")
        return Item(Key(objectid, kind, offset), leaf[start : start + size], bytenr, slot)

    # ------------------------------------------------------------------- many items ---------

    @twin("reference.tree:items")
    def items(
        self, min_key: RawKey = MIN_KEY, max_key: RawKey = MAX_KEY, *, reverse: bool = False
    ) -> Iterator[Item]:
        """Iterate over the items with ``min_key <= key <= max_key``, in either direction.

        Yields
        ------
        Item
            In key order, or against it with `reverse`.
        """
        for place, start in self.root.leaves(max_key if reverse else min_key, reverse):
            leaf = self.image.block_view(place)
            block, count = int.from_bytes(leaf[48:56], "little"), ctree.nritems(leaf)
            for slot in range(start, -1, -1) if reverse else range(start, count):
                *key, at, size = ITEM.unpack_from(leaf, HEADER.size + slot * ITEM.size)
                if not min_key <= tuple(key) <= max_key:
                    return
                yield Item(Key(*key), leaf[HEADER.size + at : HEADER.size + at + size], block, slot)

    def scan(self, min_key: RawKey = MIN_KEY, max_key: RawKey = MAX_KEY) -> dict[str, npt.NDArray]:  # type: ignore[type-arg]
        """Gather the items with ``min_key <= key <= max_key`` into columns.

        Returns
        -------
        dict of numpy.ndarray
            Arrays of one length, in key order: ``objectid``, ``type``, ``offset`` (the key),
            ``block`` (logical address of the leaf), ``slot``, ``position`` (byte of the image at
            which the payload starts) and ``size`` (of the payload, bytes).
        """
        return self.root.scan(min_key, max_key)

    # ----------------------------------------------------------------------- blocks ---------

    def blocks(self, min_level: int = 0) -> list[Block]:
        """Walk the tree blocks in order, each node before its children.

        Parameters
        ----------
        min_level : int
            1 leaves the leaves out (and does not read them).
        """
        rows = self.root.blocks(min_level)
        first = rows["first"]
        keys = zip(*(first[name].tolist() for name in Key._fields), strict=True)
        fields = [rows[name].tolist() for name in Block._fields if name != "first"]
        fields.insert(Block._fields.index("first"), [Key(*key) for key in keys])
        return [Block(*row) for row in zip(*fields, strict=True)]

    def frame(self, min_key: RawKey = MIN_KEY, max_key: RawKey = MAX_KEY) -> pd.DataFrame:
        """Return :meth:`scan` as a DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.scan(min_key, max_key))
