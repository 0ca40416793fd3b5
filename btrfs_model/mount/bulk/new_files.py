# SPDX-License-Identifier: GPL-2.0-only
"""Many small files that hold the same, at once.

The result is that of a loop over empty files that writes to each of them, and of one writeback
behind it::

    for name in names:
        fs.write(directory + "/" + name, 0, data)
    flush_delalloc(fs)

with the same items in the same leaves, the same addresses, references and times. The files become
no inodes in memory: they wait as :class:`_Alike`. Inline extents go into the tree by one kernel
(``bm_writer_apply_calls()``), regular ones with references and checksums by another
(``bm_writer_file_extents()``). Files that need more (compression, flags, attributes, something that
waits) are written to one by one after all.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.bulk.rows import create_files
from btrfs_model.mount.files.bytes import store_bytes
from btrfs_model.mount.files.file_item import align, pack_inline
from btrfs_model.mount.files.pages import MAX_EXTENT_SIZE
from btrfs_model.mount.files.run import pass_time
from btrfs_model.mount.files.write import buffered_write
from btrfs_model.mount.files.writeback import flush_delalloc, inline_limit, writeback
from btrfs_model.mount.inode import (
    iget,
    live_subvolume,
    update_root_times,
    were_made_at_once,
)
from btrfs_model.mount.live_inode import NS, LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.attr import may_change_data
from btrfs_model.mount.names.dir_item import fail
from btrfs_model.mount.names.lookup import Path, find, may_write
from btrfs_model.mount.space.block_group import calls_that_fit, ensure_metadata
from btrfs_model.mount.space.data import ensure_data
from btrfs_model.mount.space.space_info import reserve_delalloc, reserve_files
from btrfs_model.native.bulk import CHANGE, Kind, apply, file_extents
from btrfs_model.native.data import sector_sums
from btrfs_model.native.items import gather, select
from btrfs_model.native.space import SpaceInfo
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_DATA, BTRFS_BLOCK_GROUP_METADATA
from btrfs_model.ondisk.keys import U64_MAX, ItemType
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.patches import Patch

# After this many bytes of inline extents, look for room again (grow_metadata()). Whenever room was
# found, more than that is free, even where leaves are half full.
_INLINE_BYTES: Final = 1 << 19
_OF_AN_ITEM: Final = 128
# bytes of data that are joined to be stored
_STORED: Final = 16 << 20

Inos = npt.NDArray[np.uint64]
Infos = Sequence[SpaceInfo | None]


def write_files(
    fs: Mount,
    directory: Path,
    names: Sequence[Path],
    data: bytes,
    mode: int,
    create: Callable[[bytes, int], int],
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
    else:
        _fill(fs, parent.root, inos, items, data)


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
    """Write to files, of which some may be written back before others are written to."""
    alike = fs.reservations.alike = _Alike(fs, root, inos, items, data)
    together = reserve_files(fs, len(inos), alike.length)
    try:
        while left := alike.left:
            # the first of those that find room together may have to wait for it
            first = fs.now()
            ensure_data(fs, alike.length)
            free = fs.writer.space_info(BTRFS_BLOCK_GROUP_DATA).free - fs.dirty_bytes.count
            count = min(left, free // alike.length)
            if not together:
                count = reserve_delalloc(fs, count, summed=alike.length)
            alike.wait([first, *(fs.now() for _ in range(count - 1))])
        flush_delalloc(fs)
    finally:
        while alike.count:
            alike.wake()
        fs.reservations.alike = None


class _Alike:
    """Files that hold the same and wait for writeback: an :class:`~.reservations.Alike`."""

    def __init__(
        self, fs: Mount, root: int, inos: Inos, items: npt.NDArray[Any], data: bytes
    ) -> None:
        self.count, self.length = 0, align(len(data), fs.sectorsize)
        self._fs, self._root, self._inos, self._items, self._data = fs, root, inos, items, data
        self._done, self._times = 0, np.zeros(len(inos), np.int64)
        self._is_inline = len(data) <= inline_limit(fs)
        blocks = self._blocks = data.ljust(self.length, b"\0")
        self._sums = sector_sums(fs.csum_type, blocks, fs.sectorsize)
        # these alone are to an fsync later what they would have been in memory
        self._are_made = were_made_at_once(fs, root, inos)

    @property
    def left(self) -> int:
        """How many were not written to yet."""
        return len(self._inos) - self._done - self.count

    @property
    def reserved(self) -> int:
        """Bytes that are reserved for those that wait."""
        return self.count * self._fs.reservations.of_file(1, self.length)

    def wait(self, times: Sequence[int]) -> None:
        """Let the next files wait, written to at these times."""
        at = self._done + self.count
        self._times[at : at + len(times)] = times
        self._account(len(times))
        while self.count and not self._are_made:
            self.wake()

    def _account(self, count: int) -> None:
        self.count += count
        self._fs.dirty_bytes.count += count * self.length

    def wake(self) -> LiveInode:
        """Return the first that waits, as an inode in memory with dirty pages."""
        fs, at = self._fs, self._done
        inode = iget(fs, self._root, int(self._inos[at]))
        inode.item.mtime = inode.item.ctime = int(self._times[at])
        inode.item.sequence += 1
        inode.pages.write(0, memoryview(self._blocks), bytes)
        inode.pages.i_size = len(self._data)
        fs.dirty_files[self._root, inode.ino] = inode
        self._done += 1
        self._account(-1)
        return inode

    def write(self, most: int, *, together: bool = False) -> Iterator[SpaceInfo | None]:
        """Write files back; see :class:`~.reservations.Alike`."""
        left = min(most, self.count)
        while left:
            written = 0
            for info in self._write_some(left, together=together):
                written += 1
                yield info
            if not written:
                writeback(self._fs, self.wake())
                written = 1
                yield None
            left -= written

    def _write_some(self, most: int, *, together: bool) -> Iterator[SpaceInfo | None]:
        """Write files back by one call of C; fewer where they do not find room at once."""
        fs = self._fs
        batch = _INLINE_BYTES // (_OF_AN_ITEM + len(self._data))
        many = min(most, batch if self._is_inline and together else calls_that_fit(fs))
        if many < 2:
            return
        info = ensure_metadata(fs, from_reserve=True)
        inos = self._inos[self._done : self._done + many]
        write = self._write_inline if self._is_inline else self._write_regular
        infos = write(inos, info, together)
        if not infos:
            return
        # each asks for the time, for the subvolume
        pass_time(fs, len(infos) - 1)
        update_root_times(fs, self._root)
        fs.in_transaction = True
        items, count = self._written(len(infos)), len(infos) if together else 1
        for at in range(0, len(infos), count):
            part = slice(at, at + count)
            fs.delayed.update_items(self._root, inos[part].tolist(), items[part])
            self._done += count
            self._account(-count)
            yield from infos[part]

    def _write_inline(self, inos: Inos, info: SpaceInfo, together: bool) -> Infos:
        """Write inline extents; returns how full metadata was after each, at first as in `info`.

        Unless they go `together`, of fewer where one of them makes a tree block.
        """
        payload = pack_inline(self._fs.transid, len(self._data), self._data, 0)
        rows = np.zeros(len(inos), CHANGE)
        rows["objectid"], rows["type"] = inos, int(ItemType.EXTENT_DATA)
        rows["size"], rows["kind"] = len(payload), Kind.INSERT_EXTENT
        data, sure = payload * len(inos), len(inos) if together else 1
        written = apply(self._fs.writer, self._root, rows, data, len(inos), sure)
        return [info] * (written - 1) + [None]

    def _write_regular(self, inos: Inos, _info: SpaceInfo, _together: bool) -> Infos:
        """Write regular extents; returns how full metadata was after each.

        Of fewer where no more room is found where there are extents of that size already.
        """
        fs, count = self._fs, len(inos)
        addresses, offsets = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        levels = np.zeros((count, len(SpaceInfo._fields)), np.uint64)
        written = file_extents(
            fs.writer, addresses, tree=self._root, root=self._root, inos=inos, length=self.length,
            disk_num_bytes=self.length, offsets=offsets, count=count, sums=self._sums,
            in_class=Patch.ALLOC_SIZE_CLASS in fs.behaviour, kind=BTRFS_BLOCK_GROUP_METADATA,
            levels=levels,
        )  # fmt: skip
        _store(fs, addresses[:written], self._blocks)
        return [SpaceInfo(*row) for row in levels[:written].tolist()]

    def _written(self, count: int) -> list[bytes]:
        """Return the inode items of the next files, as they are with the data."""
        part = slice(self._done, self._done + count)
        items = self._items[part].copy()
        for field in ("ctime", "mtime"):
            items[field]["sec"], items[field]["nsec"] = np.divmod(self._times[part], NS)
        items["sequence"] += 1
        items["transid"] = self._fs.transid
        items["size"] = len(self._data)
        items["nbytes"] = len(self._data) if self._is_inline else self.length
        return [item.tobytes() for item in items]


def _store(fs: Mount, addresses: Inos, blocks: bytes) -> None:
    """Store the same at many addresses; neighbours at once."""
    breaks = np.flatnonzero(np.diff(addresses) != np.uint64(len(blocks))) + 1
    for run in np.split(addresses, breaks):
        at, left = (int(run[0]), len(run)) if len(run) else (0, 0)
        while left:
            chunk = fs.image.chunk_at(at)
            assert chunk is not None
            fits = (chunk.end - at) // len(blocks)
            many = min(left, fits, max(1, _STORED // len(blocks)))
            store_bytes(fs, at, blocks * many)
            at, left = at + many * len(blocks), left - many
