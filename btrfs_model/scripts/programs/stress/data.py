# SPDX-License-Identifier: GPL-2.0-only
"""Operations of fsstress on what is in files."""

from __future__ import annotations

import errno
from typing import Final

from btrfs_model.mount.files.elided import Repeated
from btrfs_model.scripts.copy_range import copy_file_range
from btrfs_model.scripts.programs.stress.fsstress import (
    BLOCK,
    FILE_LENGTH,
    MIB,
    Process,
    Seen,
    aligned_length,
    place_for_writing,
)
from btrfs_model.scripts.programs.stress.names import REG, REGULAR

_VECTORS: Final = 1024
_PIPE: Final = 16
_FALLOC: Final = {1: "KEEP_SIZE", 2: "PUNCH_HOLE", 8: "COLLAPSE_RANGE", 16: "ZERO_RANGE",
                  32: "INSERT_RANGE", 64: "UNSHARE_RANGE"}  # fmt: skip
_FIEMAP: Final = {1: "SYNC", 2: "XATTR"}
_FIEMAP_FLAGS: Final = 0x10003
_KEEP_SIZE: Final = 1
_PUNCH: Final = 2
_SHIFTS: Final = 8 | 32
_MOST: Final = 128
_OVERLAPS: Final = 10


def _pattern(process: Process, length: int) -> Repeated:
    return Repeated(length, bytes([process.names.next & 255]))


def _flags(value: int, names: dict[int, str]) -> str:
    told = [name for bit, name in names.items() if value & bit]
    rest = value & ~sum(names)
    return "|".join([*told, *([f"{rest:#x}"] if rest else [])])


# -------------------------------------------------------------------------- read and written --


def read(process: Process, number: int, how: str = "read") -> None:
    """Read, by read(2), readv(2) or preadv2(2)."""
    found = process.opened("readv" if how == "readv" else "read", REGULAR, number, empty=False)
    if found is None:
        return
    path, seen = found
    offset = process.draw_long() % seen.size
    length = process.draw() % FILE_LENGTH + 1
    told = f"{how} {path}{seen.info} [{offset},"
    if how == "readv":
        count = process.draw() % min(length, _VECTORS) + 1
        process.say(f"{told}{length // count},{count}] 0")
    else:
        process.say(f"{told}{length}] 0")


def uring_read(process: Process, number: int) -> None:
    """Read by io_uring."""
    found = process.opened("do_uring_rw", REGULAR, number, empty=False)
    if found is None:
        return
    path, seen = found
    offset = process.draw_long() % seen.size
    length = process.draw() % FILE_LENGTH + 1
    came = min(length, seen.size - offset)
    process.say(f"uring_read {path}{seen.info} [{offset}, {length}(res={came})] 0")


def write(process: Process, number: int, how: str = "write") -> None:
    """Write, by write(2), writev(2) or pwritev2(2)."""
    found = process.opened("writev" if how == "writev" else "write", (REG,), number)
    if found is None:
        return
    path, seen = found
    offset = place_for_writing(process, seen)
    length = process.draw() % FILE_LENGTH + 1
    told = f"{length}"
    if how == "writev":
        count = process.draw() % min(length, _VECTORS) + 1
        told = f"{length // count},{count}"
        length -= length % count
    status = process.ends("write", lambda: process.fs.write(
        process.inside(path), offset, _pattern(process, length)))  # fmt: skip
    process.say(f"{how} {path}{seen.info} [{offset},{told}] {status}")


def uring_write(process: Process, number: int) -> None:
    """Write by io_uring."""
    found = process.opened("do_uring_rw", REGULAR, number)
    if found is None:
        return
    path, seen = found
    offset = place_for_writing(process, seen)
    length = process.draw() % FILE_LENGTH + 1
    wrote: list[int] = []
    status = process.ends("write", lambda: wrote.append(process.fs.write(
        process.inside(path), offset, _pattern(process, length))))  # fmt: skip
    done = wrote[0] if wrote else -status
    process.say(f"uring_write {path}{seen.info} [{offset}, {length}(res={done})] 0")


def _no_dioinfo(process: Process, what: str, path: str, seen: Seen) -> None:
    process.say(f"{what} - xfsctl(XFS_IOC_DIOINFO) {path}{seen.info} return "
                f"{errno.ENOTTY}, fallback to stat()")  # fmt: skip


def direct_read(process: Process, number: int, how: str) -> None:
    """Read past the page cache (``dread``), or so by libaio (``aread``)."""
    what = "dread" if how == "dread" else "do_aio_rw"
    found = process.opened(what, REGULAR, number, empty=False)
    if found is None:
        return
    path, seen = found
    _no_dioinfo(process, what, path, seen)
    offset = process.draw_long() % seen.size
    offset -= offset % BLOCK
    length = aligned_length(process)
    process.ends("read", lambda: process.fs.sync_file_range(process.inside(path), offset, length))
    process.say(f"{how} {path}{seen.info} [{offset},{length}] 0")


def direct_write(process: Process, number: int, how: str) -> None:
    """Write past the page cache (``dwrite``), or so by libaio (``awrite``)."""
    what = "dwrite" if how == "dwrite" else "do_aio_rw"
    found = process.opened(what, REGULAR, number)
    if found is None:
        return
    path, seen = found
    _no_dioinfo(process, what, path, seen)
    offset = place_for_writing(process, seen)
    offset -= offset % BLOCK
    length = aligned_length(process)
    data = bytes([process.names.next & 255]) * length
    status = process.ends(
        "write", lambda: process.fs.write_direct(process.inside(path), offset, data)
    )
    process.say(f"{how} {path}{seen.info} [{offset},{length}] {status}")


def mapped(process: Process, number: int, how: str) -> None:
    """Read from a mapping (``mread``), or write to it (``mwrite``)."""
    found = process.opened("do_mmap", REGULAR, number, empty=False)
    if found is None:
        return
    path, seen = found
    offset = process.draw_long() % seen.size
    offset -= offset % BLOCK
    length = process.draw() % min(seen.size - offset, FILE_LENGTH) + 1
    is_shared = process.draw() % 2
    if how == "mwrite" and is_shared:
        process.ends("mwrite", lambda: process.fs.write(
            process.inside(path), offset, _pattern(process, length)))  # fmt: skip
    told = "SHARED" if is_shared else "PRIVATE"
    process.say(f"{how} {path}{seen.info} [{offset},{length},{told}] 0")


# ----------------------------------------------------------------------- sizes and allocation --


def truncate(process: Process, number: int) -> None:
    """Set the size of a file."""
    found = process.opened("truncate", REGULAR, number)
    if found is None:
        return
    path, seen = found
    size = place_for_writing(process, seen)
    status = process.ends("truncate", lambda: process.fs.truncate(process.inside(path), size))
    process.say(f"truncate {path}{seen.info} {size} {status}")


def fallocate(process: Process, number: int, mode: int = 0) -> None:
    """Call fallocate(2) in one of its modes."""
    found = process.opened("do_fallocate", REGULAR, number)
    if found is None:
        return
    path, seen = found
    offset = place_for_writing(process, seen)
    length = process.draw() % MIB
    if mode & _SHIFTS and process.operation % 2:
        offset, length = (-(-one // BLOCK) * BLOCK for one in (offset, length))
    mode |= _KEEP_SIZE & process.draw()
    status = process.ends("fallocate", lambda: process.fs.vfs_fallocate(
        process.inside(path), mode, offset, length))  # fmt: skip
    process.say(f"fallocate({_flags(mode, _FALLOC)}) {path}{seen.info} "
                f"[{offset},{length}] {status}")  # fmt: skip


def reserve(process: Process, number: int, how: str) -> None:
    """Call the ioctl of XFS for fallocate, which the VFS has for all filesystems."""
    name = "XFS_IOC_RESVSP64" if how == "resvsp" else "XFS_IOC_UNRESVSP64"
    found = process.opened(how, REGULAR, number)
    if found is None:
        return
    path, seen = found
    offset = place_for_writing(process, seen)
    length = process.draw() % MIB
    mode = _KEEP_SIZE | (_PUNCH if how == "unresvsp" else 0)
    status = process.ends("fallocate", lambda: process.fs.vfs_fallocate(
        process.inside(path), mode, offset, length))  # fmt: skip
    process.say(f"xfsctl({name}) {path}{seen.info} [{offset},{length}] {status}")


def fiemap(process: Process, number: int) -> None:
    """Ask for extents; only the flag SYNC changes something, by writing the file back."""
    found = process.opened("fiemap", REGULAR, number)
    if found is None:
        return
    path, seen = found
    process.draw()
    offset = place_for_writing(process, seen)
    flags = process.draw() & _FIEMAP_FLAGS
    process.draw()
    length = process.draw_long()
    # the kernel puts the flags that it does not know in their place
    failed = flags & ~1
    if flags == 1:
        process.ends("fiemap", lambda: process.fs.sync_file_range(process.inside(path)))
    process.say(f"ioctl(FIEMAP) {path}{seen.info} [{offset},{length},"
                f"{_flags(failed or flags, _FIEMAP)}] {-1 if failed else 0}")  # fmt: skip


# ------------------------------------------------------------------------------- two files --


def _two(process: Process, what: str, number: int) -> tuple[str, str, Seen, Seen] | None:
    first = process.names.choose((REG,), number)
    if first is None:
        process.say(f"{what} read - no filename")
        return None
    second = process.names.choose((REG,), process.draw())
    assert second is not None
    paths = process.names.path(first), process.names.path(second)
    return *paths, process.look(paths[0]), process.look(paths[1])


def _source(process: Process, seen: Seen, length: int, block: int) -> int:
    """Draw where a range of a file begins."""
    offset = process.draw_long()
    offset = 0 if seen.size == length else offset % (seen.size - length)
    return offset - offset % block


def _target(process: Process, seen: tuple[Seen, Seen], source: int, length: int, block: int) -> int:
    """Draw where a range is put, until it does not overlap its source."""
    while True:
        offset = process.draw_long() % (seen[1].size + 1024 * BLOCK)
        offset -= offset % block
        if seen[0].ino != seen[1].ino or abs(offset - source) >= length:
            return offset


def _told(
    process: Process, what: str, found: tuple[str, str, Seen, Seen], places: tuple[int, int],
    length: int,
) -> str:  # fmt: skip
    one, two, first, second = found
    return (f"{what} {one}{first.info} [{places[0]},{length}] -> "
            f"{two}{second.info} [{places[1]},{length}]")  # fmt: skip


def clonerange(process: Process, number: int) -> None:
    """Share a range of a file with another."""
    found = _two(process, "clonerange", number)
    if found is None:
        return
    one, two, *seen = found
    length = process.draw() % FILE_LENGTH + 1
    length = min(length - length % BLOCK or BLOCK, seen[0].size)
    source = _source(process, seen[0], length, BLOCK)
    target = _target(process, (seen[0], seen[1]), source, length, BLOCK)
    status = process.ends("clone", lambda: process.fs.clone_range(
        process.inside(one), process.inside(two), source, target, length))  # fmt: skip
    error = f" error {status}" if status else ""
    process.say(_told(process, "clonerange", found, (source, target), length) + error)


def copyrange(process: Process, number: int) -> None:
    """Copy a range of a file to another."""
    found = _two(process, "copyrange", number)
    if found is None:
        return
    one, two, *seen = found
    length = min(process.draw() % FILE_LENGTH + 1, seen[0].size)
    source = _source(process, seen[0], length, 1)
    target = _target(process, (seen[0], seen[1]), source, length, 1)
    status = process.ends("copy", lambda: copy_file_range(
        process.fs, process.inside(one), process.inside(two), source, target, length))  # fmt: skip
    # the error is a number without a sign there
    error = f" asked for {length}, copied -1??\n" if status and length else ""
    process.say(_told(process, "copyrange", found, (source, target), length) + error)


def splice(process: Process, number: int) -> None:
    """Copy a range of a file to another through a pipe."""
    found = _two(process, "splice", number)
    if found is None:
        return
    length = min(process.draw() % FILE_LENGTH + 1, found[2].size)
    source = _source(process, found[2], length, 1)
    target = process.draw_long() % (found[3].size + 1024 * BLOCK)
    status = process.ends("splice", lambda: _through_pipe(process, found, source, target, length))
    process.say(_told(process, "splice", found, (source, target), length) + f" {status}")


def _through_pipe(
    process: Process, found: tuple[str, str, Seen, Seen], source: int, target: int, length: int
) -> None:
    """Move pages by the pipe; what overlaps is read when it is written, page by page."""
    one, two = (process.inside(path) for path in found[:2])
    overlaps = found[2].ino == found[3].ino and abs(source - target) < length
    done = 0
    while done < length:
        edge = target if overlaps else source
        most = (1 if overlaps else _PIPE) * BLOCK - (edge + done) % BLOCK
        count = min(most, length - done)
        data = process.fs.read(one, source + done, count)
        process.fs.write(two, target + done, data)
        done += count


def exchangerange(process: Process, number: int) -> None:
    """Ask XFS to exchange ranges of two files."""
    found = _two(process, "exchangerange", number)
    if found is None:
        return
    seen = found[2:]
    if min(seen[0].size, seen[1].size) < 2 * BLOCK:
        process.say("exchangerange - files are too small")
        return
    length = min(process.draw() % FILE_LENGTH + 1, seen[0].size // 4, seen[1].size // 4)
    length = length - length % BLOCK or BLOCK
    source = _source(process, seen[0], length, BLOCK)
    for _ in range(_OVERLAPS + 1):
        target = _source(process, seen[1], length, BLOCK)
        if seen[0].ino != seen[1].ino or abs(target - source) >= length:
            break
    told = _told(process, "exchangerange", found, (source, target), length)
    process.say(f"{told} error {errno.ENOTTY}")


def deduperange(process: Process, number: int) -> None:
    """Share what is equal in a range of a file and of others."""
    files = process.names.lists[REG]
    if len(files) < 2:
        return
    count = 0
    while not 2 <= count <= _MOST:
        count = process.draw() % (len(files) + 1)
    numbers = [number, *(process.draw() for _ in range(count - 1))]
    chosen = [process.names.choose((REG,), one) for one in numbers]
    paths = [process.names.path(entry) for entry in chosen if entry]
    seen = [process.look(path) for path in paths]
    length = process.draw() % FILE_LENGTH + 1
    length = min(length - length % BLOCK or BLOCK // 2, seen[0].size // 2)
    places = [_source(process, seen[0], length, BLOCK)]
    places += [_other_place(process, seen[0], one, places[0], length) for one in seen[1:]]
    infos = [f"{path}{one.info}" for path, one in zip(paths, seen, strict=True)]
    process.say(f"deduperange from {infos[0]} [{places[0]},{length}]")
    for path, info, place in zip(paths[1:], infos[1:], places[1:], strict=True):
        how = _dedupe(process, (paths[0], path), (places[0], place), length)
        process.say(f"...to {info} [{place},{length}]{how}")


def _dedupe(process: Process, paths: tuple[str, str], places: tuple[int, int], length: int) -> str:
    """Share what is equal; return what is said of it."""
    one, two = (process.inside(path) for path in paths)
    same = [True]

    def call() -> None:
        if length:
            same[0] = process.fs.dedupe_range(one, two, *places, length)

    status = process.ends("dedupe", call)
    if status:
        return f" error {-status}"
    return f" {length} bytes deduplicated" if same[0] else " differed"


def _other_place(process: Process, first: Seen, seen: Seen, source: int, length: int) -> int:
    for _ in range(_OVERLAPS + 1):
        place = process.draw_long()
        place = 0 if seen.size <= length else place % (seen.size - length)
        place -= place % BLOCK
        if first.ino != seen.ino or abs(place - source) >= length:
            break
    return place
