# SPDX-License-Identifier: GPL-2.0-only
"""Rotted sectors and tree blocks, made right from elsewhere."""

from __future__ import annotations

import json
import mmap
import os
from base64 import b64encode
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.whole_file import whole_file
from btrfs_model.questions.rescue.faults import (
    Wrong,
    data_sectors,
    files_of,
    same_place,
    superblocks,
    tree_blocks,
)
from btrfs_model.questions.rescue.image import DamagedImage, superblock_of
from btrfs_model.questions.rescue.roots import Place, State
from btrfs_model.questions.rescue.scan import ranges_of
from btrfs_model.questions.rescue.sources import (
    Wanted,
    is_stream,
    look_in_file,
    look_in_stream,
)
from btrfs_model.volume.device.devices import Member, Opened, Paths

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS: Final = {
    "what": "object", "device": "uint64", "offset": "uint64", "length": "uint64",
    "logical": "uint64", "copy": "int64", "path": "object", "source": "object", "proof": "object",
}  # fmt: skip
_ROUNDS: Final = 16
"""Of tree blocks: below a block that was made right there may be others, level by level."""
_PIECE: Final = 1 << 20


class Healed:
    """What is wrong with an image, and the bytes that make it right; see :func:`heal`.

    Attributes
    ----------
    chance : float
        How likely it is that a sector fits a checksum by chance: of those that nothing but the
        checksum tells, by the number of sectors that were looked at.
    """

    def __init__(self, image: DamagedImage, wrong: list[Wrong]) -> None:
        self._image, self._wrong = image, wrong
        self._path = image.path
        self._places = [image.byte_of_device(one.place) for one in wrong]
        if not image.has_several:
            self._places = [(image.superblock.dev_item.devid, one.place) for one in wrong]
        self._fsid = image.superblock.fsid
        self.chance = 0.0

    @property
    def table(self) -> pd.DataFrame:
        """A row for each run of wrong bytes.

        ``what`` (superblock, tree block or data), ``device`` (devid), ``offset`` (byte of the
        device), ``length``, ``logical`` (address), ``copy``, ``path`` (a file or tree that it is
        part of), ``source`` (where the right bytes are from; empty where there are none), ``proof``
        (by what they are known to be right).
        """
        import pandas as pd

        rows = [
            (one.what, device, offset, one.length, one.logical, one.copy, one.path, one.source,
             one.proof)
            for one, (device, offset) in zip(self._wrong, self._places, strict=True)
        ]  # fmt: skip
        columns = zip(*rows, strict=True) if rows else [()] * len(_COLUMNS)
        return pd.DataFrame({name: pd.Series(list(values), dtype=kind) for (name, kind), values
                             in zip(_COLUMNS.items(), columns, strict=True)})  # fmt: skip

    @property
    def is_whole(self) -> bool:
        """Whether the right bytes of all that is wrong were found."""
        return all(one.data is not None for one in self._wrong)

    def _repr_html_(self) -> str:
        return str(self.table.to_html(index=False))

    def write_patch(self, path: str | os.PathLike[str]) -> None:
        """Write the right bytes as JSON lines, by device and byte of it."""
        head = {"format": "btrfs-model patch 1", "fsid": self._fsid.hex()}
        with whole_file(path, special=True) as out:
            out.write(json.dumps(head).encode() + b"\n")
            for one, (device, offset) in sorted(
                zip(self._wrong, self._places, strict=True), key=lambda row: row[1]
            ):
                if one.data is not None:
                    row = {"device": device, "offset": offset, "length": one.length,
                           "was_sha256": one.was,
                           "data": b64encode(one.data).decode()}  # fmt: skip
                    out.write(json.dumps(row).encode() + b"\n")

    def write_copy(self, source: str, path: str | os.PathLike[str]) -> None:
        """Write the image with the right bytes in place; holes stay holes."""
        with Path(source).open("rb") as before, whole_file(path) as out:
            if Path(path).exists() and Path(path).samefile(source):
                raise BtrfsModelError(f"{os.fspath(path)}: the copy would take the image's place")
            size = before.seek(0, os.SEEK_END)
            for start, end in ranges_of(source, 0, size):
                before.seek(start)
                out.seek(start)
                for at in range(start, end, _PIECE):
                    out.write(before.read(min(_PIECE, end - at)))
            out.truncate(size)
            for one in self._wrong:
                if one.data is not None:
                    out.seek(one.place)
                    out.write(one.data)


@checked
def heal(
    image: Paths,
    sources: Paths = (),
    patch: str | os.PathLike[str] | None = None,
    *,
    copy: str | os.PathLike[str] | None = None,
    mounted: bool = False,
) -> Healed:
    """Find the right bytes of sectors and tree blocks whose checksum is wrong.

    They are looked for in the image's own other copies and parity, then in `sources`. A sector is
    right when it has the checksum that the tree of checksums has; of compressed extents it is the
    compressed bytes. A tree block is right when its checksum, address, filesystem and generation
    are; it comes from other copies, or an image of the same filesystem. Of two sectors with one
    checksum, that at the same place of a file counts; without one neither does.

    Parameters
    ----------
    image : str, os.PathLike or sequence of them
        File or block device, or several of one filesystem. It stays as it is.
    sources : str, os.PathLike or sequence of them
        Send streams, images, other files: all sectors in them are looked at.
    patch : str or os.PathLike, optional
        Where the right bytes go, as JSON lines: a head, then for each run ``device``, ``offset``,
        ``length``, ``was_sha256`` (of what is there) and ``data`` (base64).
    copy : str or os.PathLike, optional
        Where a copy of the image with them goes; for one device.
    mounted : bool
        Read a block device also while it is in use, as :meth:`.Filesystem.open` does.

    Returns
    -------
    Healed
        The table of what is wrong, and where the right bytes are from.

    Raises
    ------
    BtrfsModelError
        When the tree of roots cannot be read, or for a copy of an image of several devices.
    StreamError
        When a stream is not well formed.
    OSError
        When something cannot be read or written.
    """
    several = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    names = [os.fspath(one) for one in several]
    with ExitStack() as stack:
        opened = stack.enter_context(_open(image, mounted=mounted))
        if copy is not None and opened.has_several:
            raise BtrfsModelError(f"{opened.path}: a copy is of an image of one device")
        others = [one for name in names if (one := _same_filesystem(name, opened, stack))]
        found = _heal(opened, names, others)
        if patch is not None:
            found.write_patch(patch)
        if copy is not None:
            found.write_copy(opened.devices[0].path, copy)
        return found


def _open(paths: Paths, *, mounted: bool) -> DamagedImage:
    """Open an image so that what is made right can be read in it; the file stays as it is."""
    opened = DamagedImage.open(paths, mounted=mounted)
    if opened.has_several:
        return opened
    name = opened.devices[0].path
    opened.close()
    with Path(name).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    view = memoryview(memory)
    sb = superblock_of(view, name)
    member = Member(sb.dev_item.devid, sb.dev_item.uuid, name, 0, size, sb)
    return DamagedImage(Opened(view, name, sb, [member]))


def _same_filesystem(name: str, image: DamagedImage, stack: ExitStack) -> DamagedImage | None:
    """Open a source if it is an image of the same filesystem."""
    if is_stream(name):
        return None
    with suppress(BtrfsModelError):
        other = stack.enter_context(DamagedImage.open(name))
        if other.superblock.tree_fsid == image.superblock.tree_fsid:
            return other
    return None


def _heal(image: DamagedImage, names: list[str], others: list[DamagedImage]) -> Healed:
    wrong = _noted(image, superblocks(image))
    state = _state(image)
    other = others[0] if others else None
    known: set[int] = set()
    for _ in range(_ROUNDS):
        found = (one for one in tree_blocks(state, other) if one.place not in known)
        new = _noted(image, found)
        # what is right now is not looked at again; what is not stays in the list
        known.update(one.place for one in new)
        wrong += new
        if image.has_several or not any(one.data for one in new):
            break
        for one in new:
            if one.data is not None:
                image.view[one.place : one.place + one.length] = one.data
        image = _again(image)
        state = _state(image)
    if state.root_tree is None or not len(state.root_tree.leaves):
        fault = state.root_tree.lost[0].problem if state.root_tree else "no root"
        raise BtrfsModelError(f"{image.path}: {fault}")
    sectors = _noted(image, data_sectors(state))
    chance = _look(state, sectors, names, others)
    healed = Healed(image, [*wrong, *sectors])
    healed.chance = chance
    return healed


def _noted(image: DamagedImage, found: Iterable[Wrong]) -> list[Wrong]:
    """Note what is there, before tree blocks are made right in memory."""
    wrong = list(found)
    for one in wrong:
        one.was = sha256(image.view[one.place : one.place + one.length]).hexdigest()
    return wrong


def _state(image: DamagedImage) -> State:
    sb = image.superblock
    return State(image, Place(sb.root, sb.generation, sb.root_level))


def _again(image: DamagedImage) -> DamagedImage:
    """Open an image once more that was changed in memory."""
    (member,) = image.devices
    return DamagedImage(Opened(image.view, image.path, image.superblock, [member]))


def _look(state: State, sectors: list[Wrong], names: list[str], others: list[DamagedImage]
          ) -> float:  # fmt: skip
    """Look for sectors in all sources; return the chance that one is wrong nevertheless."""
    addresses = np.array(sorted({one.logical for one in sectors}), np.uint64)
    places, paths = files_of(state, addresses)
    for one in sectors:
        one.path = paths.get(one.logical, "")
        for other in others if one.data is None else ():
            good = same_place(other, one)
            if good is not None:
                one.heal(good, f"{other.path}: address {one.logical}", "checksum and place")
    image = state.image
    missing = [one for one in sectors if one.data is None]
    wanted = Wanted(missing, places, image.superblock.csum_type, image.sectorsize)
    for name in names if missing else ():
        (look_in_stream if is_stream(name) else look_in_file)(name, wanted)
    bits = 8 * min(image.superblock.csum_size, 32)
    alone = sum(one.proof == "checksum" for one in missing)
    return min(1.0, alone * wanted.looked_at / 2.0**bits)
