# SPDX-License-Identifier: GPL-2.0-only
"""Text of structures from templates, and the words for keys, flags and times in it.

A dump is text of fixed form around the numbers of structures. So it is declared as templates:
``{size}`` is the field `size`, ``{mode:o}`` the field in octal, ``{flags|inode_flags}`` what the
function `inode_flags` makes of it, ``{location|key}`` what `key` makes of a nested structure.

All text is str of which each character is one byte (latin-1): names are bytes of any encoding and
must come out as they are.
"""

from __future__ import annotations

import re
import time
import uuid as uuids
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.layout import Layout, Payload

_FIELD: Final = re.compile(r"\{([a-z_0-9.]+)(?:\|([a-z_]+))?(:[^}]*)?\}")


class Template:
    """Text with fields of a structure in it.

    `layout`: the structure.
    `text`: text with fields in braces; each line is indented by two tabs and ended.
    """

    def __init__(self, layout: Layout[Any], text: str) -> None:
        self.layout = layout
        self._converted: list[tuple[Callable[..., str], slice]] = []
        size = max(place.stop for place in layout.places.values())

        def field(match: re.Match[str]) -> str:
            name, word, form = match.groups()
            place = layout.places[name]
            if word is None:
                return f"{{{place.start}{form or ''}}}"
            self._converted.append((_WORDS[word], place))
            return f"{{{size + len(self._converted) - 1}}}"

        lines = "".join(f"\t\t{line}\n" for line in text.strip("\n").split("\n"))
        self._format = _FIELD.sub(field, lines).format

    def __call__(self, payload: Payload) -> str:
        """Return the text of the structure at the start of `payload`."""
        return self.of(self.layout.flat(payload))

    def of(self, flat: tuple[Any, ...]) -> str:
        """Return the text of a structure given by its flat numbers."""
        if self._converted:
            words = [convert(*flat[place]) for convert, place in self._converted]
            return self._format(*flat, *words)
        return self._format(*flat)


# --------------------------------------------------------------------------- objects and keys --

_OBJECTS: Final = {
    int(number): number.name
    for number in ObjectId
    if number not in {ObjectId.DEV_STATS, ObjectId.FIRST_FREE}
} | {int(ObjectId.TREE_LOG_FIXUP): "LOG_FIXUP", 2**64 - 1: "-1"}

_TYPES: Final = {int(number): number.name for number in ItemType}


def qgroupid(number: int) -> str:
    """Return level/id of a quota group."""
    return f"{number >> 48}/{number & (1 << 48) - 1}"


def _hex(number: int) -> str:
    return f"0x{number:016x}"


# Types of which the objectid is no object: by what it is instead.
_OBJECTID_IN: Final[dict[int, Callable[[int], str]]] = {
    ItemType.PERSISTENT_ITEM: lambda number: str(number) if number else "DEV_STATS",
    ItemType.DEV_EXTENT: str,
    ItemType.QGROUP_RELATION: qgroupid,
    ItemType.UUID_KEY_SUBVOL: _hex,
    ItemType.UUID_KEY_RECEIVED_SUBVOL: _hex,
    ItemType.DEV_ITEM: lambda number: "DEV_ITEMS" if number == 1 else objectid(number),
    ItemType.CHUNK_ITEM: lambda number: "FIRST_CHUNK_TREE" if number == 256 else objectid(number),
}

# Types of which the offset is no plain number.
_OFFSET_IN: Final[dict[int, Callable[[int], str]]] = {
    ItemType.QGROUP_RELATION: qgroupid,
    ItemType.QGROUP_INFO: qgroupid,
    ItemType.QGROUP_LIMIT: qgroupid,
    ItemType.UUID_KEY_SUBVOL: _hex,
    ItemType.UUID_KEY_RECEIVED_SUBVOL: _hex,
    ItemType.ROOT_ITEM: str,
}


def objectid(number: int, item_type: int = 0) -> str:
    """Return the name of a well-known object, the number of any other."""
    if item_type in _OBJECTID_IN:
        return _OBJECTID_IN[item_type](number)
    return _OBJECTS.get(number) or str(number)


def key(number: int, item_type: int, offset: int) -> str:
    """Return a key as in ``key (256 INODE_ITEM 0)``."""
    if item_type == 0 and number == ObjectId.FREE_SPACE:
        type_name = "UNTYPED"
    else:
        type_name = _TYPES.get(item_type) or f"UNKNOWN.{item_type}"
    if item_type == ItemType.ROOT_ITEM and number == ObjectId.TREE_RELOC:
        # the tree that is being relocated
        offset_text = objectid(offset)
    elif item_type in _OFFSET_IN:
        offset_text = _OFFSET_IN[item_type](offset)
    else:
        offset_text = "-1" if offset == 2**64 - 1 else str(offset)
    return f"key ({objectid(number, item_type)} {type_name} {offset_text})"


# ------------------------------------------------------------------------------ other words ----


def _flags(names: Mapping[int, str], none: str = "") -> Callable[[int], str]:
    """Make a function that lists the names of bits, in the order given, between bars."""

    @lru_cache(maxsize=1024)
    def text(flags: int) -> str:
        return "|".join(name for bit, name in names.items() if flags & bit) or none

    return text


inode_flags = _flags(
    {
        1 << 0: "NODATASUM",
        1 << 1: "NODATACOW",
        1 << 2: "READONLY",
        1 << 3: "NOCOMPRESS",
        1 << 4: "PREALLOC",
        1 << 5: "SYNC",
        1 << 6: "IMMUTABLE",
        1 << 7: "APPEND",
        1 << 8: "NODUMP",
        1 << 9: "NOATIME",
        1 << 10: "DIRSYNC",
        1 << 11: "COMPRESS",
    },
    "none",
)
header_flags = _flags({1: "WRITTEN", 2: "RELOC"})
root_flags = _flags({1: "RDONLY"}, "none")
_extent_kind = _flags({1: "DATA", 2: "TREE_BLOCK"})
_block_group_content = _flags({1: "DATA", 4: "METADATA", 2: "SYSTEM"})

_PROFILES: Final = {
    0: "|single",
    1 << 3: "|RAID0",
    1 << 4: "|RAID1",
    1 << 5: "|DUP",
    1 << 6: "|RAID10",
    1 << 7: "|RAID5",
    1 << 8: "|RAID6",
    1 << 9: "|RAID1C3",
    1 << 10: "|RAID1C4",
}
_PROFILE_MASK: Final = sum(_PROFILES)


def extent_flags(flags: int) -> str:
    """Return the names of the flags of an extent item."""
    return _extent_kind(flags) + ("|FULL_BACKREF" if flags & 256 else "")


def block_group_flags(flags: int) -> str:
    """Return content and profile of a block group or chunk."""
    profile = flags & _PROFILE_MASK
    return _block_group_content(flags) + _PROFILES.get(profile, f"|UNKNOWN.0x{profile:x}")


def qgroup_flags(flags: int) -> str:
    """Return the state of quotas."""
    state = ("|SCANNING" if flags & 2 else "") + ("|INCONSISTENT" if flags & 4 else "")
    return ("ON" if flags & 1 else "OFF") + state


def compression(number: int) -> str:
    """Return the name of a compression algorithm."""
    return {0: "none", 1: "zlib", 2: "lzo", 3: "zstd"}.get(number, f"UNKNOWN.{number}")


def file_extent_type(number: int) -> str:
    """Return the name of a type of file extent."""
    return {0: "inline", 1: "regular", 2: "prealloc"}.get(number, "unknown")


def uuid(data: bytes) -> str:
    """Return a uuid in its usual form."""
    return str(uuids.UUID(bytes=data))


def signed(number: int) -> str:
    """Return a number of 64 bits that is signed in fact."""
    return str(number - 2**64 if number >> 63 else number)


_400_YEARS: Final = 146097 * 86400


@lru_cache(maxsize=1 << 16)
def timestamp(seconds: int) -> str:
    """Return seconds since 1970 as local time.

    A year beyond 32 bits, as uninitialized times in logs of Linux 5.10 have it, is not what
    btrfs-progs shows: it lets the year overflow and leaves month and day as they were before.
    """
    number = seconds - 2**64 if seconds >> 63 else seconds
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(number))
    except (OSError, OverflowError):
        # the calendar repeats every 400 years
        cycles, rest = divmod(number, _400_YEARS)
        local = time.localtime(rest)
        return f"{local.tm_year + 400 * cycles}-{time.strftime('%m-%d %H:%M:%S', local)}"


_WORDS: Final[dict[str, Callable[..., str]]] = {
    "block_group_flags": block_group_flags,
    "compression": compression,
    "extent_flags": extent_flags,
    "file_extent_type": file_extent_type,
    "inode_flags": inode_flags,
    "key": key,
    "objectid": objectid,
    "qgroup_flags": qgroup_flags,
    "root_flags": root_flags,
    "signed": signed,
    "timestamp": timestamp,
    "uuid": uuid,
}
