# SPDX-License-Identifier: GPL-2.0-only
"""The questions that a backref walk answers, answered by C kernels."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from btrfs_model.backref.walk import BackrefWalk, Extent
from btrfs_model.base.arguments import checked
from btrfs_model.base.tables import frame
from btrfs_model.native.choice import twin
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.constants import ExtentFlag
from btrfs_model.ondisk.keys import Key
from btrfs_model.volume.filesystem import opening
from btrfs_model.volume.forest import Forest

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.volume.filesystem import Filesystem


class ExtentRef(NamedTuple):
    """A file extent item that refers to a data extent, as it is seen in one of its trees.

    Attributes
    ----------
    inum, offset : int
        Inode number; byte of the file at which the byte asked for is shown.
    num_bytes : int
        Of the file extent item.
    root : int
        Id of the subvolume.
    """

    inum: int
    offset: int
    num_bytes: int
    root: int


def _forest(trees: Filesystem | Forest) -> Forest:
    return trees if isinstance(trees, Forest) else trees.forest()


def iterate_extent_inodes(
    trees: Filesystem | Forest,
    bytenr: int,
    *,
    extent_item_pos: int = 0,
    ignore_extent_item_pos: bool = False,
    restart: bool = False,
) -> list[ExtentRef]:
    """List who refers to a data extent (``iterate_extent_inodes()``, Linux 5.10 to 6.18).

    `trees`: where to look; a :class:`Forest` can say which subvolumes are open.
    `bytenr`: logical address at which the extent starts.
    `extent_item_pos`: only file extents that show this byte of the extent; compressed ones always.
    `ignore_extent_item_pos`: all file extents, wherever they begin.
    `restart`: whether a search starts again after it had to read a block, as before 5.19; it shows
    in the counts when a cold cache is modelled.
    Returns the references in the kernel's order; none where there is no such extent.
    Raises CorruptImageError: when the trees contradict each other or a block cannot be read.
    """
    ask = BackrefWalk(
        forest=_forest(trees),
        bytenr=bytenr,
        extent_item_pos=extent_item_pos,
        ignore_extent_item_pos=ignore_extent_item_pos,
        restart=restart,
    )
    return [ExtentRef(*row) for row in _iterate_extent_inodes(ask)]


def find_all_leafs(trees: Filesystem | Forest, bytenr: int) -> list[int]:
    """Return the leaves with file extent items of a data extent (``btrfs_find_all_leafs()``).

    Returns logical addresses, in the kernel's order.
    """
    return _find_all_leafs(BackrefWalk(forest=_forest(trees), bytenr=bytenr))


def find_all_roots(trees: Filesystem | Forest, bytenr: int) -> list[int]:
    """Return the trees that reach an extent or tree block (``btrfs_find_all_roots_safe()``).

    Returns ids, in the kernel's order.
    """
    return _find_all_roots(BackrefWalk(forest=_forest(trees), bytenr=bytenr))


def extent_from_logical(
    trees: Filesystem | Forest, logical: int, *, restart: bool = False
) -> Extent | None:
    """Return the extent that holds an address, or None (``extent_from_logical()``, 6.12).

    Raises CorruptImageError: when its item is broken.
    """
    return _extent_from_logical(_forest(trees), logical, restart)


@checked
@opening
@exclusive
def logical_ino(
    fs: Filesystem | Forest, logical: int, *, ignore_offset: bool = False
) -> pd.DataFrame:
    """List the files that show a byte of the filesystem (ioctl LOGICAL_INO_V2, Linux 5.10 to 6.18).

    Parameters
    ----------
    fs : Filesystem, Forest, str, os.PathLike or sequence of them
        Where to look, or the files it is in.
    logical : int
        Logical address of the byte.
    ignore_offset : bool
        All files that refer to the extent that holds it, whichever part of it they show
        (``BTRFS_LOGICAL_INO_ARGS_IGNORE_OFFSET``).

    Returns
    -------
    pandas.DataFrame
        Columns ``inum``, ``offset`` (byte of the file) and ``root`` (id of the subvolume), uint64;
        a row for each reference, in the kernel's order.

    Raises
    ------
    FileNotFoundError
        When the address lies in no data extent (the ioctl fails with ENOENT).
    CorruptImageError
        When the trees contradict each other or a block cannot be read.
    """
    forest = _forest(fs)
    extent = extent_from_logical(forest, logical)
    if extent is None or extent.flags != ExtentFlag.DATA:
        raise FileNotFoundError(
            errno.ENOENT, f"no data extent holds logical address {logical}", forest.image.path
        )
    refs = iterate_extent_inodes(
        forest,
        extent.key.objectid,
        extent_item_pos=logical - extent.key.objectid,
        ignore_extent_item_pos=ignore_offset,
    )
    inum, offset, _, root = np.array(refs, np.uint64).reshape(-1, 4).T
    return frame({"inum": inum, "offset": offset, "root": root})


# Each as it is in C; `reference` has the same in Python.


@twin("reference.logical:iterate_extent_inodes")
def _iterate_extent_inodes(ask: BackrefWalk) -> list[tuple[int, int, int, int]]:
    return ask.forest.native.iterate_extent_inodes(
        ask.bytenr, ask.extent_item_pos, ask.ignore_extent_item_pos, ask.restart
    )


@twin("reference.logical:find_all_leafs")
def _find_all_leafs(ask: BackrefWalk) -> list[int]:
    return ask.forest.native.find_all_leafs(ask.bytenr, ask.restart)


@twin("reference.logical:find_all_roots")
def _find_all_roots(ask: BackrefWalk) -> list[int]:
    return ask.forest.native.find_all_roots(ask.bytenr, ask.restart)


@twin("reference.logical:extent_from_logical")
def _extent_from_logical(forest: Forest, logical: int, restart: bool) -> Extent | None:
    found = forest.native.extent_from_logical(logical, restart)
    return None if found is None else Extent(Key(*found[0]), *found[1:])
