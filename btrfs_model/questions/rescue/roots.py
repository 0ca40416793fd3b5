# SPDX-License-Identifier: GPL-2.0-only
"""The states of a filesystem within reach: each is the root of a tree of roots.

They come from the copies of the superblock, from the four backups in each, and from a scan of the
devices, which finds what nothing points at any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from btrfs_model.base.errors import BtrfsModelError, CorruptImageError
from btrfs_model.ondisk.items import root_ref
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.ondisk.structs import HEADER, ROOT_ITEM
from btrfs_model.ondisk.superblock import SUPER_OFFSETS, SUPER_SIZE, parse_superblock
from btrfs_model.questions.rescue.scan import tops
from btrfs_model.questions.rescue.tree import SalvagedTree
from btrfs_model.volume.checksums import DataChecksums
from btrfs_model.volume.roots import Root, is_subvolume_id
from btrfs_model.volume.subvolume import SubvolumeName
from btrfs_model.volume.tree import Item

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.questions.rescue.image import DamagedImage

_TOP_DIR: Final = 256
_COLUMNS: Final = {"generation": "UInt64", "bytenr": "UInt64", "level": "Int64",
                   "source": "object", "state": "object"}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A root of a tree of roots: where its block is, and what told of it."""

    bytenr: int
    generation: int
    level: int
    source: str = field(compare=False, default="")


@dataclass
class State:
    """A filesystem as a root has it, as far as it can be read.

    `place`: of its root; None where there is no tree of roots.
    `problems`: what is wrong with trees: path, kind, problem, where.
    """

    image: DamagedImage
    place: Place | None
    problems: list[tuple[str, str, str, str]] = field(default_factory=list)

    @cached_property
    def root_tree(self) -> SalvagedTree | None:
        """What there is of the tree of roots."""
        if self.place is None:
            return None
        place = (self.place.bytenr, self.place.generation, self.place.level)
        return SalvagedTree(self.image, ObjectId.ROOT_TREE, *place)

    def _items(self, kind: int) -> Iterator[Item]:
        if self.root_tree is None:
            return
        columns = self.root_tree.scan()
        rows = columns["type"] == kind
        names = ("objectid", "offset", "block", "slot", "position", "size")
        for objectid, offset, block, slot, position, size in zip(
            *(columns[name][rows].tolist() for name in names), strict=True
        ):
            data = self.image.block_bytes[position : position + size]
            yield Item(Key(objectid, kind, offset), data, block, slot)

    @cached_property
    def roots(self) -> dict[int, Root]:
        """The root items of trees that are alive, by id; where they are lost, what a scan tells."""
        roots = {}
        for item in self._items(ItemType.ROOT_ITEM):
            try:
                root = Root.of(item, self.image.path, ObjectId.ROOT_TREE)
            except CorruptImageError as error:
                self.problems.append(("", "root item", str(error.strerror), str(item.key)))
                continue
            if not root.is_dead:
                roots[root.id] = root
        if self.root_tree is None or not self.root_tree.is_whole:
            roots |= {root.id: root for root in self._scanned(roots)}
        return roots

    def _scanned(self, known: dict[int, Root]) -> Iterator[Root]:
        image = self.image
        newest = self.place.generation if self.place else 2**64 - 1
        for owner in np.unique(image.found["owner"]).tolist():
            if owner in known or not (is_subvolume_id(owner) or owner == ObjectId.CSUM_TREE):
                continue
            for bytenr, generation, level in tops(image.view, image.superblock, image.found, owner):
                if generation > newest:
                    continue
                item = ROOT_ITEM.unpack(bytes(ROOT_ITEM.size))._replace(
                    bytenr=bytenr, generation=generation, level=level, refs=1, root_dirid=_TOP_DIR
                )
                what = (f"its root item is lost: the newest block of the tree that a scan found is "
                        f"taken, of generation {generation}; it may have been deleted")  # fmt: skip
                self.problems.append(("", "root item", what, f"tree {owner}, block {bytenr}"))
                yield Root(Key(owner, ItemType.ROOT_ITEM, 0), item, 0, 0)
                break

    @cached_property
    def names(self) -> dict[int, SubvolumeName]:
        """Where each subvolume has its name, by its id."""
        names = {}
        for item in self._items(ItemType.ROOT_BACKREF):
            try:
                ref = root_ref(item.data)
            except PayloadError:
                continue
            names[item.key.objectid] = SubvolumeName(item.key.offset, ref.dirid, ref.name)
        return names

    @cached_property
    def subvolume_ids(self) -> list[int]:
        """Ids of the subvolumes, ascending."""
        return sorted(number for number in self.roots if is_subvolume_id(number))

    @cached_property
    def trees(self) -> dict[int, SalvagedTree]:
        """What there is of the trees of files and of that of checksums, by id."""
        wanted = [*self.subvolume_ids, int(ObjectId.CSUM_TREE)]
        return {number: SalvagedTree.at(self.roots[number].tree(self.image))
                for number in wanted if number in self.roots}  # fmt: skip

    @cached_property
    def checksums(self) -> DataChecksums:
        """The checksums that can be read."""
        return DataChecksums(self.image, self.trees.get(int(ObjectId.CSUM_TREE)))

    def is_unknown(self, logical: int, length: int) -> bool:
        """Whether the checksum of some data may have been in what is lost of their tree."""
        tree = self.trees.get(int(ObjectId.CSUM_TREE))
        if tree is None:
            return True
        low, high = ((ObjectId.EXTENT_CSUM, ItemType.EXTENT_CSUM, at)
                     for at in (logical, logical + length))  # fmt: skip
        if not any(lost.low < high and low < lost.high for lost in tree.lost):
            return False
        _, present = self.checksums.stored(logical, length)
        return not present.all()

    @cached_property
    def lost(self) -> int:
        """How many tree blocks are lost, or of another time; what is below them is not counted."""
        return sum(len(tree.lost) for tree in (self.root_tree, *self.trees.values()) if tree)

    @property
    def is_whole(self) -> bool:
        """Whether all of the trees of roots, files and checksums can be read."""
        return not self.lost and int(ObjectId.FS_TREE) in self.trees

    @property
    def has_files(self) -> bool:
        """Whether there is something of a subvolume."""
        return any(len(self.trees[number].leaves) for number in self.subvolume_ids)

    @property
    def is_usable(self) -> bool:
        """Whether all subvolumes are known, and there is something of the top level."""
        top = self.trees.get(int(ObjectId.FS_TREE))
        known = self.root_tree is not None and self.root_tree.is_whole
        return known and top is not None and len(top.leaves) > 0

    @property
    def shown(self) -> str:
        """How much can be read, in words."""
        if self.root_tree is not None and not len(self.root_tree.leaves):
            return self.root_tree.lost[0].problem
        if self.is_whole:
            return "whole"
        if not self.lost:
            return "there is no tree of files"
        return f"{self.lost} tree block{'s are' if self.lost > 1 else ' is'} lost"


def _superblocks(image: DamagedImage) -> Iterator[tuple[str, Place | None, str]]:
    """Yield what each copy of the superblock tells: its name, a root, or what is wrong."""
    for member in image.devices:
        device = f" of device {member.devid}" if image.has_several else ""
        for offset in SUPER_OFFSETS:
            if offset + SUPER_SIZE > member.size:
                break
            name = f"superblock at {offset}{device}"
            block = bytes(image.view[member.start + offset : member.start + offset + SUPER_SIZE])
            try:
                sb = parse_superblock(block, offset, image.path, any_flags=True)
            except BtrfsModelError as error:
                yield name, None, str(getattr(error, "strerror", None) or error)
                continue
            if sb.tree_fsid != image.superblock.tree_fsid:
                yield name, None, "it is of another filesystem"
                continue
            yield name, Place(sb.root, sb.generation, sb.root_level, name), ""
            for number, backup in enumerate(sb.backups):
                if backup.tree_root:
                    yield name, Place(backup.tree_root, backup.tree_root_gen,
                                      backup.tree_root_level, f"backup {number}"), ""  # fmt: skip


def places(image: DamagedImage, *, scan: bool) -> list[Place]:
    """Return the roots within reach, the newest first, each once.

    `scan`: those that a scan finds, too.
    """
    known: dict[Place, Place] = {}
    for _, place, _ in _superblocks(image):
        if place is not None:
            known.setdefault(place, place)
    if scan:
        found = tops(image.view, image.superblock, image.found, ObjectId.ROOT_TREE)
        for top in found:
            known.setdefault(Place(*top), Place(*top, "scan"))
    return sorted(known.values(), key=lambda one: -one.generation)


def roots_table(image: DamagedImage) -> pd.DataFrame:
    """Return the table of :func:`btrfs_model.rescue_roots`."""
    import pandas as pd

    rows: list[tuple[Any, ...]] = [
        (pd.NA, pd.NA, pd.NA, name, problem)
        for name, place, problem in _superblocks(image) if place is None
    ]  # fmt: skip
    for place in places(image, scan=True):
        state = State(image, place)
        rows.append((place.generation, place.bytenr, place.level, place.source, state.shown))
    columns = zip(*rows, strict=True) if rows else [()] * len(_COLUMNS)
    pairs = zip(_COLUMNS.items(), columns, strict=True)
    return pd.DataFrame({name: pd.Series(list(values), dtype=kind)
                         for (name, kind), values in pairs})  # fmt: skip


def choose(image: DamagedImage, wanted: int | None) -> State:
    """Return the state of a root: that which is asked for, or the newest that is usable.

    That is one whose tree of roots reads whole, and of whose files there is something. Where there
    is none, it is the newest with a subvolume; where there is none, that without a tree of roots.
    What was not taken, and an older one that reads whole, are among its problems.

    Raises BtrfsModelError: when there is no such root.
    """
    if wanted is not None:
        return State(image, _named(image, wanted))
    tried: list[State] = []
    for state in _states(image):
        tried.append(state)
        if state.is_usable:
            break
    else:
        some = (state for state in tried if state.has_files)
        return _said(next(some, State(image, None)), tried)
    chosen = tried[-1]
    if not chosen.is_whole:
        older = (state for state in _states(image) if _is_older(state, chosen) and state.is_whole)
        whole = next(older, None)
        if whole is not None and whole.place is not None:
            number = whole.place.generation
            chosen.problems.append((
                "", "root", f"an older root, of generation {number}, reads whole: there are the "
                "files of that time", f"--root {number} takes it"))  # fmt: skip
    return _said(chosen, tried)


def _states(image: DamagedImage) -> Iterator[State]:
    """Yield the states of all roots, the newest first; those that a scan finds come last."""
    had: set[Place] = set()
    for scan in (False, True):
        for place in places(image, scan=scan):
            # what is newer was never committed
            is_new = image.superblock.copies and place.generation > image.superblock.generation
            if not is_new and place not in had:
                had.add(place)
                yield State(image, place)


def _is_older(state: State, than: State) -> bool:
    return bool(state.place and than.place and state.place.generation < than.place.generation)


def _said(chosen: State, tried: list[State]) -> State:
    """Say which newer roots were not taken."""
    for state in tried:
        if state is chosen or state.place is None or _is_older(state, chosen):
            continue
        instead = f"generation {chosen.place.generation}" if chosen.place else "no root"
        number = state.place.generation
        chosen.problems.insert(0, (
            "", "root", f"generation {number} cannot be used ({state.shown}): {instead} is taken",
            f"block {state.place.bytenr}; --root {number} takes it"))  # fmt: skip
    return chosen


def _named(image: DamagedImage, wanted: int) -> Place:
    known = places(image, scan=True)
    for place in known:
        if wanted in (place.generation, place.bytenr):
            return place
    try:
        block = image.block(wanted, tree=ObjectId.ROOT_TREE)
    except CorruptImageError:
        have = ", ".join(str(place.generation) for place in known) or "none"
        raise BtrfsModelError(
            f"{image.path}: there is no root {wanted}; generations within reach: {have}"
        ) from None
    *_, generation, _, _, level = HEADER.struct.unpack_from(block)
    return Place(wanted, generation, level, "named")
