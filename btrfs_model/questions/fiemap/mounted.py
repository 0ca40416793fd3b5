# SPDX-License-Identifier: GPL-2.0-only
"""FIEMAP while a filesystem is being changed: data that wait to be written, a running transaction.

What was written and is in no extent yet is reported as such. The trees are as the transaction has
them, and the references that it has yet to write count.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from btrfs_model.base.arguments import checked
from btrfs_model.base.counters import counting, uncounted
from btrfs_model.base.errors import UnsupportedError
from btrfs_model.cost.table import Table
from btrfs_model.limits import Limits
from btrfs_model.mount.names.lookup import open_inode
from btrfs_model.patches import Patch
from btrfs_model.questions.fiemap.api import Fiemap
from btrfs_model.questions.fiemap.file import File

if TYPE_CHECKING:
    from btrfs_model.mount.live_inode import LiveInode
    from btrfs_model.mount.writable import WritableFilesystem


@checked
def fiemap_mounted(
    fs: WritableFilesystem,
    path: str | bytes,
    *,
    sync: bool = False,
    limits: Limits | Mapping[str, int] | None = None,
) -> Table:
    """List the extents of a file as the kernel that mounts it would report them now.

    ``extent_fiemap()`` of Linux 6.1 to 6.18.

    Parameters
    ----------
    fs : WritableFilesystem
        Where the file is.
    path : str or bytes
        From the top of the filesystem.
    sync : bool
        Write the file's data back first (``FIEMAP_FLAG_SYNC``).
    limits : Limits or mapping, optional
        As for :func:`~btrfs_model.questions.fiemap.api.fiemap`.

    Returns
    -------
    Table
        As of :func:`~btrfs_model.questions.fiemap.api.fiemap`.

    Raises
    ------
    OSError
        ENOENT and others of the path; EOPNOTSUPP for a directory or FIFO, ENXIO for sockets and
        devices.
    UnsupportedError
        When data wait to be written and the kernel is one before 6.1.
    """
    with uncounted():
        inode = open_inode(fs, path)
        if not stat.S_ISREG(inode.item.mode):
            raise OSError(errno.EOPNOTSUPP, f"{path!r} is not a file", fs.path)
        if sync:
            fs.flush_delalloc(inode)
        delalloc = _delalloc(inode)
        if delalloc and Patch.FIEMAP_FILE_EXTENTS not in fs.behaviour:
            raise UnsupportedError(f"{fs.path}: FIEMAP of data that wait, by a kernel before 6.1")
        forest = fs.running_forest()
        file = File(
            forest, forest.trees[inode.root], fs.writer.tree_state(inode.root).last_snapshot,
            inode.ino, inode.i_size, fs.behaviour, Limits.of(limits), delalloc,
        )  # fmt: skip
    with fs.image.lease, counting() as work:
        rows = Fiemap.of(file).run()

    def again() -> NoReturn:
        raise UnsupportedError(
            f"{fs.path}: a running transaction is in memory; bm.fiemap() asks after a mount"
        )

    return Table.of(rows, lambda: work, again)


def _delalloc(inode: LiveInode) -> list[tuple[int, int]]:
    """Return start and end of what waits, neighbours joined (``EXTENT_DELALLOC``)."""
    joined: list[tuple[int, int]] = []
    for one in inode.pages.ranges(0, 2**64):
        if joined and joined[-1][1] == one.start:
            joined[-1] = (joined[-1][0], one.end)
        else:
            joined.append((one.start, one.end))
    return joined
