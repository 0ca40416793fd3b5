# SPDX-License-Identifier: GPL-2.0-only
"""What is gone when devices are: chunks, tree blocks, files, and whether a mount is left.

A chunk that has enough copies is read without them. Of one that has not, what lies on the missing
devices is lost: all of a SINGLE chunk, each piece of 64 KiB of a striped one that no copy is left
of. A compressed extent with a lost piece is lost as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError, UnsupportedError
from btrfs_model.behaviour import Behaviour
from btrfs_model.native.items import select
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.chunks import Chunk, flag_names
from btrfs_model.ondisk.constants import BTRFS_STRIPE_LEN, FileExtentType
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.patches import KERNEL
from btrfs_model.questions.reads.cold import blocks_after_mount
from btrfs_model.questions.usage.items import U64, file_extents
from btrfs_model.questions.usage.places import Place
from btrfs_model.volume.filesystem import Filesystem, opening
from btrfs_model.volume.roots import tree_name

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.volume.image import Image

MOUNTS: Final = ("writable", "read-only", "none")
"""What mount is left: one with `degraded`, one with `ro` besides, or none."""


@dataclass(frozen=True)
class DeviceLost:
    """What is left of a filesystem without some of its devices.

    Attributes
    ----------
    mount : str
        ``writable`` (with the mount option `degraded`), ``read-only`` (with `ro` besides, where a
        chunk misses more devices than its profile tolerates) or ``none`` (where a mount reads a
        tree block that is lost).
    chunks : pandas.DataFrame
        A row for each chunk: ``logical``, ``length``, ``type`` (such as ``DATA|RAID1``),
        ``devices`` (how many it lies on) and ``missing`` (of them), ``lost`` (bytes of it that no
        copy is left of).
    trees : pandas.DataFrame
        A row for each tree that lost blocks: ``tree`` (its name), ``blocks``, ``lost``. What they
        held is not in `files`: ask `rescue` for the rest.
    files : pandas.DataFrame
        A row for each file that lost data, in each subvolume: ``subvolume`` (id), ``path`` (in it),
        ``inode``, ``size``, ``lost`` (bytes that read(2) fails for with EIO).
    """

    mount: str
    chunks: pd.DataFrame
    trees: pd.DataFrame
    files: pd.DataFrame


@checked
@opening
@exclusive
def device_lost(fs: Filesystem, *devids: int, behaviour: str | Behaviour = KERNEL) -> DeviceLost:
    """Tell what is gone when devices are.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        The filesystem with all its devices, or the files they are in.
    *devids : int
        Ids of those that are lost together.
    behaviour : str or Behaviour
        The kernel that mounts it.

    Returns
    -------
    DeviceLost
        The mount that is left, and what is lost.

    Raises
    ------
    BtrfsModelError
        For a device that the filesystem does not have, and without any.
    UnsupportedError
        For a filesystem with a raid-stripe-tree.
    CorruptImageError
        When a block cannot be read.

    Notes
    -----
    Source: ``btrfs_check_rw_degradable()``, ``btrfs_map_block()`` (Linux 6.18).
    """
    import pandas as pd

    image = fs.image
    if image.superblock.has_incompat("RAID_STRIPE_TREE"):
        raise UnsupportedError(f"{fs.path}: where a raid-stripe-tree puts pieces is not looked at")
    known = {member.devid for member in image.devices}
    if not devids:
        raise BtrfsModelError(f"{fs.path}: no device is named; there are {sorted(known)}")
    for devid in devids:
        if devid not in known:
            raise BtrfsModelError(f"{fs.path}: there is no device {devid} in {sorted(known)}")
    gone = _Gone(image, set(devids) | {one.devid for one in image.devices if not one.path})
    rows = []
    for one in image.chunks:
        on = gone.devids_of(one)
        lost = int(gone.lost_of(one)(np.array([one.length], np.uint64))[0])
        rows.append((one.logical, one.length, flag_names(one.type), len(on),
                     len(gone.devids.intersection(on)), lost))  # fmt: skip
    columns = ["logical", "length", "type", "devices", "missing", "lost"]
    chunks = pd.DataFrame(rows, columns=columns)
    return DeviceLost(
        _mount(fs, gone, Behaviour.parse(behaviour)), chunks, _trees(fs, gone), _files(fs, gone)
    )


class _Gone:
    """Which bytes of an image no copy is left of.

    `image`: the image, with its devices.
    `devids`: what is gone.
    """

    def __init__(self, image: Image, devids: set[int]) -> None:
        self.image, self.devids = image, devids
        self._sole = image.devices[0].devid
        self._starts = np.array([chunk.logical for chunk in image.chunks], np.uint64)

    def devids_of(self, chunk: Chunk) -> list[int]:
        """Return the devices of a chunk."""
        return sorted(set(chunk.devids) or {self._sole})

    def missing(self, chunk: Chunk) -> int:
        """Count the stripes of a chunk that are gone."""
        devids = chunk.devids or (self._sole,) * len(chunk.stripes)
        return sum(devid in self.devids for devid in devids)

    def lost_of(self, chunk: Chunk) -> Callable[[U64], U64]:
        """Return what counts the lost bytes of a chunk before some place in it."""
        devids = chunk.devids or (self._sole,) * len(chunk.stripes)
        absent = np.array([devid in self.devids for devid in devids])
        if not chunk.width:
            whole = np.uint64(bool(absent.all()))
            return lambda within: within * whole
        # the pattern comes again after as many rows as there are stripes
        rows = len(devids) if chunk.profile.parity else 1
        pieces = [
            [chunk.locate(piece * BTRFS_STRIPE_LEN, copy)[0] for copy in range(chunk.placed)]
            for piece in range(min(rows * chunk.width, -(-chunk.length // BTRFS_STRIPE_LEN)))
        ]
        lost = absent[np.array(pieces)].all(axis=1)
        if absent.sum() <= chunk.profile.parity:
            lost[:] = False
        before = np.concatenate([[0], np.cumsum(lost)]).astype(np.uint64)
        size, count = np.uint64(BTRFS_STRIPE_LEN), np.uint64(len(pieces))

        def lost_before(within: U64) -> U64:
            piece = within // size
            turn, at = piece // count, piece % count
            last = np.append(lost, False)[at.astype(np.intp)]
            found: U64 = (
                turn * before[-1] + before[at.astype(np.intp)]
            ) * size + within % size * last
            return found

        return lost_before

    def lost(self, start: U64, length: U64) -> U64:
        """Count the lost bytes of each range of logical addresses, which lies in one chunk."""
        found = np.zeros(len(start), np.uint64)
        chunk = np.searchsorted(self._starts, start, "right") - 1
        for number in np.unique(chunk).tolist():
            one = self.image.chunks[number]
            if not self.missing(one):
                continue
            here = chunk == number
            count = self.lost_of(one)
            within = start[here] - np.uint64(one.logical)
            found[here] = count(within + length[here]) - count(within)
        return found

    def lost_blocks(self, logical: U64) -> npt.NDArray[np.bool_]:
        """Tell which tree blocks are lost."""
        return self.lost(logical, np.full(len(logical), self.image.nodesize, np.uint64)) > 0


def _mount(fs: Filesystem, gone: _Gone, behaviour: Behaviour) -> str:
    writable, read_only, none = MOUNTS
    # where a block is lost, no chunk that has it is tolerated: so the mount is read-only at most
    read = blocks_after_mount(fs, [], behaviour, writable=False)
    if gone.lost_blocks(np.array(sorted(read), np.uint64)).any():
        return none
    # a chunk without a tree block or extent counts as well
    tolerated = all(gone.missing(one) <= one.profile.tolerated for one in fs.image.chunks)
    return writable if tolerated else read_only


def _trees(fs: Filesystem, gone: _Gone) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for objectid, tree in fs.trees.items():
        logical = np.array([block.logical for block in tree.blocks()], np.uint64)
        lost = int(gone.lost_blocks(logical).sum())
        if lost:
            rows.append((tree_name(objectid), len(logical), lost))
    return pd.DataFrame(rows, columns=["tree", "blocks", "lost"])


def _files(fs: Filesystem, gone: _Gone) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for number in fs.subvolume_ids:
        sub = fs.subvolume(number)
        columns = sub.tree.scan()
        items = select(columns, columns["type"] == ItemType.EXTENT_DATA)
        extents = file_extents(fs.image, items, number)
        data = (extents["disk_bytenr"] != 0) & (extents["type"] == FileExtentType.REG)
        extents = extents[data]
        packed = extents["compression"] != 0
        # of a compressed extent all is read
        start = extents["disk_bytenr"] + np.where(packed, 0, extents["offset"]).astype(np.uint64)
        length = np.where(packed, extents["disk_num_bytes"], extents["length"]).astype(np.uint64)
        hit = np.flatnonzero(gone.lost(start, length))
        if not len(hit):
            continue
        place = Place.of(sub, None)
        for ino in np.unique(extents["inode"][hit]).tolist():
            size = sub.inode(ino).size
            here = hit[extents["inode"][hit] == ino]
            # what lies behind the end of the file is not read
            there = np.minimum(
                extents["length"][here],
                np.maximum(size, extents["start"][here]) - extents["start"][here],
            )
            lost = np.where(packed[here], there, gone.lost(start[here], there))
            if lost.sum():
                rows.append((number, place.text(ino), ino, size, int(lost.sum())))
    columns_of = ["subvolume", "path", "inode", "size", "lost"]
    table = pd.DataFrame(rows, columns=columns_of)
    return table.sort_values(["subvolume", "path"], ignore_index=True)
