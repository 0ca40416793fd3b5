# SPDX-License-Identifier: GPL-2.0-only
"""What the deletion of several subvolumes together frees, and which to delete for so many bytes.

What two snapshots share and nobody else has goes with the second of them: the sum of what each has
alone is less. Data are exact. Metadata are the blocks of subvolumes: those that only the set has,
less those that are copied where a subvolume that stays loses the entry of one and shares its blocks
with others. The trees of extents, checksums and roots shrink too, or grow; they are not told here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.ondisk.items import dir_items, root_ref
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.questions.usage.references import Keepers, References
from btrfs_model.questions.usage.smallest import freed_by, smallest_set
from btrfs_model.volume.filesystem import Filesystem, opening
from btrfs_model.volume.subvolume import Subvolume

if TYPE_CHECKING:
    import pandas as pd

_TOP: int = int(ObjectId.FS_TREE)


@checked
@opening
@exclusive
def freed(
    fs: Filesystem,
    *subvolumes: str | bytes | int | Subvolume,
    at_least: int | None = None,
) -> pd.DataFrame:
    """Say what the deletion of subvolumes together frees, or find which to delete for some bytes.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        Where they are, or the files it is in.
    *subvolumes : str, bytes, int or Subvolume
        Paths or ids of those that are deleted. With `at_least` of those to choose from; without any
        these are all that are read-only and can be deleted.
    at_least : int, optional
        Bytes. The set that is answered frees so many at least, with as few subvolumes as there can
        be. Of up to 22 to choose from it is the smallest, and of these the one whose youngest
        member is oldest. Of more it is the smallest where all that several keep is kept by
        snapshots of one subvolume that follow each other; else it comes of a search that may miss
        the smallest one.

    Returns
    -------
    pandas.DataFrame
        A row for each subvolume of the set, the oldest first (bytes): ``id``, ``path``, ``alone``
        (what it alone would free); and together with all rows above it, so that the last row is of
        the whole set, ``data`` (on disk), ``metadata`` (blocks of subvolumes, int64: copies of
        blocks that stay can be more) and ``freed``, the sum. Data are exact once the kernel has
        freed them (``btrfs subvolume sync``); deleted subvolumes that wait for it keep nothing
        here. With `at_least` also ``fewest``: no set of fewer subvolumes can be enough.

    Raises
    ------
    SubvolumeNotFoundError
        When there is no such subvolume.
    BtrfsModelError
        For a subvolume that cannot be deleted (the top, the default one, one with others inside
        that stay), and when all together do not free so much.
    ValueError
        When none is named and none is wanted, and for less than 0 bytes.
    CorruptImageError
        When a block cannot be read, or a file extent is impossible or refers to no extent.
    """
    if not subvolumes and at_least is None:
        raise ValueError("name the subvolumes to delete, or how many bytes they are to free")
    if at_least is not None and at_least < 0:
        raise ValueError(f"at least {at_least} bytes: there are no less than 0")
    named = sorted({fs.subvolume(one).id for one in subvolumes})
    kept = _Kept(fs)
    for number in named:
        why = kept.by(number, set(named))
        if why:
            raise BtrfsModelError(f"{fs.path}: subvolume {number} cannot be deleted: {why}")
    if not subvolumes:
        named = [
            number for number in fs.subvolume_ids
            if fs.subvolume(number).is_read_only and not kept.by(number, set())
        ]  # fmt: skip
    found = _Freed(fs, named)
    if at_least is None:
        return found.table(named)
    return found.smallest(at_least)


def _default(fs: Filesystem) -> int:
    """Return the subvolume that a mount takes (``get_default_subvol_objectid()``)."""
    key = (int(ObjectId.ROOT_TREE_DIR), int(ItemType.DIR_ITEM), name_hash(b"default"))
    item = fs.root_tree.get(key)
    entries = [] if item is None else item.decode(dir_items, fs.path, int(ObjectId.ROOT_TREE))
    return next((one.location.objectid for one in entries if one.name == b"default"), _TOP)


class _Kept:
    """Why subvolumes cannot be deleted (``btrfs_delete_subvolume()``)."""

    def __init__(self, fs: Filesystem) -> None:
        self._default = _default(fs)
        self._inside: dict[int, set[int]] = {}
        for number in fs.subvolume_ids:
            entry = fs.subvolume(number).entry
            if entry is not None:
                self._inside.setdefault(entry.parent, set()).add(number)

    def by(self, number: int, deleted: set[int]) -> str:
        """Say why one cannot be deleted together with others; empty when it can."""
        if number == _TOP:
            return "it is the top"
        if number == self._default:
            return "it is the default one"
        inside = self._inside.get(number, set()) - deleted
        return f"subvolume {min(inside)} is inside, and stays" if inside else ""


class _Freed:
    """What each set of some subvolumes alone keeps.

    `named` (list of int): the subvolumes.
    `members`, `weights`: as :func:`~btrfs_model.questions.usage.smallest.smallest_set` has them.
    """

    def __init__(self, fs: Filesystem, named: list[int]) -> None:
        self.fs, self.named = fs, named
        self._nodesize = fs.image.nodesize
        self._all = References(fs)
        self._keepers = Keepers(self._all)
        length = self._all.extents.length.astype(np.int64)
        blocks = np.concatenate(self._keepers.blocks)
        bits = np.concatenate([self._keepers.extents, blocks])
        data = np.concatenate([length, np.zeros(len(blocks), np.int64)])
        metadata = np.where(np.arange(len(bits)) < len(length), 0, self._nodesize)
        everybody = self._keepers.set_of(named)
        inside = ~(bits & ~everybody).any(axis=1) & bits.any(axis=1)
        parts, which = np.unique(bits[inside], axis=0, return_inverse=True)
        self._data, self._metadata = (
            _add_up(which.reshape(-1), values[inside], len(parts)) for values in (data, metadata)
        )
        at = np.searchsorted(self._keepers.ids, np.array(named, np.int64))
        words, shift = at // 64, (at % 64).astype(np.uint64)
        self.members = (parts[:, words] >> shift & np.uint64(1)).astype(np.bool_)
        self.weights = self._data + self._metadata

    def smallest(self, at_least: int) -> pd.DataFrame:
        """Return the table of a set that frees so much."""
        wanted, fewest = at_least, None
        while True:
            smallest = smallest_set(self.members, self.weights, wanted, self._lines())
            if smallest is None:
                self._refuse(at_least)
            table = self.table([self.named[number] for number in smallest.chosen])
            fewest = smallest.fewest if fewest is None else fewest
            # what is copied counts against the set, and no part of it knows that
            short = at_least - int(table["freed"].iloc[-1] if len(table) else 0)
            if short <= 0:
                table["fewest"] = np.uint64(fewest)
                return table
            wanted += short

    def _lines(self) -> npt.NDArray[np.intp]:
        """Return numbers: alike for subvolumes that are snapshots of the same one."""
        above = [self.fs.subvolume(one).parent_uuid or b"" for one in self.named]
        lines: npt.NDArray[np.intp] = np.unique(
            np.array([one.hex() for one in above], np.str_), return_inverse=True
        )[1]
        return lines

    def _refuse(self, at_least: int) -> NoReturn:
        if not self.named:
            why = "no subvolume is read-only and can be deleted"
        else:
            most = int(self.table(self.named)["freed"].iloc[-1])
            whose = "the subvolume frees" if len(self.named) == 1 else (
                f"all {len(self.named)} subvolumes free"
            )  # fmt: skip
            why = f"{whose} {most} bytes, and {at_least} are wanted"
        raise BtrfsModelError(f"{self.fs.path}: {why}")

    def table(self, ids: list[int]) -> pd.DataFrame:
        """Return the table of a set of the subvolumes, which ascends."""
        import pandas as pd

        index = [self.named.index(number) for number in ids]
        grown = np.zeros((len(ids), len(self.named)), np.bool_)
        alone = np.zeros_like(grown)
        for row, number in enumerate(index):
            grown[row:, number] = alone[row, number] = True
        data = freed_by(self.members, self._data, grown)
        copies = [self._copied(set(ids[: row + 1])) for row in range(len(ids))]
        metadata = freed_by(self.members, self._metadata, grown) - copies
        return pd.DataFrame(
            {
                "id": np.array(ids, np.uint64),
                "path": pd.Series([self.fs.subvolume(one).path for one in ids], dtype="object"),
                "alone": freed_by(self.members, self.weights, alone)
                - [self._copied({one}) for one in ids],
                "data": data,
                "metadata": metadata.astype(np.int64),
                "freed": (data + metadata).astype(np.int64),
            }
        )

    def _copied(self, deleted: set[int]) -> int:
        """Return the bytes of blocks that are copied where entries of subvolumes go.

        A block on the way to an entry is copied when others that stay have it too.
        """
        leaves: dict[int, set[int]] = {}
        for number in deleted:
            entry = self.fs.subvolume(number).entry
            if entry is not None and entry.parent not in deleted:
                leaves.setdefault(entry.parent, set()).update(self._leaves_of(number))
        copied = 0
        for parent, changed in leaves.items():
            others = ~(self._keepers.set_of(sorted(deleted)) | self._keepers.set_of([parent]))
            ways = self._all.forest.above(np.array(sorted(changed), np.uint64), parent)
            for way, bits in zip(ways, self._keepers.blocks, strict=True):
                copied += int((bits[way] & others).any(axis=1).sum())
        return copied * self._nodesize

    def _leaves_of(self, number: int) -> set[int]:
        """Return the leaves of the subvolume above that have the entry of one and its directory."""
        entry = self.fs.subvolume(number).entry
        assert entry is not None
        tree = self.fs.subvolume(entry.parent).tree
        key = (number, int(ItemType.ROOT_BACKREF), entry.parent)
        back = self.fs.root_tree.get(key)
        keys = [
            (entry.dirid, int(ItemType.INODE_ITEM), 0),
            (entry.dirid, int(ItemType.DIR_ITEM), name_hash(entry.name)),
        ]
        if back is not None:
            ref = back.decode(root_ref, self.fs.path, int(ObjectId.ROOT_TREE))
            keys.append((entry.dirid, int(ItemType.DIR_INDEX), ref.sequence))
        items = [tree.get(key) for key in keys]
        return {item.block for item in items if item is not None}


def _add_up(
    which: npt.NDArray[np.intp], values: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.int64]:
    total = np.zeros(count, np.int64)
    np.add.at(total, which, values)
    return total
