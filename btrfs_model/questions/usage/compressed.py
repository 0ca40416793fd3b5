# SPDX-License-Identifier: GPL-2.0-only
"""How files are compressed: by what, how much it saves, and why data lie as they are."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.base.arguments import checked
from btrfs_model.behaviour import Behaviour, mount_kernel
from btrfs_model.native.items import is_among, records, select
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.constants import FileExtentType
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import FILE_EXTENT_HEAD, INODE_ITEM
from btrfs_model.questions.usage.items import file_extents
from btrfs_model.questions.usage.places import Place, Sums
from btrfs_model.questions.usage.stored import NAMES, StoredFile, Trial
from btrfs_model.volume.filesystem import Filesystem, opening
from btrfs_model.volume.subvolume import Subvolume

if TYPE_CHECKING:
    import pandas as pd

GROUPS: Final = ("file", "algorithm", "extent")
"""What can be a row."""

_ALGORITHMS: Final = np.array(["none", "zlib", "lzo", "zstd", "prealloc"])
_PREALLOC: Final = 4
_FORMAT: Final = stat.S_IFMT(0xFFFF)

Rows = npt.NDArray[np.void]


@checked
@opening
@exclusive
def compression(
    fs: Filesystem,
    subvolume: str | bytes | int | Subvolume,
    path: str | bytes | int | None = None,
    *,
    by: str = "file",
    why: bool = False,
    levels: bool = False,
    trials: Sequence[str] = (),
    behaviour: str | Behaviour | None = None,
) -> pd.DataFrame:
    """Say how files are compressed, why some data are not, and what other ways would give.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        Where they are, or the files it is in.
    subvolume : str, bytes, int or Subvolume
        Whose files.
    path : str, bytes or int, optional
        A file in it, by path or inode number, or a directory with all that is below it.
    by : str
        A row for each ``file``, or ``algorithm``, or data ``extent``.
    why : bool
        Whether to say why data lie as they are; that reads up to 128 KiB of each extent.
    levels : bool
        Whether to look for the level; that compresses some extents again, by each.
    trials : sequence of str
        Values of the mount option ``compress``, of ``compress-force`` after ``force:``: what each
        file would take, written anew by them.
    behaviour : str or Behaviour, optional
        The kernel that compresses.

    Returns
    -------
    pandas.DataFrame
        A row for each regular file that has data (bytes): ``path``, ``inode``, ``algorithm``
        (joined by ``+`` where there are several), ``disk``, ``uncompressed`` (both of whole data
        extents, each counted once, and of inline data), ``ratio`` (of the two), ``referenced`` (by
        the file), ``inline`` (bytes of items in ``disk``), ``raw`` (bytes on disk that are not
        compressed).

        ``why``: the reason of most of the raw bytes, the first that holds of these:
        ``nodatacow`` and ``nodatasum`` (flags: never tried), ``small`` (one sector, of which none
        can be saved), ``heuristic`` (the kernel's look at a sample says no), ``no gain`` (the first
        128 KiB do not get smaller by a sector), ``nocompress`` (the flag, which a failed try sets,
        a property or chattr), ``preallocated`` (perhaps: the file had such ranges), ``not tried``
        (it would help: mounted without the option then, or a direct write). That is asked of the
        algorithm of the file's property, else of its other extents, else of the first trial, else
        of what most extents of the subvolume have, else of zstd. Only the start of an extent is
        tried: what lies behind a piece that fails, up to 512 KiB, kernels do not try.

        ``level``: all levels that give just the bytes of the file's first compressed extents. Empty
        where none does, as with zstd before Linux 6.15, and for lzo, whose level changes nothing.
        The headers say less: that of zlib names a class of levels, that of zstd none.

        Of each trial a column of that name: bytes on disk, inline data among them.

        By algorithm: ``algorithm``, ``extents``, ``inline_extents``, ``disk``, ``uncompressed``,
        ``ratio``, ``referenced``, as compsize counts; only that it counts a file with several names
        once for each. By extent: ``path``, ``inode``, ``start`` (in the file), ``algorithm``,
        ``disk_bytenr``, ``disk``, ``uncompressed``, ``why``.

    Raises
    ------
    SubvolumeNotFoundError, NoSuchFileError
        When there is no such subvolume or file.
    ValueError
        For another `by`, a trial that the kernel refuses as a mount option, and levels or trials of
        what is no file.
    UnknownBehaviourError
        For a kernel or toggle that there is not.
    CorruptImageError
        When the tree or data are damaged.
    """
    if by not in GROUPS:
        raise ValueError(f"by is one of {', '.join(GROUPS)}, not {by!r}")
    if by != "file" and (levels or trials):
        raise ValueError("levels and trials are of files, so by is file")
    if why and by == "algorithm":
        raise ValueError("why is said of files and extents")
    kernel = mount_kernel(behaviour)
    tried = [Trial(text, kernel, fs.image) for text in trials]
    found = _Compressed(fs.subvolume(subvolume), path, kernel, tried)
    if by == "algorithm":
        return found.by_algorithm()
    return found.by_extent(why) if by == "extent" else found.by_file(why, levels)


class _Compressed:
    """File extents of files of a subvolume, holes apart."""

    def __init__(
        self, sub: Subvolume, path: str | bytes | int | None, kernel: Behaviour,
        trials: list[Trial],
    ) -> None:  # fmt: skip
        self.sub, self.kernel, self.trials = sub, kernel, trials
        self.place = Place.of(sub, path)
        items, image = sub.tree.scan(), sub.fs.image
        columns = select(items, items["type"] == ItemType.EXTENT_DATA)
        rows = file_extents(image, columns, sub.id)
        self.usual = _usual(rows, trials)
        inodes = select(items, items["type"] == ItemType.INODE_ITEM)
        is_file = records(image, inodes, INODE_ITEM)["mode"] & _FORMAT == stat.S_IFREG
        there: npt.NDArray[np.bool_] = self.place.wants(rows["inode"]) & is_among(
            rows["inode"], inodes["objectid"][is_file]
        )
        there &= (rows["disk_bytenr"] != 0) | (rows["type"] == FileExtentType.INLINE)
        rows, size = rows[there], columns["size"][there]
        self.rows: Rows = rows
        self.is_inline = rows["type"] == FileExtentType.INLINE
        stored = size.astype(np.uint64) - np.uint64(FILE_EXTENT_HEAD.size)
        self.disk = np.where(self.is_inline, stored, rows["disk_num_bytes"])
        prealloc = rows["type"] == FileExtentType.PREALLOC
        self.algorithm = np.where(prealloc, _PREALLOC, rows["compression"])
        self.inodes, self.file = np.unique(rows["inode"], return_inverse=True)

    def _once(self, group: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Tell the first row of each data extent in each group; inline data are there once."""
        once: npt.NDArray[np.bool_] = self.is_inline.copy()
        at = np.flatnonzero(~once)
        pair = np.stack([group[at].astype(np.uint64), self.rows["disk_bytenr"][at]])
        once[at[np.unique(pair, axis=1, return_index=True)[1]]] = True
        return once

    def by_algorithm(self) -> pd.DataFrame:
        """Return the table by algorithm."""
        import pandas as pd

        # an extent that is in part written is told by its first row
        once, kinds = self._once(np.zeros(len(self.rows))), len(_ALGORITHMS)
        whole = Sums(self.algorithm[once], kinds)
        table = pd.DataFrame(
            {
                "algorithm": pd.Series(_ALGORITHMS, dtype="object"),
                "extents": whole.of(~self.is_inline[once]),
                "inline_extents": whole.of(self.is_inline[once]),
                "disk": whole.of(self.disk[once]),
                "uncompressed": whole.of(self.rows["size"][once]),
                "referenced": Sums(self.algorithm, kinds).of(self.rows["length"]),
            }
        )
        table.insert(5, "ratio", _ratio(table))
        return table[table["referenced"] > 0].reset_index(drop=True)

    def by_file(self, why: bool, levels: bool) -> pd.DataFrame:
        """Return the table by file, what is largest on disk first."""
        import pandas as pd

        once, count = self._once(self.file), len(self.inodes)
        whole, raw = Sums(self.file[once], count), (self.algorithm == 0) & ~self.is_inline
        used = np.zeros((count, len(_ALGORITHMS)), np.bool_)
        used[self.file, self.algorithm] = True
        names = {row.tobytes(): "+".join(_ALGORITHMS[row]) for row in np.unique(used, axis=0)}
        table = pd.DataFrame(
            {
                "path": pd.Series(map(self.place.text, self.inodes.tolist()), dtype="object"),
                "inode": self.inodes,
                "algorithm": pd.Series([names[row.tobytes()] for row in used], dtype="object"),
                "disk": whole.of(self.disk[once]),
                "uncompressed": whole.of(self.rows["size"][once]),
                "referenced": Sums(self.file, count).of(self.rows["length"]),
                "inline": whole.of(np.where(self.is_inline, self.disk, 0)[once]),
                "raw": whole.of(np.where(raw, self.disk, 0)[once]),
            }
        )
        table.insert(5, "ratio", _ratio(table))
        if why or levels or self.trials:
            self._look_into(table, why, levels)
        return table.sort_values(
            ["disk", "path"], ascending=[False, True], ignore_index=True, kind="stable"
        )

    def _stored(self, ino: int) -> StoredFile:
        return StoredFile(self.sub, self.sub.inode(ino), self.kernel, self.usual)

    def _look_into(self, table: pd.DataFrame, why: bool, levels: bool) -> None:
        """Add the columns that take a look at data."""
        import pandas as pd

        reasons, found, sizes = [], [], []
        for ino in self.inodes.tolist():
            file = self._stored(ino)
            reasons.append(file.most_reason() if why else "")
            found.append(file.levels() if levels else "")
            sizes.append([trial.size(file) for trial in self.trials])
        if why:
            table["why"] = pd.Series(reasons, dtype="object")
        if levels:
            table["level"] = pd.Series(found, dtype="object")
        for at, trial in enumerate(self.trials):
            table[trial.text] = np.array([row[at] for row in sizes], np.uint64)

    def by_extent(self, why: bool) -> pd.DataFrame:
        """Return the table by data extent, in the order of inodes and of the file."""
        import pandas as pd

        rows = np.flatnonzero(self._once(self.file))
        rows = rows[np.lexsort((self.rows["start"][rows], self.rows["inode"][rows]))]
        inodes = self.rows["inode"][rows]
        table = pd.DataFrame(
            {
                "path": pd.Series(map(self.place.text, inodes.tolist()), dtype="object"),
                "inode": inodes,
                "start": self.rows["start"][rows],
                "algorithm": pd.Series(_ALGORITHMS[self.algorithm[rows]], dtype="object"),
                "disk_bytenr": self.rows["disk_bytenr"][rows],
                "disk": self.disk[rows],
                "uncompressed": self.rows["size"][rows],
            }
        )
        if why:
            told = {ino: self._stored(ino).reasons() for ino in np.unique(inodes).tolist()}
            places = zip(inodes.tolist(), table["disk_bytenr"].tolist(), strict=True)
            reasons = [told.get(ino, {}).get(at, ("", 0))[0] for ino, at in places]
            table["why"] = pd.Series(reasons, dtype="object")
        return table


def _usual(rows: Rows, trials: list[Trial]) -> tuple[str, int]:
    """Return by which algorithm and level a file is tried that has no compressed extent."""
    if trials:
        return trials[0].kind, trials[0].level
    used = np.bincount(rows["compression"], minlength=1)[1:]
    return (NAMES[1 + int(used.argmax())] if used.any() else "zstd"), 0


def _ratio(table: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return disk / uncompressed."""
    whole = table["uncompressed"].to_numpy().astype(np.float64)
    ratio: npt.NDArray[np.float64] = np.round(table["disk"].to_numpy() / np.maximum(whole, 1), 4)
    return ratio
