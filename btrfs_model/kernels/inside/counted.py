# SPDX-License-Identifier: GPL-2.0-only
"""What of btrfs ran in a kernel that gcov counts in: set to nothing before, kept after."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from btrfs_model.kernels.inside.asked import send_into
from btrfs_model.kernels.inside.ioctls import fiemap
from btrfs_model.kernels.inside.mounts import Place, mounted, run
from btrfs_model.kernels.inside.operations import Operations
from btrfs_model.kernels.inside.timed import Sent

_DEBUG = Path("/sys/kernel/debug")
_COUNTS = _DEBUG / "gcov"


def forget() -> None:
    """Set all counts to zero.

    Raises
    ------
    OSError
        Where the kernel does not count.
    """
    if not _COUNTS.exists():
        run("mount", "-t", "debugfs", "none", str(_DEBUG))
    (_COUNTS / "reset").write_text("1")


def keep(target: str) -> None:
    """Copy the counts of all files into a folder, which is made."""
    Path(target).mkdir()
    for folder, _, files in os.walk(_COUNTS):
        for name in files:
            if name.endswith(".gcda"):
                shutil.copyfile(Path(folder) / name, Path(target) / name)


def send(place: Place, what: Sent, target: str) -> None:
    """Send right after a mount."""
    with mounted(**place) as folder:
        stream = os.memfd_create("stream")
        try:
            send_into(folder, what, stream, forget)
            keep(target)
        finally:
            os.close(stream)


def extents(place: Place, path: str, target: str) -> None:
    """Map a file right after a mount."""
    with mounted(**place) as folder:
        fiemap(folder / path, forget)
        keep(target)


def last(place: Place, steps: Sequence[tuple[str, Mapping[str, Any]]], target: str) -> None:
    """Carry out operations; the last one, an fsync, counts."""
    operations = Operations(place)
    try:
        operations.sync()
        operations.take(steps[:-1])
        operations.before = forget
        operations.take(steps[-1:])
        keep(target)
    finally:
        operations.unmount()
