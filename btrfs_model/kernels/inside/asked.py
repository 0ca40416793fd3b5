# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel answers about an image that it mounts to read: streams, extents, references.

A question that fails has the errno for an answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

from btrfs_model.kernels.inside import ioctls
from btrfs_model.kernels.inside.ioctls import (
    Extent,
    Refs,
    fiemap,
    inode_paths,
    logical_ino,
    opened,
    root_id,
)
from btrfs_model.kernels.inside.listing import Listing, kernel_listing
from btrfs_model.kernels.inside.mounts import Place, mounted
from btrfs_model.kernels.inside.steps import device_of
from btrfs_model.kernels.inside.timed import Sent

_SECTOR = 512


def send_into(
    folder: Path, what: Sent, stream: int, before: Callable[[], None] = lambda: None
) -> int:
    """Send into an open file, once something was done just before; the errno."""
    parent = root_id(folder / what["parent"]) if what["parent"] is not None else 0
    clones = [root_id(folder / name) for name in what["clones"]]
    with opened(folder / what["snapshot"]) as fd:
        before()
        try:
            ioctls.send(fd, stream, parent, clones, what["flags"], what["protocol"])
        except OSError as error:
            return error.errno or 0
    return 0


def streams(place: Place, plans: Sequence[Sent], targets: Sequence[str]) -> list[int]:
    """Send into files; the errno of each, 0 for none."""
    ended = []
    with mounted(**place) as folder:
        for what, target in zip(plans, targets, strict=True):
            with open(target, "wb") as file:  # noqa: PTH123
                ended.append(send_into(folder, what, file.fileno()))
    return ended


def cold_reads(place: Place, what: Sent) -> int:
    """Send right after a mount; bytes that the device read for it."""
    with mounted(**place) as folder, opened(folder / what["snapshot"]):
        stream = os.memfd_create("stream")
        try:
            before = _sectors_read(folder)
            send_into(folder, what, stream)
            return (_sectors_read(folder) - before) * _SECTOR
        finally:
            os.close(stream)


def _sectors_read(folder: Path) -> int:
    device = Path(device_of(folder)).name
    return int(Path(f"/sys/block/{device}/stat").read_text().split()[2])


class Shared(TypedDict):
    """Extents of files, paths of inodes and how many had no room, who refers to addresses."""

    extents: list[list[Extent]]
    paths: list[tuple[list[bytes], int]]
    references: list[Refs | int]


def sharing(
    place: Place,
    files: Sequence[str],
    inodes: Sequence[tuple[str, int]],
    addresses: Sequence[tuple[int, bool]],
) -> Shared:
    """Map files as filefrag does; ask for the paths of inodes, and for references.

    An inode has the path of its subvolume with it, an address whether the place in the extent is
    ignored. ``FS_IOC_FIEMAP``, ``BTRFS_IOC_INO_PATHS``, ``BTRFS_IOC_LOGICAL_INO_V2``.
    """
    with mounted(**place) as folder:
        return Shared(
            extents=[fiemap(folder / path) for path in files],
            paths=[inode_paths(folder / subvolume, ino) for subvolume, ino in inodes],
            references=[logical_ino(folder, *address) for address in addresses],
        )


def listing(place: Place, subvolumes: list[str]) -> Listing:
    """List subvolumes."""
    with mounted(**place) as folder:
        return kernel_listing(folder, subvolumes)
