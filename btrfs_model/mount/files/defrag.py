# SPDX-License-Identifier: GPL-2.0-only
"""Defragmentation: small extents beside each other become dirty, and are written anew together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from btrfs_model.mount.files.file_item import Extent, align, extents_between
from btrfs_model.mount.files.pages import MAX_EXTENT_SIZE
from btrfs_model.mount.files.write import make_dirty, read_live
from btrfs_model.mount.files.writeback import writeback
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.mount import Mount

_CLUSTER: Final = 256 << 10
"""Bytes that are looked at together."""
_MAX_COMPRESSED: Final = 128 << 10
THRESHOLD: Final = 256 << 10
"""An extent of so many bytes is large enough, where nobody says how many."""
PROGS_THRESHOLD: Final = 32 << 20
"""What `btrfs filesystem defragment` asks for then."""


@dataclass
class Layout:
    """What defragmentation looks at of a file.

    `between`: the file extents that touch [start, end), ascending.
    `waits`: whether any of [start, end) is to be written anyway.
    `size`: of the file, bytes.
    `sectorsize`, `max_inline`: of the filesystem, and of the mount.
    """

    between: Callable[[int, int], list[Extent]]
    waits: Callable[[int, int], bool]
    size: int
    sectorsize: int
    max_inline: int


def defragment(
    fs: Mount, inode: LiveInode, start: int, end: int, threshold: int, compress: str
) -> None:
    """Make what is fragmented in [start, end) dirty, compressed data whatever their size.

    `threshold`: bytes of an extent that is large enough; 0 is the kernel's own.
    `compress`: the algorithm to write by; then all is written, and at once.
    Raises OSError: ENOSPC, as :func:`~btrfs_model.mount.files.writeback.writeback`.

    ``btrfs_defrag_file()`` (Linux 6.18; since 5.16), where each file extent item is an extent map.
    """
    layout = Layout(
        lambda low, high: extents_between(fs, inode, low, high),
        lambda low, high: bool(inode.pages.ranges(low, high)),
        inode.pages.i_size, fs.sectorsize, fs.options.max_inline,
    )  # fmt: skip
    for targets in fragmented(layout, start, end, threshold, every=bool(compress)):
        inode.defragged = [*inode.defragged, *targets]
        for low, high in targets:
            make_dirty(fs, inode, low, read_live(fs, inode, low, high))
    if compress:
        inode.defrag_compress = compress
        try:
            writeback(fs, inode)
        finally:
            inode.defrag_compress = ""


def fragmented(
    file: Layout, start: int, end: int, threshold: int, *, every: bool = False
) -> Iterator[list[tuple[int, int]]]:
    """Yield the ranges of [start, end) to write anew, those of a cluster at a time.

    `threshold`: as for :func:`defragment`.
    `every`: whether extents are written anew that are large, or alone.
    """
    at = start // file.sectorsize * file.sectorsize
    last = align(min(end, file.size), file.sectorsize)
    while at < last:
        stop = min(at + _CLUSTER, last)
        targets, scanned = _targets(file, at, stop, threshold or THRESHOLD, every)
        yield targets
        at = max(stop, scanned)


def _targets(
    file: Layout, start: int, end: int, threshold: int, every: bool
) -> tuple[list[tuple[int, int]], int]:
    """Return the ranges to write anew, and where to go on (``defrag_collect_targets()``)."""
    found: list[tuple[int, int]] = []
    scanned = start
    extents = file.between(start, end + threshold)
    for extent, behind in itertools.zip_longest(extents, extents[1:]):
        at = max(start, extent.start)
        stop = align(extent.end, file.sectorsize)
        if at >= end:
            break
        scanned = max(scanned, stop)
        if not _may_be_target(file, extent, at, stop):
            continue
        joins = bool(found) and found[-1][1] == at
        if not every and not extent.is_inline:
            if extent.length >= min(threshold, _most(extent)):
                continue
            if not (joins or _joins(file, extent, behind, threshold)):
                continue
        stop = min(stop, end)
        if joins:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((at, stop))
    return found, end if found else scanned


def _may_be_target(file: Layout, extent: Extent, start: int, end: int) -> bool:
    if extent.is_inline:
        return file.sectorsize > file.max_inline
    if not extent.disk_bytenr or extent.is_prealloc:
        return False
    return not file.waits(start, end)


def _joins(file: Layout, extent: Extent, behind: Extent | None, threshold: int) -> bool:
    """Whether the next extent can become one with it (``defrag_check_next_extent()``)."""
    if extent.end >= file.size or behind is None or behind.start != extent.end:
        return False
    if behind.is_inline or not behind.disk_bytenr or behind.is_prealloc:
        return False
    return behind.length < min(threshold, _most(extent))


def _most(extent: Extent) -> int:
    """Return the bytes of the largest extent of its kind."""
    return _MAX_COMPRESSED if extent.regular.compression else MAX_EXTENT_SIZE
