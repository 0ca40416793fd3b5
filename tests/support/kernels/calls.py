# SPDX-License-Identifier: GPL-2.0-only
"""The same calls on a mounted filesystem and on the model.

A call is a tuple, its name first; paths are relative to the top of the filesystem. What fails on
one side must fail on the other with the same errno.
"""

import errno
from collections.abc import Callable
from typing import Any

from btrfs_model.experiments.verify.random.calls import Call
from btrfs_model.mount.names.subvolume import dead_subvolumes
from btrfs_model.mount.writable import WritableFilesystem

# Which arguments an ioctl opens, the directory itself or (True) the one above, in what order. To
# open a directory is not without effect: it looks up the next index.
_OPENED = {
    "create_subvolume": [(0, True)],
    "snapshot": [(0, False), (1, True)],
    "delete_subvolume": [(0, True)],
    "set_read_only": [(0, False)],
    "set_received_subvolume": [(0, False)],
}


class ModelCalls:
    """The same on the model; handles are known by the path that was opened."""

    def __init__(self, fs: WritableFilesystem) -> None:
        self.fs = fs
        self._held: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self.fs, name)
        if name not in _OPENED:
            return call

        def opened(*args: Any) -> None:
            for at, of_parent in _OPENED[name]:
                path = args[at].rpartition("/")[0] if of_parent else args[at]
                self._open_directory(path)
            call(*args)

        return opened

    def _open_directory(self, path: str) -> None:
        inode = self.fs.hold(path)
        self.fs.release(inode)
        if not inode.is_dir:
            raise OSError(errno.ENOTDIR, path)

    def clean(self) -> None:
        self._open_directory("")
        if dead_subvolumes(self.fs):
            self.sync()
            self.fs.clean_subvolumes()
            self.sync()

    def sync(self) -> None:
        self._open_directory("")
        self.fs.sync()

    def hold(self, path: str) -> None:
        self._held[path] = self.fs.hold(path)

    def release(self, path: str) -> None:
        self.fs.release(self._held.pop(path))

    def release_all(self) -> None:
        for path in list(self._held):
            self.release(path)


def run(calls: Any, call: Call) -> int:
    """Make a call; return its errno, 0 for success. Deleted subvolumes are freed at once."""
    try:
        getattr(calls, call[0])(*call[1:])
        if call[0] in ("delete_subvolume", "rmdir"):
            calls.clean()
    except OSError as error:
        assert error.errno
        return error.errno
    return 0
