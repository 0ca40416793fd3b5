# SPDX-License-Identifier: GPL-2.0-only
"""xfs_io and filefrag."""

from __future__ import annotations

import errno
import functools
import re
import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from btrfs_model.mount.files.elided import Repeated
from btrfs_model.mount.names.lookup import may_write
from btrfs_model.questions.fiemap.mounted import fiemap_mounted
from btrfs_model.questions.fiemap.text import fiemap_text
from btrfs_model.scripts.files import fail
from btrfs_model.scripts.mounted import Mounted
from btrfs_model.scripts.program import Program, UsageError, options, reason, say, size_of
from btrfs_model.scripts.programs.copies import fsync
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_SECTOR: Final = 512
_UNWRITTEN: Final = 0x800
_DIRTY: Final = 1 << 30
"""Bytes that a kernel writes back while the call goes on."""
_WHOLE: Final = 1 << 20
"""Bytes of the largest files that are made together."""
_BLOCK: Final = 4096


class _File:
    """A file that xfs_io has open."""

    def __init__(self, computer: Computer, path: str, given: dict[str, str]) -> None:
        self.computer, self.shown = computer, path
        self.path = computer.absolute(path)
        found = computer.place(self.path)
        self.read_only = "r" in given
        seen = computer.stat(self.path)
        if seen is None and "f" not in given:
            raise fail(errno.ENOENT, path)
        if seen is not None and seen.is_dir and not self.read_only:
            if "f" in given or "t" in given:
                raise fail(errno.EISDIR, path)
            # xfs_io tries to write first, then opens it to be read
            self.read_only = True
        if seen is not None and found is not None and not self.read_only:
            mounted, inner = found
            mounted.may_write(inner)
            may_write(mounted.fs, mounted.inode(inner), path)
        if seen is None or "t" in given:
            computer.open(self.path, "w", 0o600)
        self.place: tuple[Mounted, str] | None = found
        self.syncs, self.appends, self.direct = "s" in given, "a" in given, "d" in given
        self.maps = False

    @property
    def on(self) -> tuple[Mounted, str]:
        """The mount, and the path from the top of the filesystem."""
        if self.place is None:
            raise UnknownError(f"xfs_io: {self.shown}: files are on a mount")
        return self.place[0], self.place[0].inside(self.place[1])

    @property
    def size(self) -> int:
        """Bytes of it."""
        seen = self.computer.stat(self.path)
        return seen.size if seen is not None else 0

    def to_share(self) -> tuple[Mounted, str]:
        """Return the place of a file that a call shares extents of; OSError where it is none."""
        seen = self.computer.stat(self.path)
        if seen is not None and not seen.is_file:
            raise fail(errno.EISDIR if seen.is_dir else errno.EINVAL, self.shown)
        return self.on


def _source(file: _File, path: str) -> _File:
    """Open the file that a command names; UsageError with xfs_io's words where it is refused."""
    try:
        return _File(file.computer, path, {"r": ""})
    except OSError as error:
        raise UsageError(f"{path}: {reason(error)}") from error


_SWITCHES: Final = {
    "pwrite": "qSbVNDdsu", "pread": "qvbV", "falloc": "k", "fiemap": "alnv", "mwrite": "S",
    "reflink": "Cq", "dedupe": "Cq", "seek": "adhrs",
}  # fmt: skip
"""Options of commands, which ``help`` names."""


def _help(shell: Shell, name: str) -> None:
    """Name a command and its options: scripts look whether they are there."""
    if name not in _COMMANDS:
        shell.write(f'command "{name}" not found\n')
        return
    words = "[offset [len]]" if name == "fiemap" else "..."
    shell.write(f"{name} [options] {words}\n\n" + "".join(f" -{one} -- an option\n"
                for one in _SWITCHES.get(name, "")))  # fmt: skip


_Command: TypeAlias = "Callable[[Shell, _File, list[str]], int]"


@functools.cache
def _new_file(command: str) -> tuple[bytes, int] | None:
    """Return what a command writes to a new file from its beginning on, and its block size."""
    found = re.fullmatch(r"(?:pwrite|w)((?: -S \w+| -b \w+)*) 0 (\w+)", command)
    if found is None:
        return None
    try:
        given, _ = options(found[1].split(), "", "Sb", program_name="pwrite")
        length, block = size_of(found[2], block=_BLOCK), size_of(given.get("b", "4096"))
        if 0 < length <= _WHOLE:
            return _pattern(given) * length, block
    except (UsageError, ValueError):
        pass
    return None


def _collected(computer: Computer, shell: Shell, command: str, path: str) -> bool:
    """Do what loops of messages do most: new files with the same data are made together."""
    written = _new_file(command)
    found = computer.place(computer.absolute(path)) if written is not None else None
    if written is None or found is None:
        return False
    data, block = written
    try:
        if not found[0].collect(found[1], data, 0o600 & ~computer.umask):
            return False
    except OSError:
        return False
    _report(shell, "wrote", 0, len(data), len(data), -(-len(data) // block))
    return True


def _xfs_io(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    if len(arguments) == 4 and arguments[:2] == ["-f", "-c"] and _collected(
        computer, shell, *arguments[2:]
    ):  # fmt: skip
        return 0
    commands: list[str] = []
    given: dict[str, str] = {}
    paths: list[str] = []
    at = 0
    while at < len(arguments):
        word = arguments[at]
        at += 1
        if word.startswith("-") and len(word) > 1:
            letters = word[1:]
            while letters:
                letter, letters = letters[0], letters[1:]
                if letter in "cmpPC":
                    value = letters or (arguments[at] if at < len(arguments) else "")
                    at += not letters
                    letters = ""
                    if letter in "cC":
                        commands.append(value)
                elif letter in "fdstrianxF":
                    given[letter] = ""
                else:
                    raise UnknownError(f"xfs_io: -{letter}: this option is not known")
        else:
            paths.append(word)
    if not commands:
        commands = [one for one in shell.files[0].read().decode().splitlines() if one.strip()]
    try:
        files = [_File(computer, path, given) for path in paths]
    except OSError as error:
        say(shell, f"{error.filename or paths[0]}: {reason(error)}\n")
        return 1
    status = 0
    for command in commands:
        words = shlex.split(command)
        name = _ALIASES.get(words[0], words[0])
        if name == "quit":
            break
        if name == "help" and len(words) > 1:
            _help(shell, _ALIASES.get(words[1], words[1]))
            continue
        run = _COMMANDS.get(name)
        if run is None:
            raise UnknownError(f"xfs_io: {name}: this command is not known")
        if not files:
            say(shell, "no files are open, try 'help open'\n")
            return 1
        try:
            status |= run(shell, files[-1], words[1:])
            if files[-1].syncs and name in ("truncate", "falloc", "fpunch", "fzero"):
                fsync(computer, files[-1].path)
        except OSError as error:
            computer.refused(name, error)
            say(shell, f"{_WORDS.get(name, name)}: {reason(error)}\n")
            status = 1
        except UsageError as error:
            say(shell, f"{error}\n")
            status = 1
    return status


def human(value: float) -> str:
    """Write a number of bytes as xfs_io does."""
    for unit, size in (("EiB", 1 << 60), ("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30),
                       ("MiB", 1 << 20), ("KiB", 1 << 10)):  # fmt: skip
        if value >= size:
            part = value / size
            return f"{part:.0f} {unit}" if part == int(part) else f"{part:.3f} {unit}"
    return f"{value:f} bytes"


def _report(shell: Shell, verb: str, offset: int, done: int, count: int, operations: int) -> None:
    shell.write(
        f"{verb} {done}/{count} bytes at offset {offset}\n"
        f"{human(done)}, {operations} ops; 0.0000 sec (inf EiB/sec and inf ops/sec)\n"
    )


def _range(words: list[str]) -> tuple[int, int]:
    return size_of(words[0], block=_BLOCK), size_of(words[1], block=_BLOCK)


def _pattern(given: dict[str, str]) -> bytes:
    return bytes([int(given.get("S", "0xcd"), 0) & 255])


def _pwrite(shell: Shell, file: _File, words: list[str]) -> int:
    given, words = options(words, "qNwdWuDRFBO", "SbiVsZA", program_name="pwrite")
    if {"R", "F", "B", "i"} & set(given):
        raise UnknownError("xfs_io: pwrite: only forward writes of a pattern are known")
    if "N" in given:
        raise UnknownError("xfs_io: pwrite -N: a write that may not wait is not known")
    offset, length = _range(words)
    pattern, block = _pattern(given), size_of(given.get("b", "4096"))
    if file.read_only:
        raise OSError(errno.EBADF, "read only")
    if file.appends:
        offset = file.size
    done = 0
    if file.place is None:
        stream = file.computer.open(file.path, "r+")
        stream.at = offset  # type: ignore[attr-defined]
        stream.write(pattern * length)
        done = length
    else:
        mounted, path = file.on
        mounted.may_write(path)
        fs = mounted.fs
        with file.computer.timed("pwrite") as step:
            # what is written past the page cache, or synchronously, is so call by call
            most = block if file.direct or file.syncs else _DIRTY
            while done < length:
                count = min(length - done, most)
                if file.direct:
                    wrote = fs.write_direct(path, offset + done, pattern * count)
                else:
                    wrote = fs.write(path, offset + done, Repeated(count, pattern))
                if file.syncs:
                    fsync(file.computer, file.path)
                if wrote == _DIRTY:
                    fs.sync_file_range(path, offset + done, wrote)
                done = step.bytes = done + wrote
                if wrote < count:
                    step.errno = errno.ENOSPC  # the call for the rest
                    break
    if "q" not in given:
        _report(shell, "wrote", offset, done, length, -(-done // block))
    if done < length:
        say(shell, "pwrite: No space left on device\n")
        return 1
    if "W" in given:
        fsync(file.computer, file.path)
    elif "w" in given:
        fsync(file.computer, file.path, data_only=True)
    return 0


def _dump(shell: Shell, offset: int, data: bytes) -> None:
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        shown = "".join(chr(one) if 32 <= one < 127 else "." for one in row)
        shell.write(f"{offset + at:08x}:  {''.join(f'{one:02x} ' for one in row)} {shown}\n")


def _pread(shell: Shell, file: _File, words: list[str]) -> int:
    given, words = options(words, "qvuRFB", "bVZ", program_name="pread")
    offset, length = _range(words)
    block = size_of(given.get("b", "4096"))
    if file.direct and file.place is not None:
        mounted, path = file.on
        mounted.fs.sync_file_range(path, offset, length)
    stream = file.computer.open(file.path, "r")
    stream.at = offset  # type: ignore[attr-defined]
    data = stream.read(length)
    if "v" in given:
        _dump(shell, offset, data)
    if "q" not in given:
        _report(shell, "read", offset, len(data), length, -(-len(data) // block))
    return 0


def _fallocate(mode: int) -> _Command:
    def run(shell: Shell, file: _File, words: list[str]) -> int:
        del shell
        given, words = options(words, "k", program_name="falloc")
        offset, length = _range(words)
        mounted, path = file.on
        mounted.may_write(path)
        with file.computer.timed("fallocate"):
            mounted.fs.vfs_fallocate(path, mode | (1 if "k" in given else 0), offset, length)
        return 0

    return run


def _truncate(shell: Shell, file: _File, words: list[str]) -> int:
    del shell
    mounted, path = file.on
    mounted.may_write(path)
    with file.computer.timed("truncate"):
        mounted.fs.truncate(path, size_of(words[0], block=_BLOCK))
    return 0


def _fsync(data_only: bool) -> _Command:
    def run(shell: Shell, file: _File, words: list[str]) -> int:
        del shell, words
        fsync(file.computer, file.path, data_only=data_only)
        return 0

    return run


def _sync(cyclic: bool) -> _Command:
    def run(shell: Shell, file: _File, words: list[str]) -> int:
        del shell, words
        mounted, _ = file.on
        with file.computer.timed("sync"):
            mounted.fs.sync(cyclic=cyclic)
        return 0

    return run


def _reflink(shell: Shell, file: _File, words: list[str]) -> int:
    given, words = options(words, "q", "C", program_name="reflink")
    source = _source(file, words[0])
    numbers = [size_of(one, block=_BLOCK) for one in words[1:]]
    first, second, length = numbers if numbers else (0, 0, 0)
    (other, from_path), (mounted, path) = source.to_share(), file.to_share()
    if file.appends:
        raise OSError(errno.EBADF, "it is open for appending")
    if mounted.fs is not other.fs:
        raise OSError(errno.EXDEV, "another filesystem")
    mounted.may_write(path)
    with file.computer.timed("clone"):
        if numbers:
            size = length or max(0, source.size - first)
            mounted.fs.clone_range(from_path, path, first, second, size)
        else:
            mounted.fs.clone_range(from_path, path, 0, 0, source.size)
    if "q" not in given:
        if numbers:
            _report(shell, "linked", second, length, length, 1)
        else:
            _report(shell, "linked", 0, 0, 0, 1)
    return 0


def _dedupe(shell: Shell, file: _File, words: list[str]) -> int:
    given, words = options(words, "q", "C", program_name="dedupe")
    source = _source(file, words[0])
    first, second, length = (size_of(one, block=_BLOCK) for one in words[1:4])
    (other, from_path), (mounted, path) = source.to_share(), file.on
    if mounted.fs is not other.fs:
        raise OSError(errno.EXDEV, "another filesystem")
    file.to_share()
    with file.computer.timed("dedupe"):
        same = mounted.fs.dedupe_range(from_path, path, first, second, length)
    if not same:
        say(shell, "XFS_IOC_FILE_EXTENT_SAME: Extents did not match.\n")
        return 0
    if "q" not in given:
        _report(shell, "deduped", second, length, length, 1)
    return 0


def _copy_range(shell: Shell, file: _File, words: list[str]) -> int:
    del shell
    given, words = options(words, "", "sdlf", program_name="copy_range")
    source = _source(file, words[0])
    first, second = size_of(given.get("s", "0")), size_of(given.get("d", "0"))
    length = size_of(given["l"]) if given.get("l") else max(0, source.size - first)
    (mounted, path), (_, from_path) = file.on, source.on
    mounted.may_write(path)
    with file.computer.timed("copy") as step:
        fs = mounted.fs
        try:
            fs.clone_range(from_path, path, first, second, length)
        except OSError:
            step.bytes = fs.write(path, second, fs.read(from_path, first, length))
    return 0


def _stat(shell: Shell, file: _File, words: list[str]) -> int:
    del words
    seen = file.computer.stat(file.path)
    assert seen is not None
    kind = {"f": "regular file", "d": "directory", "l": "symbolic link"}.get(seen.kind, "other")
    shell.write(
        f'fd.path = "{file.shown}"\nfd.flags = non-sync,non-direct,read-write\n'
        f"stat.ino = {seen.ino}\nstat.type = {kind}\nstat.size = {seen.size}\n"
        f"stat.blocks = {seen.blocks}\n"
    )
    return 0


def _seek(shell: Shell, file: _File, words: list[str]) -> int:
    given, words = options(words, "adhrs", program_name="seek")
    offset = size_of(words[0], block=_BLOCK)
    mounted, path = file.on
    size = file.size
    fs = mounted.fs
    with file.computer.timed("lseek"):
        table = fiemap_mounted(fs, path)
    data = [(first, min(size, first + length)) for first, _, length, flags in fiemap_rows(table)
            if not flags & _UNWRITTEN]  # fmt: skip
    shell.write("Whence\tStart\tResult\n" if "s" in given else "Whence\tResult\n")
    kinds = [one for one in ("DATA", "HOLE") if one[0].lower() in given or "a" in given]
    shown, at = 0, offset
    wanted = 1 << 62 if "r" in given else len(kinds)
    for kind, place in _places(data, size, offset):
        if kind in kinds and shown < wanted:
            started = f"{at}\t" if "s" in given else ""
            shell.write(f"{kind}\t{started}{place}\n")
            shown += 1
            at = place
    if not shown:
        shell.write(f"{kinds[0]}\t{f'{offset}' + chr(9) if 's' in given else ''}EOF\n")
    return 0


def _places(data: list[tuple[int, int]], size: int, offset: int) -> Iterator[tuple[str, int]]:
    """Go through what begins from an offset on: data and holes in turn; the offset's own first."""
    at = offset
    while at < size:
        inside = next(((start, end) for start, end in data if start <= at < end), None)
        yield ("DATA" if inside else "HOLE"), at
        if inside:
            at = inside[1]
            while (after := next((end for start, end in data if start == at), None)) is not None:
                at = after
            if at >= size:
                yield "HOLE", size
        else:
            at = min((start for start, _ in data if start > at), default=size)


def fiemap_rows(table: pd.DataFrame) -> list[tuple[int, int, int, int]]:
    """Return offset, address, length (bytes) and flags of extents."""
    columns = (table[name].tolist() for name in ("logical", "physical", "length", "flags"))
    return list(zip(*columns, strict=True))


def _fiemap(shell: Shell, file: _File, words: list[str]) -> int:
    given, words = options(words, "avxl", "n", program_name="fiemap")
    if {"a", "x", "n"} & set(given):
        raise UnknownError("xfs_io: fiemap: of the options -l and -v are known")
    mounted, path = file.on
    start = size_of(words[0], block=_BLOCK) if words else 0
    end = start + size_of(words[1], block=_BLOCK) if len(words) > 1 else None
    with file.computer.timed("fiemap"):
        table = fiemap_mounted(mounted.fs, path, sync=True)
    style = "xfs_io -v" if "v" in given else "xfs_io -l" if "l" in given else "xfs_io"
    shell.write(fiemap_text(table, file.shown, file.size, style=style, start=start, end=end))
    return 0


def _nothing(shell: Shell, file: _File, words: list[str]) -> int:
    del shell, file, words
    return 0


def _map(shell: Shell, file: _File, words: list[str]) -> int:
    del shell
    given, words = options(words, "rwxS", "s", program_name="mmap")
    del given
    _range(words)
    file.maps = True
    return 0


def _in_map(file: _File, words: list[str], name: str) -> tuple[int, int]:
    """Return a range of a mapping, up to the end of the file."""
    if not file.maps:
        raise UnknownError(f"xfs_io: {name}: no mapping")
    offset, length = _range(words) if words else (0, file.size)
    return offset, max(0, min(length, file.size - offset))


def _mwrite(shell: Shell, file: _File, words: list[str]) -> int:
    """Write to a mapping: pages of it become dirty as those of a write do."""
    del shell
    given, words = options(words, "r", "S", program_name="mwrite")
    offset, length = _in_map(file, words, "mwrite")
    mounted, path = file.on
    mounted.may_write(path)
    data = bytes([int(given.get("S", "0x58"), 0) & 255]) * length
    with file.computer.timed("mwrite") as step:
        step.bytes = mounted.fs.write(path, offset, data)
    return 0


def _mread(shell: Shell, file: _File, words: list[str]) -> int:
    given, words = options(words, "fvr", program_name="mread")
    offset, length = _in_map(file, words, "mread")
    mounted, path = file.on
    with file.computer.timed("mread") as step:
        data = mounted.fs.read(path, offset, length)
        step.bytes = len(data)
    if "v" in given:
        _dump(shell, offset, data)
    return 0


def _msync(shell: Shell, file: _File, words: list[str]) -> int:
    del shell
    given, words = options(words, "ais", program_name="msync")
    _in_map(file, words, "msync")
    if "s" in given or not given:
        fsync(file.computer, file.path)
    return 0


def _sync_range(shell: Shell, file: _File, words: list[str]) -> int:
    """Write data of a range back; nothing of the trees is written."""
    del shell
    given, words = options(words, "abw", program_name="sync_range")
    del given
    mounted, path = file.on
    with file.computer.timed("sync_range"):
        mounted.fs.sync_file_range(path, *_range(words))
    return 0


_COMMANDS: Final[dict[str, _Command]] = {
    "pwrite": _pwrite, "pread": _pread, "falloc": _fallocate(0), "fpunch": _fallocate(3),
    "fzero": _fallocate(16), "fcollapse": _fallocate(8), "finsert": _fallocate(32),
    "truncate": _truncate, "fsync": _fsync(False), "fdatasync": _fsync(True), "sync": _sync(True),
    "syncfs": _sync(False), "reflink": _reflink, "dedupe": _dedupe, "copy_range": _copy_range,
    "stat": _stat, "seek": _seek, "fiemap": _fiemap, "close": _nothing, "print": _nothing,
    "mmap": _map, "mwrite": _mwrite, "mread": _mread, "msync": _msync, "munmap": _nothing,
    "sync_range": _sync_range,
}  # fmt: skip
_ALIASES: Final = {"w": "pwrite", "r": "pread", "t": "truncate", "s": "fsync", "q": "quit",
                   "ds": "fdatasync", "c": "close", "allocsp": "falloc", "mm": "mmap",
                   "mw": "mwrite", "mr": "mread", "ms": "msync", "mu": "munmap"}  # fmt: skip
_WORDS: Final = {
    "falloc": "fallocate",
    "fpunch": "fallocate",
    "fzero": "fallocate",
    "fcollapse": "fallocate",
    "finsert": "fallocate",
    "truncate": "ftruncate",
    "reflink": "XFS_IOC_CLONE_RANGE",
    "dedupe": "XFS_IOC_FILE_EXTENT_SAME",
}


PROGRAMS: Final[dict[str, Program]] = {"xfs_io": _xfs_io}
