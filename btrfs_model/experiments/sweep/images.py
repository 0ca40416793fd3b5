# SPDX-License-Identifier: GPL-2.0-only
"""Images that cells share: built once, whoever comes first, and mapped by all processes."""

from __future__ import annotations

import fcntl
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.volume.filesystem import Filesystem

_KEPT: Final = 4
"""Images that a process keeps open."""
_open: OrderedDict[Path, Filesystem] = OrderedDict()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Be the only one, of all processes, that does this; the lock ends with the process."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def opened(
    path: Path | None, build: Callable[[], Filesystem]
) -> AbstractContextManager[Filesystem]:
    """Open an image, which is built where it is not there; without a path always build it.

    A filesystem without a path ends with the context. One with a path may stay open.
    """
    if path is None:
        return build()
    return _shared(path, build)


@contextmanager
def _shared(path: Path, build: Callable[[], Filesystem]) -> Iterator[Filesystem]:
    fs = _open.pop(path, None)
    if fs is None:
        if not path.exists():
            _build(path, build)
        fs = Filesystem.open(path)
        if len(_open) >= _KEPT:
            _open.popitem(last=False)[1].close()
    _open[path] = fs
    yield fs


def _build(path: Path, build: Callable[[], Filesystem]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock")):
        if path.exists():
            return
        with build() as fs:
            assert isinstance(fs, WritableFilesystem)
            fs.save(path)
