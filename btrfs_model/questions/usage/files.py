# SPDX-License-Identifier: GPL-2.0-only
"""The extents of a file: how much of each is used, and by whom."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import NoSuchFileError, SubvolumeNotFoundError
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.keys import MAX_KEY, ItemType, ObjectId
from btrfs_model.questions.usage.forest import FileForest, join
from btrfs_model.questions.usage.items import DataExtents, covered, file_extents, read_items
from btrfs_model.volume.filesystem import Filesystem, opening
from btrfs_model.volume.roots import is_subvolume_id
from btrfs_model.volume.subvolume import Subvolume

_TYPES: Final = np.array(["inline", "regular", "prealloc", "hole"])
_HOLE: Final = 3
_COMPRESSION: Final = np.array(["none", "zlib", "lzo", "zstd"])


class FileUsage:
    """The extents of a file and everything that refers to them.

    `fs`: where the file is.
    `subvolume`: path or id of the subvolume.
    `path`: path of the file in it, or its inode number.
    `own` (numpy.ndarray): the file extents of the file, of
    :data:`~btrfs_model.questions.usage.items.FILE_EXTENT`.
    `rows` (numpy.ndarray): all file extents, of all leaves, that refer to a data extent of the
    file.
    `extents` (DataExtents): these data extents.
    `forest` (FileForest): who has which leaf.
    """

    def __init__(
        self, fs: Filesystem, subvolume: str | bytes | int | Subvolume, path: str | bytes | int
    ) -> None:
        self.fs = fs
        sub = fs.subvolume(subvolume)
        ino = sub.inode(path).ino
        kind = int(ItemType.EXTENT_DATA)
        items = sub.tree.scan((ino, kind, 0), (ino, kind, MAX_KEY.offset))
        self.own = file_extents(fs.image, items, sub.id)
        self.on_disk: npt.NDArray[np.bool_] = self.own["disk_bytenr"] != 0
        wanted = self.own["disk_bytenr"][self.on_disk]
        self.forest = FileForest(fs)
        found = read_items(fs.image, self.forest.leaves).extents
        self.rows = found[np.isin(found["disk_bytenr"], wanted)]
        self.extents = DataExtents(fs.image, fs.tree(int(ObjectId.EXTENT_TREE)), self.rows)

    def owners(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return (row of :attr:`rows`, row of the forest's roots) of each reference.

        Trees of a relocation under way are no subvolumes: LOGICAL_INO does not list them either.
        """
        leaves = np.unique(self.rows["leaf"])
        leaf, root = self.forest.owners(leaves)
        of_subvolumes = np.array([is_subvolume_id(known.id) for known in self.forest.roots], bool)
        leaf, root = leaf[of_subvolumes[root]], root[of_subvolumes[root]]
        row, pair = join(self.rows["leaf"], leaves[leaf])
        return row, root[pair]

    def table(self) -> pd.DataFrame:
        """Return what :func:`extents` returns."""
        own, extents, rows = self.own, self.extents, self.rows
        count = len(extents.start)
        extent = np.zeros(len(own), np.intp)
        extent[self.on_disk] = np.searchsorted(extents.start, own["disk_bytenr"][self.on_disk])
        end = rows["offset"] + rows["length"]
        mine = own[self.on_disk]
        here = covered(extent[self.on_disk], mine["offset"], mine["offset"] + mine["length"], count)
        anybody = covered(extents.row, rows["offset"], end, count)
        size = np.zeros(count, np.uint64)
        size[extents.row] = rows["size"]
        row, root = self.owners()
        _, inode = np.unique(rows["inode"], return_inverse=True)
        file = root * (1 + inode.max(initial=0)) + inode[row]
        pairs = np.unique(extents.row[row] * (1 + file.max(initial=0)) + file)
        files = pairs // (1 + file.max(initial=0))
        by_extent = {
            "refs": extents.refs,
            "items": np.bincount(extents.row, minlength=count).astype(np.uint64),
            "references": np.bincount(extents.row[row], minlength=count).astype(np.uint64),
            "files": np.bincount(files, minlength=count).astype(np.uint64),
            "shown_here": here,
            "shown": anybody,
            "bookend": size - anybody,
            "shared": extents.shared(self.forest, rows),
        }
        hole = ~self.on_disk & (own["type"] != 0)
        columns = {
            "start": own["start"],
            "length": own["length"],
            "type": _TYPES[np.where(hole, _HOLE, own["type"])],
            "compression": _COMPRESSION[own["compression"]],
            "disk_bytenr": own["disk_bytenr"],
            "disk_num_bytes": own["disk_num_bytes"],
            "offset": own["offset"],
            "ram_bytes": own["size"],
            "generation": own["generation"],
        }
        for name, values in by_extent.items():
            spread = np.zeros(len(own), values.dtype)
            spread[self.on_disk] = values[extent[self.on_disk]]
            columns[name] = spread
        return pd.DataFrame(columns)

    def references(self) -> pd.DataFrame:
        """Return what :func:`extent_references` returns."""
        row, root = self.owners()
        rows = self.rows[row]
        ids = np.array([known.id for known in self.forest.roots], np.uint64)[root]
        order = np.lexsort((rows["start"], rows["inode"], ids, rows["disk_bytenr"]))
        rows, ids = rows[order], ids[order]
        inodes, inode = np.unique(rows["inode"], return_inverse=True)
        roots, of_root = np.unique(ids, return_inverse=True)
        files, which = np.unique(of_root * max(1, len(inodes)) + inode, return_inverse=True)
        paths = [
            full_path(self.fs, int(roots[file // len(inodes)]), int(inodes[file % len(inodes)]))
            for file in files.tolist()
        ]
        return pd.DataFrame(
            {
                "disk_bytenr": rows["disk_bytenr"],
                "root": ids,
                "inode": rows["inode"],
                "offset": rows["start"],
                "length": rows["length"],
                "extent_offset": rows["offset"],
                "leaf": rows["leaf"],
                # paths may be no UTF-8, so they stay Python's strings
                "path": pd.Series(np.array([*paths, None], object)[which], dtype="object"),
            }
        )


@checked
@opening
@exclusive
def extents(
    fs: Filesystem, subvolume: str | bytes | int | Subvolume, path: str | bytes | int
) -> pd.DataFrame:
    """List the extents of a file, how much of each is used, and by how many.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        Where the file is, or the files it is in.
    subvolume : str, bytes, int or Subvolume
        Path or id of the subvolume.
    path : str, bytes or int
        Path of the file in it, or its inode number.

    Returns
    -------
    pandas.DataFrame
        A row for each file extent, in the order of the file: ``start``, ``length`` (bytes of the
        file), ``type`` (regular, prealloc, inline or hole), ``compression``, ``disk_bytenr``,
        ``disk_num_bytes`` (the data extent; 0 for none), ``offset`` (in it, uncompressed),
        ``ram_bytes`` (its uncompressed size), ``generation``; and of the data extent ``refs`` (what
        its item in the extent tree says), ``items`` (file extents that refer to it, those of a leaf
        that subvolumes share counted once), ``references`` (the same, counted in each subvolume),
        ``files`` (different ones, a file and its snapshot being two), ``shown_here`` and ``shown``
        (uncompressed bytes of it that this file and that any file shows), ``bookend`` (bytes that
        no file shows), ``shared`` (as FIEMAP says, see :meth:`DataExtents.shared`).

    Raises
    ------
    SubvolumeNotFoundError, NoSuchFileError
        When there is no such subvolume or file.
    NotCommittedError
        When there is one, but not in the last commit.
    CorruptImageError
        When a block cannot be read, or a file extent is impossible or refers to no extent.
    """
    return FileUsage(fs, subvolume, path).table()


@checked
@opening
@exclusive
def extent_references(
    fs: Filesystem, subvolume: str | bytes | int | Subvolume, path: str | bytes | int
) -> pd.DataFrame:
    """List who refers to the data extents of a file; parameters as for :func:`extents`.

    Returns
    -------
    pandas.DataFrame
        A row for each reference of each data extent in each subvolume, ordered by the first four
        columns: ``disk_bytenr``, ``root`` (id of the subvolume), ``inode``, ``offset`` (byte of the
        file at which the file extent starts), ``length``, ``extent_offset`` (where in the extent),
        ``leaf`` (address of the leaf that holds the file extent), ``path`` (from the top of the
        filesystem; empty for what has no name, as in a subvolume that is being freed).
    """
    return FileUsage(fs, subvolume, path).references()


def full_path(fs: Filesystem, root: int, inode: int) -> str:
    """Path of a file from the top of the filesystem; empty when it has no name."""
    try:
        sub = fs.subvolume(root)
        above, inside = sub.path, sub.path_of(inode).decode("utf-8", "surrogateescape")
    except (SubvolumeNotFoundError, NoSuchFileError):
        return ""
    return f"{above}/{inside}" if above else inside
