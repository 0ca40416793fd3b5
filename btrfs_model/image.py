# SPDX-License-Identifier: GPL-2.0-only
"""The one store of blocks: an image of a btrfs device, mapped into memory.

An :class:`Image` knows the superblock and the chunk map, and hands out verified tree blocks and the
bytes of data extents. It is opened read-only by mmap, so it takes as much memory as is looked at,
and the kernel may drop those pages again.
"""

from __future__ import annotations

import mmap
import os
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from btrfs_model import blocks
from btrfs_model.counters import Work, current
from btrfs_model.errors import (
    CorruptImageError,
    Fault,
    NotBtrfsError,
    new_fault,
    raise_fault,
)
from btrfs_model.kernels import ffi, lib, use_python
from btrfs_model.ondisk.chunks import Chunk, parse_chunk_item
from btrfs_model.ondisk.superblock import SuperBlock, read_superblocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["READ_FIELDS", "Image"]

_CHUNK_ITEM = lib.BTRFS_CHUNK_ITEM_KEY
_MAX = 2**64 - 1


READ_FIELDS = [
    ("logical", "<u8"),
    ("generation", "<u8"),
    ("level", "u1"),
    ("ahead", "u1"),
    ("by", "u1"),
    ("used", "u1"),
    ("used_at", "<u4"),
]
"""``struct bm_read`` as the fields of a numpy array."""


class Image:
    """A btrfs device in memory: superblock, chunk map, verified tree blocks.

    Use :meth:`open`; as a context manager it closes the mapping.

    Attributes
    ----------
    path : str
        Name used in errors.
    checks_items : bool
        Whether the items of a leaf are verified with it (``btrfs_check_leaf()``), as for a
        filesystem that is to be changed.
    buffer : mmap.mmap or buffer
        All bytes of the device.
    superblock : SuperBlock
        The newest valid copy.
    chunks : list of Chunk
        The chunk map, ascending by logical address.
    nodesize, sectorsize : int
        Bytes.
    """

    def __init__(
        self,
        buffer: mmap.mmap | bytes | bytearray,
        path: str = "<memory>",
        *,
        checks_items: bool = False,
    ) -> None:
        self.path = path
        self.checks_items = checks_items
        self.buffer = buffer
        self.view = memoryview(buffer)
        self.superblock: SuperBlock = read_superblocks(self.view, path)
        self.nodesize = self.superblock.nodesize
        self.sectorsize = self.superblock.sectorsize
        if len(self.view) < self.superblock.dev_item.total_bytes:
            size, whole = len(self.view), self.superblock.dev_item.total_bytes
            raise CorruptImageError(
                path,
                Fault(lib.BM_PAST_END, found=whole, wanted=size),
                f"the image is cut off: it has {size} of {whole} bytes",
            )
        self._bytes = ffi.from_buffer("uint8_t[]", buffer)
        self.handle = ffi.gc(
            lib.bm_image_create(
                self._bytes,
                len(self.view),
                self.nodesize,
                self.sectorsize,
                self.superblock.csum_type,
                self.superblock.tree_fsid,
            ),
            lib.bm_image_destroy,
        )
        if not self.handle:
            raise MemoryError(f"{path}: no memory for the state of the image")
        if checks_items:
            lib.bm_image_check_items(self.handle)
        self._counted: Work | None = None
        self.reads: blocks.ReadCache | None = None
        self.verified_by_twin: set[int] = set()
        # whether a writer has yet to write (and checksum) the tree block at a byte of the image
        self.is_unwritten: Callable[[int], bool] = lambda physical: False
        self._set_chunks(self.superblock.sys_chunks)
        self._set_chunks(self._read_chunk_tree())

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, checks_items: bool = False) -> Self:
        """Map an image file read-only.

        Parameters
        ----------
        path : str or os.PathLike
            File or block device.
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
            When the file cannot be read.
        """
        name = os.fspath(path)
        _refuse_special(name)
        with Path(name).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if not size:
                raise NotBtrfsError(name, "the file is empty")
            mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        return cls(mapping, name, checks_items=checks_items)

    def close(self) -> None:
        """Give the mapping back; the image cannot be used any more.

        Where somebody still holds bytes of it, the mapping goes when they do.
        """
        ffi.release(self.handle)
        ffi.release(self._bytes)
        with suppress(BufferError):
            self.view.release()
            if isinstance(self.buffer, mmap.mmap):
                self.buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------ chunks --

    def _set_chunks(self, chunks: Iterable[Chunk]) -> None:
        self.chunks = sorted(chunks, key=lambda chunk: chunk.logical)
        for before, chunk in zip(self.chunks, self.chunks[1:], strict=False):
            if before.logical + before.length > chunk.logical:
                raise CorruptImageError(
                    self.path, Fault(lib.BM_BAD_VALUE, tree=3, found=chunk.logical)
                )
        self._chunk_starts = [chunk.logical for chunk in self.chunks]
        table = ffi.new("struct bm_chunk[]", len(self.chunks))
        for row, chunk in zip(table, self.chunks, strict=True):
            row.logical, row.length, row.type = chunk.logical, chunk.length, chunk.type
            row.copies = len(chunk.stripes)
            for copy, stripe in enumerate(chunk.stripes):
                row.physical[copy] = stripe
        fault = new_fault()
        if lib.bm_image_set_chunks(self.handle, table, len(self.chunks), fault) < 0:
            raise_fault(self.path, fault)

    def _read_chunk_tree(self) -> list[Chunk]:
        from btrfs_model.btree.tree import Tree

        tree = Tree(
            self,
            lib.BTRFS_CHUNK_TREE_OBJECTID,
            self.superblock.chunk_root,
            self.superblock.chunk_root_generation,
            self.superblock.chunk_root_level,
        )
        return [
            parse_chunk_item(
                item.key.offset,
                item.data,
                self.path,
                block=item.block,
                slot=item.slot,
                devid=self.superblock.dev_item.devid,
            )
            for item in tree.items((256, _CHUNK_ITEM, 0), (256, _CHUNK_ITEM, _MAX))
        ]

    def add_chunk(self, chunk: Chunk) -> None:
        """Map a chunk that a writer has just made.

        Raises
        ------
        CorruptImageError
            When another chunk has some of its addresses.
        """
        self._set_chunks([*self.chunks, chunk])

    def chunk_at(self, logical: int) -> Chunk | None:
        """Return the chunk that holds a logical address, or None."""
        index = bisect_right(self._chunk_starts, logical) - 1
        if index < 0:
            return None
        chunk = self.chunks[index]
        return chunk if logical < chunk.logical + chunk.length else None

    def map(self, logical: int, copy: int = 0) -> tuple[int, int]:
        """Translate a logical address.

        Parameters
        ----------
        logical : int
            Address in the filesystem's address space.
        copy : int
            Which copy of a chunk with several (DUP, RAID1).

        Returns
        -------
        physical : int
            Byte of the image.
        contiguous : int
            Bytes that follow from there in the same chunk and inside the image.

        Raises
        ------
        CorruptImageError
            When no chunk holds the address or the chunk lies beyond the end of the image.
        """
        chunk = self.chunk_at(logical)
        if chunk is None or copy >= len(chunk.stripes):
            raise CorruptImageError(self.path, Fault(lib.BM_UNMAPPED, found=logical))
        within = logical - chunk.logical
        physical = chunk.stripes[copy] + within
        if physical >= len(self.view):
            raise CorruptImageError(
                self.path, Fault(lib.BM_PAST_END, found=physical, wanted=len(self.view))
            )
        return physical, min(chunk.length - within, len(self.view) - physical)

    def data(self, logical: int, length: int, copy: int = 0) -> memoryview:
        """Bytes of a data extent, unverified, without copying them.

        Raises
        ------
        CorruptImageError
            When the range leaves its chunk or the image.
        """
        physical, contiguous = self.map(logical, copy)
        if contiguous < length:
            raise CorruptImageError(
                self.path,
                Fault(lib.BM_PAST_END, found=physical + length, wanted=physical + contiguous),
            )
        return self.view[physical : physical + length]

    # -------------------------------------------------------------------------- tree blocks --

    def block(
        self, logical: int, *, level: int = -1, generation: int = 0, tree: int = 0
    ) -> memoryview:
        """Return a verified tree block, from its second copy where the first is bad.

        Parameters
        ----------
        logical : int
            Address of the block.
        level, generation : int
            What the parent says; -1 and 0 for any.
        tree : int
            Objectid of the tree, for errors.

        Returns
        -------
        memoryview
            `nodesize` bytes.

        Raises
        ------
        CorruptImageError
            When every copy is bad; the fault is that of the first.
        """
        expect = blocks.Expect(tree, generation, level)
        if use_python():
            return blocks.read_block(self, logical, expect)
        fault = new_fault()
        pointer = lib.bm_image_block(
            self.handle, logical, ffi.new("struct bm_expect *", expect), fault
        )
        if not pointer:
            raise_fault(self.path, fault)
        start = pointer - self._bytes
        return self.view[start : start + self.nodesize]

    def verify_copy(
        self, logical: int, copy: int, *, level: int = -1, generation: int = 0, tree: int = 0
    ) -> None:
        """Verify one copy of a tree block, even where it was verified before.

        Raises
        ------
        CorruptImageError
            When that copy is bad.
        """
        expect = blocks.Expect(tree, generation, level)
        if use_python():
            blocks.read_copy(self, logical, copy, expect, again=True)
            return
        fault = new_fault()
        if (
            lib.bm_image_verify_copy(
                self.handle, logical, copy, ffi.new("struct bm_expect *", expect), fault
            )
            < 0
        ):
            raise_fault(self.path, fault)

    def count_here(self) -> None:
        """Have the C kernels count in the counters of the innermost ``counting()``."""
        work = current()
        if work is not self._counted:
            self._counted = work
            lib.bm_image_set_work(self.handle, work.pointer)

    # ------------------------------------------------------------------- the cold cache ------

    def start_cold(
        self, cached: Iterable[int] = (), readahead: blocks.Readahead | None = None
    ) -> None:
        """Model the cache of a kernel that just mounted: from now on reads are recorded.

        Parameters
        ----------
        cached : iterable of int
            Logical addresses of the tree blocks that are in memory already.
        readahead : Readahead, optional
            How far is read ahead; as kernels do without it.
        """
        addresses = list(cached)
        self.reads = blocks.ReadCache(addresses, readahead)
        limits = self.reads.readahead.limits(self.nodesize)
        lib.bm_image_set_readahead(self.handle, ffi.new("struct bm_readahead *", limits))
        fault = new_fault()
        if lib.bm_image_cache_start(self.handle, addresses, len(addresses), fault) < 0:
            raise_fault(self.path, fault)

    def stop_cold(self) -> NDArray[Any]:
        """End the model of a cold cache and return the reads of tree blocks, in order.

        Returns
        -------
        numpy.ndarray
            A row for each read: logical, generation, level, ahead, by (``enum bm_read_by``), used
            (whether anything came to the block), used_at (when: reads and first uses of blocks that
            were read ahead are counted from 1).
        """
        import numpy as np

        kind = np.dtype(READ_FIELDS)
        count = ffi.new("size_t *")
        rows = lib.bm_image_cache_reads(self.handle, count)
        size = count[0] * ffi.sizeof("struct bm_read")
        # a copy, as the rows go with the cache
        reads = np.frombuffer(bytearray(ffi.buffer(rows, size) if size else b""), dtype=kind)
        if self.reads and self.reads.reads:
            reads = np.concatenate([reads, np.array(self.reads.rows(), dtype=kind)])
        lib.bm_image_cache_stop(self.handle)
        self.reads = None
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
