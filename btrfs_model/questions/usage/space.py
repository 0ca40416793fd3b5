# SPDX-License-Identifier: GPL-2.0-only
"""The space of subvolumes: what is theirs alone and what they share.

Two ways to count. ``btrfs filesystem du`` asks FIEMAP for every file and adds up bytes of files; an
extent is *shared* there as soon as another file refers to it, be it in the same subvolume. Quota
groups count whole data extents, bytes on disk, and tree blocks; what nothing outside refers to is
*exclusive*. Both are here, side by side.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from btrfs_model.base.arguments import checked
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.constants import FileType
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.questions.usage.forest import NOBODY, RELOCATION
from btrfs_model.questions.usage.items import covered
from btrfs_model.questions.usage.references import References
from btrfs_model.volume.filesystem import Filesystem, opening
from btrfs_model.volume.listing import EMPTY_SUBVOL_DIR
from btrfs_model.volume.subvolume import Subvolume, join

if TYPE_CHECKING:
    import pandas as pd


Mask = npt.NDArray[np.bool_]


@checked
@opening
@exclusive
def du(
    fs: Filesystem,
    *subvolumes: str | bytes | int | Subvolume,
    nested: bool = False,
    files: bool = False,
) -> pd.DataFrame:
    """Say how much space subvolumes use, or files, alone and together with others.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        Where they are, or the files it is in.
    *subvolumes : str, bytes, int or Subvolume
        Paths or ids; all without any. With `files` any paths, and the top without any.
    nested : bool
        Whether the subvolumes inside count as part of one, as ``btrfs filesystem du -s`` has it.
    files : bool
        A row for each file and directory below these paths, as ``btrfs filesystem du`` (6.2) has
        it.

    Returns
    -------
    pandas.DataFrame
        A row for each (uint64, bytes): ``id``, ``path``, ``files``; as ``btrfs filesystem du -s``
        prints them ``total``, ``exclusive`` (bytes of files) and ``set_shared``; ``extent_bytes``
        and ``extent_exclusive`` (bytes on disk of the data extents it refers to, and of those that
        nothing outside refers to); ``tree_bytes`` and ``tree_exclusive`` (the same of tree blocks).
        A quota group's ``rfer`` is ``extent_bytes + tree_bytes``, its ``excl`` the sum of the other
        two. With `files`, what is in a directory before it: ``path`` (from the top; empty for the
        top itself), ``total``, ``exclusive`` (bytes of extents that nothing else shows),
        ``set_shared`` (NA except for the paths that were named: bytes of the others, each counted
        once in a directory). A file with several names has a row for the first one.

    Raises
    ------
    SubvolumeNotFoundError, NoSuchFileError
        When there is no such subvolume or path.
    CorruptImageError
        When a block cannot be read, or a file extent is impossible or refers to no extent.
    """
    import pandas as pd

    if files:
        return _by_file(fs, subvolumes)
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


def _by_file(fs: Filesystem, asked: tuple[str | bytes | int | Subvolume, ...]) -> pd.DataFrame:
    """Return what :func:`du` says of files."""
    import pandas as pd

    usage, rows = _Usage(fs), []
    for which in asked or ("",):
        if isinstance(which, str | bytes):
            sub, ino = fs.locate(which)
            path = which if isinstance(which, bytes) else os.fsencode(which)
        else:
            sub = fs.subvolume(which)
            ino, path = sub.root_dir, os.fsencode(sub.path)
        walk = _Walk(usage)
        total, exclusive = walk.visit(sub, ino, path)
        # of a file that shows an extent twice, btrfs-progs count it twice (du_add_file())
        is_file = (sub.id, ino) in walk.seen
        shared = total - exclusive if is_file else usage.set_shared(walk.shared)
        last = (*walk.rows.pop()[:1], total, exclusive, shared)
        rows += [*walk.rows, last]
    table = pd.DataFrame(rows, columns=["path", "total", "exclusive", "set_shared"])
    return table.astype({"total": "uint64", "exclusive": "uint64", "set_shared": "UInt64"})


class _Walk:
    """A walk over files and directories; a file with several names counts once."""

    def __init__(self, usage: _Usage) -> None:
        self.usage = usage
        self.rows: list[tuple[object, ...]] = []
        self.shared: list[npt.NDArray[np.intp]] = []
        self.seen: set[tuple[int, int]] = set()
        self.files: dict[int, dict[int, npt.NDArray[np.intp]]] = {}

    def visit(self, sub: Subvolume, ino: int, path: bytes) -> tuple[int, int]:
        """Add the rows of a path; return its bytes, and those of no other file."""
        total = exclusive = 0
        is_there = sub.tree.get((ino, int(ItemType.INODE_ITEM), 0)) is not None
        mode = sub.inode(ino).mode if is_there else stat.S_IFDIR
        if stat.S_ISDIR(mode):
            for entry in sub.readdir(ino) if is_there else ():
                inside = join(path, entry.name)
                if entry.type not in (FileType.REG_FILE, FileType.DIR):
                    continue
                to, at = sub, entry.location.objectid
                if entry.location.type == ItemType.ROOT_ITEM:
                    to, at = self._into(sub, at)
                more = self.visit(to, at, inside)
                total, exclusive = total + more[0], exclusive + more[1]
        elif (sub.id, ino) in self.seen:
            return 0, 0
        else:
            self.seen.add((sub.id, ino))
            total, exclusive = self._file(sub.id, ino)
        self.rows.append((path.decode("utf-8", "surrogateescape"), total, exclusive, None))
        return total, exclusive

    def _into(self, sub: Subvolume, number: int) -> tuple[Subvolume, int]:
        """Go into a subvolume; a snapshot has the entries of others, but not what is in them."""
        fs = sub.fs
        entry = fs.subvolume(number).entry if number in fs.subvolume_ids else None
        if entry is None or entry.parent != sub.id:
            return sub, EMPTY_SUBVOL_DIR
        inside = fs.subvolume(number)
        return inside, inside.root_dir

    def _file(self, tree: int, ino: int) -> tuple[int, int]:
        if tree not in self.files:
            self.files[tree] = self.usage.files(tree)
        mine = self.files[tree].get(ino, np.zeros(0, np.intp))
        lengths = self.usage.rows["length"][mine]
        alone = ~self.usage.shared[self.usage.extents.row[mine]]
        self.shared.append(mine[~alone])
        return int(lengths.sum()), int(lengths[alone].sum())


_COLUMNS = (
    "id", "path", "files", "total", "exclusive", "set_shared",
    "extent_bytes", "extent_exclusive", "tree_bytes", "tree_exclusive",
)  # fmt: skip


class _Usage(References):
    """All file extents of a filesystem, and which of them are shared."""

    def __init__(self, fs: Filesystem) -> None:
        super().__init__(fs)
        self.nodesize = fs.image.nodesize
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
        of_all = []
        for tree in ids:
            leaves = self.forest.reached({tree})[0]
            inodes = self.inode[leaves[self.inode_leaf]]
            here = leaves[self.leaf] & np.isin(self.rows["inode"], inodes)
            rows, shared = self.rows[here], self.shared[self.extents.row[here]]
            files += len(inodes)
            total += int(rows["length"].sum())
            exclusive += int(rows["length"][~shared].sum())
            of_all.append(np.flatnonzero(here)[shared])
        return {
            "files": files,
            "total": total,
            "exclusive": exclusive,
            "set_shared": self.set_shared(of_all),
        }

    def set_shared(self, parts: list[npt.NDArray[np.intp]]) -> int:
        """Return the bytes of file extents, those that lie in the same place counted once."""
        rows = self.rows[np.concatenate([np.zeros(0, np.intp), *parts])]
        # FIEMAP places the file extents of a compressed extent all at its start
        start = rows["disk_bytenr"] + np.where(rows["compression"] == 0, rows["offset"], 0)
        return int(covered(np.zeros(len(rows), np.intp), start, start + rows["length"], 1)[0])

    def files(self, tree: int) -> dict[int, npt.NDArray[np.intp]]:
        """Return the file extents of a subvolume, as rows, by inode number."""
        here = np.flatnonzero(self.forest.reached({tree})[0][self.leaf])
        if not len(here):
            return {}
        order = here[np.argsort(self.rows["inode"][here], kind="stable")]
        inodes, starts = np.unique(self.rows["inode"][order], return_index=True)
        return dict(zip(inodes.tolist(), np.split(order, starts[1:]), strict=True))


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
