# SPDX-License-Identifier: GPL-2.0-only
"""``native/image``: the store of verified tree blocks, and the cache of a cold kernel."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import Fault
from btrfs_model.native.door import dtype_of, fault_of, ffi, lib, new_fault, raise_fault
from btrfs_model.native.lease import Lease, own

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from btrfs_model.ondisk.chunks import Chunk

READ: Final = dtype_of("struct bm_read")
"""A block that was read, a row of a numpy array."""


DEVICE_ALIGN: Final = lib.BM_DEVICE_ALIGN
"""A device starts at a multiple of it."""


def map_files(files: Sequence[tuple[int, int, int]], size: int, path: str) -> memoryview:
    """Map open files that others may change, read-only, into `size` bytes.

    `files`: number, place and size of each, ascending; zeros lie between and after them.
    Raises OSError: when they cannot be mapped; ENOMEM says what there is no room for.
    """
    fault = new_fault()
    base = lib.bm_map_files(ffi.new("struct bm_file[]", list(files)), len(files), size, fault)
    if not base and fault.code == Code.ERRNO and fault.found == errno.ENOMEM:
        raise no_address_space(path, size)
    if not base:
        raise_fault(path, fault)
    return memoryview(ffi.buffer(ffi.gc(base, lib.bm_unmap_files), size)).toreadonly()


def no_address_space(path: str, size: int, why: str = "to map it") -> OSError:
    """Return the error of a file for which so many bytes of addresses are not to be had."""
    what = f"no room for {size} bytes of address space {why} (is there a limit, ulimit -v?)"
    return OSError(errno.ENOMEM, what, path)


def make_private(buffer: Any, file: int) -> bool:
    """Let memory that shows a file be this process's alone from now on, as it is.

    `buffer`: the memory, writable.
    `file`: descriptor of what it shows from the start, which nobody may write to any more.
    Returns whether it could be; where not, nothing changed.
    """
    memory = ffi.from_buffer("uint8_t[]", buffer, require_writable=True)
    return bool(lib.bm_make_private(memory, len(memory), file, new_fault()) == 0)


def differences(one: Any, other: Any, most: int) -> Iterator[tuple[int, int]]:
    """Yield where pages of two parts of memory differ: start and end of each run, in bytes.

    `one`, `other`: as many bytes each; what was yielded may change.
    `most`: of a run, a multiple of a page; a longer one is several.
    """
    left, right = ffi.from_buffer("uint8_t[]", one), ffi.from_buffer("uint8_t[]", other)
    size, end = len(left), 0
    found = ffi.new("uint64_t[2]")
    while end < size:
        lib.bm_next_difference(left, right, size, end, most, found)
        start, end = found
        if start < end:
            yield start, end


class Store:
    """What C keeps of an image (``struct bm_image``).

    `view`: all bytes of the device.
    `path`: of the image, for errors.
    `nodesize`, `sectorsize`, `csum_type`: as in the superblock.
    `fsid`: what stands in headers.
    `lease` (Lease): the way to it.
    """

    def __init__(
        self,
        view: memoryview,
        path: str,
        *,
        nodesize: int,
        sectorsize: int,
        csum_type: int,
        fsid: bytes,
    ) -> None:
        self._copies = ffi.from_buffer("uint8_t[]", view)
        self._memory = [self._copies]
        handle = lib.bm_image_create(self._copies, len(view), nodesize, sectorsize, csum_type, fsid)
        if not handle:
            raise MemoryError(f"{path}: no memory for the state of the image")
        self.lease = Lease(path, own(handle, lib.bm_image_destroy, self._memory))

    def close(self) -> None:
        """Refuse the lease from now on; memory goes when nobody holds it any more."""
        self.lease.close(*self._memory)

    def check_items(self) -> None:
        """Verify of leaves also what their items say of themselves, as a mounted filesystem."""
        with self.lease as handle:
            lib.bm_image_check_items(handle)

    def copy_blocks(self, memory: Any, most: int) -> None:
        """Copy up to `most` bytes of tree blocks to `memory` before they are verified."""
        with self.lease:
            self._copies = ffi.from_buffer("uint8_t[]", memory)
            self._memory.append(self._copies)
            self._run(lib.bm_image_copy_blocks, self._copies, most)

    def use_in_place(self) -> None:
        """Use tree blocks in the mapped file itself: an error says so where it was written to."""
        self._run(lib.bm_image_use_in_place)

    def set_devices(self, devices: Sequence[tuple[int, int, int]]) -> None:
        """Say where the devices are, if they are several: devid, place and size of each."""
        self._run(lib.bm_image_set_devices, ffi.new("struct bm_member[]", devices), len(devices))

    def set_chunks(self, chunks: Sequence[Chunk]) -> None:
        """Replace the chunk map, which ascends."""
        table = ffi.new("struct bm_chunk[]", len(chunks))
        kept = []
        for row, chunk in zip(table, chunks, strict=True):
            row.logical, row.length, row.type = chunk.logical, chunk.length, chunk.type
            row.num_stripes, row.sub_stripes = len(chunk.stripes), chunk.sub_stripes
            devids = chunk.devids or [0] * len(chunk.stripes)
            stripes = list(zip(devids, chunk.stripes, strict=True))
            kept.append(ffi.new("struct bm_stripe[]", stripes))
            row.stripes = kept[-1]
        self._run(lib.bm_image_set_chunks, table, len(chunks))

    def read(self, logical: int, length: int, copy: int) -> bytearray:
        """Read a range of a chunk from a copy, wherever it lies, or as parity makes it."""
        out = bytearray(length)
        self._run(lib.bm_image_read, logical, copy, length, ffi.from_buffer("uint8_t[]", out))
        return out

    def _run(self, kernel: Callable[..., int], *args: Any) -> None:
        """Call a kernel that takes the image first and a fault last."""
        with self.lease as handle:
            self.lease.run(kernel, handle, *args)

    # -------------------------------------------------------------------------- tree blocks --

    def place(self, block: ffi.CData) -> int:
        """Return the byte of the image at which a verified block lies that C points at."""
        return int(block - self._copies)

    def block(self, logical: int, expect: tuple[int, int, int]) -> int:
        """Return where a tree block is, verified; `expect`: tree, generation and level."""
        fault, raw = new_fault(), ffi.new("struct bm_expect *", expect)
        with self.lease as handle:
            pointer = lib.bm_image_block(handle, logical, raw, fault)
            if not pointer:
                raise_fault(self.lease.path, fault)
            return int(pointer - self._copies)

    def verify_copy(self, logical: int, copy: int, expect: tuple[int, int, int]) -> None:
        """Verify one copy of a tree block, even where it was verified before."""
        self._run(lib.bm_image_verify_copy, logical, copy, ffi.new("struct bm_expect *", expect))

    def own_block(self, physical: int) -> None:
        """Copy the tree block at a byte of the image, if blocks are copied."""
        with self.lease as handle:
            lib.bm_image_own_block(handle, physical)

    def check_leaf(self, leaf: memoryview) -> Fault | None:
        """Check the items of a leaf, each for itself (``btrfs_check_leaf()``)."""
        place = new_fault()
        with self.lease as handle:
            code = lib.bm_check_leaf(handle, ffi.from_buffer("uint8_t[]", leaf), place)
        place.code = code
        return fault_of(place) if code < 0 else None

    # ------------------------------------------------------------------- the cold cache ------

    def cache_start(self, cached: list[int], readahead: Mapping[str, int]) -> None:
        """Record reads from now on; blocks at the addresses `cached` are in memory."""
        with self.lease as handle:
            lib.bm_image_set_readahead(handle, ffi.new("struct bm_readahead *", readahead))
            self._run(lib.bm_image_cache_start, cached, len(cached))

    # the image may be closed by now, but whoever holds the lease still has it

    def cache_reads(self) -> NDArray[Any]:
        """Return the reads so far, rows of :data:`READ`; for the holder of the lease."""
        count = ffi.new("size_t *")
        rows = lib.bm_image_cache_reads(self.lease.handle, count)
        # a copy, as the rows go with the cache
        size = count[0] * READ.itemsize
        return np.frombuffer(bytearray(ffi.buffer(rows, size) if size else b""), READ)

    def cache_stop(self) -> None:
        """Record no reads any more; for the holder of the lease."""
        lib.bm_image_cache_stop(self.lease.handle)
