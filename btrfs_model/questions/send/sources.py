# SPDX-License-Identifier: GPL-2.0-only
"""Which clone source was taken for an extent, and why others were not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from btrfs_model.backref.api import iterate_extent_inodes
from btrfs_model.base.counters import uncounted
from btrfs_model.questions.send.causes import PLACE, VERDICTS, VERDICTS_BY_NAME

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from btrfs_model.questions.send.request import SendRequest

_CHOSEN: Final = VERDICTS_BY_NAME["chosen"]
_NOT_A_SOURCE: Final = VERDICTS_BY_NAME["not-a-source"]
_TOO_MANY: Final = VERDICTS_BY_NAME["too-many-references"]


def sources_table(request: SendRequest, places: NDArray[Any], causes: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each place that an extent might be cloned from.

    `request`: the send.
    `places`: those that it met, rows of ``causes.PLACE``.
    `causes`: see :attr:`.SendResult.causes`.
    Returns what :attr:`.SendResult.sources` is.
    """
    import pandas as pd

    with uncounted():
        rows = _with_others(request, places)
    commands = causes.iloc[rows["command"].astype(np.intp)].reset_index(drop=True)
    names = {root: request.fs.subvolume(root).path for root in np.unique(rows["root"]).tolist()}
    kind: pd.CategoricalDtype[str] = pd.CategoricalDtype([*VERDICTS])
    return pd.DataFrame({
        "offset": commands["offset"],
        "path": commands["path"],
        "inode": commands["inode"],
        "file_offset": commands["item_offset"],
        "source": pd.Series([names[root] for root in rows["root"].tolist()], dtype="object"),
        "source_inode": rows["ino"],
        "source_offset": rows["offset"],
        "source_length": rows["num_bytes"],
        "reason": pd.Categorical.from_codes(rows["verdict"].astype(np.intp), dtype=kind),
    })  # fmt: skip


def _with_others(request: SendRequest, places: NDArray[Any]) -> NDArray[Any]:
    """Add places in snapshots that are no clone sources, for extents that were cloned from none.

    Of an extent with too many references all places are added, as the kernel looked at none.
    """
    fs, sources = request.fs, {source.id for source in request.clone_roots}
    snapshots = {number for number in fs.subvolume_ids if fs.subvolume(number).is_read_only}
    forest, all_rows = fs.forest(sources), []
    for extent in np.split(places, np.flatnonzero(np.diff(places["command"])) + 1):
        met = extent[extent["root"] != 0]
        all_rows.append(met)
        if not len(extent) or (met["verdict"] == _CHOSEN).any():
            continue
        command, bytenr, pos = (int(extent[name][0]) for name in ("command", "bytenr", "pos"))
        too_many = extent["verdict"][0] == _TOO_MANY
        others: dict[int, tuple[int, ...]] = {}
        for ino, offset, length, root in iterate_extent_inodes(forest, bytenr, extent_item_pos=pos):
            verdict = _NOT_A_SOURCE if root not in sources else _TOO_MANY
            is_told = root in snapshots if verdict == _NOT_A_SOURCE else too_many
            if is_told and root != request.snapshot.id:
                others.setdefault(root, (command, bytenr, pos, root, ino, offset, length, verdict))
        all_rows.append(np.array([*others.values()], PLACE))
    return np.concatenate(all_rows)


def by_source(sources: pd.DataFrame) -> pd.DataFrame:
    """Count extents by the subvolume of a place and by what became of it, with what that means."""
    counted = sources.groupby(["source", "reason"], observed=True, sort=True)
    table = counted["offset"].agg(extents="nunique", places="size").reset_index()
    table["why"] = [VERDICTS[reason] for reason in table["reason"]]
    return table
