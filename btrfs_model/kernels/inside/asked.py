# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel answers about an image that it mounts to read: streams, extents, references.

A question that fails has the errno for an answer.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypedDict

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
from btrfs_model.kernels.inside.mounts import Place, mounted, run
from btrfs_model.kernels.inside.steps import device_of
from btrfs_model.kernels.inside.timed import Sent
from btrfs_model.kernels.inside.used import Messages

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
    """Send right after a mount, all that it is about open; bytes that the device read for it."""
    with mounted(**place) as folder, ExitStack() as stack:
        parents = [] if what["parent"] is None else [what["parent"]]
        for name in [what["snapshot"], *what["clones"], *parents]:
            stack.enter_context(opened(folder / name))
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


KILLED: Final = -1
"""A mount in whose midst the kernel found a bug: the filesystem stays locked."""


def replayed(place: Place, subvolumes: list[str]) -> Listing | int:
    """List subvolumes after a mount, which replays logs; the errno of one that is refused.

    :data:`KILLED` where the kernel killed ``mount``.
    """
    with ExitStack() as mount:
        try:
            folder = mount.enter_context(mounted(**place))
        except OSError as error:
            return _errno_of_mount(str(error))
        return kernel_listing(folder, subvolumes)


def _errno_of_mount(said: str) -> int:
    """Return the errno that ``mount`` tells of; it has other words for EIO and EINVAL.

    Newer ones say in a second line where more may be found.
    """
    if ": status -" in said:
        return KILLED
    if "can't read superblock" in said:
        return errno.EIO
    found = [number for number in errno.errorcode if f": {os.strerror(number)}." in said]
    return found[0] if found else errno.EINVAL


def shown_options(place: Place, options: Sequence[str]) -> list[str | None]:
    """Mount a device with each of some options; what ``/proc/mounts`` shows, None: refused."""
    found: list[str | None] = []
    for one in options:
        try:
            with mounted(place["source"], place["top"], one) as top:
                lines = Path("/proc/mounts").read_text().splitlines()
                found += [line.split()[3] for line in lines if line.split()[1] == str(top)]
        except OSError:
            found.append(None)
    return found


def contents(place: Place, paths: Sequence[str]) -> tuple[list[int], list[str]]:
    """Read files; the errno of each, 0 for none, and what the kernel logs meanwhile.

    Nothing where its log may not be read.
    """
    messages, ended = Messages(), []
    with mounted(**place) as folder:
        about = f"(device {Path(device_of(folder)).name}"
        for path in paths:
            try:
                (folder / path).read_bytes()
                ended.append(0)
            except OSError as error:
                ended.append(error.errno or 0)
    return ended, [line for line in messages.new() if about in line]


def shown_groups(place: Place) -> str | None:
    """Return what ``btrfs qgroup show`` says; None without quotas."""
    with mounted(**place) as folder:
        try:
            return run("btrfs", "qgroup", "show", "--raw", str(folder))
        except OSError:
            return None
