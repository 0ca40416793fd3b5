# SPDX-License-Identifier: GPL-2.0-only
"""What is asked of FIEMAP, answered by the C kernel."""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import numpy as np
import pandas as pd

from btrfs_model.base.arguments import checked
from btrfs_model.base.counters import counting, uncounted
from btrfs_model.base.tables import frame
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.machine import Machine, chosen, predict
from btrfs_model.limits import Limits
from btrfs_model.native import fiemap as native
from btrfs_model.native.choice import twin
from btrfs_model.patches import KERNEL
from btrfs_model.reference.fiemap.call import File, Flag

if TYPE_CHECKING:
    from btrfs_model.reference.fiemap.file import OpenFile
    from btrfs_model.volume.filesystem import Filesystem
    from btrfs_model.volume.subvolume import Subvolume

FILEFRAG_EXTENTS = 292
"""As many extents as ``filefrag`` asks for with one ioctl: those that fit into 16 KiB."""

FLAGS = {int(flag): name.lower().removeprefix("data_") for name, flag in Flag.__members__.items()}
"""Names of the flags of an extent (``FIEMAP_EXTENT_*``), as ``filefrag -v`` prints them."""

_ALL = 2**64 - 1


class Fiemap:
    """A file whose extents are asked for, as long as a program has it open.

    Kernels before 6.1 remember what they have found: a second :meth:`run` does fewer searches.

    Arguments, and what they raise, are those of :func:`fiemap`.
    """

    def __init__(
        self,
        fs: Filesystem,
        subvolume: str | int | Subvolume,
        path: str | bytes | int,
        *,
        behaviour: str | Behaviour = KERNEL,
        limits: Limits | Mapping[str, int] | None = None,
    ) -> None:
        # what it takes to find the file is no work of FIEMAP
        with uncounted(), fs.image.lease:
            sub = fs.subvolume(subvolume)
            inode = sub.inode(path)
            if not stat.S_ISREG(inode.mode):
                raise OSError(errno.EOPNOTSUPP, f"{path!r} is not a file", fs.path)
            forest = fs.forest([sub.id])
            file = File(
                forest,
                forest.trees[sub.id],
                sub.item.last_snapshot,
                inode.ino,
                inode.size,
                Behaviour.parse(behaviour),
                Limits.of(limits),
            )
        self._open = _opened(file)

    @classmethod
    def of(cls, file: File) -> Self:
        """Return a file of which all is known."""
        found = cls.__new__(cls)
        found._open = _opened(file)
        return found

    def run(
        self, start: int = 0, length: int = _ALL, *, extents_per_call: int = FILEFRAG_EXTENTS
    ) -> pd.DataFrame:
        """Ask for the extents of a range, call after call, until the last one is there.

        Arguments, results and errors are those of :func:`fiemap`. The caches live for one call of
        the ioctl, so `extents_per_call` decides how much work is done.
        """
        if not 0 < extents_per_call < 2**32:
            raise ValueError(f"extents_per_call={extents_per_call}: not between 1 and 2**32 - 1")
        if not (0 <= start <= _ALL and 0 <= length <= _ALL):
            raise ValueError(f"start={start}, length={length}: not between 0 and 2**64 - 1")
        rows = np.asarray(self._open.run(start, length, extents_per_call), native.ROW)
        return frame({name: rows[name] for name in ("logical", "physical", "length", "flags")})


@twin("reference.fiemap.file:OpenFile")
def _opened(file: File) -> native.Fiemap | OpenFile:
    asked = {
        "subvolume": file.tree.objectid,
        "last_snapshot": file.last_snapshot,
        "ino": file.ino,
        "isize": file.isize,
        "behaviour": file.behaviour.bits,
        "entries": file.limits.fiemap_entries,
        "prev_extents": file.limits.fiemap_prev_extents,
    }
    return native.Fiemap(file.forest.native, asked, file.delalloc)


@checked
def fiemap(
    fs: Filesystem,
    subvolume: str | int | Subvolume,
    path: str | bytes | int,
    *,
    behaviour: str | Behaviour = KERNEL,
    limits: Limits | Mapping[str, int] | None = None,
    start: int = 0,
    length: int = _ALL,
    extents_per_call: int = FILEFRAG_EXTENTS,
    machine: str | Machine | None = None,
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
    limits : Limits or mapping, optional
        Sizes of its caches other than kernels have them: arguments of
        :class:`btrfs_model.limits.Limits`, e.g. ``{"fiemap_prev_extents": 64}``.
    start, length : int
        The range in bytes. Extents are reported whole.
    extents_per_call : int
        As many as one call of the ioctl may give (``fm_extent_count``); it decides how much work is
        done.
    machine : str or Machine, optional
        Predict how long it takes on this machine, everything it reads being in memory: a name of
        :func:`btrfs_model.cost.machine.names` or the path of a file.

    Returns
    -------
    pandas.DataFrame
        ``logical``, ``physical``, ``length`` in bytes (uint64) and ``flags`` (uint32, see
        :data:`FLAGS`), a row for each extent, in the order of the file. With a machine ``attrs``
        has the ``time``: what :meth:`btrfs_model.cost.machine.Prediction.as_dict` gives.

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
    file = Fiemap(fs, subvolume, path, behaviour=behaviour, limits=limits)
    if machine is None:
        return file.run(start, length, extents_per_call=extents_per_call)
    computes = chosen(machine)
    with counting() as work:
        table = file.run(start, length, extents_per_call=extents_per_call)
    table.attrs["time"] = predict(computes, work).as_dict()
    return table
