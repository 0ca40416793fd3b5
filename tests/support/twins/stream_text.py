# SPDX-License-Identifier: GPL-2.0-only
r"""Commands as lines of text in plain Python: the twin of ``native/stream/text.c``.

A line of ``btrfs receive --dump`` is the command in 16 columns, the path in 32 and then what else
there is to say::

    utimes          ./snap/dir/a\ file              atime=2026-11-21T02:30:00+0000 mtime=...

What looks odd below is so in btrfs-progs, and equal text is the point: strings end at a NUL; the
file that a clone reads from is shown as if it lay in the subvolume received; a clone's length goes
through a C ``int``; ``fileattr`` has ``0x`` before a decimal number.

Sources: ``cmds/receive-dump.c``, ``common/string-utils.c`` of btrfs-progs 6.2 and 6.19. They differ
since 6.9.1: xattrs and the clone's source are escaped too, ``encoded_write`` has no commas.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any, BinaryIO

from btrfs_model.base.codes import Code
from btrfs_model.native.stream import Columns
from btrfs_model.ondisk.stream import ATTRIBUTES_BY_NAME
from btrfs_model.stream.index import Batch
from btrfs_model.stream.reader import Command, commands_of
from twins.stream_parse import broken

_PATH_MAX = 4096
_LETTERS = {7: "a", 8: "b", 27: "e", 12: "f", 10: "n", 13: "r", 9: "t", 11: "v", 32: " ", 92: "\\"}
_ESCAPED = [
    f"\\{_LETTERS[byte]}".encode()
    if byte in _LETTERS
    else bytes([byte])
    if 32 < byte < 127
    else b"\\%03o" % byte
    for byte in range(256)
]


def escape(text: bytes) -> bytes:
    """Escape what could break a line: blanks, backslashes and all that is not printable ASCII."""
    return b"".join([_ESCAPED[byte] for byte in text])


def _string(value: bytes) -> bytes:
    """Cut a string where C sees its end."""
    return value.partition(b"\0")[0]


def _join(parent: bytes, path: bytes) -> bytes:
    """``parent/path``; one slash at the end of either is dropped."""
    return parent.removesuffix(b"/") + b"/" + path.removesuffix(b"/")


class TextLines:
    """The lines of one stream from its start: paths belong to the subvolume that came last.

    Parameters
    ----------
    escape_all : bool
        Whether to write as btrfs-progs 6.9.1 and later.
    """

    def __init__(self, escape_all: bool) -> None:
        self._escape_all = escape_all
        self._subvolume = b"."

    def write(self, data: memoryview, columns: Columns, count: int, out: BinaryIO) -> None:
        """Write the lines of the first commands of some columns."""
        for _, command in zip(range(count), commands_of(Batch(data, 0, **columns)), strict=False):
            out.write(self.line(command))

    def line(self, command: Command) -> bytes:
        """Return the line of a command with its newline; ``end`` has none.

        Raises
        ------
        BrokenStreamError
            For a path that is too long and a time that has no date.
        """
        if command.name == "end":
            return b""
        values: dict[str, Any] = command.attributes
        if command.name in ("subvol", "snapshot"):
            self._subvolume = path = self._path(command, "path", b".")
            details: bytes | None = _origin(command.name, values)
        else:
            details = _DETAILS.get(command.name, _nothing)(self, command, values)
            path = self._path(command, "path")
        title = b"%-16s" % command.name.encode()
        if details is None:
            return title + escape(path) + b"\n"
        return title + b"%-31s %s\n" % (escape(path), details)

    def _path(self, command: Command, attribute: str, parent: bytes | None = None) -> bytes:
        """Join a path to the subvolume's."""
        parent = self._subvolume if parent is None else parent
        value = command.attributes[attribute]
        assert isinstance(value, bytes)
        path = _string(value)
        size = len(parent) + len(path) + 2
        if size >= _PATH_MAX:
            raise _broken(Code.STREAM_LONG_PATH, command, attribute, size, _PATH_MAX)
        return _join(parent, path)

    def _maybe_escaped(self, text: bytes) -> bytes:
        return escape(text) if self._escape_all else text

    def _utimes(self, command: Command, values: dict[str, Any]) -> bytes:
        self._path(command, "path")
        labels = ("atime", "mtime", "ctime")
        return b" ".join(label.encode() + b"=" + _date(command, label) for label in labels)

    def _rename(self, command: Command, values: dict[str, Any]) -> bytes:
        return b"dest=" + escape(self._path(command, "path_to"))

    def _clone(self, command: Command, values: dict[str, Any]) -> bytes:
        source = self._maybe_escaped(self._path(command, "clone_path"))
        length = (values["clone_len"] + 2**31) % 2**32 - 2**31
        return b"offset=%d len=%d from=%s clone_offset=%d" % (
            values["file_offset"], length % 2**64, source, values["clone_offset"],
        )  # fmt: skip

    def _set_xattr(self, command: Command, values: dict[str, Any]) -> bytes:
        name, value = _string(values["xattr_name"]), values["xattr_data"]
        shown = escape(value) if self._escape_all else b"data=" + _string(value)
        return b"name=%s %s len=%d" % (self._maybe_escaped(name), shown, len(value))

    def _remove_xattr(self, command: Command, values: dict[str, Any]) -> bytes:
        return b"name=" + self._maybe_escaped(_string(values["xattr_name"]))

    def _encoded_write(self, command: Command, values: dict[str, Any]) -> bytes:
        separator = b" " if self._escape_all else b", "
        fields = [b"offset=%d len=%d" % (values["file_offset"], len(values["data"]))]
        for name in (
            "unencoded_file_len", "unencoded_len", "unencoded_offset", "compression", "encryption",
        ):  # fmt: skip
            fields.append(b"%s=%d" % (name.encode(), values.get(name, 0)))
        return separator.join(fields)


def _broken(code: int, command: Command, attribute: str, found: int, wanted: int = 0) -> Exception:
    number = ATTRIBUTES_BY_NAME[attribute].number
    return broken(code, command.offset, number, found, wanted)


def _date(command: Command, attribute: str) -> bytes:
    """Local time with its offset from UTC, as ``strftime("%FT%T%z")`` of C."""
    value = command.attributes[attribute]
    assert isinstance(value, tuple)
    seconds = value[0]
    try:
        return time.strftime("%FT%T%z", time.localtime(seconds)).encode()
    except (OverflowError, OSError, ValueError):
        raise _broken(Code.STREAM_BAD_TIME, command, attribute, seconds % 2**64) from None


def _origin(name: str, values: dict[str, Any]) -> bytes:
    """UUIDs and transaction ids of a subvolume, and of the one that it is a snapshot of."""
    text = f"uuid={uuid.UUID(bytes=values['uuid'])} transid={values['ctransid']}"
    # a subvol may carry these attributes too, for nobody
    if name == "snapshot":
        parent = uuid.UUID(bytes=values["clone_uuid"])
        text += f" parent_uuid={parent} parent_transid={values['clone_ctransid']}"
    return text.encode()


_Details = Callable[[TextLines, Command, dict[str, Any]], bytes | None]


def _nothing(lines: TextLines, command: Command, values: dict[str, Any]) -> None:
    """Say nothing: for commands that have no more than a path."""


def _plain(template: str) -> _Details:
    """Details that are values put into a template."""
    return lambda lines, command, values: template.format(**values).encode()


def _data_range(lines: TextLines, command: Command, values: dict[str, Any]) -> bytes:
    return b"offset=%d len=%d" % (values["file_offset"], len(values["data"]))


def _destination(lines: TextLines, command: Command, values: dict[str, Any]) -> bytes:
    return b"dest=" + escape(_string(values["path_link"]))


def _fallocate(lines: TextLines, command: Command, values: dict[str, Any]) -> bytes:
    mode = (values["fallocate_mode"] + 2**31) % 2**32 - 2**31
    return b"mode=%d offset=%d len=%d" % (mode, values["file_offset"], values["size"])


def _verity(lines: TextLines, command: Command, values: dict[str, Any]) -> bytes:
    return b"algorithm=%d block_size=%d salt_len=%d sig_len=%d" % (
        values["verity_algorithm"], values["verity_block_size"],
        len(values["verity_salt_data"]), len(values["verity_sig_data"]),
    )  # fmt: skip


_DETAILS: dict[str, _Details] = {
    "mknod": _plain("mode={mode:o} dev=0x{rdev:x}"),
    "symlink": _destination,
    "rename": TextLines._rename,
    "link": _destination,
    "set_xattr": TextLines._set_xattr,
    "remove_xattr": TextLines._remove_xattr,
    "write": _data_range,
    "clone": TextLines._clone,
    "truncate": _plain("size={size}"),
    "chmod": _plain("mode={mode:o}"),
    "chown": _plain("gid={gid} uid={uid}"),
    "utimes": TextLines._utimes,
    "update_extent": _plain("offset={file_offset} len={size}"),
    "fallocate": _fallocate,
    "fileattr": _plain("fileattr=0x{fileattr}"),
    "encoded_write": TextLines._encoded_write,
    "enable_verity": _verity,
}
