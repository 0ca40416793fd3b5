# SPDX-License-Identifier: GPL-2.0-only
"""What the root tree of a mounted filesystem says of subvolumes, uncommitted ones too."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, NamedTuple

from btrfs_model.base.counters import uncounted
from btrfs_model.ondisk.items import inode_refs, root_item, root_ref
from btrfs_model.ondisk.keys import U64_MAX, ItemType, ObjectId
from btrfs_model.scripts.files import fail
from btrfs_model.volume.roots import is_subvolume_id

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.ondisk.structs import RootItem

TOP: Final = int(ObjectId.FS_TREE)
"""Id of the top of a filesystem."""
_ROOT_TREE: Final = int(ObjectId.ROOT_TREE)
_TOP_DIRECTORY: Final = int(ObjectId.FIRST_FREE)


class Row(NamedTuple):
    """A subvolume.

    `parent` is the subvolume that it is in, `folder` the path of its directory there, `name` its
    name; the top has none of them, nor has one that is deleted.
    """

    id: int
    item: RootItem
    parent: int = 0
    folder: str = ""
    name: str = ""

    @property
    def inside(self) -> str:
        """Its path in the subvolume that it is in."""
        return f"{self.folder}/{self.name}" if self.folder else self.name


def subvolumes(fs: WritableFilesystem) -> dict[int, Row]:
    """Return all subvolumes by their ids, ascending."""
    with uncounted():
        tree = fs.writer.tree(_ROOT_TREE)
        found: dict[int, Row] = {}
        for item in tree.items((TOP, 0, 0), (U64_MAX, 255, U64_MAX)):
            number, kind, offset = item.key
            if not is_subvolume_id(number):
                continue
            if kind == ItemType.ROOT_ITEM:
                found[number] = Row(number, root_item(item.data))
            elif kind == ItemType.ROOT_BACKREF and number in found:
                ref = root_ref(item.data)
                folder = _folder(fs, offset, ref.dirid)
                found[number] = found[number]._replace(
                    parent=offset, folder=folder, name=_text(ref.name)
                )
        return found


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _folder(fs: WritableFilesystem, root: int, directory: int) -> str:
    """Return the path of a directory in its subvolume (``BTRFS_IOC_INO_LOOKUP``)."""
    names: list[str] = []
    while directory != _TOP_DIRECTORY:
        item = fs.writer.tree(root).first((directory, ItemType.INODE_REF, 0))
        assert item is not None
        names.append(_text(inode_refs(item.data)[0].name))
        directory = item.key.offset
    return "/".join(reversed(names))


def path_of(rows: dict[int, Row], number: int, top: int = TOP) -> str:
    """Return the path of a subvolume from another one that it is in, or from the top."""
    parts: list[str] = []
    while number != TOP and rows[number].parent:
        row = rows[number]
        parts.append(row.inside)
        number = row.parent
        if number == top:
            break
    return "/".join(reversed(parts))


def named(fs: WritableFilesystem, number: int) -> str:
    """Return the path of a subvolume from the top; OSError where there is none."""
    rows = subvolumes(fs)
    if number not in rows or (number != TOP and not rows[number].parent):
        raise fail(errno.ENOENT, f"subvolume {number}")
    return path_of(rows, number)
