# SPDX-License-Identifier: GPL-2.0-only
"""What files keep on disk, how much of it nobody refers to, and what writing them anew would free.

An extent stays on disk as a whole as long as one reference is left to any part of it. Writing a
file anew frees an extent when no other file, and no other subvolume, refers to it; what another one
keeps stays, and the new data come on top::

    file        |-- 4 KiB --|
    extent   |------------------ 1 MiB ------------------|     disk 1 MiB, unreferenced 1016 KiB
    snapshot                        |-- 4 KiB --|              a rewrite frees nothing, writes 4 KiB
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.base.arguments import checked
from btrfs_model.mount.files.defrag import Layout, fragmented
from btrfs_model.mount.files.file_item import Extent, align
from btrfs_model.mount.options import MAX_INLINE
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.constants import FileExtentType
from btrfs_model.ondisk.items import file_extent
from btrfs_model.ondisk.keys import MAX_KEY, ItemType
from btrfs_model.questions.usage.forest import NOBODY, how_many_bits, single_label
from btrfs_model.questions.usage.items import U64, covered
from btrfs_model.questions.usage.places import Place, Sums
from btrfs_model.questions.usage.references import Keepers, References
from btrfs_model.volume.filesystem import Filesystem, opening
from btrfs_model.volume.subvolume import Subvolume

if TYPE_CHECKING:
    import pandas as pd

Rows = npt.NDArray[np.intp]

RANKS: Final = ("rewrite", "fragments", "references")
"""What rows can be ranked by."""

_FIRST: Final = {"rewrite": ["saves", "unreferenced", "disk"], "fragments": ["fragments", "disk"]}
_NUMBERS: Final = (
    "extents", "fragments", "referenced", "disk", "unreferenced", "frees", "writes", "unshares",
)  # fmt: skip


@checked
@opening
@exclusive
def waste(
    fs: Filesystem,
    subvolume: str | bytes | int | Subvolume | None = None,
    path: str | bytes | int | None = None,
    *,
    by: str = "rewrite",
    threshold: int | None = None,
) -> pd.DataFrame:
    """Rank files by what they keep on disk for nothing, by fragments, or extents by references.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        Where they are, or the files it is in.
    subvolume : str, bytes, int or Subvolume, optional
        Whose files; without it those of all subvolumes that are not read-only, and extents of all.
    path : str, bytes or int, optional
        A file in it, by path or inode number, or a directory with all that is below it.
    by : str
        ``rewrite``: what saves most when it is written anew comes first; ``fragments``: the file
        with most; ``references``: extents instead of files, that with most references first.
    threshold : int, optional
        What is written anew is what ``btrfs filesystem defragment -t`` of so many bytes takes
        (Linux 5.16 to 6.18; 0: the kernel's 256 KiB). Without it all data are, but for preallocated
        ranges, which have none.

    Returns
    -------
    pandas.DataFrame
        A row for each file that refers to an extent (uint64, bytes): ``subvolume`` (id), ``path``
        (in it), ``inode``; ``extents`` (file extents), ``fragments`` (runs of them that lie one
        behind the other on disk), ``referenced`` (bytes of the file in them), ``disk`` (what these
        data extents take), ``unreferenced`` (their bytes that no file of any subvolume refers to,
        uncompressed); ``frees`` (bytes on disk that nothing else keeps when this file alone is
        written anew), ``writes`` (bytes on disk that new extents take; of compressed ones an
        estimate: as much as they take now), ``unshares`` (those of them that others keep where they
        were, too), ``saves`` (``frees - writes``, int64).
        By references a row for each data extent: ``disk_bytenr``, ``disk_num_bytes``,
        ``references`` (file extents, counted in each subvolume), ``items`` (those of a leaf that
        subvolumes share once), ``subvolumes`` (how many), ``refs`` (as the extent tree counts),
        ``unreferenced``, and ``subvolume``, ``path``, ``inode`` of one file that refers to it.
        Deleted subvolumes that wait to be freed keep nothing here.

    Raises
    ------
    SubvolumeNotFoundError, NoSuchFileError
        When there is no such subvolume or file.
    ValueError
        For another `by`, a `path` without a subvolume, a threshold with ``references``.
    CorruptImageError
        When a block cannot be read, or a file extent is impossible or refers to no extent.
    """
    if by not in RANKS:
        raise ValueError(f"by is one of {', '.join(RANKS)}, not {by!r}")
    if path is not None and subvolume is None:
        raise ValueError("a path needs a subvolume")
    if threshold is not None and by == "references":
        raise ValueError("a threshold is of what is written anew: references know none")
    if threshold is not None and threshold < 0:
        raise ValueError(f"a threshold is no less than 0 bytes: {threshold}")
    chosen = None if subvolume is None else fs.subvolume(subvolume)
    found = _Waste(fs)
    if by == "references":
        return found.by_references(chosen, path)
    return found.by_files(chosen, path, threshold, _FIRST[by])


class _Waste:
    """Data extents of a filesystem, and which of them one file alone keeps."""

    def __init__(self, fs: Filesystem) -> None:
        self.fs = fs
        self.all = References(fs)
        forest, rows = self.all.forest, self.all.rows
        self.count = len(self.all.extents.start)
        self.row = self.all.extents.row
        labels = [at if root.stays else NOBODY for at, root in enumerate(forest.roots)]
        owner = forest.single(np.array(labels, np.int64))[0][self.all.leaf]
        self.kept = owner != NOBODY
        inode = np.where(self.kept, rows["inode"].astype(np.int64), NOBODY)
        self.only_root = single_label(self.row, owner, self.count)
        self.only_inode = single_label(self.row, inode, self.count)
        self.times = np.bincount(self.row[self.kept], minlength=self.count)
        size = np.zeros(self.count, np.uint64)
        size[self.row] = rows["size"]
        kept = rows[self.kept]
        self.unreferenced = size - covered(
            self.row[self.kept], kept["offset"], kept["offset"] + kept["length"], self.count
        )

    def _rows_of(self, place: Place) -> Rows:
        """Return the file extents of a subvolume, by inode and place in the file."""
        here = np.flatnonzero(self.all.forest.reached({place.sub.id})[0][self.all.leaf])
        here = here[place.wants(self.all.rows["inode"][here])]
        rows = self.all.rows[here]
        return here[np.lexsort((rows["start"], rows["inode"]))]

    # ------------------------------------------------------------------------------- files ------

    def by_files(
        self,
        chosen: Subvolume | None,
        path: str | bytes | int | None,
        threshold: int | None,
        first: list[str],
    ) -> pd.DataFrame:
        """Return the table of files, ranked by some columns."""
        import pandas as pd

        subs = [chosen] if chosen is not None else [
            sub for sub in map(self.fs.subvolume, self.fs.subvolume_ids) if not sub.is_read_only
        ]  # fmt: skip
        parts = [self._files(Place.of(sub, path), threshold) for sub in subs]
        table = pd.concat(parts, ignore_index=True)
        table["saves"] = table["frees"].astype("int64") - table["writes"].astype("int64")
        order = [*first, "subvolume", "path"]
        ascending = [*([False] * len(first)), True, True]
        return table.sort_values(order, ascending=ascending, ignore_index=True, kind="stable")

    def _files(self, place: Place, threshold: int | None) -> pd.DataFrame:
        import pandas as pd

        at = self._rows_of(place)
        rows, extent = self.all.rows[at], self.row[at]
        inodes, starts, file = np.unique(rows["inode"], return_index=True, return_inverse=True)
        written = self._written(place.sub, rows, starts, threshold)
        stored = _as_stored(rows, written, self.fs.image.sectorsize)
        columns = Sums(file, len(inodes))
        root = [root.id for root in self.all.forest.roots].index(place.sub.id)
        alone = (self.only_root[extent] == root) & (
            self.only_inode[extent] == rows["inode"].astype(np.int64)
        )
        whole = np.bincount(extent[written == rows["length"]], minlength=self.count)
        freed = alone & (whole[extent] == self.times[extent])
        # of each data extent the first row of the file counts
        _, once = np.unique(file * max(1, self.count) + extent, return_index=True)
        length = self.all.extents.length[extent]
        of_extents = Sums(file[once], len(inodes))
        numbers = {
            "extents": columns.of(np.ones(len(at), np.uint64)),
            "fragments": columns.of(_begins(rows, file)),
            "referenced": columns.of(rows["length"]),
            "disk": of_extents.of(length[once]),
            "unreferenced": of_extents.of(self.unreferenced[extent][once]),
            "frees": of_extents.of(np.where(freed, length, 0)[once]),
            "writes": columns.of(stored),
            "unshares": columns.of(np.where(alone, 0, stored)),
        }
        paths = [place.text(ino) for ino in inodes.tolist()]
        return pd.DataFrame(
            {
                "subvolume": np.full(len(inodes), place.sub.id, np.uint64),
                "path": pd.Series(paths, dtype="object"),
                "inode": inodes,
                **{name: numbers[name].astype(np.uint64) for name in _NUMBERS},
            }
        )

    def _written(
        self, sub: Subvolume, rows: npt.NDArray[np.void], starts: Rows, threshold: int | None
    ) -> U64:
        """Return the bytes of each file extent that are written anew."""
        data = rows["type"] == FileExtentType.REG
        if threshold is None:
            return np.where(data, rows["length"], 0).astype(np.uint64)
        written = np.zeros(len(rows), np.uint64)
        for first, last in zip(starts, [*starts[1:], len(rows)], strict=True):
            ranges = _moved(sub, int(rows["inode"][first]), threshold)
            if ranges:
                part = rows[first:last]
                ends = part["start"] + part["length"]
                written[first:last] = _overlap(part["start"], ends, np.array(ranges, np.uint64))
        return written

    # --------------------------------------------------------------------------- references ------

    def by_references(
        self, chosen: Subvolume | None, path: str | bytes | int | None
    ) -> pd.DataFrame:
        """Return the table of extents."""
        import pandas as pd

        keepers, extents, rows = Keepers(self.all), self.all.extents, self.all.rows
        place = None if chosen is None else Place.of(chosen, path)
        wanted = np.unique(self.row[self.kept if place is None else self._rows_of(place)])
        per_row = how_many_bits(keepers.blocks[0])[self.all.leaf]
        references = np.zeros(self.count, np.int64)
        np.add.at(references, self.row, per_row)
        order = wanted[np.lexsort((extents.start[wanted], -references[wanted]))]
        named = self._one_file_each(keepers, order, place)
        return pd.DataFrame(
            {
                "disk_bytenr": extents.start[order],
                "disk_num_bytes": extents.length[order],
                "references": references[order].astype(np.uint64),
                "items": self.times[order].astype(np.uint64),
                "subvolumes": how_many_bits(keepers.extents)[order].astype(np.uint64),
                "refs": extents.refs[order],
                "unreferenced": self.unreferenced[order],
                "subvolume": named[0],
                "path": pd.Series(named[1], dtype="object"),
                "inode": rows["inode"][named[2]],
            }
        )

    def _one_file_each(
        self, keepers: Keepers, wanted: Rows, place: Place | None
    ) -> tuple[U64, list[str], Rows]:
        """Name a file of each extent: subvolume, path and row; of the oldest that has it."""
        row_of, root_of = np.full(self.count, -1), np.zeros(self.count, np.uint64)
        for number in keepers.ids if place is None else [place.sub.id]:
            if place is None:
                new = np.flatnonzero(self.all.forest.reached({number})[0][self.all.leaf])
            else:
                new = self._rows_of(place)
            # of an extent the row that is assigned last counts, so the first one
            new = new[row_of[self.row[new]] < 0][::-1]
            row_of[self.row[new]], root_of[self.row[new]] = new, number
        rows, roots = row_of[wanted], root_of[wanted]
        places = {} if place is None else {place.sub.id: place}
        for number in np.unique(roots).tolist():
            places.setdefault(number, Place.of(self.fs.subvolume(number), None))
        inodes = self.all.rows["inode"][rows]
        texts = [places[root].text(ino)
                 for root, ino in zip(roots.tolist(), inodes.tolist(), strict=True)]  # fmt: skip
        return roots, texts, rows


def _as_stored(rows: npt.NDArray[np.void], written: U64, sectorsize: int) -> U64:
    """Return the bytes on disk of what is written anew, compressed as much as it is now."""
    sector, size = np.uint64(sectorsize), np.maximum(rows["size"], 1)
    # both are 128 KiB at most
    packed = np.where(rows["compression"] != 0, written * rows["disk_num_bytes"], 0)
    packed = (packed + size * sector - 1) // (size * sector) * sector
    stored: U64 = np.where(rows["compression"] != 0, packed, written).astype(np.uint64)
    return stored


def _begins(rows: npt.NDArray[np.void], file: Rows) -> npt.NDArray[np.bool_]:
    """Tell which file extents do not lie right behind the one before, on disk and in the file."""
    plain = rows["compression"] == 0
    at = rows["disk_bytenr"] + np.where(plain, rows["offset"], 0)
    end = at + np.where(plain, rows["length"], rows["disk_num_bytes"])
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (
        (file[1:] != file[:-1])
        | (at[1:] != end[:-1])
        | (rows["start"][1:] != (rows["start"] + rows["length"])[:-1])
    )
    return begins


def _moved(sub: Subvolume, ino: int, threshold: int) -> list[tuple[int, int]]:
    """Return the ranges of a file that defragmentation writes anew."""
    kind = int(ItemType.EXTENT_DATA)
    extents = [
        Extent(item.key.offset, file_extent(item.data))
        for item in sub.tree.items((ino, kind, 0), (ino, kind, MAX_KEY.offset))
    ]
    sectorsize = sub.fs.image.sectorsize
    ends = [align(extent.end, sectorsize) for extent in extents]
    starts = [extent.start for extent in extents]

    def between(low: int, high: int) -> list[Extent]:
        return extents[bisect_left(ends, low + 1) : bisect_left(starts, high)]

    layout = Layout(between, lambda low, high: False, sub.inode(ino).size, sectorsize, MAX_INLINE)
    clusters = fragmented(layout, 0, layout.size, threshold)
    return [target for targets in clusters for target in targets]


def _overlap(start: U64, end: U64, ranges: U64) -> U64:
    """Return how many bytes of each [start, end) lie in ranges, which ascend and do not meet."""
    low, high = ranges[:, 0], ranges[:, 1]
    before = np.concatenate([[0], np.cumsum(high - low)]).astype(np.uint64)

    def up_to(at: U64) -> U64:
        row = np.searchsorted(low, at, "right")
        last = np.maximum(row, 1) - 1
        inside = np.minimum(at, high[last]) - np.minimum(low[last], at)
        total: U64 = np.where(row > 0, before[last] + inside, 0).astype(np.uint64)
        return total

    overlap: U64 = up_to(end) - up_to(start)
    return overlap
