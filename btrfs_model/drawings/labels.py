# SPDX-License-Identifier: GPL-2.0-only
"""An item in one line: its key, and the field of its payload that one looks for first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from btrfs_model.base.printable import printable
from btrfs_model.ondisk import items
from btrfs_model.ondisk.constants import FileExtentType
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.ondisk.layout import Payload, PayloadError

_LONGEST = 28


def _names(entries: list[Any]) -> str:
    return " ".join(f'"{entry.name.decode("utf-8", "surrogateescape")}"' for entry in entries)


def _extent(extent: Any) -> str:
    if extent.type == FileExtentType.INLINE:
        return f"{len(extent.data):,} bytes inline"
    if not extent.disk_bytenr:
        return f"hole of {extent.num_bytes:,}"
    kind = " preallocated" if extent.type == FileExtentType.PREALLOC else ""
    return f"{extent.num_bytes:,} bytes at {extent.disk_bytenr:,}{kind}"


_SAYS: Final[dict[int, Callable[[Any], str]]] = {
    ItemType.INODE_ITEM: lambda inode: f"size {inode.size:,}",
    ItemType.INODE_REF: _names,
    ItemType.INODE_EXTREF: _names,
    ItemType.DIR_ITEM: _names,
    ItemType.DIR_INDEX: _names,
    ItemType.XATTR_ITEM: _names,
    ItemType.EXTENT_DATA: _extent,
    ItemType.ROOT_ITEM: lambda root: f"at {root.bytenr:,}",
    ItemType.ROOT_REF: lambda ref: _names([ref]),
    ItemType.ROOT_BACKREF: lambda ref: _names([ref]),
    ItemType.EXTENT_ITEM: lambda extent: f"{extent.refs} refs",
    ItemType.METADATA_ITEM: lambda extent: f"{extent.refs} refs",
}


def item(key: Key, payload: Payload) -> str:
    """Return an item in one line, at most some 80 characters."""
    says = _SAYS.get(key.type)
    text = str(key)
    if says is None:
        return text
    try:
        said = printable(says(items.decode(key, payload)))
    except PayloadError:
        return text
    return f"{text}  {said if len(said) <= _LONGEST else said[: _LONGEST - 1] + '…'}"
