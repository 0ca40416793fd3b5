# SPDX-License-Identifier: GPL-2.0-only
"""Two images beside each other: what differs, and what that is about.

Items are told apart by what they say, not by their bytes: where things lie, when they were written
and which uuid was drawn differ between any two filesystems that were made alike. An item whose key
is an address (an extent, a chunk, a block group) is known by the rest of what it says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from btrfs_model.base.arguments import checked
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.items import decode
from btrfs_model.ondisk.keys import ItemType, Key, ObjectId, item_type_name
from btrfs_model.ondisk.structs import SUPER_BLOCK
from btrfs_model.ondisk.superblock import SUPER_OFFSETS
from btrfs_model.questions.diff import changes
from btrfs_model.questions.dumptree.trees import select_trees
from btrfs_model.volume.compare import side_by_side
from btrfs_model.volume.filesystem import Filesystem, opening
from btrfs_model.volume.roots import tree_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

    from btrfs_model.questions.dumptree.trees import TreeRoot
    from btrfs_model.volume.device.devices import Paths
    from btrfs_model.volume.tree import Item

ASPECTS: Final = {
    "address": "where things lie, and what follows from it: free space, shapes of trees",
    "generation": "transaction numbers",
    "time": "times of files and subvolumes",
    "uuid": "uuids of the filesystem, its devices and subvolumes",
    "use": "how much is in use",
    "content": "anything else",
}
"""What a difference is about, and what that means."""
_OF: Final = {
    **dict.fromkeys(
        ("bytenr", "disk_bytenr", "root", "chunk_root", "log_root", "parent", "physical", "csum",
         "stripes.offset", "chunk_offset", "dev_item.start_offset", "super_roots", "level",
         "sys_chunk_array", "sys_chunk_array_size", "root_level", "chunk_root_level",
         "log_root_level", "extent_count", "key"), "address",
    ),
    **dict.fromkeys(
        ("generation", "transid", "generation_v2", "last_snapshot", "ctransid", "otransid",
         "stransid", "rtransid", "chunk_root_generation", "cache_generation",
         "uuid_tree_generation", "unused_log_root_transid", "sequence"), "generation",
    ),
    **dict.fromkeys(("atime", "ctime", "mtime", "otime", "stime", "rtime"), "time"),
    **dict.fromkeys(
        ("uuid", "parent_uuid", "received_uuid", "fsid", "dev_uuid", "chunk_tree_uuid",
         "metadata_uuid"), "uuid",
    ),
    **dict.fromkeys(("bytes_used", "used", "usage"), "use"),
}  # fmt: skip
_BY_ADDRESS: Final = {
    ItemType.EXTENT_ITEM: "objectid", ItemType.METADATA_ITEM: "objectid",
    ItemType.TREE_BLOCK_REF: "objectid", ItemType.SHARED_BLOCK_REF: "both",
    ItemType.EXTENT_DATA_REF: "objectid", ItemType.SHARED_DATA_REF: "both",
    ItemType.EXTENT_OWNER_REF: "objectid",
    ItemType.EXTENT_CSUM: "offset", ItemType.CHUNK_ITEM: "offset", ItemType.DEV_EXTENT: "offset",
    ItemType.BLOCK_GROUP_ITEM: "objectid", ItemType.RAID_STRIPE: "both",
    ItemType.FREE_SPACE_INFO: "both", ItemType.FREE_SPACE_EXTENT: "both",
    ItemType.FREE_SPACE_BITMAP: "both",
}  # fmt: skip
"""Types whose key is an address, and which part of it."""
_FOLLOWS: Final = {
    ItemType.FREE_SPACE_INFO, ItemType.FREE_SPACE_EXTENT, ItemType.FREE_SPACE_BITMAP,
    ItemType.METADATA_ITEM, ItemType.TREE_BLOCK_REF, ItemType.SHARED_BLOCK_REF,
}  # fmt: skip
"""Types that say where things lie and nothing else: one too many is a matter of address."""
_UUID_KEYS: Final = {ItemType.UUID_KEY_SUBVOL, ItemType.UUID_KEY_RECEIVED_SUBVOL}
_COLUMNS: Final = {
    "tree": "object", "item": "object", "change": "object", "field": "object", "aspect": "object",
    "items": "int64", "first": "object",
}  # fmt: skip
Fields = tuple[tuple[str, Any], ...]


@dataclass
class ImageDifference:
    """What two images differ in.

    ``str()`` of it is one sentence.

    Attributes
    ----------
    table : pandas.DataFrame
        A row for each kind of difference: ``tree`` (or ``superblock``), ``item`` (its type),
        ``change`` (``added``, ``removed``, ``changed``), ``field`` of the item, ``aspect``
        (of :data:`ASPECTS`), ``items`` (how many), ``first`` (key of the first).
    files : pandas.DataFrame
        Files that differ, as :func:`btrfs_model.diff` tells them, with their ``subvolume``.
    """

    table: pd.DataFrame
    files: pd.DataFrame = field(repr=False)

    @cached_property
    def aspects(self) -> Mapping[str, int]:
        """How many differences there are of each aspect."""
        counts = self.table.groupby("aspect", sort=False)["items"].sum().to_dict()
        return {name: int(counts[name]) for name in ASPECTS if name in counts}

    @property
    def is_same(self) -> bool:
        """Whether files and all that was done are the same."""
        return "content" not in self.aspects and self.files.empty

    def __str__(self) -> str:
        if not self.aspects and self.files.empty:
            return "the same"
        parts = [f"{name} ({count:,})" for name, count in self.aspects.items()]
        if not self.files.empty:
            parts.append(f"files ({len(self.files):,})")
        return f"{'the same but for' if self.is_same else 'they differ in'}: {', '.join(parts)}"


@checked
@opening
@exclusive
def image_diff(fs: Filesystem, other: Filesystem | Paths, *, files: bool = True) -> ImageDifference:
    """Compare two filesystems item by item, and their files.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        One, or the files it is in.
    other : Filesystem, str, os.PathLike or sequence of them
        The other.
    files : bool
        Compare the files of subvolumes that have the same path in both.

    Returns
    -------
    ImageDifference
        What is in `other` and not in `fs` is ``added``.

    Raises
    ------
    CorruptImageError
        When a tree of one, or data that have to be compared, are damaged.
    """
    if isinstance(other, Filesystem):
        return _compared(fs, other, files)
    with Filesystem.open(other) as opened:
        return _compared(fs, opened, files)


def _compared(fs: Filesystem, other: Filesystem, files: bool) -> ImageDifference:
    import pandas as pd

    rows = _Rows()
    rows.fields("superblock", "", "", _superblock(fs), _superblock(other))
    ours, theirs = _trees(fs), _trees(other)
    for identity in sorted({*ours, *theirs}):
        name = _name(*identity)
        if identity not in theirs or identity not in ours:
            change = "removed" if identity in ours else "added"
            rows.add(name, "", change, "", "content", "")
        else:
            _compare_trees(rows, name, ours[identity], theirs[identity])
    return ImageDifference(rows.table(), _files(fs, other) if files else pd.DataFrame())


class _Rows:
    """Differences of a kind are one row."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str, str, str, str], str] = {}
        self._items: Counter[tuple[str, str, str, str, str]] = Counter()

    def add(
        self, tree: str, item: str, change: str, field: str, aspect: str, key: str, items: int = 1
    ) -> None:
        kind = tree, item, change, field, aspect
        self._first.setdefault(kind, key)
        self._items[kind] += items

    def fields(self, tree: str, item: str, key: str, ours: Fields, theirs: Fields) -> None:
        """Add what differs between two records, each field once."""
        here, there = _by_name(ours), _by_name(theirs)
        for name in dict.fromkeys(chain(here, there)):
            if here.get(name) != there.get(name):
                self.add(tree, item, "changed", name, _aspect(name), key)

    def table(self) -> pd.DataFrame:
        import pandas as pd

        rows = [(*kind, items, self._first[kind]) for kind, items in self._items.items()]
        return pd.DataFrame({
            name: pd.Series([row[place] for row in rows], dtype=dtype)
            for place, (name, dtype) in enumerate(_COLUMNS.items())
        })  # fmt: skip


def _name(objectid: int, offset: int) -> str:
    if objectid == ObjectId.TREE_LOG and offset:
        return f"log of {tree_name(offset)}"
    return tree_name(objectid)


def _aspect(name: str) -> str:
    """Return what a field is about: by its whole name, or by the last part of it."""
    last = name.rpartition(".")[2]
    return _OF.get(name) or _OF.get(last) or ("time" if _OF.get(name.split(".")[0]) == "time"
                                               else "content")  # fmt: skip


def _by_name(fields: Fields) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = defaultdict(list)
    for name, value in fields:
        values[name].append(value)
    return values


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of a record; those of a list have one name."""
    if isinstance(value, Key):
        yield name, value
    elif hasattr(value, "_fields"):
        for part, inner in zip(value._fields, value, strict=True):
            yield from _flat(inner, f"{name}.{part}" if name else part)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _flat(inner, name)
    else:
        yield name or "bytes", value


def _superblock(fs: Filesystem) -> Fields:
    """Return the fields of the superblock; copies of roots are left out, they tell no more."""
    image = fs.image
    raw = SUPER_BLOCK.unpack(image.view, SUPER_OFFSETS[0])
    return tuple(
        (name, value)
        for name, value in _flat(raw)
        if not name.startswith(("super_roots", "padding"))
    )


def _trees(fs: Filesystem) -> dict[tuple[int, int], TreeRoot]:
    """Return all trees; a log is known by its subvolume, all others by their id alone."""
    return {
        (root.key.objectid, root.key.offset if root.key.objectid == ObjectId.TREE_LOG else 0): root
        for root in select_trees(fs.image)
    }


def _compare_trees(rows: _Rows, name: str, ours: TreeRoot, theirs: TreeRoot) -> None:
    compare = _Trees(rows, name, ours, theirs)
    for here, there in side_by_side(ours.tree, theirs.tree):
        compare.items(here, there)
    compare.finish()


class _Trees:
    """A tree in two images: what has no partner of its key waits for one that says the same."""

    def __init__(self, rows: _Rows, name: str, ours: TreeRoot, theirs: TreeRoot) -> None:
        self._rows, self._name = rows, name
        self._sides = ours.tree.image, theirs.tree.image
        self._tree = ours.key.objectid
        self._waiting: tuple[list[Item], list[Item]] = [], []

    def items(self, here: Item | None, there: Item | None) -> None:
        """Take an item of each, or of one that has no partner."""
        if here is None or there is None:
            for item, waiting in zip((here, there), self._waiting, strict=True):
                if item is not None:
                    waiting.append(item)
        elif here.data != there.data:
            self._changed(here, there)

    def finish(self) -> None:
        """Match what waits by what it says, type by type."""
        types = dict.fromkeys(item.key.type for item in chain(*self._waiting))
        for kind in types:
            ours, theirs = (
                [item for item in waiting if item.key.type == kind] for waiting in self._waiting
            )
            if kind == ItemType.EXTENT_CSUM:
                self._checksums(ours, theirs)
                continue
            pool: dict[Any, list[Item]] = defaultdict(list)
            for item in theirs:
                pool[self._says(item, 1)].append(item)
            for item in ours:
                same = pool.get(self._says(item, 0))
                if same:
                    self._moved(item, same.pop(0))
                else:
                    self._alone(item, "removed")
            for item in sorted(chain(*pool.values()), key=lambda item: item.key):
                self._alone(item, "added")

    def _decoded(self, item: Item, side: int) -> Fields:
        image = self._sides[side]

        def unpack(payload: Any) -> Any:
            return decode(item.key, payload, csum_size=image.superblock.csum_size)

        return tuple(_flat(item.decode(unpack, image.path, self._tree)))

    def _says(self, item: Item, side: int) -> Any:
        """Return what an item says, without places, transactions, times and uuids."""
        key, kind = item.key, item.key.type
        loose = _BY_ADDRESS.get(ItemType(kind), "") if kind in _BY_ADDRESS else ""
        if kind == ItemType.ROOT_ITEM:
            # that of a snapshot has the transaction in its key
            loose = "offset"
        if kind in _UUID_KEYS or loose == "both":
            identity: tuple[int, ...] = ()
        elif loose:
            identity = (key.offset if loose == "objectid" else key.objectid,)
        else:
            identity = key
        record = [
            (name, value) for name, value in self._decoded(item, side) if _aspect(name) == "content"
        ]
        return kind, identity, tuple(record)

    def _moved(self, here: Item, there: Item) -> None:
        kind = here.key.type
        aspect, part = (
            ("uuid", "key") if kind in _UUID_KEYS
            else ("generation", "key") if kind == ItemType.ROOT_ITEM
            else ("address", "key")
        )  # fmt: skip
        self._rows.add(self._name, item_type_name(kind), "changed", part, aspect, _key(here))
        self._changed(here, there)

    def _changed(self, here: Item, there: Item) -> None:
        self._rows.fields(self._name, item_type_name(here.key.type), _key(here),
                          self._decoded(here, 0), self._decoded(there, 1))  # fmt: skip

    def _alone(self, item: Item, change: str) -> None:
        aspect = "address" if item.key.type in _FOLLOWS else "content"
        name = item_type_name(item.key.type)
        self._rows.add(self._name, name, change, "", aspect, _key(item))

    def _checksums(self, ours: list[Item], theirs: list[Item]) -> None:
        """Compare checksums a sector each: their items may begin and end elsewhere."""
        here, there = (
            Counter(value for item in items for _, value in self._decoded(item, side))
            for side, items in enumerate((ours, theirs))
        )
        name = item_type_name(ItemType.EXTENT_CSUM)
        if here == there:
            self._rows.add(self._name, name, "changed", "key", "address", _key(ours[0]), len(ours))
            return
        for change, items, less in (("removed", here, there), ("added", there, here)):
            sectors = (items - less).total()
            if sectors:
                first = _key((ours if change == "removed" else theirs)[0])
                self._rows.add(self._name, name, change, "checksums", "content", first, sectors)


def _key(item: Item) -> str:
    key = item.key
    return f"({key.objectid} {item_type_name(key.type)} {key.offset})"


def _files(fs: Filesystem, other: Filesystem) -> pd.DataFrame:
    """Compare the files of subvolumes that both have, by the paths of these."""
    import pandas as pd

    ours, theirs = (
        {one.subvolume_path(number): number for number in one.subvolume_ids} for one in (fs, other)
    )
    tables = []
    for path in sorted(ours.keys() & theirs.keys()):
        table = changes(fs.subvolume(ours[path]), other.subvolume(theirs[path]), apart=True)
        table.insert(0, "subvolume", path)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)
