# SPDX-License-Identifier: GPL-2.0-only
"""Many small files that hold the same, at once.

The result is that of a loop over empty files that writes to each of them, and of one writeback
behind it::

    for name in names:
        fs.write(directory + "/" + name, 0, data)
    flush_delalloc(fs)

with the same items in the same leaves, the same addresses, references and times. Room for metadata
is looked for once for a few thousand files. Inline extents go into the tree by one kernel
(``bm_writer_apply()``), regular ones with references and checksums by another
(``bm_writer_file_extents()``). Files that need more (compression, flags, attributes, something that
waits) are written to one by one after all.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.bulk.rows import create_files
from btrfs_model.mount.files.bytes import store_bytes
from btrfs_model.mount.files.file_item import align, pack_inline
from btrfs_model.mount.files.pages import MAX_EXTENT_SIZE
from btrfs_model.mount.files.run import pass_time
from btrfs_model.mount.files.write import buffered_write
from btrfs_model.mount.files.writeback import flush_delalloc, inline_limit
from btrfs_model.mount.inode import iget, iget_plain, live_subvolume, update_root_times
from btrfs_model.mount.live_inode import NS, LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.attr import may_change_data
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.lookup import Path, find, may_write
from btrfs_model.mount.space.block_group import ensure_data, ensure_metadata
from btrfs_model.mount.space.space_info import reserve_delalloc, reserve_files
from btrfs_model.native.bulk import CHANGE, Kind, apply, file_extents
from btrfs_model.native.hashes import sector_sums
from btrfs_model.native.items import gather, select
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_DATA
from btrfs_model.ondisk.keys import U64_MAX, ItemType
from btrfs_model.ondisk.structs import INODE_ITEM

# After this many bytes of items, look for room again (grow_metadata()). Whenever room was found,
# more than that is free, even where leaves are half full.
_BATCH_BYTES: Final = 1 << 19
_REGULAR_BYTES: Final = 128

Inos = npt.NDArray[np.uint64]


def write_files(
    fs: Mount,
    directory: Path,
    names: Sequence[Path],
    data: bytes,
    mode: int,
    create: Callable[[bytes, int], LiveInode],
) -> Inos:
    """Make files, write the same to each of them, and write it back.

    `directory`: path of the directory.
    `names`: names in it, in the order of creation.
    `data`: what each of them holds.
    `mode`: permissions before the umask.
    `create`: as for :func:`.rows.create_files`.
    Returns their inode numbers.
    Raises OSError: as :func:`btrfs_model.mount.bulk.rows.create_files`; ENOSPC when there is no
    room, some are written then.
    """
    inos = create_files(fs, directory, names, mode, create)
    fill_files(fs, directory, inos, data)
    return inos


def fill_files(fs: Mount, directory: Path, inos: Inos, data: bytes) -> None:
    """Write the same to many empty files, and write it back.

    `directory`: path of a directory of the subvolume in which they are.
    `inos`: their inode numbers, in the order in which they are written to; none comes twice.
    `data`: what each of them is to hold.
    Raises OSError: EROFS; ENOENT for a number that is no inode's, EISDIR or EINVAL for one that is
    no file's, EPERM for one that is immutable or append-only; ENOSPC when there is no room, some
    are written then.
    """
    parent = find(fs, directory)
    may_write(fs, parent, directory)
    if not len(inos) or not data:
        return
    items = _plain_items(fs, parent.root, inos) if _is_plain(fs, data) else None
    if items is None:
        inodes = [iget(fs, parent.root, ino) for ino in inos.tolist()]
        for inode in inodes:
            _check_writable(fs, inode, directory)
        for inode in inodes:
            buffered_write(fs, inode, 0, data)
        flush_delalloc(fs)
    elif reserve_files(fs, len(inos)):
        _fill(fs, parent.root, inos, items, data)
    else:
        _fill_in_turn(fs, parent.root, inos, items, data)


def _check_writable(fs: Mount, inode: LiveInode, path: Path) -> None:
    if not stat.S_ISREG(inode.item.mode):
        raise fail(errno.EISDIR if inode.is_dir else errno.EINVAL, path)
    may_change_data(fs, inode, path)


def _is_plain(fs: Mount, data: bytes) -> bool:
    """Whether nothing is compressed, and nothing waits that would be written back before."""
    waits = fs.dirty_files or fs.machine.asynchronous
    return not (waits or fs.options.compress or len(data) > MAX_EXTENT_SIZE)


def _plain_items(fs: Mount, root: int, inos: Inos) -> npt.NDArray[Any] | None:
    """Return the inode items; None when not all are of files with nothing but names."""
    known = live_subvolume(fs, root).inodes
    numbers = inos.tolist()
    if any(ino in known or fs.delayed.node(root, ino) is not None for ino in numbers):
        return None
    low, high = (min(numbers), 0, 0), (max(numbers), 255, U64_MAX)
    columns = fs.writer.tree(root).scan(low, high)
    columns = select(columns, np.isin(columns["objectid"], inos))
    is_item = columns["type"] == int(ItemType.INODE_ITEM)
    names = (int(ItemType.INODE_REF), int(ItemType.INODE_EXTREF))
    if is_item.sum() != len(inos) or not (is_item | np.isin(columns["type"], names)).all():
        return None
    rows = gather(fs.image, select(columns, is_item), INODE_ITEM.size)
    # ascending in the tree; wanted in the order of the numbers
    place = np.empty(len(inos), np.intp)
    place[np.argsort(inos)] = np.arange(len(inos))
    items = np.ascontiguousarray(rows[place]).view(INODE_ITEM.dtype).reshape(-1)
    regular = items["mode"] & 0o170000 == 0o100000
    if not regular.all() or items["flags"].any() or items["size"].any() or items["nbytes"].any():
        return None
    return items


def _fill(fs: Mount, root: int, inos: Inos, items: npt.NDArray[Any], data: bytes) -> None:
    count, blocks = len(inos), align(len(data), fs.sectorsize)
    ensure_data(fs, count * blocks)
    start = fs.clock
    tick = fs.now() - start or fs.clock - start
    times = start + np.arange(count) * tick
    was = items.copy()
    for field in ("ctime", "mtime"):
        items[field]["sec"], items[field]["nsec"] = np.divmod(times, NS)
    items["sequence"] += 1
    items["transid"] = fs.transid
    items["size"] = len(data)
    is_inline = len(data) <= inline_limit(fs)
    items["nbytes"] = len(data) if is_inline else blocks
    fs.clock = start + count * tick
    write = _write_inline if is_inline else _write_regular
    batch = _BATCH_BYTES // (_REGULAR_BYTES + (len(data) if is_inline else 0))
    for first in range(0, count, batch):
        ensure_metadata(fs)
        part = slice(first, first + batch)
        written = write(fs, root, inos[part], data)
        done = slice(first, first + written)
        if written:
            # each file that is written back asks for the time, for the subvolume
            pass_time(fs, written - 1)
            update_root_times(fs, root)
            raw = [item.tobytes() for item in items[done]]
            fs.delayed.update_items(root, inos[done].tolist(), raw)
        if written < len(inos[part]):
            # there is room, but not in one piece
            rest = slice(done.stop, None)
            _make_dirty(fs, root, inos[rest], was[rest], times[rest].tolist(), data)
            flush_delalloc(fs)
            return


def _fill_in_turn(fs: Mount, root: int, inos: Inos, items: npt.NDArray[Any], data: bytes) -> None:
    """Write to files of which some are written back before others are written to."""
    blocks, at = align(len(data), fs.sectorsize), 0
    while at < len(inos):
        # the first of those that find room together may have to wait for it
        first = fs.now()
        ensure_data(fs, blocks)
        free = fs.writer.space_info(BTRFS_BLOCK_GROUP_DATA).free - fs.dirty_bytes.count
        count = reserve_delalloc(fs, min(len(inos) - at, free // blocks))
        times = [first, *(fs.now() for _ in range(count - 1))]
        part = slice(at, at + count)
        _make_dirty(fs, root, inos[part], items[part], times, data)
        at += count
    flush_delalloc(fs)


def _make_dirty(
    fs: Mount, root: int, inos: Inos, items: npt.NDArray[Any], times: Sequence[int], data: bytes
) -> None:
    """Let data of files wait for writeback, as writes at these times do."""
    for ino, item, time in zip(inos.tolist(), items, times, strict=True):
        inode = iget_plain(fs, root, ino, item.tobytes())
        inode.item.mtime = inode.item.ctime = time
        inode.item.sequence += 1
        pages = inode.pages
        pages.write(0, memoryview(data), lambda _: bytes(fs.sectorsize))
        pages.i_size = len(data)
        fs.dirty_files[root, ino] = inode


def _write_inline(fs: Mount, root: int, inos: Inos, data: bytes) -> int:
    payload = pack_inline(fs.transid, len(data), data, 0)
    rows = np.zeros(len(inos), CHANGE)
    rows["objectid"], rows["type"] = inos, int(ItemType.EXTENT_DATA)
    rows["size"], rows["kind"] = len(payload), Kind.INSERT_EXTENT
    apply(fs.writer, root, rows, payload * len(inos))
    return len(inos)


def _write_regular(fs: Mount, root: int, inos: Inos, data: bytes) -> int:
    """Write regular extents; returns of how many files, less than all where room is in pieces."""
    blocks = data.ljust(align(len(data), fs.sectorsize), b"\0")
    sums = sector_sums(fs.csum_type, blocks, fs.sectorsize).tobytes()
    addresses = np.zeros(len(inos), np.uint64)
    offsets = np.zeros(len(inos), np.uint64)
    numbers = np.ascontiguousarray(inos, np.uint64)
    written = file_extents(
        fs.writer, addresses, tree=root, root=root, inos=numbers,
        length=len(blocks), disk_num_bytes=len(blocks), count=len(inos),
        offsets=offsets, sums=sums,
    )  # fmt: skip
    _store(fs, addresses[:written], blocks)
    return written


def _store(fs: Mount, addresses: Inos, blocks: bytes) -> None:
    """Store the same at many addresses; neighbours at once."""
    breaks = np.flatnonzero(np.diff(addresses) != np.uint64(len(blocks))) + 1
    for run in np.split(addresses, breaks):
        at, left = (int(run[0]), len(run)) if len(run) else (0, 0)
        while left:
            chunk = fs.image.chunk_at(at)
            assert chunk is not None
            fits = (chunk.end - at) // len(blocks)
            many = min(left, fits)
            store_bytes(fs, at, blocks * many)
            at, left = at + many * len(blocks), left - many
