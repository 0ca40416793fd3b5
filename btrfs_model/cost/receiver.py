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
from collections.abc import Iterable, Mapping
from typing import Final

from btrfs_model.base.arguments import checked
from btrfs_model.stream.reader import Command, Value

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

CALLS: Final = tuple(
    sorted({"read", *(call for calls in (_BY_PATH | _BY_OPEN_FILE).values() for call in calls)})
)
"""Names of the calls that are counted."""


class ReceiverCalls:
    """Counts the calls of a receiver while commands come.

    Parameters
    ----------
    truncate_same_size, sectorsize
        See :func:`receiver_calls`.

    Attributes
    ----------
    counts : Counter
        Calls by name so far; such waits under :data:`LAST_PAGE_WAIT`.
    open_path : bytes or None
        The path of the file that was opened last, and is open.
    """

    def __init__(self, *, truncate_same_size: bool = True, sectorsize: int = 4096) -> None:
        self.truncate_same_size = truncate_same_size
        self.sectorsize = sectorsize
        # the header, and the end of the file
        self.counts: Counter[str] = Counter(read=2)
        self.open_path: bytes | None = None
        self._written_end = 0

    def add(self, command: Command) -> None:
        """Count what one command leads to."""
        name = command.name
        self.counts["read"] += 1 if name == "end" else 2
        for call in _BY_PATH.get(name, ()):
            self.counts[call] += 1
        if name in _BY_OPEN_FILE:
            self._open(command["path"])
            for call in _BY_OPEN_FILE[name]:
                self.counts[call] += 1
            if name == "write":
                end = _number(command, "file_offset") + len(_data(command))
                self._written_end = max(self._written_end, end)
        elif name == "truncate" and command["path"] == self.open_path:
            end = self._written_end
            waits = command["size"] == end and end % self.sectorsize
            if waits and not self.truncate_same_size:
                self.counts[LAST_PAGE_WAIT] += 1

    def add_many(self, counts: Mapping[str, int], files: int, path: bytes, end: int) -> None:
        """Count what many commands lead to that say what new inodes are.

        `counts`: commands by name.
        `files`: how many files they write to, one after the other; the last may be open.
        `path`, `end`: the last of these, and where its data end.
        """
        for name, count in counts.items():
            self.counts["read"] += 2 * count
            for call in _BY_PATH.get(name) or _BY_OPEN_FILE[name]:
                self.counts[call] += count
        if files:
            opened = files - (path == self.open_path)
            self.counts["openat"] += opened
            self.counts["close"] += opened
            self.open_path, self._written_end = path, end

    def _open(self, path: Value) -> None:
        assert isinstance(path, bytes)
        if path != self.open_path:
            self.counts["openat"] += 1
            self.counts["close"] += 1  # when the next file is opened, or at the end
            self.open_path, self._written_end = path, 0


@checked
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
    calls = ReceiverCalls(truncate_same_size=truncate_same_size, sectorsize=sectorsize)
    for command in commands:
        calls.add(command)
    return calls.counts


def _number(command: Command, attribute: str) -> int:
    value = command[attribute]
    assert isinstance(value, int)
    return value


def _data(command: Command) -> memoryview:
    value = command["data"]
    assert isinstance(value, memoryview)
    return value
