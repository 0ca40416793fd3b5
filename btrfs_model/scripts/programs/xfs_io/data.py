# SPDX-License-Identifier: GPL-2.0-only
"""Commands of xfs_io that read and write: pwrite, pread, maps."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from btrfs_model.base.errors import UnsupportedError
from btrfs_model.mount.files.elided import Repeated
from btrfs_model.scripts.glibc import Random
from btrfs_model.scripts.program import Died, UsageError, options, reason, say, size_of
from btrfs_model.scripts.programs.copies import fsync
from btrfs_model.scripts.programs.xfs_io.file import OpenFile, range_of, report
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.shell.state import Shell

NO_MAPS: Final = "no mapped regions, try 'help mmap'"
"""What is said where a mapping is needed."""
_DIRTY: Final = 1 << 30
"""Bytes that a kernel writes back while the call goes on."""


def pattern_of(given: dict[str, str]) -> bytes:
    """Return the byte that is written over and over."""
    return bytes([int(given.get("S", "0xcd"), 0) & 255])


def pwrite(shell: Shell, file: OpenFile, words: list[str]) -> int:
    """Write a pattern, or bytes of a file, forwards or to random blocks."""
    given, words = options(words, "qNwdWuDRFBO", "SbiVsZA", program_name="pwrite")
    if "B" in given or int(given.get("V", "1")) > 1:
        raise UnknownError("xfs_io: pwrite: -B and -V above 1 are not known")
    offset, length = range_of(words)
    block = size_of(given.get("b", "4096"))
    source: bytes | None = None
    if "i" in given:
        source = _input(file, given["i"], size_of(given.get("s", "0")), length)
    if file.read_only:
        raise OSError(errno.EBADF, "read only")
    if file.appends:
        offset = file.size
    if file.is_mounted:
        file.on[0].may_write(file.shown)
    done, operations = 0, 0
    with file.computer.timed("pwrite") as step:
        if "R" in given:
            seed = int(given.get("Z", "0"), 0) or int(file.computer.clock())
            for at in _random_places(seed, offset, length, block):
                wrote = _put(file, at, Repeated(block, pattern_of(given)), given)
                done, operations = done + wrote, operations + 1
                if wrote < block:
                    break
        else:
            wanted = length if source is None else len(source)
            # what passes the page cache by, or is synchronous, is so call by call
            alone = file.direct or file.syncs or _may_not_wait(given)
            most = block if alone else _DIRTY
            while done < wanted:
                count = min(wanted - done, most)
                if source is None:
                    data: bytes | Repeated = Repeated(count, pattern_of(given))
                else:
                    data = source[done : done + count]
                wrote = _put(file, offset + done, data, given)
                done += wrote
                if wrote < count:
                    step.errno = errno.ENOSPC  # the call for the rest
                    break
            operations = -(-done // block)
        step.bytes = done
    if "q" not in given:
        report(shell, "wrote", offset, done, length, operations)
    if done < length and source is None:
        say(shell, "pwrite: No space left on device\n")
        return 1
    if "W" in given:
        fsync(file.computer, file.path)
    elif "w" in given:
        fsync(file.computer, file.path, data_only=True)
    return 0


def _may_not_wait(given: dict[str, str]) -> bool:
    """Whether it is pwritev2() with RWF_NOWAIT: xfs_io forgets -N without -V."""
    return "N" in given and "V" in given


def _put(file: OpenFile, offset: int, data: bytes | Repeated, given: dict[str, str]) -> int:
    """Write once."""
    length = data.length if isinstance(data, Repeated) else len(data)
    if not file.is_mounted:
        file.stream.at = offset  # type: ignore[attr-defined]
        file.stream.write(_whole(data))
        return length
    mounted, path = file.on
    fs = mounted.fs
    if _may_not_wait(given):
        try:
            fs.check_nowait(path, offset, length, file.direct)
        except UnsupportedError as error:
            raise UnknownError(f"xfs_io: {error}") from error
    if file.direct:
        wrote = mounted.write_direct(path, offset, _whole(data))
    else:
        wrote = fs.write(path, offset, data)
    if file.syncs:
        fsync(file.computer, file.path)
    if wrote == _DIRTY:
        fs.sync_file_range(path, offset, wrote)
    return wrote


def _whole(data: bytes | Repeated) -> bytes:
    return data.sample(data.length) if isinstance(data, Repeated) else data


def _input(file: OpenFile, path: str, skip: int, length: int) -> bytes:
    """Return what ``-i`` writes: the file may have less than that."""
    try:
        with file.computer.open(path, "r") as stream:
            return stream.read(skip + length)[skip:]
    except OSError as error:
        raise UsageError(f"{path}: {reason(error)}") from error


def _random_places(seed: int, offset: int, length: int, block: int) -> Iterator[int]:
    """Go through the blocks that ``-R`` writes to, as many as the length has."""
    numbers = Random(seed)
    room = max(0, length - block)
    for _ in range(-(-length // block)):
        yield (offset + (numbers.next() % room if room else 0)) // block * block


def _dump(shell: Shell, offset: int, data: bytes) -> None:
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        shown = "".join(chr(one) if 32 <= one < 127 else "." for one in row)
        shell.write(f"{offset + at:08x}:  {''.join(f'{one:02x} ' for one in row)} {shown}\n")


def pread(shell: Shell, file: OpenFile, words: list[str]) -> int:
    """Read, and show it on demand."""
    given, words = options(words, "qvuRFB", "bVZ", program_name="pread")
    offset, length = range_of(words)
    block = size_of(given.get("b", "4096"))
    if file.direct and file.is_mounted:
        mounted, path = file.on
        mounted.fs.sync_file_range(path, offset, length)
    file.stream.at = offset  # type: ignore[attr-defined]
    data = file.stream.read(length)
    if "v" in given:
        _dump(shell, offset, data)
    if "q" not in given:
        report(shell, "read", offset, len(data), length, -(-len(data) // block))
    return 0


def map_file(shell: Shell, file: OpenFile, words: list[str]) -> int:
    """Map the file into memory."""
    del shell
    given, words = options(words, "rwxS", "s", program_name="mmap")
    del given
    if len(words) < 2:
        if not file.maps:
            raise UsageError(NO_MAPS)
        raise UnknownError("xfs_io: mmap: say an offset and a length")
    range_of(words)
    file.maps = True
    return 0


def _in_map(file: OpenFile, words: list[str]) -> tuple[int, int]:
    """Return a range of a mapping, up to the end of the file."""
    if len(words) == 1:
        raise UnknownError("xfs_io: an offset without a length is not known")
    offset, length = range_of(words) if words else (0, file.size)
    return offset, max(0, min(length, file.size - offset))


def mwrite(shell: Shell, file: OpenFile, words: list[str]) -> int:
    """Write to a mapping: pages of it become dirty as those of a write do.

    Raises
    ------
    Died
        Of SIGBUS, at the first page without room (``btrfs_page_mkwrite()``).
    """
    del shell
    given, words = options(words, "r", "S", program_name="mwrite")
    offset, length = _in_map(file, words)
    mounted, path = file.on
    mounted.may_write(file.shown)
    pattern = bytes([int(given.get("S", "0x58"), 0) & 255])
    try:
        with file.computer.timed("mwrite") as step:
            step.bytes = mounted.fs.write(path, offset, Repeated(length, pattern))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Died(signal.SIGBUS) from None
    if step.bytes < length:
        raise Died(signal.SIGBUS)
    return 0


def mread(shell: Shell, file: OpenFile, words: list[str]) -> int:
    """Read from a mapping."""
    given, words = options(words, "fvr", program_name="mread")
    offset, length = _in_map(file, words)
    mounted, path = file.on
    with file.computer.timed("mread") as step:
        data = mounted.fs.read(path, offset, length)
        step.bytes = len(data)
    if "v" in given:
        _dump(shell, offset, data)
    return 0


def msync(shell: Shell, file: OpenFile, words: list[str]) -> int:
    """Write back what a mapping has."""
    del shell
    given, words = options(words, "ais", program_name="msync")
    _in_map(file, words)
    if "s" in given or not given:
        fsync(file.computer, file.path)
    return 0
