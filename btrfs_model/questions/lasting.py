# SPDX-License-Identifier: GPL-2.0-only
"""What makes changes last, with its work and time: fsync, and the commit of a transaction.

::

    with bm.create("1G") as fs:
        fs.mkdir("d")
        fs.create_files("d", [f"file_{i}" for i in range(10_000)])
        print(bm.fsync(fs, "d").time(device="samsung-850-evo"))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from btrfs_model.base.arguments import checked
from btrfs_model.base.counters import Work, counting, uncounted
from btrfs_model.base.errors import UnsupportedError
from btrfs_model.base.tables import html_table, plural
from btrfs_model.cost.answer import Answer
from btrfs_model.cost.writing import log_sync
from btrfs_model.mount.log.state import LOG_ROOT_TREE
from btrfs_model.native.lease import exclusive

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from btrfs_model.cost.answer import Waits
    from btrfs_model.cost.device import Device
    from btrfs_model.mount.writable import WritableFilesystem

_NEGATIVE: Final = 1 << 63
"""Ids from here on are those of trees with negative ones."""


@dataclass(frozen=True, eq=False, repr=False)
class Written(Answer):
    """What made changes last.

    Attributes
    ----------
    how : str
        ``log``, ``commit``, or ``none`` where there was nothing to make last.
    work : Work
        The work counted. Of a commit searches of trees alone have a cost, so its time without a
        device is less than a kernel takes.
    blocks : dict of int to numpy.ndarray
        The tree blocks that were written, by the id of their tree; a log has that of its subvolume
        added to ``1 << 62``. Rows with ``logical``, ``level`` and more.
    places : numpy.ndarray or None
        Bytes of the device that they went to, all copies; None where there are several devices.
    nodesize : int
        Bytes of a block.
    path : str
        The filesystem.
    """

    how: str
    work: Work
    blocks: dict[int, NDArray[Any]]
    places: NDArray[np.int64] | None
    nodesize: int
    path: str

    def __bool__(self) -> bool:
        return self.how != "none"

    def __str__(self) -> str:
        return self.how

    def __repr__(self) -> str:
        return f"Written({self.how!r}, {plural(sum(map(len, self.blocks.values())), 'tree block')})"

    def _repr_html_(self) -> str:
        rows = self.table
        table = html_table(repr(self), rows.columns.tolist(), rows.values.tolist(), len(rows))
        return table + self.work._repr_html_()

    @property
    def table(self) -> pd.DataFrame:
        """A row for each tree with blocks that were written: ``tree``, ``leaves``, ``nodes``."""
        import pandas as pd

        leaves = {tree: int(np.count_nonzero(rows["level"] == 0)) for tree, rows in
                  self.blocks.items()}  # fmt: skip
        return pd.DataFrame(
            [(tree, count, len(self.blocks[tree]) - count) for tree, count in leaves.items()],
            columns=["tree", "leaves", "nodes"],
        )

    def waiting(self, device: Device) -> tuple[Mapping[str, int], Waits]:
        """See :class:`~btrfs_model.cost.answer.Answer`: all blocks, then the superblock."""
        if self.places is None:
            raise UnsupportedError(
                f"{self.path}: it has several devices; writes can be timed on one alone"
            )
        if not self:
            return self.work, 0
        return self.work, log_sync(device, self.places, self.nodesize)


@checked
@exclusive
def fsync(fs: WritableFilesystem, path: str | bytes) -> Written:
    """Make a file or directory last as :meth:`.FileCalls.fsync` does; say what that took.

    Parameters
    ----------
    fs : WritableFilesystem
        Where it is.
    path : str or bytes
        From the top of the filesystem.

    Returns
    -------
    Written
        ``how`` it was made last, ``work``, ``table`` of the tree blocks written, ``time()``.

    Raises
    ------
    OSError
        Where the kernel fails.
    """
    with counting() as work:
        how = fs.fsync(path)
    return _written(fs, how, work)


@checked
@exclusive
def commit(fs: WritableFilesystem, *, write_back: bool = True) -> Written:
    """Commit the running transaction; say what that took.

    Parameters
    ----------
    fs : WritableFilesystem
        The filesystem.
    write_back : bool
        Write data that wait back first, as sync(2) does; that is no part of the work and time.

    Returns
    -------
    Written
        ``work``, ``table`` of the tree blocks written, ``time()``. It is false where there was
        nothing to commit.

    Raises
    ------
    OSError
        ENOSPC when the trees do not fit any more, EROFS after that.
    """
    if write_back:
        fs.flush_delalloc()
    with counting() as work:
        how = "commit" if fs.commit() else "none"
    return _written(fs, how, work)


def _written(fs: WritableFilesystem, how: str, work: Work) -> Written:
    """Look up the blocks that a call wrote, which is the last one."""
    blocks: dict[int, NDArray[Any]] = {}
    with uncounted():
        if how == "commit":
            blocks = _of_commit(fs)
        elif how == "log":
            blocks = _of_log(fs, work["log_leaves_written"] + work["log_nodes_written"])
        addresses = [one for rows in blocks.values() for one in rows["logical"].tolist()]
        places = None
        if not fs.image.has_several:
            copies = [place for one in addresses for place in fs.image.copies(one)]
            places = np.array(copies, np.int64)
    return Written(how, work, blocks, places, fs.nodesize, fs.path)


def _of_commit(fs: WritableFilesystem) -> dict[int, NDArray[Any]]:
    """Return the blocks of the transaction that was committed: those of its generation."""
    generation = fs.image.superblock.generation
    found = {}
    for tree in fs.writer.tree_ids():
        if fs.writer.tree_state(tree).generation == generation:
            rows = fs.writer.tree(tree).root.blocks(0)
            found[tree] = rows[rows["generation"] == generation]
    return found


def _of_log(fs: WritableFilesystem, count: int) -> dict[int, NDArray[Any]]:
    """Return the blocks that a sync of the log wrote: so many, those that were allocated last.

    A block that was written is copied when it changes again, to a higher address.
    """
    rows = {
        tree: fs.writer.tree(tree).root.blocks(0)
        for tree in fs.writer.tree_ids()
        if LOG_ROOT_TREE <= tree < _NEGATIVE
    }
    addresses = np.sort(np.concatenate([one["logical"] for one in rows.values()]))
    least = addresses[-min(count, len(addresses))]
    return {tree: one[one["logical"] >= least] for tree, one in rows.items()}
