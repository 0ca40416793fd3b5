# SPDX-License-Identifier: GPL-2.0-only
"""``native/fiemap``: the extents of a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.native.backref import Forest
from btrfs_model.native.door import dtype_of, ffi, lib
from btrfs_model.native.faults import new_fault, raise_fault

ROW: Final = dtype_of("struct bm_fiemap_extent")
"""An extent that is reported, and by which call."""


class Fiemap:
    """A file whose extents are asked for, as long as a program has it open.

    `forest`: the trees.
    `file`: ``subvolume``, ``last_snapshot``, ``ino``, ``isize``, ``behaviour`` (bits),
    ``entries`` and ``prev_extents`` (limits).
    `delalloc`: what waits to be written: ascending, none touches the next.
    """

    def __init__(
        self, forest: Forest, file: dict[str, int], delalloc: Sequence[tuple[int, int]]
    ) -> None:
        self._forest = forest
        fault = new_fault()
        maps = lib.bm_extent_maps_create(fault)
        if not maps:
            raise_fault(forest.lease.path, fault)
        self._maps = ffi.gc(maps, lib.bm_extent_maps_destroy)
        self._delalloc = ffi.new("struct bm_byte_range[]", list(delalloc))
        self._file = {**file, "forest": forest.raw, "maps": self._maps,
                      "delalloc": self._delalloc, "delalloc_count": len(delalloc)}  # fmt: skip

    def run(self, start: int, length: int, extents_per_call: int) -> npt.NDArray[Any]:
        """Return the extents of a range of bytes, rows of :data:`ROW`."""
        asked = {"start": start, "length": length, "extents_per_call": extents_per_call}
        args = ffi.new("struct bm_fiemap_args *", {**self._file, **asked})
        result = ffi.new("struct bm_fiemap_result *")
        with self._forest.lease:
            try:
                self._forest.lease.run(lib.bm_fiemap, args, result)
                if not result.count:
                    return np.zeros(0, ROW)
                rows = ffi.buffer(result.rows, result.count * ROW.itemsize)
                return np.frombuffer(bytes(rows), ROW)
            finally:
                lib.bm_fiemap_result_free(result)
