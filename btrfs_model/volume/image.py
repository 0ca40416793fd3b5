# SPDX-License-Identifier: GPL-2.0-only
"""The one store of blocks: an image of a btrfs device, mapped into memory.

An :class:`Image` knows the superblock and the chunk map, and hands out verified tree blocks and the
bytes of data extents. It is opened read-only by mmap, so it takes as much memory as is looked at,
and the kernel may drop those pages again.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault, NotBtrfsError
from btrfs_model.limits import Limits
from btrfs_model.native.choice import twin
from btrfs_model.native.image import READ, Store, map_file
from btrfs_model.ondisk.chunks import Chunk, parse_chunk_item
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.superblock import SuperBlock, read_superblocks
from btrfs_model.reference import blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK_ITEM = ItemType.CHUNK_ITEM
_MAX = 2**64 - 1
_COPIED = 64 << 20  # bytes of tree blocks; more cost more than checking them
_MAP_NORESERVE = 0x4000  # takes room as it is touched; Python names it since 3.13


class Image:
    """A btrfs device in memory: superblock, chunk map, verified tree blocks.

    Use :meth:`open`; as a context manager it closes the mapping. What was closed raises ValueError
    wherever it is used. Threads may share an image, see :mod:`btrfs_model.native.lease`.

    Parameters
    ----------
    buffer : buffer
        All bytes of the device.
    path : str
        Name used in errors.
    copied : int, optional
        They are a mapped file, which others may change: so many bytes of tree blocks are copied
        before they are used.

    Attributes
    ----------
    path : str
        Name used in errors.
    checks_items : bool
        Whether the items of a leaf are verified with it (``btrfs_check_leaf()``), as for a
        filesystem that is to be changed.
    superblock : SuperBlock
        The newest valid copy.
    chunks : list of Chunk
        The chunk map, ascending by logical address.
    nodesize, sectorsize : int
        Bytes.
    lease : Lease
        The way to what C keeps of it.
    """

    def __init__(
        self,
        buffer: mmap.mmap | memoryview | bytes | bytearray,
        path: str = "<memory>",
        *,
        copied: int | None = None,
        checks_items: bool = False,
    ) -> None:
        self.path = path
        self.checks_items = checks_items
        self._buffer: Any = buffer
        self._view: memoryview | None = memoryview(buffer)
        self._block_bytes: memoryview | None = self._view
        self.superblock: SuperBlock = read_superblocks(self.view, path)
        self.nodesize = self.superblock.nodesize
        self.sectorsize = self.superblock.sectorsize
        if len(self.view) < self.superblock.dev_item.total_bytes:
            size, whole = len(self.view), self.superblock.dev_item.total_bytes
            raise CorruptImageError(
                path,
                Fault(Code.PAST_END, found=whole, wanted=size),
                f"the image is cut off: it has {size} of {whole} bytes",
            )
        self.store = Store(
            self.view,
            path,
            nodesize=self.nodesize,
            sectorsize=self.sectorsize,
            csum_type=self.superblock.csum_type,
            fsid=self.superblock.tree_fsid,
        )
        self.lease = self.store.lease
        if checks_items:
            self.store.check_items()
        # where and how it was opened; None: not from a file
        self.opened: tuple[str, bool] | None = None
        self._reads: blocks.ReadCache | None = None
        self._reader = 0
        self.verified_by_twin: set[int] = set()
        # whether a writer has yet to write (and checksum) the tree block at a byte of the image
        self.is_unwritten: Callable[[int], bool] = lambda physical: False
        if copied is not None:
            self._copy_blocks(copied)
        self._set_chunks(self.superblock.sys_chunks)
        self._set_chunks(self._read_chunk_tree())

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, mounted: bool = False, checks_items: bool = False
    ) -> Self:
        """Map an image file read-only.

        The file may change meanwhile. The first 64 MiB of tree blocks that are used are copied
        when they are verified, and stay as they were; a block that changed before is refused, or
        read, as it is then. Of an image with more of them the rest is used where it is: nothing
        else may write to such a file while a call runs, and an error says so after it. An error
        says so, too, when a file was cut off.

        Parameters
        ----------
        path : str or os.PathLike
            File or block device.
        mounted : bool
            Read a block device also while it is in use, as it is when it is mounted. Its filesystem
            may change while it is read.
        checks_items : bool
            See the class.

        Raises
        ------
        NotBtrfsError
            When there is no superblock in it, or it is no file and no block device.
        CorruptImageError
            When it is truncated, has no valid superblock or a broken chunk tree.
        UnsupportedError
            For a filesystem that the model does not handle (named), and for what is neither a file
            nor a block device.
        OSError
            When the file cannot be read; EBUSY for a block device that is in use.
        """
        name = os.fspath(path)
        _refuse_special(name)
        with _open_file(name, mounted=mounted) as file:
            size = file.seek(0, os.SEEK_END)
            if not size:
                raise NotBtrfsError(name, "the file is empty")
            view = map_file(file.fileno(), size, name)
        copied = _MAX if mounted else _COPIED
        image = cls(view, name, copied=copied, checks_items=checks_items)
        image.opened = str(Path(name).absolute()), mounted
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
        """All bytes of the device, for data: they may change under who reads them."""
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
        """Keep tree blocks in memory that nobody else changes."""
        memory = mmap.mmap(-1, len(self.view), flags=mmap.MAP_PRIVATE | _MAP_NORESERVE)
        self._block_bytes = memoryview(memory).toreadonly()
        self.store.copy_blocks(memory, most)

    def __enter__(self) -> Self:
        self.lease.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------ chunks --

    def _set_chunks(self, chunks: Iterable[Chunk]) -> None:
        self.chunks = sorted(chunks, key=lambda chunk: chunk.logical)
        for before, chunk in zip(self.chunks, self.chunks[1:], strict=False):
            if before.logical + before.length > chunk.logical:
                raise CorruptImageError(
                    self.path, Fault(Code.BAD_VALUE, tree=3, found=chunk.logical)
                )
        self._chunk_starts = [chunk.logical for chunk in self.chunks]
        self.store.set_chunks(
            [(chunk.logical, chunk.length, chunk.type, chunk.stripes) for chunk in self.chunks]
        )

    def _read_chunk_tree(self) -> list[Chunk]:
        from btrfs_model.volume.tree import Tree

        tree, devid = Tree.pointed_at(self, ObjectId.CHUNK_TREE), self.superblock.dev_item.devid
        return [
            parse_chunk_item(
                item.key.offset, item.data, self.path, block=item.block, slot=item.slot, devid=devid
            )
            for item in tree.items((256, _CHUNK_ITEM, 0), (256, _CHUNK_ITEM, _MAX))
        ]

    def add_chunk(self, chunk: Chunk) -> None:
        """Map a chunk that a writer has just made.

        Raises CorruptImageError: when another chunk has some of its addresses.
        """
        self._set_chunks([*self.chunks, chunk])

    def chunk_at(self, logical: int) -> Chunk | None:
        """Return the chunk that holds a logical address, or None."""
        index = bisect_right(self._chunk_starts, logical) - 1
        if index < 0:
            return None
        chunk = self.chunks[index]
        return chunk if logical < chunk.logical + chunk.length else None

    def copies(self, logical: int) -> list[int]:
        """Return where each copy of a logical address is, bytes of the image.

        Raises CorruptImageError: as :meth:`map`.
        """
        chunk = self.chunk_at(logical)
        return [self.map(logical, copy)[0] for copy in range(len(chunk.stripes) if chunk else 1)]

    def map(self, logical: int, copy: int = 0) -> tuple[int, int]:
        """Translate a logical address.

        `logical`: address in the filesystem's address space.
        `copy`: which copy of a chunk with several (DUP, RAID1).
        Returns `physical`: byte of the image.
        Returns `contiguous`: bytes that follow from there in the same chunk and inside the image.
        Raises CorruptImageError: when no chunk holds the address or the chunk lies beyond the end
        of the image.
        """
        chunk = self.chunk_at(logical)
        if chunk is None or copy >= len(chunk.stripes):
            raise CorruptImageError(self.path, Fault(Code.UNMAPPED, found=logical))
        within = logical - chunk.logical
        physical = chunk.stripes[copy] + within
        if physical >= len(self.view):
            raise CorruptImageError(
                self.path, Fault(Code.PAST_END, found=physical, wanted=len(self.view))
            )
        return physical, min(chunk.length - within, len(self.view) - physical)

    def data(self, logical: int, length: int, copy: int = 0) -> memoryview:
        """Bytes of a data extent, unverified, without copying them.

        Raises CorruptImageError: when the range leaves its chunk or the image.
        """
        physical, contiguous = self.map(logical, copy)
        if contiguous < length:
            raise CorruptImageError(
                self.path,
                Fault(Code.PAST_END, found=physical + length, wanted=physical + contiguous),
            )
        return self.view[physical : physical + length]

    # -------------------------------------------------------------------------- tree blocks --

    @twin("reference.blocks:block")
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

    @twin("reference.blocks:verify_copy")
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


def _refuse_special(name: str) -> None:
    """Refuse what is neither a file nor a block device: to open a FIFO would wait for a writer."""
    mode = Path(name).stat().st_mode
    for is_kind, what in _SPECIAL.items():
        if is_kind(mode):
            raise NotBtrfsError(name, f"it is {what}")


_SPECIAL = {
    stat.S_ISCHR: "a character device",
    stat.S_ISFIFO: "a FIFO",
    stat.S_ISSOCK: "a socket",
}


def _open_file(name: str, *, mounted: bool) -> BinaryIO:
    """Open an image for reading; a block device for us alone, as long as it is mapped."""
    is_device = stat.S_ISBLK(Path(name).stat().st_mode)

    def opener(path: str, flags: int) -> int:
        try:
            return os.open(path, flags | (os.O_EXCL if is_device and not mounted else 0))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            why = "the device is in use, perhaps mounted; bm.open(..., mounted=True) reads it"
            raise OSError(error.errno, why, path) from None

    return open(name, "rb", opener=opener)


def _reopen(kind: type[Image], path: str, mounted: bool) -> Image:
    return kind.open(path, mounted=mounted)
