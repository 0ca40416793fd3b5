# SPDX-License-Identifier: GPL-2.0-only
"""Which commits matter for an image: what its sends, FIEMAPs and fsyncs lose without each."""

from __future__ import annotations

import math
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from btrfs_model.base.counters import counting
from btrfs_model.base.errors import BtrfsModelError, UnsupportedError
from btrfs_model.behaviour import PRESETS, Behaviour
from btrfs_model.cost.causes import duration
from btrfs_model.cost.machine import Machine, chosen
from btrfs_model.cost.prediction import NoCostError, predict
from btrfs_model.experiments.numbers import times
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.questions.fiemap.api import fiemap
from btrfs_model.questions.send.ioctl import sizes_of
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.subvolume import Subvolume

COLUMNS: Final = {
    "toggle": "object", "release": "object", "operation": "object", "seconds": "float64",
    "without": "float64", "times": "float64", "bytes": "Int64", "bytes_without": "Int64",
    "told": "object",
}  # fmt: skip
FILES: Final = 100
"""Files whose extents are asked for, and files and directories that are synced."""
_TELLING: Final = 0.01
"""Of a time; less is no change."""
_TOP: Final = 256
"""Inode number of the first directory of a subvolume."""
_LARGE: Final = 1 << 30
"""Bytes in use of an image that is not loaded, as a load takes so much memory."""
_NEW: Final = ".btrfs_model-new"


@dataclass(frozen=True)
class _Done:
    """What came of an operation: its time, bytes of a stream, or why there are none."""

    seconds: float = float("nan")
    size: int | None = None
    told: str = ""


def ranking(
    path: str | os.PathLike[str], machine: str | Machine | None, step: Callable[[str], None]
) -> tuple[pd.DataFrame, list[str]]:
    """Take each commit away from the newest kernel, and see what gets slower or larger.

    Parameters
    ----------
    path : str or os.PathLike
        An image. Nothing is written to it.
    machine : str or Machine, optional
        What the times are those of; the native machine without it.
    step : callable
        Is told what runs.

    Returns
    -------
    pandas.DataFrame
        A row for each toggle and operation that differ, the largest gain first: ``toggle`` and its
        ``release``, ``operation``, its ``seconds`` on the newest kernel (less what builds on the
        toggle) and ``without`` it, how many ``times`` as long that is (NaN where one is refused),
        ``bytes`` of the stream and ``bytes_without``, ``told`` (how a call ends without it, where
        that is another way).
    list of str
        What was done, and what was left out and why.

    Raises
    ------
    BtrfsModelError
        When nothing of the image can be asked for.
    CorruptImageError
        When the image is broken where a call looks.
    """
    costs, newest = chosen(machine), PRESETS[-1]
    with Filesystem.open(path) as fs:
        operations = _operations(fs, costs)
        notes = [f"{name}: {what}" for name, (what, _) in operations.items()]
        used, changed = fs.image.superblock.bytes_used, _to_change(fs)
        if used > _LARGE:
            notes.append(f"fsync: left out, {used:,} bytes are in use and would be in memory")
        elif why := _unwritable(path, newest):
            notes.append(f"fsync: left out: {why}")
        elif changed:
            operations["fsync"] = (
                f"{len(changed)} files and directories, each after a small change",
                lambda behaviour: _fsyncs(path, changed, behaviour, costs),
            )
            notes.append(f"fsync: {operations['fsync'][0]}")
        rows = list(_rows(newest, operations, step))
    found = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    return found.sort_values("times", ascending=False, ignore_index=True, kind="stable"), notes


def shown(found: pd.DataFrame) -> pd.DataFrame:
    """Return the table as text, without what is the same in all rows."""
    told: dict[str, Callable[[float], str]] = {
        "seconds": duration, "without": duration, "times": times,
    }  # fmt: skip
    text = {name: ["" if math.isnan(one) else say(one) for one in found[name]]
            for name, say in told.items()}  # fmt: skip
    sizes = {name: ["" if pd.isna(one) else f"{one:,}" for one in found[name]]
             for name in ("bytes", "bytes_without")}  # fmt: skip
    return found.assign(**text, **sizes)


_Operations = Mapping[str, tuple[str, Callable[[str], _Done]]]


def _rows(
    newest: str, operations: _Operations, step: Callable[[str], None]
) -> Iterator[tuple[object, ...]]:
    """Yield a row for each toggle and operation that differ."""
    known: dict[tuple[str, str], _Done] = {}

    def done(name: str, behaviour: str) -> _Done:
        if (name, behaviour) not in known:
            known[name, behaviour] = operations[name][1](behaviour)
        return known[name, behaviour]

    for patch in sorted(Behaviour.parse(newest), key=str):
        step(str(patch))
        # what builds on it goes on both sides: then the commit alone is between them
        after = " - ".join([newest, *map(str, patch.needed_by)])
        for name in operations:
            if not _may_matter(str(patch), name):
                continue
            now, without = done(name, after), done(name, f"{after} - {patch}")
            longer = without.seconds / now.seconds
            if abs(longer - 1) > _TELLING or (now.size, now.told) != (without.size, without.told):
                yield (str(patch), patch.release, name, now.seconds, without.seconds, longer,
                       now.size, without.size,
                       without.told if without.told != now.told else "")  # fmt: skip


def _may_matter(toggle: str, operation: str) -> bool:
    """Whether a toggle is not one of another call alone, as its name says."""
    calls = {"send": "send", "fiemap": "fiemap", "log": "fsync"}
    call = calls.get(toggle.partition("-")[0])
    return call is None or operation.startswith(call)


def _operations(fs: Filesystem, costs: Machine) -> dict[str, tuple[str, Callable[[str], _Done]]]:
    """Return the sends and FIEMAPs of an image by name, each with what it is about."""
    subvolumes = [fs.subvolume(one) for one in fs.subvolume_ids]
    sent = sorted(
        (one for one in subvolumes if one.is_read_only), key=lambda one: one.item.ctransid
    )
    found: dict[str, tuple[str, Callable[[str], _Done]]] = {}
    if sent:
        newest = sent[-1]
        found["send"] = (f"all of {newest.path}", lambda b: _send(fs, newest, None, b, costs))
        kin = [one for one in sent[:-1] if one.item.parent_uuid == newest.item.parent_uuid]
        if kin:
            parent = kin[-1]
            found["send -p"] = (f"{newest.path} from {parent.path}",
                                lambda b: _send(fs, newest, parent, b, costs))  # fmt: skip
    place, files = _most_extents(sent[-1:] or subvolumes)
    if place is not None and files:
        found["fiemap"] = (f"{len(files)} files of {place.path or 'the top'} with most extents",
                           lambda b: _fiemaps(fs, place, files, b, costs))  # fmt: skip
    if not found and not subvolumes:
        raise BtrfsModelError(f"{fs.path}: no subvolume")
    return found


def _send(
    fs: Filesystem, snapshot: Subvolume, parent: Subvolume | None, behaviour: str, costs: Machine
) -> _Done:  # fmt: skip
    sources = [] if parent is None else [parent]
    (result,) = sizes_of(fs, [(snapshot, parent, sources)], None, behaviour=behaviour)
    if isinstance(result, OSError):
        return _Done(told=result.strerror or str(result))
    return _Done(result.time(costs).seconds, result.size)


def _most_extents(subvolumes: list[Subvolume]) -> tuple[Subvolume | None, list[int]]:
    """Return the files of the subvolume with most extents, and where they are."""
    best: tuple[Subvolume | None, list[int]] = (None, [])
    most = 0
    for one in subvolumes:
        extents = _inodes_of(one, ItemType.EXTENT_DATA)
        if len(extents) > most:
            most = len(extents)
            inos, counts = np.unique(extents, return_counts=True)
            best = one, inos[np.argsort(-counts, kind="stable")][:FILES].tolist()
    return best


def _fiemaps(
    fs: Filesystem, place: Subvolume, files: list[int], behaviour: str, costs: Machine
) -> _Done:  # fmt: skip
    with counting() as work:
        rows = sum(len(fiemap(fs, place, ino, behaviour=behaviour)) for ino in files)
    return _Done(_seconds(costs, work), told=f"{rows} extents")


def _fsyncs(
    path: str | os.PathLike[str], changed: list[tuple[str, bool]], behaviour: str, costs: Machine
) -> _Done:  # fmt: skip
    """Sync files after a write, and directories after a new name, one after the other."""
    fs = WritableFilesystem.load(path, behaviour=behaviour)
    ends: Counter[str] = Counter()
    with counting() as work:
        for name, is_folder in changed:
            try:
                if is_folder:
                    fs.create(f"{name}/{_NEW}")
                else:
                    fs.write(name, 0, b"x")
                ends[fs.fsync(name)] += 1
            except OSError as error:
                # immutable, or full
                ends[error.strerror or str(error)] += 1
    return _Done(_seconds(costs, work), told=", ".join(f"{n} {end}" for end, n in ends.items()))


def _unwritable(path: str | os.PathLike[str], behaviour: str) -> str:
    """Say why an image cannot be changed here; empty where it can."""
    try:
        WritableFilesystem.load(path, behaviour=behaviour)
    except UnsupportedError as error:
        return str(error)
    return ""


def _to_change(fs: Filesystem) -> list[tuple[str, bool]]:
    """Return paths of files and directories, some of all, and which are directories."""
    writable = [one for one in map(fs.subvolume, fs.subvolume_ids) if not one.is_read_only]
    inodes = {one.id: _inodes_of(one, ItemType.INODE_ITEM) for one in writable}
    if not writable:
        return []
    place = max(writable, key=lambda one: len(inodes[one.id]))
    found, inos = [], inodes[place.id]
    some = np.linspace(0, len(inos) - 1, min(len(inos), FILES)).astype(np.int64)
    for ino in inos[some].tolist():
        mode = place.inode(ino).mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            inside = os.fsdecode(place.path_of(ino))
            found.append(("/".join(filter(None, ("", place.path, inside))), stat.S_ISDIR(mode)))
    return found


def _inodes_of(one: Subvolume, item_type: int) -> npt.NDArray[np.uint64]:
    """Return the inode number of each item of a type."""
    items = one.fs.tree(one.id).scan()
    inodes: npt.NDArray[np.uint64] = items["objectid"].astype(np.uint64)
    wanted: npt.NDArray[np.uint64] = inodes[(items["type"] == item_type) & (inodes >= _TOP)]
    return wanted


def _seconds(costs: Machine, work: Mapping[str, Any]) -> float:
    try:
        return predict(costs, dict(work)).seconds
    except NoCostError:
        return float("nan")
