# SPDX-License-Identifier: GPL-2.0-only
"""FIEMAP: where the extents of a file lie, and whether they are shared.

The ioctl FS_IOC_FIEMAP as btrfs answers it on a filesystem at rest, in the behaviour of each kernel
since 5.10: by extent maps before 6.1, by file extent items since then; with the caches that make
the check for sharing cheap, each of them by itself. The work is done in C (``fiemap.c``,
``fiemap_maps.c`` and ``share.c``).
"""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from btrfs_model.backref.forest import Forest
from btrfs_model.counters import counting
from btrfs_model.errors import new_fault, raise_fault
from btrfs_model.kernels import ffi, lib
from btrfs_model.patches import Behaviour

if TYPE_CHECKING:
    from btrfs_model.filesystem import Filesystem, Subvolume

__all__ = ["FILEFRAG_EXTENTS", "FLAGS", "Fiemap", "fiemap"]

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
    SubvolumeNotFoundError
        When there is no such subvolume or file.
    OSError
        EOPNOTSUPP when it is not a regular file.
    """

    def __init__(
        self,
        fs: Filesystem,
        subvolume: str | int | Subvolume,
        path: str | bytes | int,
        *,
        behaviour: str | Behaviour = "v6.18",
    ) -> None:
        self._behaviour = Behaviour.parse(behaviour)
        self._image = fs.image
        with counting():  # what it takes to find the file is no work of FIEMAP
            sub = fs.subvolume(subvolume)
            inode = sub.inode(path)
            if not stat.S_ISREG(inode.mode):
                raise OSError(errno.EOPNOTSUPP, f"{path!r} is not a file", fs.path)
            self._forest = Forest.of(fs, [sub.id])
            self._last_snapshot = sub.item.last_snapshot
        self._subvolume, self._ino, self._size = sub.id, inode.ino, inode.size
        fault = new_fault()
        maps = lib.bm_extent_maps_create(fault)
        if not maps:
            raise_fault(self._image.path, fault)
        self._maps = ffi.gc(maps, lib.bm_extent_maps_destroy)

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
        rows = self._run_c(start, length, extents_per_call)
        return pd.DataFrame(
            {name: rows[name] for name in ("logical", "physical", "length", "flags")}
        )

    def _run_c(self, start: int, length: int, extents_per_call: int) -> np.ndarray:
        self._image.count_here()
        args = ffi.new(
            "struct bm_fiemap_args *",
            {
                "forest": self._forest.handle,
                "maps": self._maps,
                "subvolume": self._subvolume,
                "last_snapshot": self._last_snapshot,
                "ino": self._ino,
                "isize": self._size,
                "start": start,
                "length": length,
                "behaviour": self._behaviour.bits,
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


def fiemap(
    fs: Filesystem,
    subvolume: str | int | Subvolume,
    path: str | bytes | int,
    *,
    behaviour: str | Behaviour = "v6.18",
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
    SubvolumeNotFoundError
        When there is no such subvolume or file.
    OSError
        EOPNOTSUPP when it is not a regular file.
    CorruptImageError
        When the trees contradict each other or a block cannot be read.
    ValueError
        When no extents are asked for, or the range is none.
    """
    file = Fiemap(fs, subvolume, path, behaviour=behaviour)
    return file.run(start, length, extents_per_call=extents_per_call)
