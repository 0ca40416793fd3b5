# SPDX-License-Identifier: GPL-2.0-only
"""The management console of User-Mode Linux: one request, one answer, over a datagram socket.

Follows ``arch/um/drivers/mconsole.h``.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

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
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asker:
        asker.bind(f"{folder}/answer")
        asker.settimeout(_SECONDS)
        said = b""
        try:
            asker.sendto(_REQUEST.pack(_MAGIC, _VERSION, len(data), data), str(console))
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
