# SPDX-License-Identifier: GPL-2.0-only
"""The management console of User-Mode Linux: one request, one answer, over a datagram socket.

Follows ``arch/um/drivers/mconsole.h``.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from btrfs_model.base.errors import KernelFailedError

_MAGIC = 0xCAFEBABE
_VERSION = 2
_REQUEST = struct.Struct("=IiI512s")
_REPLY = struct.Struct("=iii")
_MAX_DATA = 512
_SECONDS = 30


def ask(console: Path, request: str) -> str:
    """Ask a guest's console; what it says.

    Raises
    ------
    KernelFailedError
        When the guest refuses, or there is no answer.
    """
    data = request.encode()
    if len(data) >= _MAX_DATA:
        raise KernelFailedError(f"{console}: {request}: longer than {_MAX_DATA - 1} bytes")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asker:
        asker.bind("")  # the kernel chooses a name
        asker.settimeout(_SECONDS)
        said = b""
        try:
            _send(asker, _REQUEST.pack(_MAGIC, _VERSION, len(data), data), console)
            more = True
            while more:
                reply = asker.recv(_REPLY.size + _MAX_DATA)
                failed, more, length = _REPLY.unpack_from(reply)
                said += reply[_REPLY.size :][:length]
        except OSError as error:
            raise KernelFailedError(f"{console}: {request}: {error}") from error
    answer = said.rstrip(b"\0").decode(errors="replace").strip()
    if failed:
        raise KernelFailedError(f"{console}: {request}: {answer}")
    return answer


def _send(asker: socket.socket, data: bytes, console: Path) -> None:
    """Send to a socket whose path may be longer than the 107 bytes that an address has."""
    folder = os.open(console.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        asker.sendto(data, f"/proc/self/fd/{folder}/{console.name}")
    finally:
        os.close(folder)
