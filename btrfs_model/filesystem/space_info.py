# SPDX-License-Identifier: GPL-2.0-only
"""Room for metadata: what calls reserve, and what the kernel does when there is no more.

A call reserves the worst that it may need before it begins: for each item that it changes a path
of new blocks, twice as much for the references to them. What it does not need it gives back when
it ends. What it put off keeps a part: delayed items, references that wait, data that wait for
writeback. All of this has to fit beside what is in use, into the chunks of metadata and an eighth
of the space that no chunk has (*overcommit*). On a device of 256 MiB that is full after some
hundred calls.

Then the call waits until a worker has made room, step by step, each only if those before it were
not enough: delayed items, references, data, and at last a commit that nobody asked for. The worker
works while the call waits, so which call it is, and which step, is nearly always the same. What is
left to chance are moments: a call may go on as soon as there is room, while the worker is still
busy with the step, and data are written by several threads. Here the step is done when the call
goes on, and each file is written, with its extents finished, before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from btrfs_model.filesystem.chunk_alloc import global_reserve
from btrfs_model.filesystem.file_write import file_ranges
from btrfs_model.filesystem.file_writeback import pages_of
from btrfs_model.filesystem.reservation import overcommit
from btrfs_model.ondisk.items import InlineExtent
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.ondisk.structs import HEADER

if TYPE_CHECKING:
    from btrfs_model.btree.space import GroupState
    from btrfs_model.filesystem.file_pages import DirtyRange
    from btrfs_model.filesystem.live_inode import LiveInode
    from btrfs_model.filesystem.writable import WritableFilesystem

__all__ = ["MetadataSpace"]

_METADATA: Final = 4
_MAX_LEVEL: Final = 8
_DELALLOC_LOOPS: Final = 3
# BTRFS_UNLINK_METADATA_UNITS of Linux 6.18
_UNLINK_ITEMS: Final = 6
# calc_available_free_space()
_EIGHTH: Final = 8
_HALF: Final = 2
_EVERYTHING: Final = 2**64


class MetadataSpace:
    """The reservations of a filesystem for metadata (``struct btrfs_space_info``, Linux 6.18).

    Parameters
    ----------
    fs : WritableFilesystem
        Whose.

    Attributes
    ----------
    enforced : bool
        Whether calls wait for room. By default they do not, and those that make, fill, move or
        remove many files at once never do: there is always enough.

    Notes
    -----
    Nothing is booked call by call: what is reserved follows from what waits. Only the references
    need a memory (`delayed_refs_rsv`): those of data that were written back were not reserved by
    a call, and get what the data had reserved or later calls give back.
    """

    def __init__(self, fs: WritableFilesystem) -> None:
        self._fs = fs
        self.enforced = False
        # btrfs_calc_metadata_size(): an item changed; twice that, an item inserted
        self._path = _MAX_LEVEL * fs.nodesize
        self._item = 2 * self._path
        self._leaf = fs.nodesize - HEADER.size
        self._refs = 0
        # what calls reserved since the last look, and what was there then
        self._lent = 0
        self._room = 0
        self._chunks = 0
        self._delayed = 0
        self._delalloc = 0
        self._extents: dict[tuple[int, int], tuple[list[DirtyRange], int]] = {}

    # ---------------------------------------------------------------------------- reserving --

    def start_transaction(self, items: int, *, steal: bool = False) -> None:
        """Reserve for a call that changes so many items (``start_transaction()``).

        Parameters
        ----------
        items : int
            How many, at most.
        steal : bool
            What frees space may count on more (``BTRFS_RESERVE_FLUSH_ALL_STEAL``).
        """
        if self.enforced:
            self._reserve(items * (self._item + self._ref), _HALF if steal else _EIGHTH)

    def reserve_delalloc(self) -> None:
        """Reserve for blocks that become dirty (``btrfs_delalloc_reserve_metadata()``)."""
        if self.enforced:
            # an extent, a leaf of checksums, the inode
            self._reserve(2 * self._item + self._path, _EIGHTH)

    def _reserve(self, size: int, share: int) -> None:
        """Reserve `size` bytes, after making room for them (``btrfs_reserve_metadata_bytes()``)."""
        if self._fs.aborted:
            return
        # no call keeps more than it reserved: as long as all fits there is no need to look
        known = self._chunks == self._fs.raw_super.dev_item.bytes_used
        if not (known and self._lent + size < self._room) and not self._fits(size, share):
            self._make_room(size, share)
        # what updates an inode, and nothing else, takes room for that without asking
        self._lent += max(size, self._path)

    def _fits(self, size: int, share: int) -> bool:
        used = self._used()
        self._chunks = self._fs.raw_super.dev_item.bytes_used
        self._room = self._limit(_EIGHTH) - used
        return size < self._limit(share) - used

    # ------------------------------------------------------------------------ what is there --

    def _limit(self, share: int) -> int:
        """Return what there is, overcommit included (``btrfs_can_overcommit()``)."""
        groups = self._groups()
        free = overcommit(self._fs, groups[-1].flags, share)
        return sum(group.length for group in groups) + free

    def _used(self) -> int:
        """Return what is in use or reserved (``btrfs_space_info_used()``)."""
        blocks = sum(group.length - group.free for group in self._groups())
        self._settle()
        reserved = self._delayed + self._delalloc + self._refs
        return blocks + global_reserve(self._fs, _UNLINK_ITEMS) + reserved

    def _groups(self) -> list[GroupState]:
        return [group for group in self._fs.writer.groups() if group.flags & _METADATA]

    @property
    def _ref(self) -> int:
        """What a reference that waits may need (``btrfs_calc_delayed_ref_bytes()``)."""
        return self._item * (2 if self._fs.writer.has_tree(ObjectId.FREE_SPACE_TREE) else 1)

    def _settle(self) -> None:
        """Give what was reserved and is not kept to the references that wait, if they lack it.

        (``btrfs_update_delayed_refs_rsv()``, ``block_rsv_release_bytes()``.)
        """
        delayed = self._fs.delayed.reserved_paths(self._leaf) * self._path
        dirty = self._fs.dirty_files
        self._extents = {key: known for key, known in self._extents.items() if key in dirty}
        delalloc = sum(map(self._reserved_by, dirty.values()))
        left = self._lent + self._delalloc - delalloc + self._delayed - delayed
        self._refs = min(self._wanted_by_refs(), self._refs + max(0, left))
        self._lent, self._delayed, self._delalloc = 0, delayed, delalloc

    def _wanted_by_refs(self) -> int:
        """Return what references that wait may need, with checksums and block group items.

        (``btrfs_calc_delayed_ref_csum_bytes()``, ``btrfs_inc_delayed_refs_rsv_bg_updates()``.)
        """
        written = self._fs.committed.used
        groups = sum(g.used != written.get(g.start) for g in self._fs.writer.groups())
        refs, losing = self._fs.writer.delayed_refs()
        return refs * self._ref + (losing + groups) * self._path

    def _reserved_by(self, inode: LiveInode) -> int:
        """Return what a file keeps that waits for writeback.

        (``btrfs_calculate_inode_block_rsv_size()``.)
        """
        key, ranges = (inode.root, inode.ino), pages_of(self._fs, inode).ranges(0, _EVERYTHING)
        known = self._extents.get(key)
        if known is None or known[0] != ranges:
            known = self._extents[key] = (ranges, sum(self._outstanding(inode)))
        return known[1] * self._item + self._item + self._path if known[1] else 0

    def _outstanding(self, inode: LiveInode) -> Iterator[bool]:
        """Iterate over the extents that writeback may make (``outstanding_extents``), True each.

        Blocks written into a hole (``EXTENT_DELALLOC_NEW``) are counted apart from others.
        """
        for low, high in pages_of(self._fs, inode).delalloc_ranges(0, _EVERYTHING):
            last = None
            for _, _, extent in file_ranges(self._fs, inode, low, high):
                inline = extent is not None and isinstance(extent.item, InlineExtent)
                new = extent is None or not (inline or extent.disk_bytenr)
                if new is not last:
                    yield True
                last = new

    # -------------------------------------------------------------------------- making room --

    def _make_room(self, size: int, share: int) -> None:
        """Do one thing after another until there is room (``flush_space()``)."""
        for step in self._steps(size, share):
            if step() is True or self._fits(size, share):
                return

    def _steps(self, size: int, share: int) -> list[Callable[[], object]]:
        """``enum btrfs_flush_state``, less those that never help here."""
        fs = self._fs
        return [
            lambda: fs.delayed.run_some(2 * (size // self._item)),
            fs.delayed.run,
            lambda: fs.writer.run_some_refs(-(-size // self._ref)),
            lambda: fs.writer.run_some_refs(fs.writer.waiting_refs()),
            lambda: self._shrink_delalloc(size, share),
            lambda: self._shrink_delalloc(size, share),
            fs.commit,
        ]

    def _shrink_delalloc(self, size: int, share: int) -> bool:
        """Write data back; whether there was room for `size` at any time (``shrink_delalloc()``).

        It may be there for a moment only: a file that becomes inline gives back what it reserved,
        an extent keeps it for its references.
        """
        fs, granted = self._fs, False
        for _ in range(_DELALLOC_LOOPS):
            wanted = max(size, fs.dirty_bytes.count >> 3)
            for inode in list(fs.dirty_files.values()):
                waiting = fs.dirty_bytes.count
                fs.flush_delalloc(inode)
                granted = self._fits(size, share) or granted
                wanted -= waiting - fs.dirty_bytes.count
                if wanted <= 0:
                    break
            if granted or not fs.dirty_files:
                break
        return granted
