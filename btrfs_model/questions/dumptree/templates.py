# SPDX-License-Identifier: GPL-2.0-only
"""The form of a dump: templates of structures, and the words for keys, flags and times in them.

A dump is text of fixed form around the numbers of structures. So it is declared as templates:
``{size}`` is the field `size`, ``{mode:o}`` the field in octal, ``{csum:4}`` 4 of its bytes,
``{flags|inode_flags}`` what the function `inode_flags` makes of it. ``{name}`` are the bytes that
follow the structure, as many as its field `name_len` says. In capitals is what is known of an item
beside its payload (``struct bm_text_item``): ``{SLOT}``, ``{KEY|key}``.

The functions here turn templates into steps, which C follows for each item. C knows how numbers,
usual keys, uuids and usual times are written; for any other word it asks the functions below, once.
"""

from __future__ import annotations

import re
import stat
import time
import uuid as uuids
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from btrfs_model.native.text import ITEM, Answer, Step
from btrfs_model.ondisk import structs
from btrfs_model.ondisk.constants import FileType
from btrfs_model.ondisk.keys import (
    OBJECTID_IN,
    OFFSET_IN,
    Key,
    item_type_name,
    objectid_name,
    offset_name,
)
from btrfs_model.ondisk.layout import Layout

Steps = list[Step]
Parts = dict[int | str, Steps]
"""The steps for the items of each type, and for other things by name."""

_FIELD: Final = re.compile(r"\{([A-Za-z_0-9.]+)(?:\|([a-z_]+))?(?::([^}]*))?\}")
_FORMS: Final = {None: "decimal", "o": "octal", "x": "hex"}


def lines(layout: Layout[Any] | None, text: str, *, indent: int = 2, end: str = "\n") -> Steps:
    """Write lines with fields of the structure that was taken last.

    `layout`: the structure.
    `text`: a template; each line of it is indented by so many tabs.
    `end`: what ends the last line.
    """
    tabs = "\t" * indent
    text = "\n".join(tabs + line for line in text.strip("\n").split("\n")) + end
    steps, at = [], 0
    for match in _FIELD.finditer(text):
        before = text[at : match.start()].encode()
        steps.append(_field(layout, *match.groups())._replace(text=before))
        at = match.end()
    return [*steps, Step("literal", text[at:].encode())]


def _field(layout: Layout[Any] | None, name: str, word: str | None, form: str | None) -> Step:
    """Return how a field of a template is written."""
    if word in ("rest", "sums"):
        return Step(word, field=word)
    if name == "PATH":
        return Step("path")
    if name.isupper() or name.startswith("KEY"):
        place, width = _in_item(name)
        step = Step("", place=place, width=width, in_item=True, field=name)
    else:
        assert layout is not None
        fields = layout.dtype.names or ()
        follows = name not in fields and f"{name}_len" in fields
        place, width = _place(layout, f"{name}_len" if follows else name)
        step = Step("", place=place, width=width, field=f"{layout.name}.{name}")
        if follows:
            return step._replace(how=word or "name")
    if form is not None and form.isdecimal():
        return step._replace(how="bytes", width=int(form))
    if word is None:
        return step._replace(how=_FORMS[form])
    if word in WORDS:
        return step._replace(how="word", word=WORDS[word])
    return step._replace(how=word)


def _in_item(name: str) -> tuple[int, int]:
    """Return byte and width of what is known of an item; KEY has parts."""
    name, _, part = name.partition(".")
    place, width = ITEM[name.lower()]
    at, size = _place(structs.DISK_KEY, part) if part else (0, width)
    return place + at, size


def _place(layout: Layout[Any], name: str) -> tuple[int, int]:
    """Return byte and width of a field, or of a field of a field."""
    dtype, at = layout.dtype, 0
    for part in name.split("."):
        if part.isdecimal():
            # of an array
            dtype = dtype.base
            at += int(part) * dtype.itemsize
            continue
        assert dtype.fields is not None
        dtype, offset = dtype.fields[part][:2]
        at += offset
    return at, dtype.itemsize


def structure(
    layout: Layout[Any], text: str = "", *, least: int | None = None, indent: int = 2
) -> Steps:
    """Take a structure from the payload, and write lines with its fields.

    `indent`: as for :func:`lines`.
    `least`: bytes that must be there, when it is less than the whole structure; others are 0.
    """
    size = layout.size
    take = Step("structure", value=size, least=size if least is None else least)
    return [take, *(lines(layout, text, indent=indent) if text else ())]


def repeat(once: Steps, *, at_least_once: bool = True) -> Steps:
    """Go through some steps until nothing of the payload is left."""
    back = Step("if_more", jump=-len(once) - 1)
    return [*([] if at_least_once else [_goto(len(once))]), *once, back]


def times(layout: Layout[Any], field: str, once: Steps) -> Steps:
    """Go through some steps as often as a field of the last structure says, at least once."""
    place, width = _place(layout, field)
    count = Step("count", place=place, width=width)
    return [count, *once, Step("if_turns", jump=-len(once) - 1)]


def when(
    layout: Layout[Any] | None,
    field: str,
    value: int,
    then: Steps,
    otherwise: Steps | None = None,
    *,
    mask: int = 2**64 - 1,
) -> Steps:
    """Go through some steps if a field, less what is not in `mask`, has a value, else others."""
    in_item = layout is None
    place, width = _in_item(field) if layout is None else _place(layout, field)
    test = Step(
        "unless", place=place, width=width, in_item=in_item, value=value, mask=mask,
        jump=len(then) + (otherwise is not None),
    )  # fmt: skip
    if otherwise is None:
        return [test, *then]
    return [test, *then, _goto(len(otherwise)), *otherwise]


def when_same(layout: Layout[Any], field: str, other: str, then: Steps) -> Steps:
    """Go through some steps if two fields are the same."""
    place, width = _place(layout, field)
    value = _place(layout, other)[0]
    return [Step("unless_same", place=place, width=width, value=value, jump=len(then)), *then]


def back(size: int) -> Steps:
    """Take so many bytes of the payload again."""
    return [Step("back", value=size)]


def bad(layout: Layout[Any], field: str) -> Steps:
    """End with an error that says what a field holds."""
    place, width = _place(layout, field)
    return [Step("bad", place=place, width=width)]


def _goto(jump: int) -> Step:
    return Step("unless", jump=jump, value=1, mask=0)


# --------------------------------------------------------------------------- objects and keys --


def key(number: int, item_type: int, offset: int) -> str:
    """Return a key as in ``key (256 INODE_ITEM 0)``."""
    return f"key {Key(number, item_type, offset)}"


PLAIN: Final = [kind not in OBJECTID_IN and kind not in OFFSET_IN for kind in range(256)]
"""Whether the keys of a type are numbers, but for objects near 0 and the offset -1."""


# ------------------------------------------------------------------------------ other words ----


FLAGS: Final[dict[str, tuple[dict[int, str], str]]] = {
    "inode_flags": (
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
    ),
    "header_flags": ({1: "WRITTEN", 2: "RELOC"}, ""),
    "root_flags": ({1: "RDONLY"}, "none"),
    "extent_kind": ({1: "DATA", 2: "TREE_BLOCK"}, ""),
    "block_group_content": ({1: "DATA", 4: "METADATA", 2: "SYSTEM"}, ""),
}
"""Names of bits in the order in which they are listed, and what is said where none is set."""

NAMES: Final[dict[str, dict[int, str]]] = {
    "compression": {0: "none", 1: "zlib", 2: "lzo", 3: "zstd"},
    "file_extent_type": {0: "inline", 1: "regular", 2: "prealloc"},
    "file_type": {int(kind): kind.name.removeprefix("REG_") for kind in FileType if kind},
    "profile": {
        0: "|single",
        1 << 3: "|RAID0",
        1 << 4: "|RAID1",
        1 << 5: "|DUP",
        1 << 6: "|RAID10",
        1 << 7: "|RAID5",
        1 << 8: "|RAID6",
        1 << 9: "|RAID1C3",
        1 << 10: "|RAID1C4",
    },
}
"""Names of numbers."""
_PROFILE_MASK: Final = sum(NAMES["profile"])


def _flags(kind: str) -> Callable[[int], str]:
    """Make a function that lists the names of bits between bars."""
    names, none = FLAGS[kind]

    def text(flags: int) -> str:
        return "|".join(name for bit, name in names.items() if flags & bit) or none

    return text


_extent_kind, _block_group_content = _flags("extent_kind"), _flags("block_group_content")


def extent_flags(flags: int) -> str:
    """Return the names of the flags of an extent item."""
    return _extent_kind(flags) + ("|FULL_BACKREF" if flags & 256 else "")


def block_group_flags(flags: int) -> str:
    """Return content and profile of a block group or chunk."""
    profile = flags & _PROFILE_MASK
    return _block_group_content(flags) + NAMES["profile"].get(profile, f"|UNKNOWN.0x{profile:x}")


def qgroup_flags(flags: int) -> str:
    """Return the state of quotas."""
    state = ("|SCANNING" if flags & 2 else "") + ("|INCONSISTENT" if flags & 4 else "")
    return ("ON" if flags & 1 else "OFF") + state


def compression(number: int) -> str:
    """Return the name of a compression algorithm."""
    return NAMES["compression"].get(number, f"UNKNOWN.{number}")


def file_extent_type(number: int) -> str:
    """Return the name of a type of file extent."""
    return NAMES["file_extent_type"].get(number, "unknown")


def file_type(number: int) -> str:
    """Return the name of a type of file, as directory entries have it."""
    return NAMES["file_type"].get(number) or f"DIR_ITEM.{number}"


def uuid(data: bytes) -> str:
    """Return a uuid in its usual form."""
    return str(uuids.UUID(bytes=data))


_400_YEARS: Final = 146097 * 86400


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


def utc(second: int, *_: int) -> str:
    """Return seconds since 1970 as UTC, in any year."""
    return str(np.datetime64(second - 2**64 if second >> 63 else second, "s")).replace("T", " ")


WORDS: Final[dict[str, Callable[[int], str]]] = {
    "block_group_flags": block_group_flags,
    "compression": compression,
    "extent_flags": extent_flags,
    "file_extent_type": file_extent_type,
    "file_type": file_type,
    "filemode": stat.filemode,
    "header_flags": _flags("header_flags"),
    "inode_flags": _flags("inode_flags"),
    "qgroup_flags": qgroup_flags,
    "root_flags": _flags("root_flags"),
}
"""Words for the numbers of fields, by how templates name them."""

ANSWERS: Final[dict[str, Answer]] = {
    "objectid_word": lambda number, item_type, _: objectid_name(number, item_type),
    "type_word": lambda item_type, number, _: item_type_name(item_type, number),
    "offset_word": offset_name,
    "time_word": lambda second, *_: timestamp(second),
}
"""What says the words that C does not know, by ``enum bm_text_word``."""
