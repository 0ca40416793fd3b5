# SPDX-License-Identifier: GPL-2.0-only
"""A balance: chunks are moved, from the last to the first (``btrfs_balance()``, Linux 6.18)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from btrfs_model.base.errors import UnsupportedError
from btrfs_model.mount.mount import Mount
from btrfs_model.mount.relocation.filters import SINGLE, ArgsFlag, Filters
from btrfs_model.mount.relocation.group import (
    group_at,
    may_alloc_data_chunk,
    relocate_chunk,
)
from btrfs_model.mount.transaction import commit, start_transaction
from btrfs_model.ondisk.chunks import DUP, Chunk
from btrfs_model.ondisk.constants import (
    BTRFS_BLOCK_GROUP_DATA,
    BTRFS_BLOCK_GROUP_METADATA,
    BTRFS_BLOCK_GROUP_SYSTEM,
)
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import BALANCE_ITEM, BalanceItem, DiskBalanceArgs

_KEY: Final = (int(ObjectId.BALANCE), int(ItemType.TEMPORARY_ITEM), 0)
_FORCE: Final = 1 << 3
_MODELLED: Final = (SINGLE, DUP)


class Moved(NamedTuple):
    """A chunk that was chosen: what was used of it, and whether there was room to move it."""

    chunk: Chunk
    used: int
    done: bool


class Balanced(NamedTuple):
    """What a balance did (``struct btrfs_balance_progress``).

    `expected`: chunks that passed the filters at first.
    `considered`: chunks that were looked at.
    `completed`: chunks that were moved.
    """

    expected: int
    considered: int
    completed: int


@dataclass(frozen=True, slots=True)
class Request:
    """What to balance: the filters of a kind of chunks, None: none of these.

    `force`: metadata may get fewer copies.
    """

    data: Filters | None = None
    metadata: Filters | None = None
    system: Filters | None = None
    force: bool = False

    @classmethod
    def parse(
        cls, data: str | None, metadata: str | None, system: str | None, *, force: bool = False
    ) -> Request:
        """Read filters; without any all chunks are moved.

        Raises ValueError: for what is none, and for `system` without `force`.
        """
        if data is metadata is system is None:
            data = metadata = ""
        elif system is not None and not force:
            raise ValueError("refusing to explicitly operate on system chunks without force")
        system = metadata if system is None else system
        parsed = [None if one is None else Filters.parse(one) for one in (data, metadata, system)]
        return cls(parsed[0], parsed[1], parsed[2], force)

    @property
    def kinds(self) -> dict[int, Filters]:
        """The filters by kind."""
        named = ((BTRFS_BLOCK_GROUP_DATA, self.data), (BTRFS_BLOCK_GROUP_SYSTEM, self.system),
                 (BTRFS_BLOCK_GROUP_METADATA, self.metadata))  # fmt: skip
        return {kind: filters for kind, filters in named if filters is not None}

    def of(self, chunk: Chunk) -> tuple[int, Filters] | None:
        """Return the filters for a chunk, and the kind that they are of."""
        kinds = self.kinds
        kind = next((one for one in kinds if chunk.type & one), 0)
        return (kind, kinds[kind]) if kind else None


def chosen(fs: Mount, request: Request) -> Iterator[tuple[Chunk, bool]]:
    """Go through the chunks from the last to the first: each, and whether it is to be moved.

    A chunk is looked at when its turn has come; those that are made meanwhile lie behind.
    """
    left = {kind: filters.most for kind, filters in request.kinds.items()}
    devid = fs.raw_super.dev_item.devid
    for chunk in sorted(fs.image.chunks, key=lambda one: -one.logical):
        if chunk not in fs.image.chunks:
            continue
        found = request.of(chunk)
        wanted = found is not None and found[1].wants(
            chunk, group_at(fs, chunk.logical).used, devid
        )
        if wanted and found is not None:
            most = left[found[0]]
            wanted = most is None or most > 0
            left[found[0]] = most if most is None else most - wanted
        yield chunk, wanted


def check(fs: Mount, request: Request) -> None:
    """Refuse what the kernel does (``btrfs_balance()``), and what is not modelled.

    Raises OSError: EINVAL; UnsupportedError.
    """
    for kind, filters in request.kinds.items():
        if not filters.flags & ArgsFlag.CONVERT:
            continue
        if filters.target not in _MODELLED:
            # one device has no other
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), fs.path)
        protected = kind != BTRFS_BLOCK_GROUP_DATA and filters.target == SINGLE
        if (
            protected
            and not request.force
            and any(chunk.type & kind and chunk.type & DUP for chunk in fs.image.chunks)
        ):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), fs.path)
    mixed = BTRFS_BLOCK_GROUP_DATA | BTRFS_BLOCK_GROUP_METADATA
    if any(chunk.type & mixed == mixed for chunk in fs.image.chunks):
        kinds = request.kinds
        if kinds and (request.data is None or request.data != request.metadata):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), fs.path)
        if any(filters.flags & ArgsFlag.CONVERT for filters in kinds.values()):
            raise UnsupportedError(
                f"{fs.path}: converting groups that mix data and metadata is not modelled"
            )


def balance(fs: Mount, request: Request, moved: list[Moved] | None = None) -> Balanced:
    """Move the chunks that the filters leave.

    `moved`: gets those that were chosen.

    Raises OSError: EINVAL; ENOSPC when one could not be moved, after all others were; EIO.
    """
    check(fs, request)
    start_transaction(fs)
    flags = sum(request.kinds) | (_FORCE if request.force else 0)
    none = DiskBalanceArgs(*(0,) * 14, (0,) * 6)
    data, metadata, system = (
        none if one is None else one.disk
        for one in (request.data, request.metadata, request.system)
    )
    item = BalanceItem(flags, data, metadata, system, (0,) * 4)
    fs.writer.insert(ObjectId.ROOT_TREE, _KEY, BALANCE_ITEM.pack(item))
    commit(fs)
    fs.restripe = {
        kind: filters.target % SINGLE for kind, filters in request.kinds.items()
        if filters.flags & ArgsFlag.CONVERT
    }  # fmt: skip
    try:
        return _move_all(fs, request, [] if moved is None else moved)
    finally:
        fs.restripe = {}
        if not fs.aborted:
            start_transaction(fs, from_reserve=True)
            fs.writer.delete(ObjectId.ROOT_TREE, _KEY)
            commit(fs)


def _move_all(fs: Mount, request: Request, moved: list[Moved]) -> Balanced:
    """``__btrfs_balance()``."""
    counts = dict.fromkeys(request.kinds, 0)
    expected = 0
    for chunk, wanted in chosen(fs, request):
        if wanted and (found := request.of(chunk)) is not None:
            counts[found[0]] += 1
            expected += 1
    considered = completed = 0
    reserved = False
    for chunk, wanted in chosen(fs, request):
        considered += 1
        found = request.of(chunk)
        if not wanted or found is None or counts[found[0]] < found[1].limit_min:
            continue
        if not reserved:
            reserved = may_alloc_data_chunk(fs, chunk)
        used, done = group_at(fs, chunk.logical).used, True
        try:
            relocate_chunk(fs, chunk.logical)
        except OSError as error:
            if error.errno != errno.ENOSPC or fs.aborted:
                raise
            done = False
        moved.append(Moved(chunk, used, done))
        completed += done
    if not all(one.done for one in moved):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), fs.path)
    return Balanced(expected, considered, completed)
