# SPDX-License-Identifier: GPL-2.0-only
"""Memory that holds a device: as large as the device, as much in use as was written.

The memory is a file without a name (``memfd_create``) that is mapped, so the kernel tells which
pages of it are there: a device of 100 GiB is copied and saved in the time that its data take.

An image that is loaded to be replaced has its memory in a file beside it (:class:`Replacement`).
Data go there as they come, and in the end the file only gets the rest and its name.

Processes that share a file would see what the others write. So before this one forks, the file
stays as it is for good, and memory becomes private (:meth:`Memory.freeze`): pages that are written
from then on are copies, here and in the other process.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from btrfs_model.base.whole_file import name_file, naming, open_unnamed, whole_file, write_at
from btrfs_model.native.image import differences, make_private
from btrfs_model.native.lease import Lease

_PAGE = 4096
_WORDS = _PAGE // 8
_PIECE = 1 << 20
_MANY = 16 * _PIECE
# Documentation/admin-guide/mm/pagemap.rst
_PAGEMAP = "/proc/self/pagemap"
_ENTRIES = 1 << 16
_OF_FILE, _THERE = 61, 62


class Memory:
    """Anonymous memory of which only what was touched takes room.

    `size`: bytes.
    `buffer` (mmap.mmap): all of it, writable.
    `file` (int): descriptor of a file that takes data of whole pages, which are then in `buffer`;
    -1 where there is none.
    `lease` (Lease): of the image in it, which a process is refused that cannot have a copy.
    """

    file = -1
    lease: Lease | None = None

    def __init__(self, size: int) -> None:
        self._set_file(os.memfd_create("btrfs_model", os.MFD_CLOEXEC), size)
        self.buffer = mmap.mmap(self._fd, size)

    def _set_file(self, fd: int, size: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd)
        os.ftruncate(fd, size)
        self._is_frozen = False
        key = id(self)
        _alive[key] = weakref.ref(self, lambda _: _alive.pop(key, None))

    def freeze(self) -> None:
        """Write to the file no more, so that other processes may go on from what is here now."""
        # which pages are copies has to be seen
        if not self._is_frozen and _sees_own_pages():
            self._is_frozen = make_private(self.buffer, self._fd)

    def drop(self, start: int, end: int) -> None:
        """Make a range of whole pages zeros that take no memory, except those of a file."""
        if self._is_frozen or self.file != -1:
            self.buffer.madvise(mmap.MADV_DONTNEED, start, end - start)
            for low, high in _data_ranges(self._fd, end, start):
                for at in range(low, high, _PIECE):
                    self.buffer[at : min(at + _PIECE, high)] = bytes(min(_PIECE, high - at))
        else:
            self.buffer.madvise(mmap.MADV_REMOVE, start, end - start)

    @classmethod
    def copy_of(cls, path: str | os.PathLike[str], size: int) -> Memory:
        """Read a file into memory; its holes stay holes.

        `path`: file or block device.
        `size`: how much of it.
        Raises OSError: when the file cannot be read.
        """
        memory = cls(size)
        memory._read(path)
        return memory

    def _read(self, path: str | os.PathLike[str]) -> None:
        with Path(path).open("rb", buffering=0) as file:
            for start, end in _data_ranges(file.fileno(), len(self.buffer)):
                for at in range(start, end, _PIECE):
                    piece = os.pread(file.fileno(), min(_PIECE, end - at), at)
                    write_at(self._fd, memoryview(piece), at)

    def copy(self) -> Memory:
        """Return the same in other memory."""
        memory = Memory(len(self.buffer))
        with memoryview(self.buffer) as view:
            for start, end in _joined(list(self._touched())):
                for at in range(start, end, _MANY):
                    memory.put(at, view[at : min(at + _MANY, end)])
        return memory

    @classmethod
    def copy_of_buffer(cls, view: memoryview) -> Memory:
        """Copy memory; pages of zeros stay untouched."""
        memory = cls(len(view))
        zeros = bytes(_PIECE)
        for at in range(0, len(view), _PIECE):
            piece = bytes(view[at : at + _PIECE])
            if piece != zeros[: len(piece)]:
                memory.buffer[at : at + len(piece)] = piece
        return memory

    def take_changes(self, other: Memory) -> Iterator[tuple[int, memoryview]]:
        """Become equal to other memory of the same size; yield runs of pages that were not.

        `other`: the memory. What is yielded is where, and its bytes, until the next is asked for.
        """
        with memoryview(other.buffer) as there, memoryview(self.buffer) as here:
            for start, end in _joined([*self._touched(), *other._touched()]):
                for low, high in differences(here[start:end], there[start:end], _MANY):
                    with there[start + low : start + high] as run:
                        self.put(start + low, run)
                        yield start + low, run

    def put(self, at: int, data: bytes | memoryview) -> None:
        """Write bytes to a place; without a fault for each page where that can be."""
        if self._is_frozen or self.file != -1:
            self.buffer[at : at + len(data)] = data
        else:
            write_at(self._fd, data, at)

    def save(self, path: str | os.PathLike[str], last: Callable[[int], None] | None = None) -> None:
        """Write all of it to a file, pages of zeros as holes; the file is there whole or not.

        `last`: does something more to the open file before it takes its place.

        Raises OSError: when the file cannot be written, or something else is there, such as a
        device.
        """
        with whole_file(path) as file:
            for at, pages in self._pages():
                write_at(file.fileno(), pages, at)
            file.truncate(len(self.buffer))
            if last is not None:
                last(file.fileno())

    def finish(self, path: str | os.PathLike[str]) -> None:
        """Do as :meth:`save`, for the last time: nothing may change the memory any more."""
        self.save(path)

    def _touched(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges in which something may have been written."""
        yield from _data_ranges(self._fd, len(self.buffer))
        if self._is_frozen:
            yield from self._own()

    def _own(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of pages that are copies of those of the file."""
        first = np.frombuffer(self.buffer, np.uint8).ctypes.data // _PAGE
        count = -(-len(self.buffer) // _PAGE)
        with Path(_PAGEMAP).open("rb", buffering=0) as pagemap:
            for at in range(0, count, _ENTRIES):
                raw = os.pread(pagemap.fileno(), 8 * min(_ENTRIES, count - at), 8 * (first + at))
                entries = np.frombuffer(raw, np.uint64)
                own = (entries >> _THERE != 0) & (entries >> _OF_FILE & 1 == 0)
                for low, high in _borders(own):
                    yield (at + low) * _PAGE, min((at + high) * _PAGE, len(self.buffer))

    def _pages(self) -> Iterator[tuple[int, memoryview]]:
        """Yield runs of pages that are not zero: where, and their bytes."""
        with memoryview(self.buffer) as view:
            for start, end in self._touched():
                for first in range(start, end, _MANY):
                    with view[first : min(first + _MANY, end)] as part:
                        for low, high in _runs(part):
                            with part[low:high] as run:
                                yield first + low, run


class Replacement(Memory):
    """Memory that becomes the file in whose place it is loaded.

    It maps a file without a name, privately: pages that are written in memory are copies of its
    own, and what is written to the file is in all others. So a disk that is full is an error of a
    system call, never of an access to memory.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._set_file(fd, size)
        self.file = fd
        self.buffer = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)

    def freeze(self) -> None:
        """Do as :meth:`Memory.freeze`; the file will take no place."""
        # memory is private already
        self.file, self._is_frozen = -1, True

    def finish(self, path: str | os.PathLike[str]) -> None:
        """Let the file take a place, with all that is in memory.

        Raises OSError: as :meth:`save`.
        """
        if self._is_frozen:
            self.save(path)
            return
        with naming(path), memoryview(self.buffer) as view:
            for start, end in self._own():
                with view[start:end] as part:
                    at = 0
                    for low, high in _runs(part):
                        self._clear(start + at, start + low)
                        write_at(self._fd, part[low:high], start + low)
                        at = high
                    self._clear(start + at, end)
            name_file(self._fd, path)

    def _clear(self, start: int, end: int) -> None:
        """Write zeros over what the file has in a range; holes stay holes."""
        for low, high in _data_ranges(self._fd, end, start):
            write_at(self._fd, memoryview(bytes(high - low)), low)

    def _touched(self) -> Iterator[tuple[int, int]]:
        yield from _data_ranges(self._fd, len(self.buffer))
        yield from self._own()


def replacement_of(path: str | os.PathLike[str], size: int) -> Memory:
    """Read a file into memory that is to take its place.

    `path`, `size`: as for :meth:`Memory.copy_of`.
    Raises OSError: when the file cannot be read.
    """
    # the file takes whole sectors, and those are pages
    fd = open_unnamed(path) if _sees_own_pages() else None
    if fd is None:
        return Memory.copy_of(path, size)
    with naming(path):
        memory = Replacement(fd, size)
        memory._read(path)
    return memory


def _sees_own_pages() -> bool:
    return mmap.PAGESIZE == _PAGE and os.access(_PAGEMAP, os.R_OK)


# ------------------------------------------------------------------------------ processes ---

_alive: dict[int, weakref.ref[Memory]] = {}


def _living() -> list[Memory]:
    there = (one() for one in list(_alive.values()))
    return [memory for memory in there if memory is not None]


def _before_fork() -> None:
    for memory in _living():
        memory.freeze()


def _in_child() -> None:
    for memory in _living():
        if not memory._is_frozen and memory.lease is not None:
            memory.lease.refuse("its memory cannot be copied into a process that was forked")


os.register_at_fork(before=_before_fork, after_in_child=_in_child)


def _borders(used: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return where runs of True begin and end."""
    borders = np.flatnonzero(np.diff(used, prepend=False, append=False))
    return [(low, high) for low, high in borders.reshape(-1, 2).tolist()]


def _runs(part: memoryview) -> list[tuple[int, int]]:
    """Return where in a part of memory pages are that are not zero."""
    count = len(part) // _PAGE
    words = np.frombuffer(part, np.uint64, count * _WORDS).reshape(count, _WORDS)
    # most of those that are not zero say so at once
    used = words[:, 0] != 0
    used[~used] = words[~used].any(axis=1)
    runs = [(low * _PAGE, high * _PAGE) for low, high in _borders(used)]
    if any(part[count * _PAGE :]):
        runs.append((count * _PAGE, len(part)))
    return runs


def _joined(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Join ranges that overlap or touch, in whole pages."""
    start = end = 0
    for low, high in sorted(ranges):
        if low > end:
            if start < end:
                yield start, end
            start = low // _PAGE * _PAGE
        end = max(end, high)
    if start < end:
        yield start, end


def _data_ranges(fd: int, size: int, at: int = 0) -> Iterator[tuple[int, int]]:
    """Ranges of a file from `at` on that are no holes, as far as the filesystem below it knows."""
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            # ENXIO: nothing but a hole; EINVAL: a block device
            if error.errno == errno.ENXIO:
                return
            if error.errno != errno.EINVAL:
                raise
            yield at, size
            return
        at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        yield min(start, size), at
