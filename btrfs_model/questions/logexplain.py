# SPDX-License-Identifier: GPL-2.0-only
"""What the log of a crashed filesystem holds, and what kernels make of it.

What a replay brings is what changes from the last commit to the filesystem after the replay. That
is also what is lost where the log is zeroed (``btrfs rescue zero-log``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.tables import frame_of_rows
from btrfs_model.behaviour import PRESETS, Behaviour, name_ranges, version
from btrfs_model.native.lease import exclusive
from btrfs_model.ondisk.items import dir_items, file_extent, inode_names
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.questions.diff import changes
from btrfs_model.questions.logreplay import replay_log
from btrfs_model.volume.data import FileExtent
from btrfs_model.volume.filesystem import Filesystem, opening
from btrfs_model.volume.subvolume import join

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from btrfs_model.volume.tree import Item

_FIRST: Final = "v5.10"
_LAST_INODE: Final = 1 << 63
_LOGGED: Final = {
    "subvolume": "object", "ino": "int64", "path": "object", "logged": "object", "size": "Int64",
    "extents": "int64", "bytes": "int64", "xattrs": "int64", "entries": "int64",
}  # fmt: skip
_REPLAYS: Final = {"kernels": "object", "outcome": "object", "changes": "int64", "by": "object"}


@dataclass(frozen=True, repr=False)
class LogExplanation:
    """What a log holds, and what becomes of it.

    Attributes
    ----------
    logged : pandas.DataFrame
        A row for each inode in the log: ``subvolume`` (path), ``ino``, ``path`` (empty where
        neither log nor subvolume has a name for it), ``logged`` (``whole``, or ``name``: only that
        it exists, with its names), ``size`` (bytes; NA where the log does not say it), ``extents``
        and ``bytes`` (of data that the log names), ``xattrs``, ``entries`` (names in a directory).
    replays : pandas.DataFrame
        A row for each outcome of a mount, from the oldest kernel on: ``kernels`` (presets),
        ``outcome`` (``replayed``, or the error with the item and the errno), ``changes`` (how many
        paths it changes), ``by`` (toggles without which the first of these kernels does as the
        kernel before it).
    changes : dict of str to pandas.DataFrame
        What each outcome brings, by ``kernels``: rows of :func:`btrfs_model.diff` from the last
        commit to after the replay, and ``subvolume``. All of it is lost where the log is zeroed.
    problem : str
        Where the log is damaged, and how; empty where it can be read.
    """

    logged: pd.DataFrame
    replays: pd.DataFrame
    changes: dict[str, pd.DataFrame]
    problem: str

    def __repr__(self) -> str:
        return f"LogExplanation({len(self.logged)} inodes, {len(self.replays)} outcomes)"

    def _repr_html_(self) -> str:
        return "".join(str(table.to_html(index=False)) for table in (self.logged, self.replays))


@checked
@opening
@exclusive
def explain_log(fs: Filesystem, *, behaviours: Sequence[str] = ()) -> LogExplanation:
    """Say what the log of a filesystem holds, and what the mounts of kernels make of it.

    Parameters
    ----------
    fs : Filesystem, str, os.PathLike or sequence of them
        After a crash, or the files it is in; it stays as it is.
    behaviours : sequence of str
        Kernels that mount it; all presets from Linux 5.10 on without any.

    Returns
    -------
    LogExplanation
        What is logged, what becomes of it, and what is lost without it.

    Raises
    ------
    BtrfsModelError
        When there is no log.
    UnknownBehaviourError
        For a kernel or toggle that there is not.
    """
    if not fs.image.superblock.log_root:
        raise BtrfsModelError(f"{fs.path}: there is no log: nothing was fsynced since the commit")
    names = behaviours or [name for name in PRESETS if version(name) >= version(_FIRST)]
    logged, problem = _logged(fs)
    groups: list[list[_Outcome]] = []
    for number, name in enumerate(names):
        outcome = _Outcome(number, Behaviour.parse(name), *_replay(fs, Behaviour.parse(name)))
        for group in groups:
            if group[0].is_as(outcome):
                group.append(outcome)
                break
        else:
            groups.append([outcome])
    by_number = {outcome.number: outcome for group in groups for outcome in group}
    rows, brought = [], {}
    for group in groups:
        first, some = group[0], {str(outcome.behaviour) for outcome in group}
        kernels = name_ranges([str(one.behaviour) for _, one in sorted(by_number.items())], some)
        by = _toggles(fs, by_number[first.number - 1], first) if first.number else []
        rows.append({"kernels": kernels, "outcome": first.said, "changes": len(first.changes),
                     "by": ", ".join(by)})  # fmt: skip
        brought[kernels] = first.changes
    return LogExplanation(frame_of_rows(_LOGGED, logged), frame_of_rows(_REPLAYS, rows), brought,
                          problem)  # fmt: skip


class _Outcome(NamedTuple):
    """What the mount of a kernel makes of a log: how it ends, and what is another then."""

    number: int
    behaviour: Behaviour
    said: str
    changes: pd.DataFrame

    def is_as(self, other: _Outcome) -> bool:
        """Whether both are the same."""
        return self.said == other.said and self.changes.equals(other.changes)


def _replay(fs: Filesystem, behaviour: Behaviour) -> tuple[str, pd.DataFrame]:
    """Return how a mount ends, and what is another then."""
    import pandas as pd

    try:
        with replay_log(fs, behaviour=behaviour) as replayed:
            tables = [
                changes(fs.subvolume(number), replayed.subvolume(number), times=True).assign(
                    subvolume=fs.subvolume_path(number)
                )
                for number in fs.log_trees
                if number in fs.subvolume_ids
            ]
    except (BtrfsModelError, OSError) as error:
        return str(error), pd.DataFrame()
    return "replayed", pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _toggles(fs: Filesystem, before: _Outcome, after: _Outcome) -> list[str]:
    """Return the toggles each of which, taken away from a kernel, gives the outcome before it."""
    newer = after.behaviour
    found = []
    for patch in sorted(newer.patches - before.behaviour.patches):
        without = Behaviour(newer.patches - {patch}, f"{newer} - {patch}")
        if before.is_as(_Outcome(-1, without, *_replay(fs, without))):
            found.append(f"{patch} ({patch.commit})")
    return found


def _logged(fs: Filesystem) -> tuple[list[dict[str, Any]], str]:
    """Read the logs as far as that goes; say where it ends."""
    rows: list[dict[str, Any]] = []
    try:
        for number, tree in fs.log_trees.items():
            inodes: dict[int, _Inode] = {}
            try:
                for item in tree.items((0, 0, 0), (_LAST_INODE, 255, 2**64 - 1)):
                    ino = item.key.objectid
                    inodes.setdefault(ino, _Inode(fs, number)).add(item)
            finally:
                rows += [inode.row(ino, inodes) for ino, inode in inodes.items()]
    except BtrfsModelError as error:
        return rows, str(error)
    return rows, ""


class _Inode:
    """What a log has of an inode."""

    def __init__(self, fs: Filesystem, subvolume: int) -> None:
        self._fs, self._subvolume = fs, subvolume
        self._counts: Counter[str] = Counter()
        self._size: int | None = None
        self._is_whole = False
        self.names: list[tuple[int, bytes]] = []

    def add(self, item: Item) -> None:
        """Count an item."""
        where = self._fs.path, self._subvolume
        kind = item.key.type
        if kind == ItemType.INODE_ITEM:
            inode = item.decode(INODE_ITEM.unpack, *where)
            # an inode of which only the existence is logged has no generation
            self._is_whole = bool(inode.generation)
            self._size = inode.size if self._is_whole else None
        elif kind in (ItemType.INODE_REF, ItemType.INODE_EXTREF):
            names = item.decode(lambda payload: inode_names(item.key, payload), *where)
            self.names += [(name.parent_objectid, name.name) for name in names]
        elif kind == ItemType.XATTR_ITEM:
            self._counts["xattrs"] += len(item.decode(dir_items, *where))
        elif kind == ItemType.DIR_INDEX:
            self._counts["entries"] += 1
        elif kind == ItemType.EXTENT_DATA:
            extent = item.decode(file_extent, *where)
            found = FileExtent.of(item, extent, self._fs.image, self._subvolume)
            self._counts["extents"] += 1
            self._counts["bytes"] += 0 if found.is_hole else found.length

    def row(self, ino: int, logged: dict[int, _Inode]) -> dict[str, Any]:
        """Return what is told of it."""
        path = self._path(ino, logged, ())
        return {
            "subvolume": self._named(), "ino": ino,
            "path": "" if path is None else path.decode("utf-8", "surrogateescape") or ".",
            "logged": "whole" if self._is_whole else "name", "size": self._size,
            **{name: self._counts[name] for name in ("extents", "bytes", "xattrs", "entries")},
        }  # fmt: skip

    def _named(self) -> str:
        try:
            return self._fs.subvolume_path(self._subvolume)
        except FileNotFoundError:
            return str(self._subvolume)

    def _path(self, ino: int, logged: dict[int, _Inode], below: tuple[int, ...]) -> bytes | None:
        """Return the path by the names of the log, or of the last commit where it has none."""
        names = logged[ino].names if ino in logged else []
        if names and ino not in below:
            above = self._path(names[0][0], logged, (*below, ino))
            return None if above is None else join(above, names[0][1])
        try:
            return self._fs.subvolume(self._subvolume).path_of(ino)
        except FileNotFoundError:
            return None
