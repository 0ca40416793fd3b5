# SPDX-License-Identifier: GPL-2.0-only
"""Many new files that are clones of others, at once.

The result is that of a loop::

    for source, name in zip(sources, names):
        fs.create(directory + "/" + name)
        fs.clone_range(source, directory + "/" + name, 0, 0, 0)

with the same items in the same leaves, the same references and times. The files become no inodes
in memory. As many are made in one call of C as find room without a look for it; what needs more (a
source with holes, inline or with data that wait, quota groups) is made by the two calls.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from btrfs_model.mount.bulk.rows import (
    TICKS,
    hands_down,
    insert_files,
    new_item,
    new_names,
    note_entries,
    tick,
)
from btrfs_model.mount.files.file_item import align, extents_between
from btrfs_model.mount.inode import update_root_times
from btrfs_model.mount.live_inode import NS, InodeFields, LiveInode
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.names.lookup import Path, as_bytes, find
from btrfs_model.mount.names.namei import new_items
from btrfs_model.mount.space.block_group import stays_enough
from btrfs_model.native.bulk import CLONED_EXTENT
from btrfs_model.native.stream import SPAN
from btrfs_model.ondisk.constants import InodeFlag
from btrfs_model.ondisk.items import InlineExtent
from btrfs_model.ondisk.structs import INODE_ITEM

_MOST: Final = 2048
_CLONE_ITEMS: Final = 3
"""As :mod:`.reflink` reserves for an extent."""
_TOUCHED: Final = 2
_CLONED: Final = 2
"""Times that a clone takes: before the first extent, and for each."""
_NO_EXTENTS: Final = np.zeros(0, CLONED_EXTENT)


class _Source(NamedTuple):
    """A file that is cloned: its inode, and its extents as another file gets them."""

    inode: LiveInode
    rows: npt.NDArray[Any]

    @property
    def is_plain(self) -> bool:
        """Whether it can be cloned together with others."""
        return len(self.rows) > 0

    @property
    def newest(self) -> int:
        """The transaction of the newest extent."""
        return int(self.rows["item"]["generation"].max())


def clone_files(
    fs: Mount, sources: Sequence[Path], directory: Path, names: Sequence[Path], mode: int,
    create: Callable[[bytes, int], int], clone: Callable[[Path, bytes], None],
) -> None:  # fmt: skip
    """Make files, each a clone of another.

    `sources`: paths of regular files that are not empty, none of them among the new ones.
    `directory`, `names`: where they are made, and in which order.
    `mode`: permissions before the umask.
    `create`, `clone`: the calls for one file.
    Raises OSError: as :func:`.rows.create_files`; as a clone does, with some made then.
    """
    if len(sources) != len(names):
        raise ValueError("there is not one source for each name")
    parent, raw = new_names(fs, directory, names)
    known: dict[Path, _Source] = {}
    plain = not (fs.quotas.enabled or fs.machine.asynchronous or hands_down(fs, parent))
    done, start = 0, as_bytes(directory) + b"/"
    while done < len(raw):
        wanted = range(done, min(done + _MOST, len(raw)))
        some = [_source(fs, known, sources[at]) for at in wanted] if plain else []
        many = _plain(some)
        if many:
            many = _that_fit(fs, parent, some[:many])
        if many:
            _clone_some(fs, parent, raw[done : done + many], some[:many], new_item(fs, mode))
            done += many
            continue
        create(start + raw[done], mode)
        clone(sources[done], start + raw[done])
        known.pop(sources[done], None)
        done += 1


def _plain(sources: list[_Source]) -> int:
    """Return how many of the first are plain."""
    return next((at for at, one in enumerate(sources) if not one.is_plain), len(sources))


def _source(fs: Mount, known: dict[Path, _Source], path: Path) -> _Source:
    found = known.get(path)
    if found is None:
        inode = find(fs, path)
        rows = None
        item = inode.item
        if stat.S_ISREG(item.mode) and not (
            inode.pages.is_dirty or item.flags & InodeFlag.NODATASUM):  # fmt: skip
            rows = _extents(fs, inode)
        known[path] = found = _Source(inode, _NO_EXTENTS if rows is None else rows)
    return found


def _extents(fs: Mount, inode: LiveInode) -> npt.NDArray[Any] | None:
    """Return the extents of a file up to its size; None where it has others than regular ones."""
    end, at, found = align(inode.pages.i_size, fs.sectorsize), 0, []
    for extent in extents_between(fs, inode, 0, end):
        if extent.start != at or isinstance(extent.item, InlineExtent) or not extent.disk_bytenr:
            return None
        at = min(extent.end, end)
        found.append((extent.start, tuple(extent.regular._replace(num_bytes=at - extent.start))))
    return np.array(found, CLONED_EXTENT) if found and at == end else None


def _that_fit(fs: Mount, parent: LiveInode, sources: list[_Source]) -> int:
    """Return how many find room without a look for it."""
    rsv = fs.reservations
    if rsv.chunks != fs.raw_super.dev_item.bytes_used:
        return 0
    unit = rsv.item + rsv.ref
    created = new_items(parent, stat.S_IFREG) * unit
    each = [created + len(one.rows) * _CLONE_ITEMS * unit for one in sources]
    many = int(np.searchsorted(rsv.lent + np.cumsum(each), rsv.room, "left"))
    while many and not stays_enough(fs, sum(2 + len(one.rows) for one in sources[:many])):
        many //= 2
    return many


def _clone_some(
    fs: Mount, parent: LiveInode, names: list[bytes], sources: list[_Source], item: InodeFields
) -> None:
    """Make clones by one call of C."""
    fs.join_transaction()
    # a source that comes again has its extents again
    counts = np.fromiter((len(one.rows) for one in sources), np.uint64, len(sources))
    spans = np.zeros(len(sources), SPAN)
    spans["size"] = counts
    spans["at"][1:] = np.cumsum(counts)[:-1]
    extents = np.empty(int(counts.sum()), CLONED_EXTENT)
    np.concatenate([one.rows for one in sources], out=extents)
    step = tick(fs)
    ticks = TICKS + _TOUCHED + _CLONED * counts
    times = np.uint64(fs.clock) + (np.cumsum(ticks) - ticks) * np.uint64(step)
    end = fs.clock + int(ticks.sum()) * step
    inos = insert_files(fs, parent, names, item, times, len(names), (extents, spans))
    note_entries(fs, parent, int(times[-1]))
    fs.delayed.update_items(parent.root, inos.tolist(), _items(fs, item, sources, times, ticks))
    fs.clock = end - step
    update_root_times(fs, parent.root)
    rsv = fs.reservations
    created = new_items(parent, stat.S_IFREG) * len(names)
    rsv.lent += (created + _CLONE_ITEMS * len(extents)) * (rsv.item + rsv.ref)
    for one in {id(one): one for one in sources}.values():
        if one.newest == fs.transid:
            one.inode.log.last_reflink_trans = fs.transid


def _items(
    fs: Mount, item: InodeFields, sources: list[_Source], times: npt.NDArray[np.uint64],
    ticks: npt.NDArray[np.uint64],
) -> list[bytes]:  # fmt: skip
    """Return the inode items of clones, as they are in the end."""
    items = np.frombuffer(item.pack() * len(sources), INODE_ITEM.dtype).copy()
    last = times + (ticks - np.uint64(_CLONED)) * np.uint64(tick(fs))
    for fields, when in ((("atime", "otime"), times), (("ctime", "mtime"), last)):
        for field in fields:
            items[field]["sec"], items[field]["nsec"] = np.divmod(when, np.uint64(NS))
    items["sequence"] = 1 + np.fromiter((len(one.rows) for one in sources), np.uint64)
    items["size"] = [one.inode.pages.i_size for one in sources]
    items["nbytes"] = [int(one.rows["item"]["num_bytes"].sum()) for one in sources]
    return [one.tobytes() for one in items]
