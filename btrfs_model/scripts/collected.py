# SPDX-License-Identifier: GPL-2.0-only
"""New files of a mount that are kept until something looks, and then made in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from btrfs_model.base.counters import uncounted
from btrfs_model.mount.names.lookup import find, may_change_names
from btrfs_model.mount.writable import WritableFilesystem

if TYPE_CHECKING:
    from btrfs_model.scripts.mounted import Mounted

_MANY: Final = 64
"""Files from which on all names of their directory are listed once, in place of looking each up."""
_MOST: Final = 1 << 17
"""Files that wait at most: each takes some 500 bytes until it is made."""


class CollectedError(Exception):
    """Of files that were made together not all could be: their commands have to run one by one."""


class Collected:
    """New files of a directory, which hold the same or are clones of others.

    Nothing else changes on any mount while there are some: who asks a mount for its filesystem has
    them made before.
    """

    def __init__(self, mounted: Mounted) -> None:
        self._mounted, self._computer = mounted, mounted.computer
        self._names: list[str] = []
        self._sources: list[str] = []
        self._modes: dict[str, int] = {}
        """Of files that were cloned."""
        self._known: set[str] = set()
        self._listed = False
        self._alike: tuple[str, bytes, bool, int, int] | None = None
        """What they have in common: directory, data, whether they are clones, mode, umask."""
        self._line = 0

    def write(self, path: str, data: bytes, mode: int) -> bool:
        """Keep a new file with some data, to be made with others; return False where it is none.

        `mode` is before the umask.
        """
        return self._keep(path, data, mode, is_clone=False)

    def clone(self, source: str, path: str) -> bool:
        """Keep a new file that is a clone of another; return False where it is none."""
        mode = self._modes.get(source)
        if mode is None:
            mode = self._mode_of(source)
            if mode is None:
                return False
        if not self._keep(path, b"", mode, is_clone=True):
            return False
        self._modes[source] = mode
        self._sources.append(source)
        return True

    def _mode_of(self, path: str) -> int | None:
        """Return the permissions of a file that may be cloned."""
        try:
            with uncounted():
                inode = find(self._mounted.made, self._mounted.inside(path))
        except OSError:
            return None
        has_data = not inode.is_dir and inode.pages.i_size > 0
        return inode.item.mode & 0o777 if has_data else None

    def _keep(self, path: str, data: bytes, mode: int, *, is_clone: bool) -> bool:
        computer, mounted = self._computer, self._mounted
        if not computer.collects or mounted.is_read_only:
            return False
        folder, _, name = path.rpartition("/")
        alike = folder, data, is_clone, mode, computer.umask
        if alike != self._alike:
            computer.flush()
            parent = mounted.inode(folder)
            may_change_names(mounted.fs, parent, path)
            self._known, self._listed, self._alike = set(), False, alike
        if len(self._known) == _MANY and not self._listed:
            self._known.update(listed(mounted.made, mounted.inside(folder)))
            self._listed = True
        if not name or name in self._known or (not self._listed and self._is_there(path)):
            self.flush()
            return False
        if not self._names:
            self._line = computer.line
        self._known.add(name)
        if len(self._names) == _MOST:
            self._make(alike)
            self._alike, self._line = alike, computer.line
        self._names.append(name)
        return True

    def _is_there(self, path: str) -> bool:
        """Whether a name is in the filesystem, without what was collected."""
        try:
            find(self._mounted.made, self._mounted.inside(path), follow=False)
        except OSError:
            return False
        return True

    def flush(self) -> None:
        """Make the files that were collected."""
        alike, self._alike = self._alike, None
        if alike is not None and self._names:
            self._make(alike)

    def _make(self, alike: tuple[str, bytes, bool, int, int]) -> None:
        self._alike = None
        names, self._names = self._names, []
        sources, self._sources, self._modes = self._sources, [], {}
        folder, data, is_clone, mode, umask = alike
        mounted, fs = self._mounted, self._mounted.made
        fs.umask = umask
        inside, plural = mounted.inside(folder), "s" * (len(names) > 1)
        what = "clone" if is_clone else "create"
        try:
            with self._computer.timed(f"{what} {len(names):,} file{plural}", self._line) as step:
                step.bytes = len(names) * len(data)
                if is_clone:
                    fs.clone_files([mounted.inside(one) for one in sources], inside, names, mode)
                elif data:
                    fs.write_files(inside, names, data, mode)
                else:
                    fs.create_files(inside, names, mode)
        except OSError as error:
            raise CollectedError(f"{mounted.where}/{folder}: {error.strerror}") from error


def listed(fs: WritableFilesystem, folder: str) -> list[str]:
    """Return the names in a directory, or where a link leads, as opendir() goes."""
    names = fs.file(f"{folder}/").names()
    return [name.decode("utf-8", "surrogateescape") for name in names]
