# SPDX-License-Identifier: GPL-2.0-only
"""The one store of blocks: an image of a btrfs device, or of several, mapped into memory.

An :class:`Image` knows the superblock and the chunk map, and hands out verified tree blocks and the
bytes of data extents. It is opened read-only by mmap, so it takes as much memory as is looked at,
and the kernel may drop those pages again.
"""

from __future__ import annotations

import errno
import mmap
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.limits import Limits
from btrfs_model.native.choice import twin
from btrfs_model.native.image import READ, Store, no_address_space
from btrfs_model.ondisk.chunks import Chunk, parse_chunk_item
from btrfs_model.ondisk.constants import BTRFS_STRIPE_LEN
from btrfs_model.ondisk.items import root_item
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import DEV_ITEM
from btrfs_model.ondisk.superblock import SuperBlock, read_superblocks
from btrfs_model.volume import blocks
from btrfs_model.volume.device.devices import (
    Member,
    Opened,
    Paths,
    check_missing,
    check_size,
    open_devices,
    whole_device,
    with_missing,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_logical = attrgetter("logical")
_CHUNK_ITEM = ItemType.CHUNK_ITEM
_MAX = 2**64 - 1
_COPIED = 64 << 20  # bytes of tree blocks; more cost more than checking them
_MAP_NORESERVE = 0x4000  # takes room as it is touched; Python names it since 3.13


class Image:
    """The devices of a filesystem in memory: superblock, chunk map, verified tree blocks.

    Use :meth:`open`; as a context manager it closes the mapping. What was closed raises ValueError
    wherever it is used. Threads may share an image, see :mod:`btrfs_model.native.lease`.

    Parameters
    ----------
    buffer : buffer or Opened
        All bytes of the device; or files that were opened, which have a name themselves.
    path : str
        Name used in errors.
    copied : int, optional
        They are a mapped file, which others may change: so many bytes of tree blocks are copied
        before they are used.
    checks_items, degraded : bool
        See :meth:`open`.

    Attributes
    ----------
    path : str
        Name used in errors.
    checks_items : bool
        Whether the items of a leaf are verified with it (``btrfs_check_leaf()``), as for a
        filesystem that is to be changed.
    superblock : SuperBlock
        The newest valid copy of all devices.
    devices : list of Member
        Ascending by devid, those that are missing too.
    chunks : list of Chunk
        Ascending by logical address.
    mapped : list of Chunk
        What addresses are mapped by: the chunks, or items of the raid-stripe-tree in their place.
    nodesize, sectorsize : int
        Bytes.
    lease : Lease
        The way to what C keeps of it.
    """

    # returns the superblock of a device, or refuses it
    _superblock_of: ClassVar = staticmethod(whole_device)

    def __init__(
        self,
        buffer: mmap.mmap | memoryview | bytes | bytearray | Opened,
        path: str = "<memory>",
        *,
        copied: int | None = None,
        checks_items: bool = False,
        degraded: bool = False,
    ) -> None:
        self.checks_items = checks_items
        if isinstance(buffer, Opened):
            self.path, self.superblock = buffer.name, buffer.superblock
            self.devices = buffer.members
            self._buffer: Any = buffer.view
        else:
            self.path, self._buffer = path, buffer
            self.superblock = read_superblocks(memoryview(buffer), path)
            item = self.superblock.dev_item
            check_size(path, len(buffer), self.superblock)
            self.devices = [Member(item.devid, item.uuid, path, 0, len(buffer), self.superblock)]
        self._view: memoryview | None = memoryview(self._buffer)
        self._block_bytes: memoryview | None = self._view
        self.nodesize = self.superblock.nodesize
        self.sectorsize = self.superblock.sectorsize
        self.store = Store(
            self.view,
            self.path,
            nodesize=self.nodesize,
            sectorsize=self.sectorsize,
            csum_type=self.superblock.csum_type,
            fsid=self.superblock.tree_fsid,
        )
        self.lease = self.store.lease
        if checks_items:
            self.store.check_items()
        # where and how it was opened; None: not from a file
        self.opened: tuple[list[str], dict[str, bool]] | None = None
        self._reads: blocks.ReadCache | None = None
        self._reader = 0
        self.verified_by_twin: set[int] = set()
        # whether a writer has yet to write (and checksum) the tree block at a byte of the image
        self.is_unwritten: Callable[[int], bool] = lambda physical: False
        if copied is not None:
            self._copy_blocks(copied)
        # place and size by devid; None: there is but one device
        self._places: dict[int, tuple[int, int]] | None = None
        if self.has_several:
            self._places = {one.devid: (one.start, one.size) for one in self.devices}
            self.store.set_devices([(one.devid, one.start, one.size) for one in self.devices])
        self._set_chunks(self.superblock.sys_chunks)
        self._read_chunk_tree(degraded=degraded)

    @classmethod
    def open(
        cls,
        path: Paths,
        *,
        mounted: bool = False,
        degraded: bool = False,
        checks_items: bool = False,
    ) -> Self:
        """Map the image files of all devices read-only.

        The newest superblock of all devices counts.

        A file may change meanwhile. The first 64 MiB of tree blocks that are used are copied
        when they are verified, and stay as they were; a block that changed before is refused, or
        read, as it is then. Of an image with more of them the rest is used where it is, and all of
        them where there are no addresses for copies (``ulimit -v``): nothing else may write to such
        a file while a call runs, and an error says so after it. An error says so, too, when a file
        was cut off.

        Parameters
        ----------
        path : str, os.PathLike or sequence of them
            File or block device; each of them, or the folder that they are in, for several devices.
        mounted : bool
            Read a block device also while it is in use, as it is when it is mounted. Its filesystem
            may change while it is read.
        degraded : bool
            Do without devices that are missing, as ``mount -o degraded``, where the profiles of
            all chunks allow.
        checks_items : bool
            See the class.

        Raises
        ------
        NotBtrfsError
            When there is no superblock in it, or it is no file and no block device.
        MissingDeviceError
            When a device is missing, without `degraded` or where that does not help.
        CorruptImageError
            When it is truncated, has no valid superblock or a broken chunk tree.
        BtrfsModelError
            For devices of different filesystems, or one that is named twice.
        UnsupportedError
            For a filesystem that the model does not handle (named), and for what is neither a file
            nor a block device.
        OSError
            When the file cannot be read; EBUSY for a block device that is in use.
        """
        opened = open_devices(path, mounted=mounted, superblock_of=cls._superblock_of)
        copied = _MAX if mounted else _COPIED
        image = cls(opened, copied=copied, checks_items=checks_items, degraded=degraded)
        paths = [str(Path(one.path).absolute()) for one in opened.members]
        image.opened = paths, {"mounted": mounted, "degraded": degraded}
        return image

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        self.lease.check_open()
        if self.opened is None:
            raise TypeError(f"{self.path}: an image that is not a file cannot be pickled or copied")
        return _reopen, (type(self), *self.opened)

    def close(self) -> None:
        """Give the mapping back; the image cannot be used any more.

        A call that runs in another thread ends first. Where somebody still holds bytes of the
        image, the mapping goes when they do.
        """
        self.store.close()
        self._view = self._block_bytes = self._buffer = None

    @property
    def view(self) -> memoryview:
        """All bytes of all devices, for data: they may change under who reads them."""
        if self._view is None:
            self.lease.check_open()
        assert self._view is not None
        return self._view

    @property
    def block_bytes(self) -> memoryview:
        """The bytes of verified tree blocks, each where it is in :attr:`view`; they stay."""
        if self._block_bytes is None:
            self.lease.check_open()
        assert self._block_bytes is not None
        return self._block_bytes

    @property
    def buffer(self) -> Any:
        """The object whose memory it is."""
        self.lease.check_open()
        return self._buffer

    def _copy_blocks(self, most: int) -> None:
        """Keep tree blocks in memory that nobody else changes, where there are addresses for it."""
        try:
            memory = mmap.mmap(-1, len(self.view), flags=mmap.MAP_PRIVATE | _MAP_NORESERVE)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            # blocks that are put together of several places need memory, as do those that change
            if most == _MAX or self.has_several:
                why = "for copies of its tree blocks"
                raise no_address_space(self.path, len(self.view), why) from None
            self.store.use_in_place()
            return
        self._block_bytes = memoryview(memory).toreadonly()
        self.store.copy_blocks(memory, most)

    def __enter__(self) -> Self:
        self.lease.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------ chunks --

    @property
    def has_several(self) -> bool:
        """Whether the filesystem has several devices."""
        return self.superblock.num_devices > 1 or len(self.devices) > 1

    def _set_chunks(self, chunks: Iterable[Chunk], strides: Iterable[Chunk] = ()) -> None:
        """Set the chunk map; `strides` stand for the chunks that they lie in."""
        self.chunks = sorted(chunks, key=_logical)
        self.mapped = self.chunks
        if self.superblock.has_incompat("RAID_STRIPE_TREE"):
            from btrfs_model.volume.device.stripe_tree import in_stripe_tree

            mapped = [chunk for chunk in self.chunks if not in_stripe_tree(chunk.type)]
            self.mapped = sorted([*mapped, *strides], key=_logical)
        for some in (self.chunks, self.mapped):
            for before, chunk in pairwise(some):
                if before.end > chunk.logical:
                    raise CorruptImageError(
                        self.path, Fault(Code.BAD_VALUE, tree=3, found=chunk.logical)
                    )
        self._chunk_starts = [chunk.logical for chunk in self.mapped]
        self.store.set_chunks(self.mapped)

    def _read_chunk_tree(self, *, degraded: bool) -> None:
        """Read chunks and devices (``btrfs_read_chunk_tree()``)."""
        from btrfs_model.volume.tree import Tree

        tree, fsid = Tree.pointed_at(self, ObjectId.CHUNK_TREE), self.superblock.tree_fsid
        try:
            chunks = [
                parse_chunk_item(item.key.offset, item.data, self.path, block=item.block,
                                 slot=item.slot)
                for item in tree.items((256, _CHUNK_ITEM, 0), (256, _CHUNK_ITEM, _MAX))
            ]  # fmt: skip
            items = [
                item.decode(DEV_ITEM.unpack, self.path, ObjectId.CHUNK_TREE)
                for item in tree.items((1, ItemType.DEV_ITEM, 0), (1, ItemType.DEV_ITEM, _MAX))
                if self.has_several
            ]
        except CorruptImageError:
            # it is the devices that are missing, if there are any
            self.devices = with_missing(self.path, fsid, self.devices, [], self.chunks)
            check_missing(self.path, self.devices, self.chunks, degraded=degraded)
            raise
        self.devices = with_missing(self.path, fsid, self.devices, items, chunks)
        # where there is but one by the superblock, there is no doing without the others
        degraded = degraded and self._places is not None
        check_missing(self.path, self.devices, chunks, degraded=degraded)
        self._set_chunks(chunks)
        if self.superblock.has_incompat("RAID_STRIPE_TREE"):
            self._read_stripe_tree()

    def _read_stripe_tree(self) -> None:
        from btrfs_model.volume.device.stripe_tree import read_strides
        from btrfs_model.volume.tree import Tree

        key = (ObjectId.RAID_STRIPE_TREE, ItemType.ROOT_ITEM, 0)
        item = Tree.pointed_at(self, ObjectId.ROOT_TREE).get(key)
        if item is not None:
            root = item.decode(root_item, self.path, ObjectId.ROOT_TREE)
            place = (root.bytenr, root.generation, root.level)
            tree = Tree(self, ObjectId.RAID_STRIPE_TREE, *place)
            self._set_chunks(self.chunks, read_strides(tree, self.path))

    def reread_superblock(self) -> None:
        """Read the superblock of the sole device that a writer has just written."""
        self.superblock = read_superblocks(self.view, self.path)
        self.devices = [replace(self.devices[0], superblock=self.superblock)]

    def as_of(self, superblock: SuperBlock) -> Image:
        """Return the same devices as another superblock has them, such as one with older roots.

        What C keeps of it is shared; nothing may be written meanwhile.
        """
        other = Image.__new__(Image)
        other.__dict__ |= self.__dict__ | {"superblock": superblock}
        return other

    def add_chunk(self, chunk: Chunk) -> None:
        """Map a chunk that a writer has just made.

        Raises CorruptImageError: when another chunk has some of its addresses.
        """
        self._set_chunks([*self.chunks, chunk])

    def remove_chunk(self, logical: int) -> None:
        """Map the addresses of a chunk no more."""
        self._set_chunks([chunk for chunk in self.chunks if chunk.logical != logical])

    def chunk_at(self, logical: int) -> Chunk | None:
        """Return the chunk that holds a logical address, or None."""
        index = bisect_right(self._chunk_starts, logical) - 1
        if index < 0:
            return None
        chunk = self.mapped[index]
        return chunk if logical < chunk.logical + chunk.length else None

    def copies(self, logical: int) -> list[int]:
        """Return where each copy of a logical address is, bytes of the image.

        Raises CorruptImageError: as :meth:`map`.
        """
        chunk = self.chunk_at(logical)
        return [self.map(logical, copy)[0] for copy in range(chunk.placed if chunk else 1)]

    def map(self, logical: int, copy: int = 0) -> tuple[int, int]:
        """Translate a logical address.

        `logical`: address in the filesystem's address space.
        `copy`: which copy of a chunk with several (DUP, RAID1), one that lies somewhere.
        Returns `physical`: byte of the image.
        Returns `contiguous`: bytes that follow from there in the same stripe and inside the device.
        Raises CorruptImageError: when no chunk holds the address, or the device is missing or ends
        before.
        """
        chunk = self.chunk_at(logical)
        if chunk is None or copy >= chunk.placed:
            raise CorruptImageError(self.path, Fault(Code.UNMAPPED, found=logical))
        stripe, offset, contiguous = chunk.locate(logical - chunk.logical, copy)
        start, size, devid = 0, len(self.view), 0
        if self._places is not None:
            devid = chunk.devids[stripe]
            start, size = self._places.get(devid, (0, 0))
            if not size:
                raise CorruptImageError(self.path, Fault(Code.NO_DEVICE, found=devid))
        at = chunk.stripes[stripe] + offset
        if at >= size:
            fault = Fault(Code.PAST_END, found=at, wanted=size, device=devid)
            raise CorruptImageError(self.path, fault)
        return start + at, min(contiguous, size - at)

    def data(self, logical: int, length: int, copy: int = 0) -> memoryview:
        """Bytes of a data extent, unverified; copied only where they lie in no single place.

        `copy`: which copy, those that parity makes too.
        Raises CorruptImageError: when the range leaves its chunk or a device, or one is missing.
        """
        chunk = self.chunk_at(logical)
        physical = contiguous = 0
        if chunk is None or not chunk.width or copy < chunk.placed:
            physical, contiguous = self.map(logical, copy)
        if contiguous >= length:
            return self.view[physical : physical + length]
        if chunk is not None and chunk.width and logical + length <= chunk.end:
            return memoryview(self.store.read(logical, length, copy))
        raise CorruptImageError(
            self.path, Fault(Code.PAST_END, found=physical + length, wanted=physical + contiguous)
        )

    def parity(self, chunk: Chunk, row: int, number: int) -> memoryview:
        """Return P (0) or Q (1) of a row of a chunk whose devices are all there, as it lies there.

        Raises CorruptImageError: when its device ends before.
        """
        assert self._places is not None
        stripe = (row + chunk.width + number) % len(chunk.stripes)
        start, size = self._places[chunk.devids[stripe]]
        at = chunk.stripes[stripe] + row * BTRFS_STRIPE_LEN
        if at + BTRFS_STRIPE_LEN > size:
            fault = Fault(Code.PAST_END, found=at, wanted=size, device=chunk.devids[stripe])
            raise CorruptImageError(self.path, fault)
        return self.view[start + at : start + at + BTRFS_STRIPE_LEN]

    def byte_of_device(self, place: int) -> tuple[int, int]:
        """Return the devid, 0 where there is but one, and the byte of the device of a place."""
        if self._places is None:
            return 0, place
        for devid, (start, size) in self._places.items():
            if place and start <= place < start + size:
                return devid, place - start
        return 0, 0

    # -------------------------------------------------------------------------- tree blocks --

    @twin("volume.blocks:block")
    def block(
        self, logical: int, *, level: int = -1, generation: int = 0, tree: int = 0
    ) -> memoryview:
        """Return a verified tree block, from its second copy where the first is bad.

        `logical`: address of the block.
        `level`, `generation`: what the parent says; -1 and 0 for any.
        `tree`: objectid of the tree, for errors.
        Returns `nodesize` bytes.
        Raises CorruptImageError: when every copy is bad; the fault is that of the first.
        """
        return self.block_view(self.store.block(logical, (tree, generation, level)))

    def block_view(self, place: int) -> memoryview:
        """Return the verified tree block at a byte of the image."""
        return self.block_bytes[place : place + self.nodesize]

    @twin("volume.blocks:verify_copy")
    def verify_copy(
        self, logical: int, copy: int, *, level: int = -1, generation: int = 0, tree: int = 0
    ) -> None:
        """Verify one copy of a tree block, even where it was verified before.

        Raises CorruptImageError: when that copy is bad.
        """
        self.store.verify_copy(logical, copy, (tree, generation, level))

    def own_block(self, physical: int) -> memoryview:
        """Return a tree block at a byte of the image where it can be verified and will stay."""
        self.store.own_block(physical)
        return self.block_view(physical)

    # ------------------------------------------------------------------- the cold cache ------

    @property
    def reads(self) -> blocks.ReadCache | None:
        """The cold cache that reads by the Python twins go through; that of this thread."""
        return self._reads if self._reader == threading.get_ident() else None

    @reads.setter
    def reads(self, reads: blocks.ReadCache | None) -> None:
        self._reads, self._reader = reads, threading.get_ident()

    def start_cold(self, cached: Iterable[int] = (), limits: Limits | None = None) -> None:
        """Model the cache of a kernel that just mounted: from now on reads are recorded.

        This thread has the lease until :meth:`stop_cold`.

        `cached`: logical addresses of the tree blocks that are in memory already.
        `limits`: how far is read ahead; as kernels do without it.
        """
        addresses = list(cached)
        reads = blocks.ReadCache(addresses, limits)
        self.lease.__enter__()
        try:
            self.store.cache_start(addresses, reads.limits.readahead(self.nodesize))
        except BaseException:
            self.lease.__exit__()
            raise
        self.reads = reads

    def stop_cold(self) -> NDArray[Any]:
        """End the model of a cold cache and return the reads of tree blocks, in order.

        Returns a row for each read: logical, generation, level, ahead, by (``enum bm_read_by``),
        used (whether anything came to the block), used_at (when: reads and first uses of blocks
        that were read ahead are counted from 1).
        """
        import numpy as np

        try:
            reads, cache = self.store.cache_reads(), self.reads
            if cache and cache.reads:
                reads = np.concatenate([reads, np.array(cache.cache_reads(), dtype=READ)])
            self.store.cache_stop()
            self.reads = None
        finally:
            self.lease.__exit__()
        return reads


def _reopen(kind: type[Image], paths: list[str], how: dict[str, bool]) -> Image:
    return kind.open(paths, **how)
