# SPDX-License-Identifier: GPL-2.0-only
"""What is asked of FIEMAP, answered by the C kernel or its Python twin."""

from __future__ import annotations

import errno
import stat
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from btrfs_model.base.arguments import checked
from btrfs_model.base.counters import current, uncounted
from btrfs_model.behaviour import Behaviour
from btrfs_model.native.choice import use_python
from btrfs_model.native.door import ffi, lib
from btrfs_model.native.faults import new_fault, raise_fault
from btrfs_model.patches import KERNEL, Patch
from btrfs_model.reference.fiemap.call import LAST, Call, File
from btrfs_model.reference.fiemap.items import fiemap_by_items
from btrfs_model.reference.fiemap.maps import ExtentMaps, fiemap_by_maps
from btrfs_model.volume.forest import Forest

if TYPE_CHECKING:
    from btrfs_model.volume.filesystem import Filesystem
    from btrfs_model.volume.subvolume import Subvolume

FILEFRAG_EXTENTS = 292
"""As many extents as ``filefrag`` asks for with one ioctl: those that fit into 16 KiB."""

FLAGS = {
    0x1: "last",
    0x2: "unknown",
    0x4: "delalloc",
    0x8: "encoded",
    0x100: "not_aligned",
    0x200: "inline",
    0x800: "unwritten",
    0x2000: "shared",
}
"""Names of the flags of an extent (``FIEMAP_EXTENT_*``), as ``filefrag -v`` prints them."""

_ALL = 2**64 - 1
_FILE_SIZE_MAX = 2**63 - 1
_ROW = np.dtype(
    [
        ("logical", "u8"),
        ("physical", "u8"),
        ("length", "u8"),
        ("flags", "u4"),
        ("call", "u4"),
    ]
)


class Fiemap:
    """A file whose extents are asked for, as long as a program has it open.

    Kernels before 6.1 remember what they have found: a second :meth:`run` does fewer searches.

    Parameters
    ----------
    fs : Filesystem
        Where the file is.
    subvolume : str, int or Subvolume
        Path or id of the subvolume.
    path : str, bytes or int
        Path of the file in the subvolume, or its inode number.
    behaviour : str or Behaviour
        The kernel.

    Raises
    ------
    SubvolumeNotFoundError, NoSuchFileError
        When there is no such subvolume or file.
    NotCommittedError
        When there is one, but not in the last commit.
    OSError
        EOPNOTSUPP when it is not a regular file.
    """

    def __init__(
        self,
        fs: Filesystem,
        subvolume: str | int | Subvolume,
        path: str | bytes | int,
        *,
        behaviour: str | Behaviour = KERNEL,
    ) -> None:
        self._image = fs.image
        # what it takes to find the file is no work of FIEMAP
        with uncounted():
            sub = fs.subvolume(subvolume)
            inode = sub.inode(path)
            if not stat.S_ISREG(inode.mode):
                raise OSError(errno.EOPNOTSUPP, f"{path!r} is not a file", fs.path)
            forest = Forest.of(fs, [sub.id])
            self._file = File(
                forest,
                forest.trees[sub.id],
                sub.item.last_snapshot,
                inode.ino,
                inode.size,
                Behaviour.parse(behaviour),
            )
        fault = new_fault()
        maps = lib.bm_extent_maps_create(fault)
        if not maps:
            raise_fault(self._image.path, fault)
        self._raw_maps = ffi.gc(maps, lib.bm_extent_maps_destroy)
        self._maps = ExtentMaps()

    def run(
        self, start: int = 0, length: int = _ALL, *, extents_per_call: int = FILEFRAG_EXTENTS
    ) -> pd.DataFrame:
        """Ask for the extents of a range, call after call, until the last one is there.

        Parameters
        ----------
        start, length : int
            The range in bytes. Extents are reported whole.
        extents_per_call : int
            As many as one call of the ioctl may give (``fm_extent_count``). The caches live for one
            call, so it decides how much work is done.

        Returns
        -------
        pandas.DataFrame
            ``logical``, ``physical``, ``length`` in bytes (uint64) and ``flags`` (uint32), in the
            order of the file.

        Raises
        ------
        CorruptImageError
            When the trees contradict each other or a block cannot be read.
        ValueError
            When no extents are asked for, or the range is none.
        """
        if not 0 < extents_per_call < 2**32:
            raise ValueError(f"extents_per_call={extents_per_call}: not between 1 and 2**32 - 1")
        if not (0 <= start <= _ALL and 0 <= length <= _ALL):
            raise ValueError(f"start={start}, length={length}: not between 0 and 2**64 - 1")
        answer = self._run_python if use_python() else self._run_c
        rows = answer(start, length, extents_per_call)
        return pd.DataFrame(
            {name: rows[name] for name in ("logical", "physical", "length", "flags")}
        )

    def _run_python(self, start: int, length: int, extents_per_call: int) -> np.ndarray:
        by_items = Patch.FIEMAP_FILE_EXTENTS in self._file.behaviour
        end = min(start + length, _FILE_SIZE_MAX)
        rows = []
        for number in count():
            if start >= end:
                break
            call = Call(self._file, start, end, extents_per_call)
            current().count("btrfs_fiemap")
            if by_items:
                fiemap_by_items(call)
            else:
                fiemap_by_maps(call, self._maps)
            rows += [
                (one.logical, one.physical, one.length, one.flags, number) for one in call.found
            ]
            if not call.found or call.found[-1].flags & LAST or call.found[-1].end <= start:
                break
            start = call.found[-1].end
        return np.array(rows, _ROW)

    def _run_c(self, start: int, length: int, extents_per_call: int) -> np.ndarray:
        with self._image.lease:
            return self._call(start, length, extents_per_call)

    def _call(self, start: int, length: int, extents_per_call: int) -> np.ndarray:
        file = self._file
        args = ffi.new(
            "struct bm_fiemap_args *",
            {
                "forest": file.forest.handle,
                "maps": self._raw_maps,
                "subvolume": file.tree.objectid,
                "last_snapshot": file.last_snapshot,
                "ino": file.ino,
                "isize": file.isize,
                "start": start,
                "length": length,
                "behaviour": file.behaviour.bits,
                "extents_per_call": extents_per_call,
            },
        )
        result, fault = ffi.new("struct bm_fiemap_result *"), new_fault()
        try:
            if lib.bm_fiemap(args, result, fault) < 0:
                raise_fault(self._image.path, fault)
            if not result.count:
                return np.zeros(0, _ROW)
            return np.frombuffer(ffi.buffer(result.rows, result.count * _ROW.itemsize), _ROW).copy()
        finally:
            lib.bm_fiemap_result_free(result)


@checked
def fiemap(
    fs: Filesystem,
    subvolume: str | int | Subvolume,
    path: str | bytes | int,
    *,
    behaviour: str | Behaviour = KERNEL,
    start: int = 0,
    length: int = _ALL,
    extents_per_call: int = FILEFRAG_EXTENTS,
) -> pd.DataFrame:
    """List the extents of a file as the ioctl FS_IOC_FIEMAP reports them.

    ``extent_fiemap()`` of Linux 5.10, 6.1 and 6.12, on a filesystem where nothing waits to be
    written.

    Parameters
    ----------
    fs : Filesystem
        Where the file is.
    subvolume : str, int or Subvolume
        Path or id of the subvolume.
    path : str, bytes or int
        Path of the file in the subvolume, or its inode number.
    behaviour : str or Behaviour
        The kernel, e.g. ``"v6.12 - fiemap-shared-leaf"``.
    start, length : int
        The range in bytes. Extents are reported whole.
    extents_per_call : int
        As many as one call of the ioctl may give; it decides how much work is done.

    Returns
    -------
    pandas.DataFrame
        ``logical``, ``physical``, ``length`` in bytes (uint64) and ``flags`` (uint32, see
        :data:`FLAGS`), a row for each extent, in the order of the file.

    Raises
    ------
    SubvolumeNotFoundError, NoSuchFileError
        When there is no such subvolume or file.
    NotCommittedError
        When there is one, but not in the last commit.
    OSError
        EOPNOTSUPP when it is not a regular file.
    CorruptImageError
        When the trees contradict each other or a block cannot be read.
    ValueError
        When no extents are asked for, or the range is none.
    """
    file = Fiemap(fs, subvolume, path, behaviour=behaviour)
    return file.run(start, length, extents_per_call=extents_per_call)
