# SPDX-License-Identifier: GPL-2.0-only
"""What is asked of FIEMAP, answered by the C kernel."""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import numpy as np
import pandas as pd

from btrfs_model.base.arguments import checked, warn_renamed
from btrfs_model.base.counters import Work, counting, uncounted
from btrfs_model.base.tables import frame
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.answer import Cold
from btrfs_model.cost.machine import Machine
from btrfs_model.cost.table import Table
from btrfs_model.limits import Limits
from btrfs_model.native import backref as native
from btrfs_model.native.choice import twin
from btrfs_model.patches import KERNEL
from btrfs_model.questions.fiemap.file import File, Flag
from btrfs_model.questions.reads.cold import blocks_after_mount
from btrfs_model.volume.filesystem import opening, reopened

if TYPE_CHECKING:
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
    ``place`` has the id of the subvolume and the inode number.

    Arguments, and what they raise, are those of :func:`fiemap`.
    """

    def __init__(
        self,
        fs: Filesystem,
        subvolume: str | bytes | int | Subvolume,
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
            self.place = sub.id, inode.ino
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
        found.place, found._open = (file.tree.objectid, file.ino), _opened(file)
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
def _opened(file: File) -> native.Fiemap:
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
@opening
def fiemap(
    fs: Filesystem,
    subvolume: str | bytes | int | Subvolume,
    path: str | bytes | int,
    *,
    behaviour: str | Behaviour = KERNEL,
    limits: Limits | Mapping[str, int] | None = None,
    start: int = 0,
    length: int = _ALL,
    extents_per_call: int = FILEFRAG_EXTENTS,
    machine: str | Machine | None = None,
) -> Table:
    """List the extents of a file as the ioctl FS_IOC_FIEMAP reports them.

    ``extent_fiemap()`` of Linux 5.10 to 6.18, on a filesystem where nothing waits to be
    written.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        Where the file is, or the files it is in.
    subvolume : str, bytes, int or Subvolume
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
        Deprecated: ask the answer, ``fiemap(...).time(machine)``.

    Returns
    -------
    Table
        A DataFrame, with ``work`` and ``time()``: ``logical``, ``physical``, ``length`` in bytes
        (uint64) and ``flags`` (uint32, see :data:`FLAGS`), a row for each extent, in the order of
        the file.

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
    with counting() as work:
        rows = file.run(start, length, extents_per_call=extents_per_call)

    def again() -> tuple[Work, Cold]:
        sub, inode = file.place
        with reopened(fs) as now:
            cold = Fiemap(now, sub, inode, behaviour=behaviour, limits=limits)
            cached = blocks_after_mount(now, [now.subvolume(sub)], Behaviour.parse(behaviour))
            now.image.start_cold(cached, Limits.of(limits))
            try:
                with counting() as of_cold:
                    cold.run(start, length, extents_per_call=extents_per_call)
            finally:
                reads = now.image.stop_cold()
            return of_cold, Cold.of(now.image, reads)

    table = Table.of(rows, lambda: work, again)
    if machine is not None:
        warn_renamed("fiemap(machine=)", "fiemap(...).time(machine)")
        table.attrs["time"] = table.time(machine).as_dict()
    return table
