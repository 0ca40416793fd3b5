# SPDX-License-Identifier: GPL-2.0-only
"""What a balance would do with an image: it is carried out in memory, and nothing is written."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from btrfs_model.base.arguments import checked
from btrfs_model.mount.relocation.balance import Moved, Request, balance
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.chunks import PROFILES, TYPES, flag_names
from btrfs_model.ondisk.constants import BTRFS_BLOCK_GROUP_DATA

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class BalancePlan:
    """What a balance of an image comes to.

    Attributes
    ----------
    table : pandas.DataFrame
        A row for each chunk that the filters choose, in the order of the balance: ``logical``
        (address), ``type`` (``DATA`` ...), ``profile``, ``size`` and ``used`` (bytes), ``moved``
        (whether there was room).
    considered : int
        Number of chunks that were looked at.
    data, metadata : int
        Bytes that move: of extents, and of tree blocks.
    unallocated_before, unallocated_after : int
        Bytes of the device that no chunk has.
    error : str or None
        The name of the errno that it ends with.
    """

    table: pd.DataFrame
    considered: int
    data: int
    metadata: int
    unallocated_before: int
    unallocated_after: int
    error: str | None


@checked
def balance_plan(
    image: str | os.PathLike[str],
    data: str | None = None,
    metadata: str | None = None,
    system: str | None = None,
    *,
    force: bool = False,
) -> BalancePlan:
    """Tell what a balance would do, without writing anything.

    Parameters
    ----------
    image : str or os.PathLike
        The file that the filesystem is in.
    data, metadata, system, force
        As for :meth:`.WritableFilesystem.balance`.

    Returns
    -------
    BalancePlan
        The chunks that move, and what is unallocated then.

    Raises
    ------
    ValueError
        For what is no filter.
    OSError
        EINVAL for a profile that one device does not have, or fewer copies without `force`.
    UnsupportedError
        For what the model does not balance.
    """
    import pandas as pd

    request = Request.parse(data, metadata, system, force=force)
    error = None
    moved: list[Moved] = []
    with WritableFilesystem.load(image) as fs:
        before = _unallocated(fs)
        try:
            considered = balance(fs, request, moved).considered
        except OSError as failed:
            if not moved:
                raise
            considered, error = len(fs.image.chunks), errno.errorcode[failed.errno or 0]
        after = _unallocated(fs)
    rows = [
        (one.chunk.logical, flag_names(one.chunk.type & TYPES),
         PROFILES[one.chunk.type & ~TYPES].name, one.chunk.length, one.used, one.done)
        for one in moved
    ]  # fmt: skip
    columns = ["logical", "type", "profile", "size", "used", "moved"]
    done = [one for one in moved if one.done]
    of_data = [one for one in done if one.chunk.type & BTRFS_BLOCK_GROUP_DATA]
    bytes_of_data = sum(one.used for one in of_data)
    return BalancePlan(
        pd.DataFrame(rows, columns=columns), considered, bytes_of_data,
        sum(one.used for one in done) - bytes_of_data, before, after, error,
    )  # fmt: skip


def _unallocated(fs: WritableFilesystem) -> int:
    device = fs.raw_super.dev_item
    return device.total_bytes - device.bytes_used
