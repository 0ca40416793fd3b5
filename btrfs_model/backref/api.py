# SPDX-License-Identifier: GPL-2.0-only
"""The questions that a backref walk answers, each answered by the C kernel or its Python twin."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from btrfs_model.base.arguments import checked
from btrfs_model.base.codes import Code
from btrfs_model.base.counters import current
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.native.choice import use_python
from btrfs_model.native.door import ffi, lib
from btrfs_model.native.faults import new_fault, raise_fault
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.constants import ExtentFlag
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.structs import EXTENT_ITEM
from btrfs_model.reference import backref
from btrfs_model.reference.backref import BackrefWalk
from btrfs_model.reference.ctree import Path, block_key, item_data, prev_leaf, search_slot
from btrfs_model.volume.forest import Forest

if TYPE_CHECKING:
    from collections.abc import Callable

    from btrfs_model.volume.filesystem import Filesystem

_MAX = 2**64 - 1
_NO_RESTART = 1 << lib.BM_TOGGLE_SEARCH_NO_RESTART


class ExtentRef(NamedTuple):
    """A file extent item that refers to a data extent, as it is seen in one of its trees.

    Attributes
    ----------
    inum, offset : int
        Inode number; byte of the file at which the byte asked for is shown.
    num_bytes : int
        Of the file extent item.
    root : int
        Id of the subvolume.
    """

    inum: int
    offset: int
    num_bytes: int
    root: int


class Extent(NamedTuple):
    """The extent that holds an address.

    Attributes
    ----------
    key : Key
        Of its item: (address, EXTENT_ITEM, length) or (address, METADATA_ITEM, level).
    flags : int
        ``BTRFS_EXTENT_FLAG_DATA`` or ``BTRFS_EXTENT_FLAG_TREE_BLOCK``.
    refs : int
        Its reference count.
    """

    key: Key
    flags: int
    refs: int


def _forest(trees: Filesystem | Forest) -> Forest:
    return trees if isinstance(trees, Forest) else Forest.of(trees)


def iterate_extent_inodes(
    trees: Filesystem | Forest,
    bytenr: int,
    *,
    extent_item_pos: int = 0,
    ignore_extent_item_pos: bool = False,
    restart: bool = False,
) -> list[ExtentRef]:
    """List who refers to a data extent (``iterate_extent_inodes()``, Linux 5.10 to 6.18).

    Parameters
    ----------
    trees : Filesystem or Forest
        Where to look; a :class:`Forest` can say which subvolumes are open.
    bytenr : int
        Logical address at which the extent starts.
    extent_item_pos : int
        Only file extents that show this byte of the extent; compressed ones always.
    ignore_extent_item_pos : bool
        All file extents, wherever they begin.
    restart : bool
        Whether a search starts again after it had to read a block, as before 5.19; it shows in the
        counts when a cold cache is modelled.

    Returns
    -------
    list of ExtentRef
        In the kernel's order; empty when nothing refers to it or there is no such extent.

    Raises
    ------
    CorruptImageError
        When the trees contradict each other or a block cannot be read.
    """
    ask = BackrefWalk(
        forest=_forest(trees),
        bytenr=bytenr,
        extent_item_pos=extent_item_pos,
        ignore_extent_item_pos=ignore_extent_item_pos,
        restart=restart,
    )
    if not use_python():
        return _collect(ask)
    found: list[ExtentRef] = []

    def iterate(inum: int, offset: int, num_bytes: int, root: int) -> int:
        found.append(ExtentRef(inum, offset, num_bytes, root))
        return 0

    ask.iterate = iterate
    backref.iterate_extent_inodes(ask)
    return found


def find_all_leafs(trees: Filesystem | Forest, bytenr: int) -> list[int]:
    """Return the leaves with file extent items of a data extent (``btrfs_find_all_leafs()``).

    Returns
    -------
    list of int
        Logical addresses, in the kernel's order.
    """
    ask = BackrefWalk(forest=_forest(trees), bytenr=bytenr)
    if use_python():
        return backref.find_all_leafs(backref.Walk(ask=ask, bytenr=bytenr))
    return _values(ask, lib.bm_find_all_leafs)


def find_all_roots(trees: Filesystem | Forest, bytenr: int) -> list[int]:
    """Return the trees that reach an extent or tree block (``btrfs_find_all_roots_safe()``).

    Returns
    -------
    list of int
        Ids, in the kernel's order.
    """
    ask = BackrefWalk(forest=_forest(trees), bytenr=bytenr)
    if use_python():
        return backref.find_all_roots(ask, bytenr)
    return _values(ask, lib.bm_find_all_roots)


def extent_from_logical(
    trees: Filesystem | Forest, logical: int, *, restart: bool = False
) -> Extent | None:
    """Return the extent that holds an address, or None (``extent_from_logical()``, 6.12).

    Raises
    ------
    CorruptImageError
        When its item is broken.
    """
    forest = _forest(trees)
    if use_python():
        return _extent_from_logical(forest, logical, restart)
    key, fault = ffi.new("struct bm_key *"), new_fault()
    flags, refs = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    behaviour = 0 if restart else _NO_RESTART
    with forest.image.lease:
        found = lib.bm_extent_from_logical(
            forest.handle, logical, behaviour, key, flags, refs, fault
        )
    if found == 0:
        return Extent(Key(key.objectid, key.type, key.offset), flags[0], refs[0])
    if fault.code == Code.ERRNO and fault.found == errno.ENOENT:
        return None
    raise_fault(forest.image.path, fault)
    return None


@checked
@exclusive
def logical_ino(
    fs: Filesystem | Forest, logical: int, *, ignore_offset: bool = False
) -> pd.DataFrame:
    """List the files that show a byte of the filesystem (ioctl LOGICAL_INO_V2, Linux 6.12).

    Parameters
    ----------
    fs : Filesystem or Forest
        Where to look.
    logical : int
        Logical address of the byte.
    ignore_offset : bool
        All files that refer to the extent that holds it, whichever part of it they show
        (``BTRFS_LOGICAL_INO_ARGS_IGNORE_OFFSET``).

    Returns
    -------
    pandas.DataFrame
        Columns ``inum``, ``offset`` (byte of the file) and ``root`` (id of the subvolume), uint64;
        a row for each reference, in the kernel's order.

    Raises
    ------
    FileNotFoundError
        When the address lies in no data extent (the ioctl fails with ENOENT).
    CorruptImageError
        When the trees contradict each other or a block cannot be read.
    """
    forest = _forest(fs)
    extent = extent_from_logical(forest, logical)
    if extent is None or extent.flags != ExtentFlag.DATA:
        raise FileNotFoundError(
            errno.ENOENT, f"no data extent holds logical address {logical}", forest.image.path
        )
    refs = iterate_extent_inodes(
        forest,
        extent.key.objectid,
        extent_item_pos=logical - extent.key.objectid,
        ignore_extent_item_pos=ignore_offset,
    )
    rows = [(ref.inum, ref.offset, ref.root) for ref in refs]
    return pd.DataFrame(rows, columns=["inum", "offset", "root"], dtype="uint64")


# --------------------------------------------------------------------------------- through C ---


def _raw_walk(ask: BackrefWalk) -> ffi.CData:
    return ffi.new(
        "struct bm_backref_walk *",
        {
            "forest": ask.forest.handle,
            "bytenr": ask.bytenr,
            "extent_item_pos": ask.extent_item_pos,
            "ignore_extent_item_pos": ask.ignore_extent_item_pos,
            "behaviour": 0 if ask.restart else _NO_RESTART,
        },
    )


def _collect(ask: BackrefWalk) -> list[ExtentRef]:
    refs, fault = ffi.new("struct bm_inode_refs *"), new_fault()
    try:
        with ask.forest.image.lease:
            if lib.bm_collect_inode_refs(_raw_walk(ask), refs, fault) < 0:
                raise_fault(ask.forest.image.path, fault)
        rows = (refs.rows[i] for i in range(refs.count))
        return [ExtentRef(row.ino, row.offset, row.num_bytes, row.root) for row in rows]
    finally:
        lib.bm_inode_refs_free(refs)


def _values(ask: BackrefWalk, find: Callable[..., int]) -> list[int]:
    with ask.forest.image.lease:
        return _values_held(ask, find)


def _values_held(ask: BackrefWalk, find: Callable[..., int]) -> list[int]:
    walk, fault, capacity = _raw_walk(ask), new_fault(), len(ask.forest.trees) + 1024
    while True:
        values = ffi.new("uint64_t[]", capacity)
        count = find(walk, values, capacity, fault)
        if count < 0:
            raise_fault(ask.forest.image.path, fault)
        if count <= capacity:
            return list(ffi.unpack(values, count))
        capacity = count


# -------------------------------------------------------------------------------- in Python ----


def _extent_from_logical(forest: Forest, logical: int, restart: bool) -> Extent | None:
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
