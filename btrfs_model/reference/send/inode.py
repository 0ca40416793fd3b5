# SPDX-License-Identifier: GPL-2.0-only
"""Inodes: created under an orphan name, which changes when their names are known; times at the end.

Before v6.3 (``send-utimes-cache``) the times of a directory were sent with every entry that came
into it or left it. Since then a directory is remembered, and its times are sent when 64 others were
remembered after it, or at the end.
"""

from __future__ import annotations

import errno
import stat

from btrfs_model.base.codes import EUCLEAN
from btrfs_model.base.counters import current
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.patches import Patch
from btrfs_model.reference.send.command import send_cmd
from btrfs_model.reference.send.context import (
    SendContext,
    alloc_path_for_send,
    decode_item,
    send_bad_item,
    send_errno,
)
from btrfs_model.reference.send.created import cache_dir_created, did_create_dir
from btrfs_model.reference.send.data import parse_file_extent
from btrfs_model.reference.send.names import gen_unique_name, get_inode_info
from btrfs_model.reference.send.paths import get_cur_inode_path, get_cur_path
from btrfs_model.volume.ctree import search_slot

_CREATE_COMMANDS = {
    stat.S_IFREG: "mkfile",
    stat.S_IFDIR: "mkdir",
    stat.S_IFLNK: "symlink",
    stat.S_IFCHR: "mknod",
    stat.S_IFBLK: "mknod",
    stat.S_IFIFO: "mkfifo",
    stat.S_IFSOCK: "mksock",
}


# --------------------------------------------------------------------------------- times ----


def send_utimes(sctx: SendContext, ino: int, gen: int) -> None:
    """Send the times of an inode."""
    current().count("send_utimes")
    if (ino, gen) == (sctx.cur_ino, sctx.cur_inode_gen):
        path = get_cur_inode_path(sctx)
    else:
        path = get_cur_path(sctx, ino, gen)
    search = alloc_path_for_send(sctx)
    if not search_slot(sctx.send_root, (ino, ItemType.INODE_ITEM, 0), search):
        raise send_errno(sctx, errno.ENOENT)
    item = decode_item(sctx, search, sctx.send_root, INODE_ITEM.unpack)
    names = ["atime", "mtime", "ctime"] + ["otime"] * (sctx.request.proto >= 2)
    send_cmd(sctx, "utimes", path=path, **{name: _signed(*getattr(item, name)) for name in names})


def _signed(seconds: int, nanoseconds: int) -> tuple[int, int]:
    return seconds - (seconds >> 63 << 64), nanoseconds


def cache_dir_utimes(sctx: SendContext, ino: int, gen: int) -> None:
    """Put UTIMES of a directory off, where the kernel does that."""
    if Patch.SEND_UTIMES_CACHE not in sctx:
        send_utimes(sctx, ino, gen)
        return
    current().count("cache_dir_utimes")
    current().count("btrfs_lru_cache_lookup")
    if sctx.dir_utimes_cache.lookup(ino, gen) is None:
        current().count("btrfs_lru_cache_store")
        sctx.dir_utimes_cache.store(ino, gen, sctx.why)


def trim_dir_utimes_cache(sctx: SendContext) -> None:
    """Send the times of the directories for which there is no room."""
    cache = sctx.dir_utimes_cache
    while len(cache) > sctx.limits.dir_utimes_cache:
        (ino, gen), sctx.why = next(iter(cache.items()))
        send_utimes(sctx, ino, gen)
        del cache[ino, gen]


def flush_dir_utimes(sctx: SendContext) -> None:
    """Send the times that are still to be sent, the most recently used directory first."""
    for (ino, gen), why in reversed(sctx.dir_utimes_cache.items()):
        sctx.why = why
        send_utimes(sctx, ino, gen)


# ------------------------------------------------------------------------------ creation ----


def new_encode_dev(dev: int) -> int:
    """Return a device number as ``new_encode_dev()`` has it, of major << 20 | minor."""
    major, minor = dev >> 20 & 0xFFF, dev & 0xFFFFF
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12


def read_symlink(sctx: SendContext, ino: int) -> bytes:
    """Return the target of a symbolic link."""
    path = alloc_path_for_send(sctx)
    if not search_slot(sctx.send_root, (ino, ItemType.EXTENT_DATA, 0), path):
        raise send_errno(sctx, errno.EIO)
    extent = parse_file_extent(sctx, path, sctx.send_root)
    if not extent.is_inline or extent.compression:
        raise send_errno(sctx, EUCLEAN)
    if extent.ram_bytes > len(extent.inline):
        short = PayloadError.too_short(len(extent.inline), extent.ram_bytes)
        raise send_bad_item(sctx, path, sctx.send_root, short)
    return extent.inline[: extent.ram_bytes]


def send_create_inode(sctx: SendContext, ino: int) -> None:
    """Create an inode under its orphan name."""
    current().count("send_create_inode")
    item = sctx.cur_inode
    if ino != sctx.cur_ino:
        item = get_inode_info(sctx, sctx.send_root, ino)
    command = _CREATE_COMMANDS.get(stat.S_IFMT(item.mode))
    if command is None:
        raise send_errno(sctx, errno.EOPNOTSUPP)
    path = gen_unique_name(sctx, ino, item.generation)
    if command == "symlink":
        send_cmd(sctx, command, path=path, ino=ino, path_link=read_symlink(sctx, ino))
    elif command in ("mkfile", "mkdir"):
        send_cmd(sctx, command, path=path, ino=ino)
    else:
        rdev = new_encode_dev(item.rdev)
        send_cmd(sctx, command, path=path, ino=ino, rdev=rdev, mode=item.mode)


def send_create_inode_if_needed(sctx: SendContext) -> None:
    """Create the current inode, unless it is a directory that was created out of its turn."""
    is_dir = stat.S_ISDIR(sctx.cur_inode.mode)
    if is_dir and did_create_dir(sctx, sctx.cur_ino):
        return
    send_create_inode(sctx, sctx.cur_ino)
    if is_dir:
        cache_dir_created(sctx, sctx.cur_ino)
