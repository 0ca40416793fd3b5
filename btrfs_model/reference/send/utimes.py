# SPDX-License-Identifier: GPL-2.0-only
"""UTIMES: of a file when it is finished, of a directory when its entries are.

Before v6.3 (``send-utimes-cache``) the times of a directory were sent with every entry that came
into it or left it. Since then a directory is remembered, and its times are sent when 64 others were
remembered after it, or at the end.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from btrfs_model.base.counters import current
from btrfs_model.patches import Patch
from btrfs_model.reference.send.context import LruCache

if TYPE_CHECKING:
    from btrfs_model.reference.send.context import SendContext
    from btrfs_model.reference.send.names import Names

_DIR_UTIMES_CACHE_SIZE = 64


class Utimes:
    """Sends times.

    Parameters
    ----------
    sctx : SendContext
        The send.
    names : Names
        Its paths.
    """

    def __init__(self, sctx: SendContext, names: Names) -> None:
        self.sctx = sctx
        self.names = names
        self.cache = LruCache()

    def cache_dir_utimes(self, ino: int, gen: int) -> None:
        """Put UTIMES of a directory off, where the kernel does that."""
        if Patch.SEND_UTIMES_CACHE not in self.sctx:
            self.send_utimes(ino, gen)
            return
        current().count("cache_dir_utimes")
        current().count("btrfs_lru_cache_lookup")
        if self.cache.lookup(ino, gen) is None:
            current().count("btrfs_lru_cache_store")
            self.cache.store(ino, gen, self.sctx.why)

    def trim_dir_utimes_cache(self) -> None:
        """Send the times of the directories for which there is no room."""
        while len(self.cache) > _DIR_UTIMES_CACHE_SIZE:
            (ino, gen), self.sctx.why = next(iter(self.cache.items()))
            self.send_utimes(ino, gen)
            del self.cache[ino, gen]

    def flush(self) -> None:
        """Send the times that are still to be sent, the most recently used directory first."""
        for (ino, gen), why in reversed(self.cache.items()):
            self.sctx.why = why
            self.send_utimes(ino, gen)

    def send_utimes(self, ino: int, gen: int) -> None:
        """Send the times of an inode."""
        current().count("send_utimes")
        sctx = self.sctx
        if (ino, gen) == (sctx.cur_ino, sctx.cur_inode_gen):
            path = self.names.get_cur_inode_path()
        else:
            path = self.names.get_cur_path(ino, gen)
        item = sctx.inode_item(sctx.root, ino)
        if item is None:
            raise sctx.fail(errno.ENOENT)
        names = ["atime", "mtime", "ctime"] + ["otime"] * (sctx.request.proto >= 2)
        times = {name: getattr(item, name) for name in names}
        sctx.send_cmd("utimes", path=path, **{name: _signed(*t) for name, t in times.items()})


def _signed(seconds: int, nanoseconds: int) -> tuple[int, int]:
    return seconds - (seconds >> 63 << 64), nanoseconds
