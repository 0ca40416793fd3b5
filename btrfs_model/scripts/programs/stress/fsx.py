# SPDX-License-Identifier: GPL-2.0-only
"""fsx: random operations on one file, which is compared with what it must be.

Operations follow from a seed, in the order of the numbers that ``ltp/fsx.c`` of fstests takes.
Collapsing, inserting and exchanging ranges, unsharing and atomic writes are none on btrfs: their
turns come, and nothing is done. Nor has btrfs uncached reads and writes; those are plain ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.copy_range import copy_file_range
from btrfs_model.scripts.glibc import Random
from btrfs_model.scripts.program import reason
from btrfs_model.scripts.programs.copies import fsync
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.scripts.mounted import Mounted

_PAGE: Final = 4096
_LITE: Final = ("read", "read", "write", "write", "atomic", "mapread", "mapwrite")
_FULL: Final = (*_LITE, "truncate", "falloc", "punch", "zero", "collapse", "insert", "clone",
                "dedupe", "copy", "exchange")  # fmt: skip
_INTEGRITY: Final = (*_FULL, "fsync")
_NEVER: Final = {"atomic", "collapse", "insert", "exchange"}
_KEEP_SIZE: Final = 1
_PUNCH: Final = 2
_ZERO: Final = 16
_TRIES: Final = 30
_CLOSES: Final = 1 << 28


@dataclass
class Settings:
    """What options say; the names are those of ``ltp/fsx.c``."""

    seed: int = 1
    numops: int = -1
    first: int = 0
    closeprob: int = 0
    debug: bool = False
    debugstart: int = 0
    filldata: int = 0
    maxfilelen: int = 256 << 10
    maxoplen: int = 64 << 10
    monitorstart: int = -1
    monitorend: int = -1
    progressinterval: int = 0
    readbdy: int = 1
    writebdy: int = 1
    truncbdy: int = 1
    off: frozenset[str] = frozenset()
    quiet: bool = False
    lite: bool = False
    integrity: bool = False
    keeps: bool = False
    randomoplen: bool = True
    pollutes: bool = False
    syncs: bool = False
    checks: bool = False
    direct: bool = False


class Fsx:
    """A run of fsx on a file of a mount.

    Parameters
    ----------
    mounted, inside : Mounted, str
        The mount, and the path in it.
    settings : Settings
        Options.
    prt : callable
        Prints a text, and keeps it in the log.
    mark : callable
        Is told the number of each fsync.
    """

    def __init__(
        self, mounted: Mounted, inside: str, settings: Settings, prt: Callable[[str], None],
        mark: Callable[[int, bytes], None],
    ) -> None:  # fmt: skip
        self.computer, self.mounted, self.set, self.prt = mounted.computer, mounted, settings, prt
        self.path, self.whole = mounted.inside(inside), f"{mounted.prefix}{inside}"
        self.mark, self.marks = mark, 0
        self.random = Random(settings.seed)
        self.debug, self.calls, self.biggest = settings.debug, 0, 0
        self.size = mounted.stat(inside).size if settings.keeps or settings.lite else 0
        if settings.keeps or settings.lite:
            settings.maxfilelen = self.biggest = self.size
        numbers = self.random.array(settings.maxfilelen)
        self.original = bytes(number & 255 for number in numbers)
        self.good = bytearray(settings.maxfilelen)

    @property
    def fs(self) -> WritableFilesystem:
        """The filesystem."""
        return self.mounted.fs

    # ------------------------------------------------------------------------------ the run --

    def begin(self) -> None:
        """Do what fsx does to see what the filesystem can."""
        if self.set.lite:
            self.fs.write(self.path, 0, bytes(self.good))
        else:
            self.good[: self.size] = self.fs.read(self.path, 0, self.size)
            for size in (self.size, self.size + 100_000, self.size):
                self.fs.truncate(self.path, size)
            for name, mode in (("falloc", 0), ("keep", _KEEP_SIZE), ("punch", 3), ("zero", _ZERO)):
                if name not in self.set.off:
                    self.fs.vfs_fallocate(self.path, mode, self.size, 1)
                    self.fs.truncate(self.path, self.size)
        if "dedupe" not in self.set.off:
            blocks = 2 * _PAGE
            if self.size < blocks:
                self.fs.truncate(self.path, blocks)
            self.fs.dedupe_range(self.path, self.path, 0, _PAGE, _PAGE)
            if self.size < blocks:
                self.fs.truncate(self.path, self.size)

    def run(self) -> None:
        """Do all operations."""
        for _ in range(self.set.numops):
            if self.set.first > 0 and self.calls == self.set.first:
                self._write_file_image()
            self.calls += 1
            if 0 < self.set.debugstart <= self.calls:
                self.debug = True
            if self._says and self.calls < self.set.first and not self.calls % 100_000:
                self.prt(f"{self.calls}...\n")
            self._one()

    def _one(self) -> None:
        """Choose an operation, and do it."""
        settings = self.set
        number = self.random.next()
        closes = settings.closeprob and (number >> 3) < _CLOSES // settings.closeprob
        offset, size = self.random.next(), settings.maxoplen
        if settings.randomoplen:
            size = self.random.next() % (settings.maxoplen + 1)
        kinds = _LITE if settings.lite else _INTEGRITY if settings.integrity else _FULL
        kind = kinds[number % len(kinds)]
        target = keeps = 0
        if kind == "truncate":
            size = self.random.next() % settings.maxfilelen
        elif kind in ("falloc", "zero") and kind not in settings.off and size:
            if "keep" not in settings.off:
                keeps = self.random.next() % 2
        elif kind in ("clone", "dedupe", "copy", "exchange"):
            most = settings.maxfilelen if kind in ("clone", "copy") else self.size
            offset, size, target = self._two_ranges(offset, size, most, exact=kind == "copy")
        if kind in ("mapread", "mapwrite") and kind in settings.off:
            kind = kind.removeprefix("map")
        if kind not in settings.off | _NEVER:
            try:
                self._do(kind, offset, size, target, keeps)
            except OSError as error:
                told = f"fsx: operation {self.calls}: {kind}: {reason(error)}"
                raise UnknownError(f"{told}: the dump of its operations is not known") from None
            if settings.checks and self._is_real and self.size:
                self._compare("check_contents", 0, self.size)
        if closes and self._is_real and self.debug:
            self.prt(f"{self.calls} close/open\n")

    def _two_ranges(
        self, offset: int, size: int, most: int, *, exact: bool
    ) -> tuple[int, int, int]:
        """Return a source, a length and a target that do not overlap (``generate_dest_range()``).

        `exact`: on boundaries of reads and writes, else of blocks.
        """
        offset, size = _trimmed(offset, size, self.size, self.size)
        settings = self.set
        edge, end = (settings.readbdy, settings.writebdy) if exact else (_PAGE, _PAGE)
        offset -= offset % edge
        if not exact or settings.direct:
            size -= size % edge
        for _ in range(_TRIES):
            target = self.random.next()
            target = target % most if most else 0
            target -= target % end
            if abs(target - offset) >= size and target + size <= most:
                return offset, size, target
        return offset, 0, target

    def _do(self, kind: str, offset: int, size: int, target: int, keeps: int) -> None:
        settings = self.set
        if kind in ("read", "mapread"):
            self._read(*_trimmed(offset, size, self.size, self.size), mapped=kind != "read")
        elif kind in ("write", "mapwrite"):
            trimmed = _trimmed(offset, size, settings.maxfilelen, settings.maxfilelen)
            self._write(*trimmed, mapped=kind != "write")
        elif kind == "truncate":
            self._truncate(size)
        elif kind == "falloc":
            self._falloc(*_trimmed(offset, size, settings.maxfilelen, settings.maxfilelen), keeps)
        elif kind == "zero":
            self._zero(*_trimmed(offset, size, settings.maxfilelen, settings.maxfilelen), keeps)
        elif kind == "punch":
            self._punch(*_trimmed(offset, size, self.size, self.size))
        elif kind == "fsync":
            self._fsync()
        elif size and target + size <= settings.maxfilelen:
            self._share(kind, offset, size, target)

    @property
    def _is_real(self) -> bool:
        """Whether operations are done, not only counted (``-b``)."""
        return self.calls > self.set.first

    @property
    def _says(self) -> bool:
        return not self.set.quiet

    def _told(self, shown: bool) -> bool:
        """Whether an operation is printed."""
        interval = self.set.progressinterval
        return bool(interval and not self.calls % interval) or (self.debug and shown)

    def _skips(self, why: str) -> None:
        if self._says and self._is_real:
            self.prt(f"skipping {why}\n")

    def _in_monitor(self, offset: int, size: int) -> bool:
        start, end = self.set.monitorstart, self.set.monitorend
        return start == -1 or (offset + size > start and (end == -1 or offset <= end))

    def _before_monitor(self, end: int) -> bool:
        settings = self.set
        return -1 in (settings.monitorstart, settings.monitorend) or end <= settings.monitorend

    # --------------------------------------------------------------------------- operations --

    def _read(self, offset: int, size: int, *, mapped: bool) -> None:
        settings = self.set
        offset -= offset % settings.readbdy
        if settings.direct and not mapped:
            size -= size % settings.readbdy
        if not size:
            if mapped or not settings.direct:
                self._skips("zero size read")
            return
        if size + offset > self.size:
            self._skips("seek/read past end of file")
            return
        if not self._is_real:
            return
        name = "mapread" if mapped else "read"
        if self._says and self._told(self._in_monitor(offset, size)):
            self.prt(f"{self.calls} {name}\t{_thru(offset, size)}\n")
        self._compare(f"do{name}", offset, size)

    def _compare(self, what: str, offset: int, size: int) -> None:
        """Read, and see that it is right."""
        with self.computer.timed("read") as step:
            if self.set.direct:
                self.fs.sync_file_range(self.path, offset, size)
            data = self.fs.read(self.path, offset, size)
            step.bytes = len(data)
        if data != self.good[offset : offset + size]:
            raise AssertionError(f"fsx: operation {self.calls}: {what}: the file is not as it was "
                                 f"written, in {size} bytes from {offset} on")  # fmt: skip

    def _gendata(self, offset: int, size: int) -> bytes:
        """Return what is written at a place."""
        if self.set.filldata:
            return bytes([self.set.filldata]) * size
        call = self.calls % 256
        data = bytearray([call]) * size
        odd = 1 - offset % 2
        kept = self.original[offset + odd : offset + size : 2]
        data[odd::2] = bytes((call + one) & 255 for one in kept)
        return bytes(data)

    def _write(self, offset: int, size: int, *, mapped: bool) -> None:
        settings = self.set
        offset -= offset % settings.writebdy
        if settings.direct and not mapped:
            size -= size % settings.writebdy
        if not size:
            if mapped or not settings.direct:
                self._skips("zero size write")
            return
        data = self._gendata(offset, size)
        self.good[offset : offset + size] = data
        before = self.size
        if offset + size > self.size:
            self._grow(offset, size)
        if not self._is_real:
            return
        if self._says and self._told(self._in_monitor(offset, size)):
            how = "" if mapped else "\tdontcache=0 atomic_wr=0"
            self.prt(f"{self.calls} {'map' * mapped}write\t{_thru(offset, size)}{how}\n")
        if mapped and self.size > before:
            self.fs.truncate(self.path, self.size)
        with self.computer.timed("mwrite" if mapped else "write") as step:
            writes = self.fs.write_direct if settings.direct and not mapped else self.fs.write
            step.bytes = writes(self.path, offset, data)
        if step.bytes < size:
            raise OSError(28, os.strerror(28))
        if mapped:
            fsync(self.computer, self.whole, data_only=True)
        elif settings.syncs:
            fsync(self.computer, self.whole)

    def _grow(self, offset: int, size: int) -> None:
        """Note that the file has another size; what is new before `offset` is zeros."""
        if offset > self.size:
            self._pollute(offset + size)
            self.good[self.size : offset] = bytes(offset - self.size)
        self.size = offset + size

    def _pollute(self, most: int) -> None:
        """Write behind the end by a mapping: the page becomes dirty, and that is all."""
        start = self.size - self.size % _PAGE
        if not self.set.pollutes or not self._is_real or start == self.size:
            return
        count = min(_PAGE - self.size % _PAGE, most - self.size)
        if self._says and self._told(self._in_monitor(self.size, count)):
            self.prt(f"{self.calls} pollute_eof\t{_thru(self.size, count)}\n")
        self.fs.write(self.path, start, self.fs.read(self.path, start, self.size - start))

    def _truncate(self, size: int) -> None:
        size -= size % self.set.truncbdy
        before = self.size
        self._largest("truncating", size)
        if size < self.size:
            self._pollute(self.set.maxfilelen)
        self._grow(size, 0)
        if not self._is_real:
            return
        if self._told(self._before_monitor(size)):
            self.prt(f"{self.calls} trunc\tfrom {before:#x} to {size:#x}\n")
        with self.computer.timed("truncate"):
            self.fs.truncate(self.path, size)

    def _largest(self, doing: str, end: int) -> None:
        if end > self.biggest:
            self.biggest = end
            if self._says and self._is_real:
                self.prt(f"{doing} to largest ever: {end:#x}\n")

    def _punch(self, offset: int, size: int) -> None:
        if not size:
            self._skips("zero length punch hole")
            return
        if self.size <= offset:
            self._skips("hole punch off the end of the file")
            return
        if not self._is_real:
            return
        if self._told(self._before_monitor(offset + size)):
            self.prt(f"{self.calls} punch\t{_from_to(offset, size)}\n")
        self._allocate(_PUNCH | _KEEP_SIZE, offset, size)
        end = min(offset + size, self.size)
        self.good[offset:end] = bytes(end - offset)

    def _zero(self, offset: int, size: int, keeps: int) -> None:
        if not size:
            self._skips("zero length zero range")
            return
        end = 0 if keeps else offset + size
        self._largest("zero_range", end)
        if end > self.size:
            self._grow(offset, size)
        if not self._is_real:
            return
        if self._told(self._before_monitor(end)):
            self.prt(f"{self.calls} zero\t{_from_to(offset, size)}\n")
        self._allocate(_ZERO | keeps, offset, size)
        self.good[offset : offset + size] = bytes(size)

    def _falloc(self, offset: int, size: int, keeps: int) -> None:
        if not size:
            self._skips("zero length fallocate")
            return
        end = 0 if keeps else offset + size
        self._largest("fallocating", end)
        if end > self.size:
            self.good[self.size : end] = bytes(end - self.size)
            self._grow(offset, size)
        if not self._is_real:
            return
        if self._told(self._before_monitor(end)):
            self.prt(f"{self.calls} falloc\t{_from_to(offset, size, comma=False)}\n")
        self._allocate(keeps, offset, size)

    def _allocate(self, mode: int, offset: int, size: int) -> None:
        with self.computer.timed("fallocate"):
            self.fs.vfs_fallocate(self.path, mode, offset, size)

    def _share(self, kind: str, offset: int, size: int, target: int) -> None:
        if offset >= self.size:
            self._skips(f"{kind} range behind EOF")
            return
        if kind != "dedupe":
            self._largest("cloning" if kind == "clone" else "copying", target + size)
            if target + size > self.size:
                self._grow(target, size)
        if not self._is_real:
            return
        start, end = self.set.monitorstart, self.set.monitorend
        if self._told(-1 in (start, end) or target <= start or target + size <= end):
            self.prt(f"{self.calls} {kind}\t{_from_to(offset, size)} at {target:#x}\n")
        fs, path = self.fs, self.path
        with self.computer.timed(kind):
            if kind == "clone":
                fs.clone_range(path, path, offset, target, size)
            elif kind == "copy":
                copy_file_range(fs, path, path, offset, target, size)
            else:
                fs.dedupe_range(path, path, offset, target, size)
        if kind != "dedupe":
            self.good[target : target + size] = self.good[offset : offset + size]

    def _fsync(self) -> None:
        if not self._is_real:
            return
        if self.debug:
            self.prt(f"{self.calls} fsync\n")
        fsync(self.computer, self.whole)
        self.mark(self.marks, bytes(self.good[: self.size]))
        self.marks += 1

    def _write_file_image(self) -> None:
        """Make the file what the operations that were not done would have made it (``-b``)."""
        self.fs.write(self.path, 0, bytes(self.good[: self.size]))
        if not self.set.lite:
            self.fs.truncate(self.path, self.size)


def _trimmed(offset: int, size: int, most: int, end: int) -> tuple[int, int]:
    offset = offset % most if most else 0
    return offset, min(size, end - offset)


def _thru(offset: int, size: int) -> str:
    return f"{offset:#x} thru\t{offset + size - 1:#x}\t({size:#x} bytes)"


def _from_to(offset: int, size: int, *, comma: bool = True) -> str:
    return f"from {offset:#x} to {offset + size:#x}{',' * comma} ({size:#x} bytes)"
