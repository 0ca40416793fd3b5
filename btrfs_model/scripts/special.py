# SPDX-License-Identifier: GPL-2.0-only
"""Files of /dev that are read and written without end."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

from btrfs_model.shell.state import UnknownError
from btrfs_model.shell.streams import Null, Stream


class _Zeros(Null):
    """``/dev/zero``."""

    endless = True

    def read(self, size: int = -1) -> bytes:
        """Read zeros; without a size there is no end."""
        if size < 0:
            raise UnknownError("/dev/zero has no end: read so many bytes of it (head -c, dd)")
        return bytes(size)


class _Random(Null):
    """``/dev/urandom``: the same bytes in each run."""

    endless = True

    def __init__(self) -> None:
        import random

        self.chance = random.Random(0)

    def read(self, size: int = -1) -> bytes:
        """Read some bytes."""
        if size < 0:
            raise UnknownError("/dev/urandom has no end: read so many bytes of it (head -c, dd)")
        return self.chance.randbytes(size)


class _Full(Null):
    """``/dev/full``."""

    def write(self, data: bytes) -> None:
        """Fail."""
        del data
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


SPECIAL: Final[dict[str, Callable[[], Stream]]] = {
    "/dev/null": Null, "/dev/zero": _Zeros, "/dev/urandom": _Random, "/dev/random": _Random,
    "/dev/full": _Full, "/dev/tty": Null,
}  # fmt: skip
"""What stands for each of them."""
