# SPDX-License-Identifier: GPL-2.0-only
"""The stream: one command is written, and the commands that need nothing else."""

from __future__ import annotations

import errno
from typing import Any

from btrfs_model.base.counters import current
from btrfs_model.reference.send.context import SendContext, send_errno
from btrfs_model.reference.send.paths import get_cur_inode_path

U32_MAX = 0xFFFFFFFF


def send_cmd(sctx: SendContext, command: str, /, **attributes: Any) -> None:
    """Write a command to the stream; EOVERFLOW when it is larger than the kernel's buffer."""
    write_cmd(sctx, command, **attributes)
    current().count("send_cmd")


def write_cmd(sctx: SendContext, command: str, /, **attributes: Any) -> None:
    """Write a command as :func:`send_cmd` does, which the kernel does not call for it."""
    data = sum(len(value) for value in attributes.values() if isinstance(value, bytes))
    if data > sctx.send_max_size:
        raise send_errno(sctx, errno.EOVERFLOW)
    written = sctx.writer.command(command, **attributes)
    if len(written) > sctx.send_max_size:
        raise send_errno(sctx, errno.EOVERFLOW)
    sctx.commands[command] += 1
    if sctx.request.explanation is not None:
        sctx.explained.append(sctx.why)
    sctx.request.write(written)


def send_rename(sctx: SendContext, path: bytes, to: bytes) -> None:
    """Send RENAME."""
    send_cmd(sctx, "rename", path=path, path_to=to)


def send_link(sctx: SendContext, path: bytes, existing: bytes) -> None:
    """Send LINK: `path` becomes a name of what is at `existing`."""
    send_cmd(sctx, "link", path=path, path_link=existing)


def send_unlink(sctx: SendContext, path: bytes) -> None:
    """Send UNLINK."""
    send_cmd(sctx, "unlink", path=path)


def send_rmdir(sctx: SendContext, path: bytes) -> None:
    """Send RMDIR."""
    send_cmd(sctx, "rmdir", path=path)


# -------------------------------------------------------------------- the current inode ----


def send_truncate(sctx: SendContext, size: int) -> None:
    """Send TRUNCATE."""
    send_cmd(sctx, "truncate", path=get_cur_inode_path(sctx), size=size)


def send_chmod(sctx: SendContext, mode: int) -> None:
    """Send CHMOD."""
    send_cmd(sctx, "chmod", path=get_cur_inode_path(sctx), mode=mode & 0o7777)


def send_fileattr(sctx: SendContext, flags: int) -> None:
    """Send FILEATTR, which version 1 of the stream does not have."""
    if sctx.request.proto >= 2:
        send_cmd(sctx, "fileattr", path=get_cur_inode_path(sctx), fileattr=flags)


def send_chown(sctx: SendContext, uid: int, gid: int) -> None:
    """Send CHOWN."""
    send_cmd(sctx, "chown", path=get_cur_inode_path(sctx), uid=uid, gid=gid)


def send_update_extent(sctx: SendContext, offset: int, size: int) -> None:
    """Send UPDATE_EXTENT: a range that has other data now, without them."""
    path = get_cur_inode_path(sctx)
    # the kernel's argument is a u32: a hole of 4 GiB has size 0
    size &= U32_MAX
    send_cmd(sctx, "update_extent", path=path, file_offset=offset, size=size)
