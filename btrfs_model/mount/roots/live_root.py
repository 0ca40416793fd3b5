# SPDX-License-Identifier: GPL-2.0-only
"""Root items that change: what a running transaction knows of a tree and will write."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final

from btrfs_model.ondisk.structs import ROOT_ITEM, DiskKey, InodeItem, RootItem, Timespec

_FIELDS: Final = attrgetter(*RootItem._fields)


@dataclass(slots=True)
class LiveRoot:
    """The root item of a tree, to be changed; the next commit writes it.

    Address, level, generation and bytes used are set by the commit. Other fields are those of
    :class:`~btrfs_model.ondisk.structs.RootItem`.

    `id`, `offset`: the key: (id, ROOT_ITEM, offset).
    `stored`: the payload as it was read or last written. A mount changes some of what it reads,
    which is no reason to write it.
    `dirty`: to be written even where nothing changed, as the kernel writes the root item of every
    subvolume that a transaction touched.
    """

    id: int
    offset: int
    stored: bytes
    inode: InodeItem
    generation: int
    root_dirid: int
    bytenr: int
    byte_limit: int
    bytes_used: int
    last_snapshot: int
    flags: int
    refs: int
    drop_progress: DiskKey
    drop_level: int
    level: int
    generation_v2: int
    uuid: bytes
    parent_uuid: bytes
    received_uuid: bytes
    ctransid: int
    otransid: int
    stransid: int
    rtransid: int
    ctime: Timespec
    otime: Timespec
    stime: Timespec
    rtime: Timespec
    reserved: tuple[int, ...]
    dirty: bool = False

    @classmethod
    def of(cls, objectid: int, offset: int, item: RootItem) -> LiveRoot:
        """Return the root item under the key (objectid, ROOT_ITEM, offset)."""
        live = cls(objectid, offset, b"", *item)
        live.stored = live.pack()
        return live

    @property
    def item(self) -> RootItem:
        """As it would be written now."""
        return RootItem._make(_FIELDS(self))

    def pack(self) -> bytes:
        """Return the payload; `generation_v2` says that the fields after it are valid."""
        return ROOT_ITEM.pack(self.item._replace(generation_v2=self.generation))

    @property
    def key(self) -> tuple[int, int, int]:
        """Key in the root tree."""
        return (self.id, 132, self.offset)

    @property
    def changed(self) -> bool:
        """Whether the commit has to write it."""
        return self.dirty or self.pack() != self.stored


# the dataclass and the structure are the same list of fields
assert [f.name for f in fields(LiveRoot)][3:-1] == list(RootItem._fields)
