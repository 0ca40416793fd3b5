# SPDX-License-Identifier: GPL-2.0-only
"""Many changes of a tree as one array."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.native.door import ffi, lib
from btrfs_model.native.faults import new_fault
from btrfs_model.native.tree import KEY

if TYPE_CHECKING:
    from btrfs_model.mount.trees.writer import TreeWriter

CHANGE: Final = np.dtype(
    {
        "names": ["objectid", "offset", "type", "size", "kind", "more"],
        "formats": ["<u8", "<u8", "u1", "<u4", "u1", "u1"],
        "offsets": [0, 8, 16, 24, 28, 29],
        "itemsize": 32,
    }
)
"""``struct bm_writer_change`` as a row of a numpy array."""


def apply(writer: TreeWriter, tree_id: int, changes: npt.NDArray[Any], data: bytes) -> None:
    """Carry out changes of a tree, one after the other.

    Parameters
    ----------
    writer : TreeWriter
        Whose tree.
    tree_id : int
        Which tree.
    changes : numpy.ndarray
        Rows of :data:`CHANGE`; ``kind`` is of ``enum bm_writer_change_kind``.
    data : bytes
        Their payloads, one behind the other.

    Raises
    ------
    OSError
        EEXIST, ENOENT ... of the first that cannot be done; those before it are.
    """
    fault = new_fault()
    rows = np.ascontiguousarray(changes)
    with writer.image.lease:
        done = lib.bm_writer_apply(
            writer.handle, tree_id % 2**64, ffi.from_buffer("struct bm_writer_change[]", rows),
            len(rows), ffi.from_buffer("uint8_t[]", data), len(data), fault,
        )  # fmt: skip
    if done < len(rows):
        writer.fail(fault)


def insert_beside(
    writer: TreeWriter,
    tree_id: int,
    keys: npt.NDArray[Any],
    sizes: npt.NDArray[np.uint32],
    payloads: bytes,
) -> None:
    """Insert items side by side, as :meth:`.TreeWriter.insert_many`, given as arrays.

    Parameters
    ----------
    writer : TreeWriter
        Whose tree.
    tree_id : int
        Which tree.
    keys : numpy.ndarray
        Rows of :data:`~btrfs_model.volume.tree.KEY`, ascending.
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
    writer: TreeWriter,
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
    writer: TreeWriter,
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
    writer : TreeWriter
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
    keys = np.zeros(len(offsets), KEY)
    keys["objectid"], keys["type"], keys["offset"] = objectid, kind, offsets
    _insert(lib.bm_writer_insert_batches, writer, tree_id, keys, sizes, payloads)
