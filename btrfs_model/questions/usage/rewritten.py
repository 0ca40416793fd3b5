# SPDX-License-Identifier: GPL-2.0-only
"""What files take, and how large the next send is, once their data are written anew or shared.

Both are carried out in memory, and nothing is written to the image. A snapshot of the subvolume is
taken as it is, and another one once it was changed; each is sent.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.base.arguments import checked
from btrfs_model.mount.files.defrag import PROGS_THRESHOLD
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.native.items import select
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_DATA, FileExtentType
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.patches import KERNEL
from btrfs_model.questions.send.ioctl import send
from btrfs_model.questions.usage.items import file_extents
from btrfs_model.questions.usage.places import Place

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.behaviour import Behaviour
    from btrfs_model.cost.machine import Machine

BLOCK: Final = 128 << 10
"""Bytes of a block that ``duperemove`` compares, where nobody says how many."""
_MOST: Final = 16 << 20
"""BTRFS_MAX_DEDUPE_LEN: what a kernel before 4.18 shares in one call, and tools ask for."""

_WHERE: Final = ["start", "length", "disk_bytenr", "offset", "compression"]
"""Of file extents: what it is that changes where a file is rewritten."""

Rows = npt.NDArray[np.void]
_Places = list[tuple[int, int, int]]


@dataclass(frozen=True)
class RewritePlan:
    """What becomes of files that are written anew, or share their data.

    Attributes
    ----------
    files : pandas.DataFrame
        A row for each file that changes: ``path`` (in the subvolume), ``inode``, ``extents`` and
        ``extents_after`` (file extents that are no holes), ``shared`` (bytes that a dedupe gives to
        the file of another place; 0 for a defragmentation).
    sends : pandas.DataFrame
        A row for each send of a snapshot that is taken now: ``parent`` (a snapshot of the
        subvolume; empty for a full send), ``bytes`` and ``seconds`` as the files are, ``after`` and
        ``seconds_after`` once they were changed.
    data, data_after : int
        Bytes of data that all subvolumes take together.
    """

    files: pd.DataFrame
    sends: pd.DataFrame
    data: int
    data_after: int


@checked
def defragment_plan(
    image: str | os.PathLike[str],
    subvolume: str | bytes | int = "",
    path: str | bytes | int | None = None,
    *,
    threshold: int = PROGS_THRESHOLD,
    compress: str = "",
    behaviour: str | Behaviour = KERNEL,
    machine: str | Machine | None = None,
) -> RewritePlan:
    """Tell what ``btrfs filesystem defragment`` would do, and how large the next send is then.

    Defragmentation does not keep sharing: what a snapshot has as well lies on the device twice, and
    the next incremental send has it all.

    Parameters
    ----------
    image : str or os.PathLike
        The file that the filesystem is in.
    subvolume : str, bytes or int
        Path or id of the subvolume; the top without it.
    path : str, bytes or int, optional
        A file of it, or a directory with all that is below it; all files without it.
    threshold : int
        ``-t``, bytes: extents as large stay. Without it the 32 MiB of btrfs-progs.
    compress : str
        ``-c``: ``zlib``, ``lzo`` or ``zstd``.
    behaviour : str or Behaviour
        The kernel.
    machine : str or Machine, optional
        What the times are those of; the native machine without it.

    Returns
    -------
    RewritePlan
        The files that change, the sends, and the data.

    Raises
    ------
    SubvolumeNotFoundError, NoSuchFileError
        When there is no such subvolume or file.
    OSError
        EROFS for a read-only subvolume, ENOSPC where there is no room.
    ValueError
        For another `compress`.
    UnsupportedError
        For what the model does not write.
    """
    if compress not in ("", "zlib", "lzo", "zstd"):
        raise ValueError(f"compress is one of zlib, lzo, zstd, not {compress!r}")

    def rewrite(one: Changed) -> dict[int, int]:
        for ino in sorted(one.files):
            with _refused():
                one.fs.defragment(one.full(ino), threshold=threshold, compress=compress)
        return {}

    return _plan(image, subvolume, path, behaviour, machine, rewrite)


@checked
def dedupe_plan(
    image: str | os.PathLike[str],
    subvolume: str | bytes | int = "",
    path: str | bytes | int | None = None,
    *,
    block: int = BLOCK,
    behaviour: str | Behaviour = KERNEL,
    machine: str | Machine | None = None,
) -> RewritePlan:
    """Tell what a dedupe of the blocks of files would free, and how large the next send is then.

    Files are cut into blocks. A block that another one had before it, in the order of inode
    numbers, is given to it by FIDEDUPERANGE, neighbours in one call. The last block of a file,
    which may be smaller, is compared with last ones of the same size. Holes, preallocated ranges
    and inline data are left out, and so is what is shared already.

    Parameters
    ----------
    image, subvolume, path, behaviour, machine
        As for :func:`defragment_plan`.
    block : int
        Bytes of a block: a multiple of the sector size.

    Returns
    -------
    RewritePlan
        The files that change, the sends, and the data.

    Raises
    ------
    SubvolumeNotFoundError, NoSuchFileError
        When there is no such subvolume or file.
    ValueError
        For another size of a block.
    OSError
        EROFS for a read-only subvolume, ENOSPC where there is no room.
    UnsupportedError
        For what the model does not write.
    """

    def share(one: Changed) -> dict[int, int]:
        sectorsize = one.fs.sectorsize
        if block <= 0 or block % sectorsize:
            raise ValueError(f"block {block}: a block has a multiple of {sectorsize} bytes")
        shared: dict[int, int] = {}
        for same in duplicates(one, block):
            source, target = one.full(same.source), one.full(same.target)
            with _refused():
                if one.fs.dedupe_range(source, target, same.start, same.to, same.length):
                    shared[same.target] = shared.get(same.target, 0) + same.length
        return shared

    return _plan(image, subvolume, path, behaviour, machine, share)


@contextmanager
def _refused() -> Iterator[None]:
    """Go on behind a file that the kernel refuses, as tools do.

    An immutable one (EPERM), and one of two of which only the other has checksums (EINVAL).
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EINVAL):
            raise


class Changed:
    """A subvolume in memory whose files are to be changed.

    `fs`: the filesystem.
    `files`: of each regular file that was asked for its path in the subvolume, and its size.
    Raises OSError: EROFS, for a subvolume that is read-only.
    """

    def __init__(
        self, fs: WritableFilesystem, subvolume: str | bytes | int, path: str | bytes | int | None
    ) -> None:
        self.fs, self._sub = fs, fs.subvolume(subvolume)
        if self._sub.is_read_only:
            name = self._sub.path or self._sub.id
            raise OSError(errno.EROFS, f"{os.strerror(errno.EROFS)}: subvolume {name}", fs.path)
        place = Place.of(self._sub, path)
        listing = fs.listing(self._sub, content=False).drop_duplicates("ino")
        regular = listing[listing["mode"].map(stat.S_ISREG)]
        wanted = regular[place.wants(regular["ino"].to_numpy(np.uint64))]
        self.files = {
            ino: (os.fsencode(name), size)
            for ino, name, size in zip(
                wanted["ino"].tolist(), wanted["path"], wanted["size"].tolist(), strict=True
            )
        }

    def full(self, ino: int) -> bytes:
        """Return the path of a file from the top of the filesystem."""
        above, name = os.fsencode(self._sub.path), self.files[ino][0]
        return above + b"/" + name if above else name

    def rows(self) -> dict[int, Rows]:
        """Return the file extents of each file that have data on disk, by their place in it."""
        sub = self.fs.subvolume(self._sub.id)
        columns = sub.tree.scan()
        items = select(columns, columns["type"] == ItemType.EXTENT_DATA)
        rows = file_extents(self.fs.image, items, sub.id)
        rows = rows[(rows["disk_bytenr"] != 0) & (rows["type"] == FileExtentType.REG)]
        inodes = np.array(sorted(self.files), np.uint64)
        low, high = (np.searchsorted(rows["inode"], inodes, side) for side in ("left", "right"))
        found = zip(inodes.tolist(), low.tolist(), high.tolist(), strict=True)
        return {ino: rows[first:last] for ino, first, last in found}

    def data(self) -> int:
        """Return the bytes of all data extents."""
        groups = self.fs.writer.groups()
        return sum(group.used for group in groups if group.flags & BTRFS_BLOCK_GROUP_DATA)

    def sends(
        self, behaviour: str | Behaviour, machine: str | Machine | None
    ) -> list[tuple[str, int, float]]:
        """Take a snapshot, and tell its sends: the parent, bytes and seconds."""
        fs, top = self.fs, self.fs.subvolume("")
        name = next(
            name for number in itertools.count(1)
            if top.lookup(top.root_dir, name := b"next%d" % number) is None
        )  # fmt: skip
        own = [one for one in map(fs.subvolume, fs.subvolume_ids)
               if one.is_read_only and one.parent_uuid == self._sub.uuid]  # fmt: skip
        fs.snapshot(os.fsencode(self._sub.path), name)
        own.sort(key=lambda one: (one.item.ctransid, one.id))
        found = []
        for parent in [None, *own]:
            sent = send(fs, name, parent and parent.id, behaviour=behaviour, estimate=True)
            seconds = float(f"{sent.time(machine).seconds:.3g}")
            found.append((parent.path if parent else "", sent.size, seconds))
        return found


def _plan(
    image: str | os.PathLike[str],
    subvolume: str | bytes | int,
    path: str | bytes | int | None,
    behaviour: str | Behaviour,
    machine: str | Machine | None,
    change: Callable[[Changed], dict[int, int]],
) -> RewritePlan:
    """Look at the subvolume as it is, then change it and look again.

    `change`: changes files; returns the bytes that it shared of each.
    """
    import pandas as pd

    with WritableFilesystem.load(image, behaviour=behaviour) as fs:
        one = Changed(fs, subvolume, path)
        data, sends = one.data(), one.sends(behaviour, machine)
    with WritableFilesystem.load(image, behaviour=behaviour) as fs:
        one = Changed(fs, subvolume, path)
        before = one.rows()
        shared = change(one)
        fs.sync()
        after = one.rows()
        data_after, sends_after = one.data(), one.sends(behaviour, machine)
    rows = [
        (os.fsdecode(name), ino, len(before[ino]), len(after[ino]), shared.get(ino, 0))
        for ino, (name, _) in sorted(one.files.items())
        if not np.array_equal(before[ino][_WHERE], after[ino][_WHERE])
    ]
    columns = ["path", "inode", "extents", "extents_after", "shared"]
    files = pd.DataFrame(rows, columns=columns)
    both = [(parent, size, size_after, seconds, seconds_after)
            for (parent, size, seconds), (_, size_after, seconds_after)
            in zip(sends, sends_after, strict=True)]  # fmt: skip
    columns = ["parent", "bytes", "after", "seconds", "seconds_after"]
    return RewritePlan(files, pd.DataFrame(both, columns=columns), data, data_after)


class Same(NamedTuple):
    """Bytes of a file that another one, or the file itself, has before."""

    source: int
    start: int
    target: int
    to: int
    length: int


def duplicates(one: Changed, block: int) -> Iterator[Same]:
    """Yield what is there twice, neighbours together."""
    first: dict[tuple[bytes, int], tuple[int, int, _Places]] = {}
    for ino, rows in one.rows().items():
        run: Same | None = None
        for at, data, places in _blocks(one, ino, rows, block):
            key = hashlib.blake2b(data, digest_size=16).digest(), len(data)
            source, start, there = first.setdefault(key, (ino, at, places))
            if there == places:  # the block itself, or shared already
                continue
            same = Same(source, start, ino, at, len(data))
            if run is not None and _joins(run, same):
                run = run._replace(length=run.length + same.length)
                continue
            if run is not None:
                yield run
            run = same
        if run is not None:
            yield run


def _joins(run: Same, same: Same) -> bool:
    return (
        (run.source, run.start + run.length, run.to + run.length)
        == (same.source, same.start, same.to)
        and run.length + same.length <= _MOST
    )  # fmt: skip


def _blocks(one: Changed, ino: int, rows: Rows, block: int) -> Iterator[tuple[int, bytes, _Places]]:
    """Yield the blocks of a file that have data in all of them: start, bytes, places on disk."""
    size = one.files[ino][1]
    starts, ends = rows["start"], rows["start"] + rows["length"]
    for at in range(0, size, block):
        end = min(at + block, size)
        first, last = np.searchsorted(ends, at, "right"), np.searchsorted(starts, end, "left")
        here = rows[first:last]
        places, reached = [], at
        for start, length, disk, offset in zip(
            here["start"].tolist(), here["length"].tolist(), here["disk_bytenr"].tolist(),
            here["offset"].tolist(), strict=True,
        ):  # fmt: skip
            if start > reached:
                break
            reached = min(start + length, end)
            places.append((reached, disk, offset - start))
        if reached == end:
            yield at, one.fs.read(one.full(ino), at, end - at), places
