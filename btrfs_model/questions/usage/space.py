# SPDX-License-Identifier: GPL-2.0-only
"""The space of subvolumes: what is theirs alone and what they share.

Two ways to count. ``btrfs filesystem du`` asks FIEMAP for every file and adds up bytes of files; an
extent is *shared* there as soon as another file refers to it, be it in the same subvolume. Quota
groups count whole data extents, bytes on disk, and tree blocks; what nothing outside refers to is
*exclusive*. Both are here, side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from btrfs_model.base.arguments import checked
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.questions.usage.forest import NOBODY, RELOCATION, FileForest
from btrfs_model.questions.usage.items import DataExtents, covered, read_items
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.subvolume import Subvolume

if TYPE_CHECKING:
    import pandas as pd

Mask = npt.NDArray[np.bool_]


@checked
@exclusive
def du(
    fs: Filesystem, *subvolumes: str | bytes | int | Subvolume, nested: bool = False
) -> pd.DataFrame:
    """Say how much space subvolumes use, alone and together with others.

    Parameters
    ----------
    fs : Filesystem
        Where they are.
    *subvolumes : str, bytes, int or Subvolume
        Paths or ids; all without any.
    nested : bool
        Whether the subvolumes inside count as part of one, as ``btrfs filesystem du -s`` has it.

    Returns
    -------
    pandas.DataFrame
        A row for each (uint64, bytes): ``id``, ``path``, ``files``; as ``btrfs filesystem du -s``
        prints them ``total``, ``exclusive`` (bytes of files) and ``set_shared``; ``extent_bytes``
        and ``extent_exclusive`` (bytes on disk of the data extents it refers to, and of those that
        nothing outside refers to); ``tree_bytes`` and ``tree_exclusive`` (the same of tree blocks).
        A quota group's ``rfer`` is ``extent_bytes + tree_bytes``, its ``excl`` the sum of the other
        two.

    Raises
    ------
    SubvolumeNotFoundError
        When there is no such subvolume.
    CorruptImageError
        When a block cannot be read, or a file extent is impossible or refers to no extent.
    """
    import pandas as pd

    asked = [fs.subvolume(which) for which in subvolumes or fs.subvolume_ids]
    usage = _Usage(fs)
    rows = [usage.row(sub, _inside(fs, sub.id) if nested else {sub.id}) for sub in asked]
    columns = {name: [row[name] for row in rows] for name in _COLUMNS}
    return pd.DataFrame(
        {
            name: pd.Series(values, dtype="object" if name == "path" else "uint64")
            for name, values in columns.items()
        }
    )


_COLUMNS = (
    "id", "path", "files", "total", "exclusive", "set_shared",
    "extent_bytes", "extent_exclusive", "tree_bytes", "tree_exclusive",
)  # fmt: skip


class _Usage:
    """All file extents of a filesystem, and which of them are shared."""

    def __init__(self, fs: Filesystem) -> None:
        self.nodesize = fs.image.nodesize
        self.forest = FileForest(fs)
        items = read_items(fs.image, self.forest.leaves)
        self.rows = items.extents
        self.leaf = np.searchsorted(self.forest.leaves, self.rows["leaf"])
        self.inode = items.inode
        self.inode_leaf = np.searchsorted(self.forest.leaves, items.inode_leaf)
        self.extents = DataExtents(fs.image, fs.tree(int(ObjectId.EXTENT_TREE)), self.rows)
        self.shared = self.extents.shared(self.forest, self.rows)

    def row(self, sub: Subvolume, ids: set[int]) -> dict[str, int | str]:
        """Count what some subvolumes have, as the row of the first of them."""
        masks = self.forest.reached(ids)
        # quota groups do not count what a relocation has
        labels = [NOBODY if root.id in RELOCATION else int(root.id not in ids)
                  for root in self.forest.roots]  # fmt: skip
        whose = self.forest.single(np.array(labels, np.int64))
        data = self._data(masks[0], (whose[0] != 0) & (whose[0] != NOBODY))
        return {
            "id": sub.id,
            "path": sub.path,
            **self._files(ids),
            **data,
            "tree_bytes": self.nodesize * sum(int(mask.sum()) for mask in masks),
            "tree_exclusive": self.nodesize * sum(int((label == 0).sum()) for label in whose),
        }

    def _data(self, reached: Mask, others: Mask) -> dict[str, int]:
        """Count data extents by the leaves that refer to them, `others` of them of others too."""
        count = len(self.extents.start)
        mine = np.zeros(count, np.bool_)
        mine[self.extents.row[reached[self.leaf]]] = True
        foreign = np.zeros(count, np.bool_)
        foreign[self.extents.row[others[self.leaf]]] = True
        length = self.extents.length
        return {
            "extent_bytes": int(length[mine].sum()),
            "extent_exclusive": int(length[mine & ~foreign].sum()),
        }

    def _files(self, ids: set[int]) -> dict[str, int]:
        """Add up files as ``btrfs filesystem du -s`` does (btrfs-progs 6.2)."""
        files = total = exclusive = 0
        begin, end = [], []
        for tree in ids:
            leaves = self.forest.reached({tree})[0]
            inodes = self.inode[leaves[self.inode_leaf]]
            here = leaves[self.leaf] & np.isin(self.rows["inode"], inodes)
            rows, shared = self.rows[here], self.shared[self.extents.row[here]]
            files += len(inodes)
            total += int(rows["length"].sum())
            exclusive += int(rows["length"][~shared].sum())
            rows = rows[shared]
            # FIEMAP places the file extents of a compressed extent all at its start
            offset = np.where(rows["compression"] == 0, rows["offset"], 0)
            begin.append(rows["disk_bytenr"] + offset)
            end.append(begin[-1] + rows["length"])
        starts = np.concatenate(begin)
        union = covered(np.zeros(len(starts), np.intp), starts, np.concatenate(end), 1)
        return {
            "files": files,
            "total": total,
            "exclusive": exclusive,
            "set_shared": int(union[0]),
        }


def _inside(fs: Filesystem, top: int) -> set[int]:
    """Ids of a subvolume and of all that lie in it, at any depth."""
    parents = {}
    for objectid in fs.subvolume_ids:
        entry = fs.subvolume(objectid).entry
        parents[objectid] = entry.parent if entry else 0
    found = {top}
    while more := {i for i, parent in parents.items() if parent in found} - found:
        found |= more
    return found
