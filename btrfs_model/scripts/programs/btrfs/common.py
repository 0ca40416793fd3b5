# SPDX-License-Identifier: GPL-2.0-only
"""What the commands of ``btrfs`` share: the mount of a path, whether it is a subvolume, sizes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from btrfs_model.ondisk.constants import (
    BTRFS_BLOCK_GROUP_DATA,
    BTRFS_BLOCK_GROUP_METADATA,
    BTRFS_BLOCK_GROUP_SYSTEM,
)
from btrfs_model.ondisk.keys import ObjectId
from btrfs_model.scripts.files import fail
from btrfs_model.scripts.program import UsageError, reason, say
from btrfs_model.volume.image import Image
from btrfs_model.volume.quotas import Quotas, quotas_of

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.scripts.mounted import Mounted
    from btrfs_model.shell.state import Shell

Command: TypeAlias = "Callable[[Computer, Shell, list[str]], int]"
KINDS: Final = {BTRFS_BLOCK_GROUP_DATA: "Data", BTRFS_BLOCK_GROUP_SYSTEM: "System",
                 BTRFS_BLOCK_GROUP_METADATA: "Metadata",
                 BTRFS_BLOCK_GROUP_DATA | BTRFS_BLOCK_GROUP_METADATA: "Data+Metadata"}  # fmt: skip
"""Names of what block groups are for."""
UNITS: Final = ("raw", "kbytes", "mbytes", "gbytes", "tbytes", "iec", "si", "human-readable")
"""Long options that choose how sizes are printed."""
_TOP: Final = 256
_SCALES: Final = {"kbytes": (10, "KiB"), "mbytes": (20, "MiB"), "gbytes": (30, "GiB"),
                  "tbytes": (40, "TiB")}  # fmt: skip
_LETTERS: Final = {"b": "raw", "k": "kbytes", "m": "mbytes", "g": "gbytes", "t": "tbytes",
                   "H": "si"}  # fmt: skip


def counted(name: str, words: list[str], least: int, most: int | None) -> None:
    """See that a command has as many arguments as it takes.

    Raises
    ------
    UsageError
        Where it has not; its text is that of btrfs-progs.
    """
    count = len(words)
    if least == most and count != most:
        plural = "" if most == 1 else "s"
        raise UsageError(f"btrfs {name}: exactly {most} argument{plural} expected, {count} given")
    if count < least:
        raise UsageError(f"btrfs {name}: not enough arguments: {count} but at least {least} "
                         "expected")  # fmt: skip
    if most is not None and count > most:
        raise UsageError(f"btrfs {name}: too many arguments: {count} but at most {most} expected")


def on_mount(computer: Computer, path: str) -> tuple[Mounted, str]:
    """Return the mount that a path is in, and the path from the top of the filesystem."""
    whole = computer.absolute(path).rstrip("/")
    found = computer.place(whole)
    if found is None:
        if computer.stat(whole) is None:
            raise fail(errno.ENOENT, path)
        raise fail(errno.ENOTTY, path)
    return found[0], found[0].inside(found[1]).rstrip("/")


def opened(computer: Computer, shell: Shell, path: str) -> Mounted | None:
    """Return the mount of a path; None, with what btrfs says of it, where there is none."""
    try:
        if computer.stat(path) is None:
            raise fail(errno.ENOENT, path)
        return on_mount(computer, path)[0]
    except OSError as error:
        say(shell, f"ERROR: not a btrfs filesystem: {path}\n" if error.errno == errno.ENOTTY
            else f"ERROR: cannot access '{path}': {reason(error)}\n")  # fmt: skip
        return None


def decoded(value: Any) -> str:
    """Return a name as text."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def pretty(size: Any, given: dict[str, str]) -> str:
    """Return a size as btrfs-progs print it (``pretty_size_mode()``): a float divides once."""
    chosen = {_LETTERS.get(one, one) for one in given}
    if "raw" in chosen:
        return str(int(size))
    for name, (shift, suffix) in _SCALES.items():
        if name in chosen:
            return f"{np.float32(size) / np.float32(1 << shift):.2f}{suffix}"
    base, suffixes = (1000, ("B", "kB", "MB", "GB", "TB", "PB")) if "si" in chosen else (
        1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))  # fmt: skip
    left, last, at = int(size), int(size), 0
    while left >= base and at < len(suffixes) - 1:
        left, last, at = left // base, left, at + 1
    return f"{np.float32(last) / np.float32(base if at else 1):.2f}{suffixes[at]}"


def is_subvolume(computer: Computer, path: str) -> bool:
    """Whether a path is a subvolume."""
    seen = computer.stat(path)
    return seen is not None and seen.is_dir and seen.ino == _TOP


def checked_subvolume(computer: Computer, shell: Shell, path: str) -> bool:
    """Whether a path is a subvolume; say so where it is not."""
    if is_subvolume(computer, path):
        return True
    there = computer.stat(path) is not None
    say(shell, "ERROR: Not a Btrfs subvolume: Invalid argument\n" if there
        else "ERROR: Could not statfs: No such file or directory\n")  # fmt: skip
    return False


def quotas_now(fs: WritableFilesystem) -> Quotas | None:
    """Return the quota groups as the running transaction has them; None without quotas."""
    number = int(ObjectId.QUOTA_TREE)
    if number not in fs.writer.tree_ids():
        return None
    return quotas_of({number: fs.writer.tree(number)}, fs.image)


@contextmanager
def image_on(computer: Computer, path: str) -> Iterator[Image | None]:
    """Open what is on a device, with its log after a crash; None where there is no filesystem."""
    device = computer.device(path)
    computer.flush()
    if device.filesystem is not None:
        yield device.filesystem.image
    elif device.crashed is not None:
        with Image.open(device.crashed.name) as image:
            yield image
    else:
        yield None
