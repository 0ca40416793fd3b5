# SPDX-License-Identifier: GPL-2.0-only
"""The writes to a device in their order, as dm-log-writes keeps them.

The target logs a write when a flush has come behind it, so what is written between two flushes is
known from what the device has at both: pages that differ are the writes, in the order of their
addresses. The superblock goes behind a flush, and past it (FUA).
"""

from __future__ import annotations

import os
import tempfile
from typing import Final, NamedTuple

from btrfs_model.base.whole_file import write_at
from btrfs_model.mount.live_inode import LiveInode
from btrfs_model.volume.device.memory import Memory

FLUSH: Final = 1
FUA: Final = 2
DISCARD: Final = 4
MARK: Final = 8
METADATA: Final = 16
SECTOR: Final = 512
_MOST: Final = 1 << 20
"""Bytes of a write at most."""
_SUPER: Final = 64 << 10
_SUPER_END: Final = _SUPER + 4096
_END: Final = "dm-log-writes-end"


class Entry(NamedTuple):
    """A write: its flags, where it begins on the device, its bytes, where they are kept."""

    flags: int
    start: int = 0
    size: int = 0
    kept: int = 0
    mark: str = ""


class DeviceLog:
    """A log of writes.

    Parameters
    ----------
    name : str
        The device of the target.
    content : Memory
        What is on the device at first; it is changed.

    Attributes
    ----------
    entries : list of Entry
        The log.
    """

    def __init__(self, name: str, content: Memory) -> None:
        self.name = name
        self.entries: list[Entry] = []
        self._content = content
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it is there as long as the log
        self._length = 0

    def made(self, memory: Memory) -> None:
        """Note what mkfs does: it discards all, writes, and flushes."""
        self.entries.append(Entry(DISCARD, 0, len(memory.buffer)))
        self._content = Memory(len(memory.buffer))
        self._write(memory)
        self.entries.append(Entry(FLUSH))

    def flush(self, memory: Memory) -> None:
        """Note all writes but that of the superblock, and a flush."""
        self._write(memory, but_super=True)
        self.entries.append(Entry(FLUSH))

    def superblock(self, memory: Memory) -> None:
        """Note the write of the first superblock; the others wait for the next flush."""
        data = memory.buffer[_SUPER:_SUPER_END]
        self._content.buffer[_SUPER:_SUPER_END] = data
        self._add(FUA | METADATA, _SUPER, data)

    def synced(self, inode: LiveInode | None) -> None:
        """Nothing is written by the return of a call."""

    def mark(self, text: str) -> None:
        """Put a mark."""
        self.entries.append(Entry(MARK, mark=text))

    def end(self, memory: Memory | None) -> None:
        """Note what waits, and the mark that the target puts in the end."""
        if memory is not None:
            self._write(memory)
        self.mark(_END)

    def _write(self, memory: Memory, *, but_super: bool = False) -> None:
        for start, data in self._content.take_changes(memory):
            for at in range(start, start + len(data), _MOST):
                end = min(at + _MOST, start + len(data))
                parts = [(at, end)]
                if but_super and at < _SUPER_END and end > _SUPER:
                    parts = [(at, _SUPER), (_SUPER_END, end)]
                for low, high in parts:
                    if low < high:
                        self._add(0, low, data[low - start : high - start])

    def _add(self, flags: int, start: int, data: bytes | memoryview) -> None:
        write_at(self._file.fileno(), data, self._length)
        self.entries.append(Entry(flags, start, len(data), self._length))
        self._length += len(data)

    def data(self, entry: Entry) -> bytes:
        """Return what was written."""
        return os.pread(self._file.fileno(), entry.size, entry.kept)
