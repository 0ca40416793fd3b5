# SPDX-License-Identifier: GPL-2.0-only
"""Memory that holds a device: as large as the device, as much in use as was written.

The memory is a file without a name (``memfd_create``) that is mapped, so the kernel tells which
pages of it are there: a device of 100 GiB is copied and saved in the time that its data take.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from btrfs_model.base.whole_file import whole_file

_PAGE = 4096
_WORDS = _PAGE // 8
_PIECE = 1 << 20
_MANY = 16 * _PIECE


class Memory:
    """Anonymous memory of which only what was touched takes room.

    `size`: bytes.
    `buffer` (mmap.mmap): all of it, writable.
    """

    def __init__(self, size: int) -> None:
        self._fd = os.memfd_create("btrfs_model", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)
        os.ftruncate(self._fd, size)
        self.buffer = mmap.mmap(self._fd, size)

    @classmethod
    def copy_of(cls, path: str | os.PathLike[str], size: int) -> Memory:
        """Read a file into memory; its holes stay holes.

        `path`: file or block device.
        `size`: how much of it.
        Raises OSError: when the file cannot be read.
        """
        memory = cls(size)
        with Path(path).open("rb", buffering=0) as file:
            for start, end in _data_ranges(file.fileno(), size):
                for at in range(start, end, _PIECE):
                    piece = os.pread(file.fileno(), min(_PIECE, end - at), at)
                    memory.buffer[at : at + len(piece)] = piece
        return memory

    def copy(self) -> Memory:
        """Return the same in other memory."""
        memory = Memory(len(self.buffer))
        for at, pages in self._pages():
            memory.buffer[at : at + len(pages)] = pages
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all of it to a file, pages of zeros as holes; the file is there whole or not.

        Raises OSError: when the file cannot be written, or something else is there, such as a
        device.
        """
        with whole_file(path) as file:
            for at, pages in self._pages():
                done = 0
                while done < len(pages):
                    done += os.pwrite(file.fileno(), pages[done:], at + done)
            file.truncate(len(self.buffer))

    def _pages(self) -> Iterator[tuple[int, memoryview]]:
        """Yield runs of pages that are not zero: where, and their bytes."""
        with memoryview(self.buffer) as view:
            for start, end in _data_ranges(self._fd, len(view)):
                for first in range(start, end, _MANY):
                    with view[first : min(first + _MANY, end)] as part:
                        for low, high in _runs(part):
                            with part[low:high] as run:
                                yield first + low, run


def _runs(part: memoryview) -> list[tuple[int, int]]:
    """Return where in a part of memory pages are that are not zero."""
    count = len(part) // _PAGE
    words = np.frombuffer(part, np.uint64, count * _WORDS).reshape(count, _WORDS)
    # most of those that are not zero say so at once
    used = words[:, 0] != 0
    used[~used] = words[~used].any(axis=1)
    borders = np.flatnonzero(np.diff(used, prepend=False, append=False)) * _PAGE
    runs = [(low, high) for low, high in borders.reshape(-1, 2).tolist()]
    if any(part[count * _PAGE :]):
        runs.append((count * _PAGE, len(part)))
    return runs


def _data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of a file that are no holes, as far as the filesystem below it knows."""
    at = 0
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
