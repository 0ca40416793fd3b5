# SPDX-License-Identifier: GPL-2.0-only
"""The ioctl SEND."""

from __future__ import annotations

import ctypes
import fcntl
import struct
from collections.abc import Sequence

_INO_LOOKUP = struct.Struct("<QQ4080x")
_INO_LOOKUP_NUMBER = 3 << 30 | 4096 << 16 | 0x94 << 8 | 18
_FIRST_FREE_OBJECTID = 256
_SEND = struct.Struct("<qQQQQI28x")
_SEND_NUMBER = 1 << 30 | _SEND.size << 16 | 0x94 << 8 | 38
_VERSION_FLAG = 8


def root_id(subvolume: int) -> int:
    """Return the id of the subvolume of an open directory (``BTRFS_IOC_INO_LOOKUP``)."""
    argument = bytearray(_INO_LOOKUP.pack(0, _FIRST_FREE_OBJECTID))
    fcntl.ioctl(subvolume, _INO_LOOKUP_NUMBER, argument)
    number: int = _INO_LOOKUP.unpack(argument)[0]
    return number


def kernel_send(
    subvolume: int, stream: int, parent: int, clones: Sequence[int], flags: int, protocol: int
) -> None:
    """Send an open snapshot into an open file (``BTRFS_IOC_SEND``).

    Parent and clones are ids; a parent of 0 is none. Protocol 1 is that of kernels that know no
    other.
    """
    sources = (ctypes.c_uint64 * max(1, len(clones)))(*clones)
    version = (flags | _VERSION_FLAG, protocol) if protocol > 1 else (flags, 0)
    address = ctypes.addressof(sources)
    argument = _SEND.pack(stream, len(clones), address, parent, *version)
    fcntl.ioctl(subvolume, _SEND_NUMBER, argument)
