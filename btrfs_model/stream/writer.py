# SPDX-License-Identifier: GPL-2.0-only
"""Writing a stream, command by command."""

from __future__ import annotations

import struct
from typing import Final

from btrfs_model.base.arguments import checked
from btrfs_model.ondisk.hashes import crc32c
from btrfs_model.ondisk.stream import (
    ATTRIBUTES_BY_NAME,
    COMMAND_HEADER,
    COMMANDS_BY_NAME,
    DATA,
    MAGIC,
    MAX_VERSION,
    STREAM_HEADER,
    Attribute,
    Kind,
)
from btrfs_model.stream.reader import Value

_INTEGERS: Final = {Kind.U8: struct.Struct("<B"), Kind.U32: struct.Struct("<I"),
                    Kind.U64: struct.Struct("<Q")}  # fmt: skip
_TIMESPEC: Final = struct.Struct("<qI")
_LONGEST: Final = 0xFFFF


class StreamWriter:
    """Makes the bytes of the commands of one stream.

    It holds to the format, not to what a receiver makes of it: a command gets the attributes that
    it is given, in that order.

    Parameters
    ----------
    version : int
        Of the stream, 1 to 3.

    Examples
    --------
    >>> stream = StreamWriter(version=1)
    >>> stream.command("unlink", path=b"f").hex(" ")
    '05 00 00 00 0b 00 ab 97 2e 63 0f 00 01 00 66'
    """

    @checked
    def __init__(self, version: int = 1) -> None:
        if not 1 <= version <= MAX_VERSION:
            raise ValueError(f"stream version {version} is not 1 to {MAX_VERSION}")
        self.version = version

    def header(self) -> bytes:
        """Return the stream header."""
        return STREAM_HEADER.pack(MAGIC, self.version)

    def end(self) -> bytes:
        """Return the command ``end``."""
        return self.command("end")

    def command(self, name: str, /, **attributes: Value) -> bytes:
        """Make a command.

        Parameters
        ----------
        name : str
            Of the command: ``"rename"``.
        **attributes
            Values by name, in the order in which they are to be written; the types are those of
            :class:`btrfs_model.stream.reader.Command`, so ``**command.attributes`` writes what was
            read.

        Returns
        -------
        bytes
            Header and attributes.

        Raises
        ------
        ValueError
            For a command or attribute that this version does not have, a value that does not fit,
            an attribute after ``data``.
        """
        command = COMMANDS_BY_NAME.get(name)
        if command is None or command.version > self.version:
            raise ValueError(f"no command {name} in version {self.version}")
        body = b"".join(self._attribute(name, value) for name, value in attributes.items())
        if self.version >= 2 and "data" in list(attributes)[:-1]:
            raise ValueError(f"data has to be the last attribute of {name}")
        start = COMMAND_HEADER.pack(len(body), command.number, 0)
        crc = crc32c(crc32c(0, start), body) if body else crc32c(0, start)
        return COMMAND_HEADER.pack(len(body), command.number, crc) + body

    def _attribute(self, name: str, value: Value) -> bytes:
        attribute = ATTRIBUTES_BY_NAME.get(name)
        if attribute is None or attribute.version > self.version:
            raise ValueError(f"no attribute {name} in version {self.version}")
        encoded = _encode(attribute, value)
        if attribute.number == DATA and self.version >= 2:
            return struct.pack("<H", attribute.number) + encoded
        if len(encoded) > _LONGEST:
            raise ValueError(f"{name} has {len(encoded)} bytes, at most {_LONGEST} fit")
        return struct.pack("<HH", attribute.number, len(encoded)) + encoded


def _encode(attribute: Attribute, value: Value) -> bytes:
    """Bytes of a value."""
    kind = attribute.kind
    try:
        if kind in _INTEGERS:
            return _INTEGERS[kind].pack(value)
        if kind is Kind.TIMESPEC:
            assert isinstance(value, tuple)
            return _TIMESPEC.pack(*value)
    except struct.error as error:
        raise ValueError(f"{attribute.name}={value!r}: {error}") from None
    assert isinstance(value, (bytes, bytearray, memoryview))
    if kind.size not in (-1, len(value)):
        raise ValueError(f"{attribute.name} has {len(value)} bytes instead of {kind.size}")
    return bytes(value)
