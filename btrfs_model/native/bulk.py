# SPDX-License-Identifier: GPL-2.0-only
"""``native/bulk``: many changes of a tree, files and names in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from btrfs_model.native.door import ffi, lib, new_fault, raise_fault
from btrfs_model.native.items import raw_columns
from btrfs_model.native.stream import SPAN
from btrfs_model.native.tree import KEY
from btrfs_model.ondisk.structs import FILE_EXTENT_ITEM

if TYPE_CHECKING:
    from btrfs_model.native.items import Columns
    from btrfs_model.native.writer import Writer

Clones: TypeAlias = "tuple[npt.NDArray[Any], npt.NDArray[Any]]"

CHANGE: Final = np.dtype(
    {
        "names": ["objectid", "offset", "type", "size", "kind", "more"],
        "formats": ["<u8", "<u8", "u1", "<u4", "u1", "u1"],
        "offsets": [0, 8, 16, 24, 28, 29],
        "itemsize": 32,
    }
)
"""``struct bm_writer_change`` as a row of a numpy array; ``kind`` is a :class:`Kind`."""


class Kind(IntEnum):
    """``enum bm_writer_change_kind``."""

    INSERT = lib.BM_WRITER_INSERT
    INSERT_EXTENT = lib.BM_WRITER_INSERT_EXTENT
    INSERT_ENTRY = lib.BM_WRITER_INSERT_ENTRY
    DELETE = lib.BM_WRITER_DELETE
    DELETE_ENTRY = lib.BM_WRITER_DELETE_ENTRY
    UPDATE = lib.BM_WRITER_UPDATE


def apply(
    writer: Writer, tree_id: int, changes: npt.NDArray[Any], data: bytes | memoryview,
    calls: int = 1, sure: int = 1,
) -> int:  # fmt: skip
    """Carry out what calls change in a tree, of each as much; return how many calls were made.

    Parameters
    ----------
    writer : Writer
        Whose tree.
    tree_id : int
        Which tree.
    changes : numpy.ndarray
        Rows of :data:`CHANGE`.
    data : bytes
        Their payloads, one behind the other.
    calls, sure : int
        How many calls, and for how many of them there is room in any case: behind those it goes on
        only while no tree block is made or copied.

    Raises
    ------
    OSError
        EEXIST, ENOENT ... of the first change that cannot be done; those before it are.
    """
    rows = np.ascontiguousarray(changes)
    return writer.run(
        lib.bm_writer_apply_calls, tree_id % 2**64,
        ffi.from_buffer("struct bm_writer_change[]", rows), rows.size // calls, calls, sure,
        ffi.from_buffer("uint8_t[]", data), len(data),
    )  # fmt: skip


def insert_beside(
    writer: Writer,
    tree_id: int,
    keys: npt.NDArray[Any],
    sizes: npt.NDArray[np.uint32],
    payloads: bytes,
) -> None:
    """Insert items side by side, as :meth:`.Writer.insert_many`, given as arrays.

    Parameters
    ----------
    writer : Writer
        Whose tree.
    tree_id : int
        Which tree.
    keys : numpy.ndarray
        Rows of :data:`~btrfs_model.native.tree.KEY`, ascending.
    sizes, payloads : numpy.ndarray, bytes
        How large each payload is; all of them, one behind the other.

    Raises
    ------
    OSError
        EEXIST, EINVAL or EOVERFLOW.
    """
    _insert(lib.bm_writer_insert, writer, tree_id, keys, sizes, payloads)


def _insert(
    kernel: Callable[..., int],
    writer: Writer,
    tree_id: int,
    keys: npt.NDArray[Any],
    sizes: npt.NDArray[np.uint32],
    payloads: bytes,
) -> None:
    """Hand items to a kernel that inserts them."""
    if int(sizes.sum(dtype=np.uint64)) != len(payloads):
        raise ValueError("the sizes are not those of the payloads")
    writer.run(
        kernel, tree_id % 2**64, ffi.from_buffer("struct bm_key[]", keys),
        ffi.from_buffer("uint32_t[]", sizes), len(keys), payloads,
    )  # fmt: skip


def insert_batches(
    writer: Writer,
    tree_id: int,
    objectid: int,
    kind: int,
    offsets: npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.uint32],
    payloads: bytes,
) -> None:
    """Insert items of an objectid and type, as many at a time as fit an empty leaf.

    Without ``batch-delayed-items`` in the behaviour of the writer: one, and behind it those that
    follow at once and have room in its leaf.

    Parameters
    ----------
    writer : Writer
        Whose tree.
    tree_id, objectid, kind : int
        Which tree; what the keys have in common.
    offsets : numpy.ndarray
        The offsets of the keys, ascending.
    sizes, payloads : numpy.ndarray, bytes
        How large each payload is; all of them, one behind the other.

    Raises
    ------
    OSError
        EEXIST, EINVAL (an item lies between those of a batch) or EOVERFLOW.
    """
    keys = _keys(objectid, kind, offsets)
    _insert(lib.bm_writer_insert_batches, writer, tree_id, keys, sizes, payloads)


def delete_batches(
    writer: Writer,
    tree_id: int,
    objectid: int,
    kind: int,
    offsets: npt.NDArray[np.uint64],
    most: int,
) -> int:
    """Delete items of an objectid and type, at a time those that follow each other in a leaf.

    Returns how many of the `offsets`, which ascend, were gone through in `most` times.
    """
    keys = ffi.from_buffer("struct bm_key[]", _keys(objectid, kind, offsets))
    return writer.run(lib.bm_writer_delete_batches, tree_id % 2**64, keys, len(offsets), most)


def _keys(objectid: int, kind: int, offsets: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    keys = np.zeros(len(offsets), KEY)
    keys["objectid"], keys["type"], keys["offset"] = objectid, kind, offsets
    return keys


# ------------------------------------------------------------------------------ files and names --


CLONED_EXTENT: Final = np.dtype(
    {
        "names": ["start", "item"],
        "formats": ["<u8", FILE_EXTENT_ITEM.dtype],
        "itemsize": ffi.sizeof("struct bm_cloned_extent"),
    }
)
"""``struct bm_cloned_extent``."""


def new_files(
    writer: Writer,
    first: dict[str, int],
    times: npt.NDArray[np.uint64],
    item: bytes,
    names: bytes,
    sizes: npt.NDArray[np.uint32],
    entries: npt.NDArray[np.uint8],
    clones: Clones | None = None,
) -> int:
    """Insert inode item, name and entry of each of many new files; return how many were made.

    Parameters
    ----------
    writer : Writer
        Whose trees.
    first : dict of str to int
        ``tree``, ``directory``, ``ino`` and ``index`` of the first, and ``sure`` as for
        :func:`apply`.
    times : numpy.ndarray
        When each is made, nanoseconds.
    item : bytes
        Their inode item, but for the times.
    names, sizes : bytes, numpy.ndarray
        The names, one behind the other, and how long each is.
    entries : numpy.ndarray
        Takes what goes into the index of the directory.
    clones : tuple of numpy.ndarray, optional
        Rows of :data:`CLONED_EXTENT`, and of :data:`.SPAN`: which of them each file gets.

    Raises
    ------
    OSError
        EINVAL, EEXIST; some are made then.
    """
    members: dict[str, Any] = {
        **first, "count": len(sizes), "names_size": len(names),
        "item": ffi.from_buffer("uint8_t[]", item),
        "names": ffi.from_buffer("uint8_t[]", names),
        "name_sizes": ffi.from_buffer("uint32_t[]", sizes),
        "times": ffi.from_buffer("uint64_t[]", times),
    }  # fmt: skip
    if clones is not None:
        extents, spans = clones
        members["extents"] = ffi.from_buffer("struct bm_cloned_extent[]", extents)
        members["extents_count"] = len(extents)
        members["clones"] = ffi.from_buffer("struct bm_span[]", spans)
    files = ffi.new("struct bm_new_files *", members)
    return writer.run(lib.bm_writer_new_files, files, ffi.from_buffer("uint8_t[]", entries))


NEW_INODE: Final = np.dtype(
    [
        ("directory", "<u8"), ("index", "<u8"), ("to_directory", "<u8"), ("to_index", "<u8"),
        ("time", "<u8"), ("mode", "<u8"), ("there", "<u8"), ("made", SPAN), ("name", SPAN),
        ("target", SPAN),
    ]
)  # fmt: skip
"""``struct bm_new_inode``."""

MOST_TARGET: Final = lib.BM_NEW_INODE_TARGET
"""Bytes of the target of such a symbolic link."""


def new_inodes(
    writer: Writer, tree_id: int, ino: int, inodes: npt.NDArray[Any], item: bytes, data: memoryview
) -> int:
    """Create each inode under its temporary name, then rename it to its final one.

    Parameters
    ----------
    writer : Writer
        Whose tree.
    tree_id, ino : int
        Which tree; the number of the first, from which the others count on.
    inodes : numpy.ndarray
        Rows of :data:`NEW_INODE`.
    item : bytes
        Their inode item, but for mode, size and times.
    data : memoryview
        Where the names are.

    Returns
    -------
    int
        How many were made: those before the first that would share an item with another entry.
    """
    args = ffi.new(
        "struct bm_new_inodes *",
        {"tree": tree_id, "ino": ino, "count": len(inodes), "size": len(data),
         "inodes": ffi.from_buffer("struct bm_new_inode[]", inodes),
         "item": ffi.from_buffer("uint8_t[]", item), "data": ffi.from_buffer("uint8_t[]", data)},
    )  # fmt: skip
    return writer.run(lib.bm_writer_new_inodes, args)


class Pieces:
    """Data that lie in pieces in memory, and stay as they are.

    Parameters
    ----------
    rows : numpy.ndarray
        Rows of :data:`~btrfs_model.native.stream.SPAN`: address and size of each.
    memory : object
        What keeps them there.
    """

    __slots__ = ("_place", "memory", "rows")

    def __init__(self, rows: npt.NDArray[Any], memory: object) -> None:
        self.rows = np.ascontiguousarray(rows)
        self.memory = memory
        self._place = int(self.rows.ctypes.data)

    @classmethod
    def of(cls, data: memoryview, spans: Sequence[tuple[int, int]] | npt.NDArray[Any]) -> Pieces:
        """Return pieces of `data`; `spans`: from which byte on, and how many."""
        rows, memory = np.array(spans, SPAN), ffi.from_buffer(data)
        rows["at"] += int(ffi.cast("uintptr_t", memory))
        return cls(rows, memory)

    def place(self, first: int) -> int:
        """Return where the row of a piece is in memory."""
        return self._place + first * SPAN.itemsize

    def join(self, first: int, many: int) -> bytes:
        """Return copies of some pieces, side by side."""
        rows = self.rows[first : first + many].tolist()
        return b"".join(ffi.buffer(ffi.cast("uint8_t *", at), size) for at, size in rows)


WRITTEN_FILE: Final = np.dtype(
    [("ino", "<u8"), ("offset", "<u8"), ("size", "<u8"), ("pieces", "<u8"), ("count", "<u8"),
     ("in_item", "<u8"), ("bytenr", "<u8")]
)  # fmt: skip
"""``struct bm_written_file``; ``pieces`` is an address, see :meth:`Pieces.place`."""


def write_files(
    writer: Writer, tree_id: int, files: npt.NDArray[Any], *, in_class: bool, file: int
) -> int:
    """Write back files that have nothing on disk, an extent for each row.

    Parameters
    ----------
    writer : Writer
        Whose trees.
    tree_id : int
        The subvolume.
    files : numpy.ndarray
        Rows of :data:`WRITTEN_FILE`; the :class:`Pieces` that they point at have to live.
    in_class : bool
        Only where extents of the size class go.
    file : int
        What data are written to, see :class:`~btrfs_model.volume.device.memory.Memory`.

    Returns
    -------
    int
        How many rows were written: those before the first for which there is no room in one piece.
    """
    args = ffi.new(
        "struct bm_written_files *",
        {"tree": tree_id, "in_class": in_class, "file": file, "count": len(files),
         "files": ffi.from_buffer("struct bm_written_file[]", files)},
    )  # fmt: skip
    return writer.run(lib.bm_writer_write_files, args)


def unlink_files(
    writer: Writer,
    tree_id: int,
    directory: int,
    names: bytes,
    sizes: npt.NDArray[np.uint32],
    known: npt.NDArray[np.uint64],
) -> npt.NDArray[np.uint64]:
    """Unlink names of a directory up to one that is not plain; `known`: inodes that are not.

    Returns
    -------
    numpy.ndarray
        The indexes of those that are gone.
    """
    indexes = np.zeros(len(sizes), np.uint64)
    raw_names, raw_sizes = ffi.from_buffer("uint8_t[]", names), ffi.from_buffer("uint32_t[]", sizes)
    raw_known = ffi.from_buffer("uint64_t[]", known)
    unlinks = ffi.new(
        "struct bm_unlinks *",
        {"tree": tree_id, "directory": directory, "count": len(sizes), "names": raw_names,
         "names_size": len(names), "name_sizes": raw_sizes, "known": raw_known,
         "known_count": len(known)},
    )  # fmt: skip
    out = ffi.from_buffer("uint64_t[]", indexes)
    return indexes[: writer.run(lib.bm_writer_unlink_files, unlinks, out)]


def copy_each(writer: Writer, log: int, columns: Columns) -> None:
    """Insert items into a log, one by one."""
    fault, raw = new_fault(), raw_columns(columns)
    with writer.lease:
        if lib.bm_writer_copy_each(writer.handle, log, raw, len(columns["size"]), fault) < 0:
            raise_fault(writer.lease.path, fault)


def log_files(writer: Writer, log: int, columns: Columns, rows: npt.NDArray[np.uint64]) -> None:
    """Log that files exist; `rows`: where in the columns the inode item of each is."""
    fault, raw = new_fault(), raw_columns(columns)
    with writer.lease:
        done = lib.bm_writer_log_files(
            writer.handle, log, raw, len(columns["size"]),
            ffi.from_buffer("uint64_t[]", rows), len(rows), fault,
        )  # fmt: skip
    if done < 0:
        raise_fault(writer.lease.path, fault)


_ARRAYS: Final = {
    "inos": "uint64_t[]", "offsets": "uint64_t[]", "known_offsets": "uint64_t[]",
    "known_bytenr": "uint64_t[]", "order": "uint32_t[]", "sums": "uint8_t[]",
    "finish": "uint32_t[]", "levels": "struct bm_space_info[]",
}  # fmt: skip


def file_extents(writer: Writer, addresses: npt.NDArray[np.uint64], **members: Any) -> int:
    """Allocate, insert, reference and checksum extents of files.

    Parameters
    ----------
    writer : Writer
        Whose trees.
    addresses : numpy.ndarray
        Gets where each of them is.
    **members
        Of ``struct bm_file_extents``; arrays that are not there are left out. A row of `levels`
        has the fields of :class:`~btrfs_model.native.space.SpaceInfo`, uint64.

    Returns
    -------
    int
        How many were made; less than all where the room that there is comes in pieces.
    """
    for name, kind in _ARRAYS.items():
        if name in members:
            members[name] = ffi.from_buffer(kind, members[name])
    made = ffi.new("struct bm_file_extents *", members)
    places = ffi.from_buffer("uint64_t[]", addresses)
    return writer.run(lib.bm_writer_file_extents, made, places)
