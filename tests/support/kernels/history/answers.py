# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel says of an image that it mounts read-only: called in it.

Of Python's library alone: this also runs in guests that have nothing else.
"""

import stat
from pathlib import Path
from typing import Any, TypedDict

from btrfs_model.kernels.inside import ioctls
from btrfs_model.kernels.inside.listing import kernel_listing
from btrfs_model.kernels.inside.mounts import run
from history import wide

Send = tuple[int, int, list[int], int, int]
"""Snapshot, parent or 0, clone sources, flags, version."""


class Questions(TypedDict):
    """What :func:`answers` is called with.

    `subvolumes` are paths by id, as text; `logical` are addresses of data.
    """

    image: str
    options: str
    subvolumes: dict[str, str]
    sends: list[Send]
    logical: list[int]
    streams: str


def _of_files(subvolume: Path, paths: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """FIEMAP by one path of each file, and all paths by inode."""
    maps, names = {}, {}
    for path in paths:
        status = (subvolume / path).lstat()
        if (ino := str(status.st_ino)) in names:
            continue
        names[ino] = ioctls.inode_paths(subvolume, status.st_ino)
        if stat.S_ISREG(status.st_mode):
            maps[path] = ioctls.fiemap(subvolume / path)
    return maps, names


def _sent(folder: Path, send: Send, stream: Path) -> int:
    """Send into a file; the errno."""
    _, parent, clones, flags, protocol = send
    try:
        with ioctls.opened(folder) as subvolume, stream.open("wb") as file:
            ioctls.send(subvolume, file.fileno(), parent, clones, flags, protocol)
    except OSError as error:
        return error.errno or 0
    return 0


def answers(asked: Questions, top: str) -> dict[str, Any]:
    """Mount an image and ask."""
    said: dict[str, Any] = {"fiemap": {}, "paths": {}, "refs": [], "du": {}, "sends": []}
    # a replacement that failed leaves a filesystem that is mounted in no other way
    with wide.mounted(asked["image"], top, "ro,degraded,subvolid=5" + asked["options"]) as folder:
        said["subvolumes"] = run("btrfs", "subvolume", "list", "-a", top).splitlines()
        said["groups"] = run("sh", "-c", f"btrfs qgroup show --raw {top} 2>&1 || true").splitlines()
        said["listing"] = kernel_listing(folder, list(asked["subvolumes"].values()))
        for path, listed in said["listing"].items():
            within = [name for name, record in listed.items() if record]
            said["fiemap"][path], said["paths"][path] = _of_files(folder / path, within)
            shown = run("btrfs", "filesystem", "du", "--raw", "-s", str(folder / path))
            said["du"][path] = [int(word) for word in shown.splitlines()[-1].split()[:3]]
        for number, send in enumerate(asked["sends"]):
            stream = Path(asked["streams"]) / f"stream-{number}"
            path = asked["subvolumes"][str(send[0])]
            said["sends"].append((_sent(folder / path, send, stream), str(stream)))
        for logical in asked["logical"]:
            said["refs"].append([ioctls.logical_ino(folder, logical, one) for one in (False, True)])
    return said


def scrub(image: str, top: str) -> bool | None:
    """Let a kernel go through an image, and repair what it can; whether it found errors.

    None where it gives up, as it does where it cannot end what it had begun.
    """
    with wide.mounted(image, top, "rw,degraded,subvolid=5"):
        try:
            return "no errors found" not in run("btrfs", "scrub", "start", "-B", top)
        except OSError as error:
            if "Read-only file system" not in str(error):
                raise
            return None
