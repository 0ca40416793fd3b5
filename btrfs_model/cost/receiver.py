# SPDX-License-Identifier: GPL-2.0-only
"""The system calls that ``btrfs receive`` makes for a stream.

``btrfs receive -f FILE`` reads each command with two ``read`` calls (its header, its attributes)
and carries it out with one or two more. The file that is written to stays open until a command
needs another one. What happens once per run, whatever the commands say, is left out: the start of
the program, creating and finishing the subvolume (some 14 ``openat`` and ``close``, 5 or more
``ioctl``), finding the subvolume that a clone comes from.

Source: ``cmds/receive.c`` and ``common/send-stream.c`` of btrfs-progs 6.2, held against
``strace -c`` of that program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from btrfs_model.stream import Command

__all__ = ["LAST_PAGE_WAIT", "receiver_calls"]

LAST_PAGE_WAIT = "wait for last page"
"""Key, beside the system calls, for truncates that wait until a dirty last page is written."""

_BY_PATH = {
    "mkfile": ("creat", "close"),
    "mkdir": ("mkdir",),
    "mknod": ("mknodat",),
    "mkfifo": ("mknodat",),
    "mksock": ("mknodat",),
    "symlink": ("symlink",),
    "rename": ("rename",),
    "link": ("link",),
    "unlink": ("unlink",),
    "rmdir": ("rmdir",),
    "set_xattr": ("lsetxattr",),
    "remove_xattr": ("lremovexattr",),
    "truncate": ("truncate",),
    "chmod": ("chmod",),
    "chown": ("lchown",),
    "utimes": ("utimensat",),
}

_BY_OPEN_FILE = {
    "write": ("pwrite64",),
    "clone": ("openat", "ioctl", "close"),
    "fallocate": ("fallocate",),
    "encoded_write": ("ioctl",),
}


def receiver_calls(
    commands: Iterable[Command], *, truncate_same_size: bool = True, sectorsize: int = 4096
) -> Counter[str]:
    """Count the system calls of the receiver of a stream, by name.

    Parameters
    ----------
    commands : iterable of Command
        The stream.
    truncate_same_size : bool
        Whether the receiver's kernel has the toggle ``truncate-same-size`` (4.17). Without it, a
        truncate to the size that the file already has, when that size is not a multiple of the
        sector size and the last page is dirty, writes that page back and waits for it.
    sectorsize : int
        Bytes per sector of the receiver's filesystem.

    Returns
    -------
    Counter
        Calls by name; such waits under :data:`LAST_PAGE_WAIT`. The last page counts as dirty when
        the writes of this stream end in it.

    Raises
    ------
    StreamError
        When the stream is broken.
    """
    calls: Counter[str] = Counter(read=2)  # the header, and the end of the file
    open_path: object = None
    written_end = 0
    for command in commands:
        name = command.name
        calls["read"] += 1 if name == "end" else 2
        for call in _BY_PATH.get(name, ()):
            calls[call] += 1
        if name in _BY_OPEN_FILE:
            path = command["path"]
            if path != open_path:
                calls["openat"] += 1
                calls["close"] += 1  # when the next file is opened, or at the end
                open_path, written_end = path, 0
            for call in _BY_OPEN_FILE[name]:
                calls[call] += 1
            if name == "write":
                end = _number(command, "file_offset") + len(_data(command))
                written_end = max(written_end, end)
        elif name == "truncate" and command["path"] == open_path:
            same_size = command["size"] == written_end
            if same_size and written_end % sectorsize and not truncate_same_size:
                calls[LAST_PAGE_WAIT] += 1
    return calls


def _number(command: Command, attribute: str) -> int:
    value = command[attribute]
    assert isinstance(value, int)
    return value


def _data(command: Command) -> memoryview:
    value = command["data"]
    assert isinstance(value, memoryview)
    return value
