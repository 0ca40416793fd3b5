# SPDX-License-Identifier: GPL-2.0-only
r"""The format of send streams: what ``btrfs send`` writes and ``btrfs receive`` reads.

A stream is a header and then commands, each of which does one thing to the receiving filesystem:
make a file, write into it, give it a name. Everything is packed and little endian.

::

    stream header, 17 bytes
    OFFSET  SIZE  DESCRIPTION
         0    13  magic "btrfs-stream" with a NUL at its end
        13     4  version: 1, 2 or 3

    command
    OFFSET  SIZE  DESCRIPTION
         0     4  length of the attributes together, L
         4     2  command (COMMANDS)
         6     4  CRC-32C of all 10 + L bytes, this field counted as zero; it starts at 0 and is
                  not inverted, unlike the checksums of blocks
        10     L  attributes

    attribute
    OFFSET  SIZE  DESCRIPTION
         0     2  attribute (ATTRIBUTES)
         2     2  length of the value, N
         4     N  value

From version 2 on ``data`` has no length: its value starts at byte 2 and goes to the end of the
command, which it therefore is the last attribute of. So more than 64 KiB fit into a command; in
version 1 no command is longer than that.

A worked example, the command ``unlink`` of the file ``f`` in version 1::

    05 00 00 00  0b 00  ab 97 2e 63  0f 00  01 00  66
    length 5     11     CRC          path   1      "f"

What the kernel promises beyond this, and what a reader may rely on:

- the order of the attributes in a command is fixed (the lines of COMMANDS), but a
  receiver looks them up by number;
- strings have no NUL; the path of the subvolume's own root is the empty string;
- all integers of version 1 have 64 bits, also modes, user and group ids;
- times are seconds and nanoseconds as in an inode item.

``btrfs send`` of several subvolumes writes several streams one after the other, each with its
header and its ``end``; with ``-e`` one header and one ``end`` for all. The ioctl can leave out
either.

Sources: ``fs/btrfs/send.h`` and ``send.c`` (6.12); the mandatory attributes are those that
``btrfs receive`` insists on (btrfs-progs 6.2, ``common/send-stream.c``).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final

MAGIC: Final = b"btrfs-stream\0"
MAX_VERSION: Final = 3
STREAM_HEADER: Final = struct.Struct("<13sI")
"""Magic, version."""
COMMAND_HEADER: Final = struct.Struct("<IHI")
"""Length of the attributes, command, CRC."""


class Kind(Enum):
    """Type of an attribute's value: the size that it must have, in bytes, or -1 for any."""

    U8 = "u8", 1
    U32 = "u32", 4
    U64 = "u64", 8
    UUID = "uuid", 16
    TIMESPEC = "timespec", 12
    STRING = "string", -1
    BINARY = "binary", -1

    @property
    def size(self) -> int:
        """Bytes of a value; -1: any number."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute: its name, number, type of value and the stream version that first had it."""

    name: str
    number: int
    kind: Kind
    version: int


@dataclass(frozen=True, slots=True)
class CommandType:
    """A command: its name, number, mandatory attributes and first stream version."""

    name: str
    number: int
    mandatory: tuple[str, ...]
    version: int


def _attributes(version: int, first: int, kinds: str) -> list[Attribute]:
    """Attributes numbered from `first` on, from lines of name and type."""
    lines = [line.split() for line in kinds.strip().splitlines()]
    return [
        Attribute(name, first + index, Kind[kind.upper()], version)
        for index, (name, kind) in enumerate(lines)
    ]


_ATTRIBUTES = (
    *_attributes(1, 1, """
        uuid                uuid
        ctransid            u64
        ino                 u64
        size                u64
        mode                u64
        uid                 u64
        gid                 u64
        rdev                u64
        ctime               timespec
        mtime               timespec
        atime               timespec
        otime               timespec
        xattr_name          string
        xattr_data          binary
        path                string
        path_to             string
        path_link           string
        file_offset         u64
        data                binary
        clone_uuid          uuid
        clone_ctransid      u64
        clone_path          string
        clone_offset        u64
        clone_len           u64
    """),
    *_attributes(2, 25, """
        fallocate_mode      u32
        fileattr            u64
        unencoded_file_len  u64
        unencoded_len       u64
        unencoded_offset    u64
        compression         u32
        encryption          u32
    """),
    *_attributes(3, 32, """
        verity_algorithm    u8
        verity_block_size   u32
        verity_salt_data    binary
        verity_sig_data     binary
    """),
)  # fmt: skip

ATTRIBUTES: Final = {attribute.number: attribute for attribute in _ATTRIBUTES}
"""Attributes by number."""
ATTRIBUTES_BY_NAME: Final = {attribute.name: attribute for attribute in _ATTRIBUTES}
"""Attributes by name: the kernel's, less ``BTRFS_SEND_A_`` and in lower case."""


def _commands(version: int, first: int, mandatory: str) -> list[CommandType]:
    """Commands numbered from `first` on, from lines of name and mandatory attributes."""
    lines = [line.split() for line in mandatory.strip().splitlines()]
    return [
        CommandType(name, first + index, tuple(names), version)
        for index, (name, *names) in enumerate(lines)
    ]


_COMMANDS = (
    *_commands(1, 1, """
        subvol         path uuid ctransid
        snapshot       path uuid ctransid clone_uuid clone_ctransid
        mkfile         path ino
        mkdir          path ino
        mknod          path ino rdev mode
        mkfifo         path ino
        mksock         path ino
        symlink        path ino path_link
        rename         path path_to
        link           path path_link
        unlink         path
        rmdir          path
        set_xattr      path xattr_name xattr_data
        remove_xattr   path xattr_name
        write          path file_offset data
        clone          file_offset clone_len path clone_uuid clone_ctransid clone_path clone_offset
        truncate       path size
        chmod          path mode
        chown          path uid gid
        utimes         path atime mtime ctime
        end
        update_extent  path file_offset size
    """),
    *_commands(2, 23, """
        fallocate      path fallocate_mode file_offset size
        fileattr       path fileattr
        encoded_write  path file_offset unencoded_file_len unencoded_len unencoded_offset data
    """),
    *_commands(3, 26, """
        enable_verity  path verity_algorithm verity_block_size verity_salt_data verity_sig_data
    """),
)  # fmt: skip

COMMANDS: Final = {command.number: command for command in _COMMANDS}
"""Commands by number."""
COMMANDS_BY_NAME: Final = {command.name: command for command in _COMMANDS}
"""Commands by name: the kernel's, less ``BTRFS_SEND_C_`` and in lower case."""

DATA: Final = ATTRIBUTES_BY_NAME["data"].number
"""The attribute without a length in version 2 and later."""
END: Final = COMMANDS_BY_NAME["end"].number
