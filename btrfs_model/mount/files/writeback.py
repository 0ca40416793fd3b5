# SPDX-License-Identifier: GPL-2.0-only
"""Writeback: dirty blocks of a file become extents.

A contiguous dirty range at a time (``btrfs_run_delalloc_range()``, Linux 6.18) goes one of three
ways, and each extent is finished (its item, its checksums, the inode) before the next is begun:

- in place: into preallocated extents, where the file ever had some, and whatever it has where it
  has NODATACOW (:func:`_run_delalloc_nocow`);
- compressed, in extents of 128 KiB (:func:`_compress_file_range`);
- as it is, in extents as large as the allocator gives, up to 128 MiB (:func:`_cow_file_range`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import numpy as np

from btrfs_model.mount.files.bytes import insert_csums, punch, store, store_bytes, zero_sums
from btrfs_model.mount.files.compress import (
    COMPRESSION_TYPES,
    MAX_UNCOMPRESSED,
    compress,
    compress_told,
)
from btrfs_model.mount.files.compress_heuristic import may_compress
from btrfs_model.mount.files.file_item import (
    REGULAR,
    Extent,
    align,
    extent_key,
    extents_between,
    has_nothing,
    insert_inline,
    insert_regular,
    note_modified,
    pack_inline,
    pack_regular,
)
from btrfs_model.mount.files.pages import MAX_EXTENT_SIZE, Whole
from btrfs_model.mount.files.prealloc import can_nocow, mark_extent_written
from btrfs_model.mount.files.run import Block, fills_holes, pass_time, write_run
from btrfs_model.mount.inode import mark_inode_dirty, mark_inodes_dirty
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.mount.log.log_tree import need_full_sync
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.space.block_group import ensure_metadata, stays_enough
from btrfs_model.mount.space.data import reserve_data
from btrfs_model.mount.space.quota_reserve import book
from btrfs_model.native.bulk import WRITTEN_FILE, write_files
from btrfs_model.native.data import sector_sums
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.items import file_extent
from btrfs_model.ondisk.keys import U64_MAX
from btrfs_model.patches import Patch

# So many files are written back at once; each takes the room of so many small calls.
_MOST: Final = 64
_CALLS: Final = 2
_ASYNC_CHUNK: Final = 512 << 10
_IN_PLACE: Final = int(InodeFlag.PREALLOC | InodeFlag.NODATACOW)
_NEVER_COMPRESSED: Final = int(InodeFlag.NODATACOW | InodeFlag.NODATASUM)


def writeback(fs: Mount, inode: LiveInode, start: int = 0, end: int = U64_MAX) -> None:
    """Write dirty blocks of [start, end) back and finish their extents.

    `start`, `end`: bytes; what is dirty there and contiguous with it behind is written. Of what is
    written in place or as it is, extents that begin behind `end` are left: the kernel has made room
    for them then, but nobody waits for their pages.
    Raises OSError: ENOSPC, when there is no room; what was not written stays dirty.
    """
    pages = inode.pages
    if not pages.is_dirty:
        return
    # what waits had its room reserved when it was written
    ensure_metadata(fs, from_reserve=True)
    last = 0
    for low, high in pages.delalloc_ranges(start // fs.sectorsize * fs.sectorsize, end):
        _run_delalloc_range(fs, inode, low, high, end)
        last = high
    if start == 0 and end == U64_MAX:
        inode.writeback_index = last
    if not pages.is_dirty:
        fs.dirty_files.pop((inode.root, inode.ino), None)


def writeback_cyclic(fs: Mount, inode: LiveInode) -> None:
    """Write a file back from where the last time ended, and then what is before.

    ``extent_write_cache_pages()`` with ``range_cyclic``: so flushers write that sync(2) wakes.
    Raises OSError: as :func:`writeback`.
    """
    if inode.writeback_index:
        writeback(fs, inode, inode.writeback_index)
    if inode.pages.is_dirty:
        writeback(fs, inode)
    else:
        inode.writeback_index = 0


def write_past_cache(fs: Mount, inode: LiveInode, start: int, end: int) -> None:
    """Write back what a direct write put into [start, end) (``btrfs_direct_write()``, Linux 6.15).

    Data with checksums went through the page cache, with what is contiguous there; others are an
    extent of their own, as they are.
    Raises OSError: as :func:`writeback`.
    """
    if not inode.item.flags & InodeFlag.NODATASUM:
        writeback(fs, inode, start, end)
        return
    ensure_metadata(fs, from_reserve=True)
    low = start // fs.sectorsize * fs.sectorsize
    _run_delalloc_range(fs, inode, low, align(end, fs.sectorsize), end)
    if not inode.pages.is_dirty:
        fs.dirty_files.pop((inode.root, inode.ino), None)


def flush_delalloc(fs: Mount, root: int | None = None, *, cyclic: bool = False) -> None:
    """Write data back: of a subvolume, or of all; `cyclic`: as :func:`writeback_cyclic`."""
    if alike := fs.reservations.alike:
        for _ in alike.write(alike.count, together=True):
            pass
    files = [inode for inode in fs.dirty_files.values() if root is None or inode.root == root]
    write_files_back(fs, files, cyclic=cyclic)


def write_files_back(fs: Mount, files: list[LiveInode], *, cyclic: bool = False) -> None:
    """Write files back, one after the other; runs of them at once where each is one plain extent.

    `cyclic`: each as :func:`writeback_cyclic` does.
    Raises OSError: as :func:`writeback`.
    """
    write = writeback_cyclic if cyclic else writeback
    for (root, whole), run in itertools.groupby(files, lambda f: (f.root, _is_whole(fs, f))):
        left = list(run)
        while whole and left and stays_enough(fs, _CALLS * _extents(left[:_MOST])):
            written = _write_whole(fs, root, left[:_MOST])
            del left[:written]
            if written < _MOST and left:
                # there is no room in one piece
                write(fs, left.pop(0))
        for inode in left:
            write(fs, inode)


def _is_whole(fs: Mount, inode: LiveInode) -> bool:
    """Whether a file has nothing on disk, and all of it waits to become extents as it is."""
    pages, options = inode.pages, fs.options
    return (
        pages.whole is not None
        and pages.whole.size == pages.i_size
        and has_nothing(fs, inode)
        and not (inode.item.flags or inode.prop_compress or options.compress)
        and not (options.compress_force or fs.quotas.enabled)
    )


def _extents(files: list[LiveInode]) -> int:
    """Return how many extents such files become."""
    return sum(-(-inode.pages.i_size // MAX_EXTENT_SIZE) for inode in files)


def _write_whole(fs: Mount, root: int, files: list[LiveInode]) -> int:
    """Write such files back; returns how many, up to one that finds no room in one piece.

    Of that one, extents before the place are written too.
    """
    inline, parts = inline_limit(fs), [part for inode in files for part in _parts(inode)]
    rows = np.zeros(len(parts), WRITTEN_FILE)
    rows["ino"] = [inode.ino for inode, _, _ in parts]
    rows["offset"] = [start for _, start, _ in parts]
    rows["size"] = [data.size for _, _, data in parts]
    rows["pieces"] = [data.pieces.place(data.first) for _, _, data in parts]
    rows["count"] = [data.many for _, _, data in parts]
    rows["in_item"] = [start + data.size <= inline for _, start, data in parts]
    in_class = Patch.ALLOC_SIZE_CLASS in fs.behaviour
    written = write_files(fs.writer, root, rows, in_class=in_class, file=fs.memory.file)
    done, changed = 0, {}
    for at, (inode, start, data) in enumerate(parts[:written], 1):
        item, pages, length = inode.item, inode.pages, data.size
        end = start + length
        if end <= inline:
            need_full_sync(fs, inode)
        else:
            length = align(length, fs.sectorsize)
            note_modified(fs, inode, start, start + length)
        item.nbytes += length
        item.size = pages.i_size
        if end == pages.i_size:
            pages.clean_whole()
            inode.writeback_index = align(end, fs.sectorsize)
            done += 1
        elif at == written:
            pages.clean(0, end)
        changed[inode.ino] = inode
        if end == pages.i_size:
            del fs.dirty_files[root, inode.ino]
    mark_inodes_dirty(fs, root, list(changed.values()), written)
    return done


def _parts(inode: LiveInode) -> list[tuple[LiveInode, int, Whole]]:
    """Return what each extent of such a file gets: from which byte on, and the data."""
    whole, size = inode.pages.whole, inode.pages.i_size
    assert whole is not None
    if size <= MAX_EXTENT_SIZE:
        return [(inode, 0, whole)]
    starts = range(0, size, MAX_EXTENT_SIZE)
    return [
        (inode, start, whole.part(start, min(start + MAX_EXTENT_SIZE, size))) for start in starts
    ]


def update_disk_size(fs: Mount, inode: LiveInode) -> None:
    """Set the size that the tree says to what is safe (``btrfs_inode_safe_disk_i_size_write()``).

    With holes as items it must not go beyond data that are not written back yet.
    """
    pages = inode.pages
    size = pages.i_size
    if size and not fs.no_holes:
        known = align(inode.item.size, fs.sectorsize)
        waiting = [r.start for r in pages.ranges(known, U64_MAX)]
        size = min([size, *waiting])
    inode.item.size = size


def _run_delalloc_range(fs: Mount, inode: LiveInode, start: int, end: int, until: int) -> None:
    if Patch.INLINE_FIRST in fs.behaviour and _run_delalloc_inline(fs, inode, start, end):
        return
    if inode.item.flags & _IN_PLACE and not _is_moved(inode, start, end):
        _run_delalloc_nocow(fs, inode, start, end, until)
    elif _may_compress(fs, inode, start, end):
        _run_delalloc_compressed(fs, inode, start, end)
    else:
        _cow_file_range(fs, inode, start, end, until)


def _is_moved(inode: LiveInode, start: int, end: int) -> bool:
    """Whether defragmentation wants any of a range elsewhere (``should_nocow()``)."""
    return any(low < end and start < high for low, high in inode.defragged)


def _finish(fs: Mount, inode: LiveInode, start: int, end: int) -> None:
    """End ``btrfs_finish_one_ordered()``, when item and checksums are there."""
    inode.pages.clean(start, end)
    if inode.defragged and not inode.pages.is_dirty:
        inode.defragged = []
    update_disk_size(fs, inode)
    mark_inode_dirty(fs, inode)


# ------------------------------------------------------------------------------ as it is ------


def _cow_file_range(
    fs: Mount, inode: LiveInode, start: int, end: int, until: int = U64_MAX, *, inline: bool = True
) -> None:
    """``cow_file_range()``: new extents for a range, an inline one where it is small enough."""
    inline = inline and Patch.INLINE_FIRST not in fs.behaviour
    if inline and _try_inline(fs, inode, start, end, None, 0):
        return
    while start < min(end, until):
        hint = _allocation_hint(fs, inode, start)
        bytenr, length = reserve_data(fs, end - start, fs.sectorsize, hint)
        sums = store(fs, inode, bytenr, start, start + length)
        payload = pack_regular(fs.transid, REGULAR, bytenr, length, length)
        insert_regular(fs, inode, start, payload, new=True)
        insert_csums(fs, inode, bytenr, sums)
        book(fs, inode.root, length + fs.nodesize)
        _finish(fs, inode, start, start + length)
        start += length


def can_be_inline(fs: Mount, inode: LiveInode, size: int, stored: int) -> bool:
    """Whether the first `size` bytes of a file, as `stored` bytes, may be inline.

    ``can_cow_file_range_inline()``: when they are the whole file, and few.
    """
    return bool(inode.pages.i_size <= size <= fs.sectorsize and stored <= inline_limit(fs))


def inline_limit(fs: Mount) -> int:
    """Return how many bytes an inline extent has at most (``btrfs_data_can_be_inline()``)."""
    return int(min(fs.options.max_inline, fs.inline_room, fs.sectorsize - 1))


def _run_delalloc_inline(fs: Mount, inode: LiveInode, start: int, end: int) -> bool:
    """``run_delalloc_inline()`` (Linux 7.2.7): a file of one block, before all else.

    What is compressed is the whole block, whether that makes it smaller or not. Returns whether it
    is an inline extent now.
    """
    if start or end > fs.sectorsize or end < inode.item.size:
        return False
    pages, kind = inode.pages, compression_of(fs, inode)
    packed = None
    if need_compress(fs, inode, lambda: pages.read(0, fs.sectorsize)):
        found = _pack(fs, inode, kind, 0, fs.sectorsize)
        packed = found[1] if found is not None else None
    return _try_inline(
        fs, inode, start, end, packed, 0 if packed is None else COMPRESSION_TYPES[kind]
    )


def _try_inline(
    fs: Mount, inode: LiveInode, start: int, end: int, packed: bytes | None, compression: int
) -> bool:
    """``cow_file_range_inline()``: True when the range is the whole file and it is in the item."""
    pages = inode.pages
    size = min(pages.i_size, end)
    if start or not can_be_inline(fs, inode, size, size if packed is None else len(packed)):
        return False
    data = pages.read(0, fs.sectorsize)[:size] if packed is None else packed
    payload = pack_inline(fs.transid, size, data, compression)
    insert_inline(fs, inode, payload, fs.sectorsize)
    pages.clean(start, end)
    inode.item.size = size
    mark_inode_dirty(fs, inode)
    return True


def _allocation_hint(fs: Mount, inode: LiveInode, start: int) -> int:
    """Where the next extent lies, or the one before (``btrfs_get_extent_allocation_hint()``).

    The kernel asks the extent maps that it has in memory; the model has all of them.
    """
    near = None if has_nothing(fs, inode) else _neighbour(fs, inode, start)
    if near is None:
        return 0
    if not near.disk_bytenr:
        near = _neighbour(fs, inode, 0)
    return near.disk_bytenr if near is not None else 0


def _neighbour(fs: Mount, inode: LiveInode, start: int) -> Extent | None:
    tree = fs.writer.tree(inode.root)
    before = tree.last(extent_key(inode, start))
    last = None
    if before is not None and before.key[:2] == extent_key(inode, 0)[:2]:
        last = Extent(before.key.offset, file_extent(before.data))
        if last.end > start:
            return last
    behind = tree.first(extent_key(inode, start + 1))
    if behind is not None and behind.key[:2] == extent_key(inode, 0)[:2]:
        return Extent(behind.key.offset, file_extent(behind.data))
    return last


# ---------------------------------------------------------------------------- compressed ------


def compression_of(fs: Mount, inode: LiveInode) -> str:
    """Algorithm for an inode, should it be compressed."""
    return inode.defrag_compress or inode.prop_compress.decode() or fs.options.compress or "zlib"


def need_compress(fs: Mount, inode: LiveInode, data: Callable[[], bytes]) -> bool:
    """Whether to compress (``inode_need_compress()``); `data` gives the first of what there is."""
    flags = inode.item.flags
    if flags & _NEVER_COMPRESSED:
        return False
    if fs.options.compress_force or inode.defrag_compress:
        return True
    if flags & InodeFlag.NOCOMPRESS:
        return False
    if not (fs.options.compress or flags & InodeFlag.COMPRESS or inode.prop_compress):
        return False
    return may_compress(data())


def _may_compress(fs: Mount, inode: LiveInode, start: int, end: int) -> bool:
    if end - start <= fs.sectorsize and Patch.INLINE_FIRST in fs.behaviour:
        return False  # it would save no block

    def data() -> bytes:
        high = min(end, start + MAX_UNCOMPRESSED)
        told = inode.pages.told(start, high)
        return told.sample(high - start) if told else inode.pages.read(start, high)

    return need_compress(fs, inode, data)


def _run_delalloc_compressed(fs: Mount, inode: LiveInode, start: int, end: int) -> None:
    """Compress a range in pieces of 512 KiB, of one pattern as many as there are at once."""
    while start < end:
        done = _compress_told(fs, inode, start, end)
        if not done:
            done = min(_ASYNC_CHUNK, end - start)
            _compress_file_range(fs, inode, start, start + done)
        start += done


def _compress_told(fs: Mount, inode: LiveInode, start: int, end: int) -> int:
    """Write the pieces of a pattern at the start of a range, all alike; returns how many bytes."""
    pages = inode.pages
    first = pages.ranges(start, min(end, pages.i_size))[0]
    count = (first.end - start) // _ASYNC_CHUNK * (_ASYNC_CHUNK // MAX_UNCOMPRESSED)
    told = first.told
    if told is None or first.start > start or not count:
        return 0
    kind, level = compression_of(fs, inode), fs.options.compress_level
    packed = compress_told(
        kind, level, told._replace(length=MAX_UNCOMPRESSED), fs.sectorsize, fs.behaviour
    )
    places = np.arange(count, dtype=np.uint64) * np.uint64(MAX_UNCOMPRESSED) + np.uint64(start)
    if packed is None or not fills_holes(fs, inode, places, MAX_UNCOMPRESSED):
        return 0
    if not _may_compress(fs, inode, start, end):
        return 0
    on_disk = align(len(packed), fs.sectorsize)
    stored = packed.ljust(on_disk, b"\0") if told.stored else None
    block = Block(MAX_UNCOMPRESSED, on_disk, COMPRESSION_TYPES[kind], stored)
    if block.disk_num_bytes + fs.sectorsize > block.length:
        return 0
    # whole pieces: what comes behind is divided as if it had been one at a time
    written = write_run(fs, inode, places, block, together=True)
    if written:
        pass_time(fs, written - 1)
        _finish(fs, inode, start, start + written * MAX_UNCOMPRESSED)
    return written * MAX_UNCOMPRESSED


def _compress_file_range(fs: Mount, inode: LiveInode, start: int, end: int) -> None:
    """``compress_file_range()``: one compressed extent for each 128 KiB, while that helps."""
    pages = inode.pages
    kind = compression_of(fs, inode)
    blocksize, inline_first = fs.sectorsize, Patch.INLINE_FIRST in fs.behaviour
    while start < end:
        actual_end = min(pages.i_size, end)
        total = actual_end - start
        if total <= blocksize and (start or end < inode.item.size):
            break
        if total > 0 and Patch.COMPRESS_WHOLE_BLOCKS in fs.behaviour:
            total = end - start
        total = min(total, MAX_UNCOMPRESSED)
        if not _may_compress(fs, inode, start, end):
            break
        stop = min(start + align(total, blocksize), end)
        packed = _pack(fs, inode, kind, start, start + total)
        if packed is None:
            late = Patch.NOCOMPRESS_BEFORE_INLINE not in fs.behaviour and not inline_first
            if late and _try_inline(fs, inode, start, end, None, 0):
                return
            _mark_incompressible(fs, inode)
            break
        size, data = packed
        whole = start + total >= actual_end
        inline = (data, COMPRESSION_TYPES[kind]) if whole else (None, 0)
        if not inline_first and _try_inline(fs, inode, start, end, *inline):
            return
        if align(size, blocksize) + blocksize > stop - start:
            # of one block, which could only have become inline, that says nothing
            if total > blocksize or Patch.NOCOMPRESS_NOT_ONE_BLOCK not in fs.behaviour:
                _mark_incompressible(fs, inode)
            break
        _write_compressed(fs, inode, start, stop, COMPRESSION_TYPES[kind], size, data)
        start = stop
    if start < end:
        _cow_file_range(fs, inode, start, end)


def _mark_incompressible(fs: Mount, inode: LiveInode) -> None:
    if not fs.options.compress_force and not inode.prop_compress:
        inode.item.flags |= InodeFlag.NOCOMPRESS


def _pack(
    fs: Mount, inode: LiveInode, kind: str, start: int, end: int
) -> tuple[int, bytes | None] | None:
    """Compress a range: its size and, unless it is elided, the stream; None: too large."""
    pages = inode.pages
    level = 0 if inode.defrag_compress else fs.options.compress_level
    told = pages.told(start, align(end, fs.sectorsize))
    if told is not None and end - start > fs.sectorsize:
        told = told._replace(length=end - start)
        data = compress_told(kind, level, told, fs.sectorsize, fs.behaviour)
        return None if data is None else (len(data), data if told.stored else None)
    plain = pages.read(start, end)[: end - start]
    data = compress(kind, level, plain, fs.sectorsize, fs.behaviour)
    return None if data is None else (len(data), data)


def _write_compressed(
    fs: Mount, inode: LiveInode, start: int, end: int, kind: int, size: int, data: bytes | None
) -> None:
    """``submit_one_async_extent()``: the extent is allocated in one piece."""
    on_disk = align(size, fs.sectorsize)
    hint = _allocation_hint(fs, inode, start)
    bytenr, _ = reserve_data(fs, on_disk, on_disk, hint)
    payload = pack_regular(fs.transid, REGULAR, bytenr, on_disk, end - start, compression=kind)
    if data is None:
        punch(fs, bytenr, on_disk)
    else:
        store_bytes(fs, bytenr, data.ljust(on_disk, b"\0"))
    insert_regular(fs, inode, start, payload, new=True)
    if data is None:
        insert_csums(fs, inode, bytenr, zero_sums(fs, on_disk // fs.sectorsize))
    else:
        sums = sector_sums(fs.csum_type, data.ljust(on_disk, b"\0"), fs.sectorsize)
        insert_csums(fs, inode, bytenr, sums.tobytes())
    book(fs, inode.root, end - start + fs.nodesize)
    _finish(fs, inode, start, end)


# ----------------------------------------------------------------------- into prealloc ---------


def _run_delalloc_nocow(fs: Mount, inode: LiveInode, start: int, end: int, until: int) -> None:
    """``run_delalloc_nocow()``: in place where that is allowed, new extents elsewhere."""
    inline = Patch.NOCOW_NO_INLINE not in fs.behaviour
    cow_start = None
    at = start
    for extent in extents_between(fs, inode, start, end):
        if extent.end <= at:
            continue
        low, high = max(extent.start, at), min(align(extent.end, fs.sectorsize), end)
        if at < low and Patch.NOCOW_BEHIND_HOLE not in fs.behaviour:
            break  # the item behind a gap is stepped over, and then the next one is behind a gap
        if not can_nocow(fs, inode, extent):
            cow_start = at if cow_start is None else cow_start
            at = high
            continue
        if cow_start is not None or at < low:
            first = at if cow_start is None else cow_start
            _cow_file_range(fs, inode, first, low, until, inline=inline)
            cow_start = None
        if low >= until:
            return
        bytenr = extent.disk_bytenr + low - extent.origin
        sums = store(fs, inode, bytenr, low, high)
        if extent.is_prealloc:
            mark_extent_written(fs, inode, low, high)
            insert_csums(fs, inode, bytenr, sums)
        _finish(fs, inode, low, high)
        at = high
    if cow_start is not None or at < end:
        first = at if cow_start is None else cow_start
        _cow_file_range(fs, inode, first, end, until, inline=inline)
