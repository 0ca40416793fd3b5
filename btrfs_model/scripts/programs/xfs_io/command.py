# SPDX-License-Identifier: GPL-2.0-only
"""xfs_io: its options, and its commands that do not read and write."""

from __future__ import annotations

import errno
import functools
import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from btrfs_model.mount.names.lookup import find
from btrfs_model.questions.fiemap.mounted import fiemap_mounted
from btrfs_model.questions.fiemap.text import fiemap_text
from btrfs_model.scripts.copy_range import copy_file_range
from btrfs_model.scripts.program import Program, UsageError, options, reason, say, size_of
from btrfs_model.scripts.programs.copies import fsync, sync_filesystem
from btrfs_model.scripts.programs.xfs_io.data import (
    NO_MAPS,
    map_file,
    mread,
    msync,
    mwrite,
    pattern_of,
    pread,
    pwrite,
)
from btrfs_model.scripts.programs.xfs_io.file import (
    BLOCK,
    FileCommand,
    OpenFile,
    range_of,
    report,
    source_file,
)
from btrfs_model.shell.state import UnknownError
from btrfs_model.volume.listing import to_fs_flags

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_UNWRITTEN: Final = 0x800
_WHOLE: Final = 1 << 20
"""Bytes of the largest files that are made together."""
_COUNTS: Final = {
    **dict.fromkeys(("fsync", "fdatasync", "sync", "syncfs"), (0, 0)), "truncate": (1, 1),
    **dict.fromkeys(("pwrite", "pread", "falloc", "sync_range"), (2, None)), "chattr": (1, None),
    **dict.fromkeys(("fpunch", "fcollapse", "finsert", "funshare"), (2, 2)), "reflink": (1, None),
    "flink": (1, 1), "dedupe": (4, None), "copy_range": (1, 8), "seek": (2, 5), "fzero": (2, 3),
}  # fmt: skip
"""The least and the most arguments of commands."""
_SWITCHES: Final = {
    "pwrite": "qSbVNDdsu", "pread": "qvbV", "falloc": "k", "fiemap": "alnv", "mwrite": "S",
    "reflink": "Cq", "dedupe": "Cq", "seek": "adhrs",
}  # fmt: skip
"""Options of commands, which ``help`` names."""


def _help(shell: Shell, name: str) -> None:
    """Name a command and its options: scripts look whether they are there."""
    if name not in _COMMANDS:
        shell.write(f"command {name} not found\n")
        return
    words = "[offset [len]]" if name == "fiemap" else "..."
    shell.write(f"{name} [options] {words}\n\n" + "".join(f" -{one} -- an option\n"
                for one in _SWITCHES.get(name, "")))  # fmt: skip


@functools.cache
def _new_file(command: str) -> tuple[bytes, int] | None:
    """Return what a command writes to a new file from its beginning on, and its block size."""
    found = re.fullmatch(r"(?:pwrite|w)((?: -S \w+| -b \w+)*) 0 (\w+)", command)
    if found is None:
        return None
    try:
        given, _ = options(found[1].split(), "", "Sb", program_name="pwrite")
        length, block = size_of(found[2], block=BLOCK), size_of(given.get("b", "4096"))
        if 0 < length <= _WHOLE:
            return pattern_of(given) * length, block
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
        if not found[0].collected.write(found[1], data, 0o600):
            return False
    except OSError:
        return False
    report(shell, "wrote", 0, len(data), len(data), -(-len(data) // block))
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
                elif letter in "fdstrianxFT":
                    given[letter] = ""
                else:
                    raise UnknownError(f"xfs_io: -{letter}: this option is not known")
        else:
            paths.append(word)
    if not commands:
        commands = [one for one in shell.files[0].read().decode().splitlines() if one.strip()]
    try:
        files = [OpenFile(computer, path, given) for path in paths]
    except OSError as error:
        say(shell, f"{error.filename or paths[0]}: {reason(error)}\n")
        return 1
    try:
        return _run(computer, shell, commands, files)
    finally:
        for file in files:
            file.close()


def _run(computer: Computer, shell: Shell, commands: list[str], files: list[OpenFile]) -> int:
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
        if name in ("mwrite", "mread", "msync", "munmap") and not files[-1].maps:
            say(shell, f"{NO_MAPS}\n")
            continue
        if expected := _bad_count(name, len(words) - 1):
            say(shell, f"bad argument count {len(words) - 1} to {words[0]}, expected {expected}\n")
            continue
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


def _bad_count(name: str, count: int) -> str:
    """Say how many arguments a command has; nothing where they are as many."""
    least, most = _COUNTS.get(name, (0, None))
    if count >= least and (most is None or count <= most):
        return ""
    if most is None:
        return f"at least {least} arguments"
    return f"{least} arguments" if least == most else f"between {least} and {most} arguments"


def _fallocate(mode: int) -> FileCommand:
    def run(shell: Shell, file: OpenFile, words: list[str]) -> int:
        del shell
        given, words = options(words, "k", program_name="falloc")
        offset, length = range_of(words)
        mounted, path = file.on
        mounted.may_write(file.shown)
        with file.computer.timed("fallocate"):
            mounted.fs.vfs_fallocate(path, mode | (1 if "k" in given else 0), offset, length)
        return 0

    return run


def _truncate(shell: Shell, file: OpenFile, words: list[str]) -> int:
    del shell
    mounted, path = file.on
    mounted.may_write(file.shown)
    with file.computer.timed("truncate"):
        mounted.fs.truncate(path, size_of(words[0], block=BLOCK))
    return 0


def _fsync(data_only: bool) -> FileCommand:
    def run(shell: Shell, file: OpenFile, words: list[str]) -> int:
        del shell, words
        fsync(file.computer, file.path, data_only=data_only)
        return 0

    return run


def _sync(cyclic: bool) -> FileCommand:
    def run(shell: Shell, file: OpenFile, words: list[str]) -> int:
        del shell, words
        mounted, _ = file.on
        sync_filesystem(mounted, cyclic=cyclic)
        return 0

    return run


def _reflink(shell: Shell, file: OpenFile, words: list[str]) -> int:
    given, words = options(words, "q", "C", program_name="reflink")
    if len(words) not in (1, 4):
        shell.write("reflink infile [src_off dst_off len] -- reflinks an entire file, or a number "
                    "of bytes at a specified offset\n")  # fmt: skip
        return 1
    with source_file(file, words[0]) as source:
        numbers = [size_of(one, block=BLOCK) for one in words[1:]]
        first, second, length = numbers if numbers else (0, 0, 0)
        (other, from_path), (mounted, path) = source.to_share(), file.to_share()
        if file.appends:
            raise OSError(errno.EBADF, "it is open for appending")
        if mounted.fs is not other.fs:
            raise OSError(errno.EXDEV, "another filesystem")
        mounted.may_write(file.shown)
        with file.computer.timed("clone"):
            if numbers:
                size = length or max(0, source.size - first)
                mounted.fs.clone_range(from_path, path, first, second, size)
            else:
                mounted.fs.clone_range(from_path, path, 0, 0, source.size)
            _sync_both(source, file)
        if "q" not in given:
            if numbers:
                report(shell, "linked", second, length, length, 1)
            else:
                report(shell, "linked", 0, 0, 0, 1)
        return 0


def _sync_both(source: OpenFile, file: OpenFile) -> None:
    """Make both last where one is open with O_SYNC (``btrfs_remap_file_range()``)."""
    if file.syncs:
        for one in (source, file):
            fsync(one.computer, one.path)


def _dedupe(shell: Shell, file: OpenFile, words: list[str]) -> int:
    given, words = options(words, "q", "C", program_name="dedupe")
    if len(words) != 4:
        shell.write("dedupe infile src_off dst_off len -- dedupes a number of bytes at a specified "
                    "offset\n")  # fmt: skip
        return 1
    with source_file(file, words[0]) as source:
        first, second, length = (size_of(one, block=BLOCK) for one in words[1:4])
        (other, from_path), (mounted, path) = source.to_share(), file.on
        if mounted.fs is not other.fs:
            raise OSError(errno.EXDEV, "another filesystem")
        file.to_share()
        with file.computer.timed("dedupe"):
            same = mounted.fs.dedupe_range(from_path, path, first, second, length)
            _sync_both(source, file)
        if not same:
            say(shell, "XFS_IOC_FILE_EXTENT_SAME: Extents did not match.\n")
            return 0
        if "q" not in given:
            report(shell, "deduped", second, length, length, 1)
        return 0


def _copy_range(shell: Shell, file: OpenFile, words: list[str]) -> int:
    del shell
    given, words = options(words, "", "sdlf", program_name="copy_range")
    with source_file(file, words[0]) as source:
        first, second = size_of(given.get("s", "0")), size_of(given.get("d", "0"))
        length = size_of(given["l"]) if given.get("l") else max(0, source.size - first)
        (mounted, path), (_, from_path) = file.on, source.on
        mounted.may_write(file.shown)
        with file.computer.timed("copy") as step:
            step.bytes = copy_file_range(mounted.fs, from_path, path, first, second, length)
        return 0


def _stat(shell: Shell, file: OpenFile, words: list[str]) -> int:
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


def _seek(shell: Shell, file: OpenFile, words: list[str]) -> int:
    given, words = options(words, "adhrs", program_name="seek")
    if len(words) != 1 or not {"a", "d", "h"} & set(given):
        shell.write("seek -a | -d | -h [-r] off -- locate the next data and/or hole\n")
        return 1
    offset = size_of(words[0], block=BLOCK)
    mounted, path = file.on
    size = file.size
    fs = mounted.fs
    with file.computer.timed("lseek") as step, mounted.reading(path, step):
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


def _fiemap(shell: Shell, file: OpenFile, words: list[str]) -> int:
    given, words = options(words, "avxl", "n", program_name="fiemap")
    if "x" in given:
        raise UnknownError("xfs_io: fiemap -x is not known")
    mounted, path = file.on
    start = size_of(words[0], block=BLOCK) if words else 0
    end = start + size_of(words[1], block=BLOCK) if len(words) > 1 else None
    with file.computer.timed("fiemap") as step, mounted.reading(path, step):
        table = fiemap_mounted(mounted.fs, path, sync=True)
    style = "xfs_io -v" if "v" in given else "xfs_io -l" if "l" in given else "xfs_io"
    text = fiemap_text(table, file.shown, file.size, style=style, start=start, end=end)
    if "a" in given:
        # btrfs has no extents of xattrs
        shell.write(f"{file.shown}:\n")
        say(shell, f'xfs_io: ioctl(FS_IOC_FIEMAP) ["{file.shown}"]: Invalid request descriptor\n')
        return 1
    if "n" in given:
        heads = 2 if "v" in given else 1
        text = "".join(text.splitlines(keepends=True)[: heads + size_of(given["n"])])
    shell.write(text)
    return 0


def _nothing(shell: Shell, file: OpenFile, words: list[str]) -> int:
    del shell, file, words
    return 0


def _flink(shell: Shell, file: OpenFile, words: list[str]) -> int:
    """Give the open file a name (linkat(2) with AT_EMPTY_PATH)."""
    del shell
    (mounted, path), place = file.on, file.computer.place(file.computer.absolute(words[0]))
    if place is None or place[0].fs is not mounted.fs:
        raise OSError(errno.EXDEV, "another filesystem")
    mounted.may_write(file.shown)
    with file.computer.timed("link"):
        mounted.fs.link(path, place[0].inside(place[1]))
    return 0


def _sync_range(shell: Shell, file: OpenFile, words: list[str]) -> int:
    """Write data of a range back; nothing of the trees is written."""
    del shell
    given, words = options(words, "abw", program_name="sync_range")
    del given
    mounted, path = file.on
    with file.computer.timed("sync_range"):
        mounted.before_writeback(path)
        mounted.fs.sync_file_range(path, *range_of(words))
    return 0


def _label(shell: Shell, file: OpenFile, words: list[str]) -> int:
    usage = "label [-s label|-c] -- query, set, or clear the filesystem label while mounted\n"
    mounted, _ = file.on
    if words and words != ["-c"] and (words[0] != "-s" or len(words) != 2):
        if words == ["-s"]:
            say(shell, "label: option requires an argument -- 's'\n")
        elif words[0].startswith("-") and words[0][1:2] not in "sc":
            say(shell, f"label: invalid option -- '{words[0][1:2]}'\n")
        shell.write(usage)
        return 0
    if words:
        mounted.may_write(file.shown)
        mounted.fs.set_label(words[1] if words[0] == "-s" else "")
    shell.write(f'label = "{mounted.fs.image.superblock.label}"\n')
    return 0


_FLAGS: Final = {"i": 0x10, "a": 0x20, "s": 0x8, "A": 0x80, "d": 0x40}
"""``FS_*_FL`` by the letters of xfs_io, of what btrfs has."""
_SHOWN: Final = "rpiasAdtPneEfSxCX"


def _lsattr(shell: Shell, file: OpenFile, words: list[str]) -> int:
    if words:
        raise UnknownError(f"xfs_io: lsattr {words[0]}: this option is not known")
    mounted, path = file.on
    flags = to_fs_flags(find(mounted.fs, path).item.flags)
    letters = "".join(one if flags & _FLAGS.get(one, 0) else "-" for one in _SHOWN)
    shell.write(f"{letters} {file.shown} \n")
    return 0


def _chattr(shell: Shell, file: OpenFile, words: list[str]) -> int:
    mounted, path = file.on
    add = remove = 0
    for word in words:
        found = re.fullmatch(r"([-+])([A-Za-z]+)", word)
        if found is None:
            raise UnknownError(f"xfs_io: chattr {word}: only + and - are known")
        if not set(found[2]) <= set(_FLAGS):
            raise UnknownError(f"xfs_io: chattr {word}: this attribute is not known")
        bits = sum(_FLAGS[letter] for letter in set(found[2]))
        add, remove = (add | bits, remove) if found[1] == "+" else (add, remove | bits)
    mounted.may_write(file.shown)
    mounted.fs.chattr(path, add, remove)
    return 0


def _funshare(shell: Shell, file: OpenFile, words: list[str]) -> int:
    del shell, file, words
    raise OSError(errno.EOPNOTSUPP, "FALLOC_FL_UNSHARE_RANGE")


def _fadvise(shell: Shell, file: OpenFile, words: list[str]) -> int:
    """Say what is done with the file; nothing here depends on it."""
    del file
    given, words = options(words, "dnrsw", program_name="fadvise")
    if ({"d", "n", "w"} & set(given) and len(words) != 2) or (words and not given):
        shell.write("fadvise [-dnrsw] [off len] -- advisory commands for sections of a file\n")
        return 1
    return 0


_COMMANDS: Final[dict[str, FileCommand]] = {
    "pwrite": pwrite, "pread": pread, "falloc": _fallocate(0), "fpunch": _fallocate(3),
    "fzero": _fallocate(16), "fcollapse": _fallocate(8), "finsert": _fallocate(32),
    "truncate": _truncate, "fsync": _fsync(False), "fdatasync": _fsync(True), "sync": _sync(True),
    "syncfs": _sync(False), "reflink": _reflink, "dedupe": _dedupe, "copy_range": _copy_range,
    "stat": _stat, "seek": _seek, "fiemap": _fiemap, "close": _nothing, "print": _nothing,
    "mmap": map_file, "mwrite": mwrite, "mread": mread, "msync": msync, "munmap": _nothing,
    "sync_range": _sync_range, "funshare": _funshare, "fadvise": _fadvise, "lsattr": _lsattr,
    "chattr": _chattr, "label": _label, "flink": _flink,
}  # fmt: skip
_ALIASES: Final = {"w": "pwrite", "r": "pread", "t": "truncate", "s": "fsync", "q": "quit",
                   "ds": "fdatasync", "c": "close", "allocsp": "falloc", "mm": "mmap",
                   "mw": "mwrite", "mr": "mread", "ms": "msync", "mu": "munmap"}  # fmt: skip
_WORDS: Final = {
    "funshare": "fallocate",
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
