# SPDX-License-Identifier: GPL-2.0-only
"""The devices of a filesystem: which files they are in, and what of it is missing.

An image has all its devices one behind the other in one run of bytes, in the order of their devids.
A byte of it is a *place*; of a filesystem of one device it is the byte of the device.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import (
    BtrfsModelError,
    CorruptImageError,
    Fault,
    MissingDeviceError,
    NotBtrfsError,
    UnsupportedError,
)
from btrfs_model.base.whole_file import naming
from btrfs_model.native.image import DEVICE_ALIGN, map_files
from btrfs_model.ondisk.chunks import Chunk, flag_names
from btrfs_model.ondisk.structs import SUPER_BLOCK, DevItem
from btrfs_model.ondisk.superblock import (
    MAGIC,
    SUPER_OFFSETS,
    SUPER_SIZE,
    SuperBlock,
    read_superblocks,
)

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class Member:
    """A device of a filesystem.

    `devid`, `uuid`: as in its item.
    `path`: its file; empty when it is missing.
    `start`, `size`: where it is in the image; a missing one has no bytes.
    `superblock`: the newest of the device; None when it is missing.
    """

    devid: int
    uuid: bytes
    path: str
    start: int
    size: int
    superblock: SuperBlock | None


@dataclass(frozen=True, slots=True)
class Opened:
    """Files that were opened.

    `view`: all devices, then as many bytes for tree blocks that lie in no single place.
    `name`: of all of them, for errors.
    `superblock`: the newest.
    `members`: by devid.
    """

    view: memoryview
    name: str
    superblock: SuperBlock
    members: list[Member]


def whole_device(view: memoryview, name: str) -> SuperBlock:
    """Return the newest superblock of a device that is all there."""
    superblock = read_superblocks(view, name)
    check_size(name, len(view), superblock)
    return superblock


def open_devices(
    paths: Paths,
    *,
    mounted: bool,
    superblock_of: Callable[[memoryview, str], SuperBlock] = whole_device,
) -> Opened:
    """Map all files of a filesystem; see :meth:`.Image.open`.

    `superblock_of`: returns the superblock of a device, or refuses it.
    """
    names = _names(paths)
    with ExitStack() as stack:
        files = [stack.enter_context(_open_file(name, mounted=mounted)) for name in names]
        sizes = [_size(file, name) for file, name in zip(files, names, strict=True)]
        supers = []
        for file, size, name in zip(files, sizes, names, strict=True):
            with map_files([(file.fileno(), 0, size)], size, name) as view:
                supers.append(superblock_of(view, name))
        _check_together(names, supers)
        place, members, layout = 0, [], []
        order = sorted(range(len(names)), key=lambda number: supers[number].dev_item.devid)
        for number in order:
            item, size = supers[number].dev_item, sizes[number]
            members.append(
                Member(item.devid, item.uuid, names[number], place, size, supers[number])
            )
            layout.append((files[number].fileno(), place, size))
            place += -(-size // DEVICE_ALIGN) * DEVICE_ALIGN
        # max() keeps the first of equals (btrfs_open_devices())
        newest = max(supers, key=lambda one: one.generation)
        total = 2 * place + DEVICE_ALIGN if newest.num_devices > 1 or len(names) > 1 else size
        name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        return Opened(map_files(layout, total, name), name, newest, members)


def check_size(name: str, size: int, superblock: SuperBlock) -> None:
    """Refuse a device that is not all there."""
    whole = superblock.dev_item.total_bytes
    if size < whole:
        raise CorruptImageError(
            name,
            Fault(Code.PAST_END, found=whole, wanted=size),
            f"the image is cut off: it has {size} of {whole} bytes",
        )


def _check_together(names: list[str], supers: list[SuperBlock]) -> None:
    """See that files are different devices of one filesystem."""
    seen: dict[int, int] = {}
    for number, (name, superblock) in enumerate(zip(names, supers, strict=True)):
        if superblock.fsid != supers[0].fsid:
            raise BtrfsModelError(
                f"{name} is of filesystem {UUID(bytes=superblock.fsid)}, "
                f"{names[0]} of {UUID(bytes=supers[0].fsid)}"
            )
        devid = superblock.dev_item.devid
        other = seen.setdefault(devid, number)
        if other != number:
            raise BtrfsModelError(f"{names[other]} and {name} are both device {devid}")


def with_missing(
    path: str,
    fsid: bytes,
    members: list[Member],
    items: Sequence[DevItem],
    chunks: Iterable[Chunk],
) -> list[Member]:
    """Return the devices with those that are missing (``read_one_dev()``), ascending by devid.

    `fsid`: of the filesystem, as device items have it.
    `items`: the device items, none where they cannot be read.
    Raises UnsupportedError: for a device of a seed filesystem.
    Raises BtrfsModelError: for one that the filesystem does not have any more.
    """
    named = {pair for chunk in chunks for pair in zip(chunk.devids, chunk.uuids, strict=True)}
    known = dict(named) | {item.devid: item.uuid for item in items}
    for item in items:
        if item.fsid != fsid:
            raise UnsupportedError(
                f"{path}: device {item.devid} is of a seed filesystem; not supported"
            )
    for one in members:
        if items and known.get(one.devid) != one.uuid:
            raise BtrfsModelError(
                f"{one.path}: the filesystem does not have device {one.devid} with uuid "
                f"{UUID(bytes=one.uuid)} any more"
            )
    wanted = set(known) - {one.devid for one in members}
    missing = [Member(devid, known[devid], "", 0, 0, None) for devid in wanted]
    return sorted([*members, *missing], key=lambda one: one.devid)


def check_missing(
    path: str, members: Sequence[Member], chunks: Iterable[Chunk], *, degraded: bool
) -> None:
    """Refuse to do without missing devices, unless that is asked for and possible.

    Raises MissingDeviceError: when `degraded` is not set, or a chunk cannot be read without them
    (``btrfs_check_rw_degradable()``).
    """
    missing = {member.devid: member for member in members if not member.path}
    if not missing:
        return
    on = {devid: [c for c in chunks if devid in c.devids] for devid in missing}
    names = "; ".join(
        f"device {devid} (uuid {UUID(bytes=member.uuid)}) with {_chunk_names(on[devid])}"
        for devid, member in missing.items()
    )
    lost = [
        chunk
        for chunk in {chunk.logical: chunk for some in on.values() for chunk in some}.values()
        if sum(devid in missing for devid in chunk.devids) > chunk.profile.tolerated
    ]
    first = min(missing)
    if lost:
        raise MissingDeviceError(
            path, first, f"missing: {names}; there is no reading without, by {_chunk_names(lost)}"
        )
    if not degraded:
        what = f"missing: {names}; with degraded=True (--degraded) it is read without"
        raise MissingDeviceError(path, first, what)


_SHOWN = 4


def _chunk_names(chunks: Sequence[Chunk]) -> str:
    if not chunks:
        return "no chunk"
    names = [f"{chunk.logical} {flag_names(chunk.type)}" for chunk in chunks[:_SHOWN]]
    more = [f"{len(chunks) - _SHOWN} more"] if len(chunks) > _SHOWN else []
    return f"chunk{'s' if len(chunks) > 1 else ''} {', '.join(names + more)}"


# -------------------------------------------------------------------------------------- files --


def _names(paths: Paths) -> list[str]:
    """Return the files that are named, those of a folder being its devices."""
    if not isinstance(paths, str | os.PathLike):
        if not paths:
            raise ValueError("no image is named")
        return [os.fspath(path) for path in paths]
    if not Path(paths).is_dir():
        return [os.fspath(paths)]
    names = [os.fspath(path) for path in sorted(Path(paths).iterdir()) if is_device(path)]
    if not names:
        raise NotBtrfsError(paths, "it is a directory, and no file in it has a superblock")
    return names


def is_device(path: Path) -> bool:
    """Whether something in a folder is to be opened."""
    if path.is_block_device():
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        blocks = [os.pread(file.fileno(), SUPER_SIZE, offset) for offset in SUPER_OFFSETS]
    return any(
        len(block) == SUPER_SIZE and SUPER_BLOCK.unpack(block).magic == MAGIC for block in blocks
    )


def _size(file: BinaryIO, name: str) -> int:
    with naming(name):
        size = file.seek(0, os.SEEK_END)
    if not size:
        raise NotBtrfsError(name, "the file is empty")
    return size


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


def _open_file(name: str, *, mounted: bool) -> BinaryIO:
    """Open an image for reading; a block device for us alone, as long as it is mapped."""
    _refuse_special(name)
    is_device = stat.S_ISBLK(Path(name).stat().st_mode)

    def opener(path: str, flags: int) -> int:
        try:
            return os.open(path, flags | (os.O_EXCL if is_device and not mounted else 0))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            why = (
                "the device is in use, perhaps mounted; bm.open(..., mounted=True) "
                "(--mounted-read-only) reads it"
            )
            raise OSError(error.errno, why, path) from None

    return open(name, "rb", opener=opener)
