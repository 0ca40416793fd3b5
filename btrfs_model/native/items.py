# SPDX-License-Identifier: GPL-2.0-only
"""Items in bulk: what :meth:`.Tree.scan` found, gathered and unpacked into numpy arrays.

*Columns* are as :meth:`.Tree.scan` gives them. Each function calls a kernel of
``native/tree/items.c`` once for a whole run of items.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.base.errors import Fault
from btrfs_model.native.door import dtype_of, fault_of, ffi, lib, new_fault, raise_fault, raw
from btrfs_model.native.lease import Leased
from btrfs_model.ondisk.layout import Layout

Columns = dict[str, npt.NDArray[Any]]

COLUMNS: Final = {
    name: dtype_of(field.type.item) for name, field in ffi.typeof("struct bm_columns").fields
}
"""The columns of a scan and their types."""

ENTRY: Final = dtype_of("struct bm_entry")
"""A name, as ``native/tree/api.h`` has it."""

BLOCK: Final = dtype_of("struct bm_block")
"""A tree block, as ``native/tree/api.h`` has it."""

WANTED: Final = dtype_of("struct bm_wanted_block")
"""A tree block and what its parent says of it."""

INODE_SUM: Final = dtype_of("struct bm_inode_sum")
"""What the items of an inode say together, as ``native/tree/api.h`` has it."""

KNOWN_LEAF: Final = dtype_of("struct bm_known_leaf")
"""What is known of a leaf of several trees, as ``native/tree/api.h`` has it."""

FILE_EXTENT: Final = dtype_of("struct bm_file_extent")
"""A file extent, as ``native/tree/api.h`` has it."""

DATA_EXTENT: Final = dtype_of("struct bm_data_extent")
"""A file extent on disk and where its extent began in the file, as ``native/tree/api.h`` has it."""

REF: Final = dtype_of("struct bm_ref")
"""A reference to an extent, as ``native/tree/api.h`` has it."""


def raw_columns(columns: Columns) -> ffi.CData:
    """Hand columns, all of them contiguous, to a C kernel as ``struct bm_columns *``."""
    return ffi.new("struct bm_columns *", {name: raw(array) for name, array in columns.items()})


def select(columns: Columns, rows: npt.NDArray[Any] | slice) -> Columns:
    """Take some rows (a mask, indexes or a slice) of all columns."""
    if isinstance(rows, np.ndarray) and rows.dtype == np.bool_:
        # counted once, not for each column
        rows = np.flatnonzero(rows)
    return {name: array[rows] for name, array in columns.items()}


def is_one_of(kinds: npt.NDArray[np.uint8], types: Collection[int]) -> npt.NDArray[np.bool_]:
    """Tell which types of items are among some; by a table, as there are no more than 256."""
    table = np.zeros(256, np.bool_)
    table[list(types)] = True
    among: npt.NDArray[np.bool_] = table[kinds]
    return among


def find_rows(known: npt.NDArray[np.uint64], wanted: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Return the row of each wanted number in `known`, which ascends; -1 for none."""
    if not len(known):
        return np.full(len(wanted), -1)
    row = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[row] == wanted, row, -1)


def is_among(numbers: npt.NDArray[Any], some: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Tell which numbers are among some; np.isin() takes long to start."""
    among: npt.NDArray[np.bool_] = find_rows(np.sort(np.asarray(some, np.uint64)), numbers) >= 0
    return among


def gather(image: Leased, columns: Columns, width: int) -> npt.NDArray[np.uint8]:
    """Copy the first bytes of each payload into one array.

    `image`: where the items are.
    `columns`: the items.
    `width`: bytes taken of each payload; shorter ones are filled up with zeros.
    Returns uint8, shape (items, width).
    """
    count = len(columns["position"])
    rows = np.zeros((count, width), np.uint8)
    position = np.ascontiguousarray(columns["position"])
    size = np.ascontiguousarray(columns["size"])
    with image.lease as handle:
        ret = lib.bm_gather(handle, raw(position), raw(size), count, width, raw(rows))
    if ret < 0:
        raise IndexError("items that are not of this image")
    return rows


def records(image: Leased, columns: Columns, layout: Layout[Any]) -> npt.NDArray[np.void]:
    """Gather payloads as a structured array of the layout's dtype, shape (items,)."""
    return gather(image, columns, layout.size).view(layout.dtype).reshape(-1)


def scan_leaves(image: Leased, leaves: npt.NDArray[np.uint64] | Sequence[int]) -> Columns:
    """Gather all items of some leaves into columns, leaf after leaf.

    Raises CorruptImageError: when a leaf cannot be read.
    """
    addresses = np.ascontiguousarray(leaves, np.uint64)
    fault = new_fault()
    # leaves rarely hold more items than this; where they do, the kernel says how many
    capacity = len(addresses) * (image.nodesize // 64)
    while True:
        columns = {name: np.empty(capacity, dtype) for name, dtype in COLUMNS.items()}
        with image.lease as handle:
            count = lib.bm_scan_leaves(
                handle, raw(addresses), len(addresses), raw_columns(columns), capacity, fault
            )
        if count < 0:
            raise_fault(image.path, fault)
        if count <= capacity:
            return {name: array[:count] for name, array in columns.items()}
        capacity = count


def screen_leaves(
    image: Leased,
    blocks: npt.NDArray[np.void],
    tables: npt.NDArray[np.uint16],
    passes: npt.NDArray[np.uint8],
    **limits: Any,
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.void]]:
    """Tell which leaves need no look at single items, and gather the file extents of all.

    `image`: where the items are.
    `blocks`: the leaves, rows of :data:`BLOCK`.
    `tables`: which row of `passes` is for each.
    `passes`: shape (tables, 256): whether items of a type may be passed over.
    `**limits`: ``newest``, ``least`` and ``most``, as ``native/tree/api.h`` has them.
    Returns `passed`: bool, for each leaf.
    Returns `extents`: rows of :data:`DATA_EXTENT`.
    Raises CorruptImageError: when a leaf cannot be read.
    """
    leaves = np.ascontiguousarray(blocks["logical"])
    passed = np.zeros(len(leaves), np.uint8)
    extents = np.empty(int(blocks["nritems"].sum()), DATA_EXTENT)
    screen = ffi.new("struct bm_screen *", {"passes": raw(passes), **limits})
    rows = ffi.cast("struct bm_data_extent *", extents.ctypes.data)
    with image.lease as handle:
        count = image.lease.run(
            lib.bm_screen_leaves, handle, screen, raw(leaves), raw(tables), len(leaves),
            raw(passed), rows, len(extents),
        )  # fmt: skip
    return passed.view(np.bool_), extents[:count]


class KnownLeaves:
    """What is known of leaves that several subvolumes have, for :class:`InodeReducer`.

    `logical`: uint64, addresses of the leaves, ascending.
    """

    def __init__(self, logical: npt.NDArray[np.uint64]) -> None:
        self.logical = logical
        self.rows = np.zeros(len(logical), KNOWN_LEAF)

    def find(self, leaves: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return the row of each leaf.

        Raises IndexError: when one is not there.
        """
        rows = find_rows(self.logical, leaves)
        if (rows < 0).any():
            raise IndexError("leaves of no tree that is known")
        return rows.astype(np.uint64)

    def judge(self, *, good: bool) -> None:
        """Remember whether all was right in what was reduced since the last time."""
        state = self.rows["state"]
        state[state == lib.BM_LEAF_REDUCED] = lib.BM_LEAF_GOOD if good else lib.BM_LEAF_UNKNOWN


class InodeReducer:
    """Reduces what the items of each inode of a subvolume say together.

    `image`: where the items are.
    `root_dir`: number of its top directory.
    """

    def __init__(self, image: Leased, root_dir: int) -> None:
        self.image = image
        self.root_dir = root_dir
        self._totals = ffi.new("struct bm_inode_totals *")

    def reduce(
        self,
        leaves: npt.NDArray[np.uint64],
        items: int,
        low: int,
        high: int,
        known: KnownLeaves | None = None,
    ) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void], npt.NDArray[np.void]]:
        """Reduce the items of the inodes from `low` to `high`.

        `leaves`: those that have them, in the order of the tree.
        `items`: how many items there are in these leaves.
        `known`: of all leaves, those of other trees with the same top directory too. Of one in
        which all is right there are only directories, and inodes that other leaves have as well.
        Returns rows of :data:`INODE_SUM`, of :data:`FILE_EXTENT`, and of :data:`ENTRY` the entries
        of DIR_INDEX that are subvolumes.
        Raises CorruptImageError: when a leaf cannot be read.
        """
        kinds = {"inodes": INODE_SUM, "extents": FILE_EXTENT, "roots": ENTRY}
        parts = {name: np.empty(items, dtype) for name, dtype in kinds.items()}
        rows = ffi.new("struct bm_inode_rows *", {"capacity": items})
        for name, array in parts.items():
            setattr(rows, name, ffi.cast(ffi.typeof(getattr(rows, name)), array.ctypes.data))
        ask = ffi.new("struct bm_reduce *", {
            "leaves": raw(leaves), "count": len(leaves), "low": low, "high": high,
            "root_dir": self.root_dir,
        })  # fmt: skip
        if known is not None:
            numbers = known.find(leaves)
            ask.known = ffi.from_buffer("struct bm_known_leaf[]", known.rows)
            ask.numbers = raw(numbers)
        with self.image.lease as handle:
            self.image.lease.run(lib.bm_reduce_inodes, handle, ask, rows, self._totals)
        inodes, extents, roots = (
            array[: getattr(self._totals, name)] for name, array in parts.items()
        )
        return inodes, extents, roots

    @property
    def names_agree(self) -> bool:
        """Whether DIR_ITEM, DIR_INDEX and INODE_REF have the same names, in what was reduced."""
        totals = self._totals
        same = totals.items == totals.indexes and totals.entries == totals.refs
        return bool(same and not totals.odd)


def verify_blocks(
    image: Leased, wanted: npt.NDArray[np.void], copy: int
) -> Iterator[tuple[int, Fault]]:
    """Verify one copy of each of many tree blocks.

    `image`: where they are.
    `wanted`: rows of :data:`WANTED`.
    `copy`: which copy.
    Yields `row`: index of a bad one.
    Yields `fault`: what is wrong with it.
    """
    faults = ffi.new("struct bm_fault[]", len(wanted))
    blocks = ffi.from_buffer("struct bm_wanted_block[]", wanted)
    with image.lease as handle:
        bad = lib.bm_verify_blocks(handle, blocks, len(wanted), copy, faults)
    if not bad:
        return
    for row, fault in enumerate(faults):
        if fault.code:
            yield row, fault_of(fault)


def good_copies(
    image: Leased, wanted: npt.NDArray[np.void], copy: int, good: npt.NDArray[np.uint8]
) -> None:
    """Tell which tree blocks have a good copy; the others may not have been looked at.

    It is for a thread beside the one that holds the lease, and waits for this one.

    `wanted`: rows of :data:`WANTED`.
    `copy`: which copy.
    `good`: 1 or 0 for each.
    """
    blocks = ffi.from_buffer("struct bm_wanted_block[]", wanted)
    lib.bm_good_copies(image.lease.handle, blocks, len(wanted), copy, raw(good))


def describe_blocks(image: Leased, logical: npt.NDArray[np.uint64]) -> npt.NDArray[np.void]:
    """Return the headers of tree blocks and their first and last keys, rows of :data:`BLOCK`.

    Raises CorruptImageError: when one cannot be read.
    """
    blocks = np.empty(len(logical), BLOCK)
    out = ffi.from_buffer("struct bm_block[]", blocks)
    with image.lease as handle:
        image.lease.run(lib.bm_describe_blocks, handle, raw(logical), len(logical), out)
    return blocks


# ------------------------------------------------------------------------------ names, references


def entries(image: Leased, columns: Columns) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int8]]:
    """Unpack the names in INODE_REF, INODE_EXTREF, DIR_ITEM, DIR_INDEX and XATTR_ITEM items.

    Returns `rows`: of :data:`ENTRY`, in order; ``item`` is the row of the columns.
    Returns `bad`: int8, shape (items,): 0, or the code of an item that cannot be unpacked and has
    no rows.
    """
    return _unpack(image, columns, ENTRY, lib.bm_entries, "struct bm_entry *")


def extent_refs(
    image: Leased, columns: Columns
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int8]]:
    """Unpack the references in EXTENT_ITEM, METADATA_ITEM and the five kinds of reference items.

    Returns `rows`: of :data:`REF`, in order; ``root`` of the shared kinds is the parent block.
    Returns `bad`: as of :func:`entries`.
    """
    return _unpack(image, columns, REF, lib.bm_extent_refs, "struct bm_ref *")


def _unpack(
    image: Leased,
    columns: Columns,
    dtype: np.dtype[Any],
    kernel: Callable[..., int],
    c_type: str,
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int8]]:
    count = len(columns["position"])
    bad = np.zeros(count, np.int8)
    columns = {name: np.ascontiguousarray(columns[name]) for name in COLUMNS}
    capacity = count + count // 8 + 16
    while True:
        rows = np.empty(capacity, dtype)
        with image.lease as handle:
            out = ffi.cast(c_type, rows.ctypes.data)
            total = kernel(handle, raw_columns(columns), count, out, capacity, raw(bad))
        if total < 0:
            raise IndexError("items that are not of this image")
        if total <= capacity:
            return rows[:total], bad
        capacity = total
